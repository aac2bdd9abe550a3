"""Drafts: roles are guessed from names and types, and no value of the data goes into a draft."""

import numpy as np
import polars as pl
import pytest

from svysynth import SurveyError, write_frame
from svysynth.draft import draft_spec
from svysynth.spec import parse_spec


def draft_of(tmp_path, columns, ending="parquet"):
    path = tmp_path / f"d.{ending}"
    write_frame(pl.DataFrame(columns), path)
    return draft_spec(path, tmp_path)


def columns(n=200):
    generator = np.random.default_rng(1)
    return {
        "CASEID": range(n),
        "stratum": generator.integers(1, 5, n),
        "psu": generator.integers(1, 60, n),
        "region": generator.choice(["north", "south"], n),
        "sex": generator.integers(1, 3, n),
        "hh_size": generator.integers(1, 9, n),
        "income": generator.lognormal(10, 1, n),
        "final_wt": generator.lognormal(1, 1, n),
    }


@pytest.mark.parametrize("ending", ["parquet", "csv", "sav", "dta"])
def test_every_role_is_found(tmp_path, ending):
    draft = draft_of(tmp_path, columns(), ending)
    spec = parse_spec(draft.text)
    assert spec.survey.outcome == "income"
    assert spec.survey.weight == "final_wt"
    assert spec.survey.strata == "stratum"
    assert spec.survey.cluster == "psu"
    assert spec.survey.public == ("stratum", "region")
    assert 'further candidates: ["sex", "hh_size"]' in draft.text
    assert spec.survey.data.name == f"d.{ending}"


@pytest.mark.parametrize("name", ["weight", "WTSURVY", "wt", "finalwt", "pweight", "PERWT", "hh.weight", "w"])
def test_the_usual_names_of_weights(tmp_path, name):
    data = columns()
    data[name] = data.pop("final_wt")
    assert parse_spec(draft_of(tmp_path, data).text).survey.weight == name


def test_zeros_in_the_outcome_bring_a_condition(tmp_path):
    data = columns() | {"income": [0.0, *([10.0, 20.0, 30.0] * 67)][:200]}
    assert parse_spec(draft_of(tmp_path, data).text).survey.where == '"income" > 0'


def test_what_cannot_be_guessed_is_left_to_the_user(tmp_path):
    draft = draft_of(tmp_path, {"a": ["x", "y"], "b": ["u", "v"]})
    with pytest.raises(SurveyError, match=r"'survey\.outcome' is required; 'survey\.weight' is required"):
        parse_spec(draft.text)


def test_no_value_goes_into_a_draft(tmp_path):
    data = columns() | {"region": ["CANARY-A", "CANARY-B"] * 100, "income": [77123.5, 88234.5] * 100}
    text = draft_of(tmp_path, data).text
    assert "CANARY" not in text
    assert "77123" not in text


def test_odd_column_names_are_quoted(tmp_path):
    data = {'sal"ary\\': [1.5, 2.5, 3.5], "weight": [1.0, 2.0, 3.0], "a b": ["x", "y", "x"]}
    spec = parse_spec(draft_of(tmp_path, data).text)
    assert spec.survey.outcome == 'sal"ary\\'
    assert spec.survey.public == ("a b",)
