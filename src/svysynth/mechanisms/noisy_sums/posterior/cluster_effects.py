"""Cluster effects: the covariance T between clusters, and the sums of squares between clusters.

In scales, a record of cell c in cluster j has (t, v) ~ N(μ_c + u_j, Σ) with u_j ~ N(0, T). Cluster effects are
integrated out. The sums of squares between clusters about the means of cells are P, and the scatter within cells is
W = P + Q with

    P ~ Wishart(ν, (f T + g Σ)/ν),    Q ~ Wishart(n − K − g, Σ).

f, g and ν follow from the public sizes of clusters (`measuring/cluster_sizes.py`). This is exact if all clusters have
the same number of records of each cell, and right on average otherwise.

What was measured is on the scale of weighted sums: of Y = u(y/y₀ − 1), or u times the outcome in scales, and of U =
u − 1, where u is the weight relative to the mean weight. Two records of a cluster have the covariance C(T) of (Y, U),
and a record has the covariance C(T + Σ). So the sums of squares between clusters of Y and U are taken as Wishart(ν,
(f C(T) + g (C(T + Σ) − C(T)))/ν), with the same Bartlett factors as P. The differences between the means of cells and
their public centres are added. Huber's function takes away what it does for normal values of this size.

So T is the covariance that normal effects need to have the variance between clusters that was measured, for Y and U.
Standard errors of means and counts are made of this variance. If the effects of clusters are skewed, T is not their
covariance on the scale of logarithms.

What clusters add to the sums of cells is part of the cells' deviations δ, whose spread is sampled. log √T_tt and
log √T_vv are N(log USUAL_SPREAD, SPREADS_APART²), and the inverse hyperbolic tangent of the correlation is
N(0, CORRELATED²).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from svysynth.core.safe_repr import outlined
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.clustered_variance import LARGEST_COVARIANCE
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import excess_step
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.posterior.squares_given_weights import huber_of_normal
from svysynth.models.arrays import Array

USUAL_SPREAD, SPREADS_APART = 0.25, 1.0
"""A usual standard deviation of cluster effects, in scales, and the prior standard deviation of its logarithm."""
CORRELATED = 0.5
START = 0.02, 0.8
"""The range of the variances between clusters from which Newton's steps start."""
PARAMETERS = 6
"""Bartlett's three factors of P, the two spreads and the correlation of T."""


@outlined
class ClusterStatistics(NamedTuple):
    """The sums of squares between clusters, and public numbers about the clusters."""

    squares: Array
    """What was measured, in weights relative to the mean weight, as are the next three."""
    noise: Array
    limit: Array
    """D."""
    centre: Array
    """The public centres of cells: cell × 2."""
    size: Array
    """n_c."""
    by_size: Array
    """Σ_j n_jc n_jd/n_j: cell × cell."""
    records: Array
    of_records: Array
    """g."""
    of_clusters: Array
    """f."""
    freedom: Array
    """ν."""
    usual_size: Array
    """The mean number of records in the cluster of a record."""


@outlined
class Clusters(NamedTuple):
    """T and P at a point."""

    covariance: Array
    """T_tt, T_tv, T_vv."""
    squares: Array
    """P: its three entries."""
    bartlett: Array
    """The logs of the outer of Bartlett's factors, relative to √ν, and the inner one between them."""
    log_density: Array
    """The log density of the parameters, with the Jacobians of their maps."""


def cluster_statistics(measurement: Measurement, facts: PublicFacts) -> ClusterStatistics | None:
    """The arrays that the posterior needs; None without clusters."""
    sizes, between = ClusterSizes.of(facts), measurement.between
    if sizes is None or between is None:
        return None
    step = excess_step(measurement.scaling, measurement.transform)
    numbers = sizes.own.sum(), sizes.of_records, sizes.of_clusters, sizes.freedom, sizes.usual_size
    return ClusterStatistics(
        jnp.asarray(between.squares * step**2),
        jnp.asarray(between.scale * step**2),
        jnp.asarray(between.limit * step),
        jnp.asarray(between.centre * step),
        jnp.asarray(facts.size, float),
        jnp.asarray(sizes.by_size),
        *(jnp.asarray(number, float) for number in numbers),
    )


def usual_clusters(statistics: ClusterStatistics, widths: Array, transform: Transform) -> Array:
    """The six parameters for the start of Newton's steps: spreads near those that were measured, within a range."""
    first, second = jnp.where(jnp.array([transform == "log", True]), widths**2, 1.0)
    of_records = jnp.stack([jnp.exp(second) * (jnp.expm1(first) if transform == "log" else 1.0), jnp.expm1(second)])
    mean = (statistics.squares[jnp.array([0, 2])] - statistics.of_records * of_records) / statistics.records
    share = jnp.clip(mean / of_records, *START)
    return jnp.zeros(PARAMETERS).at[3:5].set(jnp.log(jnp.sqrt(share) / USUAL_SPREAD) / SPREADS_APART)


def clusters_at(z: Array, covariance: Array, statistics: ClusterStatistics) -> Clusters:
    """T and P from the six parameters and Σ."""
    first, second = between_variances(z)
    own = jnp.stack([first, jnp.tanh(CORRELATED * z[5]) * jnp.sqrt(first * second), second])
    records = jnp.stack([covariance[0, 0], covariance[0, 1], covariance[1, 1]])
    expected = statistics.of_clusters * own + statistics.of_records * records
    density = -0.5 * (z[3:] ** 2).sum() + bartlett_density(z[:3], statistics.freedom)
    return Clusters(own, wishart(z[:3], expected / statistics.freedom, statistics.freedom), z[:3], density)


def between_variances(z: Array) -> Array:
    """T_tt and T_vv."""
    return USUAL_SPREAD**2 * jnp.exp(2 * SPREADS_APART * z[3:5])


def wishart(z: Array, scale: Array, freedom: Array) -> Array:
    """The three entries of L A A' L' with LL' the scale matrix, given by its three entries, and Bartlett's A."""
    one, three = jnp.sqrt(freedom) * jnp.exp(z[0]), jnp.sqrt(freedom) * jnp.exp(z[2])
    first = jnp.sqrt(scale[0])
    across, rest = scale[1] / first, jnp.sqrt(scale[2] - scale[1] ** 2 / scale[0])
    top, left = first * one, across * one + rest * z[1]
    return jnp.stack([top**2, top * left, left**2 + (rest * three) ** 2])


def bartlett_density(z: Array, freedom: Array) -> Array:
    """The log density of the logs of Bartlett's outer factors, relative to √ν, and of the inner one."""
    found = freedom * z[0] - 0.5 * freedom * jnp.exp(2 * z[0]) - 0.5 * z[1] ** 2
    return jnp.asarray(found + (freedom - 1) * z[2] - 0.5 * freedom * jnp.exp(2 * z[2]))


def measured_squares(
    clusters: Clusters,
    covariance: Array,
    means: Array,
    widths: Array,
    statistics: ClusterStatistics,
    transform: Transform,
) -> Array:
    """The sums that were measured, without noise.

    `covariance` is Σ, and `means` are what a record of each cell adds to weighted sums, on average: cell × 2.
    """
    records = jnp.stack([covariance[0, 0], covariance[0, 1], covariance[1, 1]])
    shares, own = statistics.by_size / statistics.records, jnp.diag(statistics.size / statistics.records)
    parts = _parts(means, transform)
    alike, whole = (_pair_moments(of, widths, transform) for of in (clusters.covariance, clusters.covariance + records))
    between = _linear(parts, shares, alike)
    within = _linear(parts, own, whole) - _linear(parts, own, alike)
    expected = statistics.of_clusters * between + statistics.of_records * within
    squares = wishart(clusters.bartlett, expected / statistics.freedom, statistics.freedom)
    off = means - statistics.centre
    moved = off.T @ statistics.by_size @ off
    one, both, other = squares + jnp.stack([moved[0, 0], moved[0, 1], moved[1, 1]])
    sums = jnp.stack([one, other, one + 2 * both + other, one - 2 * both + other])
    first, second, together, apart = huber_of_normal(sums, statistics.limit, statistics.records)
    return jnp.stack([first, (together - apart) / 4, second])


def _parts(means: Array, transform: Transform) -> tuple[Array, Array, Array]:
    """The mean weight of each cell, and the two parts of Y: a constant times u, and a multiple of u times the outcome.

    Without a logarithm, the outcome is less its weighted mean.
    """
    weight = 1 + means[:, 1]
    if transform == "log":
        return weight, -weight, means[:, 0] + weight
    return weight, means[:, 0], weight


def _pair_moments(covariance: Array, widths: Array, transform: Transform) -> tuple[Array, Array, Array]:
    """Covariances of two records: of u, of u with u times the outcome, and of the latter; relative to their means.

    They are those of `clustered_variance.PairMoments`, for one covariance of (t, v) in scales.
    """
    unit = widths[0] if transform == "log" else 1.0
    first, across, second = covariance * jnp.stack([unit**2, unit * widths[1], widths[1] ** 2])
    second = jnp.minimum(second, LARGEST_COVARIANCE)
    if transform == "log":
        across = jnp.clip(across, -LARGEST_COVARIANCE, LARGEST_COVARIANCE)
        total = jnp.minimum(first, LARGEST_COVARIANCE) + 2 * across + second
        return jnp.expm1(second), jnp.expm1(second + across), jnp.expm1(total)
    return jnp.expm1(second), jnp.exp(second) * across, jnp.exp(second) * (across**2 + first)


def _linear(parts: tuple[Array, Array, Array], shares: Array, moments: tuple[Array, Array, Array]) -> Array:
    """The covariance of Y and U of two records, on average over pairs of cells with these shares: its three entries."""
    weight, constant, multiple = parts
    of_weight, of_both, of_outcome = moments
    outcome = (
        of_weight * constant @ shares @ constant
        + 2 * of_both * constant @ shares @ multiple
        + of_outcome * multiple @ shares @ multiple
    )
    across = of_weight * constant @ shares @ weight + of_both * multiple @ shares @ weight
    return jnp.stack([outcome, across, of_weight * weight @ shares @ weight])
