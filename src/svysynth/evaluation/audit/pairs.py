"""Pairs: generated samples and their neighbours by one record, and the privacy loss between sums of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.streams import Streams

LARGEST_SAMPLE = 20
SMALLEST_SAMPLE = 5
POPULATION = 1000.0
"""The public total by which weights are scaled."""
BOUNDS = BoundsSpec(outcome=(-6.0, 6.0), weight=(1.0, 1000.0))

Relation = Literal["blanked out", "changed"]


class Scaled(Protocol):
    """A use of the budget."""

    @property
    def scale(self) -> float:
        """The scale of its noise."""


@outlined
@dataclass(frozen=True, eq=False)
class Sample:
    """Outcomes and weights, and which records are present: a blanked-out record has a constant for its term."""

    t: Floats
    w: Floats
    there: Booleans

    @classmethod
    def of(cls, t: Floats, w: Floats) -> Sample:
        """The sample in which every record is present."""
        return cls(t, w, np.ones(len(t), bool))

    def on_grid(self) -> tuple[Floats, Floats]:
        """Outcome and log weight, scaled by the public total; what lies beyond the bounds counts as at their end."""
        t, w = np.clip(self.t, *BOUNDS.outcome), np.clip(self.w, *BOUNDS.weight)
        return t, np.asarray(np.log(w * (len(t) / POPULATION)))

    def without(self, position: int) -> Sample:
        """One record blanked out."""
        return Sample(self.t, self.w, self.there & (np.arange(len(self.t)) != position))


@outlined
@dataclass(frozen=True, eq=False)
class Pair:
    """A sample, and its neighbours by one record: changed, and blanked out."""

    before: Sample
    changed: Sample
    blanked: Sample
    adversarial: bool
    """Whether the pair was made to be a hard case for privacy."""


def make_pairs(count: int, streams: Streams) -> list[Pair]:
    """Natural neighbours, all from one normal distribution, and adversarial ones, in turn."""
    return [_make_pair(streams.generator("audit pairs", number), number % 2 == 1) for number in range(count)]


def _make_pair(generator: np.random.Generator, adversarial: bool) -> Pair:
    n = int(generator.integers(SMALLEST_SAMPLE, LARGEST_SAMPLE + 1))
    position = int(generator.integers(n))
    t, w = 0.8 * generator.standard_normal(n), 100 * np.exp(0.5 * generator.standard_normal(n))
    new_t, new_w = 0.8 * generator.standard_normal(), 100 * np.exp(0.5 * generator.standard_normal())
    if adversarial:  # the others in one place, or in two; the record far away, with an extreme weight, or among them
        t = generator.choice([-5.0, 0.0, 5.0]) + generator.choice([0.0, 0.05]) * generator.standard_normal(n)
        t[: n // 3] += generator.choice([0.0, 3.0])
        t[position] = generator.choice([-1e3, -6, -5, -2.5, 0.0, 2.5, 5, 6, 1e3, t[0]])
        new_t, new_w = generator.choice([-1e3, -5.0, 0.0, 5.0, 1e3]), generator.choice([0.01, 1.0, 100.0, 1e9])
    return pair_of(t, w, position, float(new_t), float(new_w), adversarial)


def pair_of(t: Floats, w: Floats, position: int, new_t: float, new_w: float, adversarial: bool = True) -> Pair:
    """The pair in which one record's outcome and weight become others."""
    before, (after_t, after_w) = Sample.of(t, w), (t.copy(), w.copy())
    after_t[position], after_w[position] = new_t, new_w
    return Pair(before, Sample.of(after_t, after_w), before.without(position), adversarial)


@outlined
@dataclass(frozen=True, eq=False)
class Losses:
    """The privacy loss of every pair in one relation: ε for each of DELTAS, and δ at the claimed ε."""

    epsilon: Floats
    """Pair × δ; only δ = 0 where nothing else is computed."""
    delta: Floats | None = None


def log_ratio(one: Sequence[Integers], other: Sequence[Integers], uses: Sequence[Scaled]) -> float:
    """The largest log ratio of any noisy result."""
    moved = (float(np.abs(own - its).sum()) for own, its in zip(one, other, strict=True))
    return sum(far / use.scale for far, use in zip(moved, uses, strict=True))
