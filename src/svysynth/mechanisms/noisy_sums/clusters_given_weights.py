"""Clusters given weights: the design variance between clusters of means and totals if weights are public.

Weights and clusters are known, and the outcome alone is drawn. Under a draw, a record of group g (a cell and a cluster)
has the mean ȳ_g, and two records of a cluster have the covariance T of t. So with linearised values z = w(a + b·y)
inside a domain and ζ_j = Σ_g W_g(a + b·ȳ_g) over the groups of cluster j inside it, the expectation of the usual
estimator Σ_h (1 − f_h)·J_h/(J_h − 1)·Σ_j (z_j − z̄_h)² is

    Σ_h (1 − f_h)·{J_h/(J_h − 1)·Σ_j (ζ_j − ζ̄_h)² + b²[(v − k)·Σ_g Q_g e_g² + k·Σ_j (Σ_g W_g e_g)²]}.

Without a finite population correction all f_h are zero. W_g and Q_g are the sums of w and of w² in a group. v is the
variance of a record and k the covariance of two. For a log outcome they are exp(·) − 1 of those of t, with e_g = ȳ_g;
without a logarithm they are those of t, with e_g = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.clustered_variance import LARGEST_COVARIANCE, MOST_SHARE
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts

AT_ONCE = 2**21
"""The most numbers, of draw × group, that are worked on at a time."""


@outlined
@dataclass(frozen=True, eq=False)
class KnownClusters:
    """The groups with their clusters, and what the design variance needs of the draws."""

    facts: PublicFacts
    place: Integers
    """For each group, its place among the groups without clusters, by which domains are given."""
    weight: Floats
    """W_g."""
    squared: Floats
    """Q_g."""
    means: Callable[[slice], Floats]
    """ȳ_g for some draws: draw × group."""
    variance: Floats
    """The variance of t given the score of the weight: one for each draw."""
    between: Floats
    """T of each draw."""
    log: bool

    def __call__(self, domain: Integers, a: Floats, b: Floats) -> Floats:
        """The design variance: draw × domain. `domain` is that of each group without clusters."""
        sums = _Sums.of(self.facts, domain[self.place], a.shape[1])
        draws, at_once = len(a), max(1, AT_ONCE // len(self.weight))
        pieces = [slice(start, min(start + at_once, draws)) for start in range(0, draws, at_once)]
        return np.concatenate([self._variance(sums, a[piece], b[piece], piece) for piece in pieces])

    @property
    def cluster(self) -> Integers:
        """The cluster of each group."""
        assert self.facts.cluster is not None
        return self.facts.cluster

    @property
    def spreads(self) -> tuple[Floats, Floats]:
        """The variance of a record and T, which is made smaller where it is nearly all of it: one for each draw."""
        return self.variance, np.minimum(self.between, MOST_SHARE * self.variance)

    def _variance(self, sums: _Sums, a: Floats, b: Floats, piece: slice) -> Floats:
        own, mean = sums.domain, self.means(piece)
        factor = mean if self.log else np.ones_like(mean)
        record, pair = (values[piece, np.newaxis] for values in self.spreads)
        if self.log:
            record, pair = (np.expm1(np.minimum(values, LARGEST_COVARIANCE)) for values in (record, pair))
        between = sums.scatter(self.weight * (a[:, own] + b[:, own] * mean))
        of_records = sums.by_domain(self.squared * factor**2)
        of_clusters = sums.squares(self.weight * factor)
        return np.asarray(between + b**2 * ((record - pair) * of_records + pair * of_clusters))


@outlined
@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over clusters and strata within domains, as sparse matrices."""

    domain: Integers
    """The domain of each group."""
    to_pairs: sparse.csr_matrix
    """Pair × group: 1 where the group is of the pair of cluster and domain."""
    to_strata: sparse.csr_matrix
    """The same for strata and domains, from pairs of cluster and domain."""
    to_domains: sparse.csr_matrix
    """Domain × group."""
    drawn: Floats
    """The number of clusters of the stratum of each pair of stratum and domain."""
    unsampled: Floats
    """1 − f of the stratum of each group."""
    unsampled_block: Floats
    """The same for each pair of stratum and domain."""
    of_strata: sparse.csr_matrix
    """Domain × pair of stratum and domain."""
    of_pairs: sparse.csr_matrix
    """Domain × pair of cluster and domain."""

    @classmethod
    def of(cls, facts: PublicFacts, domain: Integers, domains: int) -> _Sums:
        """The sums for domains that are given for each group."""
        assert facts.cluster is not None
        clusters = int(facts.cluster.max()) + 1
        stratum, unsampled = facts.stratum_of_cluster, facts.unsampled
        keys, pair = np.unique(domain * clusters + facts.cluster, return_inverse=True)
        of_pair, own = np.divmod(keys, clusters)
        blocks, block = np.unique(of_pair * facts.strata + stratum[own], return_inverse=True)
        of_block = blocks // facts.strata
        return cls(
            domain,
            _indicators(pair, len(keys)),
            _indicators(block, len(blocks)),
            _indicators(domain, domains),
            facts.units[blocks % facts.strata].astype(float),
            unsampled[facts.stratum],
            unsampled[blocks % facts.strata],
            _indicators(of_block, domains),
            _indicators(of_pair, domains),
        )

    def by_domain(self, values: Floats) -> Floats:
        """Σ (1 − f) over the groups of each domain."""
        return np.asarray((self.to_domains @ (self.unsampled * values).T).T)

    def squares(self, values: Floats) -> Floats:
        """Σ_j (1 − f)(Σ_g)² over the clusters of each domain."""
        return np.asarray((self.of_pairs @ (self.to_pairs @ (np.sqrt(self.unsampled) * values).T) ** 2).T)

    def scatter(self, values: Floats) -> Floats:
        """Σ_h (1 − f)·J_h/(J_h − 1)·Σ_j (ζ_j − ζ̄_h)² of each domain; a cluster without its records counts as zero."""
        of_clusters = self.to_pairs @ values.T
        square, total = self.to_strata @ of_clusters**2, self.to_strata @ of_clusters
        drawn = self.drawn[:, np.newaxis]
        unsampled = self.unsampled_block[:, np.newaxis]
        factor = unsampled * np.where(drawn > 1, drawn / np.maximum(drawn - 1, 1), 0.0)
        return np.asarray((self.of_strata @ (factor * np.maximum(square - total**2 / drawn, 0.0))).T)


def _indicators(row: Integers, rows: int) -> sparse.csr_matrix:
    """Row × element: 1 where the element is of the row."""
    return sparse.csr_matrix((np.ones(len(row)), (row, np.arange(len(row)))), (rows, len(row)))
