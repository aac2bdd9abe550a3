"""A public file of the survey's shape, such as last year's public-use file: constants from it, and its layout.

Spreads are those within the cells of the spec's formula, as a model sees them. The spec's own data are refused, also
under another name or as a copy. A file made from them must not be used either, but that cannot be checked here
(docs/constants.md).
"""

from __future__ import annotations

import contextlib
import filecmp
from pathlib import Path
from typing import Any

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats
from svysynth.core.spec.whole import Spec
from svysynth.core.transforms import Transform
from svysynth.estimation.combining import UNSMOOTHED
from svysynth.models.records import make_records
from svysynth.models.sufficient_statistics import linear_statistics
from svysynth.privacy.public_constants import (
    Law,
    Proposal,
    Published,
    bad_figure,
    propose,
    refuse_odd_figures,
    require_sensible,
    round_outwards,
    scale_of,
)
from svysynth.survey.files import open_data
from svysynth.survey.survey import Survey, survey_from_file

PUBLIC_FILE = "From a public file. Never use the confidential file, nor anything made from it."
MARGIN = 2.0
"""Bounds go beyond the file's extremes by this factor; without logarithms, by half of its range."""


def from_public_file(spec: Spec, file: Path, published: Published | None = None) -> Proposal:
    """Constants from a public file with the spec's columns: spreads within the cells of its formula, and wide bounds.

    The only published figures that may be given are the sample's size and the population total: weights are scaled to
    their ratio.
    """
    published = published or Published(population=spec.survey.population_total)
    records, total = published.records, published.population
    if published != Published(records=records, population=total):
        problem = "cannot be combined with published figures other than --records and --population"
        raise bad_figure("--standin", problem, "leave out either the file or the figures")
    refuse_odd_figures(published, spec.survey.transform)
    survey = read_public_file(spec, file)
    weights, origin = survey.weights, "in the public file"
    if records and total:
        mean = total / records
        weights, origin = weights * (mean / weights.mean()), f"in the public file, scaled to N/n = {mean:.4g}"
    spreads, correlation = _within_cells(survey, spec.model.formula)
    t = np.log(survey.outcome_values) if survey.transform == "log" else survey.outcome_values
    laws = _law(t, survey.transform), _law(np.log(weights), "log")
    scale, where = scale_of(survey.transform), f"within cells of the public file, {len(survey):,} records"
    smoothed = f" ({UNSMOOTHED})" if survey.design.weight == UNSMOOTHED else ""
    wide = "half and twice the extremes" if survey.transform == "log" else "the extremes and half the range"
    reasons = {
        "outcome": f"{wide} in the public file, rounded outwards",
        "weight": f"half and twice the extremes {origin}, rounded outwards",
        "mean": f"mean of {scale} in the public file",
        "spread": f"spread of {scale} {where}",
        "weight_spread": f"spread of log weight{smoothed} {where}",
        "correlation": f"of {scale} and log weight {where}",
    }
    bounds = {"outcome": _around(survey.outcome_values, survey.transform), "weight": _around(weights, "log")}
    return propose(bounds, laws, spreads, correlation, reasons, PUBLIC_FILE, population=total)


def read_public_file(spec: Spec, file: Path) -> Survey:
    """The file as a survey. Only its weights are needed of the design; of a synthetic file, the unsmoothed ones."""
    refuse_confidential(file, spec.survey.data)
    if not _is_there(file):
        raise bad_figure("--standin", "cannot be found", "give the path of a public file")
    free: dict[str, Any] = {"data": file, "strata": None, "cluster": None, "fpc": None, "later": ()}
    free |= {"fpc_public": False, "labels": {}, "levels": {}, "other": {}}
    try:
        is_synthetic = spec.survey.weight == "weight" and UNSMOOTHED in open_data(file).columns
        weight: dict[str, Any] = {"weight": UNSMOOTHED, "columns": {}} if is_synthetic else {}
        return survey_from_file(spec.survey.model_copy(update=free | weight))
    except SurveyError as error:
        raise SurveyError(error.kind, f"--standin, {error.place}", error.problem, error.remedy) from None


def refuse_confidential(file: Path, confidential: Path) -> None:
    """Stop where a file is the confidential one: by its path, by a link, as a part of its folder, or as a copy."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        here, there = file.resolve(), confidential.resolve()
        is_part = here == there or there in here.parents or here in there.parents
        if is_part or file.samefile(confidential) or _is_copy(here, there):
            problem = "is the confidential file of this spec, or a copy of it"
            remedy = "give a public file, such as last year's public-use file: constants must not come from the sample"
            raise SurveyError("file", "--standin", problem, remedy)


def _is_there(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # such as a name that is too long
        return False


def _is_copy(file: Path, confidential: Path) -> bool:
    return file.is_file() and confidential.is_file() and filecmp.cmp(file, confidential, shallow=False)


def _within_cells(survey: Survey, formula: str | None) -> tuple[tuple[float, float], float]:
    """Standard deviations of transformed outcome and log weight about the formula's fit, and their correlation."""
    records = make_records(survey, formula)
    freedom = len(records) - records.x.shape[1]
    scatter = np.asarray(linear_statistics(records, np.ones(len(records))).scatter)
    if freedom < 1 or not (np.diagonal(scatter) > 0).all():
        problem = "has too few records, or outcomes or weights that do not vary within cells"
        raise bad_figure("--standin", problem, "use a larger public file, or published figures instead")
    spread, weight_spread = np.sqrt(np.diagonal(scatter) / freedom).tolist()
    if survey.transform == "log":
        require_sensible(spread, "--standin, the outcome's spread")
    require_sensible(weight_spread, "--standin, the weights' spread")
    correlation = float(scatter[0, 1] / np.sqrt(scatter[0, 0] * scatter[1, 1]))
    return (spread, weight_spread), min(max(correlation, -0.99), 0.99)


def _law(values: Floats, transform: Transform) -> Law:
    return Law(float(values.mean()), float(values.std(ddof=1)), transform)


def _around(values: Floats, transform: Transform) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if transform == "log":
        return round_outwards(low / MARGIN, high * MARGIN)
    return round_outwards(low - (high - low) / 2, high + (high - low) / 2)
