"""Evidence: the measurement and the diagnostics of the draws, for the disclosure review."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.base import Rows, Section
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.posterior.fitting import Fitted

HEADING = (
    "The parts of ε, the scales, the comparison of the noisy histograms with the model, and the diagnostics of the "
    "posterior draws. All of these are computed from the noisy measurement alone."
)
NOT_CHECKED = "not checked: no histograms were measured"


@outlined
@dataclass(frozen=True, eq=False)
class MeasurementEvidence:
    """The measurement and the diagnostics of the draws. It is post-processing, so it may stop a release."""

    measurement: Measurement
    fitted: Fitted

    @property
    def complaints(self) -> tuple[str, ...]:
        """Failed diagnostics of the draws, and noisy histograms that do not fit the model."""
        shapes = (("outcome", self.fitted.outcome_shape), ("weight", self.fitted.weight_shape))
        found = [
            f"The model does not have the shape of the {name}: its noisy histogram is {shape.distance:.2f} from the "
            f"model's, while noise and chance explain up to {shape.by_chance:.2f}"
            for name, shape in shapes
            if shape is not None and not shape.fits
        ]
        return (*self.fitted.verdict.warnings, *found)

    def summary(self) -> Rows:
        """No lines: the section says everything."""
        return []

    def sections(self) -> Sequence[Section]:
        """One section: the parts of ε, the scales, the fit of the histograms, and the diagnostics."""
        measurement, fitted, plan = self.measurement, self.fitted, self.measurement.plan
        parts = [("the sizes of cells", plan.sizes)] if plan.sizes else []
        name = "the histogram" if plan.weights_public else "the two histograms"
        parts += [(name, plan.histograms * plan.histogram)] if plan.histogram else []
        parts += [("the sums of squares", plan.squares)]
        parts += [("the sums of squares between clusters", plan.clusters)] if plan.clusters else []
        parts += [(_named("the sums", columns), part) for columns, part in plan.levels]
        parts += [(_named("the weighted sums", plan.weighted.columns), plan.weighted.epsilon)]
        rows: Rows = [(f"ε of {name}", f"{float(part):.4g}") for name, part in parts]
        for name, scale, shape in (
            ("outcome", measurement.scaling.outcome, fitted.outcome_shape),
            ("weight", measurement.scaling.weight, fitted.weight_shape),
        )[: plan.histograms]:
            rows.append((f"Centre and scale of the {name}", f"{scale.centre:.4g}, {scale.width:.4g}"))
            found = NOT_CHECKED
            if shape is not None:
                found = f"{shape.distance:.3f}; noise and chance explain up to {shape.by_chance:.3f}"
            rows.append((f"Distance between the histogram of the {name} and the model's", found))
        verdict = fitted.verdict
        rows.append(("Largest R-hat", f"{verdict.rhat:.3f}"))
        rows.append(("Fewest effective draws", f"{min(verdict.ess_bulk, verdict.ess_tail):.0f}"))
        return [Section.of_facts("measurement", "Measurement", HEADING, rows)]

    def write(self, folder: Path) -> None:
        """Write nothing: the measurement is public."""


def _named(sums: str, columns: tuple[str, ...]) -> str:
    return f"{sums} by {' and '.join(columns)}" if columns else f"{sums} of the whole file"
