"""Clamped amounts: what weighted sums lose because records are clamped, estimated from a normal model.

The bound on a record's contribution to weighted sums is tight, because noise grows with it, so a few records in a
hundred exceed it. If their loss were not added back, means and sums of weights would be too small.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from svysynth.core.grouping import Floats, Integers
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import MOST_SCORE, KnownWeights
from svysynth.mechanisms.noisy_sums.measuring.scaling import weighted_excess
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import weighted_numbers

MOST_CORRELATION = 0.9
QUANTILES = 100
"""The number of quantiles of each of two normal variables over which the mean is taken."""


def lost_to_clamping(measurement: Measurement, size: Integers) -> Floats:
    """The loss of weighted sums by clamping under a normal model: row × 1 or 2.

    Records are assumed to have the measurement's scales and the correlation that follows from the noisy squares.
    """
    first, across, second = measurement.squares.astype(float)
    correlation = np.clip(across / np.sqrt(max(first, 1) * max(second, 1)), -MOST_CORRELATION, MOST_CORRELATION)
    nodes = ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES)
    off, other = (grid.ravel() for grid in np.meshgrid(nodes, nodes))
    scaling, both = measurement.scaling, measurement.plan.weighted.both
    t = scaling.outcome.centre + scaling.outcome.width * off
    v = scaling.weight.centre + scaling.weight.width * (correlation * off + np.sqrt(1 - correlation**2) * other)
    kept = weighted_numbers(t, v, scaling, measurement.transform, both) * measurement.weighted_step
    whole = np.stack(weighted_excess(t, v, scaling, measurement.transform)[: len(kept)])
    level = measurement.weighted
    return np.asarray(np.bincount(level.place, size)[:, None] * (whole - kept).mean(axis=1))


def lost_given_weights(measurement: Measurement, facts: PublicFacts) -> Floats:
    """The loss in each row if weights are public: for each weight, what normal outcomes lose with this weight."""
    weights, scaling = facts.weights, measurement.scaling
    if weights is None:
        raise ValueError("the weights are not public")
    v, (first, *across) = weights.log, measurement.squares.astype(float)
    correlation, score = 0.0, np.zeros(1)
    grid = np.linspace(v.min(), v.max(), QUANTILES)
    if across:
        known = KnownWeights.of(weights, facts, measurement.step)
        root = np.sqrt(max(first, 1) * known.scatter) / measurement.step
        correlation = np.clip(across[0] / root, -MOST_CORRELATION, MOST_CORRELATION)
        score = np.clip((grid - scaling.weight.centre) / scaling.weight.width, -MOST_SCORE, MOST_SCORE)[:, None]
    nodes = ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES)
    off = correlation * score + np.sqrt(1 - correlation**2) * nodes
    t = (scaling.outcome.centre + scaling.outcome.width * np.broadcast_to(off, (QUANTILES, QUANTILES))).ravel()
    each = np.repeat(grid, QUANTILES)
    kept = weighted_numbers(t, each, scaling, measurement.transform, both=False)[0] * measurement.weighted_step
    whole, _ = weighted_excess(t, each, scaling, measurement.transform)
    lost = np.interp(v, grid, (whole - kept).reshape(QUANTILES, QUANTILES).mean(axis=1))
    level = measurement.weighted
    row = level.place[facts.cell[weights.group]]
    return np.asarray(np.bincount(row, lost * weights.count, len(level.sums)))
