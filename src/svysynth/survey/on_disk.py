"""A survey on disk: its columns are in files, which are read a slice at a time.

A record is (outcome, weight, group); a table has the public columns, the stratum and the cluster of each group. The
files are in a folder that only its owner can enter and that is removed when the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column, Derived, Stored, look_up
from svysynth.core.engine import Engine, map_blocks
from svysynth.core.grouping import Integers, group_ids
from svysynth.core.spec.stages import StageSpec
from svysynth.survey.answers import coded
from svysynth.survey.design import Design, DesignIndex, Stage, index_design, sums_of_groups
from svysynth.survey.domains import INSIDE, LEVELS, codes_of, stored_domains, told_inside
from svysynth.survey.groups import Groups
from svysynth.survey.survey import Survey, SurveyInMemory


@final
@dataclass(frozen=True, eq=False, repr=False)
class SurveyOnDisk(Survey):
    """A survey whose columns are in files."""

    columns: Mapping[str, Column] = field(kw_only=True)
    """The columns of numbers, by name."""
    group: Column = field(kw_only=True)
    """The group of every record."""
    public_part: Groups = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.group)

    @property
    def schema(self) -> pl.Schema:
        """The columns and their types."""
        numbers = ((name, pl.Float64()) for name in self.columns)
        return pl.Schema([*self.public_part.frame.schema.items(), *numbers])

    @property
    def groups(self) -> Groups:
        """The public part of the records; weights are not in it, whether they are public or not."""
        return self.public_part

    def values(self, column: str) -> Column:
        """A column of numbers, to be read in slices."""
        return self.columns[column]

    @cached_property
    def index(self) -> DesignIndex:
        """The design as integers, looked up by the groups of the records."""
        design = self.design
        return self._of_records(index_design(self._stage(design), [self._stage(stage) for stage in design.later]))

    def _of_records(self, index: DesignIndex) -> DesignIndex:
        """The index of the records, from that of their groups."""
        stratum, psu = self._looked_up(index.stratum), None if index.psu is None else self._looked_up(index.psu)
        psu_stratum = stratum if psu is None else index.psu_stratum
        later = tuple(map(self._of_records, index.later))
        return replace(index, stratum=stratum, psu=psu, psu_stratum=psu_stratum, later=later)

    def _looked_up(self, table: Integers) -> Any:
        return Derived(partial(look_up, table=np.asarray(table)), (self.group,))

    def _stage(self, stage: Design | StageSpec) -> Stage:
        groups = self.public_part
        return Stage(
            self._key_of_group(stage.strata) if stage.strata else np.zeros(len(groups.count), np.int32),
            self._key_of_group(stage.cluster) if stage.cluster else None,
            groups.frame[stage.fpc].to_numpy() if stage.fpc else None,
            groups.count,
        )

    def _key_of_group(self, column: str) -> Integers:
        key = self.public_part.frame[column].to_physical().to_numpy()
        return group_ids(key, int(key.max()) + 1)[1]

    def cell_index(self, columns: Sequence[str]) -> Any:
        """The cell of every record in the crossing of some columns, last column fastest."""
        told = [coded(column, self.variables) for column in columns]
        table, answers = self._cell_of_group(columns), [answer for answer in told if answer is not None]
        if not answers:
            return Derived(partial(look_up, table=table), (self.group,))
        steps = np.cumprod([1, *(len(self.levels(column)) for column in columns[:0:-1])])[::-1].tolist()
        codes = [(step, answer.code) for step, answer in zip(steps, told, strict=True) if answer is not None]
        sources = (self.group, *(self.columns[answer.answer] for answer in answers))
        return Derived(partial(_with_answers, table, codes), sources)

    def present_cells(self, columns: Sequence[str]) -> tuple[Integers, Column]:
        """The cells of some public columns that have records, and for every record its cell's position among them."""
        cells, position = np.unique(self._cell_of_group(columns), return_inverse=True)
        return cells, Derived(partial(look_up, table=position), (self.group,))

    def rows(self, start: int, stop: int) -> SurveyInMemory:
        """Some of the records, in memory."""
        return self._part(lambda column: column[start:stop])

    def sample(self, positions: Integers) -> SurveyInMemory:
        """The records at some positions, in memory."""
        return self._part(lambda column: column.take(positions))

    def _part(self, read: Callable[[Column], Any]) -> SurveyInMemory:
        frame = self.public_part.frame[read(self.group)].with_columns(
            pl.Series(name, read(column)) for name, column in self.columns.items()
        )
        return SurveyInMemory(**_roles_of(self), replicates=self.replicates, variables=self.variables, frame=frame)

    def with_weights(self, weights: Column) -> SurveyOnDisk:
        """The same survey with other weights."""
        return replace(self, columns={**self.columns, self.design.weight: weights})

    def _cell_of_group(self, columns: Sequence[str]) -> Integers:
        sizes = [len(self.levels(column)) for column in columns]
        frame, nothing = self.public_part.frame, np.zeros(len(self.public_part.count), np.int64)
        codes = [  # the first level, in place of an answer that differs within a group
            nothing if coded(column, self.variables) else codes_of(frame, column, self.domains) for column in columns
        ]
        if not columns:
            return np.zeros(len(self.public_part.count), np.int64)
        return np.asarray(np.ravel_multi_index(codes, sizes), np.int64)


def _with_answers(
    table: Integers, codes: Sequence[tuple[int, Callable[[Any], Integers]]], group: Integers, *values: Any
) -> Integers:
    """The cell of each record, from the cell of its group and the levels of its answers."""
    cell: Integers = np.array(table[group])
    for (step, code), value in zip(codes, values, strict=True):
        cell += step * code(value)
    return cell


def store_survey(survey: SurveyInMemory, folder: Path, engine: Engine) -> SurveyOnDisk:
    """Write a survey that is in memory to a folder, and return it as a survey on disk."""
    # by cell, stratum and cluster, and not by weight
    each = np.ones(len(survey), np.int64)
    groups, place = replace(survey, weight_public=False).grouped(each)
    inside = {name: survey.cell_index([name]) for name in stored_domains(survey.schema)}
    groups, place = split_groups(groups, place, inside, each)
    groups, place = split_by(groups, place, [survey.frame[name] for name in unpublished(survey.design, groups)], each)
    weights = survey.replicates.weights if survey.replicates else ()
    numbers = dict.fromkeys([survey.outcome, *survey.variables, survey.design.weight, *weights])
    columns = create_columns(folder, tuple(numbers), len(survey))
    for name, column in columns.items():
        column.write(0, survey.values(name))
    group = Stored.create(folder / "group", np.int32, len(survey))
    group.write(0, place)
    where: dict[str, Any] = {"engine": engine, "scratch": folder, "other": survey.other}
    where |= {"replicates": survey.replicates, "variables": survey.variables}
    return SurveyOnDisk(**_roles_of(survey), **where, columns=columns, group=group, public_part=groups)


def split_groups(
    groups: Groups, place: Integers, inside: Mapping[str, Integers], count: Integers
) -> tuple[Groups, Integers]:
    """The groups split by domains that do not follow from public columns, and the new group of every record.

    `place` is the group of every record, `count` the number of records that it stands for, and `inside` has the
    position of its level in the column of each domain.
    """
    for name, level in inside.items():
        keys, place = np.unique(place * len(LEVELS) + level, return_inverse=True)
        old, told = keys // len(LEVELS), pl.Series(keys % len(LEVELS) == INSIDE)
        frame = groups.frame[old].with_columns(told_inside(name, told))
        groups = Groups(frame, sums_of_groups(place, len(keys), count), groups.cell[old])
    return groups, place


def unpublished(design: Design, groups: Groups) -> list[str]:
    """The columns of a design that groups do not have: those of later stages, and corrections that are not public."""
    stages: tuple[Design | StageSpec, ...] = (design, *design.later)
    names = dict.fromkeys(name for stage in stages for name in (stage.strata, stage.cluster, stage.fpc) if name)
    return [name for name in names if name not in groups.frame.columns]


def split_by(groups: Groups, place: Integers, columns: Sequence[pl.Series], count: Integers) -> tuple[Groups, Integers]:
    """The groups split by the values of columns, which are added to them, and the new group of every record."""
    for column in columns:
        values, value = np.unique(column.to_physical().to_numpy(), return_inverse=True)
        keys, first, place = np.unique(
            place.astype(np.int64) * len(values) + value, return_index=True, return_inverse=True
        )
        old = keys // len(values)
        frame = groups.frame[old].with_columns(column[first])
        groups = Groups(frame, sums_of_groups(place, len(keys), count), groups.cell[old])
    return groups, place


def create_columns(folder: Path, names: Sequence[str], length: int) -> dict[str, Stored]:
    """Empty columns of numbers in a folder, by name."""
    return {name: Stored.create(folder / f"column-{place}", np.float64, length) for place, name in enumerate(names)}


def _roles_of(survey: Survey) -> dict[str, Any]:
    """What a survey has in common with the survey that it is made from."""
    names = "outcome", "design", "public", "transform", "population_total", "codes", "weight_public"
    return {name: getattr(survey, name) for name in (*names, "domain", "domains", "calibration")}


def survey_of_columns(
    like: Survey,
    groups: Groups,
    columns: Callable[[slice], tuple[Any, ...]],
    weights: tuple[str, ...],
    name: str,
) -> Survey:
    """A survey with the roles of another, from groups and a function that gives blocks of (group, outcome, weights).

    It is on disk if the other survey has a folder for that, else in memory. Its weight is the first of those named.
    """
    names, records = (like.outcome, *weights), int(groups.count.sum())
    design = like.design
    like = replace(
        like,
        design=Design(weights[0], design.strata, design.cluster, design.released_fpc, fpc_public=design.fpc_public),
    )
    if like.scratch is None:
        blocks = map_blocks(like.engine, columns, records)
        group, *numbers = (np.concatenate(column) for column in zip(*blocks, strict=True))
        frame = groups.frame[group].with_columns(map(pl.Series, names, numbers))
        return SurveyInMemory(**_roles_of(like), engine=like.engine, frame=frame)
    stored = [Stored.create(like.scratch / f"{name}-{place}", np.float64, records) for place in range(len(names))]
    group_column = Stored.create(like.scratch / f"{name}-group", np.int32, records)
    map_blocks(like.engine, _Write((group_column, *stored), columns), records)
    made, where = dict(zip(names, stored, strict=True)), dict[str, Any](engine=like.engine, scratch=like.scratch)
    return SurveyOnDisk(**_roles_of(like), **where, columns=made, group=group_column, public_part=groups)


@dataclass(frozen=True)
class _Write:
    """Writes a block's columns to their files."""

    columns: tuple[Stored, ...]
    function: Callable[[slice], tuple[Any, ...]]

    def __call__(self, piece: slice) -> None:
        for column, values in zip(self.columns, self.function(piece), strict=True):
            column.write(piece.start, values)
