"""From the public folder: what anybody can make from a release from margins, without the survey and without ε."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.requests import problem
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.margins.coding import WEIGHT
from svysynth.mechanisms.margins.published import MEASUREMENT, read_measurement
from svysynth.mechanisms.synthetic_files import file_name, surveys_of_files
from svysynth.privacy.manifest import Manifest
from svysynth.privacy.release import TABLE_DIGITS, rounded
from svysynth.survey.domains import domain_column


@outlined
@dataclass(frozen=True, eq=False)
class FromPublic:
    """The synthetic files of a public folder, and the tables that follow from them."""

    public: Path
    manifest: Manifest
    first: int
    left: int = 0
    """There are no further files: each file has its own draw, and the folder has all of them."""

    @classmethod
    def read(cls, public: Path, manifest: Manifest) -> FromPublic:
        """Read a public folder, and check that its measurement belongs to its manifest."""
        measurement = read_measurement((public / MEASUREMENT).read_bytes())
        survey, names = manifest.survey, {one.name for one in measurement.codings}
        answers = {survey.outcome, *survey.variables, *(() if survey.weight_public else (WEIGHT,))}
        if names != answers or float(measurement.plan.epsilon) > manifest.privacy.epsilon:
            raise ValueError("the measurement does not belong to the manifest")
        return cls(public, manifest, manifest.privacy.datasets + 1)

    def tabulate_all(self, tables: Sequence[TableSpec]) -> pl.DataFrame:
        """Make tables from the files, rounded to the published digits."""
        spec = self.manifest.spec()
        for table in tables:
            wrong = problem(table, spec.survey.outcome, spec.survey.kinds, spec.survey.public)
            if wrong is not None:
                raise SurveyError("spec", f"table '{table.title}'", wrong, "choose from the columns of this release")
            if table.domain is not None and domain_column(table.domain) not in self.manifest.survey.known_domains:
                known = "; ".join(one.condition for one in self.manifest.survey.domains)
                remedy = f"choose one of them: {known}" if known else "make the table without a domain"
                raise SurveyError("spec", "domain", "is not one of the domains of this release", remedy)
        paths = [self.public / file_name(number, "parquet") for number in range(1, self.first)]
        with surveys_of_files(paths, self.manifest) as surveys:
            found = Synthetic(surveys, "imputed").tabulate_all(tables, self.manifest.estimation)
        return rounded(found, TABLE_DIGITS)

    def synthetic(self, files: int) -> Synthetic:
        """There are no further files."""
        raise _no_more()

    def write(self, files: int, folder: Path) -> None:
        """There are no further files."""
        raise _no_more()


def _no_more() -> SurveyError:
    remedy = "ask for tables alone, or fit a model of your own to measurement.json"
    return SurveyError("spec", "files", "a release from margins has all of its files in its public folder", remedy)
