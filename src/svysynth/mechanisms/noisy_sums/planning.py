"""Planning: what is measured and what each part of it may cost, from public facts alone.

A share of ε goes to each of the two histograms, smaller in larger files. The rest is split between sums in the rows of
some levels and the three sums of squares. Sums by cell give every margin by adding up, with the noise of all its cells;
sums by margin as well cost a part of the budget and make margins more precise. As in the matrix mechanism, of several
sets of levels and of all splits that one is taken which has the least expected error of the requested tables: the mean
over their rows of

    log(1 + noise variance of the mean outcome and of the log count / their sampling variance),

with answers taken to have a spread of one scale in every row, and scales of HALF a logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np
from scipy.optimize import minimize_scalar

from svysynth.groups import Floats
from svysynth.mechanisms.noisy_sums.facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measurement import HISTOGRAM_SENSITIVITY, Plan
from svysynth.mechanisms.noisy_sums.scaling import BANDS, reach_of
from svysynth.spec import TableSpec

QUANTILE_ERROR = 0.03
"""The histograms get as much of ε as makes the noise of a quantile this small, as a share of the records."""
LEAST_SHARE, MOST_SHARE = 0.02, 0.2
"""Of ε, for each of the two histograms."""
HALF = 0.5
"""A usual spread of a log outcome, and of log weights."""
STEPS = 1000
"""Shares are whole numbers of this fraction, so that they add up exactly."""
MOST_MARGINS = 8
"""With more public columns than this their margins are not tried."""

Levels = tuple[tuple[str, ...], ...]


def plan_measurement(facts: PublicFacts, tables: Sequence[TableSpec], epsilon: float) -> Plan:
    """The best of some plans; its parts add up to ε exactly."""
    rows = _requested(facts, tables)
    found = [_best_split(facts, levels, rows, epsilon) for levels in _candidates(facts)]
    best = min(found, key=lambda plan: plan.loss)
    whole, histogram = Fraction(epsilon), histogram_share(len(facts), epsilon)
    rest = 1 - 2 * histogram
    squares = rest * Fraction(round(best.squares * STEPS), STEPS)
    share = (rest - squares) / len(best.levels)
    return Plan(whole * histogram, tuple((level, whole * share) for level in best.levels), whole * squares)


def histogram_share(records: int, epsilon: float) -> Fraction:
    """The share of ε of each histogram: the noise of a sum over half of the bands is √BANDS·sensitivity/(share·ε)."""
    share = math.sqrt(BANDS) * HISTOGRAM_SENSITIVITY / (QUANTILE_ERROR * records * epsilon)
    return Fraction(round(min(max(share, LEAST_SHARE), MOST_SHARE) * STEPS), STEPS)


@dataclass(frozen=True)
class _Split:
    levels: Levels
    squares: float
    loss: float


def _candidates(facts: PublicFacts) -> Iterator[Levels]:
    """The cells alone; with the whole; with every single column; with all of these."""
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


def _requested(facts: PublicFacts, tables: Sequence[TableSpec]) -> list[tuple[str, ...]]:
    """The combinations of columns whose rows are asked for, margins included."""
    found = [kept for table in tables for size in range(len(table.by) + 1) for kept in combinations(table.by, size)]
    return list(dict.fromkeys(tuple(column for column in facts.labels if column in kept) for kept in found))


def _best_split(facts: PublicFacts, levels: Levels, requested: list[tuple[str, ...]], epsilon: float) -> _Split:
    size, records = facts.size, len(facts)
    reach, rest = reach_of(records, epsilon), epsilon * float(1 - 2 * histogram_share(records, epsilon))
    cells: list[tuple[Floats, Floats]] = []
    for columns in requested:
        place = facts.rows(columns)
        precision = np.zeros(int(place.max()) + 1)
        for level in levels:
            if set(columns) <= set(level):
                measured = facts.rows(level)
                parts = np.array([len(np.unique(measured[place == row])) for row in range(len(precision))])
                precision += 1 / parts
        cells.append((np.bincount(place, size).astype(float), precision))

    def loss(share: float) -> float:
        noise = 2 * (2 * reach * len(levels) / ((1 - share) * rest)) ** 2
        squares = 2 * (2 * reach**2 / (share * rest) / records) ** 2 * HALF**2 * 1.25
        found = 0.0
        for count, precision in cells:
            sampling, of_sums = 1 / count, noise / precision / count**2
            found += float(np.log1p((of_sums + squares) / sampling).mean() + np.log1p(of_sums / sampling).mean())
        return found / len(cells)

    found = minimize_scalar(loss, bounds=(0.02, 0.6), method="bounded")
    return _Split(levels, float(found.x), float(found.fun))
