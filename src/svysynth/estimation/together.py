"""Together: tables of a survey that are made from the same passes over its records, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column, derive
from svysynth.core.grouping import Booleans, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.spec.statistics import ANSWERED, Quantile, Ratio, Share, parse_statistic
from svysynth.estimation.asked import Asked, refuse_apart
from svysynth.estimation.calibration import Calibration
from svysynth.estimation.frames import Layout, crossing, finish_table
from svysynth.estimation.moments import Moments
from svysynth.estimation.passes import Measured, Passes
from svysynth.estimation.replicates import Replicates
from svysynth.estimation.rows import Rows, estimates_of_rows, indicating, ratios_of_rows, shares_within
from svysynth.estimation.woodruff import Outcomes, compare, quantiles_of_rows
from svysynth.survey.answers import without_gaps
from svysynth.survey.domains import INSIDE
from svysynth.survey.survey import Survey

Result = TypeVar("Result")


@outlined
@dataclass(frozen=True, eq=False)
class Together:
    """Tables that are made from the same passes over the records."""

    passes: Passes
    levels: Integers
    """The level of each group of records in each of the crossed columns."""
    calibration: Calibration | None
    counted: Moments
    """The groups of records, from the first pass."""
    first: str
    """The answer whose moments these are."""

    @classmethod
    def of(
        cls,
        survey: Survey,
        asked: Sequence[Asked],
        estimation: EstimationSpec,
        replicates: Replicates | None,
        scaled: bool,
    ) -> Together:
        """The first pass."""
        columns = [column for one in asked for column in one.request.by]
        columns += [column for one in asked for column in one.inside]
        columns += survey.calibration.columns if survey.calibration else ()
        crossed = tuple(dict.fromkeys(columns))
        sizes = [len(survey.levels(column)) for column in crossed]
        passes = Passes(survey, crossed, crossing(sizes), estimation, replicates, scaled)
        first = asked[0].request.of
        given = passes.moments(complete(survey, first))
        levels = np.array(np.unravel_index(given.cell, sizes or [1])).T[:, : len(sizes)]
        calibration = None
        if survey.calibration is not None:
            calibration = Calibration.of(survey, survey.calibration, crossed, levels, given)
        return cls(passes, levels, calibration, given, first)

    @cached_property
    def _cache(self) -> dict[tuple[str, Any], Any]:
        return {}

    def _once(self, kind: str, key: Any, make: Callable[[], Result]) -> Result:
        """What was made before, or is made now."""
        if (kind, key) not in self._cache:
            self._cache[kind, key] = make()
        return cast(Result, self._cache[kind, key])

    def given(self, answer: str) -> Moments:
        """The moments of an answer with the weights of the file."""
        values = complete(self.passes.survey, answer)
        return self._once(
            "given", answer, lambda: self.counted if answer == self.first else self.passes.moments(values)
        )

    def measured(self, answer: str) -> Measured:
        """The moments of an answer, and the variances of its statistics."""
        values = complete(self.passes.survey, answer)
        return self._once(
            "measured", answer, lambda: self.passes.calibrated(values, self.given(answer), self.calibration)
        )

    def outcomes(self, answer: str) -> Outcomes:
        """An answer of each record."""
        values = complete(self.passes.survey, answer)
        return self._once(
            "outcomes", answer, lambda: self.passes.outcomes(values, self.given(answer), self.calibration)
        )

    def in_base(self, inside: tuple[str, ...]) -> Booleans | None:
        """Which groups are inside some domains; None if there are none."""
        positions = [self.passes.crossed.index(column) for column in inside]
        return (self.levels[:, positions] == INSIDE).all(axis=1) if inside else None

    def degrees_of_freedom(self, inside: tuple[str, ...]) -> int:
        """The degrees of freedom of the design, or of some domains."""
        variance = self.measured(self.first).variance
        return self._once("df", inside, lambda: variance.degrees_of_freedom(self.in_base(inside)))

    def table(self, asked: Asked, columns: Sequence[str]) -> pl.DataFrame:
        """A table as a tidy frame, with the columns of all tables."""
        survey, request = self.passes.survey, asked.request
        own = asked.table.model_copy(update={"by": request.by, "statistics": request.statistics})
        layout = Layout.of(own, self.passes.crossed, survey, self.calibration is not None)
        in_domain = self.in_base(asked.domains)
        if in_domain is not None and not in_domain.any():
            refuse_apart(asked.table, asked.domains, survey)
        labels = Layout.of(own, columns, survey).label_columns(columns)
        frames = []
        for name in request.statistics:
            inside = asked.domains if name == ANSWERED else asked.inside
            df = self.degrees_of_freedom(inside)
            rows = self._rows(name, asked, layout, df)
            found = rows.value, rows.variance, rows.records, df, self.passes.estimation, rows.interval
            frames.append(finish_table(asked.title, name, labels, *found))
        return pl.concat(frames)

    def _rows(self, name: str, asked: Asked, layout: Layout, df: int) -> Rows:
        """A statistic of every row."""
        request, estimation = asked.request, self.passes.estimation
        measured, in_base = self.measured(request.of), self.in_base(asked.inside)
        domains, rows = list(layout.domains(self.levels)), layout.rows
        match parse_statistic(name):
            case Quantile(share):
                outcomes = self.outcomes(request.of)
                found = quantiles_of_rows(share, measured.moments, domains, rows, in_base, df, outcomes, estimation)
                return Rows(found.value, found.se**2, found.records, (found.lower, found.upper))
            case Share() as share:
                values = compare(share, complete(self.passes.survey, request.of))
                return estimates_of_rows("mean", domains, rows, self.passes.of(self.calibration, values), in_base)
            case Ratio(of, to):
                parts = self.measured(of), self.measured(to), in_base, self.outcomes(of)
                return ratios_of_rows(domains, rows, *parts, complete(self.passes.survey, to))
            case "answered":
                everybody = np.ones(len(self.levels), bool)
                given = indicating(measured, everybody if in_base is None else in_base)
                return estimates_of_rows("mean", domains, rows, given, self.in_base(asked.domains))
            case "proportion" if request.within:
                within = [self.passes.crossed.index(column) for column in request.within]
                return shares_within(*layout.parts(self.levels, within), measured, in_base)
            case statistic:
                return estimates_of_rows(statistic, domains, rows, measured, in_base)


def complete(survey: Survey, answer: str) -> Column:
    """An answer of each record, with zeros for missing ones, which are outside the tables that look at it."""
    values: Column = survey.values(answer)
    may_miss = answer in survey.variables and survey.variables[answer].may_miss
    return derive(without_gaps, values) if may_miss else values
