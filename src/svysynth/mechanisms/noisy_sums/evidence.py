"""Evidence: what was measured and how the draws went, for the disclosure review."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.base import Rows, Section
from svysynth.mechanisms.noisy_sums.fitting import Fitted
from svysynth.mechanisms.noisy_sums.measurement import Measurement

HEADING = "What was measured with noise, and how the draws went. All of it follows from the measurement."
NOT_CHECKED = "not checked: no histograms were measured"


@outlined
@dataclass(frozen=True, eq=False)
class MeasurementEvidence:
    """What was measured and how the draws went: post-processing, so that it may stop a release."""

    measurement: Measurement
    fitted: Fitted

    @property
    def complaints(self) -> tuple[str, ...]:
        """Draws that cannot be trusted, and noisy histograms that are not the model's."""
        shapes = (("outcome", self.fitted.outcome_shape), ("weight", self.fitted.weight_shape))
        found = [
            f"the noisy histogram of the {name} is not the model's: {shape.distance:.2f} apart, where noise and chance "
            f"give up to {shape.by_chance:.2f}"
            for name, shape in shapes
            if shape is not None and not shape.fits
        ]
        return (*self.fitted.verdict.complaints, *found)

    def summary(self) -> Rows:
        """Nothing that the section does not say."""
        return []

    def sections(self) -> Sequence[Section]:
        """One: the parts of ε, the scales that were found, the shapes and the diagnostics."""
        measurement, fitted, plan = self.measurement, self.fitted, self.measurement.plan
        parts = [("sizes of cells", plan.sizes)] if plan.sizes else []
        name = "the histogram" if plan.weights_public else "two histograms"
        parts += [(name, plan.histograms * plan.histogram)] if plan.histogram else []
        parts += [("sums of squares", plan.squares)]
        parts += [(f"sums by {' and '.join(columns) or 'nothing'}", part) for columns, part in plan.levels]
        parts += [(f"weighted sums by {' and '.join(plan.weighted.columns) or 'nothing'}", plan.weighted.epsilon)]
        rows: Rows = [(f"ε of {name}", f"{float(part):.4g}") for name, part in parts]
        for name, scale, shape in (
            ("outcome", measurement.scaling.outcome, fitted.outcome_shape),
            ("weight", measurement.scaling.weight, fitted.weight_shape),
        )[: plan.histograms]:
            rows.append((f"Centre and scale of the {name}", f"{scale.centre:.4g}, {scale.width:.4g}"))
            found = NOT_CHECKED
            if shape is not None:
                found = f"{shape.distance:.3f}, up to {shape.by_chance:.3f} by noise and chance"
            rows.append((f"Distance of the {name}'s histogram from the model's", found))
        verdict = fitted.verdict
        rows.append(("Largest R-hat", f"{verdict.rhat:.3f}"))
        rows.append(("Fewest effective draws", f"{min(verdict.ess_bulk, verdict.ess_tail):.0f}"))
        return [Section.of_facts("measurement", "Measurement", HEADING, rows)]

    def write(self, folder: Path) -> None:
        """No files of its own: the measurement is public."""
