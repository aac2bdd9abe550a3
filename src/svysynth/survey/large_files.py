"""Large files: which files are large, and how they are read in parts into a survey on disk.

A Parquet file with very many rows is read twice: first the public columns, to number the groups of records, then the
outcome and the weight.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from svysynth.core.column_storage import Stored
from svysynth.core.engine import BLOCK, Engine, part_ranges
from svysynth.core.errors import SurveyError, file_error
from svysynth.core.grouping import Booleans, Integers
from svysynth.core.hidden_folders import in_hiding
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import Spec
from svysynth.survey.answers import read_answer, variable_of
from svysynth.survey.columns import as_text, distinct_values, labels_of_codes, not_listed, numbers, refuse_missing
from svysynth.survey.columns_as_declared import (
    as_declared,
    blank_is_missing,
    columns_of_file,
    refuse_unlisted,
    with_labels,
)
from svysynth.survey.design import Design
from svysynth.survey.domains import (
    INSIDE,
    PublicDomain,
    columns_of_domains,
    domain_column,
    inside_of,
    nothing_inside,
    public_domains,
    seen_by_domains,
    stored_domains,
)
from svysynth.survey.files import open_data
from svysynth.survey.formats.base import CodeLabels, DataFile
from svysynth.survey.formats.parquet import count_rows, read_rows
from svysynth.survey.groups import Groups
from svysynth.survey.on_disk import SurveyOnDisk, create_columns, split_by, split_groups, store_survey, unpublished
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
from svysynth.survey.row_filter import condition_columns, parse_condition
from svysynth.survey.survey import Survey, SurveyInMemory, survey_from_file

MOST_IN_MEMORY = 2_000_000
"""The most records of a survey that is read as a whole."""
BLOCKS_A_READ = 16
"""The most blocks that are read from Parquet at a time: about a million records."""
VALUES_A_READ = 2**24
"""The most values that are read at a time, records times columns, unless one block has more: 128 MiB of numbers."""
READS_A_CORE = 2
"""The number of such reads that are under way for each core: several, because polars waits for memory and files."""
MOST_BITS = 22
"""The most bits of a hash of public values that is looked up in a table."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk and of an exhausted quota."""
HASHES = 8
"""The number of hash functions that are tried before records are matched to their groups by a join instead."""
ADDED = "added by svysynth"
"""The name of a column that is added after those of the file; letters are put before it if the name is taken."""


def undivided_design(spec: Spec) -> str | None:
    """The setting of the estimation that needs all records at once, if there is one."""
    return "estimation.variance" if spec.estimation.variance != "taylor" else None


def is_large(spec: SurveySpec) -> bool:
    """Whether a survey is kept on disk: a Parquet file with very many rows."""
    file = open_data(spec.data)
    return file.format == "parquet" and count_rows(file) > MOST_IN_MEMORY


Read = Callable[[SurveySpec], Survey]
"""Reads the survey that a spec describes, to memory or to disk."""
Result = TypeVar("Result")


def with_reader(
    spec: SurveySpec, undivided: str | None, parent: Path, engine: Engine, work: Callable[[Read], Result]
) -> Result:
    """What `work` returns, given a function that reads surveys: into memory, or in parts into files.

    Files are used for a survey that is too large for memory or that other processes work on, unless a setting,
    `undivided`, needs all records at once. The files are in a hidden folder in `parent` while the work lasts.
    """
    if undivided is not None or not (engine.remote or is_large(spec)):
        return work(survey_from_file)
    found: list[Result] = []
    _refuse_unwritable(parent)
    in_hiding(parent, lambda scratch: found.append(work(partial(_read_to, scratch, engine))))
    return found[0]


def _refuse_unwritable(folder: Path) -> None:
    try:
        in_hiding(folder, lambda _: None)
    except OSError:
        problem = "cannot be written to, and the columns of large data are stored there during the run"
        remedy = "change to a folder that you can write to, or name one with --out"
        raise SurveyError("file", f"folder '{folder.resolve().name}'", problem, remedy) from None


def _read_to(folder: Path, engine: Engine, spec: SurveySpec) -> Survey:
    try:
        if is_large(spec):
            return read_large(spec, folder, engine)
        return store_survey(survey_from_file(spec), folder, engine)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise _no_room() from None


def _refuse_without_room(folder: Path, records: int, columns: int) -> None:
    """Stop if the disk of a folder has no space for these columns of numbers and the groups of the records."""
    needed = records * (columns * np.dtype(np.float64).itemsize + np.dtype(np.int32).itemsize)
    if needed > shutil.disk_usage(folder).free:
        raise _no_room()


def _no_room() -> SurveyError:
    remedy = "free some space on its disk: about 20 bytes for each record are needed, and 8 for each replicate weight"
    return SurveyError("file", "the hidden folder", "cannot hold the columns of the data", remedy)


def read_large(spec: SurveySpec, folder: Path, engine: Engine, also: tuple[str, ...] = ()) -> SurveyOnDisk:
    """The survey that a spec describes, from Parquet, read in parts: first public columns, then the numbers.

    `also` names further columns of numbers to keep.
    """
    file = open_data(spec.data)
    require_columns([*needed_columns(spec), *also], file.columns)
    numbers_kept = (*_numbers(spec), *also)
    if spec.where is None:  # without a filter the number of records is known before the first pass
        _refuse_without_room(folder, count_rows(file), len(numbers_kept))
    most = max(1, min(BLOCKS_A_READ, VALUES_A_READ // (BLOCK * len(declared_columns(spec)))))
    parts = part_ranges(count_rows(file), engine.parts, most)
    spec = _with_levels(spec, file, engine, parts)
    found = list(engine.map(_Combinations(file, spec), parts, READS_A_CORE))
    kept = [int(part[part.columns[-1]].sum()) for part in found]
    names = _grouping(spec)
    labelled = pl.concat(found)
    require_records(labelled, "survey.where" if spec.where else "the data", "loosen the condition")
    file_of_labels = with_labels(file, {name: labelled[name] for name in labelled.columns[:-1]}, spec)
    combinations = labelled.group_by(names).agg(pl.col(labelled.columns[-1]).sum().alias(_free_name(names)))
    groups, group, codes, other, domains = _number_groups(combinations, file_of_labels, spec)
    _refuse_without_room(folder, sum(kept), len(numbers_kept))
    columns = create_columns(folder, numbers_kept, sum(kept))
    place = Stored.create(folder / "group", np.int32, sum(kept))
    numbered = combinations.select(names).with_columns(pl.Series(_free_name(names), group))
    write = _Numbers(file, spec, numbered, columns, place)
    offsets = np.cumsum([0, *kept[:-1]]).tolist()
    for _ in engine.map(write, list(zip(parts, offsets, kept, strict=True)), READS_A_CORE):
        pass
    design = Design(spec.weight, spec.strata, spec.cluster, spec.fpc, spec.later, spec.fpc_public)
    roles = spec.outcome, design, spec.public, spec.transform, spec.population_total, codes, spec.weight_public
    variables = {name: variable_of(name, spec) for name in spec.variables}
    made = SurveyOnDisk(*roles, engine, folder, other, columns=columns, group=place, public_part=groups)
    made.index  # noqa: B018  a contradictory design is refused here rather than later
    restricted = replace(made, domain=spec.domain, domains=domains)
    return replace(restricted, calibration=spec.calibration, replicates=spec.replicates, variables=variables)


@outlined
@dataclass(frozen=True)
class _Combinations:
    """The combinations of public values in some rows, as stored in the file; the last column counts the records."""

    file: DataFile
    spec: SurveySpec

    def __call__(self, rows: range) -> pl.DataFrame:
        frame = _read(self.file, self.spec, _grouping(self.spec), rows)
        added = _free_name(frame.columns)
        # cast afterwards: a cast within the aggregation takes several times as long
        return frame.group_by(frame.columns).agg(pl.len().alias(added)).cast({added: pl.Int64})


@outlined
@dataclass(frozen=True)
class _Numbers:
    """Writes the numbers of some rows of a file, and their groups, to stored columns."""

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
            found = {name: read_answer(frame[name], self.spec, self.file)[0] for name in self.columns}
            check_ranges(found, self.spec)
        except SurveyError as error:
            problem = f"{error.problem} (in rows {rows.start + 1:,} to {rows.stop:,} of the file)"
            raise SurveyError(error.kind, error.place, problem, error.remedy) from None
        for name, column in self.columns.items():
            column.write(start, *(chunk.to_numpy() for chunk in found[name].get_chunks()))
        self.place.write(start, group)


def _group_of(frame: pl.DataFrame, groups: pl.DataFrame) -> Integers | None:
    """The group of every record, looked up by a hash of its public values that differs between all groups.

    All records belong to the groups unless the file has changed, so such a hash cannot confuse two groups; the result
    is None if a record turns out to be in no group. If no such hash is found, or if values can be equal without being
    identical, as 0.0 and −0.0, groups are joined.
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
    """A name for an added column that is not among those taken."""
    name = ADDED
    while name in taken:
        name = f"x{name}"
    return name


def _grouping(spec: SurveySpec) -> list[str]:
    """The columns whose combinations are the groups of records; those of domains come last."""
    numbers_read = _numbers(spec)
    return [*(name for name in declared_columns(spec) if name not in numbers_read), *map(domain_column, spec.domains)]


def _numbers(spec: SurveySpec) -> tuple[str, ...]:
    """The columns of numbers: answers and weights."""
    return (*spec.answers, spec.weight, *(spec.replicates.weights if spec.replicates else ()))


def _with_levels(spec: SurveySpec, file: DataFile, engine: Engine, parts: Sequence[range]) -> SurveySpec:
    """The spec with the levels of categories that declare none, found in one more pass, so that all parts have them."""
    open_ = tuple(name for name, kind in spec.kinds.items() if kind == "category" and spec.declared(name) is None)
    if not open_:
        return spec
    found = list(engine.map(_Codes(file, spec, open_), parts, READS_A_CORE))
    variables = dict(spec.variables)
    for name in open_:
        codes = set[str]().union(*(part[name] for part in found)) - {spec.made(name).missing_level}
        levels = tuple(labels_of_codes(name, tuple(sorted(codes)), {}))
        variables[name] = variables[name].model_copy(update={"levels": levels})
    return spec.model_copy(update={"variables": variables})


@outlined
@dataclass(frozen=True)
class _Codes:
    """The codes of some columns in some rows, as text."""

    file: DataFile
    spec: SurveySpec
    names: tuple[str, ...]

    def __call__(self, rows: range) -> dict[str, set[str]]:
        frame = _read(self.file, self.spec, self.names, rows)
        texts = {name: as_text(distinct_values(blank_is_missing(frame[name]))) for name in self.names}
        return {name: set(text.drop_nulls()) for name, text in texts.items()}


def _read(file: DataFile, spec: SurveySpec, names: Sequence[str], rows: range) -> pl.DataFrame:
    """Some columns, as the spec declares them, of the rows that its condition keeps; and who is inside the domains."""
    names = [name for name in names if name not in map(domain_column, spec.domains)]
    needed = [*columns_of_file(names, spec), *condition_columns(parse_condition(spec.where)), *columns_of_domains(spec)]
    frame = records_that_take_part(read_rows(file, list(dict.fromkeys(needed)), rows), spec, file)
    declared = as_declared(frame, names, spec, file)
    seen = seen_by_domains(frame, declared, spec)
    inside = {domain_column(domain): inside_of(seen, domain, file).cast(pl.Int8) for domain in spec.domains}
    return pl.DataFrame(declared | inside)


def _types_seen(file: DataFile, spec: SurveySpec) -> pl.Schema:
    """The types of the columns that the conditions of domains see."""
    needed = [*columns_of_file(spec.public, spec), *columns_of_domains(spec)]
    frame = read_rows(file, list(dict.fromkeys(needed)), range(1))
    return seen_by_domains(frame, as_declared(frame, spec.public, spec, file), spec).schema


def _number_groups(
    combinations: pl.DataFrame, file: DataFile, spec: SurveySpec
) -> tuple[Groups, Integers, dict[str, CodeLabels], dict[str, float], dict[str, PublicDomain]]:
    """The groups of a survey, the group of each combination of values in the file, the labels of its codes, the shares
    of records that count as the level in `survey.other`, and the domains that follow from public columns."""
    *names, number = combinations.columns
    records = combinations[number].to_numpy()
    for name in (name for name in names if name not in spec.other):
        refuse_missing(name, int(records[_missing(combinations[name])].sum()), int(records.sum()))
    refuse_unlisted({name: combinations[name] for name in names}, spec, records)
    other = {
        name: float(records[not_listed(combinations[name], declared)].sum() / records.sum())
        for name, declared in counted_as_other(names, spec)
    }
    columns: dict[str, pl.Series] = {}
    codes: dict[str, CodeLabels] = {}
    for name in spec.public:
        columns[name], codes[name] = levels_of(combinations[name], spec, file)
    for column in (*spec.all_strata, *spec.clusters):
        if column not in columns:
            columns[column] = design_levels(combinations[column], spec, file)
    columns |= {column: _numbers_of_records(combinations[column], records, file) for column in spec.fpcs}
    roles = (spec.outcome, Design(spec.weight, spec.strata, spec.cluster), spec.public)
    # a survey of one record for each combination has the same groups
    groups, group = SurveyInMemory(*roles, frame=pl.DataFrame(columns)).grouped(records)
    domains = public_domains(spec, codes, _types_seen(file, spec), file)
    inside = {name: combinations[name].to_numpy() for name in stored_domains(names) if name not in domains}
    if not all((own == INSIDE).any() for own in inside.values()):
        raise nothing_inside()
    groups, group = split_groups(groups, group, inside, records)
    design = Design(spec.weight, spec.strata, spec.cluster, spec.fpc, spec.later)
    groups, group = split_by(groups, group, [columns[name] for name in unpublished(design, groups)], records)
    return groups, group, codes, other, domains


def _numbers_of_records(series: pl.Series, records: Integers, file: DataFile) -> pl.Series:
    """A column of numbers, of combinations of so many records; if it is refused, the records are counted."""
    try:
        return numbers(series, file)
    except SurveyError:
        numbers(series[np.repeat(np.arange(len(series)), records)], file)
        raise


def _missing(series: pl.Series) -> Booleans:
    """Whether each value is missing: null, NaN or blank text."""
    if series.dtype.is_float():
        series = series.fill_nan(None)
    if series.dtype == pl.String:
        series = series.set(series.str.strip_chars() == "", None)
    return series.is_null().to_numpy()
