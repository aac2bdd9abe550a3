"""Unit: the ε that each record has if the promise is for whole clusters.

Mechanisms bound what one record changes. The answers of a cluster with k records are changed one record at a time, so a
promise of ε/k for each record is one of ε for the cluster (group privacy). Which records share a cluster is public.
"""

from __future__ import annotations

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.spec.privacy import Unit
from svysynth.survey.survey import Survey

LEAST = 0.01
"""The least ε of a record: with less, the noise is larger than all information in the sums."""
BELOW = 1 - 2.0**-50
"""A factor below 1, so that k records together never have more than ε because of rounding."""


def epsilon_of_record(epsilon: float, unit: Unit, survey: Survey) -> float:
    """The ε that a mechanism for single records may use, so that ε holds for the unit that is protected."""
    if unit == "respondent":
        return epsilon
    found = epsilon * BELOW / largest_cluster(survey)
    if found < LEAST:
        problem = f"leaves less than {LEAST} for each record of the largest cluster"
        raise SurveyError("spec", "privacy.epsilon", problem, "use a larger ε, or set privacy.unit = 'respondent'")
    return found


def largest_cluster(survey: Survey) -> int:
    """The number of records of the largest cluster."""
    groups = survey.groups
    cluster = groups.frame[survey.design.cluster or ""].to_physical().to_numpy()
    # clusters of a public column may have the same label in several strata
    stratum = groups.frame[survey.design.strata].to_physical().to_numpy() if survey.design.strata else 0 * cluster
    _, unit = np.unique(np.stack([stratum, cluster]), axis=1, return_inverse=True)
    return int(np.bincount(unit.reshape(-1), groups.count).max())
