"""Whole numbers: the contributions of records, bounded after rounding, so that sums and their sensitivity are exact.

t and v of a record, clamped to the public bounds, become whole numbers T and V in steps of reach/LARGEST. What the
record adds to weighted sums becomes Y and U. The bounds |T| + |V| ≤ LARGEST and |Y| + |U| ≤ LARGEST are enforced on the
whole numbers, so that no rounding of floats, overflow or missing value can break them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.transforms import Transform, transformed
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scaling, largest_excess, weighted_excess

LARGEST = 2**16
"""The largest |T| + |V| of a record. n·LARGEST² is at most 2⁶² for n up to 2³⁰."""
FARTHEST = 2.0**30
"""The largest number before bounding, so that products of whole numbers in the computation stay exact."""


@outlined
@dataclass(frozen=True)
class Answers:
    """t and v of a block of records, clamped to the public bounds."""

    outcome: Column
    weight: Column
    bounds: BoundsSpec
    transform: Transform
    share: float
    """n/N."""
    weights_public: bool = False
    """If so, weights are not clamped."""

    def __call__(self, piece: slice) -> tuple[Floats, Floats]:
        """t and v of some records."""
        outcome = _clamped(self.outcome[piece], *self.bounds.outcome)
        weight = _clamped(self.weight[piece], *((0.0, np.inf) if self.weights_public else self.bounds.weight))
        weight *= self.share
        return transformed(outcome, self.transform, out=outcome), np.log(weight, out=weight)


def _clamped(values: Floats, low: float, high: float) -> Floats:
    """Values clamped to the bounds; a missing value is set to the lower bound."""
    found = np.clip(values, low, high)
    if np.isnan(found.max(initial=low)):
        found[np.isnan(found)] = low
    return found


def outcome_numbers(t: Floats, scaling: Scaling) -> Floats:
    """T of each record, with the bound on |T| alone."""
    return np.asarray(bounded([scaling.outcome.of(t)], scaling.reach)[0])


def whole_numbers(t: Floats, v: Floats, scaling: Scaling) -> Floats:
    """T and V of each record."""
    return bounded([scaling.outcome.of(t), scaling.weight.of(v)], scaling.reach)


def weighted_numbers(t: Floats, v: Floats, scaling: Scaling, transform: Transform, both: bool) -> Floats:
    """Y and U of each record, or Y alone."""
    found = weighted_excess(t, v, scaling, transform)
    return bounded(found if both else found[:1], largest_excess(scaling, transform, both))


def bounded(values: Sequence[Floats], reach: float) -> Floats:
    """Whole numbers whose absolute values add up to LARGEST at most, whatever the floats: the bound is enforced last.

    Rounded floats are whole numbers below 2³¹, and so are their sums, so both are exact. They stay floats, which
    represent whole numbers of this size exactly and are added up faster than integers.
    """
    whole, size = np.empty((len(values), len(values[0]))), np.zeros(len(values[0]))
    for row, scaled in zip(whole, values, strict=True):
        scaled *= LARGEST / reach
        np.rint(np.clip(scaled, -FARTHEST, FARTHEST, out=scaled), out=row)
        size += np.abs(row, out=scaled)
    far = np.flatnonzero(~(size <= LARGEST))  # also NaN, which counts as the least number
    found = np.nan_to_num(whole[:, far], nan=-FARTHEST).astype(np.int64)
    whole[:, far] = np.sign(found) * (np.abs(found) * LARGEST // np.abs(found).sum(axis=0))
    return whole
