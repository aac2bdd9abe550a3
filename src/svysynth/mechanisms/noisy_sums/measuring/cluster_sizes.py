"""Cluster sizes: the public numbers that follow from how many records of each cell each cluster has.

With N the number of records by cluster × cell, n_j of clusters and n_c of cells, a cluster's sums less the means of
cells have the covariance H²·T + H·Σ over clusters, where T is the covariance of cluster effects, Σ that of records, and
H = diag(n_j) − N diag(1/n_c) N'. All that is needed of H follows from products of the size cell × cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts

USUAL = 0.1
"""A usual variance between clusters, as a share of that of a record."""


@outlined
@dataclass(frozen=True, eq=False)
class ClusterSizes:
    """The sizes of clusters, in all and by cell."""

    own: Integers
    """n_j."""
    pairs: Floats
    """Σ_h (1 − f_h)(N_h'N_h − diag(n_hc)): the number of ordered pairs of different records that share a cluster, with
    the finite population correction 1 − f_h of their stratum, cell × cell."""
    by_size: Floats
    """N' diag(1/n_j) N."""
    design: Floats
    """Σ_h (1 − f_h)·J_h/(J_h − 1)·(N_h'N_h − n_h n_h'/J_h) for the strata h with J_h > 1 clusters."""
    degrees_of_freedom: int
    """Clusters less strata."""
    of_records: float
    """Σ_j H_jj/n_j: how often Σ is in the sums of squares between clusters."""
    of_clusters: float
    """Σ_j (H²)_jj/n_j: how often T is."""
    inside: float
    """The trace of H: how often T is in the scatter within cells."""
    within: float
    """The degrees of freedom of the differences between records within cells and clusters."""

    @classmethod
    def of(cls, facts: PublicFacts) -> ClusterSizes | None:
        """The sizes; None if the design has no clusters."""
        if facts.cluster is None:
            return None
        cells, clusters = len(facts.codes), int(facts.cluster.max()) + 1
        shape = (clusters, cells)
        counts = sparse.csr_matrix((facts.count.astype(float), (facts.cluster, facts.cell)), shape)
        own = np.bincount(facts.cluster, facts.count, clusters)
        stratum, drawn, unsampled = facts.stratum_of_cluster, facts.units, facts.unsampled
        factor = unsampled * np.where(drawn > 1, drawn / np.maximum(drawn - 1, 1), 0.0)
        by_stratum = sparse.csr_matrix((np.ones(clusters), (stratum, np.arange(clusters)))) @ counts
        design = _gram(counts, factor[stratum]) - _gram(by_stratum, factor / drawn)
        gram, by_size = _gram(counts, np.ones(clusters)), _gram(counts, 1 / own)
        share = gram / np.maximum(facts.size, 1)[:, None]
        alone = np.bincount(facts.cell, facts.count * unsampled[facts.stratum], cells)
        of_records = float(clusters - (np.diag(by_size) / np.maximum(facts.size, 1)).sum())
        return cls(
            own.astype(np.int64),
            _gram(counts, unsampled[stratum]) - np.diag(alone),
            by_size,
            design,
            clusters - facts.strata,
            of_records,
            float(own.sum() - 2 * np.trace(share) + (share * (by_size / np.maximum(facts.size, 1)[:, None]).T).sum()),
            float(own.sum() - np.trace(share)),
            float(own.sum() - (facts.size > 0).sum() - of_records),
        )

    @property
    def usual_size(self) -> float:
        """The mean number of records in the cluster of a record."""
        return float((self.own.astype(float) ** 2).sum() / self.own.sum())

    @property
    def freedom(self) -> float:
        """The degrees of freedom of the sums of squares between clusters, if the variance is a usual one."""
        usual = self.own * USUAL + 1
        return self.of_records * float(usual.sum() ** 2 / (len(usual) * (usual**2).sum()))


def clusters_less_strata(facts: PublicFacts, in_base: Booleans) -> int:
    """The number of clusters that have records inside a base, less the number of their strata."""
    if facts.cluster is None:
        raise ValueError("the design has no clusters")
    return len(np.unique(facts.cluster[in_base])) - len(np.unique(facts.stratum[in_base]))


def _gram(counts: sparse.csr_matrix, factor: Floats) -> Floats:
    return np.asarray((counts.T @ sparse.diags(factor) @ counts).todense())
