"""Frames: the rows of a table with their labels, its title, and the tidy frame that estimates of its rows become."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.estimation.intervals import grade, half_length
from svysynth.estimation.utility import has_error
from svysynth.survey.columns import ALL, HasLevels
from svysynth.survey.domains import domain_column

MOST_ROWS = 1_000_000
MOST_ROWS_OF_PROPORTIONS = 10_000
"""A proportion depends on every record, not only on those of its cell: its cost grows with the square of the rows. A
quantile is searched for in every row."""
MOST_CELLS = 2**40


@dataclass(frozen=True, eq=False)
class Layout:
    """The rows of a table: position 0 of each column is "All", the others are its levels."""

    positions: tuple[int, ...]
    """Where the table's columns stand among all columns."""
    labels: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, table: TableSpec, columns: Sequence[str], survey: HasLevels, costly: bool = False) -> Layout:
        """The layout of a table; `columns` are those of all tables that are made together.

        `costly` says that all statistics depend on every record, as proportions do.
        """
        layout = cls(
            tuple(columns.index(column) for column in table.by),
            tuple((ALL, *survey.levels(column)) for column in table.by),
        )
        costly = costly or not {"count", "mean", "total"}.issuperset(table.statistics)
        most = MOST_ROWS_OF_PROPORTIONS if costly else MOST_ROWS
        if layout.rows > most:
            problem = f"would have {layout.rows:,} rows, and {most:,} is the most for its statistics"
            raise SurveyError("spec", f"table '{table.title}'", problem, "use fewer columns in 'by'")
        return layout

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return crossing([len(labels) for labels in self.labels])

    def domains(self, levels: Integers) -> Iterator[Integers]:
        """For each combination of kept columns, the row that each group belongs to."""
        for kept in itertools.product((False, True), repeat=len(self.positions)):
            yield self._row(levels, kept)

    def parts(self, levels: Integers, within: Collection[int]) -> tuple[list[tuple[Integers, Integers]], Integers]:
        """What `shares_within` needs, for the columns at some positions among all."""
        sizes = [len(labels) for labels in self.labels]
        own = [position in within for position in self.positions]
        codes = np.array(np.unravel_index(np.arange(self.rows), sizes or [1]))[: len(sizes)]
        base_of_row: Integers = np.zeros(self.rows, np.int64)
        for size, code, kept in zip(sizes, codes, own, strict=True):
            base_of_row = base_of_row * size + code * kept
        found: list[tuple[Integers, Integers]] = []
        for keep in itertools.product((False, True), repeat=len(sizes)):
            base = self._row(levels, [one and inside for one, inside in zip(keep, own, strict=True)])
            found.append((base, self._row(levels, keep) - base))
        return found, base_of_row

    def _row(self, levels: Integers, keep: Sequence[bool]) -> Integers:
        """The row that each group belongs to, with its levels in the kept columns."""
        row = np.zeros(len(levels), np.int64)
        for position, labels, kept in zip(self.positions, self.labels, keep, strict=True):
            row = row * len(labels) + (levels[:, position] + 1 if kept else 0)
        return row

    def label_columns(self, columns: Sequence[str]) -> dict[str, pl.Series]:
        """The label of every row in every column."""
        rows = np.unravel_index(np.arange(self.rows), [len(labels) for labels in self.labels] or [1])
        own = dict(zip(self.positions, range(len(self.labels)), strict=True))
        result = {}
        for position, column in enumerate(columns):
            if position in own:
                labels = np.array(self.labels[own[position]], dtype=object)
                result[column] = pl.Series(column, labels[rows[own[position]]], dtype=pl.String)
            else:
                result[column] = pl.Series(column, [ALL] * self.rows, dtype=pl.String)
        return result


def finish_table(
    title: str,
    statistic: str,
    labels: dict[str, pl.Series],
    value: Floats,
    variance: Floats,
    count: Integers,
    df: float | Floats,
    estimation: EstimationSpec,
    interval: tuple[Floats, Floats] | None = None,
) -> pl.DataFrame:
    """Add standard error, interval, coefficient of variation and its flag; `df` may differ from row to row.

    Without an `interval` it is symmetric about the estimate.
    """
    se = np.sqrt(variance)
    if statistic in ("count", "proportion"):  # one that the design fixes has no error, only rounding error
        se = np.where(has_error(value, se) | np.isnan(se), se, 0.0)
    half = half_length(se, df, estimation.confidence)
    lower, upper = interval or (value - half, value + half)
    with np.errstate(over="ignore"):
        cv = np.divide(se, np.abs(value), out=np.full(len(se), np.nan), where=value != 0)
    cv[np.isinf(cv)] = np.nan
    numbers = {
        "estimate": value,
        "se": se,
        "df": np.full(len(se), df),
        "lower": lower,
        "upper": upper,
    }
    return pl.DataFrame(
        {"table": [title] * len(value), "statistic": [statistic] * len(value)}
        | labels
        | numbers
        # a single record has no standard error of its own, whatever the formula gives
        | {"cv": cv, "n": count, "reliability": grade(cv, np.where(count > 1, df, 0).astype(float), estimation)},
        schema_overrides={"reliability": pl.String},
    ).with_columns(
        pl.col("estimate", "se", "lower", "upper", "cv").fill_nan(None),
        pl.when(pl.col("cv").is_not_nan()).then(pl.col("reliability")),
    )


def title_of(table: TableSpec, domain: str | None) -> str:
    """The title of a table, with the domain to which all tables are restricted."""
    return f"{table.title} ({domain})" if domain else table.title


def domain_columns(table: TableSpec, domain: str | None, known: Collection[str]) -> list[str]:
    """The columns of the domains that a table is restricted to: that of all tables and its own."""
    return columns_of_conditions((domain, table.domain), known, f"table '{table.title}'")


def columns_of_conditions(conditions: Sequence[str | None], known: Collection[str], place: str) -> list[str]:
    """The columns of the domains with these conditions; those that were not read with the survey are refused."""
    found = [domain_column(condition) for condition in conditions if condition]
    if not set(found) <= set(known):
        problem = "has a domain that was not read with the survey"
        raise SurveyError("spec", place, problem, "name it in survey.domains")
    return list(dict.fromkeys(found))


def crossing(sizes: Sequence[int]) -> int:
    """How many cells columns of these sizes have when crossed; too many are refused."""
    cells = 1
    for size in sizes:
        cells *= size
    if cells > MOST_CELLS:
        raise SurveyError("spec", "tables", "cross too many levels", "use fewer columns in 'by'")
    return cells
