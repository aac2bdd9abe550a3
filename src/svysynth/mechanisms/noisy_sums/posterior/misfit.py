"""Misfit: the weighted sums that follow from the true sums, and how far the file differs from the model in them.

Each row of weighted sums has a γ for mean outcomes and one for weights. Given S, W and the rest of a point, a row
determines its γ up to its noise. So γ is sampled relative to its mean and standard deviation given its prior and its
row, and the sampler sees nearly standard normal numbers however precise or noisy the row is. In the same way γ₀, which
all means share, is shifted to offset what the spreads contribute to these means.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from svysynth.core.safe_repr import outlined
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.posterior.scaled_measurement import NoisyStatistics
from svysynth.models.arrays import Array

COMMON = 0.1
"""γ₀ ~ N(0, COMMON²): the relative error that all means of a model share."""
MISFIT, UNSURE, TAILS = 0.02, 1.2, 0.7
"""log m ~ N(log MISFIT, UNSURE²), one m for the mean outcomes and one for the weights of all rows. The log of a row's
own m differs from it with standard deviation TAILS. So m is estimated from the rows, and a few rows may have a large
misfit while the others do not."""
SUM_OF_WEIGHTS = 0.02
"""The standard deviation of the prior of log κ, besides the variation between samples."""
LEAST_RATIO = 0.3
"""The least ratio of a row to its value without γ of which a logarithm is taken: noise may make the ratio smaller."""
LARGEST_LOG = 50.0
"""The largest number that is exponentiated, so that nothing overflows if the sampler goes too far."""


@outlined
class MisfitPoint(NamedTuple):
    """The sampled parameters of the misfit."""

    rows: Array
    """γ in units of its conditional standard deviation: row × 1 or 2."""
    common: Array
    """γ₀ and log κ, shifted and in units of their prior standard deviations; log(m/MISFIT) of outcomes and of weights
    in units of UNSURE."""
    tails: Array
    """The log of a row's own m over that of all rows, in units of TAILS: row × 1 or 2."""
    noise_variance: Array
    """The noise variance of the weighted sums: row × 1 or 2."""
    between: Array
    """The variances of t and v between clusters, in scales; zero without clusters."""


@outlined
class Misfit(NamedTuple):
    """γ and what follows from it at a point."""

    rows: Array
    """γ: row × 1 or 2."""
    common: Array
    """γ₀."""
    weighted: Array
    """The weighted sums: row × 1 or 2."""
    cells: Array
    """What a record of each cell adds to weighted sums of outcomes and of weights, on average: cell × 2."""
    log_density: Array
    """The log prior density of the misfit, with the Jacobians of the maps."""


def misfit_at(
    point: MisfitPoint, sums: Array, mean_square: Array, statistics: NoisyStatistics, transform: Transform
) -> Misfit:
    """γ, and the weighted sums that follow from it and from the true sums."""
    size, members, (first, second) = statistics.size, statistics.weighted_members, statistics.widths
    means = sums / size[:, None]
    of_total = jnp.expm1(second**2) + _others_alike(statistics) * jnp.expm1(second**2 * point.between[1])
    spread_of_total = jnp.sqrt(SUM_OF_WEIGHTS**2 + of_total / size.sum())
    weights = jnp.exp(spread_of_total * point.common[1]) * _normalised(second * means[:, 1], size)
    density, found = -0.5 * ((point.common[2:] ** 2).sum() + (point.tails**2).sum()), []
    shift = jnp.zeros(())
    if point.rows.shape[1] > 1:
        plain = members @ weights
        off = statistics.weighted[:, 1] + members @ size - plain
        gamma, own = _moved(1, point, statistics, off / plain, plain, exponential=True)
        tilted = weights * jnp.exp(members.T @ gamma)
        # κ is the sum of the weights with γ, but the sum without γ is sampled, so that a row's γ changes no other row
        shift = jnp.log(tilted.sum() / weights.sum())
        weights, density, found = tilted, density + own, [gamma]
    density -= 0.5 * (point.common[1] + shift / spread_of_total) ** 2
    across = second * mean_square[1]
    log = transform == "log"
    shared = first**2 * (mean_square[0] - 1) / 2 + first * across if log else across
    common = COMMON * point.common[0] - _told(statistics) * shared
    level = (first if log else 1.0) * means[:, 0] + shared + common
    plain = members @ (weights * jnp.exp(jnp.minimum(level, LARGEST_LOG)) if log else weights)
    off = statistics.weighted[:, 0] - members @ (weights * _excess(level, log))
    gamma, own = _moved(0, point, statistics, off / plain, plain, exponential=log)
    cells = jnp.stack([weights * _excess(level + members.T @ gamma, log), weights - size], axis=1)
    weighted = members @ cells[:, : point.rows.shape[1]]
    density += own - 0.5 * (common / COMMON) ** 2
    return Misfit(jnp.stack([gamma, *found], axis=1), common, weighted, cells / size[:, None], density)


def _excess(level: Array, log: bool) -> Array:
    """A cell's weighted mean outcome minus the centre: as a share of the centre for a log outcome, else in scales."""
    return jnp.expm1(jnp.minimum(level, LARGEST_LOG)) if log else level


def _moved(
    kind: int, point: MisfitPoint, statistics: NoisyStatistics, off: Array, scale: Array, exponential: bool
) -> tuple[Array, Array]:
    """γ of one kind in each row, and its log density with the Jacobian.

    Without γ the measured row differs from the model by `off`, as a share of `scale`. With γ the model's row is exp(γ)
    times as large if `exponential`, else larger by γ times `scale`.
    """
    ratio = jnp.maximum(1 + off, LEAST_RATIO) if exponential else jnp.ones(())
    target = jnp.log(ratio) if exponential else off
    learned, by_chance = (variance[:, kind] for variance in misfit_variance(point, statistics))
    prior, noise = learned + by_chance, point.noise_variance[:, kind] / (ratio * scale) ** 2
    unit = jnp.sqrt(prior * noise / (prior + noise))
    gamma = prior / (prior + noise) * target + unit * point.rows[:, kind]
    return gamma, (jnp.log(unit) - 0.5 * jnp.log(prior) - 0.5 * gamma**2 / prior).sum()


def _told(statistics: NoisyStatistics) -> Array:
    """How much of the common error of all means the weighted sums determine, between 0 and 1."""
    rows = len(statistics.weighted)
    unknown = 2 * rows * (statistics.weighted_noise / statistics.size.sum()) ** 2 + MISFIT**2 / rows
    return jnp.asarray(COMMON**2 / (COMMON**2 + unknown))


def misfit_variance(point: MisfitPoint, statistics: NoisyStatistics) -> tuple[Array, Array]:
    """The prior variance of γ in each row: m², and the variance by chance.

    A row has a γ by chance because its own spreads differ from those of all N records. In a row of n records its
    variance is about (1/n − 1/N)(s_t s_v)² for means and half of (1/n − 1/N)s_v⁴ for weights. Clusters make it larger.
    """
    first, second = statistics.widths
    size, kinds = (statistics.weighted_members @ statistics.size)[:, None], statistics.weighted.shape[1]
    learned = MISFIT**2 * jnp.exp(2 * (UNSURE * point.common[2 : 2 + kinds] + TAILS * point.tails))
    alike = 1 + _others_alike(statistics) * point.between[1] * point.between
    by_chance = jnp.stack([(first * second) ** 2, second**4 / 2]) * alike
    by_chance = by_chance[:kinds] * (1 / size - 1 / statistics.size.sum())
    return learned, by_chance


def _others_alike(statistics: NoisyStatistics) -> Array | float:
    """The mean number of other records in the cluster of a record."""
    return 0.0 if statistics.clusters is None else statistics.clusters.usual_size - 1


def _normalised(log_weight: Array, size: Array) -> Array:
    """The total weights of the cells, scaled to add up to the number of records."""
    weights = size * jnp.exp(log_weight - log_weight.max())
    return jnp.asarray(weights * (size.sum() / weights.sum()))
