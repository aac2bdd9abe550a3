"""Columns by role: raw columns of a file turned into numbers or categories, or refused with a count but no value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError, is_plain, of_records
from svysynth.core.grouping import Booleans, Integers
from svysynth.core.safe_repr import outlined
from svysynth.survey.formats.base import CodeLabels, DataFile
from svysynth.survey.formats.statistical import code_text

ALL = "All"
"""The level that stands for a margin in every table."""
MOST_LEVELS = 10_000
LONGEST_LABEL = 200
LONGEST_NUMBER = 400
LARGEST_MAGNITUDE = 1e60
"""Numbers beyond this would overflow once squared and summed."""
SLICE = 2**16
"""How many records are coded at a time, so that coding takes little memory."""
UNANSWERED = (
    "direct tables can leave such records out with survey.where; a release takes all records, because who answered is "
    "confidential too, unless a column in survey.universe says who belongs to the population"
)
"""The remedy for confidential columns."""
MISSING_NUMBERS = ("", ".", "NA", "N/A", "NaN", "nan", "null", "NULL")


class HasLevels(Protocol):
    """Whatever knows the labels of the public columns."""

    def levels(self, column: str) -> tuple[str, ...]:
        """The labels of a column, in order."""


def _require_complete(series: pl.Series) -> None:
    refuse_missing(series.name, series.null_count(), len(series))


def refuse_missing(
    column: str, missing: int, records: int, remedy: str = "impute them, or leave such records out with survey.where"
) -> None:
    """Stop if values of a column are missing."""
    if missing:
        raise SurveyError("data", f"column '{column}'", f"{of_records(missing, records)} missing", remedy)


def without_codes(series: pl.Series, codes: Sequence[str], file: DataFile) -> pl.Series:
    """The column with missing values in place of the declared codes for missing answers, whether text or numbers."""
    dtype = series.dtype
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object, pl.Null):
        return series
    codes = [code.strip() for code in codes]
    figures = pl.Series([float(code) for code in codes if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", code)], dtype=pl.Float64)
    if dtype.is_numeric():
        found = series.cast(pl.Float64).is_in(figures.implode())
    else:
        text = series.cast(pl.String)
        number = number_text(text, file).cast(pl.Float64, strict=False)
        found = text.str.strip_chars().is_in(codes) | number.is_in(figures.implode()).fill_null(value=False)
    return pl.select(pl.when(found).then(None).otherwise(series).alias(series.name).cast(dtype)).to_series()


def numbers(series: pl.Series, file: DataFile, may_miss: bool = False, remedy: str | None = None) -> pl.Series:
    """A column of numbers as floats; text that is not a number, and infinite values, are refused.

    Missing values are refused too, with a remedy, or are NaN if the column may miss some.
    """
    column = f"column '{series.name}'"
    if series.dtype == pl.String:
        text = number_text(series, file)
        number = text.cast(pl.Float64, strict=False)
        bad = number.null_count() - text.null_count()
        if bad:
            listing = "correct them, or list the codes for missing answers in survey.missing"
            raise SurveyError("data", column, f"{of_records(bad, len(series))} not a number", listing)
    elif series.dtype.is_numeric():
        number = series.cast(pl.Float64)
    else:
        raise SurveyError("data", column, "is not numeric", "name a numeric column for this role")
    number = number.fill_nan(None)
    if not may_miss:
        refuse_missing(series.name, number.null_count(), len(number), remedy or f"impute them beforehand; {UNANSWERED}")
    extreme = int(((number > LARGEST_MAGNITUDE) | (number < -LARGEST_MAGNITUDE)).sum())
    if extreme:
        raise SurveyError(
            "data", column, f"{of_records(extreme, len(series))} infinite or absurdly large", "correct them"
        )
    return number.fill_null(np.nan) if may_miss else number


def number_text(series: pl.Series, file: DataFile) -> pl.Series:
    """The text of numbers, trimmed; text that is too long is replaced, so that it does not count as a number."""
    series = series.set(series.str.len_bytes() > LONGEST_NUMBER, "too long")
    text = series.str.strip_chars()
    if file.decimal_comma:
        text = text.str.replace(",", ".", literal=True)
    return text.set(text.is_in(MISSING_NUMBERS), None)


def guess_numbers(series: pl.Series, file: DataFile) -> pl.Series:
    """Convert a text column to numbers if all its values are numbers, so that a condition can compare it."""
    if series.dtype == pl.String and file.format == "csv":
        text = number_text(series, file)
        number = text.cast(pl.Float64, strict=False)
        if number.null_count() == text.null_count():
            return number
    return series


def comparable(series: pl.Series, file: DataFile) -> pl.Series:
    """A column as a condition sees it: trimmed text, or numbers if all of it is; blanks and NaN are missing."""
    series = guess_numbers(series, file)
    if series.dtype.is_float():
        return series.fill_nan(None)
    if series.dtype != pl.String:
        return series
    text = series.str.strip_chars()
    return text.set(text == "", None)


@outlined
@dataclass(frozen=True)
class Keys:
    """A column of codes as whole numbers: `codes[key]` is the code of a record, as text."""

    key: Integers
    codes: tuple[str, ...]


def keys(series: pl.Series) -> Keys:
    """Number the codes of a column, in the order of their text; a column that does not hold categories is refused."""
    if series.dtype.is_float():
        series = series.fill_nan(None)
    _require_complete(series)
    distinct = distinct_values(series)
    text = as_text(distinct)
    if (text == "").any():
        _require_complete(series.set(series.str.strip_chars() == "", None))
    codes = text.unique().sort()
    position = text.cast(pl.Enum(codes)).to_physical().cast(pl.Int32)
    key = np.empty(len(series), np.int32)
    for start in range(0, len(series), SLICE):
        piece = series.slice(start, SLICE).replace_strict(distinct, position, return_dtype=pl.Int32)
        key[start : start + SLICE] = piece.to_numpy()
    return Keys(key, tuple(codes))


def distinct_values(series: pl.Series) -> pl.Series:
    """The distinct values of a column that can hold categories."""
    if series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object):
        raise _no_categories(series)
    parts = [series.slice(start, SLICE).unique() for start in range(0, len(series), SLICE)]
    return pl.concat(parts).unique()


def as_text(values: pl.Series) -> pl.Series:
    """Codes as text, the same for 1, 1.0 and '1'."""
    dtype = values.dtype
    if dtype.is_integer() or dtype in (pl.Boolean, pl.Enum, pl.Categorical, pl.String):
        return values.cast(pl.String).str.strip_chars()
    whole = dtype.is_float() and (values == values.round()).all() and (values.abs() < 2**53).all()
    if not whole:
        raise _no_categories(values)
    return values.cast(pl.Int64).cast(pl.String)


def _no_categories(series: pl.Series) -> SurveyError:
    remedy = "name a column of text or whole numbers"
    return SurveyError("data", f"column '{series.name}'", "does not hold categories", remedy)


def categories(
    series: pl.Series,
    declared: CodeLabels | None,
    in_file: CodeLabels,
    other: str | None = None,
    last: str | None = None,
) -> tuple[pl.Series, dict[str, str]]:
    """A public column as an enumeration of labels, in the declared order or in the order of its codes.

    The labels of its codes are returned too. With `other`, which is a declared code, every value that is missing or not
    a declared code counts as that code, and nothing is refused. `last` is the level of missing answers.
    """
    if declared is not None and other is not None:
        series = _listed_or_other(series, [code_text(code) for code in declared], code_text(other))
    found = keys(series)
    if declared is None:
        labels = labels_of_codes(series.name, tuple(code for code in found.codes if code != last), in_file)
        labels |= {} if last is None else _label_of_missing(series.name, labels, last)
    else:
        labels = {code_text(code): label for code, label in declared.items()}
        _require_labels(series.name, found, labels)
    _check_labels(series.name, list(labels.values()))
    position = {code: position for position, code in enumerate(labels)}
    order = np.array([position[code] for code in found.codes], np.uint32)
    levels = pl.Series(series.name, list(labels.values()), dtype=pl.Enum(list(labels.values())))
    return levels.gather(order[found.key]), labels


def _listed_or_other(series: pl.Series, codes: Sequence[str], other: str) -> pl.Series:
    """The codes of a column as text, with another code in the place of those that are not listed."""
    distinct, text, unlisted = codes_listed(series, codes)
    chosen = text.set(unlisted, other).fill_null(other)
    parts = [
        series.slice(start, SLICE).replace_strict(distinct, chosen, return_dtype=pl.String)
        for start in range(0, len(series), SLICE)
    ]
    return pl.concat(parts).fill_null(other).alias(series.name)


def not_listed(series: pl.Series, declared: CodeLabels) -> Booleans:
    """The records whose code is missing or not declared: they count as the level in `survey.other`, if one is named."""
    distinct, _, unlisted = codes_listed(series, [code_text(code) for code in declared])
    return (series.is_null() | series.is_in(distinct.filter(unlisted).implode())).fill_null(value=True).to_numpy()


def codes_listed(series: pl.Series, codes: Sequence[str]) -> tuple[pl.Series, pl.Series, pl.Series]:
    """The distinct values, the same as text, and whether each is absent from the codes."""
    distinct = distinct_values(series)
    if distinct.dtype.is_float():
        whole = (distinct == distinct.round()) & (distinct.abs() < 2**53)
        text = pl.select(pl.when(whole).then(distinct)).to_series().cast(pl.Int64).cast(pl.String)
    else:
        text = as_text(distinct)
    return distinct, text, ~text.is_in(codes).fill_null(value=False)


def labels_of_codes(column: str, codes: tuple[str, ...], in_file: CodeLabels) -> dict[str, str]:
    """The codes that occur, numbers in numerical order; labels that several codes share get the code added."""
    if len(codes) > MOST_LEVELS:
        remedy = f"group it into at most {MOST_LEVELS:,} levels"
        raise SurveyError("data", f"column '{column}'", f"has {len(codes):,} levels", remedy)
    if all(re.fullmatch(r"-?[0-9]{1,15}", code) for code in codes):
        codes = tuple(sorted(codes, key=lambda code: (int(code), code)))
    labels = {code: in_file.get(code, code).strip() or code for code in codes}
    uses = Counter(labels.values())
    distinct = {code: f"{label} ({code})" if uses[label] > 1 else label for code, label in labels.items()}
    if len(set(distinct.values())) == len(distinct):
        return distinct
    return {code: f"{label} ({code})" for code, label in labels.items()}


def _label_of_missing(column: str, labels: Mapping[str, str], level: str) -> dict[str, str]:
    if level in labels.values():
        remedy = "give the level of missing answers another name, or list the code as missing"
        place = f"survey.columns.{column}.missing_level"
        raise SurveyError("data", place, "is also the label of a code of the column", remedy)
    return {level: level}


def _require_labels(column: str, found: Keys, labels: Mapping[str, str]) -> None:
    unknown = np.array([code not in labels for code in found.codes])
    bad = int(unknown[found.key].sum())
    if bad:
        raise SurveyError(
            "data",
            f"column '{column}'",
            f"{of_records(bad, len(found.key))} not among those in survey.labels or survey.levels",
            "list every code there, or name one of the listed codes in survey.other to stand for the rest",
        )


def _check_labels(column: str, labels: Sequence[str]) -> None:
    if ALL in labels:
        raise SurveyError(
            "data",
            f"column '{column}'",
            f"has a level called '{ALL}', which tables use for margins",
            "give that level another name",
        )
    if not all(is_plain(label) and len(label) <= LONGEST_LABEL for label in labels):
        raise SurveyError(
            "data",
            f"column '{column}'",
            f"has levels with control characters or with more than {LONGEST_LABEL} characters",
            "clean its levels, or check that this is a column of categories",
        )
