"""Passes: over the records of a survey, each with the moments of a column, and the variances that follow from them.

The column is the outcome, or an indicator of it. Variances come from linearisation, from replicates of the design, or
from replicate weights of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from svysynth.core.column_storage import Column, derive
from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, Lonely
from svysynth.core.spec.statistics import Statistic
from svysynth.estimation.calibration import Calibration
from svysynth.estimation.linearization import taylor_variance
from svysynth.estimation.moments import Moments, compute_moments
from svysynth.estimation.replicates import Replicates, indicated, replicate_estimates
from svysynth.estimation.statistics import DomainSums, estimate, records_less_strata
from svysynth.estimation.supplied_replicates import SuppliedReplicates
from svysynth.estimation.woodruff import Outcomes
from svysynth.survey.design import DesignIndex
from svysynth.survey.survey import Survey


@outlined
@dataclass(frozen=True, eq=False)
class Passes:
    """Passes over a survey's records, each with the moments of one column, and the variances that follow from them."""

    survey: Survey
    crossed: tuple[str, ...]
    cells: int
    estimation: EstimationSpec
    replicates: Replicates | None
    scaled: bool

    def moments(self, outcome: Column) -> Moments:
        """The moments of a column: by stratum and cell, or by PSU where the variance needs to tell PSUs apart."""
        survey, index = self.survey, self.survey.index
        block = index.block
        if self.replicates is not None:
            block = np.arange(len(survey)) if index.psu is None else index.psu
        cell = survey.cell_index(self.crossed)
        return compute_moments(block, cell, survey.weights, outcome, self.cells, survey.engine)

    def calibrated(self, outcome: Column, given: Moments, calibration: Calibration | None) -> Measured:
        """The moments of a column with calibrated weights, and the variances of its statistics."""
        survey, lonely = self.survey, self.estimation.lonely
        moments = given if calibration is None else calibration.calibrated(given)
        if self.replicates is not None:
            return Measured(moments, _Replicated.of(given, self.replicates, self.scaled, calibration))
        if survey.replicates is not None:
            own = survey.replicates, outcome, self.crossed, given, self.estimation, calibration
            return Measured(moments, SuppliedReplicates.of(survey, *own))
        return Measured(moments, _Linearized(moments, survey.index, lonely, self.scaled, calibration))

    def outcomes(self, value: Column, given: Moments, calibration: Calibration | None) -> Outcomes:
        """A column in place of the outcome, and calibrated weights, of the records."""
        survey, weight = self.survey, self.survey.weights
        present, group = np.unique(given.cell, return_inverse=True)
        cell = derive(partial(_position, among=present), survey.cell_index(self.crossed))
        if calibration is not None:
            factor = np.empty(len(present))
            factor[group] = calibration.factor[calibration.totals.cell]
            weight = derive(partial(_multiplied, factor), weight, cell)
        return Outcomes(value, weight, cell, group, partial(self.of, calibration), survey.engine)

    def of(self, calibration: Calibration | None, outcome: Column) -> Measured:
        """One more pass, for a column in place of the outcome."""
        return self.calibrated(outcome, self.moments(outcome), calibration)


def _position(cell: Integers, among: Integers) -> Integers:
    return np.searchsorted(among, cell)


def _multiplied(factor: Floats, weight: Floats, cell: Integers) -> Floats:
    return weight * factor[cell]


@outlined
@dataclass(frozen=True, eq=False)
class _Linearized:
    """Variances by Taylor linearisation."""

    moments: Moments
    index: DesignIndex
    lonely: Lonely
    scaled: bool
    calibration: Calibration | None

    def __call__(self, statistic: Statistic, domain: Integers, sums: DomainSums) -> Floats:
        """The variance of a statistic for each domain."""
        weights = self.scaled, self.calibration
        return taylor_variance(statistic, self.moments, self.index, domain, sums, self.lonely, *weights)

    def indicating(self, groups: Booleans) -> _Linearized:
        """The variances of an indicator of some groups in place of the column."""
        return replace(self, moments=self.moments.indicating(groups))

    def degrees_of_freedom(self, in_base: Booleans | None) -> int:
        """The degrees of freedom of the design, or of the part of it that is in the base."""
        if in_base is None:
            return self.index.degrees_of_freedom
        if self.index.psu is None:  # groups are of strata, and each record is a unit
            return records_less_strata(self.moments.count, self.moments.block, in_base)
        return _units_less_strata(self.index.blocks_here(self.moments.block[in_base]), self.index)


@outlined
@dataclass(frozen=True, eq=False)
class _Replicated:
    """Variances over replicates, from the sums of every finest cell in every replicate."""

    replicates: Replicates
    unit: Integers
    """The sampling unit of each group."""
    cell: Integers
    """The finest cell of each group, numbered as the rows of the sums."""
    weight: Floats
    outcome: Floats

    @classmethod
    def of(cls, moments: Moments, replicates: Replicates, scaled: bool, calibration: Calibration | None) -> _Replicated:
        present, cell = np.unique(moments.cell, return_inverse=True)
        weight = replicates.sums(moments.block, cell, moments.weight, len(present))
        outcome = replicates.sums(moments.block, cell, moments.weighted_outcome, len(present))
        if calibration is not None:  # the weights of every replicate are calibrated too
            factor = calibration.factors_of_replicates(cell, weight)
            weight, outcome = weight * factor, outcome * factor
        elif scaled:  # or scaled
            factor = moments.weight.sum() / weight.sum(axis=0)
            weight, outcome = weight * factor, outcome * factor
        return cls(replicates, moments.block, cell, weight, outcome)

    def __call__(self, statistic: Statistic, domain: Integers, sums: DomainSums) -> Floats:
        """The variance of a statistic for each domain; NaN where a replicate has no records to average."""
        replicated = replicate_estimates(statistic, self.cell, self.weight, self.outcome, domain, sums)
        return self.replicates.variance(replicated, estimate(statistic, sums.weight, sums.outcome, sums.base))

    def indicating(self, groups: Booleans) -> _Replicated:
        """The variances of an indicator of some groups in place of the column; it is the same in each cell."""
        return replace(self, outcome=self.weight * indicated(self.cell, groups, len(self.weight)))

    def degrees_of_freedom(self, in_base: Booleans | None) -> int:
        """The same, but fewer than there are replicates."""
        index = self.replicates.index
        own = index.degrees_of_freedom if in_base is None else _units_less_strata(self.unit[in_base], index)
        return min(own, len(self.replicates) - 1)


Variance = _Linearized | _Replicated | SuppliedReplicates


@outlined
class Measured(NamedTuple):
    """What a pass gives: the moments of a column, and the variances of its statistics."""

    moments: Moments
    variance: Variance


def over(top: Variance, bottom: Variance) -> Variance | None:
    """The variances of ratios of two columns, as those of means with another denominator.

    None for linearisation, which needs one more pass for them.
    """
    match top, bottom:
        case _Replicated(), _Replicated():
            return replace(top, weight=bottom.outcome)
        case SuppliedReplicates(), SuppliedReplicates():
            return replace(top, weight=bottom.outcome)
    return None


def _units_less_strata(unit: Integers, index: DesignIndex) -> int:
    """The number of sampling units that occur, minus the number of their strata: R's `degf` of a subset."""
    units = np.unique(unit)
    return len(units) - len(np.unique(index.psu_stratum[units]))
