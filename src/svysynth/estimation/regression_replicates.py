"""The variance of regression coefficients over replicates: the model is fitted again with the weights of each.

The variance is Σ_r s_r(β_r − β)(β_r − β)′, as R's `svyglm` has it for a replicate design. All replicates of a chunk
take their Newton steps together, from the estimate β and in its orthonormal columns, so that each pass over the records
makes the design matrix once. If a replicate has no estimate, because a level has no weight there, standard errors are
missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.engine import each_block, map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.estimation.coefficients import CONVERGED, STEPS, Coefficients, mean_and_slope, orthonormal
from svysynth.estimation.explained import Explained, Family, Rows
from svysynth.estimation.regression_variance import CalibratedWeights, sums_by
from svysynth.estimation.replicates import BLOCK, Replicates
from svysynth.estimation.supplied_replicates import rank_of_weights
from svysynth.survey.survey import Survey

SINGULAR = 1e-12
"""The information of a replicate is singular if its least eigenvalue is below this fraction of their sum."""


@outlined
@dataclass(frozen=True)
class _Weights:
    """The weights of the records in some replicates: columns of the file, or the weight times a factor of the unit."""

    columns: tuple[Column, ...] = ()
    weight: Column | None = None
    unit: Column | None = None
    """The unit of each record; None if each record is a unit."""
    factors: Floats | None = None
    """Unit × replicate."""
    calibrated: tuple[Column, Floats] | None = None
    """The calibration cell of each record, and g: calibration cell × replicate."""

    def __len__(self) -> int:
        return len(self.columns) if self.factors is None else self.factors.shape[1]

    def __call__(self, piece: slice) -> Floats:
        if self.factors is None:
            found = np.stack([np.asarray(column[piece], np.float64) for column in self.columns], axis=1)
        else:
            assert self.weight is not None
            factors = self.factors[piece] if self.unit is None else self.factors[np.asarray(self.unit[piece])]
            found = np.asarray(self.weight[piece])[:, np.newaxis] * factors
        if self.calibrated is not None:
            cell, factor = self.calibrated
            found = found * factor[np.asarray(cell[piece])]
        return found


@outlined
@dataclass(frozen=True, eq=False)
class ReplicateWeights:
    """Replicates of a survey: those that came with its file, or those made from its design."""

    survey: Survey
    scales: Floats
    center_at_mean: bool
    made: Replicates | None

    @classmethod
    def of(cls, survey: Survey, estimation: EstimationSpec, made: Replicates | None) -> ReplicateWeights | None:
        """The replicates from which variances come; None if they come from linearisation."""
        if made is not None:
            return cls(survey, made.scales, False, made)
        if survey.replicates is None:
            return None
        if estimation.variance != "taylor":
            remedy = "leave estimation.variance out: survey.replicates says how variances are computed"
            raise SurveyError("spec", "estimation.variance", "contradicts survey.replicates", remedy)
        return cls(survey, np.array(survey.replicates.factors), survey.replicates.center == "mean", None)

    def chunks(self, calibrated: CalibratedWeights | None) -> Iterator[_Weights]:
        """The weights, some replicates at a time; each replicate is calibrated by itself."""
        for weights in self._uncalibrated():
            if calibrated is not None:
                totals = calibrated.calibration.totals
                block = _ReplicateSums(weights, calibrated.cell, totals.cells)
                sums = np.sum(map_blocks(self.survey.engine, block, len(self.survey)), axis=0)
                own = calibrated.cell, totals.factors(sums)
                weights = _Weights(weights.columns, weights.weight, weights.unit, weights.factors, own)
            yield weights

    def _uncalibrated(self) -> Iterator[_Weights]:
        if self.made is not None:
            for factors in self.made.blocks():
                yield _Weights((), self.survey.weights, self.survey.index.psu, factors)
        elif self.survey.replicates is not None:
            columns = [self.survey.values(name) for name in self.survey.replicates.weights]
            for start in range(0, len(columns), BLOCK):
                yield _Weights(tuple(columns[start : start + BLOCK]))

    def degrees_of_freedom(self, explained: Explained, of_design: int) -> int:
        """Those of the design, but fewer than replicates; or the rank of the weights of the file minus one."""
        if self.made is not None:
            return min(of_design, len(self.scales) - 1)
        assert self.survey.replicates is not None
        inside = np.array([False, True])
        return rank_of_weights(self.survey, self.survey.replicates, explained.rows.inside, inside)


def replicated_covariance(
    explained: Explained,
    family: Family,
    found: Coefficients,
    replicates: ReplicateWeights,
    calibrated: CalibratedWeights | None = None,
) -> Floats:
    """The covariance matrix of the coefficients; NaN where a replicate has no estimate."""
    parts = [_estimates(explained, family, found, weights) for weights in replicates.chunks(calibrated)]
    turned = np.concatenate(parts)
    center = found.turned
    if replicates.center_at_mean:
        center = turned[replicates.scales > 0].mean(axis=0)
    deviation = turned - center
    return found.covariance((deviation * replicates.scales[:, np.newaxis]).T @ deviation)


def _estimates(explained: Explained, family: Family, found: Coefficients, weights: _Weights) -> Floats:
    """The coefficients of the orthonormal columns in each replicate: replicate × coefficient."""
    engine, records = explained.survey.engine, len(explained.survey)
    turned = np.tile(found.turned, (len(weights), 1))
    for _ in range(STEPS[family]):
        block = _Steps(explained.rows, family, found.triangle, turned, weights)
        scores, informations = zip(*each_block(engine, block, records), strict=True)
        step = _solved(np.sum(informations, axis=0), np.sum(scores, axis=0))
        turned = turned + step
        change, size = (float(np.nan_to_num(np.abs(value)).max()) for value in (step, turned))
        if change <= CONVERGED * (np.sqrt(found.weight) + size):
            return turned
    if family == "logistic":  # some levels have the same answer everywhere in a replicate
        turned[np.abs(step).max(axis=1) > CONVERGED * (np.sqrt(found.weight) + size)] = np.nan
    return turned


def _solved(information: Floats, score: Floats) -> Floats:
    """The Newton step of each replicate; NaN where the information is singular."""
    finite: Booleans = np.asarray(np.isfinite(information).all(axis=(1, 2)))
    safe = np.where(finite[:, np.newaxis, np.newaxis], information, np.eye(information.shape[1]))
    regular: Booleans = finite & (np.linalg.eigvalsh(safe)[:, 0] > SINGULAR * np.trace(safe, axis1=1, axis2=2))
    safe[~regular] = np.eye(information.shape[1])
    step = np.linalg.solve(safe, score[:, :, np.newaxis])[:, :, 0]
    return np.where(regular[:, np.newaxis], step, np.nan)


@outlined
@dataclass(frozen=True)
class _Steps:
    """The score and the information of a block in each replicate."""

    rows: Rows
    family: Family
    triangle: Floats
    turned: Floats
    weights: _Weights

    def __call__(self, piece: slice) -> tuple[Floats, Floats]:
        block = self.rows.block(piece)
        weight = self.weights(piece)[block.inside]
        q = orthonormal(block.x, self.triangle)
        mean, slope = mean_and_slope(self.family, q @ self.turned.T)
        score = (weight * (block.y[:, np.newaxis] - mean)).T @ q
        tilted = weight * slope
        information = np.stack([tilted.T @ (q * column[:, np.newaxis]) for column in q.T], axis=1)
        return score, information


@outlined
@dataclass(frozen=True)
class _ReplicateSums:
    """Σw of each calibration cell of a block, in every replicate."""

    weights: _Weights
    cell: Column
    cells: int

    def __call__(self, piece: slice) -> Floats:
        return sums_by(np.asarray(self.cell[piece]), self.cells, self.weights(piece))
