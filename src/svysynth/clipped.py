"""The clipped sum: every record's log-likelihood, kept within a public interval and added up.

The records lie in blocks of one cell each, which share a row of x, so that FBS and FBP compute a cell's means once for
a block. Chunks of blocks are gone through one after the other: memory is bounded, and one compiled program serves all
samples of about the same size, on any device.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.groups import Floats, Integers
from svysynth.interval import Interval
from svysynth.models.base import Array, Model, Parameters, Records
from svysynth.models.joint import joint_of
from svysynth.outline import outlined

CHUNK = 4096
"""Records worked on at a time."""
BLOCK_OVERHEAD = 16
"""What a block costs beside its records, in records."""


@outlined
class Blocks(NamedTuple):
    """Records in blocks of one cell each, in chunks of blocks. Places without a record have no weight."""

    t: Array
    """Chunk × block × place, and so are v and weight."""
    v: Array
    weight: Array
    x: Array
    """Chunk × block × coefficient."""
    cell: Array
    """Chunk × block."""


def make_blocks(records: Records, size: int | None = None, chunk: int = CHUNK) -> Blocks:
    """Lay out the records; `size` is that of a block, by default one that suits the cells' sizes, which are public."""
    counts = np.bincount(records.cell, minlength=len(records.x))
    size = size or _block_size(counts)
    per_cell = -(-counts // size)
    filled = int(per_cell.sum())
    room = _with_room(filled)
    chunks = -(-room * size // chunk)
    shape = chunks, -(-room // chunks)
    order = np.argsort(records.cell, kind="stable")
    rank = np.arange(len(records)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = (np.cumsum(per_cell) - per_cell)[records.cell[order]] * size + rank
    t, v, weight = np.zeros((3, shape[0] * shape[1] * size))
    t[place], v[place], weight[place] = records.t[order], records.v[order], 1.0
    cell = np.zeros(shape[0] * shape[1], np.int64)
    cell[:filled] = np.repeat(np.arange(len(counts)), per_cell)
    t, v, weight = (column.reshape(*shape, size) for column in (t, v, weight))
    x = records.x[cell].reshape(*shape, -1)
    return Blocks(*(jnp.asarray(column) for column in (t, v, weight, x, cell.reshape(shape))))


def _with_room(blocks: int) -> int:
    """The next of eight numbers between powers of two: samples of about the same size share a compiled program."""
    step = 1 << max(blocks.bit_length() - 4, 0)
    return -(-blocks // step) * step


def _block_size(counts: Integers) -> int:
    sizes = 2 ** np.arange(3, 11)
    cost = [(-(-counts // size)).sum() * (size + BLOCK_OVERHEAD) for size in sizes]
    return int(sizes[int(np.argmin(cost))])


def clip_terms(terms: Array, low: Array | float, high: Array | float) -> Array:
    """The records' log-likelihoods within the interval; one that is not finite counts as the lowest."""
    return jnp.where(jnp.isfinite(terms), jnp.clip(terms, low, high), low)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def clipped_sum(model: Model, parameters: Parameters, blocks: Blocks, low: Array, high: Array) -> Array:
    """Σ clip(ll, low, high) over the records."""
    return _forward(model, parameters, blocks, low, high)[0]


def _forward(model: Model, parameters: Parameters, blocks: Blocks, low: Array, high: Array) -> tuple[Array, Parameters]:
    """The sum and its gradient in one pass: nothing of the size of the records is kept for the way back."""

    def add(carry: tuple[Array, Parameters], chunk: Blocks) -> tuple[tuple[Array, Parameters], None]:
        terms, pull_back = jax.vjp(lambda parameters: _terms(model, parameters, chunk), parameters)
        total = jnp.sum(jnp.where(chunk.weight > 0, clip_terms(terms, low, high), 0.0))
        (slope,) = pull_back(jnp.where((terms > low) & (terms < high), chunk.weight, 0.0))
        # where a term overflows its slope may not be a number; it only guides the sampler, and none does as well
        slope = jax.tree.map(lambda value: jnp.where(jnp.isfinite(value), value, 0.0), slope)
        return (carry[0] + total, jax.tree.map(jnp.add, carry[1], slope)), None

    start = jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters)
    return jax.lax.scan(add, start, blocks)[0]


def _backward(model: Model, slope: Parameters, change: Array) -> tuple[Parameters, None, None, None]:
    return jax.tree.map(lambda value: change * value, slope), None, None, None


clipped_sum.defvjp(_forward, _backward)


def _terms(model: Model, parameters: Parameters, chunk: Blocks) -> Array:
    size, columns = chunk.t.shape[-1], chunk.x.shape[-1]
    rows = size if joint_of(model).whole_rows else 1

    def of_block(t: Array, v: Array, x: Array) -> Array:
        return model.log_likelihood(parameters, t, v, jnp.broadcast_to(x, (rows, columns)))

    return jnp.asarray(jax.vmap(of_block)(chunk.t, chunk.v, chunk.x))


def cell_gains(model: Model, draws: Parameters, blocks: Blocks, cells: int, interval: Interval) -> Floats:
    """Σ(clipped term − low) over the records of each cell, for each draw (the first axis of every parameter)."""
    gains = np.asarray(_block_gains(model, draws, blocks, jnp.asarray(interval.low), jnp.asarray(interval.high)))
    cell = np.asarray(blocks.cell).reshape(-1)
    return np.stack([np.bincount(cell, row.reshape(-1), minlength=cells) for row in gains])


@partial(jax.jit, static_argnames="model")
def _block_gains(model: Model, draws: Parameters, blocks: Blocks, low: Array, high: Array) -> Array:
    def of_chunk(parameters: Parameters, chunk: Blocks) -> Array:
        return jnp.sum(chunk.weight * (clip_terms(_terms(model, parameters, chunk), low, high) - low), axis=-1)

    return jnp.asarray(jax.lax.map(lambda parameters: jax.lax.map(partial(of_chunk, parameters), blocks), draws))


def record_terms(model: Model, parameters: Parameters, records: Records) -> Floats:
    """The unclipped log-likelihood of every record, in their order. Confidential."""
    found = np.empty(len(records))
    for start in range(0, len(records), CHUNK):
        # the last chunk is filled up with copies of the last record, so that one program serves all
        position = np.minimum(np.arange(start, start + CHUNK), len(records) - 1)
        part = records.t[position], records.v[position], records.x[records.cell[position]]
        found[start : start + CHUNK] = _chunk_terms(model, parameters, *part)[: len(records) - start]
    return found


@partial(jax.jit, static_argnames="model")
def _chunk_terms(model: Model, parameters: Parameters, t: Array, v: Array, x: Array) -> Array:
    return model.log_likelihood(parameters, t, v, x)
