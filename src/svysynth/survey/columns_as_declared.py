"""Columns as declared: bands, recodes, missing codes and labels, made from the columns of the file as a spec says.

What a record gets depends on that record alone. Row filters and domains see the columns of the file, before this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError, of_records
from svysynth.core.grouping import Integers
from svysynth.core.spec.columns import ColumnSpec, band_labels
from svysynth.core.spec.survey import SurveySpec
from svysynth.survey.columns import SLICE, as_text, codes_listed, distinct_values, number_text, without_codes
from svysynth.survey.formats.base import CodeLabels, DataFile

UNLISTED = "\x00"
"""Stands for a value without a band or recode; no level can have this name, because it cannot be printed."""

NO_NUMBER = (
    "not a finite number, and so in no band",
    "correct them, or list the codes of missing answers in 'missing' of this column's section",
)
NO_CODE = (
    "not among the codes of its 'recode'",
    "list every code there, or name the level in survey.other that replaces all other codes",
)
"""The problem and the remedy for values without a level."""


def label_column(name: str) -> str:
    """The column with the labels of a column's codes; no column of the data has such a name by chance."""
    return f"labels: {name}"


def columns_of_file(names: Iterable[str], spec: SurveySpec) -> list[str]:
    """The columns of the file that columns are made from."""
    labels = (spec.made(name).labels_from for name in names)
    return list(dict.fromkeys([*map(spec.source, names), *(column for column in labels if column)]))


def as_declared(frame: pl.DataFrame, names: Iterable[str], spec: SurveySpec, file: DataFile) -> dict[str, pl.Series]:
    """Columns as the spec declares them, from the columns of the file, with columns for labels that the file has."""
    found = {}
    for name in dict.fromkeys(names):
        own = spec.made(name)
        found[name] = _made(frame[spec.source(name)].alias(name), own, spec, file)
        if own.labels_from:
            found[label_column(name)] = frame[own.labels_from].alias(label_column(name))
    return found


def _made(series: pl.Series, own: ColumnSpec, spec: SurveySpec, file: DataFile) -> pl.Series:
    if own.missing:
        series = without_codes(series, own.missing, file)
    if own.bands:
        return _in_bands(series, own, file)
    if own.recode or (own.missing_level and spec.declared(series.name) is not None):
        codes = own.recode or spec.declared(series.name) or {}
        return _recoded(series, {code.strip(): own.recode.get(code, code.strip()) for code in codes}, own)
    return series if own.missing_level is None else _with_missing_level(series, own.missing_level)


def _in_bands(series: pl.Series, own: ColumnSpec, file: DataFile) -> pl.Series:
    """The band of each number; a band includes its lower end but not its upper end."""
    series = series.cast(pl.Float64) if series.dtype == pl.Null else series
    if series.dtype == pl.String:
        text = number_text(series, file)
        number = text.cast(pl.Float64, strict=False)
        is_missing = text.is_null() | number.is_nan().fill_null(value=False)
    elif series.dtype.is_numeric():
        number = series.cast(pl.Float64)
        is_missing = number.is_null() | number.is_nan().fill_null(value=False)
    else:
        problem, remedy = "is not numeric, and cannot be put in bands", "use 'recode' instead of 'bands'"
        raise SurveyError("data", f"column '{series.name}'", problem, remedy)
    labels = band_labels(own.bands)
    place = np.searchsorted(np.array(own.bands), number.fill_null(0.0).to_numpy(), side="right")
    place[~number.is_finite().fill_null(value=False).to_numpy()] = len(labels)
    place[is_missing.to_numpy()] = len(labels) + 1
    return pl.Series(series.name, [*labels, UNLISTED, own.missing_level], dtype=pl.String).gather(place)


def _recoded(series: pl.Series, labels: Mapping[str, str], own: ColumnSpec) -> pl.Series:
    """The label of each code."""
    series = blank_is_missing(series)
    distinct, text, unlisted = codes_listed(series, list(labels))
    label = text.replace_strict(labels, default=None, return_dtype=pl.String)
    label = label.set(unlisted, UNLISTED).set(distinct.is_null(), own.missing_level)
    return _replaced(series, distinct, label)


def _with_missing_level(series: pl.Series, level: str) -> pl.Series:
    """The codes as text, with the level of missing answers in the place of those that are missing."""
    series = blank_is_missing(series)
    distinct = distinct_values(series)
    return _replaced(series, distinct, as_text(distinct).fill_null(level))


def blank_is_missing(series: pl.Series) -> pl.Series:
    """The column with missing values in place of blank text and NaN."""
    if series.dtype.is_float():
        return series.fill_nan(None)
    if series.dtype in (pl.Categorical, pl.Enum, pl.Null):
        series = series.cast(pl.String)
    return series.set(series.str.strip_chars() == "", None) if series.dtype == pl.String else series


def _replaced(series: pl.Series, old: pl.Series, new: pl.Series) -> pl.Series:
    """Each value of a column replaced by another, a slice at a time."""
    slices = (series.slice(start, SLICE) for start in range(0, len(series), SLICE))
    return pl.concat([piece.replace_strict(old, new, return_dtype=pl.String) for piece in slices]).alias(series.name)


def refuse_unlisted(columns: Mapping[str, pl.Series], spec: SurveySpec, records: Integers | None = None) -> None:
    """Stop at values without a band or recode; `records` says how many records each value stands for, if not one."""
    for name in columns:
        own = spec.made(name)
        if own.levels is None or name in spec.other:
            continue
        bad = (columns[name] == UNLISTED).fill_null(value=False).to_numpy()
        count = np.ones(len(bad), np.int64) if records is None else records
        if bad.any():
            problem, remedy = NO_NUMBER if own.bands else NO_CODE
            problem = f"{of_records(int(count[bad].sum()), int(count.sum()))} {problem}"
            raise SurveyError("data", f"column '{name}'", problem, remedy)


def with_labels(file: DataFile, columns: Mapping[str, pl.Series], spec: SurveySpec) -> DataFile:
    """The file with value labels by the names of the columns that are made from it, those of other columns included."""
    labels = {name: file.value_labels.get(spec.source(name), {}) for name in columns}
    for name in columns:
        if spec.made(name).labels_from:
            labels[name] = _labels_of_codes(columns[name], columns[label_column(name)], spec.made(name))
    return replace(file, value_labels=labels)


def _labels_of_codes(codes: pl.Series, labels: pl.Series, own: ColumnSpec) -> CodeLabels:
    """The label of each code, from another column; codes and labels have to belong together one to one."""
    pairs = pl.DataFrame([blank_is_missing(codes).alias("code"), blank_is_missing(labels).alias("label")])
    pairs = pairs.drop_nulls("code").unique()
    pairs = pairs.select(as_text(pairs["code"]), as_text(pairs["label"])).unique()
    pairs = pairs.filter(pl.col("code") != (own.missing_level or ""))
    place = f"column '{own.labels_from}'"
    remedy = "correct them, or declare the labels in survey.labels"
    if pairs["label"].null_count():
        raise SurveyError("data", place, f"has no label for some codes of column '{codes.name}'", remedy)
    if pairs["code"].n_unique() < pairs.height or pairs["label"].n_unique() < pairs.height:
        problem = f"has several labels for a code of column '{codes.name}', or one label for several codes"
        raise SurveyError("data", place, problem, remedy)
    return dict(pairs.rows())
