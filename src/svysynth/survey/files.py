"""Readers and writers: CSV, Parquet (a file or a folder), SAS, Stata and SPSS in; CSV, Parquet, Stata and SPSS out.

Opening a file reads its header only; reading takes only the columns asked for. Messages of the libraries underneath
are never passed on: they may quote the data. What is written appears complete or not at all.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from svysynth.core.errors import SurveyError, file_error
from svysynth.core.hidden_folders import appearing, in_hiding
from svysynth.survey.formats.base import CodeLabels, DataFile, Format
from svysynth.survey.formats.csv import CSV
from svysynth.survey.formats.parquet import PARQUET
from svysynth.survey.formats.statistical import SAS, SPSS, STATA, XPORT

FORMATS = (CSV, PARQUET, SAS, XPORT, STATA, SPSS)
"""The file formats. A new one is a file in `formats/` and one entry here."""
READABLE = "csv, tsv, parquet (a file or a folder), sas7bdat, xpt, dta or sav"


def open_data(path: str | Path) -> DataFile:
    """Read the header of a data file and check that it can be one."""
    path = Path(path)
    kind = _kind(path)
    format_ = PARQUET if kind == "folder" else _format_of(path)
    if format_ is None:
        raise file_error(path, "has no file extension that tells its format", f"use {READABLE}")
    if kind == "missing":
        raise file_error(path, "cannot be found", "check survey.data; a relative path starts at the spec's folder")
    if kind == "special":
        raise file_error(path, "is not a regular file", f"use {READABLE}")
    if kind == "file" and path.stat().st_size == 0:
        raise file_error(path, "is empty", "export the file again")
    file = format_.open(path)
    repeated = len(file.columns) - len(set(file.columns))
    if repeated:
        raise file_error(path, f"repeats {repeated} column name(s)", "give every column a name of its own")
    return file


def read_columns(file: DataFile, columns: Sequence[str], rows: int | None = None) -> pl.DataFrame:
    """Read some columns of an opened file, as they are: text for CSV, the file's own types otherwise.

    `rows` limits the reading to the start of the file.
    """
    format_ = next(format_ for format_ in FORMATS if format_.name == file.format)
    return format_.read(file, list(dict.fromkeys(columns)), rows)


def write_frame(frame: pl.DataFrame, path: str | Path, value_labels: Mapping[str, CodeLabels] | None = None) -> None:
    """Write a frame in the format of the path's extension; the file appears complete or not at all.

    `value_labels` maps a column's codes to their labels. Stata and SPSS keep codes and labels apart; CSV and Parquet
    have no place for labels and get the frame as it is.
    """
    path = Path(path)
    format_ = _format_of(path)
    if format_ is None or format_.write is None:
        raise file_error(path, "cannot be written with this file extension", "use csv, parquet, dta or sav")
    with appearing(path) as target:
        format_.write(frame, target, value_labels)


def write_parts(frames: Iterable[pl.DataFrame], path: Path) -> None:
    """Write a file whose rows come in one or more frames; several make a Parquet file, with few in memory at a time."""
    first, *others = itertools.islice(frames := iter(frames), 2)
    if not others:
        write_frame(first, path)
        return

    def gather(folder: Path) -> None:
        parts = []
        for number, frame in enumerate(itertools.chain([first, *others], frames)):
            parts.append(folder / f"{number:06}.parquet")
            frame.write_parquet(parts[-1], statistics=False)
        with appearing(path) as target:
            pl.scan_parquet(parts, glob=False).sink_parquet(target, statistics=False, maintain_order=True)

    in_hiding(path.parent, gather)


def refuse_overwriting(target: Path, *sources: Path) -> None:
    """Stop before a result overwrites a file that it was made from, or is added to a folder that is read as data."""
    for source in sources:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            original, place = source.resolve(), target.resolve()
            if place == original or (original in place.parents and place.suffix == ".parquet"):
                raise SurveyError("file", f"file '{target.name}'", "is an input of this run", "choose another name")


def _format_of(path: Path) -> Format | None:
    return next((format_ for format_ in FORMATS if path.suffix.lower() in format_.extensions), None)


def _kind(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if path.is_dir():
            return "folder"
        if path.is_file():
            return "file"
        if path.exists():
            return "special"
    return "missing"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as indented JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
