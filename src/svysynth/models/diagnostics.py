"""Diagnostics of posterior draws, with a verdict: rank-normalised split R-hat, bulk and tail ESS, divergences, E-BFMI.

R-hat and ESS are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), as in the R package `posterior`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined

LARGEST_RHAT = 1.01
SMALLEST_ESS = 400.0
SMALLEST_EBFMI = 0.3


@outlined
@dataclass(frozen=True)
class Verdict:
    """The worst diagnostics over all quantities, and whether the draws can be trusted."""

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

    @property
    def warnings(self) -> tuple[str, ...]:
        """The same as sentences, for a reader who does not know what was diagnosed."""
        return tuple(f"The draws cannot be trusted: {complaint}" for complaint in self.complaints)


def judge(draws: Floats, divergences: int, energy: Floats) -> Verdict:
    """The verdict on draws of shape chain × draw × quantity, and on the energies chain × draw."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a quantity that does not vary has no diagnostics
        rhat, bulk, tail, ebfmi = (float(figure) for figure in _figures(draws, energy, NUMPY))
    return Verdict(rhat, bulk, tail, divergences, ebfmi)


@jax.jit
def judge_together(draws: Any, energy: Any) -> Any:
    """R-hat, bulk and tail ESS and E-BFMI of many fits at once, on JAX's device; the first axis is the fit."""
    return jax.vmap(lambda draws, energy: jnp.stack(_figures(draws, energy, JAX)))(draws, energy)


class _Arrays(NamedTuple):
    """The functions in which NumPy and JAX differ."""

    xp: Any
    running_max: Callable[[Any, int], Any]
    running_min: Callable[[Any, int], Any]
    put: Callable[[Any, Any], Any]
    """`put(order, values)` undoes a sorting along the last axis."""


def _put(order: Integers, values: Floats) -> Floats:
    found = np.empty(values.shape)
    np.put_along_axis(found, order, values, axis=1)
    return found


NUMPY = _Arrays(
    np,
    lambda values, axis: np.maximum.accumulate(values, axis=axis),
    lambda values, axis: np.minimum.accumulate(values, axis=axis),
    _put,
)
JAX = _Arrays(
    jnp,
    jax.lax.cummax,
    jax.lax.cummin,
    lambda order, values: jnp.put_along_axis(jnp.empty(values.shape), order, values, 1, inplace=False),
)


def _figures(draws: Any, energy: Any, arrays: _Arrays) -> tuple[Any, Any, Any, Any]:
    """R-hat, bulk ESS and tail ESS of the worst quantity, and the E-BFMI of the worst chain."""
    xp = arrays.xp
    normal = _normal_scores(_split(draws, xp), arrays)
    folded = _normal_scores(_split(xp.abs(draws - xp.median(draws, axis=(0, 1))), xp), arrays)
    rhat = xp.maximum(_rhat(normal, xp), _rhat(folded, xp))
    rhat = xp.where(xp.isfinite(draws).all(axis=(0, 1)), rhat, xp.inf)
    quantiles = xp.quantile(draws, np.array([0.05, 0.95]), axis=(0, 1))
    tails = [_ess(_split((draws <= quantile).astype(float), xp), arrays) for quantile in quantiles]
    ebfmi = xp.mean(xp.diff(energy, axis=1) ** 2, axis=1) / xp.var(energy, axis=1, ddof=1)
    return xp.nanmax(rhat), xp.nanmin(_ess(normal, arrays)), xp.nanmin(xp.stack(tails)), xp.min(ebfmi)


def _split(draws: Any, xp: Any) -> Any:
    half = draws.shape[1] // 2
    return xp.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: Any, arrays: _Arrays) -> Any:
    """The normal quantile of each draw's rank within its quantity; draws that are equal share their mean rank."""
    xp = arrays.xp
    values = draws.reshape(-1, draws.shape[2]).T
    count = values.shape[1]
    order = xp.argsort(values, axis=1)
    ascending = xp.take_along_axis(values, order, axis=1)
    changes = ascending[:, 1:] != ascending[:, :-1]
    edge = np.ones((len(values), 1), bool)
    position = np.arange(count)
    first = arrays.running_max(xp.where(xp.concatenate([edge, changes], axis=1), position, 0), 1)
    last = xp.where(xp.concatenate([changes, edge], axis=1), position, count)
    last = arrays.running_min(last[:, ::-1], 1)[:, ::-1]
    quantile = xp.asarray(ndtri((np.arange(2 * count + 1) / 2 - 0.375) / (count + 0.25)))
    return arrays.put(order, quantile[first + last + 2]).T.reshape(draws.shape)


def _rhat(draws: Any, xp: Any) -> Any:
    length = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    between = length * draws.mean(axis=1).var(axis=0, ddof=1)
    return xp.sqrt((between / within + length - 1) / length)


def _ess(draws: Any, arrays: _Arrays) -> Any:
    """Effective sample size by Geyer's initial monotone sequence, for each quantity."""
    xp = arrays.xp
    chains, length = draws.shape[:2]
    covariance = _autocovariance(draws, xp).mean(axis=0)
    total = covariance[0] + draws.mean(axis=1).var(axis=0, ddof=1)
    correlation = 1 - (covariance[0] * length / (length - 1) - covariance) / total
    correlation = xp.concatenate([xp.ones((1, draws.shape[2])), correlation[1:]])
    last = (length - 4) // 2
    even = correlation[: 2 * last + 1 : 2]
    pairs = even + correlation[1 : 2 * last + 2 : 2]
    positive = xp.cumprod(pairs[:last] > 0, axis=0).astype(bool)
    monotone = arrays.running_min(xp.where(positive, pairs[:last], 0.0), 0)
    # the even term of the first pair left out is counted once: it lowers the variance for antithetic chains
    next_even = xp.take_along_axis(even, positive.sum(axis=0, keepdims=True), axis=0)[0]
    time = -1 + 2 * monotone.sum(axis=0) + xp.maximum(next_even, 0)
    time = xp.maximum(time, 1 / np.log10(chains * length))
    return chains * length / time


def _autocovariance(draws: Any, xp: Any) -> Any:
    length = draws.shape[1]
    padded = 1 << (2 * length - 1).bit_length()
    spectrum = xp.fft.rfft(draws - draws.mean(axis=1, keepdims=True), padded, axis=1)
    return xp.fft.irfft(xp.abs(spectrum) ** 2, padded, axis=1)[:, :length] / length
