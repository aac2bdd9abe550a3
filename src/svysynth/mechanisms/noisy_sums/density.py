"""Density: what posteriors from noisy sums share.

The noise of the measurement is Laplace. Whitening is by the mode and its curvature as if it were normal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from svysynth.models.base import Array
from svysynth.models.whitening import Whitening
from svysynth.spec import Transform

LEAST_CURVATURE = 0.3
NEWTON_STEPS = 25
DAMPING = (0.0, 0.3, 3.0, 30.0, 300.0, 3000.0)
"""What is tried beside the curvature in a Newton step; the best step is taken."""

Prior = Literal["fbs", "fbp"]


@dataclass(frozen=True)
class NoisyDensity(ABC):
    """A posterior from noisy sums, in the form that the sampler knows."""

    prior: Prior
    deviations: bool
    """Whether cells may differ from what x says of them."""
    transform: Transform
    turn = 0.1
    steps = 20
    oversampling = 6
    near_normal = True

    @property
    def name(self) -> str:
        """The model's."""
        return self.prior

    @abstractmethod
    def _at(self, z: Array, statistics: Any) -> tuple[Any, Any]:
        """The parameters, and the true sums and scatter."""

    @abstractmethod
    def _start(self, statistics: Any) -> Array:
        """Where Newton's steps begin."""

    @abstractmethod
    def _residuals(self, point: Any, latent: Any, statistics: Any) -> list[Array]:
        """What was measured less what is true, in scales of the noise."""

    @abstractmethod
    def _without_noise(self, point: Any, latent: Any, statistics: Any) -> Array:
        """All of the log density but the noise of the measurement."""

    def log_density(self, z: Array, statistics: Any) -> Array:
        """Log posterior, up to a constant."""
        point, latent = self._at(z, statistics)
        noise = sum(-jnp.abs(off).sum() for off in self._residuals(point, latent, statistics))
        return jnp.asarray(noise + self._without_noise(point, latent, statistics))

    def whitening(self, statistics: Any) -> Whitening:
        """The mode and its curvature as if the noise were normal, by Newton's steps."""

        def density(z: Array) -> Array:
            point, latent = self._at(z, statistics)
            noise = sum(-0.25 * (off**2).sum() for off in self._residuals(point, latent, statistics))
            return noise + self._without_noise(point, latent, statistics)

        slope = jax.grad(density)
        curvature = jax.jacfwd(slope)

        def newton(at: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
            z, value, _before = at
            bent, uphill = -curvature(z), slope(z)

            def damped(by: Array) -> tuple[Array, Array]:
                root = jnp.linalg.cholesky(bent + by * jnp.eye(len(z)))  # not a number where that is not convex
                place = z + jax.scipy.linalg.cho_solve((root, True), uphill)
                found = density(place)
                return place, jnp.where(jnp.isfinite(found), found, -jnp.inf)

            places, values = jax.lax.map(damped, jnp.array(DAMPING))
            best = jnp.argmax(values)
            better = values[best] > value
            return (jnp.where(better, places[best], z), jnp.where(better, values[best], value), bent), None

        start = self._start(statistics)
        begin = start, jnp.array(-jnp.inf), jnp.eye(len(start))
        (center, _, bent), _ = jax.lax.scan(newton, begin, None, length=NEWTON_STEPS)
        values, vectors = jnp.linalg.eigh(bent)
        return Whitening(center, vectors / jnp.sqrt(jnp.maximum(jnp.abs(values), LEAST_CURVATURE)))
