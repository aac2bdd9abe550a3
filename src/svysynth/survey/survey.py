"""Survey: a sample with declared roles, checked once, so that all later code can trust the numbers.

A record is (outcome, weight, public columns, stratum, cluster). Outcome and weight are confidential; the public
columns, the strata and the number of records in each cell are public. Bad data are refused when a survey
is built. This file has what all surveys share, and the survey whose columns are in memory.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column
from svysynth.core.engine import LOCAL, Engine
from svysynth.core.grouping import Floats, Integers, group_ids, smallest_integer
from svysynth.core.notebook import Html, card
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.core.spec.columns import ColumnSpec
from svysynth.core.spec.replicates import ReplicatesSpec
from svysynth.core.spec.stages import StageSpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.variables import VariableSpec
from svysynth.core.spec.whole import validate_spec
from svysynth.core.transforms import Transform
from svysynth.survey.answers import Variable, coded, read_answers
from svysynth.survey.columns import not_listed
from svysynth.survey.columns_as_declared import as_declared, refuse_unlisted, with_labels
from svysynth.survey.design import Design, DesignIndex, Stage, index_design
from svysynth.survey.domains import LEVELS, PublicDomain, codes_of, public_domains, read_domains, seen_by_domains
from svysynth.survey.files import open_data, read_columns
from svysynth.survey.formats.base import CodeLabels, DataFile
from svysynth.survey.formats.frame import column_names, to_polars
from svysynth.survey.groups import Groups, numbered_units
from svysynth.survey.roles import (
    check_ranges,
    counted_as_other,
    declared_columns,
    design_levels,
    levels_of,
    needed_columns,
    records_that_take_part,
    require_columns,
    require_records,
)


@dataclass(frozen=True, eq=False, repr=False)
class Survey(ABC):
    """A survey sample with declared roles: `SurveyInMemory`, or `SurveyOnDisk` of on_disk.py.

    The methods that depend on where the columns are stored are abstract here; the others are final.
    """

    outcome: str
    design: Design
    public: tuple[str, ...]
    transform: Transform = "log"
    population_total: float | None = None
    codes: Mapping[str, CodeLabels] = field(default_factory=dict)
    """For each public column: the codes in the file, and their labels."""
    weight_public: bool = False
    """Whether the weights are declared public: then they are kept as they are, and the outcome alone is protected."""
    engine: Engine = LOCAL
    """The execution backend."""
    scratch: Path | None = None
    """The folder for columns of the survey's length that are too long for memory."""
    other: Mapping[str, float] = field(default_factory=dict)
    """For each column: the share of records that count as its level in `survey.other`, being missing or undeclared."""
    domain: str | None = None
    """The condition that tables are restricted to; there is a column for it (`domains.py`)."""
    domains: Mapping[str, PublicDomain] = field(default_factory=dict)
    """The domains that follow from public columns, by the name of their column, which is nowhere stored."""
    replicates: ReplicatesSpec | None = None
    """Replicate weights that came with the file, from which variances are made; there is a column for each."""
    calibration: CalibrationSpec | None = None
    """Public totals that the weights are calibrated to when tables are made; the weights here are those of the file."""
    variables: Mapping[str, Variable] = field(default_factory=dict)
    """The declared answers, the outcome perhaps among them; there is a column of numbers for each."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def schema(self) -> pl.Schema:
        """The columns and their types: numbers are floats, public columns enumerations of their labels."""

    @property
    @abstractmethod
    def index(self) -> DesignIndex:
        """The design as integers."""

    @property
    @abstractmethod
    def groups(self) -> Groups:
        """The public part of the records."""

    @abstractmethod
    def values(self, column: str) -> Any:
        """A column of numbers: a `Column`, which is an array if the survey is in memory."""

    @abstractmethod
    def cell_index(self, columns: Sequence[str]) -> Any:
        """The cell of every record in the crossing of some public columns, last column fastest; also a `Column`."""

    @abstractmethod
    def present_cells(self, columns: Sequence[str]) -> tuple[Integers, Column]:
        """The cells of some public columns that have records, and for every record its cell's position among them."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> SurveyInMemory:
        """Some of the records, in memory."""

    @abstractmethod
    def sample(self, positions: Integers) -> SurveyInMemory:
        """The records at some positions, in memory."""

    @abstractmethod
    def with_weights(self, weights: Column) -> Survey:
        """The same survey with other weights."""

    @final
    def __repr__(self) -> str:
        return f"Survey of {len(self):,} records: {self.outcome} by {', '.join(self.public)}"

    @final
    def _repr_html_(self) -> Html:
        """Sizes and roles; no label, and no value."""
        design = self.design
        roles = {"outcome": self.outcome, "weight": design.weight + (" (public)" if self.weight_public else "")}
        roles |= {"strata": design.strata or "none", "clusters": design.cluster or "none"}
        roles |= {"finite population correction": design.fpc} if design.fpc else {}
        roles |= {"later stages": "; ".join(", ".join(stage.columns) for stage in design.later)} if design.later else {}
        levels = ", ".join(f"{column} ({len(self.levels(column)):,} levels)" for column in self.public)
        facts = {"records": f"{len(self):,}", **roles, "public columns": levels}
        return card("Survey", warning="Confidential: its values are not shown.", facts=facts)

    @final
    def in_memory(self) -> SurveyInMemory:
        """All of the records, in memory."""
        return self.rows(0, len(self))

    @final
    @property
    def outcome_values(self) -> Any:
        """The outcome of every record."""
        return self.values(self.outcome)

    @final
    @property
    def weights(self) -> Any:
        """The sampling weight of every record."""
        return self.values(self.design.weight)

    @final
    @property
    def published(self) -> tuple[str, ...]:
        """The columns that are released as they are: the public ones, the strata, and a weight and an fpc if public.

        Clusters are released too, with new numbers.
        """
        design = self.design
        others = [design.strata, design.released_fpc, design.weight if self.weight_public else None]
        return tuple(dict.fromkeys([*self.public, *(column for column in others if column)]))

    @final
    @property
    def confidential(self) -> tuple[str, ...]:
        """The columns that are protected."""
        return (self.outcome,) if self.weight_public else (self.outcome, self.design.weight)

    @final
    def levels(self, column: str) -> tuple[str, ...]:
        """The labels of a public column, of an answer in classes, or of the column of a domain, in order."""
        if column in self.domains:
            return LEVELS
        answer = coded(column, self.variables)
        if answer is not None:
            return answer.levels
        dtype = self.schema[column]
        assert isinstance(dtype, pl.Enum)
        return tuple(dtype.categories)

    @final
    def model_cells(self) -> tuple[Integers, Floats | None, Column]:
        """What a row of the design matrix may depend on: the cells that have records, and the weight if it is public.

        A cell is repeated for each public weight in it. The third result is the position of every record among these.
        """
        cells, cell = self.present_cells(self.public)
        if not self.weight_public:
            return cells, None, cell
        values, weight = np.unique(np.asarray(self.weights), return_inverse=True)
        pairs, position = group_ids(np.asarray(cell, np.int64) * len(values) + weight, len(cells) * len(values))
        return cells[pairs // len(values)], values[pairs % len(values)], position


@final
@dataclass(frozen=True, eq=False, repr=False)
class SurveyInMemory(Survey):
    """A survey whose columns are in memory."""

    frame: pl.DataFrame = field(kw_only=True)
    """The outcome and the weight as floats, the public columns as enumerations of labels, and the design columns."""

    def __len__(self) -> int:
        return self.frame.height

    @property
    def schema(self) -> pl.Schema:
        """The columns and their types."""
        return self.frame.schema

    @cached_property
    def index(self) -> DesignIndex:
        """The design as integers."""
        design = self.design
        return index_design(self._stage(design), [self._stage(stage) for stage in design.later])

    def _stage(self, stage: Design | StageSpec) -> Stage:
        return Stage(
            self._design_key(stage.strata) if stage.strata else np.zeros(len(self), np.int32),
            self._design_key(stage.cluster) if stage.cluster else None,
            self.frame[stage.fpc].to_numpy() if stage.fpc else None,
        )

    def _design_key(self, column: str) -> Integers:
        key = self.frame[column].to_physical().to_numpy()
        return group_ids(key, int(key.max()) + 1)[1]

    @property
    def groups(self) -> Groups:
        """The public part of the records."""
        return self.grouped(np.ones(len(self), np.int64))[0]

    def grouped(self, count: Integers) -> tuple[Groups, Integers]:
        """The public part of the records, each of which stands for so many, and the group of every record."""
        cells, _, cell = self.model_cells()
        unit, units, numbered = numbered_units(self.design, self.index, self.published, np.asarray(cell), count)
        keys, group = group_ids(np.asarray(cell, np.int64) * units + unit, len(cells) * units)
        first = np.empty(len(keys), np.int64)
        first[group[::-1]] = np.arange(len(self))[::-1]
        frame = self.frame.select(self.published).with_columns(numbered)[first]
        return Groups(frame, np.bincount(group, count).astype(np.int64), keys // units), group

    def values(self, column: str) -> Floats:
        """A column of numbers."""
        return self.frame[column].to_numpy()

    def cell_index(self, columns: Sequence[str]) -> Integers:
        """The cell of every record in the crossing of some public columns, last column fastest."""
        sizes = [len(self.levels(column)) for column in columns]
        cell = np.zeros(len(self), smallest_integer(math.prod(sizes)))
        for column, size in zip(columns, sizes, strict=True):
            cell *= size
            answer = coded(column, self.variables)
            codes = answer.code(self.values(answer.answer)) if answer else codes_of(self.frame, column, self.domains)
            cell += codes.astype(cell.dtype)
        return cell

    def present_cells(self, columns: Sequence[str]) -> tuple[Integers, Column]:
        """The cells of some public columns that have records, and for every record its cell's position among them."""
        return group_ids(self.cell_index(columns), math.prod(len(self.levels(column)) for column in columns))

    def rows(self, start: int, stop: int) -> SurveyInMemory:
        """Some of the records."""
        return replace(self, frame=self.frame[start:stop])

    def sample(self, positions: Integers) -> SurveyInMemory:
        """The records at some positions."""
        return replace(self, frame=self.frame[positions])

    def with_weights(self, weights: Column) -> SurveyInMemory:
        """The same survey with other weights."""
        return replace(self, frame=self.frame.with_columns(pl.Series(self.design.weight, np.asarray(weights))))


def read_survey(
    data: Any,
    *,
    outcome: str,
    weight: str,
    public: str | Sequence[str],
    strata: str | Sequence[str] | None = None,
    cluster: str | Sequence[str] | None = None,
    fpc: str | Sequence[str] | None = None,
    fpc_public: bool = False,
    transform: Transform = "log",
    population_total: float | None = None,
    replicates: ReplicatesSpec | Mapping[str, Any] | None = None,
    calibration: CalibrationSpec | Mapping[str, Any] | None = None,
    weight_public: bool = False,
    where: str | None = None,
    domain: str | None = None,
    domains: Sequence[str] = (),
    universe: Sequence[str] = (),
    missing: Sequence[str] = (),
    labels: Mapping[str, Mapping[str, str]] | None = None,
    levels: Mapping[str, Sequence[str]] | None = None,
    other: Mapping[str, str] | None = None,
    columns: Mapping[str, ColumnSpec | Mapping[str, Any]] | None = None,
    variables: Mapping[str, VariableSpec | Mapping[str, Any]] | None = None,
) -> SurveyInMemory:
    """Read a survey from a file, or from a frame of polars, pandas or Arrow.

    The arguments are the keys of the spec's `[survey]`. Only the columns that they name are read; an index is ignored.
    """
    in_file = isinstance(data, str | os.PathLike)
    if not in_file:
        column_names(data)  # anything that is not a frame is refused first
    settings: dict[str, Any] = {
        "data": os.fspath(data) if in_file else "frame",
        "outcome": outcome,
        "weight": weight,
        "public": public,
        "strata": strata,
        "cluster": cluster,
        "fpc": fpc,
        "fpc_public": fpc_public,
        "transform": transform,
        "population_total": population_total,
        "weight_public": weight_public,
        "where": where,
        "domain": domain,
        "replicates": replicates,
        "calibration": calibration,
        "domains": domains,
        "universe": universe,
        "missing": missing,
        "labels": labels or {},
        "levels": levels or {},
        "other": other or {},
        "columns": columns or {},
        "variables": variables or {},
    }
    spec = validate_spec({"survey": settings}, "read_survey").survey
    return survey_from_file(spec) if in_file else survey_from_frame(data, spec)


def survey_from_file(spec: SurveySpec) -> SurveyInMemory:
    """Read the survey that a spec describes."""
    file = open_data(spec.data)
    needed = needed_columns(spec)
    require_columns(needed, file.columns)
    return _build(read_columns(file, needed), spec, file)


def survey_from_frame(frame: Any, spec: SurveySpec) -> SurveyInMemory:
    """Make a survey of a frame that is already in memory."""
    needed, available = needed_columns(spec), column_names(frame)
    require_columns(needed, available)
    return _build(to_polars(frame, needed), spec, DataFile(Path("frame"), "frame", available))


def _build(frame: pl.DataFrame, spec: SurveySpec, file: DataFile) -> SurveyInMemory:
    require_records(frame, "the data", "export the file again")
    frame = records_that_take_part(frame, spec, file)
    require_records(frame, "survey.where", "loosen the condition")
    raw = as_declared(frame, declared_columns(spec), spec, file)
    seen = seen_by_domains(frame, raw, spec)
    del frame  # each raw column can be freed as soon as it has been converted
    refuse_unlisted(raw, spec)
    file = with_labels(file, raw, spec)
    other = {name: float(not_listed(raw[name], declared).mean()) for name, declared in counted_as_other(raw, spec)}
    given = (*spec.answers, spec.weight, *spec.fpcs, *(spec.replicates.weights if spec.replicates else ()))
    columns, variables = read_answers({name: raw.pop(name) for name in given}, spec, file)
    codes = {}
    for name in spec.public:
        columns[name], codes[name] = levels_of(raw.pop(name), spec, file)
    for name in (name for name in declared_columns(spec) if name in raw):
        columns[name] = design_levels(raw.pop(name), spec, file)
    check_ranges(columns, spec)
    domains = public_domains(spec, codes, seen.schema, file)
    survey = SurveyInMemory(
        spec.outcome,
        Design(spec.weight, spec.strata, spec.cluster, spec.fpc, spec.later, spec.fpc_public),
        spec.public,
        spec.transform,
        spec.population_total,
        codes,
        spec.weight_public,
        other=other,
        domain=spec.domain,
        domains=domains,
        replicates=spec.replicates,
        calibration=spec.calibration,
        variables=variables,
        frame=pl.DataFrame(columns).with_columns(read_domains(seen, spec, file, tuple(domains))),
    )
    survey.index  # noqa: B018  a contradictory design is refused here rather than later
    return survey
