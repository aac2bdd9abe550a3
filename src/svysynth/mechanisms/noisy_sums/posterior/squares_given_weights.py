"""Squares given weights: what is expected of the noisy squares between clusters if weights are public.

What was measured is Σ_j φ(R_j)/a_j, where R_j is the sum over cluster j of u(y/y₀ − 1 − e_c), or of u(t − e_c) in
scales if the outcome has no logarithm. u is the public weight relative to the mean weight, a_j is the sum of u, and e_c
is the public centre of the cell. This is the scale of weighted means, of which standard errors are made. It is right
for skewed effects of clusters too: T is then the variance that normal effects need for the same standard errors.

Given the means of t in cells and the slope b, what u multiplies has the weighted mean m_c − 1 (or t̄_c) in cell c. For a
record it is to first order in b larger by a_c·b(g − g̃_c), where g̃_c is the weighted mean score of the cell and a_c is
m_c for a log outcome, else 1. About this it has deviations aδ, with a = a_c(1 + b(g − g̃_c)) for a log outcome, else 1.
Two records of a cluster have the covariance k of δ, and a record has the variance v: exp(·) − 1 of those of t for a log
outcome, else those of t. The means of δ in cells are zero, because the means of t in cells are given. So with the sums
N of one, U of u, and B of u(g − g̃_c) over the records of cluster j and cell c, and V = U + bB (or U),

    E Σ_j R_j²/a_j = k a'Fa + (v − k) a'Ga + o'Ao + 2b o'Ca + b² a'Ea,    o_c = m_c − 1 − e_c  (or t̄_c − e_c),

    A = Σ_j U_j U_j'/a_j,    C = Σ_j U_j B_j'/a_j,    E = Σ_j B_j B_j'/a_j,    F = Σ_j Σ_k W_jk W_jk'/a_j,
    G = diag Σ_j(Σu²(1 + b(g − g̃_c))² − V_jc²/n_c)/a_j,    W_jkc = V_jc(1[j = k] − N_kc/n_c).

F and G are polynomials in b. The line in g takes up a part of both, as in `outcome_clusters.py`. The first two terms
have the χ² factor of P, and φ is Huber's function, which takes away what it does for normal values of this size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jax.scipy.stats import norm
from scipy import sparse

from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.clustered_variance import LARGEST_COVARIANCE
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import Between, excess_step
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import USUAL
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import KnownWeights
from svysynth.models.arrays import Array

LEAST = 1e-12
"""The least sum of squares of which a root is taken."""


@outlined
class SquareStatistics(NamedTuple):
    """The sum of squares between clusters, and public numbers about clusters and weights, with u as in A to G."""

    square: Array
    """What was measured, in weights relative to the mean weight, as are the next three."""
    noise: Array
    limit: Array
    """D."""
    centre: Array
    """e_c."""
    share: Array
    """Σu of each cell."""
    records: Array
    alike: Array
    """F: the factors of 1, b and b²."""
    own: Array
    """The same for the diagonal of G."""
    by_size: Array
    """A."""
    across: Array
    """C."""
    line: Array
    """E."""


def square_statistics(
    measurement: Measurement, between: Between, facts: PublicFacts, known: KnownWeights, left: tuple[float, float]
) -> SquareStatistics:
    """The arrays that the posterior needs. `left` is what the line leaves of F and of G, as shares."""
    step, weights = excess_step(measurement.scaling, measurement.transform), facts.weights
    assert weights is not None
    sums = SumsInClusters.of(facts, known)
    u, tilted = sums.u, sums.tilted
    own = [np.asarray((sums.per @ each).sum(axis=0)).ravel() for each in sums.of_records()]
    alike = sums.alike(u, u), 2 * sums.alike(u, tilted), sums.alike(tilted, tilted)
    return SquareStatistics(
        jnp.asarray(between.squares[0] * step**2),
        jnp.asarray(between.scale * step**2),
        jnp.asarray(between.limit * step),
        jnp.asarray(between.centre[:, 0] * step),
        jnp.asarray(weights.share_of_cells(facts)),
        jnp.asarray(float(len(facts))),
        jnp.asarray(left[0] * np.stack(alike)),
        jnp.asarray(left[1] * np.stack(own)),
        *(jnp.asarray(_dense(one.T @ sums.per @ other)) for one, other in ((u, u), (u, tilted), (tilted, tilted))),
    )


@outlined
@dataclass(frozen=True, eq=False)
class SumsInClusters:
    """Public sums of weights: cluster × cell."""

    number: sparse.csr_matrix
    """N."""
    u: sparse.csr_matrix
    """U."""
    tilted: sparse.csr_matrix
    """B."""
    squared: tuple[sparse.csr_matrix, sparse.csr_matrix, sparse.csr_matrix]
    """Σu², Σu²(g − g̃_c) and Σu²(g − g̃_c)²."""
    size: Floats
    """n_c."""

    @classmethod
    def of(cls, facts: PublicFacts, known: KnownWeights) -> SumsInClusters:
        """The sums, from the list of weights."""
        weights = facts.weights
        assert weights is not None
        assert facts.cluster is not None
        cell, cluster = facts.cell[weights.group], facts.cluster[weights.group]
        u = weights.value * (len(facts) / weights.total)
        middle = np.bincount(cell, known.score * u * weights.count) / np.bincount(cell, u * weights.count)
        shape, off = (int(facts.cluster.max()) + 1, len(facts.codes)), known.score - middle[cell]
        each = np.ones_like(u), u, u * off, u**2, u**2 * off, (u * off) ** 2
        own = (sparse.csr_matrix((weights.count * values, (cluster, cell)), shape) for values in each)
        number, u, tilted, *squared = own
        return cls(number, u, tilted, tuple(squared), np.maximum(facts.size, 1))

    @property
    def per(self) -> sparse.dia_matrix:
        """1/a_j, as a diagonal matrix."""
        return sparse.diags(1 / np.asarray(self.u.sum(axis=1)).ravel())

    @property
    def freedom(self) -> float:
        """The degrees of freedom of the squares of all clusters, as a share of their number, if T is a usual one."""
        total, squares = (np.asarray(one.sum(axis=1)).ravel() for one in (self.u, self.squared[0]))
        usual = (USUAL * total**2 + squares) / total
        return float(usual.sum() ** 2 / (len(usual) * (usual**2).sum()))

    def alike(self, one: sparse.csr_matrix, other: sparse.csr_matrix) -> Floats:
        """F for a product of two sums, made symmetric."""
        share = _dense(self.number.T @ self.number) / np.outer(self.size, self.size)
        first, second = (
            _dense(each.multiply(self.number).T @ self.per @ rest) / self.size[:, np.newaxis]
            for each, rest in ((one, other), (other, one))
        )
        found = _dense(one.T @ self.per @ other) * (1 + share) - first - second.T
        return np.asarray((found + found.T) / 2)

    def of_records(self) -> tuple[sparse.csr_matrix, sparse.csr_matrix, sparse.csr_matrix]:
        """What the diagonal of G adds up, cluster × cell: the factors of 1, b and b²."""
        per, (one, two, three) = sparse.diags(1 / self.size), self.squared
        u, tilted = self.u, self.tilted
        return one - u.power(2) @ per, 2 * (two - u.multiply(tilted) @ per), three - tilted.power(2) @ per


def _dense(matrix: sparse.csr_matrix) -> Floats:
    return np.asarray(matrix.todense())


def expected_square(
    factor: Array,
    between: Array,
    within: Array,
    slope: Array,
    excess: Array,
    width: Array,
    statistics: SquareStatistics,
    transform: Transform,
) -> Array:
    """The sum that was measured, without noise, given the χ² factor of P, T, σ², b and the excess m − 1 of each cell.

    All are in scales of t; without a logarithm, the excess is the weighted mean of t.
    """
    pair, record = between, between + within
    multiple, bent = jnp.ones_like(excess), jnp.array(0.0)
    if transform == "log":
        pair, record = (jnp.expm1(jnp.minimum(width**2 * values, LARGEST_COVARIANCE)) for values in (pair, record))
        multiple, slope = 1 + excess, width * slope
        bent = slope
    off = excess - statistics.centre
    powers = jnp.stack([jnp.ones_like(bent), bent, bent**2])
    alike, own = (jnp.tensordot(powers, factors, 1) for factors in (statistics.alike, statistics.own))
    random = pair * (multiple @ alike @ multiple) + (record - pair) * (own @ multiple**2)
    moved = off @ statistics.by_size @ off + 2 * slope * off @ statistics.across @ multiple
    moved += slope**2 * multiple @ statistics.line @ multiple
    return huber_of_normal(factor * random + moved, statistics.limit, statistics.records)


def huber_of_normal(sums: Array, limit: Array, records: Array) -> Array:
    """Sums of squares with Huber's function in place of the square, if clusters' means are normal."""
    reach = limit / jnp.sqrt(jnp.maximum(sums, LEAST) / records)
    return sums * (2 * ndtr(reach) - 1 + 2 * reach * norm.pdf(reach) - 2 * reach**2 * ndtr(-reach))
