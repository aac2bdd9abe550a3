"""Tables from calibrated weights agree with R's `postStratify` and `calibrate` (`golden/calibration/make.R`)."""

import re
import shutil

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import places
import svysynth
from golden_survey import STATISTICS, assert_agrees, assert_agrees_where_known, find, read_golden_survey
from svysynth.cli.main import main
from svysynth.core.engine import LOCAL
from svysynth.estimation.replicates import make_replicates
from svysynth.survey.on_disk import store_survey

GOLDEN = places.GOLDEN / "calibration"
PLACES = (GOLDEN, places.GOLDEN / "survey", places.GOLDEN / "domains", places.GOLDEN / "replicate_weights")
TOTALS = pl.read_csv(GOLDEN / "totals.csv", schema_overrides={"a": pl.String, "b": pl.String})
VALUES = pl.read_csv(GOLDEN / "values.csv").with_columns(pl.col("domain").fill_null(""))
CASES = VALUES.select("design", "method", "domain").unique(maintain_order=True).rows()
STAGES = places.GOLDEN / "stages"
BY_STAGE = {"strata": ["stratum"], "cluster": ["psu", "ssu"], "fpc": ["fpc1", "fpc2", "fpc3"]}
REPLICATES = {"jk1": {"method": "jk1", "scale": 14 / 15}, "bootstrap": {"method": "bootstrap"}}


def totals_of(design, method):
    """The calibration of a golden case, as a spec has it."""
    margins = []
    for part in TOTALS.filter(design=design, method=method).partition_by("margin", maintain_order=True):
        by = [column for column in ("a", "b") if part[column].null_count() == 0]
        nested = {}
        for row in part.rows(named=True):
            inner = nested
            for column in by[:-1]:
                inner = inner.setdefault(row[column], {})
            inner[row[by[-1]]] = row["total"]
        margins.append({"by": by, "totals": nested})
    return {"method": method.split()[0], "margins": margins}


def read(design, **named):
    name, folders = (design[7:], [STAGES]) if design.startswith("stages ") else (design, PLACES)
    path = find(name, *folders)
    columns, roles = pl.read_csv(path, n_rows=0).columns, {}
    if folders == [STAGES]:
        roles = {role: [name for name in names if name in columns] or None for role, names in BY_STAGE.items()}
    if design in REPLICATES:
        count = sum(column.startswith("r") for column in columns)
        roles["replicates"] = {"weights": f"r1-r{count}"} | REPLICATES[design]
    return read_golden_survey(path, **(roles | named))


@pytest.mark.parametrize(("design", "method", "domain"), CASES)
def test_estimates_and_standard_errors_are_r_s(design, method, domain):
    ours = svysynth.tabulate(
        read(design, calibration=totals_of(design, method), domain=domain or None), ["a", "b"], STATISTICS
    )
    theirs = VALUES.filter(design=design, method=method, domain=domain)
    assert_agrees_where_known(ours, theirs)


@pytest.mark.parametrize("design", ["apiclus1", "apistrat", "apiclus2", "stratified_clusters"])
def test_raked_counts_are_those_of_r_s_rake(design):
    """Its standard errors are not: R's `rake` takes the regression without weights, and `calibrate` with them."""
    theirs = pl.read_csv(GOLDEN / "raked.csv").filter(design=design)
    ours = svysynth.tabulate(read(design, calibration=totals_of(design, "rake")), ["a", "b"], "count")
    both = ours.join(theirs, on=["a", "b"], suffix="_r")
    assert len(both) == len(ours) == len(theirs)
    assert both["estimate"].to_list() == pytest.approx(both["estimate_r"].to_list(), rel=1e-9)


@pytest.mark.parametrize("method", ["post-stratify a", "rake", "linear"])
def test_replicates_made_here_are_calibrated_one_by_one(method):
    """The jackknife of apiclus1 without its fpc is R's replicate design `jk1`, to which R calibrates each replicate."""
    estimation = svysynth.EstimationSpec(variance="jackknife")
    survey = read("apiclus1", calibration=totals_of("jk1", method), fpc=None)
    ours = svysynth.tabulate(survey, ["a", "b"], ["count", "total", "proportion"], estimation)
    theirs = VALUES.filter(pl.col("statistic") != "mean", design="jk1", method=method)
    assert_agrees(ours, theirs)


@pytest.mark.parametrize("method", ["post-stratify a", "post-stratify a b", "rake", "linear"])
@pytest.mark.parametrize("variance", ["taylor", "bootstrap"])
def test_counts_of_totals_are_the_totals_without_error(method, variance):
    calibration = totals_of("stratified", method)
    survey, estimation = read("stratified", calibration=calibration), svysynth.EstimationSpec(variance=variance)
    replicates = None
    if variance != "taylor":  # with a seed, because a replicate may have no record of a level
        replicates = make_replicates(survey.index, estimation, svysynth.Streams.seeded(1))
    for margin in calibration["margins"]:
        found = svysynth.tabulate(survey, margin["by"], "count", estimation, replicates)
        shown = found.filter(*(pl.col(column) != "All" for column in margin["by"]))
        inner = [value if isinstance(value, dict) else {None: value} for value in margin["totals"].values()]
        totals = [total for row in inner for total in row.values()]
        assert sorted(shown["estimate"]) == pytest.approx(sorted(totals), rel=1e-11)
        assert found["se"].to_list() == [0.0] * len(found)


def test_linear_calibration_is_the_regression_estimator_record_by_record():
    """A second, simple implementation, on the records of an unequally weighted design."""
    calibration = totals_of("stratified", "linear")
    survey = read("stratified", calibration=calibration)
    frame, w, y = survey.frame, survey.weights, survey.outcome_values
    totals = [
        (by, level, total) for m in calibration["margins"] for by in m["by"] for level, total in m["totals"].items()
    ]
    x = np.stack([(frame[by] == level).to_numpy() for by, level, _ in totals], axis=1).astype(float)
    target = np.array([total for *_, total in totals])
    g = 1 + x @ np.linalg.lstsq(x.T @ (w[:, None] * x), target - x.T @ w)[0]
    found = svysynth.tabulate(survey, [], "total")
    assert found["estimate"][0] == pytest.approx(np.sum(g * w * y), rel=1e-10)
    root = np.sqrt(w)
    z = g * w * (y - x @ np.linalg.lstsq(x * root[:, None], y * root)[0])
    stratum = frame["stratum"].to_numpy()
    parts = [z[stratum == one] for one in np.unique(stratum)]
    variance = sum(len(part) / (len(part) - 1) * np.sum((part - part.mean()) ** 2) for part in parts)
    assert found["se"][0] == pytest.approx(np.sqrt(variance), rel=1e-10)


def test_calibration_is_the_same_from_disk(tmp_path):
    survey = read("stratified", calibration=totals_of("stratified", "rake"))
    stored = store_survey(survey, tmp_path, LOCAL)
    expected = svysynth.tabulate(survey, ["a", "b"], STATISTICS)
    assert_frame_equal(svysynth.tabulate(stored, ["a", "b"], STATISTICS), expected)


ENOUGH = {"a1": 500.0, "a2": 300.0, "a3": 200.0}


@pytest.mark.parametrize(
    ("margins", "method", "words"),
    [
        ([{"by": "a", "totals": {"a1": 1.0, "a2": 2.0}}], "rake", "has no total for some levels of a that occur"),
        ([{"by": "a", "totals": ENOUGH | {"a9": 3.0}}], "rake", "has a total for a level of a that no record"),
        (
            [{"by": "a", "totals": ENOUGH}, {"by": "b", "totals": {"b1": 1.0, "b2": 2.0}}],
            "rake",
            "different populations",
        ),
        ([{"by": "a", "totals": ENOUGH}] * 2, "linear", "'calibration.margins': a name is listed twice"),
        ([{"by": "c", "totals": {"c1": 1.0}}], "rake", "names 'c', which is not one of the public columns"),
        ([{"by": ["a", "b"], "totals": ENOUGH}], "rake", "nested as deeply as 'by' has columns"),
        ([{"by": "a", "totals": ENOUGH | {"a1": -1.0}}], "rake", "greater than 0"),
        ([{"by": "a", "totals": {"a1": {"b1": {"x": {}}}}}], "rake", "totals"),
        ([{"by": "a", "totals": ENOUGH}], "guess", "method"),
        (
            [{"by": "a", "totals": ENOUGH}, {"by": "b", "totals": {"b1": 999.0, "b2": 1.0}}],
            "linear",
            "linear calibration makes some weights zero or negative",
        ),
        (
            [
                {"by": "a", "totals": ENOUGH},
                {"by": ["a", "b"], "totals": {a: {"b1": 1000 / 6, "b2": 1000 / 6} for a in ENOUGH}},
            ],
            "linear",
            "no weights meet all of the totals",
        ),
        (
            [
                {"by": "a", "totals": ENOUGH},
                {"by": ["a", "b"], "totals": {a: {"b1": 1000 / 6, "b2": 1000 / 6} for a in ENOUGH}},
            ],
            "rake",
            "no weights meet all of the totals",
        ),
    ],
)
def test_totals_that_cannot_be_met_are_one_clear_error(margins, method, words):
    calibration = {"method": method, "margins": margins}
    with pytest.raises(svysynth.SurveyError, match=re.escape(words)):
        svysynth.tabulate(read("stratified", calibration=calibration), "a")


def test_the_population_total_is_the_sum_of_the_totals():
    calibration = {"method": "post-stratify", "margins": [{"by": "a", "totals": ENOUGH}]}
    read("stratified", calibration=calibration, population_total=1000)
    with pytest.raises(svysynth.SurveyError, match="'population_total' is not the sum of the totals"):
        read("stratified", calibration=calibration, population_total=2000)


def test_a_replicate_without_a_level_is_refused():
    frame = pl.read_csv(GOLDEN / "apiclus1.csv").with_columns(
        a=pl.when(psu=637).then(pl.lit("only")).otherwise(pl.lit("others")),
        r1=pl.when(psu=637).then(0.0).otherwise(40.0),
    )
    frame = frame.with_columns(r2=pl.col("w"))
    margins = [{"by": "a", "totals": {"only": 300.0, "others": 5900.0}}]
    roles = {"outcome": "y", "weight": "w", "public": "a", "transform": "identity"}
    replicates = {"weights": ["r1", "r2"], "method": "bootstrap"}
    survey = svysynth.read_survey(
        frame, replicates=replicates, calibration={"method": "rake", "margins": margins}, **roles
    )
    with pytest.raises(svysynth.SurveyError, match=r"no weights meet all of the totals.*or in a replicate"):
        svysynth.tabulate(survey, "a")


SPEC = """
[survey]
data = "apistrat.csv"
outcome = "y"
weight = "w"
strata = "stratum"
public = ["a", "b"]
transform = "identity"

[survey.calibration]
method = "rake"

[[survey.calibration.margins]]
by = "a"
totals = { E = 4421, H = 755, M = 1018 }

[[survey.calibration.margins]]
by = "b"
totals = { No = 2027, Yes = 4167 }
{privacy}
[[tables]]
by = "b"
"""
PRIVACY = """
[privacy]
mechanism = "laplace"
guarantee = "global"
epsilon = 3
budget = "b"
bounds = { outcome = [200, 1000], weight = [1, 100] }
"""


def test_commands_calibrate_and_laplace_refuses_it_before_the_charge(tmp_path, capsys):
    shutil.copy(GOLDEN / "apistrat.csv", tmp_path)
    path = tmp_path / "s.toml"
    path.write_text(SPEC.replace("{privacy}", ""))
    assert run("check", path) == 0
    assert "rake, to totals: 3 of a and 2 of b, for a population of 6,194" in " ".join(capsys.readouterr().out.split())
    assert run("tables", path, "--out", tmp_path / "t.csv") == 0
    table = pl.read_csv(tmp_path / "t.csv").filter(statistic="count")
    assert table["estimate"].to_list() == pytest.approx([6194, 2027, 4167])
    assert table["se"].to_list() == [0, 0, 0]
    path.write_text(SPEC.replace("{privacy}", "").replace("E = 4421, ", "K = 4421, "))
    assert run("check", path) == 1
    assert "survey.calibration: has no total for some levels of a" in " ".join(capsys.readouterr().err.split())
    path.write_text(SPEC.replace("{privacy}", PRIVACY))
    assert run("release", path, "--out", tmp_path / "r") == 1
    assert "survey.calibration: the mechanism 'laplace' (global) cannot calibrate weights" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def run(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code
