"""Columns by role: raw columns of a file turned into numbers or categories, or refused with a count and no value."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from svysynth.design import Integers
from svysynth.errors import SurveyError, of_records
from svysynth.files import CodeLabels, DataFile, code_text

ALL = "All"
"""The level that stands for a margin in every table."""
MOST_LEVELS = 10_000
LONGEST_LABEL = 200
LARGEST_MAGNITUDE = 1e60
"""Numbers beyond this would overflow once squared and summed."""
MISSING_NUMBERS = ("", ".", "NA", "N/A", "NaN", "nan", "null", "NULL")


def _require_complete(series: pl.Series) -> None:
    missing = series.null_count()
    if missing:
        raise SurveyError(
            "data",
            f"column '{series.name}'",
            f"{of_records(missing, len(series))} missing",
            "impute them, or leave such records out with survey.where",
        )


def numbers(series: pl.Series, file: DataFile) -> pl.Series:
    """A column of numbers as floats; text that is not a number, missing and infinite values are refused."""
    column = f"column '{series.name}'"
    if series.dtype == pl.String:
        text = _number_text(series, file)
        number = text.cast(pl.Float64, strict=False)
        bad = number.null_count() - text.null_count()
        if bad:
            raise SurveyError("data", column, f"{of_records(bad, len(series))} not a number", "correct them")
    elif series.dtype.is_numeric():
        number = series.cast(pl.Float64)
    else:
        raise SurveyError("data", column, "is not numeric", "name a numeric column for this role")
    number = number.fill_nan(None)
    _require_complete(number)
    extreme = int((number.abs() > LARGEST_MAGNITUDE).sum())
    if extreme:
        raise SurveyError(
            "data", column, f"{of_records(extreme, len(series))} infinite or absurdly large", "correct them"
        )
    return number.rechunk()


def _number_text(series: pl.Series, file: DataFile) -> pl.Series:
    text = series.str.strip_chars()
    if file.decimal_comma:
        text = text.str.replace(",", ".", literal=True)
    return text.set(text.is_in(MISSING_NUMBERS), None)


def guess_numbers(series: pl.Series, file: DataFile) -> pl.Series:
    """Text that is all numbers becomes numbers, so that a condition can compare it."""
    if series.dtype == pl.String and file.format == "csv":
        text = _number_text(series, file)
        number = text.cast(pl.Float64, strict=False)
        if number.null_count() == text.null_count():
            return number
    return series


def codes_as_text(series: pl.Series) -> pl.Series:
    """A column of codes as text, whatever its type; codes that cannot be told apart as text are refused."""
    _require_complete(series)
    dtype = series.dtype
    if dtype.is_integer() or dtype in (pl.Boolean, pl.Enum, pl.Categorical):
        codes = series.cast(pl.String)
    elif dtype == pl.String:
        codes = series.str.strip_chars()
    elif dtype.is_float() and bool((series == series.round()).all()) and bool((series.abs() < 2**53).all()):
        codes = series.cast(pl.Int64).cast(pl.String)
    else:
        raise SurveyError(
            "data",
            f"column '{series.name}'",
            "does not hold categories",
            "name a column of text or whole numbers",
        )
    blank = int((codes == "").sum())
    if blank:
        _require_complete(codes.set(codes == "", None))
    return codes


def categories(series: pl.Series, declared: CodeLabels | None, in_file: CodeLabels) -> tuple[pl.Series, dict[str, str]]:
    """A public column as an enumeration of labels, in the declared order or in the order of its codes."""
    codes = codes_as_text(series)
    present = _in_order(codes.unique().to_list())
    column = f"column '{series.name}'"
    if declared is not None:
        labels = {code_text(code): label for code, label in declared.items()}
        unknown = int((~codes.is_in(list(labels))).sum())
        if unknown:
            raise SurveyError(
                "data",
                column,
                f"{of_records(unknown, len(series))} without a label in survey.labels.{series.name}",
                "list every code there, or leave such records out with survey.where",
            )
    else:
        if len(present) > MOST_LEVELS:
            raise SurveyError(
                "data",
                column,
                f"has {len(present):,} levels",
                f"group it into at most {MOST_LEVELS:,} levels",
            )
        labels = {code: in_file.get(code, code).strip() or code for code in present}
        repeated = {label for label in labels.values() if list(labels.values()).count(label) > 1}
        labels = {code: f"{label} ({code})" if label in repeated else label for code, label in labels.items()}
    _check_labels(column, list(labels.values()))
    levels = pl.Enum(list(labels.values()))
    if all(code == label for code, label in labels.items()):
        return codes.cast(levels), labels
    return codes.replace_strict(labels, return_dtype=levels), labels


def _in_order(codes: list[str]) -> list[str]:
    """Codes that are whole numbers in numerical order, others alphabetically."""
    if all(re.fullmatch(r"-?[0-9]{1,15}", code) for code in codes):
        return sorted(codes, key=lambda code: (int(code), code))
    return sorted(codes)


def _check_labels(column: str, labels: list[str]) -> None:
    if ALL in labels:
        raise SurveyError(
            "data",
            column,
            f"has a level called '{ALL}', which tables use for margins",
            "give that level another name",
        )
    if not all(label.isprintable() and len(label) <= LONGEST_LABEL for label in labels):
        raise SurveyError(
            "data",
            column,
            f"has levels with control characters or with more than {LONGEST_LABEL} characters",
            "clean its levels, or check that this is a column of categories",
        )


def dense_codes(series: pl.Series) -> Integers:
    """Number the distinct values of a column 0, 1, 2 … in sorted order."""
    if isinstance(series.dtype, pl.Enum):
        _, code = np.unique(series.to_physical().to_numpy(), return_inverse=True)
        return code.astype(np.int64)
    levels = series.unique().sort()
    return series.cast(pl.Enum(levels)).to_physical().to_numpy().astype(np.int64)
