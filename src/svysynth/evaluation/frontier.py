"""The frontier of risk and utility: error against ε for a grid of mechanisms and numbers of data sets (paper §3.3).

For every cell this is the RMSE √(bias² + T) against the direct estimate, divided by the direct estimate's own standard
error. Each mechanism makes the tables of its points (`Mechanism.tries`). Choosing by these figures is a use of the
confidential data that no budget accounts for. A stand-in from public constants (`[standin]` in the spec) has the same
public columns and no confidential number, and its figures can be looked at freely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from svysynth.core.registry import ListedMechanism, find_mechanism, promises_of
from svysynth.core.spec.whole import Spec, StandInSpec
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate_all
from svysynth.estimation.utility import rmse
from svysynth.mechanisms.base import Grid, load_mechanism, unsupported
from svysynth.mechanisms.findings import refuse, whatever_the_mechanism
from svysynth.survey.survey import Survey, SurveyInMemory

REPEATS = 5
"""How many times each point of the grid is tried, with its own draws or noise."""
UNACCOUNTED = (
    "INTERNAL USE ONLY. Choosing a mechanism, ε or the number of data sets by these figures uses the confidential data "
    "in a way that no budget accounts for. With --standin they come from public constants alone."
)
STANDIN = "From a stand-in made of public constants: no confidential number is behind these figures."

Progress = Callable[[str], None]


def make_standin(survey: SurveyInMemory, constants: StandInSpec, streams: Streams) -> SurveyInMemory:
    """The survey with its outcome and weights drawn afresh from public constants; x and strata are public already."""
    generator = streams.generator("stand-in")
    noise = generator.standard_normal((2, len(survey)))
    t = constants.mean + constants.spread * noise[0]
    mixed = constants.correlation * noise[0] + np.sqrt(1 - constants.correlation**2) * noise[1]
    weight = np.exp(constants.weight_spread * mixed)
    total = survey.population_total or float(len(survey))
    return replace(
        survey,
        frame=survey.frame.with_columns(
            pl.Series(survey.outcome, np.exp(t) if survey.transform == "log" else t),
            pl.Series(survey.design.weight, weight * (total / weight.sum())),
        ),
    )


def frontier(
    survey: Survey,
    spec: Spec,
    mechanisms: Sequence[str],
    epsilons: Sequence[float],
    datasets: Sequence[int],
    streams: Streams,
    repeats: int = REPEATS,
    progress: Progress = lambda _: None,
) -> pl.DataFrame:
    """One row for each cell, statistic, repeat and point of the grid, with `rmse_ratio`."""
    refuse_unsupported(spec, mechanisms)
    direct = tabulate_all(survey, spec.requested_tables, spec.estimation)
    found, grid = [], Grid(epsilons, datasets, repeats)
    for mechanism in mechanisms:
        tries = load_mechanism(_listed(mechanism, spec)).tries(survey, spec, mechanism, grid, streams, progress)
        for epsilon, count, repeat, tables in tries:
            point = {"mechanism": mechanism, "epsilon": epsilon, "datasets": count, "repeat": repeat}
            found.append(_compared(tables, direct).select(*(pl.lit(v).alias(k) for k, v in point.items()), pl.all()))
    return pl.concat(found)


def refuse_unsupported(spec: Spec, mechanisms: Sequence[str]) -> None:
    """Stop if one of the mechanisms cannot take the design or the tables into account."""
    refuse(whatever_the_mechanism(spec.survey.first_stage))
    for name in mechanisms:
        refuse(unsupported(spec, name, _listed(name, spec).promise))


def summarize(found: pl.DataFrame) -> pl.DataFrame:
    """Median and quartiles of the RMSE ratio over cells and repeats, for each point of the grid."""
    ratio = pl.col("rmse_ratio")
    return (
        found.group_by("mechanism", "epsilon", "datasets", "statistic", maintain_order=True)
        .agg(
            ratio.quantile(0.25).alias("lower_quartile"),
            ratio.median().alias("median"),
            ratio.quantile(0.75).alias("upper_quartile"),
        )
        .sort("statistic", "mechanism", "datasets", "epsilon", maintain_order=True)
    )


def _compared(tables: pl.DataFrame, direct: pl.DataFrame) -> pl.DataFrame:
    """The tables of one try with their RMSE ratios; cells without a direct standard error have none."""
    error = rmse(tables["estimate"].to_numpy(), tables["se"].to_numpy(), direct["estimate"].to_numpy())
    se = direct["se"].to_numpy()
    ratio = np.divide(error, se, out=np.full(len(se), np.nan), where=se > 0)
    labels = tables.columns[: tables.columns.index("estimate")]
    return tables.select(*labels, "estimate", "se").with_columns(pl.Series("rmse_ratio", ratio).fill_nan(None))


def _listed(name: str, spec: Spec) -> ListedMechanism:
    """The mechanism of that name with the spec's own guarantee, or with the first one that it has."""
    asked = find_mechanism(name, spec.privacy.guarantee) if spec.privacy else None
    found = asked or find_mechanism(name, promises_of(name)[0])
    assert found is not None
    return found
