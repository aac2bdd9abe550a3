"""Measuring: noisy margins and sums of the answers, the only data that later steps may take from the survey.

The records are read twice: for narrow bands of amounts and weights, and, once these have given wide bands and bounds
for the sums, for everything else. With each answer as one level, and amounts as whole numbers T of at most M = 2²⁹ in
size, the largest change in the sum of absolute differences is, if the answers of one respondent are replaced by others,

    narrow bands, a margin           1 leaves an entry, 1 enters one        2
    a sum of amounts or weights      −M ≤ T ≤ M                             2·M in its one row

and half of it if the answers are blanked out, so that the respondent adds nothing. The row of a record follows from
public columns and does not change. Discrete Laplace noise on each number gives ε-differential privacy for every data
set, where ε is the sum over all uses (`planning.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.margins.coding import WEIGHT, Coding
from svysynth.mechanisms.margins.density import Density, NoisySum, fit_density
from svysynth.mechanisms.margins.planning import STEPS, Plan, Use
from svysynth.mechanisms.noise import Noise

AMOUNT_BANDS, WEIGHT_BANDS = (0.1, 0.25, 0.5, 0.75, 0.9), (0.2, 0.4, 0.6, 0.8)
"""The quantiles at which wide bands begin."""
KEPT = 0.998
"""The quantile of an amount or a weight beyond which its part of a sum is cut off."""


@outlined
@dataclass(frozen=True, eq=False)
class Cells:
    """The combinations of modelled public columns that have records, and the cell of every record."""

    columns: tuple[str, ...]
    codes: Integers
    """The position of the level: cell × column."""
    count: Integers
    of_record: Integers

    @classmethod
    def of(cls, frame: pl.DataFrame, columns: Sequence[str]) -> Cells:
        """The cells of records with these public columns."""
        if not columns:
            return cls((), np.zeros((1, 0), np.int64), np.array([frame.height]), np.zeros(frame.height, np.int64))
        levels = np.stack([_codes(frame[column]) for column in columns], axis=1)
        codes, cell, count = np.unique(levels, axis=0, return_inverse=True, return_counts=True)
        return cls(tuple(columns), codes, count, cell.reshape(-1))

    def __len__(self) -> int:
        return int(self.count.sum())

    @property
    def sizes(self) -> dict[str, int]:
        """The number of levels of each column that occur."""
        return {column: len(np.unique(self.codes[:, place])) for place, column in enumerate(self.columns)}

    def rows(self, columns: Sequence[str]) -> Integers:
        """The row of each cell among the combinations of some of the columns that occur."""
        if not columns:
            return np.zeros(len(self.count), np.int64)
        chosen = [self.columns.index(column) for column in columns]
        return np.unique(self.codes[:, chosen], axis=0, return_inverse=True)[1].reshape(-1)


def _codes(column: pl.Series) -> Integers:
    values = column.to_physical() if column.dtype in (pl.Enum, pl.Categorical) else column.rank("dense")
    return values.to_numpy().astype(np.int64)


@outlined
@dataclass(frozen=True, eq=False)
class Measurement:
    """What was measured, with noise. It is protected, and later steps use nothing else about the answers."""

    plan: Plan
    codings: tuple[Coding, ...]
    """With the wide bands that follow from the narrow ones."""
    bands: tuple[Integers, ...]
    """The noisy counts of each narrow level, for each amount and the weight."""
    amounts: tuple[float, ...]
    """The noisy sum of each amount's distances from the middle of its limits; missing answers add nothing."""
    limits: Mapping[str, tuple[float, float]]
    """Where each amount, and the weight, is cut off in sums."""
    weights: tuple[Floats, ...]
    """The noisy sums, in rows, of the distances of weights from the middle of their limits."""
    margins: tuple[Integers, ...]

    def coding(self, name: str) -> Coding:
        """The coding of an answer."""
        return next(one for one in self.codings if one.name == name)

    def noise_of_sum(self, use: Use) -> float:
        """The standard deviation of the noise of a sum, in the units of the answer."""
        low, high = self.limits[use.answers[0]]
        return 2**0.5 * use.scale * (high - low) / 2 / STEPS

    def density(self, name: str, records: int) -> Density:
        """The density of an amount or the weight in its narrow bands, among records with an amount in a band."""
        place = next(place for place, use in enumerate(self.plan.bands) if use.answers == (name,))
        coding, noisy = self.coding(name), self.bands[place]
        single, counts = noisy[: coding.single], noisy[coding.single :].astype(float)
        inside = max(records - float(single.sum()), 1.0)
        sums = None
        for use, total in zip(self.plan.amounts, self.amounts, strict=bool(self.amounts)):
            if use.answers == (name,):
                sums = self._sum_in_bands(use, total, int(single[0]) if coding.zero else 0)
        return fit_density(counts, 2**0.5 * self.plan.bands[place].scale, inside, sums)

    def _sum_in_bands(self, use: Use, total: float, zeros: int) -> NoisySum:
        """The noisy sum of an amount without the records that have zero."""
        limits = self.limits[use.answers[0]]
        middle, bands = sum(limits) / 2, next(one for one in self.plan.bands if one.answers == use.answers)
        noise = np.hypot(self.noise_of_sum(use), middle * 2**0.5 * bands.scale if zeros else 0.0)
        added = np.clip(self.coding(use.answers[0]).middles, *limits) - middle
        return NoisySum(added, total + zeros * middle, float(noise))


def most_levels(coding: Coding) -> int:
    """The most levels that an answer can have in margins, whatever its noisy bands are."""
    if not coding.banded:
        return coding.levels
    return coding.single + 1 + len(WEIGHT_BANDS if coding.name == WEIGHT else AMOUNT_BANDS)


def measure(
    values: Mapping[str, Floats], cells: Cells, codings: Sequence[Coding], plan: Plan, noise: Noise
) -> Measurement:
    """Measure everything that a plan has. The values are confidential, and so is every number until it has noise."""
    narrow = {one.name: one.narrow(values[one.name]) for one in codings}
    own = {one.name: one for one in codings}
    bands = tuple(
        noise(np.bincount(narrow[use.answers[0]], minlength=own[use.answers[0]].narrow_levels), use)
        for use in plan.bands
    )
    started = Measurement(plan, tuple(codings), bands, (), {}, (), ())
    limits = {}
    for use in plan.bands:
        name = use.answers[0]
        density = started.density(name, len(cells))
        shares = WEIGHT_BANDS if name == WEIGHT else AMOUNT_BANDS
        own[name] = replace(own[name], wide=tuple(density.quantile_bands(shares).tolist()))
        limits[name] = _limits(own[name], density)
    amounts = tuple(
        float(_sums(values[name], limits[name], np.zeros(len(cells), np.int64), use, noise)[0])
        for use in plan.amounts
        for name in use.answers
    )
    by_row = ((use, cells.rows(use.columns)[cells.of_record]) for use in plan.weights)
    weights = tuple(_sums(values[WEIGHT], limits[WEIGHT], rows, use, noise) for use, rows in by_row)
    levels = {name: own[name].widened(level) for name, level in narrow.items()}
    margins = tuple(_margin(use, cells, levels, own, noise) for use in plan.margins)
    return Measurement(plan, tuple(own[one.name] for one in codings), bands, amounts, limits, weights, margins)


def _limits(coding: Coding, density: Density) -> tuple[float, float]:
    """The ends of the narrow bands that have nearly all records, widened to zero if that is a level of its own."""
    edges, reached = coding.edges, np.cumsum(density.share)
    high = float(edges[min(int(np.searchsorted(reached, KEPT)) + 1, len(edges) - 1)])
    low = float(edges[int(np.searchsorted(reached, 1 - KEPT))]) if coding.bounds[0] < 0 else coding.bounds[0]
    return (min(low, 0.0), max(high, 0.0)) if coding.zero else (low, high)


def _sums(values: Floats, limits: tuple[float, float], rows: Integers, use: Use, noise: Noise) -> Floats:
    """Noisy sums in rows: each record adds its distance from the middle of the limits, as a whole number."""
    low, high = limits
    middle, half = (low + high) / 2, (high - low) / 2
    own = (np.clip(values, low, high) - middle) / half
    whole = np.clip(np.rint(np.nan_to_num(own) * STEPS), -STEPS, STEPS).astype(np.int64)
    exact = np.zeros(int(rows.max()) + 1, np.int64)
    np.add.at(exact, rows, whole)
    return np.asarray(noise(exact, use) / STEPS * half)


def _margin(
    use: Use, cells: Cells, levels: Mapping[str, Integers], codings: Mapping[str, Coding], noise: Noise
) -> Integers:
    row = cells.rows(use.columns)
    shape = (int(row.max()) + 1, *(codings[name].wide_levels for name in use.answers))
    place = np.ravel_multi_index([row[cells.of_record], *(levels[name] for name in use.answers)], shape)
    return noise(np.bincount(place, minlength=int(np.prod(shape))).reshape(shape), use)
