"""The layout people read: a table's rows once, and estimate, standard error and flag of each statistic side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from svysynth.columns import ALL

MEASURES = ("se", "lower", "upper", "cv", "reliability")
MARKS = {"reliable": "", "caution": "*", "unreliable": "**"}


@dataclass(frozen=True)
class WideTable:
    """One table in reading layout."""

    title: str
    by: tuple[str, ...]
    statistics: tuple[str, ...]
    rows: pl.DataFrame
    """The `by` columns, n, and for each statistic s: s, s_se, s_lower, s_upper, s_cv, s_reliability."""


def wide_tables(tidy: pl.DataFrame) -> list[WideTable]:
    """Turn a tidy frame into one wide table for each of its tables."""
    return [_widen(str(title[0]), rows) for title, rows in tidy.group_by("table", maintain_order=True)]


def _widen(title: str, tidy: pl.DataFrame) -> WideTable:
    columns = tidy.columns[2 : tidy.columns.index("estimate")]
    by = [column for column in columns if (tidy[column] != ALL).any()]
    statistics = tidy["statistic"].unique(maintain_order=True).to_list()
    wide = tidy.filter(statistic=statistics[0]).select(*by, "n")
    for statistic in statistics:
        own = tidy.filter(statistic=statistic)
        wide = wide.with_columns(
            own["estimate"].alias(statistic),
            *(own[measure].alias(f"{statistic}_{measure}") for measure in MEASURES),
        )
    return WideTable(title, tuple(by), tuple(statistics), wide)


def is_margin(row: dict[str, Any], by: tuple[str, ...]) -> bool:
    """Whether a row adds up others."""
    return any(row[column] == ALL for column in by)


def decimals(values: pl.Series, statistic: str) -> int:
    """How many decimals a column of a statistic is shown with."""
    if statistic == "proportion":
        return 4
    largest = values.abs().max()
    if not isinstance(largest, float) or largest >= 1000:
        return 0
    return 1 if largest >= 100 else 3
