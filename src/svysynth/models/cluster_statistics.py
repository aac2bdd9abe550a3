"""Cluster statistics: all that weighted records say about a linear-Gaussian model with effects of clusters.

They are sums within clusters and the mean of each cluster, so that a density evaluation costs the same for twenty
records a cluster as for a million. All is measured from the least-squares fit without clusters, so no digits cancel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.grouping import Floats, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.models.arrays import Array
from svysynth.models.records import Records
from svysynth.models.sufficient_statistics import LinearStatistics, plain_statistics


@outlined
class ClusterStatistics(NamedTuple):
    """All that the weighted records say about (t, v) = xβ + u + e, with one u for each cluster.

    With e = (t, v) − xB, B the least-squares coefficients: sums within clusters, that is about the clusters' means, and
    Σα and the means themselves.
    """

    linear: LinearStatistics
    """The statistics without clusters."""
    within_xx: Array
    within_xe: Array
    within_ee: Array
    total: Array
    """Cluster: Σα."""
    mean_x: Array
    """Cluster × coefficient."""
    mean_e: Array
    """Cluster × outcome."""
    products: Array
    """Cluster × coefficient × coefficient: x̄x̄'."""


def cluster_statistics(records: Records, alpha: Column) -> ClusterStatistics:
    """Weighted sums of the records, by cluster."""
    linear = plain_statistics(records, alpha)
    (cluster, clusters), alpha = records.clustered, np.asarray(alpha)
    e = np.stack([records.t, records.v], axis=1) - (records.x @ linear.coefficients)[records.cell]
    x = records.x[records.cell]
    total = group_sums(cluster, clusters, alpha)

    def means(values: Floats) -> Floats:
        sums = np.stack([group_sums(cluster, clusters, alpha * column) for column in values.T], axis=1)
        return sums / np.where(total > 0, total, 1.0)[:, np.newaxis]

    mean_x, mean_e = means(x), means(e)
    off_x, off_e = x - mean_x[cluster], e - mean_e[cluster]
    weighted = alpha[:, np.newaxis] * off_x
    sums = weighted.T @ off_x, weighted.T @ off_e, (alpha[:, np.newaxis] * off_e).T @ off_e
    products = mean_x[:, :, np.newaxis] * mean_x[:, np.newaxis]
    found: Any = (*sums, total, mean_x, mean_e, products)
    return ClusterStatistics(LinearStatistics(*map(jnp.asarray, linear)), *map(jnp.asarray, found))
