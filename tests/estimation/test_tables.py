"""Tables: layout, intervals, flags, empty cells and the policies for lonely strata."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

import svysynth
from svysynth import EstimationSpec, SurveyError, TableSpec, tabulate, tabulate_all
from svysynth.estimation.intervals import grade

COLUMNS = ["estimate", "se", "df", "lower", "upper", "cv", "n", "reliability"]


@pytest.fixture
def small():
    """Two strata; the cell (b, v) is empty and (b, u) has one record."""
    return svysynth.read_survey(
        pl.DataFrame(
            {
                "y": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
                "w": [1.0, 2.0, 1.0, 2.0, 1.0, 2.0],
                "h": [1, 1, 1, 2, 2, 2],
                "a": ["a", "a", "b", "a", "a", "a"],
                "g": ["u", "v", "u", "v", "u", "v"],
            }
        ),
        outcome="y",
        weight="w",
        strata="h",
        public=["a", "g"],
    )


def test_tidy_columns_and_margins(small):
    table = tabulate(small, ["a", "g"], ["count", "mean"])
    assert table.columns == ["table", "statistic", "a", "g", *COLUMNS]
    assert table["table"].unique().to_list() == ["a by g"]
    rows = table.filter(statistic="count").select("a", "g").rows()
    assert rows == [(a, g) for a in ("All", "a", "b") for g in ("All", "u", "v")]


def test_an_empty_cell_is_zero_and_has_no_mean(small):
    table = tabulate(small, ["a", "g"], ["count", "total", "proportion", "mean"])
    empty = table.filter(a="b", g="v")
    assert empty["n"].to_list() == [0, 0, 0, 0]
    assert empty["estimate"].to_list() == [0, 0, 0, None]
    assert empty["se"].to_list() == [0, 0, 0, None]
    assert empty["cv"].to_list() == [None] * 4
    assert empty["reliability"].to_list() == [None] * 4


def test_margins_add_up(doctorate_survey):
    table = tabulate(doctorate_survey, ["field", "gender"], ["count", "total", "proportion"])
    inner = table.filter((pl.col("field") != "All") & (pl.col("gender") != "All"))
    for statistic, total in inner.group_by("statistic").agg(pl.col("estimate").sum()).rows():
        whole = table.filter(statistic=statistic, field="All", gender="All")["estimate"].item()
        assert total == pytest.approx(whole, rel=1e-12)


def test_intervals_are_t_intervals(doctorate_survey):
    table = tabulate(doctorate_survey, ["field"], ["mean"], EstimationSpec(confidence=0.9))
    quantile = stats.t.ppf(0.95, 10_355 - 8)
    assert table["df"].unique().to_list() == [10_347]
    np.testing.assert_allclose(table["upper"] - table["estimate"], quantile * table["se"], rtol=1e-9)
    np.testing.assert_allclose(table["estimate"] - table["lower"], quantile * table["se"], rtol=1e-9)


def test_reliability_follows_the_thresholds(doctorate_survey):
    thresholds = (0.02, 0.05)
    table = tabulate(doctorate_survey, ["field"], ["mean"], EstimationSpec(cv_thresholds=thresholds))
    expected = np.where(table["cv"] <= 0.02, "reliable", np.where(table["cv"] <= 0.05, "caution", "unreliable"))
    assert table["reliability"].to_list() == expected.tolist()
    assert len(set(expected)) > 1


def test_few_degrees_of_freedom_make_an_estimate_less_reliable():
    """The thresholds are 0.1 and 0.3 of what the interval is as long as: 4.30/1.96 times as much with two degrees."""
    cv = np.array([0.0995, 0.04, 0.0995, 0.2, 0.2, 0.0])
    df = np.array([2.0, 2.0, 10_000.0, 2.0, np.inf, 0.0])
    expected = ["caution", "reliable", "reliable", "unreliable", "caution", "unreliable"]
    assert grade(cv, df, EstimationSpec(cv_thresholds=(0.1, 0.3))).tolist() == expected


@pytest.mark.parametrize(("outcomes", "flag"), [([9.0, 10.0, 11.0], "caution"), ([0.0, 20.0] * 150, "reliable")])
def test_a_table_s_flags_go_by_its_degrees_of_freedom(outcomes, flag):
    """Two surveys with the same mean and the same coefficient of variation, of 3 and of 300 records."""
    frame = pl.DataFrame({"y": outcomes, "w": [1.0] * len(outcomes), "a": ["x"] * len(outcomes)})
    survey = svysynth.read_survey(frame, outcome="y", weight="w", public=["a"], transform="identity")
    row = tabulate(survey, [], ["mean"], EstimationSpec(cv_thresholds=(0.1, 0.3)))
    assert row["df"].item() == len(outcomes) - 1
    assert row["cv"].item() == pytest.approx(0.0577, abs=2e-4)
    assert row["reliability"].item() == flag


def test_a_cell_of_a_single_record_is_never_reliable(small):
    table = tabulate(small, ["a", "g"], ["mean"], EstimationSpec(cv_thresholds=(10.0, 20.0)))
    assert table.filter(a="b", g="u")["reliability"].item() == "unreliable"
    assert table.filter(a="a", g="u")["reliability"].item() == "reliable"


def test_several_tables_are_the_single_ones(doctorate_survey):
    """One pass over the finest cells gives the same numbers as a pass for each table."""
    tables = [TableSpec(by=("field",)), TableSpec(by=("gender", "field"), statistics=("total",)), TableSpec(by=())]
    together = tabulate_all(doctorate_survey, tables)
    for table in tables:
        alone = tabulate(doctorate_survey, table.by, table.statistics)
        found = together.filter(table=table.title).select(alone.columns)
        assert found.select(pl.exclude(pl.Float64)).equals(alone.select(pl.exclude(pl.Float64)))
        for column in ("estimate", "se", "lower", "upper", "cv"):
            np.testing.assert_allclose(found[column], alone[column], rtol=1e-11)
    assert together.filter(table="field")["gender"].unique().to_list() == ["All"]


def test_a_domain_is_not_a_filter(small):
    """Leaving out the other records would give the domain's count a smaller variance."""
    table = tabulate(small, ["a"], ["count"])
    kept = svysynth.read_survey(
        small.frame.filter(pl.col("a") == "a"), outcome="y", weight="w", strata="h", public=["a"]
    )
    filtered = tabulate(kept, ["a"], ["count"])
    assert table.filter(a="a")["estimate"].item() == filtered.filter(a="a")["estimate"].item()
    assert table.filter(a="a")["se"].item() > filtered.filter(a="a")["se"].item()


def lonely_survey():
    frame = pl.DataFrame({"y": [1.0, 2.0, 3.0], "w": [1.0, 2.0, 5.0], "h": [1, 1, 2], "a": ["x", "y", "x"]})
    return svysynth.read_survey(frame, outcome="y", weight="w", strata="h", public=["a"])


def test_a_lonely_stratum_fails_unless_a_policy_says_otherwise():
    with pytest.raises(SurveyError, match=r"1 of 2 strata has only one record.*estimation\.lonely"):
        tabulate(lonely_survey(), ["a"])
    certainty = tabulate(lonely_survey(), [], ["count"], EstimationSpec(lonely="certainty"))["se"].item()
    adjusted = tabulate(lonely_survey(), [], ["count"], EstimationSpec(lonely="adjust"))["se"].item()
    assert certainty == pytest.approx(np.sqrt(2 * (0.5**2 + 0.5**2)))
    assert adjusted == pytest.approx(np.sqrt(certainty**2 + 5**2))


def test_no_degrees_of_freedom_means_no_interval():
    frame = pl.DataFrame({"y": [1.0, 2.0], "w": [1.0, 2.0], "h": [1, 2], "a": ["x", "y"]})
    survey = svysynth.read_survey(frame, outcome="y", weight="w", strata="h", public=["a"])
    table = tabulate(survey, ["a"], ["count"], EstimationSpec(lonely="certainty"))
    assert table["lower"].null_count() == table.height


def test_a_column_that_is_not_public_is_refused(small):
    with pytest.raises(SurveyError, match="'h': is not public"):
        tabulate(small, ["h"])


def test_a_table_with_too_many_rows_is_refused():
    n = 2000
    frame = pl.DataFrame({"y": [1.0] * n, "w": [1.0] * n} | {c: range(n) for c in "ab"})
    survey = svysynth.read_survey(frame, outcome="y", weight="w", public=["a", "b"])
    with pytest.raises(SurveyError, match="rows"):
        tabulate(survey, ["a", "b"])


def test_the_proportion_of_the_whole_has_no_error():
    """Without rounding error, whatever the weights."""
    weights = np.random.default_rng(3).uniform(1, 40, 183)
    frame = pl.DataFrame({"y": weights, "w": weights, "c": np.arange(183) % 15, "a": np.arange(183) % 3})
    survey = svysynth.read_survey(frame, outcome="y", weight="w", cluster="c", public="a")
    whole = tabulate(survey, "a", "proportion").row(0, named=True)
    assert (whole["se"], whole["lower"]) == (0.0, whole["upper"])
