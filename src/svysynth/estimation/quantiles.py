"""Quantiles: values at which a weighted distribution function reaches given shares, exactly, also of files on disk.

A distribution function F is inverted for every row of a table. The rule `math` gives the smallest value with F ≥ p. The
rule `school` gives the mean of this value and the next one if F = p there. They are R's `qrule`s of these names.

Values are searched by their order as 64-bit numbers. While an interval that holds the value has too many records for
memory, the records in it are counted into classes, and the interval shrinks to the class that holds the value. The last
records are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from svysynth.core.column_storage import Column
from svysynth.core.engine import Engine, each_block
from svysynth.core.grouping import Booleans, Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import QuantileRule

Keys = npt.NDArray[np.uint64]
"""Numbers in the order of the values that they stand for."""
SORTED_AT_ONCE = 2**21
"""How many records are sorted in memory at the end."""
MOST_CLASSES = 2**16
"""How many classes there are in one pass, over all rows: a block of results is a megabyte."""
ROUNDING = 1e-12
"""A sum of weights that differs by less than this fraction of the total counts as equal to the wanted one."""
SIGN, ALL_BITS = np.uint64(2**63), np.uint64(2**64 - 1)


def to_keys(values: Floats) -> Keys:
    """Keys of finite values.

    >>> to_keys(np.array([-2.0, -1.0, 0.0, 1.0])).argsort().tolist(), to_values(to_keys(np.array([-0.5, 3.0]))).tolist()
    ([0, 1, 2, 3], [-0.5, 3.0])
    """
    bits = (np.asarray(values, np.float64) + 0.0).view(np.uint64)  # −0 becomes 0
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def to_values(keys: Keys) -> Floats:
    """The values of keys."""
    return np.where(keys & SIGN, keys ^ SIGN, ~keys).view(np.float64)


@outlined
@dataclass(frozen=True, eq=False)
class Distribution:
    """The weighted distribution of the outcome in each row of a table."""

    row: Column
    """The row of each record. The last row is for records that are in none, and has no quantiles."""
    value: Column
    weight: Column
    total: Floats
    """Σw of each row."""
    count: Integers
    engine: Engine

    def quantiles(self, shares: Floats, rule: QuantileRule) -> Floats:
        """The quantiles for shares in a matrix, question × row; NaN where the share is NaN or the row is empty."""
        known = np.isfinite(shares) & (self.total > 0)
        wanted = np.where(known, np.clip(shares, 0, 1), 0) * self.total
        found = self._reach(known, wanted * (1 - ROUNDING))
        values = to_values(found.key)
        if rule == "school":
            equal = known & (np.abs(found.sum - wanted) <= ROUNDING * self.total)
            values = np.where(equal, (values + to_values(self._next(found.key, equal))) / 2, values)
        return np.where(known, values, np.nan)

    def _reach(self, known: Booleans, wanted: Floats) -> _Reached:
        """The first key at which Σw of the records up to it is the wanted sum or more, and this Σw."""
        whole = np.zeros(wanted.shape, np.uint64), np.full(wanted.shape, ALL_BITS)
        search = _Search(*whole, np.zeros(wanted.shape), self.total * known, self.count * known)
        while search.inside.sum() > SORTED_AT_ONCE and search.open.any():
            search = self._narrowed(search, wanted)
        return self._sorted(search, wanted)

    def _narrowed(self, search: _Search, wanted: Floats) -> _Search:
        questions, rows = wanted.shape
        classes = int(np.clip(MOST_CLASSES // (questions * rows), 16, 4096)).bit_length() - 1
        width = np.array([int(size).bit_length() for size in (search.high - search.low).ravel()]).reshape(wanted.shape)
        shift = np.maximum(width - classes, 0).astype(np.uint64)
        counted = _Counted(self.row, self.value, self.weight, search, shift, 2**classes)
        sums = reduce(_added, each_block(self.engine, counted, len(self.row)))
        weight, count = (part.reshape(*wanted.shape, 2**classes) for part in sums)
        reached = search.below[..., np.newaxis] + np.cumsum(weight, axis=-1)
        enough = (reached >= wanted[..., np.newaxis]) & (count > 0)
        last = 2**classes - 1 - np.argmax(count[..., ::-1] > 0, axis=-1)  # rounding may leave the sum of all too small
        place = np.where(enough.any(axis=-1), np.argmax(enough, axis=-1), last)
        at = place[..., np.newaxis]
        through, own, records = (np.take_along_axis(each, at, -1)[..., 0] for each in (reached, weight, count))
        low = search.low + (place.astype(np.uint64) << shift)
        high = np.minimum(search.high, low + ((np.uint64(1) << shift) - np.uint64(1)))
        open_ = search.open
        return _Search(
            np.where(open_, low, search.low),
            np.where(open_, high, search.high),
            np.where(open_, through - own, search.below),
            np.where(open_, through, search.through),
            np.where(open_ & (low < high), records, 0).astype(np.int64),
        )

    def _sorted(self, search: _Search, wanted: Floats) -> _Reached:
        """The answers, from the records that are left."""
        if not search.open.any():
            return _Reached(search.low, search.through)
        left = _Left(self.row, self.value, self.weight, search)
        parts = list(each_block(self.engine, left, len(self.row)))
        question, key, weight = (np.concatenate([part[place] for part in parts]) for place in range(3))
        order = np.lexsort((key, question))
        question, key, weight = question[order], key[order], weight[order]
        found, sums = search.low.copy().ravel(), search.through.copy().ravel()
        below, wanted = search.below.ravel(), wanted.ravel()
        asked, starts = np.unique(question, return_index=True)
        for one, start, stop in zip(asked, starts, [*starts[1:], len(question)], strict=True):
            reached = below[one] + np.cumsum(weight[start:stop])
            place = min(int(np.searchsorted(reached, wanted[one])), stop - start - 1)
            found[one] = key[start + place]
            sums[one] = reached[np.searchsorted(key[start:stop], found[one], side="right") - 1]
        return _Reached(found.reshape(search.low.shape), sums.reshape(search.low.shape))

    def _next(self, key: Keys, asked: Booleans) -> Keys:
        """The next larger key in each row, or the same key if there is none."""
        above = _Above(self.row, self.value, key, asked)
        found = reduce(np.minimum, each_block(self.engine, above, len(self.row))) if asked.any() else key
        return np.where(found == ALL_BITS, key, found)


@outlined
class _Reached(NamedTuple):
    key: Keys
    sum: Floats


@outlined
@dataclass(frozen=True, eq=False)
class _Search:
    """For each question and row: the interval of keys that holds the answer."""

    low: Keys
    high: Keys
    below: Floats
    """Σw of the records below the interval."""
    through: Floats
    """Σw of the records up to the end of the interval."""
    inside: Integers
    """The number of records in the interval, or 0 if it is a single key."""

    @property
    def open(self) -> Booleans:
        """Where the answer is not known yet."""
        return np.asarray(self.inside > 0)

    def holds(self, question: int, row: Integers, key: Keys) -> Booleans:
        """Which records are in the open intervals of a question."""
        inside = self.open[question][row] & (key >= self.low[question][row]) & (key <= self.high[question][row])
        return np.asarray(inside)


@outlined
@dataclass(frozen=True)
class _Counted:
    """For a block: Σw and the number of records in the classes of each interval."""

    row: Column
    value: Column
    weight: Column
    search: _Search
    shift: Keys
    classes: int

    def __call__(self, piece: slice) -> tuple[Floats, Floats]:
        row, key, weight = self.row[piece], to_keys(self.value[piece]), self.weight[piece]
        questions, rows = self.shift.shape
        sums, counts = np.zeros((2, questions, rows * self.classes))
        for question in range(questions):
            chosen = np.flatnonzero(self.search.holds(question, row, key))
            own = row[chosen]
            place = (key[chosen] - self.search.low[question][own]) >> self.shift[question][own]
            place = own.astype(np.int64) * self.classes + place.astype(np.int64)
            sums[question] = group_sums(place, rows * self.classes, weight[chosen])
            counts[question] = np.bincount(place, minlength=rows * self.classes)
        return sums, counts


@outlined
@dataclass(frozen=True)
class _Left:
    """For a block: question × row, key and weight of the records in the open intervals."""

    row: Column
    value: Column
    weight: Column
    search: _Search

    def __call__(self, piece: slice) -> tuple[Integers, Keys, Floats]:
        row, key, weight = self.row[piece], to_keys(self.value[piece]), self.weight[piece]
        questions, rows = self.search.low.shape
        chosen = [np.flatnonzero(self.search.holds(question, row, key)) for question in range(questions)]
        numbers = [question * rows + row[own].astype(np.int64) for question, own in enumerate(chosen)]
        every = np.concatenate(chosen)
        return np.concatenate(numbers), key[every], weight[every]


@outlined
@dataclass(frozen=True)
class _Above:
    """For a block: the smallest key above a given one, for each question and row that asks for it."""

    row: Column
    value: Column
    key: Keys
    asked: Booleans

    def __call__(self, piece: slice) -> Keys:
        row, key = self.row[piece], to_keys(self.value[piece])
        found = np.full(self.key.shape, ALL_BITS)
        for question in range(len(found)):
            above = self.asked[question][row] & (key > self.key[question][row])
            np.minimum.at(found[question], row[above], key[above])
        return found


def _added(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    return one[0] + other[0], one[1] + other[1]
