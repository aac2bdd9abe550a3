"""Consistency: noisy inner cells, margins and totals made to add up, by generalised least squares.

Every row of a hierarchy of tables (an inner cell, a margin, the total) is the sum of some finest cells. Each row was
measured with noise of a known variance, so the noisy rows disagree. The finest cells x that minimise

    Σ_rows (value − rows·x)²/variance

give rows that add up, and no linear unbiased estimate has less noise (Gauss and Markov). With bounds, such as counts
that are not negative, the same sum of squares is minimised within the bounds. That step is biased: where the noise is
larger than most cells, it raises them, and their total may be less accurate than the measured one. The input is noisy
already, so none of this costs privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.linalg import lstsq, qr
from scipy.sparse.linalg import lsmr

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined

DENSE_ENTRIES = 8_000_000
"""Rows × cells up to which the system is solved as a dense matrix: 2000 finest cells with 4000 rows."""
MOST_ITERATIONS = 10_000
ITERATIONS_EXHAUSTED = 7
"""The reason to stop that `lsmr` returns if it has not converged."""
PATIENCE = 3
"""How often all wrong cells change sides at once without becoming fewer, before they change sides one by one."""
ROUNDING = 1e-11
SAME = 1e-9
"""Rows without noise count as adding up if they differ from the sums of their cells by less than this fraction of the
largest row."""


@outlined
@dataclass(frozen=True, eq=False)
class Consistent:
    """Finest cells, and rows that are their sums."""

    cells: Floats
    values: Floats
    """`rows @ cells`; without noise, the measured values themselves if they add up already."""
    variance: Floats
    """Noise variance of each row after least squares and before the bounds step; in a hierarchy too large for the
    dense solution the variance of the raw measurement, which is an upper bound of it."""


def hierarchy(levels: Sequence[Integers], count: int | None = None) -> Any:
    """The matrix of rows × finest cells, from the row of each cell at each level (combination of kept columns).

    Row numbers are consecutive over all levels and tables. `count` is the number of rows, by default up to the last one
    that occurs. A row without finest cells is a cell or margin without records.

    >>> hierarchy([np.array([0, 0]), np.array([1, 2])]).toarray().tolist()
    [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    """
    row = np.concatenate(levels)
    cell = np.concatenate([np.arange(len(level)) for level in levels])
    shape = (int(row.max()) + 1 if count is None else count, len(levels[0]))
    rows = sparse.csr_matrix((np.ones(len(row)), (row, cell)), shape=shape)
    if rows.nnz < len(row):
        raise ValueError("two levels use the same row numbers")
    return rows


def consistent(
    rows: Any, value: Floats, variance: Floats, lower: Floats | None = None, upper: Floats | None = None
) -> Consistent:
    """The finest cells that fit the measured rows best, within bounds on each cell if these are given.

    `rows` is a sparse matrix of zeros and ones. Variances are positive, or all zero if no noise was added. If the rows
    do not determine every finest cell, `values` is determined all the same, and `cells` is one solution that gives it.
    """
    rows, value, variance = sparse.csr_matrix(rows), np.asarray(value, float), np.asarray(variance, float)
    if not (np.isfinite(value).all() and np.isfinite(variance).all()):
        raise ValueError("values and variances must be finite")
    if len(variance) and not variance.any():
        return _without_noise(rows, value, lower, upper)
    if (variance <= 0).any():
        raise ValueError("variances must be positive, or all zero")
    low = np.full(rows.shape[1], -np.inf) if lower is None else np.asarray(lower, float)
    high = np.full(rows.shape[1], np.inf) if upper is None else np.asarray(upper, float)
    if not (low <= high).all():
        raise ValueError("a lower bound is above the upper one")
    precision = 1 / np.sqrt(variance)
    system = sparse.csr_matrix(sparse.diags_array(precision) @ rows)
    is_dense = rows.shape[0] * rows.shape[1] <= DENSE_ENTRIES
    system = system.toarray() if is_dense else system
    cells = _within_bounds(system, precision * value, low, high)
    kept = _leverage(system) if is_dense else np.ones(len(value))
    return Consistent(cells, rows @ cells, variance * kept)


def _without_noise(rows: Any, value: Floats, lower: Floats | None, upper: Floats | None) -> Consistent:
    """The values unchanged if they add up within the bounds, else the nearest values that do."""
    nothing = np.zeros(len(value))
    fitted = consistent(rows, value, np.ones(len(value)), lower, upper)
    if np.abs(fitted.values - value).max(initial=0) > SAME * np.abs(value).max(initial=0):
        return Consistent(fitted.cells, fitted.values, nothing)
    cells = fitted.cells.copy()
    inner = np.diff(rows.indptr) == 1
    cells[rows.indices[rows.indptr[:-1][inner]]] = value[inner]
    return Consistent(cells, value.copy(), nothing)


def _within_bounds(system: Any, target: Floats, low: Floats, high: Floats) -> Floats:
    """Least squares within bounds, by block principal pivoting (Portugal, Júdice and Vicente 1994).

    Every cell is either free or at one of its bounds. The free cells are solved for. Cells that leave their bounds are
    put at the bound, and cells at a bound that the gradient pulls inside are freed, until no cell is wrong. Then no
    allowed change lowers the sum of squares. Without bounds this is one step.
    """
    side = np.where(low == high, -1, 0)
    fewest, patience = len(low) + 1, PATIENCE
    for _ in range(MOST_ITERATIONS):
        free = side == 0
        cells = np.where(free, 0.0, np.where(side < 0, low, high))
        cells[free] = _least_squares(system[:, free], target - system @ cells)
        slope = system.T @ (system @ cells - target)
        steep = ROUNDING * (system.T @ (np.abs(target) + system @ np.abs(cells)))
        room = ROUNDING * np.abs(cells).max(initial=0)
        beyond = free * ((cells > high + room).astype(int) - (cells < low - room))
        wrong = (beyond != 0) | ((low < high) & (side * slope > steep))
        count = int(wrong.sum())
        if not count:
            return np.clip(cells, low, high)
        fewest, patience = (count, PATIENCE) if count < fewest else (fewest, patience - 1)
        if patience < 0:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        side = np.where(wrong, beyond, side)
    raise _not_converged()


def _least_squares(system: Any, target: Floats) -> Floats:
    """The least-squares solution with the smallest norm.

    The normal equations are avoided, because they square the ratio of the largest variance to the smallest. A second
    solve for the residuals regains digits that are lost to this ratio.
    """
    if system.shape[1] == 0 or system.shape[0] == 0:
        return np.zeros(system.shape[1])
    solve = _solve_dense if isinstance(system, np.ndarray) else _solve_sparse
    cells = solve(system, target)
    return cells + solve(system, target - system @ cells)


def _solve_dense(system: Floats, target: Floats) -> Floats:
    return np.asarray(lstsq(system, target, cond=_smallest_pivot(system), lapack_driver="gelsy")[0])


def _solve_sparse(system: Any, target: Floats) -> Floats:
    """Solve by iteration, with the columns scaled to length one."""
    length = np.maximum(sparse.linalg.norm(system, axis=0), np.finfo(float).tiny)
    scaled = system @ sparse.diags_array(1 / length)
    found, reason = lsmr(scaled, target, atol=1e-14, btol=1e-14, conlim=0, maxiter=MOST_ITERATIONS)[:2]
    if reason == ITERATIONS_EXHAUSTED:
        raise _not_converged()
    return np.asarray(found / length)


def _leverage(system: Floats) -> Floats:
    """The variance of each row after least squares over that before: the diagonal of the projection matrix."""
    orthogonal, triangle, _ = qr(system, mode="economic", pivoting=True)
    pivot = np.abs(np.diag(triangle))
    rank = int(np.sum(pivot > pivot.max(initial=0) * _smallest_pivot(system)))
    return np.asarray(np.minimum(np.square(orthogonal[:, :rank]).sum(axis=1), 1.0))


def _smallest_pivot(system: Floats) -> float:
    """The fraction of the largest pivot below which a pivot is rounding error, and the cells not all determined."""
    return float(max(system.shape) * np.finfo(float).eps)


def _not_converged() -> ArithmeticError:
    remedy = "bring the variances within a level of the table closer together, or widen the bounds"
    return ArithmeticError(f"least squares did not converge: {remedy}")
