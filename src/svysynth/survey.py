"""Survey: a frame with declared roles, checked once, so that everything after it can trust the numbers.

A record is (outcome, weight, public columns, stratum, cluster). Outcome and weight are confidential; the public
columns, the strata and the number of records in each cell are public. Building a survey is where bad data are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from svysynth.columns import LARGEST_MAGNITUDE, categories, guess_numbers, keys, numbers
from svysynth.design import Design, DesignIndex, index_design
from svysynth.engine import LOCAL, Engine
from svysynth.errors import SurveyError, did_you_mean, of_records
from svysynth.files import open_data, read_columns
from svysynth.formats.base import CodeLabels, DataFile, quiet
from svysynth.groups import Floats, Integers, group_ids, smallest_integer
from svysynth.spec import SurveySpec, Transform, validate_spec
from svysynth.store import Column

MOST_CONDITION_TERMS = 1000
CONDITION_WORDS = {
    *("and", "or", "not", "in", "between", "like", "ilike", "when", "then", "else", "case", "is", "any", "all"),
    *("abs", "ceil", "floor", "round", "sign", "mod", "sqrt", "ln", "log", "log10", "exp", "pow", "power"),
    *("cast", "try_cast", "coalesce", "nullif", "if", "ifnull", "greatest", "least"),
    *("lower", "upper", "trim", "ltrim", "rtrim", "length", "left", "right", "substr", "starts_with", "ends_with"),
    *("min", "max", "avg", "sum", "count", "median", "quantile_cont"),
}
"""What may stand before a bracket in a condition: operators, and functions whose cost is bounded by the data's."""


@dataclass(frozen=True, eq=False)
class Groups:
    """The public part of a survey: each combination of public columns and stratum that occurs, and how often."""

    frame: pl.DataFrame
    """One row for each group, in the order of the cells and then of the strata."""
    count: Integers
    cell: Integers
    """The position of each group's cell among the cells that have records."""


@dataclass(frozen=True)
class Survey:
    """A survey sample with declared roles.

    `frame` has the outcome and the weight as floats, the public columns as enumerations of their labels, and the
    design's columns; `codes` maps the labels of a public column back to the codes in the file.
    """

    frame: pl.DataFrame
    outcome: str
    design: Design
    public: tuple[str, ...]
    transform: Transform = "log"
    population_total: float | None = None
    codes: Mapping[str, CodeLabels] = field(default_factory=dict)
    weight_public: bool = False
    """Whether the weights are declared public: then they are kept as they are, and the outcome alone is protected."""
    engine: Engine = LOCAL
    """Who goes through the records."""
    scratch: Path | None = None
    """Where columns of the survey's length are kept that are too long for memory."""

    def __len__(self) -> int:
        return self.frame.height

    def __repr__(self) -> str:
        return f"Survey of {len(self):,} records: {self.outcome} by {', '.join(self.public)}"

    @property
    def outcome_values(self) -> Floats:
        """The outcome of every record."""
        return self.values(self.outcome)

    @property
    def weights(self) -> Floats:
        """The sampling weight of every record."""
        return self.values(self.design.weight)

    def values(self, column: str) -> Floats:
        """A column of numbers."""
        return self.frame[column].to_numpy()

    @property
    def published(self) -> tuple[str, ...]:
        """The columns that are released as they are: the public ones, the strata, and weights that are public."""
        others = [self.design.strata, self.design.weight if self.weight_public else None]
        return tuple(dict.fromkeys([*self.public, *(column for column in others if column)]))

    @property
    def confidential(self) -> tuple[str, ...]:
        """The columns that are protected."""
        return (self.outcome,) if self.weight_public else (self.outcome, self.design.weight)

    @cached_property
    def index(self) -> DesignIndex:
        """The design as integers."""
        design = self.design
        stratum = self._design_key(design.strata) if design.strata else np.zeros(len(self), np.int32)
        cluster = self._design_key(design.cluster) if design.cluster else None
        fpc = self.frame[design.fpc].to_numpy() if design.fpc else None
        return index_design(stratum, cluster, fpc)

    def _design_key(self, column: str) -> Integers:
        key = self.frame[column].to_physical().to_numpy()
        return group_ids(key, int(key.max()) + 1)[1]

    def levels(self, column: str) -> tuple[str, ...]:
        """The labels of a public column, in order."""
        dtype = self.frame.schema[column]
        assert isinstance(dtype, pl.Enum)
        return tuple(dtype.categories)

    def rows(self, start: int, stop: int) -> Survey:
        """Some of the records, in memory."""
        return replace(self, frame=self.frame[start:stop])

    def with_weights(self, weights: Column) -> Survey:
        """The same survey with other weights."""
        return replace(self, frame=self.frame.with_columns(pl.Series(self.design.weight, np.asarray(weights))))

    def present_cells(self, columns: Sequence[str]) -> tuple[Integers, Column]:
        """The cells of some public columns that have records, and for every record the position of its own."""
        return group_ids(self.cell_index(columns), math.prod(len(self.levels(column)) for column in columns))

    def model_cells(self) -> tuple[Integers, Floats | None, Column]:
        """What a row of a design matrix may depend on: the cells that have records, and each one's weight if public.

        The third is, for every record, the position of its own.
        """
        cells, cell = self.present_cells(self.public)
        if not self.weight_public:
            return cells, None, cell
        values, weight = np.unique(self.weights, return_inverse=True)
        pairs, position = group_ids(np.asarray(cell, np.int64) * len(values) + weight, len(cells) * len(values))
        return cells[pairs // len(values)], values[pairs % len(values)], position

    @property
    def groups(self) -> Groups:
        """The public part of the records."""
        cells, _, cell = self.model_cells()
        stratum, strata = (self.index.stratum, self.index.strata) if self.design.strata else (0, 1)
        keys, group = group_ids(np.asarray(cell, np.int64) * strata + stratum, len(cells) * strata)
        first = np.empty(len(keys), np.int64)
        first[group[::-1]] = np.arange(len(self))[::-1]
        return Groups(self.frame.select(self.published)[first], np.bincount(group), keys // strata)

    def cell_index(self, columns: Sequence[str]) -> Integers:
        """The cell of every record in the crossing of some public columns, last column fastest."""
        sizes = [len(self.levels(column)) for column in columns]
        cell = np.zeros(len(self), smallest_integer(math.prod(sizes)))
        for column, size in zip(columns, sizes, strict=True):
            cell *= size
            cell += self.frame[column].to_physical().to_numpy().astype(cell.dtype)
        return cell


def read_survey(
    data: str | Path | pl.DataFrame,
    *,
    outcome: str,
    weight: str,
    public: Sequence[str],
    strata: str | None = None,
    cluster: str | None = None,
    fpc: str | None = None,
    transform: Transform = "log",
    population_total: float | None = None,
    weight_public: bool = False,
    where: str | None = None,
    labels: Mapping[str, Mapping[str, str]] | None = None,
) -> Survey:
    """Read a survey from a file or a polars frame; the arguments are the keys of the spec's `[survey]`."""
    settings: dict[str, Any] = {
        "data": "frame" if isinstance(data, pl.DataFrame) else str(data),
        "outcome": outcome,
        "weight": weight,
        "public": tuple(public),
        "strata": strata,
        "cluster": cluster,
        "fpc": fpc,
        "transform": transform,
        "population_total": population_total,
        "weight_public": weight_public,
        "where": where,
        "labels": {column: dict(codes) for column, codes in (labels or {}).items()},
    }
    spec = validate_spec({"survey": settings}, "read_survey").survey
    return survey_from_frame(data, spec) if isinstance(data, pl.DataFrame) else survey_from_file(spec)


def survey_from_file(spec: SurveySpec) -> Survey:
    """Read the survey that a spec describes."""
    file = open_data(spec.data)
    condition = parse_condition(spec.where)
    needed = [*declared_columns(spec), *condition_columns(condition)]
    require_columns(needed, file.columns)
    return _build(read_columns(file, needed), spec, condition, file)


def survey_from_frame(frame: pl.DataFrame, spec: SurveySpec) -> Survey:
    """Make a survey of a frame that is already in memory."""
    condition = parse_condition(spec.where)
    require_columns([*declared_columns(spec), *condition_columns(condition)], frame.columns)
    return _build(frame, spec, condition, DataFile(Path("frame"), "frame", tuple(frame.columns)))


def _build(frame: pl.DataFrame, spec: SurveySpec, condition: pl.Expr | None, file: DataFile) -> Survey:
    require_records(frame, "the data", "export the file again")
    if condition is not None:
        frame = keep_rows(frame, condition, file)
        require_records(frame, "survey.where", "loosen the condition")
    raw = {name: frame[name] for name in declared_columns(spec)}
    del frame  # each raw column can go as soon as it has been converted
    columns, codes = {}, {}
    for name in (spec.outcome, spec.weight, spec.fpc):
        if name:
            columns[name] = numbers(raw.pop(name), file)
    for name in spec.public:
        labels = spec.labels.get(name), file.value_labels.get(name, {})
        columns[name], codes[name] = categories(raw.pop(name), *labels)
    for name in tuple(raw):
        columns[name] = pl.Series(name, keys(raw.pop(name)).key)
    check_ranges(columns, spec)
    survey = Survey(
        pl.DataFrame(columns),
        spec.outcome,
        Design(spec.weight, spec.strata, spec.cluster, spec.fpc),
        spec.public,
        spec.transform,
        spec.population_total,
        codes,
        spec.weight_public,
    )
    survey.index  # noqa: B018  a contradictory design is refused here rather than later
    return survey


# --- the row filter ---


def parse_condition(where: str | None) -> pl.Expr | None:
    """The row filter of a spec as an expression, or a refusal."""
    if where is None:
        return None
    remedy = "write it like: age_group = 40 and salary > 0"
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "''", where)
    called = {name.lower() for name in re.findall(r"(\w+)\s*\(", unquoted)}
    if called - CONDITION_WORDS:
        raise _bad_condition("calls a function that conditions may not use", remedy)
    try:
        with quiet():
            condition = pl.sql_expr(where)
            columns = condition.meta.root_names()
            is_named = not condition.meta.eq(condition.meta.undo_aliases())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, RecursionError):
        raise _bad_condition("is not a SQL condition", remedy) from None
    if is_named or len(columns) > MOST_CONDITION_TERMS:
        raise _bad_condition("has words after the condition, or too many of them", remedy)
    return condition


def condition_columns(condition: pl.Expr | None) -> list[str]:
    """The columns that a row filter looks at."""
    return [] if condition is None else condition.meta.root_names()


def keep_rows(frame: pl.DataFrame, condition: pl.Expr, file: DataFile) -> pl.DataFrame:
    """The records for which the condition is true; unknown counts as false, as in SQL."""
    typed = frame.with_columns(
        guess_numbers(frame[column], file) for column in dict.fromkeys(condition_columns(condition))
    )
    problem = "does not fit the columns it names"
    remedy = "compare numbers with numbers and text with text in 'quotes'"
    try:
        with quiet():
            mask = typed.select(condition.alias("keep"))["keep"]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        raise _bad_condition(problem, remedy) from None
    if mask.dtype != pl.Boolean or len(mask) not in (1, frame.height):
        raise _bad_condition(problem, remedy)
    mask = mask.fill_null(value=False)
    if len(mask) == frame.height:
        return frame.filter(mask)
    return frame if mask.item() else frame.clear()


def _bad_condition(problem: str, remedy: str) -> SurveyError:
    return SurveyError("spec", "survey.where", problem, remedy)


# --- columns by role ---


def declared_columns(spec: SurveySpec) -> list[str]:
    """The columns that have a role."""
    optional = [column for column in (spec.strata, spec.cluster, spec.fpc) if column]
    return list(dict.fromkeys([spec.outcome, spec.weight, *optional, *spec.public]))


def require_columns(needed: Sequence[str], available: Sequence[str]) -> None:
    """Stop where columns are not there."""
    missing = [column for column in dict.fromkeys(needed) if column not in available]
    if missing:
        hint = did_you_mean(missing[0], available)
        raise SurveyError(
            "data",
            f"column '{missing[0]}'",
            f"is not in the data{hint}" + (f", nor are {len(missing) - 1} more" if missing[1:] else ""),
            "check the names in [survey] against the file's header",
        )


def require_records(frame: pl.DataFrame, place: str, remedy: str) -> None:
    """Stop where there is nobody."""
    if frame.height == 0:
        raise SurveyError("data", place, "there are no records", remedy)


def check_ranges(columns: Mapping[str, pl.Series], spec: SurveySpec) -> None:
    """Stop where weights are not positive, or outcomes have no logarithm that need one."""
    weight, outcome = columns[spec.weight], columns[spec.outcome]
    bad = int((weight <= 0).sum())
    if bad:
        raise SurveyError(
            "data",
            f"column '{spec.weight}'",
            f"{of_records(bad, len(weight))} not positive, as a weight must be",
            "correct them, or leave such records out with survey.where",
        )
    bad = int((weight < 1 / LARGEST_MAGNITUDE).sum())
    if bad:
        raise SurveyError(
            "data",
            f"column '{spec.weight}'",
            f"{of_records(bad, len(weight))} absurdly small",
            "correct them",
        )
    bad = int((outcome <= 0).sum())
    if spec.transform == "log" and bad:
        raise SurveyError(
            "data",
            f"column '{spec.outcome}'",
            f"{of_records(bad, len(outcome))} not positive, and have no logarithm",
            "leave such records out with survey.where, or set survey.transform to 'identity'",
        )
