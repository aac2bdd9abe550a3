"""Margins: answers of every kind from noisy margins, with a guarantee that holds for every data set.

Answers in bands or levels, the weight among them, are counted in margins with public columns and with each other, once
and with noise (`measuring.py`, which has the proof). All later steps use the measurement and public facts and nothing
else: a graphical model given the margins, draws from its posterior, synthetic files, and tables by the rules of
multiple imputation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import ModelSpec, Spec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import SMOOTHED, Synthetic
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
from svysynth.mechanisms.findings import Finding
from svysynth.mechanisms.margins.coding import WEIGHT, codings
from svysynth.mechanisms.margins.drawing import Answers
from svysynth.mechanisms.margins.evidence import MarginsEvidence
from svysynth.mechanisms.margins.from_public_folder import FromPublic
from svysynth.mechanisms.margins.graph import Graph
from svysynth.mechanisms.margins.measuring import WEIGHT_BANDS, Cells, Measurement, measure, most_levels
from svysynth.mechanisms.margins.planning import WEIGHT_BAND, modelled_columns, pairs_of, plan_margins
from svysynth.mechanisms.margins.published import MEASUREMENT, measurement_json
from svysynth.mechanisms.margins.requirements import unmet_requirements
from svysynth.mechanisms.noise import Noise, OpenDPNoise, StudyNoise
from svysynth.mechanisms.noisy_sums.requirements import bounds_of, privacy_of
from svysynth.mechanisms.suitability import Examined, examine_bounds
from svysynth.mechanisms.synthetic_files import file_names, remake_tables
from svysynth.privacy.guarantee import Guarantee, measured
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.privacy.release import MICRODATA_DIGITS, rounded
from svysynth.survey.design import Design
from svysynth.survey.survey import Survey, SurveyInMemory

MOST_CELLS = 5000
"""The most combinations of modelled public columns: the model has a table of answers for each."""
MOST_ENTRIES = 2e7
"""The most entries of a table of the model, which has all answers that have to be summed out together."""
NOTE = (
    "The tables come from the synthetic files, by the rules of multiple imputation. The files come from a model that "
    "was fitted to counts of answers in bands and levels, which were measured once, with noise (measurement.json). "
    "Standard errors include the sampling error and the noise. What was not measured together is independent in the "
    "files, given what was: measurement.json lists the margins."
)


class Margins(Mechanism):
    """The mechanism for answers of every kind, several at once."""

    packages = ("jax", "opendp")
    stated = ()
    modelled = False

    def title(self, name: str) -> str:
        """The description for the public report."""
        return "Margins: tables and synthetic data from a graphical model of noisy margins"

    def find_public(self, spec: Spec) -> list[Finding]:
        """The findings for settings that this mechanism does not support."""
        return unmet_requirements(spec)

    def undivided(self, spec: Spec) -> str | None:
        """The mechanism itself: margins are counted, and files made, in memory."""
        return "privacy.mechanism"

    def reads(self, spec: Spec) -> SurveySpec:
        """The spec without a log transform: no logarithms of the outcome are used."""
        return spec.survey.model_copy(update={"transform": "identity"})

    def check(self, survey: Survey, spec: Spec) -> None:
        """Refuse too many combinations of public columns, and tables that cannot be made. All of these are public."""
        cells = len(_cells(_public_part(survey), survey, spec).count)
        if cells > MOST_CELLS:
            problem = f"the columns of the tables have more than {MOST_CELLS:,} combinations"
            raise SurveyError("spec", "tables", problem, "use fewer public columns in the tables, or merge levels")
        if _largest_table(spec, cells) > MOST_ENTRIES:
            problem = "ask for too many answers together: the model would not fit in memory"
            raise SurveyError("spec", "tables", problem, "make tables of fewer answers at a time, or merge levels")

    def examine(self, survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
        """Advice to the reviewer: bounds that cut off data, and public columns that determine the outcome."""
        return examine_bounds(survey, bounds_of(spec))

    def guarantee(self, survey: SurveySpec | SurveyFacts, privacy: PrivacySpec | PrivacyFacts) -> Guarantee:
        """ε for a respondent's answers changed, all of them at once; ε/2 if they are blanked out."""
        roles = Roles.of(survey)
        answers = tuple(dict.fromkeys([*roles.confidential, *survey.variables]))
        stated = privacy.mechanism, privacy.epsilon, privacy.datasets
        promise = measured(*stated, transform="identity", **vars(replace(roles, confidential=answers)))
        return promise.model_copy(update={"units": "as levels, in bands between public bounds"})

    def run(self, survey: Survey, spec: Spec, pay: Pay, streams: Streams, progress: Progress) -> Made:
        """Pay, measure once, and then use the measurement and public facts alone."""
        privacy = privacy_of(spec)
        guarantee = self.guarantee(spec.survey, privacy)
        paid = pay(guarantee)
        # a run with a seed is not charged, so it must not use real noise either
        noise = OpenDPNoise() if streams.fresh else StudyNoise(streams)
        progress("measuring margins with noise")
        measurement = _measure(survey, spec, privacy.epsilon, noise)
        progress("fitting the graphical model to the noisy margins")
        maker = Maker.of(survey, spec, measurement)
        progress("making synthetic files")
        files = tuple(maker.survey(streams, number) for number in range(privacy.datasets))
        synthetic = self.synthetic(files, privacy.mechanism, spec.model)
        progress("making tables")
        tables = synthetic.tabulate_all(spec.requested_tables, spec.estimation)
        attachments = {MEASUREMENT: measurement_json(measurement)}
        return Made(guarantee, paid, synthetic, tables, MarginsEvidence(maker.answers), (NOTE,), attachments)

    def synthetic(self, surveys: tuple[Survey, ...], name: str, model: ModelSpec) -> Synthetic:
        """Synthetic surveys with the table rules of imputations."""
        return Synthetic(surveys, "imputed")

    def public_files(self, manifest: Manifest) -> tuple[str, ...]:
        """The tables, the report, the measurement and the synthetic files."""
        files = file_names(manifest.privacy.datasets, manifest.survey.records)
        return (*TABLES_AND_REPORT, MEASUREMENT, *files)

    def remake(self, public: Path, manifest: Manifest) -> Remade | None:
        """Make the tables again from the synthetic files, and check the measurement."""
        FromPublic.read(public, manifest)
        rules = self.synthetic((), manifest.privacy.mechanism, ModelSpec())
        return Remade(remake_tables(public, manifest, rules), "synthetic files", manifest.privacy.datasets)

    def further(self, public: Path, manifest: Manifest) -> Further | None:
        """Further tables, from the synthetic files."""
        return FromPublic.read(public, manifest)

    def tries(
        self, survey: Survey, spec: Spec, name: str, grid: Grid, streams: Streams, progress: Progress
    ) -> Iterator[Try]:
        """Tables at every ε and repeat, each from its own measurement with noise from a stream."""
        for epsilon in grid.epsilons:
            progress(f"{name}: ε = {epsilon:g}")
            for repeat in range(grid.repeats):
                own = streams.split(f"{name} {epsilon:g} {repeat}")
                maker = Maker.of(survey, spec, _measure(survey, spec, epsilon, StudyNoise(own)))
                files = tuple(maker.survey(own, number) for number in range(privacy_of(spec).datasets))
                synthetic = self.synthetic(files, name, spec.model)
                yield epsilon, 0, repeat, synthetic.tabulate_all(spec.requested_tables, spec.estimation)


def _public_part(survey: Survey) -> pl.DataFrame:
    """The public columns of every record, with the strata, and the weight and the fpc where these are public."""
    return survey.in_memory().frame.select(survey.published)


def _cells(public: pl.DataFrame, survey: Survey, spec: Spec) -> Cells:
    """The cells of the modelled columns, with bands of weights if these are public."""
    columns = modelled_columns(spec.survey, spec.requested_tables)
    if not survey.weight_public:
        return Cells.of(public, columns)
    weight = public[survey.design.weight].to_numpy()
    band = np.searchsorted(np.quantile(weight, WEIGHT_BANDS), weight)
    return Cells.of(public.with_columns(pl.Series(WEIGHT_BAND, band)), (*columns, WEIGHT_BAND))


def _largest_table(spec: Spec, cells: int) -> float:
    """The entries of the model's largest table if all amounts have as many wide bands as they can have."""
    own = codings(spec.survey, bounds_of(spec))
    place = {one.name: position for position, one in enumerate(own)}
    pairs = [*pairs_of(spec.survey.answers, spec.survey, spec.requested_tables)]
    pairs += [(WEIGHT, one.name) for one in own if WEIGHT in place and one.name != WEIGHT]
    rows = np.zeros(cells, np.int64)
    factors = [(sorted((place[first], place[second])), rows) for first, second in pairs]
    return Graph.of([most_levels(one) for one in own], factors, rows).largest_table


def _measure(survey: Survey, spec: Spec, epsilon: float, noise: Noise) -> Measurement:
    own = codings(spec.survey, bounds_of(spec))
    cells = _cells(_public_part(survey), survey, spec)
    pairs = pairs_of(spec.survey.answers, spec.survey, spec.requested_tables)
    values = {one.name: np.asarray(survey.weights if one.name == WEIGHT else survey.values(one.name)) for one in own}
    return measure(values, cells, own, plan_margins(own, cells.sizes, pairs, epsilon), noise)


@outlined
@dataclass(frozen=True, eq=False)
class Maker:
    """Makes synthetic surveys. It has the public part of the records and the posterior of their answers."""

    like: SurveyInMemory
    """The public part of the survey, sorted, as a survey without answers."""
    answers: Answers

    @classmethod
    def of(cls, survey: Survey, spec: Spec, measurement: Measurement) -> Maker:
        """Fit the answers."""
        public = _public_part(survey)
        public = public.sort(public.columns)
        cells = _cells(public, survey, spec)
        order = np.argsort(cells.of_record, kind="stable")
        design = survey.design
        like = SurveyInMemory(
            survey.outcome,
            Design(SMOOTHED, design.strata, None, design.released_fpc, fpc_public=design.fpc_public),
            survey.public,
            survey.transform,
            survey.population_total,
            weight_public=survey.weight_public,
            domain=survey.domain,
            domains=survey.domains,
            variables=survey.variables,
            frame=public[order].rename({design.weight: SMOOTHED}) if survey.weight_public else public[order],
        )
        return cls(like, Answers.fit(measurement, replace(cells, of_record=cells.of_record[order])))

    def survey(self, streams: Streams, number: int) -> SurveyInMemory:
        """A synthetic file, as a survey; its numbers are rounded as they are published."""
        total = None if self.like.weight_public else self.like.population_total
        found = self.answers.draw(streams.generator("synthetic file", number), total)
        columns = [pl.Series(SMOOTHED if name == WEIGHT else name, values) for name, values in found.items()]
        return replace(self.like, frame=rounded(self.like.frame.with_columns(columns), MICRODATA_DIGITS))
