"""Pseudo posterior, `fbs` and `fbp` with the guarantee `asymptotic`: the paper's mechanism (§1.4, §2).

A model is fitted, records are downweighted by α until ε holds for m draws, and each draw becomes a synthetic survey;
`python_interface.py` has the steps. The fit and the weights look at the data before the charge, which is one reason why
the guarantee is only asymptotic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.registry import find_model
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import ModelSpec, Spec
from svysynth.core.streams import Streams
from svysynth.estimation.calibration import refuse_unmet_by_counts
from svysynth.estimation.centre_shifts import CentreShifts
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.base import (
    TABLES_AND_REPORT,
    Further,
    Grid,
    Made,
    Mechanism,
    Pay,
    Progress,
    Remade,
    Roles,
    Try,
)
from svysynth.mechanisms.findings import Finding, no_public_weights, unfit_calibration
from svysynth.mechanisms.pseudo_posterior.bias_correction import Undone
from svysynth.mechanisms.pseudo_posterior.calibration import Calibration, calibrate_records, fit_unweighted
from svysynth.mechanisms.pseudo_posterior.clusters import clusters_of_model, require_few_clusters
from svysynth.mechanisms.pseudo_posterior.evidence import CalibrationEvidence
from svysynth.mechanisms.pseudo_posterior.published_shifts import are_published, read_shifts, shifts_parquet
from svysynth.mechanisms.pseudo_posterior.python_interface import calibrate_suitable
from svysynth.mechanisms.suitability import Examined, examine_model
from svysynth.mechanisms.synthetic_files import SHIFTS, file_names, remake_tables
from svysynth.mechanisms.unit import epsilon_of_record
from svysynth.models.base import make_model
from svysynth.models.records import make_records
from svysynth.models.synthesis import make_synthetic, synthesize_surveys
from svysynth.privacy.guarantee import Guarantee, asymptotic
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.survey.large_files import undivided_design
from svysynth.survey.survey import Survey

ONE_FILE = Finding(
    "privacy.datasets",
    "only one synthetic file is requested",
    "standard errors from one file leave out the variance between draws, and are too small",
    "set privacy.datasets to 3 or more",
    stops=False,
)

CENTRE_NOTE = (
    "The weights α also move the centre of the model, in each sample by another amount. Standard errors contain this: "
    f"{SHIFTS} has such shifts, of simulated surveys, for each cell. They are added to the log weight and to the "
    "outcome on the model’s scale. The mean square of the changes of a figure, over all shifts, is one of the terms of "
    "its variance."
)
ONE_STRATUM = Finding(
    "survey.fpc",
    "the paper's rule for fbp treats the sample as one stratum, which has no single finite population correction",
    "the standard errors would be those of another design",
    "leave model.smoothing out, or leave survey.fpc out: standard errors are then too large",
    stops=True,
)


class PseudoPosterior(Mechanism):
    """The mechanism that makes synthetic surveys from draws of a weighted posterior, and tables from these surveys."""

    packages = ("jax", "blackjax")
    stated = ("scheme", "draws", "correction")
    modelled = True

    def title(self, name: str) -> str:
        """The description for the public report."""
        return find_model(name).title

    def find_public(self, spec: Spec) -> list[Finding]:
        """The findings for public weights that the model cannot use, and for a single synthetic file."""
        privacy = _privacy(spec)
        clusters = spec.survey.cluster is not None
        model = make_model(privacy.mechanism, spec.model, clusters=clusters)
        if clusters:
            found = clusters_of_model(spec, model.traits)
        else:
            found = [] if model.traits.public_weights else no_public_weights(spec)
        no_strata = not model.combining.strata_in_variance and spec.survey.strata is not None
        found = [*found, *([ONE_STRATUM] if spec.survey.fpc is not None and no_strata else [])]
        return [*found, *unfit_calibration(spec.survey), *([ONE_FILE] if privacy.datasets == 1 else [])]

    def undivided(self, spec: Spec) -> str | None:
        """The setting that needs all records at once: public weights, or a design or variance that needs them."""
        if spec.survey.weight_public:
            return "survey.weight_public"
        return "survey.cluster" if spec.survey.cluster else undivided_design(spec)

    def reads(self, spec: Spec) -> SurveySpec:
        """The spec unchanged."""
        return spec.survey

    def check(self, survey: Survey, spec: Spec) -> None:
        """Refuse tables that synthetic surveys, which have strata and clusters, cannot give, and a missing total."""
        require_few_clusters(survey)
        rules = self.synthetic((survey,), _privacy(spec).mechanism, spec.model)
        # there are no drawn weights yet
        estimation = spec.estimation.model_copy(update={"standard_errors": "paper"})
        rules.tabulate_all(spec.requested_tables, estimation)
        refuse_unmet_by_counts(survey)
        if survey.population_total is None and not survey.weight_public:
            remedy = "declare the published population total; released weights are scaled to it"
            raise SurveyError("spec", "survey.population_total", "is not declared", remedy)

    def examine(self, survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
        """Whether the model fits these data. The findings may stop a release: the guarantee does not cover refusals."""
        own = examine_model(survey, spec.model.formula, spec.requested_tables, direct)
        advice = (finding for finding in self.find_public(spec) if not finding.stops)
        return replace(own, findings=(*advice, *own.findings))

    def guarantee(self, survey: SurveySpec | SurveyFacts, privacy: PrivacySpec | PrivacyFacts) -> Guarantee:
        """The paper's guarantee: ε = 2·Δ_α·m for a respondent blanked out."""
        return asymptotic(
            privacy.mechanism,
            privacy.epsilon,
            privacy.datasets,
            unit=privacy.unit,
            transform=survey.transform,
            draws=privacy.draws or 0,
            **vars(Roles.of(survey)),
        )

    def run(self, survey: Survey, spec: Spec, pay: Pay, streams: Streams, progress: Progress) -> Made:
        """Calibrate, pay, draw, and make tables from the synthetic surveys."""
        privacy = _privacy(spec)
        model = make_model(privacy.mechanism, spec.model, survey.weight_public, survey.design.cluster is not None)
        epsilon = epsilon_of_record(privacy.epsilon, privacy.unit, survey)
        choices = epsilon, privacy.datasets, spec.model.formula, privacy.scheme, privacy.draws
        found = calibrate_suitable(model, survey, *choices, streams, progress)
        guarantee = self.guarantee(spec.survey, privacy)
        paid = pay(guarantee)
        undone = None
        if privacy.correction:
            progress("correcting the bias from the weights α")
            undone = found.undo_weights(progress)
        synthetic = found.synthesize(correction=privacy.correction, undone=undone)
        progress("making tables")
        tables = synthetic.tabulate_all(spec.requested_tables, spec.estimation)
        evidence = CalibrationEvidence(found.calibration)
        shifts = synthetic.shifts
        attachments = {} if shifts is None else {SHIFTS: shifts_parquet(shifts, survey)}
        return Made(guarantee, paid, synthetic, tables, evidence, _notes(undone, shifts), attachments)

    def synthetic(self, surveys: tuple[Survey, ...], name: str, model: ModelSpec) -> Synthetic:
        """Synthetic surveys with the table rules of the model."""
        return make_synthetic(surveys, make_model(name, model))

    def public_files(self, manifest: Manifest) -> tuple[str, ...]:
        """The tables, the report, the synthetic files, and the centre shifts of a sample of clusters."""
        shifts = (SHIFTS,) if are_published(manifest) else ()
        return (*TABLES_AND_REPORT, *file_names(manifest.privacy.datasets, manifest.survey.records), *shifts)

    def remake(self, public: Path, manifest: Manifest) -> Remade | None:
        """Make the tables again from the synthetic files, which are checked in doing so."""
        rules = self.synthetic((), manifest.privacy.mechanism, manifest.model or ModelSpec())
        rules = replace(rules, shifts=read_shifts(public, manifest))
        return Remade(remake_tables(public, manifest, rules), "synthetic files", manifest.privacy.datasets)

    def further(self, public: Path, manifest: Manifest) -> Further | None:
        """None: each further file is another draw from a posterior of the confidential data, and costs ε."""
        return None

    def tries(
        self, survey: Survey, spec: Spec, name: str, grid: Grid, streams: Streams, progress: Progress
    ) -> Iterator[Try]:
        """Tables at every (ε, m). The model is fitted once for each Δ = ε/(2m); all (ε, m) with this Δ use the fit."""
        privacy, model = _privacy(spec), make_model(name, spec.model, clusters=survey.design.cluster is not None)
        records = make_records(survey, spec.model.formula)
        progress(f"{name}: fitting without weights")
        start = fit_unweighted(model, records, streams, privacy.draws)
        fits: dict[float, Calibration | None] = {}
        for epsilon, count in ((epsilon, count) for epsilon in grid.epsilons for count in grid.datasets):
            target = epsilon_of_record(epsilon, privacy.unit, survey) / (2 * count)
            progress(f"{name}: ε = {epsilon:g}, {count} data sets")
            if target not in fits:
                try:
                    choices = streams, privacy.scheme, privacy.draws
                    fits[target] = calibrate_records(model, records, 2 * target, 1, *choices, start_from=start)
                except SurveyError:  # no weights reach this Δ: the point is left out
                    fits[target] = None
            calibration = fits[target]
            if calibration is None:
                continue
            surveys = synthesize_surveys(calibration.fit, survey, count * grid.repeats, streams)
            for repeat in range(grid.repeats):
                synthetic = make_synthetic(surveys[repeat :: grid.repeats], model)
                yield epsilon, count, repeat, synthetic.tabulate_all(spec.requested_tables, spec.estimation)


def _privacy(spec: Spec) -> PrivacySpec:
    assert spec.privacy is not None
    return spec.privacy


def _notes(undone: Undone | None, shifts: CentreShifts | None) -> tuple[str, ...]:
    """What readers are told of the correction, and of the centre shifts if there are any."""
    return (_weighting_note(undone), *([CENTRE_NOTE] if shifts else []))


def _weighting_note(undone: Undone | None) -> str:
    if undone is not None and undone.known:
        return (
            "Weighting records by α makes the fitted spread too small. The draws are corrected for this bias by "
            "simulation, which costs no privacy."
        )
    why = "are not corrected" if undone is None else "could not be corrected"
    return f"Weighting records by α makes the fitted spread too small. The draws {why} for this bias."
