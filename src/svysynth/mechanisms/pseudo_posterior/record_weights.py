"""Record weights: the weights α, computed from the bounds of the records by the schemes of a spec (paper §1.4.1)."""

from __future__ import annotations

import numpy as np

from svysynth.core.grouping import Floats

REWEIGHTING = 0.95
"""The constant k of the scheme `reweighted`."""


def weigh(alpha: Floats, bounds: Floats) -> Floats:
    """The weighted bounds α_i·bound_i, the largest of which is Δ_α; zero if α is zero, whatever the bound."""
    return alpha * np.where(alpha > 0, bounds, 0.0)


def inverse_weights(bounds: Floats, c: float, ceiling: float = 1.0, shift: float = 0.0) -> Floats:
    """α = min(1, c/f): records with a bound f above c are downweighted to c. Zero if the bound is not finite.

    The paper scales and shifts the weights. Studies can do so with another ceiling than 1 and a shift,
    α = min(ceiling, c/f + shift).
    """
    with np.errstate(divide="ignore"):
        return np.where(np.isfinite(bounds), np.minimum(ceiling, c / bounds + shift), 0.0)


def linear_weights(bounds: Floats, c: float, limits: tuple[float, float]) -> Floats:
    """α = clip(c·(1 − (f − min f)/(max f − min f)), 0, 1): the formula of the authors' code, with no constant added.

    `limits` are the smallest and the largest finite bound of all records.
    """
    finite = np.isfinite(bounds)
    low, high = limits
    place = (np.where(finite, bounds, high) - low) / max(high - low, np.finfo(float).tiny)
    return np.where(finite, np.clip(c * (1 - place), 0.0, 1.0), 0.0)


def reweighted(alpha: Floats, bounds: Floats, largest: float, k: float = REWEIGHTING) -> Floats:
    """α ← clip(k·α·Δ_α/Δ_{α,i}, 0, 1): records below the largest weighted bound Δ_α get some weight back."""
    with np.errstate(divide="ignore", invalid="ignore"):
        raised = np.clip(k * alpha * largest / (alpha * bounds), 0.0, 1.0)
    return np.where(alpha > 0, raised, 0.0)
