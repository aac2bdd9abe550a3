"""Scaling: the centres and scales of the outcome and the weight, and the bound of a record in these scales.

t is the transformed outcome and v = log(w·n/N) the log weight, where N is the declared population total and never Σw.
In units of their scales, (t, v) is clamped to |t| + |v| ≤ reach. Scales that are too wide by a factor of two cost much
accuracy. So they come from noisy histograms of t and v in equal bands between the public bounds, for which a small
share of ε is spent (docs/method.md). Or they are public constants of the spec, which cost no ε and may be wrong. If
weights are public, their scale is public too, N is Σw, and t alone is clamped, to |t| ≤ reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.whole import StandInSpec
from svysynth.core.transforms import Transform

BANDS = 32
REACH = 5.0
"""The bound |t| + |v| of a record, in scales: of normal answers one in 200 exceeds it and is clamped."""
REACH_ALONE = 3.5
"""The bound if the outcome alone is clamped: of normal answers one in 2,000 exceeds it."""
CIRCLE = 2.5
"""Records within this distance of the centre, in scales, are not clamped in weighted sums; in large files it is
larger."""
MIDDLE = (0.16, 0.5, 0.84)
"""The shares of normal values below one scale under the centre, below the centre, and below one scale above it."""


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
        """The number of values in each band; values outside count in the nearest band."""
        place = values - self.low
        place *= BANDS / (self.high - self.low)
        return np.bincount(np.clip(place, 0, BANDS - 1, out=place).astype(np.int64), minlength=BANDS)


@dataclass(frozen=True)
class Scale:
    """The centre of t or v, and the width of one scale."""

    centre: float
    width: float

    def of(self, values: Floats) -> Floats:
        """The values, in scales from the centre."""
        found = values - self.centre
        found /= self.width
        return found


@outlined
@dataclass(frozen=True)
class Scaling:
    """The scales in which answers have a size of about one, and the bound of a record in them."""

    outcome: Scale
    weight: Scale
    reach: float
    alone: bool = False
    """Whether the outcome alone is clamped, because weights are public."""

    @property
    def radius(self) -> float:
        """The distance from the centre, in scales, within which records are not clamped in weighted sums."""
        return self.reach - (REACH_ALONE if self.alone else REACH) + CIRCLE

    @property
    def centres(self) -> Floats:
        """The centres of t and v."""
        return np.array([self.outcome.centre, self.weight.centre])

    @property
    def widths(self) -> Floats:
        """The scales of t and v."""
        return np.array([self.outcome.width, self.weight.width])

    @property
    def log_mean(self) -> float:
        """log y₀, where y₀ is the mean of lognormal answers."""
        return self.outcome.centre + self.outcome.width**2 / 2


def weighted_excess(t: Floats, v: Floats, scaling: Scaling, transform: Transform) -> tuple[Floats, Floats]:
    """What a record adds to weighted sums: u·(y/y₀ − 1), or u·(y − y₀)/width without a logarithm, and u − 1.

    u = exp(v) is the weight relative to the mean weight, and y₀ is close to the mean outcome. So the sum of the first
    measures how far the weighted mean is from y₀, and the sum of the second how far the weights are from their mean.
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
    """The bound of a record in weighted sums: the largest contribution of any record within `radius` of the centre."""
    angle = np.linspace(0, 2 * np.pi, 256, endpoint=False)
    radius = scaling.radius
    t = scaling.outcome.centre + radius * scaling.outcome.width * np.cos(angle)
    first, second = weighted_excess(t, radius * scaling.weight.width * np.sin(angle), scaling, transform)
    found = float(np.max(np.abs(first) + np.abs(second) if both else np.abs(first)))
    if not 0 < found < math.inf:
        problem = "are so extreme that they give no usable scales for the answers"
        remedy = "check survey.weight, and the section [standin] if privacy.scales is 'standin'"
        raise SurveyError("spec", "the weights or the constants of [standin]", problem, remedy)
    return found


def reach_of(records: int, epsilon: float, alone: bool = False) -> float:
    """The bound of a record in scales: larger in large files, since the bias of clamping does not shrink with n."""
    return (REACH_ALONE if alone else REACH) + max(0.0, math.log10(records * min(epsilon, 1e3) / 1e4))


def public_scales(standin: StandInSpec) -> tuple[Scale, Scale]:
    """The scales of t and v from the spec's constants; the mean weight is 1, so log weights are centred below 0."""
    return Scale(standin.mean, standin.spread), Scale(-(standin.weight_spread**2) / 2, standin.weight_spread)


def scale_from_counts(noisy: Integers | Floats, bands: Bands, records: int) -> Scale:
    """Centre and width from noisy counts: the median, and half of the range between the 16% and the 84% quantile.

    The counts are first replaced by the nearest counts that are not negative and add up to the number of records. This
    avoids the bias of quantiles that cutting off negative counts would cause. The width is at least that of one band.
    """
    share = _simplex(np.asarray(noisy, float), float(records))
    below = np.concatenate([[0.0], np.cumsum(share)]) / records
    low, middle, high = np.interp(MIDDLE, below, bands.edges)
    least = (bands.high - bands.low) / BANDS
    return Scale(float(middle), float(max((high - low) / 2, least)))


def _simplex(values: Floats, total: float) -> Floats:
    """The nearest vector, by least squares, of non-negative numbers with a given sum."""
    ordered = np.sort(values)[::-1]
    cut = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    return np.asarray(np.maximum(values - cut[np.flatnonzero(ordered > cut)[-1]], 0.0))
