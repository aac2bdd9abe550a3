"""Imputed files: synthetic files, each an imputation of the confidential file from one posterior draw of its sums.

A draw gives the mean weight and weighted mean outcome of each cell, and the common covariance of (t, v) within cells.
The file of the draw has the public columns and strata of the survey, in the order of cells, and

    w = a_c exp(e_v),    y = b_c exp(e_t), or e_t + b_c without a logarithm, kept within the public bounds,

with normal residuals e that are centred in each cell and whose scatter is exactly that of the draw. The numbers a_c and
b_c make the mean weight and the weighted mean outcome of the cell equal to those of the draw, after clamping to the
bounds. So every table by public columns from the file equals the draw's, to the published digits. Weights are not
smoothed, so the variance within a file is that of the sample. The variance from noise appears between files, and
Rubin's rules for multiple imputation combine the two.

If sizes of cells were measured with noise, the file has as many rows as the noisy sizes say. The weights of a cell add
up to the draw's mean weight times the draw's own size of the cell, scaled to the population total. A cell without rows
gets no part of the total.

If the design has clusters, residuals have a part that the rows of a cluster share, with the covariance between clusters
of the draw. So the variance within a file is that of a sample with these clusters.

If weights are public, each row keeps its own weight; the weights of a group are in ascending order. The residual of t
is correlated with the score of the weight as the draw says, and the rest of it is orthogonal to the scores.

Residuals come from a published seed. Anybody who has the measurement, the draws and the seed can make the files of a
release again, and further files from other draws. All of this is post-processing and costs no ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from svysynth.core.engine import LOCAL, Engine, block_slices, map_blocks
from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.streams import Streams
from svysynth.core.transforms import Transform, restored
from svysynth.estimation.combining import SMOOTHED
from svysynth.mechanisms.noisy_sums.figures_given_weights import figures_given_weights
from svysynth.mechanisms.noisy_sums.implied_tables import CellDraws, cell_figures
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import KnownWeights, PublicWeights
from svysynth.mechanisms.noisy_sums.residuals import (
    Clustered,
    FileRows,
    Normal,
    Residual,
    Scored,
    cell_starts,
    match_covariance,
    match_scores,
)
from svysynth.models.synthesis import choose_draws
from svysynth.privacy.release import MICRODATA_DIGITS, as_published
from svysynth.survey.design import Design
from svysynth.survey.groups import Groups
from svysynth.survey.on_disk import survey_of_columns
from svysynth.survey.survey import Survey, SurveyInMemory

GOLDEN = (math.sqrt(5) - 1) / 2
PRECISION = 1e-12
"""The relative difference allowed between a cell's mean and the draw's, before numbers are rounded."""
MOST_PASSES = 200


@dataclass(frozen=True)
class FilePlan:
    """The public facts of a release's synthetic files: the seed of their residuals, and the draws they come from."""

    seed: int
    draws: tuple[int, ...]
    """The numbers of the draws, counted from 1 as in draws.parquet."""

    @classmethod
    def of(cls, draws: int, files: int, streams: Streams) -> FilePlan:
        """Choose draws far apart, and a seed that reveals nothing about the run's other random numbers."""
        chosen = choose_draws(draws, files) + 1 if files else np.empty(0, np.int64)
        return cls(streams.split("synthetic files").entropy, tuple(chosen.tolist()))

    def further(self, draws: int) -> tuple[int, ...]:
        """The draws that have no file yet, in an order whose first draws are spread over all of them."""
        stride = next(step for step in range(round(GOLDEN * draws), 2 * draws) if math.gcd(step, draws) == 1)
        order = (1 + stride * number % draws for number in range(draws))
        return tuple(draw for draw in order if draw not in self.draws)


@outlined
@dataclass(frozen=True, eq=False)
class FileMaker:
    """Makes the file of any draw from public information."""

    drawn: CellDraws
    measurement: Measurement
    facts: PublicFacts
    seed: int
    outcome: str
    strata: str | None
    engine: Engine = LOCAL
    scratch: Path | None = None
    """The folder for files that are too long for memory, while they are needed as surveys."""
    cluster: str | None = None
    fpc: str | None = None
    """The column of the finite population correction."""

    def __call__(self, draw: int) -> FileOfDraw:
        """The file of a draw, counted from 1."""
        if self.facts.weights is not None:
            return self._with_weights(draw, self.facts.weights)
        measurement, facts = self.measurement, self.facts
        one = self.drawn.only(np.array([draw - 1]))
        bounds = measurement.bounds.outcome
        target = cell_figures(one, facts.size, measurement.population_total, measurement.transform, bounds)
        target = target.calibrated(facts)
        normal = Normal(Streams(self.seed), draw, FileRows.of(facts))
        own = normal if facts.cluster is None else Clustered.of(normal, one, facts.cluster)
        residual = match_covariance(own, one, facts.size, measurement.transform, self.engine)
        within = _Values(residual, measurement.transform, bounds)
        sums = _Cells.gathered(map_blocks(self.engine, _Sums(within), len(facts)), len(facts.codes))
        total = np.where(facts.size > 0, (target.weight * target.size)[0], 0.0)
        scale = total * (measurement.population_total / total.sum()) / sums.weight
        place = _places(within, sums, target.outcome[0], self.engine, len(facts))
        return FileOfDraw(within, scale, place)

    def _with_weights(self, draw: int, weights: PublicWeights) -> FileOfDraw:
        """The file of a draw if weights are public."""
        measurement, facts, cells = self.measurement, self.facts, len(self.facts.codes)
        transform, bounds = measurement.transform, measurement.bounds.outcome
        one = self.drawn.only(np.array([draw - 1]))
        groups = figures_given_weights(one, facts, measurement.step, transform, bounds)
        weight, cell = groups.weight[0] * groups.size, facts.without_clusters()[0].cell
        target = np.bincount(cell, weight * groups.outcome[0], cells) / np.bincount(cell, weight, cells)
        score = KnownWeights.of(weights, facts, measurement.step).score
        normal = Normal(Streams(self.seed), draw, FileRows.of(facts))
        own = normal if groups.known is None else Clustered.of_outcome(normal, groups.known)
        scored = Scored(own, weights, score)
        residual = match_scores(scored, one, facts.size, transform, self.engine)
        within = _Values(residual, transform, bounds, weights)
        sums = _Cells.gathered(map_blocks(self.engine, _Sums(within), len(facts)), cells)
        return FileOfDraw(within, np.ones(cells), _places(within, sums, target, self.engine, len(facts)))

    def survey(self, draw: int) -> Survey:
        """The file of a draw as a survey, in memory or in the scratch folder."""
        groups = self.groups
        fpc = self.fpc, (), self.fpc is not None
        roles = (
            self.outcome,
            Design(SMOOTHED, self.strata, self.cluster, *fpc),
            tuple(self.facts.labels),
            self.measurement.transform,
        )
        total, public = self.measurement.population_total, self.facts.weights is not None
        like = SurveyInMemory(*roles, total, {}, public, self.engine, self.scratch, frame=groups.frame.clear())
        like = replace(like, domain=self.facts.domain, domains=self.facts.domains, calibration=self.facts.calibration)
        return survey_of_columns(like, groups, self(draw), (SMOOTHED,), f"synthetic-{draw}")

    def frames(self, draw: int, ranges: Sequence[range]) -> Iterator[pl.DataFrame]:
        """The rows of a draw's file as they are published, a range at a time."""
        made, public = self(draw), self.groups.frame
        for rows in ranges:
            blocks = [made(piece) for piece in block_slices(rows)]
            group, *numbers = (np.concatenate(column) for column in zip(*blocks, strict=True))
            columns = map(pl.Series, (self.outcome, SMOOTHED), numbers)
            yield as_published(public[group].with_columns(columns), rows.start)

    @cached_property
    def groups(self) -> Groups:
        """The public part of the rows."""
        facts = self.facts
        columns = {
            column: pl.Series(np.array(levels, object)[facts.codes[facts.cell, number]], dtype=pl.Enum(levels))
            for number, (column, levels) in enumerate(facts.labels.items())
        }
        if self.strata and self.strata not in columns:
            columns[self.strata] = pl.Series(facts.stratum.astype(np.int32))
        if self.cluster and self.cluster not in columns and facts.cluster is not None:
            columns[self.cluster] = pl.Series(facts.cluster + 1)
        if self.fpc and facts.fpc is not None:
            columns[self.fpc] = pl.Series(facts.fpc[facts.stratum]).round_sig_figs(MICRODATA_DIGITS)
        return Groups(pl.DataFrame(columns), facts.count, facts.cell)


@outlined
@dataclass(frozen=True, eq=False)
class FileOfDraw:
    """A synthetic file, a block at a time: group, outcome and weight of each row, to the digits that are published."""

    within: _Values
    scale: Floats
    """a_c."""
    place: Floats
    """b_c."""

    def __call__(self, piece: slice) -> tuple[Integers, Floats, Floats]:
        """The rows of a block."""
        group, cell, base, weight = self.within(piece)
        outcome = self.within.placed(base, self.place[cell])
        return group, _rounded(outcome), _rounded(weight * self.scale[cell])


def _rounded(values: Floats) -> Floats:
    return pl.Series(values).round_sig_figs(MICRODATA_DIGITS).to_numpy()


# --- weights and outcomes ---


@outlined
@dataclass(frozen=True, eq=False)
class _Values:
    """The rows before the factors of their cells: exp(e_t) or e_t, and exp(e_v) or the row's own public weight."""

    residual: Residual
    transform: Transform
    bounds: tuple[float, float]
    weights: PublicWeights | None = None

    def __call__(self, piece: slice) -> tuple[Integers, Integers, Floats, Floats]:
        group, cell, (t, *v) = self.residual(piece)
        weight = np.exp(v[0]) if self.weights is None else self.weights.value[self.weights.of_rows(piece)]
        return group, cell, restored(t, self.transform), weight

    def placed(self, base: Floats, place: Floats) -> Floats:
        """The outcome, within the public bounds."""
        return np.asarray(np.clip(self.moved(base, place), *self.bounds))

    def moved(self, base: Floats, place: Floats) -> Floats:
        """The outcome before clamping to the bounds."""
        return base * place if self.transform == "log" else base + place

    def place_of(self, base: Floats, outcome: Floats | float) -> Floats:
        """The factor, or the shift, that turns a base into an outcome."""
        return np.asarray(outcome / base if self.transform == "log" else outcome - base)


@outlined
@dataclass(frozen=True, eq=False)
class _Cells:
    """For each cell: the sum of weights, the weighted sum of bases, the least and the greatest base."""

    weight: Floats
    base: Floats
    least: Floats
    greatest: Floats

    @classmethod
    def gathered(cls, blocks: Sequence[tuple[Integers, Floats]], cells: int) -> _Cells:
        found = cls(np.zeros(cells), np.zeros(cells), np.full(cells, np.inf), np.full(cells, -np.inf))
        for own, (weight, base, least, greatest) in blocks:
            found.weight[own] += weight
            found.base[own] += base
            found.least[own] = np.minimum(found.least[own], least)
            found.greatest[own] = np.maximum(found.greatest[own], greatest)
        empty = found.weight == 0
        for column in (found.weight, found.base, found.least, found.greatest):
            column[empty] = 1.0
        return found


@outlined
@dataclass(frozen=True)
class _Sums:
    """For a block: its cells, and the figures of `_Cells` for each."""

    within: _Values

    def __call__(self, piece: slice) -> tuple[Integers, Floats]:
        _, cell, base, weight = self.within(piece)
        starts = cell_starts(cell)
        sums = np.add.reduceat(np.stack([weight, weight * base]), starts, axis=1)
        ends = np.minimum.reduceat(base, starts), np.maximum.reduceat(base, starts)
        return cell[starts], np.concatenate([sums, np.stack(ends)])


def _places(within: _Values, sums: _Cells, target: Floats, engine: Engine, records: int) -> Floats:
    """The b_c of each cell at which its weighted mean outcome is the target after clamping to the bounds.

    In a cell without clamping, b_c has a closed form. In the others, the mean is a piecewise linear and increasing
    function of b_c. Newton's method finds the root, with bisection if a step leaves the remaining range.
    """
    low, high = within.bounds
    place = within.place_of(sums.base / sums.weight, target)
    cut = (within.moved(sums.least, place) < low) | (within.moved(sums.greatest, place) > high)
    below, above = within.place_of(sums.greatest, low), within.place_of(sums.least, high)
    enough = PRECISION * sums.weight * (np.abs(target) if within.transform == "log" else high - low)
    for _ in range(MOST_PASSES):
        if not cut.any():
            break
        place = np.where(cut, np.clip(place, below, above), place)
        total, slope = np.zeros(len(place)), np.zeros(len(place))
        for own, (outcome, change) in map_blocks(engine, _Moved(within, place, cut), records):
            total[own] += outcome
            slope[own] += change
        off = target * sums.weight - total
        cut &= np.abs(off) > enough
        below, above = np.where(off > 0, place, below), np.where(off < 0, place, above)
        step = place + np.divide(off, slope, out=np.full(len(off), np.inf), where=slope > 0)
        astray = ~((below <= step) & (step <= above))
        place = np.where(cut, np.where(astray, (below + above) / 2, step), place)
    return place


@outlined
@dataclass(frozen=True, eq=False)
class _Moved:
    """For a block with cells that are not finished: its cells, Σwy in each, and the derivative of Σwy by b_c."""

    within: _Values
    place: Floats
    cells: Booleans

    def __call__(self, piece: slice) -> tuple[Integers, Floats]:
        _, cell = self.within.residual.normal.rows(piece)
        starts = cell_starts(cell)
        if not self.cells[cell[starts]].any():
            return np.empty(0, np.int64), np.empty((2, 0))
        _, cell, base, weight = self.within(piece)
        moved = self.within.moved(base, self.place[cell])
        low, high = self.within.bounds
        inside = (low < moved) & (moved < high)
        change = weight * inside * (base if self.within.transform == "log" else 1.0)
        return cell[starts], np.add.reduceat(np.stack([weight * np.clip(moved, low, high), change]), starts, axis=1)
