"""Drawing: synthetic files from draws of the posterior given the noisy margins.

A file keeps the public part of each record. Its answers are drawn for one draw from the posterior of the graphical
model and of the densities of amounts within wide bands: evenly, so that files differ by the noise and little else.
Weights are then multiplied by factors of the rows of each column (raking), so that they have the noisy sums of weights,
with fresh noise in each file, and by one factor to the population total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.margins.coding import WEIGHT
from svysynth.mechanisms.margins.density import Density
from svysynth.mechanisms.margins.fitting import SPREADS, USUAL_SPREAD, Fitted, fit
from svysynth.mechanisms.margins.graph import Graph, draw_levels
from svysynth.mechanisms.margins.measuring import Cells, Measurement
from svysynth.mechanisms.margins.within_bands import Within

DRAWS = 40
"""The draws of a density from which the errors of its wide bands are found."""
ROUNDS, LARGEST_FACTOR = 20, 4.0
"""How often weights are raked to each column, and by what a row's weights may be changed in a round."""


@outlined
@dataclass(frozen=True, eq=False)
class Answers:
    """The posterior of the answers, from which files are drawn."""

    measurement: Measurement
    cells: Cells
    fitted: Fitted
    densities: Mapping[str, Density]

    @classmethod
    def fit(cls, measurement: Measurement, cells: Cells) -> Answers:
        """Fit densities and the graphical model to a measurement; it takes nothing else but public cells."""
        names = [one.name for one in measurement.codings]
        densities = {one.name: measurement.density(one.name, len(cells)) for one in measurement.codings if one.banded}
        factors: list[tuple[tuple[int, ...], Integers]] = []
        noisy: list[Floats | None] = []
        errors: list[Floats | float] = []
        everywhere = np.zeros(len(cells.count), np.int64)
        for place, one in enumerate(measurement.codings):
            factors.append(((place,), everywhere))
            found = _of_bands(measurement, one.name, densities, len(cells)) if one.banded else (None, 1.0)
            noisy.append(found[0])
            errors.append(found[1])
        for use, margin in zip(measurement.plan.margins, measurement.margins, strict=True):
            answers = [names.index(name) for name in use.answers]
            order = np.argsort(answers)
            factors.append((tuple(sorted(answers)), cells.rows(use.columns)))
            noisy.append(np.transpose(margin, [0, *(1 + order)]).astype(float))
            errors.append(2**0.5 * use.scale)
        graph = Graph.of([one.wide_levels for one in measurement.codings], factors, cells.count)
        return cls(measurement, cells, fit(graph, noisy, errors), densities)

    def draw(self, generator: np.random.Generator, total: float | None) -> dict[str, Floats]:
        """The values of each answer, and the weights if they are confidential, for records sorted by cell."""
        cell = self.cells.of_record
        parameters = self.fitted.draw(generator)
        levels = draw_levels(self.fitted.fitter.graph, parameters, cell, generator)
        found = {}
        within = Within(self.fitted.fitter.graph, parameters, self.measurement.codings, levels, generator)
        for place, one in enumerate(self.measurement.codings):
            share, uniform = np.empty(0), np.empty(0)
            if one.banded:
                share, uniform = self.densities[one.name].draw(generator), within.places(place)
            found[one.name] = one.values(levels[:, place], share, uniform)
        if WEIGHT in found:
            found[WEIGHT] = self._raked(found[WEIGHT], generator)
            found[WEIGHT] *= 1.0 if total is None else total / found[WEIGHT].sum()
        return found

    def _raked(self, weight: Floats, generator: np.random.Generator) -> Floats:
        plan = self.measurement.plan.weights
        (low, high), targets = self.measurement.limits[WEIGHT], []
        for use, sums in zip(plan, self.measurement.weights, strict=True):
            row = self.cells.rows(use.columns)[self.cells.of_record]
            count = np.bincount(row)
            mean = (low + high) / 2 + sums / count
            drawn = _mean_weights(mean, self.measurement.noise_of_sum(use) / count, generator)
            targets.append((row, count * np.maximum(drawn, max(low, high / 1000))))
        for _ in range(ROUNDS):
            for row, wanted in reversed(targets):
                factor = np.clip(wanted / np.bincount(row, weight), 1 / LARGEST_FACTOR, LARGEST_FACTOR)
                weight = weight * factor[row]
        return weight


def _mean_weights(mean: Floats, noise: Floats, generator: np.random.Generator) -> Floats:
    """Draws of the mean weights of rows, which are drawn towards their common mean where noise is large.

    The spread of rows, relative to the common mean, has the prior of a factor's τ.
    """
    if len(mean) == 1:
        return mean + noise * generator.normal(size=1)
    common = (mean / noise**2).sum() / (1 / noise**2).sum()
    tried = SPREADS * abs(common)
    variance = noise**2 + tried[:, None] ** 2
    fits = -0.5 * (np.log(variance) + (mean - common) ** 2 / variance).sum(axis=1)
    chance = np.exp(fits - fits.max()) * np.gradient(SPREADS) / (1 + (SPREADS / USUAL_SPREAD) ** 2)
    spread = generator.choice(tried, p=chance / chance.sum())
    kept = spread**2 / (spread**2 + noise**2)
    return np.asarray(common + kept * (mean - common) + np.sqrt(kept) * noise * generator.normal(size=len(mean)))


def _of_bands(
    measurement: Measurement, name: str, densities: Mapping[str, Density], records: int
) -> tuple[Floats, Floats]:
    """The counts of wide levels that follow from narrow bands, and their standard errors."""
    coding, density = measurement.coding(name), densities[name]
    place = next(place for place, use in enumerate(measurement.plan.bands) if use.answers == (name,))
    noise = 2**0.5 * measurement.plan.bands[place].scale
    single = measurement.bands[place][: coding.single].astype(float)
    inside = max(records - single.sum(), 1.0)
    generator = np.random.default_rng(0)  # for an error's size only
    drawn = np.stack([coding.shares_of_wide(density.draw(generator)) for _ in range(DRAWS)])
    share = coding.shares_of_wide(density.share)
    error = np.hypot(drawn.std(axis=0) * inside, noise * np.sqrt(coding.single) * share)
    values = np.concatenate([single, share * inside])
    return values[None], np.concatenate([np.full(coding.single, noise), np.maximum(error, 0.3)])[None]
