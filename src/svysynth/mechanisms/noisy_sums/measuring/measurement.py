"""Measurement: noisy histograms and sums of the answers, the only data that later steps may take from the survey.

A record contributes whole numbers T and V, its scaled outcome and weight in steps of reach/LARGEST. The bound
|T| + |V| ≤ LARGEST is enforced on these whole numbers. The table shows what is measured and its sensitivity: the
largest change, in the sum of absolute differences, if one respondent's answers (y, w) are replaced by others or, if
whole records are protected, if one record is replaced by another in any cell:

    histograms of t and of v         1 leaves a band, 1 enters one                        2 each
    ΣT, ΣV in each row of a level    |T| + |V| ≤ LARGEST leaves, as much enters           2·LARGEST each level
    ΣT², ΣTV, ΣV²                    T² + |TV| + V² ≤ (|T| + |V|)² ≤ LARGEST²             2·LARGEST²
    ΣY, ΣU in each row of a level    |Y| + |U| ≤ LARGEST leaves, as much enters           2·LARGEST
    squares between clusters         if the design has clusters: `between_clusters.py`

Y and U are what the record adds to the weighted mean of the outcome and to the sum of weights, both without logarithms
(`scaling.weighted_excess`), as whole numbers bounded in the same way. They make tables right on average also for
answers that are not lognormal.

If the record is blanked out, so that it contributes 0, or is removed, each change is half as large. If whole records
are protected, the sizes of cells are measured first (`sizes.py`), and n is their noisy sum from then on.

If weights are public (`public_weights.py`), T has its own bound |T| ≤ LARGEST, and a record's score G, |G| ≤ H, is the
same whatever its outcome. If the outcome y is replaced by another, the changes are

    a histogram of t                 1 leaves a band, 1 enters one                        2
    ΣT in each row of a level        |T| ≤ LARGEST leaves, as much enters                 2·LARGEST each level
    ΣT², ΣTG                         T² is in 0 … LARGEST², TG in −LARGEST·H … LARGEST·H  LARGEST² + 2·LARGEST·H
    ΣY in each row of a level        |Y| ≤ LARGEST leaves, as much enters                 2·LARGEST
    squares between clusters         if the design has clusters: `between_clusters.py`

ΣTG is measured if weights vary within cells. If the outcome is blanked out, each change is half as large, provided that
T² then counts as LARGEST²/2.

Sums of whole numbers are exact whatever the rounding of floats, and so is the sensitivity. Discrete Laplace noise on
each of them gives ε-differential privacy for every data set, where ε is the sum over all uses. The scales and the
centre are computed from the noisy histograms, not from the data. If they are constants of the spec, there are no
histograms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.engine import sum_blocks
from svysynth.core.grouping import Floats, Integers, whole_product, whole_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noise import Noise, laplace_scale
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import (
    Between,
    between_sensitivity,
    centre_cells,
    centre_excess,
    centre_outcome,
    excess_spread,
    excess_step,
    limit_of,
    sum_squares,
)
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts, cell_of_record
from svysynth.mechanisms.noisy_sums.measuring.public_weights import Scores, largest_score
from svysynth.mechanisms.noisy_sums.measuring.scaling import (
    Bands,
    Scale,
    Scaling,
    largest_excess,
    reach_of,
    scale_from_counts,
)
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import (
    LARGEST,
    Answers,
    outcome_numbers,
    weighted_numbers,
    whole_numbers,
)
from svysynth.survey.survey import Survey

HISTOGRAM_SENSITIVITY = 2
MOST_RECORDS = 2**30
NOT_NORMAL = 0.15
"""The relative error of the scale if it is taken as the standard deviation and answers are only nearly normal."""
ONE_SCALE_OUT = 0.24
"""The normal density one scale from its centre: an error q in a probability is an error of q/0.24 scales in the
quantile."""
NO_SAY = 1e6
"""The error of the log of a spread if no histogram was measured."""


@dataclass(frozen=True)
class Use:
    """One use of the budget: a vector of whole numbers that gets independent discrete Laplace noise."""

    name: str
    sensitivity: int
    """The largest change of the vector if one respondent's answers change, in the sum of absolute differences."""
    epsilon: Fraction

    @property
    def scale(self) -> float:
        """The scale of the noise in whole numbers: sensitivity/ε, rounded up."""
        return laplace_scale(self.sensitivity, self.epsilon)


@dataclass(frozen=True)
class Weighted:
    """The plan of the weighted sums in the rows of some columns: of outcomes alone, or also of the weights."""

    columns: tuple[str, ...]
    both: bool
    epsilon: Fraction


@dataclass(frozen=True)
class Plan:
    """How ε is spent, decided from public information alone. The parts add up to ε exactly."""

    histogram: Fraction
    """The ε of each histogram; 0 if there are none because the scales are public constants."""
    levels: tuple[tuple[tuple[str, ...], Fraction], ...]
    """The columns of each level, whose combinations are its rows, and the ε of the sums in these rows."""
    squares: Fraction
    weighted: Weighted
    sizes: Fraction = Fraction()
    """The ε of the sizes of cells, if whole records are protected."""
    weights_public: bool = False
    """If so, nothing about the weights is measured."""
    clusters: Fraction = Fraction()
    """The ε of the sums of squares between clusters, if the design has clusters."""

    @property
    def histograms(self) -> int:
        """The largest number of histograms: of the outcome, and of the weight unless weights are public."""
        return 1 if self.weights_public else 2

    @property
    def epsilon(self) -> Fraction:
        """The total ε, for changed answers or changed records."""
        sums = sum((part for _, part in self.levels), Fraction())
        of_sums = sums + self.squares + self.clusters + self.weighted.epsilon
        return self.sizes + self.histograms * self.histogram + of_sums


@outlined
@dataclass(frozen=True, eq=False)
class Level:
    """Noisy sums of T and V, or of Y and U, in the rows of some public columns."""

    columns: tuple[str, ...]
    place: Integers
    """The row of each cell."""
    sums: Integers
    """Row × 2, or row × 1 if only T or only Y is summed."""
    scale: float
    """The scale of the noise."""


@outlined
@dataclass(frozen=True, eq=False)
class NoisySizes:
    """The noisy number of records in each group of cell and stratum."""

    counts: Integers
    scale: float
    """The scale of the noise."""


@outlined
@dataclass(frozen=True, eq=False)
class Measurement:
    """What was measured, with noise. It is protected, and later steps use nothing else about the answers."""

    records: int
    """n, or its noisy value if whole records are protected."""
    population_total: float
    """The declared total, or Σw if weights are public."""
    transform: Transform
    bounds: BoundsSpec
    plan: Plan
    outcome_bands: Integers
    """The counts of the noisy histogram; empty if there is none."""
    weight_bands: Integers
    scaling: Scaling
    levels: tuple[Level, ...]
    squares: Integers
    """ΣT², ΣTV, ΣV²; if weights are public, ΣT² and ΣTG, or ΣT² alone."""
    squares_scale: float
    weighted: Level
    sizes: NoisySizes | None = None
    """None if sizes are public."""
    between: Between | None = None
    """None if the design has no clusters."""

    @property
    def step(self) -> float:
        """The size of one step of the whole numbers, in scales."""
        return self.scaling.reach / LARGEST

    @property
    def width_error(self) -> float:
        """The error of the log of a spread from noisy histograms, from noise and from answers that are not normal."""
        if not self.plan.histogram:
            return NO_SAY
        noise = math.sqrt(len(self.outcome_bands)) * Use("", HISTOGRAM_SENSITIVITY, self.plan.histogram).scale
        return math.hypot(NOT_NORMAL, noise / self.records / ONE_SCALE_OUT)

    @property
    def weighted_step(self) -> float:
        """The size of one step of the weighted sums, in weights relative to the mean weight."""
        return largest_excess(self.scaling, self.transform, self.plan.weighted.both) / LARGEST


def bands_of(bounds: BoundsSpec, transform: Transform, records: int, population_total: float) -> tuple[Bands, Bands]:
    """The public bands of t and v."""
    low, high = np.log(bounds.outcome) if transform == "log" else bounds.outcome
    least, most = np.log(np.array(bounds.weight) * (records / population_total))
    return Bands(float(low), float(high)), Bands(float(least), float(most))


def measure(
    survey: Survey,
    facts: PublicFacts,
    plan: Plan,
    bounds: BoundsSpec,
    transform: Transform,
    noise: Noise,
    sizes: NoisySizes | None = None,
    scales: tuple[Scale, Scale] | None = None,
) -> Measurement:
    """Read the records twice, for the histograms and for the sums. Everything is confidential until noise is added.

    If scales are given, they are public, the plan has no ε for histograms, and the records are read once. n is that of
    the facts, which is noisy if sizes were measured. The true n is used only to read all records.
    """
    public = facts.weights
    total = survey.population_total if public is None else public.total
    if total is None:
        raise ValueError("the population total is not declared")
    if (public is not None) != plan.weights_public or (facts.cluster is not None) != (plan.clusters > 0):
        raise ValueError("the plan is not for these weights or clusters")
    if len(survey) > MOST_RECORDS:
        raise ValueError("too many records for exact sums")
    if (scales is None) != (plan.histogram > 0):
        raise ValueError("a plan with histograms needs no scales, and a plan without histograms needs them")
    records = len(facts)
    answers = Answers(survey.outcome_values, survey.weights, bounds, transform, records / total, public is not None)
    noisy: list[Integers] = [np.empty(0, np.int64), np.empty(0, np.int64)]
    if scales is None:
        bands = bands_of(bounds, transform, records, total)[: plan.histograms]
        counts = sum_blocks(survey.engine, _Counts(answers, bands), len(survey))
        for place, (name, count) in enumerate(zip(("outcome", "weight"), counts, strict=False)):
            noisy[place] = noise(count, Use(f"histogram of the {name}", HISTOGRAM_SENSITIVITY, plan.histogram))
        found = [scale_from_counts(count, band, records) for count, band in zip(noisy, bands, strict=False)]
        scales = found[0], found[-1]
    reach = reach_of(records, float(plan.epsilon), plan.weights_public)
    if public is not None:
        scales = scales[0], public.scale
    scaling = Scaling(*scales, reach, plan.weights_public)
    cell = cell_of_record(survey, facts)
    once: _Sums | _SumsOfOutcomes = _Sums(answers, scaling, cell, len(facts.codes), plan.weighted.both)
    if public is not None:
        once = _SumsOfOutcomes(answers, scaling, cell, len(facts.codes), Scores.of(public, facts, reach / LARGEST))
    sums, squares, weighted = sum_blocks(survey.engine, once, len(survey))
    squares_use = Use("squares", squares_sensitivity(len(squares), reach), plan.squares)
    levels = [_measure_level("sums", sums, columns, part, facts.rows(columns), noise) for columns, part in plan.levels]
    noisy_squares = noise(squares, squares_use)
    where, part = plan.weighted.columns, plan.weighted.epsilon
    by_weight = _measure_level("weighted sums", weighted, where, part, facts.rows(where), noise)
    between, clusters = None, ClusterSizes.of(facts)
    if clusters is not None:
        means = centre_cells(facts, levels[0].sums[levels[0].place], levels[0].scale, reach / LARGEST)
        unit, of_row = largest_excess(scaling, transform, plan.weighted.both) / LARGEST, by_weight.sums[:, 0]
        measured = float(of_row.sum()) * unit, math.sqrt(len(of_row)) * by_weight.scale * unit
        if public is not None:
            centre = centre_outcome(means, public.share_of_cells(facts), scaling, transform, *measured)
        else:
            centre = centre_excess(means, facts.size, scaling, transform, *measured)
        spread = excess_spread(scaling, transform) / excess_step(scaling, transform)
        limit = round(limit_of(clusters, plan.weights_public) * spread)
        exact = sum_squares(answers, scaling, cell, survey.index, centre, limit, survey.engine)
        use = Use("squares between clusters", between_sensitivity(limit, plan.weights_public), plan.clusters)
        between = Between(centre, limit, noise(exact, use), use.scale)
    return Measurement(
        records,
        total,
        transform,
        bounds,
        plan,
        noisy[0],
        noisy[1],
        scaling,
        tuple(levels),
        noisy_squares,
        squares_use.scale,
        by_weight,
        sizes,
        between,
    )


def squares_sensitivity(kinds: int, reach: float) -> int:
    """The sensitivity of ΣT², ΣTV and ΣV² for changed answers; if weights are public, of ΣT² and ΣTG, or of ΣT²."""
    if kinds == 3:
        return 2 * LARGEST**2
    return LARGEST**2 + (kinds - 1) * 2 * LARGEST * largest_score(reach / LARGEST)


def _measure_level(
    name: str, sums: Integers, columns: tuple[str, ...], epsilon: Fraction, place: Integers, noise: Noise
) -> Level:
    rows = np.zeros((int(place.max()) + 1, sums.shape[1]), np.int64)
    np.add.at(rows, place, sums)
    use = Use(f"{name} by {' and '.join(columns) or 'nothing'}", 2 * LARGEST, epsilon)
    return Level(columns, place, noise(rows, use), use.scale)


@outlined
@dataclass(frozen=True)
class _Counts:
    answers: Answers
    bands: tuple[Bands, ...]
    """The bands of t and v, or of t alone."""

    def __call__(self, piece: slice) -> tuple[Integers, ...]:
        return tuple(band.count(values) for band, values in zip(self.bands, self.answers(piece), strict=False))


@outlined
@dataclass(frozen=True)
class _Sums:
    """The sums over a block: ΣT and ΣV in each cell, the three sums of squares, and ΣY and ΣU in each cell."""

    answers: Answers
    scaling: Scaling
    cell: Column
    cells: int
    both: bool

    def __call__(self, piece: slice) -> tuple[Integers, Integers, Integers]:
        t, v = self.answers(piece)
        first, second = whole = whole_numbers(t, v, self.scaling)
        weighted = weighted_numbers(t, v, self.scaling, self.answers.transform, self.both)
        pairs = (first, first), (first, second), (second, second)
        squares = np.array([whole_product(one, other, LARGEST**2) for one, other in pairs])
        cell = self.cell[piece]
        return _by_cell(whole, cell, self.cells), squares, _by_cell(weighted, cell, self.cells)


@outlined
@dataclass(frozen=True)
class _SumsOfOutcomes:
    """The sums over a block if weights are public: ΣT in each cell, ΣT² and ΣTG (or ΣT² alone), and ΣY in each cell."""

    answers: Answers
    scaling: Scaling
    cell: Column
    cells: int
    scores: Scores

    def __call__(self, piece: slice) -> tuple[Integers, Integers, Integers]:
        t, v = self.answers(piece)
        cell = self.cell[piece]
        first = outcome_numbers(t, self.scaling)
        score = self.scores(v, cell)
        weighted = weighted_numbers(t, v, self.scaling, self.answers.transform, both=False)
        largest = LARGEST * max(LARGEST, self.scores.largest)
        others = (first, score)[: 1 + self.scores.vary]
        squares = np.array([whole_product(first, other, largest) for other in others])
        return _by_cell([first], cell, self.cells), squares, _by_cell(weighted, cell, self.cells)


def _by_cell(whole: Iterable[Floats], cell: Integers, cells: int) -> Integers:
    return np.stack([whole_sums(cell, cells, values, LARGEST) for values in whole], axis=1)
