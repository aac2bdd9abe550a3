"""Laplace tables: the paper's competitor (§2.4), Laplace noise on direct tables, for comparison without a guarantee.

Sensitivities are taken from the observed records of a cell,

    count   max w − min w
    total   max wy − min wy
    mean    (max wy − min wy)/(Σw − (max w − min w))

and the largest over the cells of a level (a set of kept columns of one table) is used for all cells of that level.
Noise is added to the point estimate and to each of R replicate estimates (Preston's half-samples). The variance is
(1/R)Σ(q_r − q̂)² of noisy replicates around the noisy point estimate, as printed in the paper; with the noiseless point
estimate it would not be post-processing. Every level of every statistic is used twice, for points and for variances:
ε/uses for a point, ε/(uses·R) for a replicate.

Because the sensitivities come from the confidential data, these tables are not differentially private, whatever ε is.
The numbers of records are public, so rows without records get no noise. The noise comes from NumPy and is not suitable
for release.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Floats, Integers, group_ids, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.statistics import Statistic
from svysynth.core.streams import Streams
from svysynth.estimation.frames import Layout, crossing, domain_columns, finish_table, title_of
from svysynth.estimation.replicates import Replicates, half_samples, preston_factors
from svysynth.estimation.statistics import estimate
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.findings import no_quantiles, refuse
from svysynth.mechanisms.noisy_tables.consistency import hierarchy
from svysynth.survey.domains import INSIDE
from svysynth.survey.survey import Survey

LABEL = "comparison without a guarantee"
MOST_REPLICATES = 10_000


@dataclass(frozen=True)
class LaplaceBudget:
    """How ε is split: equally over points and variances of every level of every statistic of every table."""

    epsilon: float
    uses: int
    replicates: int

    @property
    def point(self) -> float:
        """The ε of each point estimate."""
        return self.epsilon / self.uses

    @property
    def replicate(self) -> float:
        """The ε of each replicate estimate."""
        return self.epsilon / (self.uses * self.replicates)

    @property
    def statement(self) -> str:
        """The split in words."""
        return (
            f"Laplace noise, {LABEL}: the sensitivities come from the confidential data, so no differential privacy "
            f"is promised. ε = {self.epsilon:g} is split over {self.uses:,} uses of each record: {self.point:.6g} per "
            f"point estimate, {self.replicate:.6g} for each of {self.replicates:,} replicate estimates."
        )


@outlined
@dataclass(frozen=True)
class LevelNoise:
    """The sensitivity and the scales of the noise of one level. Confidential: they are functions of the data."""

    table: str
    statistic: Statistic
    level: tuple[str, ...]
    """The kept columns; none for the total."""
    sensitivity: float
    point_scale: float
    replicate_scale: float


@outlined
@dataclass(frozen=True, eq=False)
class LaplaceTables:
    """Noisy tables, for comparison; not to be released."""

    tables: pl.DataFrame
    """The columns of `tabulate_all`."""
    noise: tuple[LevelNoise, ...]
    split: LaplaceBudget

    @property
    def budget(self) -> str:
        """The split of ε in words, with the statement that nothing is promised."""
        return self.split.statement


def split_evenly(tables: Sequence[TableSpec], epsilon: float, replicates: int = 10) -> LaplaceBudget:
    """Split ε evenly: a record is in one cell of each of a table's 2^k levels, once for points and once for variances.

    >>> split_evenly([TableSpec(by=("field", "gender"), statistics=("count", "mean"))], 8.0)
    LaplaceBudget(epsilon=8.0, uses=16, replicates=10)
    """
    return LaplaceBudget(epsilon, 2 * sum(len(table.statistics) * 2 ** len(table.by) for table in tables), replicates)


def laplace_tables(
    survey: Survey,
    tables: Sequence[TableSpec],
    epsilon: float,
    streams: Streams,
    replicates: int = 10,
    estimation: EstimationSpec | None = None,
) -> LaplaceTables:
    """The paper's noisy tables. An infinite ε adds no noise; the variance is always Preston's, whatever the setting."""
    estimation = (estimation or EstimationSpec()).model_copy(update={"variance": "taylor"})
    _check_request(survey, tables, epsilon, replicates, estimation)
    direct = tabulate_all(survey, tables, estimation)
    columns = tuple(dict.fromkeys(column for table in tables for column in table.by))
    known = {*survey.schema, *survey.domains}
    own = [domain_columns(table, survey.domain, known) for table in tables]
    crossed = (*columns, *dict.fromkeys(column for found in own for column in found))
    cells = _Cells.of(survey, crossed, replicates, streams)
    budget = split_evenly(tables, epsilon, replicates)
    frames: list[pl.DataFrame] = []
    noise: list[LevelNoise] = []
    start = 0
    for table, domains in zip(tables, own, strict=True):
        layout = Layout.of(table, columns, survey)
        inside = (cells.codes[:, [crossed.index(column) for column in domains]] == INSIDE).all(axis=1)
        part = cells.only(inside)
        rows = list(layout.domains(part.codes))
        for statistic in table.sums:
            exact = direct[start : start + layout.rows]
            levels = _level_noise(table, statistic, rows, part, budget)
            generator = streams.generator("laplace", len(frames))
            value, variance = _add_noise(statistic, exact, part, rows, levels, generator)
            labels, count = layout.label_columns(columns), exact["n"].to_numpy()
            df, title = min(exact["df"][0], replicates - 1), title_of(table, survey.domain)
            frames.append(finish_table(title, statistic, labels, value, variance, count, df, estimation))
            noise += levels
            start += layout.rows
    return LaplaceTables(pl.concat(frames), tuple(noise), budget)


def _check_request(
    survey: Survey, tables: Sequence[TableSpec], epsilon: float, replicates: int, estimation: EstimationSpec
) -> None:
    if not epsilon > 0:
        raise SurveyError("spec", "privacy.epsilon", "is not positive", "set privacy.epsilon to the ε to compare at")
    if not 2 <= replicates <= MOST_REPLICATES:
        raise SurveyError(
            "spec", "replicates", f"is not between 2 and {MOST_REPLICATES:,}", "use 10, as the paper does"
        )
    refuse(no_quantiles(tables, "the Laplace comparison"))
    for table in tables:
        if "proportion" in table.statistics:
            place = f"table '{table.title}'"
            raise SurveyError("spec", place, "the Laplace comparison has no proportions", "request counts instead")
    if estimation.lonely in ("adjust", "average") and survey.index.lonely.any():
        problem = f"half-samples cannot {estimation.lonely} for a stratum with one unit"
        raise SurveyError("design", "estimation.lonely", problem, "set estimation.lonely = 'certainty'")


@outlined
@dataclass(frozen=True, eq=False)
class _Extent:
    """The smallest and largest w and wy of the records in each group, and the sum of their weights."""

    smallest_w: Floats
    largest_w: Floats
    smallest_wy: Floats
    largest_wy: Floats
    weight: Floats

    def merge(self, group: Integers, groups: int) -> _Extent:
        """The extents of unions of these groups."""
        return _Extent(
            _extreme(np.minimum, group, groups, self.smallest_w),
            _extreme(np.maximum, group, groups, self.largest_w),
            _extreme(np.minimum, group, groups, self.smallest_wy),
            _extreme(np.maximum, group, groups, self.largest_wy),
            group_sums(group, groups, self.weight),
        )

    def sensitivity(self, statistic: Statistic) -> Floats:
        """The sensitivity of each group; zero for a group of one record."""
        outcome = self.largest_wy - self.smallest_wy
        match statistic:
            case "count":
                return self.largest_w - self.smallest_w
            case "total":
                return outcome
            case "mean":
                # In this order rounding cannot make the divisor zero: a sum of weights is never below the largest one.
                return outcome / ((self.weight - self.largest_w) + self.smallest_w)
            case _:
                raise ValueError(f"{statistic} has no sensitivity")


def _extreme(of: np.ufunc, group: Integers, groups: int, value: Floats) -> Floats:
    """The smallest or the largest value of each group; every group has at least one value."""
    result = np.full(groups, math.inf if of is np.minimum else -math.inf)
    of.at(result, group, value)
    return result


@outlined
@dataclass(frozen=True, eq=False)
class _Cells:
    """The finest cells that have records. Every row of every table is a union of them."""

    codes: Integers
    """The code of each column, for each cell."""
    extent: _Extent
    weight: Floats
    """Σw of each cell in each replicate."""
    outcome: Floats
    replicates: Replicates

    @classmethod
    def of(cls, survey: Survey, columns: Sequence[str], replicates: int, streams: Streams) -> _Cells:
        sizes = [len(survey.levels(column)) for column in columns]
        keys, cell = group_ids(survey.cell_index(columns), crossing(sizes))
        index, w = survey.index, survey.weights
        wy = w * survey.outcome_values
        factors = preston_factors(index, half_samples(index, replicates, streams))
        drawn = Replicates(factors, np.full(replicates, 1 / replicates), index)
        psu = np.arange(len(survey)) if index.psu is None else index.psu
        return cls(
            np.array(np.unravel_index(keys, sizes or [1])).T[:, : len(sizes)],
            _Extent(w, w, wy, wy, w).merge(cell, len(keys)),
            drawn.sums(psu, cell, w, len(keys)),
            drawn.sums(psu, cell, wy, len(keys)),
            drawn,
        )

    def only(self, inside: Booleans) -> _Cells:
        """Some of the cells."""
        extent = _Extent(*(values[inside] for values in vars(self.extent).values()))
        return _Cells(self.codes[inside], extent, self.weight[inside], self.outcome[inside], self.replicates)

    def replicated(self, statistic: Statistic, rows: Sequence[Integers], count: int) -> Floats:
        """A statistic of every row in every replicate; NaN for a mean without records."""
        matrix = hierarchy(rows, count)
        return estimate(statistic, matrix @ self.weight, matrix @ self.outcome, np.nan)


def _level_noise(
    table: TableSpec, statistic: Statistic, rows: Sequence[Integers], cells: _Cells, budget: LaplaceBudget
) -> list[LevelNoise]:
    """The largest sensitivity among the rows with records of each level, and the scales that follow from it."""
    result = []
    for kept, row in zip(itertools.product((False, True), repeat=len(table.by)), rows, strict=True):
        filled, group = np.unique(row, return_inverse=True)
        largest = float(cells.extent.merge(group, len(filled)).sensitivity(statistic).max(initial=0.0))
        level = tuple(itertools.compress(table.by, kept))
        scales = largest / budget.point, largest / budget.replicate
        result.append(LevelNoise(table.title, statistic, level, largest, *scales))
    return result


def _add_noise(
    statistic: Statistic,
    exact: pl.DataFrame,
    cells: _Cells,
    rows: Sequence[Integers],
    levels: Sequence[LevelNoise],
    generator: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Noisy point estimates, and the variance of noisy replicates around them; rows without records get no noise."""
    point_scale, replicate_scale = np.zeros((2, len(exact)))
    for row, level in zip(rows, levels, strict=True):
        point_scale[row], replicate_scale[row] = level.point_scale, level.replicate_scale
    value = exact["estimate"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    value = value + point_scale * generator.laplace(size=len(value))
    replicated = cells.replicated(statistic, rows, len(exact))
    replicated += replicate_scale[:, np.newaxis] * generator.laplace(size=replicated.shape)
    return value, cells.replicates.variance(replicated, value)
