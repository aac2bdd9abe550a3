"""The spec: one page of TOML that says everything about a run, as frozen and validated models.

Unknown keys, wrong types and contradictions are errors that name the setting. `docs/spec.md` describes every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from svysynth.core.errors import SurveyError, did_you_mean, is_plain, require_type
from svysynth.core.formula import parse_formula
from svysynth.core.registry import Accounting, Promise, find_mechanism, mechanism_names, promises_of
from svysynth.core.spec_replicates import ReplicatesSpec
from svysynth.core.spec_text import parse_text, read_text
from svysynth.core.spec_validation import (
    Magnitude,
    Name,
    Positive,
    Range,
    Section,
    clash,
    explained,
    listed,
    no_repeats,
)
from svysynth.core.transforms import Transform

Statistic = Literal["count", "mean", "total", "proportion"]
Lonely = Literal["fail", "certainty", "adjust"]
Scheme = Literal["inverse", "linear", "reweighted"]
Smoothing = Literal["full", "paper"]
Protected = Literal["answers", "record"]
Scales = Literal["histograms", "standin"]
VarianceMethod = Literal["taylor", "preston", "bootstrap", "jackknife", "brr"]
StandardErrors = Literal["full", "paper"]
"""How standard errors come from synthetic files: from unsmoothed weights, or from smoothed ones as in the paper."""

MOST_BY_COLUMNS = 8
MOST_TABLES = 1000
DRAWS_APART = 10
"""Released draws are at least this many kept draws apart."""
TIDY_COLUMNS = (
    *("table", "statistic", "estimate", "se", "se_sampling", "se_privacy", "df", "lower", "upper"),
    *("cv", "n", "reliability", "source"),
)
"""The columns of a table: no public column may have one of these names."""
MICRODATA_COLUMNS = ("id", "weight", "weight_unsmoothed")
"""The columns that a synthetic file has besides its outcome, public columns and strata."""


class SurveySpec(Section):
    """`[survey]`: where the data are and what role each column plays."""

    data: Annotated[Path, Field(strict=False)]
    outcome: Name
    transform: Transform = "log"
    weight: Name
    weight_public: bool = False
    strata: Name | None = None
    cluster: Name | None = None
    fpc: Name | None = None
    public: Annotated[tuple[Name, ...], Field(min_length=1, strict=False), BeforeValidator(listed)]
    population_total: Positive | None = None
    replicates: ReplicatesSpec | None = None
    where: Name | None = None
    domain: Name | None = None
    domains: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    universe: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    missing: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    labels: dict[Name, dict[Name, Name]] = Field(default_factory=dict)
    levels: dict[Name, Annotated[tuple[Name, ...], Field(min_length=1, strict=False)]] = Field(default_factory=dict)
    other: dict[Name, Name] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _roles_do_not_clash(self) -> Self:
        no_repeats(self.public, "public")
        for column in self.public:
            if column in TIDY_COLUMNS:
                raise clash(f"'public' names '{column}', which is a column of every table: rename it in the data")
        confidential = [self.outcome, self.weight, *([self.fpc] if self.fpc else [])]
        no_repeats(confidential, "outcome, weight and fpc")
        for role in ("public", "strata", "cluster", "universe"):
            columns = getattr(self, role)
            if set(confidential) & set([columns] if isinstance(columns, str) else columns or ()):
                raise clash(f"'{role}' names a column that is also the outcome, the weight or the fpc")
        weights = set(self.replicates.weights) if self.replicates else set()
        if weights & {*confidential, *self.public, *self.universe, self.strata, self.cluster}:
            raise clash("'replicates.weights' names a column that has another role")
        if self.cluster and self.cluster == self.strata:
            raise clash("'cluster' and 'strata' name the same column")
        for column, labels in self.labels.items():
            if column not in self.public:
                raise clash(f"'labels.{column}' is not one of the public columns")
            no_repeats(labels.values(), f"labels.{column}")
            if set(labels) & set(self.missing):
                raise clash(f"'labels.{column}' has a label for a code that 'missing' lists")
        return self

    @model_validator(mode="after")
    def _levels_are_of_columns_with_levels(self) -> Self:
        for column, levels in self.levels.items():
            if column not in (*self.public, self.strata):
                raise clash(f"'levels.{column}' is neither one of the public columns nor the strata")
            if column in self.labels:
                raise clash(f"'levels.{column}' and 'labels.{column}' both list the levels: keep one of them")
            no_repeats(levels, f"levels.{column}")
            if set(levels) & set(self.missing):
                raise clash(f"'levels.{column}' lists a code that 'missing' lists too")
        for column, level in self.other.items():
            if level not in (self.declared(column) or ()):
                raise clash(f"'other.{column}' is not one of the levels in 'levels.{column}' or 'labels.{column}'")
        return self

    def declared(self, column: str) -> dict[str, str] | None:
        """The declared codes of a column and their labels, in order; None if the data decide."""
        levels = self.levels.get(column)
        return self.labels.get(column) if levels is None else {level: level for level in levels}


class BoundsSpec(Section):
    """`[privacy.bounds]`: public ranges of outcome and weight; a record outside counts as if at the nearer end."""

    outcome: Range
    weight: Range

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Self:
        for name, (low, high) in (("outcome", self.outcome), ("weight", self.weight)):
            if low >= high:
                raise clash(f"'privacy.bounds.{name}' must be in ascending order")
        if self.weight[0] < 0:
            raise clash("'privacy.bounds.weight' must not be negative")
        return self


def _known_mechanism(name: str) -> str:
    names = mechanism_names()
    if name not in names:
        raise clash("'privacy.mechanism' must be one of " + ", ".join(f"'{one}'" for one in names))
    return name


class PrivacySpec(Section):
    """`[privacy]`: the mechanism and its budget."""

    mechanism: Annotated[str, AfterValidator(_known_mechanism)] = "fbs"
    epsilon: Positive
    datasets: Annotated[int, Field(ge=0, le=1000)] = 3
    scheme: Scheme = "inverse"
    draws: Annotated[int, Field(ge=400, le=100_000, multiple_of=4)] = 1000
    guarantee: Promise
    protect: Protected = "answers"
    scales: Scales = "histograms"
    correction: bool = True
    bounds: BoundsSpec | None = None
    budget: Name | None = None
    ledger: Annotated[Path, Field(strict=False)] = Path("ledger.sqlite")

    @model_validator(mode="before")
    @classmethod
    def _the_usual_number_of_files(cls, content: Any) -> Any:
        if not isinstance(content, Mapping) or "datasets" in content:
            return content
        member = find_mechanism(content.get("mechanism", "fbs"), content.get("guarantee", ""))
        return content if member is None else {**content, "datasets": member.files}

    @model_validator(mode="after")
    def _the_mechanism_can_promise_it(self) -> Self:
        can = promises_of(self.mechanism)
        if self.guarantee not in can:
            choices = " or ".join(f"'{promise}'" for promise in can)
            raise clash(f"'privacy.guarantee' must be {choices} for the mechanism '{self.mechanism}'")
        return self

    @model_validator(mode="after")
    def _whole_records_can_be_protected(self) -> Self:
        member = find_mechanism(self.mechanism, self.guarantee)
        if self.protect == "record" and not (member and member.whole_records):
            raise clash("'privacy.protect' can be 'record' only for fbs and fbp with the guarantee 'global'")
        return self

    @model_validator(mode="after")
    def _scales_can_be_constants(self) -> Self:
        member = find_mechanism(self.mechanism, self.guarantee)
        if self.scales == "standin" and not (member and member.scaled):
            raise clash("'privacy.scales' can be 'standin' only for fbs and fbp with the guarantee 'global'")
        return self

    @model_validator(mode="after")
    def _noise_has_bounds(self) -> Self:
        if self.guarantee == "global" and self.bounds is None:
            raise clash(
                "'privacy.bounds' is required for guarantee = 'global': ranges of outcome and weight that are public "
                "knowledge (`svysynth constants` proposes some)"
            )
        return self

    @property
    def accounting(self) -> Accounting:
        """The kind of ε that a release is charged in."""
        return "differential privacy" if self.guarantee == "global" else "asymptotic"

    @property
    def microdata(self) -> bool:
        """Whether synthetic files are asked for, or tables alone."""
        member = find_mechanism(self.mechanism, self.guarantee)
        return member is not None and member.microdata and self.datasets > 0

    @model_validator(mode="after")
    def _there_are_enough_files(self) -> Self:
        member = find_mechanism(self.mechanism, self.guarantee)
        if member is not None and self.datasets < member.fewest:
            raise clash(f"'privacy.datasets' must be {member.fewest} or more for this mechanism and guarantee")
        return self

    @model_validator(mode="after")
    def _draws_can_be_far_apart(self) -> Self:
        if self.microdata and DRAWS_APART * self.datasets > self.draws:
            need = f"{DRAWS_APART} times as many draws, so that those released are independent"
            raise clash(f"'privacy.datasets' needs {need}: use fewer datasets or more privacy.draws")
        return self


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


class EstimationSpec(Section):
    """`[estimation]`: how standard errors and intervals are computed."""

    variance: VarianceMethod = "taylor"
    standard_errors: StandardErrors = "full"
    replicates: Annotated[int, Field(ge=2, le=10_000)] = 200
    lonely: Lonely = "fail"
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    cv_thresholds: Annotated[
        tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]], Field(strict=False)
    ] = (0.15, 0.30)

    @model_validator(mode="after")
    def _thresholds_ascend(self) -> Self:
        if self.cv_thresholds[0] > self.cv_thresholds[1]:
            raise clash("'cv_thresholds' must be in ascending order")
        return self


class TableSpec(Section):
    """`[[tables]]`: one table; all margins and the total come with it."""

    name: Name | None = None
    by: Annotated[tuple[Name, ...], Field(max_length=MOST_BY_COLUMNS, strict=False), BeforeValidator(listed)]
    statistics: Annotated[tuple[Statistic, ...], Field(min_length=1, strict=False), BeforeValidator(listed)] = (
        "count",
        "mean",
    )
    domain: Name | None = None

    @model_validator(mode="after")
    def _can_be_a_heading(self) -> Self:
        if not is_plain(self.title):
            raise clash("a table's name has control characters")
        no_repeats(self.by, "by")
        no_repeats(self.statistics, "statistics")
        return self

    @property
    def title(self) -> str:
        """The table's name, made from its columns and its domain if none is given."""
        within = f" ({self.domain})" if self.domain else ""
        return self.name or (" by ".join(self.by) or "total") + within


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
            for column in (survey.outcome, *survey.public, survey.strata):
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
    def _tables_use_public_columns(self) -> Self:
        for position, table in enumerate(self.tables, start=1):
            for column in table.by:
                if column not in self.survey.public:
                    hint = did_you_mean(column, self.survey.public)
                    raise clash(f"table {position}: 'by' names '{column}', which is not in survey.public{hint}")
        no_repeats([table.title for table in self.tables], "tables (give each a 'name')")
        return self

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
    return spec.model_copy(update={"survey": spec.survey.model_copy(update={"domains": domains})})
