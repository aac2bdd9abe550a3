"""The frontier: one fit for each Δ, errors as defined, a stand-in that knows no confidential number, the command."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from svysynth.cli.main import main
from svysynth.core.spec.whole import StandInSpec, parse_spec
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate_all
from svysynth.evaluation import frontier as study
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.pseudo_posterior import mechanism as pseudo_posterior

TEXT = """
[survey]
data = "x.csv"
outcome = "salary"
weight = "weight"
strata = "field"
public = ["field", "gender"]
population_total = 100000.0
[privacy]
guarantee = "asymptotic"
epsilon = 10.8
mechanism = "fbp"
bounds = { outcome = [0.0, 400000.0], weight = [1.0, 1000.0] }
[standin]
mean = 11.5
spread = 0.4
weight_spread = 0.6
correlation = -0.5
"""


@pytest.fixture(scope="module")
def survey():
    return draw_sample(make_population(Streams.seeded(1)), Streams.seeded(1))


@pytest.fixture(scope="module")
def spec():
    return parse_spec(TEXT)


def run(survey, spec, mechanisms=("fbp", "laplace", "laplace-paper"), epsilons=(10.8, 21.6), datasets=(1, 2)):
    return study.frontier(survey, spec, mechanisms, epsilons, datasets, Streams.seeded(3), repeats=2)


@pytest.fixture(scope="module")
def found(survey, spec):
    return run(survey, spec)


def test_every_point_of_the_grid_is_there(found):
    points = found.select("mechanism", "epsilon", "datasets", "repeat").unique()
    assert points.height == (4 + 2 + 2) * 2
    assert found.height == points.height * 54


def test_each_bound_is_fitted_once(survey, spec, monkeypatch):
    targets = []
    original = pseudo_posterior.calibrate_records

    def counted(model, records, epsilon, datasets, *rest, **named):
        targets.append(epsilon / (2 * datasets))
        return original(model, records, epsilon, datasets, *rest, **named)

    monkeypatch.setattr(pseudo_posterior, "calibrate_records", counted)
    run(survey, spec, mechanisms=("fbp",))
    assert sorted(targets) == [2.7, 5.4, 10.8]  # (10.8, 1) and (21.6, 2) share Δ = 5.4


def test_the_ratio_is_the_rmse_over_the_direct_standard_error(survey, spec, found):
    direct = tabulate_all(survey, spec.requested_tables, spec.estimation)
    one = found.filter(mechanism="fbp", epsilon=10.8, datasets=1, repeat=0)
    expected = np.hypot(one["estimate"] - direct["estimate"], one["se"]) / direct["se"]
    np.testing.assert_allclose(one["rmse_ratio"].to_numpy(), expected, rtol=1e-12)


def test_the_summary_has_medians_and_quartiles(found):
    summary = study.summarize(found)
    assert summary.height == 8 * 2
    row = summary.filter(mechanism="laplace-paper", epsilon=10.8, statistic="mean").row(0, named=True)
    cells = found.filter(mechanism="laplace-paper", epsilon=10.8, statistic="mean")["rmse_ratio"]
    assert row["median"] == cells.median()
    assert row["lower_quartile"] < row["median"] < row["upper_quartile"]


def test_noise_is_worse_than_synthesis_in_the_paper_s_own_simulation(found):
    summary = study.summarize(found).filter(epsilon=10.8, statistic="mean")
    median = dict(summary.filter(pl.col("datasets") < 2).select("mechanism", "median").iter_rows())
    assert median["fbp"] < median["laplace-paper"]


def test_a_stand_in_knows_the_public_columns_and_constants_only(survey):
    constants = StandInSpec(mean=11.5, spread=0.4, weight_spread=0.6, correlation=-0.5)
    confidential = survey.frame.with_columns(salary=pl.col("salary") * 3, weight=pl.lit(7.0))
    made = [
        study.make_standin(one, constants, Streams.seeded(5)) for one in (survey, replace(survey, frame=confidential))
    ]
    assert made[0].frame.equals(made[1].frame)
    assert made[0].frame.select("field", "gender").equals(survey.frame.select("field", "gender"))
    t, v = np.log(made[0].outcome_values), np.log(made[0].weights)
    error = 5 / np.sqrt(len(survey))
    assert t.mean() == pytest.approx(11.5, abs=0.4 * error)
    assert t.std() == pytest.approx(0.4, abs=0.4 * error)
    assert v.std() == pytest.approx(0.6, abs=0.6 * error)
    assert np.corrcoef(t, v)[0, 1] == pytest.approx(-0.5, abs=error)
    assert made[0].weights.sum() == pytest.approx(100_000)


@pytest.mark.parametrize("standin", [True, False])
def test_the_command_says_what_is_not_accounted_for(demo, tmp_path, capsys, standin):
    arguments = ["frontier", f"{demo}/doctorates.toml", "--out", f"{tmp_path}/f", "--mechanism", "laplace-paper"]
    arguments += ["--epsilon", "5,10", "--repeats", "1", "--seed", "1", *(["--standin"] if standin else [])]
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out = capsys.readouterr().out
    assert not caught.value.code
    assert ("no confidential number" in out) == standin
    assert ("no budget accounts for" in out) != standin
    pictures = {f"{name}.{ending}" for name in ("frontier", "ratios") for ending in ("svg", "png")}
    assert {path.name for path in (tmp_path / "f").iterdir()} == {"cells.csv", "summary.csv"} | pictures
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "5,x"], "--epsilon"),
        (["--epsilon", "-1"], "--epsilon"),
        (["--datasets", "1.5"], "--datasets"),
        (["--mechanism", "magic"], "--mechanism"),
        (["--mechanism", "laplace", "--epsilon", "5"], "privacy.bounds"),
    ],
)
def test_bad_grids_are_one_error_and_leave_nothing(paper_demo, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main(["frontier", f"{paper_demo}/doctorates.toml", "--out", f"{tmp_path}/f", *arguments])
    assert caught.value.code == 1
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
