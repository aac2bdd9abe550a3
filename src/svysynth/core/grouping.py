"""Groups: number the distinct keys of records, and add up values within each group.

Keys of records are 32-bit where they fit, and are worked on in chunks: a survey of 10⁷ records should cost little more
memory than its own columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.integer[Any]]

CHUNK = 2**16
"""Records worked on at a time: small enough to stay in the processor's cache."""


MOST_WHOLE = 2**53
"""Floats represent every whole number up to this one exactly."""


def smallest_integer(bound: int) -> type[np.int32 | np.int64]:
    """The type that holds 0 … bound − 1."""
    return np.int32 if bound <= 2**31 else np.int64


def count_keys(key: Integers, bound: int) -> Integers:
    """How often each of 0 … bound − 1 occurs."""
    if len(key) <= max(CHUNK, bound):
        return np.bincount(key, minlength=bound)
    count = np.zeros(bound, np.int64)
    for start in range(0, len(key), CHUNK):
        count += np.bincount(key[start : start + CHUNK], minlength=bound)
    return count


def group_ids(key: Integers, bound: int) -> tuple[Integers, Integers]:
    """The distinct keys, sorted, and for each element the position of its key among them; 0 ≤ key < bound."""
    if bound > 4 * len(key) + 1024:
        keys: Integers
        group: Integers
        keys, group = np.unique(key, return_inverse=True)
        return keys, group
    present = count_keys(key, bound) > 0
    if present.all():
        return np.arange(bound), key
    position: Integers = (np.cumsum(present) - 1).astype(smallest_integer(bound))
    return np.flatnonzero(present), position[key]


def group_sums(group: Integers, groups: int, values: npt.ArrayLike) -> Floats:
    """Σ values within each group, in the order of the records."""
    return np.asarray(np.bincount(group, np.asarray(values, np.float64), minlength=groups), np.float64)


def whole_sums(group: Integers, groups: int, values: Floats, largest: int) -> Integers:
    """Σ values within each group, exactly: values are whole numbers, none of them beyond ±largest.

    Sums are computed in floats, which represent whole numbers up to 2⁵³ exactly: no partial sum may exceed that.
    """
    if len(values) * largest > MOST_WHOLE:
        raise ValueError("too many records for exact sums")
    return np.bincount(group, values, minlength=groups).astype(np.int64)


def whole_product(one: Floats, other: Floats, largest: int) -> int:
    """Σ one·other, exactly: both are whole numbers, and no product is beyond ±largest."""
    if len(one) * largest > MOST_WHOLE:
        raise ValueError("too many records for exact sums")
    return int(np.einsum("i,i", one, other))  # in this thread, where BLAS would start others
