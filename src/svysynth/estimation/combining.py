"""Combine: the tables of m synthetic surveys into one, by the rules of partial synthesis (paper appendix).

q̄ is the mean of the m estimates, T = ū + b/m its variance, df = (m − 1)(1 + ū/(b/m))². With m = 1, T = ū and the normal
quantile; with b = 0, df = ∞. Estimates use the smoothed weights. FBP's outcomes are already those of the population:
means are unweighted within a finest cell, and every unit of a cell carries its share N̂/n of the cell's count.

ū estimates the sampling variance of the confidential estimate. Smoothed weights lack the spread about the model's mean,
which causes most of the sampling variance of a count, so ū comes from the unsmoothed weights. Both kinds of weights are
scaled to the population total, so counts and totals have the variance of ratios to it. FBP's means and totals need no
unsmoothed weights: within a cell the weights of their estimates do not vary. `standard_errors = "paper"` takes ū from
the weights of the estimates, as if these were not scaled.

Files from noisy sums are imputations of the confidential file, each from a posterior draw of its sums, with weights
that are not smoothed. Their rules are those of multiple imputation (Rubin): T = ū + (1 + 1/m)b, df = (m − 1)(1 +
ū/((1 + 1/m)b))². There b measures the uncertainty that the noise leaves, which does not vanish with many files.

Where the sample has clusters, ū has few degrees of freedom of its own, d: clusters less strata. With v the term in b of
T, df is then T²/(ū²/d + v²/(m − 1)) (Satterthwaite), of which the formulas above are the case of an infinite d. If
there are centre shifts (`centre_shifts.py`), k in number, T has their mean square s as a third term, and df is T²/(ū²/d
+ v²/(m − 1) + s²/k).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column, derive, look_up
from svysynth.core.engine import map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, group_sums
from svysynth.core.notebook import Html, card
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.requests import only_direct
from svysynth.core.streams import Streams
from svysynth.estimation.centre_shifts import CentreShifts
from svysynth.estimation.intervals import grade, half_length
from svysynth.estimation.replicates import make_replicates
from svysynth.estimation.tables import make_table, tabulate_all
from svysynth.survey.survey import Survey

SMOOTHED, UNSMOOTHED = "weight", "weight_unsmoothed"
Rules = Literal["weighted", "population", "imputed"]
"""How tables are made from synthetic files. `weighted` uses the files' weights and `population` the counts of cells,
both with the rules of partial synthesis; `imputed` uses the files' weights with the rules of multiple imputation."""
Standing = Literal["uncharged", "files", "post-processing"]
"""Where synthetic surveys come from, which decides who may see them."""
STANDINGS: dict[Standing, str] = {
    "uncharged": "not charged to a budget: confidential, for internal use",
    "files": "read from files; svysynth.verify tells whether a budget was charged for them",
    "post-processing": "made from the public files of a release: not charged to a budget, and covered by its guarantee",
}
ROUNDING = 1e-7
"""Estimates that differ by less than this fraction count as equal, such as those of the population total: all files are
scaled to it, and their weights are then rounded."""
FROM_SHIFTS = "variance_from_shifts"
"""The column of a file's tables with the variance that centre shifts add."""


class CombiningRule(NamedTuple):
    """How tables are made from a model's synthetic surveys: fields of `Synthetic`."""

    rules: Rules = "weighted"
    strata_in_variance: bool = True


@dataclass(frozen=True, eq=False)
class Synthetic:
    """m synthetic surveys, and the rules by which tables are made from them."""

    surveys: tuple[Survey, ...]
    rules: Rules = "weighted"
    """`weighted`: smoothed weights (FBS); `population`: means from cells' counts (FBP); `imputed`: noisy sums."""
    strata_in_variance: bool = True
    """False for the paper's FBP, whose variances treat the sample as one stratum."""
    standing: Standing = "uncharged"
    shifts: CentreShifts | None = None
    """With the rule `weighted`, the shifts whose mean square is added to variances; None or empty: nothing is added."""

    def __repr__(self) -> str:
        size = f" of {len(self.surveys[0]):,} records" if self.surveys else ""
        return f"{len(self.surveys)} synthetic surveys{size}: {STANDINGS[self.standing]}"

    def _repr_html_(self) -> Html:
        """Sizes, and whether anything was charged; no number computed from the surveys."""
        text = STANDINGS[self.standing]
        facts = {"surveys": f"{len(self.surveys):,}"}
        for first in self.surveys[:1]:
            facts |= {"records of each": f"{len(first):,}", "outcome": first.outcome, "by": ", ".join(first.public)}
        return card("Synthetic surveys", warning=f"{text[0].upper()}{text[1:]}.", facts=facts)

    def tabulate(
        self,
        by: str | Sequence[str],
        statistics: str | Sequence[str] = ("count", "mean"),
        estimation: EstimationSpec | None = None,
        domain: str | None = None,
    ) -> pl.DataFrame:
        """One table with all its margins, combined over the synthetic surveys.

        `domain` restricts it to a part of the population; it must be one of the `domains` of `read_synthetic`.
        """
        return self.tabulate_all([make_table(by, statistics, domain)], estimation)

    def tabulate_all(self, tables: Sequence[TableSpec], estimation: EstimationSpec | None = None) -> pl.DataFrame:
        """Several tables, combined over the synthetic surveys."""
        estimation = estimation or EstimationSpec()
        found = self.tables_by_file(tables, estimation)
        clusters = any(survey.design.cluster for survey in self.surveys)
        shifts = len(self.shifts) if self.shifts else 0
        return combine(found, estimation, imputed=self.rules == "imputed", clusters=clusters, shifts=shifts)

    def tables_by_file(self, tables: Sequence[TableSpec], estimation: EstimationSpec) -> list[pl.DataFrame]:
        """The same tables of each synthetic survey alone, for `combine`."""
        self._refuse_other_answers(tables)
        return [self._tables_of(survey, tables, estimation) for survey in self.surveys]

    def _refuse_other_answers(self, tables: Sequence[TableSpec]) -> None:
        for survey, table in itertools.product(self.surveys[:1], tables):
            if survey.variables:  # the files have further answers
                continue
            problem = only_direct(table, survey.outcome, (*survey.public, *table.by))
            if problem is not None:
                remedy = "make it from the survey, or from the files with other software"
                problem = f"cannot be made from synthetic files yet: {problem}"
                raise SurveyError("spec", f"table '{table.title}'", problem, remedy)

    def _tables_of(self, survey: Survey, tables: Sequence[TableSpec], estimation: EstimationSpec) -> pl.DataFrame:
        if not self.strata_in_variance:
            survey = replace(survey, design=replace(survey.design, strata=None))
        replicates = None
        if estimation.variance != "taylor":
            # A fixed seed, so that anyone can make the tables again: replicates of synthetic surveys protect nothing.
            replicates = make_replicates(survey.index, estimation, Streams.seeded(0))
        if self.rules == "imputed":
            return tabulate_all(survey, tables, estimation, replicates, scaled=not survey.weight_public)
        # public weights are kept as they are: neither smoothed nor scaled
        full = estimation.standard_errors == "full" and not survey.weight_public
        found = tabulate_all(survey, tables, estimation, replicates)
        if full:
            drawn = tabulate_all(with_unsmoothed_weights(survey), tables, estimation, replicates, scaled=True)
            found = found.with_columns(drawn["se"])
        if self.rules == "weighted":
            return self._with_shifts(found, survey, tables, estimation)
        by_cell = tabulate_all(with_cell_weights(survey), tables, estimation, replicates, scaled=full)
        outcome = ~pl.col("statistic").is_in(["count", "proportion"])
        return found.with_columns(
            pl.when(outcome).then(by_cell[column]).otherwise(pl.col(column)).alias(column)
            for column in ("estimate", "se")
        )

    def _with_shifts(
        self, found: pl.DataFrame, survey: Survey, tables: Sequence[TableSpec], estimation: EstimationSpec
    ) -> pl.DataFrame:
        """The tables of a file with the variance that centre shifts add; the paper's standard errors have none."""
        if not self.shifts or estimation.standard_errors == "paper":
            return found
        added = self.shifts.added_variance(survey, tables, estimation, found["estimate"].to_numpy())
        return found.with_columns(pl.Series(FROM_SHIFTS, added))


def with_unsmoothed_weights(survey: Survey) -> Survey:
    """The same survey with the weights as the model drew them."""
    if UNSMOOTHED not in survey.schema:
        raise SurveyError(
            "data",
            f"column '{UNSMOOTHED}'",
            "is not in a synthetic survey, and standard errors need it",
            "read the files with svysynth.read_synthetic, or set estimation.standard_errors to 'paper'",
        )
    return replace(survey, design=replace(survey.design, weight=UNSMOOTHED))


def with_cell_weights(survey: Survey) -> Survey:
    """The same survey with every unit of a finest cell carrying N̂_cell/n_cell."""
    cells, cell = survey.present_cells(survey.public)
    sums = map_blocks(survey.engine, _CellSums(cell, survey.weights, len(cells)), len(survey))
    weight, count = np.sum(sums, axis=0)
    return survey.with_weights(derive(partial(look_up, table=weight / count), cell))


@outlined
@dataclass(frozen=True)
class _CellSums:
    """Σw and the number of records in every cell of a block."""

    cell: Column
    weight: Column
    cells: int

    def __call__(self, piece: slice) -> Floats:
        cell = self.cell[piece]
        count = np.bincount(cell, minlength=self.cells)
        return np.stack([group_sums(cell, self.cells, self.weight[piece]), count.astype(float)])


@outlined
class Combined(NamedTuple):
    """Estimates over m data sets, with standard error, degrees of freedom and interval."""

    estimate: Floats
    se: Floats
    df: Floats
    lower: Floats
    upper: Floats


def combine_estimates(
    estimates: Floats,
    variances: Floats,
    confidence: float,
    *,
    imputed: bool = False,
    design_df: Floats | float = np.inf,
    shifted: Floats | None = None,
    shifts: int = 0,
) -> Combined:
    """The rules of partial synthesis, or of multiple imputation; the first axis is the data set.

    `design_df` are the degrees of freedom of each ū, and `shifted` the mean squares of this number of centre shifts.
    """
    m = len(estimates)
    value, within = estimates.mean(axis=0), variances.mean(axis=0)
    negligible = (ROUNDING * np.nan_to_num(value)) ** 2
    share = 1 + 1 / m if imputed else 1 / m
    between = share * estimates.var(axis=0, ddof=1) if m > 1 else np.zeros_like(within)
    between[between < negligible] = 0
    se = np.sqrt(within + between)
    with np.errstate(divide="ignore", invalid="ignore"):
        df = np.where(between > 0, (m - 1) * (1 + within / between) ** 2, np.inf)
        own = np.where(within > 0, design_df * (1 + between / within) ** 2, np.inf)
        df = np.where(np.isfinite(own), 1 / (1 / df + 1 / own), df)
        if shifted is not None:
            added = shifted.mean(axis=0)
            added = np.where(added < negligible, 0.0, added)
            df = np.where(added > 0, (se**2 + added) ** 2 / (se**4 / df + added**2 / shifts), df)
            se = np.sqrt(se**2 + added)
    half = half_length(se, df, confidence)
    return Combined(value, se, df, value - half, value + half)


def combine(
    tables: Sequence[pl.DataFrame],
    estimation: EstimationSpec,
    *,
    imputed: bool = False,
    clusters: bool = False,
    shifts: int = 0,
) -> pl.DataFrame:
    """Tidy tables of the m synthetic surveys into one tidy table, by the rules of partial synthesis or imputation.

    With clusters, standard errors have the degrees of freedom of the tables. Variances from this number of centre
    `shifts` are added where the tables have them.
    """
    estimates = np.stack([table["estimate"].to_numpy() for table in tables])
    variances = np.stack([table["se"].to_numpy() for table in tables]) ** 2
    design_df = tables[0]["df"].to_numpy() if clusters else np.inf
    shifted = None
    if FROM_SHIFTS in tables[0].columns:
        shifted = np.stack([table[FROM_SHIFTS].to_numpy() for table in tables])
    found = combine_estimates(
        estimates,
        variances,
        estimation.confidence,
        imputed=imputed,
        design_df=design_df,
        shifted=shifted,
        shifts=shifts,
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        cv = found.se / np.abs(found.estimate)
    return (
        tables[0]
        .drop(FROM_SHIFTS, strict=False)
        .with_columns(
            *(pl.Series(name, column) for name, column in found._asdict().items()),
            pl.Series("cv", cv),
            pl.Series("reliability", grade(cv, found.df, estimation), dtype=pl.String),
        )
        .with_columns(
            pl.col("estimate", "se", "df", "lower", "upper").fill_nan(None),
            pl.when(pl.col("cv").is_finite()).then(pl.col("cv")),
            pl.when(pl.col("cv").is_finite()).then(pl.col("reliability")),
        )
    )
