"""What clamping takes: what the bound of a record took from weighted sums, as a normal model has it.

The bound of weighted sums is tight, because noise grows with it, so that a few records in a hundred reach further.
Without what they lose, means and sums of weights would be too small.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from svysynth.core.grouping import Floats, Integers
from svysynth.mechanisms.noisy_sums.measurement import Measurement
from svysynth.mechanisms.noisy_sums.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.public_weights import MOST_SCORE, KnownWeights
from svysynth.mechanisms.noisy_sums.scaling import weighted_excess
from svysynth.mechanisms.noisy_sums.whole_numbers import weighted_numbers

MOST_CORRELATION = 0.9
QUANTILES = 100
"""Of each of two normal numbers, over which the mean is taken."""


def lost_to_clamping(measurement: Measurement, size: Integers) -> Floats:
    """What clamping took from weighted sums, as a normal model has it: row × 1 or 2.

    Records are taken to have the measurement's scales and the correlation of the noisy squares.
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
    """The same in each row where weights are public: each of them loses what normal outcomes lose with it."""
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
