"""Clustered FBS: the fully Bayes model of the observed sample, with an effect of each cluster on outcome and weight.

(t, v) = xβ + u_j + e with u_j ~ N₂(0, T) for cluster j and e ~ N₂(0, Σ). β and Σ have the priors of FBS. T is
diag(τ)Ω_u diag(τ) with τ ~ half-t(3, 0, 10) and Ω_u ~ LKJ(2).

The weights α multiply the log-likelihood of a record given all parameters, the effects u_j included:
αᵢ·log N₂((t, v)ᵢ | xᵢβ + u_j, Σ). With nⱼ the sum of α in a cluster, the mean of its residuals is N(0, T + Σ/nⱼ). The
effects are integrated out, as is β, and both are drawn exactly afterwards. So what is sampled are the parameters of
FBS, and T.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from svysynth.core.column_storage import Column
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.whole import ModelSpec
from svysynth.estimation.combining import CombiningRule
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Sampling, Traits
from svysynth.models.cluster_statistics import ClusterStatistics, cluster_statistics
from svysynth.models.fbs import FBS, covariance_of, unpack_scales
from svysynth.models.records import Records
from svysynth.models.whitening import Whitening, identity_cubics, normal_score_cubics

ITERATIONS = 40
"""How often the EM algorithm improves the estimates of Σ and T by which the density is whitened."""
POINTS = 400
"""The points at which the one-dimensional densities of the parameters of T are computed."""
FARTHEST = 8.0
"""How far from its estimate the logarithm of a τ may be: an effect so small cannot be told from none."""
NEGLIGIBLE = 0.01
"""The ratio τ²/σ² below which differences between clusters hardly matter, so that their bias may be known roughly."""


@dataclass(frozen=True)
class ClusteredFBS:
    """FBS with cluster effects, for surveys that were sampled in clusters."""

    cluster_correlation_shape: float = 2.0
    """The parameter of the LKJ prior of Ω_u."""
    name = "fbs"
    sampling = Sampling(near_normal=True)
    combining = CombiningRule()
    traits = Traits(normal=True, symmetric=True, clusters=True)
    coefficients = ("beta_y", "beta_w")
    covariance_prior = None

    @property
    def plain(self) -> FBS:
        """The model without clusters, whose priors this one has."""
        return FBS()

    @classmethod
    def from_spec(cls, settings: ModelSpec, weight_public: bool) -> ClusteredFBS:
        """The model with its priors; weights that are public are refused, as its traits say."""
        return cls()

    @property
    def weighting_bias(self) -> ClusterBias:
        """The bias of Σ, T and the effects."""
        return ClusterBias()

    def statistics(self, records: Records, alpha: Column) -> ClusterStatistics:
        """Weighted sums of the records, by cluster."""
        return cluster_statistics(records, alpha)

    def whitening(self, statistics: ClusterStatistics) -> Whitening:
        """As for FBS at an estimate of Σ; the parameters of T by their normal scores, each given the estimated rest."""
        sigma, effects = (unconstrained(estimate) for estimate in _estimates(statistics))
        size = statistics.linear.gram.shape[0]
        plain = self.plain.whitening(
            statistics.linear._replace(scatter=covariance_of(sigma)[0] * statistics.linear.total)
        )
        found = with_effects_integrated(sigma, effects, statistics)
        noise = jnp.linalg.inv(found.precision)
        estimate = statistics.linear.coefficients.T.reshape(-1) + noise @ found.pull
        scales = self.plain.log_scale_cubics(estimate, jnp.diagonal(noise))
        of_effects = self._cubics_of_effects(sigma, effects, statistics)
        known = np.r_[0:3, 6 : 3 + len(plain.center)]
        return Whitening(
            jnp.concatenate([sigma, jnp.zeros(3), plain.center[3:]]),
            jnp.eye(3 + len(plain.center)).at[np.ix_(known, known)].set(plain.factor),
            jnp.concatenate(
                [identity_cubics(3), of_effects, scales, identity_cubics(len(plain.center) - 3 - 2 * size)]
            ),
        )

    def _cubics_of_effects(self, sigma: Array, effects: Array, statistics: ClusterStatistics) -> Array:
        """The normal scores of log τ_t, log τ_v and arctanh ρ_u, on grids that are finest at the estimates."""
        finest = 1 / np.sqrt(len(statistics.total))
        offset = finest * np.sinh(np.linspace(-1, 1, POINTS) * np.arcsinh(FARTHEST / finest))

        def log_density(change: Array) -> Array:
            found = with_effects_integrated(sigma, effects + change, statistics)
            return found.log_determinants - 0.5 * found.form + self._log_effects_prior(effects + change)

        changes = (np.eye(3)[:, np.newaxis] * offset[:, np.newaxis]).reshape(-1, 3)
        density = jax.vmap(log_density)(changes).reshape(3, -1)
        return normal_score_cubics(effects[:, None] + offset, density + np.log(np.gradient(offset)))

    def _log_effects_prior(self, z: Array) -> Array:
        """The log prior of log τ and arctanh ρ_u."""
        correlation = self.cluster_correlation_shape * jnp.log1p(-(jnp.tanh(z[2]) ** 2))
        return self.plain.log_half_t(z[:2]).sum() + correlation

    def log_density(self, z: Array, statistics: ClusterStatistics) -> Array:
        """Log pseudo posterior with β and the cluster effects integrated out, up to a constant."""
        size = statistics.linear.gram.shape[0]
        found = with_effects_integrated(z[:3], z[3:6], statistics)
        scales, partial, factor = unpack_scales(z[6:], size)
        cholesky = jnp.linalg.cholesky(found.precision)
        root = solve_triangular(cholesky, jnp.eye(2 * size), lower=True)
        noise = root.T @ root
        gain = root @ found.pull
        estimate = statistics.linear.coefficients.T.reshape(-1) + root.T @ gain
        likelihood = found.log_determinants - 0.5 * (found.form - gain @ gain)
        likelihood -= jnp.log(jnp.diagonal(cholesky)).sum()
        likelihood += _log_normal(estimate, noise + _prior_covariance(scales, factor))
        prior = self.plain.log_half_t(z[:2]).sum() + self.plain.log_half_t(jnp.log(scales)).sum()
        prior += self.plain.correlation_shape * jnp.log1p(-(jnp.tanh(z[2]) ** 2))
        prior += jnp.sum(self.plain.correlation_shapes(size) * jnp.log1p(-(partial**2)))
        return likelihood + prior + self._log_effects_prior(z[3:6])

    def complete(self, key: Array, z: Array, statistics: ClusterStatistics) -> Parameters:
        """Draw β given the rest, and then the cluster effects: each a draw from a joint, corrected for the data."""
        size = statistics.linear.gram.shape[0]
        found = with_effects_integrated(z[:3], z[3:6], statistics)
        scales, _, factor = unpack_scales(z[6:], size)
        keys = jax.random.split(key, 4)
        root = jnp.linalg.inv(jnp.linalg.cholesky(found.precision))
        prior, noise = _prior_covariance(scales, factor), root.T @ root
        least = statistics.linear.coefficients.T
        estimate = least + (noise @ found.pull).reshape(2, size)
        drawn = scales * (jax.random.normal(keys[0], (2, size)) @ factor.T)
        error = (root.T @ jax.random.normal(keys[1], (2 * size,))).reshape(2, size)
        gap = (estimate - drawn - error).reshape(-1)
        beta = drawn + (prior @ jnp.linalg.solve(noise + prior, gap)).reshape(2, size)
        clusters = len(statistics.total)
        mean = statistics.mean_e - statistics.mean_x @ (beta - least).T
        effect = jax.random.normal(keys[2], (clusters, 2)) @ jnp.linalg.cholesky(found.effects).T
        off = jax.random.normal(keys[3], (clusters, 2)) @ jnp.linalg.cholesky(found.sigma).T
        total = statistics.total[:, None]
        pull = _times(found.inverse, total * (mean - effect) - jnp.sqrt(total) * off)
        return {
            "beta_y": beta[0],
            "beta_w": beta[1],
            "covariance": found.sigma,
            "scale_y": scales[0],
            "scale_w": scales[1],
            "correlation_beta": factor @ factor.T,
            "cluster_covariance": found.effects,
            "effects": effect + pull @ found.effects,
        }

    def log_likelihood(self, parameters: Parameters, t: Array, v: Array, x: Array) -> Array:
        """log N₂((t, v) | xβ + u_j, Σ) for each record; the last entry of x is the number j of its cluster."""
        effect = parameters["effects"][x[..., -1].astype(int)]
        return self.plain.log_likelihood(parameters, t - effect[..., 0], v - effect[..., 1], x[..., :-1])

    def synthesize(self, key: Array, parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
        """(t*, v*) from the model with the drawn effect of the cluster, and the smoothed log weight E[v | t*]."""
        effect = parameters["effects"][x[:, -1].astype(int)]
        t, v, smoothed = self.plain.synthesize(key, parameters, x[:, :-1])
        return t + effect[:, 0], v + effect[:, 1], smoothed + effect[:, 1]


@dataclass(frozen=True)
class ClusterBias:
    """The bias that weights α cause: Σ and T are multiplied by factors, the effects by those of T, and β is unaffected.

    Records far from the centre have small weights, so that Σ is too small. And weights make the means of clusters less
    precise than they are, so that the effects are shrunk too far towards zero.
    """

    def measure(self, draws: Parameters) -> Array:
        """The mean log spread of Σ; for either outcome, half the log of the effects' variance/σ² + NEGLIGIBLE."""
        spread = jnp.mean(jnp.linalg.slogdet(draws["covariance"])[1] / 4)[None]
        square = jnp.var(draws["effects"], axis=1) / jnp.diagonal(draws["covariance"], axis1=1, axis2=2)
        return jnp.concatenate([spread, 0.5 * jnp.log(square.mean(axis=0) + NEGLIGIBLE)])

    def remove(self, draw: Parameters, shift: Floats) -> Parameters:
        """The draw with Σ, T and the effects divided by their factors. The mean of the effects is kept."""
        whole, own = np.exp(-2 * shift[0]), -2 * shift[1:]
        ratio = jnp.diagonal(draw["cluster_covariance"] / draw["covariance"])
        square = np.exp(own) + np.expm1(own) * NEGLIGIBLE / ratio
        factor = jnp.sqrt(whole * jnp.maximum(square, 0.0))
        mean = draw["effects"].mean(axis=0)
        return draw | {
            "covariance": draw["covariance"] * whole,
            "cluster_covariance": draw["cluster_covariance"] * jnp.outer(factor, factor),
            "effects": draw["effects"] * factor + mean * (1 - factor),
        }

    def spreads(self, shift: Floats) -> Floats:
        """The whole shift."""
        return shift

    def centre(self, draw: Parameters, records: Records) -> Array:
        """xβ, with the mean effect over the records of each cell."""
        cells, clusters, place = records.in_clusters()
        size = np.bincount(place)
        share = size / np.bincount(cells, size)[cells]
        effect = [np.bincount(cells, share * np.asarray(column)[clusters]) for column in draw["effects"].T]
        return jnp.stack([records.x @ draw[name] for name in ClusteredFBS.coefficients]) + jnp.asarray(effect)

    def simulate(
        self, parameters: Mapping[str, Floats], x: Floats, cell: Integers, generator: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """Records from the model, with new effects of all clusters."""
        noise = generator.standard_normal((2, len(cell)))
        off = np.linalg.cholesky(parameters["covariance"]) @ noise
        clusters = len(parameters["effects"])
        effects = generator.standard_normal((clusters, 2)) @ np.linalg.cholesky(parameters["cluster_covariance"]).T
        of_record = effects[x[cell, -1].astype(int)]
        t, v = ((x[:, :-1] @ parameters[name])[cell] for name in ("beta_y", "beta_w"))
        return t + of_record[:, 0] + off[0], v + of_record[:, 1] + off[1]


@outlined
class Integrated(NamedTuple):
    """The log pseudo-likelihood with the cluster effects integrated out: log_determinants − ½(form − 2·pull·d + d'Qd).

    d is β minus the least-squares coefficients, and Q the precision.
    """

    sigma: Array
    effects: Array
    """T."""
    inverse: Array
    """The three different entries of (Σ + nⱼT)⁻¹, for each cluster."""
    log_determinants: Array
    form: Array
    precision: Array
    pull: Array


def with_effects_integrated(sigma_z: Array, effects_z: Array, statistics: ClusterStatistics) -> Integrated:
    """The log pseudo-likelihood of Σ, T and β, given by unconstrained parameters of Σ and T."""
    (sigma, log_determinant), (effects, _) = covariance_of(sigma_z), covariance_of(effects_z)
    total = statistics.total
    a, b, c = (sigma[i, j] + total * effects[i, j] for i, j in ((0, 0), (0, 1), (1, 1)))
    determinant = a * c - b**2
    inverse = jnp.stack([c, -b, a]) / determinant
    spare = jnp.array([sigma[1, 1], -sigma[0, 1], sigma[0, 0]]) * jnp.exp(-log_determinant)
    log_determinants = -0.5 * (statistics.linear.total - len(total)) * log_determinant
    log_determinants -= 0.5 * jnp.log(determinant).sum()
    pulled = _times(inverse, total[:, None] * statistics.mean_e)
    form = jnp.sum(_square(spare) * statistics.within_ee) + jnp.sum(pulled * statistics.mean_e)
    size = statistics.mean_x.shape[1]
    products = statistics.products.reshape(len(total), -1)
    blocks = spare[:, None] * statistics.within_xx.reshape(-1) + (total * inverse) @ products
    first, off, second = blocks.reshape(3, size, size)
    pull = _square(spare) @ statistics.within_xe.T + pulled.T @ statistics.mean_x
    precision = jnp.block([[first, off], [off, second]])
    return Integrated(sigma, effects, inverse, log_determinants, form, precision, pull.reshape(-1))


def _square(entries: Array) -> Array:
    """The symmetric matrix with these entries 11, 12 and 22."""
    return jnp.array([[entries[0], entries[1]], [entries[1], entries[2]]])


def _times(entries: Array, vectors: Array) -> Array:
    """The product of each symmetric matrix with a vector, cluster × outcome."""
    first, second = vectors.T
    return jnp.stack([entries[0] * first + entries[1] * second, entries[1] * first + entries[2] * second], axis=1)


def _estimates(statistics: ClusterStatistics) -> tuple[Array, Array]:
    """Σ and T at the least-squares β by the EM algorithm, for whitening."""
    total, mean = statistics.total, statistics.mean_e

    def improve(_: int, found: tuple[Array, Array]) -> tuple[Array, Array]:
        sigma, effects = found
        a, b, c = (sigma[i, j] + total * effects[i, j] for i, j in ((0, 0), (0, 1), (1, 1)))
        inverse = jnp.stack([c, -b, a]) / (a * c - b**2)
        gain = effects @ jnp.moveaxis(_square(inverse), 2, 0) * total[:, None, None]
        effect = jnp.einsum("jab,jb->ja", gain, mean)
        left = effects - gain @ effects
        off = mean - effect
        new_sigma = statistics.within_ee + (total[:, None] * off).T @ off + (total[:, None, None] * left).sum(axis=0)
        return new_sigma / total.sum(), (effect.T @ effect + left.sum(axis=0)) / len(total)

    whole = statistics.linear.scatter / statistics.linear.total
    start = 0.8 * whole, 0.2 * whole
    found: tuple[Array, Array] = jax.lax.fori_loop(0, ITERATIONS, improve, start)
    return found


def unconstrained(covariance: Array) -> Array:
    """Two log standard deviations and an arctanh correlation."""
    spread = jnp.sqrt(jnp.diagonal(covariance))
    correlation = jnp.clip(covariance[0, 1] / (spread[0] * spread[1]), -0.99, 0.99)
    return jnp.concatenate([jnp.log(spread), jnp.arctanh(correlation)[None]])


def _prior_covariance(scales: Array, factor: Array) -> Array:
    flat = scales.reshape(-1)
    return jnp.kron(np.eye(2), factor @ factor.T) * flat[:, None] * flat


def _log_normal(value: Array, covariance: Array) -> Array:
    """log N(value | 0, V), up to a constant."""
    cholesky = jnp.linalg.cholesky(covariance)
    standardized = solve_triangular(cholesky, value, lower=True)
    return -jnp.log(jnp.diagonal(cholesky)).sum() - 0.5 * standardized @ standardized
