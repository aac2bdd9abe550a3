"""Correction: a draw of the censored posterior, freed of what clipping does to its parameters (docs/privacy.md).

The clipped likelihood concentrates not at the true parameters θ but at those θ* where the expected clipped score is
zero,

    Σ_cells n_cell·E_θ[∇ll(θ*; t, v, x)·1{low < ll(θ*) < high}] = 0.

A draw is θ* up to its spread, so solving for θ turns it into a draw around the truth. The equation has the draw and
public constants alone in it: the interval, the design matrix, the number of records in each cell. It is post-processing
and costs nothing. Priors, and the clamping of outcome and weight to their bounds, are taken to move nothing.

FBS: θ* has the right mean and sΣ for Σ, one equation for s (`interval.py`). FBP: all its parameters, by quadrature. Any
other model whose `synthesize` draws from the density that `log_likelihood` gives: by simulation.

The weights α of the asymptotic mechanism leave a like trace. They are made from the confidential bounds of the records,
so no equation with the αᵢ in it may be solved; `unweighting.py` simulates the mechanism instead.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from svysynth.groups import Floats
from svysynth.interval import Interval, shrinkage, shrinkage_by_guess
from svysynth.keys import jax_key
from svysynth.models.base import Array, Model, Parameters, Records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.streams import Streams

MOST_STEPS = 50
CLOSE = 1e-6
"""A solution is found when Newton's step is so small, in standard errors of the parameters."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)
ANGLES = np.arange(48) * (2 * np.pi / 48)
"""The quadrature of FBP: Gauss and Legendre's along a radius, equal steps around."""
FARTHEST = 9.0
"""Standard deviations from the mean beyond which a normal density counts for nothing."""
LENGTHS = 2.0 ** -np.arange(8)
"""Of Newton's steps, tried from the longest."""
SIMULATED = 200_000
"""Records of a simulation, at least; and twenty for each record of the sample, so that it adds little to a draw's
spread."""
SIMULATED_STEPS = 8


def correct(
    model: Model,
    parameters: Parameters,
    interval: Interval,
    records: Records,
    streams: Streams,
    guess: float | None = None,
) -> Parameters:
    """The parameters of which this draw is the censored image. Of the records the public part alone is looked at.

    `guess` is a public guess of the peak of the log density (`interval.peak_of`). FBS uses it where the interval is so
    narrow that a draw says little about Σ's size: below a width of about 1.5 it should be given.
    """
    sizes = np.bincount(records.cell, minlength=len(records.x)).astype(float)
    if isinstance(model, FBS):
        return correct_fbs(parameters, interval, guess, len(records))
    if isinstance(model, FBP):
        return correct_fbp(parameters, interval, records.x, sizes)
    return correct_by_simulation(model, parameters, interval, records.x, sizes, streams)


def correct_fbs(parameters: Parameters, interval: Interval, guess: float | None = None, records: int = 0) -> Parameters:
    """Σ = Σ*/s; with a public guess of the peak, and the number of records, s is drawn towards what it says."""
    covariance = np.asarray(parameters["covariance"])
    peak = float(-np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(covariance)[1])
    s = shrinkage(peak, interval) if guess is None else shrinkage_by_guess(peak, interval, guess, records)
    return parameters | {"covariance": jnp.asarray(covariance / s)}


# --- FBP: Newton's method on the expected score ---


def correct_fbp(parameters: Parameters, interval: Interval, x: Floats, sizes: Floats) -> Parameters:
    """All parameters of FBP; the draw as it is where no solution is found.

    β and κ_x are moved alike in all cells. What clipping does differs between cells, since their densities peak at
    different heights, but to take each cell's part off would multiply the noise of its coefficients as well: in the
    paper's simulation estimated counts would vary by a tenth more, for no less bias.
    """
    logs = [jnp.log(parameters[name])[None] for name in ("sigma_y", "sigma_pi")]
    draw = jnp.concatenate([parameters["beta"], parameters["kappa_x"], parameters["kappa_y"][None], *logs])
    found, is_close = _solve(draw, jnp.asarray(interval.low), jnp.asarray(interval.high), x, sizes)
    if not is_close:
        return parameters
    beta, kappa_x, (kappa_y, log_y, log_pi) = jnp.split(found, [x.shape[1], 2 * x.shape[1]])
    spreads = {"sigma_y": jnp.exp(log_y), "sigma_pi": jnp.exp(log_pi)}
    return parameters | {"beta": beta, "kappa_x": kappa_x, "kappa_y": kappa_y} | spreads


@jax.jit
def _solve(draw: Array, low: Array, high: Array, x: Array, sizes: Array) -> tuple[Array, Array]:
    """θ = (β, κ_x, κ_y, log σ_y, log σ_π) with no expected clipped score at the draw, and whether it was found."""
    level = jnp.linalg.lstsq(x, jnp.ones(len(x)))[0]
    nothing = jnp.zeros_like(level)
    rows = [jnp.concatenate([level, nothing]), jnp.concatenate([nothing, level])]
    moves = jax.scipy.linalg.block_diag(jnp.stack(rows), jnp.eye(3))

    def score(move: Array) -> Array:
        return jnp.asarray(moves @ _expected_score(draw + move @ moves, draw, low, high, x, sizes))

    def newton(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        theta, _, count = state
        inverse = jnp.linalg.inv(jax.jacfwd(score)(theta))
        unit = jnp.sqrt(jnp.abs(jnp.diagonal(inverse)))
        step = -inverse @ score(theta)
        # the longest step after which the next, by the same slopes, would be shorter
        tried = theta + LENGTHS[:, None] * step
        next_steps = jax.vmap(lambda theta: jnp.max(jnp.abs(inverse @ score(theta)) / unit))(tried)
        shorter = next_steps < jnp.max(jnp.abs(step) / unit)
        return tried[jnp.argmax(shorter)], jnp.max(jnp.abs(step) / unit), count + 1

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return (state[1] > CLOSE) & (state[2] < MOST_STEPS)

    start = jnp.zeros(len(moves)), jnp.asarray(jnp.inf), jnp.asarray(0)
    move, length, _ = jax.lax.while_loop(unfinished, newton, start)
    return draw + move @ moves, length <= CLOSE


def _expected_score(theta: Array, draw: Array, low: Array, high: Array, x: Array, sizes: Array) -> Array:
    """Σ n·E_θ[∇ll(θ*)·1{low < ll(θ*) < high}] with θ* the draw.

    In the residuals at θ*, divided by their standard deviations, the records that count fill a ring. Under θ the sample
    has t ~ N(xβ + κ_yσ_y², σ_y²) and log π given t ~ N(κ_y t + xκ_x + σ_π², σ_π²): the density with respect to log π is
    that of the model, taken with respect to π, times π.
    """
    columns = x.shape[1]
    beta, kappa_x, (kappa_y, log_y, log_pi) = jnp.split(draw, [columns, 2 * columns])
    sigma_y, sigma_pi, mean_t, mean_x = jnp.exp(log_y), jnp.exp(log_pi), x @ beta, x @ kappa_x
    expected = mean_x + 0.5 * sigma_pi**2 + kappa_y * mean_t + 0.5 * (kappa_y * sigma_y) ** 2
    peak = -jnp.log(2 * jnp.pi) - log_y - log_pi - expected
    inner = jnp.sqrt(2 * jnp.maximum(peak - high, 0.0))
    outer = jnp.clip(jnp.sqrt(2 * jnp.maximum(peak - low, 0.0)), inner, jnp.maximum(inner, FARTHEST))
    half = 0.5 * (outer - inner)
    radius = (inner + half)[:, None, None] + half[:, None, None] * NODES[:, None]
    area = half[:, None, None] * WEIGHTS[:, None] * radius * ANGLES[1]
    off_t, off_p = radius * np.cos(ANGLES), radius * np.sin(ANGLES)
    t = mean_t[:, None, None] + sigma_y * off_t
    p = kappa_y * t + mean_x[:, None, None] + sigma_pi * off_p
    share = sizes[:, None, None] * area * sigma_y * sigma_pi * _sample_density(theta, t, p, x)
    total, sum_t, sum_p, sum_pt, sum_tt, sum_pp = (
        jnp.sum(share * value, axis=(1, 2)) for value in (1.0, off_t, off_p, off_p * t, off_t**2, off_p**2)
    )
    return jnp.concatenate(
        [
            x.T @ (sum_t / sigma_y - kappa_y * total),
            x.T @ (sum_p / sigma_pi - total),
            jnp.sum(sum_pt / sigma_pi - (mean_t + kappa_y * sigma_y**2) * total)[None],
            jnp.sum(sum_tt - (1 + (kappa_y * sigma_y) ** 2) * total)[None],
            jnp.sum(sum_pp - (1 + sigma_pi**2) * total)[None],
        ]
    )


def _sample_density(theta: Array, t: Array, p: Array, x: Array) -> Array:
    """The density of (t, log π) in the sample under θ, for places in each cell."""
    columns = x.shape[1]
    beta, kappa_x, (kappa_y, log_y, log_pi) = jnp.split(theta, [columns, 2 * columns])
    variance_y, variance_pi = jnp.exp(2 * log_y), jnp.exp(2 * log_pi)
    off_t = t - (x @ beta)[:, None, None] - kappa_y * variance_y
    off_p = p - kappa_y * t - (x @ kappa_x)[:, None, None] - variance_pi
    form = off_t**2 / variance_y + off_p**2 / variance_pi
    return jnp.exp(-0.5 * form - log_y - log_pi) / (2 * jnp.pi)


# --- any model that can be simulated ---


def correct_by_simulation(
    model: Model, parameters: Parameters, interval: Interval, x: Floats, sizes: Floats, streams: Streams
) -> Parameters:
    """Newton's steps with means over simulated records, the same random numbers in each.

    With g the clipped score of a record at the draw and ∇ll its score at θ, the slope of E_θ[g] is E_θ[g·∇ll'].
    Parameters that the likelihood does not see stay as they are. The simulation adds about 2% to a draw's spread.
    """
    count = max(SIMULATED, 20 * int(sizes.sum()))
    rows = x[np.searchsorted(np.cumsum(sizes) / sizes.sum(), (np.arange(count) + 0.5) / count)]
    key = jax_key(streams, "correction")
    theta = parameters
    for _ in range(SIMULATED_STEPS):
        theta = _simulated_step(model, theta, parameters, jnp.asarray([interval.low, interval.high]), rows, key)
    return theta


@partial(jax.jit, static_argnames="model")
def _simulated_step(
    model: Model, theta: Parameters, draw: Parameters, limits: Array, rows: Array, key: Array
) -> Parameters:
    """The next θ; the longest of the steps tried that leaves every simulated record a finite likelihood."""
    t, v, _ = model.synthesize(key, theta, rows)
    flat, restore = ravel_pytree(theta)

    def terms(flat: Array) -> Array:
        return model.log_likelihood(restore(flat), t, v, rows)

    at_draw = ravel_pytree(draw)[0]
    counted = (terms(at_draw) > limits[0]) & (terms(at_draw) < limits[1])
    clipped = jnp.where(counted[:, None], jax.jacfwd(terms)(at_draw), 0.0)
    slope = clipped.T @ jax.jacfwd(terms)(flat) / len(rows)
    tried = flat - LENGTHS[:, None] * (jnp.linalg.pinv(slope, rtol=1e-8) @ clipped.mean(axis=0))
    usable = jax.vmap(lambda flat: jnp.isfinite(terms(flat)).all())(tried)
    found: Parameters = restore(jnp.where(usable.any(), tried[jnp.argmax(usable)], flat))
    return found
