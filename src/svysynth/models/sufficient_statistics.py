"""Sufficient statistics: all that the weighted records say about a linear-Gaussian model of (t, v) given x.

They are sums over the records, so that a density evaluation costs the same for a thousand records as for a hundred
million, and they merge across the parts of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.engine import map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import group_sums
from svysynth.core.safe_repr import outlined
from svysynth.models.arrays import Array
from svysynth.models.records import Records

LARGEST_CONDITION = 1e13
"""The largest condition number of X'AX: beyond it a coefficient has no data."""


@outlined
class LinearStatistics(NamedTuple):
    """All that the weighted records say about a linear-Gaussian model of (t, v) given x.

    With A = diag(α): Σα, G = X'AX, its inverse and the inverse's eigenvalues and eigenvectors, B = G⁻¹X'AY,
    E = Σα(y − xB)'(y − xB) and Σαx.
    """

    total: Array
    gram: Array
    gram_inverse: Array
    values: Array
    vectors: Array
    coefficients: Array
    scatter: Array
    sum_x: Array


@outlined
class CellSums(NamedTuple):
    """Σα and the weighted means of (t, v) in every cell, and the scatter about them over all cells."""

    total: Any
    mean: Any
    scatter: Any


@outlined
@dataclass(frozen=True)
class _BlockSums:
    """The sums of one block."""

    t: Column
    v: Column
    cell: Column
    cells: int
    alpha: Column

    def __call__(self, piece: slice) -> CellSums:
        cells, cell, alpha = self.cells, self.cell[piece], self.alpha[piece]
        total = group_sums(cell, cells, alpha)
        safe = np.where(total > 0, total, 1.0)
        y = np.stack([self.t[piece], self.v[piece]])
        mean = np.stack([group_sums(cell, cells, alpha * column) / safe for column in y])
        off = y - mean[:, cell]
        scatter = np.array([[np.sum(alpha * off[i] * off[j]) for j in range(2)] for i in range(2)])
        return CellSums(total, mean, scatter)


def _merge(blocks: list[CellSums]) -> CellSums:
    """The sums of all blocks, in their order; the scatter includes that of the blocks' means."""
    if len(blocks) == 1:
        return blocks[0]
    totals, means, scatters = (np.stack(column) for column in zip(*blocks, strict=True))
    total = totals.sum(axis=0)
    mean = (totals[:, np.newaxis] * means).sum(axis=0) / np.where(total > 0, total, 1.0)
    off = means - mean
    between = np.einsum("bc,bic,bjc->bij", totals, off, off)
    return CellSums(total, mean, (scatters + between).sum(axis=0))


def linear_statistics(records: Records, alpha: Column) -> LinearStatistics:
    """One pass over the records: weighted sums by cell, centred so that no digits cancel."""
    return LinearStatistics(*(jnp.asarray(value) for value in plain_statistics(records, alpha)))


def plain_statistics(records: Records, alpha: Column) -> LinearStatistics:
    """The linear statistics without JAX, for what is needed before there is a fit."""
    block = _BlockSums(records.t, records.v, records.cell, len(records.x), alpha)
    sums = _merge(map_blocks(records.engine, block, len(records)))
    try:
        found = _statistics(sums, records.x, np)
    except np.linalg.LinAlgError:
        found = None
    if found is None or not _are_usable(found.values, np):
        raise no_data()
    return found


@jax.jit
def linear_statistics_together(
    t: Array, v: Array, cell: Array, x: Array, alpha: Array
) -> tuple[LinearStatistics, Array]:
    """The linear statistics of many surveys at once, on JAX's device, and whether those of each survey can be used.

    Every array has the survey as its first axis.
    """

    def of_one(t: Array, v: Array, cell: Array, x: Array, alpha: Array) -> tuple[LinearStatistics, Array]:
        def add(values: Array) -> Array:
            return jnp.zeros(len(x)).at[cell].add(values)

        total = add(alpha)
        y = jnp.stack([t, v])
        mean = jax.vmap(add)(alpha * y) / jnp.where(total > 0, total, 1.0)
        off = y - mean[:, cell]
        found = _statistics(CellSums(total, mean, (alpha * off) @ off.T), x, jnp)
        return found, _are_usable(found.values, jnp)

    found: tuple[LinearStatistics, Array] = jax.vmap(of_one)(t, v, cell, x, alpha)
    return found


def _statistics(sums: CellSums, x: Any, xp: Any) -> LinearStatistics:
    """The linear statistics from the sums of the cells, with NumPy or JAX."""
    total, mean, within = sums
    gram = (x * total[:, np.newaxis]).T @ x
    inverse = xp.linalg.inv(gram)
    coefficients = inverse @ (x * total[:, np.newaxis]).T @ mean.T
    residual = mean.T - x @ coefficients
    scatter = within + (residual * total[:, np.newaxis]).T @ residual
    values, vectors = xp.linalg.eigh(inverse)
    return LinearStatistics(total.sum(), gram, inverse, values, vectors, coefficients, scatter, total @ x)


def _are_usable(values: Any, xp: Any) -> Any:
    """Whether X'AX can be inverted, by its inverse's eigenvalues."""
    return xp.isfinite(values).all() & (values[0] > 0) & (values[-1] < LARGEST_CONDITION * values[0])


def no_data() -> SurveyError:
    """The error for records that are weighted down too far."""
    return SurveyError(
        "data", "the weighted records", "leave a coefficient of the model without data", "use a larger epsilon"
    )
