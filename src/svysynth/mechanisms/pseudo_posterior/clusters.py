"""Clusters: what stops the release of a sample of clusters by a model, from public facts alone."""

from __future__ import annotations

from svysynth.core.errors import SurveyError
from svysynth.core.spec.whole import Spec
from svysynth.mechanisms.findings import Finding
from svysynth.models.base import Model, Traits
from svysynth.survey.survey import Survey

NO_EFFECTS = Finding(
    "survey.cluster",
    "this model has no effects of clusters",
    "the standard errors would be those of a design without clusters, and far too small",
    "use mechanism = 'fbs', which has them, or guarantee = 'global'; leave survey.cluster out only if the sample has "
    "no clusters",
    stops=True,
)
PUBLIC_WEIGHTS = Finding(
    "survey.weight_public",
    "the model with effects of clusters cannot use public weights",
    "it models the weights together with the outcome",
    "leave survey.weight_public out; the weights are then protected too",
    stops=True,
)
CLUSTERS_CORRECTED = Finding(
    "survey.fpc",
    "the model with effects of clusters cannot be combined with a finite population correction",
    "its standard errors have not been tested on samples that have a large share of all clusters",
    "leave survey.fpc out: standard errors are then too large",
    stops=True,
)
MOST_CLUSTERS = 10_000
"""The most clusters: every draw has two effects of each, and thousands of draws are in memory."""


def clusters_of_model(spec: Spec, traits: Traits) -> list[Finding]:
    """The findings for a model that cannot be used if the sample has clusters."""
    survey = spec.survey
    found = (
        (not traits.clusters, NO_EFFECTS),
        (survey.weight_public, PUBLIC_WEIGHTS),
        (survey.fpc is not None, CLUSTERS_CORRECTED),
    )
    return [finding for applies, finding in found if applies]


def require_effects(model: Model, survey: Survey) -> None:
    """Refuse a survey whose clusters the model cannot use, and a model with effects of clusters if there are none."""
    if survey.design.cluster is None:
        if model.traits.clusters:
            remedy = "name the column of the clusters in read_survey(cluster=...), or give svysynth.FBS()"
            raise SurveyError("data", "the survey", "has no clusters, and the model has effects of clusters", remedy)
        return
    if not model.traits.clusters:
        problem = "the model has no effects of clusters, and standard errors would be far too small"
        raise SurveyError("data", "survey.cluster", problem, "give svysynth.ClusteredFBS()")
    if survey.weight_public:
        raise SurveyError("data", "survey.weight_public", PUBLIC_WEIGHTS.reason, PUBLIC_WEIGHTS.instead)
    if survey.design.fpc is not None:
        raise SurveyError("data", "survey.fpc", CLUSTERS_CORRECTED.reason, CLUSTERS_CORRECTED.instead)
    require_few_clusters(survey)


def require_few_clusters(survey: Survey) -> None:
    """Refuse a survey with more clusters than fit into memory with all draws of their effects."""
    clusters = len(survey.index.psu_stratum) if survey.design.cluster else 0
    if clusters > MOST_CLUSTERS:
        problem = f"has {clusters:,} clusters, and the model takes at most {MOST_CLUSTERS:,}"
        remedy = "name a larger unit, such as the district of a household, or use guarantee = 'global'"
        raise SurveyError("data", "survey.cluster", problem, remedy)
