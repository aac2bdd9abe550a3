"""Scaling: where the outcome and the weight are centred, how wide they are, and how far a record may reach.

t is the transformed outcome and v = log(w·n/N) the log weight, with the declared population total N and never Σw. In
units of their scales, (t, v) is clamped to |t| + |v| ≤ reach. Scales that are twice too wide cost a lot of accuracy, so
they come from noisy histograms of t and v in equal bands between the public bounds, which a small share of ε pays for
(docs/method.md); or they are public constants of the spec, which cost nothing and may be wrong. Where weights are
public their scale is too, N is Σw, and t alone is clamped, to |t| ≤ reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec import StandInSpec
from svysynth.core.transforms import Transform

BANDS = 32
REACH = 5.0
"""In scales: of normal answers one in 200 reaches further, and is clamped."""
REACH_ALONE = 3.5
"""Where the outcome alone is clamped: of normal answers one in 2,000 reaches further."""
CIRCLE = 2.5
"""In scales: records within this distance of the centre are not clamped in weighted sums; more in large files."""
MIDDLE = (0.16, 0.5, 0.84)
"""The shares below one scale under the middle, the middle, and one scale above it."""


@dataclass(frozen=True)
class Bands:
    """Equal bands between two public ends, in the units of t or of v."""

    low: float
    high: float

    @property
    def edges(self) -> Floats:
        """The ends of all bands."""
        return np.linspace(self.low, self.high, BANDS + 1)

    def count(self, values: Floats) -> Integers:
        """How many values are in each band; what lies outside is in the nearer end's."""
        place = values - self.low
        place *= BANDS / (self.high - self.low)
        return np.bincount(np.clip(place, 0, BANDS - 1, out=place).astype(np.int64), minlength=BANDS)


@dataclass(frozen=True)
class Scale:
    """The centre of t or v, and how far one unit is."""

    centre: float
    width: float

    def of(self, values: Floats) -> Floats:
        """Values in scales from the centre."""
        found = values - self.centre
        found /= self.width
        return found


@outlined
@dataclass(frozen=True)
class Scaling:
    """How answers become numbers of about the size of one, and how far these may reach."""

    outcome: Scale
    weight: Scale
    reach: float
    alone: bool = False
    """Whether the outcome alone is clamped, because weights are public."""

    @property
    def radius(self) -> float:
        """In scales: records within this distance of the centre are not clamped in weighted sums."""
        return self.reach - (REACH_ALONE if self.alone else REACH) + CIRCLE

    @property
    def centres(self) -> Floats:
        """Of t and v."""
        return np.array([self.outcome.centre, self.weight.centre])

    @property
    def widths(self) -> Floats:
        """Of t and v."""
        return np.array([self.outcome.width, self.weight.width])

    @property
    def log_mean(self) -> float:
        """log y₀: of lognormal answers y₀ is the mean."""
        return self.outcome.centre + self.outcome.width**2 / 2


def weighted_excess(t: Floats, v: Floats, scaling: Scaling, transform: Transform) -> tuple[Floats, Floats]:
    """What a record adds to weighted sums: u·(y/y₀ − 1), or u·(y − y₀)/width without a logarithm, and u − 1.

    u = exp(v) is the weight over the mean weight, and y₀ is about the mean outcome. So the first sums up to how far the
    weighted mean is from y₀, and the second to how far the weights are from their mean.
    """
    with np.errstate(over="ignore"):
        weight = np.exp(v)
        if transform == "log":
            outcome = t - scaling.log_mean
            np.exp(outcome, out=outcome)
            outcome -= 1
        else:
            outcome = scaling.outcome.of(t)
        outcome *= weight
        weight -= 1
        return outcome, weight


@lru_cache(maxsize=64)
def largest_excess(scaling: Scaling, transform: Transform, both: bool) -> float:
    """How far a record may reach in weighted sums: as far as any record within so many scales of the centre does."""
    angle = np.linspace(0, 2 * np.pi, 256, endpoint=False)
    radius = scaling.radius
    t = scaling.outcome.centre + radius * scaling.outcome.width * np.cos(angle)
    first, second = weighted_excess(t, radius * scaling.weight.width * np.sin(angle), scaling, transform)
    found = float(np.max(np.abs(first) + np.abs(second) if both else np.abs(first)))
    if not 0 < found < math.inf:
        problem = "are so extreme that answers cannot be measured in scales of them"
        raise SurveyError("spec", "the weights, or the constants of [standin],", problem, "look at both")
    return found


def reach_of(records: int, epsilon: float, alone: bool = False) -> float:
    """How far a record may reach, in scales: more in large files, since the bias of clamping does not shrink with n."""
    return (REACH_ALONE if alone else REACH) + max(0.0, math.log10(records * min(epsilon, 1e3) / 1e4))


def public_scales(standin: StandInSpec) -> tuple[Scale, Scale]:
    """Of t and v, from the spec's constants: the mean weight is 1, so that log weights have their centre below 0."""
    return Scale(standin.mean, standin.spread), Scale(-(standin.weight_spread**2) / 2, standin.weight_spread)


def scale_from_counts(noisy: Integers | Floats, bands: Bands, records: int) -> Scale:
    """Centre and width from noisy counts: the median, and half of the range between the 16% and the 84% quantile.

    The counts are first brought to the nearest counts that are not negative and add up to the number of records, which
    biases no quantile as cutting off negative counts would. A width is at least that of one band.
    """
    share = _simplex(np.asarray(noisy, float), float(records))
    below = np.concatenate([[0.0], np.cumsum(share)]) / records
    low, middle, high = np.interp(MIDDLE, below, bands.edges)
    least = (bands.high - bands.low) / BANDS
    return Scale(float(middle), float(max((high - low) / 2, least)))


def _simplex(values: Floats, total: float) -> Floats:
    """The nearest vector, by least squares, of numbers ≥ 0 with a given sum."""
    ordered = np.sort(values)[::-1]
    cut = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    return np.asarray(np.maximum(values - cut[np.flatnonzero(ordered > cut)[-1]], 0.0))
