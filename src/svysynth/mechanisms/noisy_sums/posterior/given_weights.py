"""Given weights: the posterior of the outcomes alone, given every record's weight, if weights are public.

In scales, a record of cell c whose weight has the score g (`public_weights.py`) has

    t = μ_c + b(g − ḡ_c) + e,    e ~ N(0, σ²),    μ_c = x_c β + δ_c,    δ_c ~ N(0, τ²).

This is the distribution of t given v under FBS and FBP; no distribution of v is needed. So the true sums of a cell, and
the scatter of t and g within cells, are (W_gg is public)

    S_c ~ N(n_c μ_c, n_c σ²),    W_tg ~ N(b W_gg, σ² W_gg),    W_tt = W_tg²/W_gg + σ²χ²,

with n − K − 1 degrees of freedom. What was measured is ΣS_c in the rows of each level, W_tt + ΣS_c²/n_c and W_tg +
Σ(S_c/n_c)Σ_c g, each with Laplace noise. If weights are constant within cells, there is no b and no W_tg, and one
degree of freedom more. The priors are those of the general form (`confidential_weights.py`), given the known spread of
the weights. The priors of σ² and b follow from those of the spread of t and its correlation with g.

If the design has clusters, records of a cluster share an effect, and the variance between clusters is sampled too
(`outcome_clusters.py`). σ² is then that within clusters, and W_tg and W_tt have the distributions given there.

A row's weighted sum of outcomes uses the known weights. For a log outcome, a group of records of one cell and stratum
has the weighted mean exp(t̄_c + σ²/2 + b d_g + b² q_g/2 + γ), where d_g and q_g are the weighted mean and variance of
its scores. γ is the difference between the file and this model, as in the general form. Its variance by chance follows
from the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import KnownWeights
from svysynth.mechanisms.noisy_sums.posterior.clamped import lost_given_weights
from svysynth.mechanisms.noisy_sums.posterior.confidential_weights import DECADE, DEVIATION
from svysynth.mechanisms.noisy_sums.posterior.density import NoisyDensity
from svysynth.mechanisms.noisy_sums.posterior.misfit import COMMON, LARGEST_LOG, MISFIT
from svysynth.mechanisms.noisy_sums.posterior.outcome_clusters import (
    PARAMETERS,
    USUAL_LOGIT,
    OutcomeClusters,
    OutcomeClusterStatistics,
    chance_of_clusters,
    chance_of_records,
    outcome_cluster_statistics,
    outcome_clusters_at,
    shares,
)
from svysynth.mechanisms.noisy_sums.posterior.scaled_measurement import members_of
from svysynth.mechanisms.noisy_sums.posterior.squares_given_weights import expected_square
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Sampling


@outlined
class GivenStatistics(NamedTuple):
    """The measurement in scales, and the public facts with the weights, as arrays."""

    size: Array
    """n_c, the number of records of each cell."""
    x: Array
    """The design matrix: cell × coefficient."""
    spread: Array
    """The prior standard deviation of each coefficient."""
    width: Array
    """The scale in units of t."""
    weight_spread: Array
    """The standard deviation of v within cells; 0 if weights are constant there."""
    score_sum: Array
    """Σg of each cell."""
    score_scatter: Array
    """W_gg."""
    cell: Array
    """The cell of each group."""
    share: Array
    """Σu of each group."""
    tilt: Array
    """d_g."""
    tilt_variance: Array
    """q_g."""
    chance: Array
    """The variance of γ by chance in each row, without clusters."""
    members: tuple[Array, ...]
    """For each level, row × cell: one where the cell is in the row."""
    sums: tuple[Array, ...]
    noise: tuple[Array, ...]
    squares: Array
    """The noisy W_tt + ΣS_c²/n_c and, if weights vary within cells, the noisy sum of products of t and g."""
    squares_noise: Array
    weighted_members: Array
    """For the weighted sums, row × cell: one where the cell is in the row."""
    weighted_groups: Array
    """For the weighted sums, row × group: one where the group is in the row."""
    weighted: Array
    weighted_noise: Array
    width_error: Array
    """The error of the log of a scale."""
    clusters: OutcomeClusterStatistics | None
    """None if the design has no clusters."""


def given_statistics(
    measurement: Measurement, facts: PublicFacts, size: Integers, x: Floats, spread: Floats
) -> GivenStatistics:
    """The arrays that the posterior needs, where each row of x is a cell."""
    if facts.weights is None:
        raise ValueError("the weights are not public")
    step, weighted, width = measurement.step, measurement.weighted, measurement.scaling.outcome.width
    members = members_of(weighted)
    clusters = outcome_cluster_statistics(measurement, facts, np.asarray(members))
    facts, _ = facts.without_clusters()
    assert facts.weights is not None
    known = KnownWeights.of(facts.weights, facts, step)
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
        jnp.asarray(
            chance_of_records(known, facts, np.asarray(members), width if measurement.transform == "log" else None)
        ),
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
        clusters,
    )


@outlined
class _Point(NamedTuple):
    """The unconstrained parameters by name."""

    sums: Array
    """The true sum of each cell, transformed so that it would be standard normal, given the rest, with normal noise."""
    scatter: Array
    """log √(χ²/degrees of freedom), and (W_tg − b W_gg)/σ√W_gg if weights vary within cells."""
    spread: Array
    """log s of t within cells, and arctanh of the correlation with g if weights vary within cells. With clusters s² is
    the variance within clusters and T together."""
    coefficients: Array
    deviation: Array
    """log τ."""
    clusters: Array
    """The parameters of `outcome_clusters.py`; empty if there are no clusters."""
    misfit: Array
    """γ of each row in units of its standard deviation given prior and noise."""
    common: Array
    """γ₀ in units of its prior standard deviation, and log(m/MISFIT)."""


@outlined
class _Latent(NamedTuple):
    """The true sums and scatter at a point."""

    sums: Array
    scatter: Array
    """W_tt and W_tg, or W_tt alone."""
    log_density: Array
    """The log density of the sums, with the Jacobian of their map."""
    sigma: Array
    """σ."""
    clusters: OutcomeClusters | None


@dataclass(frozen=True)
class GivenWeights(NoisyDensity):
    """The posterior of one model's outcomes from noisy sums, given the weights."""

    scores: bool = True
    """Whether weights vary within cells, so that outcomes may be correlated with them."""
    sampling = Sampling(near_normal=True, turn=0.1, steps=20, oversampling=6)
    coefficients = ("outcome_mean", "mean_square", "outcome_misfit")

    def _skewed(self, statistics: GivenStatistics) -> tuple[int, ...]:
        if statistics.clusters is None:
            return ()
        cells, coefficients = statistics.x.shape
        spread = cells + 1 + self.scores
        return spread, spread + 1 + self.scores + coefficients + self.deviations + PARAMETERS - 1

    def _unwhitened(self, statistics: GivenStatistics) -> tuple[int, int]:
        return 0, 0

    def _mixed_residuals(
        self, point: _Point, latent: _Latent, statistics: GivenStatistics
    ) -> list[tuple[Array, Array]]:
        return []

    def complete(self, key: Array, z: Array, statistics: GivenStatistics) -> Parameters:
        """The figures that follow from the true sums of a draw, in scales: cell means, spread within cells, misfit."""
        point, latent = self._at(z, statistics)
        learned, by_chance, unit = self._misfit_scale(point, statistics)
        share = learned / (learned + by_chance)
        noise = jnp.sqrt(share * by_chance) * jax.random.normal(key, point.misfit.shape)
        between = {} if latent.clusters is None else {"between": latent.clusters.between[jnp.newaxis]}
        return {
            "outcome_mean": self._means(latent, statistics),
            "mean_square": self._mean_square(latent, statistics),
            "outcome_misfit": self._by_cell(share * unit * point.misfit + noise, point, statistics),
            **between,
        }

    def _at(self, z: Array, statistics: GivenStatistics) -> tuple[_Point, _Latent]:
        cells, coefficients = statistics.x.shape
        more = int(self.scores)
        clusters = 0 if statistics.clusters is None else PARAMETERS
        rows = len(statistics.weighted)
        sizes = [cells, 1 + more, 1 + more, coefficients, int(self.deviations), clusters, rows, 2]
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
        rest, clusters = (sigma * jnp.exp(point.scatter[0])) ** 2 * self._freedom(statistics), None
        of_line = sigma**2 * statistics.score_scatter
        if statistics.clusters is not None:
            between = self._between(point)
            clusters = outcome_clusters_at(point.clusters, between, sigma, statistics.clusters)
            rest, of_line = rest + clusters.square, of_line + clusters.line
            density += clusters.log_density
        if not self.scores:
            return _Latent(center + off, jnp.stack([rest]), density, sigma, clusters)
        along = slope * statistics.score_scatter + jnp.sqrt(of_line) * point.scatter[1]
        scatter = jnp.stack([rest + along**2 / statistics.score_scatter, along])
        return _Latent(center + off, scatter, density, sigma, clusters)

    def _residual(self, point: _Point, statistics: GivenStatistics) -> tuple[Array, Array]:
        """σ and b."""
        spread = jnp.exp(self._log_within(point))
        if not self.scores:
            return spread, jnp.array(0.0)
        correlation = jnp.tanh(point.spread[1])
        of_scores = jnp.sqrt(statistics.score_scatter / (statistics.size.sum() - len(statistics.size)))
        return spread * jnp.sqrt(1 - correlation**2), correlation * spread / of_scores

    def _log_within(self, point: _Point) -> Array:
        """log s of t, within clusters if there are any."""
        return point.spread[0] + (0.5 * jnp.log(shares(point.clusters)[1]) if point.clusters.size else 0.0)

    def _between(self, point: _Point) -> Array:
        """T."""
        return jnp.exp(2 * point.spread[0]) * shares(point.clusters)[0]

    def _freedom(self, statistics: GivenStatistics) -> Array:
        """The degrees of freedom of the differences between records within cells and clusters."""
        between = 0.0 if statistics.clusters is None else statistics.clusters.of_records
        return statistics.size.sum() - len(statistics.size) - self.scores - between

    def _mean_square(self, latent: _Latent, statistics: GivenStatistics) -> Array:
        """The mean squares of t, and the mean products of t and g, within cells."""
        return latent.scatter / (statistics.size.sum() - len(statistics.size))

    def _means(self, latent: _Latent, statistics: GivenStatistics) -> Array:
        size, x = statistics.size, statistics.x
        if self.deviations:
            return latent.sums / size
        gram = (x.T * size) @ x + jnp.diag(statistics.spread**-2.0)
        return jnp.asarray(x @ jnp.linalg.solve(gram, x.T @ latent.sums))

    def _start(self, statistics: GivenStatistics) -> Array:
        """The start of Newton's steps: least squares, with a spread kept in a reasonable range whatever the noise."""
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
                jnp.array([] if statistics.clusters is None else [0.0, USUAL_LOGIT]),
                jnp.zeros(len(statistics.weighted) + 2),
            ]
        )

    def _residuals(self, point: _Point, latent: _Latent, statistics: GivenStatistics) -> list[Array]:
        """The measured minus the true values, in scales of the noise."""
        found = [
            (sums - members @ latent.sums) / noise
            for members, sums, noise in zip(statistics.members, statistics.sums, statistics.noise, strict=True)
        ]
        mean = latent.sums / statistics.size
        between = jnp.stack([(mean * latent.sums).sum(), (mean * statistics.score_sum).sum()])[: len(latent.scatter)]
        found.append((statistics.squares - latent.scatter - between) / statistics.squares_noise)
        excess = statistics.share * self._excess(point, latent, statistics)
        found.append((statistics.weighted - statistics.weighted_groups @ excess) / statistics.weighted_noise)
        if statistics.clusters is not None and latent.clusters is not None:
            squares, factor = statistics.clusters.squares, jnp.exp(2 * point.clusters[0])
            of_cells = jnp.zeros_like(mean).at[statistics.cell].add(excess) / squares.share
            spreads = latent.clusters.between, latent.sigma**2, self._sample_slope(latent, statistics)
            expected = expected_square(factor, *spreads, of_cells, statistics.width, squares, self.transform)
            found.append((squares.square - expected)[jnp.newaxis] / squares.noise)
        return found

    def _excess(self, point: _Point, latent: _Latent, statistics: GivenStatistics) -> Array:
        """What the model and the misfit imply for the weighted mean of each group, less the centre."""
        width = statistics.width
        _, _, unit = self._misfit_scale(point, statistics)
        misfit = self._by_cell(unit * point.misfit, point, statistics)
        square, slope = self._mean_square(latent, statistics), self._sample_slope(latent, statistics)
        level, tilted = latent.sums / statistics.size, slope * statistics.tilt
        if self.transform == "identity":
            return (level + misfit)[statistics.cell] + tilted
        rest = square[0] - (slope * square[1] if self.scores else 0.0)
        level = width * level + width**2 * (rest - 1) / 2 + misfit
        tilted = width * tilted + (width * slope) ** 2 * statistics.tilt_variance / 2
        return jnp.expm1(jnp.minimum(level[statistics.cell] + tilted, LARGEST_LOG))

    def _sample_slope(self, latent: _Latent, statistics: GivenStatistics) -> Array:
        """W_tg/W_gg: the slope of t with the score in the file."""
        return latent.scatter[1] / statistics.score_scatter if self.scores else jnp.array(0.0)

    def _misfit_scale(self, point: _Point, statistics: GivenStatistics) -> tuple[Array, Array, Array]:
        """The prior variances of γ in each row, m² and the variance by chance, and the unit in which γ is sampled."""
        learned = jnp.broadcast_to(MISFIT**2 * jnp.exp(2 * point.common[1]), statistics.chance.shape)
        chance = statistics.chance
        if statistics.clusters is not None:
            width = statistics.width if self.transform == "log" else None
            chance = jnp.maximum(chance + chance_of_clusters(self._between(point), width, statistics.clusters), 0.0)
        weight = statistics.weighted_groups @ statistics.share
        variance, noise = learned + chance, 2 * (statistics.weighted_noise / weight) ** 2
        return learned, chance, jnp.sqrt(variance * noise / (variance + noise))

    def _by_cell(self, misfit: Array, point: _Point, statistics: GivenStatistics) -> Array:
        """The γ of each cell: that of its row, plus the γ₀ that all rows share."""
        return statistics.weighted_members.T @ misfit + COMMON * point.common[0]

    def _without_noise(self, point: _Point, latent: _Latent, statistics: GivenStatistics) -> Array:
        """The log density without the term for the noise of the measurement."""
        size = statistics.size
        square = latent.scatter[0] + (latent.sums**2 / size).sum()
        log_variance = jnp.log(square / size.sum() - (latent.sums.sum() / size.sum()) ** 2)
        scale = -0.25 * log_variance**2 / (2 * statistics.width_error**2)
        learned, by_chance, unit = self._misfit_scale(point, statistics)
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
        log_spread = self._log_within(point) + jnp.log(statistics.width)
        found += self.prior.log_terms_of_spread(log_spread)
        if self.scores:
            correlation = jnp.tanh(point.spread[1])
            for term in self.prior.log_terms_given_weights(log_spread, statistics.weight_spread, correlation):
                found += term
        return jnp.asarray(found)


def _own_measurement(statistics: GivenStatistics) -> tuple[Array, Array]:
    """The precision and the measured sums of the level in which each cell is a row of its own; 0 without one."""
    size = statistics.size
    for members, sums, noise in zip(statistics.members, statistics.sums, statistics.noise, strict=True):
        if len(sums) == len(size):
            return jnp.full(len(size), 0.5 / noise**2), members.T @ sums
    return jnp.zeros(len(size)), jnp.zeros(len(size))
