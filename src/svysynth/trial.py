"""Trial: a release under the guarantee `global` on simulated records, to see what a wrong guess of the spreads costs.

Outcome and weights are drawn from proposed constants on a public layout: the survey's own public columns, or so many
records in so many cells. Nothing confidential is behind the figures, nothing is charged, and they may be looked at
freely. The records are the same for every guess; what differs is where the guess places the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from svysynth.censor import censored_records, fit_censored, trusted_censored
from svysynth.combine import make_synthetic
from svysynth.constants import Proposal
from svysynth.correction import correct
from svysynth.errors import SurveyError
from svysynth.frontier import make_standin
from svysynth.interval import Interval
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.sensitivity import interval_of
from svysynth.spec import TableSpec, Transform
from svysynth.streams import Streams
from svysynth.survey import Survey, read_survey
from svysynth.synthesis import synthesize_draws
from svysynth.tables import tabulate_all

FACTORS = (0.4, 1.0, 2.5)
"""√|Σ| over its guess."""
REPEATS = 2
"""Releases of the same simulated records, each with draws of its own."""

Progress = Callable[[str], None]


def make_layout(records: int, cells: int, transform: Transform, population: float | None = None) -> Survey:
    """So many records in so many cells of nearly the same size, whose outcome and weights are yet to be drawn."""
    frame = pl.DataFrame({"cell": np.arange(records) % cells}).with_columns(outcome=1.0, sampling_weight=1.0)
    return read_survey(
        frame,
        outcome="outcome",
        weight="sampling_weight",
        public=["cell"],
        transform=transform,
        population_total=population or float(records),
    )


def try_constants(
    layout: Survey,
    proposal: Proposal,
    epsilon: float,
    datasets: int,
    streams: Streams,
    *,
    tables: Sequence[TableSpec] = (),
    formula: str | None = None,
    mechanism: str = "fbs",
    factors: Sequence[float] = FACTORS,
    repeats: int = REPEATS,
    progress: Progress = lambda _: None,
) -> pl.DataFrame:
    """One row for each factor, repeat, cell and statistic: the simulated sample's estimate, and that of a release.

    Where a release would be refused there is one try, without estimates.
    """
    layout = replace(layout, population_total=layout.population_total or proposal.population or float(len(layout)))
    survey = make_standin(layout, proposal.standin, streams)
    model = FBP() if mechanism == "fbp" else FBS()
    records = censored_records(survey, proposal.bounds, formula)
    tables = tuple(tables) or (TableSpec(by=survey.public[:8]),)
    direct = tabulate_all(survey, tables)
    peak = interval_of(proposal.standin, epsilon, datasets)[1]

    def releases(interval: Interval, guess: float) -> list[pl.Series | None]:
        try:
            found = trusted_censored(fit_censored(model, records, interval, datasets * repeats, streams))
        except SurveyError:
            return [None]
        draws = [{name: value[number] for name, value in found.draws.items()} for number in range(datasets * repeats)]
        draws = [correct(model, draw, interval, records, streams, guess) for draw in draws]
        surveys = synthesize_draws(model, records, draws, survey, streams)
        made = [make_synthetic(surveys[repeat::repeats], mechanism, "full") for repeat in range(repeats)]
        return [synthetic.tabulate_all(tables)["estimate"] for synthetic in made]

    rows = []
    for number, factor in enumerate(factors, start=1):
        progress(f"trial {number} of {len(factors)}: the truth is {factor:g} times the guess")
        guess = peak + math.log(factor)
        interval = Interval.around(epsilon, datasets, guess)
        for repeat, estimates in enumerate(releases(interval, guess)):
            point = {"truth_over_guess": float(factor), "low": interval.low, "high": interval.high, "repeat": repeat}
            rows.append(_compared(direct, estimates, point))
    return pl.concat(rows)


def _compared(direct: pl.DataFrame, estimates: pl.Series | None, point: dict[str, float]) -> pl.DataFrame:
    """The tables of one try beside those of the simulated sample."""
    labels = direct.columns[: direct.columns.index("estimate")]
    return direct.select(
        *(pl.lit(value).alias(name) for name, value in point.items()),
        *labels,
        pl.col("estimate").alias("sample"),
        pl.col("se").alias("sample_se"),
        (pl.lit(None, pl.Float64) if estimates is None else estimates).alias("release"),
    )


def summarize_trial(found: pl.DataFrame) -> pl.DataFrame:
    """For each factor and statistic, root mean squares over cells and repeats.

    `sample_se` and `error` are relative to the sample's estimates, `error_over_se` to their standard errors.
    """
    error = pl.col("release") - pl.col("sample")

    def size(values: pl.Expr) -> pl.Expr:
        return (values**2).mean().sqrt()

    return (
        found.filter(pl.col("sample_se") > 0)
        .group_by("truth_over_guess", "low", "high", "statistic", maintain_order=True)
        .agg(
            sample_se=size(pl.col("sample_se") / pl.col("sample")),
            error=size(error / pl.col("sample")),
            error_over_se=size(error / pl.col("sample_se")),
            refused=pl.col("release").is_null().all(),
        )
    )
