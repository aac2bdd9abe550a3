"""Density: a smooth density of an amount or a weight, from a noisy histogram in narrow bands and a noisy sum.

Log probabilities f of the bands have a prior whose third differences are normal with the standard deviation σ: where
counts are lost in noise, as in the upper tail, the density continues as a normal density of the transformed amount
does. Each noisy count has a normal error with the variance of the noise and of a count; the noisy sum of the amounts,
cut off at a public or measured bound, has the error of its noise. σ has the largest marginal likelihood (Laplace's
method). Draws are from the normal approximation at the mode. Negative noisy counts are used as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined

SPREADS = np.geomspace(0.003, 1.0, 12)
"""The standard deviations of third differences that are tried."""
WIDE = 30.0
"""The prior standard deviation of f's level, slope and curvature over the whole range."""
MOST_STEPS, LONGEST, ENOUGH, MOST_DAMPING = 200, 2.0, 1e-4, 1e6


@outlined
class NoisySum(NamedTuple):
    """A noisy sum of what each record adds, if it is in some band."""

    value: Floats
    total: float
    noise: float
    """The standard deviation of the noise."""


@outlined
@dataclass(frozen=True, eq=False)
class Seen:
    """Noisy counts of bands, and perhaps a noisy sum: linear functions of the probabilities, with errors."""

    measures: Floats
    """Measured number × band."""
    values: Floats
    noise: Floats
    records: float

    def expected(self, share: Floats) -> Floats:
        """The expected values."""
        return self.records * (self.measures @ share)

    def variance(self, share: Floats) -> Floats:
        """The variances of their errors: those of counts have that of a count too."""
        return self.noise**2 + np.append(self.records * share, np.zeros(len(self.values) - len(share)))

    def slope(self, share: Floats) -> Floats:
        """The derivative of the expected values by the log probabilities."""
        return self.records * (self.measures * share - np.outer(self.measures @ share, share))


@outlined
@dataclass(frozen=True, eq=False)
class Density:
    """The mode of the log probabilities, and what further draws need."""

    mode: Floats
    seen: Seen
    spread: float

    @property
    def share(self) -> Floats:
        """The probability of each band."""
        return _softmax(self.mode)

    def draw(self, generator: np.random.Generator) -> Floats:
        """The probabilities of a draw from the posterior."""
        errors = np.sqrt(self.seen.variance(self.share)) * generator.normal(size=len(self.seen.values))
        seen = replace(self.seen, values=self.seen.values + errors)
        centre = generator.normal(size=len(self.mode)) * np.append(np.full(len(self.mode) - 3, self.spread), [WIDE] * 3)
        return _softmax(_fit(seen, self.spread, self.mode, centre)[1])

    def quantile_bands(self, shares: Sequence[float]) -> Integers:
        """The bands below which these shares are, without repeats."""
        found = np.unique(np.searchsorted(np.cumsum(self.share), shares) + 1)
        return found[(found > 0) & (found < len(self.mode))]


def fit_density(counts: Floats, noise: float, records: float, sums: NoisySum | None = None) -> Density:
    """The density of bands with these noisy counts, for noise with this standard deviation."""
    seen = Seen(np.eye(len(counts)), counts, np.full(len(counts), noise), max(records, 1.0))
    if sums is not None:
        measures = np.concatenate([seen.measures, sums.value[None]])
        seen = Seen(measures, np.append(counts, sums.total), np.append(seen.noise, sums.noise), seen.records)
    start, best = np.zeros(len(counts)), (-np.inf, np.zeros(len(counts)), 0.0)
    for spread in SPREADS[::-1]:
        fits, start = _fit(seen, spread, start, np.zeros(len(start)))
        best = max(best, (fits, start, spread), key=lambda one: one[0])
    return Density(best[1], seen, best[2])


def _softmax(value: Floats) -> Floats:
    found = np.exp(value - value.max())
    return np.asarray(found / found.sum())


def _prior(bands: int, spread: float) -> Floats:
    """The root of the prior precision: third differences, and level, slope and curvature over the whole range."""
    place = np.linspace(-1, 1, bands)
    curve = np.stack([place**0, place, place**2]) / bands
    return np.concatenate([np.diff(np.eye(bands), 3, axis=0) / spread, curve / WIDE])


def _fit(seen: Seen, spread: float, start: Floats, centre: Floats) -> tuple[float, Floats]:
    """The log marginal likelihood, and the mode; the centre is that of what the prior is about."""
    rough = _prior(len(start), spread)
    aim = centre * np.append(np.full(len(start) - 3, 1 / spread), [1 / WIDE] * 3)

    def objective(value: Floats) -> float:
        share = _softmax(value)
        variance = seen.variance(share)
        off = (seen.expected(share) - seen.values) ** 2 / variance
        return float(0.5 * (off + np.log(variance)).sum() + 0.5 * ((rough @ value - aim) ** 2).sum())

    value, current, damping = start, objective(start), 1e-3
    for _ in range(MOST_STEPS):
        gradient, hessian = _derivatives(seen, value, rough, aim)
        change = -np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
        change *= min(1.0, LONGEST / np.abs(change).max())
        after = objective(value + change)
        if after >= current and damping > MOST_DAMPING:
            break
        done = current - ENOUGH < after < current
        damping *= 0.2 if after < current else 10.0
        if after < current:
            value, current = value + change, after
        if done:
            break
    hessian = _derivatives(seen, value, rough, aim)[1]
    return -current - 0.5 * float(np.linalg.slogdet(hessian)[1] - np.linalg.slogdet(rough.T @ rough)[1]), value


def _derivatives(seen: Seen, value: Floats, rough: Floats, aim: Floats) -> tuple[Floats, Floats]:
    """The gradient, and Gauss and Newton's matrix of second derivatives."""
    share = _softmax(value)
    slope, variance = seen.slope(share), seen.variance(share)
    gradient = slope.T @ ((seen.expected(share) - seen.values) / variance) + rough.T @ (rough @ value - aim)
    return gradient, slope.T @ (slope / variance[:, None]) + rough.T @ rough
