"""Record bounds: the Lipschitz bounds of the records (paper §1.4.1).

The bound of a record is its largest |log-likelihood| over the draws. The number of draws is part of the definition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.column_storage import Column, compute_column
from svysynth.core.engine import LOCAL, Engine, map_blocks
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.pseudo_posterior.quadratics import device_bounds, make_quadratics, quadratic_bounds
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Model
from svysynth.models.sampler import Fit

PLAIN_BLOCK = 1024
"""The number of records whose terms for all draws are in memory at a time, for a model that is not quadratic."""

Bounds = Callable[[Floats, Floats, Integers], Floats]
"""Computes the bounds of records (t, v, cell). A record's bound does not depend on the others; any thread may call."""


def record_bounds(fit: Fit, name: str = "bounds") -> Column:
    """max over the draws of |ll_i|, for each record; infinite if a log-likelihood is not finite.

    If the records are on disk, the bounds are stored with them, under `name`.
    """
    records, draws = fit.records, {parameter: np.asarray(value) for parameter, value in fit.draws.items()}
    x, row = records.rows_in_clusters() if fit.model.traits.clusters else (records.x, records.cell)
    blocks = _BlockBounds(fit.model, draws, x, records.t, records.v, row)
    path = records.scratch / name if records.scratch else None
    return compute_column(records.engine, blocks, len(records), path)


@outlined
@dataclass(frozen=True)
class _BlockBounds:
    """The bounds of a block of records. Their preparation is done once in every process."""

    model: Model
    draws: dict[str, Floats]
    x: Floats
    t: Column
    v: Column
    cell: Column

    @cached_property
    def find(self) -> Bounds:
        return make_bounds(self.model, {name: jnp.asarray(value) for name, value in self.draws.items()}, self.x)

    def __call__(self, piece: slice) -> Floats:
        return self.find(self.t[piece], self.v[piece], self.cell[piece])

    def __reduce__(self) -> tuple[Any, ...]:
        return _BlockBounds, (self.model, self.draws, self.x, self.t, self.v, self.cell)


def make_bounds(model: Model, draws: Parameters, x: Floats) -> Bounds:
    """The function that computes the bounds of records under these draws; x has a row for each cell."""
    if model.traits.quadratic:
        return partial(quadratic_bounds, make_quadratics(model, draws, x))
    return partial(_plain_bounds, model, draws, x)


@partial(jax.jit, static_argnames="model")
def bounds_together(model: Model, draws: Parameters, x: Array, t: Array, v: Array, cell: Array) -> Array:
    """The bounds of many surveys under a quadratic model, on JAX's device; the first axis is the survey."""
    found: Array = jax.vmap(lambda draws, x, *records: device_bounds(make_quadratics(model, draws, x), *records))(
        draws, x, t, v, cell
    )
    return found


def _plain_bounds(model: Model, draws: Parameters, x: Floats, t: Floats, v: Floats, cell: Integers) -> Floats:
    """The bounds from every term of every draw.

    Blocks are filled up with copies of the last record, so that one compiled program serves all of them.
    """
    bounds = np.empty(len(t))
    for start in range(0, len(t), PLAIN_BLOCK):
        position = np.minimum(np.arange(start, start + PLAIN_BLOCK), len(t) - 1)
        found = _block_bounds(model, draws, t[position], v[position], x[cell[position]])
        piece = slice(start, start + PLAIN_BLOCK)
        bounds[piece] = found[: len(bounds[piece])]
    return bounds


@partial(jax.jit, static_argnames="model")
def _block_bounds(model: Model, draws: Parameters, t: Array, v: Array, x: Array) -> Array:
    terms = jax.vmap(lambda parameters: model.log_likelihood(parameters, t, v, x))(draws)
    return jnp.max(jnp.where(jnp.isfinite(terms), jnp.abs(terms), jnp.inf), axis=0)


@outlined
class BoundsSummary(NamedTuple):
    """A summary of all bounds for calibration; the numbers leave out bounds that are not finite."""

    smallest: float
    largest: float
    any_finite: bool
    all_finite: bool


def summarize_bounds(bounds: Column, engine: Engine = LOCAL) -> BoundsSummary:
    """The range of the bounds, block by block."""
    blocks = map_blocks(engine, _BlockSummary(bounds), len(bounds))
    smallest, largest, some, every = zip(*blocks, strict=True)
    return BoundsSummary(min(smallest), max(largest), any(some), all(every))


@outlined
@dataclass(frozen=True)
class _BlockSummary:
    bounds: Column

    def __call__(self, piece: slice) -> BoundsSummary:
        bounds = self.bounds[piece]
        finite = bounds[np.isfinite(bounds)]
        if not len(finite):
            return BoundsSummary(np.inf, 0.0, any_finite=False, all_finite=False)
        return BoundsSummary(float(finite.min()), float(finite.max()), True, len(finite) == len(bounds))
