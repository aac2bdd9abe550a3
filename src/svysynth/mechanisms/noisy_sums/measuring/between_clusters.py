"""Between clusters: sums of squares between the clusters of the design, which are measured once, with noise.

What a record adds to weighted sums, Y and U (`scaling.weighted_excess`), less the public centre of its cell, adds up to
R and Q in its cluster of n_j records. These sums are what standard errors of means and counts are made of, whatever the
shape of the effects of clusters. The centres follow from sums that were measured with noise before. What is measured is

    Σ_j φ(R)/n_j,    Σ_j (φ(R + Q) − φ(R − Q))/4n_j,    Σ_j φ(Q)/n_j,    each term rounded down to a whole number.

φ is Huber's function with the limit D·n_j: φ(x) = x² up to the limit, and beyond it the tangent of x² goes on as a
straight line. So a cluster that is far from all others still counts, and the middle sum is ΣRQ/n_j without a limit.

If a respondent's answers are replaced by others, R and Q of one cluster change by r and q with |r| + |q| ≤ 2·LARGEST.
The slope of φ is at most 2·D·n_j. So φ(R) changes by 2·D·n_j·|r| at most, φ(Q) by 2·D·n_j·|q|, and the middle term by
2·D·n_j·(|r + q| + |r − q|)/4 = D·n_j·max(|r|, |q|). The three sums change by at most 3·D·(|r| + |q|) ≤ 6·D·LARGEST
together, and by one more for each that is rounded. The sensitivity is set to 6·D·LARGEST + 6, so that half of it covers
answers that are blanked out. n_j cancels out, so a large cluster needs no more noise than a small one.

If weights are public, the one sum is Σ_j φ(R)/a_j, each term rounded down, and φ has the limit D·a_j. a_j is the sum of
u in the cluster, in parts of 1/UNIT, where u is the public weight relative to the mean weight. So each cluster has a
limit in proportion to its weight. R is the sum of Y − C over the records of the cluster, with C = u·e rounded and e the
public centre of the cell. If one outcome is replaced by another, R of one cluster changes by r with |r| ≤ 2·LARGEST,
because |Y| ≤ LARGEST and C stays the same. So φ(R) changes by at most 2·D·a_j·|r|, and the sum by 4·D·LARGEST, and by
one more because it is rounded. The sensitivity is set to 4·D·LARGEST + 2, of which half covers an outcome that is
blanked out (|r| ≤ LARGEST). What the weights tell about the outcome's means in clusters is public, and is allowed for
after the measurement (`posterior/squares_given_weights.py`).

Which records share a cluster is public, as cells are. Sums for each cluster would need noise in each of them. For 60
clusters of 20 records and ε = 5 (blanked out) with 17.5% of ε, the error of the variance between clusters, as a share
of the variance of a record, is 0.03 with sums of squares and 0.08 with sums for each cluster if that variance is 0.05.
It is 0.05 and 0.11 if that variance is 0.2. Without noise it is 0.02 and 0.04 (bench/between_clusters.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.engine import Engine, sum_blocks
from svysynth.core.grouping import Floats, Integers, whole_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scaling, largest_excess
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST, Answers, weighted_numbers
from svysynth.survey.design import DesignIndex

WIDE, USUAL_FAR = 2.0, 0.15
"""D is this many standard deviations of a cluster's mean if USUAL_FAR of a record's variance is between clusters."""
PUBLIC_WIDE, PUBLIC_FAR = 3.0, 0.6
"""The same if weights are public. There is less noise then, so that the limit can be wider: few clusters that are far
from all others then count nearly as they should, and T can be told where most of the variance is between clusters."""
WIDER = 0.5
"""If weights are public, a record may add this many scales more than to weighted sums."""
UNIT = 1024
"""The number of parts of a mean weight in which the weights of clusters are counted."""
DEVIATION = 0.1
"""The usual deviation of a cell's mean from main effects, in scales."""
LARGEST_VARIANCE = 4.0
"""The largest variance of a logarithm that is exponentiated, so that very wide scales do not overflow."""
UNKNOWN = 0.15
"""What the correlation of outcome and weight and the shape of their distribution usually add to a mean, as a share."""


@outlined
@dataclass(frozen=True, eq=False)
class Between:
    """The noisy sums of squares between clusters."""

    centre: Integers
    """The public centre of Y and U in each cell in whole numbers: cell × 2. If weights are public, that of Y if the
    weight is the mean weight: cell × 1."""
    limit: int
    """D."""
    squares: Integers
    """Σφ(R)/n_j, Σ(φ(R + Q) − φ(R − Q))/4n_j, Σφ(Q)/n_j; if weights are public, Σφ(R)/a_j alone."""
    scale: float
    """The scale of the noise."""


def limit_of(sizes: ClusterSizes, weights_public: bool = False) -> float:
    """D in standard deviations of what a record adds."""
    wide, far = (PUBLIC_WIDE, PUBLIC_FAR) if weights_public else (WIDE, USUAL_FAR)
    return wide * math.sqrt(far + len(sizes.own) / sizes.own.sum())


def excess_spread(scaling: Scaling, transform: Transform) -> float:
    """The standard deviation of Y of a record for normal answers that are not correlated, or of U if this is larger.

    If weights are public, it is that of Y of a record of mean weight.
    """
    first, second = np.minimum(np.square(scaling.widths), LARGEST_VARIANCE)
    of_outcome = math.expm1(first) if transform == "log" else 1.0
    of_outcome *= 1.0 if scaling.alone else math.exp(second)
    return math.sqrt(of_outcome if scaling.alone else max(of_outcome, math.expm1(second)))


def excess_step(scaling: Scaling, transform: Transform) -> float:
    """The size of one step of the whole numbers Y and U, or of Y alone, in weights relative to the mean weight."""
    return most_excess(scaling, transform) / LARGEST


def most_excess(scaling: Scaling, transform: Transform) -> float:
    """The bound of |Y| + |U| of a record, or of |Y| alone."""
    return largest_excess(widened(scaling), transform, both=not scaling.alone)


def widened(scaling: Scaling) -> Scaling:
    """The scaling that bounds what a record adds to sums of clusters."""
    return replace(scaling, reach=scaling.reach + WIDER) if scaling.alone else scaling


def between_sensitivity(limit: int, weights_public: bool = False) -> int:
    """The sensitivity of the three sums for changed answers, or of the one sum for a changed outcome."""
    return 4 * limit * LARGEST + 2 if weights_public else 6 * limit * LARGEST + 6


def centre_cells(facts: PublicFacts, sums: Integers, noise: float, step: float) -> Floats:
    """The means of t and v in cells, in scales, from the noisy sums of each: main effects, and what is left, shrunk."""
    size, x = np.maximum(facts.size, 1)[:, None], facts.indicators()
    mean, variance = sums * step / size, 1 / size + 2 * (noise * step / size) ** 2
    weighted = x / (variance + DEVIATION**2)
    beta = np.linalg.solve(x.T @ weighted + np.eye(x.shape[1]), weighted.T @ mean)
    shrunk = (mean - x @ beta) * DEVIATION**2 / (DEVIATION**2 + variance)
    return np.asarray(x @ beta + shrunk)


def centre_outcome(
    means: Floats, share: Floats, scaling: Scaling, transform: Transform, total: float, noise: float
) -> Integers:
    """The centres of Y of a record of mean weight in cells, in whole numbers, if weights are public.

    `share` is the sum of public weights in each cell relative to the mean weight. The rest is as in `centre_excess`.
    """
    level = np.clip(means[:, 0], -scaling.reach, scaling.reach)
    with np.errstate(over="ignore", invalid="ignore"):
        excess = np.expm1(scaling.widths[0] * level) if transform == "log" else level
        excess = excess + (total - share @ excess) / share.sum() * _told_by(noise / share.sum())
        return _bounded(excess[:, np.newaxis] / excess_step(scaling, transform))


def centre_excess(
    means: Floats, size: Integers, scaling: Scaling, transform: Transform, total: float, noise: float
) -> Integers:
    """The centres of Y and U in cells, in whole numbers, for normal answers with these means of t and v, in scales.

    `total` is the noisy ΣY of the file, in weights relative to the mean weight. It tells what normal answers without
    correlation miss, as far as its noise permits.
    """
    widths, log = scaling.widths, transform == "log"
    level = np.clip(means, -scaling.reach, scaling.reach) * widths + scaling.centres
    weight = np.exp(level[:, 1] - level[:, 1].max())
    weight *= size.sum() / (size @ weight)
    outcome = level[:, 0] + widths[0] ** 2 / 2 - scaling.log_mean
    with np.errstate(over="ignore", invalid="ignore"):  # of scales that are far too wide
        excess = weight * (np.expm1(outcome) if log else means[:, 0])
        excess += (total - size @ excess) / size.sum() * _told_by(noise / size.sum())
        return _bounded(np.stack([excess, weight - 1], axis=1) / excess_step(scaling, transform))


def _told_by(noise: float) -> float:
    """How much of what normal answers miss a noisy mean tells, between 0 and 1; `noise` is the scale of its noise."""
    return UNKNOWN**2 / (UNKNOWN**2 + 2 * noise**2)


def _bounded(centre: Floats) -> Integers:
    """Whole numbers that no record exceeds, whatever the floats, so that sums in clusters are exact."""
    return np.rint(np.clip(np.nan_to_num(centre), -float(LARGEST), float(LARGEST))).astype(np.int64)


def sum_squares(
    answers: Answers, scaling: Scaling, cell: Column, index: DesignIndex, centre: Integers, limit: int, engine: Engine
) -> Integers:
    """The three sums, or the one if weights are public, exactly. Confidential."""
    if index.psu is None:
        raise ValueError("the design has no clusters")
    once = _ByCluster(answers, scaling, cell, index.psu, int(index.psus.sum()), centre)
    sums, size = sum_blocks(engine, once, len(index.stratum))
    return outcome_square(sums, size, limit) if scaling.alone else squares_between(sums, size, limit)


def squares_between(sums: Integers, size: Integers, limit: int) -> Integers:
    """The three sums, from the sums in each cluster and its number of records."""
    first, second, number = (column.astype(object) for column in (*sums.T, size))  # squares may exceed 64 bits
    one, other, both, apart = (huber(off, limit * number) for off in (first, second, first + second, first - second))
    terms = one // number, (both - apart) // (4 * number), other // number
    return np.array([int(term.sum()) for term in terms], np.int64)


def huber(values: Integers, most: Integers) -> Integers:
    """x² up to the limit, and the tangent beyond it: no slope is larger than twice the limit."""
    kept = np.clip(values, -most, most)
    return np.asarray(kept * (2 * values - kept))


def outcome_square(sums: Integers, size: Integers, limit: int) -> Integers:
    """The one sum if weights are public, from the sum in each cluster and its a_j in parts of 1/UNIT."""
    whole = size.astype(object)  # squares may exceed 64 bits
    squares = huber(sums[:, 0].astype(object), limit * whole // UNIT)
    return np.array([int((squares * UNIT // whole).sum())], np.int64)


@outlined
@dataclass(frozen=True)
class _ByCluster:
    """For a block: the sums of Y and U, or of Y, less their centres in each cluster, and the number of its records, or
    a_j."""

    answers: Answers
    scaling: Scaling
    cell: Column
    psu: Column
    clusters: int
    centre: Integers

    def __call__(self, piece: slice) -> tuple[Integers, Integers]:
        t, v = self.answers(piece)
        whole = weighted_numbers(t, v, widened(self.scaling), self.answers.transform, both=not self.scaling.alone)
        psu, centre = self.psu[piece], self.centre[self.cell[piece]].T
        size = None
        if self.scaling.alone:
            u = np.exp(v)
            centre, size = _bounded(u * centre), np.maximum(np.rint(UNIT * u), 1.0)
        off = whole - centre
        sums = [whole_sums(psu, self.clusters, values, 2 * LARGEST) for values in off]
        return np.stack(sums, axis=1), np.bincount(psu, size, self.clusters).astype(np.int64)
