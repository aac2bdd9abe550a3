"""Tables: counts, means, quantiles and other statistics for every cell, margin and the total, as one tidy frame.

The same functions serve confidential and synthetic surveys. A table by k columns has a row for each combination of
their levels, with "All" for a margin; the total is "All" throughout. All counts, means, totals and proportions of a
survey's tables come from one pass. Each threshold of a share takes one more, and each quantile takes several.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError, require_type
from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.statistics import Quantile, Share, Statistic, parse_statistic
from svysynth.core.streams import Streams
from svysynth.estimation.calibration import Calibration
from svysynth.estimation.intervals import grade, half_length
from svysynth.estimation.moments import Moments
from svysynth.estimation.passes import Passes, Variance
from svysynth.estimation.replicates import Replicates, make_replicates
from svysynth.estimation.statistics import estimate, sum_domains
from svysynth.estimation.utility import has_error
from svysynth.estimation.woodruff import compare, quantiles_of_rows
from svysynth.survey.columns import ALL, HasLevels
from svysynth.survey.domains import INSIDE, domain_column
from svysynth.survey.survey import Survey

MOST_ROWS = 1_000_000
MOST_ROWS_OF_PROPORTIONS = 10_000
"""A proportion depends on every record, not only on those of its cell: its cost grows with the square of the rows. A
quantile is searched for in every row."""
MOST_CELLS = 2**40


def tabulate(
    survey: Survey,
    by: str | Sequence[str],
    statistics: str | Sequence[str] = ("count", "mean"),
    estimation: EstimationSpec | None = None,
    replicates: Replicates | None = None,
    domain: str | None = None,
) -> pl.DataFrame:
    """One table of a survey, with all its margins, as a tidy frame.

    `domain` restricts it to a part of the population; the survey has to be read with it (`domains`).

    Columns: table, statistic, the `by` columns, estimate, se, df, lower, upper, cv, n, reliability.
    """
    return tabulate_all(survey, [make_table(by, statistics, domain)], estimation, replicates)


def make_table(by: str | Sequence[str], statistics: str | Sequence[str], domain: str | None = None) -> TableSpec:
    """A table as asked for in Python: a single name stands for a list of one."""
    settings: dict[str, Any] = {"by": by, "statistics": statistics, "domain": domain}
    return TableSpec(**settings)


def tabulate_all(
    survey: Survey,
    tables: Sequence[TableSpec],
    estimation: EstimationSpec | None = None,
    replicates: Replicates | None = None,
    *,
    scaled: bool = False,
) -> pl.DataFrame:
    """Several tables of a survey from one pass over it; a column that a table does not use is "All" there.

    Variances come from `replicates` where they are given, else by the method of `estimation.variance`, whose
    replicates are then drawn afresh. `scaled` says that the weights were scaled to a known total, as
    those of synthetic surveys are: counts and totals then have the variance of ratios to it.
    """
    require_type(survey, Survey, "the survey", "make it with svysynth.read_survey")
    estimation = estimation or EstimationSpec()
    require_type(estimation, EstimationSpec, "estimation", "make it with svysynth.EstimationSpec")
    columns = tuple(dict.fromkeys(column for table in tables for column in table.by))
    require_public(survey, columns)
    known = {*survey.schema, *survey.domains}
    own = [domain_columns(table, survey.domain, known) for table in tables]
    calibrated = survey.calibration.columns if survey.calibration else ()
    crossed = tuple(dict.fromkeys((*columns, *(column for found in own for column in found), *calibrated)))
    refuse_lonely(survey, estimation)
    if replicates is None and survey.replicates is None and estimation.variance != "taylor":
        replicates = make_replicates(survey.index, estimation, Streams.from_system())
    sizes = [len(survey.levels(column)) for column in crossed]
    passes = Passes(survey, crossed, crossing(sizes), estimation, replicates, scaled)
    given = passes.moments(survey.outcome_values)
    levels = np.array(np.unravel_index(given.cell, sizes or [1])).T[:, : len(sizes)]
    calibration = None
    if survey.calibration is not None:
        calibration = Calibration.of(survey, survey.calibration, crossed, levels, given)
    moments, variance = passes.calibrated(survey.outcome_values, given, calibration)
    outcomes = cache(lambda: passes.outcomes(given, calibration))
    frames, known_df = [], dict[tuple[str, ...], int]()
    for table, inside in zip(tables, own, strict=True):
        layout = Layout.of(table, columns, survey, calibration is not None)
        positions = [crossed.index(column) for column in inside]
        in_base = (levels[:, positions] == INSIDE).all(axis=1) if inside else None
        if in_base is not None and not in_base.any():
            refuse_apart(table, inside, survey)
        if tuple(inside) not in known_df:
            known_df[tuple(inside)] = variance.degrees_of_freedom(in_base)
        domains, df = list(layout.domains(levels)), known_df[tuple(inside)]
        title = title_of(table, survey.domain)
        labels = layout.label_columns(columns)
        for name in table.statistics:
            interval = None
            match parse_statistic(name):
                case Quantile(share):
                    found = quantiles_of_rows(share, moments, domains, layout.rows, in_base, df, outcomes(), estimation)
                    value, squared_error, count = found.value, found.se**2, found.records
                    interval = found.lower, found.upper
                case Share() as share:
                    counted = passes.of(calibration, compare(share, survey.outcome_values))
                    value, squared_error, count = _estimates("mean", domains, layout.rows, *counted, in_base)
                case statistic:
                    value, squared_error, count = _estimates(
                        statistic, domains, layout.rows, moments, variance, in_base
                    )
            frames.append(finish_table(title, name, labels, value, squared_error, count, df, estimation, interval))
    return pl.concat(frames)


def refuse_lonely(survey: Survey, estimation: EstimationSpec) -> None:
    """Stop if a stratum has one unit and the spec does not say what to do; replicate weights of the file know."""
    if survey.replicates is None:
        survey.index.refuse_lonely(estimation.lonely)


def title_of(table: TableSpec, domain: str | None) -> str:
    """The title of a table, with the domain to which all tables are restricted."""
    return f"{table.title} ({domain})" if domain else table.title


def refuse_unmet_totals(survey: Survey) -> None:
    """Stop if the weights cannot be calibrated to the totals of the spec."""
    if survey.calibration is not None:
        tabulate_all(survey, [TableSpec(by=(), statistics=("count",))], EstimationSpec(lonely="certainty"))


def domain_columns(table: TableSpec, domain: str | None, known: Collection[str]) -> list[str]:
    """The columns of the domains that a table is restricted to: that of all tables and its own."""
    found = [domain_column(condition) for condition in (domain, table.domain) if condition]
    if not set(found) <= set(known):
        problem = "has a domain that was not read with the survey"
        raise SurveyError("spec", f"table '{table.title}'", problem, "name it in survey.domains")
    return list(dict.fromkeys(found))


def refuse_apart(table: TableSpec, domains: Sequence[str], survey: Survey) -> None:
    """Stop at a table without a record inside, unless public levels say that there could be one."""
    known = [survey.domains[domain] for domain in domains if domain in survey.domains]
    if len(known) < len(domains) or not known[0].meets(known[-1]):
        problem = "has no record that is inside both its domain and that of the survey"
        raise SurveyError("data", f"table '{table.title}'", problem, "loosen one of them")


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
            row = np.zeros(len(levels), np.int64)
            for position, labels, keep in zip(self.positions, self.labels, kept, strict=True):
                row = row * len(labels) + (levels[:, position] + 1 if keep else 0)
            yield row

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


def _estimates(
    statistic: Statistic,
    domains: Sequence[Integers],
    rows: int,
    moments: Moments,
    variance: Variance,
    in_base: Booleans | None,
) -> tuple[Floats, Floats, Integers]:
    """Estimate, variance and number of records for every row; zeros, or NaN for a mean, where there are no records.

    Groups that are not in the base have a row of their own, which is left out in the end.
    """
    count = np.zeros(rows + 1, np.int64)
    empty = in_base is not None and not in_base.any()
    value = np.full(rows + 1, np.nan if statistic == "mean" or (empty and statistic == "proportion") else 0.0)
    squared_error = value.copy()
    if empty:
        return value[:rows], squared_error[:rows], count[:rows]
    for row in domains:
        filled, domain = np.unique(row if in_base is None else np.where(in_base, row, rows), return_inverse=True)
        sums = sum_domains(moments, domain, len(filled), in_base)
        count[filled] = sums.count
        value[filled] = estimate(statistic, sums.weight, sums.outcome, sums.base)
        squared_error[filled] = variance(statistic, domain, sums)
    return value[:rows], squared_error[:rows], count[:rows]


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


def require_public(survey: Survey, columns: Sequence[str]) -> None:
    """Stop if a column is not public."""
    for column in columns:
        if column not in survey.public:
            raise SurveyError("spec", f"column '{column}'", "is not public", "name it in survey.public, or drop it")


def crossing(sizes: Sequence[int]) -> int:
    """How many cells columns of these sizes have when crossed; too many are refused."""
    cells = 1
    for size in sizes:
        cells *= size
    if cells > MOST_CELLS:
        raise SurveyError("spec", "tables", "cross too many levels", "use fewer columns in 'by'")
    return cells
