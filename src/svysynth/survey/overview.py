"""Overview: what `svysynth check` says about a survey and its design. For internal use: it comes from the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.engine import map_blocks, sum_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.transforms import Transform, transformed
from svysynth.survey.domains import INSIDE, LEVELS, domain_column
from svysynth.survey.survey import Survey


@outlined
@dataclass(frozen=True)
class Overview:
    """The design of a survey in numbers."""

    records: int
    strata: int
    clusters: int | None
    degrees_of_freedom: int
    cells: int
    empty_cells: int
    smallest_cell: int
    sum_of_weights: float
    population_total: float | None
    weight_public: bool
    inside: int
    """The number of records inside the domain that tables are restricted to; all of them without one."""
    correlation: float | None
    """Pearson correlation of the (transformed) outcome and the log weight; None when either does not vary, or when the
    outcome is not an amount that every record has."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """For each answer that may be missing: the number of records without it."""

    @property
    def weight_excess(self) -> float | None:
        """How far the sum of weights is above the declared total, as a fraction of it."""
        return None if self.population_total is None else self.sum_of_weights / self.population_total - 1


def overview(survey: Survey) -> Overview:
    """Compute the figures that a user wants to see before any budget is spent."""
    index = survey.index
    cells = 1
    for column in survey.public:
        cells *= len(survey.levels(column))
    if cells >= 2**62:
        raise SurveyError("spec", "survey.public", "crosses too many levels", "name fewer public columns")
    present, cell = survey.present_cells(survey.public)
    (sizes,) = sum_blocks(survey.engine, _Sizes(cell, len(present)), len(survey))
    return Overview(
        records=len(survey),
        strata=index.strata,
        clusters=None if index.psu is None else len(index.psu_stratum),
        degrees_of_freedom=index.degrees_of_freedom,
        cells=cells,
        empty_cells=cells - len(sizes),
        smallest_cell=int(sizes.min()),
        sum_of_weights=sum(map_blocks(survey.engine, _Total(survey.weights), len(survey))),
        population_total=survey.population_total,
        weight_public=survey.weight_public,
        inside=_inside(survey),
        correlation=_correlation(survey) if _is_amount_of_all(survey) else None,
        missing={name: _missing(survey, name) for name, variable in survey.variables.items() if variable.may_miss},
    )


def _is_amount_of_all(survey: Survey) -> bool:
    declared = survey.variables.get(survey.outcome)
    return declared is None or (declared.kind == "amount" and not declared.may_miss)


def _missing(survey: Survey, answer: str) -> int:
    return sum(map_blocks(survey.engine, _Missing(survey.values(answer)), len(survey)))


def _inside(survey: Survey) -> int:
    if survey.domain is None:
        return len(survey)
    cell = survey.cell_index([domain_column(survey.domain)])
    (counts,) = sum_blocks(survey.engine, _Sizes(cell, len(LEVELS)), len(survey))
    return int(counts[INSIDE])


def _correlation(survey: Survey) -> float | None:
    """The correlation, by blocks in their order, so that it is the same wherever the columns are stored."""
    columns, transform, size = (survey.outcome_values, survey.weights), survey.transform, len(survey)
    found = map_blocks(survey.engine, _Range(columns, transform), size)
    low, high, total = (np.array(part) for part in zip(*found, strict=True))
    if (low.min(axis=0) == high.max(axis=0)).any():
        return None
    products = map_blocks(survey.engine, _Products(columns, transform, total.sum(axis=0) / size), size)
    outcome, weight, both = np.sum(products, axis=0)
    return float(np.clip(both / np.sqrt(outcome * weight), -1, 1))


def _pair(columns: tuple[Column, Column], transform: Transform, piece: slice) -> Floats:
    """The (transformed) outcome and the log weight of a block."""
    outcome, weight = (column[piece] for column in columns)
    return np.stack([transformed(outcome, transform), np.log(weight)])


@outlined
@dataclass(frozen=True)
class _Range:
    """The minimum, the maximum and the sum of each of the two columns, in a block."""

    columns: tuple[Column, Column]
    transform: Transform

    def __call__(self, piece: slice) -> tuple[Floats, Floats, Floats]:
        pair = _pair(self.columns, self.transform, piece)
        return pair.min(axis=1), pair.max(axis=1), pair.sum(axis=1)


@outlined
@dataclass(frozen=True)
class _Products:
    """Sums of squares and of products about the means, in a block."""

    columns: tuple[Column, Column]
    transform: Transform
    mean: Floats

    def __call__(self, piece: slice) -> tuple[float, float, float]:
        t, v = _pair(self.columns, self.transform, piece) - self.mean[:, None]
        return float(np.sum(t * t)), float(np.sum(v * v)), float(np.sum(t * v))


@outlined
@dataclass(frozen=True)
class _Sizes:
    """How many records each cell has in a block."""

    cell: Column
    cells: int

    def __call__(self, piece: slice) -> tuple[Integers]:
        return (np.bincount(self.cell[piece], minlength=self.cells),)


@outlined
@dataclass(frozen=True)
class _Total:
    column: Column

    def __call__(self, piece: slice) -> float:
        return float(self.column[piece].sum())


@outlined
@dataclass(frozen=True)
class _Missing:
    column: Column

    def __call__(self, piece: slice) -> int:
        return int(np.isnan(self.column[piece]).sum())
