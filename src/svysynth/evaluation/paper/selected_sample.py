"""The selected sample: bounds of its records, and plots of its salaries and weights (paper §4.2, supplement).

The selected sample is that of the first replicate of the repeated study; its RMSE ratios come from the tables of that
replicate. This module keeps the raw points for the figures as well, at the smaller Δ. The points come from a simulated
population: no real person's data are shown.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from svysynth.core.grouping import Floats
from svysynth.estimation.combining import UNSMOOTHED
from svysynth.evaluation.paper.methods import Fitted
from svysynth.survey.survey import Survey

WEIGHTINGS = ("unweighted", "weighted")
POINTS = ("salary", "weight")


def raw_points(survey: Survey, fitted: Mapping[tuple[str, float], Fitted]) -> dict[str, Floats]:
    """Bounds of the records under every model, and (salary, weight) points of the sample and of one synthetic survey.

    Keys: `bounds MODEL` (unweighted, weighted), `points sample`, `points METHOD smoothed|synthesised`. If a model
    has several fits, the first one is used.
    """
    found = {"points sample": _points(survey, survey.design.weight)}
    for (model, _), one in fitted.items():
        if f"bounds {model}" in found:
            continue
        found[f"bounds {model}"] = bounds_of(one)
        for method, surveys in one.surveys.items():
            found[f"points {method} smoothed"] = _points(surveys[0], surveys[0].design.weight)
            found[f"points {method} synthesised"] = _points(surveys[0], UNSMOOTHED)
    return found


def bounds_of(fitted: Fitted) -> Floats:
    """Record × 2: the bound of each record without the weights α, and with them."""
    calibration = fitted.calibration
    columns = {"unweighted": calibration.bounds, "weighted": calibration.weighted_bounds}
    return pl.DataFrame(columns).to_numpy()


def _points(survey: Survey, weight: str) -> Floats:
    return survey.in_memory().frame.select(survey.outcome, weight).to_numpy()


def tidy_bounds(found: Mapping[str, Floats]) -> pl.DataFrame:
    """The columns model, weighting and bound, with a row for each record, model and weighting."""
    frames = [
        pl.DataFrame({"model": key.removeprefix("bounds "), "weighting": weighting, "bound": value[:, column]})
        for key, value in found.items()
        if key.startswith("bounds ")
        for column, weighting in enumerate(WEIGHTINGS)
    ]
    return pl.concat(frames)


def tidy_points(found: Mapping[str, Floats]) -> pl.DataFrame:
    """The columns method, weights, salary and weight, with a row for each point of the scatter plots."""
    frames = []
    for key, value in found.items():
        if key.startswith("points "):
            method, *kind = key.removeprefix("points ").split()
            labels = {"method": method, "weights": kind[0] if kind else "confidential"}
            frames.append(pl.DataFrame(labels | {name: value[:, i] for i, name in enumerate(POINTS)}))
    return pl.concat(frames)
