"""Tables from replicate weights of the file agree with R's `svrepdesign` (`golden/replicate_weights/make.R`)."""

import shutil

import polars as pl
import pytest

import places
import svysynth
from golden_survey import STATISTICS, assert_agrees_where_known, read_golden_survey
from svysynth.cli.main import main
from svysynth.core.spec.replicates import numbered
from svysynth.estimation.layout import NO_ERROR, notes_on

GOLDEN = places.GOLDEN / "replicate_weights"
VALUES = pl.read_csv(GOLDEN / "values.csv").with_columns(pl.col("domain").fill_null(""))
CASES = VALUES.select("design", "mse", "domain").unique(maintain_order=True).rows()
OWN = {
    "fay": {"rho": 0.3},
    "jk1": {"scale": 14 / 15},
    "jkn": {"scales": pl.read_csv(GOLDEN / "scales.csv")["scale"].to_list()},
}


def read(design, mse=True, **named):
    path = GOLDEN / f"{design}.csv"
    count = sum(column.startswith("r") for column in pl.read_csv(path, n_rows=0).columns)
    replicates = {"weights": f"r1-r{count}", "method": design, "center": "estimate" if mse else "mean"}
    return read_golden_survey(path, replicates=replicates | OWN.get(design, {}), **named)


@pytest.mark.parametrize(("design", "mse", "domain"), CASES)
def test_estimates_standard_errors_and_degrees_of_freedom_are_r_s(design, mse, domain):
    ours = svysynth.tabulate(read(design, mse, domain=domain or None), ["a", "b"], STATISTICS)
    theirs = VALUES.filter(design=design, mse=mse, domain=domain)
    assert_agrees_where_known(ours, theirs)


def test_a_range_of_names_stands_for_all_of_them():
    assert numbered("PWGTP1-PWGTP3") == ("PWGTP1", "PWGTP2", "PWGTP3")
    assert numbered("rep_08-rep_10") == ("rep_08", "rep_09", "rep_10")
    assert numbered("one") == ("one",)
    assert numbered(["one", "two"]) == ["one", "two"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "fay"}, "'replicates.rho' is for method = 'fay'"),
        ({"method": "jkn"}, "'replicates.scales' is for method = 'jkn'"),
        ({"method": "jkn", "scales": [1.0]}, "as many numbers as there are replicate weights"),
        ({"method": "brr", "scale": 0.5}, "'replicates.scale' is for method = 'jk1' or 'bootstrap'"),
        ({"method": "brr", "weights": ["r1", "y"]}, "names a column that has another role"),
        ({"method": "brr", "weights": "r1"}, "replicates.weights"),
        ({"method": "guess"}, "replicates.method"),
    ],
)
def test_what_is_no_replication_is_one_clear_error(settings, words):
    replicates = {"weights": ["r1", "r2"]} | settings
    with pytest.raises(svysynth.SurveyError) as error:
        svysynth.read_survey(
            GOLDEN / "jk1.csv", outcome="y", weight="w", public="a", transform="identity", replicates=replicates
        )
    assert words in str(error.value)


def test_another_variance_contradicts_the_file_s_own():
    with pytest.raises(svysynth.SurveyError, match=r"estimation\.variance: contradicts survey\.replicates"):
        svysynth.tabulate(read("jk1"), "a", estimation=svysynth.EstimationSpec(variance="jackknife"))


SPEC = """
[survey]
data = "jk1.csv"
outcome = "y"
weight = "w"
public = ["a", "b"]
transform = "identity"
population_total = 6000

[survey.replicates]
weights = "r1-r15"
method = "jk1"
{privacy}
[[tables]]
by = "a"
"""
PRIVACY = """
[privacy]
mechanism = "laplace"
guarantee = "global"
epsilon = 3
budget = "b"
bounds = { outcome = [200, 1000], weight = [1, 100] }
"""


def test_the_spec_cannot_ask_for_another_variance(tmp_path, capsys):
    shutil.copy(GOLDEN / "jk1.csv", tmp_path)
    (tmp_path / "s.toml").write_text(SPEC.format(privacy='[estimation]\nvariance = "jackknife"'))
    assert run("tables", tmp_path / "s.toml") == 1
    assert "'estimation.variance' contradicts 'survey.replicates'" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_replicates_without_weight_have_no_standard_error():
    frame = pl.read_csv(GOLDEN / "jk1.csv").with_columns(
        r1=pl.lit(0.0), r2=pl.col("r3") * pl.col("y").rank().mod(2) - 1
    )
    replicates = {"weights": "r1-r15", "method": "jk1"}
    roles = {"outcome": "y", "weight": "w", "public": ["a", "b"], "transform": "identity"}
    found = svysynth.tabulate(svysynth.read_survey(frame, replicates=replicates, **roles), "a", STATISTICS)
    assert found.filter(statistic="mean")["se"].null_count() > 0
    assert found.filter(statistic="count")["se"].null_count() == 0
    assert notes_on(found) == [NO_ERROR]


def test_commands_use_them_and_a_release_refuses_them_before_the_charge(tmp_path, capsys):
    shutil.copy(GOLDEN / "jk1.csv", tmp_path)
    path = tmp_path / "s.toml"
    path.write_text(SPEC.format(privacy=""))
    assert run("check", path) == 0
    assert "15 (jk1)" in capsys.readouterr().out
    assert run("tables", path, "--out", tmp_path / "t.csv") == 0
    expected = svysynth.tabulate(read("jk1"), "a")
    assert pl.read_csv(tmp_path / "t.csv")["se"].to_list() == pytest.approx(expected["se"].to_list())
    path.write_text(SPEC.format(privacy=PRIVACY))
    capsys.readouterr()
    assert run("release", path, "--out", tmp_path / "r") == 1
    assert "survey.replicates: releases cannot use replicate weights" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def run(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code
