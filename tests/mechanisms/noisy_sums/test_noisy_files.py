"""Synthetic files from noisy sums: imputations whose tables are those of their draws, made again from public files."""

import io
import json
import shutil
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import svysynth
from r_survey import r_is_here
from signing import sign
from svysynth.cli.main import main
from svysynth.core import engine
from svysynth.core.engine import Local
from svysynth.core.errors import SurveyError
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import BoundsSpec, PrivacySpec
from svysynth.core.spec.whole import load_spec
from svysynth.estimation.combining import Synthetic, combine_estimates
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums import implied_tables as figuring
from svysynth.mechanisms.noisy_sums import residuals
from svysynth.mechanisms.noisy_sums.from_public_folder import FromPublic
from svysynth.mechanisms.noisy_sums.implied_tables import CellDraws, cell_figures
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.measuring.measurement import measure
from svysynth.mechanisms.noisy_sums.measuring.planning import plan_measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import facts_of
from svysynth.mechanisms.synthetic_files import read_synthetic
from svysynth.privacy.ledger import open_budget
from svysynth.privacy.manifest import Manifest
from svysynth.publishing.verification import verify_release
from svysynth.survey.files import write_frame
from svysynth.survey.on_disk import SurveyOnDisk

STREAMS = svysynth.Streams.seeded(5)
WIDE = BoundsSpec(outcome=(1e2, 1e8), weight=(1.0, 1000.0))
TABLE = TableSpec(by=("region", "sex"), statistics=("count", "mean", "total", "proportion"))
TOTAL = 50_000.0
ROUNDED = 1.1e-7
"""Outcome and weight have eight digits: half of one in the last is 5e-8 at most, of each."""
SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "area"
public = ["region", "sex"]
population_total = 50000

[privacy]
mechanism = "fbs"
guarantee = "global"
epsilon = 12.0
draws = 400
budget = "people"
bounds = { outcome = [1000.0, 10000000.0], weight = [1.0, 1000.0] }

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean", "total"]
"""


def people(n=900, seed=3):
    """Lognormal incomes and weights that go with them, in six cells of regions and sexes and three areas."""
    generator = np.random.default_rng(seed)
    region, sex = np.arange(n) % 3, (np.arange(n) // 3) % 2
    t = 10.3 + 0.2 * region + 0.3 * sex + 0.6 * generator.standard_normal(n)
    v = -0.3 * (t - 11) + 0.5 * generator.standard_normal(n)
    columns = {"region": [f"r{one}" for one in region], "sex": np.where(sex == 1, "m", "f")}
    numbers = {"income": np.exp(t), "wt": TOTAL * np.exp(v) / np.exp(v).sum()}
    return pl.DataFrame(columns | {"area": [f"a{one % 3}" for one in range(n)]} | numbers)


def uneven():
    """Cells of one, two and many records, and one of the six that has none."""
    cell = pl.col("region") + pl.col("sex")
    place = pl.int_range(pl.len()).over("region", "sex")
    return people(600).filter((cell != "r2m") & ~((cell == "r0f") & (place > 0)) & ~((cell == "r1f") & (place > 1)))


def maker(frame=None, transform="log", bounds=WIDE, draws=20, spread=0.4, strata="area"):
    """Makes files of draws that no sampler made: anything can be asked of them."""
    frame = people() if frame is None else frame
    roles = {"outcome": "income", "weight": "wt", "strata": strata, "public": ["region", "sex"]}
    survey = svysynth.read_survey(frame, population_total=TOTAL, transform="identity", **roles)
    facts = facts_of(survey)
    plan = plan_measurement(facts, [TABLE], 6.0)
    measurement = measure(survey, facts, plan, bounds, transform, StudyNoise(STREAMS))
    generator = np.random.default_rng(1)
    shape = draws, len(facts.codes)
    level, width = (10.5, spread) if transform == "log" else (30_000.0, 1e4 * spread)
    drawn = CellDraws(
        level + 0.5 * width * generator.standard_normal(shape),
        0.2 * generator.standard_normal(shape),
        0.02 * generator.standard_normal(shape),
        0.02 * generator.standard_normal(shape),
        width**2 * generator.uniform(0.8, 1.2, draws),
        0.3 * generator.uniform(0.8, 1.2, draws),
        -0.1 * width * generator.uniform(0.8, 1.2, draws),
    )
    return FileMaker(drawn, measurement, facts, 77, "income", strata)


def figures(make, draw):
    """Mean weight and weighted mean outcome of every cell under a draw."""
    total, bounds = make.measurement.population_total, make.measurement.bounds.outcome
    one = make.drawn.only(np.array([draw - 1]))
    found = cell_figures(one, make.facts.size, total, make.measurement.transform, bounds)
    return found.weight[0], found.outcome[0]


def expected_table(make, draw):
    """The requested statistics of every row under a draw, added up here from its cells."""
    weight, outcome = figures(make, draw)
    labels = {
        column: np.array(levels)[make.facts.codes[:, place]]
        for place, (column, levels) in enumerate(make.facts.labels.items())
    }
    cells = pl.DataFrame(labels | {"w": weight * make.facts.size, "wy": weight * make.facts.size * outcome})
    rows = []
    for kept in ([], ["region"], ["sex"], ["region", "sex"]):
        sums = cells.group_by(kept).agg(pl.col("w", "wy").sum()) if kept else cells.select(pl.col("w", "wy").sum())
        sums = sums.with_columns(pl.lit("All").alias(name) for name in ("region", "sex") if name not in kept)
        rows.append(sums.select("region", "sex", "w", "wy"))
    found = pl.concat(rows).with_columns(
        count=pl.col("w"), mean=pl.col("wy") / pl.col("w"), total=pl.col("wy"), proportion=pl.col("w") / TOTAL
    )
    return found.unpivot(
        on=["count", "mean", "total", "proportion"],
        index=["region", "sex"],
        variable_name="statistic",
        value_name="true",
    )


def assert_tables_are_the_draws(make, draw):
    found = Synthetic((make.survey(draw),), "imputed").tabulate_all([TABLE], svysynth.EstimationSpec(lonely="adjust"))
    both = found.join(expected_table(make, draw), on=["statistic", "region", "sex"])
    assert both.height >= 4 * 11
    np.testing.assert_allclose(both["estimate"].to_numpy(), both["true"].to_numpy(), rtol=ROUNDED)


NARROW = BoundsSpec(outcome=(25_000.0, 60_000.0), weight=(1.0, 1000.0))
CASES = {
    "wide bounds": {},
    "bounds that cut": {"bounds": NARROW},
    "bounds that leave nothing": {"bounds": BoundsSpec(outcome=(1e5, 1.1e5), weight=(1.0, 1000.0))},
    "no logarithm": {"transform": "identity", "bounds": BoundsSpec(outcome=(-1e6, 1e6), weight=(1.0, 1000.0))},
    "no logarithm, bounds that cut": {"transform": "identity", "bounds": NARROW},
    "small cells": {"frame": uneven()},
    "small cells, bounds that cut": {"frame": uneven(), "bounds": NARROW},
    "a spread beyond sense": {"spread": 40.0},
    "no strata": {"strata": None},
}


@pytest.mark.parametrize("case", CASES)
def test_every_table_of_a_file_is_that_of_its_draw(case):
    make = maker(**CASES[case])
    for draw in (1, 7):
        assert_tables_are_the_draws(make, draw)
        y = make.survey(draw).outcome_values
        low, high = make.measurement.bounds.outcome
        assert y.min() >= low * (1 - 1e-7 * np.sign(low))
        assert y.max() <= high * (1 + 1e-7)


@pytest.mark.parametrize("block", [1, 7, 100])
@pytest.mark.parametrize("case", ["small cells", "small cells, bounds that cut", "no logarithm, bounds that cut"])
def test_it_is_so_however_cells_lie_in_blocks(case, block, monkeypatch):
    monkeypatch.setattr(engine, "BLOCK", block)
    monkeypatch.setattr(residuals, "BLOCK", block)
    assert_tables_are_the_draws(maker(**CASES[case]), 3)


def test_bounds_cut_something_where_they_should():
    """So that the cases above are what they are called."""
    y = maker(bounds=NARROW).survey(1).outcome_values
    assert 0.02 < np.isin(y, NARROW.outcome).mean() < 0.7
    y = maker().survey(1).outcome_values
    assert len(np.unique(y)) == len(y)


def test_residuals_have_the_scatter_of_the_draw():
    make = maker()
    for draw in (1, 2):
        cell = pl.col("log_y", "log_w") - pl.col("log_y", "log_w").mean().over("region", "sex")
        logs = make.survey(draw).frame.with_columns(log_y=pl.col("income").log(), log_w=pl.col("weight").log())
        off = logs.select(cell).to_numpy()
        one = make.drawn.only(np.array([draw - 1]))
        expected = [[one.outcome_variance[0], one.covariance[0]], [one.covariance[0], one.weight_variance[0]]]
        freedom = len(make.facts) - len(make.facts.codes)
        np.testing.assert_allclose(off.T @ off / freedom, expected, rtol=1e-6)


def test_a_file_has_the_public_columns_of_the_survey_in_one_order():
    make = maker(uneven())
    one, other = (make.survey(draw).frame for draw in (1, 2))
    assert one.columns == ["region", "sex", "area", "income", "weight"]
    assert one.select("region", "sex", "area").equals(other.select("region", "sex", "area"))
    assert not one["income"].equals(other["income"])
    real = uneven().group_by("region", "sex", "area").len().sort("region", "sex", "area")
    made = one.with_columns(
        area=pl.format("a{}", "area"), region=pl.col("region").cast(pl.String), sex=pl.col("sex").cast(pl.String)
    )
    assert made.group_by("region", "sex", "area").len().sort("region", "sex", "area").equals(real)


def test_a_file_does_not_depend_on_parts_threads_and_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "BLOCK", 64)
    monkeypatch.setattr(residuals, "BLOCK", 64)
    for case in ({}, {"bounds": NARROW}):
        make = maker(**case)
        expected = make.survey(4).frame
        parted = replace(make, engine=Local(threads=2, parts=3))
        assert parted.survey(4).frame.equals(expected)
        stored = replace(parted, scratch=tmp_path).survey(4)
        assert isinstance(stored, SurveyOnDisk)
        assert stored.rows(0, len(stored)).frame.equals(expected)
        frames = list(make.frames(4, [range(0, 320), range(320, 900)]))
        assert (
            pl.concat(frames).drop("id").equals(expected.with_columns(pl.col("region", "sex", "area").cast(pl.String)))
        )
        assert pl.concat(frames)["id"].to_list() == list(range(1, 901))


def test_another_seed_is_another_file_with_the_same_tables():
    make = maker()
    other = replace(make, seed=78)
    assert not make.survey(1).frame["income"].equals(other.survey(1).frame["income"])
    assert_tables_are_the_draws(other, 1)


def test_the_order_of_draws_uses_each_once_and_begins_all_over():
    for draws, files in ((400, 10), (1000, 0), (404, 40), (100_000, 7)):
        plan = FilePlan.of(draws, files, STREAMS)
        rest = plan.further(draws)
        assert sorted((*plan.draws, *rest)) == list(range(1, draws + 1))
        for some in (10, 40):
            quarters = np.bincount((np.array(rest[:some]) - 1) * 4 // draws, minlength=4)
            assert quarters.min() >= some // 4 - 2
        assert plan == FilePlan.of(draws, files, STREAMS)
        assert plan.seed != STREAMS.entropy


def test_standard_errors_within_a_file_are_those_of_the_design(monkeypatch):
    """A file's own variance, on average over residuals, is that which samples have; tables leave a part of it out."""
    monkeypatch.setattr(figuring, "_not_followed", lambda *_: 0.0)
    make = maker(people(3000), draws=2)
    same = make.drawn.only(np.zeros(2, np.int64))
    table = FromPublic(replace(make, drawn=same), FilePlan(77, ()), svysynth.EstimationSpec()).tabulate_all([TABLE])
    found = []
    for seed in range(60):
        one = replace(make, seed=seed).survey(1)
        found.append(Synthetic((one,), "imputed").tabulate_all([TABLE])["se"].to_numpy() ** 2)
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    expected = table["se"].to_numpy() ** 2
    known = expected > 0
    assert known.sum() == 4 * 12 - 2
    # a fit of n records to cells leaves their spread short by about K/n, beside chance
    assert (np.abs(mean - expected)[known] <= 4 * error[known] + 0.01 * expected[known]).all()


def test_the_rules_are_rubins():
    """By hand: three estimates, two rows."""
    estimates, variances = (
        np.array([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0]]),
        np.array([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]]),
    )
    found = combine_estimates(estimates, variances, 0.95, imputed=True)
    between = (4 / 3) * 7.0
    np.testing.assert_allclose(found.se, [np.sqrt(2 + between), np.sqrt(2)])
    np.testing.assert_allclose(found.df, [2 * (1 + 2 / between) ** 2, np.inf])


# --- a release ---


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A release that was paid for, and its public folder alone, elsewhere."""
    house = tmp_path_factory.mktemp("house")
    people().write_csv(house / "people.csv")
    (house / "s.toml").write_text(SPEC)
    open_budget(house / "ledger.sqlite", "people", 100, "differential privacy")
    done = svysynth.release(house / "s.toml", house / "out")
    public = tmp_path_factory.mktemp("user") / "public"
    shutil.copytree(house / "out/public", public)
    tables = pl.read_csv(public / "tables.csv", schema_overrides={"df": pl.Float64})
    return SimpleNamespace(house=house, out=house / "out", public=public, done=done, tables=tables)


def copied(released, folder):
    shutil.copytree(released.public, folder)
    return folder


def run(*arguments):
    """Exit code, output and complaint of a command."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
        main([str(one) for one in arguments])
    return left.value.code, out.getvalue(), err.getvalue()


def test_a_release_has_ten_files_and_says_so(released):
    manifest = Manifest.model_validate_json((released.public / "manifest.json").read_text())
    assert manifest.privacy.datasets == manifest.guarantee.datasets == 10
    assert manifest.guarantee.charged == 12.0
    names = {path.name for path in released.public.iterdir()}
    assert names >= {f"microdata-{number}.{ending}" for number in range(1, 11) for ending in ("csv", "parquet")}
    first = pl.read_parquet(released.public / "microdata-1.parquet")
    assert first.columns == ["id", "region", "sex", "area", "income", "weight"]
    assert first["weight"].sum() == pytest.approx(TOTAL, rel=1e-8)
    checked = verify_release(released.out, released.house / "s.toml").checked
    assert "10 synthetic files, made again from the draws and the seed" in checked
    assert any("rows of tables, made again from 400 posterior draws" in line for line in checked)


def test_files_of_all_draws_give_the_tables(released):
    """Their mean estimate is the table's to the last digits, and the standard error by Rubin's rules nearly so.

    It is a little larger: a file's own variance has what a figure of the model does not follow.
    """
    more = svysynth.more(released.public)
    own = [pl.read_parquet(released.public / f"microdata-{number}.parquet") for number in range(1, 11)]
    roles = {"outcome": "income", "public": ["region", "sex"], "strata": "area", "rules": "imputed"}
    surveys = (*read_synthetic(own, **roles).surveys, *more.synthetic(more.left).surveys)
    assert len(surveys) == 400
    found = Synthetic(surveys, "imputed").tabulate(["region", "sex"], ["count", "mean", "total"])
    both = found.join(released.tables, on=["statistic", "region", "sex"], suffix="_table")
    assert both.height == found.height == released.tables.height
    np.testing.assert_allclose(both["estimate"], both["estimate_table"], rtol=1e-8)
    known = both.filter(pl.col("se_table") > 0)
    assert known.height == both.height - 1
    assert (known["se"] / known["se_table"]).is_between(0.97, 1.12).all()


def changed(path, number=0.001):
    frame = pl.read_parquet(path)
    frame = frame.with_columns(
        income=pl.when(pl.col("id") == 5).then(pl.col("income") * (1 + number)).otherwise("income")
    )
    frame.with_columns(pl.col("income").round_sig_figs(8)).write_parquet(path, statistics=False)
    write_frame(pl.read_parquet(path), path.with_suffix(".csv"))


def exchanged(path):
    for ending in (".parquet", ".csv"):
        one, other = path.with_suffix(ending), path.with_name(f"microdata-4{ending}")
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)


def of_another_seed(path):
    place = path.with_name("measurement.json")
    content = json.loads(place.read_text())
    content["files"]["seed"] = f"{int(content['files']['seed'], 16) ^ 1:x}"
    place.write_text(json.dumps(content))


def of_other_draws(path):
    place = path.with_name("measurement.json")
    content = json.loads(place.read_text())
    content["files"]["draws"][2] += 1
    place.write_text(json.dumps(content))


def in_one_format_only(path):
    text = path.with_suffix(".csv")
    text.write_text(text.read_text().replace("1,r0", "1,r1", 1))


@pytest.mark.parametrize("forge", [changed, exchanged, of_another_seed, of_other_draws, in_one_format_only])
def test_files_that_do_not_follow_from_the_draws_are_refused(released, tmp_path, forge):
    public = copied(released, tmp_path / "public")
    verify_release(public, files_only=True)
    forge(public / "microdata-3.parquet")
    sign(public)
    with pytest.raises(SurveyError, match="do not publish it"):
        verify_release(public, files_only=True)


def test_the_report_describes_the_files(released):
    page = (released.public / "report.html").read_text()
    for words in (
        "T = ū + (1 + 1/m)b",
        "MIcombine",
        "svysynth more . --files 20",
        "draws.parquet",
        "synthetic, not smoothed",
    ):
        assert words in page
    assert "weight_unsmoothed" not in page


def test_the_python_and_r_code_of_the_report_combine_alike(released, tmp_path):
    from svysynth.publishing.report.public import snippets

    public, code = copied(released, tmp_path / "public"), snippets(released.done)
    assert 'rules="imputed"' in code["python"]
    names = [public / f"microdata-{number}.csv" for number in range(1, 11)]
    roles = {"outcome": "income", "public": ["region", "sex"], "strata": "area", "rules": "imputed"}
    mine = svysynth.read_synthetic(names, **roles).tabulate(["region", "sex"], ["count", "mean", "total"])
    between = pl.read_csv(public / "tables.csv", schema_overrides={"df": pl.Float64})
    both = mine.join(between, on=["statistic", "region", "sex"], suffix="_table").filter(pl.col("se") > 0)
    # the estimates of ten of the draws, beside that of all: off by less than four errors of ten draws
    spread = (both["se_table"] ** 2).to_numpy()
    assert (np.abs(both["estimate"] - both["estimate_table"]).to_numpy() <= 4 * np.sqrt(spread / 10)).all()
    if not r_is_here():
        pytest.skip("R with the packages survey and mitools is not installed here: the code cannot be run")
    kept = [f'write.csv({one}, "{one}.csv", row.names = FALSE)' for one in ("count", "mean", "total")]
    (public / "use.R").write_text(code["r"] + "\n".join(kept))
    done = subprocess.run(["Rscript", "--vanilla", "use.R"], cwd=public, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for statistic in ("count", "mean", "total"):
        made = pl.read_csv(public / f"{statistic}.csv").join(
            mine.filter(statistic=statistic), on=["region", "sex"], suffix="_python"
        )
        assert made.height == 6
        for name in ("estimate", "se", "df", "lower", "upper"):
            np.testing.assert_allclose(made[name], made[f"{name}_python"], rtol=1e-9)


# --- more ---


def test_more_files_are_of_unused_draws_and_the_same_for_everybody(released, tmp_path):
    code, out, _ = run("more", released.public, "--files", 3, "--out", tmp_path / "three")
    assert code == 0
    assert "uncharged post-processing" in out
    svysynth.more(released.public).write_files(5, tmp_path / "five")
    names = sorted(path.name for path in (tmp_path / "three").iterdir())
    assert names == [f"microdata-{number}.{ending}" for number in (11, 12, 13) for ending in ("csv", "parquet")]
    for name in names:
        assert (tmp_path / "three" / name).read_bytes() == (tmp_path / "five" / name).read_bytes()
    own = [pl.read_parquet(path) for path in released.public.glob("microdata-*.parquet")]
    new = [pl.read_parquet(path) for path in (tmp_path / "five").glob("*.parquet")]
    assert len(new) == 5
    incomes = {tuple(frame["income"].head(20)) for frame in (*own, *new)}
    assert len(incomes) == 15
    assert new[0].schema == own[0].schema


def test_a_regression_of_the_release_is_that_of_its_files_by_rubin_s_rules(released):
    """A saturated regression has the means of the tables; further files are those of `more`."""
    found = svysynth.regress("income ~ 0 + region:sex", released.done)
    names = [released.public / f"microdata-{number}.parquet" for number in range(1, 11)]
    roles = {"outcome": "income", "public": ["region", "sex"], "strata": "area", "rules": "imputed"}
    made = read_synthetic(names, **roles)
    inner = pl.all_horizontal(pl.col("region", "sex") != "All")
    expected = made.tabulate(["sex", "region"], "mean").filter(inner)
    assert found.files == 10
    assert found.table["measured"].unique().to_list() == ["yes"]  # every cell was measured
    for ours, theirs in (("estimate", "estimate"), ("se", "se"), ("df", "df"), ("lower", "lower")):
        np.testing.assert_allclose(found.table[ours], expected[theirs], rtol=1e-7)
    assert svysynth.regress("income ~ 0 + region:sex", released.public).table.drop("df").equals(found.table.drop("df"))
    more = svysynth.regress("income ~ region", released.public, files=12)
    both = replace(made, surveys=(*made.surveys, *svysynth.more(released.public).synthetic(2).surveys))
    np.testing.assert_allclose(more.table["se"], svysynth.regress("income ~ region", both).table["se"], rtol=1e-7)
    assert svysynth.regress("income ~ region", released.public, files=3).files == 3


def test_what_more_gives_says_that_it_costs_nothing(released):
    more = svysynth.more(released.public)
    assert f"{more.left:,}, by synthetic(files)" in more._repr_html_()
    assert "uncharged post-processing" in more._repr_html_()
    further = more.synthetic(1)
    for text in (repr(further), further._repr_html_()):
        assert "ade from the public files of a release: not charged" in text


def test_more_tables_are_those_of_the_release_or_others(released, tmp_path):
    more = svysynth.more(released.public)
    again = more.tabulate(["region", "sex"], ["count", "mean", "total"])
    np.testing.assert_allclose(again["estimate"], released.tables["estimate"], rtol=1e-9)
    np.testing.assert_allclose(again["se"], released.tables["se"], rtol=1e-9)
    code, _, _ = run("more", released.public, "--by", "sex", "--statistics", "mean", "--out", tmp_path / "t.csv")
    assert code == 0
    one = pl.read_csv(tmp_path / "t.csv").select("sex", "estimate").sort("sex")
    rows = released.tables.filter(statistic="mean", region="All").select("sex", "estimate").sort("sex")
    np.testing.assert_allclose(one["estimate"], rows["estimate"], rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--files", "391"], "391 are requested, and this release has 390 left"),
        (["--files", "0"], "ask for 1 to 390"),
        ([], "--files and --by: are both missing"),
        (["--files", "2", "--by", "sex"], "--files and --by: were both given"),
        (["--by", "sexx"], "is not a public column of this release (did you mean 'sex'?)"),
        (["--by", "sex", "--statistics", "median"], "cannot give 'median'"),
    ],
)
def test_what_cannot_be_made_is_one_clear_error(released, tmp_path, arguments, words):
    code, _, err = run("more", released.public, *arguments, "--out", tmp_path / "o.csv")
    assert code == 1
    assert words in err
    assert not (tmp_path / "o.csv").exists()


def test_more_refuses_what_has_no_more_to_give(released, tmp_path):
    spec = (released.house / "s.toml").read_text().replace('"fbs"', '"laplace"')
    (released.house / "l.toml").write_text(spec)
    svysynth.release(released.house / "l.toml", tmp_path / "laplace")
    with pytest.raises(SurveyError, match="allows no further files"):
        svysynth.more(tmp_path / "laplace")
    with pytest.raises(SurveyError, match="has no synthetic files, and a regression needs records"):
        svysynth.regress("income ~ sex", tmp_path / "laplace")
    public = copied(released, tmp_path / "public")
    (public / "draws.parquet").write_bytes(b"")
    with pytest.raises(SurveyError, match="SHA256SUMS"):
        svysynth.more(public)
    sign(public)
    with pytest.raises(SurveyError, match="do not belong to its manifest"):
        svysynth.more(public)
    with pytest.raises(SurveyError, match="exists already"):
        svysynth.more(released.public).write_files(2, tmp_path)


def test_tables_alone_can_be_released_and_have_more_to_give(released, tmp_path):
    spec = load_spec(released.house / "s.toml")
    spec = spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"datasets": 0})})
    svysynth.release(spec, tmp_path / "out")
    assert not list((tmp_path / "out/public").glob("microdata*"))
    assert not any("synthetic" in line for line in verify_release(tmp_path / "out", released.house / "s.toml").checked)
    assert svysynth.more(tmp_path / "out").left == 400
    assert len(svysynth.more(tmp_path / "out").synthetic(2).surveys) == 2
    assert svysynth.regress("income ~ sex", tmp_path / "out").files == 10


# --- the setting ---


def privacy(**changes):
    bounds = {"outcome": [1.0, 2.0], "weight": [1.0, 2.0]}
    return PrivacySpec.model_validate({"epsilon": 1.0, "guarantee": "global", "bounds": bounds} | changes)


def test_the_number_of_files_has_a_usual_value_for_each_guarantee():
    assert privacy().datasets == 10
    assert privacy(guarantee="asymptotic").datasets == 3
    assert privacy(datasets=0).microdata is False
    assert privacy(datasets=2).datasets == 2
    with pytest.raises(ValueError, match="must be 1 or more"):
        privacy(guarantee="asymptotic", datasets=0)
    with pytest.raises(ValueError, match="use fewer datasets"):
        privacy(datasets=200)
