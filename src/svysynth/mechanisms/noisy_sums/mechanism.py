"""Noisy sums, `fbs` and `fbp` with the guarantee `global`: it holds for every data set and depends on no sampler.

Sums of the answers (outcomes and weights) are measured once, with noise (`measuring/measurement.py`, which has the
proof). All later steps use the measurement and public facts and nothing else: draws from a posterior that accounts for
the noise, tables with standard errors, and synthetic files. These steps can fail, be repeated or be refused at no cost
in ε.

With `protect = "record"` the sizes of cells are measured first, and later steps use only these noisy sizes. Weights
that are declared public are kept as they are, and only the outcome is measured (`measuring/public_weights.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.registry import find_model
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import BoundsSpec, PrivacySpec, Protected, Scales
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import ModelSpec, Spec, StandInSpec
from svysynth.core.streams import Streams
from svysynth.core.transforms import Transform
from svysynth.estimation.calibration import refuse_unmet_by_counts
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
from svysynth.mechanisms.findings import Finding, undeclared, unfit_calibration
from svysynth.mechanisms.noise import Noise, OpenDPNoise, StudyNoise
from svysynth.mechanisms.noisy_sums.evidence import NOT_CHECKED, MeasurementEvidence
from svysynth.mechanisms.noisy_sums.from_public_folder import FromPublic
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.measurement import MOST_RECORDS, Measurement, measure
from svysynth.mechanisms.noisy_sums.measuring.planning import plan_measurement, plan_sizes
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts, facts_of
from svysynth.mechanisms.noisy_sums.measuring.scaling import public_scales
from svysynth.mechanisms.noisy_sums.measuring.sizes import declared_groups, facts_of_noisy, measure_sizes
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of
from svysynth.mechanisms.noisy_sums.published import (
    DRAWS,
    MEASUREMENT,
    WEIGHTS,
    draws_parquet,
    measurement_json,
    weights_parquet,
)
from svysynth.mechanisms.noisy_sums.requirements import bounds_of, constants_of, privacy_of, unmet_requirements
from svysynth.mechanisms.suitability import Examined, examine_bounds, examine_values
from svysynth.mechanisms.synthetic_files import file_names
from svysynth.mechanisms.unit import epsilon_of_record
from svysynth.models.base import CovariancePrior, make_model
from svysynth.privacy.guarantee import Guarantee, measured, measured_records
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.survey.large_files import undivided_design
from svysynth.survey.survey import Survey

FEWEST_OVER_CELLS = 3
"""The number by which records must exceed cells, so that a spread within cells can be estimated."""
FEWEST_FREE_CLUSTERS = 3.0
"""The fewest degrees of freedom between clusters, and between records within them, so that both variances can be
estimated."""
NOTE = (
    "The tables come from a model fitted to sums that were measured once, with noise. Standard errors include the "
    "sampling error and the noise. measurement.json contains the noisy sums, and draws.parquet contains the posterior "
    "draws from which the tables were computed."
)
FILES = (
    "Each synthetic file is an imputation of the confidential file, made from one of the posterior draws. Its random "
    "numbers come from a seed in measurement.json. Combine results from the files by the rules of multiple imputation. "
    "`svysynth more` makes further files and tables from the public files, at no cost in privacy."
)
SIZES_NOTE = (
    "Whole records are protected. Numbers of records, in the column n and elsewhere, were measured with noise and are "
    "not exact. A row whose noisy number of records is zero has no mean; its count may still be above zero."
)
WEIGHTS_NOTE = (
    "Weights are public and unchanged: weights.parquet lists the weights of each group of records in measurement.json. "
    "Counts and proportions are exact, with design-based standard errors. Only the outcome was measured with noise."
)

UNCHECKED = Finding(
    "privacy.scales",
    f"the fit of the model's distribution is {NOT_CHECKED}",
    "no protected result can show whether the answers follow the model and whether the public scales are right",
    "compare the tables closely with the direct ones, or use privacy.scales = 'histograms'",
    stops=False,
)
SCALES_NOTE = (
    "The centre and the scale of the answers (outcomes and weights) are public constants. Neither these constants nor "
    "the fit of the model's distribution were checked, because no histograms were measured."
)


class NoisySums(Mechanism):
    """The mechanism that makes tables and synthetic files from a model that is fitted to noisy sums."""

    packages = ("jax", "blackjax", "opendp")
    stated = ("draws", "scales")
    modelled = True

    def title(self, name: str) -> str:
        """The description for the public report."""
        return f"{name.upper()} from noisy sums: tables and synthetic data from {find_model(name).described}"

    def find_public(self, spec: Spec) -> list[Finding]:
        """The findings for settings that this mechanism does not support, and for a single synthetic file."""
        return [*unfit_calibration(spec.survey), *unmet_requirements(spec)]

    def undivided(self, spec: Spec) -> str | None:
        """A design or variance that needs all records at once; everything else is computed from parts."""
        return undivided_design(spec)

    def reads(self, spec: Spec) -> SurveySpec:
        """The spec without a log transform: outcomes are clamped first, so outcomes that are not positive are accepted.

        With whole records protected, undeclared codes are accepted too: they count as in survey.other, or as the first.
        """
        update: dict[str, object] = {"transform": "identity"}
        if privacy_of(spec).protect == "record":
            columns = {*spec.survey.public, *([spec.survey.strata] if spec.survey.strata else [])}
            first = {column: next(iter(spec.survey.declared(column) or {})) for column in columns}
            update["other"] = first | spec.survey.other
        return spec.survey.model_copy(update=update)

    def check(self, survey: Survey, spec: Spec) -> None:
        """Refuse too many cells for the records or for the clusters, and too many records for exact sums.

        The first tests use public numbers; if the number of records is protected, the noisy sizes decide after the
        charge. The last test always uses the true number of records.
        """
        refuse_unmet_by_counts(survey)
        if privacy_of(spec).protect == "answers":
            facts = facts_of(survey)
            clusters, merge = ClusterSizes.of(facts), "use fewer columns, or merge levels"
            if len(survey) < len(facts.codes) + FEWEST_OVER_CELLS:
                problem = "the columns have nearly as many cells as there are records"
                raise SurveyError("spec", "survey.public", problem, merge)
            if clusters is not None and not min(clusters.freedom, clusters.degrees_of_freedom) >= FEWEST_FREE_CLUSTERS:
                problem = "there are too few clusters in each stratum or cell to estimate the variance between clusters"
                raise SurveyError("spec", "survey.cluster", problem, f"{merge}, or merge strata")
            if clusters is not None and clusters.within < FEWEST_FREE_CLUSTERS:
                problem = "has too few records that share a cluster to tell the variance between clusters from the rest"
                raise SurveyError("spec", "survey.cluster", problem, "leave it out if most clusters have one record")
            if clusters is not None and survey.index.lonely.any():
                problem = "has strata with one cluster, whose part of the variance between clusters is not modelled"
                raise SurveyError("design", "survey.strata", problem, "merge them with a neighbour")
        epsilon_of_record(privacy_of(spec).epsilon, privacy_of(spec).unit, survey)  # refuses one that is too small
        if len(survey) > MOST_RECORDS:
            raise SurveyError("data", "the survey", "has too many records for exact sums", "use mechanism = 'laplace'")

    def examine(self, survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
        """Advice on unsuitable outcomes, bounds that cut off data, columns that reveal answers, unchecked models."""
        found = examine_bounds(survey, bounds_of(spec))
        added = [] if constants_of(spec) is None else [UNCHECKED]
        own = (*examine_values(survey), *found.findings, *undeclared(survey, spec.survey), *added)
        return replace(found, findings=own)

    def guarantee(self, survey: SurveySpec | SurveyFacts, privacy: PrivacySpec | PrivacyFacts) -> Guarantee:
        """ε for a respondent changed; ε/2 for one blanked out or, with whole records protected, for taking part."""
        roles, transform = Roles.of(survey), survey.transform
        stated, constants = (privacy.mechanism, privacy.epsilon, privacy.datasets), privacy.scales == "standin"
        if privacy.protect == "record":
            columns = tuple(dict.fromkeys([*roles.confidential, *roles.public]))
            return measured_records(*stated, columns=columns, transform=transform, public_scales=constants)
        unit = privacy.unit
        return measured(*stated, unit=unit, transform=transform, public_scales=constants, **vars(roles))

    def run(self, survey: Survey, spec: Spec, pay: Pay, streams: Streams, progress: Progress) -> Made:
        """Pay, measure once, and then use the measurement and public facts alone."""
        privacy = privacy_of(spec)
        guarantee = self.guarantee(spec.survey, privacy)
        paid = pay(guarantee)
        # a run with a seed is not charged, so it must not use real noise either
        noise = OpenDPNoise() if streams.fresh else StudyNoise(streams)
        progress("measuring sums with noise")
        measurement, facts = _measure(survey, spec, privacy.epsilon, noise)
        progress("drawing from the posterior given the noisy sums")
        prior = prior_of(privacy.mechanism, spec.model)
        fitted = fit_measurement(measurement, facts, prior, spec.model.formula, privacy.draws, streams)
        progress("making tables")
        tables = tables_of(fitted.drawn, measurement, facts, spec.requested_tables, spec.estimation)
        if privacy.datasets:
            progress("making synthetic files")
        files = FilePlan.of(privacy.draws, privacy.datasets, streams)
        design = survey.design
        columns, where = (survey.outcome, design.strata), (survey.engine, survey.scratch)
        own = design.cluster, design.released_fpc
        make = FileMaker(fitted.drawn, measurement, facts, files.seed, *columns, *where, *own)
        synthetic = self.synthetic(tuple(make.survey(draw) for draw in files.draws), privacy.mechanism, spec.model)
        attachments = {
            MEASUREMENT: measurement_json(measurement, facts, files),
            DRAWS: draws_parquet(fitted.drawn, facts),
        }
        attachments |= {} if facts.weights is None else {WEIGHTS: weights_parquet(facts.weights)}
        evidence = MeasurementEvidence(measurement, fitted)
        notes = [NOTE, *([FILES] if privacy.datasets else []), *([SIZES_NOTE] if measurement.sizes else [])]
        notes += [] if measurement.plan.histogram else [SCALES_NOTE]
        notes += [] if facts.weights is None else [WEIGHTS_NOTE]
        return Made(guarantee, paid, synthetic, tables, evidence, tuple(notes), attachments, measurement.records)

    def synthetic(self, surveys: tuple[Survey, ...], name: str, model: ModelSpec) -> Synthetic:
        """Synthetic surveys with the table rules of imputations, whatever the model."""
        return Synthetic(surveys, "imputed")

    def public_files(self, manifest: Manifest) -> tuple[str, ...]:
        """The tables, the report, the measurement, the draws, the weights if public, and the synthetic files."""
        files = file_names(manifest.privacy.datasets, manifest.survey.records)
        weights = (WEIGHTS,) if manifest.survey.weight_public else ()
        return (*TABLES_AND_REPORT, MEASUREMENT, DRAWS, *weights, *files)

    def remake(self, public: Path, manifest: Manifest) -> Remade | None:
        """Make the tables again from the draws and the public facts, and the synthetic files too."""
        found = FromPublic.read(public, manifest)
        found.compare(public)
        also = f"{found.first - 1} synthetic files, made again from the draws and the seed" if found.first > 1 else None
        return Remade(found.tabulate_all(manifest.tables), "posterior draws", found.draws, also)

    def further(self, public: Path, manifest: Manifest) -> Further | None:
        """Further files, from draws without a file in the release, and further tables."""
        return FromPublic.read(public, manifest)

    def tries(
        self, survey: Survey, spec: Spec, name: str, grid: Grid, streams: Streams, progress: Progress
    ) -> Iterator[Try]:
        """Tables at every ε and repeat, each from its own measurement with noise from a stream."""
        for epsilon in grid.epsilons:
            progress(f"{name}: ε = {epsilon:g}")
            for repeat in range(grid.repeats):
                own = streams.split(f"{name} {epsilon:g} {repeat}")
                measurement, facts = _measure(survey, spec, epsilon, StudyNoise(own))
                draws = privacy_of(spec).draws
                prior = prior_of(name, spec.model)
                fitted = fit_measurement(measurement, facts, prior, spec.model.formula, draws, own)
                tables = spec.requested_tables, spec.estimation
                yield epsilon, 0, repeat, tables_of(fitted.drawn, measurement, facts, *tables)


def prior_of(name: str, settings: ModelSpec) -> CovariancePrior:
    """The prior of a model's spreads and correlation, for a fit to noisy sums."""
    found = make_model(name, settings).covariance_prior
    assert found is not None, "a model that is listed with the guarantee global has one"
    return found


def _measure(survey: Survey, spec: Spec, epsilon: float, noise: Noise) -> tuple[Measurement, PublicFacts]:
    protect, transform = privacy_of(spec).protect, spec.survey.transform
    constants, tables = constants_of(spec), spec.requested_tables
    epsilon = epsilon_of_record(epsilon, privacy_of(spec).unit, survey)
    return measure_survey(survey, protect, tables, bounds_of(spec), transform, epsilon, noise, constants)


def measure_survey(
    survey: Survey,
    protect: Protected,
    tables: Sequence[TableSpec],
    bounds: BoundsSpec,
    transform: Transform,
    epsilon: float,
    noise: Noise,
    constants: StandInSpec | None = None,
) -> tuple[Measurement, PublicFacts]:
    """The measurement and its facts: the public ones, or those with noisy sizes if whole records are protected.

    If constants are given, the scales come from them, and no histograms are measured.
    """
    scales: Scales = "histograms" if constants is None else "standin"
    public = None if constants is None else public_scales(constants)
    if protect == "answers":
        facts = facts_of(survey)
        plan = plan_measurement(facts, tables, epsilon, scales=scales)
        return measure(survey, facts, plan, bounds, transform, noise, None, public), facts
    groups = declared_groups(survey)
    part = plan_sizes(len(groups.count), epsilon, survey.population_total or 1.0, bounds)
    sizes = measure_sizes(survey, groups, part, noise)
    facts = facts_of_noisy(groups, sizes)
    if sum(max(size - 1, 0) for size in facts.size.tolist()) < FEWEST_OVER_CELLS:
        problem = "is too small: the noisy sizes of cells leave no records to fit a model to"
        remedy = "use a larger privacy.epsilon, or declare fewer levels in survey.levels"
        raise SurveyError("data", "privacy.epsilon", problem, remedy)
    plan = plan_measurement(facts, tables, epsilon, part, scales)
    return measure(survey, facts, plan, bounds, transform, noise, sizes, public), facts
