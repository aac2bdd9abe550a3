"""Centre shifts: what a variance lacks if the records of a sample of clusters were weighted by α (docs/method.md).

The weights α move the centre of the posterior away from where it would be without them, in each sample by another
amount. Surveys simulated from the released draws show such shifts: for each public cell, one of the transformed outcome
and one of the log weight. A figure of a table is computed again with the records of a synthetic file moved by each
shift. The mean square of the changes is added to the variance of the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.transforms import restored, transformed
from svysynth.estimation.tables import tabulate_all
from svysynth.survey.survey import Survey, SurveyInMemory

NUMBER, LOG_WEIGHT = "id", "weight"
"""The names of the columns that a table of shifts has besides the public columns and the outcome."""
REMEDY = "use the file of the same release as the synthetic files"


@outlined
@dataclass(frozen=True, eq=False)
class CentreShifts:
    """Shifts of the transformed outcome and the log weight, shift × cell."""

    labels: tuple[tuple[str, ...], ...]
    """The labels of each cell in the public columns."""
    outcome: Floats
    log_weight: Floats

    def __len__(self) -> int:
        return len(self.outcome)

    @classmethod
    def of_frame(cls, frame: pl.DataFrame, public: Sequence[str], outcome: str) -> CentreShifts:
        """The shifts in a published table: a row for each shift and cell, in the same order of cells for each shift."""
        if set(frame.columns) != {NUMBER, *public, outcome, LOG_WEIGHT}:
            raise SurveyError("data", "the centre shifts", "have other columns than the synthetic files", REMEDY)
        number = frame[NUMBER].n_unique()
        cells = frame.height // max(number, 1)
        labels = tuple(frame.select(pl.col(public).cast(pl.String)).head(cells).iter_rows())
        found = [frame[name].cast(pl.Float64).to_numpy() for name in (outcome, LOG_WEIGHT)]
        if len(labels) * number != frame.height or not all(np.isfinite(column).all() for column in found):
            raise SurveyError("data", "the centre shifts", "are not complete", REMEDY)
        return cls(labels, *(column.reshape(number, cells) for column in found))

    def frame(self, public: Sequence[str], outcome: str) -> pl.DataFrame:
        """The shifts as a table, in the form that `of_frame` reads."""
        number, cells = self.outcome.shape
        labels = zip(*self.labels, strict=True) if self.labels else ((),) * len(public)
        named = zip(public, labels, strict=True)
        return pl.DataFrame(
            {
                NUMBER: np.repeat(np.arange(1, number + 1), cells),
                **{name: pl.Series(list(column) * number, dtype=pl.String) for name, column in named},
                outcome: self.outcome.reshape(-1),
                LOG_WEIGHT: self.log_weight.reshape(-1),
            }
        )

    def added_variance(
        self, survey: Survey, tables: Sequence[TableSpec], estimation: EstimationSpec, estimates: Floats
    ) -> Floats:
        """The mean square of the changes of the estimates if the records are moved by each shift."""
        survey = survey.in_memory()
        cell = self._cells_of(survey)
        once = estimation.model_copy(update={"variance": "taylor"})  # the estimates alone are used
        moved = (tabulate_all(self._moved(survey, cell, number), tables, once) for number in range(len(self)))
        changes = [table["estimate"].to_numpy() - estimates for table in moved]
        return np.asarray(np.mean(np.square(changes), axis=0))

    def _cells_of(self, survey: SurveyInMemory) -> Integers:
        """The position of the cell of every record."""
        present, position = survey.present_cells(survey.public)
        levels = [survey.levels(column) for column in survey.public]
        codes = np.unravel_index(present, [len(labels) for labels in levels])
        place = {labels: number for number, labels in enumerate(self.labels)}
        of_record = zip(*(np.array(labels)[code] for labels, code in zip(levels, codes, strict=True)), strict=True)
        found = np.array([place.get(tuple(map(str, labels)), -1) for labels in of_record])
        if (found < 0).any():
            raise SurveyError("data", "the centre shifts", "lack a cell of the synthetic files", REMEDY)
        return np.asarray(found[position])

    def _moved(self, survey: SurveyInMemory, cell: Integers, number: int) -> Survey:
        """The survey with its records moved by one shift; the sum of the weights stays."""
        t = transformed(survey.outcome_values, survey.transform) + self.outcome[number][cell]
        outcome = pl.Series(survey.outcome, restored(t, survey.transform))
        weights = survey.weights * np.exp(self.log_weight[number][cell])
        moved = replace(survey, frame=survey.frame.with_columns(outcome))
        return moved.with_weights(weights * (survey.weights.sum() / weights.sum()))
