"""The methods that the studies compare, on one survey: FBS, FBP with two ways of smoothing, and Laplace noise.

One calibrated fit for each model and Lipschitz bound Δ serves every number of synthetic data sets m, with ε = 2·Δ·m.
The largest m is synthesised, from posterior draws that are spread evenly over the chains, and a smaller m uses the
first m of these data sets. Both ways of smoothing share FBP's fit. Where a calibration fails its diagnostics or finds
no weights α, it is tried again with other random numbers, and the number of attempts is kept.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import combine_estimates
from svysynth.estimation.tables import tabulate_all
from svysynth.evaluation.paper.stacked_surveys import stack_surveys, tabulate_stack
from svysynth.mechanisms.paper_comparison.tables import laplace_tables
from svysynth.mechanisms.pseudo_posterior.calibration import (
    Calibration,
    Steps,
    Unweighted,
    calibration_steps,
    carry_out,
    unweighted_steps,
)
from svysynth.mechanisms.pseudo_posterior.record_bounds import summarize_bounds
from svysynth.mechanisms.pseudo_posterior.record_weights import inverse_weights
from svysynth.models.base import Model
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.records import Records, make_records
from svysynth.models.synthesis import make_synthetic, synthesize_surveys
from svysynth.survey.survey import Survey

Method = Literal["sample", "laplace", "fbs", "fbp", "fbp-full"]
"""`fbp` smooths the weights by the outcome alone, as the paper does; `fbp-full` by the public columns too."""
NAMES: dict[Method, str] = {
    "sample": "Sample",
    "laplace": "Laplace",
    "fbs": "FBS",
    "fbp": "FBP",
    "fbp-full": "FBP, full smoothing",
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
        """ε = 2·Δ·m, rounded to the digits that a person would write."""
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
    ceiling: float = 1.0
    """The largest weight α of a record."""
    shift: float = 0.0
    """What is added to every weight α before the ceiling applies."""
    lognormal: bool = False
    """Whether FBP's bounds are those of the lognormal density of π."""
    intercept: bool = False
    """Whether x has an intercept. With one, FBS's prior shrinks every field towards the first field."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the plan that are kept in a study's folder."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def records_of(self, survey: Survey) -> Records:
        """The records that the models are fitted to. x has the main effects of the public columns: nine columns for the
        paper's survey."""
        effects = " + ".join(f"`{column}`" for column in survey.public)
        return make_records(survey, effects if self.intercept else f"0 + {effects}")

    @property
    def compared(self) -> dict[Method, Model]:
        """The methods that draw synthetic surveys, each with its model and its way of smoothing."""
        paper = FBP(smoothing="paper", lognormal=self.lognormal)
        return {"fbs": FBS(), "fbp": paper, "fbp-full": replace(paper, smoothing="full")}

    def methods_of(self, name: str) -> dict[Method, Model]:
        """The methods that share a model's fit."""
        return {method: model for method, model in self.compared.items() if model.name == name}

    @property
    def scenarios(self) -> list[Scenario]:
        """Every method at every Δ and m, in the order of the results."""
        private: list[Method] = [method for model in self.models for method in self.methods_of(model)]
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


@outlined
@dataclass(frozen=True, eq=False)
class Fitted:
    """A calibration, the attempt at which it succeeded, and the synthetic surveys of each method for the largest m."""

    calibration: Calibration
    attempts: int
    surveys: dict[Method, tuple[Survey, ...]] = field(default_factory=dict)

    @property
    def figures(self) -> list[float]:
        """The values of FIT_COLUMNS."""
        found = self.calibration
        unweighted = summarize_bounds(found.bounds).largest
        alpha = float(np.mean(found.fit.alpha))
        return [unweighted, found.largest_bound, alpha, float(len(found.trials)), float(self.attempts)]


def fit_all(survey: Survey, plan: Plan, streams: Streams) -> dict[tuple[str, float], Fitted]:
    """Calibrate every model to every Δ and draw the synthetic surveys."""
    fitted = {}
    for (name, bound), found in carry_out(fitting_steps(plan.records_of(survey), plan, streams)).items():
        own = synthesis_streams(streams, name, bound)
        surveys = {
            method: synthesize_surveys(replace(found.calibration.fit, model=variant), survey, max(plan.datasets), own)
            for method, variant in plan.methods_of(name).items()
        }
        fitted[name, bound] = replace(found, surveys=surveys)
    return fitted


def synthesis_streams(streams: Streams, name: str, bound: float) -> Streams:
    """The random streams for synthesis from a fit: the same for all methods that share the fit."""
    return streams.split(f"synthesis {name} {bound}")


def fitting_steps(records: Records, plan: Plan, streams: Streams) -> Steps[dict[tuple[str, float], Fitted]]:
    """The calibrations of every model to every Δ; all Δ of a model share its unweighted fit."""
    starts: dict[tuple[str, int], Unweighted] = {}
    fitted = {}
    for name, bound in plan.fits:
        fitted[name, bound] = yield from _calibration_steps(name, records, bound, plan, streams, starts)
    return fitted


def _calibration_steps(
    name: str,
    records: Records,
    bound: float,
    plan: Plan,
    streams: Streams,
    starts: dict[tuple[str, int], Unweighted],
) -> Steps[Fitted]:
    """A calibration, tried again with other random numbers where it fails."""
    model = next(iter(plan.methods_of(name).values()))
    draws, inverse = plan.draws, partial(inverse_weights, ceiling=plan.ceiling, shift=plan.shift)
    attempt = 0
    while True:
        own = streams.split(f"fit {name}", attempt)
        try:
            if (name, attempt) not in starts:
                starts[name, attempt] = yield from unweighted_steps(model, records, own, draws)
            found = yield from calibration_steps(starts[name, attempt], 2 * bound, 1, own, draws=draws, inverse=inverse)
            return Fitted(found, attempt + 1)
        except SurveyError:
            attempt += 1
            if attempt == MOST_ATTEMPTS:
                raise


def tabulate_methods(
    survey: Survey,
    plan: Plan,
    fitted: dict[tuple[str, float], Fitted],
    streams: Streams,
) -> Floats:
    """Counts and means by the public columns, by every method at every Δ and m: scenario × row × 3.

    The three are the estimate, its standard error and the length of its interval, NaN where there is none.
    """
    found = tabulate_rivals(survey, plan, streams)
    for (_, bound), one in fitted.items():
        for method, surveys in one.surveys.items():
            tables = tabulate_stack(stack_surveys(surveys), make_synthetic((), plan.compared[method]))
            found |= combine_tables(method, bound, tables, plan)
    return np.stack([found[scenario] for scenario in plan.scenarios])


def combine_tables(method: Method, bound: float, tables: Floats, plan: Plan) -> dict[Scenario, Floats]:
    """The combined tables for every m, from the tables of all data sets (data set × … × (estimate, se))."""
    found = {}
    for m in plan.datasets:
        one = combine_estimates(tables[:m, ..., 0], tables[:m, ..., 1] ** 2, EstimationSpec().confidence)
        found[Scenario(method, bound, m)] = np.stack([one.estimate, one.se, one.upper - one.lower], axis=-1)
    return found


def tabulate_rivals(survey: Survey, plan: Plan, streams: Streams) -> dict[Scenario, Floats]:
    """The tables that need no fit: those of the sample itself, and those with Laplace noise."""
    table = TableSpec(by=survey.public)
    estimation = EstimationSpec()
    found = {Scenario("sample"): as_array(tabulate_all(survey, [table], estimation))}
    for number, scenario in enumerate(s for s in plan.scenarios if s.method == "laplace" and s.epsilon):
        noise = streams.split("laplace", number)
        epsilon = scenario.epsilon or 0.0
        found[scenario] = as_array(laplace_tables(survey, [table], epsilon, noise, estimation=estimation).tables)
    return found


def as_array(table: pl.DataFrame) -> Floats:
    """Estimate, standard error and interval length of every row, NaN where there is none."""
    columns = table.select("estimate", "se", length=pl.col("upper") - pl.col("lower")).cast(pl.Float64)
    return columns.fill_null(float("nan")).to_numpy()
