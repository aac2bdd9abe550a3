"""Synthesis: one posterior draw becomes one synthetic survey, with smoothed weights (paper §2.1, §2.2).

The public columns and the strata are as given; outcome and weight are drawn from the model. Rows come in a random order
and ids are fresh, so that a row's position says nothing. Weights are scaled to the declared population total, or
calibrated to declared totals of public columns. Random numbers depend on the position in the synthetic file, so that
the file is the same however the work is divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import polars as pl

from svysynth.core.engine import BLOCK, map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import DRAWS_APART
from svysynth.core.streams import Streams
from svysynth.core.transforms import Transform, restored
from svysynth.estimation.calibration import Totals, totals_of_groups
from svysynth.estimation.combining import SMOOTHED, UNSMOOTHED, Synthetic
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Model
from svysynth.models.jax_keys import wrapped
from svysynth.models.records import Records
from svysynth.models.sampler import Fit
from svysynth.survey.clusters import exchange_alike
from svysynth.survey.groups import Groups
from svysynth.survey.on_disk import survey_of_columns
from svysynth.survey.survey import Survey

ROUNDS = 6
"""The rounds of the network that shuffles."""


def choose_draws(draws: int, datasets: int) -> Integers:
    """Which of a fit's draws are released: as far apart as can be, so that they are independent."""
    apart = draws // datasets
    if apart < DRAWS_APART:
        raise SurveyError(
            "spec",
            "privacy.datasets",
            f"{datasets} independent data sets need {DRAWS_APART} draws each",
            "use fewer datasets or more draws (privacy.draws)",
        )
    return np.arange(datasets) * apart + apart // 2


def synthesize_surveys(
    fit: Fit, survey: Survey, datasets: int, streams: Streams, digits: int | None = None
) -> tuple[Survey, ...]:
    """m synthetic surveys from m independent draws."""
    return synthesize_draws(fit.model, fit.records, released_draws(fit, datasets), survey, streams, digits)


def released_draws(fit: Fit, datasets: int) -> list[Parameters]:
    """The m draws that are released."""
    return [{name: value[draw] for name, value in fit.draws.items()} for draw in choose_draws(fit.size, datasets)]


def synthesize_draws(
    model: Model,
    records: Records,
    draws: Sequence[Parameters],
    survey: Survey,
    streams: Streams,
    digits: int | None = None,
) -> tuple[Survey, ...]:
    """A synthetic survey from each draw, its numbers rounded to significant digits where their number is given.

    Only the design matrix of the records and the groups of the survey are used: neither the order of the records nor
    any of their confidential values.
    """
    if survey.population_total is None and not survey.weight_public:
        remedy = "declare the published figure that released weights are scaled to"
        raise SurveyError("spec", "survey.population_total", "is not declared", remedy)
    groups, size, kept = survey.groups, len(survey), None
    fpc = survey.design.released_fpc
    if fpc is not None and digits is not None:
        groups = replace(groups, frame=groups.frame.with_columns(pl.col(fpc).round_sig_figs(digits)))
    if survey.weight_public:
        kept = groups.frame[survey.design.weight].to_numpy()
        groups = replace(groups, frame=groups.frame.drop(survey.design.weight))
    groups = replace(groups, frame=_with_clusters_exchanged(groups, survey, streams))
    rows = _rows_in_clusters(records, survey) if model.traits.clusters else records.x[groups.cell]
    made = []
    for number, draw in enumerate(draws):
        numbers = {name: np.asarray(value) for name, value in draw.items()}
        block = _Block(model, numbers, rows, groups.count, size, number, streams)
        weights: _ScaledWeights | _CalibratedWeights | _KeptWeights
        if kept is None and survey.calibration is not None:
            weights = _calibrated(block, totals_of_groups(survey, survey.calibration, groups.frame), survey)
        elif kept is None:
            sums = map_blocks(survey.engine, _WeightSums(block), size)
            total = survey.population_total or 0.0
            weights = _ScaledWeights(tuple(_scale(column, total) for column in zip(*sums, strict=True)))
        else:
            weights = _KeptWeights(kept)
        columns = _Columns(block, weights, survey.transform, digits)
        made.append(survey_of_columns(survey, groups, columns, (SMOOTHED, UNSMOOTHED), f"synthetic-{number}"))
    return tuple(made)


def _with_clusters_exchanged(groups: Groups, survey: Survey, streams: Streams) -> pl.DataFrame:
    """The public part, with the numbers of clusters that are alike exchanged: their order is that of the file."""
    cluster, strata = survey.design.cluster, survey.design.strata
    if cluster is None or cluster in survey.published:
        return groups.frame
    number = groups.frame[cluster].to_numpy()
    stratum = groups.frame[strata].to_physical().to_numpy() if strata else 0 * number
    found = exchange_alike(number, stratum, groups.cell, groups.count, streams.generator("clusters", 0))
    return groups.frame.with_columns(pl.Series(cluster, found))


def _rows_in_clusters(records: Records, survey: Survey) -> Floats:
    """What the records of each group have in common: the row of the design matrix, and the number of the cluster."""
    groups, group = survey.in_memory().grouped(np.ones(len(survey), np.int64))
    cluster = np.empty(len(groups.count))
    cluster[group], _ = records.clustered
    return np.column_stack([records.x[groups.cell], cluster])


@outlined
@dataclass(frozen=True)
class _Block:
    """Synthetic records, a block at a time. Those of a block depend on its position and on nothing else."""

    model: Model
    draw: dict[str, Floats]
    x: Floats
    """A row for each group."""
    count: Integers
    size: int
    number: int
    streams: Streams

    def __call__(self, piece: slice) -> tuple[Integers, Floats, Floats, Floats]:
        """The group, t*, v* and the smoothed log weight of each record."""
        place = shuffled(np.arange(piece.start, piece.stop), self.size, shuffle_keys(self.streams, self.number))
        group = np.searchsorted(np.cumsum(self.count), place, side="right")
        key = wrapped(draw_keys(self.streams, self.number))
        key = jax.random.fold_in(key, piece.start // BLOCK)
        t, v, smoothed = _draw_records(self.model, key, self.draw, self.x[group])
        return group, np.asarray(t), np.asarray(v), np.asarray(smoothed)


def shuffled(position: Integers, size: int, keys: npt.NDArray[np.uint64]) -> Integers:
    """Where a permutation of 0 … size − 1 sends some positions, computed for these alone.

    A Feistel network permutes the numbers of 2h bits; a result that is too large is sent through again until it fits.
    """
    found = position.astype(np.uint64)
    moving = np.arange(len(found))
    while len(moving):
        found[moving] = _network(found[moving], size, keys)
        moving = moving[found[moving] >= size]
    return found.astype(np.int64)


def _network(number: Any, size: int, keys: Any) -> Any:
    """One pass through the network, with NumPy or JAX."""
    half = np.uint64(max(1, (int(size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = number >> half, number & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(value: Any) -> Any:
    """Every bit of the result depends on every bit of the value (the finalizer of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@outlined
class Laid(NamedTuple):
    """Synthetic records of many surveys, survey × record; those of a group of public values follow each other."""

    t: Array
    log_weight: Array
    """The smoothed log weight."""


@partial(jax.jit, static_argnames=("model", "size"))
def synthesize_together(
    model: Model, draws: Parameters, x: Array, count: Array, size: int, shuffles: Array, keys: Array
) -> Laid:
    """The records of `synthesize_draws` for one draw of each of many surveys of the same size, on JAX's device.

    Every array has the survey as its first axis; x has a row for each group of public values, and count its size.
    """

    def of_one(draw: Parameters, x: Array, count: Array, shuffle: Array, key: Array) -> Laid:
        def beyond(place: Array) -> Array:
            return jnp.any(place >= size)

        def send_on(place: Array) -> Array:
            return jnp.where(place >= size, _network(place, size, shuffle), place)

        start = _network(jnp.arange(size, dtype=jnp.uint64), size, shuffle)
        place = jax.lax.while_loop(beyond, send_on, start).astype(int)
        group = jnp.searchsorted(jnp.cumsum(count), place, side="right")
        t, _, smoothed = model.synthesize(jax.random.fold_in(key, 0), draw, x[group])
        return Laid(*(jnp.zeros(size).at[place].set(column) for column in (t, smoothed)))

    return jax.vmap(of_one)(draws, x, count, shuffles, wrapped(keys))


def shuffle_keys(streams: Streams, number: int) -> npt.NDArray[np.uint64]:
    """The keys by which the records of a synthetic survey are shuffled.

    Anyone who found these keys from the published rows would know the order of the rows' groups, whose sizes are
    public, and nothing about any other stream. The order of the confidential records plays no part.
    """
    return streams.words("shuffle", number, ROUNDS)


def draw_keys(streams: Streams, number: int) -> npt.NDArray[np.uint32]:
    """The key by which the records of a synthetic survey are drawn."""
    return streams.key_data("synthesis", number)


@outlined
@dataclass(frozen=True)
class _WeightSums:
    """The largest log weight of a block and Σexp(log weight − largest), for smoothed and unsmoothed weights."""

    block: _Block

    def __call__(self, piece: slice) -> tuple[tuple[float, float], tuple[float, float]]:
        _, _, v, smoothed = self.block(piece)
        return _exp_sum(smoothed), _exp_sum(v)


def _exp_sum(log_weight: Floats) -> tuple[float, float]:
    largest = float(log_weight.max())
    return largest, float(np.exp(log_weight - largest).sum())


def _scale(blocks: Sequence[tuple[float, float]], total: float) -> tuple[float, float]:
    """The largest log weight of all, and the factor by which weights relative to it add up to the total."""
    largest = max(one for one, _ in blocks)
    return largest, total / sum(part * math.exp(one - largest) for one, part in blocks)


@outlined
@dataclass(frozen=True)
class _ScaledWeights:
    """Smoothed and unsmoothed weights from their logarithms, scaled to the population total."""

    scales: tuple[tuple[float, float], ...]

    def __call__(self, group: Integers, v: Floats, smoothed: Floats) -> tuple[Floats, Floats]:
        (largest, scale), (largest_drawn, scale_drawn) = self.scales
        return np.exp(smoothed - largest) * scale, np.exp(v - largest_drawn) * scale_drawn


@outlined
@dataclass(frozen=True)
class _GroupSums:
    """The largest log weight of a block and Σexp(log weight − largest) of each calibration cell, for both weights."""

    block: _Block
    totals: Totals

    def __call__(self, piece: slice) -> tuple[tuple[float, Floats], tuple[float, Floats]]:
        group, _, v, smoothed = self.block(piece)
        return self._sums(group, smoothed), self._sums(group, v)

    def _sums(self, group: Integers, log_weight: Floats) -> tuple[float, Floats]:
        largest = float(log_weight.max())
        return largest, group_sums(self.totals.cell[group], self.totals.cells, np.exp(log_weight - largest))


def _calibrated(block: _Block, totals: Totals, survey: Survey) -> _CalibratedWeights:
    """Smoothed and unsmoothed weights, each calibrated to the totals."""
    columns = zip(*map_blocks(survey.engine, _GroupSums(block, totals), block.size), strict=True)
    scales = []
    for parts in columns:
        largest = max(one for one, _ in parts)
        sums = sum(part * math.exp(one - largest) for one, part in parts)
        scales.append((largest, totals.factors(np.asarray(sums)[:, np.newaxis])[totals.cell, 0]))
    return _CalibratedWeights(tuple(scales))


@outlined
@dataclass(frozen=True)
class _CalibratedWeights:
    """Smoothed and unsmoothed weights from their logarithms, with the factor of each group."""

    scales: tuple[tuple[float, Floats], ...]

    def __call__(self, group: Integers, v: Floats, smoothed: Floats) -> tuple[Floats, Floats]:
        (largest, scale), (largest_drawn, scale_drawn) = self.scales
        return np.exp(smoothed - largest) * scale[group], np.exp(v - largest_drawn) * scale_drawn[group]


@outlined
@dataclass(frozen=True)
class _KeptWeights:
    """Public weights: each record has its group's."""

    weight: Floats

    def __call__(self, group: Integers, v: Floats, smoothed: Floats) -> tuple[Floats, Floats]:
        return self.weight[group], self.weight[group]


@dataclass(frozen=True)
class _Columns:
    """A block of a synthetic survey: the group, the outcome, the smoothed and the unsmoothed weight of each record."""

    block: _Block
    weights: _ScaledWeights | _CalibratedWeights | _KeptWeights
    transform: Transform
    digits: int | None

    def __call__(self, piece: slice) -> tuple[Integers, Floats, Floats, Floats]:
        group, t, v, smoothed = self.block(piece)
        outcome = restored(t, self.transform)
        weight, drawn = self.weights(group, v, smoothed)
        return group, self._rounded(outcome), self._rounded(weight), self._rounded(drawn)

    def _rounded(self, column: Floats) -> Floats:
        return column if self.digits is None else pl.Series(column).round_sig_figs(self.digits).to_numpy()


@partial(jax.jit, static_argnames="model")
def _draw_records(model: Model, key: Array, parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
    return model.synthesize(key, parameters, x)


def make_synthetic(surveys: tuple[Survey, ...], model: Model) -> Synthetic:
    """Synthetic surveys with the combining rules of their model."""
    return Synthetic(surveys, *model.combining)
