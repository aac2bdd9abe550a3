"""Whole clusters as the unit of protection: the ε of a record, and what is said about it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.core.spec.whole import parse_spec
from svysynth.mechanisms.base import mechanism_of
from svysynth.mechanisms.unit import epsilon_of_record, largest_cluster


def survey(**roles):
    """Clusters of 3, 5 and 7 records in one stratum, and of 4 in the other, which uses the same numbers."""
    stratum = np.array([0] * 15 + [1] * 12)
    cluster = np.array([1] * 3 + [2] * 5 + [3] * 7 + [1] * 4 + [2] * 4 + [3] * 4)
    outcome, weight = np.arange(1.0, 28), np.linspace(1, 2, 27)
    frame = pl.DataFrame({"y": outcome, "w": weight, "h": stratum, "c": cluster, "g": ["a", "b", "b"] * 9})
    settings = {"outcome": "y", "weight": "w", "public": "g", "strata": "h", "cluster": "c"} | roles
    return svysynth.read_survey(frame, **settings)


def test_the_largest_cluster_is_one_within_its_stratum():
    assert largest_cluster(survey()) == 7
    assert largest_cluster(survey(public=["g", "c"])) == 7
    assert largest_cluster(survey(strata=None)) == 11


@pytest.mark.parametrize("epsilon", [3.0, 10.8, 0.1 + 0.2])
def test_the_records_of_a_cluster_have_no_more_than_its_epsilon(epsilon):
    own = epsilon_of_record(epsilon, "cluster", survey())
    assert 7 * Fraction(own) <= Fraction(epsilon)
    assert own == pytest.approx(epsilon / 7)
    assert epsilon_of_record(epsilon, "respondent", survey()) == epsilon


def test_an_epsilon_too_small_for_the_largest_cluster_is_refused():
    with pytest.raises(svysynth.SurveyError, match="largest cluster"):
        epsilon_of_record(0.05, "cluster", survey())


SPEC = """
[survey]
data = "people.csv"
outcome = "y"
weight = "w"
public = "g"
population_total = 1000
{cluster}

[privacy]
mechanism = "{mechanism}"
guarantee = "global"
epsilon = 5.0
unit = "cluster"
bounds = {{ outcome = [1, 100], weight = [1, 9] }}
"""


def test_the_promise_names_the_cluster():
    spec = parse_spec(SPEC.format(cluster='cluster = "c"', mechanism="fbs"))
    promise = mechanism_of(spec.privacy).guarantee(spec.survey, spec.privacy)
    assert promise.unit == "cluster"
    assert promise.charged == 5.0
    first, _ = promise.sentences()
    assert "any one cluster of respondents" in first
    assert "a whole cluster's y and w are blanked out" in first


def test_noisy_tables_can_protect_clusters_too():
    spec = parse_spec(SPEC.format(cluster='cluster = "c"', mechanism="laplace"))
    promise = mechanism_of(spec.privacy).guarantee(spec.survey, spec.privacy)
    assert (promise.unit, promise.charged, promise.epsilon_blanked) == ("cluster", 5.0, 5.0)


@pytest.mark.parametrize(
    ("cluster", "mechanism", "setting"),
    [("", "fbs", "survey.cluster"), ("", "laplace", "survey.cluster")],
)
def test_clusters_that_cannot_be_protected_are_refused(cluster, mechanism, setting):
    with pytest.raises(svysynth.SurveyError, match=setting):
        parse_spec(SPEC.format(cluster=cluster, mechanism=mechanism))
