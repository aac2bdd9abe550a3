"""What a file format is, and what all formats share: the opened file, and protection from native code on bad input.

A new format is a file of its own in this folder, with a `Format`, and a line in the list of `survey/files.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from svysynth.core.errors import file_error
from svysynth.core.safe_repr import outlined

CodeLabels = Mapping[str, str]

READER_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What reading with polars may raise; the text of these errors may quote the data and is never shown."""


@outlined
@dataclass(frozen=True)
class DataFile:
    """A data file whose header has been read: its columns, and the labels of values and variables that it carries."""

    path: Path
    format: str
    columns: tuple[str, ...]
    separator: str = ","
    value_labels: Mapping[str, CodeLabels] = field(default_factory=dict)
    variable_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def decimal_comma(self) -> bool:
        """Whether numbers have a decimal comma: files separated by semicolons come from places that write 1,5."""
        return self.format == "csv" and self.separator == ";"


@outlined
@dataclass(frozen=True)
class Format:
    """A file format: how files of these extensions are opened, read and written."""

    name: str
    extensions: tuple[str, ...]
    open: Callable[[Path], DataFile]
    """Reads the header."""
    read: Callable[[DataFile, list[str], int | None], pl.DataFrame]
    """Reads columns, of all rows or of the first ones."""
    write: Callable[[pl.DataFrame, Path, Mapping[str, CodeLabels] | None], None] | None = None
    """Writes a frame, with the labels of codes where the format has a place for them; None if it is only read."""
    folders: bool = False
    """Whether a folder can be read as one file."""


def refuse_too_large(path: Path, size: int) -> None:
    """Stop before reading a file that would not fit this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory / 3:
        raise file_error(path, "is too large for this machine's memory", "use fewer columns or a larger machine")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence standard error: when polars panics, its native code prints the data that it was working on."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
