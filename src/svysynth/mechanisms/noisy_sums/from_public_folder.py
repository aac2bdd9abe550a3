"""From the public folder: what anybody can make from a release from noisy sums, without the survey and without ε.

The files and tables of the release are made again here for verification, and further files and tables on request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from svysynth.core.engine import frame_ranges
from svysynth.core.errors import SurveyError, did_you_mean
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.findings import no_other_answers, no_quantiles, refuse
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement, NoisySizes
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import PublicWeights
from svysynth.mechanisms.noisy_sums.measuring.scaling import public_scales
from svysynth.mechanisms.noisy_sums.measuring.sizes import facts_of_noisy
from svysynth.mechanisms.noisy_sums.posterior.fitting import tables_of
from svysynth.mechanisms.noisy_sums.published import (
    DRAWS,
    MEASUREMENT,
    WEIGHTS,
    read_draws,
    read_files,
    read_measurement,
    read_weights,
)
from svysynth.mechanisms.synthetic_files import file_name, same_text, wrong
from svysynth.models.synthesis import choose_draws
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.privacy.release import MICRODATA_DIGITS, TABLE_DIGITS, endings, rounded
from svysynth.survey.domains import domain_column, same_domain
from svysynth.survey.files import open_data, read_columns, write_parts
from svysynth.survey.formats.parquet import count_rows, read_rows

LAST_DIGIT = 1.001 * 10.0 ** (1 - MICRODATA_DIGITS)
"""Published numbers may differ by one in their last digit: floats depend a little on the machine."""
ROUNDING = 1e-9
"""The difference allowed in sums that are computed again, for the same reason."""


@outlined
@dataclass(frozen=True, eq=False)
class FromPublic:
    """The measurement, facts and draws of a public folder, and the files and tables that follow from them."""

    make: FileMaker
    plan: FilePlan
    estimation: EstimationSpec

    @classmethod
    def read(cls, public: Path, manifest: Manifest) -> FromPublic:
        """Read a public folder and check it against its manifest."""
        text = (public / MEASUREMENT).read_bytes()
        weights = read_weights((public / WEIGHTS).read_bytes()) if manifest.survey.weight_public else None
        measurement, facts = read_measurement(text, weights)
        _check_measurement(measurement, facts, manifest)
        drawn, plan = read_draws((public / DRAWS).read_bytes(), len(facts.codes)), read_files(text)
        files = manifest.privacy.datasets
        if list(plan.draws) != (choose_draws(len(drawn), files) + 1 if files else np.empty(0)).tolist():
            raise ValueError("the files do not come from the draws that follow from the manifest's number of files")
        survey = manifest.survey
        facts = replace(facts, domain=survey.domain, domains=survey.known_domains, calibration=survey.calibration)
        columns = survey.outcome, survey.strata
        make = FileMaker(drawn, measurement, facts, plan.seed, *columns, cluster=survey.cluster, fpc=survey.fpc)
        return cls(make, plan, manifest.estimation)

    @property
    def draws(self) -> int:
        """The number of draws."""
        return len(self.make.drawn)

    @property
    def first(self) -> int:
        """The number of the first further synthetic file."""
        return len(self.plan.draws) + 1

    @property
    def left(self) -> int:
        """How many further files there can be: every draw gives one file."""
        return self.draws - len(self.plan.draws)

    def tabulate_all(self, tables: Sequence[TableSpec]) -> pl.DataFrame:
        """Make tables from all draws, rounded to the published digits."""
        refuse(no_quantiles(tables, "a release from noisy sums"))
        public = self.make.facts.labels
        released = [column for table in tables for column in table.by]  # other columns are refused below
        refuse(no_other_answers(tables, self.make.outcome, released))
        for column in (column for table in tables for column in table.by):
            if column not in public:
                problem = f"is not a public column of this release{did_you_mean(column, tuple(public))}"
                raise SurveyError("spec", f"column '{column}'", problem, f"choose from {', '.join(public)}")
        tables = [self._in_known_domain(table) for table in tables]
        found = tables_of(self.make.drawn, self.make.measurement, self.make.facts, tables, self.estimation)
        return rounded(found, TABLE_DIGITS)

    def _in_known_domain(self, table: TableSpec) -> TableSpec:
        """A table whose domain is written as the manifest has it."""
        if table.domain is None:
            return table
        known = [one.removeprefix(domain_column("")) for one in self.make.facts.domains]
        found = same_domain(table.domain, known)
        if found is None:
            remedy = f"choose from: {'; '.join(known)}" if known else "make the table without a domain"
            raise SurveyError("spec", "domain", "is not one of the domains of this release", remedy)
        return table.model_copy(update={"domain": found})

    def synthetic(self, files: int) -> Synthetic:
        """Make further files, as surveys."""
        return Synthetic(tuple(self.make.survey(draw) for draw in self._unused(files)), "imputed")

    def write(self, files: int, folder: Path) -> None:
        """Write further files, in the formats of the release."""
        records = len(self.make.facts)
        for number, draw in enumerate(self._unused(files), start=self.first):
            for ending in endings(records):
                write_parts(self.make.frames(draw, frame_ranges(records)), folder / file_name(number, ending))

    def _unused(self, files: int) -> tuple[int, ...]:
        if not 1 <= files <= self.left:
            used = f"{len(self.plan.draws)} of its {self.draws} draws were used for the files of the release"
            problem = f"{files:,} are requested, and this release has {self.left:,} left: {used}"
            raise SurveyError("spec", "files", problem, f"ask for 1 to {self.left:,}")
        return self.plan.further(self.draws)[:files]

    def compare(self, public: Path) -> None:
        """Make the release's own files again; the first file that differs is an error."""
        for number, draw in enumerate(self.plan.draws, start=1):
            path = public / file_name(number, "parquet")
            if not self._is_of_draw(path, draw):
                raise wrong(f"has a synthetic file that does not follow from its posterior draws ({path.name})")

    def _is_of_draw(self, path: Path, draw: int) -> bool:
        records, file = len(self.make.facts), open_data(path)
        ranges = frame_ranges(records)
        if count_rows(file) != records:
            return False
        for rows, again in zip(ranges, self.make.frames(draw, ranges), strict=True):
            if tuple(file.columns) != tuple(again.columns) or not _same(read_rows(file, again.columns, rows), again):
                return False
        text = path.with_suffix(".csv")
        return "csv" not in endings(records) or same_text(text, read_columns(file, file.columns))


def _same(published: pl.DataFrame, again: pl.DataFrame) -> bool:
    if published.schema != again.schema:
        return False
    numbers = [name for name, dtype in again.schema.items() if dtype.is_float()]
    found, expected = (frame.select(numbers).to_numpy() for frame in (published, again))
    return np.allclose(found, expected, rtol=LAST_DIGIT, atol=0) and published.drop(numbers).equals(again.drop(numbers))


def _check_measurement(measurement: Measurement, facts: PublicFacts, manifest: Manifest) -> None:
    """Check that the measurement belongs to the manifest: the same survey, and no more ε than was charged."""
    survey, privacy = manifest.survey, manifest.privacy
    same = (
        measurement.records == len(facts) == survey.records
        and _has_total_of(survey, measurement, facts.weights)
        and measurement.transform == survey.transform
        and measurement.bounds == privacy.bounds
        and dict(facts.labels) == survey.levels
        and float(measurement.plan.epsilon * _records_of_unit(privacy, facts)) <= privacy.epsilon
        and (measurement.plan.sizes > 0) == (measurement.sizes is not None) == (privacy.protect == "record")
        and (measurement.sizes is None or _is_declared(measurement.sizes, facts))
        and (facts.weights is None or _is_of_groups(facts.weights, facts))
        and _has_scales_of(privacy, measurement)
        and (measurement.between is not None) == (facts.cluster is not None) == (survey.cluster is not None)
    )
    if not same:
        raise ValueError("the measurement does not belong to the manifest")


def _records_of_unit(privacy: PrivacyFacts, facts: PublicFacts) -> int:
    """The number of records that are protected together: one, or those of the largest cluster."""
    if privacy.unit == "respondent":
        return 1
    if facts.cluster is None:
        raise ValueError("clusters are protected, and the groups have none")
    return int(np.bincount(facts.cluster, facts.count).max())


def _has_scales_of(privacy: PrivacyFacts, measurement: Measurement) -> bool:
    """Whether the scales come from the source that the manifest states: noisy histograms, or its constants."""
    scaling, constants, measured = measurement.scaling, privacy.constants, measurement.plan.histogram > 0
    if constants is None:
        return measured and privacy.scales == "histograms"
    outcome, weight = public_scales(constants)
    same = scaling.outcome == outcome and (measurement.plan.weights_public or scaling.weight == weight)
    return same and not measured and privacy.scales == "standin"


def _has_total_of(survey: SurveyFacts, measurement: Measurement, weights: PublicWeights | None) -> bool:
    """Whether the total is the declared one or, if weights are public, total and weight scale follow from them."""
    if weights is None:
        return measurement.population_total == survey.population_total
    scale = measurement.scaling.weight
    found = np.array([weights.total, weights.scale.centre, weights.scale.width])
    return np.allclose(found, [measurement.population_total, scale.centre, scale.width], rtol=ROUNDING, atol=ROUNDING)


def _is_of_groups(weights: PublicWeights, facts: PublicFacts) -> bool:
    """Whether each group has as many weights as records."""
    counts = np.bincount(weights.group, weights.count, len(facts.count))
    return len(counts) == len(facts.count) and bool((counts == facts.count).all())


def _is_declared(sizes: NoisySizes, facts: PublicFacts) -> bool:
    """Whether the cells are all combinations of declared levels, and their sizes follow from the noisy counts."""
    every = math.prod(len(labels) for labels in facts.labels.values())
    again = facts_of_noisy(facts, sizes) if len(sizes.counts) == len(facts.count) else None
    return len(facts.codes) == every and again is not None and bool((again.count == facts.count).all())
