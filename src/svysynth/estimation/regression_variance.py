"""The variance of regression coefficients by linearisation: the sandwich of the design (Binder 1983).

The linearised value of record i is zᵢ = A⁻¹wᵢxᵢ(yᵢ − μᵢ) with A = Σ w μ′xx′, for records of the regression, and 0 for
all others: as for tables, a domain is not a filter. With calibrated weights gᵢwᵢ, the part of zᵢ/(gᵢwᵢ) that the totals
explain is taken off, of all records. The covariance is that of the totals of z in the design, stage by stage,

    Σ_h (1 − f_h)·n_h/(n_h − 1)·Σ(z − z̄_h)(z − z̄_h)′,

with lonely strata, finite population corrections and later stages as in `linearization.py`. In the formulas of this
file x are the orthonormal columns of `coefficients.py`, and the covariance is turned back in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from svysynth.core.column_storage import Column, derive, look_up
from svysynth.core.engine import each_block, map_blocks
from svysynth.core.grouping import Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import Lonely
from svysynth.estimation.calibration import Calibration, Totals
from svysynth.estimation.coefficients import Coefficients, mean_and_slope, orthonormal
from svysynth.estimation.explained import Explained, Family, Rows
from svysynth.estimation.linearization import factors_of_strata
from svysynth.survey.design import DesignIndex
from svysynth.survey.survey import Survey


@outlined
class CalibratedWeights(NamedTuple):
    """The weights of a survey, calibrated to its totals."""

    calibration: Calibration
    cell: Column
    """The calibration cell of each record."""
    weight: Column
    """gᵢwᵢ."""

    @classmethod
    def of(cls, survey: Survey) -> CalibratedWeights | None:
        """Calibrate the weights of a survey; None if no totals are declared."""
        spec = survey.calibration
        if spec is None:
            return None
        present, position = survey.present_cells(spec.columns)
        sizes = [len(survey.levels(column)) for column in spec.columns]
        totals = Totals.of(survey, spec, np.stack(np.unravel_index(present, sizes), axis=1))
        cell = derive(partial(look_up, table=totals.cell), position)
        sums = map_blocks(survey.engine, _CellSums(cell, survey.weights, totals.cells), len(survey))
        calibration = Calibration.of_sums(totals, np.sum(sums, axis=0))
        weight = derive(partial(_multiplied, calibration.factor), survey.weights, cell)
        return cls(calibration, cell, weight)


def _multiplied(factor: Floats, weight: Floats, cell: Integers) -> Floats:
    return weight * factor[cell]


@outlined
@dataclass(frozen=True)
class _CellSums:
    cell: Column
    weight: Column
    cells: int

    def __call__(self, piece: slice) -> Floats:
        return group_sums(self.cell[piece], self.cells, self.weight[piece])


def linearised_covariance(
    explained: Explained,
    family: Family,
    found: Coefficients,
    lonely: Lonely,
    calibrated: CalibratedWeights | None = None,
) -> Floats:
    """The covariance matrix of the coefficients; the records have calibrated weights if there are any."""
    survey = explained.survey
    values = _Values(explained.rows, family, found, np.asarray(np.linalg.inv(found.information), np.float64))
    if calibrated is not None:
        sums = map_blocks(survey.engine, _SumsOfValues(values, calibrated), len(survey))
        fitted = calibrated.calibration.fitted_to_sums(np.sum(sums, axis=0))
        values = replace(values, calibrated=(calibrated.cell, calibrated.weight, fitted))
    covariance = np.zeros((len(found.turned), len(found.turned)))
    for stage in (survey.index, *survey.index.later):
        strata = np.arange(stage.strata) if calibrated is not None else _strata_inside(stage, explained)
        covariance += _of_stage(stage, values, factors_of_strata(stage, lonely, strata), survey)
    return found.covariance(covariance)


def design_degrees_of_freedom(explained: Explained) -> int:
    """The units of the first stage with a record of the regression, less their strata: R's `degf` of a subset."""
    index = explained.survey.index
    if index.psu is None:
        return explained.records - len(_strata_inside(index, explained))
    units = _distinct(index.psu, explained)
    return len(units) - len(np.unique(np.asarray(index.psu_stratum)[units]))


def _strata_inside(stage: DesignIndex, explained: Explained) -> Integers:
    return _distinct(stage.stratum, explained)


def _distinct(column: Column, explained: Explained) -> Integers:
    """The different numbers of a column among the records of the regression."""
    survey = explained.survey
    found = map_blocks(survey.engine, _Distinct(column, explained.rows.inside), len(survey))
    return np.unique(np.concatenate(found))


@outlined
@dataclass(frozen=True)
class _Distinct:
    column: Column
    inside: Column

    def __call__(self, piece: slice) -> Integers:
        return np.unique(np.asarray(self.column[piece])[np.asarray(self.inside[piece]) == 1])


@outlined
@dataclass(frozen=True)
class _Values:
    """The linearised values of all records of a block: record × coefficient."""

    rows: Rows
    family: Family
    found: Coefficients
    inverse: Floats
    calibrated: tuple[Column, Column, Floats] | None = None
    """The calibration cell and the weight of each record, and what the totals explain of each cell's z/(gw)."""

    def __call__(self, piece: slice) -> Floats:
        block = self.rows.block(piece)
        q = orthonormal(block.x, self.found.triangle)
        mean, _ = mean_and_slope(self.family, q @ self.found.turned)
        found = np.zeros((len(self.rows.inside[piece]), len(self.inverse)))
        found[block.inside] = (q * (block.weight * (block.y - mean))[:, np.newaxis]) @ self.inverse
        if self.calibrated is None:
            return found
        cell, weight, fitted = self.calibrated
        return np.asarray(found - np.asarray(weight[piece])[:, np.newaxis] * fitted[cell[piece]])


@outlined
@dataclass(frozen=True)
class _SumsOfValues:
    """Σ z/g of each calibration cell of a block."""

    values: _Values
    calibrated: CalibratedWeights

    def __call__(self, piece: slice) -> Floats:
        factor = self.calibrated.calibration.factor
        return sums_by(self.calibrated.cell[piece], len(factor), self.values(piece)) / factor[:, np.newaxis]


def sums_by(group: Integers, groups: int, values: Floats) -> Floats:
    """The sums of rows in each group."""
    return np.stack([group_sums(group, groups, column) for column in values.T], axis=1)


def _of_stage(stage: DesignIndex, values: _Values, factors: Floats, survey: Survey) -> Floats:
    """The term of one stage of sampling."""
    unit = stage.stratum if stage.psu is None else stage.psu
    units = stage.strata if stage.psu is None else len(stage.psu_stratum)
    total = np.zeros((units, len(values.inverse)))
    for own, sums in each_block(survey.engine, _UnitSums(unit, values), len(survey)):
        total[own] += sums
    if stage.psu is None:
        centre = np.where(stage.lonely, 0.0, 1 / stage.psus)[:, np.newaxis] * total
        scatter = map_blocks(survey.engine, _Scatter(unit, values, centre, factors), len(survey))
        return np.asarray(np.sum(scatter, axis=0))
    stratum = np.asarray(stage.psu_stratum)
    mean = sums_by(stratum, stage.strata, total) / stage.psus[:, np.newaxis]
    deviation = total - np.where(stage.lonely[:, np.newaxis], 0.0, mean)[stratum]
    return np.asarray((deviation * factors[stratum][:, np.newaxis]).T @ deviation)


@outlined
@dataclass(frozen=True)
class _UnitSums:
    """The units of a block, and Σz of each."""

    unit: Column
    values: _Values

    def __call__(self, piece: slice) -> tuple[Integers, Floats]:
        own, place = np.unique(np.asarray(self.unit[piece]), return_inverse=True)
        return own, sums_by(place, len(own), self.values(piece))


@outlined
@dataclass(frozen=True)
class _Scatter:
    """Σ factor·(z − z̄_h)(z − z̄_h)′ of a block whose units are records."""

    stratum: Column
    values: _Values
    centre: Floats
    factors: Floats

    def __call__(self, piece: slice) -> Floats:
        stratum = np.asarray(self.stratum[piece])
        deviation = self.values(piece) - self.centre[stratum]
        return np.asarray((deviation * self.factors[stratum][:, np.newaxis]).T @ deviation)
