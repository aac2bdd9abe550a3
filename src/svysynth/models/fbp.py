"""FBP: the fully Bayes model of the population and the sampling (paper §2.2).

With p = −v = log π: t ~ N(xβ, σ_y²), p | t ~ N(κ_y t + xκ_x, σ_π²), and the sample's density divides by E[π | x]:

    llᵢ = log N(pᵢ | κ_y tᵢ + xᵢκ_x, σ_π²) + log N(tᵢ | xᵢβ, σ_y²) − (xᵢκ_x + σ_π²/2 + κ_y xᵢβ + κ_y²σ_y²/2).

β, κ ~ N(0, 100), σ_y, σ_π ~ half-Cauchy(0, 1). Given (κ_y, σ_y, σ_π) both β and κ_x are Gaussian, and their prior
and the Gram matrix have common eigenvectors: they are integrated out, and the sampler moves in three dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.whole import ModelSpec, Smoothing
from svysynth.estimation.combining import CombiningRule
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Sampling, Traits
from svysynth.models.records import Records
from svysynth.models.sufficient_statistics import LinearStatistics, linear_statistics
from svysynth.models.whitening import Whitening


@dataclass(frozen=True)
class FBP:
    """The model of the population and the sampling, with the paper's priors."""

    smoothing: Smoothing = "full"
    """`full`: the weight is exp(−κ_y t* − xκ_x); `paper`: exp(−κ_y t*), which leaves out how weights depend on x."""
    coefficient_variance: float = 100.0
    scale: float = 1.0
    """The scale of the half-Cauchy priors."""
    lognormal: bool = False
    """Whether the density of a record is that of π and not of log π. The further factor 1/π changes no posterior, but
    it changes the bound of every record. The paper's figures suggest π (docs/reproduction.md); it prints log π."""
    name = "fbp"
    sampling = Sampling(near_normal=True)
    traits = Traits(normal=True, quadratic=True)
    coefficients = ("beta", "kappa_x")

    @classmethod
    def from_spec(cls, settings: ModelSpec, weight_public: bool) -> FBP:
        """The model with the spec's smoothing; FBP has no form for public weights."""
        return cls(smoothing=settings.smoothing)

    @property
    def combining(self) -> CombiningRule:
        """The rules for outcomes of a population. The paper's FBP treats the sample as one stratum."""
        return CombiningRule("population", self.smoothing == "full")

    @property
    def covariance_prior(self) -> FBP:
        """The model's own prior, of spreads and correlation in the sample that it implies."""
        return self

    @property
    def weighting_bias(self) -> PopulationBias:
        """The bias of all parameters: the density of the population is not largest where that of the sample is."""
        return PopulationBias()

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

    def log_narrowing(self, log_ratio: Array) -> Array:
        """The prior of κ_y = −ρ s_v/s_t keeps ρ near 0 where s_t is small beside s_v: h² = 1/(1 + (s_v/s_t)²/100)."""
        return -0.5 * jnp.logaddexp(0.0, 2 * log_ratio - jnp.log(self.coefficient_variance))

    def log_terms(self, log_spread: Array, correlation: Array, rest: Array) -> tuple[Array, ...]:
        """Half-Cauchy σ_y = s_t and σ_π = s_v√(1 − ρ²), normal κ_y = −ρ s_v/s_t, and the Jacobian of all three."""
        variances = jnp.exp(2 * log_spread) / self.scale**2
        cauchy = jnp.log1p(variances[0]) + jnp.log1p(variances[1] * rest**2)
        kappa = -correlation * jnp.exp(log_spread[1] - log_spread[0])
        return -cauchy, -0.5 * kappa**2 / self.coefficient_variance, 2 * log_spread[1]

    def log_terms_of_spread(self, log_spread: Array) -> Array:
        """A half-Cauchy spread."""
        return log_spread - jnp.log1p(jnp.exp(2 * log_spread) / self.scale**2)

    def log_terms_given_weights(self, log_spread: Array, weight_spread: Array, correlation: Array) -> tuple[Array, ...]:
        """σ_π and κ_y follow from ρ."""
        sigma_pi = jnp.log(weight_spread) + 0.5 * jnp.log1p(-(correlation**2))
        kappa = -correlation * weight_spread / jnp.exp(log_spread)
        cauchy = jnp.log1p(jnp.exp(2 * sigma_pi) / self.scale**2)
        return sigma_pi, -cauchy, -0.5 * kappa**2 / self.coefficient_variance, -log_spread

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
        """A draw by the covariance's symmetric root, which moves smoothly with α; eigenvectors may swap or flip."""
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


@dataclass(frozen=True)
class PopulationBias:
    """The bias that weights α cause in FBP: all its parameters shift."""

    def measure(self, draws: Parameters) -> Array:
        """The means of log σ_y, log σ_π, κ_y, β and κ_x."""
        return jnp.asarray(_mean_parameters(draws))

    def remove(self, draw: Parameters, shift: Floats) -> Parameters:
        """The draw with each parameter moved back."""
        beta, kappa_x = np.split(shift[3:], 2)
        spreads = {name: draw[name] * np.exp(-shift[i]) for i, name in enumerate(("sigma_y", "sigma_pi"))}
        return draw | {
            **spreads,
            "kappa_y": draw["kappa_y"] - shift[2],
            "beta": draw["beta"] - beta,
            "kappa_x": draw["kappa_x"] - kappa_x,
        }

    def spreads(self, shift: Floats) -> Floats:
        """The shifts of log σ_y and log σ_π."""
        return shift[:2]

    def centre(self, draw: Parameters, records: Records) -> None:
        """None: without clusters standard errors are large enough (docs/method.md)."""

    def simulate(
        self, parameters: Mapping[str, Floats], x: Floats, cell: Integers, generator: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """Records of the sample, where outcomes are shifted by κ_yσ_y² and log π by σ_π² from the population."""
        slope, sigma_y, sigma_pi = (parameters[name] for name in ("kappa_y", "sigma_y", "sigma_pi"))
        noise = generator.standard_normal((2, len(cell)))
        t = (x @ parameters["beta"])[cell] + slope * sigma_y**2 + sigma_y * noise[0]
        return t, -(slope * t + (x @ parameters["kappa_x"])[cell] + sigma_pi**2 + sigma_pi * noise[1])


@jax.jit
def _mean_parameters(draws: Parameters) -> Array:
    columns = [jnp.log(draws["sigma_y"]), jnp.log(draws["sigma_pi"]), draws["kappa_y"]]
    return jnp.concatenate([jnp.stack(columns), draws["beta"].T, draws["kappa_x"].T]).mean(axis=1)


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
    """Estimates of β and κ_x: least squares, moved because the division by E[π | x] tilts the likelihood."""
    values, vectors = statistics.values, statistics.vectors
    tilt = statistics.gram_inverse @ statistics.sum_x
    beta_ols = statistics.coefficients[:, 0]
    kappa_ols = -statistics.coefficients[:, 1] - kappa_y * beta_ols
    beta = vectors.T @ (beta_ols - kappa_y * variance_y * tilt)
    return _Fit(beta, vectors.T @ (kappa_ols - variance_pi * tilt), kappa_ols, values, vectors)
