"""Planning: what is measured, and the ε of each part, decided from public facts alone.

Each of the two histograms gets a share of ε, which is smaller in larger files, and zero if scales are public constants.
The rest is split between sums of logarithms in the rows of some levels, the three sums of squares, and weighted sums in
the rows of one level. Sums by cell can be added up to every margin, with the noise of all its cells. Measuring sums by
margin as well costs a part of the budget and makes margins more precise. Weighted sums correct a model that does not
hold: in finer rows if the file is large, for the whole file if it is small. As in the matrix mechanism, several plans
are compared, and the one with the least expected error of the requested tables is taken: the mean over their rows of

    log(1 + non-sampling variance/sampling variance), for the mean outcome and for the log count.

Here answers are assumed to have a spread of one scale in every row, and a scale is taken to be HALF a logarithm. The
model is assumed to be off by MISFIT in every row, and all mean outcomes by COMMON. The random variation of a row's
weighted sums hides its misfit as noise does (`posterior/confidential_weights.py`). If weights are public, there is one
histogram, counts have no error, and weighted sums are of outcomes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import numpy as np

from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import BoundsSpec, Scales
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import excess_spread, limit_of, most_excess
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import USUAL, ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.measurement import HISTOGRAM_SENSITIVITY, Plan, Weighted
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import MOST_SCORE
from svysynth.mechanisms.noisy_sums.measuring.scaling import BANDS, Scale, Scaling, largest_excess, reach_of

QUANTILE_ERROR = 0.03
"""Each histogram gets the share of ε at which the noise of a quantile is this small, as a share of the records."""
LEAST_SHARE, MOST_SHARE = 0.02, 0.2
"""The least and the largest share of ε for each histogram."""
SIZE_ERROR = 0.1
"""The sizes of cells get the share of ε at which the variance of their noise is this fraction of their sampling
variance."""
MOST_OF_SIZES = 0.25
"""The largest share of ε for the sizes of cells."""
HALF = 0.5
"""A usual spread of a log outcome, and of log weights."""
COMMON, MISFIT = 0.03, 0.03
"""Usual relative errors of a model: the common error of all its means, and the error of each mean and count. With real
wages and no noise they are about as large, or half as large again (docs/method.md)."""
STEPS = 1000
"""Shares are whole numbers divided by this number, so that they add up exactly."""
SHARES = np.array([20, 30, 45, 65, 95, 140, 200, 280, 360, 450]) / STEPS
"""The shares that are tried for the squares and for the weighted sums."""
SPREAD_ERROR = 0.1
"""The squares get a share at which the noise of a mean square is this small, in scales, or at least MOST_SQUARES of the
rest."""
MOST_SQUARES = 0.14
CLUSTERS_SHARE = 0.03, 0.2
"""The least and the largest share of ε for the sums of squares between clusters."""
MOST_MARGINS = 8
"""With more public columns than this, plans that measure their margins are not tried."""

Levels = tuple[tuple[str, ...], ...]


def plan_measurement(
    facts: PublicFacts,
    tables: Sequence[TableSpec],
    epsilon: float,
    sizes: Fraction = Fraction(),
    scales: Scales = "histograms",
) -> Plan:
    """The best of the plans that are tried. Its parts, with the ε already spent on sizes, add up to ε exactly."""
    clusters = plan_clusters(facts, epsilon)
    left = Fraction(epsilon) - sizes - clusters
    epsilon = float(left)
    requested = [_Rows.of(facts, columns) for columns in _requested(facts, tables)]
    public = facts.weights is not None
    choices = product(_candidates(facts), _coarse_and_fine(facts), (False,) if public else (False, True))
    whole, histogram = left, histogram_share(len(facts), epsilon) if scales == "histograms" else Fraction()
    rest = 1 - (1 if public else 2) * histogram
    splits = (_best_split(facts, *choice, requested, epsilon, float(rest)) for choice in choices)
    best = min(splits, key=lambda split: split.loss)
    squares, weighted = (rest * Fraction(round(share * STEPS), STEPS) for share in (best.squares, best.weighted_share))
    share = (rest - squares - weighted) / len(best.levels)
    levels = tuple((level, whole * share) for level in best.levels)
    weighted_sums = Weighted(best.weighted, best.both, whole * weighted)
    return Plan(whole * histogram, levels, whole * squares, weighted_sums, sizes, public, clusters)


def plan_clusters(facts: PublicFacts, epsilon: float) -> Fraction:
    """The ε of the sums of squares between clusters: their noise is to be as large as their variation by sampling."""
    sizes = ClusterSizes.of(facts)
    if sizes is None:
        return Fraction()
    by_sampling = math.sqrt(2 / sizes.freedom) * (USUAL * sizes.of_clusters + sizes.of_records)
    public, half = facts.weights, Scale(0.0, HALF)
    reach = reach_of(len(facts), epsilon, public is not None)
    usual = Scaling(half, half if public is None else public.scale, reach, public is not None)
    largest = limit_of(sizes, usual.alone) * most_excess(usual, "log")
    largest, terms = largest / excess_spread(usual, "log"), 4 if usual.alone else 6
    share = math.sqrt(2) * terms * largest / (epsilon * by_sampling)
    least, most = CLUSTERS_SHARE
    return Fraction(epsilon) * Fraction(round(min(max(share, least), most) * STEPS), STEPS)


def plan_sizes(groups: int, epsilon: float, population_total: float, bounds: BoundsSpec) -> Fraction:
    """The ε of the sizes of cells, decided before anything is known about the number of records.

    The number is guessed from the declared total and the middle of the bounds of the weight. A wrong guess only costs
    precision.
    """
    records = population_total / math.sqrt(bounds.weight[0] * bounds.weight[1])
    share = math.sqrt(8 * groups / (SIZE_ERROR * records)) / epsilon
    return Fraction(epsilon) * Fraction(round(min(max(share, LEAST_SHARE), MOST_OF_SIZES) * STEPS), STEPS)


def histogram_share(records: int, epsilon: float) -> Fraction:
    """The share of ε of each histogram."""
    share = quantile_error(1.0, records, epsilon) / QUANTILE_ERROR
    return Fraction(round(min(max(share, LEAST_SHARE), MOST_SHARE) * STEPS), STEPS)


def quantile_error(share: float, records: int, epsilon: float) -> float:
    """The standard deviation of the noise of a sum over half of the bands, as a share of the records."""
    return math.sqrt(BANDS) * HISTOGRAM_SENSITIVITY / (share * epsilon * records)


@dataclass(frozen=True)
class _Split:
    levels: Levels
    weighted: tuple[str, ...]
    both: bool
    squares: float
    weighted_share: float
    loss: float


@outlined
@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of some columns."""

    columns: tuple[str, ...]
    size: Floats
    parts: dict[tuple[str, ...], Floats]
    """For each finer set of columns, the number of its rows that make up each row."""

    @classmethod
    def of(cls, facts: PublicFacts, columns: tuple[str, ...]) -> _Rows:
        place = facts.rows(columns)
        size = np.maximum(np.bincount(place, facts.size), 1.0)  # noise may leave a row without records
        parts = {}
        for finer in {level for levels in _candidates(facts) for level in levels} | set(_coarse_and_fine(facts)):
            if set(columns) <= set(finer):
                pairs = np.unique(np.stack([place, facts.rows(finer)]), axis=1)[0]
                parts[finer] = np.bincount(pairs, minlength=len(size)).astype(float)
        return cls(columns, size, parts)


def _candidates(facts: PublicFacts) -> Iterator[Levels]:
    """The sets of levels that are tried: the cells, alone or with the total, with margins, or with both."""
    columns = tuple(facts.labels)
    yield (columns,)
    if len(columns) > 0:
        yield (columns, ())
    singles = tuple((column,) for column in columns)
    if 2 <= len(columns) <= MOST_MARGINS:
        yield (columns, *singles)
        yield (columns, *singles, ())
    if 3 <= len(columns) <= MOST_MARGINS:
        yield (columns, *combinations(columns, 2))


def _coarse_and_fine(facts: PublicFacts) -> tuple[tuple[str, ...], ...]:
    """The rows that weighted sums may have: the whole file, those of one column, or the cells."""
    columns = tuple(facts.labels)
    return tuple(dict.fromkeys([(), *((column,) for column in columns[:MOST_MARGINS]), columns]))


def _requested(facts: PublicFacts, tables: Sequence[TableSpec]) -> list[tuple[str, ...]]:
    """The combinations of columns in the requested tables, including margins."""
    found = [kept for table in tables for size in range(len(table.by) + 1) for kept in combinations(table.by, size)]
    return list(dict.fromkeys(tuple(column for column in facts.labels if column in kept) for kept in found))


def _best_split(
    facts: PublicFacts,
    levels: Levels,
    weighted: tuple[str, ...],
    both: bool,
    requested: list[_Rows],
    epsilon: float,
    share_of_sums: float,
) -> _Split:
    """The shares of squares and weighted sums with the least loss; all variances are in scales."""
    records, public = len(facts), facts.weights
    reach = reach_of(records, epsilon, public is not None)
    rest = epsilon * share_of_sums
    squares, share = np.meshgrid(SHARES, SHARES, indexing="ij")
    of_sums = _laplace(reach * len(levels), (1 - squares - share) * rest)
    reach_of_squares = reach**2 if public is None else reach**2 / 2 + reach * MOST_SCORE
    of_squares = _laplace(reach_of_squares, squares * rest) / records**2
    weight = Scale(0.0, HALF) if public is None else public.scale
    usual = Scaling(Scale(0.0, HALF), weight, reach, public is not None)
    of_weighted = _laplace(largest_excess(usual, "log", both), share * rest) / HALF**2
    misfits = (COMMON / HALF) ** 2, (MISFIT / HALF) ** 2
    variances = _Variances(of_sums, of_sums, of_squares * HALF**2 * 1.25, of_weighted, *misfits)
    loss = np.zeros_like(squares)
    for rows in requested:
        size = rows.size[:, None, None]
        means, counts = _not_sampling(rows, levels, weighted, both, records, variances)
        for unknown in [means, counts] if public is None else [means]:
            loss += np.log1p(unknown * size).mean(axis=0)
    known = (of_squares <= SPREAD_ERROR**2) | (squares >= MOST_SQUARES)
    best = np.unravel_index(np.argmin(np.where(known, loss, np.inf)), loss.shape)
    return _Split(levels, weighted, both, float(squares[best]), float(share[best]), float(loss[best]))


@outlined
@dataclass(frozen=True, eq=False)
class _Variances:
    """The variances from noise and from a model that does not hold, on a grid of choices."""

    outcome: Floats
    """The noise variance of one sum of outcomes."""
    weight: Floats
    level: Floats
    """The variance that the noise of squares adds to all means together."""
    weighted: Floats
    """The noise variance of one weighted sum."""
    common: float
    misfit: float


def _not_sampling(
    rows: _Rows, levels: Levels, weighted: tuple[str, ...], both: bool, records: int, of: _Variances
) -> tuple[Floats, Floats]:
    """The variances of mean outcomes and log counts, without their sampling variance: row × grid."""
    size = rows.size[:, None, None]
    precision = np.sum([1 / parts for level, parts in rows.parts.items() if level in levels], axis=0)
    share = 1 / precision[:, None, None] / size**2
    inside = weighted in rows.parts  # so that the row's own misfit is measured
    parts, counted = (rows.parts[weighted][:, None, None], size) if inside else (1.0, records)
    noise, chance = of.weighted * parts / counted**2, HALF**2 * inside / counted
    left = _together(of.level + of.common + inside * of.misfit, noise + chance) + (not inside) * of.misfit
    of_count = _together(of.misfit, noise + chance / 2) if inside and both else of.misfit * (len(rows.columns) > 0)
    return of.outcome * share + left, of.weight * share + of_count


def expected_errors(
    facts: PublicFacts,
    tables: Sequence[TableSpec],
    plan: Plan,
    right: Scaling,
    guesses: Sequence[Scaling],
    transform: Transform,
) -> tuple[Floats, Floats]:
    """The standard errors of (log) mean outcomes and of log counts under a plan: row × guess.

    Answers have the right scales, but are measured in the scales of a guess. All noise is proportional to the latter.
    """
    outcome, weight = np.array([guess.widths for guess in guesses]).T[:, None]
    reach, unit, log = right.reach, right.outcome.width, transform == "log"
    levels = tuple(columns for columns, _ in plan.levels)
    of_sums = _laplace(reach, np.array(float(plan.levels[0][1])))
    of_squares = _laplace(reach**2, np.array(float(plan.squares))) / len(facts) ** 2
    both, part = plan.weighted.both, np.array(float(plan.weighted.epsilon))
    of_weighted = np.array([[_laplace(largest_excess(guess, transform, both), part) for guess in guesses]])
    usual = 1.0 if log else (unit / HALF) ** 2
    variances = _Variances(
        of_sums * outcome**2,
        of_sums * weight**2,
        of_squares * (log * outcome**4 / 4 + (outcome * weight) ** 2),
        of_weighted * (1.0 if log else outcome**2),
        COMMON**2 * usual,
        MISFIT**2 * usual,
    )
    found = []
    for rows in (_Rows.of(facts, columns) for columns in _requested(facts, tables)):
        both_kinds = _not_sampling(rows, levels, plan.weighted.columns, both, len(facts), variances)
        sampling = np.square(right.widths)[:, None, None, None] / rows.size[:, None, None]
        found.append(np.sqrt(np.stack(both_kinds) + sampling)[:, :, 0])
    means, counts = np.concatenate(found, axis=1)
    return means, counts


def _laplace(sensitivity: float, epsilon: Floats) -> Floats:
    """The variance of the noise if a record contributes at most this much."""
    return np.asarray(2 * (2 * sensitivity / epsilon) ** 2)


def _together(one: Floats | float, other: Floats) -> Floats:
    """The variance of the precision-weighted mean of two independent estimates with these variances."""
    return np.asarray(one * other / (one + other))
