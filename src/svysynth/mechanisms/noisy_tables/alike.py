"""Alike: how alike respondents of the same cluster are in weight and outcome, measured once for the file, with noise.

A statistic is a sum over records of z, and its variance in a design of clusters is that of a design without them, and
the sum of z·z′ over all pairs of records of the same cluster. How many such pairs each cell has is public. What a pair
adds to the sum is measured for the whole file, as two numbers:

    Σ_j (X_j − C)² − Σx²    with x = u                    for weights,
    Σ_j X_j² − Σx²          with x = u·t − c·u            for outcomes,

X_j being the sum of x in cluster j. Before these, the spread of outcomes, Σx² with x = u·t − c·u, is measured more
precisely than in the sums of the tables, so that B and D need not be larger than they have to be. C and c are the means
of the stratum, as far as noisy sums measured before tell them. Each x is clamped to ±B and each X_j (less C) to ±D, and
all are whole numbers. Both squares are divided by D and rounded down. If one respondent's answers are replaced by
others, x and so one X_j change by at most 2B (weights: B, as they are positive). Clamping makes no change larger, and
X_j² changes by at most 2D times it. x² changes by at most B². So the whole numbers change by at most 4B + B²/D + 3
(weights: 2B + B²/D + 3), where the 3 is for rounding. Σx² alone is divided by B, and changes by at most B + 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, Self

import numpy as np

from svysynth.core.grouping import Floats, Integers, group_ids, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.mechanisms.noise import RESOLUTION, Level, Noise, contributions, laplace_scale
from svysynth.mechanisms.noisy_tables.combinations import Grid, LevelSums, Pieces
from svysynth.survey.survey import Survey

Answer = Literal["spread", "weights", "outcomes"]
WEIGHT_CUT, OUTCOME_CUT = 6.0, 4.0
"""B: weights in means of u, and u·t − c·u in standard deviations."""
WIDE, USUAL = 3.0, 0.15
"""D is this many standard deviations of X_j if records of a cluster have this correlation."""
FARTHEST = 2**61
"""No sum of the squares, which are divided by D, is larger."""
WELL_KNOWN = 0.01
"""The relative noise variance of the spread of outcomes in the sums of the tables up to which it is used as it is."""
DEVIATION = 0.25
"""The usual variance between strata, as a share of that of a record."""


@outlined
@dataclass(frozen=True, eq=False)
class Clusters:
    """Which records share a cluster, which is public."""

    of_record: Integers
    count: int
    pairs: Mapping[Level, Floats]
    """For each row of a level: the ordered pairs of two of its records that share a cluster."""
    in_base: Mapping[Level, Floats]
    """The same, where the second record is any other of the row's base."""

    @classmethod
    def of(cls, survey: Survey, grid: Grid) -> Self:
        """The clusters of a survey, with the pairs of each row."""
        psu, count = survey.index.psu, int(survey.index.psus.sum())
        assert psu is not None
        psu = np.asarray(psu, np.int64)
        row_of = {level: grid.row[level].astype(np.int64)[grid.cell] for level in grid.rows}
        pairs, in_base = {}, {}
        for level, rows in grid.rows.items():
            base = grid.base(level)
            keys, number = group_ids(row_of[level] * count + psu, rows * count)
            base_keys, base_number = group_ids(row_of[base] * count + psu, grid.rows[base] * count)
            size, whole = np.bincount(number), np.bincount(base_number)
            row = keys // count
            beside = whole[np.searchsorted(base_keys, grid.owner(level, base)[row] * count + keys % count)]
            pairs[level] = group_sums(row, rows, size * (size - 1))
            in_base[level] = group_sums(row, rows, size * (beside - 1))
        return cls(psu, count, pairs, in_base)


@dataclass(frozen=True)
class PairUse:
    """One use of the budget: a number that says how alike respondents of a cluster are, or the spread of outcomes."""

    answer: Answer
    cut: int
    """B."""
    limit: int
    """D."""
    epsilon: Fraction | None

    @property
    def name(self) -> str:
        """What is measured."""
        return "spread of outcomes" if self.answer == "spread" else f"pairs within clusters, {self.answer}"

    @property
    def sensitivity(self) -> int:
        """The largest change that one respondent can make to the number."""
        if self.answer == "spread":
            return self.cut + 1
        moved = self.cut if self.answer == "weights" else 2 * self.cut
        return 2 * moved + self.cut**2 // self.limit + 3

    @property
    def scale(self) -> float:
        """The scale of the noise, in whole numbers."""
        return 0.0 if self.epsilon is None else laplace_scale(self.sensitivity, self.epsilon)

    @property
    def unit(self) -> float:
        """What one whole number stands for, in squares of the largest contribution."""
        return self.limit / RESOLUTION**2

    @property
    def variance(self) -> float:
        """The variance of the noise in these squares."""
        return 2 * (self.scale * self.unit) ** 2


@outlined
@dataclass(frozen=True, eq=False)
class Alike:
    """How alike respondents of a cluster are: the mean product of two of them, relative to mean weights."""

    clusters: Clusters
    weights: float
    """The mean of u·u′ over the square of the mean of u; 1 if weights of a cluster are not alike."""
    outcomes: float
    """The mean of u(t − c)·u′(t′ − c) over the square of the mean of u; 0 if outcomes of a cluster are not alike."""
    weights_noise: float
    """The noise variance of `weights`."""
    outcomes_noise: float
    spread: float
    """The variance of t."""
    spread_noise: float
    """The relative noise variance of the sum of squares that it comes from."""
    uses: tuple[PairUse, ...]

    def of_pairs(self, level: Level, linear: Floats, outcome: Floats) -> tuple[Floats, Floats, Floats]:
        """What pairs add to Σ_j Z_j² for rows with mean z and coefficient b·(mean u), both given as squares.

        The parts are those of weights, of outcomes, and of both together. The last is not measured, and is taken to be
        as large as it can be.
        """
        pairs = self.clusters.pairs[level]
        both = 2 * np.sqrt(linear * outcome * max(self.weights - 1, 0) * self.outcomes)
        return pairs * self.weights * linear, pairs * self.outcomes * outcome, pairs * both


@outlined
@dataclass(frozen=True, eq=False)
class StratumMeans:
    """What noisy sums tell about the strata in which clusters were drawn: their mean weights and mean outcomes."""

    of_cell: Integers
    pieces: Pieces
    sums: LevelSums
    mean: Floats
    """The mean of u in each stratum, shrunk to that of the file."""
    kept: Floats
    """How much of each stratum's own mean is in it."""
    place: Floats
    """The mean of t, weighted by u."""

    @classmethod
    def of(cls, grid: Grid, pieces: Pieces, levels: Mapping[Level, LevelSums], spread: float) -> Self:
        """From the strata as the rows of a level, and the variance of t in the file."""
        whole, sums = levels[()], levels[pieces.level]
        overall = max(whole.points[0].item(), 1 / RESOLUTION) / pieces.size.sum()
        usual = DEVIATION * overall**2
        kept = usual / (usual + sums.point_variance / pieces.size**2)
        mean = (1 - kept) * overall + kept * np.maximum(sums.points[0] / pieces.size, 0)
        middle = np.clip(whole.points[1].item() / (overall * pieces.size.sum()), -1, 1)
        count = np.maximum(mean * pieces.size, 1 / RESOLUTION)
        noise = sums.point_variance * 2 / count**2
        own = np.clip(sums.points[1] / count, -1, 1)
        usual = DEVIATION * spread
        place = middle + (own - middle) * usual / np.maximum(usual + noise, np.finfo(float).tiny)
        return cls(grid.row[pieces.level], pieces, sums, mean, kept, place)


@dataclass(frozen=True)
class Spread:
    """How weights and outcomes vary, from noisy sums."""

    kappa: float
    """nΣu²/S₀² within a cell."""
    of_weights: float
    """Σu²."""
    squared: float
    """The variance of t."""
    noise: float
    """The relative noise variance of the sum of squares that it comes from."""


def measure_alike(
    survey: Survey,
    grid: Grid,
    strata: StratumMeans,
    clusters: Clusters,
    bounds: BoundsSpec,
    known: Spread,
    epsilons: Mapping[Answer, Fraction | None],
    noise: Noise,
) -> Alike:
    """Measure how alike respondents of a cluster are; what is known before follows from the noisy sums."""
    size = np.bincount(clusters.of_record, minlength=clusters.count).astype(float)
    stratum, of_stratum = strata.of_cell[grid.cell], np.zeros(clusters.count, np.int64)
    of_stratum[clusters.of_record] = stratum
    s, *p = contributions("points", survey.weights, survey.outcome_values, bounds, "outcomes" in epsilons)
    uses, found = [], {"weights": 0.0, "outcomes": 0.0}
    for answer, epsilon in epsilons.items():
        use = limits(answer, size, clusters.count, strata, known.kappa, known.squared, epsilon)
        centre, total = whole_centres(answer, strata)
        x = s if answer == "weights" else p[0] - _times(centre[stratum], s)
        exact = squares_of_pairs(x, clusters.of_record, total[of_stratum], use)
        found[answer] = noise(np.array([exact]), use).item() * use.unit
        uses.append(use)
        if answer == "spread" and known.noise > WELL_KNOWN:
            known = _known_better(known, found[answer], math.sqrt(use.variance))
    return _relative(found, strata, clusters, known, tuple(uses))


def _known_better(known: Spread, squares: float, noise: float) -> Spread:
    """The spread of outcomes from Σx², which is kept at least as large as its noise."""
    squares = max(squares, noise, 1 / RESOLUTION)
    if (noise / squares) ** 2 >= known.noise:
        return known
    return replace(known, squared=min(squares / known.of_weights, 1.0), noise=(noise / squares) ** 2)


def limits(
    answer: Answer,
    size: Floats,
    clusters: int,
    strata: StratumMeans,
    kappa: float,
    spread: float,
    epsilon: Fraction | None,
) -> PairUse:
    """B and D, from noisy sums and the public sizes of clusters."""
    n, m = strata.pieces.size, strata.pieces.units
    mean = float((strata.mean * n).sum() / n.sum())
    square = float((size**2).mean())
    if answer == "weights":
        unequal = max(square - float((n**2 / m).sum() / m.sum()), 0.0)
        within = min(kappa - 1, 2.0)
        cut, far = WEIGHT_CUT * mean, mean * math.sqrt(unequal + USUAL * square + within * size.mean())
    else:
        own = mean * math.sqrt(kappa * spread)
        cut, far = min(OUTCOME_CUT * own, 2.0), own * math.sqrt(size.mean() + USUAL * square)
    largest = FARTHEST // max(clusters, 1)
    whole = max(round(min(cut, 1.0 if answer == "weights" else 2.0) * RESOLUTION), 1)
    limit = min(max(round(min(WIDE * far, largest / RESOLUTION) * RESOLUTION), whole), largest)
    cut_off = min(whole, limit)
    return PairUse(answer, cut_off, cut_off if answer == "spread" else limit, epsilon)


def whole_centres(answer: Answer, strata: StratumMeans) -> tuple[Integers, Integers]:
    """c of each stratum and C, in whole numbers."""
    none = np.zeros(len(strata.mean), np.int64)
    if answer != "weights":
        return np.rint(strata.place * RESOLUTION).astype(np.int64), none
    return none, np.rint(strata.mean * strata.pieces.size / strata.pieces.units * RESOLUTION).astype(np.int64)


def _times(centre: Integers, s: Integers) -> Integers:
    return np.asarray((centre * s) // RESOLUTION, np.int64)


def squares_of_pairs(x: Integers, cluster: Integers, centre: Integers, use: PairUse) -> int:
    """The whole number that is measured, exactly. Confidential."""
    x = np.clip(x, -use.cut, use.cut)
    squares = int((x * x // use.limit).sum())
    if use.answer == "spread":
        return squares
    sums = np.zeros(len(centre), np.int64)
    np.add.at(sums, cluster, x)
    far = np.clip(sums - centre, -use.limit, use.limit).astype(object)  # Python's integers: squares exceed 64 bits
    return int(sum(far * far // use.limit)) - squares


def _relative(
    found: Mapping[str, float], strata: StratumMeans, clusters: Clusters, known: Spread, uses: tuple[PairUse, ...]
) -> Alike:
    """The measured numbers as mean products of pairs, relative to the square of the mean weight."""
    n, m, sums = strata.pieces.size, strata.pieces.units, strata.sums
    centre = strata.mean * n / m
    moved = 2 * centre * sums.points[0] - m * centre**2
    too_much = (2 * strata.kept - strata.kept**2) * sums.point_variance / m
    expected = float((clusters.pairs[strata.pieces.level] * strata.mean**2).sum())
    if expected <= 0:
        return Alike(clusters, 1.0, 0.0, 0.0, 0.0, known.squared, known.noise, uses)
    weights = (found["weights"] + float((moved - too_much).sum())) / expected
    of_sums = float((4 * centre**2 * sums.point_variance).sum())
    noise = {use.answer: use.variance / expected**2 for use in uses}
    return Alike(
        clusters,
        max(weights, 0.0),
        max(found["outcomes"] / expected, 0.0),
        noise["weights"] + of_sums / expected**2,
        noise.get("outcomes", 0.0),
        known.squared,
        known.noise,
        uses,
    )
