"""Repeated sampling: coverage, interval length, CV and bias over samples from the simulated population (supplement §6).

One replicate draws a sample, runs every method on it and keeps the numbers; `summarize` turns replicates into tidy
frames with Monte Carlo standard errors. A cell without records in a sample has no mean in that replicate, and the
replicate is left out of the cell's figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.grouping import Booleans, Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate
from svysynth.estimation.utility import bias, coefficient_of_variation, covers, rmse, rmse_ratio
from svysynth.evaluation.paper.methods import (
    FIT_COLUMNS,
    Plan,
    Scenario,
    fit_all,
    tabulate_methods,
)
from svysynth.evaluation.paper.selected_sample import raw_points
from svysynth.evaluation.paper.simulation import GENDERS, Population, draw_sample, make_population
from svysynth.survey.columns import ALL
from svysynth.survey.survey import SurveyInMemory, read_survey

SEED = 20_230_717
PLAN = Plan()
KEYS = ("statistic", "field", "gender")
POPULATIONS = 20
"""The number of further populations; their spread is the Monte Carlo error of the population's correlation."""


@dataclass(frozen=True)
class Simulation:
    """The settings of the study; together with a replicate's number they determine its result."""

    plan: Plan = PLAN
    n: int = 1000
    seed: int = SEED
    systematic: bool = False
    """Whether samples are drawn systematically instead of with replacement."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are kept in the study's folder, which identify the study."""
        own = {
            "study": "simulation",
            "version": version("svysynth"),
            "n": self.n,
            "seed": self.seed,
            "systematic": self.systematic,
        }
        return own | self.plan.settings

    @property
    def streams(self) -> Streams:
        """The random streams of the study."""
        return Streams.seeded(self.seed)

    def sample(self, index: int) -> SurveyInMemory:
        """The sample of a replicate."""
        return draw_sample(_population(self.seed), self.streams, index, self.n, self.systematic)

    def streams_of(self, index: int) -> Streams:
        """The random streams of the methods in a replicate."""
        return self.streams.split("replicate", index)

    def truth(self) -> pl.DataFrame:
        """The population's counts and mean salaries: statistic, field, gender, truth."""
        return _census(_population(self.seed))


AS_PUBLISHED = Simulation(replace(PLAN, ceiling=0.85, lognormal=True), systematic=True)
"""The study as the paper's figures suggest that its authors ran it (docs/reproduction.md): systematic samples, bounds
under the lognormal density of π for FBP, and weights α of at most 0.85. This ceiling was chosen so that intervals have
the published lengths."""


@cache
def _population(seed: int) -> Population:
    return make_population(Streams.seeded(seed))


def _census(population: Population) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "field": population.field + 1,
            "gender": pl.Series(GENDERS).gather(population.gender),
            "salary": population.salary,
            "weight": np.ones(len(population.field)),
        }
    )
    labels = {"gender": {label: label for label in GENDERS}}
    census = read_survey(frame, outcome="salary", weight="weight", public=["field", "gender"], labels=labels)
    return tabulate(census, ["field", "gender"]).select(*KEYS, truth="estimate")


def replicate(study: Simulation, index: int) -> Mapping[str, Floats]:
    """One replicate: tables (scenario × row × 3), fits (fit × FIT_COLUMNS), and the sample's correlation.

    The first replicate, which is the selected sample, also keeps the raw points for the figures.
    """
    survey, streams = study.sample(index), study.streams_of(index)
    fitted = fit_all(survey, study.plan, streams)
    tables = tabulate_methods(survey, study.plan, fitted, streams)
    raw = raw_points(survey, fitted) if index == 0 else {}
    return raw | {
        "tables": tables,
        "fits": np.array([fitted[key].figures for key in study.plan.fits]),
        "correlation": np.corrcoef(survey.outcome_values, survey.weights)[0, 1:],
    }


@outlined
@dataclass(frozen=True, eq=False)
class Results:
    """The numbers of all replicates, stacked, with the population's true values."""

    scenarios: tuple[Scenario, ...]
    truth: pl.DataFrame
    estimate: Floats
    """Replicate × scenario × row, like `se` and `length`."""
    se: Floats
    length: Floats

    @classmethod
    def of(cls, study: Simulation, replicates: Sequence[Mapping[str, Floats]]) -> Results:
        """Stack the replicates of a study."""
        tables = np.stack([one["tables"] for one in replicates])
        return cls(tuple(study.plan.scenarios), study.truth(), tables[..., 0], tables[..., 1], tables[..., 2])

    @property
    def has_field(self) -> Booleans:
        """Which rows belong to a field: 24 cells of each statistic."""
        return (self.truth["field"] != ALL).to_numpy()

    def rows(self, statistic: str) -> Booleans:
        """The 24 rows of a statistic that belong to a field."""
        return np.asarray(self.has_field & (self.truth["statistic"] == statistic).to_numpy())

    def position(self, scenario: Scenario) -> int:
        """The position of a scenario in the arrays."""
        return self.scenarios.index(scenario)


def summarize(results: Results) -> pl.DataFrame:
    """Coverage, length, CV, bias and RMSE of every scenario and cell, with Monte Carlo standard errors."""
    truth = results.truth["truth"].to_numpy()
    frames = []
    for position, scenario in enumerate(results.scenarios):
        estimate, se, length = (part[:, position] for part in (results.estimate, results.se, results.length))
        there = np.isfinite(length)
        covered = covers(estimate - length / 2, estimate + length / 2, truth)
        share = np.where(there, covered, np.nan)
        figures = {
            "coverage": share,
            "length": length,
            "cv": coefficient_of_variation(estimate, se),
            "bias": bias(estimate, truth),
        }
        columns: dict[str, Floats] = {"replicates": there.sum(axis=0)}
        for name, values in figures.items():
            columns[name], columns[f"{name}_se"] = _mean_and_error(values)
        columns["relative_bias"] = columns["bias"] / truth
        columns["rmse"] = np.sqrt(_mean_and_error(figures["bias"] ** 2)[0])
        frames.append(results.truth.select(*_labels(scenario), *KEYS, "truth").with_columns(**_series(columns)))
    return pl.concat(frames)


def length_ratios(results: Results) -> pl.DataFrame:
    """The length of FBP's intervals over that of FBS's: the mean over 24 cells of the ratio of mean lengths.

    The standard error comes from the spread over replicates of the linearised ratio.
    """
    rows = []
    for scenario in results.scenarios:
        base = scenario._replace(method="fbs")
        if scenario.method not in ("fbp", "fbp-full") or base not in results.scenarios:
            continue
        for statistic in ("count", "mean"):
            cells = results.rows(statistic)
            own = results.length[:, results.position(scenario)][:, cells]
            other = results.length[:, results.position(base)][:, cells]
            ratio = np.nanmean(own, axis=0) / np.nanmean(other, axis=0)
            linear = np.nanmean((own - ratio * other) / np.nanmean(other, axis=0), axis=1)
            error = linear.std(ddof=1) / np.sqrt(len(linear)) if len(linear) > 1 else np.nan
            rows.append((*scenario, scenario.epsilon, statistic, len(linear), ratio.mean(), error))
    names = ["method", "lipschitz", "datasets", "epsilon", "statistic", "replicates", "ratio", "ratio_se"]
    return pl.DataFrame(rows, schema=names, orient="row")


def averages(summary: pl.DataFrame) -> pl.DataFrame:
    """Means over the 24 cells of fields, for every scenario."""
    cells = summary.filter(pl.col("field") != ALL)
    by = ("method", "lipschitz", "datasets", "epsilon", "statistic")
    figures = pl.col("coverage", "length", "cv").mean(), pl.col("relative_bias").abs().mean().alias("absolute_bias")
    return cells.group_by(by, maintain_order=True).agg(*figures)


def rmse_ratios(results: Results, index: int = 0) -> pl.DataFrame:
    """RMSE of every method divided by the confidential sample's, in the 27 cells of one replicate's sample."""
    truth = results.truth["truth"].to_numpy()
    sample = results.position(Scenario("sample"))
    frames = []
    for position, scenario in enumerate(results.scenarios):
        if scenario.method == "sample":
            continue
        own = results.estimate[index, position], results.se[index, position]
        ratio = rmse_ratio(*own, results.estimate[index, sample], results.se[index, sample], truth)
        columns = {"truth": truth, "rmse": rmse(*own, truth), "rmse_ratio": ratio}
        frames.append(results.truth.select(*_labels(scenario), *KEYS).with_columns(**_series(columns)))
    return pl.concat(frames)


def fit_figures(study: Simulation, replicates: Sequence[Mapping[str, Floats]]) -> pl.DataFrame:
    """Δ before and after weighting, mean α, refits and attempts of every fit, and the sample's cor(salary, weight)."""
    rows = [
        (index, model, bound, *one["fits"][position], float(one["correlation"][0]))
        for index, one in enumerate(replicates)
        for position, (model, bound) in enumerate(study.plan.fits)
    ]
    schema = ["replicate", "model", "lipschitz", *FIT_COLUMNS, "correlation"]
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col("refits", "attempts").cast(pl.Int64))


def population_correlations(study: Simulation) -> Floats:
    """cor(salary, survey weight) in the study's population, and then in others drawn in the same way.

    A unit's weight is Σ_h π/(N_h π) times a constant, because n is allocated in proportion to the sizes of the strata.
    """
    populations = [_population(study.seed), *(make_population(study.streams, 1 + i) for i in range(POPULATIONS))]
    found = []
    for one in populations:
        mean = np.bincount(one.field, one.measure) / np.bincount(one.field)
        found.append(np.corrcoef(one.salary, mean[one.field] / one.measure)[0, 1])
    return np.array(found)


def _mean_and_error(values: Floats) -> tuple[Floats, Floats]:
    """Mean and standard error over the replicates (first axis) that have a value."""
    count = np.isfinite(values).sum(axis=0)
    safe = np.where(np.isfinite(values), values, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = safe.sum(axis=0) / count
        spread = np.where(np.isfinite(values), values - mean, 0.0)
        return mean, np.sqrt(np.square(spread).sum(axis=0) / (count - 1) / count)


def _labels(scenario: Scenario) -> list[pl.Expr]:
    return [
        pl.lit(scenario.method).alias("method"),
        pl.lit(scenario.lipschitz, pl.Float64).alias("lipschitz"),
        pl.lit(scenario.datasets, pl.Int64).alias("datasets"),
        pl.lit(scenario.epsilon, pl.Float64).alias("epsilon"),
    ]


def _series(columns: Mapping[str, Any]) -> dict[str, pl.Series]:
    return {name: pl.Series(name, value) for name, value in columns.items()}
