"""SAS, Stata and SPSS files, read through pyreadstat in a separate process.

The C library underneath can crash on a damaged file and trusts the sizes that a header claims. So a child process reads
the file and sends the columns back through a pipe; if the child crashes, that is one error here. The child is
`python -m svysynth.survey.formats.statistical FORMAT PATH ROWS COLUMNS`.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

from svysynth.core.errors import SurveyError, debugging, file_error
from svysynth.survey.formats.base import CodeLabels, DataFile, Format, refuse_too_large

READERS = {"sas": "read_sas7bdat", "xport": "read_xport", "stata": "read_dta", "spss": "read_sav"}
MOST_CELLS_PER_BYTE = {"sas": 1000, "xport": 1, "stata": 1, "spss": 1000}
"""No file holds more values than this for each of its bytes; a header that claims more is damaged."""
SECONDS = 600


def open_statistical(format_: str, path: Path) -> DataFile:
    """Read the header: column names, and the labels of values and variables."""
    header = json.loads(_ask_child(path, format_, 0, None))
    if header["rows"] * len(header["columns"]) > path.stat().st_size * MOST_CELLS_PER_BYTE[format_]:
        raise _damaged(path, format_)
    labels = {column: dict(pairs) for column, pairs in header["labels"].items()}
    return DataFile(
        path, format_, tuple(header["columns"]), value_labels=labels, variable_labels=header["variable_labels"]
    )


def read_statistical(file: DataFile, columns: list[str], rows: int | None) -> pl.DataFrame:
    """Read columns with the types they have."""
    refuse_too_large(file.path, file.path.stat().st_size)
    content = _ask_child(file.path, file.format, rows or 0, columns)
    return pl.read_ipc_stream(io.BytesIO(content)).select(columns)


def code_text(code: Any) -> str:
    """A category's code as text, the same for 1, 1.0 and '1'.

    >>> code_text(1.0), code_text("01"), code_text(2)
    ('1', '01', '2')
    """
    return str(int(code)) if isinstance(code, float) and code.is_integer() else str(code).strip()


def write_statistical(frame: pl.DataFrame, path: Path, value_labels: Mapping[str, CodeLabels] | None = None) -> None:
    """Write codes that are whole numbers as numbers with labels, and other categories as their text."""
    _require_pyreadstat()
    import pyreadstat

    coded: dict[str, dict[int | float, str]] = {}
    for column, labels in (value_labels or {}).items():
        if column in frame.columns and all(re.fullmatch(r"-?\d{1,9}", code) for code in labels):
            coded[column] = {int(code): label for code, label in labels.items()}
            codes = {label: int(code) for code, label in labels.items()}
            frame = frame.with_columns(pl.col(column).cast(pl.String).replace_strict(codes, return_dtype=pl.Int32))
    text = [column for column, dtype in frame.schema.items() if dtype in (pl.Enum, pl.Categorical)]
    write = pyreadstat.write_dta if path.suffix.lower() == ".dta" else pyreadstat.write_sav
    try:
        write(frame.with_columns(pl.col(text).cast(pl.String)), str(path), variable_value_labels=coded)
    except (pyreadstat.PyreadstatError, pyreadstat.ReadstatError, ArithmeticError, LookupError, TypeError, ValueError):
        remedy = "use short column names of letters and digits, or write CSV"
        place = f"the format of '{path.suffix.lower()}' files"
        raise SurveyError("file", place, "cannot hold this table", remedy) from None


def _require_pyreadstat() -> None:
    if find_spec("pyreadstat") is None:
        place = "SAS, Stata and SPSS files"
        raise SurveyError("file", place, "need the extra `files`", "run pip install 'svysynth[files]'")


def _damaged(path: Path, format_: str) -> SurveyError:
    remedy = "check that it is complete and that its ending is right"
    return file_error(path, f"cannot be read as {format_.upper()}", remedy)


def _ask_child(path: Path, format_: str, rows: int, columns: list[str] | None) -> bytes:
    _require_pyreadstat()
    command = [sys.executable, "-m", __name__, format_, str(path), str(rows), json.dumps(columns)]
    try:
        # the child's messages may quote the data: only a developer sees them
        heard = None if debugging() else subprocess.DEVNULL
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=heard, timeout=SECONDS, check=True)  # noqa: S603
    except (subprocess.SubprocessError, OSError, ValueError):
        raise _damaged(path, format_) from None
    return done.stdout


def _child(format_: str, path: str, rows: str, columns: str) -> bytes:
    import pyreadstat

    read = getattr(pyreadstat, READERS[format_])
    wanted = json.loads(columns)
    if wanted is None:
        _, meta = read(path, metadataonly=True)
        labels = {
            column: [(code_text(code), str(label)) for code, label in pairs.items()]
            for column, pairs in meta.variable_value_labels.items()
        }
        names = {column: str(label) for column, label in meta.column_names_to_labels.items() if label}
        header = {"columns": meta.column_names, "labels": labels, "variable_labels": names}
        return json.dumps(header | {"rows": meta.number_rows or 0}).encode()
    options = {"output_format": "polars", "disable_datetime_conversion": True}
    frame, _ = read(path, usecols=wanted, row_limit=int(rows), **options)
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer)
    return buffer.getvalue()


SAS, XPORT = (
    Format(name, (extension,), partial(open_statistical, name), read_statistical)
    for name, extension in (("sas", ".sas7bdat"), ("xport", ".xpt"))
)
STATA, SPSS = (
    Format(name, extensions, partial(open_statistical, name), read_statistical, write_statistical)
    for name, extensions in (("stata", (".dta",)), ("spss", (".sav", ".zsav")))
)


if __name__ == "__main__":
    sys.stdout.buffer.write(_child(*sys.argv[1:]))
