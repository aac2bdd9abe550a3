"""Between clusters: sums of squares between the clusters of the design, which are measured once, with noise.

T and V of a record, less the public centre of its cell, add up to R and Q in its cluster of n_j records. The centres
follow from sums that were measured with noise before. R and Q are clamped to ±D·n_j, so that no cluster's mean is
further than D from its centre. What is measured is

    Σ_j R²/n_j,    Σ_j RQ/n_j,    Σ_j Q²/n_j,    each term rounded down to a whole number.

If a respondent's answers are replaced by others, R and Q of one cluster change by r and q with |r| + |q| ≤ 2·LARGEST.
Clamping makes no change larger. R² changes by 2·M·|r| at most, where M ≤ D·n_j is the absolute value of the mean of
the old and the new R, RQ by M·(|r| + |q|), and Q² by 2·M·|q|. So the three sums change by at most
3·D·(|r| + |q|) ≤ 6·D·LARGEST together, and by one more for each that is rounded. The sensitivity is set to
6·D·LARGEST + 6, so that half of it covers answers that are blanked out. n_j cancels out, so a large cluster needs no
more noise than a small one.

If weights are public, T alone is measured, and the one sum is Σ_j R²/n_j. If one outcome is replaced by another, R of
one cluster changes by r with |r| ≤ 2·LARGEST, because each T is at most LARGEST. So R² changes by at most
2·D·n_j·|r|, and the sum by 4·D·LARGEST, and by one more because it is rounded. The sensitivity is set to
4·D·LARGEST + 2, of which half covers an outcome that is blanked out (|r| ≤ LARGEST). What the weights tell about the
outcome's means in clusters is public, and is allowed for after the measurement (`posterior/outcome_clusters.py`).

Which records share a cluster is public, as cells are. Sums for each cluster would need noise in each of them. For 60
clusters of 20 records and ε = 5 (blanked out) with 12% of ε, the error of the variance between clusters, as a share of
the variance of a record, is 0.03 with sums of squares and 0.10 with sums for each cluster if that variance is 0.05. It
is 0.06 and 0.12 if that variance is 0.2. Without noise it is 0.02 and 0.04 (bench/between_clusters.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.engine import Engine, sum_blocks
from svysynth.core.grouping import Integers, whole_sums
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scaling
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST, Answers, outcome_numbers, whole_numbers
from svysynth.survey.design import DesignIndex

WIDE, USUAL_FAR = 2.0, 0.15
"""D is this many standard deviations of a cluster's mean if the variance between clusters is USUAL_FAR, in scales."""
PUBLIC_FAR = 0.6
"""The same if weights are public. There is less noise then: T has a smaller error with this limit than with a tighter
one, and where most of the variance is between clusters, T can still be told from what clamping cuts off."""
DEVIATION = 0.1
"""The usual deviation of a cell's mean from main effects, in scales."""


@outlined
@dataclass(frozen=True, eq=False)
class Between:
    """The noisy sums of squares between clusters."""

    centre: Integers
    """The public centre of each cell in whole numbers: cell × 2, or cell × 1 if weights are public."""
    limit: int
    """D."""
    squares: Integers
    """ΣR²/n_j, ΣRQ/n_j, ΣQ²/n_j; if weights are public, ΣR²/n_j alone."""
    scale: float
    """The scale of the noise."""


def limit_of(sizes: ClusterSizes, weights_public: bool = False) -> float:
    """D in scales."""
    return WIDE * math.sqrt((PUBLIC_FAR if weights_public else USUAL_FAR) + len(sizes.own) / sizes.own.sum())


def between_sensitivity(limit: int, weights_public: bool = False) -> int:
    """The sensitivity of the three sums for changed answers, or of the one sum for a changed outcome."""
    return 4 * limit * LARGEST + 2 if weights_public else 6 * limit * LARGEST + 6


def centre_cells(facts: PublicFacts, sums: Integers, noise: float, step: float) -> Integers:
    """The centres of cells, from the noisy sums of each: main effects, and what is left of each cell, shrunk."""
    size, x = np.maximum(facts.size, 1)[:, None], facts.indicators()
    mean, variance = sums * step / size, 1 / size + 2 * (noise * step / size) ** 2
    weighted = x / (variance + DEVIATION**2)
    beta = np.linalg.solve(x.T @ weighted + np.eye(x.shape[1]), weighted.T @ mean)
    shrunk = (mean - x @ beta) * DEVIATION**2 / (DEVIATION**2 + variance)
    largest = float(LARGEST)
    return np.rint(np.clip((x @ beta + shrunk) / step, -largest, largest)).astype(np.int64)


def sum_squares(
    answers: Answers, scaling: Scaling, cell: Column, index: DesignIndex, centre: Integers, limit: int, engine: Engine
) -> Integers:
    """The three sums, or the one if weights are public, exactly. Confidential."""
    if index.psu is None:
        raise ValueError("the design has no clusters")
    once = _ByCluster(answers, scaling, cell, index.psu, int(index.psus.sum()), centre)
    sums, size = sum_blocks(engine, once, len(index.stratum))
    return clamped_squares(sums, size, limit)


def clamped_squares(sums: Integers, size: Integers, limit: int) -> Integers:
    """The three sums, or the one, from the sums in each cluster (cluster × 2, or × 1) and its number of records."""
    most = (limit * size)[:, None]
    clamped = np.clip(sums, -most, most).astype(object).T  # Python's integers: squares may exceed 64 bits
    pairs = combinations_with_replacement(clamped, 2)
    return np.array([int((one * other // size).sum()) for one, other in pairs], np.int64)


@outlined
@dataclass(frozen=True)
class _ByCluster:
    """For a block: the sums of T and V, or of T, less their centres in each cluster, and the number of its records."""

    answers: Answers
    scaling: Scaling
    cell: Column
    psu: Column
    clusters: int
    centre: Integers

    def __call__(self, piece: slice) -> tuple[Integers, Integers]:
        t, v = self.answers(piece)
        scaling = self.scaling
        whole = outcome_numbers(t, scaling)[np.newaxis] if scaling.alone else whole_numbers(t, v, scaling)
        psu, off = self.psu[piece], whole - self.centre[self.cell[piece]].T
        sums = [whole_sums(psu, self.clusters, values, 2 * LARGEST) for values in off]
        return np.stack(sums, axis=1), np.bincount(psu, minlength=self.clusters).astype(np.int64)
