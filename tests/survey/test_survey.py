"""Reading a survey: roles, types, labels, row filter, and the refusal of bad data."""

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth import SurveyError

ROLES = {"outcome": "y", "weight": "w", "public": ["g"]}


def frame(**columns):
    return pl.DataFrame({"y": [1.0, 2.0, 3.0, 4.0], "w": [1.0, 2.0, 1.0, 2.0], "g": [1, 2, 1, 2]} | columns)


def read(data, **settings):
    return svysynth.read_survey(data, **(ROLES | settings))


def test_roles_become_numbers_and_categories():
    survey = read(frame(g=["b", "a", "b", "a"]))
    assert len(survey) == 4
    assert survey.levels("g") == ("a", "b")
    assert survey.outcome_values.tolist() == [1, 2, 3, 4]
    assert survey.cell_index(["g"]).tolist() == [1, 0, 1, 0]


def test_codes_that_are_numbers_are_ordered_as_numbers():
    assert read(frame(g=["10", "9", "1", "2"])).levels("g") == ("1", "2", "9", "10")


@pytest.mark.parametrize("codes", [[1, 2, 1, 2], [1.0, 2.0, 1.0, 2.0], ["1", "2", "1", "2"], [" 1", "2 ", "1", "2"]])
def test_declared_labels_fit_codes_of_any_type_and_set_the_order(codes):
    survey = read(frame(g=codes), labels={"g": {"2": "two", "1": "one", "3": "three"}})
    assert survey.levels("g") == ("two", "one", "three")
    assert survey.frame["g"].to_list() == ["one", "two", "one", "two"]


def test_a_code_without_a_declared_label_is_refused():
    with pytest.raises(SurveyError, match=r"2 of 4 records are not among those in survey\.labels or survey\.levels"):
        read(frame(), labels={"g": {"1": "one"}})


def test_where_keeps_the_records_for_which_it_is_true():
    survey = read(frame(age=[40, 40, None, 50]), where="age = 40 and y > 1")
    assert survey.outcome_values.tolist() == [2]


def test_where_compares_the_numbers_of_a_csv_as_numbers(tmp_path):
    (tmp_path / "d.csv").write_text("y,w,g,age\n1,1,a,9\n2,1,b,40\n3,1,a,NA\n")
    assert read(tmp_path / "d.csv", where="age > 10").outcome_values.tolist() == [2]
    assert read(tmp_path / "d.csv", where="g = 'a'").outcome_values.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("y >", "not a SQL condition"),
        ("y > 'x'", "compares column 'y', which is not text, with text"),
        ("y + 1", "does not fit the columns"),
        ("z > 1", "column 'z': is not in the data"),
        ("y > 100", "no records"),
        ("false", "no records"),
    ],
)
def test_a_wrong_where_is_refused(where, message):
    with pytest.raises(SurveyError, match=message):
        read(frame(), where=where)


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"w": [1.0, 0.0, -1.0, 2.0]}, {}, "'w': 2 of 4 records are not positive, as a weight must be"),
        ({"w": [1.0, None, 1.0, float("nan")]}, {}, "'w': 2 of 4 records are missing"),
        ({"w": [1.0, 1.0, 1.0, float("inf")]}, {}, "'w': 1 of 4 records is infinite"),
        ({"w": [1.0, 1.0, 1.0, 1e-70]}, {}, "'w': 1 of 4 records is absurdly small"),
        ({"w": ["1", "x", "2", "3"]}, {}, "'w': 1 of 4 records is not a number"),
        ({"w": [True, False, True, True]}, {}, "'w': is not numeric"),
        ({"y": [0.0, -1.0, 1.0, 2.0]}, {}, "'y': 2 of 4 records are not positive: there is no logarithm"),
        ({"g": [1, None, 1, 2]}, {}, "'g': 1 of 4 records is missing"),
        ({"g": ["a", "", "b", " "]}, {}, "'g': 2 of 4 records are missing"),
        ({"g": [1.5, 2.0, 1.0, 2.0]}, {}, "'g': does not hold categories"),
        ({"g": ["All", "x", "x", "x"]}, {}, "'g': has a level called 'All'"),
        ({"g": ["a\nb", "x", "x", "x"]}, {}, "control characters"),
        ({"h": [1, None, 1, 2]}, {"strata": "h"}, "'h': 1 of 4 records is missing"),
        ({"N": [5.0, 5.0, 6.0, 5.0]}, {"fpc": "N"}, "varies within a stratum"),
        ({"N": [3.0] * 4}, {"fpc": "N"}, "population smaller than their sample"),
        ({"N": [0.0] * 4}, {"fpc": "N"}, "not positive"),
        ({}, {"outcome": "Y2"}, "column 'Y2': is not in the data"),
        ({"weights": [1.0] * 4}, {"weight": "wieghts"}, "did you mean 'weights'"),
    ],
)
def test_bad_data_are_refused_with_a_count_and_a_remedy(columns, settings, message):
    with pytest.raises(SurveyError, match=message) as caught:
        read(frame(**columns), **settings)
    assert "Remedy" in str(caught.value)


def test_the_identity_transform_takes_any_outcome():
    assert read(frame(y=[-1.0, 0.0, 1.0, 2.0]), transform="identity").transform == "identity"


def test_clusters_are_nested_in_strata():
    """The same cluster id in two strata is two clusters, as with nest = TRUE in R."""
    survey = read(frame(h=[1, 1, 2, 2], c=["x", "y", "x", "y"]), strata="h", cluster="c")
    assert len(survey.index.psu_stratum) == 4
    assert survey.index.degrees_of_freedom == 2


def test_fpc_as_sizes_and_as_fractions_are_the_same():
    sizes = read(frame(N=[8.0] * 4), fpc="N").index.unsampled
    fractions = read(frame(N=[0.5] * 4), fpc="N").index.unsampled
    assert np.array_equal(sizes, fractions)
    assert sizes.tolist() == [0.5]


def test_a_survey_says_what_it_is():
    assert repr(read(frame())) == "Survey of 4 records: y by g"
