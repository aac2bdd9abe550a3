"""Regression: design-weighted linear and logistic models of a survey, as R's `svyglm` fits them.

`fit_survey` fits one survey, confidential or synthetic; `Regression` is what an analyst sees. Standard errors come from
linearisation, from replicates of the design or from replicate weights of the file. The degrees of freedom are those of
the design (in a domain, of its records), less the number of coefficients, plus one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.formula import Term
from svysynth.core.grouping import Floats
from svysynth.core.notebook import Html, card, html_table
from svysynth.core.regression_formula import PLACE, RegressionFormula, parse_regression
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.streams import Streams
from svysynth.estimation.asked import THOSE_WHO_ANSWERED
from svysynth.estimation.coefficients import fit
from svysynth.estimation.combining import STANDINGS, Standing
from svysynth.estimation.explained import Explained, Family
from svysynth.estimation.frames import columns_of_conditions
from svysynth.estimation.intervals import half_length
from svysynth.estimation.regression_replicates import ReplicateWeights, replicated_covariance
from svysynth.estimation.regression_variance import (
    CalibratedWeights,
    design_degrees_of_freedom,
    linearised_covariance,
)
from svysynth.estimation.regressors import is_number
from svysynth.estimation.replicates import Replicates, make_replicates
from svysynth.estimation.tables import refuse_lonely
from svysynth.survey.survey import Survey

CONFIDENTIAL = "computed from the confidential data, without protection: for internal use"
NO_ERRORS = "standard errors are missing: a coefficient has no estimate in some replicate, where a level has no weight"
NO_DEGREES = "intervals are missing: there are as many coefficients as degrees of freedom, or more"


@outlined
@dataclass(frozen=True, eq=False)
class Fitted:
    """The regression of one survey."""

    names: tuple[str, ...]
    terms: tuple[Term, ...]
    """The columns of each coefficient; none for the intercept."""
    values: Floats
    covariance: Floats
    df: float
    records: int
    unanswered: int
    """How many records of the domain are left out for a missing answer."""


@dataclass(frozen=True, eq=False)
class Regression:
    """Estimated coefficients, with standard errors and intervals, and what a reader has to know of them."""

    formula: str
    family: Family
    table: pl.DataFrame
    """A row for each coefficient: term, estimate, se, df, lower, upper. From a release also measured (yes or no), and
    because, a sentence."""
    covariance: Floats
    """The covariance matrix of the coefficients, in the order of the table."""
    records: int
    """How many records the regression is of, in each file."""
    files: int = 0
    """The number of synthetic files; 0 for the survey itself."""
    notes: tuple[str, ...] = ()
    standing: Standing | Literal["direct"] = "direct"
    domain: str | None = field(default=None, kw_only=True)

    @property
    def title(self) -> str:
        """What was fitted."""
        inside = f" ({self.domain})" if self.domain else ""
        return f"{self.family.capitalize()} regression: {self.formula}{inside}"

    @property
    def source(self) -> str:
        """What it was fitted to, and who may see it."""
        if self.standing == "direct":
            return CONFIDENTIAL
        return f"{self.files} synthetic files, {STANDINGS[self.standing]}"

    @property
    def shows_numbers(self) -> bool:
        """Whether its display has its numbers: not if they come from the confidential data, or were not charged."""
        return self.standing not in ("direct", "uncharged")

    def __repr__(self) -> str:
        head = f"{self.title}\n{self.records:,} records; {self.source}"
        if not self.shows_numbers:
            return f"{head}\n{len(self.table)} coefficients, in .table"
        header, rows = self.printed()
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in (header, *rows)
        ]
        return "\n".join([head, "", *lines, "", *self.notes])

    def _repr_html_(self) -> Html:
        """The table and the notes; for a confidential fit its size alone."""
        facts = {"records": f"{self.records:,}", "source": self.source}
        if not self.shows_numbers:
            facts |= {"coefficients": f"{len(self.table)}, in .table"}
            return card(self.title, warning="Confidential: its values are not shown.", facts=facts)
        table = html_table("Coefficients", *self.printed(), labels=1)
        return card(self.title, facts=facts, tables=[table], sentences=self.notes)

    def printed(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows of the table as text."""
        columns = [name for name in self.table.columns if name != "because"]
        rows = self.table.select(columns).rows(named=True)
        return columns, [[_printed(name, row) for name in columns] for row in rows]


def _printed(column: str, row: Mapping[str, Any]) -> str:
    """A cell of the table: numbers have as many decimals as three digits of their row's standard error need."""
    value = row[column]
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    if column == "df":
        return "∞" if np.isinf(value) else f"{value:,.0f}"
    size = row["se"] or abs(row["estimate"]) or 1.0
    return f"{value:,.{int(np.clip(2 - np.floor(np.log10(size)), 0, 10))}f}"


def parse_for(survey: Survey, formula: str, family: Family) -> RegressionFormula:
    """The parsed formula of a survey's regression; what the survey does not have is refused."""
    if family not in get_args(Family):
        known = " or ".join(f"'{name}'" for name in get_args(Family))
        raise SurveyError("spec", "family", "is not one that can be fitted", f"use {known}")
    if not isinstance(formula, str):
        raise SurveyError("spec", PLACE, f"is of the type '{type(formula).__name__}'", "write it as text")
    amounts = dict.fromkeys([survey.outcome, *survey.variables])
    answers = [name for name in amounts if is_number(name, survey)]
    columns = list(dict.fromkeys([*survey.public, *survey.variables, *answers]))
    parsed = parse_regression(formula, answers, columns)
    if parsed.left.column in parsed.columns:
        problem = f"has '{parsed.left.column}' on both of its sides"
        raise SurveyError("spec", PLACE, problem, "leave it out on the right")
    return parsed


def fit_survey(
    parsed: RegressionFormula,
    survey: Survey,
    family: Family,
    estimation: EstimationSpec,
    domain: str | None = None,
    replicates: Replicates | None = None,
) -> Fitted:
    """Fit a regression to one survey."""
    refuse_lonely(survey, estimation)
    if replicates is None and survey.replicates is None and estimation.variance != "taylor":
        replicates = make_replicates(survey.index, estimation, Streams.from_system())
    known = {*survey.schema, *survey.domains}
    domains = columns_of_conditions((survey.domain, domain), known, "the domain of the regression")
    explained = Explained.of(parsed, survey, domains, family)
    calibrated = CalibratedWeights.of(survey)
    if calibrated is not None:
        explained = explained.weighted(calibrated.weight)
    found, given = fit(explained, family), ReplicateWeights.of(survey, estimation, replicates)
    if given is None:
        covariance = linearised_covariance(explained, family, found, estimation.lonely, calibrated)
        df = design_degrees_of_freedom(explained)
    else:
        covariance = replicated_covariance(explained, family, found, given, calibrated)
        df = given.degrees_of_freedom(explained, design_degrees_of_freedom(explained))
    names, terms = explained.regressors.names, explained.regressors.term_of
    df = max(df + 1 - len(names), 0)
    left_out = explained.asked - explained.records
    return Fitted(names, terms, found.values, covariance, float(df), explained.records, left_out)


def regression_of(
    survey: Survey,
    formula: str,
    family: Family = "linear",
    estimation: EstimationSpec | None = None,
    domain: str | None = None,
    replicates: Replicates | None = None,
) -> Regression:
    """The regression of a survey itself: confidential, for internal use."""
    estimation = estimation or EstimationSpec()
    parsed = parse_for(survey, formula, family)
    found = fit_survey(parsed, survey, family, estimation, domain, replicates)
    se = np.sqrt(np.diag(found.covariance))
    half = half_length(se, found.df, estimation.confidence)
    table = coefficient_table(found.names, found.values, se, np.full(len(se), found.df), half)
    shown = " and ".join(dict.fromkeys(condition for condition in (survey.domain, domain) if condition)) or None
    notes = notes_on(found)
    return Regression(parsed.text, family, table, found.covariance, found.records, notes=notes, domain=shown)


def coefficient_table(names: Sequence[str], values: Floats, se: Floats, df: Floats, half: Floats) -> pl.DataFrame:
    """The coefficients as a tidy table."""
    columns = {"estimate": values, "se": se, "df": df, "lower": values - half, "upper": values + half}
    return pl.DataFrame({"term": list(names)} | columns).with_columns(pl.col("se", "lower", "upper").fill_nan(None))


def notes_on(found: Fitted) -> tuple[str, ...]:
    """What a reader has to know of a fit."""
    notes = []
    if found.unanswered:
        asked = found.records + found.unanswered
        notes.append(f"{THOSE_WHO_ANSWERED}: {found.records:,} of {asked:,} records gave all answers".capitalize())
    if not np.isfinite(found.covariance).all():
        notes.append(NO_ERRORS.capitalize())
    elif found.df <= 0:
        notes.append(NO_DEGREES.capitalize())
    return tuple(f"{note}." for note in notes)
