"""FBP: the fully Bayes model of the population and the design (paper §2.2).

With p = −v = log π: t ~ N(xβ, σ_y²), p | t ~ N(κ_y t + xκ_x, σ_π²), and the sample's density divides by E[π | x]:

    llᵢ = log N(pᵢ | κ_y tᵢ + xᵢκ_x, σ_π) + log N(tᵢ | xᵢβ, σ_y) − (xᵢκ_x + σ_π²/2 + κ_y xᵢβ + κ_y²σ_y²/2).

β, κ ~ N(0, 100), σ_y, σ_π ~ half-Cauchy(0, 1). Given (κ_y, σ_y, σ_π) both β and κ_x are Gaussian with the prior's and
the Gram matrix's common eigenvectors: they are integrated out, and the sampler moves in three dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from svysynth.core.column_storage import Column
from svysynth.core.outline import outlined
from svysynth.core.spec import Smoothing
from svysynth.estimation.combining import Rules
from svysynth.models.base import Array, LinearStatistics, Parameters, Records, linear_statistics
from svysynth.models.whitening import Whitening


@dataclass(frozen=True)
class FBP:
    """The model of the population and the design, with the paper's priors."""

    smoothing: Smoothing = "full"
    """`full`: the weight is exp(−κ_y t* − xκ_x); `paper`: exp(−κ_y t*), which forgets what x says of the weights."""
    coefficient_variance: float = 100.0
    scale: float = 1.0
    """The scale of the half-Cauchy priors."""
    lognormal: bool = False
    """Whether the density of a record is that of π and not of log π: 1/π more, which changes no posterior but every
    Lipschitz bound. The paper's figures suggest it (docs/reproduction.md); what it prints is the other."""
    name = "fbp"
    near_normal = True
    gaussian = True
    quadratic = True
    rules: ClassVar[Rules] = "population"

    @property
    def strata_in_variance(self) -> bool:
        """The paper's FBP treats the sample as one stratum."""
        return self.smoothing == "full"

    def statistics(self, records: Records, alpha: Column) -> LinearStatistics:
        """Weighted sums of the records."""
        return linear_statistics(records, alpha)

    def whitening(self, statistics: LinearStatistics) -> Whitening:
        """The mode, by Newton's steps from the least-squares fit, and its curvature."""
        scatter, total = statistics.scatter, statistics.total
        ridge = scatter[1, 1] / total / self.coefficient_variance
        slope = -scatter[0, 1] / (scatter[0, 0] + ridge)
        rest = scatter[1, 1] + 2 * slope * scatter[0, 1] + slope**2 * scatter[0, 0]
        start = jnp.array([slope, 0.5 * jnp.log(scatter[0, 0] / total), 0.5 * jnp.log(rest / total)])

        def newton(z: Array, _: None) -> tuple[Array, None]:
            slope = jax.grad(self.log_density)(z, statistics)
            return z + jnp.clip(jnp.linalg.solve(self._curvature(z, statistics), slope), -0.5, 0.5), None

        center, _ = jax.lax.scan(newton, start, None, length=20)
        return Whitening(center, jnp.linalg.inv(jnp.linalg.cholesky(self._curvature(center, statistics))).T)

    def _curvature(self, z: Array, statistics: LinearStatistics) -> Array:
        values, vectors = jnp.linalg.eigh(-jax.hessian(self.log_density)(z, statistics))
        return jnp.asarray((vectors * jnp.maximum(jnp.abs(values), 1.0)) @ vectors.T)

    def log_density(self, z: Array, statistics: LinearStatistics) -> Array:
        """Log pseudo posterior of (κ_y, log σ_y, log σ_π) with β and κ_x integrated out, up to a constant."""
        kappa_y, variance_y, variance_pi = z[0], jnp.exp(2 * z[1]), jnp.exp(2 * z[2])
        total, scatter, size = statistics.total, statistics.scatter, statistics.gram.shape[0]
        fit = fit_coefficients(kappa_y, variance_y, variance_pi, statistics)
        rest = scatter[1, 1] + 2 * kappa_y * scatter[0, 1] + kappa_y**2 * scatter[0, 0]
        weight_of_ones = statistics.sum_x @ statistics.gram_inverse @ statistics.sum_x
        likelihood = -(total - size) * (z[1] + z[2]) - 0.5 * scatter[0, 0] / variance_y - 0.5 * rest / variance_pi
        likelihood -= statistics.sum_x @ fit.kappa_ols + kappa_y * statistics.sum_x @ statistics.coefficients[:, 0]
        likelihood += 0.5 * (weight_of_ones - total) * (variance_pi + kappa_y**2 * variance_y)
        likelihood += self._marginal(fit.beta, variance_y * fit.values) + self._marginal(
            fit.kappa, variance_pi * fit.values
        )
        prior = -0.5 * kappa_y**2 / self.coefficient_variance
        prior += (z[1:] - jnp.log1p(jnp.exp(2 * z[1:]) / self.scale**2)).sum()
        return likelihood + prior

    def _marginal(self, estimate: Array, noise: Array) -> Array:
        """log N(estimate | 0, noise + prior variance), in the eigenvectors' coordinates."""
        variance = noise + self.coefficient_variance
        return -0.5 * (jnp.log(variance) + estimate**2 / variance).sum()

    def complete(self, key: Array, z: Array, statistics: LinearStatistics) -> Parameters:
        """Draw β and κ_x from their Gaussians given the rest."""
        kappa_y, variance_y, variance_pi = z[0], jnp.exp(2 * z[1]), jnp.exp(2 * z[2])
        fit = fit_coefficients(kappa_y, variance_y, variance_pi, statistics)
        beta_key, kappa_key = jax.random.split(key)
        return {
            "beta": self._draw(beta_key, fit.beta, variance_y * fit.values, fit.vectors),
            "kappa_y": kappa_y,
            "kappa_x": self._draw(kappa_key, fit.kappa, variance_pi * fit.values, fit.vectors),
            "sigma_y": jnp.exp(z[1]),
            "sigma_pi": jnp.exp(z[2]),
        }

    def _draw(self, key: Array, estimate: Array, noise: Array, vectors: Array) -> Array:
        """By the covariance's symmetric root, which moves smoothly with α: eigenvectors swap places and change sign."""
        shrinkage = self.coefficient_variance / (self.coefficient_variance + noise)
        turned = vectors.T @ jax.random.normal(key, estimate.shape)
        return jnp.asarray(vectors @ (shrinkage * estimate + jnp.sqrt(shrinkage * noise) * turned))

    def log_likelihood(self, parameters: Parameters, t: Array, v: Array, x: Array) -> Array:
        """The sample density of each record: π times the lognormal density of π, so that 1/π cancels."""
        kappa_y, sigma_y, sigma_pi = parameters["kappa_y"], parameters["sigma_y"], parameters["sigma_pi"]
        mean_t, mean_x = x @ parameters["beta"], x @ parameters["kappa_x"]
        off_p = (-v - kappa_y * t - mean_x) / sigma_pi
        off_t = (t - mean_t) / sigma_y
        density = -jnp.log(2 * jnp.pi * sigma_y * sigma_pi) - 0.5 * (off_p**2 + off_t**2)
        if self.lognormal:
            density += v
        return density - (mean_x + 0.5 * sigma_pi**2 + kappa_y * mean_t + 0.5 * (kappa_y * sigma_y) ** 2)

    def synthesize(self, key: Array, parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
        """(t*, v*) from the population model, and the log of the smoothed weight."""
        noise = jax.random.normal(key, (2, x.shape[0]))
        t = x @ parameters["beta"] + parameters["sigma_y"] * noise[0]
        slope = -parameters["kappa_y"] * t
        full = slope - x @ parameters["kappa_x"]
        return t, full - parameters["sigma_pi"] * noise[1], full if self.smoothing == "full" else slope


@outlined
@dataclass(frozen=True)
class _Fit:
    """Estimates of β and κ_x around which their likelihood is Gaussian, in the coordinates of G⁻¹'s eigenvectors."""

    beta: Array
    kappa: Array
    kappa_ols: Array
    values: Array
    vectors: Array


def fit_coefficients(kappa_y: Array, variance_y: Array, variance_pi: Array, statistics: LinearStatistics) -> _Fit:
    """The division by E[π | x] tilts the likelihood of β and κ_x: it moves the least-squares estimates."""
    values, vectors = statistics.values, statistics.vectors
    tilt = statistics.gram_inverse @ statistics.sum_x
    beta_ols = statistics.coefficients[:, 0]
    kappa_ols = -statistics.coefficients[:, 1] - kappa_y * beta_ols
    beta = vectors.T @ (beta_ols - kappa_y * variance_y * tilt)
    return _Fit(beta, vectors.T @ (kappa_ols - variance_pi * tilt), kappa_ols, values, vectors)
