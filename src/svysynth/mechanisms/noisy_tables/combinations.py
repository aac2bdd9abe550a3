"""Combinations: the combinations of columns in tables and their margins, with noisy sums that are made to add up.

Each combination of kept columns is a level, and its rows are unions of the finest cells that have records. Some levels
are measured with noise; `measure` is the only function here that looks at confidential values. Then the values of the
finest cells that fit the measured levels best are found (`consistency.py`), and every level, measured or not, is added
up from these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from svysynth.core.grouping import Booleans, Floats, Integers, group_ids, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import Lonely, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.estimation.frames import crossing, domain_columns
from svysynth.mechanisms.noise import RESOLUTION, SUMS, Group, Level, Noise, Use, cell_sums
from svysynth.mechanisms.noisy_tables.consistency import consistent, hierarchy
from svysynth.survey.design import EXHAUSTED
from svysynth.survey.domains import INSIDE
from svysynth.survey.survey import Survey

SWEEPS = 100
SAME = 1e-12
"""Raking stops after so many sweeps, or when no cell changes by more than this fraction of the largest."""

Noisy = Mapping[tuple[Group, Level], Floats]
"""The measured sums of each group and level: sums × rows."""


@outlined
@dataclass(frozen=True, eq=False)
class Grid:
    """The finest cells that have records, and the rows of every level as unions of them."""

    columns: tuple[str, ...]
    """The columns of tables, and after them those of their domains."""
    domains: tuple[tuple[str, ...], ...]
    """The columns of the domains of each table, which all its levels have."""
    cell: Integers
    """The finest cell of each record."""
    codes: Integers
    """The code of each column, for each finest cell."""
    size: Integers
    """The number of records of each finest cell."""
    row: Mapping[Level, Integers]
    """For each level, the row to which each finest cell belongs."""
    rows: Mapping[Level, int]
    """For each level, the number of rows with records."""

    @classmethod
    def of(cls, survey: Survey, columns: tuple[str, ...], tables: Sequence[TableSpec]) -> Grid:
        """The grid of tables by `columns`, with the columns of their domains."""
        known = {*survey.schema, *survey.domains}
        domains = tuple(tuple(domain_columns(table, survey.domain, known)) for table in tables)
        columns = (*columns, *dict.fromkeys(column for own in domains for column in own))
        sizes = [len(survey.levels(column)) for column in columns]
        keys, cell = group_ids(survey.cell_index(columns), crossing(sizes))
        codes = np.array(np.unravel_index(keys, sizes or [1])).T[:, : len(sizes)]
        row: dict[Level, Integers] = {}
        pairs = zip(tables, domains, strict=True)
        levels = (level for table, own in pairs for level in levels_of(table.by, columns, own))
        for level in dict.fromkeys([(), *levels]):
            kept = [columns.index(column) for column in level]
            code = np.zeros(len(keys), np.int64)
            for position in kept:
                code = code * sizes[position] + codes[:, position]
            row[level] = group_ids(code, crossing([sizes[position] for position in kept]))[1]
        rows = {level: int(number.max()) + 1 for level, number in row.items()}
        return cls(columns, domains, cell, codes, np.bincount(cell, minlength=len(keys)), row, rows)

    def inside(self, number: int) -> Booleans:
        """Which finest cells are inside the domains of a table."""
        chosen = [self.columns.index(column) for column in self.domains[number]]
        return np.asarray((self.codes[:, chosen] == INSIDE).all(axis=1))

    def base(self, level: Level) -> Level:
        """The level whose rows are the bases of proportions: the whole file, or what is inside and outside domains."""
        every = {column for own in self.domains for column in own}
        return tuple(column for column in level if column in every)

    def add(self, level: Level, of_cells: Floats | Integers) -> Floats:
        """Sum over the finest cells of each row; leading axes are kept."""
        add = partial(group_sums, self.row[level], self.rows[level])
        return np.asarray(np.apply_along_axis(add, -1, of_cells), np.float64)

    def cells(self, level: Level) -> Floats:
        """The number of finest cells of each row."""
        return self.add(level, np.ones(len(self.size)))

    def owner(self, finer: Level, level: Level) -> Integers:
        """For each row of a finer level, the row of this level that contains it."""
        owner = np.empty(self.rows[finer], np.int64)
        owner[self.row[finer]] = self.row[level]
        return owner

    def matrix(self, levels: Iterable[Level]) -> Any:
        """The rows of several levels, one after another, as sums of finest cells."""
        start = np.cumsum([0, *(self.rows[level] for level in levels)])
        return hierarchy([self.row[level] + first for level, first in zip(levels, start, strict=False)])


def levels_of(by: Sequence[str], columns: Sequence[str], domains: Sequence[str] = ()) -> list[Level]:
    """The combinations of kept columns in the order of a table's layout, the total first; all have its domains."""
    kept = ({*itertools.compress(by, keep), *domains} for keep in itertools.product((False, True), repeat=len(by)))
    return [tuple(column for column in columns if column in own) for own in kept]


@outlined
@dataclass(frozen=True, eq=False)
class LevelSums:
    """Noisy sums of a level's rows: S₀, S₁ and the sums of u², u²t, u²t²; zeros if no statistic needs the outcome."""

    points: Floats
    squares: Floats
    point_variance: Floats
    """The noise variance of S₀; S₁ has the same."""
    square_variance: Floats
    """The noise variance of each of the other sums."""


def measure(survey: Survey, grid: Grid, uses: Sequence[Use], bounds: BoundsSpec, noise: Noise) -> Noisy:
    """Measure the sums of every use with noise, in units of the largest contribution."""
    noisy = {}
    for group in SUMS:
        own = [use for use in uses if use.group == group]
        exact = cell_sums(group, survey, grid.cell, len(grid.size), bounds, own[0].with_outcome)
        for use in own:
            sums = np.zeros((len(exact), use.rows), np.int64)
            np.add.at(sums.T, grid.row[use.level], exact.T)
            values = noise(sums.ravel(), use).reshape(sums.shape) / RESOLUTION
            noisy[group, use.level] = np.zeros((len(SUMS[group]), use.rows))
            noisy[group, use.level][: len(values)] = values
    return noisy


def as_measured(uses: Sequence[Use], noisy: Noisy) -> dict[Level, LevelSums]:
    """The noisy sums of every measured level, not made to add up."""
    variance = {(use.group, use.level): np.full(use.rows, use.variance) for use in uses}
    return {
        level: LevelSums(
            noisy["points", level], noisy["variances", level], variance["points", level], variance["variances", level]
        )
        for level in dict.fromkeys(use.level for use in uses)
    }


def add_up(grid: Grid, uses: Sequence[Use], noisy: Noisy, least: float) -> dict[Level, LevelSums]:
    """Fit the finest cells by least squares and add up every level from them; no record counts less than `least`."""
    cells, variance = {}, {}
    for group in SUMS:
        own = [use for use in uses if use.group == group]
        cells[group], after = _least_squares(grid, own, [noisy[group, use.level] for use in own])
        variance[group] = {level: _noise_variance(grid, own, level, after) for level in grid.rows}
    cells["points"][0] = _at_least(grid, cells["points"][0], grid.size * np.float64(least))
    return {
        level: LevelSums(
            grid.add(level, cells["points"]),
            grid.add(level, cells["variances"]),
            variance["points"][level],
            variance["variances"][level],
        )
        for level in grid.rows
    }


def _least_squares(grid: Grid, uses: Sequence[Use], values: Sequence[Floats]) -> tuple[Floats, dict[Level, Floats]]:
    """The finest cells that fit the measured rows, for each sum, and the noise variance of the fitted rows."""
    if len(uses) == 1:
        return values[0][:, grid.row[uses[0].level]], {}
    matrix = grid.matrix([use.level for use in uses])
    variance = np.concatenate([np.full(use.rows, use.variance) for use in uses])
    fits = [consistent(matrix, value, variance) for value in np.concatenate(values, axis=1)]
    ends = np.cumsum([use.rows for use in uses])[:-1]
    after = np.split(fits[0].variance, ends)
    return np.array([fit.cells for fit in fits]), {use.level: part for use, part in zip(uses, after, strict=True)}


def _noise_variance(grid: Grid, uses: Sequence[Use], level: Level, after: Mapping[Level, Floats]) -> Floats:
    """The noise variance of a level's rows: that of least squares or that of adding up, whichever is smaller.

    Both are at least the true variance. In adding up from the measured levels, the variances of the finer rows within a
    row are added, and so are the precisions of independent measurements of the same row.
    """
    precision = np.zeros(grid.rows[level])
    for use in uses:
        if use.variance == 0:
            return precision
        if set(level) <= set(use.level):
            parts = np.bincount(grid.owner(use.level, level), minlength=len(precision))
            precision += 1 / (parts * use.variance)
    return np.minimum(1 / precision, after.get(level, np.inf))


def _at_least(grid: Grid, cells: Floats, least: Floats) -> Floats:
    """Finest cells no smaller than `least`, with unchanged margins wherever this is possible.

    Cutting off each cell would raise all margins, since noise is cut off on one side only. So the part above the least
    is raked to the margins, finer ones first and the total last.
    """
    if (cells >= least).all():
        return cells
    above = np.maximum(cells - least, 0)
    margins = sorted((level for level in grid.rows if level != grid.columns), key=len, reverse=True)
    targets = {level: np.maximum(grid.add(level, cells - least), 0) for level in margins}
    for _ in range(SWEEPS):
        before = above
        for level, target in targets.items():
            current = grid.add(level, above)
            factor = np.divide(target, current, out=np.zeros(len(target)), where=current > 0)
            above = above * factor[grid.row[level]]
        if np.abs(above - before).max() <= SAME * above.max():
            break
    return np.asarray(least + above)


# --- strata ---


@outlined
@dataclass(frozen=True, eq=False)
class Pieces:
    """The parts of a level's rows that lie in one stratum each. They are the rows of a finer level."""

    level: Level
    owner: Integers
    """The row that contains each piece."""
    size: Floats
    drawn: Floats
    """The number of records in the stratum of each piece."""
    units: Floats
    """The number of primary sampling units in the stratum of each piece."""
    scale: Floats
    centred: Floats
    """0 for a stratum with one unit, whose square then counts without centring; else 1."""

    def largest_scale(self, rows: int) -> Floats:
        """The largest scale among the pieces of each row."""
        largest = np.zeros(rows)
        np.maximum.at(largest, self.owner, self.scale)
        return largest


@outlined
@dataclass(frozen=True, eq=False)
class Strata:
    """The strata: the stratum of each finest cell, if the columns of the tables include the strata."""

    column: str | None
    of_cell: Integers | None
    drawn: Floats
    units: Floats
    scale: Floats
    centred: Floats
    whole_scale: float
    """The factor of the variance if the sample is treated as one stratum."""

    @classmethod
    def of(cls, survey: Survey, grid: Grid, lonely: Lonely) -> Strata:
        """The strata of a survey's finest cells."""
        index, column = survey.index, survey.design.strata
        of_cell = np.zeros(len(grid.size), np.int64)
        of_cell[grid.cell] = index.stratum
        unsampled = np.where(index.unsampled < EXHAUSTED, 0.0, index.unsampled)
        spread = np.where(index.lonely, float(lonely == "adjust"), index.psus / np.maximum(index.psus - 1, 1))
        total = int(index.psus.sum())
        whole = float(unsampled.max()) * total / max(total - 1, 1)
        is_known = column is None or column in grid.columns
        drawn, units = np.bincount(index.stratum, minlength=index.strata).astype(float), index.psus.astype(float)
        centred = np.where(index.lonely, 0.0, 1.0)
        return cls(column, of_cell if is_known else None, drawn, units, unsampled * spread, centred, whole)

    def finer(self, grid: Grid, level: Level) -> Level | None:
        """The level whose rows are the rows of this level, split by stratum; None if no table has it."""
        finer = tuple(column for column in grid.columns if column in level or column == self.column)
        return finer if self.of_cell is not None and finer in grid.rows else None

    def pieces(self, grid: Grid, level: Level, finer: Level | None) -> Pieces:
        """The parts of each row that are rows of the finer level; without such a level, each row, as in one stratum."""
        if finer is None or self.of_cell is None:
            rows = grid.rows[level]
            drawn, units = np.full(rows, self.drawn.sum()), np.full(rows, self.units.sum())
            size, scale = grid.add(level, grid.size), np.full(rows, self.whole_scale)
            return Pieces(level, np.arange(rows), size, drawn, units, scale, np.ones(rows))
        stratum = np.empty(grid.rows[finer], np.int64)
        stratum[grid.row[finer]] = self.of_cell
        owner, size = grid.owner(finer, level), grid.add(finer, grid.size)
        drawn, units = self.drawn[stratum], self.units[stratum]
        return Pieces(finer, owner, size, drawn, units, self.scale[stratum], self.centred[stratum])
