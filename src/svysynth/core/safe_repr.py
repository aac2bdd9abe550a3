"""Safe repr: the text shown for an object that holds data: its class, its fields and their sizes, and never a value.

A notebook shows the last line of a cell, a debugger every local variable, a log whatever is written to it. So
`@outlined` decorates every dataclass and named tuple that has arrays, frames or columns, or a number from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def outlined(kind: type[Kind]) -> type[Kind]:
    """Let the outline be the `repr` of a class's objects.

    >>> from typing import NamedTuple
    >>> @outlined
    ... class Answer(NamedTuple):
    ...     salaries: tuple[float, ...]
    ...     largest: float
    >>> Answer((51_000.0, 88_000.0), 88_000.0)
    Answer(salaries: tuple of 2, largest: float)
    """
    kind.__repr__ = _outline  # type: ignore[method-assign]
    return kind


def _outline(thing: Any) -> str:
    fields: Iterable[str] = getattr(thing, "__dataclass_fields__", None) or thing._fields
    return f"{type(thing).__name__}({', '.join(f'{name}: {_size(getattr(thing, name, None))}' for name in fields)})"


def _size(value: Any) -> str:
    """The type of a value, and how long it is."""
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{kind} of {' × '.join(map(str, shape)) or 'one'}"
    if isinstance(value, Sized) and not isinstance(value, str):
        return f"{kind} of {len(value)}"
    return kind
