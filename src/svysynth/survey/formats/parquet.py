"""Parquet: a file, or a folder of files read as one, with hive-style folders as columns."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from svysynth.core.errors import SurveyError, file_error
from svysynth.survey.formats.base import READER_ERRORS, CodeLabels, DataFile, Format, quiet, refuse_too_large

MOST_FOLDERS = 10_000
MOST_ROWS = 2**32 - 2


def open_parquet(path: Path) -> DataFile:
    """Read the schema."""
    try:
        with quiet():
            return DataFile(path, "parquet", tuple(_scan(path).collect_schema().names()))
    except READER_ERRORS:
        raise file_error(path, "is not a Parquet file", "write it again, and check that it is complete") from None


def read_parquet(file: DataFile, columns: list[str], rows: int | None) -> pl.DataFrame:
    """Read columns with the types they have."""
    try:
        with quiet():
            lazy = _scan(file.path)
            lazy = lazy if rows is None else lazy.head(rows)
            refuse_too_large(file.path, lazy.select(pl.len()).collect().item() * 8 * len(columns))
            return lazy.select(columns).collect()
    except READER_ERRORS:
        raise _damaged(file) from None


def write_parquet(frame: pl.DataFrame, path: Path, value_labels: Mapping[str, CodeLabels] | None = None) -> None:
    """Write a frame without value labels, and without statistics of its values."""
    frame.write_parquet(path, statistics=False)


def count_rows(file: DataFile) -> int:
    """How many rows there are, from the footers alone."""
    parts = _parts(file.path) if file.path.is_dir() else [file.path]
    try:
        with quiet():
            counts = (pl.scan_parquet(part, glob=False).select(pl.len()).collect().item() for part in parts)
            rows = sum(map(int, counts))
    except READER_ERRORS:
        raise _damaged(file) from None
    if rows > MOST_ROWS:  # polars counts rows in 32 bits
        raise file_error(file.path, f"has more than {MOST_ROWS:,} rows", "split it, and release each part by itself")
    return rows


def read_rows(file: DataFile, columns: list[str], rows: range) -> pl.DataFrame:
    """Read columns of some rows with the types they have."""
    try:
        with quiet():
            return _scan(file.path).select(columns).slice(rows.start, len(rows)).collect()
    except READER_ERRORS:
        raise _damaged(file) from None


def _damaged(file: DataFile) -> SurveyError:
    return file_error(file.path, "is damaged, or its parts have different columns", "write it again in one go")


def _scan(path: Path) -> pl.LazyFrame:
    if path.is_dir():
        return pl.scan_parquet(_parts(path), hive_partitioning=True, glob=False)
    return pl.scan_parquet(path, glob=False)


def _parts(folder: Path) -> list[Path]:
    """The files of a folder, in order."""
    parts = []
    walk = os.walk(folder)
    for where, _, names in itertools.islice(walk, MOST_FOLDERS):
        parts += [Path(where) / name for name in names if name.endswith(".parquet")]
    if not parts or next(walk, None) or not all(part.is_file() for part in parts):
        raise file_error(folder, "is not a folder of .parquet files", "name a data file, or a folder of Parquet files")
    return sorted(parts)


PARQUET = Format("parquet", (".parquet", ".pq"), open_parquet, read_parquet, write_parquet, folders=True)
