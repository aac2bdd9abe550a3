"""What a model is: one log-likelihood term per record, and what follows from it (docs/method.md).

A model sees records (t, v, x): the transformed outcome, the log weight scaled to mean 1, and a row of the design
matrix. Weighting, bounds, calibration and every guarantee work with any `Model`. FBS and FBP fit from weighted
statistics of the records, so a density evaluation costs the same for a thousand records as for a hundred million.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from svysynth.core.column_storage import Column, derive
from svysynth.core.engine import LOCAL, Engine, map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.formula import Formula, parse_formula
from svysynth.core.grouping import Floats, Integers, group_sums
from svysynth.core.outline import outlined
from svysynth.models.whitening import Whitening
from svysynth.survey.survey import Survey

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]

Array = jax.Array
Parameters = dict[str, Array]
LARGEST_CONDITION = 1e13
"""Of X'AX: beyond it a coefficient has no data."""
WEIGHT_SAYS_MORE = 1e-6
"""What is left of the log weights beside the other columns, as a part of them, from which on they get a column."""


@outlined
@dataclass(frozen=True, eq=False)
class Records:
    """The records as a model sees them; x is constant within a cell of the public columns."""

    t: Column
    """The transformed outcome."""
    v: Column
    """The log weight, scaled to mean 1."""
    cell: Column
    """The cell of each record."""
    x: Floats
    """Cell × coefficient: the design matrix, a row for each cell that has records."""
    terms: tuple[str, ...]
    """The names of the coefficients."""
    engine: Engine = LOCAL
    """Who goes through the records."""
    scratch: Path | None = None
    """Where columns of their length are kept that are too long for memory."""

    def __len__(self) -> int:
        return len(self.t)


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


class Density(Protocol):
    """What the sampler needs. Immutable and hashable: it is compiled once per density and shape."""

    def whitening(self, statistics: Any) -> Whitening:
        """Where the posterior is and how wide, roughly."""

    def log_density(self, z: Array, statistics: Any) -> Array:
        """Log posterior of the unconstrained parameters, up to a constant."""

    def complete(self, key: Array, z: Array, statistics: Any) -> Parameters:
        """All parameters of one draw: constrained, and with those drawn that the density integrates out."""


class Model(Density, Protocol):
    """A model of (t, v) given x."""

    @property
    def name(self) -> str:
        """Its name in the spec and in what is published."""

    def statistics(self, records: Records, alpha: Column) -> Any:
        """What the density needs of the weighted records, as arrays whose shapes do not depend on their number."""

    def log_likelihood(self, parameters: Parameters, t: Array, v: Array, x: Array) -> Array:
        """One term per record."""

    def synthesize(self, key: Array, parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
        """Outcome t*, log weight v* and smoothed log weight for each row of x, from one draw."""


def make_records(survey: Survey, formula: str | None = None) -> Records:
    """The records of a survey, with the design matrix of a formula (by default the public columns' main effects)."""
    sizes = [len(survey.levels(column)) for column in survey.public]
    cells, weight, cell = survey.model_cells()
    positions = dict(zip(survey.public, np.unravel_index(cells, sizes), strict=True))
    parsed = Formula.main_effects(survey.public) if formula is None else parse_formula(formula, survey.public)
    x, terms = design_matrix(positions, {column: survey.levels(column) for column in survey.public}, parsed)
    t = derive(np.log, survey.outcome_values) if survey.transform == "log" else survey.outcome_values
    mean = sum(map_blocks(survey.engine, _BlockSum(survey.weights), len(survey))) / len(survey)
    v = derive(partial(_log_ratio, mean=mean), survey.weights)
    if weight is not None:
        x, terms = _with_weight(x, terms, _log_ratio(weight, mean))
    return Records(t, v, cell, x, terms, survey.engine, survey.scratch)


@outlined
@dataclass(frozen=True)
class _BlockSum:
    column: Column

    def __call__(self, piece: slice) -> float:
        return float(self.column[piece].sum())


def _log_ratio(weight: Floats, mean: float) -> Floats:
    return np.asarray(np.log(weight / mean))


def _with_weight(x: Floats, terms: tuple[str, ...], log_weight: Floats) -> tuple[Floats, tuple[str, ...]]:
    """The design matrix with public weights as a column, unless the other columns say all that it does."""
    rest = log_weight - x @ np.linalg.lstsq(x, log_weight)[0]
    if np.linalg.norm(rest) <= WEIGHT_SAYS_MORE * max(float(np.linalg.norm(log_weight)), 1.0):
        return x, terms
    return np.column_stack([x, log_weight]), (*terms, "log weight")


def design_matrix(
    positions: Mapping[str, Integers], levels: Mapping[str, tuple[str, ...]], formula: Formula
) -> tuple[Floats, tuple[str, ...]]:
    """formulaic sees columns and their levels by number, as `c0` and `l0`: a name may be anything."""
    import formulaic
    import pandas as pd

    plain = {name: f"c{number}" for number, name in enumerate(positions)}
    # formulaic works on pandas; polars' own conversion would need pyarrow, which is not a dependency
    frame = pd.DataFrame({plain[name]: _numbered(position) for name, position in positions.items()})
    terms = [":".join(plain[name] for name in term) for term in formula.terms]
    text = " + ".join(["1" if formula.intercept else "0", *terms])
    matrix = formulaic.model_matrix(text, frame, na_action="raise")
    x = np.asarray(matrix, dtype=np.float64)
    if np.linalg.matrix_rank(x) < x.shape[1]:
        raise SurveyError(
            "spec", "model.formula", "has terms that the filled cells cannot tell apart", "use fewer interactions"
        )
    return x, tuple(_restored(str(term), levels) for term in matrix.columns)


def _numbered(position: Integers) -> Any:
    import pandas as pd

    present, code = np.unique(position, return_inverse=True)
    return pd.Categorical.from_codes(code, [f"l{level}" for level in present])


def _restored(term: str, levels: Mapping[str, tuple[str, ...]]) -> str:
    names = list(levels)

    def restore(match: re.Match[str]) -> str:
        name = names[int(match[1])]
        return f"{name}[{match[2]}{levels[name][int(match[3])]}]"

    return re.sub(r"c(\d+)\[((?:T\.)?)l(\d+)\]", restore, term)


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
    """Of all blocks, in their order: each block's means are weighed about the common ones."""
    if len(blocks) == 1:
        return blocks[0]
    totals, means, scatters = (np.stack(column) for column in zip(*blocks, strict=True))
    total = totals.sum(axis=0)
    mean = (totals[:, np.newaxis] * means).sum(axis=0) / np.where(total > 0, total, 1.0)
    off = means - mean
    between = np.einsum("bc,bic,bjc->bij", totals, off, off)
    return CellSums(total, mean, (scatters + between).sum(axis=0))


def within_groups(engine: Engine, column: Column, group: Column, groups: int) -> tuple[Floats, Floats]:
    """How many records each group has, and the standard deviation of a column in it, in one pass."""
    counts, means, squares = (
        np.stack(part)
        for part in zip(*map_blocks(engine, _GroupMoments(column, group, groups), len(column)), strict=True)
    )
    count = counts.sum(axis=0)
    safe = np.where(count > 0, count, 1.0)
    mean = (counts * means).sum(axis=0) / safe
    scatter = squares.sum(axis=0) + (counts * (means - mean) ** 2).sum(axis=0)
    return count, np.sqrt(scatter / safe)


@outlined
@dataclass(frozen=True)
class _GroupMoments:
    """Count, mean and sum of squares about the mean, of each group of a block."""

    column: Column
    group: Column
    groups: int

    def __call__(self, piece: slice) -> tuple[Floats, Floats, Floats]:
        values, group = self.column[piece], self.group[piece]
        count = np.bincount(group, minlength=self.groups).astype(float)
        mean = group_sums(group, self.groups, values) / np.where(count > 0, count, 1.0)
        return count, mean, group_sums(group, self.groups, (values - mean[group]) ** 2)


def linear_statistics(records: Records, alpha: Column) -> LinearStatistics:
    """One pass over the records: weighted sums by cell, centred so that no digits cancel."""
    return LinearStatistics(*(jnp.asarray(value) for value in plain_statistics(records, alpha)))


def plain_statistics(records: Records, alpha: Column) -> LinearStatistics:
    """The same without JAX, for what is asked before there is a fit."""
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
    """The same of many surveys at once, on JAX's device, and of which of them they can be used.

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
    """From the sums of the cells, with numpy or JAX."""
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
    """The error of records that are weighted down too far."""
    return SurveyError(
        "data", "the weighted records", "leave a coefficient of the model without data", "use a larger epsilon"
    )
