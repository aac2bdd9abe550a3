"""Coding: answers as levels. Amounts and weights are in narrow bands first, and later in a few wide ones.

An amount x with a lower bound above zero is banded by log x. Any other by arsinh(x/c), with c a thousandth of its
largest bound: nearly linear around zero and logarithmic in both tails. Zero is a level of its own where bounds contain
it, and so is a missing answer. Values beyond the public bounds count as in the last band.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.variables import Kind

NARROW = 80
"""The number of narrow bands of an amount or a weight."""
SMALL = 1000.0
"""The part of the largest bound below which an amount that may be zero is banded linearly."""
WEIGHT = "weight"


@outlined
@dataclass(frozen=True)
class Coding:
    """How the values of an answer become levels. An amount without wide bands has its narrow ones as levels."""

    name: str
    kind: Kind
    levels: int = 0
    """The number of levels of a category or a yes/no answer."""
    bounds: tuple[float, float] = (0.0, 1.0)
    may_miss: bool = False
    wide: tuple[int, ...] = ()
    """The narrow bands at which a wide band begins, after the first."""

    @property
    def banded(self) -> bool:
        """Whether it is an amount, in bands."""
        return self.kind == "amount"

    @property
    def zero(self) -> bool:
        """Whether zero is a level of its own."""
        return self.banded and self.bounds[0] <= 0 <= self.bounds[1]

    @property
    def single(self) -> int:
        """The number of levels that are not bands: zero, and missing."""
        return int(self.zero) + int(self.banded and self.may_miss)

    @property
    def narrow_levels(self) -> int:
        """The number of levels in narrow bands."""
        return self.single + NARROW if self.banded else self.levels

    @property
    def wide_levels(self) -> int:
        """The number of levels in wide bands."""
        return self.single + len(self.wide) + 1 if self.banded else self.levels

    @property
    def edges(self) -> Floats:
        """The ends of the narrow bands, in the units of the amount."""
        low, high = self.bounds
        if low > 0:
            return np.geomspace(low, high, NARROW + 1)
        small = max(-low, high) / SMALL
        return np.sinh(np.linspace(np.arcsinh(low / small), np.arcsinh(high / small), NARROW + 1)) * small

    @property
    def middles(self) -> Floats:
        """The mean amount within each narrow band."""
        edges = self.edges
        parts = np.stack([self._between(edges[:-1], edges[1:], share) for share in np.arange(0.5, 8) / 8])
        return np.asarray(parts.mean(axis=0))

    def _between(self, low: Floats, high: Floats, share: Floats | float) -> Floats:
        """The amount at a share of the way between two ends, on the scale of the bands."""
        if self.bounds[0] > 0:
            return np.asarray(low * (high / low) ** share)
        small = max(-self.bounds[0], self.bounds[1]) / SMALL
        start = np.arcsinh(low / small)
        return np.asarray(np.sinh(start + share * (np.arcsinh(high / small) - start)) * small)

    def narrow(self, values: Floats) -> Integers:
        """The level of each value, in narrow bands."""
        if not self.banded:
            return _level_of(values, self.kind)
        known = np.clip(np.nan_to_num(values), *self.bounds)
        found = self.single + np.clip(np.searchsorted(self.edges, known, side="right") - 1, 0, NARROW - 1)
        if self.zero:
            found = np.where(known == 0, 0, found)
        return np.where(np.isnan(values), self.single - 1, found) if self.may_miss else found

    def widened(self, narrow: Integers) -> Integers:
        """The levels in wide bands."""
        if not self.banded:
            return narrow
        band = self.single + np.searchsorted(self.wide, narrow - self.single, side="right")
        return np.where(narrow < self.single, narrow, band)

    def shares_of_wide(self, share: Floats) -> Floats:
        """The probabilities of wide bands, from those of narrow bands."""
        return np.asarray(np.add.reduceat(share, [0, *self.wide]))

    def values(self, level: Integers, share: Floats, uniform: Floats) -> Floats:
        """Values of an answer: within wide bands from a density of narrow bands, evenly within these."""
        if not self.banded:
            return _value_of(level, self.kind, self.levels)
        band = np.maximum(level - self.single, 0)
        ends, reached = np.array([0, *self.wide, NARROW]), np.concatenate([[0.0], np.cumsum(share)])
        low, high = reached[ends[band]], reached[ends[band + 1]]
        place = low + uniform * (high - low)
        narrow = np.clip(np.searchsorted(reached, place, side="right") - 1, ends[band], ends[band + 1] - 1)
        width = np.maximum(reached[narrow + 1] - reached[narrow], np.finfo(float).tiny)
        edges = self.edges
        within = np.clip((place - reached[narrow]) / width, 0.0, 1.0)
        found = self._between(edges[narrow], edges[narrow + 1], within)
        found = np.where(level < self.single, 0.0, found)
        return np.where(level == self.single - 1, np.nan, found) if self.may_miss else found


def _level_of(values: Floats, kind: Kind) -> Integers:
    """Positions of levels as they are; yes, no and missing as 0, 1 and 2."""
    if kind == "category":
        return values.astype(np.int64)
    return np.where(np.isnan(values), 2, values == 0).astype(np.int64)


def _value_of(level: Integers, kind: Kind, levels: int) -> Floats:
    if kind == "category":
        return level.astype(float)
    return np.array([1.0, 0.0, np.nan])[:levels][level]


def codings(survey: SurveySpec, bounds: BoundsSpec) -> tuple[Coding, ...]:
    """The codings of the answers of a spec, and first that of the weight unless weights are public."""
    weight = [] if survey.weight_public else [Coding(WEIGHT, "amount", bounds=bounds.weight)]
    return (*weight, *(_coding(name, survey, bounds) for name in survey.answers))


def _coding(name: str, survey: SurveySpec, bounds: BoundsSpec) -> Coding:
    variable = survey.variables.get(name)
    kind: Kind = "amount" if variable is None else variable.kind
    may_miss = survey.may_miss(name)
    if kind == "category":
        return Coding(name, kind, len(survey.declared(name) or ()))
    if kind == "yes/no":
        return Coding(name, kind, 2 + may_miss, may_miss=may_miss)
    own = bounds.outcome if name == survey.outcome else variable.bounds if variable else None
    assert own is not None, "amounts without bounds are refused"
    return Coding(name, kind, bounds=own, may_miss=may_miss)
