"""The application: the Survey of Doctorate Recipients by field and gender at ε = 10.8, m = 3 (paper §3).

The study runs on the generated stand-in, brought into the layout of the 2017 public-use file, or with `data` on the
file itself. `sdr2017.toml` describes that layout. The whole release is repeated with other random numbers: the first
release is shown beside the paper's, and the spread over all releases is the Monte Carlo error of each
number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats
from svysynth.core.spec.whole import Spec, parse_spec
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate_all
from svysynth.estimation.utility import rmse
from svysynth.evaluation.paper.methods import FIT_COLUMNS, Plan, Scenario, fit_all, tabulate_methods
from svysynth.evaluation.paper.selected_sample import bounds_of
from svysynth.survey.columns import ALL
from svysynth.survey.doctorates import doctorates
from svysynth.survey.survey import Survey, survey_from_file, survey_from_frame

SEED = 20_170_101
PLAN = Plan(bounds=(1.8,), datasets=(3,))
KEYS = ("statistic", "field", "gender")
LAYOUT = {"field": "NSDRMEMTOD", "gender": "GENDER", "salary": "SALARYP", "weight": "WTSURVY"}
"""The names that the stand-in's columns have in the public-use file."""


@dataclass(frozen=True)
class Application:
    """The settings of the study."""

    data: Path | None = None
    """The public-use file. If it is None, the study runs on the stand-in."""
    plan: Plan = PLAN
    seed: int = SEED

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are kept in the study's folder, which identify the study."""
        own = {
            "study": "application",
            "version": version("svysynth"),
            "data": _digest(self.data),
            "seed": self.seed,
        }
        return own | self.plan.settings

    @property
    def survey(self) -> Survey:
        """The confidential survey."""
        return _survey(self.data)


def layout_spec() -> Spec:
    """The spec that describes the public-use file."""
    return parse_spec(
        (resources.files("svysynth.evaluation.paper") / "sdr2017.toml").read_text("utf-8"), "sdr2017.toml"
    )


def standin_in_layout() -> pl.DataFrame:
    """The stand-in as a file of the survey would have it: its columns, and the group's codes."""
    return doctorates().rename(LAYOUT).with_columns(pl.lit(40).alias("AGEGRP"), pl.lit(1).alias("LFSTAT"))


@cache
def _survey(data: Path | None) -> Survey:
    """The survey, with only the records that have a salary.

    A release could not leave out the other records, but this comparison is internal.
    """
    spec = layout_spec().survey
    spec = spec.model_copy(update={"where": f"{spec.where} and cast({spec.outcome} as double) > 0"})
    if data is None:
        return survey_from_frame(standin_in_layout(), spec)
    return survey_from_file(spec.model_copy(update={"data": data}))


def _digest(data: Path | None) -> str:
    if data is None:
        return "stand-in"
    try:
        with data.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except (OSError, ValueError):
        raise SurveyError("file", f"file '{data.name}'", "cannot be read", "check the path given by --data") from None


def release(study: Application, index: int) -> Mapping[str, Floats]:
    """Make one whole release by every method; the first release also keeps the records' bounds, for the figure."""
    streams = Streams.seeded(study.seed).split("release", index)
    fitted = fit_all(study.survey, study.plan, streams)
    tables = tabulate_methods(study.survey, study.plan, fitted, streams)
    bounds = {f"bounds {model}": bounds_of(one) for (model, _), one in fitted.items()} if index == 0 else {}
    return bounds | {
        "tables": tables,
        "fits": np.array([fitted[key].figures for key in study.plan.fits]),
    }


def tidy_tables(study: Application, releases: Sequence[Mapping[str, Floats]]) -> pl.DataFrame:
    """Every method's estimates and standard errors in the 27 cells, their spread over releases, and RMSE.

    The RMSE is that of the first release, against the confidential estimate.
    """
    labels = cell_labels(study.survey)
    values = np.stack([one["tables"] for one in releases])
    confidential = values[0, study.plan.scenarios.index(Scenario("sample")), :, 0]
    frames = []
    for position, scenario in enumerate(study.plan.scenarios):
        estimate, se = values[0, position, :, 0], values[0, position, :, 1]
        spread = _spread(values[:, position])
        columns = {"estimate": estimate, "se": se, "estimate_sd": spread[:, 0], "se_sd": spread[:, 1]}
        columns["rmse"] = rmse(estimate, se, confidential)
        series = [pl.Series(name, column) for name, column in columns.items()]
        frames.append(labels.with_columns(pl.lit(scenario.method).alias("method"), *series))
    return pl.concat(frames).select("method", *KEYS, *columns)


def _spread(values: Floats) -> Floats:
    return values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)


def cell_labels(survey: Survey) -> pl.DataFrame:
    """The columns statistic, field (its code) and gender of a table by the survey's two public columns."""
    field, gender = survey.public
    table = tabulate_all(survey, layout_spec().requested_tables)
    codes = {label: code for code, label in survey.codes[field].items()} | {ALL: ALL}
    return table.select("statistic", pl.col(field).replace_strict(codes).alias("field"), pl.col(gender).alias("gender"))


def release_figures(study: Application, releases: Sequence[Mapping[str, Floats]]) -> pl.DataFrame:
    """Δ before and after weighting, the mean weight α, refits and attempts of every fit."""
    rows = [
        (index, model, bound, *one["fits"][position])
        for index, one in enumerate(releases)
        for position, (model, bound) in enumerate(study.plan.fits)
    ]
    frame = pl.DataFrame(rows, schema=["release", "model", "lipschitz", *FIT_COLUMNS], orient="row")
    return frame.with_columns(pl.col("refits", "attempts").cast(pl.Int64))


def correlation(survey: Survey) -> float:
    """cor(salary, weight) of the survey."""
    return float(np.corrcoef(survey.outcome_values, survey.weights)[0, 1])
