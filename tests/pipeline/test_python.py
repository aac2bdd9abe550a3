"""Python is the command line's equal: the same numbers, the same charge, and errors that say what to do."""

import polars as pl
import pytest

import svysynth
from repeatable import repeat, repeatable
from svysynth import SurveyError
from svysynth.cli.main import main
from svysynth.privacy.ledger import show
from svysynth.survey.survey import survey_from_file

ROLES = {"outcome": "salary", "weight": "weight", "strata": "field", "public": ["field", "gender"]}
BY = ["field", "gender"]


@pytest.fixture(scope="module")
def survey(doctorate_frame):
    return svysynth.read_survey(doctorate_frame, **ROLES, population_total=125199)


@pytest.fixture(scope="module")
def released(paper_demo):
    with pytest.MonkeyPatch.context() as patch:
        repeat(patch)
        return svysynth.release(str(paper_demo / "doctorates.toml"), str(paper_demo / "python")), paper_demo


def test_a_release_in_python_is_that_of_the_command_line(released, monkeypatch):
    _, demo = released
    repeat(monkeypatch)
    before = show(demo / "ledger.sqlite")[0].charges
    with pytest.raises(SystemExit) as caught:
        main(["release", str(demo / "doctorates.toml"), "--out", str(demo / "command")])
    assert not caught.value.code
    assert show(demo / "ledger.sqlite")[0].charges == before + 1
    for name in ("tables.csv", "microdata-1.csv", "microdata-3.csv"):
        assert (demo / "python/public" / name).read_bytes() == (demo / "command/public" / name).read_bytes()


def test_a_release_in_python_is_charged_and_can_be_verified(released):
    release, demo = released
    assert show(demo / "ledger.sqlite")[0].spent >= 10_800_000
    assert release.charge.millionths == 10_800_000
    assert svysynth.verify(str(demo / "python"), str(demo / "doctorates.toml")).ledger


def test_calibrating_step_by_step_gives_what_the_release_gives(released):
    release, demo = released
    survey = survey_from_file(svysynth.load_spec(demo / "doctorates.toml").survey)
    fit = svysynth.calibrate(svysynth.FBS(), survey, epsilon=10.8, streams=repeatable())
    table = fit.synthesize().tabulate(by=BY, statistics=["count", "mean"])
    published = release.tables.select("estimate", "se")
    difference = (table.select("estimate", "se") - published) / published
    assert difference.select(pl.all().abs().max()).row(0) < (1e-9, 1e-9)
    uncorrected = fit.synthesize(correction=False).tabulate(by=BY, statistics=["count", "mean"])
    total = pl.col("statistic").eq("mean") & pl.all_horizontal(pl.col(BY) == "All")
    assert table.filter(total)["estimate"].item() > 1.03 * uncorrected.filter(total)["estimate"].item()


def test_one_name_stands_for_a_list_of_one(doctorate_frame, survey):
    assert svysynth.tabulate(survey, by="field", statistics="mean").equals(
        svysynth.tabulate(survey, by=["field"], statistics=["mean"])
    )
    assert svysynth.TableSpec(by="field", statistics="mean") == svysynth.TableSpec(by=("field",), statistics=("mean",))
    read = svysynth.read_survey(doctorate_frame, **ROLES | {"public": "field"})
    assert read.public == ("field",)


WRONG_TABLES = [
    {"by": "salary"},
    {"by": 3},
    {"by": None},
    {"by": [3]},
    {"by": ["field", "field"]},
    {"by": "field", "statistics": "middle"},
    {"by": "field", "statistics": []},
    {"by": "field", "estimation": "taylor"},
]


@pytest.mark.parametrize("arguments", WRONG_TABLES, ids=str)
def test_a_table_that_cannot_be_made_is_one_error(survey, arguments):
    with pytest.raises(SurveyError):
        svysynth.tabulate(survey, **arguments)


WRONG_CALIBRATIONS = [
    {"epsilon": -1.0},
    {"epsilon": 0},
    {"epsilon": float("nan")},
    {"epsilon": "much"},
    {"epsilon": None},
    {"datasets": 0},
    {"datasets": 2.5},
    {"datasets": 500},
    {"draws": 7},
    {"draws": "many"},
    {"scheme": "none"},
    {"formula": 3},
    {"formula": "field + salary"},
    {"streams": 5},
    {"model": "fbs"},
    {"model": svysynth.FBS},
    {"survey": None},
]


@pytest.mark.parametrize("arguments", WRONG_CALIBRATIONS, ids=str)
def test_a_calibration_that_cannot_be_made_is_one_error(survey, arguments):
    with pytest.raises(SurveyError) as caught:
        svysynth.calibrate(**{"model": svysynth.FBS(), "survey": survey, "epsilon": 10.8} | arguments)
    assert caught.value.remedy


WRONG_SURVEYS = [
    {"outcome": 3},
    {"outcome": "wage"},
    {"public": []},
    {"public": None},
    {"public": ["salary"]},
    {"transform": "sqrt"},
    {"population_total": "many"},
    {"population_total": -5},
    {"labels": "none"},
    {"labels": {"gender": 4}},
    {"where": 5},
]


@pytest.mark.parametrize("arguments", WRONG_SURVEYS, ids=str)
def test_a_survey_that_cannot_be_read_is_one_error(doctorate_frame, arguments):
    with pytest.raises(SurveyError):
        svysynth.read_survey(doctorate_frame, **ROLES | arguments)


def test_a_column_given_for_its_name_is_not_shown(doctorate_frame):
    for role in ("outcome", "weight", "public", "strata"):
        with pytest.raises(SurveyError) as caught:
            svysynth.read_survey(doctorate_frame, **ROLES | {role: doctorate_frame["salary"]})
        assert not any(str(salary) in str(caught.value) for salary in doctorate_frame["salary"].unique())


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (svysynth.TableSpec, {"by": 3}),
        (svysynth.EstimationSpec, {"confidence": 95}),
        (svysynth.EstimationSpec, {"method": "taylor"}),
        (svysynth.release, {"spec": 3, "folder": "out"}),
        (svysynth.release, {"spec": "nowhere.toml", "folder": "out"}),
        (svysynth.verify, {"folder": 3}),
        (svysynth.verify, {"folder": "nowhere"}),
        (svysynth.verify, {"folder": "nowhere", "ledger": "nowhere.toml"}),
        (svysynth.verify, {"folder": "nowhere", "ledger": 3}),
        (svysynth.load_spec, {"path": 3}),
        (svysynth.open_budget, {"path": 3, "name": "people", "total": 1, "accounting": "asymptotic"}),
        (svysynth.open_budget, {"path": "nowhere/l.sqlite", "name": 3, "total": 1, "accounting": "asymptotic"}),
        (svysynth.open_budget, {"path": "nowhere/l.sqlite", "name": "people", "total": -1, "accounting": "asymptotic"}),
        (svysynth.open_budget, {"path": "l.sqlite", "name": "people", "total": 1, "accounting": "global"}),
        (svysynth.Streams.seeded, {"seed": -1}),
        (svysynth.Streams.seeded, {"seed": "one"}),
        (svysynth.tabulate, {"survey": pl.DataFrame({"salary": [51234]}), "by": "field"}),
    ],
)
def test_wrong_arguments_are_the_one_error(call, arguments):
    with pytest.raises(SurveyError) as caught:
        call(**arguments)
    assert "51234" not in str(caught.value)
