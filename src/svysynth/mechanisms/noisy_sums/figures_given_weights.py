"""Figures given weights: the mean outcomes that posterior draws imply if weights are public, group by group.

The unweighted mean of a cell and the slope of the outcome with the score of the weight are those of the draw. The
weighted mean of a group of records follows from the weighted mean and variance of its scores (docs/method.md). Groups
are of a cell and a stratum. If the design has clusters, groups of a cell and a cluster are used for the variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.clusters_given_weights import KnownClusters
from svysynth.mechanisms.noisy_sums.implied_tables import LARGEST_EXPONENT, LARGEST_VARIANCE, CellDraws, CellFigures
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import KnownWeights, Tilt


def figures_given_weights(
    draws: CellDraws, facts: PublicFacts, step: float, transform: Transform, bounds: tuple[float, float]
) -> CellFigures:
    """The figures of every group under every draw, with the public weights unchanged: draw × group.

    Groups are of a cell and a stratum, without clusters.
    """
    alone, place = facts.without_clusters()
    known = _known(alone, step)
    given = _Given(draws, known, alone, transform, bounds)
    slope, variance = given.slope[:, np.newaxis], given.variance[:, np.newaxis]
    tilted, spread = given.means(known.squared_tilt), variance + slope**2 * known.squared_tilt.variance
    if transform == "log":
        spread = tilted**2 * np.expm1(np.minimum(spread, LARGEST_VARIANCE))
    weight, squared = (np.broadcast_to(sums / alone.count, tilted.shape) for sums in (known.weight, known.squared))
    nothing, records = np.zeros_like(tilted), alone.count.astype(float)
    own = nothing, nothing, nothing  # the weights are known, so nothing is left out of the design variance
    figures = CellFigures(weight, given.means(known.tilt), squared, tilted, spread, own, records, scaled=False)
    if draws.between is None:
        return figures
    by_cluster = _known(facts, step)
    within = _Given(draws, by_cluster, facts, transform, bounds)
    means, between = partial(within.means, by_cluster.tilt), draws.between[:, 0]
    sums = by_cluster.weight, by_cluster.squared
    clusters = KnownClusters(facts, place, *sums, means, within.variance, between, transform == "log")
    return replace(figures, known=clusters)


def _known(facts: PublicFacts, step: float) -> KnownWeights:
    if facts.weights is None:
        raise ValueError("the weights are not public")
    return KnownWeights.of(facts.weights, facts, step)


@outlined
@dataclass(frozen=True, eq=False)
class _Given:
    """The draws of the outcome given the scores of public weights."""

    draws: CellDraws
    known: KnownWeights
    facts: PublicFacts
    transform: Transform
    bounds: tuple[float, float]

    @cached_property
    def slope(self) -> Floats:
        """The change of t with the score: one for each draw."""
        if not self.known.scatter:
            return np.zeros(len(self.draws))
        return self.draws.covariance * ((len(self.facts) - len(self.facts.codes)) / self.known.scatter)

    @cached_property
    def variance(self) -> Floats:
        """The variance of t given the score: one for each draw."""
        return np.maximum(self.draws.outcome_variance - self.slope * self.draws.covariance, 0.0)

    def means(self, tilt: Tilt, some: slice = slice(None)) -> Floats:
        """The mean outcome of every group, with weights that have this tilt: draw × group."""
        level = (self.draws.outcome_mean[some] + self.draws.outcome_misfit[some])[:, self.facts.cell]
        slope, variance = self.slope[some, np.newaxis], self.variance[some, np.newaxis]
        tilted = level + slope * tilt.mean
        if self.transform == "log":
            tilted = np.exp(np.minimum(tilted + (variance + slope**2 * tilt.variance) / 2, LARGEST_EXPONENT))
        return np.asarray(np.clip(tilted, *self.bounds))
