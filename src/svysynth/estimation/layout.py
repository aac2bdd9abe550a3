"""The layout for readers: each row of a table once, with the estimates of its statistics side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from svysynth.core.notebook import Html, html_table
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.spec.statistics import ANSWERED, Quantile, parse_statistic
from svysynth.survey.columns import ALL

MARKS = {"reliable": "", "caution": "*", "unreliable": "**"}
MEASURES = ("estimate", "se", "se_sampling", "se_privacy", "lower", "upper", "cv", "reliability")
"""What a table may have for a statistic, in the order of reading."""
ON_GAPS = (
    "Tables “of those who answered” leave missing answers out: n is the number of records with an answer, “answered” "
    "their share of the population of each row."
)
NO_ESTIMATE = "A row with a count of 0 has no mean, share, ratio or quantile."
NO_INTERVAL = (
    "A quantile has neither a standard error nor an interval if the interval for the share below it reaches below 0 or "
    "above 1, or if no record of the row is above it; in tables from several synthetic files, if this is so in one of "
    "the files."
)
NO_ERROR = "Other figures have no standard error in a row that has no weight in one of the replicates."
NOTHING = "–"
"""Shown where there is no number."""


@outlined
@dataclass(frozen=True)
class Estimate:
    """One statistic of one cell; None where there is none."""

    estimate: float | None
    se: float | None
    lower: float | None
    upper: float | None
    cv: float | None
    reliability: str | None
    se_sampling: float | None = None
    se_privacy: float | None = None
    """The two parts of the standard error, if the mechanism separates them."""


@outlined
@dataclass(frozen=True)
class WideRow:
    """A cell of a table: its labels, its number of records, and an estimate for each statistic."""

    labels: tuple[str, ...]
    n: int
    estimates: tuple[Estimate, ...]

    @property
    def is_margin(self) -> bool:
        """Whether the row is a margin or the total, which adds up other rows."""
        return ALL in self.labels


@outlined
@dataclass(frozen=True)
class WideTable:
    """One table in reading layout."""

    title: str
    by: tuple[str, ...]
    statistics: tuple[str, ...]
    rows: tuple[WideRow, ...]
    measures: tuple[str, ...]
    """What the table has for each statistic."""

    @property
    def has_parts(self) -> bool:
        """Whether standard errors are split into parts for sampling and for privacy."""
        return "se_privacy" in self.measures

    def spans(self, rows: int) -> list[tuple[int, ...]]:
        """For each of the first rows, how many rows each label spans; 0 where a label above spans the row.

        >>> row = lambda *labels: WideRow(labels, 1, ())
        >>> WideTable("", ("a", "b"), (), (row("x", "y"), row("x", "z"), row("u", "z")), ()).spans(3)
        [(2, 1), (0, 1), (1, 1)]
        """
        found = [[1] * len(self.by) for _ in range(rows)]
        for column in range(len(self.by) - 1):
            first = 0
            for row in range(1, rows):
                if self.rows[row].labels[: column + 1] == self.rows[first].labels[: column + 1]:
                    found[first][column] += 1
                    found[row][column] = 0
                else:
                    first = row
        return [tuple(spans) for spans in found]

    def decimals(self, position: int) -> int:
        """How many decimals the statistic at a position is shown with."""
        return decimals([row.estimates[position].estimate for row in self.rows], self.statistics[position])

    @property
    def header(self) -> list[str]:
        """The names of the columns that `printed` gives."""
        return [*self.by, "n", *(name for statistic in self.statistics for name in (statistic, "se"))]

    def printed(self) -> list[list[str]]:
        """Labels, number of records, and each estimate with its mark and its standard error, as text."""
        places = [self.decimals(position) for position in range(len(self.statistics))]
        marks = [[MARKS.get(cell.reliability or "", "") for cell in row.estimates] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*marks, strict=True)]
        found = []
        for row, own in zip(self.rows, marks, strict=True):
            cells = [*row.labels, f"{row.n:,}"]
            for cell, mark, decimals, width in zip(row.estimates, own, places, widths, strict=True):
                cells += [_number(cell.estimate, decimals) + mark.ljust(width), _number(cell.se, decimals)]
            found.append(cells)
        return found


def html_tables(tidy: pl.DataFrame, labels: Mapping[str, str]) -> list[Html]:
    """All tables of a tidy frame, as a notebook shows them."""
    wide = wide_tables(tidy, labels)
    return [html_table(table.title, table.header, table.printed(), len(table.by)) for table in wide]


def legend(estimation: EstimationSpec, tidy: pl.DataFrame) -> str:
    """What the marks of printed tables mean."""
    caution, unreliable = estimation.cv_thresholds
    nothing = f" {NOTHING} not available." if tidy["se"].has_nulls() or tidy["estimate"].has_nulls() else ""
    return f"se: standard error. * coefficient of variation above {caution:.0%}, ** above {unreliable:.0%}.{nothing}"


def notes_on(tidy: pl.DataFrame) -> list[str]:
    """What readers need to know besides the marks: where missing answers were left out, and why figures are missing."""
    names = tidy["statistic"].unique().to_list()
    quantile = pl.col("statistic").is_in([name for name in names if isinstance(parse_statistic(name), Quantile)])
    without = tidy.filter(pl.col("se").is_null(), pl.col("estimate").is_not_null())
    said = {
        ON_GAPS: ANSWERED in names,
        NO_ESTIMATE: tidy["estimate"].has_nulls(),
        NO_INTERVAL: not without.filter(quantile).is_empty(),
        NO_ERROR: not without.filter(~quantile).is_empty(),
    }
    return [note for note, needed in said.items() if needed]


def wide_tables(tidy: pl.DataFrame, labels: Mapping[str, str]) -> list[WideTable]:
    """Turn a tidy frame into one wide table for each of its tables; columns that have a label are shown by it."""
    return [_widen(str(title[0]), rows, labels) for title, rows in tidy.group_by("table", maintain_order=True)]


def _widen(title: str, tidy: pl.DataFrame, names: Mapping[str, str]) -> WideTable:
    columns = tidy.columns[2 : tidy.columns.index("estimate")]
    by = [column for column in columns if (tidy[column] != ALL).any()]
    statistics = tidy["statistic"].unique(maintain_order=True).to_list()
    parts = [tidy.filter(statistic=statistic) for statistic in statistics]
    measures = tuple(measure for measure in MEASURES if measure in tidy.columns)
    values = [part.select(measures).iter_rows(named=True) for part in parts]
    rows = zip(parts[0].select(by).rows() if by else [()] * parts[0].height, parts[0]["n"], *values, strict=True)
    shown = tuple(names.get(column, column) for column in by)
    return WideTable(
        _titled(title, by, shown, names),
        shown,
        tuple(statistics),
        tuple(WideRow(labels, n, tuple(Estimate(**each) for each in estimates)) for labels, n, *estimates in rows),
        measures,
    )


def _titled(title: str, by: Sequence[str], shown: Sequence[str], names: Mapping[str, str]) -> str:
    """A title that is made from the names of columns, made from their labels instead.

    >>> _titled("sex by age (sex = 2)", ["sex", "age"], ["Sex", "Age in years"], {})
    'Sex by Age in years (sex = 2)'
    >>> _titled("pay", ["sex"], ["Sex"], {"sex": "Sex"})
    'pay'
    >>> _titled("hours: sex (of those who answered)", ["sex"], ["Sex"], {"hours": "Hours a week"})
    'Hours a week: Sex (of those who answered)'
    >>> _titled("sex by job (within sex)", ["sex", "job"], ["Sex", "job"], {"sex": "Sex"})
    'Sex by job (within Sex)'
    """
    of, colon, rest = title.partition(": ")
    if colon and (of in names or of in by):  # a table of a category has it as a column too
        pairs = [(column, label) for column, label in zip(by, shown, strict=True) if column != of]
        own, labels = [column for column, _ in pairs], [label for _, label in pairs]
        return f"{names.get(of, of)}: {_titled(rest, own, labels, names)}"
    made = " by ".join(by)
    if not made or not f"{title} ".startswith(f"{made} "):
        return title
    return " by ".join(shown) + re.sub(
        r"(?<= \(within )[^()]+(?=\))",
        lambda within: ", ".join(names.get(column, column) for column in within[0].split(", ")),
        title.removeprefix(made),
    )


def decimals(values: Sequence[float | None], statistic: str) -> int:
    """How many decimals the values of a statistic are shown with."""
    if statistic in ("proportion", ANSWERED) or statistic.startswith("share("):
        return 4
    largest = max((abs(value) for value in values if value is not None), default=1000)
    if largest >= 1000:
        return 0
    return 1 if largest >= 100 else 3


def _number(value: float | None, places: int) -> str:
    return NOTHING if value is None else f"{value:,.{places}f}"


def figure(value: float | None, places: int = 0) -> str:
    """A number as tables show it.

    >>> figure(1234.567, 1), figure(-0.5, 2), figure(None)
    ('1,234.6', '−0.50', '–')
    """
    return NOTHING if value is None or value != value else f"{value:,.{places}f}".replace("-", "−")


def percent(value: float | None, places: int = 0) -> str:
    """A share as a percentage."""
    return NOTHING if value is None or value != value else f"{value:.{places}%}".replace("-", "−")
