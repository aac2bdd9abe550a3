"""Supplied replicates: variances from replicate weights that come with a file, as with R's `svrepdesign`.

The variance of an estimate q is Σ_r s_r(q_r − q)², with factors s_r that depend on the method
(`core/spec/replicates.py`). If the spec says so, the mean of the q_r takes the place of q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from svysynth.core.column_storage import Column, derive
from svysynth.core.engine import each_block
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.spec.replicates import ReplicatesSpec
from svysynth.core.spec.statistics import Statistic
from svysynth.estimation.calibration import Calibration
from svysynth.estimation.moments import Moments
from svysynth.estimation.replicates import indicated, replicate_estimates
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
    record: Column
    """For each record its cell, numbered in the same way."""
    weight: Floats
    outcome: Floats

    @classmethod
    def of(
        cls,
        survey: Survey,
        spec: ReplicatesSpec,
        outcome: Column,
        crossed: Sequence[str],
        moments: Moments,
        estimation: EstimationSpec,
        calibration: Calibration | None,
    ) -> SuppliedReplicates:
        """Compute the sums of a column in one pass over the records; each replicate is calibrated."""
        if estimation.variance != "taylor":
            remedy = "leave estimation.variance out: survey.replicates says how variances are computed"
            raise SurveyError("spec", "estimation.variance", "contradicts survey.replicates", remedy)
        present, group = np.unique(moments.cell, return_inverse=True)
        record = derive(partial(_position, among=present), survey.cell_index(crossed))
        weights = tuple(survey.values(name) for name in spec.weights)
        sums, totals = np.zeros((2, len(present), len(weights)))
        block = _Sums(record, outcome, weights)
        for own, weight, total in each_block(survey.engine, block, len(survey)):
            sums[own] += weight
            totals[own] += total
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

    def indicating(self, groups: Booleans) -> SuppliedReplicates:
        """The variances of an indicator of some groups in place of the column; it is the same in each cell."""
        return replace(self, outcome=self.weight * indicated(self.group, groups, len(self.weight)))

    def degrees_of_freedom(self, in_base: Booleans | None) -> int:
        """The rank of the replicate weights minus one, as R's `degf`; in a domain, the rank for the records inside.

        The weights are those of the file: calibration may raise their rank, but adds no clusters.
        """
        inside = np.zeros(len(self.weight), bool)
        inside[self.group if in_base is None else self.group[in_base]] = True
        return rank_of_weights(self.survey, self.spec, self.record, inside)


def rank_of_weights(survey: Survey, spec: ReplicatesSpec, cell: Column, inside: Booleans) -> int:
    """The rank of the replicate weights minus one, for the records in some cells."""
    weights = tuple(survey.values(name) for name in spec.weights)
    products = np.sum(list(each_block(survey.engine, _Products(cell, weights, inside), len(survey))), axis=0)
    size = np.sqrt(np.diagonal(products))
    size = np.where(size > 0, size, 1.0)
    left = products / np.outer(size, size)
    rank = 0
    for place in range(len(left)):  # elimination leaves the squared residuals on the diagonal
        if left[place, place] > DEPENDENT**2:
            left = left - np.outer(left[:, place], left[place]) / left[place, place]
            rank += 1
    return max(rank - 1, 0)


def _position(cell: Integers, among: Integers) -> Integers:
    return np.searchsorted(among, cell)


@outlined
@dataclass(frozen=True)
class _Sums:
    """For a block: its cells, and Σw and Σwy of each in every replicate."""

    cell: Column
    outcome: Column
    weights: tuple[Column, ...]

    def __call__(self, piece: slice) -> tuple[Integers, Floats, Floats]:
        own, cell = np.unique(self.cell[piece], return_inverse=True)
        outcome, (sums, totals) = self.outcome[piece], np.empty((2, len(own), len(self.weights)))
        for place, column in enumerate(self.weights):
            weight = column[piece]
            sums[:, place] = group_sums(cell, len(own), weight)
            totals[:, place] = group_sums(cell, len(own), weight * outcome)
        return own, sums, totals


@outlined
@dataclass(frozen=True)
class _Products:
    """For a block: the products of the replicate weights, summed over the records in some of the cells."""

    cell: Column
    weights: tuple[Column, ...]
    inside: Booleans

    def __call__(self, piece: slice) -> Floats:
        chosen = self.inside[self.cell[piece]]
        weights = np.stack([column[piece][chosen] for column in self.weights])
        return np.asarray(weights @ weights.T)
