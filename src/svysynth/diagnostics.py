"""Diagnostics of posterior draws, with a verdict: rank-normalised split R-hat, bulk and tail ESS, divergences, E-BFMI.

R-hat and ESS are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), as in the R package `posterior`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from svysynth.groups import Floats

LARGEST_RHAT = 1.01
SMALLEST_ESS = 400.0
SMALLEST_EBFMI = 0.3


@dataclass(frozen=True)
class Verdict:
    """The worst figures over all quantities, and whether the draws can be trusted."""

    rhat: float
    ess_bulk: float
    ess_tail: float
    divergences: int
    ebfmi: float

    @property
    def passed(self) -> bool:
        """Whether every figure is within its limit."""
        return not self.complaints

    @property
    def complaints(self) -> list[str]:
        """What is wrong, in words."""
        found = []
        if not self.rhat < LARGEST_RHAT:
            found.append(f"the chains disagree (R-hat {self.rhat:.3f}, not below {LARGEST_RHAT})")
        effective = float(np.min([self.ess_bulk, self.ess_tail]))  # NaN if either is
        if not effective >= SMALLEST_ESS:
            found.append(f"there are too few effective draws ({effective:.0f})")
        if self.divergences:
            found.append(f"{self.divergences} transitions diverged")
        if not self.ebfmi >= SMALLEST_EBFMI:
            found.append(f"the energy is explored too slowly (E-BFMI {self.ebfmi:.2f})")
        return found


def judge(draws: Floats, divergences: int, energy: Floats) -> Verdict:
    """The verdict on draws of shape chain × draw × quantity, and on the energies chain × draw."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a quantity that does not vary has no figures
        return _judge(draws, divergences, energy)


def _judge(draws: Floats, divergences: int, energy: Floats) -> Verdict:
    normal = _normal_scores(_split(draws))
    folded = _normal_scores(_split(np.abs(draws - np.median(draws, axis=(0, 1)))))
    rhat = np.maximum(_rhat(normal), _rhat(folded))
    rhat = np.where(np.isfinite(draws).all(axis=(0, 1)), rhat, np.inf)
    quantiles = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
    tails = [_ess(_split((draws <= quantile).astype(float))) for quantile in quantiles]
    return Verdict(
        float(np.nanmax(rhat)),
        float(np.nanmin(_ess(normal))),
        float(np.nanmin(tails)),
        divergences,
        float(np.min(np.mean(np.diff(energy, axis=1) ** 2, axis=1) / np.var(energy, axis=1, ddof=1))),
    )


def _split(draws: Floats) -> Floats:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: Floats) -> Floats:
    """The normal quantile of each draw's rank within its quantity; draws that are equal share their mean rank."""
    values = draws.reshape(-1, draws.shape[2]).T
    count = values.shape[1]
    order = np.argsort(values, axis=1)
    ascending = np.take_along_axis(values, order, axis=1)
    fresh = np.ones(values.shape, bool)
    fresh[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    starts = np.flatnonzero(fresh)
    lengths = np.diff(starts, append=fresh.size)
    twice = np.repeat(2 * (starts % count) + lengths + 1, lengths).reshape(values.shape)
    quantile = ndtri((np.arange(2 * count + 1) / 2 - 0.375) / (count + 0.25))
    scores = np.empty(values.shape)
    np.put_along_axis(scores, order, quantile[twice], axis=1)
    return scores.T.reshape(draws.shape)


def _rhat(draws: Floats) -> Floats:
    length = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    between = length * draws.mean(axis=1).var(axis=0, ddof=1)
    return np.asarray(np.sqrt((between / within + length - 1) / length))


def _ess(draws: Floats) -> Floats:
    """Effective sample size by Geyer's initial monotone sequence, for each quantity."""
    chains, length = draws.shape[:2]
    covariance = _autocovariance(draws).mean(axis=0)
    total = covariance[0] + draws.mean(axis=1).var(axis=0, ddof=1)
    correlation = 1 - (covariance[0] * length / (length - 1) - covariance) / total
    correlation[0] = 1.0
    last = (length - 4) // 2
    even = correlation[: 2 * last + 1 : 2]
    pairs = even + correlation[1 : 2 * last + 2 : 2]
    positive = np.cumprod(pairs[:last] > 0, axis=0).astype(bool)
    monotone = np.minimum.accumulate(np.where(positive, pairs[:last], 0), axis=0)
    # of the first pair left out the even term, counted once, lowers the variance for antithetic chains
    next_even = np.take_along_axis(even, positive.sum(axis=0, keepdims=True), axis=0)[0]
    time = -1 + 2 * monotone.sum(axis=0) + np.maximum(next_even, 0)
    time = np.maximum(time, 1 / np.log10(chains * length))
    return np.asarray(chains * length / time)


def _autocovariance(draws: Floats) -> Floats:
    length = draws.shape[1]
    padded = 1 << (2 * length - 1).bit_length()
    spectrum = np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), padded, axis=1)
    return np.asarray(np.fft.irfft(np.abs(spectrum) ** 2, padded, axis=1)[:, :length] / length)
