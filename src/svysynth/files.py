"""Readers and writers: CSV, Parquet (a file or a folder), SAS, Stata and SPSS in; CSV, Parquet, Stata and SPSS out.

Opening a file reads its header only; reading takes only the columns asked for. CSV fields arrive as text, so that
what a number is gets decided once, by role, in `survey.py`. Messages of the libraries underneath are never passed on:
they may quote the data.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from svysynth.errors import SurveyError

FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".sas7bdat": "sas",
    ".xpt": "xport",
    ".dta": "stata",
    ".sav": "spss",
    ".zsav": "spss",
}
READABLE = "csv, tsv, parquet (a file or a folder), sas7bdat, xpt, dta or sav"
MEASURABLE = {"sas": "read_sas7bdat", "xport": "read_xport", "stata": "read_dta", "spss": "read_sav"}
LARGEST_HEADER_BYTES = 8 * 2**20

COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}
WIDE_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")

CodeLabels = Mapping[str, str]


@dataclass(frozen=True)
class DataFile:
    """A data file whose header has been read: its columns and the value labels it carries."""

    path: Path
    format: str
    columns: tuple[str, ...]
    separator: str = ","
    value_labels: Mapping[str, CodeLabels] = field(default_factory=dict)

    @property
    def decimal_comma(self) -> bool:
        """Semicolon-separated files come from places that write 1,5 for one and a half."""
        return self.format == "csv" and self.separator == ";"


def open_data(path: str | Path) -> DataFile:
    """Read the header of a data file and check that it can be one."""
    path = Path(path)
    format_ = "parquet" if _is_folder(path) else FORMATS.get(path.suffix.lower())
    if format_ is None:
        raise _unreadable(path, "has an ending that says nothing about its format", f"use {READABLE}")
    if not _exists(path):
        raise _unreadable(path, "cannot be found", "check survey.data; a relative path starts at the spec's folder")
    if path.is_file() and path.stat().st_size == 0:
        raise _unreadable(path, "is empty", "export the file again")
    if not (path.is_file() or _is_folder(path)):
        raise _unreadable(path, "is not a regular file", f"use {READABLE}")
    match format_:
        case "csv":
            file = _open_csv(path)
        case "parquet":
            file = _open_parquet(path)
        case _:
            file = _open_statistical(path, format_)
    repeated = len(file.columns) - len(set(file.columns))
    if repeated:
        raise _unreadable(path, f"repeats {repeated} column name(s)", "give every column a name of its own")
    return file


def read_columns(file: DataFile, columns: Sequence[str], rows: int | None = None) -> pl.DataFrame:
    """Read some columns of an opened file, as they are: text for CSV, the file's own types otherwise.

    `rows` limits the reading to the start of the file.
    """
    wanted = list(dict.fromkeys(columns))
    match file.format:
        case "csv":
            return _read_csv(file, wanted, rows)
        case "parquet":
            return _read_parquet(file, wanted, rows)
        case _:
            frame, _ = _statistical(file.path, file.format, usecols=wanted, row_limit=rows or 0)
            return frame.select(wanted)


def write_frame(frame: pl.DataFrame, path: str | Path, value_labels: Mapping[str, CodeLabels] | None = None) -> None:
    """Write a frame in the format of the path's ending; the file appears complete or not at all.

    `value_labels` maps a column's codes to their labels. Stata and SPSS keep codes and labels apart; CSV and Parquet
    have no place for labels and get the frame as it is.
    """
    path = Path(path)
    match FORMATS.get(path.suffix.lower()):
        case "csv":
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            safe = frame.with_columns(_no_formulas(pl.col(pl.String, pl.Enum, pl.Categorical)))
            with appearing(path) as target:
                safe.write_csv(target, separator=separator)
        case "parquet":
            with appearing(path) as target:
                frame.write_parquet(target, statistics=False)
        case "stata":
            _write_statistical(frame, path, "write_dta", value_labels)
        case "spss":
            _write_statistical(frame, path, "write_sav", value_labels)
        case _:
            raise _unreadable(path, "has an ending that cannot be written", "use csv, parquet, dta or sav")


@contextlib.contextmanager
def appearing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name only when the block ends well.

    What is written from confidential data is readable by its owner only.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".svysynth-", suffix=path.suffix, dir=path.parent)
    except OSError:
        raise _unreadable(path, "cannot be written", "check that the folder exists and can be written to") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError:
        raise _unreadable(path, "cannot be written", "check the free space and the permissions there") from None
    finally:
        temporary.unlink(missing_ok=True)


def _is_folder(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return path.is_dir()
    return False


def _exists(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return path.exists()
    return False


def _unreadable(path: Path, problem: str, remedy: str) -> SurveyError:
    return SurveyError("file", f"file '{path.name or path}'", problem, remedy)


# --- CSV ---


def _open_csv(path: Path) -> DataFile:
    try:
        with path.open("rb") as file:
            start = file.read(8)
            for magic, name in COMPRESSED.items():
                if start.startswith(magic):
                    raise _unreadable(path, f"is compressed ({name})", "decompress it first, or use Parquet")
            if start.startswith(WIDE_ENCODINGS):
                raise _unreadable(path, "is UTF-16 text", "save it as UTF-8")
            file.seek(0)
            header = _header_record(file.read)
    except OSError:
        raise _unreadable(path, "cannot be read", "check its permissions") from None
    if header is None:
        raise _unreadable(path, "has no end to its first line", "check that it is a CSV file with a header")
    return _parse_header(path, header)


def _header_record(read: Callable[[int], bytes]) -> bytes | None:
    """The first record: up to a line end outside quotes; None when there is none within reason."""
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
        raise _unreadable(path, "is not UTF-8 text", "save it as UTF-8") from None
    if "\0" in text:
        raise _unreadable(path, "has NUL bytes in its header", "check that it is a CSV file, saved as UTF-8")
    if "\r" in text.replace("\r\n", "\n"):
        raise _unreadable(path, "ends its lines with a bare carriage return", "save it with LF or CRLF line ends")
    separator = max(",;\t|", key=lambda mark: (text.count(mark), mark == ","))
    csv.field_size_limit(LARGEST_HEADER_BYTES)
    columns = tuple(next(csv.reader([text], delimiter=separator), []))
    if not any(column.strip() for column in columns):
        raise _unreadable(path, "has an empty first line", "put the column names there")
    if all(_looks_numeric(column) for column in columns):
        raise _unreadable(path, "has numbers where its column names should be", "add a header line")
    return DataFile(path, "csv", columns, separator)


def _looks_numeric(text: str) -> bool:
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return False


def _read_csv(file: DataFile, columns: list[str], rows: int | None) -> pl.DataFrame:
    if rows is None:
        _check_memory(file, file.path.stat().st_size)
    lazy = pl.scan_csv(file.path, infer_schema=False, separator=file.separator, glob=False, n_rows=rows)
    try:
        return lazy.select(columns).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        raise _unreadable(file.path, *_csv_trouble(file.path)) from None


def _csv_trouble(path: Path) -> tuple[str, str]:
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


_FORMULA = r"^[=+\-@\t\r]"
_SIGNED_NUMBER = r"^[+\-][0-9.,]+$"


def _no_formulas(text: pl.Expr) -> pl.Expr:
    """Put an apostrophe before text that a spreadsheet would run as a formula."""
    plain = text.cast(pl.String)
    dangerous = plain.str.contains(_FORMULA) & ~plain.str.contains(_SIGNED_NUMBER)
    return pl.when(dangerous).then(pl.lit("'") + plain).otherwise(plain).name.keep()


# --- Parquet ---


def _scan_parquet(path: Path) -> pl.LazyFrame:
    if _is_folder(path):
        if not any(path.rglob("*.parquet")):
            raise _unreadable(path, "is a folder without .parquet files", f"use {READABLE}")
        return pl.scan_parquet(path / "**/*.parquet", hive_partitioning=True)
    return pl.scan_parquet(path, glob=False)


def _open_parquet(path: Path) -> DataFile:
    try:
        return DataFile(path, "parquet", tuple(_scan_parquet(path).collect_schema().names()))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        raise _unreadable(path, "is not a Parquet file", "write it again, and check that it is complete") from None


def _read_parquet(file: DataFile, columns: list[str], rows: int | None) -> pl.DataFrame:
    try:
        lazy = _scan_parquet(file.path)
        lazy = lazy if rows is None else lazy.head(rows)
        _check_memory(file, lazy.select(pl.len()).collect().item() * 8 * len(columns))
        return lazy.select(columns).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        raise _unreadable(
            file.path, "is damaged, or its parts have different columns", "write it again in one go"
        ) from None


def _check_memory(file: DataFile, size: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory / 3:
        raise _unreadable(file.path, "is too large for this machine's memory", "use Parquet, or a larger machine")


# --- SAS, Stata, SPSS ---


def _pyreadstat() -> Any:
    try:
        import pyreadstat
    except ImportError:
        raise SurveyError(
            "file", "SAS, Stata and SPSS files", "need the extra `files`", "run pip install 'svysynth[files]'"
        ) from None
    return pyreadstat


def _statistical(path: Path, format_: str, **options: Any) -> tuple[pl.DataFrame, Any]:
    read = getattr(_pyreadstat(), MEASURABLE[format_])
    try:
        frame, meta = read(str(path), output_format="polars", disable_datetime_conversion=True, **options)
    except Exception:  # the reader raises many kinds, and their text may quote the file
        raise _unreadable(
            path,
            f"cannot be read as {format_.upper()}",
            "check that it is complete and that its ending is right",
        ) from None
    return frame, meta


def _open_statistical(path: Path, format_: str) -> DataFile:
    _, meta = _statistical(path, format_, metadataonly=True)
    labels = {
        column: {code_text(code): str(label) for code, label in labels.items()}
        for column, labels in meta.variable_value_labels.items()
    }
    return DataFile(path, format_, tuple(meta.column_names), value_labels=labels)


def code_text(code: Any) -> str:
    """A category's code as text, the same for 1, 1.0 and '1'.

    >>> code_text(1.0), code_text("01"), code_text(2)
    ('1', '01', '2')
    """
    return str(int(code)) if isinstance(code, float) and code.is_integer() else str(code).strip()


def _write_statistical(
    frame: pl.DataFrame, path: Path, writer: str, value_labels: Mapping[str, CodeLabels] | None
) -> None:
    """Write codes that are whole numbers as numbers with labels, and other categories as their text."""
    coded: dict[str, dict[int, str]] = {}
    for column, labels in (value_labels or {}).items():
        if column in frame.columns and all(re.fullmatch(r"-?\d{1,9}", code) for code in labels):
            coded[column] = {int(code): label for code, label in labels.items()}
            codes = {label: int(code) for code, label in labels.items()}
            frame = frame.with_columns(
                pl.col(column).cast(pl.String).replace_strict(codes, return_dtype=pl.Int32).alias(column)
            )
    text = [column for column, dtype in frame.schema.items() if dtype in (pl.Enum, pl.Categorical)]
    frame = frame.with_columns(pl.col(text).cast(pl.String))
    with appearing(path) as target:
        try:
            getattr(_pyreadstat(), writer)(frame, str(target), variable_value_labels=coded)
        except SurveyError:
            raise
        except Exception:
            raise _unreadable(
                path, "cannot hold this table", "use short column names of letters and digits, or write CSV"
            ) from None
