"""Explained records: the records of a regression, with the number that it explains, their weight and their regressors.

A record takes part if it is inside the domain and has all of the answers that the formula names: the regression is of
those who answered, and the others count as records outside a domain. Records are visited in blocks; everything that
depends on the data alone, such as which levels occur, is found in one pass before the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from svysynth.core.column_storage import Column, derive, look_up
from svysynth.core.engine import map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.regression_formula import PLACE, LeftSide, RegressionFormula
from svysynth.core.safe_repr import outlined
from svysynth.estimation.regressors import Categories, Numbers, Regressors, Source, is_number
from svysynth.survey.domains import INSIDE
from svysynth.survey.survey import Survey

Family = Literal["linear", "logistic"]


@outlined
class Block(NamedTuple):
    """The records of a block that take part."""

    inside: Integers
    """Their positions in the block."""
    x: Floats
    y: Floats
    weight: Floats


@outlined
@dataclass(frozen=True, eq=False)
class Rows:
    """The columns of a regression, of all records of the survey."""

    inside: Column
    """1 for a record that takes part, else 0."""
    y: Column
    weight: Column
    regressors: Regressors

    def block(self, piece: slice) -> Block:
        """The records of a block that take part."""
        inside = np.flatnonzero(self.inside[piece])
        y, weight = (np.asarray(column[piece], np.float64)[inside] for column in (self.y, self.weight))
        return Block(inside, self.regressors.rows(piece, inside), y, weight)


@outlined
@dataclass(frozen=True, eq=False)
class Explained:
    """The records of a regression."""

    survey: Survey
    rows: Rows
    records: int
    """How many records take part."""
    asked: int
    """How many records are inside the domain, whether they gave all answers or not."""

    @classmethod
    def of(cls, formula: RegressionFormula, survey: Survey, domains: Sequence[str], family: Family) -> Explained:
        """The records of a formula; `domains` are columns that say which records are inside."""
        value = survey.values(formula.left.column)
        numbers = [survey.values(column) for column in formula.columns if is_number(column, survey)]
        asked = derive(_all_inside, survey.cell_index([]), *(survey.cell_index([name]) for name in domains))
        inside = derive(_takes_part, asked, value, *numbers)
        y = derive(partial(_left_number, left=formula.left), value)
        coded = {name: survey.cell_index([name]) for name in formula.columns if not is_number(name, survey)}
        sizes = tuple(len(survey.levels(name)) for name in coded)
        seen = _look(_Look(asked, inside, y, tuple(coded.values()), sizes), survey)
        _refuse(seen, formula.left, family)
        present = dict(zip(coded, map(np.flatnonzero, seen.levels), strict=True))
        sources = {name: _source(name, survey, coded, present) for name in formula.columns}
        regressors = Regressors.of(formula.right, sources)
        if seen.records <= len(regressors):
            problem = "has as many coefficients as there are records, or more"
            raise SurveyError("data", PLACE, problem, "use fewer columns, or loosen the domain")
        return cls(survey, Rows(inside, y, survey.weights, regressors), seen.records, seen.asked)

    @property
    def regressors(self) -> Regressors:
        """The design matrix."""
        return self.rows.regressors

    def weighted(self, weight: Column) -> Explained:
        """The same records with other weights."""
        return replace(self, rows=replace(self.rows, weight=weight))


def _source(name: str, survey: Survey, coded: Mapping[str, Column], present: Mapping[str, Integers]) -> Source:
    if name in coded:
        return Categories(coded[name], survey.levels(name), present[name])
    yes_or_no = name in survey.variables and survey.variables[name].kind == "yes/no"
    return Numbers(survey.values(name), yes_or_no)


def _all_inside(nothing: Integers, *codes: Integers) -> Booleans:
    found = np.ones(len(nothing), bool)
    for code in codes:
        found &= np.asarray(code) == INSIDE
    return found


def _takes_part(asked: Booleans, *values: Floats) -> Integers:
    found = np.array(asked)
    for value in values:
        found &= ~np.isnan(value)
    return found.astype(np.int64)


def _left_number(value: Floats, left: LeftSide) -> Floats:
    """The number that is explained; where it does not exist, it is NaN or infinite, which is refused."""
    if left.log:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(value)
    if left.share is None:
        return value
    threshold = left.share.threshold
    match left.share.comparison:
        case ">":
            found = value > threshold
        case ">=":
            found = value >= threshold
        case "<":
            found = value < threshold
        case "<=":
            found = value <= threshold
    return found.astype(np.float64)


@outlined
class _Seen(NamedTuple):
    """What one pass over the records finds."""

    asked: int
    records: int
    no_logarithm: int
    """How many records have an amount that has no logarithm."""
    neither: int
    """How many records have a number that is neither 0 nor 1."""
    lowest: float
    highest: float
    levels: tuple[Integers, ...]
    """For each category, how many records have each level."""


@outlined
@dataclass(frozen=True)
class _Look:
    asked: Column
    inside: Column
    y: Column
    codes: tuple[Column, ...]
    sizes: tuple[int, ...]

    def __call__(self, piece: slice) -> _Seen:
        inside = np.flatnonzero(self.inside[piece])
        y = np.asarray(self.y[piece])[inside]
        counted = zip(self.codes, self.sizes, strict=True)
        levels = tuple(np.bincount(np.asarray(code[piece])[inside], minlength=size) for code, size in counted)
        neither = int((~np.isin(y, (0.0, 1.0))).sum())
        ends = (float(y.min()), float(y.max())) if len(y) else (np.inf, -np.inf)
        bad = int((~np.isfinite(y)).sum())
        return _Seen(int(np.sum(self.asked[piece])), len(inside), bad, neither, *ends, levels)


def _look(look: _Look, survey: Survey) -> _Seen:
    asked, records, bad, neither, lowest, highest, levels = zip(
        *map_blocks(survey.engine, look, len(survey)), strict=True
    )
    counts = tuple(np.sum(own, axis=0) for own in zip(*levels, strict=True))
    return _Seen(sum(asked), sum(records), sum(bad), sum(neither), min(lowest), max(highest), counts)


def _refuse(seen: _Seen, left: LeftSide, family: Family) -> None:
    """Stop where the left side is no number that the family can explain."""
    if seen.records == 0:
        raise SurveyError("data", PLACE, "is of no record: nobody in the domain gave all answers", "loosen the domain")
    if seen.no_logarithm:
        problem = f"asks for log({left.column}), and some records have an amount that is zero or negative"
        raise SurveyError("data", PLACE, problem, f"explain {left.column} itself, or restrict the domain")
    if family == "logistic" and seen.neither:
        problem = f"explains '{left}', which has values other than 0 and 1, by a logistic model"
        remedy = f"name a yes/no answer, or a threshold as in {left.column} > 50000, or use the family 'linear'"
        raise SurveyError("data", PLACE, problem, remedy)
    if seen.lowest == seen.highest:
        problem = f"explains '{left}', which is the same in all records of the regression"
        raise SurveyError("data", PLACE, problem, "choose another threshold or domain")


def in_calibration_cells(survey: Survey, cell: Integers) -> Column:
    """The calibration cell of each record, from that of each combination of levels that has records."""
    assert survey.calibration is not None
    _, position = survey.present_cells(survey.calibration.columns)
    return derive(partial(look_up, table=cell), position)
