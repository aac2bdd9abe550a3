"""Step by step: the paper's mechanism in Python. A model is calibrated to ε, and synthetic surveys are drawn from it.

The result is that of a release with the same random numbers: the same draws, corrected and rounded in the same way. No
budget is charged here; `pipeline.release` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from svysynth.core.errors import SurveyError, require_type
from svysynth.core.notebook import Html, card
from svysynth.core.spec.privacy import PrivacySpec, Scheme
from svysynth.core.spec.whole import ModelSpec
from svysynth.core.streams import Streams
from svysynth.estimation.calibration import uncalibrated
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.findings import refuse
from svysynth.mechanisms.pseudo_posterior.bias_correction import Undone, public_part, undo_weights
from svysynth.mechanisms.pseudo_posterior.calibration import Calibration, calibrate_records, fit_unweighted
from svysynth.mechanisms.pseudo_posterior.clusters import require_effects
from svysynth.mechanisms.pseudo_posterior.published_shifts import centre_shifts
from svysynth.mechanisms.suitability import judge_calibration, judge_weights, refuse_misfit, refuse_unsuitable
from svysynth.models.arrays import Parameters
from svysynth.models.base import Model
from svysynth.models.records import make_records
from svysynth.models.synthesis import make_synthetic, released_draws, synthesize_draws
from svysynth.privacy.release import MICRODATA_DIGITS
from svysynth.survey.survey import Survey

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A model calibrated to ε for a survey. `synthesize` draws from it."""

    survey: Survey
    calibration: Calibration
    streams: Streams
    scheme: Scheme = "inverse"

    def undo_weights(self, progress: Progress = lambda _: None) -> Undone:
        """The m draws, corrected for the bias from the weights α. This costs no privacy (docs/privacy.md)."""
        found, fit = self.calibration, self.calibration.fit
        draws, public = released_draws(fit, found.datasets), public_part(fit.records)
        return undo_weights(
            fit.model, draws, public, found.epsilon, found.datasets, self.streams, self.scheme, fit.size, progress
        )

    @cached_property
    def _undone(self) -> Undone:
        return self.undo_weights()

    def __repr__(self) -> str:
        found = self.calibration
        target = f"calibrated to ε = {found.epsilon:g} for {found.datasets} data sets"
        return f"{found.fit.model.name} {target}: confidential, not charged to a budget"

    def _repr_html_(self) -> Html:
        """What was requested, and no number from the fit."""
        found = self.calibration
        facts = {
            "target": f"ε = {found.epsilon:g} (asymptotic: this is not differential privacy)",
            "synthetic surveys": f"{found.datasets:,}, by synthesize()",
            "records": f"{len(self.survey):,}",
        }
        warning = "Not charged to a budget: confidential, for internal use."
        return card(f"Calibrated model {found.fit.model.name}", warning=warning, facts=facts)

    def synthesize(
        self,
        digits: int | None = MICRODATA_DIGITS,
        draws: Sequence[Parameters] | None = None,
        *,
        correction: bool = True,
        undone: Undone | None = None,
    ) -> Synthetic:
        """The m synthetic surveys of a release. Every call returns the same ones: more would cost more of the budget.

        `correction` is `privacy.correction` of the spec: without it the draws are the paper's. If `draws` are given,
        they are used instead. `undone` is what `undo_weights` returned, if it was called already. `digits` is the
        number of significant digits to round to; None does not round.
        """
        fit = self.calibration.fit
        if draws is None and correction:
            undone = undone or self._undone
            draws = undone.draws
        elif draws is None:
            draws = released_draws(fit, self.calibration.datasets)
        surveys = synthesize_draws(fit.model, fit.records, draws, self.survey, self.streams, digits)
        return replace(make_synthetic(surveys, fit.model), shifts=centre_shifts(undone, self.survey))


def calibrate(
    model: Model,
    survey: Survey,
    epsilon: float,
    datasets: int = 3,
    *,
    formula: str | None = None,
    scheme: Scheme = "inverse",
    draws: int = 1000,
    streams: Streams | None = None,
    progress: Progress = lambda _: None,
) -> Calibrated:
    """Calibrate a model to a survey so that m draws meet the asymptotic guarantee at ε = 2·Δ_α·m.

    A survey that the model cannot fit is refused first. Surveys with clusters need `ClusteredFBS`.
    """
    require_type(survey, Survey, "the survey", "make it with svysynth.read_survey")
    _require_model(model)
    require_effects(model, survey)
    privacy: dict[str, Any] = {"epsilon": epsilon, "datasets": datasets, "scheme": scheme, "draws": draws}
    PrivacySpec(guarantee="asymptotic", **privacy)
    ModelSpec(formula=formula)
    streams = Streams.from_system() if streams is None else streams
    require_type(streams, Streams, "streams", "leave it out, or use svysynth.Streams.seeded for tests")
    refuse_unsuitable(model, survey, formula)
    return calibrate_suitable(model, survey, epsilon, datasets, formula, scheme, draws, streams, progress)


def calibrate_suitable(
    model: Model,
    survey: Survey,
    epsilon: float,
    datasets: int,
    formula: str | None,
    scheme: Scheme,
    draws: int,
    streams: Streams,
    progress: Progress,
) -> Calibrated:
    """Calibrate to a survey that was examined already. Weights α that leave too little information are refused."""
    records = make_records(survey, formula)
    progress("fitting without weights")
    start = fit_unweighted(model, records, streams, draws)
    refuse_misfit(start.fit, uncalibrated(survey), streams)
    found = calibrate_records(model, records, epsilon, datasets, streams, scheme, draws, progress, start)
    refuse([*judge_calibration(found), *judge_weights(found, uncalibrated(survey))])
    return Calibrated(survey, found, streams, scheme)


def _require_model(model: Model) -> None:
    if isinstance(model, type) or not isinstance(model, Model):
        kind = f"class {model.__name__}" if isinstance(model, type) else f"type '{type(model).__name__}'"
        remedy = "give svysynth.FBS(), svysynth.ClusteredFBS(), svysynth.FBP() or a svysynth.NumPyroModel"
        raise SurveyError("spec", "the model", f"is of the {kind}", remedy)
