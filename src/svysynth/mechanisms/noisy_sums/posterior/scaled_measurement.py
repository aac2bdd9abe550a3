"""Scaled measurement: noisy sums in scales, with the public facts, as the arrays that a posterior needs."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.measuring.measurement import Level, Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.posterior.clamped import lost_to_clamping
from svysynth.mechanisms.noisy_sums.posterior.cluster_effects import ClusterStatistics, cluster_statistics
from svysynth.models.arrays import Array


@outlined
class NoisyStatistics(NamedTuple):
    """The measurement in scales, and the public facts, as arrays."""

    size: Array
    """n_c, the number of records of each cell."""
    x: Array
    """The design matrix: cell × coefficient."""
    spread: Array
    """The prior standard deviation of each coefficient."""
    widths: Array
    """The scales of t and v, in units of the transformed answers."""
    members: tuple[Array, ...]
    """For each level, row × cell: one where the cell is in the row."""
    sums: tuple[Array, ...]
    """For each level, the noisy sums: row × 2."""
    noise: tuple[Array, ...]
    """For each level, the scale of its noise."""
    squares: Array
    squares_noise: Array
    weighted_members: Array
    """For the weighted sums, row × cell: one where the cell is in the row."""
    weighted: Array
    """The weighted sums of outcomes, and of weights: row × 1 or 2."""
    weighted_noise: Array
    width_error: Array
    """The error of the log of a scale."""
    clusters: ClusterStatistics | None
    """None if the design has no clusters."""

    @property
    def own_level(self) -> int | None:
        """The position of the level in which each cell is a row of its own; None if there is none."""
        return next((place for place, sums in enumerate(self.sums) if len(sums) == len(self.size)), None)

    @property
    def freedom(self) -> Array:
        """The degrees of freedom within cells."""
        return self.size.sum() - len(self.size)

    @property
    def freedom_of_records(self) -> Array:
        """Those that are left for the differences between records of a cluster."""
        return self.freedom - (0.0 if self.clusters is None else self.clusters.of_records)


def statistics_of(
    measurement: Measurement, facts: PublicFacts, size: Integers, x: Floats, spread: Floats
) -> NoisyStatistics:
    """The arrays that the posterior needs, where each row of x is a cell."""
    step, weighted = measurement.step, measurement.weighted
    return NoisyStatistics(
        jnp.asarray(size, float),
        jnp.asarray(x),
        jnp.asarray(spread),
        jnp.asarray(measurement.scaling.widths),
        tuple(members_of(level) for level in measurement.levels),
        tuple(jnp.asarray(level.sums * step) for level in measurement.levels),
        tuple(jnp.asarray(level.scale * step) for level in measurement.levels),
        jnp.asarray(measurement.squares * step**2),
        jnp.asarray(measurement.squares_scale * step**2),
        members_of(weighted),
        jnp.asarray(weighted.sums * measurement.weighted_step + lost_to_clamping(measurement, size)),
        jnp.asarray(weighted.scale * measurement.weighted_step),
        jnp.asarray(measurement.width_error),
        cluster_statistics(measurement, facts),
    )


def members_of(level: Level) -> Array:
    """Row × cell: one where the cell is in the row."""
    return jnp.asarray(np.eye(len(level.sums))[:, level.place])
