"""The spec: one page of TOML that says everything about a run, as frozen and validated models.

Unknown keys, wrong types and contradictions are errors that name the setting. `docs/spec.md` describes every key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from svysynth.accounting import Accounting
from svysynth.errors import SurveyError, did_you_mean, is_plain, shown

Statistic = Literal["count", "mean", "total", "proportion"]
Transform = Literal["log", "identity"]
Lonely = Literal["fail", "certainty", "adjust"]
Scheme = Literal["inverse", "linear", "reweighted"]
Smoothing = Literal["full", "paper"]
Mechanism = Literal["fbs", "fbp", "laplace", "laplace-paper"]
Promise = Literal["asymptotic", "global", "none"]
VarianceMethod = Literal["taylor", "preston", "bootstrap", "jackknife", "brr"]

LARGEST_SPEC_BYTES = 1_000_000
MOST_BY_COLUMNS = 8
MOST_TABLES = 1000
MOST_PROBLEMS = 10
MOST_KEY_PARTS = 100
DRAWS_APART = 10
"""Released draws are at least so many transitions apart."""
TIDY_COLUMNS = (
    *("table", "statistic", "estimate", "se", "se_sampling", "se_privacy", "df", "lower", "upper"),
    *("cv", "n", "reliability", "source"),
)
"""The columns of a table, which no public column may be called."""
PROMISES: dict[str, tuple[Promise, ...]] = {
    "fbs": ("asymptotic", "global"),
    "fbp": ("asymptotic", "global"),
    "laplace": ("global",),
    "laplace-paper": ("none",),
}
"""What each mechanism can promise."""
TO_BE_CHOSEN = {
    "privacy.guarantee": "'asymptotic' is the paper's for fbs and fbp and is not differential privacy; 'global' holds "
    "for every data set, and is that of laplace",
}
"""Settings without a default, because somebody has to answer for them, and what there is to choose from."""
MICRODATA_COLUMNS = ("id", "weight", "weight_unsmoothed")
"""The columns that a synthetic file has besides its outcome, public columns and strata."""

Name = Annotated[str, Field(min_length=1, max_length=200)]
Positive = Annotated[float, Field(gt=0, lt=1e60, allow_inf_nan=False)]
Magnitude = Annotated[float, Field(gt=-1e60, lt=1e60, allow_inf_nan=False)]
Range = Annotated[tuple[Magnitude, Magnitude], Field(strict=False)]


class _Section(BaseModel):
    """A table of the spec: frozen, strictly typed, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class SurveySpec(_Section):
    """`[survey]`: where the data are and what role each column plays."""

    data: Annotated[Path, Field(strict=False)]
    outcome: Name
    transform: Transform = "log"
    weight: Name
    weight_public: bool = False
    strata: Name | None = None
    cluster: Name | None = None
    fpc: Name | None = None
    public: Annotated[tuple[Name, ...], Field(min_length=1, strict=False)]
    population_total: Positive | None = None
    where: Name | None = None
    labels: dict[Name, dict[Name, Name]] = {}

    @model_validator(mode="after")
    def _roles_do_not_clash(self) -> Self:
        _no_repeats(self.public, "public")
        for column in self.public:
            if column in TIDY_COLUMNS:
                raise _clash(f"'public' names '{column}', which is a column of every table: rename it in the data")
        confidential = [self.outcome, self.weight, *([self.fpc] if self.fpc else [])]
        _no_repeats(confidential, "outcome, weight and fpc")
        for role in ("public", "strata", "cluster"):
            columns = getattr(self, role)
            if set(confidential) & set([columns] if isinstance(columns, str) else columns or ()):
                raise _clash(f"'{role}' names a column that is also the outcome, the weight or the fpc")
        if self.cluster and self.cluster == self.strata:
            raise _clash("'cluster' and 'strata' name the same column")
        for column, labels in self.labels.items():
            if column not in self.public:
                raise _clash(f"'labels.{column}' is not one of the public columns")
            _no_repeats(labels.values(), f"labels.{column}")
        return self


class BoundsSpec(_Section):
    """`[privacy.bounds]`: public ranges of outcome and weight; a record outside counts as if at the nearer end."""

    outcome: Range
    weight: Range

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Self:
        for name, (low, high) in (("outcome", self.outcome), ("weight", self.weight)):
            if low >= high:
                raise _clash(f"'privacy.bounds.{name}' must be in ascending order")
        if self.weight[0] < 0:
            raise _clash("'privacy.bounds.weight' must not be negative")
        return self


class PrivacySpec(_Section):
    """`[privacy]`: the mechanism and its budget."""

    mechanism: Mechanism = "fbs"
    epsilon: Positive
    datasets: Annotated[int, Field(ge=1, le=1000)] = 3
    scheme: Scheme = "inverse"
    draws: Annotated[int, Field(ge=400, le=100_000, multiple_of=4)] = 1000
    guarantee: Promise
    correction: bool = True
    bounds: BoundsSpec | None = None
    budget: Name | None = None
    ledger: Annotated[Path, Field(strict=False)] = Path("ledger.sqlite")

    @model_validator(mode="after")
    def _the_mechanism_can_promise_it(self) -> Self:
        can = PROMISES[self.mechanism]
        if self.guarantee not in can:
            choices = " or ".join(f"'{promise}'" for promise in can)
            raise _clash(f"'privacy.guarantee' must be {choices} for the mechanism '{self.mechanism}'")
        return self

    @model_validator(mode="after")
    def _noise_has_bounds(self) -> Self:
        if self.mechanism == "laplace" and self.bounds is None:
            raise _clash("'privacy.bounds' is required for the mechanism 'laplace'")
        if self.censored and self.bounds is None:
            raise _clash("'privacy.bounds' is required for the guarantee 'global'")
        return self

    @property
    def censored(self) -> bool:
        """Whether synthetic data are to be private at every sample size."""
        return self.mechanism in ("fbs", "fbp") and self.guarantee == "global"

    @property
    def accounting(self) -> Accounting:
        """The kind of ε that a release is charged in."""
        return "differential privacy" if self.guarantee == "global" else "asymptotic"

    @property
    def charged(self) -> float:
        """What a release is charged: ε for an answer changed, or the paper's figure."""
        return 2 * self.epsilon if self.censored else self.epsilon

    @model_validator(mode="after")
    def _draws_can_be_far_apart(self) -> Self:
        if self.mechanism in ("fbs", "fbp") and DRAWS_APART * self.datasets > self.draws:
            need = f"{DRAWS_APART} times as many draws, so that those released are independent"
            raise _clash(f"'privacy.datasets' needs {need}: use fewer datasets or more privacy.draws")
        return self


class AboutSpec(_Section):
    """`[about]`: what readers of a release are told of it."""

    title: Name | None = None
    producer: Name | None = None
    purpose: Annotated[str, Field(min_length=1, max_length=2000)] | None = None

    @model_validator(mode="after")
    def _can_be_printed(self) -> Self:
        for name in ("title", "producer", "purpose"):
            if not is_plain(getattr(self, name) or ""):
                raise _clash(f"'about.{name}' has control characters")
        return self


class ModelSpec(_Section):
    """`[model]`: the synthesizer's choices."""

    formula: Name | None = None
    smoothing: Smoothing = "full"


class StandInSpec(_Section):
    """`[standin]`: public constants from which `frontier --standin` simulates outcome and weights."""

    mean: Magnitude
    spread: Positive
    weight_spread: Positive = 0.5
    correlation: Annotated[float, Field(gt=-1, lt=1)] = 0.0


class EstimationSpec(_Section):
    """`[estimation]`: how standard errors and intervals are made."""

    variance: VarianceMethod = "taylor"
    replicates: Annotated[int, Field(ge=2, le=10_000)] = 200
    lonely: Lonely = "fail"
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    cv_thresholds: Annotated[
        tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]], Field(strict=False)
    ] = (0.15, 0.30)

    @model_validator(mode="after")
    def _thresholds_ascend(self) -> Self:
        if self.cv_thresholds[0] > self.cv_thresholds[1]:
            raise _clash("'cv_thresholds' must be in ascending order")
        return self


class TableSpec(_Section):
    """`[[tables]]`: one table; all margins and the total come with it."""

    name: Name | None = None
    by: Annotated[tuple[Name, ...], Field(max_length=MOST_BY_COLUMNS, strict=False)]
    statistics: Annotated[tuple[Statistic, ...], Field(min_length=1, strict=False)] = ("count", "mean")

    @model_validator(mode="after")
    def _can_be_a_heading(self) -> Self:
        if not is_plain(self.title):
            raise _clash("a table's name has control characters")
        _no_repeats(self.by, "by")
        _no_repeats(self.statistics, "statistics")
        return self

    @property
    def title(self) -> str:
        """The table's name, made from its columns where none is given."""
        return self.name or " by ".join(self.by) or "total"


class Spec(_Section):
    """The whole page."""

    survey: SurveySpec
    privacy: PrivacySpec | None = None
    about: AboutSpec = AboutSpec()
    model: ModelSpec = ModelSpec()
    estimation: EstimationSpec = EstimationSpec()
    standin: StandInSpec | None = None
    tables: Annotated[tuple[TableSpec, ...], Field(max_length=MOST_TABLES, strict=False)] = ()

    @model_validator(mode="after")
    def _the_interval_has_a_place(self) -> Self:
        if self.privacy is not None and self.privacy.censored and self.standin is None:
            raise _clash("'standin' is required for the guarantee 'global': its public constants place the interval")
        return self

    @model_validator(mode="after")
    def _synthetic_columns_do_not_clash(self) -> Self:
        survey = self.survey
        if self.privacy is not None and self.privacy.mechanism in ("fbs", "fbp"):
            for column in (survey.outcome, *survey.public, survey.strata):
                if column in MICRODATA_COLUMNS:
                    raise _clash(f"'survey' uses '{column}', which is a column of every synthetic file: rename it")
        return self

    @model_validator(mode="after")
    def _tables_use_public_columns(self) -> Self:
        for position, table in enumerate(self.tables, start=1):
            for column in table.by:
                if column not in self.survey.public:
                    hint = did_you_mean(column, self.survey.public)
                    raise _clash(f"table {position}: 'by' names '{column}', which is not in survey.public{hint}")
        _no_repeats([table.title for table in self.tables], "tables (give each a 'name')")
        return self

    @property
    def requested_tables(self) -> tuple[TableSpec, ...]:
        """The tables asked for; without any, counts and means by the public columns."""
        return self.tables or (TableSpec(by=self.survey.public[:MOST_BY_COLUMNS]),)


def load_spec(path: str | Path) -> Spec:
    """Read and validate a spec; a relative `survey.data` or `privacy.ledger` is taken from the spec's own folder."""
    path = Path(path)
    spec = parse_spec(_read_text(path), path.name)
    placed: dict[str, Any] = {"survey": spec.survey.model_copy(update={"data": path.parent / spec.survey.data})}
    if spec.privacy is not None:
        placed["privacy"] = spec.privacy.model_copy(update={"ledger": path.parent / spec.privacy.ledger})
    return spec.model_copy(update=placed)


def parse_spec(text: str, place: str = "spec") -> Spec:
    """Validate the text of a spec."""
    if any(part.count(".") > MOST_KEY_PARTS for part in re.split(r"[=\n,{}\[\]]", text)):
        raise SurveyError("spec", place, "has a key with too many parts", "compare it with docs/spec.md")
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        where = re.search(r"\(at line (\d+),", str(error))
        line = f"line {where[1]} is " if where else ""
        raise SurveyError(
            "spec", place, f"{line}not valid TOML", "compare it with the example in docs/spec.md"
        ) from None
    return validate_spec(content, place)


def validate_spec(content: Mapping[str, Any], place: str = "spec") -> Spec:
    """Validate the content of a spec; every problem is listed in one error."""
    try:
        return Spec.model_validate(content)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = [_explain(detail) for detail in details[:MOST_PROBLEMS]]
        if details[MOST_PROBLEMS:]:
            problems.append(f"and {len(details) - MOST_PROBLEMS:,} more")
        raise SurveyError(
            "spec", place, "; ".join(problems), "correct the settings named here; docs/spec.md lists them all"
        ) from None


def _read_text(path: Path) -> str:
    remedy = "give the path of a spec in TOML, or draft one with `svysynth init DATA`"
    try:
        if not path.is_file():
            raise SurveyError("spec", path.name or str(path), "cannot be read", remedy)
        with path.open("rb") as file:
            raw = file.read(LARGEST_SPEC_BYTES + 1)
        if len(raw) > LARGEST_SPEC_BYTES:
            raise SurveyError("spec", path.name, "is too large to be a spec", remedy)
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise SurveyError("spec", path.name, "is not UTF-8 text", remedy) from None
    except (OSError, ValueError):
        raise SurveyError("spec", path.name or str(path), "cannot be read", remedy) from None


def _explain(detail: ErrorDetails) -> str:
    """One pydantic problem in the spec's own words, without the offending value."""
    location = [part + 1 if isinstance(part, int) else part for part in detail["loc"]]
    setting = shown(".".join(str(part) for part in location)) or "spec"
    kind, context = detail["type"], detail.get("ctx", {})
    match kind:
        case "missing":
            why = TO_BE_CHOSEN.get(setting)
            return f"'{setting}' is required" + (f": {why}" if why else "")
        case "extra_forbidden":
            return f"'{setting}' is not a known setting{_known_setting_hint(location)}"
        case "literal_error":
            return f"'{setting}' must be one of {context['expected'].replace(' or ', ', ')}"
        case "clash":
            return detail["msg"]
        case _:
            return f"'{setting}' {detail['msg'].replace('Input should', 'should')}"


def _known_setting_hint(location: list[Any]) -> str:
    sections: dict[str, type[_Section]] = {
        "survey": SurveySpec,
        "privacy": PrivacySpec,
        "about": AboutSpec,
        "model": ModelSpec,
        "estimation": EstimationSpec,
        "standin": StandInSpec,
        "tables": TableSpec,
    }
    section = sections.get(str(location[0]), Spec) if len(location) > 1 else Spec
    if location[:2] == ["privacy", "bounds"]:
        section = BoundsSpec
    return did_you_mean(str(location[-1]), section.model_fields)


def _clash(message: str) -> PydanticCustomError:
    return PydanticCustomError("clash", "{text}", {"text": message})


def _no_repeats(names: Any, setting: str) -> None:
    names = list(names)
    if len(set(names)) != len(names):
        raise _clash(f"'{setting}': a name stands there twice")
