"""Evidence: the parts of ε, the noise of each margin, and how the fitted model agrees with them, for the review."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.base import Rows, Section
from svysynth.mechanisms.margins.drawing import Answers

HEADING = (
    "Each use of ε with the standard deviation of its noise, and for margins the mean square of the difference between "
    "noisy and fitted margin, in units of the noise: at most about 1 where the model fits. All of these are computed "
    "from the noisy measurement alone."
)
MISFIT = 1.5
"""The mean square difference of all margins above which the model is said not to fit; noise alone gives at most 1."""


@outlined
@dataclass(frozen=True, eq=False)
class MarginsEvidence:
    """The measurement and the fitted model. It is post-processing, so it may stop a release."""

    answers: Answers

    @property
    def squares(self) -> list[float]:
        """The mean square difference of each margin, in units of its noise."""
        fitted = self.answers.fitted
        expected = fitted.fitter.graph.margins(fitted.mode)
        own = zip(expected, fitted.problem.noisy, fitted.problem.precision, strict=True)
        of_factors = [float(np.mean(np.asarray(p) * (np.asarray(e) - np.asarray(y)) ** 2)) for e, y, p in own]
        return of_factors[len(self.answers.measurement.codings) :]

    @property
    def complaints(self) -> tuple[str, ...]:
        """The complaint that the model does not fit the noisy margins."""
        found = float(np.mean(self.squares))
        if found <= MISFIT:
            return ()
        return (f"The model does not fit the noisy margins: mean square difference {found:.2f}, in units of the noise",)

    def summary(self) -> Rows:
        """No lines: the section says everything."""
        return []

    def sections(self) -> Sequence[Section]:
        """One section: the parts of ε, and how the margins fit."""
        plan = self.answers.measurement.plan
        rows: Rows = [
            (use.name, f"ε = {float(use.epsilon):.4g}") for use in (*plan.bands, *plan.amounts, *plan.weights)
        ]
        for use, square in zip(plan.margins, self.squares, strict=True):
            noise = 2**0.5 * use.scale
            rows.append((use.name, f"ε = {float(use.epsilon):.4g}, noise ±{noise:.3g} records, fit {square:.2f}"))
        return [Section.of_facts("measurement", "Measurement", HEADING, rows)]

    def write(self, folder: Path) -> None:
        """Write nothing: the measurement is public."""
