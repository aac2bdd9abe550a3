"""Requirements: what a spec has to say, and may not say, for a release from noisy sums. No data are needed."""

from __future__ import annotations

import math

from svysynth.core.errors import SurveyError
from svysynth.core.spec.privacy import BoundsSpec, PrivacySpec
from svysynth.core.spec.whole import Spec, StandInSpec
from svysynth.mechanisms.findings import Finding

MOST_CELLS = 1000
"""The most combinations of declared levels if whole records are protected: the posterior has all of them as cells."""
LEAST_EPSILON = 0.01
"""The smallest ε: below it the noise exceeds the information in any file."""
SCALED = "weights are scaled to the published population total"
LOGARITHM = "values clamped to these bounds are log-transformed"
NO_FORM = "fbs and fbp with guarantee = 'global' do not support it"
TAYLOR = "set estimation.variance = 'taylor'"
DROWNED = "the noise would hide everything about the answers"
ONE_FILE = Finding(
    "privacy.datasets",
    "only one synthetic file is requested",
    "standard errors that users compute from one file leave out the noise, and are too small",
    "leave privacy.datasets out, or set it to 5 or more: files cost no ε under this guarantee",
    stops=False,
)


def unmet_requirements(spec: Spec) -> list[Finding]:
    """The findings for settings that noisy sums do not support, and for a single synthetic file."""
    survey, bounds = spec.survey, bounds_of(spec)
    found = (
        (
            survey.population_total is None and not survey.weight_public,
            "survey.population_total",
            "is not declared",
            SCALED,
            "declare survey.population_total",
        ),
        (
            bounds.weight[0] <= 0 and not survey.weight_public,
            "privacy.bounds.weight",
            "has the lower end zero",
            LOGARITHM,
            "set a lower end above zero",
        ),
        (
            survey.transform == "log" and bounds.outcome[0] <= 0,
            "privacy.bounds.outcome",
            "has a lower end of zero or below",
            LOGARITHM,
            "set a lower end above zero, or use survey.transform = 'identity'",
        ),
        (
            survey.calibration is not None and privacy_of(spec).protect == "record",
            "survey.calibration",
            "asks for calibration where whole records are protected",
            NO_FORM,
            "leave survey.calibration out, or use guarantee = 'asymptotic'",
        ),
        (spec.estimation.variance != "taylor", "estimation.variance", "requests replicates", NO_FORM, TAYLOR),
        (
            privacy_of(spec).epsilon < LEAST_EPSILON,
            "privacy.epsilon",
            f"is below {LEAST_EPSILON}",
            DROWNED,
            "use a larger privacy.epsilon",
        ),
    )
    stopping = [Finding(place, what, why, remedy, stops=True) for holds, place, what, why, remedy in found if holds]
    one = [ONE_FILE] if privacy_of(spec).datasets == 1 else []
    return [*stopping, *one, *_of_whole_records(spec), *_of_constants(spec)]


def _of_whole_records(spec: Spec) -> list[Finding]:
    """The findings for settings that are missing or not allowed if whole records are protected."""
    survey = spec.survey
    if privacy_of(spec).protect == "answers":
        return []
    columns = dict.fromkeys([*survey.public, *([survey.strata] if survey.strata else [])])
    missing = [column for column in columns if survey.declared(column) is None]
    cells = math.prod(len(survey.declared(column) or ()) for column in survey.public)
    found = (
        (
            survey.weight_public,
            "survey.weight_public",
            "cannot be declared where whole records are protected",
            "a public list of weights would reveal who takes part",
            "leave survey.weight_public out, or use privacy.protect = 'answers'",
        ),
        (
            survey.cluster is not None,
            "survey.cluster",
            "cannot be used where whole records are protected",
            "the sizes of clusters would reveal who takes part",
            "use privacy.protect = 'answers'",
        ),
        (
            bool(missing),
            "survey.levels",
            f"does not list the levels of column '{next(iter(missing), '')}'",
            "the levels that occur in the file would reveal something about single records",
            "list all levels in survey.levels, or declare bands or recodes in survey.columns, from public knowledge",
        ),
        (
            survey.fpc is not None,
            "survey.fpc",
            "cannot be used where whole records are protected",
            "the number of records in a stratum, and so its sampled fraction, is not public",
            "leave survey.fpc out: standard errors are then too large",
        ),
        (
            survey.where is not None,
            "survey.where",
            "cannot be used where whole records are protected",
            "whether a column is compared as numbers or as text depends on all records of the file",
            "remove the other records from the file beforehand, by a rule that looks at one record at a time",
        ),
        (
            cells > MOST_CELLS,
            "survey.levels",
            f"gives more than {MOST_CELLS:,} combinations of the public columns",
            "each combination gets noise, whether or not it has records",
            "merge levels, or use fewer public columns",
        ),
    )
    return [Finding(place, what, why, remedy, stops=True) for holds, place, what, why, remedy in found if holds]


def _of_constants(spec: Spec) -> list[Finding]:
    """The finding for a centre outside the bounds of the outcome: it may have been given on another scale."""
    constants, (low, high) = constants_of(spec), bounds_of(spec).outcome
    if spec.survey.transform == "log":
        low, high = (math.log(end) if end > 0 else -math.inf for end in (low, high))
    if constants is None or low <= constants.mean <= high:
        return []
    why = "it must be the centre of the outcome on the scale of survey.transform"
    remedy = "set standin.mean to the mean of the log outcome if survey.transform is 'log', or widen the bounds"
    return [Finding("standin.mean", "lies outside privacy.bounds.outcome", why, remedy, stops=True)]


def constants_of(spec: Spec) -> StandInSpec | None:
    """The public constants that give the scales; None if noisy histograms give them."""
    return spec.standin if privacy_of(spec).scales == "standin" else None


def privacy_of(spec: Spec) -> PrivacySpec:
    """The privacy section, which every release has."""
    assert spec.privacy is not None
    return spec.privacy


def bounds_of(spec: Spec) -> BoundsSpec:
    """The public bounds, or a refusal."""
    bounds = privacy_of(spec).bounds
    if bounds is None:
        remedy = "declare public bounds of outcome and weight in [privacy.bounds] (`svysynth constants` helps)"
        raise SurveyError("spec", "privacy.bounds", "are not declared", remedy)
    return bounds
