"""Posterior with confidential weights: draws of the true sums, given a measurement and public facts alone.

In scales, a record of cell c has (t, v) ~ N(μ_c, Σ). So the true sums of a cell of n_c records, and the scatter within
cells, are

    S_c ~ N(n_c μ_c, n_c Σ),    W ~ Wishart(n − K, Σ),    μ_c = x_c β + δ_c,    δ_c ~ N(0, diag(τ²)),

and what was measured is ΣS_c in the rows of each level and W + ΣS_c S_c'/n_c, each with Laplace noise. S, W, Σ, β and τ
are sampled, δ is integrated out. Coefficients have normal priors centred at the public centre, with the public scale as
standard deviation: main effects of columns are hardly shrunk. Cells are shrunk towards the main effects as far as the
measurement supports this (log τ is normal). Spreads and correlation have the model's own priors (`covariance_prior`):
for FBS half-t(3, 0, 10) and LKJ(6), for FBP the half-Cauchy(0, 1) of σ_y and σ_π and the normal prior of κ_y. Under FBP
(t, p), p = −v, is normal in the sample with covariance [[σ_y², κ_yσ_y²], [·, σ_π² + κ_y²σ_y²]]: another prior of the
same Σ (docs/method.md).

In a file whose answers are not lognormal, or were clamped, weighted means and sums of weights differ from those that S
and W imply. The difference is sampled too (`misfit.py`): γ ~ N(0, m² + the variance between samples) in each row of the
weighted sums, with m estimated from the rows; for outcomes a further γ₀ that all rows share; and κ, the sum of the
sample's weights over the population total. What weighted sums lost by clamping is added back, as estimated from a
normal model. Scales from histograms give information on the spreads, for which the squares may be too noisy: the log of
a spread within and between cells is that of its scale, up to an error. Public scales give no such information.

The sampler moves S by a map that depends on Σ, β and τ: S is written in terms of the mean and spread that it would have
given Σ, β and τ if the noise were normal. So the sampler works whether noise is far below or far above the sampling
error. W is sampled by Bartlett's factors. If noise is not far above the sampling error, it is sampled as a mixture:
Laplace noise is normal noise whose variance is exponential (Andrews and Mallows 1974). These variances are sampled by
their normal scores, so no kink is left that would slow the sampler down. If noise is far above the sampling error, a
small variance would fix a sum that only β can move. Then the Laplace noise is used as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.posterior.cluster_effects import (
    PARAMETERS,
    Clusters,
    bartlett_density,
    between_variances,
    clusters_at,
    measured_squares,
    usual_clusters,
    wishart,
)
from svysynth.mechanisms.noisy_sums.posterior.density import NoisyDensity, exponential
from svysynth.mechanisms.noisy_sums.posterior.misfit import Misfit, MisfitPoint, misfit_at, misfit_variance
from svysynth.mechanisms.noisy_sums.posterior.scaled_measurement import NoisyStatistics
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Sampling

DEVIATION, DECADE = 0.1, 1.2
"""log τ ~ N(log DEVIATION, DECADE²): cells differ from main effects by a tenth of a scale, within a factor of ten."""
FAR_ABOVE = 6.0
"""Laplace noise is used as it is if its variance is this many times the sampling variance of a usual cell."""
FEW_ROWS = 2
"""With no more rows of weighted sums than this, their Laplace noise is used as it is."""


def noise_is_mixed(statistics: NoisyStatistics) -> bool:
    """Whether noise is sampled as normal noise with random variances; not if it is far above the sampling error."""
    level = statistics.own_level
    return level is not None and bool(
        2 * statistics.noise[level] ** 2 < FAR_ABOVE * np.median(np.asarray(statistics.size))
    )


@outlined
class _Point(NamedTuple):
    """The unconstrained parameters by name; the last three need no whitening."""

    sums: Array
    """The true sums, cell × 2, transformed so that they would be standard normal, given the rest, with normal noise."""
    bartlett: Array
    """The log of the first factor, the second factor, and the log of the third."""
    spread: Array
    """log s_t, log s_v, and the normal score of an angle that gives the correlation (`NoisyModel._spread`)."""
    coefficients: Array
    """β: coefficient × 2."""
    deviation: Array
    """log τ of t and v."""
    clusters: Array
    """The parameters of `cluster_effects.py`; empty if there are no clusters."""
    misfit: Array
    """γ (`misfit.py`): row × 1 or 2."""
    common: Array
    tails: Array
    """The tails of the misfit: row × 1 or 2."""
    sums_noise: Array
    """The normal scores of the noise variances of each cell's own sums, cell × 2; empty if the noise is not mixed."""
    weighted_noise: Array
    """The normal scores of the noise variances of weighted sums, row × 1 or 2; empty if the noise is not mixed."""


@outlined
class _Spread(NamedTuple):
    """The covariance Σ at a point."""

    log_scale: Array
    """log s_t, log s_v."""
    correlation: Array
    rest: Array
    """√(1 − ρ²)."""
    log_jacobian: Array
    """The log Jacobian of the angle whose sine is ρ, with respect to the angle whose score was sampled."""

    @property
    def covariance(self) -> Array:
        """Σ."""
        first, second = jnp.exp(self.log_scale)
        across = self.correlation * first * second
        return jnp.array([[first**2, across], [across, second**2]])


@outlined
class _Latent(NamedTuple):
    """The true sums, the scatter and the misfit at a point."""

    sums: Array
    scatter: Array
    """W₁₁, W₁₂, W₂₂."""
    misfit: Misfit
    log_density: Array
    """The log density of the sums, with the Jacobian of their map."""
    clusters: Clusters | None


@dataclass(frozen=True)
class NoisyModel(NoisyDensity):
    """The posterior of one model of outcomes and weights."""

    mixed: bool = True
    """Whether noise is sampled as normal noise with random variances."""
    fitted: bool = False
    """Whether the means of cells are the values that a formula gives."""

    coefficients = ("outcome_mean", "weight_mean", "spread", "outcome_misfit", "weight_misfit")

    @property
    def sampling(self) -> Sampling:
        """How chains move: with smaller steps if the noise is not mixed, because the density then has kinks."""
        turn, steps = (0.3, 6) if self.mixed else (0.12, 15)
        return Sampling(near_normal=True, turn=turn, steps=steps, oversampling=4)

    def complete(self, key: Array, z: Array, statistics: NoisyStatistics) -> Parameters:
        """The figures that follow from the true sums of a draw, in scales: cell means, spreads within cells, misfit."""
        point, latent = self._at(z, statistics)
        means, mean_square = self._means(latent, statistics), latent.scatter / statistics.freedom
        spread = jnp.sqrt(mean_square[jnp.array([0, 2])])
        correlation = mean_square[1] / (spread[0] * spread[1])
        outcome, weight = self._lasting_misfit(key, point, latent, statistics)
        between = {} if latent.clusters is None else {"between": latent.clusters.covariance}
        return {
            "outcome_mean": means[:, 0],
            "weight_mean": means[:, 1],
            "spread": jnp.stack([spread[0], spread[1], correlation]),
            "outcome_misfit": outcome,
            "weight_misfit": weight,
            **between,
        }

    def _lasting_misfit(
        self, key: Array, point: _Point, latent: _Latent, statistics: NoisyStatistics
    ) -> tuple[Array, Array]:
        """A draw of γ of each cell without its part by chance, which is a sampling error that tables include anyway."""
        learned, by_chance = misfit_variance(self._misfit_point(point, statistics), statistics)
        share = learned / (learned + by_chance)
        noise = jnp.sqrt(share * by_chance) * jax.random.normal(key, point.misfit.shape)
        found = statistics.weighted_members.T @ (share * latent.misfit.rows + noise)
        weight = found[:, 1] if found.shape[1] > 1 else jnp.zeros(len(found))
        return found[:, 0] + latent.misfit.common, weight

    def _means(self, latent: _Latent, statistics: NoisyStatistics) -> Array:
        """The means of the cells: those of the true sums or, with a formula, the values fitted to them."""
        size, x = statistics.size[:, None], statistics.x
        if not self.fitted:
            return latent.sums / size
        gram = (x * size).T @ x + jnp.diag(statistics.spread**-2.0)
        return jnp.asarray(x @ jnp.linalg.solve(gram, x.T @ latent.sums))

    def _at(self, z: Array, statistics: NoisyStatistics) -> tuple[_Point, _Latent]:
        shapes = self._shapes(statistics)
        parts = jnp.split(z, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        point = _Point(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))
        spread = self._spread(point.spread, statistics)
        own = self._own_measurement(point, statistics)
        sums, density = _sums(point, spread.covariance, statistics, self.deviations, *own)
        within = jnp.stack([spread.covariance[0, 0], spread.covariance[0, 1], spread.covariance[1, 1]])
        scatter, clusters = wishart(point.bartlett, within, statistics.freedom_of_records), None
        if statistics.clusters is not None:
            clusters = clusters_at(point.clusters, spread.covariance, statistics.clusters)
            scatter, density = scatter + clusters.squares, density + clusters.log_density
        misfit = misfit_at(
            self._misfit_point(point, statistics), sums, scatter / statistics.freedom, statistics, self.transform
        )
        return point, _Latent(sums, scatter, misfit, density, clusters)

    def _spread(self, spread: Array, statistics: NoisyStatistics) -> _Spread:
        """Σ from log s_t, log s_v and the normal score of an angle a, which makes the density flat in a.

        ρ is the sine of an angle θ with tan θ = h·tan a. The factor h removes a funnel that the prior would have.
        """
        sine, cosine = _sine(spread[2])
        log_h = self._log_narrowing(spread[:2], statistics)
        size = jnp.sqrt(cosine**2 + jnp.exp(2 * log_h) * sine**2)
        return _Spread(spread[:2], jnp.exp(log_h) * sine / size, cosine / size, log_h - 2 * jnp.log(size))

    def _log_narrowing(self, log_scale: Array, statistics: NoisyStatistics) -> Array:
        """log h, the log of the factor in `_spread`."""
        apart = log_scale[1] - log_scale[0] + jnp.log(statistics.widths[1] / statistics.widths[0])
        return self.prior.log_narrowing(apart)

    def _shapes(self, statistics: NoisyStatistics) -> list[tuple[int, ...]]:
        (cells, coefficients), (rows, kinds) = statistics.x.shape, statistics.weighted.shape
        clusters = (0 if statistics.clusters is None else PARAMETERS,)
        known = [(cells, 2), (3,), (3,), (coefficients, 2), (2 * self.deviations,), clusters, (rows, kinds), (4,)]
        return [*known, (rows, kinds), (cells * self.mixed, 2), (rows * self._weighted_mixed(statistics), kinds)]

    def _weighted_mixed(self, statistics: NoisyStatistics) -> bool:
        return self.mixed and len(statistics.weighted) > FEW_ROWS

    def _unwhitened(self, statistics: NoisyStatistics) -> tuple[int, int]:
        tails, *scores = (int(np.prod(shape)) for shape in self._shapes(statistics)[-3:])
        return tails, sum(scores)

    def _skewed(self, statistics: NoisyStatistics) -> tuple[int, ...]:
        first = 2 * len(statistics.size) + 3
        skewed = first, first + 1, first + 2
        if statistics.clusters is None:
            return skewed
        first += 3 + 2 * statistics.x.shape[1] + 2 * self.deviations + 3  # after Bartlett's factors of P
        return *skewed, first, first + 1, first + 2

    def _misfit_point(self, point: _Point, statistics: NoisyStatistics) -> MisfitPoint:
        variance = jnp.full(statistics.weighted.shape, 2 * statistics.weighted_noise**2)
        if self._weighted_mixed(statistics):
            variance *= exponential(point.weighted_noise)
        between = jnp.zeros(2) if statistics.clusters is None else between_variances(point.clusters)
        return MisfitPoint(point.misfit, point.common, point.tails, variance, between)

    def _own_measurement(self, point: _Point, statistics: NoisyStatistics) -> tuple[Array, Array]:
        """The precision and the measured sums of the level in which each cell is a row of its own; 0 without one."""
        level, shape = statistics.own_level, (len(statistics.size), 2)
        if level is None:
            return jnp.zeros(shape), jnp.zeros(shape)
        variance = jnp.full(shape, 2 * statistics.noise[level] ** 2)
        if self.mixed:
            variance *= exponential(point.sums_noise)
        return 1 / variance, statistics.members[level].T @ statistics.sums[level]

    def _start(self, statistics: NoisyStatistics) -> Array:
        """The start of Newton's steps: least squares, with spreads kept in a reasonable range whatever the noise."""
        size, x = statistics.size, statistics.x
        finest = max(range(len(statistics.sums)), key=lambda level: len(statistics.sums[level]))
        rows, members = statistics.sums[finest], statistics.members[finest]
        sums = size[:, None] * (members.T @ (rows / (members @ size)[:, None]))
        gram = (x.T * size) @ x + jnp.diag(statistics.spread**-2.0)
        beta = jnp.linalg.solve(gram, x.T @ sums)
        fitted = size[:, None] * (x @ beta)
        variances = (statistics.squares - _products(fitted, size)) / size.sum()
        first, second = jnp.clip(variances[0], 0.1, 4.0), jnp.clip(variances[2], 0.1, 4.0)
        correlation = jnp.clip(variances[1] / jnp.sqrt(first * second), -0.8, 0.8)
        log_scale = 0.5 * jnp.log(jnp.array([first, second]))
        h = jnp.exp(self._log_narrowing(log_scale, statistics))
        angle = jnp.arctan(correlation / jnp.sqrt(1 - correlation**2) / h)
        spread = jnp.append(log_scale, ndtri(0.5 + angle / jnp.pi))
        deviation = jnp.full(2 * self.deviations, jnp.log(DEVIATION))
        clusters, rest = jnp.zeros(0), jnp.zeros(statistics.weighted.size + 4)
        if statistics.clusters is not None:
            clusters = usual_clusters(statistics.clusters, statistics.widths, self.transform)
        return jnp.concatenate([jnp.zeros(2 * len(size) + 3), spread, beta.reshape(-1), deviation, clusters, rest])

    def _residuals(self, point: _Point, latent: _Latent, statistics: NoisyStatistics) -> list[Array]:
        """The measured minus the true values, in scales of the noise, for noise that is not mixed."""
        levels = zip(statistics.members, statistics.sums, statistics.noise, strict=True)
        found = [
            (sums - members @ latent.sums) / noise
            for level, (members, sums, noise) in enumerate(levels)
            if not self.mixed or level != statistics.own_level
        ]
        squares = latent.scatter + _products(latent.sums, statistics.size)
        found.append((statistics.squares - squares) / statistics.squares_noise)
        if statistics.clusters is not None and latent.clusters is not None:
            covariance, means = self._spread(point.spread, statistics).covariance, latent.misfit.cells
            known = statistics.widths, statistics.clusters, self.transform
            expected = measured_squares(latent.clusters, covariance, means, *known)
            found.append((statistics.clusters.squares - expected) / statistics.clusters.noise)
        if not self._weighted_mixed(statistics):
            found.append((statistics.weighted - latent.misfit.weighted) / statistics.weighted_noise)
        return found

    def _mixed_residuals(
        self, point: _Point, latent: _Latent, statistics: NoisyStatistics
    ) -> list[tuple[Array, Array]]:
        """These differences for noise that is mixed, with the normal scores of its variances."""
        found, level = [], statistics.own_level
        if self.mixed and level is not None:
            target = statistics.members[level].T @ statistics.sums[level]
            found.append(((target - latent.sums) / statistics.noise[level], point.sums_noise))
        if self._weighted_mixed(statistics):
            off = (statistics.weighted - latent.misfit.weighted) / statistics.weighted_noise
            found.append((off, point.weighted_noise))
        return found

    def _without_noise(self, point: _Point, latent: _Latent, statistics: NoisyStatistics) -> Array:
        """The log density without the term for the noise of the measurement."""
        scales = -0.25 * (_log_total_variance(latent, statistics) ** 2).sum() / (2 * statistics.width_error**2)
        return latent.log_density + latent.misfit.log_density + self._log_prior(point, statistics) + scales

    def _log_prior(self, point: _Point, statistics: NoisyStatistics) -> Array:
        found = bartlett_density(point.bartlett, statistics.freedom_of_records)
        found -= 0.5 * ((point.coefficients / statistics.spread[:, None]) ** 2).sum()
        found -= 0.5 * (((point.deviation - jnp.log(DEVIATION)) / DECADE) ** 2).sum()
        spread = self._spread(point.spread, statistics)
        log_spread = spread.log_scale + jnp.log(statistics.widths)
        found += spread.log_jacobian - 0.5 * point.spread[2] ** 2
        for term in self.prior.log_terms(log_spread, spread.correlation, spread.rest):
            found += term
        return jnp.asarray(found)


def _sums(
    point: _Point, covariance: Array, statistics: NoisyStatistics, deviations: bool, weight: Array, target: Array
) -> tuple[Array, Array]:
    """The true sums, and their log density with the Jacobian of their map.

    `weight` is the precision of a cell's own measurement, and `target` is the measured value.
    """
    size = statistics.size
    center = size[:, None] * (statistics.x @ point.coefficients)
    squared = jnp.exp(2 * point.deviation) if deviations else jnp.zeros(2)
    a = size * covariance[0, 0] + size**2 * squared[0]
    b = size * covariance[0, 1]
    c = size * covariance[1, 1] + size**2 * squared[1]
    determinant = a * c - b * b
    # the precision of a cell's sums given what was measured of them
    p, q, r = c / determinant + weight[:, 0], -b / determinant, a / determinant + weight[:, 1]
    common = p * r - q * q
    first, second = (weight * (target - center)).T
    mean = jnp.stack([(r * first - q * second) / common, (p * second - q * first) / common], axis=1)
    along, across, own = jnp.sqrt(r / common), -q / jnp.sqrt(r * common), jnp.sqrt(1 / r)
    z = point.sums
    off = mean + jnp.stack([along * z[:, 0], across * z[:, 0] + own * z[:, 1]], axis=1)
    form = (c * off[:, 0] ** 2 - 2 * b * off[:, 0] * off[:, 1] + a * off[:, 1] ** 2) / determinant
    density = (-0.5 * jnp.log(determinant) - 0.5 * form + jnp.log(along) + jnp.log(own)).sum()
    return center + off, density


def _log_total_variance(latent: _Latent, statistics: NoisyStatistics) -> Array:
    """The log of the variances of t and v, within and between cells together, in scales."""
    size = statistics.size
    total, square = latent.sums.sum(axis=0), latent.scatter + _products(latent.sums, size)
    return jnp.log(square[jnp.array([0, 2])] / size.sum() - (total / size.sum()) ** 2)


def _products(sums: Array, size: Array) -> Array:
    """The three different entries of ΣS_c S_c'/n_c."""
    first, second = sums[:, 0], sums[:, 1]
    return jnp.stack([(first**2 / size).sum(), (first * second / size).sum(), (second**2 / size).sum()])


def _sine(score: Array) -> tuple[Array, Array]:
    """Sine and cosine of an angle whose share of a half turn has this normal score.

    So a correlation near one is not far away in this score, and priors that are flat there have no long tails.
    """
    tail = jnp.pi * ndtr(-jnp.abs(score))
    return jnp.sign(score) * jnp.cos(tail), jnp.sin(tail)
