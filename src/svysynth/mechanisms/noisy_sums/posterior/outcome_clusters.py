"""Outcome clusters: the variance T of the outcome between clusters, if weights are public.

In scales, a record of cell c in cluster j whose weight has the score g has

    t = μ_c + u_j + b(g − ḡ_c) + e,    u_j ~ N(0, T),    e ~ N(0, σ²).

Cluster effects are integrated out. With H_j the sum over cluster j of g − ḡ_c, which is public,

    W_tg ~ N(b W_gg, σ² W_gg + T ΣH_j²),    W_tt = W_tg²/W_gg + P + Q,
    P ~ (f T + g σ²)·χ²_ν/ν,    Q ~ σ²χ² with n − K − 1 − g degrees of freedom.

P are the squares between clusters about the cells' means and the line in g. f, g and ν follow from the public sizes of
clusters (`measuring/cluster_sizes.py`), and are smaller by what the line takes up: f by ΣH_j²/W_gg, and g by
ΣH_j²/n_j/W_gg. Without scores there are no b, no W_tg and no H_j. What was measured follows from T and σ² too, with the
χ² factor of P (`squares_given_weights.py`). log √T is N(log USUAL_SPREAD, SPREADS_APART²), as with confidential weights
(`cluster_effects.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import KnownWeights
from svysynth.mechanisms.noisy_sums.posterior.cluster_effects import SPREADS_APART, USUAL_SPREAD
from svysynth.mechanisms.noisy_sums.posterior.squares_given_weights import (
    SquareStatistics,
    SumsInClusters,
    square_statistics,
)
from svysynth.models.arrays import Array

PARAMETERS = 2
"""The log of √(χ²_ν/ν) of P, and the logit of the share of T in T + s², where s² is the variance within clusters."""

USUAL_LOGIT = -2.0
"""The start of Newton's steps: an eighth of the variance is between clusters."""
MOST = 10.0
"""The largest covariance that is exponentiated, so that extreme points do not overflow."""


@outlined
class OutcomeClusterStatistics(NamedTuple):
    """The sum of squares between clusters, and public numbers about the clusters."""

    squares: SquareStatistics
    of_records: Array
    """g."""
    of_clusters: Array
    """f."""
    freedom: Array
    """ν."""
    line: Array
    """ΣH_j²."""
    shifted: Array
    """For each row of the weighted sums: Σ_j(Ω_j − M_j)² − Σ(ω − m)², with the shares ω of the weights of the records
    of the row, the shares m of the means of cells, and their sums Ω and M in clusters."""
    alike: Array
    """For each row: Σ_jΩ_j² − Σω²."""


@outlined
class OutcomeClusters(NamedTuple):
    """T and P at a point."""

    between: Array
    """T."""
    square: Array
    """P."""
    line: Array
    """T ΣH_j²: what clusters add to the variance of W_tg."""
    log_density: Array
    """The log density of the parameters, with the Jacobians of their maps."""


def outcome_cluster_statistics(
    measurement: Measurement, facts: PublicFacts, members: Floats
) -> OutcomeClusterStatistics | None:
    """The arrays that the posterior needs; None without clusters. `members` has the cells of weighted rows."""
    sizes, between, step = ClusterSizes.of(facts), measurement.between, measurement.step
    if sizes is None or between is None or facts.cluster is None or facts.weights is None:
        return None
    known = KnownWeights.of(facts.weights, facts, step)
    line, scatter = _line_of_clusters(known, facts), known.scatter or 1.0
    of_records = sizes.of_records - (line**2 / sizes.own).sum() / scatter
    of_clusters = sizes.of_clusters - (line**2).sum() / scatter
    left = of_clusters / sizes.of_clusters, of_records / sizes.of_records
    numbers = of_records, of_clusters, of_records * SumsInClusters.of(facts, known).freedom, (line**2).sum()
    return OutcomeClusterStatistics(
        square_statistics(measurement, between, facts, known, left),
        *(jnp.asarray(number, float) for number in numbers),
        *map(jnp.asarray, _weight_shares(known, facts, members)),
    )


def _line_of_clusters(known: KnownWeights, facts: PublicFacts) -> Floats:
    """H_j."""
    weights = facts.weights
    assert weights is not None
    assert facts.cluster is not None
    cell = facts.cell[weights.group]
    off = weights.count * (known.score - (known.score_sum / np.maximum(facts.size, 1))[cell])
    return np.asarray(np.bincount(facts.cluster[weights.group], off))


def _weight_shares(known: KnownWeights, facts: PublicFacts, members: Floats) -> tuple[Floats, Floats]:
    """The two public numbers of each row of the weighted sums that the variance of γ by chance needs."""
    assert facts.cluster is not None
    cells = len(facts.codes)
    weight, squared = (np.bincount(facts.cell, values, cells) for values in (known.weight, known.squared))
    even = (weight / np.maximum(facts.size, 1))[facts.cell] * facts.count  # the weights of groups if all were alike
    found = []
    for row in members:
        own, total = row[facts.cell], row @ weight
        of_clusters, off = (
            np.bincount(facts.cluster, own * values) / total for values in (known.weight, known.weight - even)
        )
        of_records = row @ squared / total**2
        of_means = row @ (weight**2 / np.maximum(facts.size, 1)) / total**2
        found.append([(off**2).sum() - (of_records - of_means), (of_clusters**2).sum() - of_records])
    shifted, alike = np.array(found).T
    return shifted, alike


def outcome_clusters_at(
    z: Array, between: Array, sigma: Array, statistics: OutcomeClusterStatistics
) -> OutcomeClusters:
    """P and what follows from it, from the two parameters, T and σ."""
    expected = statistics.of_clusters * between + statistics.of_records * sigma**2
    freedom, spread = statistics.freedom, 0.5 * jnp.log(between)
    density = freedom * (z[0] - 0.5 * jnp.exp(2 * z[0]))
    density -= 0.5 * ((spread - jnp.log(USUAL_SPREAD)) / SPREADS_APART) ** 2
    return OutcomeClusters(between, expected * jnp.exp(2 * z[0]), between * statistics.line, density)


def shares(z: Array) -> tuple[Array, Array]:
    """The shares of T + s² between and within clusters. The Jacobian of the map to log √T and log s is constant."""
    return jax.nn.sigmoid(z[1]), jax.nn.sigmoid(-z[1])


def chance_of_records(known: KnownWeights, facts: PublicFacts, members: Floats, width: float | None) -> Floats:
    """The variance over samples of a row's weighted mean about the value that the unweighted means of its cells imply.

    In a cell it is Σω²Var(y/ȳ) − Var(t)/n, where ω are the records' shares of the weight. For a log outcome Var(y/ȳ) is
    exp(s²) − 1 and Var(t) is s², where s is the scale; otherwise both are 1 in scales.
    """
    cells = len(facts.codes)
    weight = np.bincount(facts.cell, known.weight, cells)
    squared = np.bincount(facts.cell, known.squared, cells)
    first, second = (1.0, 1.0) if width is None else (np.expm1(width**2), width**2)
    own = first * squared - second * weight**2 / np.maximum(facts.size, 1)
    return np.asarray(np.maximum(members @ own, 0.0) / (members @ weight) ** 2)


def chance_of_clusters(between: Array, width: Array | None, statistics: OutcomeClusterStatistics) -> Array:
    """What clusters add to the variance of γ by chance in each row; the width is that of a log outcome, else None.

    It is the variance of the difference between the weighted mean and what the unweighted means of cells imply.
    """
    if width is None:
        return between * statistics.shifted
    of_means = width**2 * between
    return of_means * statistics.shifted + (jnp.expm1(jnp.minimum(of_means, MOST)) - of_means) * statistics.alike
