"""Residuals: the random numbers of a synthetic file, centred in each cell and scaled to the covariance of its draw.

They come from a published seed, a block at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from svysynth.core.engine import BLOCK, Engine, map_blocks
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.streams import Streams
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.clusters_given_weights import KnownClusters
from svysynth.mechanisms.noisy_sums.implied_tables import LARGEST_VARIANCE, CellDraws
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import PublicWeights


@outlined
@dataclass(frozen=True, eq=False)
class FileRows:
    """The rows of a file: the rows of a group are consecutive, and so are those of a cell."""

    ends: Integers
    """The end of each group's rows."""
    cell: Integers
    """The cell of each group."""

    @classmethod
    def of(cls, facts: PublicFacts) -> FileRows:
        """The rows that follow from the public facts."""
        if (np.diff(facts.cell) < 0).any():
            raise ValueError("groups are not in the order of cells")
        return cls(np.cumsum(facts.count), facts.cell)

    def __call__(self, piece: slice) -> tuple[Integers, Integers]:
        """Group and cell of each row."""
        group = np.searchsorted(self.ends, np.arange(piece.start, piece.stop), side="right")
        return group, self.cell[group]


@outlined
@dataclass(frozen=True)
class Normal:
    """Two standard normal numbers for each row. Those of a block depend only on the seed, the draw and the block."""

    streams: Streams
    draw: int
    rows: FileRows

    def __call__(self, piece: slice) -> tuple[Integers, Integers, Floats]:
        """Group, cell and the numbers of each row."""
        generator = self.streams.generator(f"rows of draw {self.draw}", piece.start // BLOCK)
        return *self.rows(piece), generator.standard_normal((2, piece.stop - piece.start))


@outlined
@dataclass(frozen=True)
class Scored:
    """The score of each row's weight, and the first of its normal numbers."""

    normal: Normal | Clustered
    weights: PublicWeights
    score: Floats
    """The score of each weight in the list."""

    @property
    def rows(self) -> FileRows:
        """The rows of the file."""
        return self.normal.rows

    def __call__(self, piece: slice) -> tuple[Integers, Integers, Floats]:
        """Group, cell and the two numbers of each row."""
        group, cell, z = self.normal(piece)
        return group, cell, np.stack([self.score[self.weights.of_rows(piece)], z[0]])


@outlined
@dataclass(frozen=True, eq=False)
class Residual:
    """Residuals of t and v: normal numbers, centred in their cell and scaled to a given scatter."""

    normal: Normal | Scored | Clustered
    centre: Floats
    """The means of the two numbers: 2 × cell."""
    factor: Floats

    def __call__(self, piece: slice) -> tuple[Integers, Integers, Floats]:
        """Group, cell and the residuals of each row."""
        group, cell, z = self.normal(piece)
        return group, cell, self.factor @ (z - self.centre[:, cell])


@outlined
@dataclass(frozen=True, eq=False)
class Clustered:
    """Two numbers for each row: an effect of its cluster, and its own, whose covariances are those of a draw."""

    normal: Normal
    within: Floats
    """A root of the covariance within clusters."""
    effect: Floats
    """2 × cluster."""
    cluster: Integers
    """The cluster of each group."""

    @classmethod
    def of(cls, normal: Normal, one: CellDraws, cluster: Integers) -> Clustered:
        """Effects with exactly the covariance between clusters of a draw, from the seed of its file."""
        if one.between is None:
            raise ValueError("the draw has no clusters")
        between = one.between[0][[[0, 1], [1, 2]]]
        both = np.array([[one.outcome_variance[0], one.covariance[0]], [one.covariance[0], one.weight_variance[0]]])
        return cls(normal, _root(both - between), _root(between) @ _effects(normal, cluster, 2), cluster)

    @classmethod
    def of_outcome(cls, normal: Normal, known: KnownClusters) -> Clustered:
        """Effects on the first number alone, with exactly the variance between clusters of the one draw."""
        (variance,), (between,) = known.spreads
        effect = math.sqrt(between) * _effects(normal, known.cluster, 1)
        within = np.diag([math.sqrt(variance - between), 1.0])
        return cls(normal, within, np.concatenate([effect, np.zeros_like(effect)]), known.cluster)

    @property
    def rows(self) -> FileRows:
        """The rows of the file."""
        return self.normal.rows

    def __call__(self, piece: slice) -> tuple[Integers, Integers, Floats]:
        """Group, cell and the two numbers of each row."""
        group, cell, z = self.normal(piece)
        return group, cell, self.within @ z + self.effect[:, self.cluster[group]]


def _effects(normal: Normal, cluster: Integers, kinds: int) -> Floats:
    """Numbers for each cluster with mean zero, variance one and no covariance: kind × cluster."""
    shape = kinds, int(cluster.max()) + 1
    effect = normal.streams.generator(f"clusters of draw {normal.draw}").standard_normal(shape)
    effect -= effect.mean(axis=1, keepdims=True)
    return np.asarray(np.linalg.solve(np.linalg.cholesky(np.atleast_2d(np.cov(effect))), effect), float)


def _root(covariance: Floats) -> Floats:
    """A root of a covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def match_covariance(
    normal: Normal | Clustered, one: CellDraws, size: Integers, transform: Transform, engine: Engine
) -> Residual:
    """Residuals with the covariance of a draw within cells."""
    centre, scatter = _centred(normal, size, engine)
    variances = np.array([one.outcome_variance[0], one.weight_variance[0]])
    correlation = float(np.clip(one.covariance[0] / math.sqrt(variances.prod()), -1, 1))
    spread = np.sqrt(np.minimum(variances, [LARGEST_VARIANCE if transform == "log" else np.inf, LARGEST_VARIANCE]))
    wanted = np.array([[spread[0], 0.0], [correlation * spread[1], math.sqrt(1 - correlation**2) * spread[1]]])
    freedom = size.sum() - (size > 0).sum()
    return Residual(normal, centre, math.sqrt(freedom) * wanted @ np.linalg.inv(np.linalg.cholesky(scatter)))


def match_scores(normal: Scored, one: CellDraws, size: Integers, transform: Transform, engine: Engine) -> Residual:
    """Residuals of t with the variance, and the covariance with scores, of a draw within cells."""
    centre, ((scores, across), (_, own)) = _centred(normal, size, engine)
    freedom = size.sum() - (size > 0).sum()
    slope, shared = (one.covariance[0] * freedom / scores, across / scores) if scores > 0 else (0.0, 0.0)
    variance = min(one.outcome_variance[0], LARGEST_VARIANCE if transform == "log" else np.inf)
    rest = max(variance - slope * one.covariance[0], 0.0) * freedom
    factor = math.sqrt(rest / (own - shared * across))
    return Residual(normal, centre, np.array([[slope - factor * shared, factor]]))


def _centred(normal: Normal | Scored | Clustered, size: Integers, engine: Engine) -> tuple[Floats, Floats]:
    """The means of two numbers in each cell, and their scatter within cells."""
    blocks = map_blocks(engine, _Scatter(normal), int(size.sum()))
    sums, scatter = np.zeros((2, len(size))), np.zeros((2, 2))
    for cells, own, products in blocks:
        sums[:, cells] += own
        scatter += products
    centre = sums / np.maximum(size, 1)
    return centre, scatter - (centre * size) @ centre.T


@outlined
@dataclass(frozen=True)
class _Scatter:
    """For a block: its cells, the sums of the normal numbers in each, and the sums of their products."""

    normal: Normal | Scored | Clustered

    def __call__(self, piece: slice) -> tuple[Integers, Floats, Floats]:
        _, cell, z = self.normal(piece)
        starts = cell_starts(cell)
        return cell[starts], np.add.reduceat(z, starts, axis=1), z @ z.T


def cell_starts(cell: Integers) -> Integers:
    """The positions where the rows of a cell begin in a block."""
    return np.flatnonzero(np.diff(cell, prepend=-1))
