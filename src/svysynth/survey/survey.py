"""Survey: a frame with declared roles, checked once, so that everything after it can trust the numbers.

A record is (outcome, weight, public columns, stratum, cluster). Outcome and weight are confidential; the public
columns, the strata and the number of records in each cell are public. Building a survey is where bad data are refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column
from svysynth.core.engine import LOCAL, Engine
from svysynth.core.errors import SurveyError, did_you_mean, of_records
from svysynth.core.grouping import Floats, Integers, group_ids, smallest_integer
from svysynth.core.outline import outlined
from svysynth.core.spec import SurveySpec, Transform, validate_spec
from svysynth.survey.columns import LARGEST_MAGNITUDE, UNANSWERED, categories, keys, not_listed, numbers, without_codes
from svysynth.survey.design import Design, DesignIndex, index_design
from svysynth.survey.files import open_data, read_columns
from svysynth.survey.formats.base import CodeLabels, DataFile
from svysynth.survey.formats.frame import column_names, to_polars
from svysynth.survey.universe import condition_columns, keep_rows, parse_condition


@outlined
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
    other: Mapping[str, float] = field(default_factory=dict)
    """The share of records that count as another level of a column, since their own is missing or not declared."""

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

    def sample(self, positions: Integers) -> Survey:
        """The records at some positions, in memory."""
        return replace(self, frame=self.frame[positions])

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
    data: Any,
    *,
    outcome: str,
    weight: str,
    public: str | Sequence[str],
    strata: str | None = None,
    cluster: str | None = None,
    fpc: str | None = None,
    transform: Transform = "log",
    population_total: float | None = None,
    weight_public: bool = False,
    where: str | None = None,
    universe: Sequence[str] = (),
    missing: Sequence[str] = (),
    labels: Mapping[str, Mapping[str, str]] | None = None,
    levels: Mapping[str, Sequence[str]] | None = None,
    other: Mapping[str, str] | None = None,
) -> Survey:
    """Read a survey from a file, or from a frame of polars, pandas or Arrow.

    The arguments are the keys of the spec's `[survey]`. Of a frame the declared columns are read; an index is not.
    """
    in_file = isinstance(data, str | os.PathLike)
    if not in_file:
        column_names(data)  # what is no frame is refused before anything else
    settings: dict[str, Any] = {
        "data": os.fspath(data) if in_file else "frame",
        "outcome": outcome,
        "weight": weight,
        "public": public,
        "strata": strata,
        "cluster": cluster,
        "fpc": fpc,
        "transform": transform,
        "population_total": population_total,
        "weight_public": weight_public,
        "where": where,
        "universe": universe,
        "missing": missing,
        "labels": labels or {},
        "levels": levels or {},
        "other": other or {},
    }
    spec = validate_spec({"survey": settings}, "read_survey").survey
    return survey_from_file(spec) if in_file else survey_from_frame(data, spec)


def survey_from_file(spec: SurveySpec) -> Survey:
    """Read the survey that a spec describes."""
    file = open_data(spec.data)
    needed = needed_columns(spec)
    require_columns(needed, file.columns)
    return _build(read_columns(file, needed), spec, file)


def survey_from_frame(frame: Any, spec: SurveySpec) -> Survey:
    """Make a survey of a frame that is already in memory."""
    needed, available = needed_columns(spec), column_names(frame)
    require_columns(needed, available)
    return _build(to_polars(frame, needed), spec, DataFile(Path("frame"), "frame", available))


def _build(frame: pl.DataFrame, spec: SurveySpec, file: DataFile) -> Survey:
    require_records(frame, "the data", "export the file again")
    frame = records_that_take_part(frame, spec, file)
    require_records(frame, "survey.where", "loosen the condition")
    raw = {name: frame[name] for name in declared_columns(spec)}
    del frame  # each raw column can go as soon as it has been converted
    other = {name: float(not_listed(raw[name], declared).mean()) for name, declared in counted_as_other(raw, spec)}
    columns, codes = {}, {}
    for name in (spec.outcome, spec.weight, spec.fpc):
        if name:
            columns[name] = numbers(raw.pop(name), file)
    for name in spec.public:
        columns[name], codes[name] = levels_of(raw.pop(name), spec, file)
    for name in tuple(raw):
        columns[name] = design_levels(raw.pop(name), spec, file)
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
        other=other,
    )
    survey.index  # noqa: B018  a contradictory design is refused here rather than later
    return survey


# --- columns by role ---


def declared_columns(spec: SurveySpec) -> list[str]:
    """The columns that have a role."""
    optional = [column for column in (spec.strata, spec.cluster, spec.fpc) if column]
    return list(dict.fromkeys([spec.outcome, spec.weight, *optional, *spec.public]))


def levels_of(series: pl.Series, spec: SurveySpec, file: DataFile) -> tuple[pl.Series, dict[str, str]]:
    """A column of categories, and the labels of its codes."""
    name = series.name
    return categories(series, spec.declared(name), file.value_labels.get(name, {}), spec.other.get(name))


def counted_as_other(columns: Iterable[str], spec: SurveySpec) -> Iterator[tuple[str, CodeLabels]]:
    """The columns that have a level for what is not declared, and what is."""
    for name in columns:
        declared = spec.declared(name)
        if declared is not None and name in spec.other:
            yield name, declared


def design_levels(series: pl.Series, spec: SurveySpec, file: DataFile) -> pl.Series:
    """A column of strata or clusters: by its declared levels, or by numbers."""
    if spec.declared(series.name) is not None:
        return levels_of(series, spec, file)[0]
    return pl.Series(series.name, keys(series).key)


def needed_columns(spec: SurveySpec) -> list[str]:
    """The columns that have a role, and those that the row filter looks at."""
    return list(dict.fromkeys([*declared_columns(spec), *condition_columns(parse_condition(spec.where))]))


def records_that_take_part(frame: pl.DataFrame, spec: SurveySpec, file: DataFile) -> pl.DataFrame:
    """The records that the row filter keeps, with the declared codes for missing answers as missing."""
    if spec.missing:
        frame = frame.with_columns(without_codes(column, spec.missing, file) for column in frame.iter_columns())
    condition = parse_condition(spec.where)
    return frame if condition is None else keep_rows(frame, condition, file)


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
            f"correct them; {UNANSWERED}",
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
            f"set survey.transform to 'identity'; {UNANSWERED}",
        )
