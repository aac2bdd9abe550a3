"""Row filter: the condition in a spec that says which records take part. Here it is parsed, applied, or refused.

Who belongs to a released survey is published: the filter is in the manifest, and the number of records that it keeps is
public. So the filter of a release may depend on nothing confidential, least of all on whether somebody answered.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import polars as pl

from svysynth.core.errors import SurveyError, is_plain
from svysynth.core.spec.survey import SurveySpec
from svysynth.survey.columns import comparable
from svysynth.survey.formats.base import DataFile, quiet

MOST_CONDITION_TERMS = 1000
MOST_SUSPECTS = 6
"""Columns of a condition that are tried in all combinations to find those of the wrong type."""
AGGREGATES = {"min", "max", "avg", "sum", "count", "median", "quantile_cont"}
CONDITION_WORDS = {
    *("and", "or", "not", "in", "between", "like", "ilike", "when", "then", "else", "case", "is"),
    *("abs", "ceil", "floor", "round", "sign", "mod", "sqrt", "ln", "log", "log10", "exp", "pow", "power"),
    *("cast", "try_cast", "coalesce", "nullif", "if", "ifnull", "greatest", "least"),
    *("lower", "upper", "trim", "ltrim", "rtrim", "length", "left", "right", "substr", "starts_with", "ends_with"),
}
"""What may stand before a bracket in a condition: operators, and functions of one record whose cost is bounded."""
NOT_OF_THE_RECORD = {
    *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "now", "today"),
    *("random", "rand", "uuid", "row_number", "rowid"),
}
"""Words whose value depends on the date, on chance or on the order of the records."""
TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--|/\*|\d[\w.]*|\w+|\S")
WHERE = "survey.where"
HOW_TO_WRITE = "write it like: age_group = 40 and region <> 'N'"


def refuse_private_filter(spec: SurveySpec) -> None:
    """Stop a release whose row filter looks at a column that is not public. This needs no data."""
    public = {*spec.published_as_they_are, *spec.universe} - {spec.outcome, spec.weight, *spec.fpcs}
    private = [column for column in condition_columns(parse_condition(spec.where)) if column not in public]
    if not is_plain(" ".join((spec.where or "").split())):
        raise _bad_condition(WHERE, "has control characters, and a release publishes it", HOW_TO_WRITE)
    if not private:
        return
    confidential = [column for column in private if column in (spec.outcome, spec.weight, *spec.fpcs)]
    if confidential:
        raise _bad_condition(
            WHERE,
            f"names the confidential column '{confidential[0]}'; a release cannot leave records out by it, because who "
            "is left out would reveal something about it, as who answered does",
            "name public columns only; where answers are missing, impute them beforehand",
        )
    grouped = private[0] in map(spec.source, spec.published)
    what, public_too = ("public in groups only", "") if grouped else ("not public", ", or in survey.public")
    raise _bad_condition(
        WHERE,
        f"names column '{private[0]}', which is {what}; who belongs to a released survey is published",
        f"if who belongs is public knowledge, list the column in survey.universe{public_too}",
    )


def parse_condition(where: str | None, place: str = WHERE) -> pl.Expr | None:
    """A condition of a spec as an expression, or a refusal; `place` is the setting that has it."""
    if where is None:
        return None
    _check_words(TOKEN.findall(where), place)
    try:
        with quiet():
            condition = pl.sql_expr(where)
            columns = condition.meta.root_names()
            is_named = not condition.meta.eq(condition.meta.undo_aliases())
            is_many = condition.meta.has_multiple_outputs()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, RecursionError):
        raise _bad_condition(place, "is not a SQL condition", HOW_TO_WRITE) from None
    if is_many or set(columns) - set(_identifiers(where)):  # polars takes "^…$" and * for patterns of columns
        raise _bad_condition(place, "does not name each of its columns", HOW_TO_WRITE)
    if is_named or len(columns) > MOST_CONDITION_TERMS:
        raise _bad_condition(place, "has words after the condition, or too many column names", HOW_TO_WRITE)
    return condition


def _check_words(tokens: Sequence[str], place: str) -> None:
    """Stop at comments, at functions that are not listed, and at lists of numbers and text."""
    for token, following in itertools.pairwise([*tokens, ""]):
        if token in ("--", "/*", "$") or (following[:1] == "'" and token.lower() in ("b", "e", "n", "u", "x")):
            raise _bad_condition(place, "has a comment, or text that is not in plain 'quotes'", HOW_TO_WRITE)
        if token.strip('"`')[:1] == "^" or token.lower() in NOT_OF_THE_RECORD:
            raise _bad_condition(
                place, "has a pattern of columns, or depends on something other than the record", HOW_TO_WRITE
            )
        called = token.strip('"`').lower() if following == "(" and re.match(r"[\w\"`]", token) else "in"
        if called in AGGREGATES:
            remedy = "compare each record with a figure of your own"
            raise _bad_condition(place, "has an aggregate, whose value depends on all records", remedy)
        if called not in CONDITION_WORDS:
            raise _bad_condition(place, "calls a function that conditions may not use", HOW_TO_WRITE)
    for items in _lists(tokens):
        if any(item[0] == "'" for item in items) and any(item[0].isdigit() for item in items):
            raise _bad_condition(place, "has a list of numbers and text together", "write one or the other")


def _identifiers(where: str) -> list[str]:
    """Every word and every quoted name of a condition, as a column's name would be written."""
    tokens = TOKEN.findall(where)
    quoted = [token[1:-1].replace(token[0] * 2, token[0]) for token in tokens if token[0] in '"`']
    return [*tokens, *quoted]


def _lists(tokens: Sequence[str]) -> Iterator[Sequence[str]]:
    """The tokens in the brackets after each `in`."""
    for place, token in enumerate(tokens[:-1]):
        if token.lower() == "in" and tokens[place + 1] == "(":
            yield list(itertools.takewhile(lambda item: item != ")", tokens[place + 2 :]))


def condition_columns(condition: pl.Expr | None) -> list[str]:
    """The columns that a row filter looks at."""
    return [] if condition is None else list(dict.fromkeys(condition.meta.root_names()))


def keep_rows(frame: pl.DataFrame, condition: pl.Expr, file: DataFile) -> pl.DataFrame:
    """The records for which the row filter is true."""
    return frame.filter(holds(frame, condition, file))


def holds(frame: pl.DataFrame, condition: pl.Expr, file: DataFile, place: str = WHERE) -> pl.Series:
    """For every record whether the condition is true; unknown counts as false, as in SQL."""
    typed = frame.select(comparable(frame[column], file) for column in condition_columns(condition))
    mask = _truth(typed, condition)
    if mask is None or mask.dtype != pl.Boolean or len(mask) not in (1, frame.height):
        raise _misfit(typed.clear(), condition, place)
    mask = mask.fill_null(value=False)
    return (
        mask
        if len(mask) == frame.height
        else pl.Series("keep", [mask.item()]).extend_constant(mask.item(), frame.height - 1)
    )


def _truth(frame: pl.DataFrame, condition: pl.Expr) -> pl.Series | None:
    """The condition's value for every record; None if it cannot be computed."""
    try:
        with quiet():
            return frame.select(condition.alias("keep"))["keep"]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def _misfit(empty: pl.DataFrame, condition: pl.Expr, place: str) -> SurveyError:
    """The error for a condition that does not fit its columns; it names the column at fault where that can be found.

    A column is at fault if the condition can be computed once its text is taken as numbers, or its numbers as text.
    """
    for size in range(1, 1 + min(empty.width, MOST_SUSPECTS)) if _truth(empty, condition) is None else ():
        for suspects in itertools.combinations(empty.columns[:MOST_SUSPECTS], size):
            if _truth(empty.with_columns(_other_type(empty[name]) for name in suspects), condition) is not None:
                return _wrong_type(suspects[0], empty.schema[suspects[0]], place)
    remedy = "compare numbers with numbers and text with text in 'quotes'"
    return _bad_condition(place, f"does not fit the columns it names ({', '.join(empty.columns) or 'none'})", remedy)


def _other_type(column: pl.Series) -> pl.Series:
    return pl.Series(column.name, [], pl.Float64 if column.dtype == pl.String else pl.String)


def _wrong_type(column: str, dtype: pl.DataType, place: str) -> SurveyError:
    if dtype == pl.String:
        remedy = (
            "put the value in 'quotes'; if the column is meant to be numbers, list its codes for missing answers in "
            "survey.missing, or write cast(column as double)"
        )
        return _bad_condition(place, f"compares column '{column}', which is text, with a number", remedy)
    remedy = "write dates as cast('2030-12-31' as date)" if dtype.is_temporal() else "write numbers without 'quotes'"
    return _bad_condition(place, f"compares column '{column}', which is not text, with text", remedy)


def _bad_condition(place: str, problem: str, remedy: str) -> SurveyError:
    return SurveyError("spec", place, problem, remedy)
