"""Surveys from frames in memory: polars, pandas and Arrow give the same survey, and nothing else is taken."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import svysynth
from svysynth import SurveyError

PLAIN = {
    "salary": [51_234.5, 88_000.0, 61_000.0, 47_777.0],
    "weight": [98.5, 101.25, 33.0, 12.0],
    "field": ["arts", "law", "arts", "law"],
    "year": [1, 2, 2, 1],
    "employed": [True, False, True, True],
}
ROLES = {"outcome": "salary", "weight": "weight", "public": ["field", "year", "employed"], "strata": "field"}
PANDAS = {
    "plain": lambda frame: frame,
    "an index of its own": lambda frame: frame.set_axis([7, 7, "x", None]),
    "categories": lambda frame: frame.astype({"field": "category", "year": "category"}),
    "nullable types": lambda frame: frame.astype({"salary": "Float64", "year": "Int64", "employed": "boolean"}),
    "objects": lambda frame: frame.astype(object),
    "small types": lambda frame: frame.astype({"year": "int8", "weight": "float32"}),
    "other columns of any kind": lambda frame: frame.assign(other=[object(), {}, (1,), None]),
}


def frame():
    return pl.DataFrame(PLAIN)


@pytest.mark.parametrize("kind", PANDAS)
def test_a_pandas_frame_gives_the_same_survey(kind, monkeypatch):
    monkeypatch.setattr("polars.from_pandas", None)  # it needs pyarrow, which may not be there
    expected = svysynth.read_survey(frame(), **ROLES)
    found = svysynth.read_survey(PANDAS[kind](pd.DataFrame(PLAIN)), **ROLES)
    assert found.frame.equals(expected.frame)


def test_a_lazy_frame_gives_the_same_survey():
    assert svysynth.read_survey(frame().lazy(), **ROLES).frame.equals(svysynth.read_survey(frame(), **ROLES).frame)


def test_an_arrow_table_gives_the_same_survey():
    pyarrow = pytest.importorskip("pyarrow")
    assert svysynth.read_survey(pyarrow.table(PLAIN), **ROLES).frame.equals(
        svysynth.read_survey(frame(), **ROLES).frame
    )


@pytest.mark.parametrize(
    ("column", "dtype", "gone"),
    [
        ("salary", "float64", np.nan),
        ("salary", "Float64", pd.NA),
        ("field", "object", None),
        ("field", "object", np.nan),
        ("field", "str", None),
        ("field", "category", None),
        ("year", "Int64", pd.NA),
    ],
)
def test_what_is_missing_in_pandas_is_missing(column, dtype, gone):
    data = pd.DataFrame(PLAIN).astype({column: dtype})
    data.loc[1, column] = gone
    with pytest.raises(SurveyError, match=f"column '{column}': 1 of 4 records is missing"):
        svysynth.read_survey(data, **ROLES)


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        [PLAIN],
        list(PLAIN.values()),
        np.array(PLAIN["salary"]),
        pd.Series(PLAIN["salary"]),
        pl.Series(PLAIN["salary"]),
        None,
        3,
    ],
    ids=lambda data: type(data).__name__,
)
def test_anything_else_is_named_by_its_type_and_not_shown(data):
    with pytest.raises(SurveyError) as caught:
        svysynth.read_survey(data, **ROLES)
    assert f"'{type(data).__name__}'" in str(caught.value)
    assert "51" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data.rename(columns={"salary": "pay"}), "column 'salary': is not in the data"),
        (lambda data: data.rename(columns={"salary": 4}), "column 'salary': is not in the data"),
        (lambda data: pd.concat([data, data[["salary"]]], axis=1), "give every column a name of its own"),
        (lambda data: data.astype({"field": object}).replace({"field": {"law": 5}}), "column 'field'"),
        (lambda data: data.assign(salary="51234.5 or so"), "column 'salary': 4 of 4 records are not a number"),
        (lambda data: data.assign(field=[[51234]] * 4), "column 'field'"),
        (lambda data: data.iloc[:0], "there are no records"),
    ],
)
def test_a_bad_pandas_frame_is_one_error_without_values(spoil, message):
    with pytest.raises(SurveyError) as caught:
        svysynth.read_survey(spoil(pd.DataFrame(PLAIN)), **ROLES)
    assert message in str(caught.value)
    assert "51234" not in str(caught.value)


def test_a_lazy_frame_that_fails_shows_nothing():
    broken = frame().lazy().with_columns(pl.lit("51234.5 or so").cast(pl.Float64).alias("salary"))
    with pytest.raises(SurveyError) as caught:
        svysynth.read_survey(broken, **ROLES)
    assert "51234" not in str(caught.value)
    assert caught.value.__suppress_context__
