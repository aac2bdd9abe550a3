"""Public weights: weights that are declared public are kept as they are, and only the outcome is measured.

The model uses the score g of a record's weight: the difference between the log weight and the mean of its cell, in
units of the spread within cells, clamped at MOST_SCORE and rounded to the whole numbers that are summed. Outcomes may
be correlated with the score. All scores follow from the list of weights, which is published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column
from svysynth.core.engine import map_blocks
from svysynth.core.grouping import Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale
from svysynth.survey.survey import Survey

MOST_SCORE = 2.0
"""The largest score: with normal log weights, clamping loses a hundredth of the information in the score."""
CONSTANT = 1e-6
"""The spread of log weights within cells up to which weights count as constant."""


class Grouped(Protocol):
    """The public facts that are needed here."""

    @property
    def cell(self) -> Integers:
        """The cell of each group."""

    @property
    def stratum(self) -> Integers:
        """The stratum of each group."""

    @property
    def size(self) -> Integers:
        """The number of records in each cell."""


@outlined
@dataclass(frozen=True, eq=False)
class PublicWeights:
    """The list of weights: each weight that occurs in a group, in ascending order, and how often it occurs."""

    group: Integers
    value: Floats
    count: Integers

    @cached_property
    def total(self) -> float:
        """Σw of the file."""
        return float((self.value * self.count).sum())

    @property
    def log(self) -> Floats:
        """v = log(w·n/Σw)."""
        return np.asarray(np.log(self.value * (self.count.sum() / self.total)))

    @cached_property
    def scale(self) -> Scale:
        """The mean and standard deviation of v."""
        v = self.log
        middle = np.average(v, weights=self.count)
        return Scale(float(middle), float(np.sqrt(np.average((v - middle) ** 2, weights=self.count))))

    def share_of_cells(self, facts: Grouped) -> Floats:
        """Σu of each cell, where u is the weight relative to the mean weight."""
        of_cells = group_sums(facts.cell[self.group], len(facts.size), self.value * self.count)
        return np.asarray(of_cells * (self.count.sum() / self.total))

    @cached_property
    def _ends(self) -> Integers:
        return np.cumsum(self.count)

    def regrouped(self, place: Integers) -> PublicWeights:
        """The list for larger groups; `place` is the new group of each group."""
        own = pl.DataFrame({"group": place[self.group], "weight": self.value, "count": self.count})
        return _listed([own])

    def of_rows(self, piece: slice) -> Integers:
        """For rows in the order of the list, the position of each in the list."""
        return np.searchsorted(self._ends, np.arange(piece.start, piece.stop), side="right")


def weights_of(survey: Survey, cell: Column, facts: Grouped) -> PublicWeights:
    """The list of a survey's weights. It is kept in memory, even if the survey is not."""
    strata = int(facts.stratum.max()) + 1
    keys = facts.cell.astype(np.int64) * strata + facts.stratum
    stratum = survey.index.stratum if survey.design.strata else None
    found = weights_by(survey, cell, stratum, strata)
    return replace(found, group=np.searchsorted(keys, found.group))


def weights_by(survey: Survey, cell: Column, unit: Column | None, units: int) -> PublicWeights:
    """The list of weights by cell and unit, such as stratum or cluster; the group is cell × units + unit."""
    return _listed(map_blocks(survey.engine, _Distinct(survey.weights, cell, unit, units), len(survey)))


def _listed(parts: Sequence[pl.DataFrame]) -> PublicWeights:
    found = pl.concat(parts).group_by("group", "weight").agg(pl.col("count").sum()).sort("group", "weight")
    return PublicWeights(*(found[name].to_numpy() for name in ("group", "weight", "count")))


@outlined
@dataclass(frozen=True, eq=False)
class _Distinct:
    """For a block, the weights that occur in each cell and unit, and how often."""

    weight: Column
    cell: Column
    unit: Column | None
    units: int

    def __call__(self, piece: slice) -> pl.DataFrame:
        key = np.asarray(self.cell[piece], np.int64) * self.units
        if self.unit is not None:
            key = key + self.unit[piece]
        columns = {"group": key, "weight": np.asarray(self.weight[piece], float)}
        return pl.DataFrame(columns).group_by("group", "weight").agg(pl.len().cast(pl.Int64).alias("count"))


@outlined
@dataclass(frozen=True, eq=False)
class Scores:
    """How weights become scores, in whole numbers of steps of size `step`."""

    middle: Floats
    """The mean of v in each cell."""
    spread: float
    """The standard deviation of v within cells; 0 if weights are constant there, and then all scores are 0."""
    step: float

    @classmethod
    def of(cls, weights: PublicWeights, facts: Grouped, step: float) -> Scores:
        """Make the scores from the list of weights."""
        cell, v, size = facts.cell[weights.group], weights.log, facts.size
        middle = group_sums(cell, len(size), v * weights.count) / np.maximum(size, 1)
        freedom = max(int(size.sum() - (size > 0).sum()), 1)
        spread = float(np.sqrt((weights.count * (v - middle[cell]) ** 2).sum() / freedom))
        return cls(middle, spread if spread > CONSTANT else 0.0, step)

    @property
    def vary(self) -> bool:
        """Whether scores vary, so that outcomes could be correlated with them."""
        return self.spread > 0

    @property
    def largest(self) -> int:
        """The largest score, in whole numbers."""
        return largest_score(self.step)

    def __call__(self, v: Floats, cell: Integers) -> Floats:
        """The score of each record, in whole numbers."""
        if not self.vary:
            return np.zeros(len(v))
        score = (v - self.middle[cell]) / (self.spread * self.step)
        return np.rint(np.clip(score, -self.largest, self.largest))


def largest_score(step: float) -> int:
    """The largest score, in whole numbers of steps of size `step`."""
    return int(MOST_SCORE / step)


@outlined
@dataclass(frozen=True, eq=False)
class Tilt:
    """The weighted mean and variance of the score in each group, about the unweighted mean of the group's cell."""

    mean: Floats
    variance: Floats


@outlined
@dataclass(frozen=True, eq=False)
class KnownWeights:
    """The figures that the model and the tables need from public weights, with scores in scales."""

    score: Floats
    """The score of each weight in the list."""
    score_sum: Floats
    """The sum of scores in each cell."""
    scatter: float
    """Σ(g − ḡ_c)² over all records."""
    spread: float
    """The standard deviation of log weights within cells; 0 if they are constant there."""
    weight: Floats
    """Σw of each group."""
    squared: Floats
    """Σw² of each group."""
    tilt: Tilt
    """With weights w: the difference between weighted and unweighted means, in scores."""
    squared_tilt: Tilt
    """With weights w², as in variances."""

    @classmethod
    def of(cls, weights: PublicWeights, facts: Grouped, step: float) -> KnownWeights:
        """Compute the figures from the list of weights."""
        group, cell, size = weights.group, facts.cell[weights.group], facts.size
        scores = Scores.of(weights, facts, step)
        score = np.asarray(step * scores(weights.log, cell), float)
        score_sum = group_sums(cell, len(size), score * weights.count)
        off = score - (score_sum / np.maximum(size, 1))[cell]

        def total(values: Floats) -> Floats:
            return group_sums(group, len(facts.cell), values * weights.count)

        def tilt(by: Floats) -> Tilt:
            mean = total(by * off) / total(by)
            return Tilt(mean, total(by * (off - mean[group]) ** 2) / total(by))

        w = weights.value
        scatter = float((weights.count * off**2).sum())
        return cls(score, score_sum, scatter, scores.spread, total(w), total(w**2), tilt(w), tilt(w**2))
