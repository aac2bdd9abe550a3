"""Quadratics: the bounds of records for models whose log-likelihood is quadratic within a cell of x.

In each cell ll_s = c₀ + c₁t + c₂v + c₃t² + c₄tv + c₅v² for draw s, where (t, v) is measured from the cell's center.
This takes five multiplications and additions per term, whatever the number of coefficients of the model. Records are
arranged in tiles of one cell, and a tile stays in the processor's cache while all draws are evaluated on it. The bound
of a record depends on this record only, not on the other records or their order.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.grouping import CHUNK, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Model

STRIDE = 8
"""The number of draws that are evaluated on a tile together."""
TILES = {8: 5.0, 32: 2.0, 256: 1.0}
"""The sizes of tiles, with the relative cost of a place in each. With more places in a tile, or more draws in a stride,
XLA would split each step among threads, which takes longer than the step."""
DEVICE_TILE = 256
"""The size of tiles on devices other than the CPU."""


@outlined
class Quadratics(NamedTuple):
    """The log-likelihood of every draw in every cell, as a quadratic form around the cell's center."""

    center: Array
    """Cell × (t, v)."""
    forms: Array
    """Cell × stride × draw × (1, t, v, t², tv, v²)."""
    largest: Array
    """The largest |coefficient| of each cell; infinite if any of them is not finite."""


def make_quadratics(model: Model, draws: Parameters, x: Floats) -> Quadratics:
    """The quadratics of a model with the trait `quadratic`; x has a row for each cell."""
    found: Quadratics = _expand(model, draws, x[_filled(len(x))])
    return found


def _power_of_two(number: int) -> int:
    """The next power of two. Sizes are rounded up to it so that few programs are compiled."""
    return 1 << max(number - 1, 0).bit_length()


def _filled(number: int) -> Integers:
    """The positions 0 … number − 1, the last repeated up to a power of two."""
    return np.minimum(np.arange(_power_of_two(number)), number - 1)


@partial(jax.jit, static_argnames="model")
def _expand(model: Model, draws: Parameters, x: Array) -> Quadratics:
    """Value, gradient and Hessian at the center, where the density of the average draw is largest: no digits cancel."""

    def derivatives(y: Array, row: Array) -> tuple[Array, Array, Array]:
        def of_draw(parameters: Parameters) -> tuple[Array, Array, Array]:
            def term(y: Array) -> Array:
                return model.log_likelihood(parameters, y[0], y[1], row)

            return term(y), jax.grad(term)(y), jax.hessian(term)(y)

        return jax.vmap(of_draw)(draws)

    def cell(row: Array) -> tuple[Array, Array]:
        _, slope, curvature = jax.tree.map(lambda part: part.mean(axis=0), derivatives(jnp.zeros(2), row))
        center = -jnp.linalg.solve(curvature, slope)
        center = jnp.where(jnp.isfinite(center), center, 0.0)
        value, slope, curvature = derivatives(center, row)
        squares = [0.5 * curvature[:, 0, 0], curvature[:, 0, 1], 0.5 * curvature[:, 1, 1]]
        return center, jnp.stack([value, slope[:, 0], slope[:, 1], *squares], axis=1)

    center, forms = jax.lax.map(cell, x, batch_size=16)
    # a maximum alone may ignore NaN
    sizes = jnp.where(jnp.isfinite(forms), jnp.abs(forms), jnp.inf)
    count = forms.shape[1]
    filled = forms[:, np.minimum(np.arange(-(-count // STRIDE) * STRIDE), count - 1)]
    return Quadratics(center, filled.reshape(len(x), -1, STRIDE, 6), sizes.max(axis=(1, 2)))


def quadratic_bounds(quadratics: Quadratics, t: Floats, v: Floats, cell: Integers) -> Floats:
    """max over the draws of |ll|, for each record; infinite if it is not finite."""
    if jax.default_backend() != "cpu":
        rows = slice(None) if len(t) == _power_of_two(len(t)) else _filled(len(t))
        return np.asarray(device_bounds(quadratics, t[rows], v[rows], cell[rows]))[: len(t)]
    counts = np.bincount(cell)
    size = min(TILES, key=lambda size: TILES[size] * size * int(np.sum(-(-counts // size))))
    tiles = -(-counts // size)
    # numpy sorts small integers in linear time
    order = np.argsort(cell.astype(np.uint16) if len(counts) <= 2**16 else cell, kind="stable")
    first = np.cumsum(tiles) - tiles
    place = np.arange(len(cell)) + np.repeat(first * size - (np.cumsum(counts) - counts), counts)
    total = int(tiles.sum())
    room = max(_power_of_two(total), 2 * CHUNK // size)
    laid = np.zeros((2, room * size))
    laid[0, place], laid[1, place] = t[order], v[order]
    cells = np.zeros(room, dtype=np.int32)
    cells[:total] = np.repeat(np.arange(len(tiles)), tiles)
    found = np.asarray(_tile_bounds(quadratics, cells, total, laid.reshape(2, room, size)))
    bounds = np.empty(len(cell))
    bounds[order] = found.reshape(-1)[place]
    return bounds


@jax.jit
def _tile_bounds(quadratics: Quadratics, cells: Array, count: int, laid: Array) -> Array:
    """The bounds in the first `count` tiles, one tile after another."""

    def tile(number: Array, bounds: Array) -> Array:
        cell = cells[number]
        t, v = laid[:, number] - quadratics.center[cell][:, None]

        def stride(start: Array, largest: Array) -> Array:
            for form in quadratics.forms[cell, start]:
                largest = _larger(_term(form, t, v), largest)
            return largest

        largest = jax.lax.fori_loop(0, quadratics.forms.shape[1], stride, jnp.zeros_like(t))
        return bounds.at[number].set(_finite(largest, quadratics.largest[cell], t, v))

    found: Array = jax.lax.fori_loop(0, count, tile, jnp.zeros(laid.shape[1:]))
    return found


@jax.jit
def device_bounds(quadratics: Quadratics, t: Array, v: Array, cell: Array) -> Array:
    """The bounds on a device with many processors: all tiles are arranged and evaluated there at once."""
    cell, order = jax.lax.sort((cell, jnp.arange(len(t))), num_keys=1)
    cells = len(quadratics.center)
    last = jnp.searchsorted(cell, jnp.arange(cells), side="right")
    first = jnp.concatenate([jnp.zeros(1, last.dtype), last[:-1]])
    ends = jnp.cumsum(-(-(last - first) // DEVICE_TILE))
    tile_cell = jnp.searchsorted(ends, jnp.arange(len(t) // DEVICE_TILE + cells), side="right").clip(max=cells - 1)
    # the tiles of a cell end where those of the next begin
    place = jnp.arange(len(t)) + ((ends + (first - last) // DEVICE_TILE) * DEVICE_TILE - first)[cell]
    laid = jnp.zeros((2, len(tile_cell) * DEVICE_TILE)).at[:, place].set(jnp.stack([t, v])[:, order])
    t, v = laid.reshape(2, -1, DEVICE_TILE) - quadratics.center[tile_cell].T[:, :, None]
    forms = quadratics.forms[tile_cell].reshape(len(tile_cell), -1, 6, 1)
    terms = _term(jnp.moveaxis(forms, 2, 0), t[:, None], v[:, None])
    found = _finite(terms.max(axis=1), quadratics.largest[tile_cell][:, None], t, v)
    return jnp.zeros(len(order)).at[order].set(found.reshape(-1)[place])


def _term(form: Array, t: Array, v: Array) -> Array:
    """|ll|, written so that each sum has one product: there is only one way to fuse them, and so only one result."""
    along_t: Array = form[4] * v + (form[3] * t + form[1])
    along_v: Array = form[5] * v + form[2]
    return jnp.abs(v * along_v + (t * along_t + form[0]))


def _larger(term: Array, largest: Array) -> Array:
    """The larger of two numbers in one instruction; jnp.maximum takes several, because it checks for NaN."""
    return jnp.where(term > largest, term, largest)


def _finite(bounds: Array, largest: Array, t: Array, v: Array) -> Array:
    """The bounds, set to infinity where a term may have overflowed."""
    return jnp.where(largest * (1 + jnp.abs(t) + jnp.abs(v)) ** 2 < jnp.inf, bounds, jnp.inf)
