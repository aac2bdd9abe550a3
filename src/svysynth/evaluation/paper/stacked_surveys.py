"""Stacked surveys: many surveys tabulated as one, which saves the fixed cost of a table for each survey.

The survey's number is one more public column, and strata of different surveys are different strata. A cell of one
survey then has the estimate and the standard error that it would have if the survey were tabulated alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from svysynth.core.grouping import Floats
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.estimation.combining import Synthetic
from svysynth.survey.survey import Survey, SurveyInMemory

NUMBER, STRATUM = "(survey)", "(stratum)"
AS_IN_THE_PAPER = EstimationSpec(standard_errors="paper")


def stack_surveys(surveys: Sequence[Survey]) -> SurveyInMemory:
    """Combine surveys that have the same columns and levels into one survey."""
    first = surveys[0]
    strata = [one.index.stratum if one.design.strata else np.zeros(len(one), np.int64) for one in surveys]
    most = max(int(stratum.max()) for stratum in strata) + 1
    number = np.repeat(np.arange(len(surveys)), [len(one) for one in surveys])
    columns = [first.outcome, first.design.weight, *first.public]
    frame = pl.concat([one.in_memory().frame.select(columns) for one in surveys]).with_columns(
        pl.Series(NUMBER, number).cast(pl.String).cast(pl.Enum([str(i) for i in range(len(surveys))])),
        pl.Series(STRATUM, number * most + np.concatenate(strata)),
    )
    design = replace(first.design, strata=STRATUM, cluster=None, fpc=None)
    return replace(first.in_memory(), frame=frame, design=design, public=(NUMBER, *first.public), codes={})


def tabulate_stack(stack: Survey, rules: Synthetic) -> Floats:
    """Counts and means by the public columns, by a method's rules: survey × row × (estimate, standard error).

    Standard errors are computed as in the paper. The mean of an empty cell is NaN.
    """
    if not rules.strata_in_variance:
        stack = replace(stack, design=replace(stack.design, strata=NUMBER))
    rules = replace(rules, surveys=(stack,), strata_in_variance=True)
    found = rules.tabulate_all([TableSpec(by=stack.public)], AS_IN_THE_PAPER).select("estimate", "se")
    surveys = len(stack.levels(NUMBER))
    numbers = found.fill_null(float("nan")).to_numpy().reshape(2, 1 + surveys, -1, 2)[:, 1:]
    return np.concatenate(numbers, axis=1)
