"""The posterior that knows the noise: draws of the true sums given a measurement and public facts alone.

In scales, a record of cell c has (t, v) ~ N(μ_c, Σ). So the true sums of a cell of n_c records, and the scatter within
cells, are

    S_c ~ N(n_c μ_c, n_c Σ),    W ~ Wishart(n − K, Σ),    μ_c = x_c β + δ_c,    δ_c ~ N(0, diag(τ²)),

and what was measured is ΣS_c in the rows of each level and W + ΣS_c S_c'/n_c, each with Laplace noise. S, W, Σ, β and τ
are sampled, δ is integrated out. Coefficients have normal priors about the public centre, with the public scale for
their spread: columns' main effects are left alone, and cells are drawn towards them as far as the measurement says
(log τ is normal). Spreads and correlation have the model's own priors: for FBS half-t(3, 0, 10) and LKJ(6),
for FBP the half-Cauchy(0, 1) of σ_y and σ_π and the normal prior of κ_y. FBP says of the sample that (t, p), p = −v, is
normal with covariance [[σ_y², κ_yσ_y²], [·, σ_π² + κ_y²σ_y²]]: another prior of the same Σ (docs/method.md).

A file whose answers are not lognormal, or were clamped, has other weighted means and sums of weights than S and W say.
How far off they are is sampled too: γ ~ N(0, m² + what samples give by chance) in each row of the weighted sums, with m
learned from the rows (log m is normal about log MISFIT); for outcomes one more that all rows share, γ₀ ~ N(0, COMMON²);
and κ, the sum of the sample's weights over the population total. What was clamped away from weighted sums is added as a
normal model has it. Where scales come from histograms these say something of the spreads, for which squares may be too
noisy: the log of a spread within and between cells is that of its scale, give or take an error. Public
scales say nothing of them.

The sampler moves S by a map that depends on Σ, β and τ: S = its mean and spread given them if the noise were normal. So
it works where noise is far below the sampling error and where it is far above. W is moved by Bartlett's factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.groups import Floats, Integers
from svysynth.mechanisms.noisy_sums.clamped import lost_to_clamping
from svysynth.mechanisms.noisy_sums.density import NoisyDensity
from svysynth.mechanisms.noisy_sums.measurement import Level, Measurement
from svysynth.models.base import Array, Parameters
from svysynth.outline import outlined

DEVIATION, DECADE = 0.1, 1.2
"""log τ ~ N(log DEVIATION, DECADE²): cells differ from main effects by a tenth of a scale, within a factor of ten."""
COMMON, MISFIT, UNSURE = 0.1, 0.02, 0.7
"""γ₀ ~ N(0, COMMON²) and log m ~ N(log MISFIT, UNSURE²): how far a model's means and counts are off, as shares."""
SUM_OF_WEIGHTS = 0.02
"""The spread of log κ's prior, beside what samples give by chance."""
LKJ = 6.0
LARGEST_LOG = 50.0
"""Of what is exponentiated: nothing overflows where the sampler looks too far."""


@outlined
class NoisyStatistics(NamedTuple):
    """The measurement in scales, and the public facts, as arrays."""

    size: Array
    """n_c."""
    x: Array
    """Cell × coefficient."""
    spread: Array
    """Of each coefficient's prior."""
    widths: Array
    """Of t and v: the scales in units of the transformed answers."""
    members: tuple[Array, ...]
    """For each level, row × cell: one where the cell is in the row."""
    sums: tuple[Array, ...]
    """For each level, row × 2."""
    noise: tuple[Array, ...]
    """For each level, the scale of its noise."""
    squares: Array
    squares_noise: Array
    weighted_members: Array
    """Row × cell, of the weighted sums."""
    weighted: Array
    """Row × 1 or 2: of outcomes, and of weights."""
    weighted_noise: Array
    width_error: Array
    """Of the log of a scale."""


def statistics_of(measurement: Measurement, size: Integers, x: Floats, spread: Floats) -> NoisyStatistics:
    """What the posterior needs, with a cell in each row of x."""
    step, weighted = measurement.step, measurement.weighted
    return NoisyStatistics(
        jnp.asarray(size, float),
        jnp.asarray(x),
        jnp.asarray(spread),
        jnp.asarray(measurement.scaling.widths),
        tuple(members_of(level) for level in measurement.levels),
        tuple(jnp.asarray(level.sums * step) for level in measurement.levels),
        tuple(jnp.asarray(level.scale * step) for level in measurement.levels),
        jnp.asarray(measurement.squares * step**2),
        jnp.asarray(measurement.squares_scale * step**2),
        members_of(weighted),
        jnp.asarray(weighted.sums * measurement.weighted_step + lost_to_clamping(measurement, size)),
        jnp.asarray(weighted.scale * measurement.weighted_step),
        jnp.asarray(measurement.width_error),
    )


def members_of(level: Level) -> Array:
    """Row × cell: one where the cell is in the row."""
    return jnp.asarray(np.eye(len(level.sums))[:, level.place])


@outlined
class _Point(NamedTuple):
    """Unconstrained parameters by name."""

    sums: Array
    """Cell × 2: standard normal, given the rest, if the noise were normal."""
    bartlett: Array
    """log of the first factor, the second, log of the third."""
    spread: Array
    """log s_t, log s_v, arctanh of the correlation."""
    coefficients: Array
    """Coefficient × 2."""
    deviation: Array
    """log τ of t and v."""
    misfit: Array
    """Row × 1 or 2: γ in units of `_misfit_scale`."""
    common: Array
    """γ₀, log κ, and log(m/MISFIT) of outcomes and of weights, in units of their priors' spreads."""


@outlined
class _Latent(NamedTuple):
    """The true sums and the scatter at a point."""

    sums: Array
    scatter: Array
    """W₁₁, W₁₂, W₂₂."""
    center: Array
    """n_c x_c β."""
    log_density: Array
    """Of the sums, with the Jacobian of their map."""


@dataclass(frozen=True)
class NoisyModel(NoisyDensity):
    """The posterior of one model of outcomes and weights."""

    def complete(self, key: Array, z: Array, statistics: NoisyStatistics) -> Parameters:
        """What the true sums of a draw say, in scales: means of the cells, spreads within cells, and the misfit."""
        point, latent = self._at(z, statistics)
        means, mean_square = self._means(latent, statistics), _mean_square(latent, statistics)
        spread = jnp.sqrt(mean_square[jnp.array([0, 2])])
        correlation = mean_square[1] / (spread[0] * spread[1])
        outcome, weight = self._lasting_misfit(key, point, statistics)
        return {
            "outcome_mean": means[:, 0],
            "weight_mean": means[:, 1],
            "spread": jnp.stack([spread[0], spread[1], correlation]),
            "outcome_misfit": outcome,
            "weight_misfit": weight,
        }

    def _lasting_misfit(self, key: Array, point: _Point, statistics: NoisyStatistics) -> tuple[Array, Array]:
        """γ of each cell without what it has by chance, as that may be: a sampling error, which tables have anyway."""
        learned, by_chance, unit = _misfit_scale(point, statistics)
        share = learned / (learned + by_chance)
        noise = jnp.sqrt(share * by_chance) * jax.random.normal(key, point.misfit.shape)
        return _by_cell(share * unit * point.misfit + noise, point, statistics)

    def _means(self, latent: _Latent, statistics: NoisyStatistics) -> Array:
        """The means of the cells: those of the true sums, or what a formula makes of these."""
        size, x = statistics.size[:, None], statistics.x
        if self.deviations:
            return latent.sums / size
        gram = (x * size).T @ x + jnp.diag(statistics.spread**-2.0)
        return jnp.asarray(x @ jnp.linalg.solve(gram, x.T @ latent.sums))

    def _at(self, z: Array, statistics: NoisyStatistics) -> tuple[_Point, _Latent]:
        cells, coefficients = statistics.x.shape
        sizes = [2 * cells, 3, 3, 2 * coefficients, 2 * self.deviations, statistics.weighted.size, 4]
        sums, bartlett, spread, beta, deviation, misfit, common = jnp.split(z, np.cumsum(sizes)[:-1])
        beta, misfit = beta.reshape(coefficients, 2), misfit.reshape(statistics.weighted.shape)
        point = _Point(sums.reshape(cells, 2), bartlett, spread, beta, deviation, misfit, common)
        return point, _latent(point, statistics, self.deviations)

    def _start(self, statistics: NoisyStatistics) -> Array:
        """Where Newton's steps begin: least squares, and spreads that no noise can make absurd."""
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
        spread = jnp.array([0.5 * jnp.log(first), 0.5 * jnp.log(second), jnp.arctanh(correlation)])
        deviation = jnp.full(2 * self.deviations, jnp.log(DEVIATION))
        rest = jnp.zeros(statistics.weighted.size + 4)
        return jnp.concatenate([jnp.zeros(2 * len(size) + 3), spread, beta.reshape(-1), deviation, rest])

    def _residuals(self, point: _Point, latent: _Latent, statistics: NoisyStatistics) -> list[Array]:
        """What was measured less what is true, in scales of the noise."""
        found = [
            (sums - members @ latent.sums) / noise
            for members, sums, noise in zip(statistics.members, statistics.sums, statistics.noise, strict=True)
        ]
        squares = latent.scatter + _products(latent.sums, statistics.size)
        found.append((statistics.squares - squares) / statistics.squares_noise)
        found.append((statistics.weighted - self._weighted(point, latent, statistics)) / statistics.weighted_noise)
        return found

    def _weighted(self, point: _Point, latent: _Latent, statistics: NoisyStatistics) -> Array:
        """The weighted sums that follow from the true sums and the misfit: row × 1 or 2."""
        size, (first, second) = statistics.size, statistics.widths
        means, mean_square = latent.sums / size[:, None], _mean_square(latent, statistics)
        outcome, weight = _misfit(point, statistics)
        log_weight = second * means[:, 1] + weight
        weights = size * jnp.exp(log_weight - log_weight.max())
        weights *= size.sum() / weights.sum()
        across = second * mean_square[1]
        if self.transform == "log":
            level = first**2 * (mean_square[0] - 1) / 2 + first * across + outcome
            excess = jnp.expm1(jnp.minimum(first * means[:, 0] + level, LARGEST_LOG))
        else:
            excess = means[:, 0] + across + outcome
        by_chance = jnp.expm1(second**2) / size.sum()
        total = jnp.exp(jnp.sqrt(SUM_OF_WEIGHTS**2 + by_chance) * point.common[1])
        parts = [total * weights * excess, total * weights - size][: statistics.weighted.shape[1]]
        return statistics.weighted_members @ jnp.stack(parts, axis=1)

    def _without_noise(self, point: _Point, latent: _Latent, statistics: NoisyStatistics) -> Array:
        """All of the log density but the noise of the measurement."""
        scales = -0.25 * (_log_total_variance(latent, statistics) ** 2).sum() / (2 * statistics.width_error**2)
        learned, by_chance, unit = _misfit_scale(point, statistics)
        variance = learned + by_chance
        further = (jnp.log(unit) - 0.5 * jnp.log(variance) - 0.5 * (unit * point.misfit) ** 2 / variance).sum()
        further -= 0.5 * (point.common**2).sum()
        return latent.log_density + self._log_prior(point, statistics) + scales + further

    def _log_prior(self, point: _Point, statistics: NoisyStatistics) -> Array:
        freedom = statistics.size.sum() - len(statistics.size)
        first, second, third = point.bartlett
        found = freedom * first - 0.5 * freedom * jnp.exp(2 * first) - 0.5 * second**2
        found += (freedom - 1) * third - 0.5 * freedom * jnp.exp(2 * third)
        found -= 0.5 * ((point.coefficients / statistics.spread[:, None]) ** 2).sum()
        found -= 0.5 * (((point.deviation - jnp.log(DEVIATION)) / DECADE) ** 2).sum()
        log_spread = point.spread[:2] + jnp.log(statistics.widths)
        correlation = jnp.tanh(point.spread[2])
        if self.prior == "fbs":
            found += (log_spread - 2.0 * jnp.log1p(jnp.exp(2 * log_spread) / 300)).sum()
            return jnp.asarray(found + LKJ * jnp.log1p(-(correlation**2)))
        sigma_y, sigma_pi = log_spread[0], log_spread[1] + 0.5 * jnp.log1p(-(correlation**2))
        kappa = -correlation * jnp.exp(log_spread[1] - log_spread[0])
        found += sigma_y - jnp.log1p(jnp.exp(2 * sigma_y)) + sigma_pi - jnp.log1p(jnp.exp(2 * sigma_pi))
        return jnp.asarray(found - 0.5 * kappa**2 / 100 + log_spread[1] - log_spread[0])


def _latent(point: _Point, statistics: NoisyStatistics, deviations: bool) -> _Latent:
    size = statistics.size
    center = size[:, None] * (statistics.x @ point.coefficients)
    covariance = _covariance(point.spread)
    squared = jnp.exp(2 * point.deviation) if deviations else jnp.zeros(2)
    a = size * covariance[0, 0] + size**2 * squared[0]
    b = size * covariance[0, 1]
    c = size * covariance[1, 1] + size**2 * squared[1]
    determinant = a * c - b * b
    weight, target = _own_measurement(statistics)
    # the precision of a cell's sums given what was measured of them, as if the noise were normal
    p, q, r = c / determinant + weight, -b / determinant, a / determinant + weight
    common = p * r - q * q
    first, second = (weight[:, None] * (target - center)).T
    mean = jnp.stack([(r * first - q * second) / common, (p * second - q * first) / common], axis=1)
    along, across, own = jnp.sqrt(r / common), -q / jnp.sqrt(r * common), jnp.sqrt(1 / r)
    z = point.sums
    off = mean + jnp.stack([along * z[:, 0], across * z[:, 0] + own * z[:, 1]], axis=1)
    form = (c * off[:, 0] ** 2 - 2 * b * off[:, 0] * off[:, 1] + a * off[:, 1] ** 2) / determinant
    density = (-0.5 * jnp.log(determinant) - 0.5 * form + jnp.log(along) + jnp.log(own)).sum()
    return _Latent(center + off, _scatter(point, size.sum() - len(size)), center, density)


def _scatter(point: _Point, freedom: Array) -> Array:
    """W = L A A' L' with Σ = L L' and Bartlett's A."""
    first, second, third = point.bartlett
    scale, correlation = jnp.exp(point.spread[:2]), jnp.tanh(point.spread[2])
    rest = jnp.sqrt(1 - correlation**2)
    one, three = jnp.sqrt(freedom) * jnp.exp(first), jnp.sqrt(freedom) * jnp.exp(third)
    top, left = scale[0] * one, scale[1] * (correlation * one + rest * second)
    return jnp.stack([top**2, top * left, left**2 + (scale[1] * rest * three) ** 2])


def _own_measurement(statistics: NoisyStatistics) -> tuple[Array, Array]:
    """For each cell the precision of a level that has a row for it alone, and that row; none where there is no such."""
    size = statistics.size
    for members, sums, noise in zip(statistics.members, statistics.sums, statistics.noise, strict=True):
        if len(sums) == len(size):
            return jnp.full(len(size), 0.5 / noise**2), members.T @ sums
    return jnp.zeros(len(size)), jnp.zeros((len(size), 2))


def _mean_square(latent: _Latent, statistics: NoisyStatistics) -> Array:
    """The mean squares within cells: of t, of t and v, of v."""
    return latent.scatter / (statistics.size.sum() - len(statistics.size))


def _log_total_variance(latent: _Latent, statistics: NoisyStatistics) -> Array:
    """Of t and v, within and between cells, in scales."""
    size = statistics.size
    total, square = latent.sums.sum(axis=0), latent.scatter + _products(latent.sums, size)
    return jnp.log(square[jnp.array([0, 2])] / size.sum() - (total / size.sum()) ** 2)


def _misfit(point: _Point, statistics: NoisyStatistics) -> tuple[Array, Array]:
    """γ of each cell, of the mean outcome and of the weights."""
    _, _, unit = _misfit_scale(point, statistics)
    return _by_cell(unit * point.misfit, point, statistics)


def _by_cell(misfit: Array, point: _Point, statistics: NoisyStatistics) -> tuple[Array, Array]:
    """The γ of rows as that of their cells, with the γ₀ that all share."""
    found = statistics.weighted_members.T @ misfit
    weight = found[:, 1] if found.shape[1] > 1 else jnp.zeros(len(found))
    return found[:, 0] + COMMON * point.common[0], weight


def _misfit_scale(point: _Point, statistics: NoisyStatistics) -> tuple[Array, Array, Array]:
    """The prior variance of γ in each row, m² and that by chance, and the unit in which γ is sampled.

    Rows have a γ by chance, because their own spreads are not those of all N records: with n records of a variance of
    about (1/n − 1/N)(s_t s_v)² for means and half of (1/n − 1/N)s_v⁴ for weights. The unit is what prior and noise
    leave of γ.
    """
    first, second = statistics.widths
    size, kinds = (statistics.weighted_members @ statistics.size)[:, None], statistics.weighted.shape[1]
    learned = MISFIT**2 * jnp.exp(2 * UNSURE * point.common[2 : 2 + kinds])
    by_chance = jnp.stack([(first * second) ** 2, second**4 / 2])[:kinds] * (1 / size - 1 / statistics.size.sum())
    variance, noise = learned + by_chance, 2 * (statistics.weighted_noise / size) ** 2
    return learned, by_chance, jnp.sqrt(variance * noise / (variance + noise))


def _products(sums: Array, size: Array) -> Array:
    """ΣS_c S_c'/n_c, its three different entries."""
    first, second = sums[:, 0], sums[:, 1]
    return jnp.stack([(first**2 / size).sum(), (first * second / size).sum(), (second**2 / size).sum()])


def _covariance(spread: Array) -> Array:
    first, second, correlation = jnp.exp(spread[0]), jnp.exp(spread[1]), jnp.tanh(spread[2])
    across = correlation * first * second
    return jnp.array([[first**2, across], [across, second**2]])
