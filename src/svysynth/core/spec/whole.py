"""The spec: one page of TOML that says everything about a run, as frozen and validated models.

Unknown keys, wrong types and contradictions are errors that name the setting. `docs/spec.md` describes every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from svysynth.core.errors import SurveyError, is_plain, require_type
from svysynth.core.formula import parse_formula
from svysynth.core.registry import find_mechanism
from svysynth.core.spec.estimation import MOST_BY_COLUMNS, EstimationSpec, TableSpec
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.requests import problem
from svysynth.core.spec.sections import (
    Magnitude,
    Name,
    Positive,
    Section,
    clash,
    explained,
    no_repeats,
)
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.text import parse_text, read_text

Smoothing = Literal["full", "paper"]
MOST_TABLES = 1000
MICRODATA_COLUMNS = ("id", "weight", "weight_unsmoothed")
"""The columns that a synthetic file has besides its outcome, public columns and strata."""


class AboutSpec(Section):
    """`[about]`: what readers of a release are told about it."""

    title: Name | None = None
    producer: Name | None = None
    purpose: Annotated[str, Field(min_length=1, max_length=2000)] | None = None

    @model_validator(mode="after")
    def _can_be_printed(self) -> Self:
        for name in ("title", "producer", "purpose"):
            if not is_plain(getattr(self, name) or ""):
                raise clash(f"'about.{name}' has control characters")
        return self


class ModelSpec(Section):
    """`[model]`: the synthesizer's choices."""

    formula: Name | None = None
    smoothing: Smoothing = "full"


class StandInSpec(Section):
    """`[standin]`: public constants, from which `frontier --standin` simulates and `privacy.scales` may take scales."""

    mean: Magnitude
    spread: Positive
    weight_spread: Positive = 0.5
    correlation: Annotated[float, Field(gt=-1, lt=1)] = 0.0


class Spec(Section):
    """A whole spec."""

    survey: SurveySpec
    privacy: PrivacySpec | None = None
    about: AboutSpec = AboutSpec()
    model: ModelSpec = ModelSpec()
    estimation: EstimationSpec = EstimationSpec()
    standin: StandInSpec | None = None
    tables: Annotated[tuple[TableSpec, ...], Field(max_length=MOST_TABLES, strict=False)] = ()

    @model_validator(mode="after")
    def _synthetic_columns_do_not_clash(self) -> Self:
        survey = self.survey
        if self.privacy is not None and self.privacy.microdata:
            others = survey.strata, survey.cluster, survey.fpc, *self.of_release.survey.variables
            for column in (survey.outcome, *survey.public, *others):
                if column in MICRODATA_COLUMNS:
                    raise clash(f"'survey' uses '{column}', which is a column of every synthetic file: rename it")
        return self

    @model_validator(mode="after")
    def _scales_that_are_constants_are_given(self) -> Self:
        """The weights' spread too: its default is enough for a simulation, but here noise and bias depend on it."""
        given = set() if self.standin is None else self.standin.model_fields_set
        needed = ("mean", "spread") if self.survey.weight_public else ("mean", "spread", "weight_spread")
        missing = [name for name in needed if name not in given]
        if self.privacy is not None and self.privacy.scales == "standin" and missing:
            remedy = "add them from public knowledge (svysynth constants helps), or leave 'privacy.scales' out"
            raise clash(f"'privacy.scales' is 'standin', and [standin] lacks {', '.join(missing)}: {remedy}")
        return self

    @model_validator(mode="after")
    def _clusters_that_are_protected_are_declared(self) -> Self:
        if self.privacy is not None and self.privacy.unit == "cluster" and self.survey.cluster is None:
            raise clash("'privacy.unit' is 'cluster', and survey.cluster is not declared: name the column of clusters")
        return self

    @model_validator(mode="after")
    def _the_file_s_replicates_are_the_variance(self) -> Self:
        if self.survey.replicates is not None and self.estimation.variance != "taylor":
            raise clash("'estimation.variance' contradicts 'survey.replicates', which says how variances are made")
        return self

    @model_validator(mode="after")
    def _the_formula_can_be_parsed(self) -> Self:
        if self.model.formula is not None:
            try:
                parse_formula(self.model.formula, self.survey.public)
            except SurveyError as error:
                raise clash(f"'model.formula' {error.problem}: {error.remedy}") from None
        return self

    @model_validator(mode="after")
    def _tables_use_public_columns_and_answers(self) -> Self:
        for position, table in enumerate(self.tables, start=1):
            found = problem(table, self.survey.outcome, self.survey.kinds, self.survey.public)
            if found is not None:
                raise clash(f"table {position}: {found}")
        no_repeats([table.title for table in self.tables], "tables (give each a 'name')")
        return self

    @property
    def first_stage(self) -> Spec:
        """The spec with the first stage of sampling alone, as a release takes it."""
        return self.model_copy(update={"survey": self.survey.first_stage})

    @property
    def releases_answers(self) -> bool:
        """Whether its mechanism releases answers of every kind. It then needs no transform."""
        privacy = self.privacy
        member = None if privacy is None else find_mechanism(privacy.mechanism, privacy.guarantee)
        return member is not None and member.answers

    @property
    def of_release(self) -> Spec:
        """The spec as its mechanism uses it: without further answers, unless these are released too."""
        survey = self.survey
        if self.releases_answers:
            return self
        others = survey.variables.keys() - {survey.outcome}
        columns = {name: column for name, column in survey.columns.items() if name not in others}
        return self.model_copy(update={"survey": survey.model_copy(update={"variables": {}, "columns": columns})})

    @property
    def direct_estimation(self) -> EstimationSpec:
        """How direct tables are made beside a release, without an error that could reveal protected records."""
        if self.privacy is not None and self.privacy.protect == "record" and self.estimation.lonely == "fail":
            return self.estimation.model_copy(update={"lonely": "adjust"})
        return self.estimation

    @property
    def requested_tables(self) -> tuple[TableSpec, ...]:
        """The tables asked for; without any, counts and means by the public columns."""
        return self.tables or (TableSpec(by=self.survey.public[:MOST_BY_COLUMNS]),)


def load_spec(path: str | Path) -> Spec:
    """Read and validate a spec; a relative `survey.data` or `privacy.ledger` is taken from the spec's own folder."""
    require_type(path, str | Path, "the spec", "give the path of a spec in TOML")
    path = Path(path)
    spec = parse_spec(read_text(path), path.name)
    placed: dict[str, Any] = {"survey": spec.survey.model_copy(update={"data": path.parent / spec.survey.data})}
    if spec.privacy is not None:
        placed["privacy"] = spec.privacy.model_copy(update={"ledger": path.parent / spec.privacy.ledger})
    return spec.model_copy(update=placed)


def parse_spec(text: str, place: str = "spec") -> Spec:
    """Validate the text of a spec."""
    return validate_spec(parse_text(text, place), place)


def validate_spec(content: Mapping[str, Any], place: str = "spec") -> Spec:
    """Validate the content of a spec; every problem is listed in one error."""
    try:
        spec = Spec.model_validate(content)
    except ValidationError as error:
        raise explained(error, place, Spec) from None
    named = [spec.survey.domain, *(table.domain for table in spec.tables), *spec.survey.domains]
    domains = tuple(dict.fromkeys(domain for domain in named if domain))
    settings: dict[str, Any] = {"domains": domains}
    if spec.releases_answers:
        settings["transform"] = "identity"
    if spec.survey.calibration is not None:
        settings["population_total"] = spec.survey.calibration.total
    return spec.model_copy(update={"survey": spec.survey.model_copy(update=settings)})
