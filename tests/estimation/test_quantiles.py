"""Quantiles are exact, in memory and from disk: those of a simple implementation that looks at all records."""

import pickle

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import svysynth
from svysynth.core.engine import LOCAL, Local
from svysynth.core.spec.statistics import number, parse_statistic, written
from svysynth.estimation import quantiles
from svysynth.estimation.quantiles import Distribution, to_keys, to_values
from svysynth.survey.on_disk import store_survey

STATISTICS = ["median", "quantile(0.1)", "quantile(0.99)", "share(> 12)", "share(<= 12)", "mean"]


def twin(values, weights, share, rule):
    """The quantile by its definition."""
    distinct = np.unique(values)
    reached = np.array([weights[values <= value].sum() for value in distinct]) / weights.sum()
    place = min(int(np.argmax(reached >= share - 1e-12)), len(distinct) - 1)
    if rule == "school" and abs(reached[place] - share) <= 1e-12 and place + 1 < len(distinct):
        return (distinct[place] + distinct[place + 1]) / 2
    return distinct[place]


def values_of(kind, count, generator):
    match kind:
        case "skewed":
            return np.exp(generator.normal(0, 4, count))
        case "tied":
            return generator.integers(-3, 4, count).astype(float)
        case "one value":
            return np.full(count, -2.5)
        case "far apart":
            return generator.normal(0, 1, count) * 10.0 ** generator.integers(-300, 300, count)


@pytest.mark.parametrize("at_once", [2**21, 40, 0])
@pytest.mark.parametrize("rule", ["math", "school"])
@pytest.mark.parametrize("kind", ["skewed", "tied", "one value", "far apart"])
def test_quantiles_are_those_of_the_twin(kind, rule, at_once, monkeypatch):
    """Also if few records, or none, may be sorted at once, so that intervals have to shrink."""
    monkeypatch.setattr(quantiles, "SORTED_AT_ONCE", at_once)
    generator = np.random.default_rng(7)
    count, rows = 600, 3
    values, row = values_of(kind, count, generator), generator.integers(0, rows, count)
    weights = generator.choice([1.0, 2.0, 7.5], count)
    total, records = np.bincount(row, weights), np.bincount(row)
    shares = np.array([[0.5, 0.25, 0.001], [0.9, 1.0, np.nan], [weights[row == 0][0] / total[0], 0.0, 0.5]])
    found = Distribution(row, values, weights, total, records, LOCAL).quantiles(shares, rule)
    for (question, place), share in np.ndenumerate(shares):
        inside = row == place
        expected = np.nan if np.isnan(share) else twin(values[inside], weights[inside], share, rule)
        np.testing.assert_equal(found[question, place], expected)


def test_a_share_that_is_reached_exactly_takes_the_value_or_the_middle():
    """Ten equal weights that do not add up exactly: the rounding error of their sums plays no part."""
    values, weights = np.arange(10.0), np.full(10, 0.1)
    distribution = Distribution(np.zeros(10, int), values, weights, np.array([weights.sum()]), np.array([10]), LOCAL)
    assert distribution.quantiles(np.array([[0.3], [0.7]]), "math").ravel().tolist() == [2.0, 6.0]
    assert distribution.quantiles(np.array([[0.3], [0.7]]), "school").ravel().tolist() == [2.5, 6.5]


def test_keys_are_in_the_order_of_values_and_lose_nothing():
    values = np.array([-1e308, -1.5, -1e-320, 0.0, 5e-324, 1.0, np.nextafter(1.0, 2), 1e308])
    assert (np.diff(to_keys(values).astype(object)) > 0).all()
    np.testing.assert_array_equal(to_values(to_keys(values)), values)
    assert to_keys(np.array([-0.0])) == to_keys(np.array([0.0]))


def survey(count=140_000):
    generator = np.random.default_rng(5)
    frame = pl.DataFrame(
        {
            "y": np.round(np.exp(generator.normal(2.5, 1, count)), 1),
            "w": generator.uniform(1, 9, count),
            "a": generator.choice(["x", "y", "z"], count),
            "s": generator.choice(["1", "2", "3", "4"], count),
        }
    )
    return svysynth.read_survey(frame, outcome="y", weight="w", public="a", strata="s", domains=["a <> 'z'"])


class Sent:
    """An engine whose work is sent to another process and back, as Dask sends it."""

    parts, remote = 2, True

    def map(self, function, items, a_core=1):
        yield from map(pickle.loads(pickle.dumps(function)), items)


@pytest.mark.parametrize("at_once", [2**21, 1000])
def test_tables_from_disk_are_those_in_memory_to_the_last_bit(at_once, tmp_path, monkeypatch):
    whole = survey()
    expected = svysynth.tabulate(whole, "a", STATISTICS)
    inside = svysynth.tabulate(whole, "a", "median", domain="a <> 'z'")
    monkeypatch.setattr(quantiles, "SORTED_AT_ONCE", at_once)
    for number_of, engine in enumerate([Local(1), Local(2, parts=3), Sent()]):
        (tmp_path / str(number_of)).mkdir()
        stored = store_survey(whole, tmp_path / str(number_of), engine)
        assert_frame_equal(svysynth.tabulate(stored, "a", STATISTICS), expected, check_exact=True)
        assert_frame_equal(svysynth.tabulate(stored, "a", "median", domain="a <> 'z'"), inside, check_exact=True)


def test_shares_add_up_and_a_share_below_a_quantile_is_its_share():
    table = svysynth.tabulate(survey(5000), "a", ["share(> 12)", "share(<= 12)", "median"])
    above, below = (table.filter(statistic=name)["estimate"] for name in ("share(> 12)", "share(<= 12)"))
    assert (above + below).to_list() == pytest.approx([1.0] * 4)
    median = table.filter(statistic="median", a="All")["estimate"][0]
    share = svysynth.tabulate(survey(5000), [], f"share(<= {median!r})")["estimate"][0]
    assert 0.5 <= share < 0.52
    assert svysynth.tabulate(survey(5000), [], f"share(< {median!r})")["estimate"][0] < 0.5


def test_an_interval_that_reaches_beyond_the_data_is_missing_with_mean_alone():
    frame = pl.DataFrame({"y": np.arange(1.0, 9), "w": np.ones(8), "a": ["x"] * 8})
    few = svysynth.read_survey(frame, outcome="y", weight="w", public="a")
    for interval, known in (("mean", False), ("xlogit", True), ("beta", True)):
        estimation = svysynth.EstimationSpec(quantile_interval=interval)
        row = svysynth.tabulate(few, [], "quantile(0.1)", estimation).row(0, named=True)
        assert row["estimate"] == 1.0
        assert (row["se"] is not None) == (row["lower"] is not None) == known
    assert row["lower"] <= row["estimate"] <= row["upper"]


@pytest.mark.parametrize("interval", ["mean", "xlogit", "beta"])
def test_the_largest_value_of_a_cell_has_no_interval(interval):
    """The share at or below it is 1 in the sample, with a variance of 0, and less than 1 in the population."""
    frame = pl.DataFrame({"y": [3.0, 4, 5, 6], "w": np.ones(4), "a": ["x", "y", "y", "y"]})
    few = svysynth.read_survey(frame, outcome="y", weight="w", public="a")
    estimation = svysynth.EstimationSpec(quantile_interval=interval)
    table = svysynth.tabulate(few, "a", ["median", "quantile(0.9)"], estimation)
    largest = table.filter((pl.col("statistic") == "quantile(0.9)") | (pl.col("a") == "x"))
    assert largest["estimate"].to_list() == [3.0, 6.0, 3.0, 6.0]
    assert largest.select("se", "lower", "upper", "reliability").null_count().row(0) == (4,) * 4


def test_a_cell_without_records_has_no_quantile_and_no_share():
    frame = pl.DataFrame({"y": [1.0, 2, 3, 4], "w": np.ones(4), "a": ["x", "x", "y", "y"], "b": ["p", "p", "q", "p"]})
    sparse = svysynth.read_survey(frame, outcome="y", weight="w", public=["a", "b"])
    table = svysynth.tabulate(sparse, ["a", "b"], ["median", "share(> 2)"]).filter(a="x", b="q")
    assert table.select("estimate", "se", "lower", "n").rows() == [(None, None, None, 0)] * 2


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("quantile( 0.50 )", "median"),
        ("quantile(5e-2)", "quantile(0.05)"),
        ("share(>=1e6)", "share(>= 1000000)"),
        ("share(< -0.5)", "share(< -0.5)"),
        ("mean", "mean"),
    ],
)
def test_a_statistic_is_written_in_one_way(name, shown):
    assert written(name) == shown
    assert written(shown) == shown
    assert parse_statistic(shown) == parse_statistic(name)


def test_numbers_keep_their_digits():
    assert [number(value) for value in (0.1, 1e16, 50000.0, 1 / 3)] == ["0.1", "1e+16", "50000", "0.3333333333333333"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quantile(1)", "'statistics.1' needs a share between 0 and 1, as in quantile(0.25)"),
        ("quantile(50)", "needs a share between 0 and 1"),
        ("share(> 1e999)", "has a threshold that is too large"),
        (
            "share(50000)",
            "'statistics.1' must be one of count, mean, total, proportion, median, answered, a ratio such as "
            "ratio(y, x), a quantile such as quantile(0.25), or a share such as share(> 50000)",
        ),
        ("p50", "must be one of count"),
        ("", "statistics.1"),
    ],
)
def test_what_is_no_statistic_is_one_clear_error(name, words):
    with pytest.raises(svysynth.SurveyError) as error:
        svysynth.tabulate(survey(100), "a", name)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["median", "quantile(0.5)"], "'statistics': 'median' and 'quantile(0.5)' are the same statistic: leave one"),
        (["mean", "share(>1e3)", " share(> 1000)"], "'share(>1e3)' and 'share(> 1000)' are the same statistic"),
        (["mean", "count", "mean"], "'mean' is listed twice: leave one of them out"),
        (["mean", "middle", "mean"], "'mean' is listed twice"),
    ],
)
def test_one_statistic_asked_for_twice_is_refused(names, words):
    with pytest.raises(svysynth.SurveyError) as error:
        svysynth.tabulate(survey(100), "a", names)
    assert words in str(error.value)
