"""CSV: UTF-8 with a header, separated by commas, semicolons, tabs or bars. Fields are read as text."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from svysynth.core.errors import file_error
from svysynth.survey.formats.base import READER_ERRORS, CodeLabels, DataFile, Format, quiet, refuse_too_large

LARGEST_HEADER_BYTES = 8 * 2**20
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x78\x01": "zlib",
    b"\x78\x9c": "zlib",
    b"\x78\xda": "zlib",
}
WIDE_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")


def open_csv(path: Path) -> DataFile:
    """Read the header line."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            for magic, name in COMPRESSED.items():
                if start.startswith(magic):
                    raise file_error(path, f"is compressed ({name})", "decompress it first, or use Parquet")
            if start.startswith(WIDE_ENCODINGS):
                raise file_error(path, "is UTF-16 text", "save it as UTF-8")
            file.seek(0)
            header = _first_record(file.read)
    except OSError:
        raise file_error(path, "cannot be read", "check its permissions") from None
    if header is None:
        raise file_error(path, "has no end to its first line", "check that it is a CSV file with a header")
    return _parse_header(path, header)


def _first_record(read: Callable[[int], bytes]) -> bytes | None:
    """The bytes up to a line end outside quotes; None if the first LARGEST_HEADER_BYTES have no such line end."""
    seen = bytearray()
    quoted = False
    while len(seen) < LARGEST_HEADER_BYTES:
        chunk = read(2**20)
        if not chunk:
            return bytes(seen)
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            quoted ^= chunk.count(b'"', start, end) % 2 == 1
            if not quoted:
                return bytes(seen) + chunk[:end]
            start = end + 1
        quoted ^= chunk.count(b'"', start) % 2 == 1
        seen += chunk
    return None


def _parse_header(path: Path, header: bytes) -> DataFile:
    try:
        text = header.decode("utf-8-sig").rstrip("\r")
    except UnicodeDecodeError:
        raise file_error(path, "is not UTF-8 text", "save it as UTF-8") from None
    if "\0" in text or "\ufeff" in text:
        raise file_error(path, "has NUL bytes or byte order marks in its header", "save it as UTF-8 text again")
    if "\r" in text.replace("\r\n", "\n"):
        raise file_error(path, "ends its lines with a bare carriage return", "save it with LF or CRLF line ends")
    unquoted = re.sub(r'"[^"]*"', "", text)
    separator = max(",;\t|", key=lambda mark: (unquoted.count(mark), mark == ","))
    csv.field_size_limit(LARGEST_HEADER_BYTES)
    try:
        columns = tuple(next(csv.reader([text], delimiter=separator, strict=True), []))
    except csv.Error:
        raise file_error(path, "has a stray quotation mark in its header", 'write it as "" inside quotes') from None
    if not any(column.strip() for column in columns):
        raise file_error(path, "has an empty first line", "put the column names there")
    _refuse_missing_header(path, columns)
    return DataFile(path, "csv", columns, separator)


def _refuse_missing_header(path: Path, columns: Sequence[str]) -> None:
    """Stop if there is no header: the first record would be taken for column names, which are shown and written."""
    numbers = [column for column in columns if _is_number(column)]
    fractions = [column for column in numbers if not column.strip().isdecimal()]
    if fractions or 2 * len(numbers) >= len(columns):
        raise file_error(path, "has numbers where its column names should be", "add a header line")


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return False


def read_csv(file: DataFile, columns: list[str], rows: int | None) -> pl.DataFrame:
    """Read columns as text; blank lines at the end are not records."""
    if rows is None:
        refuse_too_large(file.path, file.path.stat().st_size)
    try:
        with quiet():
            lazy = pl.scan_csv(
                file.path,
                infer_schema=False,
                separator=file.separator,
                glob=False,
                n_rows=rows,
                with_column_names=lambda _: list(file.columns),
            )
            # All columns are parsed, in a stream: a reader that skips some does not notice rows with too many fields.
            everything = pl.QueryOptFlags(projection_pushdown=False)
            frame = lazy.select(columns).collect(engine="streaming", optimizations=everything)
    except READER_ERRORS:
        raise file_error(file.path, *_trouble(file.path)) from None
    return _without_blank_end(frame)


def _without_blank_end(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height == 0 or frame[-1].null_count().sum_horizontal().item() < frame.width:
        return frame
    filled = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
    return frame.head(int(filled[-1]) + 1 if len(filled) else 0)


def _trouble(path: Path) -> tuple[str, str]:
    """Why a CSV file could not be read, and what to do about it."""
    with contextlib.suppress(OSError):
        try:
            with path.open(encoding="utf-8") as text:
                while text.read(2**20):
                    pass
        except UnicodeDecodeError:
            return "is not UTF-8 text", "save it as UTF-8"
    return (
        "has rows that do not fit its header",
        "look for rows with too many fields and for quotation marks that are not closed",
    )


_FORMULA = r"^'*[=+\-@\t\r＝＋－＠]"
_SIGNED_NUMBER = r"^[+\-][0-9.,]+$"


def write_csv(frame: pl.DataFrame, path: Path, value_labels: Mapping[str, CodeLabels] | None = None) -> None:
    """Write a frame without value labels; text that a spreadsheet would run as a formula gets an apostrophe before it.

    Such text that starts with apostrophes already gets one more. So removing one apostrophe from text that starts with
    apostrophes and one of the signs always restores the original.
    """
    as_written(frame).write_csv(path, separator="\t" if path.suffix.lower() == ".tsv" else ",")


def as_written(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame with its text as `write_csv` writes it."""
    safe = frame.with_columns(_no_formulas(pl.col(pl.String, pl.Enum, pl.Categorical)))
    return safe.rename({name: guarded(name) for name in frame.columns})


def guarded(name: str) -> str:
    """A column's name as it is written."""
    return "'" + name if re.match(_FORMULA, name) else name


def _no_formulas(text: pl.Expr) -> pl.Expr:
    plain = text.cast(pl.String)
    dangerous = plain.str.contains(_FORMULA) & ~plain.str.contains(_SIGNED_NUMBER)
    return pl.when(dangerous).then(pl.lit("'") + plain).otherwise(plain).name.keep()


CSV = Format("csv", (".csv", ".tsv"), open_csv, read_csv, write_csv)
