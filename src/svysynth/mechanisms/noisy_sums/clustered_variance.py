"""Clustered variance: the design variance of figures that posterior draws imply, if the design has clusters.

Under a draw, two records of a cluster have the covariance T of (t, v), and records of different clusters have none. So
with linearised values z = w(1_d(a + b·y) − c), ζ_j the sum over cluster j of the means of z in its cells, and J_h the
number of clusters of stratum h, the expectation of the usual estimator Σ_h J_h/(J_h − 1)·Σ_j (z_j − z̄_h)² is

    Σ_h J_h/(J_h − 1)·Σ_j (ζ_j − ζ̄_h)² + Σ_c n_c Var z + Σ_(pairs of records of a cluster) Cov(z, z').

With a finite population correction what belongs to stratum h is multiplied by 1 − f_h.

The second term is that of a design without clusters. The first and the third are quadratic forms in figures of cells,
whose matrices follow from the public sizes of clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes

LARGEST_COVARIANCE = 10.0
"""The largest covariance that is exponentiated, so that extreme draws do not overflow."""
MOST_SHARE = 0.99
"""The largest share of any variance of records that may be between clusters."""


@outlined
@dataclass(frozen=True, eq=False)
class PairMoments:
    """Covariances of two records of a cluster, relative to the mean weights of their cells: one for each draw.

    They are those of w, of w with the second variable, and of the second variable, which is wy relative to the mean of
    wy if the outcome has a logarithm. If not, it is w(y − ȳ) and w stands for w times the rest of z.
    """

    of_weight: Floats
    of_both: Floats
    of_outcome: Floats
    log: bool

    @classmethod
    def of(cls, between: Floats, transform: Transform) -> PairMoments:
        """The moments for lognormal weights, and lognormal or normal outcomes."""
        t, across, v = between.T
        v = np.minimum(v, LARGEST_COVARIANCE)
        if transform == "log":
            t, across = np.minimum(t, LARGEST_COVARIANCE), np.clip(across, -LARGEST_COVARIANCE, LARGEST_COVARIANCE)
            return cls(np.expm1(v), np.expm1(v + across), np.expm1(v + 2 * across + t), True)
        return cls(np.expm1(v), np.exp(v) * across, np.exp(v) * (across**2 + t), False)


@outlined
@dataclass(frozen=True, eq=False)
class ClusteredVariance:
    """The first and the third term for the linearised values of a statistic."""

    sizes: ClusterSizes
    weight: Floats
    """The mean weight: draw × cell."""
    outcome: Floats
    """The weighted mean outcome: draw × cell."""
    pairs: PairMoments

    def __call__(self, domain: Integers, in_base: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
        """The two terms: draw × domain; `domain` is that of each cell, and c is zero in cells outside the base."""
        of, found, based = self.pairs, np.empty_like(a), self.weight * in_base
        everywhere = _Form(self.sizes.design, based), _Form(self.sizes.pairs, based)
        for number in range(a.shape[1]):
            own = np.flatnonzero(domain == number)
            weight, outcome = self.weight[:, own], self.outcome[:, own]
            constant, slope = weight * a[:, number, None], weight * b[:, number, None]
            mean = constant + slope * outcome
            first, second = (constant, slope * outcome) if of.log else (mean, slope)
            off = c[:, number]
            between = everywhere[0].square(own, mean, off)
            one, both, other = everywhere[1].squares(own, first, second, off)
            within = of.of_weight * one + 2 * of.of_both * both + of.of_outcome * other
            found[:, number] = np.maximum(between, 0.0) + within
        return found

    def of_values(self, level: Floats, slope: Floats) -> Floats:
        """The two terms for z = w(level + slope·y) with values for each cell: draw × cell. One for each draw."""
        of, constant, part = self.pairs, self.weight * level, self.weight * slope * self.outcome
        mean = constant + part
        first, second = (constant, part) if of.log else (mean, self.weight * slope)
        between = ((mean @ self.sizes.design) * mean).sum(axis=1)
        by_first, by_second = first @ self.sizes.pairs, second @ self.sizes.pairs
        one, both, other = (
            (x * y).sum(axis=1) for x, y in ((by_first, first), (by_first, second), (by_second, second))
        )
        within = of.of_weight * one + 2 * of.of_both * both + of.of_outcome * other
        return np.asarray(np.maximum(between, 0.0) + within)


@outlined
@dataclass(frozen=True, eq=False)
class _Form:
    """A quadratic form in x − c·w, where x is zero outside some cells and w is not."""

    gram: Floats
    weight: Floats

    @cached_property
    def everywhere(self) -> Floats:
        """The matrix times w: draw × cell."""
        return self.weight @ self.gram

    def square(self, own: Integers, x: Floats, off: Floats) -> Floats:
        """The form of x − c·w."""
        return self.squares(own, x, x, off)[0]

    def squares(self, own: Integers, x: Floats, y: Floats, off: Floats) -> tuple[Floats, Floats, Floats]:
        """The form of x − c·w, that of x − c·w with y, and that of y."""
        inside = self.gram[np.ix_(own, own)]
        of_x, of_y = x @ inside, y @ inside
        one, both, other = (of_x * x).sum(axis=1), (of_x * y).sum(axis=1), (of_y * y).sum(axis=1)
        if not off.any():
            return one, both, other
        whole, part = (self.everywhere * self.weight).sum(axis=1), self.everywhere[:, own]
        one = one - 2 * off * (part * x).sum(axis=1) + off**2 * whole
        return one, both - off * (part * y).sum(axis=1), other


def kept_inside(between: Floats, covariance: Floats) -> Floats:
    """T of each draw, made smaller where a variance between clusters is nearly all of that of records: draw × 3."""
    root = np.linalg.cholesky(_matrices(covariance))
    inverse = np.linalg.inv(root)
    share, axes = np.linalg.eigh(inverse @ _matrices(between) @ inverse.transpose(0, 2, 1))
    axes = root @ axes
    found = (axes * np.clip(share, 0.0, MOST_SHARE)[:, None]) @ axes.transpose(0, 2, 1)
    return np.stack([found[:, 0, 0], found[:, 0, 1], found[:, 1, 1]], axis=1)


def _matrices(entries: Floats) -> Floats:
    return entries[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
