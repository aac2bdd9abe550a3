"""Shape check: whether the model fits the distributions that were measured, from the noisy histograms alone.

The histogram that the model implies, averaged over the draws, is compared with the noisy one by the largest distance
between their distribution functions. The distance that arises by chance, from sampling and noise together, is simulated
from the model. Only the measurement and the draws are used, so the verdict on the shape reveals nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.implied_tables import CellDraws
from svysynth.mechanisms.noisy_sums.measuring.measurement import HISTOGRAM_SENSITIVITY, Measurement, Use, bands_of

SIMULATED = 999
RARE = 0.999
"""By chance alone, one histogram in a thousand is further from the model."""
WORTH_A_WORD = 0.03
"""The distance beyond that explained by chance up to which a reader would not notice the difference."""
MOST_DRAWS = 200
"""The most draws over which the model's histogram is averaged."""


@outlined
@dataclass(frozen=True)
class Shape:
    """The distance between the noisy histogram of t or v and that of the model."""

    distance: float
    by_chance: float
    """The distance that one in a thousand simulations exceeds."""

    @property
    def fits(self) -> bool:
        """Whether chance explains the distance, or all but a negligible part of it."""
        return self.distance <= self.by_chance + WORTH_A_WORD


def compare_shapes(
    draws: CellDraws, size: Integers, measurement: Measurement, seed: Integers, cluster_size: float = 1.0
) -> tuple[Shape | None, Shape | None]:
    """The shapes of the outcome and of the weight; None if no histogram was measured.

    Records of a cluster are alike, so that a histogram varies as that of fewer records: divided by the design effect.
    """
    if not measurement.plan.histogram:
        return None, None
    bands = bands_of(measurement.bounds, measurement.transform, measurement.records, measurement.population_total)
    scale = Use("histogram", HISTOGRAM_SENSITIVITY, measurement.plan.histogram).scale
    generator = np.random.default_rng(seed)
    found: list[Shape | None] = []
    t, v = (0.0, 0.0) if draws.between is None else np.median(draws.between[:, [0, -1]], axis=0)
    for edges, mean, variance, noisy, alike in (
        (bands[0].edges, draws.outcome_mean, draws.outcome_variance, measurement.outcome_bands, t),
        (bands[1].edges, draws.weight_mean, draws.weight_variance, measurement.weight_bands, v),
    )[: measurement.plan.histograms]:
        chance = _band_chances(edges, mean[:MOST_DRAWS], variance[:MOST_DRAWS], size)
        effect = 1 + (cluster_size - 1) * alike / np.median(variance) if alike else 1.0
        found.append(_compare(noisy, chance, measurement.records, scale, generator, max(effect, 1.0)))
    return found[0], found[1] if len(found) > 1 else None


def _band_chances(edges: Floats, mean: Floats, variance: Floats, size: Integers) -> Floats:
    """The share of records that the model puts into each band; values outside count in the nearest band."""
    below = ndtr((edges[1:-1] - mean[..., None]) / np.sqrt(variance)[:, None, None])
    share = np.concatenate([np.zeros((*mean.shape, 1)), below, np.ones((*mean.shape, 1))], axis=2)
    return np.asarray(np.einsum("dcb,c->b", np.diff(share, axis=2), size) / (len(mean) * size.sum()))


def _compare(
    noisy: Integers, chance: Floats, records: int, scale: float, generator: np.random.Generator, effect: float
) -> Shape:
    expected = np.cumsum(chance)[:-1]
    alone = max(round(records / effect), 1)
    simulated = generator.multinomial(alone, chance / chance.sum(), SIMULATED).astype(float)
    simulated *= records / alone
    simulated += generator.laplace(0.0, scale, simulated.shape)
    distances = _distance(simulated, expected, records)
    return Shape(float(_distance(noisy.astype(float)[None], expected, records)[0]), float(np.quantile(distances, RARE)))


def _distance(counts: Floats, expected: Floats, records: int) -> Floats:
    """The largest distance of the distribution functions. The noise of the total is known and is subtracted."""
    counts = counts + ((records - counts.sum(axis=1)) / counts.shape[1])[:, None]
    return np.asarray(np.abs(np.cumsum(counts, axis=1)[:, :-1] / records - expected).max(axis=1))
