"""Calibration: weights that meet public totals of the population, and the part of a variance that the totals remove.

The weight of record i becomes gᵢwᵢ. The factor g depends only on the record's levels in the columns of the totals, so
everything here is computed from sums over cells. Post-stratification and raking multiply the weights of each level in
turn until all totals are met; linear calibration is the regression estimator, g = 1 + x′λ.

The linearised value of a statistic is gᵢwᵢ(uᵢ − xᵢ′B): u is what it would be for a weight of 1, x says which totals the
record belongs to, and B is the regression of u on x with the weights wᵢ, as in R's `calibrate` and `postStratify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse as sparse

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.estimation.moments import Moments
from svysynth.survey.columns import HasLevels
from svysynth.survey.survey import Survey

PLACE = "survey.calibration"
MOST_ITERATIONS = 20_000
FEW_ITERATIONS = 200
"""Equal weights have to meet the totals within this number, so that other weights do so within MOST_ITERATIONS."""
MET = 1e-13
"""Totals are met when they are off by a smaller fraction than this."""
NEARLY_MET = 1e-9
"""The fraction for linear calibration, which does not iterate."""
DEPENDENT = 1e-11
"""Eigenvalues below this fraction of the largest are zero up to rounding: margins overlap there."""


@outlined
@dataclass(frozen=True, eq=False)
class Totals:
    """The totals as a problem over calibration cells: the combinations of levels, of all margins, that have records."""

    spec: CalibrationSpec
    cell: Integers
    """The calibration cell of each group of records."""
    member: Any
    """Calibration cell × total, sparse: 1 where the cell belongs to the total."""
    totals: Floats
    starts: Integers
    """Where the totals of each margin start."""

    @classmethod
    def of(cls, survey: HasLevels, spec: CalibrationSpec, levels: Integers) -> Totals:
        """The problem of a survey, from the levels of each group of its records in the columns of the spec."""
        present, cell = np.unique(levels, axis=0, return_inverse=True)
        places = _places(survey, spec, present)
        starts = np.cumsum([0, *(len(margin.totals) for margin in spec.margins)])
        rows = np.tile(np.arange(len(present)), len(places))
        entries = np.ones(len(rows)), (rows, np.concatenate(places) + np.repeat(starts[:-1], len(present)))
        member = sparse.csr_matrix(entries, shape=(len(present), int(starts[-1])))
        totals = np.concatenate([_consistent(spec, place) for place in range(len(spec.margins))])
        return cls(spec, cell.reshape(-1), member, totals, starts)

    @property
    def cells(self) -> int:
        """The number of calibration cells."""
        return self.member.shape[0]  # type: ignore[no-any-return]

    def factors(self, design: Floats, most: int = MOST_ITERATIONS) -> Floats:
        """g of each calibration cell for columns of Σw before calibration."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.spec.method == "linear" and len(self.spec.margins) > 1:
                return np.stack([self._linear(column) for column in design.T], axis=1)
            return self._raked(design, most)

    def _raked(self, design: Floats, most: int) -> Floats:
        factor = np.ones_like(design)
        margins = [
            (self.member[:, start:stop], self.totals[start:stop, np.newaxis])
            for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True)
        ]
        for _ in range(most):
            off = 0.0
            for member, totals in margins:
                ratio = totals / (member.T @ (design * factor))
                off = max(off, float(np.max(np.abs(ratio - 1))))  # NaN if a total has no weight
                factor = factor * (member @ ratio)
            if not np.isfinite(factor).all():
                break
            if off <= MET or len(margins) == 1:
                return factor
        raise self._not_met()

    def _linear(self, design: Floats) -> Floats:
        factor = np.ones_like(design)
        if not (self.member.T @ design).all():
            raise self._not_met()
        inverse = self.inverse(design)
        for _ in range(3):  # the second and the third time against rounding error
            factor = factor + self.member @ (inverse @ (self.totals - self.member.T @ (design * factor)))
        if not (np.abs(self.member.T @ (design * factor) / self.totals - 1) <= NEARLY_MET).all():
            raise self._not_met()
        return factor

    def inverse(self, weight: Floats) -> Any:
        """The inverse of Σw·xx′; where margins overlap, the generalised one."""
        if len(self.spec.margins) == 1:
            return sparse.diags_array(1 / (self.member.T @ weight))
        matrix = (self.member.T @ sparse.diags_array(weight) @ self.member).toarray()
        scale = np.sqrt(np.diag(matrix))
        return np.linalg.pinv(matrix / np.outer(scale, scale), rcond=DEPENDENT, hermitian=True) / np.outer(scale, scale)

    @staticmethod
    def _not_met() -> SurveyError:
        why = "they contradict each other, or too many cells are empty in the file or in a replicate"
        remedy = "merge small levels, or give fewer margins"
        return SurveyError("data", PLACE, f"no weights meet all of the totals: {why}", remedy)


@outlined
@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibrated weights, and the regression on the totals."""

    totals: Totals
    design: Floats
    """Σw of each calibration cell, before calibration."""
    factor: Floats
    """g of each calibration cell."""
    inverse: Any
    """The inverse of the matrix of the regression."""

    @classmethod
    def of(
        cls, survey: Survey, spec: CalibrationSpec, columns: Sequence[str], levels: Integers, moments: Moments
    ) -> Calibration:
        """Calibrate; `columns` and `levels` say the levels of each group, and the moments are those of the file."""
        totals = Totals.of(survey, spec, levels[:, [columns.index(column) for column in spec.columns]])
        return cls.of_sums(totals, group_sums(totals.cell, totals.cells, moments.weight))

    @classmethod
    def of_sums(cls, totals: Totals, design: Floats) -> Calibration:
        """Calibrate, from Σw of each calibration cell."""
        factor = totals.factors(design[:, np.newaxis])[:, 0]
        if (factor <= 0).any():
            remedy = "use method = 'rake', whose weights stay positive, or merge small levels"
            raise SurveyError("data", PLACE, "linear calibration makes some weights zero or negative", remedy)
        return cls(totals, design, factor, totals.inverse(design))

    def calibrated(self, moments: Moments) -> Moments:
        """The moments with the calibrated weights."""
        g = self.factor[self.totals.cell]
        return replace(
            moments,
            mean_w=g * moments.mean_w,
            mean_e=g * moments.mean_e,
            scatter_ww=g * g * moments.scatter_ww,
            scatter_we=g * g * moments.scatter_we,
            scatter_ee=g * g * moments.scatter_ee,
        )

    def fitted(self, moments: Moments, a: Floats, b: Floats) -> Floats:
        """x′B of each group for u = a + b(y − r); the moments are those with calibrated weights."""
        cell = self.totals.cell
        weighted = moments.count * (a * moments.mean_w + b * moments.mean_e)
        return self.fitted_to_sums(group_sums(cell, len(self.design), weighted / self.factor[cell]))[cell]

    def fitted_to_sums(self, value: Floats) -> Floats:
        """x′B of each calibration cell, from its Σwu with the weights before calibration; u may be several columns."""
        design = self.design if value.ndim == 1 else self.design[:, np.newaxis]
        first = self._projected(value)
        return np.asarray(first + self._projected(value - design * first))

    def _projected(self, value: Floats) -> Floats:
        member = self.totals.member
        return np.asarray(member @ (self.inverse @ (member.T @ value)))

    def factors_of_replicates(self, row: Integers, weight: Floats) -> Floats:
        """g of each row in each replicate, which is calibrated by itself.

        `weight` has Σw of each row and replicate, and `row` says the row of each group of the moments.
        """
        own = np.empty(len(weight), np.int64)
        own[row] = self.totals.cell
        sums = np.zeros((len(self.design), weight.shape[1]))
        np.add.at(sums, own, weight)
        return self.totals.factors(sums)[own]


def uncalibrated(survey: Survey) -> Survey:
    """The same survey with the weights of the file, which models are fitted to."""
    return replace(survey, calibration=None, population_total=None) if survey.calibration else survey


def refuse_unmet_by_counts(survey: Survey) -> None:
    """Stop if equal weights do not meet the totals within few iterations. Only public sizes of cells are used."""
    if survey.calibration is not None:
        groups = survey.groups
        totals = totals_of_groups(survey, survey.calibration, groups.frame)
        sizes = group_sums(totals.cell, totals.cells, groups.count.astype(float))
        totals.factors(sizes[:, np.newaxis], FEW_ITERATIONS)


def totals_of_groups(survey: Survey, spec: CalibrationSpec, frame: pl.DataFrame) -> Totals:
    """The problem of the groups in a frame of public columns."""
    return Totals.of(
        survey, spec, np.stack([frame[column].to_physical().to_numpy() for column in spec.columns], axis=1)
    )


def _places(survey: HasLevels, spec: CalibrationSpec, present: Integers) -> list[Integers]:
    """For each margin the total of each calibration cell. Every total has records, and every record has one."""
    found = []
    for margin in spec.margins:
        name = " × ".join(margin.by)
        labels = [survey.levels(column) for column in margin.by]
        own = present[:, [spec.columns.index(column) for column in margin.by]]
        number = {levels: place for place, (levels, _) in enumerate(margin.totals)}
        place = np.array([number.get(tuple(map(tuple.__getitem__, labels, levels)), -1) for levels in own.tolist()])
        if (place < 0).any():
            problem = f"has no total for some levels of {name} that occur in the file"
            raise SurveyError("data", PLACE, problem, "give a total for every level, as tables show it")
        if len(np.unique(place)) < len(margin.totals):
            problem = f"has a total for a level of {name} that no record of the file has"
            raise SurveyError("data", PLACE, problem, "write levels as tables show them; merge those without records")
        found.append(place)
    return found


def _consistent(spec: CalibrationSpec, place: int) -> Floats:
    """The totals of a margin, scaled so that all margins add up to the same population to the last digit."""
    margin = spec.margins[place]
    return np.array([total for _, total in margin.totals]) * (spec.total / margin.total)
