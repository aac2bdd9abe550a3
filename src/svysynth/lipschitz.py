"""Lipschitz bounds of the records, and the weights α made from them (paper §1.4.1).

A record's bound is the largest |log-likelihood| over the draws. The number of draws is part of its definition.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.groups import Floats
from svysynth.models.base import Array, Model, Parameters, Records
from svysynth.sampler import Fit

BLOCK = 1024
"""Records worked on at a time: memory is bounded by block × draws, whatever the number of records."""
REWEIGHTING = 0.95


def record_bounds(fit: Fit) -> Floats:
    """max over the draws of |ll_i|, for each record; infinite where a log-likelihood is not finite."""
    records = fit.records
    bounds = np.empty(len(records))
    for start in range(0, len(records), BLOCK):
        piece = slice(start, start + BLOCK)
        bounds[piece] = _block_bounds(fit.model, fit.draws, *_padded(records, piece))[: len(bounds[piece])]
    return bounds


def _padded(records: Records, piece: slice) -> tuple[Floats, Floats, Floats]:
    """A block of records filled up to the full size with copies of its last, so that one program serves all blocks."""
    position = np.minimum(np.arange(piece.start, piece.stop), len(records) - 1)
    return records.t[position], records.v[position], records.x[records.cell[position]]


@partial(jax.jit, static_argnames="model")
def _block_bounds(model: Model, draws: Parameters, t: Array, v: Array, x: Array) -> Array:
    terms = jax.vmap(lambda parameters: model.log_likelihood(parameters, t, v, x))(draws)
    return jnp.max(jnp.where(jnp.isfinite(terms), jnp.abs(terms), jnp.inf), axis=0)


def largest_bound(bounds: Floats, alpha: Floats) -> float:
    """Δ_α = max α_i·bound_i; records without weight are left out."""
    counted = alpha > 0
    return float(np.max(alpha[counted] * bounds[counted])) if counted.any() else 0.0


def inverse_weights(bounds: Floats, c: float) -> Floats:
    """α = min(1, c/f): what is at risk beyond c is weighted down to c. Zero where the bound is not finite."""
    with np.errstate(divide="ignore"):
        return np.where(np.isfinite(bounds), np.minimum(1.0, c / bounds), 0.0)


def linear_weights(bounds: Floats, c: float) -> Floats:
    """α = clip(c·(1 − (f − min f)/(max f − min f)), 0, 1): the authors' own code, with no constant added."""
    finite = np.isfinite(bounds)
    low, high = bounds[finite].min(), bounds[finite].max()
    place = (np.where(finite, bounds, high) - low) / max(high - low, np.finfo(float).tiny)
    return np.where(finite, np.clip(c * (1 - place), 0.0, 1.0), 0.0)


def reweighted(alpha: Floats, bounds: Floats, k: float = REWEIGHTING) -> Floats:
    """α ← clip(k·α·Δ_α/Δ_{α,i}, 0, 1): records below the largest weighted bound are given weight back."""
    weighted = alpha * bounds
    with np.errstate(divide="ignore", invalid="ignore"):
        raised = np.clip(k * alpha * largest_bound(bounds, alpha) / weighted, 0.0, 1.0)
    return np.where(alpha > 0, raised, 0.0)
