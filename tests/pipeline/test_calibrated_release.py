"""A release with calibrated weights: its files and tables have the totals, and anybody can make the tables again."""

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest

import svysynth
from repeatable import repeatable
from signing import sign
from svysynth import pipeline
from svysynth.core.spec.whole import load_spec
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.verification import verify_release

SPEC = """
[survey]
data = "people.csv"
outcome = "salary"
weight = "wt"
strata = "region"
public = ["region", "sex"]

[survey.calibration]
method = "rake"

[[survey.calibration.margins]]
by = "region"
totals = { east = 2100, north = 1400, south = 1700 }

[[survey.calibration.margins]]
by = "sex"
totals = { F = 2800, M = 2400 }

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
TOTALS = {"region": {"east": 2100, "north": 1400, "south": 1700}, "sex": {"F": 2800, "M": 2400}}
GLOBAL = "[privacy]\nguarantee = 'global'\nbounds = { outcome = [1000, 1000000], weight = [0.5, 500] }"


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
    open_budget(folder / "ledger.sqlite", "people", 100, "asymptotic")
    return pipeline.release(load_spec(folder / "spec.toml"), folder / name, repeatable())


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated") / "in"
    make(folder)
    return folder


def test_the_weights_of_every_file_have_the_totals(house):
    for number in (1, 2, 3):
        frame = pl.read_parquet(house / f"release/public/microdata-{number}.parquet")
        for weight in ("weight", "weight_unsmoothed"):
            for column, totals in TOTALS.items():
                found = frame.group_by(column).agg(pl.col(weight).sum())
                assert dict(found.rows()) == pytest.approx(totals, rel=1e-7)


def test_counts_of_totals_have_no_error_and_cells_have_one(house):
    counts = pl.read_csv(house / "release/public/tables.csv").filter(statistic="count")
    for column, totals in TOTALS.items():
        other = "sex" if column == "region" else "region"
        rows = counts.filter((pl.col(other) == "All") & (pl.col(column) != "All"))
        assert dict(rows.select(column, "estimate").rows()) == pytest.approx(totals, rel=1e-9)
        assert rows["se"].to_list() == [0] * len(rows)
    inner = counts.filter((pl.col("region") != "All") & (pl.col("sex") != "All"))
    assert (inner["se"] > 10).all()


def test_standard_errors_are_those_of_the_confidential_file(house):
    """Not of a file whose weights have no totals: means of regions and counts of cells, roughly."""
    released = pl.read_csv(house / "release/public/tables.csv").filter(statistic="count")
    spec = load_spec(house / "spec.toml")
    survey = svysynth.read_survey(
        house / "people.csv", outcome="salary", weight="wt", strata="region", public=["region", "sex"],
        calibration=spec.survey.calibration,
    )  # fmt: skip
    direct = svysynth.tabulate(survey, ["region", "sex"], "count")
    both = released.join(direct, on=["region", "sex"], suffix="_d").filter(pl.col("se_d") > 0)
    ratio = (both["se"] / both["se_d"]).to_list()
    assert 0.75 < min(ratio) <= max(ratio) < 1.5


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


def test_the_report_says_it_and_shows_how(house):
    page = (house / "release/public/report.html").read_text()
    assert "raked to public totals by region and sex" in page
    assert "no error" in page


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('method = "rake"', 'method = "linear"', "survey.calibration.method: is 'linear'"),
        ('weight = "wt"', 'weight = "wt"\nweight_public = true', "cannot calibrate weights that are public"),
        ("[privacy]\nguarantee = \"asymptotic\"", GLOBAL, "the mechanism 'fbs' (global) cannot calibrate weights"),
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
