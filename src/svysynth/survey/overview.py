"""Overview: what `svysynth check` says of a survey and its design. For internal use: it is computed from the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.outline import outlined
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
    correlation: float | None
    """Pearson correlation of the (transformed) outcome and the log weight; None when either does not vary."""

    @property
    def weight_excess(self) -> float | None:
        """How far the sum of weights is above the declared total, as a fraction of it."""
        return None if self.population_total is None else self.sum_of_weights / self.population_total - 1


def overview(survey: Survey) -> Overview:
    """Count and compare what a reader of the design wants to see before anything is spent."""
    index = survey.index
    cells = 1
    for column in survey.public:
        cells *= len(survey.levels(column))
    if cells >= 2**62:
        raise SurveyError("spec", "survey.public", "crosses too many levels", "name fewer public columns")
    _, sizes = np.unique(survey.cell_index(survey.public), return_counts=True)
    return Overview(
        records=len(survey),
        strata=index.strata,
        clusters=None if index.psu is None else len(index.psu_stratum),
        degrees_of_freedom=index.degrees_of_freedom,
        cells=cells,
        empty_cells=cells - len(sizes),
        smallest_cell=int(sizes.min()),
        sum_of_weights=float(survey.weights.sum()),
        population_total=survey.population_total,
        weight_public=survey.weight_public,
        correlation=_correlation(survey),
    )


def _correlation(survey: Survey) -> float | None:
    outcome = survey.outcome_values
    outcome = np.log(outcome) if survey.transform == "log" else outcome
    weight = np.log(survey.weights)
    if np.ptp(outcome) == 0 or np.ptp(weight) == 0:
        return None
    return float(np.corrcoef(outcome, weight)[0, 1])
