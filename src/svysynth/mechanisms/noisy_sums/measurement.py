"""Measurement: noisy histograms and sums of the answers, the only thing that leaves the confidential side.

A record counts with whole numbers T and V, its scaled outcome and weight in steps of reach/LARGEST, and the bound
|T| + |V| ≤ LARGEST is enforced on these whole numbers. What is measured, with the largest change (in the sum of
absolute differences) that one respondent's answers (y, w) replaced by others can make:

    histograms of t and of v         1 leaves a band, 1 enters one                        2 each
    ΣT, ΣV in each row of a level    |T| + |V| ≤ LARGEST leaves, as much enters           2·LARGEST each level
    ΣT², ΣTV, ΣV²                    T² + |TV| + V² ≤ (|T| + |V|)² ≤ LARGEST²             2·LARGEST²

Blanked out, which is the record counting 0, each is half as large. Sums of whole numbers are exact whatever the floats,
and so is the sensitivity. Discrete Laplace noise on each of them gives ε-differential privacy, the ε of all uses added
up, for every data set. Scales and centre follow from the noisy histograms, not from the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from svysynth.engine import map_blocks
from svysynth.groups import Floats, Integers
from svysynth.mechanisms.noisy_sums.scaling import Bands, Scaling, reach_of, scale_from_counts
from svysynth.noise import Noise, laplace_scale
from svysynth.outline import outlined
from svysynth.spec import BoundsSpec, Transform
from svysynth.store import Column
from svysynth.survey import Survey

LARGEST = 2**16
"""|T| + |V| of a record at most. n·LARGEST² stays below 2⁶² for n up to 2³⁰."""
HISTOGRAM_SENSITIVITY = 2
MOST_RECORDS = 2**30
FARTHEST = 2.0**30
"""Before clamping, so that the products of whole numbers on the way stay exact."""


@dataclass(frozen=True)
class Use:
    """One use of the budget: a vector of whole numbers that gets independent discrete Laplace noise."""

    name: str
    sensitivity: int
    """How far one respondent's changed answers can move the vector, in the sum of absolute differences."""
    epsilon: Fraction

    @property
    def scale(self) -> float:
        """Of the noise, in whole numbers: sensitivity/ε, rounded up."""
        return laplace_scale(self.sensitivity, self.epsilon)


@dataclass(frozen=True)
class Plan:
    """How ε is spent, from public information alone: the parts add up to ε exactly."""

    histogram: Fraction
    """For each of the two."""
    levels: tuple[tuple[tuple[str, ...], Fraction], ...]
    """The columns that tell rows apart, and what the sums of each row may cost."""
    squares: Fraction

    @property
    def epsilon(self) -> Fraction:
        """All of it, for changed answers."""
        return 2 * self.histogram + sum((part for _, part in self.levels), Fraction()) + self.squares


@outlined
@dataclass(frozen=True, eq=False)
class Level:
    """Noisy sums of T and V in the rows of some public columns."""

    columns: tuple[str, ...]
    place: Integers
    """The row of each cell."""
    sums: Integers
    """Row × 2."""
    scale: float
    """Of the noise."""


@outlined
@dataclass(frozen=True, eq=False)
class Measurement:
    """What was measured, with its noise: protected, and all that later steps may use of the answers."""

    records: int
    population_total: float
    transform: Transform
    bounds: BoundsSpec
    plan: Plan
    outcome_bands: Integers
    weight_bands: Integers
    scaling: Scaling
    levels: tuple[Level, ...]
    squares: Integers
    """ΣT², ΣTV, ΣV²."""
    squares_scale: float

    @property
    def step(self) -> float:
        """One whole number in scales."""
        return self.scaling.reach / LARGEST


def bands_of(bounds: BoundsSpec, transform: Transform, records: int, population_total: float) -> tuple[Bands, Bands]:
    """The public bands of t and v."""
    low, high = np.log(bounds.outcome) if transform == "log" else bounds.outcome
    least, most = np.log(np.array(bounds.weight) * (records / population_total))
    return Bands(float(low), float(high)), Bands(float(least), float(most))


def measure(
    survey: Survey, plan: Plan, bounds: BoundsSpec, transform: Transform, levels: Sequence[Integers], noise: Noise
) -> Measurement:
    """Go through the records twice, for the histograms and for the sums. Confidential until the noise is added.

    `levels` has, for each level of the plan, the row of each cell that has records.
    """
    if survey.population_total is None:
        raise ValueError("the population total is not declared")
    if len(survey) > MOST_RECORDS:
        raise ValueError("too many records for exact sums")
    cells, cell = survey.present_cells(survey.public)
    answers = _Answers(survey.outcome_values, survey.weights, bounds, transform, len(survey) / survey.population_total)
    bands = bands_of(bounds, transform, len(survey), survey.population_total)
    counts = np.sum(map_blocks(survey.engine, _Counts(answers, bands), len(survey)), axis=0)
    noisy = [
        noise(count, Use(f"histogram of the {name}", HISTOGRAM_SENSITIVITY, plan.histogram))
        for name, count in zip(("outcome", "weight"), counts, strict=True)
    ]
    scales = [scale_from_counts(count, band, len(survey)) for count, band in zip(noisy, bands, strict=True)]
    scaling = Scaling(scales[0], scales[1], reach_of(len(survey), float(plan.epsilon)))
    blocks = map_blocks(survey.engine, _Sums(answers, scaling, cell, len(cells)), len(survey))
    sums = np.sum([found[0] for found in blocks], axis=0)
    squares = np.sum([found[1] for found in blocks], axis=0)
    squares_use = Use("squares", 2 * LARGEST**2, plan.squares)
    return Measurement(
        len(survey),
        survey.population_total,
        transform,
        bounds,
        plan,
        noisy[0],
        noisy[1],
        scaling,
        tuple(
            _measure_level(sums, columns, part, place, noise)
            for (columns, part), place in zip(plan.levels, levels, strict=True)
        ),
        noise(squares, squares_use),
        squares_use.scale,
    )


def _measure_level(sums: Integers, columns: tuple[str, ...], epsilon: Fraction, place: Integers, noise: Noise) -> Level:
    rows = np.zeros((int(place.max()) + 1, 2), np.int64)
    np.add.at(rows, place, sums)
    use = Use(f"sums by {' and '.join(columns) or 'nothing'}", 2 * LARGEST, epsilon)
    return Level(columns, place, noise(rows, use), use.scale)


@outlined
@dataclass(frozen=True)
class _Answers:
    """t and v of a block of records, clamped to the public bounds."""

    outcome: Column
    weight: Column
    bounds: BoundsSpec
    transform: Transform
    share: float
    """n/N."""

    def __call__(self, piece: slice) -> tuple[Floats, Floats]:
        outcome, weight = (
            np.clip(np.nan_to_num(column[piece], nan=bounds[0]), *bounds)
            for column, bounds in ((self.outcome, self.bounds.outcome), (self.weight, self.bounds.weight))
        )
        return np.log(outcome) if self.transform == "log" else outcome, np.log(weight * self.share)


@outlined
@dataclass(frozen=True)
class _Counts:
    answers: _Answers
    bands: tuple[Bands, Bands]

    def __call__(self, piece: slice) -> Integers:
        return np.stack([band.count(values) for band, values in zip(self.bands, self.answers(piece), strict=True)])


@outlined
@dataclass(frozen=True)
class _Sums:
    """ΣT and ΣV in each cell, and the three sums of squares, of a block."""

    answers: _Answers
    scaling: Scaling
    cell: Column
    cells: int

    def __call__(self, piece: slice) -> tuple[Integers, Integers]:
        t, v = self.answers(piece)
        whole = whole_numbers(t, v, self.scaling)
        sums = np.zeros((self.cells, 2), np.int64)
        np.add.at(sums, self.cell[piece], whole.T)
        first, second = whole
        return sums, np.array([first @ first, first @ second, second @ second])


def whole_numbers(t: Floats, v: Floats, scaling: Scaling) -> Integers:
    """T and V of each record, with |T| + |V| ≤ LARGEST whatever the floats: the bound comes after the rounding."""
    steps = LARGEST / scaling.reach
    scaled = [
        np.rint(np.clip((values - scale.centre) / scale.width * steps, -FARTHEST, FARTHEST)).astype(np.int64)
        for values, scale in ((t, scaling.outcome), (v, scaling.weight))
    ]
    size = np.maximum(np.abs(scaled[0]) + np.abs(scaled[1]), LARGEST)
    return np.stack([np.sign(values) * (np.abs(values) * LARGEST // size) for values in scaled])
