"""Answers: confidential answers as columns of numbers: amounts, 1 and 0 for yes and no, positions of levels.

A missing answer is NaN, or a level of its own in a category. So an answer is stored like the outcome, in memory or on
disk, and the level of a record in a table is looked up in its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError, of_records
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.variables import NO_ANSWER, YES_NO, Kind, VariableSpec
from svysynth.survey.columns import (
    MISSING_NUMBERS,
    SLICE,
    UNANSWERED,
    categories,
    codes_listed,
    numbers,
    refuse_missing,
)
from svysynth.survey.columns_as_declared import blank_is_missing, refuse_unlisted
from svysynth.survey.domains import LEVELS
from svysynth.survey.formats.base import DataFile
from svysynth.survey.formats.statistical import code_text


@outlined
@dataclass(frozen=True)
class Variable:
    """What is known of an answer: its kind, the labels of its levels, and whether it may be missing."""

    kind: Kind
    levels: tuple[str, ...] = ()
    may_miss: bool = False


@outlined
class Coded(NamedTuple):
    """A column of levels that follows from an answer."""

    answer: str
    levels: tuple[str, ...]
    code: Callable[[Floats], Integers]
    """The position of the level for each number."""


def answered_column(answer: str) -> str:
    """The column that says who gave an answer; no column of the data has such a name by chance."""
    return f"answered: {answer}"


def coded(column: str, variables: Mapping[str, Variable]) -> Coded | None:
    """How the levels of a column follow from an answer; None if they do not."""
    if column in variables:
        variable = variables[column]
        return Coded(column, variable.levels, _yes_or_no if variable.kind == "yes/no" else _position)
    own = (name for name in variables if answered_column(name) == column)
    return next((Coded(name, LEVELS, _is_given) for name in own), None)


def _position(value: Floats) -> Integers:
    return value.astype(np.int64)


def _yes_or_no(value: Floats) -> Integers:
    return np.where(np.isnan(value), len(YES_NO), value == 0).astype(np.int64)


def _is_given(value: Floats) -> Integers:
    return (~np.isnan(value)).astype(np.int64)


def without_gaps(value: Floats) -> Floats:
    """Zeros in the place of missing answers, for tables of those who answered."""
    return np.where(np.isnan(value), 0.0, value)


def variable_of(name: str, spec: SurveySpec, labels: Iterable[str] | None = None) -> Variable:
    """What is known of a declared answer; `labels` are those of its levels, which else are declared."""
    kind, may_miss = spec.variables[name].kind, spec.may_miss(name)
    match kind:
        case "amount":
            return Variable(kind, (), may_miss)
        case "yes/no":
            return Variable(kind, (*YES_NO, NO_ANSWER) if may_miss else YES_NO, may_miss)
        case "category":
            declared = (spec.declared(name) or {}).values() if labels is None else labels
            return Variable(kind, tuple(declared))


def read_answers(
    raw: dict[str, pl.Series], spec: SurveySpec, file: DataFile
) -> tuple[dict[str, pl.Series], dict[str, Variable]]:
    """Columns as numbers, and what is known of the declared answers; each raw column is freed once it is read."""
    columns: dict[str, pl.Series] = {}
    variables: dict[str, Variable] = {}
    for name in list(raw):
        number, variable = read_answer(raw.pop(name), spec, file)
        columns[name] = number.rechunk()
        variables |= {} if variable is None else {name: variable}
    return columns, variables


def read_answer(series: pl.Series, spec: SurveySpec, file: DataFile) -> tuple[pl.Series, Variable | None]:
    """The outcome, a weight or another answer as numbers, and what is known of it if it is a declared answer."""
    name = series.name
    declared, may_miss = spec.variables.get(name), spec.may_miss(name)
    if declared is None:
        also = DECLARE.format(name=name) if name == spec.outcome else ""
        return numbers(series, file, remedy=f"impute them beforehand; {UNANSWERED}{also}"), None
    match declared.kind:
        case "amount":
            return numbers(series, file, may_miss, LIST.format(name=name)), variable_of(name, spec)
        case "yes/no":
            return _read_yes_or_no(series, declared, may_miss), variable_of(name, spec)
        case "category":
            number, labels = _read_category(series, spec, file)
            return number, variable_of(name, spec, labels)


DECLARE = (
    "; or declare {name} in survey.variables and its codes for missing answers in survey.columns.{name}.missing, and "
    "direct tables are of those who answered"
)
LIST = (
    "list the codes for missing answers in survey.columns.{name}.missing ('NA' for empty fields): tables are then of "
    "those who answered"
)


def _read_yes_or_no(series: pl.Series, declared: VariableSpec, may_miss: bool) -> pl.Series:
    yes, no = ([code_text(code) for code in codes] for codes in (declared.yes, declared.no))
    series = blank_is_missing(series)
    if series.dtype == pl.String:  # as in a column of numbers
        text = series.str.strip_chars()
        series = series.set(text.is_in(MISSING_NUMBERS) & ~text.is_in([*yes, *no]), None)
    if not may_miss:
        refuse_missing(series.name, series.null_count(), len(series), LIST.format(name=series.name))
    distinct, text, _ = codes_listed(series, [*yes, *no])
    text = _as_listed(text, [*yes, *no])
    unlisted = ~text.is_in([*yes, *no]).fill_null(value=False) & distinct.is_not_null()
    if no:
        bad = int((series.is_in(distinct.filter(unlisted).implode()) & series.is_not_null()).sum())
        if bad:
            problem = f"{of_records(bad, len(series))} not among the codes of 'yes' and 'no'"
            remedy = f"list every code there, or in survey.columns.{series.name}.missing"
            raise SurveyError("data", f"column '{series.name}'", problem, remedy)
    value = text.is_in(yes).fill_null(value=False).cast(pl.Float64).set(distinct.is_null(), np.nan)
    slices = (series.slice(start, SLICE) for start in range(0, len(series), SLICE))
    return pl.concat([piece.replace_strict(distinct, value, return_dtype=pl.Float64) for piece in slices])


def _as_listed(text: pl.Series, codes: Sequence[str]) -> pl.Series:
    """Codes as text, with `1.0` as `1` where that is what the list has: a "1.0" must not count as another code."""
    number = text.cast(pl.Float64, strict=False)
    whole = number.round().cast(pl.Int64, strict=False).cast(pl.String)
    same = (number == number.round()) & whole.is_in(codes) & ~text.is_in(codes)
    return pl.select(pl.when(same).then(whole).otherwise(text)).to_series()


def _read_category(series: pl.Series, spec: SurveySpec, file: DataFile) -> tuple[pl.Series, Iterable[str]]:
    name = series.name
    last, codes = spec.made(name).missing_level, spec.declared(name)
    refuse_unlisted({name: series}, spec)
    if last is None and name not in spec.other:
        remedy = f"name the level of missing answers in survey.columns.{name}.missing_level"
        refuse_missing(name, blank_is_missing(series).null_count(), len(series), remedy)
    found, labels = categories(series, codes, file.value_labels.get(name, {}), spec.other.get(name), last)
    return found.to_physical().cast(pl.Float64), labels.values()
