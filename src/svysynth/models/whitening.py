"""Whitening: the map from a nearly standard normal u to a model's parameters z, on which the sampler moves.

z = center + factor·q(u). For most parameters q(u) = u. Where a parameter's density is known in one dimension and far
from normal, its q is an increasing cubic spline through the quantiles, so that u is its normal score. Any such map is
exact, because its Jacobian goes into the density: how nearly normal the result is affects the speed alone.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from svysynth.core.safe_repr import outlined

LARGEST = 5.0
"""Normal scores beyond this are mapped linearly."""
INTERVALS = 64
WIDTH = 2 * LARGEST / INTERVALS
KNOTS = np.linspace(-LARGEST, LARGEST, INTERVALS + 1)


@outlined
class Whitening(NamedTuple):
    """z = center + factor·q(u)."""

    center: jax.Array
    factor: jax.Array
    cubics: jax.Array | None = None
    """Parameter × interval × 4: q on each interval, highest power first, for the first parameters; q(u) = u for the
    others, and for all where it is None."""

    def __call__(self, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        """z, and the log of the Jacobian of q. Parameters beyond the factor are only moved by the center."""
        q, log_jacobian = u, jnp.zeros(())
        if self.cubics is not None:
            first, log_jacobian = _spline(self.cubics, u[: len(self.cubics)])
            q = jnp.concatenate([first, u[len(self.cubics) :]])
        known = len(self.factor)
        return self.center + jnp.concatenate([self.factor @ q[:known], q[known:]]), log_jacobian


def _spline(cubics: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """q(u), and the log of its Jacobian."""
    inside = jnp.clip(u, -LARGEST, LARGEST)
    interval = jnp.clip(jnp.floor((inside + LARGEST) / WIDTH), 0, INTERVALS - 1).astype(int)
    a, b, c, d = cubics[jnp.arange(len(u)), interval].T
    s = inside + LARGEST - interval * WIDTH
    slope = (3 * a * s + 2 * b) * s + c
    q = ((a * s + b) * s + c) * s + d + (u - inside) * slope
    return q, jnp.log(slope).sum()


def identity_cubics(size: int) -> jax.Array:
    """q(u) = u for that many parameters."""
    line = jnp.stack([jnp.zeros(INTERVALS), jnp.zeros(INTERVALS), jnp.ones(INTERVALS), jnp.asarray(KNOTS[:-1])], axis=1)
    return jnp.broadcast_to(line, (size, INTERVALS, 4))


def normal_score_cubics(grid: jax.Array, log_density: jax.Array) -> jax.Array:
    """q for each row of a log density on its grid: Φ(u) is the distribution function at q(u)."""
    density = jax.nn.softmax(log_density, axis=1)
    below = jnp.cumsum(density, axis=1) - density / 2
    quantile = jax.vmap(jnp.interp, in_axes=(None, 0, 0))(ndtr(KNOTS), below, grid)
    secant = jnp.diff(quantile, axis=1) / WIDTH
    # the harmonic mean of two secants keeps a cubic increasing between its knots (Fritsch and Butland 1984)
    inner = 2 / (1 / secant[:, 1:] + 1 / secant[:, :-1])
    slope = jnp.concatenate([secant[:, :1], inner, secant[:, -1:]], axis=1)
    left, right = slope[:, :-1], slope[:, 1:]
    a = (left + right - 2 * secant) / WIDTH**2
    b = (3 * secant - 2 * left - right) / WIDTH
    return jnp.stack([a, b, left, quantile[:, :-1]], axis=2)
