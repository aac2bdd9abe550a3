"""Requirements: what a spec has to say, and may not say, for a release from margins. No data are needed."""

from __future__ import annotations

from svysynth.core.spec.whole import Spec
from svysynth.mechanisms.findings import Finding
from svysynth.mechanisms.noisy_sums.requirements import (
    DROWNED,
    LEAST_EPSILON,
    ONE_FILE,
    SCALED,
    TAYLOR,
    bounds_of,
    privacy_of,
)

NO_FORM = "synthetic files from margins have no such variances"
PUBLIC_LEVELS = "the levels that occur in the file would reveal something about single respondents"
PUBLIC_BOUNDS = "bands of an amount are made between public bounds"


def unmet_requirements(spec: Spec) -> list[Finding]:
    """The findings for settings that margins do not support, and for a single synthetic file."""
    survey, bounds = spec.survey, bounds_of(spec)
    found = [
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
            "weights are put in bands of their logarithm",
            "set a lower end above zero",
        ),
        (
            survey.may_miss(survey.outcome),
            f"survey.columns.{survey.outcome}.missing",
            "the outcome may be missing, and a release needs one that every record has",
            "reports and plots are of the outcome",
            "name another answer as survey.outcome, and declare this one in survey.variables: tables can be 'of' it",
        ),
        (spec.estimation.variance != "taylor", "estimation.variance", "requests replicates", NO_FORM, TAYLOR),
        (
            privacy_of(spec).epsilon < LEAST_EPSILON,
            "privacy.epsilon",
            f"is below {LEAST_EPSILON}",
            DROWNED,
            "use a larger privacy.epsilon",
        ),
    ]
    for name, variable in survey.variables.items():
        found += [
            (
                variable.kind == "category" and survey.declared(name) is None,
                f"survey.variables.{name}.levels",
                "are not declared",
                PUBLIC_LEVELS,
                "list all levels, or declare bands or recodes in survey.columns, from public knowledge",
            ),
            (
                variable.kind == "amount" and name != survey.outcome and variable.bounds is None,
                f"survey.variables.{name}.bounds",
                "are not declared",
                PUBLIC_BOUNDS,
                "declare the least and the greatest amount, from public knowledge",
            ),
        ]
    stopping = [Finding(place, what, why, remedy, stops=True) for holds, place, what, why, remedy in found if holds]
    return [*stopping, *([ONE_FILE] if privacy_of(spec).datasets == 1 else [])]
