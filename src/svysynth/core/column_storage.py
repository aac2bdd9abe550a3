"""Columns: arrays that are read a slice at a time, from memory or from a file, or computed from other columns.

Functions that process records ask only for slices, so the same code serves a survey in memory and a survey on disk. A
stored column can be sent to another process, because it is a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from svysynth.core.engine import Engine, map_blocks
from svysynth.core.safe_repr import outlined


class Column(Protocol):
    """A column of numbers, one for each record; a NumPy array is such a column."""

    def __len__(self) -> int: ...

    def __getitem__(self, piece: Any, /) -> Any:
        """The numbers of a slice."""

    def __array__(self) -> Any:
        """All the numbers, in memory."""

    def take(self, positions: Any, /) -> Any:
        """The numbers of some records."""


@dataclass(frozen=True)
class Stored:
    """A column in a file: plain numbers, one after the other."""

    path: Path
    dtype: str
    length: int

    @classmethod
    def create(cls, path: Path, dtype: npt.DTypeLike, length: int) -> Stored:
        """An empty file of the right size, readable by its owner only, to be filled in any order."""
        column = cls(path, np.dtype(dtype).str, length)
        path.touch(mode=0o600)
        with path.open("r+b") as file:
            file.truncate(length * np.dtype(dtype).itemsize)
        return column

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, piece: slice) -> npt.NDArray[Any]:
        start, stop, step = piece.indices(self.length)
        size = np.dtype(self.dtype).itemsize
        found = np.fromfile(self.path, self.dtype, max(stop - start, 0), offset=start * size)
        return found[::step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def take(self, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers of some records, read one by one."""
        return np.asarray(np.memmap(self.path, self.dtype, "r", shape=(self.length,))[positions])

    def write(self, start: int, *pieces: npt.NDArray[Any]) -> None:
        """Write numbers from a given position on, one piece after the other."""
        with self.path.open("r+b") as file:
            file.seek(start * np.dtype(self.dtype).itemsize)
            for values in pieces:
                file.write(np.ascontiguousarray(values, self.dtype).data)


@outlined
@dataclass(frozen=True, eq=False)
class Derived:
    """A column computed from others, record by record, whenever a slice is asked for."""

    function: Callable[..., npt.NDArray[Any]]
    sources: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.sources[0])

    def __getitem__(self, piece: slice) -> npt.NDArray[Any]:
        return self.function(*(source[piece] for source in self.sources))

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        found = self[:]
        return found.astype(dtype or found.dtype, copy=False)

    def take(self, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers of some records."""
        return self.function(*(source.take(positions) for source in self.sources))


def derive(function: Callable[..., npt.NDArray[Any]], *sources: Column) -> Column:
    """A column from others: computed now if these are in memory, else whenever a slice is asked for."""
    if all(isinstance(source, np.ndarray) for source in sources):
        return function(*sources)
    return Derived(function, sources)


def look_up(key: npt.NDArray[Any], table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The entry of a table for each key: derives a column from a column of keys."""
    return np.asarray(table[key])


def compute_column(
    engine: Engine, function: Callable[[slice], npt.NDArray[Any]], length: int, path: Path | None
) -> Column:
    """A column of floats, block by block: in memory, or in a file where a path is given."""
    if path is None:
        column = np.empty(length)
        map_blocks(engine, _Fill(function, column), length)
        return column
    stored = Stored.create(path, np.float64, length)
    map_blocks(engine, _Fill(function, stored), length)
    return stored


@outlined
@dataclass(frozen=True)
class _Fill:
    function: Callable[[slice], npt.NDArray[Any]]
    column: Any

    def __call__(self, piece: slice) -> None:
        values = self.function(piece)
        if isinstance(self.column, Stored):
            self.column.write(piece.start, values)
        else:
            self.column[piece] = values
