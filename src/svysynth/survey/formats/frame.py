"""Frames of other libraries (pandas and Arrow), converted to polars through narwhals.

Only the columns that are asked for are read; an index is ignored. The columns of pandas are converted one by one, since
polars' own conversion needs pyarrow, which pandas does not require. A value that is missing in pandas stays missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.exceptions import NarwhalsError

from svysynth.core.errors import SurveyError
from svysynth.survey.formats.base import READER_ERRORS, quiet

REMEDY = "give a path, or a frame of polars, pandas or Arrow"


def column_names(frame: Any) -> tuple[str, ...]:
    """The names of a frame's columns; anything that is not a frame is refused."""
    if isinstance(frame, pl.LazyFrame):
        return tuple(_collected(frame.head(0)).columns)
    return tuple(map(str, _narwhal(frame).columns))


def to_polars(frame: Any, columns: Sequence[str]) -> pl.DataFrame:
    """Some columns of a frame, with the types they have."""
    columns = list(dict.fromkeys(columns))
    if isinstance(frame, pl.LazyFrame):
        return _collected(frame.select(columns))
    found = _narwhal(frame)
    if found.implementation.is_pandas_like():
        return pl.DataFrame([_series(found[column]) for column in columns])
    return found.select(columns).to_polars()


def _narwhal(frame: Any) -> nw.DataFrame[Any]:
    try:
        return nw.from_native(frame, eager_only=True)
    except TypeError:
        raise SurveyError("data", "the data", f"are of the type '{type(frame).__name__}'", REMEDY) from None
    except (NarwhalsError, ValueError):
        problem = "have columns that cannot be told apart by their names"
        raise SurveyError("data", "the data", problem, "give every column a name of its own") from None


def _collected(frame: pl.LazyFrame) -> pl.DataFrame:
    try:
        with quiet():
            return frame.collect()
    except READER_ERRORS:
        raise SurveyError(
            "data", "the lazy frame", "cannot be collected", "collect it first, and give the result"
        ) from None


def _series(series: nw.Series[Any]) -> pl.Series:
    """A column of pandas: numbers as they are, anything else value by value."""
    values = series.to_native()
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
        numbers = values.to_numpy()
        return pl.Series(series.name, numbers.astype(np.float64) if numbers.dtype.kind == "f" else numbers)
    missing = series.is_null().to_list()
    plain = [None if gone else value for value, gone in zip(series.to_list(), missing, strict=True)]
    try:
        with quiet():
            return pl.Series(series.name, plain)
    except (*READER_ERRORS, TypeError, ValueError, ArithmeticError):
        place, remedy = f"column '{series.name}'", "give it one type: numbers, or text"
        raise SurveyError("data", place, "holds values of several types", remedy) from None
