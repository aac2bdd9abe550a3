"""The frontier of risk and utility: error against ε for a grid of mechanisms and numbers of data sets (paper §3.3).

For every cell the RMSE √(bias² + T) against the direct estimate, over the direct estimate's own standard error. Each
model is fitted once for each Δ = ε/(2m), and the fit serves every (ε, m) that shares it. Choosing by it is a use of the
confidential data that no budget accounts for: a stand-in from public constants (`[standin]` in the spec) has the same
public columns and no confidential number, and can be looked at freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from svysynth.additive import additive_tables
from svysynth.calibration import Calibration, calibrate_records, fit_unweighted
from svysynth.combine import make_synthetic
from svysynth.errors import SurveyError
from svysynth.laplace import laplace_tables
from svysynth.models.base import Model, make_records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.spec import Mechanism, Spec, StandInSpec
from svysynth.streams import Streams
from svysynth.survey import Survey
from svysynth.synthesis import synthesize_surveys
from svysynth.tables import tabulate_all
from svysynth.utility import rmse

REPEATS = 5
"""How often each point of the grid is tried, with draws or noise of its own."""
UNACCOUNTED = (
    "INTERNAL USE ONLY. Choosing a mechanism, ε or the number of data sets by these figures uses the confidential data "
    "in a way that no budget accounts for. With --standin they come from public constants alone."
)
STANDIN = "From a stand-in made of public constants: no confidential number is behind these figures."

Progress = Callable[[str], None]


def make_standin(survey: Survey, constants: StandInSpec, streams: Streams) -> Survey:
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
    mechanisms: Sequence[Mechanism],
    epsilons: Sequence[float],
    datasets: Sequence[int],
    streams: Streams,
    repeats: int = REPEATS,
    progress: Progress = lambda _: None,
) -> pl.DataFrame:
    """One row for each cell, statistic, repeat and point of the grid, with `rmse_ratio`."""
    direct = tabulate_all(survey, spec.requested_tables, spec.estimation)
    found = []
    for mechanism in mechanisms:
        tries = (
            _synthetic(survey, spec, mechanism, epsilons, datasets, streams, repeats, progress)
            if mechanism in ("fbs", "fbp")
            else _noisy(survey, spec, mechanism, epsilons, streams, repeats, progress)
        )
        for epsilon, count, repeat, tables in tries:
            point = {"mechanism": mechanism, "epsilon": epsilon, "datasets": count, "repeat": repeat}
            found.append(_compared(tables, direct).select(*(pl.lit(v).alias(k) for k, v in point.items()), pl.all()))
    return pl.concat(found)


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
    """The tables of one try with their errors; cells without a direct standard error have no ratio."""
    error = rmse(tables["estimate"].to_numpy(), tables["se"].to_numpy(), direct["estimate"].to_numpy())
    se = direct["se"].to_numpy()
    ratio = np.divide(error, se, out=np.full(len(se), np.nan), where=se > 0)
    labels = tables.columns[: tables.columns.index("estimate")]
    return tables.select(*labels, "estimate", "se").with_columns(pl.Series("rmse_ratio", ratio).fill_nan(None))


def _synthetic(
    survey: Survey,
    spec: Spec,
    mechanism: Mechanism,
    epsilons: Sequence[float],
    datasets: Sequence[int],
    streams: Streams,
    repeats: int,
    progress: Progress,
) -> Iterator[tuple[float, int, int, pl.DataFrame]]:
    assert spec.privacy is not None
    model: Model = FBS() if mechanism == "fbs" else FBP(smoothing=spec.model.smoothing)
    draws, scheme = spec.privacy.draws, spec.privacy.scheme
    records = make_records(survey, spec.model.formula)
    progress(f"{mechanism}: fitting without weights")
    start = fit_unweighted(model, records, streams, draws)
    fits: dict[float, Calibration | None] = {}
    for epsilon in epsilons:
        for count in datasets:
            target = epsilon / (2 * count)
            progress(f"{mechanism}: ε = {epsilon:g}, {count} data sets")
            if target not in fits:
                try:
                    fits[target] = calibrate_records(
                        model, records, 2 * target, 1, streams, scheme, draws, start_from=start
                    )
                except SurveyError:  # no weights reach this Δ: the point is left out
                    fits[target] = None
            calibration = fits[target]
            if calibration is None:
                continue
            surveys = synthesize_surveys(calibration.fit, survey, count * repeats, streams)
            for repeat in range(repeats):
                synthetic = make_synthetic(surveys[repeat::repeats], mechanism, spec.model.smoothing)
                yield epsilon, count, repeat, synthetic.tabulate_all(spec.requested_tables, spec.estimation)


def _noisy(
    survey: Survey,
    spec: Spec,
    mechanism: Mechanism,
    epsilons: Sequence[float],
    streams: Streams,
    repeats: int,
    progress: Progress,
) -> Iterator[tuple[float, int, int, pl.DataFrame]]:
    assert spec.privacy is not None
    tables, bounds = spec.requested_tables, spec.privacy.bounds
    for epsilon in epsilons:
        progress(f"{mechanism}: ε = {epsilon:g}")
        for repeat in range(repeats):
            if mechanism == "laplace-paper":
                own = streams.split("laplace", repeat)
                found = laplace_tables(survey, tables, epsilon, own, estimation=spec.estimation).tables
            else:
                if bounds is None:
                    remedy = "declare them, or leave 'laplace' out of --mechanism"
                    raise SurveyError("spec", "privacy.bounds", "are not declared", remedy)
                found = additive_tables(survey, tables, epsilon, bounds, estimation=spec.estimation).tables
            yield epsilon, 0, repeat, found
