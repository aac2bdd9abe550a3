"""The posterior that knows the noise: draws of a model's parameters given a measurement and public facts alone.

In scales, a record of cell c has (t, v) ~ N(μ_c, Σ). So the true sums of a cell of n_c records, and the scatter within
cells, are

    S_c ~ N(n_c μ_c, n_c Σ),    W ~ Wishart(n − K, Σ),    μ_c = x_c β + δ_c,    δ_c ~ N(0, diag(τ²)),

and what was measured is ΣS_c in the rows of each level and W + ΣS_c S_c'/n_c, each with Laplace noise. S, W, Σ, β and τ
are sampled, δ is integrated out and drawn at the end. Coefficients have normal priors about the public centre, with the
public scale for their spread: columns' main effects are left alone, and cells are drawn towards them as far as the
measurement says (τ ~ half-t(3, 0, DEVIATION)). Spreads and correlation have the model's own priors: for FBS
half-t(3, 0, 10) and LKJ(6), for FBP the half-Cauchy(0, 1) of σ_y and σ_π and the normal prior of κ_y. FBP says of the
sample that (t, p), p = −v, is normal with covariance [[σ_y², κ_yσ_y²], [·, σ_π² + κ_y²σ_y²]]: another prior of the same
Σ (docs/method.md).

The sampler moves S by a map that depends on Σ, β and τ: S = its mean and spread given them if the noise were normal. So
it works where noise is far below the sampling error and where it is far above. W is moved by Bartlett's factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.groups import Floats, Integers
from svysynth.mechanisms.noisy_sums.measurement import Measurement
from svysynth.models.base import Array, Parameters
from svysynth.models.whitening import Whitening
from svysynth.outline import outlined

DEVIATION = 0.5
"""The scale of τ's prior, in scales of the outcome and the weight."""
LEAST_CURVATURE = 0.3
NEWTON_STEPS = 25
SHORTER = (1.0, 0.5, 0.25, 0.1, 0.02)
"""Parts of a Newton step that are tried."""
LKJ = 6.0

Prior = Literal["fbs", "fbp"]


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
    place: tuple[Array, ...]
    """For each level, the row of each cell."""
    sums: tuple[Array, ...]
    """For each level, row × 2."""
    noise: tuple[Array, ...]
    """For each level, the scale of its noise."""
    squares: Array
    squares_noise: Array


def statistics_of(measurement: Measurement, size: Integers, x: Floats, spread: Floats) -> NoisyStatistics:
    """What the posterior needs, with a cell in each row of x."""
    step = measurement.step
    return NoisyStatistics(
        jnp.asarray(size, float),
        jnp.asarray(x),
        jnp.asarray(spread),
        jnp.asarray(measurement.scaling.widths),
        tuple(jnp.asarray(level.place) for level in measurement.levels),
        tuple(jnp.asarray(level.sums * step) for level in measurement.levels),
        tuple(jnp.asarray(level.scale * step) for level in measurement.levels),
        jnp.asarray(measurement.squares * step**2),
        jnp.asarray(measurement.squares_scale * step**2),
    )


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
class NoisyModel:
    """The posterior of one model from noisy sums, in the form that the sampler knows."""

    prior: Prior
    deviations: bool
    """Whether cells may differ from what x says of them."""
    turn = 0.1
    steps = 20
    near_normal = True

    @property
    def name(self) -> str:
        """The model's."""
        return self.prior

    def log_density(self, z: Array, statistics: NoisyStatistics) -> Array:
        """Log posterior, up to a constant."""
        point, latent = self._at(z, statistics)
        noise = sum(-jnp.abs(off).sum() for off in _residuals(latent, statistics))
        return jnp.asarray(noise + latent.log_density + self._log_prior(point, statistics))

    def whitening(self, statistics: NoisyStatistics) -> Whitening:
        """The mode and its curvature as if the noise were normal, by Newton's steps."""

        def density(z: Array) -> Array:
            point, latent = self._at(z, statistics)
            noise = sum(-0.25 * (off**2).sum() for off in _residuals(latent, statistics))
            return noise + latent.log_density + self._log_prior(point, statistics)

        slope = jax.grad(density)

        def newton(at: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
            z, value, _before = at
            values, vectors = jnp.linalg.eigh(-jax.jacfwd(slope)(z))
            values = jnp.maximum(jnp.abs(values), LEAST_CURVATURE)
            step = vectors @ ((vectors.T @ slope(z)) / values)
            tried = z + jnp.array(SHORTER)[:, None] * step
            found = jax.lax.map(density, tried)
            found = jnp.where(jnp.isfinite(found), found, -jnp.inf)
            best = jnp.argmax(found)
            better = found[best] > value
            place = jnp.where(better, tried[best], z)
            return (place, jnp.where(better, found[best], value), vectors / jnp.sqrt(values)), None

        start = self._start(statistics)
        begin = start, jnp.array(-jnp.inf), jnp.eye(len(start))
        (center, _, factor), _ = jax.lax.scan(newton, begin, None, length=NEWTON_STEPS)
        return Whitening(center, factor)

    def complete(self, key: Array, z: Array, statistics: NoisyStatistics) -> Parameters:
        """A draw in scales: the means of the cells, their spreads and the correlation."""
        point, latent = self._at(z, statistics)
        size = statistics.size[:, None]
        mean = latent.center / size
        if self.deviations:
            prior, covariance = jnp.diag(jnp.exp(2 * point.deviation)), _covariance(point.spread)
            gain = jax.vmap(lambda n: jnp.linalg.solve(prior + covariance / n, prior).T)(statistics.size)
            left = _root(prior - jnp.einsum("cij,jk->cik", gain, prior))
            mean += jnp.einsum("cij,cj->ci", gain, latent.sums / size - mean)
            mean += jnp.einsum("cij,cj->ci", left, jax.random.normal(key, mean.shape))
        spread = jnp.stack([jnp.exp(point.spread[0]), jnp.exp(point.spread[1]), jnp.tanh(point.spread[2])])
        return {"outcome_mean": mean[:, 0], "weight_mean": mean[:, 1], "spread": spread}

    def _at(self, z: Array, statistics: NoisyStatistics) -> tuple[_Point, _Latent]:
        cells, coefficients = statistics.x.shape
        sizes = np.cumsum([2 * cells, 3, 3, 2 * coefficients])
        sums, bartlett, spread, beta, deviation = jnp.split(z, sizes)
        point = _Point(sums.reshape(cells, 2), bartlett, spread, beta.reshape(coefficients, 2), deviation)
        return point, _latent(point, statistics, self.deviations)

    def _start(self, statistics: NoisyStatistics) -> Array:
        """Where Newton's steps begin: least squares, and spreads that no noise can make absurd."""
        size, x = statistics.size, statistics.x
        finest = max(range(len(statistics.sums)), key=lambda level: len(statistics.sums[level]))
        rows, place = statistics.sums[finest], statistics.place[finest]
        share = size / jnp.zeros(len(rows)).at[place].add(size)[place]
        sums = rows[place] * share[:, None]
        gram = (x.T * size) @ x + jnp.diag(statistics.spread**-2.0)
        beta = jnp.linalg.solve(gram, x.T @ sums)
        fitted = size[:, None] * (x @ beta)
        variances = (statistics.squares - _products(fitted, size)) / size.sum()
        first, second = jnp.clip(variances[0], 0.1, 4.0), jnp.clip(variances[2], 0.1, 4.0)
        correlation = jnp.clip(variances[1] / jnp.sqrt(first * second), -0.8, 0.8)
        spread = jnp.array([0.5 * jnp.log(first), 0.5 * jnp.log(second), jnp.arctanh(correlation)])
        deviation = jnp.full(2 * self.deviations, -1.5)
        return jnp.concatenate([jnp.zeros(2 * len(size) + 3), spread, beta.reshape(-1), deviation])

    def _log_prior(self, point: _Point, statistics: NoisyStatistics) -> Array:
        freedom = statistics.size.sum() - len(statistics.size)
        first, second, third = point.bartlett
        found = freedom * first - 0.5 * freedom * jnp.exp(2 * first) - 0.5 * second**2
        found += (freedom - 1) * third - 0.5 * freedom * jnp.exp(2 * third)
        found -= 0.5 * ((point.coefficients / statistics.spread[:, None]) ** 2).sum()
        found += (point.deviation - 2.0 * jnp.log1p(jnp.exp(2 * point.deviation) / (3 * DEVIATION**2))).sum()
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
    for place, sums, noise in zip(statistics.place, statistics.sums, statistics.noise, strict=True):
        if len(sums) == len(size):
            return jnp.full(len(size), 0.5 / noise**2), sums[place]
    return jnp.zeros(len(size)), jnp.zeros((len(size), 2))


def _residuals(latent: _Latent, statistics: NoisyStatistics) -> list[Array]:
    """What was measured less what is true, in scales of the noise."""
    found = [
        (sums - jnp.zeros_like(sums).at[place].add(latent.sums)) / noise
        for place, sums, noise in zip(statistics.place, statistics.sums, statistics.noise, strict=True)
    ]
    squares = latent.scatter + _products(latent.sums, statistics.size)
    return [*found, (statistics.squares - squares) / statistics.squares_noise]


def _products(sums: Array, size: Array) -> Array:
    """ΣS_c S_c'/n_c, its three different entries."""
    first, second = sums[:, 0], sums[:, 1]
    return jnp.stack([(first**2 / size).sum(), (first * second / size).sum(), (second**2 / size).sum()])


def _covariance(spread: Array) -> Array:
    first, second, correlation = jnp.exp(spread[0]), jnp.exp(spread[1]), jnp.tanh(spread[2])
    across = correlation * first * second
    return jnp.array([[first**2, across], [across, second**2]])


def _root(matrices: Array) -> Array:
    """A square root of symmetric matrices of two rows that may be singular."""
    a, b, c = matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 1]
    determinant = jnp.sqrt(jnp.maximum(a * c - b * b, 0.0))
    scale = jnp.sqrt(jnp.maximum(a + c + 2 * determinant, 1e-300))
    return (matrices + determinant[:, None, None] * jnp.eye(2)) / scale[:, None, None]
