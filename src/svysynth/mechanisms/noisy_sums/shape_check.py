"""Shape check: whether what was measured looks like the model, from the noisy histograms alone.

The model's own histogram, averaged over the draws, is compared with the noisy one by the largest distance between their
distribution functions. How far that is by chance, sampling and noise together, is simulated from the model. Nothing but
the measurement and the draws is used: a refusal gives nothing away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noisy_sums.figures import CellDraws
from svysynth.mechanisms.noisy_sums.measurement import HISTOGRAM_SENSITIVITY, Measurement, Use, bands_of

SIMULATED = 999
RARE = 0.999
"""By chance alone one in a thousand is further from the model."""
WORTH_A_WORD = 0.03
"""What is left of the distance beside what chance gives: below it a reader would not notice."""
MOST_DRAWS = 200
"""Over which the model's histogram is averaged."""


@outlined
@dataclass(frozen=True)
class Shape:
    """How far the noisy histogram of t or v is from the model's."""

    distance: float
    by_chance: float
    """The distance that one in a thousand simulations exceeds."""

    @property
    def fits(self) -> bool:
        """Whether chance could do it, or nearly."""
        return self.distance <= self.by_chance + WORTH_A_WORD


def compare_shapes(
    draws: CellDraws, size: Integers, measurement: Measurement, seed: Integers
) -> tuple[Shape | None, Shape | None]:
    """Of the outcome and of the weight; None where no histogram was measured."""
    if not measurement.plan.histogram:
        return None, None
    bands = bands_of(measurement.bounds, measurement.transform, measurement.records, measurement.population_total)
    scale = Use("histogram", HISTOGRAM_SENSITIVITY, measurement.plan.histogram).scale
    generator = np.random.default_rng(seed)
    found: list[Shape | None] = []
    for edges, mean, variance, noisy in (
        (bands[0].edges, draws.outcome_mean, draws.outcome_variance, measurement.outcome_bands),
        (bands[1].edges, draws.weight_mean, draws.weight_variance, measurement.weight_bands),
    )[: measurement.plan.histograms]:
        chance = _band_chances(edges, mean[:MOST_DRAWS], variance[:MOST_DRAWS], size)
        found.append(_compare(noisy, chance, measurement.records, scale, generator))
    return found[0], found[1] if len(found) > 1 else None


def _band_chances(edges: Floats, mean: Floats, variance: Floats, size: Integers) -> Floats:
    """The share of records that the model puts into each band; what lies outside is in the nearer end's."""
    below = ndtr((edges[1:-1] - mean[..., None]) / np.sqrt(variance)[:, None, None])
    share = np.concatenate([np.zeros((*mean.shape, 1)), below, np.ones((*mean.shape, 1))], axis=2)
    return np.asarray(np.einsum("dcb,c->b", np.diff(share, axis=2), size) / (len(mean) * size.sum()))


def _compare(noisy: Integers, chance: Floats, records: int, scale: float, generator: np.random.Generator) -> Shape:
    expected = np.cumsum(chance)[:-1]
    simulated = generator.multinomial(records, chance / chance.sum(), SIMULATED).astype(float)
    simulated += generator.laplace(0.0, scale, simulated.shape)
    distances = _distance(simulated, expected, records)
    return Shape(float(_distance(noisy.astype(float)[None], expected, records)[0]), float(np.quantile(distances, RARE)))


def _distance(counts: Floats, expected: Floats, records: int) -> Floats:
    """The largest distance of the distribution functions; the noise of the total is known, and taken off."""
    counts = counts + ((records - counts.sum(axis=1)) / counts.shape[1])[:, None]
    return np.asarray(np.abs(np.cumsum(counts, axis=1)[:, :-1] / records - expected).max(axis=1))
