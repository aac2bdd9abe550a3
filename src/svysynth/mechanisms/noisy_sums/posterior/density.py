"""Density: the parts that all posteriors from noisy sums share.

The noise of the measurement is Laplace. For whitening, the mode and its curvature are computed as if the noise were
normal, and each skewed parameter is transformed along its own line by normal scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.transforms import Transform
from svysynth.models.arrays import Array
from svysynth.models.base import CovariancePrior, Sampling
from svysynth.models.whitening import Whitening, normal_score_cubics

LEAST_CURVATURE = 0.3
NEWTON_STEPS = 25
FARTHEST, PLACES = 15.0, 301
"""The range along a skewed parameter's line in which its density is computed, in standard deviations, and the number of
points."""
DIFFERENCE = 1e-4
"""The difference of a parameter over which gradients are compared."""
DAMPING = (0.0, 0.3, 3.0, 30.0, 300.0, 3e3, 3e4, 3e5)
"""The values that are added to the curvature in a Newton step; the best step is taken."""
USUAL_SCORE = 0.3375
"""The normal score at which an exponential variable equals its mean."""


def exponential(score: Array) -> Array:
    """The value of an exponential variable with this normal score."""
    return -jax.scipy.special.log_ndtr(-score)


@dataclass(frozen=True)
class NoisyDensity(ABC):
    """A posterior from noisy sums, in the form that the sampler knows."""

    prior: CovariancePrior
    """The model's prior of spreads and correlation."""
    deviations: bool
    """Whether the means of cells may deviate from the design matrix x times the coefficients."""
    transform: Transform

    @property
    @abstractmethod
    def sampling(self) -> Sampling:
        """How chains move."""

    @property
    @abstractmethod
    def coefficients(self) -> tuple[str, ...]:
        """The names of everything that is drawn."""

    @abstractmethod
    def _at(self, z: Array, statistics: Any) -> tuple[Any, Any]:
        """The parameters, and the true sums and scatter that follow from them."""

    @abstractmethod
    def _start(self, statistics: Any) -> Array:
        """The start of Newton's steps."""

    @abstractmethod
    def _skewed(self, statistics: Any) -> tuple[int, ...]:
        """The positions of parameters whose densities are far from normal."""

    @abstractmethod
    def _unwhitened(self, statistics: Any) -> tuple[int, int]:
        """The number of final parameters that need no whitening: those around zero, and scores of variances."""

    @abstractmethod
    def _residuals(self, point: Any, latent: Any, statistics: Any) -> list[Array]:
        """The measured minus the true values, in scales of the noise, for noise that is not mixed."""

    @abstractmethod
    def _mixed_residuals(self, point: Any, latent: Any, statistics: Any) -> list[tuple[Array, Array]]:
        """These differences for noise that is normal with random variances, with the normal scores of the variances."""

    @abstractmethod
    def _without_noise(self, point: Any, latent: Any, statistics: Any) -> Array:
        """The log density without the term for the noise of the measurement."""

    def log_density(self, z: Array, statistics: Any) -> Array:
        """The log posterior density, up to a constant."""
        point, latent = self._at(z, statistics)
        noise = sum(-jnp.abs(off).sum() for off in self._residuals(point, latent, statistics))
        for off, score in self._mixed_residuals(point, latent, statistics):
            variance = exponential(score)
            noise += (-0.25 * off**2 / variance - 0.5 * jnp.log(variance) - 0.5 * score**2).sum()
        return jnp.asarray(noise + self._without_noise(point, latent, statistics))

    def whitening(self, statistics: Any) -> Whitening:
        """The mode and its curvature as if the noise were normal, by Newton's steps."""
        start, (zeros, scores) = self._start(statistics), self._unwhitened(statistics)
        rest = jnp.concatenate([jnp.zeros(zeros), jnp.full(scores, USUAL_SCORE)])

        def density(z: Array) -> Array:
            point, latent = self._at(jnp.concatenate([z, rest]), statistics)
            mixed = [off for off, _ in self._mixed_residuals(point, latent, statistics)]
            noise = sum(-0.25 * (off**2).sum() for off in [*self._residuals(point, latent, statistics), *mixed])
            return noise + self._without_noise(point, latent, statistics)

        slope = jax.vmap(jax.grad(density))

        def newton(at: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
            z, value, _before = at
            # differences of gradients: code for exact second derivatives takes three times as long to compile
            around = slope(jnp.concatenate([z + sides, z - sides, z[None]]))
            bent = (around[len(z) : -1] - around[: len(z)]) / (2 * DIFFERENCE)
            bent, uphill = (bent + bent.T) / 2, around[-1]

            def damped(by: Array) -> tuple[Array, Array]:
                root = jnp.linalg.cholesky(bent + by * jnp.eye(len(z)))  # NaN if the matrix is not positive definite
                place = z + jax.scipy.linalg.cho_solve((root, True), uphill)
                found = density(place)
                return place, jnp.where(jnp.isfinite(found), found, -jnp.inf)

            places, values = jax.lax.map(damped, jnp.array(DAMPING))
            best = jnp.argmax(values)
            better = values[best] > value
            return (jnp.where(better, places[best], z), jnp.where(better, values[best], value), bent), None

        sides = DIFFERENCE * jnp.eye(len(start))
        begin = start, jnp.array(-jnp.inf), jnp.eye(len(start))
        (center, _, bent), _ = jax.lax.scan(newton, begin, None, length=NEWTON_STEPS)
        values, vectors = jnp.linalg.eigh(bent)
        root = vectors / jnp.sqrt(jnp.maximum(jnp.abs(values), LEAST_CURVATURE))
        factor = _one_after_another(root @ root.T, self._skewed(statistics))
        far = jnp.linspace(-FARTHEST, FARTHEST, PLACES)

        def along(direction: Array) -> Array:
            values = jax.vmap(lambda by: self.log_density(jnp.append(center + by * direction, rest), statistics))(far)
            return jnp.where(jnp.isfinite(values), values, -jnp.inf)

        cubics = None
        if skewed := len(self._skewed(statistics)):
            lines = jax.vmap(along)(factor[:, :skewed].T)
            cubics = normal_score_cubics(jnp.broadcast_to(far, lines.shape), lines)
        return Whitening(jnp.append(center, jnp.zeros(len(rest))), factor, cubics)


def _one_after_another(covariance: Array, first: tuple[int, ...]) -> Array:
    """A root of a covariance whose first columns belong to the parameters `first`, each given those before it."""
    order = np.array([*first, *(place for place in range(len(covariance)) if place not in first)])
    return jnp.asarray(jnp.linalg.cholesky(covariance[order][:, order])[np.argsort(order)])
