"""FBS: the fully Bayes model of the observed sample (paper §2.1).

(t, v) ~ N₂(xβ, Σ). β_y, β_w ~ N(0, diag(σ)Ω_β diag(σ)) with one Ω_β ~ LKJ(6) and a σ for each coefficient of each
outcome, σ ~ half-t(3, 0, 10); Σ = diag(s)Ω diag(s), Ω ~ LKJ(6), s ~ half-t(3, 0, 10).

The coefficient scales make a funnel with β. Given (Σ, σ, Ω_β) β is Gaussian and is integrated out: its least-squares
estimate B has covariance V = Σ ⊗ G⁻¹ + P with P = blockdiag(diag(σ)Ω_β diag(σ)). The sampler moves on the other
parameters, and β is then drawn exactly. On the log scale a σ is nearly uniform from |β| to the prior's scale, with a
steep wall at |β|, so that a mode and its curvature do not describe it. Each log σ is sampled as its normal score under
its one-dimensional density.

Public weights are not modelled: t ~ N(xβ, s²) with the same priors. Then x may have the log weight as a column, so that
the relation between the weight and the outcome is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from svysynth.core.column_storage import Column
from svysynth.core.grouping import Floats, Integers
from svysynth.core.spec.whole import ModelSpec
from svysynth.estimation.combining import CombiningRule
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Sampling, Traits
from svysynth.models.records import Records
from svysynth.models.sufficient_statistics import LinearStatistics, linear_statistics
from svysynth.models.whitening import Whitening, identity_cubics, normal_score_cubics

GRID = np.linspace(0.0, 1.0, 1000)
"""The points at which the one-dimensional density of a log scale is computed, as shares of a range."""
BELOW, ABOVE = 15.0, 6.0
"""How far the range extends below the coefficient's noise, where the density falls like σ, and above the prior's scale,
where it falls like σ⁻³."""


@dataclass(frozen=True)
class FBS:
    """The model of the observed sample, with the paper's priors."""

    correlation_shape: float = 6.0
    """The LKJ parameter of Ω and Ω_β."""
    scale: float = 10.0
    """The scale of the half-t priors."""
    degrees: float = 3.0
    """The degrees of freedom of the half-t priors."""
    weight_public: bool = False
    """Whether the outcome alone is modelled, because the weights are public and kept as they are."""
    name = "fbs"
    sampling = Sampling(near_normal=True)
    combining = CombiningRule()

    @classmethod
    def from_spec(cls, settings: ModelSpec, weight_public: bool) -> FBS:
        """The model with the paper's priors."""
        return cls(weight_public=weight_public)

    @property
    def traits(self) -> Traits:
        """With public weights the likelihood is not `quadratic`: x has a row for nearly every record."""
        return Traits(normal=True, quadratic=not self.weight_public, symmetric=True, public_weights=True)

    @property
    def coefficients(self) -> tuple[str, ...]:
        """β of each outcome."""
        return ("beta_y", "beta_w")[: self.outcomes]

    @property
    def covariance_prior(self) -> FBS:
        """The model's own prior: half-t spreads and an LKJ correlation."""
        return self

    @property
    def weighting_bias(self) -> SpreadBias:
        """The bias of Σ: bounds depend on the distance from the mean alone, so weights α shrink Σ but do not bias β."""
        return SpreadBias(self.weight_public)

    @property
    def outcomes(self) -> int:
        """How many numbers of a record are modelled: t and v, or t alone."""
        return 1 if self.weight_public else 2

    @property
    def _covariances(self) -> int:
        """How many parameters Σ has."""
        return self.outcomes * (self.outcomes + 1) // 2

    def statistics(self, records: Records, alpha: Column) -> LinearStatistics:
        """Weighted sums of the records."""
        found, kept = linear_statistics(records, alpha), self.outcomes
        return found._replace(coefficients=found.coefficients[:, :kept], scatter=found.scatter[:kept, :kept])

    def whitening(self, statistics: LinearStatistics) -> Whitening:
        """Σ by the curvature of its likelihood, Ω_β by its prior's spread, the scales as normal scores."""
        covariance, own = statistics.scatter / statistics.total, self._covariances
        spread = jnp.sqrt(jnp.diagonal(covariance))
        small = jnp.log(spread)
        if self.outcomes == 2:
            correlation = covariance[0, 1] / (spread[0] * spread[1])
            small = jnp.concatenate([small, jnp.arctanh(correlation)[None]])

        def fit_of_covariance(z: Array) -> Array:
            sigma, log_determinant = covariance_of(z)
            return -0.5 * statistics.total * log_determinant - 0.5 * _trace_solve(sigma, statistics.scatter)

        curvature = -jax.hessian(fit_of_covariance)(small)
        small_factor = jnp.linalg.inv(jnp.linalg.cholesky(curvature)).T
        size = statistics.gram.shape[0]
        prior = jnp.asarray(self._partial_correlation_spread(size))
        width = self.outcomes * size
        factor = jnp.diag(jnp.concatenate([jnp.ones(own + width), prior])).at[:own, :own].set(small_factor)
        noise = jnp.diagonal(covariance)[:, None] * jnp.diagonal(statistics.gram_inverse)
        scales = self.log_scale_cubics(statistics.coefficients.T.reshape(-1), noise.reshape(-1))
        cubics = jnp.concatenate([identity_cubics(own), scales, identity_cubics(len(prior))])
        return Whitening(jnp.concatenate([small, jnp.zeros(width + len(prior))]), factor, cubics)

    def log_scale_cubics(self, estimate: Array, noise: Array) -> Array:
        """The normal score of each log σ, given its coefficient's estimate alone and the variance of that."""
        estimate, noise = estimate[:, None], noise[:, None]
        low = jnp.minimum(0.5 * jnp.log(noise), np.log(self.scale)) - BELOW
        high = jnp.maximum(jnp.log(jnp.abs(estimate) + jnp.sqrt(noise)), np.log(self.scale)) + ABOVE
        grid = low + (high - low) * GRID
        variance = jnp.exp(2 * grid) + noise
        return normal_score_cubics(
            grid, -0.5 * jnp.log(variance) - 0.5 * estimate**2 / variance + self.log_half_t(grid)
        )

    def _partial_correlation_spread(self, size: int) -> Floats:
        """The prior standard deviation of the arctanh of each partial correlation of Ω_β."""
        z = np.linspace(-4, 4, 801)
        shape = self.correlation_shapes(size)[:, np.newaxis]
        density = np.exp(shape * np.log1p(-(np.tanh(z) ** 2)))
        return np.asarray(np.sqrt((density * z**2).sum(axis=1) / density.sum(axis=1)))

    def correlation_shapes(self, size: int) -> Floats:
        """b of each partial correlation of Ω_β, whose density is (1 − ρ²)^(b − 1): what LKJ gives them, row by row."""
        columns = np.tril_indices(size, -1)[1]
        return np.asarray(self.correlation_shape + (size - 2 - columns) / 2)

    def log_half_t(self, log_scale: Array | Floats) -> Array:
        """Log density of log σ for σ ~ half-t, up to a constant."""
        inside = jnp.exp(2 * log_scale) / (self.degrees * self.scale**2)
        return -0.5 * (self.degrees + 1) * jnp.log1p(inside) + log_scale

    def log_narrowing(self, log_ratio: Array) -> Array:
        """Zero, that is no narrowing: spreads and correlation are independent."""
        return jnp.zeros(())

    def log_terms(self, log_spread: Array, correlation: Array, rest: Array) -> tuple[Array, ...]:
        """Half-t spreads; LKJ's (1 − ρ²)^(η − 1) with the Jacobian of ρ = sin θ."""
        return self.log_half_t(log_spread).sum(), (2 * self.correlation_shape - 1) * jnp.log(rest)

    def log_terms_of_spread(self, log_spread: Array) -> Array:
        """A half-t spread."""
        return self.log_half_t(log_spread)

    def log_terms_given_weights(self, log_spread: Array, weight_spread: Array, correlation: Array) -> tuple[Array, ...]:
        """LKJ, whatever the spreads."""
        return (self.correlation_shape * jnp.log1p(-(correlation**2)),)

    def log_density(self, z: Array, statistics: LinearStatistics) -> Array:
        """Log pseudo posterior with β integrated out, up to a constant."""
        size, own = statistics.gram.shape[0], self._covariances
        sigma, log_determinant = covariance_of(z[:own])
        scales, partial, factor = unpack_scales(z[own:], size, self.outcomes)
        total = _noise(sigma, statistics) + _prior_covariance(scales, factor)
        likelihood = -0.5 * (statistics.total - size) * log_determinant
        likelihood -= 0.5 * _trace_solve(sigma, statistics.scatter)
        likelihood += _log_normal(statistics.coefficients.T.reshape(-1), total)
        prior = self.log_half_t(z[: self.outcomes]).sum() + self.log_half_t(jnp.log(scales)).sum()
        if self.outcomes == 2:
            prior += self.correlation_shape * jnp.log1p(-(jnp.tanh(z[2]) ** 2))
        prior += jnp.sum(self.correlation_shapes(size) * jnp.log1p(-(partial**2)))
        return likelihood + prior

    def complete(self, key: Array, z: Array, statistics: LinearStatistics) -> Parameters:
        """Draw β from its Gaussian given the rest: a draw from the joint of (β, B), corrected for the actual B."""
        shape = self.outcomes, statistics.gram.shape[0]
        own = self._covariances
        sigma, _ = covariance_of(z[:own])
        scales, _, factor = unpack_scales(z[own:], shape[1], self.outcomes)
        prior = _prior_covariance(scales, factor)
        noise_key, prior_key = jax.random.split(key)
        half = jnp.linalg.cholesky(statistics.gram_inverse)
        noise = jnp.linalg.cholesky(sigma) @ jax.random.normal(noise_key, shape) @ half.T
        drawn = scales * (jax.random.normal(prior_key, shape) @ factor.T)
        gap = (statistics.coefficients.T - drawn - noise).reshape(-1)
        shift = prior @ jnp.linalg.solve(_noise(sigma, statistics) + prior, gap)
        beta = drawn + shift.reshape(shape)
        return {
            **{name: beta[place] for place, name in enumerate(self.coefficients)},
            "covariance": sigma,
            **{name: scales[place] for place, name in enumerate(("scale_y", "scale_w")[: self.outcomes])},
            "correlation_beta": factor @ factor.T,
        }

    def log_likelihood(self, parameters: Parameters, t: Array, v: Array, x: Array) -> Array:
        """log N₂((t, v) | xβ, Σ) for each record; log N(t | xβ, s²) where weights are public."""
        covariance = parameters["covariance"]
        if self.weight_public:
            variance = covariance[0, 0]
            return -0.5 * jnp.log(2 * jnp.pi * variance) - 0.5 * (t - x @ parameters["beta_y"]) ** 2 / variance
        determinant = covariance[0, 0] * covariance[1, 1] - covariance[0, 1] ** 2
        off_t, off_v = t - x @ parameters["beta_y"], v - x @ parameters["beta_w"]
        form = covariance[1, 1] * off_t**2 - 2 * covariance[0, 1] * off_t * off_v + covariance[0, 0] * off_v**2
        return -jnp.log(2 * jnp.pi) - 0.5 * jnp.log(determinant) - 0.5 * form / determinant

    def synthesize(self, key: Array, parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
        """(t*, v*) from the model, and the smoothed log weight E[v | t*]; zeros where weights are public."""
        covariance = parameters["covariance"]
        noise = jax.random.normal(key, (self.outcomes, x.shape[0]))
        off = jnp.linalg.cholesky(covariance) @ noise
        if self.weight_public:
            nothing = jnp.zeros(x.shape[0])
            return x @ parameters["beta_y"] + off[0], nothing, nothing
        smoothed = x @ parameters["beta_w"] + covariance[0, 1] / covariance[0, 0] * off[0]
        return x @ parameters["beta_y"] + off[0], x @ parameters["beta_w"] + off[1], smoothed


@dataclass(frozen=True)
class SpreadBias:
    """The bias that weights α cause in FBS: Σ is multiplied by one factor, and β is not affected."""

    weight_public: bool

    def measure(self, draws: Parameters) -> Array:
        """The mean log spread."""
        return jnp.asarray(_mean_log_spread(draws["covariance"]))

    def remove(self, draw: Parameters, shift: Floats) -> Parameters:
        """The draw with Σ divided by that factor."""
        return draw | {"covariance": draw["covariance"] * np.exp(-2 * shift[0])}

    def spreads(self, shift: Floats) -> Floats:
        """The whole shift, which is that of the log spread."""
        return shift

    def centre(self, draw: Parameters, records: Records) -> None:
        """None: without clusters standard errors are large enough (docs/method.md)."""

    def simulate(
        self, parameters: Mapping[str, Floats], x: Floats, cell: Integers, generator: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """Records from the model; v is zero where weights are public."""
        covariance = parameters["covariance"]
        noise = generator.standard_normal((2, len(cell)))
        off = np.linalg.cholesky(covariance) @ noise[: len(covariance)]
        t = (x @ parameters["beta_y"])[cell] + off[0]
        return t, np.zeros(len(cell)) if self.weight_public else (x @ parameters["beta_w"])[cell] + off[1]


@jax.jit
def _mean_log_spread(covariance: Array) -> Array:
    outcomes = covariance.shape[-1]
    return jnp.mean(jnp.linalg.slogdet(covariance)[1] / (2 * outcomes))[None]


def covariance_of(z: Array) -> tuple[Array, Array]:
    """Σ and log|Σ| from two log standard deviations and an arctanh correlation, or from one log standard deviation."""
    if len(z) == 1:
        return jnp.exp(2 * z)[:, None], 2 * z[0]
    spread, correlation = jnp.exp(z[:2]), jnp.tanh(z[2])
    off = correlation * spread[0] * spread[1]
    sigma = jnp.array([[spread[0] ** 2, off], [off, spread[1] ** 2]])
    return sigma, 2 * z[:2].sum() + jnp.log1p(-(correlation**2))


def _trace_solve(sigma: Array, scatter: Array) -> Array:
    """tr(Σ⁻¹E)."""
    if len(sigma) == 1:
        return scatter[0, 0] / sigma[0, 0]
    determinant = sigma[0, 0] * sigma[1, 1] - sigma[0, 1] ** 2
    form = sigma[1, 1] * scatter[0, 0] - 2 * sigma[0, 1] * scatter[0, 1] + sigma[0, 0] * scatter[1, 1]
    return form / determinant


def unpack_scales(z: Array, size: int, outcomes: int = 2) -> tuple[Array, Array, Array]:
    """The scales of β (outcome × K), the partial correlations of Ω_β, and its Cholesky factor."""
    scales = jnp.exp(z[: outcomes * size]).reshape(outcomes, size)
    partial = jnp.tanh(z[outcomes * size :])
    lower = jnp.zeros((size, size)).at[np.tril_indices(size, -1)].set(partial)
    # what is left of a row's unit length before each column: √Π(1 − partial²)
    left = jnp.exp(0.5 * jnp.log1p(-(lower**2)) @ np.triu(np.ones((size, size)), 1))
    return scales, partial, (lower + np.eye(size)) * left


def _noise(sigma: Array, statistics: LinearStatistics) -> Array:
    """Σ ⊗ G⁻¹: the covariance of the least-squares coefficients around β."""
    return jnp.kron(sigma, statistics.gram_inverse)


def _prior_covariance(scales: Array, factor: Array) -> Array:
    """blockdiag(diag(σ_y)Ω_β diag(σ_y), diag(σ_w)Ω_β diag(σ_w))."""
    flat = scales.reshape(-1)
    return jnp.kron(np.eye(len(scales)), factor @ factor.T) * flat[:, None] * flat


@jax.custom_vjp
def _log_normal(value: Array, covariance: Array) -> Array:
    """log N(value | 0, V), up to a constant; value is data and has no gradient."""
    return _log_normal_forward(value, covariance)[0]


def _log_normal_forward(value: Array, covariance: Array) -> tuple[Array, tuple[Array, Array]]:
    cholesky = jnp.linalg.cholesky(covariance)
    root = solve_triangular(cholesky, jnp.eye(len(value)), lower=True)
    standardized = root @ value
    result = -jnp.log(jnp.diagonal(cholesky)).sum() - 0.5 * standardized @ standardized
    return result, (root, standardized)


def _log_normal_backward(kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    """∂/∂V = ½(V⁻¹vv'V⁻¹ − V⁻¹): cheaper than differentiating the Cholesky factorisation."""
    root, standardized = kept
    solved = root.T @ standardized
    return jnp.zeros_like(standardized), 0.5 * slope * (jnp.outer(solved, solved) - root.T @ root)


_log_normal.defvjp(_log_normal_forward, _log_normal_backward)
