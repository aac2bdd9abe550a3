"""Supplied replicates: variances from replicate weights that come with a file, as with R's `svrepdesign`.

The variance of an estimate q is Σ_r s_r(q_r − q)², with factors s_r that depend on the method
(`core/spec/replicates.py`). If the spec says so, the mean of the q_r takes the place of q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, Statistic
from svysynth.core.spec.replicates import ReplicatesSpec
from svysynth.estimation.calibration import Calibration
from svysynth.estimation.moments import Moments
from svysynth.estimation.replicates import replicate_estimates
from svysynth.estimation.statistics import DomainSums, estimate
from svysynth.survey.survey import Survey

DEPENDENT = 1e-5
"""The tolerance of the rank, as in R: replicate weights add no degree of freedom if their residual on those before is
shorter than this fraction of their own length."""


@outlined
@dataclass(frozen=True, eq=False)
class SuppliedReplicates:
    """Σw and Σwy of every finest cell in every replicate."""

    survey: Survey
    spec: ReplicatesSpec
    group: Integers
    """For each group of the moments its cell, by the number of its row in the sums."""
    record: Integers
    """For each record its cell, numbered in the same way."""
    weight: Floats
    outcome: Floats

    @classmethod
    def of(
        cls,
        survey: Survey,
        spec: ReplicatesSpec,
        crossed: Sequence[str],
        moments: Moments,
        estimation: EstimationSpec,
        calibration: Calibration | None,
    ) -> SuppliedReplicates:
        """Compute the sums, with one pass over the records for each replicate; each replicate is calibrated."""
        if estimation.variance != "taylor":
            remedy = "leave estimation.variance out: survey.replicates says how variances are computed"
            raise SurveyError("spec", "estimation.variance", "contradicts survey.replicates", remedy)
        present, group = np.unique(moments.cell, return_inverse=True)
        record = np.searchsorted(present, np.asarray(survey.cell_index(crossed)))
        outcome = np.asarray(survey.outcome_values)
        weights = [np.asarray(survey.values(name)) for name in spec.weights]
        sums = np.stack([group_sums(record, len(present), weight) for weight in weights], axis=1)
        totals = np.stack([group_sums(record, len(present), weight * outcome) for weight in weights], axis=1)
        if calibration is not None:
            factor = calibration.factors_of_replicates(group, sums)
            sums, totals = sums * factor, totals * factor
        return cls(survey, spec, group, record, sums, totals)

    def __call__(self, statistic: Statistic, domain: Integers, sums: DomainSums) -> Floats:
        """The variance of a statistic for each domain; NaN where a replicate has no records to average."""
        replicated = replicate_estimates(statistic, self.group, self.weight, self.outcome, domain, sums)
        scales = np.array(self.spec.factors)
        if self.spec.center == "mean":
            center = replicated[:, scales > 0].mean(axis=1)
        else:
            center = estimate(statistic, sums.weight, sums.outcome, sums.base)
        found = (replicated - center[:, np.newaxis]) ** 2 @ scales
        return np.where(np.isfinite(found), found, np.nan)

    def degrees_of_freedom(self, in_base: Booleans | None) -> int:
        """The rank of the replicate weights minus one, as R's `degf`; in a domain, the rank for the records inside.

        The weights are those of the file: calibration may raise their rank, but adds no clusters.
        """
        inside = slice(None) if in_base is None else np.isin(self.record, np.unique(self.group[in_base]))
        weights = np.stack([np.asarray(self.survey.values(name))[inside] for name in self.spec.weights])
        size = np.linalg.norm(weights, axis=1)
        size = np.where(size > 0, size, 1.0)
        left = (weights @ weights.T) / np.outer(size, size)
        rank = 0
        for place in range(len(left)):  # elimination leaves the squared residuals on the diagonal
            if left[place, place] > DEPENDENT**2:
                left = left - np.outer(left[:, place], left[place]) / left[place, place]
                rank += 1
        return max(rank - 1, 0)
