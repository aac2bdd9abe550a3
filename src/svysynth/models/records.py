"""Records as a model sees them: (t, v, x), and the design matrix that a formula makes of the public columns.

t is the transformed outcome, v the log weight scaled to mean 1, and x a row of the design matrix, which is the same for
all records of a cell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from svysynth.core.column_storage import Column, derive
from svysynth.core.engine import LOCAL, Engine, map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.formula import Formula, parse_formula
from svysynth.core.grouping import Floats, Integers, group_ids, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.transforms import transformed
from svysynth.survey.survey import Survey

WEIGHT_SAYS_MORE = 1e-6
"""Public log weights get a column of x if the other columns leave more than this share of them unexplained."""


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
    """The execution backend."""
    scratch: Path | None = None
    """The folder for columns of their length that are too long for memory."""
    cluster: Integers | None = None
    """The number of each record's cluster, from 0; None without clusters."""

    def __len__(self) -> int:
        return len(self.t)

    @property
    def clustered(self) -> tuple[Integers, int]:
        """The cluster of every record, and the number of clusters; for models with effects of clusters alone."""
        if self.cluster is None:
            remedy = "name the column of the clusters (survey.cluster), or use a model without these effects"
            raise SurveyError("data", "the survey", "has no clusters, and the model has effects of clusters", remedy)
        return self.cluster, int(self.cluster.max()) + 1

    def in_clusters(self) -> tuple[Integers, Integers, Integers]:
        """The combinations of cell and cluster that have records, and the position of every record among them."""
        cluster, clusters = self.clustered
        keys, place = group_ids(np.asarray(self.cell, np.int64) * clusters + cluster, len(self.x) * clusters)
        return keys // clusters, keys % clusters, place

    def rows_in_clusters(self) -> tuple[Floats, Integers]:
        """The rows of x for a model with effects of clusters, and the position of every record among them.

        The last entry of a row is the number of the cluster, after the row of the design matrix.
        """
        cells, clusters, place = self.in_clusters()
        return np.column_stack([self.x[cells], clusters]), place


def make_records(survey: Survey, formula: str | None = None) -> Records:
    """The records of a survey, with the design matrix of a formula (by default the public columns' main effects)."""
    sizes = [len(survey.levels(column)) for column in survey.public]
    cells, weight, cell = survey.model_cells()
    positions = dict(zip(survey.public, np.unravel_index(cells, sizes), strict=True))
    parsed = Formula.main_effects(survey.public) if formula is None else parse_formula(formula, survey.public)
    x, terms = design_matrix(positions, {column: survey.levels(column) for column in survey.public}, parsed)
    t = derive(partial(transformed, transform=survey.transform), survey.outcome_values)
    mean = sum(map_blocks(survey.engine, _BlockSum(survey.weights), len(survey))) / len(survey)
    v = derive(partial(_log_ratio, mean=mean), survey.weights)
    if weight is not None:
        x, terms = _with_weight(x, terms, _log_ratio(weight, mean))
    cluster = None if survey.index.psu is None else np.asarray(survey.index.psu)
    return Records(t, v, cell, x, terms, survey.engine, survey.scratch, cluster)


@outlined
@dataclass(frozen=True)
class _BlockSum:
    column: Column

    def __call__(self, piece: slice) -> float:
        return float(self.column[piece].sum())


def _log_ratio(weight: Floats, mean: float) -> Floats:
    return np.asarray(np.log(weight / mean))


def _with_weight(x: Floats, terms: tuple[str, ...], log_weight: Floats) -> tuple[Floats, tuple[str, ...]]:
    """The design matrix with public weights as a column, unless the other columns determine it."""
    rest = log_weight - x @ np.linalg.lstsq(x, log_weight)[0]
    if np.linalg.norm(rest) <= WEIGHT_SAYS_MORE * max(float(np.linalg.norm(log_weight)), 1.0):
        return x, terms
    return np.column_stack([x, log_weight]), (*terms, "log weight")


def design_matrix(
    positions: Mapping[str, Integers], levels: Mapping[str, tuple[str, ...]], formula: Formula
) -> tuple[Floats, tuple[str, ...]]:
    """The design matrix of a formula and the names of its columns.

    formulaic sees columns and levels by number, as `c0` and `l0`, because a name may be any text.
    """
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
            "spec", "model.formula", "has terms that the cells with records cannot tell apart", "use fewer interactions"
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
