"""The methods that the studies compare, on one survey: FBS, FBP with two ways of smoothing, and Laplace noise.

One calibrated fit for each model and Lipschitz bound Δ serves every number of data sets m, with ε = 2·Δ·m: the tables
of m data sets are those of the first m of the most, whose draws are spread evenly over the chains. Both ways of
smoothing share FBP's fit. Where a calibration fails its diagnostics or finds no weights, it is tried again with other
random numbers, and the number of attempts is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from svysynth.calibration import Calibration, Unweighted, calibrate_records, fit_unweighted
from svysynth.combine import combine, make_synthetic
from svysynth.errors import SurveyError
from svysynth.groups import Floats
from svysynth.laplace import laplace_tables
from svysynth.lipschitz import summarize_bounds
from svysynth.models.base import Model, Records, make_records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.spec import EstimationSpec, Smoothing, TableSpec
from svysynth.streams import Streams
from svysynth.survey import Survey
from svysynth.synthesis import synthesize_surveys
from svysynth.tables import tabulate_all

Method = Literal["sample", "laplace", "fbs", "fbp", "fbp-full"]
"""`fbp` smooths as the paper does, `fbp-full` with the full mean."""
NAMES: dict[Method, str] = {
    "sample": "Sample",
    "laplace": "Laplace",
    "fbs": "FBS",
    "fbp": "FBP",
    "fbp-full": "FBP, full smoothing",
}
METHODS_OF: dict[str, dict[Method, Model]] = {
    "fbs": {"fbs": FBS()},
    "fbp": {"fbp": FBP(smoothing="paper"), "fbp-full": FBP(smoothing="full")},
}
MOST_ATTEMPTS = 5
FIT_COLUMNS = ("unweighted_bound", "weighted_bound", "mean_alpha", "refits", "attempts")


class Scenario(NamedTuple):
    """One method at one Δ and m; the sample has neither."""

    method: Method
    lipschitz: float | None = None
    datasets: int | None = None

    @property
    def epsilon(self) -> float | None:
        """2·Δ·m, to the digits that a person would write."""
        if self.lipschitz is None or self.datasets is None:
            return None
        return round(2 * self.lipschitz * self.datasets, 9)


@dataclass(frozen=True)
class Plan:
    """What is compared: which models, at which bounds, with how many data sets."""

    models: tuple[str, ...] = ("fbs", "fbp")
    bounds: tuple[float, ...] = (1.8, 3.4)
    datasets: tuple[int, ...] = (1, 3, 5, 10)
    draws: int = 1000

    @property
    def scenarios(self) -> list[Scenario]:
        """Every method at every Δ and m, in the order of the results."""
        private: list[Method] = [method for model in self.models for method in METHODS_OF[model]]
        return [Scenario("sample")] + [
            Scenario(method, bound, m)
            for method in (*private, "laplace")
            for bound in self.bounds
            for m in self.datasets
        ]

    @property
    def fits(self) -> list[tuple[str, float]]:
        """Every model and Δ, in the order of the results."""
        return [(model, bound) for model in self.models for bound in self.bounds]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A calibration and the most synthetic surveys of each method that draws from it."""

    calibration: Calibration
    attempts: int
    surveys: dict[Method, tuple[Survey, ...]]

    @property
    def figures(self) -> list[float]:
        """The values of FIT_COLUMNS."""
        found = self.calibration
        unweighted = summarize_bounds(found.bounds).largest
        alpha = float(np.mean(found.fit.alpha))
        return [unweighted, found.largest_bound, alpha, float(len(found.trials)), float(self.attempts)]


def fit_all(survey: Survey, plan: Plan, streams: Streams) -> dict[tuple[str, float], Fitted]:
    """Calibrate every model to every Δ and draw the synthetic surveys; all Δ of a model share its unweighted fit."""
    records = make_records(survey)
    starts: dict[tuple[str, int], Unweighted] = {}
    fitted = {}
    for name, bound in plan.fits:
        calibration, attempts = _calibrate(name, records, bound, plan.draws, streams, starts)
        own = streams.split(f"synthesis {name} {bound}")
        surveys = {
            method: synthesize_surveys(replace(calibration.fit, model=variant), survey, max(plan.datasets), own)
            for method, variant in METHODS_OF[name].items()
        }
        fitted[name, bound] = Fitted(calibration, attempts, surveys)
    return fitted


def _calibrate(
    name: str,
    records: Records,
    bound: float,
    draws: int,
    streams: Streams,
    starts: dict[tuple[str, int], Unweighted],
) -> tuple[Calibration, int]:
    """The calibration, and at which attempt it succeeded."""
    model = next(iter(METHODS_OF[name].values()))
    attempt = 0
    while True:
        own = streams.split(f"fit {name}", attempt)
        try:
            if (name, attempt) not in starts:
                starts[name, attempt] = fit_unweighted(model, records, own, draws)
            start = starts[name, attempt]
            return calibrate_records(model, records, 2 * bound, 1, own, draws=draws, start_from=start), attempt + 1
        except SurveyError:
            attempt += 1
            if attempt == MOST_ATTEMPTS:
                raise


def tabulate_methods(
    survey: Survey,
    plan: Plan,
    fitted: dict[tuple[str, float], Fitted],
    streams: Streams,
) -> dict[Scenario, pl.DataFrame]:
    """Counts and means by the public columns, by every method at every Δ and m."""
    table = TableSpec(by=survey.public)
    estimation = EstimationSpec()
    found = {Scenario("sample"): tabulate_all(survey, [table], estimation)}
    for (name, bound), found_fit in fitted.items():
        for method, surveys in found_fit.surveys.items():
            smoothing: Smoothing = "paper" if method == "fbp" else "full"
            singles = [make_synthetic((one,), name, smoothing).tabulate_all([table], estimation) for one in surveys]
            for m in plan.datasets:
                found[Scenario(method, bound, m)] = combine(singles[:m], estimation)
    for number, scenario in enumerate(s for s in plan.scenarios if s.method == "laplace" and s.epsilon):
        noise = streams.split("laplace", number)
        epsilon = scenario.epsilon or 0.0
        found[scenario] = laplace_tables(survey, [table], epsilon, noise, estimation=estimation).tables
    return found


def as_array(table: pl.DataFrame) -> Floats:
    """Estimate, standard error and interval length of every row; not a number where there is none."""
    columns = table.select("estimate", "se", length=pl.col("upper") - pl.col("lower")).cast(pl.Float64)
    return columns.fill_null(float("nan")).to_numpy()
