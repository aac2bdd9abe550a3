"""A survey too large for memory: its columns are in files, and everything goes through them a slice at a time.

A record is (outcome, weight, group); what a group is, public columns and stratum, is a small table. The files are made
once, from Parquet read in parts, in a folder that only its owner can enter and that is gone when the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column, Derived, Stored, look_up
from svysynth.core.engine import Engine, map_blocks, part_ranges
from svysynth.core.errors import SurveyError, file_error
from svysynth.core.grouping import Booleans, Floats, Integers, group_ids
from svysynth.core.outline import outlined
from svysynth.core.spec import Spec, SurveySpec
from svysynth.survey.columns import not_listed, numbers, refuse_missing
from svysynth.survey.design import Design, DesignIndex
from svysynth.survey.files import open_data
from svysynth.survey.formats.base import CodeLabels, DataFile
from svysynth.survey.formats.parquet import count_rows, read_rows
from svysynth.survey.survey import (
    Groups,
    Survey,
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
from svysynth.survey.universe import condition_columns, parse_condition

MOST_IN_MEMORY = 2_000_000
"""Records of a survey that is read as a whole."""
BLOCKS_A_READ = 20
"""How many blocks are read from Parquet at a time: about 1.3 million records."""
READS_A_CORE = 2
"""How many such pieces each core has at a time: polars waits for memory and files."""
MOST_BITS = 22
"""Of a hash of public values that is looked up in a table."""
HASHES = 8
"""Tried, before groups are joined instead."""
ADDED = "added by svysynth"
"""A column beside those of the file, last in its frame; letters are put before it where the file has that name."""


@dataclass(frozen=True)
class LargeSurvey(Survey):
    """A survey whose columns are on disk. `frame` has its columns and their types, and no rows."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    """The columns of numbers, by name."""
    group: Column = field(default_factory=lambda: np.empty(0, np.int32))
    """The group of every record."""
    public_part: Groups = field(default_factory=lambda: Groups(pl.DataFrame(), np.empty(0, int), np.empty(0, int)))

    __repr__ = Survey.__repr__  # a dataclass would show its columns

    def __len__(self) -> int:
        return len(self.group)

    def values(self, column: str) -> Any:
        """A column of numbers, to be read in slices."""
        return self.columns[column]

    @property
    def groups(self) -> Groups:
        """The public part of the records."""
        return self.public_part

    @cached_property
    def index(self) -> DesignIndex:
        """The design as integers; every record is a primary sampling unit."""
        counts = self.public_part.count
        table: Integers = np.zeros(len(counts), np.int32)
        strata = 1
        if self.design.strata is not None:
            key = self.public_part.frame[self.design.strata].to_physical().to_numpy()
            keys, table = group_ids(key, int(key.max()) + 1)
            strata = len(keys)
        stratum: Any = Derived(partial(look_up, table=table), (self.group,))
        return DesignIndex(stratum, None, stratum, _sums(table, strata, counts), np.ones(strata))

    def cell_index(self, columns: Sequence[str]) -> Any:
        """The cell of every record in the crossing of some public columns, last column fastest."""
        return Derived(partial(look_up, table=self._cell_of_group(columns)), (self.group,))

    def model_cells(self) -> tuple[Integers, Floats | None, Column]:
        """The cells that have records; no model of public weights is made from disk."""
        cells, cell = self.present_cells(self.public)
        return cells, None, cell

    def present_cells(self, columns: Sequence[str]) -> tuple[Integers, Column]:
        """The cells of some public columns that have records, and for every record the position of its own."""
        cells, position = np.unique(self._cell_of_group(columns), return_inverse=True)
        return cells, Derived(partial(look_up, table=position), (self.group,))

    def rows(self, start: int, stop: int) -> Survey:
        """Some of the records, in memory."""
        return self._in_memory(lambda column: column[start:stop])

    def sample(self, positions: Integers) -> Survey:
        """The records at some positions, in memory."""
        return self._in_memory(lambda column: column.take(positions))

    def _in_memory(self, read: Callable[[Column], Any]) -> Survey:
        frame = self.public_part.frame[read(self.group)].with_columns(
            pl.Series(name, read(column)) for name, column in self.columns.items()
        )
        roles = self.outcome, self.design, self.public, self.transform, self.population_total, self.codes
        return Survey(frame.select(self.frame.columns), *roles, self.weight_public)

    def with_weights(self, weights: Column) -> Survey:
        """The same survey with other weights."""
        return replace(self, columns={**self.columns, self.design.weight: weights})

    def _cell_of_group(self, columns: Sequence[str]) -> Integers:
        sizes = [len(self.levels(column)) for column in columns]
        codes = [self.public_part.frame[column].to_physical().to_numpy() for column in columns]
        if not columns:
            return np.zeros(len(self.public_part.count), np.int64)
        return np.asarray(np.ravel_multi_index(codes, sizes), np.int64)


def _sums(group: Integers, groups: int, count: Integers) -> Integers:
    return np.bincount(group, count, minlength=groups).astype(np.int64)


def undivided_design(spec: Spec) -> str | None:
    """The setting of design or estimation that is not worked on from parts, if there is one."""
    if spec.estimation.variance != "taylor":
        return "estimation.variance"
    return "survey.cluster" if spec.survey.cluster else "survey.fpc" if spec.survey.fpc else None


def is_large(spec: SurveySpec) -> bool:
    """Whether a survey is worked on from disk: Parquet with very many rows."""
    file = open_data(spec.data)
    return file.format == "parquet" and count_rows(file) > MOST_IN_MEMORY


def store_survey(survey: Survey, folder: Path, engine: Engine) -> LargeSurvey:
    """A survey that is in memory, as one whose columns are in a folder."""
    cell = survey.present_cells(survey.public)[1]
    key = np.asarray(cell, np.int64)
    if survey.design.strata:
        key = key * survey.index.strata + survey.index.stratum
    columns = _create(folder, (survey.outcome, survey.design.weight), len(survey))
    for name, column in columns.items():
        column.write(0, survey.values(name))
    group = Stored.create(folder / "group", np.int32, len(survey))
    group.write(0, np.searchsorted(np.unique(key), key))
    groups = replace(survey, weight_public=False).groups  # of cells and strata, as the numbers are
    return _of_parts(survey, groups, columns, group, folder, engine)


def read_large(spec: SurveySpec, folder: Path, engine: Engine, also: tuple[str, ...] = ()) -> LargeSurvey:
    """The survey that a spec describes, from Parquet, read twice in parts: first what is public, then the numbers.

    `also` names further columns of numbers to keep.
    """
    file = open_data(spec.data)
    require_columns([*needed_columns(spec), *also], file.columns)
    parts = part_ranges(count_rows(file), engine.parts, BLOCKS_A_READ)
    found = list(engine.map(_Combinations(file, spec), parts, READS_A_CORE))
    kept = [int(part[part.columns[-1]].sum()) for part in found]
    names = [name for name in declared_columns(spec) if name not in (spec.outcome, spec.weight)]
    combinations = pl.concat(found).group_by(names).agg(pl.col(_free_name(names)).sum())
    require_records(combinations, "survey.where" if spec.where else "the data", "loosen the condition")
    groups, codes, other, group = _number_groups(combinations, file, spec)
    columns = _create(folder, (spec.outcome, spec.weight, *also), sum(kept))
    place = Stored.create(folder / "group", np.int32, sum(kept))
    numbered = combinations.select(names).with_columns(pl.Series(_free_name(names), group))
    write = _Numbers(file, spec, numbered, columns, place)
    offsets = np.cumsum([0, *kept[:-1]]).tolist()
    for _ in engine.map(write, list(zip(parts, offsets, kept, strict=True)), READS_A_CORE):
        pass
    design = Design(spec.weight, spec.strata)
    roles = spec.outcome, design, spec.public, spec.transform, spec.population_total, codes, spec.weight_public
    like = Survey(pl.DataFrame(), *roles, other=other)
    return _of_parts(like, groups, columns, place, folder, engine)


@outlined
@dataclass(frozen=True)
class _Combinations:
    """The public combinations that occur in some rows of a file, as they stand there; last, how many have each."""

    file: DataFile
    spec: SurveySpec

    def __call__(self, rows: range) -> pl.DataFrame:
        names = [name for name in declared_columns(self.spec) if name not in (self.spec.outcome, self.spec.weight)]
        frame = _read(self.file, self.spec, names, rows)
        added = _free_name(names)
        # cast afterwards: within the aggregation it takes several times as long
        return frame.group_by(names).agg(pl.len().alias(added)).cast({added: pl.Int64})


@outlined
@dataclass(frozen=True)
class _Numbers:
    """Puts the numbers of some rows of a file, and their groups, into stored columns."""

    file: DataFile
    spec: SurveySpec
    groups: pl.DataFrame
    columns: Mapping[str, Stored]
    place: Stored

    def __call__(self, part: tuple[range, int, int]) -> None:
        rows, start, kept = part
        frame = _read(self.file, self.spec, [*declared_columns(self.spec), *self.columns], rows)
        group = _group_of(frame, self.groups)
        if frame.height != kept or group is None:
            raise file_error(self.file.path, "changed while it was read", "run again when nothing writes to it")
        try:
            found = {name: numbers(frame[name], self.file) for name in self.columns}
            check_ranges(found, self.spec)
        except SurveyError as error:
            problem = f"{error.problem} (in rows {rows.start + 1:,} to {rows.stop:,} of the file)"
            raise SurveyError(error.kind, error.place, problem, error.remedy) from None
        for name, column in self.columns.items():
            column.write(start, found[name].to_numpy())
        self.place.write(start, group)


def _group_of(frame: pl.DataFrame, groups: pl.DataFrame) -> Integers | None:
    """The group of every record, by its public values: looked up by a hash of these that tells all groups apart.

    Every record is in one of the groups, so that no two values can be mistaken for each other; None if one is in none.
    Where no such hash is found, or values may be equal that are not the same, as 0.0 and −0.0, groups are joined.
    """
    *names, number = groups.columns
    shift = np.uint64(64 - min(2 * groups.height.bit_length() + 2, MOST_BITS))
    exact = all(dtype == pl.String or dtype.is_integer() for dtype in groups.select(names).dtypes)
    for seed in range(HASHES if exact else 0):
        place = groups.select(names).hash_rows(seed=seed).to_numpy() >> shift
        if len(np.unique(place)) == groups.height:
            table = np.full(2 ** (64 - int(shift)), -1, np.int32)
            table[place] = groups[number].to_numpy()
            found = table.take((frame.select(names).hash_rows(seed=seed).to_numpy() >> shift).view(np.int64))
            return None if found.min(initial=0) < 0 else found
    joined = frame.select(names).join(groups, on=names, how="left", nulls_equal=True, maintain_order="left")
    return None if joined[number].null_count() else joined[number].to_numpy()


def _free_name(taken: Sequence[str]) -> str:
    """The name of a column that is added to others."""
    name = ADDED
    while name in taken:
        name = f"x{name}"
    return name


def _read(file: DataFile, spec: SurveySpec, names: Sequence[str], rows: range) -> pl.DataFrame:
    """Some columns of those rows that the spec's condition keeps."""
    condition = condition_columns(parse_condition(spec.where))
    return records_that_take_part(read_rows(file, list(dict.fromkeys([*names, *condition])), rows), spec, file)


def _number_groups(
    combinations: pl.DataFrame, file: DataFile, spec: SurveySpec
) -> tuple[Groups, dict[str, CodeLabels], dict[str, float], Integers]:
    """The groups of a survey, the labels of its codes, which share of records count as another level, and the group of
    each combination as it stands in the file."""
    *names, number = combinations.columns
    records = combinations[number].to_numpy()
    for name in (name for name in names if name not in spec.other):
        refuse_missing(name, int(records[_missing(combinations[name])].sum()), int(records.sum()))
    other = {
        name: float(records[not_listed(combinations[name], declared)].sum() / records.sum())
        for name, declared in counted_as_other(names, spec)
    }
    columns: dict[str, pl.Series] = {}
    codes: dict[str, CodeLabels] = {}
    for name in spec.public:
        columns[name], codes[name] = levels_of(combinations[name], spec, file)
    if spec.strata and spec.strata not in columns:
        columns[spec.strata] = design_levels(combinations[spec.strata], spec, file)
    roles = (spec.outcome, Design(spec.weight, spec.strata), spec.public)
    every = Survey(pl.DataFrame(columns), *roles)  # a survey of one record for each combination has the same groups
    cell = np.asarray(every.present_cells(spec.public)[1], np.int64)
    key = cell * every.index.strata + every.index.stratum if spec.strata else cell
    group = np.unique(key, return_inverse=True)[1]
    return replace(every.groups, count=_sums(group, int(group.max()) + 1, records)), codes, other, group


def _missing(series: pl.Series) -> Booleans:
    """Nothing, NaN and blanks."""
    if series.dtype.is_float():
        series = series.fill_nan(None)
    if series.dtype == pl.String:
        series = series.set(series.str.strip_chars() == "", None)
    return series.is_null().to_numpy()


def _create(folder: Path, names: Sequence[str], length: int) -> dict[str, Stored]:
    return {name: Stored.create(folder / f"column-{place}", np.float64, length) for place, name in enumerate(names)}


def _of_parts(
    like: Survey, groups: Groups, columns: Mapping[str, Column], group: Column, folder: Path, engine: Engine
) -> LargeSurvey:
    names = [*groups.frame.columns, *columns]
    frame = groups.frame.clear().with_columns(pl.Series(name, [], dtype=pl.Float64) for name in columns).select(names)
    roles = (
        *(like.outcome, like.design, like.public, like.transform, like.population_total, like.codes),
        like.weight_public,
    )
    return LargeSurvey(frame, *roles, engine, folder, like.other, columns, group, groups)


def survey_of_columns(
    like: Survey,
    groups: Groups,
    columns: Callable[[slice], tuple[Any, ...]],
    weights: tuple[str, ...],
    name: str,
) -> Survey:
    """A survey with the roles of another, from groups and a function that gives blocks of (group, outcome, weights).

    It is where the other one is: in memory or on disk. Its weight is the first of those named.
    """
    names, records = (like.outcome, *weights), int(groups.count.sum())
    design = Design(weights[0], like.design.strata)
    if like.scratch is None:
        blocks = map_blocks(like.engine, columns, records)
        group, *numbers = (np.concatenate(column) for column in zip(*blocks, strict=True))
        frame = groups.frame[group].with_columns(map(pl.Series, names, numbers))
        return replace(like, frame=frame, design=design, other={})
    stored = [Stored.create(like.scratch / f"{name}-{place}", np.float64, records) for place in range(len(names))]
    group_column = Stored.create(like.scratch / f"{name}-group", np.int32, records)
    map_blocks(like.engine, _Write((group_column, *stored), columns), records)
    made = dict(zip(names, stored, strict=True))
    return _of_parts(replace(like, design=design, other={}), groups, made, group_column, like.scratch, like.engine)


@dataclass(frozen=True)
class _Write:
    """Puts a block's columns in their place."""

    columns: tuple[Stored, ...]
    function: Callable[[slice], tuple[Any, ...]]

    def __call__(self, piece: slice) -> None:
        for column, values in zip(self.columns, self.function(piece), strict=True):
            column.write(piece.start, values)
