"""An attack: what samples of results from two neighbouring data sets prove about ε, whatever the mechanism.

The two data sets are called worlds. One half of the samples chooses an event, i.e. a statistic, a threshold, a side of
it and the world in which the event is more frequent. The other half counts the event. With Clopper-Pearson limits for
both probabilities, each at half of one minus the confidence,

    ε ≥ log((lower limit in the one world − δ) / upper limit in the other).

The probability that the bound is wrong is at most one minus the confidence, however the event was chosen. A bound above
the promised ε refutes the promise. A bound below it proves nothing, and is only as sharp as the attack and the number
of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import beta

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined

THRESHOLDS = 200
FARTHEST = 9.0
"""The thresholds' ranks have log odds evenly spaced from −FARTHEST to FARTHEST: tails are searched finely."""
COMBINED = "a linear combination"


@outlined
@dataclass(frozen=True, eq=False)
class Event:
    """Whether a weighted sum of statistics is at least a threshold, or below it."""

    name: str
    weights: Floats
    threshold: float
    above: bool
    swapped: bool
    """Whether the event is more frequent in the second world."""

    def count(self, samples: Floats) -> int:
        """The number of samples (sample × statistic) for which the event holds."""
        return int(np.sum((samples @ self.weights >= self.threshold) == self.above))


@dataclass(frozen=True)
class Bound:
    """What an attack proves: ε is at least this, with the stated confidence."""

    epsilon: float
    statistic: str
    frequency: float
    """Of the event in the world in which it was taken to be more frequent; `other_frequency`: in the other world."""
    other_frequency: float
    runs: int
    """Samples of each world that were counted."""


def attack(one: Floats, other: Floats, names: Sequence[str], confidence: float = 0.95, delta: float = 0.0) -> Bound:
    """A lower bound on ε from equally many samples of two worlds (sample × statistic)."""
    half = len(one) // 2
    event = choose_event(one[:half], other[:half], names, confidence, delta)
    kept, others = (other[half:], one[half:]) if event.swapped else (one[half:], other[half:])
    hits, other_hits, runs = event.count(kept), event.count(others), len(kept)
    found = float(lower_bounds(np.array(hits), np.array(other_hits), runs, confidence, delta))
    return Bound(found, event.name, hits / runs, other_hits / runs, runs)


def lower_bounds(hits: Integers, other_hits: Integers, runs: int, confidence: float, delta: float = 0.0) -> Floats:
    """log((lower limit − δ)/upper limit) of the two frequencies, or zero if that is negative."""
    tail = (1 - confidence) / 2
    lower = np.where(hits > 0, beta.ppf(tail, np.maximum(hits, 1), runs - hits + 1), 0.0)
    upper = np.where(other_hits < runs, beta.ppf(1 - tail, other_hits + 1, np.maximum(runs - other_hits, 1)), 1.0)
    return np.asarray(np.log(np.maximum((lower - delta) / upper, 1.0)))


def choose_event(
    one: Floats, other: Floats, names: Sequence[str], confidence: float = 0.95, delta: float = 0.0
) -> Event:
    """The event that would prove the most, were these samples counted: each statistic by itself, and all together."""
    directions = [(name, np.eye(len(names))[position]) for position, name in enumerate(names)]
    if len(names) > 1:
        directions.append((COMBINED, _discriminant(one, other)))
    found: list[tuple[float, Event]] = []
    for name, weights in directions:
        mine, theirs = np.sort(one @ weights), np.sort(other @ weights)
        pooled = np.sort(np.concatenate([mine, theirs]))
        ranks = np.round(expit(np.linspace(-FARTHEST, FARTHEST, THRESHOLDS)) * (len(pooled) - 1)).astype(int)
        thresholds = np.unique((pooled[ranks] + pooled[np.maximum(ranks - 1, 0)]) / 2)
        below = [np.searchsorted(values, thresholds, side="left") for values in (mine, theirs)]
        for above in (True, False):
            hits = [len(mine) - count if above else count for count in below]
            for swapped in (False, True):
                first, second = hits[::-1] if swapped else hits
                proved = lower_bounds(first, second, len(mine), confidence, delta)
                best = int(np.argmax(proved))
                found.append((float(proved[best]), Event(name, weights, float(thresholds[best]), above, swapped)))
    return max(found, key=lambda each: each[0])[1]


def _discriminant(one: Floats, other: Floats) -> Floats:
    """Fisher's linear discriminant: the difference of the means times the inverse of the pooled covariance matrix."""
    within = np.concatenate([one - one.mean(axis=0), other - other.mean(axis=0)])
    spread = within.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    gap = (one.mean(axis=0) - other.mean(axis=0)) / scale
    return np.asarray(np.linalg.pinv(np.cov(within / scale, rowvar=False), rcond=1e-8) @ gap / scale)
