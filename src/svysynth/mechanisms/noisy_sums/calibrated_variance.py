"""Calibrated variance: the factors that calibrate the weights of each posterior draw, and the design variance then.

The weights of a draw are calibrated to the declared totals, as those of a file are (`estimation/calibration.py`). A
count of a declared level is then the same in all draws. The linearised value of a statistic loses what the regression
on the totals explains: z = w(1_d(a + b·y) − c·1_base − x′B). The regression has the mean weights over draws; the draws
differ little from these, and a value that the totals explain exactly has no residual with any weights.

If the design has clusters, the variance between records at the means of their cells gives way to that between clusters
(`clustered_variance.py`), of the same residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.estimation.calibration import Totals
from svysynth.mechanisms.noisy_sums.clustered_variance import ClusteredVariance
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts

Three = Sequence[Floats]
"""The variance of w, the covariance of w and wy, and the variance of wy, of a record in each group: draw × group."""


@outlined
@dataclass(frozen=True, eq=False)
class CalibratedVariance:
    """The regression on the totals, over the cells of the public facts."""

    totals: Totals
    inverse: Any
    design: Floats
    """Mean Σw of each cell over the draws, before calibration."""

    @classmethod
    def of(cls, spec: CalibrationSpec, facts: PublicFacts, weight: Floats) -> tuple[CalibratedVariance, Floats]:
        """The regression, and the factor of each cell in each draw, from Σw of the cells: draw × cell."""
        columns = list(facts.labels)
        totals = Totals.of(facts, spec, facts.codes[:, [columns.index(column) for column in spec.columns]])
        inside = np.eye(totals.cells)[totals.cell]
        sums = weight @ inside
        factor = totals.factors(sums.T)[totals.cell].T
        return cls(totals, totals.inverse(sums.mean(axis=0)), weight.mean(axis=0)), factor

    def _fitted(self, value: Floats) -> Floats:
        """x′B of each cell, from the mean of u in each cell: draw × cell."""
        inside, member = np.eye(self.totals.cells)[self.totals.cell], self.totals.member
        sums = ((value * self.design) @ inside).T
        return np.asarray(member @ (self.inverse @ (member.T @ sums))).T[:, self.totals.cell]

    def __call__(
        self,
        figures: tuple[Floats, Floats],
        moments: tuple[Three, Three],
        facts: PublicFacts,
        domain: Integers,
        in_base: Floats,
        values: tuple[Floats, Floats, Floats],
        clusters: ClusteredVariance | None = None,
    ) -> tuple[Floats, Floats]:
        """The design variance, and the part of it that figures of the model do not have: draw × domain.

        `figures` are mean weight and weighted mean outcome of the cells. `moments` are, for each group, the moments of
        records, and those that a cell's own spread adds. `values` are a, b and c for each draw and domain.
        """
        design, left = np.empty_like(values[0]), np.empty_like(values[0])
        weight, outcome = (each[:, facts.cell] for each in figures)
        size, in_stratum = np.bincount(facts.stratum, facts.count), np.eye(facts.strata)[facts.stratum]
        scale = facts.unsampled * np.where(size > 1, size / np.maximum(size - 1, 1), 0.0)
        unsampled = facts.unsampled[facts.stratum]
        part = np.average(unsampled, weights=facts.count)
        for one in range(design.shape[1]):
            inside = domain == one
            a, b, c = (each[:, [one]] for each in values)
            level, slope = self._left(a * inside - c * in_base, b * inside, outcome, facts)
            if clusters is None:
                mean = weight * (level + slope * outcome)
                squares, total = (mean**2 * facts.count) @ in_stratum, (mean * facts.count) @ in_stratum
                between = np.maximum(squares - total**2 / size, 0.0) @ scale
            else:
                place = _group_of_cell(facts)
                between = clusters.of_values(level[:, place], slope[:, place])
            within, own = (
                np.maximum((level**2 * ww + 2 * level * slope * we + slope**2 * ee) @ (facts.count * unsampled), 0.0)
                for ww, we, ee in moments
            )
            common = (b * np.sqrt(np.maximum(self._own_outcome(moments[1], outcome), 0.0)) * inside) @ facts.count
            design[:, one] = between + within
            left[:, one] = np.maximum(own - part * common**2 / facts.count.sum(), 0.0)
        return design, left

    def _left(self, level: Floats, slope: Floats, outcome: Floats, facts: PublicFacts) -> tuple[Floats, Floats]:
        """What the regression leaves of u = level + slope·y; it is projected twice, against rounding error."""
        place = _group_of_cell(facts)
        for _ in range(2):
            level = level - self._fitted((level + slope * outcome)[:, place])[:, facts.cell]
        return level, slope

    @staticmethod
    def _own_outcome(own: Three, outcome: Floats) -> Floats:
        """The variance that the spread of a cell's own outcomes adds to w(y − ȳ)."""
        ww, we, ee = own
        return np.asarray(ee - 2 * outcome * we + outcome**2 * ww)


def _group_of_cell(facts: PublicFacts) -> Integers:
    """A group of each cell: values are the same in all of them."""
    place = np.empty(len(facts.codes), np.int64)
    place[facts.cell] = np.arange(len(facts.cell))
    return place
