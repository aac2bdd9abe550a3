"""A release with calibrated weights: its files and tables have the totals, and anybody can make the tables again."""

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest

import svysynth
from raked import raked
from repeatable import repeat
from signing import sign
from svysynth import pipeline
from svysynth.core.spec.whole import load_spec
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.verification import verify_release

TOTALS = {"region": {"east": 2100, "north": 1400, "south": 1700}, "sex": {"F": 2800, "M": 2400}}
SPEC = f"""
[survey]
data = "people.csv"
outcome = "salary"
weight = "wt"
strata = "region"
public = ["region", "sex"]

{raked(**TOTALS)}
[privacy]
guarantee = "asymptotic"
mechanism = "fbs"
epsilon = 12.0
datasets = 3
draws = 400
correction = false
budget = "people"

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean", "total"]
"""
GLOBAL = """
[privacy]
guarantee = "global"
mechanism = "fbs"
epsilon = 60.0
datasets = 4
draws = 400
budget = "people"
bounds = { outcome = [1000, 1000000], weight = [0.5, 500] }

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean", "total", "proportion"]
"""
GLOBAL = SPEC.split("[privacy]")[0] + GLOBAL


def make(folder, text=SPEC, name="release"):
    generator = np.random.default_rng(5)
    count = 400
    region = generator.choice(["east", "north", "south"], count)
    people = {
        "region": region,
        "sex": generator.choice(["F", "M"], count),
        "salary": np.exp(10 + 0.2 * (region == "east") + 0.4 * generator.standard_normal(count)),
        "wt": 12.5 * np.exp(0.4 * generator.standard_normal(count)),
    }
    folder.mkdir(exist_ok=True)
    pl.DataFrame(people).write_csv(folder / "people.csv")
    (folder / "spec.toml").write_text(text)
    open_budget(folder / "ledger.sqlite", "people", 100, "differential privacy" if "global" in text else "asymptotic")
    with pytest.MonkeyPatch.context() as patch:
        repeat(patch)
        return pipeline.release(load_spec(folder / "spec.toml"), folder / name)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated") / "in"
    make(folder)
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured") / "in"
    make(folder, GLOBAL)
    return folder


@pytest.fixture(params=["house", "measured"])
def either(request):
    return request.getfixturevalue(request.param)


def test_the_weights_of_every_file_have_the_totals(either):
    for number in (1, 2, 3):
        frame = pl.read_parquet(either / f"release/public/microdata-{number}.parquet")
        for weight in set(frame.columns) & {"weight", "weight_unsmoothed"}:
            for column, totals in TOTALS.items():
                found = frame.group_by(column).agg(pl.col(weight).sum())
                assert dict(found.rows()) == pytest.approx(totals, rel=1e-7)


def test_counts_of_totals_have_no_error_and_cells_have_one(either):
    counts = pl.read_csv(either / "release/public/tables.csv").filter(statistic="count")
    for column, totals in TOTALS.items():
        other = "sex" if column == "region" else "region"
        rows = counts.filter((pl.col(other) == "All") & (pl.col(column) != "All"))
        assert dict(rows.select(column, "estimate").rows()) == pytest.approx(totals, rel=1e-9)
        assert rows["se"].to_list() == [0] * len(rows)
    inner = counts.filter((pl.col("region") != "All") & (pl.col("sex") != "All"))
    assert (inner["se"] > 10).all()


def test_standard_errors_are_those_of_the_confidential_file(either):
    """Roughly, and not those of a file whose weights have no totals."""
    house = either
    released = pl.read_csv(house / "release/public/tables.csv")
    spec = load_spec(house / "spec.toml")
    survey = svysynth.read_survey(
        house / "people.csv", outcome="salary", weight="wt", strata="region", public=["region", "sex"],
        calibration=spec.survey.calibration,
    )  # fmt: skip
    direct = svysynth.tabulate(survey, ["region", "sex"], ["count", "mean", "total"])
    both = released.join(direct, on=["statistic", "region", "sex"], suffix="_d").filter(pl.col("se_d") > 0)
    ratio = (both["se"] / both["se_d"]).to_list()
    assert len(ratio) == 12 - 6 + 24 - 12 + 6 - 6 + 12
    assert 0.6 < min(ratio) <= max(ratio) < 1.8  # the direct ones vary too, and what three files differ by varies much
    of_counts = both.filter(statistic="count").select(pl.col("se") / pl.col("se_d"))["se"].to_list()
    assert 0.85 < min(of_counts) <= max(of_counts) < 1.15


def test_the_release_is_verified_and_its_tables_are_made_again_from_the_files(house):
    assert verify_release(house / "release", house / "ledger.sqlite").ledger
    manifest = json.loads((house / "release/public/manifest.json").read_text())
    assert manifest["survey"]["calibration"]["method"] == "rake"
    assert manifest["survey"]["population_total"] == 5200
    synthetic = svysynth.read_synthetic(
        sorted((house / "release/public").glob("microdata-*.csv")),
        outcome="salary", public=["region", "sex"], strata="region", calibration=manifest["survey"]["calibration"],
    )  # fmt: skip
    table = synthetic.tabulate(["region", "sex"], ["count", "mean", "total"])
    released = pl.read_csv(house / "release/public/tables.csv")
    for column in ("estimate", "se"):
        assert table[column].to_list() == pytest.approx(released[column].to_list(), rel=1e-8)


def test_a_measured_release_is_verified_and_further_files_have_the_totals_too(measured):
    assert verify_release(measured / "release", measured / "ledger.sqlite").ledger
    more = svysynth.more(measured / "release")
    released = pl.read_csv(measured / "release/public/tables.csv")
    again = more.tabulate(["region", "sex"], ["count", "mean", "total", "proportion"])
    assert again["se"].to_list() == pytest.approx(released["se"].to_list(), rel=1e-8)
    further = more.synthetic(20)
    for column, totals in TOTALS.items():
        found = further.surveys[0].frame.group_by(column).agg(pl.col("weight").sum())
        assert {str(label): total for label, total in found.rows()} == pytest.approx(totals, rel=1e-7)
    of_files = further.tabulate(["region", "sex"], ["count", "mean", "total"])
    both = of_files.join(released, on=["statistic", "region", "sex"], suffix="_r").filter(pl.col("se_r") > 0)
    assert 0.75 < (both["se"] / both["se_r"]).min() <= (both["se"] / both["se_r"]).max() < 1.35
    assert ((both["estimate"] - both["estimate_r"]).abs() < both["se_r"]).all()
    exact = of_files.filter(pl.col("statistic") == "count", (pl.col("region") == "All") | (pl.col("sex") == "All"))
    assert exact["se"].to_list() == [0.0] * len(exact)


def test_a_file_without_the_totals_is_found(house, tmp_path):
    shutil.copytree(house, tmp_path / "in")
    public = tmp_path / "in/release/public"
    frame = pl.read_parquet(public / "microdata-1.parquet")
    east = pl.col("region") == "east"
    moved = [
        pl.when(east).then(pl.col(name) * 1.01).otherwise(pl.col(name) * (1 - 21 / 3100))
        for name in ("weight", "weight_unsmoothed")
    ]
    frame = frame.with_columns(moved).with_columns(pl.col("weight", "weight_unsmoothed").round_sig_figs(8))
    frame.write_parquet(public / "microdata-1.parquet")
    frame.write_csv(public / "microdata-1.csv")
    sign(public)
    with pytest.raises(svysynth.SurveyError, match="weights do not have the declared totals"):
        verify_release(public, files_only=True)


def test_the_report_says_it(either):
    page = (either / "release/public/report.html").read_text()
    assert "raked to public totals by region and sex" in page
    assert "no error" in page


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('method = "rake"', 'method = "linear"', "survey.calibration.method: is 'linear'"),
        ('weight = "wt"', 'weight = "wt"\nweight_public = true', "cannot calibrate weights that are public"),
        ("east = 2100, ", "", "different populations"),
        ("east = 2100, north = 1400", "east = 2100, west = 1400", "has no total for some levels of region"),
    ],
)  # fmt: skip
def test_what_cannot_be_calibrated_is_refused_before_the_charge(tmp_path, old, new, words):
    assert old in SPEC
    text = SPEC.replace(old, new)
    if "global" in new:
        text = text.replace("correction = false\n", "")
    with pytest.raises(svysynth.SurveyError, match=re.escape(words)):
        make(tmp_path / "in", text)
    assert not (tmp_path / "in/release").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('weight = "wt"', 'weight = "wt"\nweight_public = true', "cannot calibrate weights that are public"),
        ('method = "rake"', 'method = "linear"', "survey.calibration.method: is 'linear'"),
    ],
)
def test_what_noisy_sums_cannot_calibrate_is_refused_before_the_charge(tmp_path, old, new, words):
    with pytest.raises(svysynth.SurveyError, match=re.escape(words)):
        make(tmp_path / "in", GLOBAL.replace(old, new))
    assert not (tmp_path / "in/release").exists()
