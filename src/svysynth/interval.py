"""The public interval of the censored mechanism: what it costs, what it does to a normal model, and where to put it.

Under a bivariate normal model a record's log-likelihood is peak − q, with q ~ Exp(1) and peak = −log 2π − ½log|Σ|. Let
Σ* = sΣ. With peak* = peak − log s, the clipped likelihood is E[clip(peak* − q/s, low, high)], and records count where
x = q/s lies between a = max(0, peak* − high) and b = peak* − low. Setting its slope in s to zero gives

    E[x | a < x < b] = 1,   x exponential with rate s,

and this is where the clipped likelihood concentrates: at the right mean, and at sΣ in place of Σ. A draw shows peak*,
hence a, b, and with them s: no other constant is needed to take it off again. The mean's information is that of a
share p = P(a < x < b) of the records, its estimate has 1/(s·p) times the variance that all records would give. That
is least if the interval lies a little below the peak, which the public's guess of the spread decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import exp, expm1, inf, log, nextafter, pi, sinh

from scipy.optimize import brentq, minimize_scalar

from svysynth.spec import StandInSpec

LEAST_RATE, MOST_RATE = 0.05, 20.0
"""Between these s is looked for; a draw that asks for more or less has been moved by its prior or by chance."""
GUESS_ERROR = 0.5
"""A public guess of √|Σ| is right within a factor of 1.6, two times in three."""
STEP = 0.02
"""Of the grid of log s."""
FARTHEST = 3.0
"""The best place is looked for from so far below the peak to as far above it."""


@dataclass(frozen=True)
class Interval:
    """The public interval to which each record's log-likelihood is clipped."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -inf < self.low < self.high < inf:
            raise ValueError("an interval has a low end and a high end")

    @classmethod
    def of_budget(cls, epsilon: float, datasets: int, high: float) -> Interval:
        """The widest interval below `high` with which m draws cost no more than ε for a respondent blanked out."""
        low = high - epsilon / datasets
        while datasets * (Fraction(high) - Fraction(low)) > Fraction(epsilon):
            low = nextafter(low, high)
        return cls(low, high)

    @classmethod
    def around(cls, epsilon: float, datasets: int, peak: float) -> Interval:
        """The interval of that budget with the most efficient place, if log-likelihoods have this peak."""
        width = epsilon / datasets

        def loss(above: float) -> float:
            return -_Clipped.of(peak, cls(peak + above - width, peak + above)).efficiency

        found = minimize_scalar(loss, bounds=(-FARTHEST, FARTHEST), method="bounded")
        return cls.of_budget(epsilon, datasets, peak + float(found.x))

    @property
    def width(self) -> float:
        """What one draw costs for a respondent blanked out."""
        return self.high - self.low


def peak_of(spread: float, weight_spread: float, correlation: float = 0.0) -> float:
    """The largest log density of a bivariate normal with these standard deviations and correlation."""
    return -log(2 * pi * spread * weight_spread) - 0.5 * log(1 - correlation**2)


def place_interval(epsilon: float, datasets: int, constants: StandInSpec) -> tuple[Interval, float]:
    """The interval of a budget where public constants say that it is best, and the peak they imply."""
    peak = peak_of(constants.spread, constants.weight_spread, constants.correlation)
    return Interval.around(epsilon, datasets, peak), peak


def shrinkage(peak: float, interval: Interval) -> float:
    """s at a draw whose largest log density is `peak`: the rate with which x between a and b has mean 1."""
    low, high = max(0.0, peak - interval.high), peak - interval.low
    if mean_between(LEAST_RATE, low, high) <= 1:
        return LEAST_RATE
    if mean_between(MOST_RATE, low, high) >= 1:
        return MOST_RATE
    return float(brentq(lambda rate: mean_between(rate, low, high) - 1, LEAST_RATE, MOST_RATE, xtol=1e-13))


def shrinkage_by_guess(peak: float, interval: Interval, guess: float, records: int) -> float:
    """s at a draw, with a public guess of the true peak that may be off by GUESS_ERROR, one standard deviation.

    A narrow interval fixes the draw's peak nearly alone, whatever the truth, and s would be all noise. The guess and
    the draw's peak, whose variance about the predicted one follows from the interval and n, count by their precision.
    """

    def loss(truth: float) -> float:
        clipped = _Clipped.of(truth, interval)
        off = (peak - truth + log(clipped.rate)) ** 2 / clipped.variance_of_peak(truth, interval, records)
        return off + ((truth - guess) / GUESS_ERROR) ** 2

    reach = 4 * GUESS_ERROR
    found = minimize_scalar(loss, bounds=(guess - reach, guess + reach), method="bounded", options={"xatol": 1e-6})
    return exp(float(found.x) - peak)


def mean_between(rate: float, low: float, high: float) -> float:
    """The mean of an exponential variable given that it lies between two numbers."""
    if high <= low:
        return high
    length = rate * (high - low)
    # 1/rate − length/(e^length − 1)/rate, whose two parts nearly cancel where the length is small
    within = length / 2 - length**2 / 12 if length < 1e-4 else 1 - (length / expm1(length) if length < 700 else 0.0)
    return low + within / rate


def predicted_shrinkage(peak: float, interval: Interval) -> float:
    """s where the truth has this largest log density: the s with the largest E[clip(peak − log s − q/s)]."""
    return _Clipped.of(peak, interval).rate


def efficiency(peak: float, interval: Interval) -> float:
    """s·p: the share of the records' information about means that is left, if the truth has this peak."""
    return _Clipped.of(peak, interval).efficiency


@dataclass(frozen=True)
class _Clipped:
    """What clipping does to a normal model with a true peak."""

    rate: float
    low: float
    high: float

    @classmethod
    def of(cls, peak: float, interval: Interval) -> _Clipped:
        """At a true peak: log s with the largest clipped likelihood, from a grid, and then where its slope is zero."""

        def expected(log_rate: float) -> float:
            rate, at = exp(log_rate), cls._at(peak, log_rate, interval)
            missed = exp(-rate * at.low)
            value = interval.high if at.low > 0 else peak - log_rate
            # E clip = top − ∫ P(q > rate·x) dx over the interval's part below the peak
            return value - (missed - exp(-rate * at.high)) / rate if at.high > 0 else interval.low

        def slope(log_rate: float) -> float:
            at = cls._at(peak, log_rate, interval)
            return mean_between(at.rate, at.low, at.high) - 1

        grid = [log(LEAST_RATE) + STEP * k for k in range(int(log(MOST_RATE / LEAST_RATE) / STEP) + 1)]
        best = max(grid, key=expected)
        if slope(best - STEP) > 0 > slope(best + STEP):
            best = float(brentq(slope, best - STEP, best + STEP, xtol=1e-13))
        return cls._at(peak, best, interval)

    @classmethod
    def _at(cls, peak: float, log_rate: float, interval: Interval) -> _Clipped:
        own = peak - log_rate
        return cls(exp(log_rate), max(0.0, own - interval.high), own - interval.low)

    @property
    def share(self) -> float:
        """p, of the records that count."""
        return exp(-self.rate * self.low) - exp(-self.rate * self.high)

    @property
    def efficiency(self) -> float:
        return self.rate * self.share

    def variance_of_peak(self, peak: float, interval: Interval, records: int) -> float:
        """Of a draw's peak: 1/J for the posterior and K/J² for the sample, with −J the slope of log s's score."""

        def score(log_rate: float) -> float:
            at = self._at(peak, log_rate, interval)
            return at.share * (mean_between(at.rate, at.low, at.high) - 1)

        length = self.rate * (self.high - self.low)
        ratio = length / (2 * sinh(length / 2)) if length < 700 else 0.0
        square = self.share * (1 - ratio**2) / self.rate**2
        curvature = (score(log(self.rate) - STEP) - score(log(self.rate) + STEP)) / (2 * STEP)
        return (1 / curvature + square / curvature**2) / records if curvature > 0 else inf
