"""Cluster effects: the covariance T between clusters, and the sums of squares between clusters.

In scales, a record of cell c in cluster j has (t, v) ~ N(μ_c + u_j, Σ) with u_j ~ N(0, T). Cluster effects are
integrated out. The sums of squares between clusters about the means of cells are P, and the scatter within cells is
W = P + Q with

    P ~ Wishart(ν, (f T + g Σ)/ν),    Q ~ Wishart(n − K − g, Σ).

f, g and ν follow from the public sizes of clusters (`measuring/cluster_sizes.py`). This is exact if all clusters have
the same number of records of each cell, and right on average otherwise. What was measured is P, plus what follows from
the difference between the means of cells and their public centres, less what clamping cuts off normal values of this
size, with Laplace noise. What clusters add to the sums of cells is part of the cells' deviations δ, whose spread is
sampled. log √T_tt and log √T_vv are N(log USUAL_SPREAD, SPREADS_APART²), and the inverse hyperbolic tangent of the
correlation is N(0, CORRELATED²).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.special import ndtr
from jax.scipy.stats import norm

from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.models.arrays import Array

USUAL_SPREAD, SPREADS_APART = 0.25, 1.0
"""A usual standard deviation of cluster effects, in scales, and the prior standard deviation of its logarithm."""
CORRELATED = 0.5
PARAMETERS = 6
"""Bartlett's three factors of P, the two spreads and the correlation of T."""


@outlined
class ClusterStatistics(NamedTuple):
    """The sums of squares between clusters, and public numbers about the clusters."""

    squares: Array
    """What was measured, in scales."""
    noise: Array
    limit: Array
    """D, in scales."""
    centre: Array
    """The public centres of cells: cell × 2."""
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
    log_density: Array
    """The log density of the parameters, with the Jacobians of their maps."""


def cluster_statistics(measurement: Measurement, facts: PublicFacts) -> ClusterStatistics | None:
    """The arrays that the posterior needs; None without clusters."""
    sizes, between, step = ClusterSizes.of(facts), measurement.between, measurement.step
    if sizes is None or between is None:
        return None
    numbers = sizes.own.sum(), sizes.of_records, sizes.of_clusters, sizes.freedom, sizes.usual_size
    return ClusterStatistics(
        jnp.asarray(between.squares * step**2),
        jnp.asarray(between.scale * step**2),
        jnp.asarray(between.limit * step),
        jnp.asarray(between.centre * step),
        jnp.asarray(sizes.by_size),
        *(jnp.asarray(number, float) for number in numbers),
    )


def clusters_at(z: Array, covariance: Array, statistics: ClusterStatistics) -> Clusters:
    """T and P from the six parameters and Σ."""
    first, second = between_variances(z)
    own = jnp.stack([first, jnp.tanh(CORRELATED * z[5]) * jnp.sqrt(first * second), second])
    records = jnp.stack([covariance[0, 0], covariance[0, 1], covariance[1, 1]])
    expected = statistics.of_clusters * own + statistics.of_records * records
    density = -0.5 * (z[3:] ** 2).sum() + bartlett_density(z[:3], statistics.freedom)
    return Clusters(own, wishart(z[:3], expected / statistics.freedom, statistics.freedom), density)


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


def measured_squares(clusters: Clusters, means: Array, statistics: ClusterStatistics) -> Array:
    """The sums that were measured, without noise: with the means of cells away from their centres, and clamped."""
    off = means - statistics.centre
    moved = off.T @ statistics.by_size @ off
    squares = clusters.squares + jnp.stack([moved[0, 0], moved[0, 1], moved[1, 1]])
    reach = statistics.limit / jnp.sqrt(squares[jnp.array([0, 2])] / statistics.records)
    inside = 2 * ndtr(reach) - 1
    kept = inside - 2 * reach * norm.pdf(reach) + 2 * reach**2 * ndtr(-reach)
    return squares * jnp.stack([kept[0], inside[0] * inside[1], kept[1]])
