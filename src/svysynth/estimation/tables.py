"""Tables: counts, means, quantiles and other statistics for every cell, margin and the total, as one tidy frame.

The same functions serve confidential and synthetic surveys. A table by k columns has a row for each combination of
their levels, with "All" for a margin; the total is "All" throughout. All counts, means, totals and proportions of a
survey's tables of an answer come from one pass. Each threshold of a share takes one more, and each quantile takes
several. Tables by confidential answers, and of those who answered, take passes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from svysynth.core.errors import require_type
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.streams import Streams
from svysynth.estimation.asked import Asked
from svysynth.estimation.replicates import Replicates, make_replicates
from svysynth.estimation.together import Together
from svysynth.survey.survey import Survey


def tabulate(
    survey: Survey,
    by: str | Sequence[str],
    statistics: str | Sequence[str] | None = None,
    estimation: EstimationSpec | None = None,
    replicates: Replicates | None = None,
    domain: str | None = None,
    of: str | None = None,
    within: str | Sequence[str] = (),
) -> pl.DataFrame:
    """One table of a survey, with all its margins, as a tidy frame.

    `domain` restricts it to a part of the population; the survey has to be read with it (`domains`). `of` is the answer
    that it is of, by default the outcome. Proportions are `within` some of its columns, by default of the whole.
    Without `statistics` it has counts and means, or for a category and `within` counts and proportions.

    Columns: table, statistic, the `by` columns, estimate, se, df, lower, upper, cv, n, reliability.
    """
    return tabulate_all(survey, [make_table(by, statistics, domain, of, within)], estimation, replicates)


def make_table(
    by: str | Sequence[str],
    statistics: str | Sequence[str] | None,
    domain: str | None = None,
    of: str | None = None,
    within: str | Sequence[str] = (),
) -> TableSpec:
    """A table as asked for in Python: a single name stands for a list of one."""
    settings: dict[str, Any] = {"by": by, "domain": domain, "of": of}
    settings |= {"within": within} if within else {}
    settings |= {} if statistics is None else {"statistics": statistics}
    return TableSpec(**settings)


def tabulate_all(
    survey: Survey,
    tables: Sequence[TableSpec],
    estimation: EstimationSpec | None = None,
    replicates: Replicates | None = None,
    *,
    scaled: bool = False,
) -> pl.DataFrame:
    """Several tables of a survey from one pass over it; a column that a table does not use is "All" there.

    Variances come from `replicates` where they are given, else by the method of `estimation.variance`, whose
    replicates are then drawn afresh. `scaled` says that the weights were scaled to a known total, as
    those of synthetic surveys are: counts and totals then have the variance of ratios to it.
    """
    require_type(survey, Survey, "the survey", "make it with svysynth.read_survey")
    estimation = estimation or EstimationSpec()
    require_type(estimation, EstimationSpec, "estimation", "make it with svysynth.EstimationSpec")
    asked = [Asked.of(table, survey) for table in tables]
    columns = tuple(dict.fromkeys(column for one in asked for column in one.request.by))
    refuse_lonely(survey, estimation)
    if replicates is None and survey.replicates is None and estimation.variance != "taylor":
        replicates = make_replicates(survey.index, estimation, Streams.from_system())
    together: dict[tuple[str, ...], list[int]] = {}
    for place, one in enumerate(asked):
        together.setdefault(one.confidential(survey), []).append(place)
    found: dict[int, pl.DataFrame] = {}
    for places in together.values():
        made = Together.of(survey, [asked[place] for place in places], estimation, replicates, scaled)
        found |= {place: made.table(asked[place], columns) for place in places}
    return pl.concat([found[place] for place in range(len(asked))])


def refuse_lonely(survey: Survey, estimation: EstimationSpec) -> None:
    """Stop if a stratum has one unit and the spec does not say what to do; replicate weights of the file know."""
    if survey.replicates is None:
        survey.index.refuse_lonely(estimation.lonely)


def refuse_unmet_totals(survey: Survey) -> None:
    """Stop if the weights cannot be calibrated to the totals of the spec."""
    if survey.calibration is not None:
        tabulate_all(survey, [TableSpec(by=(), statistics=("count",))], EstimationSpec(lonely="certainty"))
