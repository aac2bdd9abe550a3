"""Look-alikes: how often an extreme record of the sample has a synthetic record that looks like it. For internal use.

The records with the largest outcomes and weights of their cell are the easiest to recognise. Some of them have
look-alikes by chance alone. The extreme records of the other synthetic files, which are nobody's, show how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.estimation.combining import SMOOTHED, UNSMOOTHED
from svysynth.survey.survey import Survey

EXTREMES = 3
"""How many records of a cell count as extreme, by outcome and by weight."""
NEAR = 0.01
"""Two values that differ by no more than this fraction look alike."""


@outlined
@dataclass(frozen=True)
class LookAlikes:
    """How often an extreme record has a synthetic record that looks like it."""

    records: int
    """The number of extreme records in the confidential sample."""
    in_any: int
    """The number of them with a look-alike in at least one synthetic file."""
    share: float
    """The share of them with a look-alike in one synthetic file, averaged over the files."""
    expected: float | None
    """This share for the extreme records of the other synthetic files: what chance gives. None with one file."""


@outlined
@dataclass(frozen=True, eq=False)
class _Points:
    """The records of a survey ordered by cell: outcome, and the weights an intruder could compare with."""

    cells: Integers
    start: Integers
    outcome: Floats
    weights: tuple[Floats, ...]

    @classmethod
    def of(cls, survey: Survey, weights: Sequence[Floats]) -> _Points:
        cell = survey.cell_index(survey.public)
        order = np.argsort(cell, kind="stable")
        cells, start = np.unique(cell[order], return_index=True)
        return cls(cells, np.append(start, len(cell)), survey.outcome_values[order], tuple(w[order] for w in weights))

    def extremes(self) -> list[tuple[int, float, float]]:
        """Cell, outcome and weight of the records with the largest outcomes or weights of their cell."""
        found = []
        for number, cell in enumerate(self.cells):
            here = slice(self.start[number], self.start[number + 1])
            y, w = self.outcome[here], self.weights[-1][here]
            largest = np.union1d(np.argsort(y)[-EXTREMES:], np.argsort(w)[-EXTREMES:])
            found += [(int(cell), float(y[place]), float(w[place])) for place in largest]
        return found

    def resemble(self, extremes: Sequence[tuple[int, float, float]]) -> Booleans:
        """Whether each extreme record has a look-alike here, in its cell."""
        position = {int(cell): number for number, cell in enumerate(self.cells)}
        found = np.zeros(len(extremes), bool)
        for place, (cell, y, w) in enumerate(extremes):
            if (number := position.get(cell)) is not None:
                here = slice(self.start[number], self.start[number + 1])
                near = [np.abs(weight[here] - w) <= NEAR * w for weight in self.weights]
                found[place] = np.any((np.abs(self.outcome[here] - y) <= NEAR * abs(y)) & np.logical_or.reduce(near))
        return found


def look_alikes(survey: Survey, surveys: Sequence[Survey]) -> LookAlikes | None:
    """Compare the extreme records of the sample, and of each synthetic file, with the synthetic files."""
    if not surveys:
        return None
    scaled = survey.weights * (surveys[0].weights.sum() / survey.weights.sum())
    names = [name for name in (SMOOTHED, UNSMOOTHED) if name in surveys[0].schema]
    files = [_Points.of(one, [one.values(name) for name in names]) for one in surveys]
    extremes = _Points.of(survey, (scaled,)).extremes()
    real = np.array([file.resemble(extremes) for file in files])
    others = [other.resemble(file.extremes()).mean() for file in files for other in files if other is not file]
    expected = float(np.mean(others)) if others else None
    return LookAlikes(len(extremes), int(real.any(axis=0).sum()), float(real.mean()), expected)
