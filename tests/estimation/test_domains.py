"""Tables of a domain agree with R's `subset` of a design (`golden/domains/make.R`), and a domain is not a filter."""

import re
import shutil

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import places
import svysynth
from golden_survey import GOLDEN as DESIGNS
from golden_survey import STATISTICS, assert_agrees, find, read_golden_survey
from svysynth.cli.main import main
from svysynth.estimation.replicates import make_replicates

GOLDEN = places.GOLDEN / "domains"
VALUES = pl.read_csv(GOLDEN / "values.csv")
CASES = VALUES.select("design", "domain").unique(maintain_order=True).rows()


def read(design, **named):
    return read_golden_survey(find(design, GOLDEN, DESIGNS), **named)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("design", "domain"), CASES)
def test_estimates_and_standard_errors_are_r_s(design, domain, statistic):
    theirs = VALUES.filter(design=design, domain=domain, statistic=statistic)
    ours = svysynth.tabulate(read(design, domain=domain), ["a", "b"], [statistic])
    assert_agrees(ours, theirs)
    both = ours.join(theirs, on=["a", "b"], suffix="_r")
    assert both["n"].to_list() == both["n_r"].to_list()
    assert both["df"].to_list() == both["df_r"].to_list()


@pytest.mark.parametrize("variance", ["taylor", "jackknife", "bootstrap"])
@pytest.mark.parametrize("design", ["stratified", "stratified_clusters", "clusters"])
def test_a_domain_by_a_public_column_is_the_row_of_that_level(design, variance):
    """Of counts, totals and means; and a proportion in a domain is the domain's mean of an indicator."""
    estimation = svysynth.EstimationSpec(variance=variance, replicates=20)
    survey = read(design, domains=["b = 'b1'"])
    replicates = None if variance == "taylor" else make_replicates(survey.index, estimation, svysynth.Streams.seeded(3))
    statistics = ["count", "total", "mean"]
    inside = svysynth.tabulate(survey, "a", statistics, estimation, replicates, "b = 'b1'").drop("b", strict=False)
    rows = svysynth.tabulate(survey, ["a", "b"], statistics, estimation, replicates).filter(b="b1")
    both = inside.join(rows, on=["statistic", "a"], suffix="_row")
    assert len(both) == len(inside) == len(rows) > 0
    for name in ("estimate", "se"):
        assert both[name].to_list() == pytest.approx(both[f"{name}_row"].to_list(), rel=1e-12)


@pytest.mark.parametrize("variance", ["taylor", "jackknife", "preston"])
def test_a_proportion_in_a_domain_is_the_mean_of_an_indicator_there(variance):
    estimation = svysynth.EstimationSpec(variance=variance, replicates=20)
    frame = pl.read_csv(DESIGNS / "stratified.csv").with_columns(y=(pl.col("a") == "a1").cast(pl.Float64))
    roles = {"outcome": "y", "weight": "w", "strata": "stratum", "transform": "identity"}
    survey = svysynth.read_survey(frame, public=["a", "b"], domain="b = 'b1'", **roles)
    replicates = None if variance == "taylor" else make_replicates(survey.index, estimation, svysynth.Streams.seeded(3))
    share = svysynth.tabulate(survey, "a", "proportion", estimation, replicates).filter(a="a1")
    mean = svysynth.tabulate(survey, [], "mean", estimation, replicates)
    for name in ("estimate", "se"):
        assert share[name][0] == pytest.approx(mean[name][0], rel=1e-12)


def test_domains_of_the_survey_and_of_a_table_meet():
    both = svysynth.tabulate(read("stratified", domain="w > 20 and b = 'b1'"), "a", ["count", "mean", "proportion"])
    survey = read("stratified", domain="w > 20", domains=["b = 'b1'"])
    met = svysynth.tabulate(survey, "a", ["count", "mean", "proportion"], domain="b = 'b1'")
    assert_frame_equal(met.drop("table"), both.drop("table"))
    assert met["table"][0] == "a (b = 'b1') (w > 20)"


def test_a_domain_is_no_filter():
    """Estimates are the same; the standard errors of a filtered file are those of another design."""
    inside, filtered = (
        svysynth.tabulate(read("apiclus2", **{how: "enroll > 400"}), "a", ["count", "mean"])
        for how in ("domain", "where")
    )
    assert inside["estimate"].to_list() == pytest.approx(filtered["estimate"].to_list(), rel=1e-12)
    ratio = (filtered["se"] / inside["se"]).to_list()
    assert max(ratio) > 1.015
    assert min(ratio) < 0.96


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ("y > 1e12", "domain: has no record inside"),
        ("y >", "domain: is not a SQL condition"),
        ("yy > 1", "column 'yy': is not in the data"),
        ("a > 3", "domain: compares column 'a', which is text, with a number"),
        ("avg(y) > 3", "domain: has an aggregate"),
    ],
)
def test_what_is_no_domain_is_one_clear_error(domain, words):
    with pytest.raises(svysynth.SurveyError, match=re.escape(words)):
        read("stratified", domain=domain)


def test_a_domain_has_to_be_read_with_the_survey():
    with pytest.raises(svysynth.SurveyError, match=r"has a domain that was not read.*survey\.domains"):
        svysynth.tabulate(read("stratified"), "a", domain="w > 20")


SPEC = """
[survey]
data = "stratified.csv"
outcome = "y"
weight = "w"
strata = "stratum"
public = ["a", "b"]
transform = "identity"
domain = "w > 20"
population_total = 2000
{privacy}
[[tables]]
by = "a"
domain = "y > 1000"

[[tables]]
by = "b"
"""
PRIVACY = """
[privacy]
mechanism = "laplace"
guarantee = "global"
epsilon = 3
budget = "b"
bounds = { outcome = [0, 10000], weight = [1, 100] }
"""


def test_commands_show_domains_and_a_release_refuses_them_before_the_charge(tmp_path, capsys):
    shutil.copy(DESIGNS / "stratified.csv", tmp_path)
    path = tmp_path / "s.toml"
    path.write_text(SPEC.format(privacy=""))
    assert run("check", path) == 0
    assert "w > 20 (" in capsys.readouterr().out
    assert run("tables", path, "--out", tmp_path / "t.csv") == 0
    tables = pl.read_csv(tmp_path / "t.csv")
    assert tables["table"].unique(maintain_order=True).to_list() == ["a (y > 1000) (w > 20)", "b (w > 20)"]
    survey = read("stratified", domain="w > 20", domains=["y > 1000"])
    expected = svysynth.tabulate(survey, "a", domain="y > 1000")
    assert tables.filter(table="a (y > 1000) (w > 20)")["se"].to_list() == pytest.approx(expected["se"].to_list())
    path.write_text(SPEC.format(privacy=PRIVACY))
    capsys.readouterr()
    assert run("release", path, "--out", tmp_path / "r") == 1
    err = capsys.readouterr().err
    assert "domain: the condition names the confidential column 'w'" in err
    assert "survey.public" in err
    assert not (tmp_path / "r").exists()


def test_domains_that_do_not_meet_are_refused():
    survey = read("stratified", domain="b = 'b1'", domains=["b = 'b2'"])
    with pytest.raises(svysynth.SurveyError, match="no record that is inside both its domain and that of the survey"):
        svysynth.tabulate(survey, "a", domain="b = 'b2'")


@pytest.mark.parametrize("where", ['domain = "w > 20"', 'where = "w > 20"'])
def test_a_frontier_from_public_constants_looks_at_nothing_confidential(tmp_path, capsys, where):
    """Who is inside, or left in, by a confidential column would show in its figures."""
    shutil.copy(DESIGNS / "stratified.csv", tmp_path)
    spec = SPEC.format(privacy=PRIVACY + "\n[standin]\nmean = 1500\nspread = 500\n")
    spec = spec.replace('domain = "y > 1000"\n', "").replace('domain = "w > 20"', where)
    (tmp_path / "s.toml").write_text(spec)
    assert run("frontier", tmp_path / "s.toml", "--out", tmp_path / "f", "--standin") == 1
    assert "names the confidential column 'w'" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()


def run(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code
