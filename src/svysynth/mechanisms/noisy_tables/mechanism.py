"""Noisy tables, `laplace` to the user: additive noise with public bounds, differentially private for every data set.

`tables.py` has the mathematics; docs/privacy.md the proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec, PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import ModelSpec, Spec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import Synthetic
from svysynth.estimation.layout import percent
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
    Rows,
    Section,
    Try,
)
from svysynth.mechanisms.findings import Finding, no_public_weights
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_tables.tables import additive_tables, check_additive
from svysynth.mechanisms.suitability import Examined, examine_bounds
from svysynth.privacy.guarantee import Guarantee, additive
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.privacy.release import TABLE_DIGITS, rounded
from svysynth.survey.survey import Survey

NOISE = "The split of the budget over the measured sums, and the share of the released variances that is due to noise."


class NoisyTables(Mechanism):
    """The mechanism that makes tables only, from noisy sums."""

    packages = ("opendp",)
    stated = ()
    modelled = False

    def title(self, name: str) -> str:
        """The description for the public report."""
        return "Laplace: noise added to the sums from which the tables are made"

    def find_public(self, spec: Spec) -> list[Finding]:
        """The finding for public weights: this mechanism always protects weights."""
        return no_public_weights(spec)

    def undivided(self, spec: Spec) -> str | None:
        """The mechanism itself needs all records at once: noisy sums are not made from parts."""
        return "privacy.mechanism"

    def reads(self, spec: Spec) -> SurveySpec:
        """The spec without a log transform: no logarithms are used, so outcomes that are not positive are accepted."""
        return spec.survey.model_copy(update={"transform": "identity"})

    def check(self, survey: Survey, spec: Spec) -> None:
        """Refuse designs, variance methods and budgets that this mechanism cannot handle. All of these are public."""
        privacy, bounds = _settings(spec)
        check_additive(survey, spec.requested_tables, privacy.epsilon, bounds, spec.estimation, privacy.unit)

    def examine(self, survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
        """Advice to the reviewer: bounds that cut off data, and public columns that determine the outcome."""
        return examine_bounds(survey, _settings(spec)[1])

    def guarantee(self, survey: SurveySpec | SurveyFacts, privacy: PrivacySpec | PrivacyFacts) -> Guarantee:
        """ε for any change of the outcome and weight of a respondent, or of all respondents of a cluster."""
        return additive(privacy.epsilon, unit=privacy.unit, **vars(Roles.of(survey)))

    def run(self, survey: Survey, spec: Spec, pay: Pay, streams: Streams, progress: Progress) -> Made:
        """Measure the sums with noise, once, and make the tables from them."""
        privacy, bounds = _settings(spec)
        guarantee = self.guarantee(spec.survey, privacy)
        paid = pay(guarantee)
        # a run with a seed is not charged, so it must not use real noise either
        noise = None if streams.fresh else StudyNoise(streams)
        noisy = additive_tables(
            survey,
            spec.requested_tables,
            privacy.epsilon,
            bounds,
            noise=noise,
            estimation=spec.estimation,
            unit=privacy.unit,
        )
        notes = noisy.budget, *noisy.notes
        return Made(guarantee, paid, Synthetic(()), noisy.tables, NoiseEvidence(noisy.tables, notes), notes)

    def synthetic(self, surveys: tuple[Survey, ...], name: str, model: ModelSpec) -> Synthetic:
        """This mechanism makes no synthetic surveys."""
        return Synthetic(())

    def public_files(self, manifest: Manifest) -> tuple[str, ...]:
        """The tables and the report."""
        return TABLES_AND_REPORT

    def remake(self, public: Path, manifest: Manifest) -> Remade | None:
        """None: the noisy sums are not public, only the tables."""
        return None

    def further(self, public: Path, manifest: Manifest) -> Further | None:
        """None: the noisy sums are not public."""
        return None

    def tries(
        self, survey: Survey, spec: Spec, name: str, grid: Grid, streams: Streams, progress: Progress
    ) -> Iterator[Try]:
        """Tables at every ε and repeat, with the noise of a release."""
        if spec.privacy is None or spec.privacy.bounds is None:
            remedy = f"declare them, or leave '{name}' out of --mechanism"
            raise SurveyError("spec", "privacy.bounds", "are not declared", remedy)
        bounds, unit, tables = spec.privacy.bounds, spec.privacy.unit, spec.requested_tables
        for epsilon in grid.epsilons:
            progress(f"{name}: ε = {epsilon:g}")
            for repeat in range(grid.repeats):
                found = additive_tables(survey, tables, epsilon, bounds, estimation=spec.estimation, unit=unit)
                yield epsilon, 0, repeat, found.tables


def _settings(spec: Spec) -> tuple[PrivacySpec, BoundsSpec]:
    assert spec.privacy is not None
    assert spec.privacy.bounds is not None
    return spec.privacy, spec.privacy.bounds


@outlined
@dataclass(frozen=True, eq=False)
class NoiseEvidence:
    """How the budget was split, and the share of noise in each variance. All of it can be computed from the release."""

    tables: pl.DataFrame
    notes: tuple[str, ...]
    complaints: tuple[str, ...] = ()

    def summary(self) -> Rows:
        """No lines: the section says everything."""
        return []

    def sections(self) -> Sequence[Section]:
        """One section: the share of noise in the variance of each statistic, and the notes."""
        share = (pl.col("se_privacy") / pl.col("se")) ** 2
        known = rounded(self.tables, TABLE_DIGITS).filter(pl.col("se") > 0)
        found = known.group_by("statistic", maintain_order=True).agg(share.median().alias("share"))
        rows: Rows = [
            (f"Share of the variance that is noise, {name}, median", percent(part)) for name, part in found.iter_rows()
        ]
        rows += [(f"Note {number}", note) for number, note in enumerate(self.notes, start=1)]
        return [Section.of_facts("noise", "Noise", NOISE, rows)]

    def write(self, folder: Path) -> None:
        """Write nothing: the report has everything."""
