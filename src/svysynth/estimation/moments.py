"""Moments per stratum × cell (or PSU × cell), from one pass over the records; they merge across parts of a file.

Every record is in one block (its stratum, or its PSU in a clustered design) and one finest cell. For each group
(block, cell) the pass keeps the number of records, the means of w and of w(y − r), and their centred second moments,
with r the group's own weighted mean of y. From these every count, total, mean and proportion and its linearised
variance follow, for any union of cells, without going back to the records.

The moments are centred, rather than plain sums of w², w²y and w²y², because a variance is then a sum of squares and
loses no digits to cancellation, not even where all weights are equal or the outcome is far from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.engine import LOCAL, Engine, map_blocks
from svysynth.core.grouping import Booleans, Floats, Integers, group_ids, group_sums
from svysynth.core.safe_repr import outlined


@outlined
@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of (w, e) with e = w(y − reference), for each group (block, cell)."""

    block: Integers
    cell: Integers
    count: Integers
    reference: Floats
    mean_w: Floats
    mean_e: Floats
    scatter_ww: Floats
    scatter_we: Floats
    scatter_ee: Floats

    @property
    def weight(self) -> Floats:
        """Σw of each group."""
        return self.count * self.mean_w

    @property
    def weighted_outcome(self) -> Floats:
        """Σwy of each group."""
        return self.count * (self.mean_e + self.reference * self.mean_w)

    def indicating(self, groups: Booleans) -> Moments:
        """The moments of an indicator of some groups in place of the outcome: it is its own mean in every group."""
        nothing = np.zeros(len(groups))
        indicator = groups.astype(np.float64)
        return replace(self, reference=indicator, mean_e=nothing, scatter_we=nothing, scatter_ee=nothing)


def compute_moments(
    block: Column, cell: Column, weight: Column, outcome: Column, cells: int, engine: Engine = LOCAL
) -> Moments:
    """The moments of a set of records, in one pass."""
    columns = (block, cell, weight, outcome)
    return merge_moments(map_blocks(engine, _BlockMoments(columns, cells), len(weight)), cells)


@outlined
@dataclass(frozen=True)
class _BlockMoments:
    columns: tuple[Column, Column, Column, Column]
    cells: int

    def __call__(self, piece: slice) -> Moments:
        block, cell, weight, outcome = (column[piece] for column in self.columns)
        return _moments_of_block(block, cell, weight, outcome, self.cells)


def merge_moments(parts: Sequence[Moments], cells: int) -> Moments:
    """The moments of the union of several sets of records, from the moments of each."""
    if len(parts) == 1:
        return parts[0]
    block, cell, count, reference, mean_w, mean_e, ww, we, ee = (
        np.concatenate([getattr(part, name) for part in parts]) for name in Moments.__dataclass_fields__
    )
    keys, group = group_ids(block.astype(np.int64) * cells + cell, (int(block.max()) + 1) * cells)
    total = partial(group_sums, group, len(keys))
    size = total(count)
    # Each part is measured from its own reference: shift all parts of a group to their common weighted mean of y.
    weight = count * mean_w
    shared = total(count * mean_e + weight * reference) / total(weight)
    shift = reference - shared[group]
    mean_e = mean_e + shift * mean_w
    we, ee = we + shift * ww, ee + shift * (2 * we + shift * ww)
    new_w, new_e = total(weight) / size, total(count * mean_e) / size
    off_w, off_e = mean_w - new_w[group], mean_e - new_e[group]
    return Moments(
        keys // cells,
        keys % cells,
        size.astype(np.int64),
        shared,
        new_w,
        new_e,
        total(ww + count * off_w * off_w),
        total(we + count * off_w * off_e),
        total(ee + count * off_e * off_e),
    )


def _moments_of_block(block: Integers, cell: Integers, weight: Floats, outcome: Floats, cells: int) -> Moments:
    keys, group = group_ids(block.astype(np.int64) * cells + cell, (int(block.max()) + 1) * cells)
    total = partial(group_sums, group, len(keys))
    count = np.bincount(group, minlength=len(keys))
    sum_w = total(weight)
    reference = total(weight * outcome) / sum_w
    residual = weight * (outcome - reference[group])
    mean_w, mean_e = sum_w / count, total(residual) / count
    off_w, off_e = weight - mean_w[group], residual - mean_e[group]
    return Moments(
        keys // cells,
        keys % cells,
        count,
        reference,
        mean_w,
        mean_e,
        total(off_w * off_w),
        total(off_w * off_e),
        total(off_e * off_e),
    )
