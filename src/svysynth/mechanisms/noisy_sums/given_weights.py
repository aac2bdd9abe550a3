"""The posterior where weights are public: of the outcomes alone, given every record's weight.

In scales, a record of cell c whose weight has the score g (`public_weights.py`) has

    t = μ_c + b(g − ḡ_c) + e,    e ~ N(0, σ²),    μ_c = x_c β + δ_c,    δ_c ~ N(0, τ²).

It is the law that FBS and FBP have of t given v, and needs none of v. So the true sums of a cell, and the scatter of t
and g within cells, of which W_gg is public, are

    S_c ~ N(n_c μ_c, n_c σ²),    W_tg ~ N(b W_gg, σ² W_gg),    W_tt = W_tg²/W_gg + σ²χ²,

with n − K − 1 degrees of freedom; and what was measured is ΣS_c in the rows of each level, W_tt + ΣS_c²/n_c and
W_tg + Σ(S_c/n_c)Σ_c g, each with Laplace noise. Where weights are constant within cells there is no b and no W_tg, and
one degree of freedom more. Priors are those of the general form (`posterior.py`), at the weights' spread that is known;
σ² and b have them through the spread of t and its correlation with g.

A row's weighted sum of outcomes is that of the known weights: a group of records of one cell and stratum has, for a log
outcome, the weighted mean exp(t̄_c + σ²/2 + b d_g + b² q_g/2 + γ), with the mean d_g and the variance q_g of its scores
by weight. γ is how far a file is from that, as in the general form, and what it has by chance follows from the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.clamped import lost_given_weights
from svysynth.mechanisms.noisy_sums.density import NoisyDensity
from svysynth.mechanisms.noisy_sums.measurement import Measurement
from svysynth.mechanisms.noisy_sums.misfit import COMMON, LARGEST_LOG, MISFIT
from svysynth.mechanisms.noisy_sums.posterior import DECADE, DEVIATION
from svysynth.mechanisms.noisy_sums.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.public_weights import KnownWeights
from svysynth.mechanisms.noisy_sums.scaled_measurement import members_of
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Sampling


@outlined
class GivenStatistics(NamedTuple):
    """The measurement in scales, and the public facts with the weights, as arrays."""

    size: Array
    """n_c."""
    x: Array
    """Cell × coefficient."""
    spread: Array
    """Of each coefficient's prior."""
    width: Array
    """The scale in units of t."""
    weight_spread: Array
    """Of v within cells; 0 where weights are constant there."""
    score_sum: Array
    """Σg of each cell."""
    score_scatter: Array
    """W_gg."""
    cell: Array
    """Of each group."""
    share: Array
    """Σu of each group."""
    tilt: Array
    """d_g."""
    tilt_variance: Array
    """q_g."""
    chance: Array
    """The variance of γ by chance in each row."""
    members: tuple[Array, ...]
    """For each level, row × cell: one where the cell is in the row."""
    sums: tuple[Array, ...]
    noise: tuple[Array, ...]
    squares: Array
    """One or two."""
    squares_noise: Array
    weighted_members: Array
    """Row × cell, of the weighted sums."""
    weighted_groups: Array
    """Row × group."""
    weighted: Array
    weighted_noise: Array
    width_error: Array
    """Of the log of a scale."""


def given_statistics(
    measurement: Measurement, facts: PublicFacts, size: Integers, x: Floats, spread: Floats
) -> GivenStatistics:
    """What the posterior needs, with a cell in each row of x."""
    if facts.weights is None:
        raise ValueError("the weights are not public")
    step, weighted, width = measurement.step, measurement.weighted, measurement.scaling.outcome.width
    known = KnownWeights.of(facts.weights, facts, step)
    members = members_of(weighted)
    return GivenStatistics(
        jnp.asarray(size, float),
        jnp.asarray(x),
        jnp.asarray(spread),
        jnp.asarray(width),
        jnp.asarray(known.spread),
        jnp.asarray(known.score_sum),
        jnp.asarray(known.scatter),
        jnp.asarray(facts.cell),
        jnp.asarray(known.weight * (measurement.records / measurement.population_total)),
        jnp.asarray(known.tilt.mean),
        jnp.asarray(known.tilt.variance),
        jnp.asarray(_by_chance(known, facts, np.asarray(members), width if measurement.transform == "log" else None)),
        tuple(members_of(level) for level in measurement.levels),
        tuple(jnp.asarray(level.sums[:, 0] * step) for level in measurement.levels),
        tuple(jnp.asarray(level.scale * step) for level in measurement.levels),
        jnp.asarray(measurement.squares * step**2),
        jnp.asarray(measurement.squares_scale * step**2),
        members,
        members[:, facts.cell],
        jnp.asarray(weighted.sums[:, 0] * measurement.weighted_step + lost_given_weights(measurement, facts)),
        jnp.asarray(weighted.scale * measurement.weighted_step),
        jnp.asarray(measurement.width_error),
    )


def _by_chance(known: KnownWeights, facts: PublicFacts, members: Floats, width: float | None) -> Floats:
    """The variance over samples of a row's weighted mean about what the plain means of its cells say.

    With the shares ω of the weight, Σω²Var(y/ȳ) − Var(t)/n in a cell: of a log outcome the first is exp(s²) − 1, with s
    the scale, and the second s²; else both are 1 in scales.
    """
    cells = len(facts.codes)
    weight = np.bincount(facts.cell, known.weight, cells)
    squared = np.bincount(facts.cell, known.squared, cells)
    first, second = (1.0, 1.0) if width is None else (np.expm1(width**2), width**2)
    own = first * squared - second * weight**2 / np.maximum(facts.size, 1)
    return np.asarray(np.maximum(members @ own, 0.0) / (members @ weight) ** 2)


@outlined
class _Point(NamedTuple):
    """Unconstrained parameters by name."""

    sums: Array
    """Of each cell: standard normal, given the rest, if the noise were normal."""
    scatter: Array
    """log of the root of χ² over its degrees of freedom, and (W_tg − b W_gg)/σ√W_gg where there is one."""
    spread: Array
    """log s of t within cells, and arctanh of the correlation with g where there is one."""
    coefficients: Array
    deviation: Array
    """log τ."""
    misfit: Array
    """γ of each row in units of what prior and noise leave of it."""
    common: Array
    """γ₀ in units of its prior's spread, and log(m/MISFIT)."""


@outlined
class _Latent(NamedTuple):
    """The true sums and scatter at a point."""

    sums: Array
    scatter: Array
    """W_tt and W_tg, or W_tt alone."""
    log_density: Array
    """Of the sums, with the Jacobian of their map."""


@dataclass(frozen=True)
class GivenWeights(NoisyDensity):
    """The posterior of one model's outcomes from noisy sums, given the weights."""

    scores: bool = True
    """Whether weights vary within cells, so that outcomes may go with them."""
    sampling = Sampling(near_normal=True, turn=0.1, steps=20, oversampling=6)
    coefficients = ("outcome_mean", "mean_square", "outcome_misfit")

    def _skewed(self, statistics: GivenStatistics) -> tuple[int, ...]:
        return ()

    def _unwhitened(self, statistics: GivenStatistics) -> tuple[int, int]:
        return 0, 0

    def _mixed_residuals(
        self, point: _Point, latent: _Latent, statistics: GivenStatistics
    ) -> list[tuple[Array, Array]]:
        return []

    def complete(self, key: Array, z: Array, statistics: GivenStatistics) -> Parameters:
        """What the true sums of a draw say, in scales: means of the cells, spread within them, and the misfit."""
        point, latent = self._at(z, statistics)
        learned, by_chance, unit = _misfit_scale(point, statistics)
        share = learned / (learned + by_chance)
        noise = jnp.sqrt(share * by_chance) * jax.random.normal(key, point.misfit.shape)
        return {
            "outcome_mean": self._means(latent, statistics),
            "mean_square": self._mean_square(latent, statistics),
            "outcome_misfit": self._by_cell(share * unit * point.misfit + noise, point, statistics),
        }

    def _at(self, z: Array, statistics: GivenStatistics) -> tuple[_Point, _Latent]:
        cells, coefficients = statistics.x.shape
        more = int(self.scores)
        sizes = [cells, 1 + more, 1 + more, coefficients, int(self.deviations), len(statistics.weighted), 2]
        point = _Point(*jnp.split(z, np.cumsum(sizes)[:-1]))
        return point, self._latent(point, statistics)

    def _latent(self, point: _Point, statistics: GivenStatistics) -> _Latent:
        size = statistics.size
        sigma, slope = self._residual(point, statistics)
        variance = size * sigma**2
        if self.deviations:
            variance = variance + size**2 * jnp.exp(2 * point.deviation[0])
        weight, target = _own_measurement(statistics)
        center = size * (statistics.x @ point.coefficients)
        # a cell's sum given what was measured of it, as if the noise were normal
        precision = 1 / variance + weight
        off = weight * (target - center) / precision + point.sums / jnp.sqrt(precision)
        density = (-0.5 * jnp.log(variance) - 0.5 * off**2 / variance - 0.5 * jnp.log(precision)).sum()
        rest = (sigma * jnp.exp(point.scatter[0])) ** 2 * self._freedom(statistics)
        if not self.scores:
            return _Latent(center + off, jnp.stack([rest]), density)
        along = slope * statistics.score_scatter + sigma * jnp.sqrt(statistics.score_scatter) * point.scatter[1]
        return _Latent(center + off, jnp.stack([rest + along**2 / statistics.score_scatter, along]), density)

    def _residual(self, point: _Point, statistics: GivenStatistics) -> tuple[Array, Array]:
        """σ and b."""
        spread = jnp.exp(point.spread[0])
        if not self.scores:
            return spread, jnp.array(0.0)
        correlation = jnp.tanh(point.spread[1])
        of_scores = jnp.sqrt(statistics.score_scatter / (statistics.size.sum() - len(statistics.size)))
        return spread * jnp.sqrt(1 - correlation**2), correlation * spread / of_scores

    def _freedom(self, statistics: GivenStatistics) -> Array:
        return statistics.size.sum() - len(statistics.size) - self.scores

    def _mean_square(self, latent: _Latent, statistics: GivenStatistics) -> Array:
        """The mean squares within cells: of t, and of t and g."""
        return latent.scatter / (statistics.size.sum() - len(statistics.size))

    def _means(self, latent: _Latent, statistics: GivenStatistics) -> Array:
        size, x = statistics.size, statistics.x
        if self.deviations:
            return latent.sums / size
        gram = (x.T * size) @ x + jnp.diag(statistics.spread**-2.0)
        return jnp.asarray(x @ jnp.linalg.solve(gram, x.T @ latent.sums))

    def _start(self, statistics: GivenStatistics) -> Array:
        """Where Newton's steps begin: least squares, and a spread that no noise can make absurd."""
        size, x = statistics.size, statistics.x
        finest = max(range(len(statistics.sums)), key=lambda level: len(statistics.sums[level]))
        rows, members = statistics.sums[finest], statistics.members[finest]
        sums = size * (members.T @ (rows / (members @ size)))
        beta = jnp.linalg.solve((x.T * size) @ x + jnp.diag(statistics.spread**-2.0), x.T @ sums)
        fitted = size * (x @ beta)
        variance = jnp.clip((statistics.squares[0] - (fitted**2 / size).sum()) / size.sum(), 0.1, 4.0)
        more = int(self.scores)
        return jnp.concatenate(
            [
                jnp.zeros(len(size) + 1 + more),
                jnp.append(0.5 * jnp.log(variance), jnp.zeros(more)),
                beta,
                jnp.full(int(self.deviations), jnp.log(DEVIATION)),
                jnp.zeros(len(statistics.weighted) + 2),
            ]
        )

    def _residuals(self, point: _Point, latent: _Latent, statistics: GivenStatistics) -> list[Array]:
        """What was measured less what is true, in scales of the noise."""
        found = [
            (sums - members @ latent.sums) / noise
            for members, sums, noise in zip(statistics.members, statistics.sums, statistics.noise, strict=True)
        ]
        mean = latent.sums / statistics.size
        between = jnp.stack([(mean * latent.sums).sum(), (mean * statistics.score_sum).sum()])[: len(latent.scatter)]
        found.append((statistics.squares - latent.scatter - between) / statistics.squares_noise)
        found.append((statistics.weighted - self._weighted(point, latent, statistics)) / statistics.weighted_noise)
        return found

    def _weighted(self, point: _Point, latent: _Latent, statistics: GivenStatistics) -> Array:
        """The weighted sums that follow from the true sums and the misfit, in each row."""
        width = statistics.width
        _, _, unit = _misfit_scale(point, statistics)
        misfit = self._by_cell(unit * point.misfit, point, statistics)
        square = self._mean_square(latent, statistics)
        freedom = statistics.size.sum() - len(statistics.size)
        slope = square[1] * freedom / statistics.score_scatter if self.scores else jnp.array(0.0)
        level, tilted = latent.sums / statistics.size, slope * statistics.tilt
        if self.transform == "identity":
            excess = (level + misfit)[statistics.cell] + tilted
            return statistics.weighted_groups @ (statistics.share * excess)
        rest = square[0] - (slope * square[1] if self.scores else 0.0)
        level = width * level + width**2 * (rest - 1) / 2 + misfit
        tilted = width * tilted + (width * slope) ** 2 * statistics.tilt_variance / 2
        excess = jnp.expm1(jnp.minimum(level[statistics.cell] + tilted, LARGEST_LOG))
        return statistics.weighted_groups @ (statistics.share * excess)

    def _by_cell(self, misfit: Array, point: _Point, statistics: GivenStatistics) -> Array:
        """The γ of rows as that of their cells, with the γ₀ that all share."""
        return statistics.weighted_members.T @ misfit + COMMON * point.common[0]

    def _without_noise(self, point: _Point, latent: _Latent, statistics: GivenStatistics) -> Array:
        """All of the log density but the noise of the measurement."""
        size = statistics.size
        square = latent.scatter[0] + (latent.sums**2 / size).sum()
        log_variance = jnp.log(square / size.sum() - (latent.sums.sum() / size.sum()) ** 2)
        scale = -0.25 * log_variance**2 / (2 * statistics.width_error**2)
        learned, by_chance, unit = _misfit_scale(point, statistics)
        variance = learned + by_chance
        further = (jnp.log(unit) - 0.5 * jnp.log(variance) - 0.5 * (unit * point.misfit) ** 2 / variance).sum()
        further -= 0.5 * (point.common**2).sum()
        return latent.log_density + self._log_prior(point, statistics) + scale + further

    def _log_prior(self, point: _Point, statistics: GivenStatistics) -> Array:
        freedom = self._freedom(statistics)
        found = (
            freedom * (point.scatter[0] - 0.5 * jnp.exp(2 * point.scatter[0])) - 0.5 * (point.scatter[1:] ** 2).sum()
        )
        found -= 0.5 * ((point.coefficients / statistics.spread) ** 2).sum()
        found -= 0.5 * (((point.deviation - jnp.log(DEVIATION)) / DECADE) ** 2).sum()
        log_spread = point.spread[0] + jnp.log(statistics.width)
        found += self.prior.log_terms_of_spread(log_spread)
        if self.scores:
            correlation = jnp.tanh(point.spread[1])
            for term in self.prior.log_terms_given_weights(log_spread, statistics.weight_spread, correlation):
                found += term
        return jnp.asarray(found)


def _misfit_scale(point: _Point, statistics: GivenStatistics) -> tuple[Array, Array, Array]:
    """The prior variance of γ in each row, m² and that by chance, and the unit in which γ is sampled."""
    learned = jnp.broadcast_to(MISFIT**2 * jnp.exp(2 * point.common[1]), statistics.chance.shape)
    weight = statistics.weighted_groups @ statistics.share
    variance, noise = learned + statistics.chance, 2 * (statistics.weighted_noise / weight) ** 2
    return learned, statistics.chance, jnp.sqrt(variance * noise / (variance + noise))


def _own_measurement(statistics: GivenStatistics) -> tuple[Array, Array]:
    """For each cell the precision of a level that has a row for it alone, and that row; none where there is no such."""
    size = statistics.size
    for members, sums, noise in zip(statistics.members, statistics.sums, statistics.noise, strict=True):
        if len(sums) == len(size):
            return jnp.full(len(size), 0.5 / noise**2), members.T @ sums
    return jnp.zeros(len(size)), jnp.zeros(len(size))
