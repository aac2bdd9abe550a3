"""Releases whose public columns are made as `survey.columns` says: bands, recodes, missing levels and labels."""

import json
import zipfile
from functools import partial

import numpy as np
import polars as pl
import pytest

import svysynth
from repeatable import repeat
from svysynth import load_spec
from svysynth.mechanisms.noisy_sums import mechanism
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement
from svysynth.pipeline import release
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.verification import verify_release

SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "zone"
public = ["age", "smokes"]
population_total = 50000
missing = ["N"]

[survey.columns.age]
from = "RIDAGEYR"
bands = [45, 150]
missing = "-9"
missing_level = "not stated"
label = "Age of the <householder>"
[survey.columns.smokes]
recode = { 1 = "yes", 2 = "no", 3 = "no" }
missing_level = "not stated"
[survey.columns.zone]
from = "smokes"
missing_level = "9"
[survey.columns.income]
label = "Yearly income"

[privacy]
mechanism = "fbs"
epsilon = 12.0
draws = 400
budget = "people"
PROMISE

[[tables]]
by = ["age", "smokes"]
"""
PROMISES = {
    "noisy sums": 'guarantee = "global"\ndatasets = 2\nbounds = { outcome = [100, 1e7], weight = [1, 1000] }',
    "pseudo posterior": 'guarantee = "asymptotic"\ndatasets = 2\ncorrection = false',
}
AGES = ["under 45", "45 to under 150", "150 or more", "not stated"]
RECORDS = 600


@pytest.fixture(scope="module", params=PROMISES)
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    generator = np.random.default_rng(4)
    age = generator.integers(16, 90, RECORDS)
    frame = pl.DataFrame(
        {
            "income": np.exp(10 + 0.5 * generator.standard_normal(RECORDS)),
            "wt": 80 * np.exp(0.4 * generator.standard_normal(RECORDS)),
            "RIDAGEYR": np.where(generator.random(RECORDS) < 0.1, -9, age),
            "smokes": generator.choice(["1", "2", "3", "N", ""], RECORDS),
        }
    )
    frame.write_csv(folder / "people.csv")
    (folder / "spec.toml").write_text(SPEC.replace("PROMISE", PROMISES[request.param]))
    accounting = "asymptotic" if request.param == "pseudo posterior" else "differential privacy"
    open_budget(folder / "ledger.sqlite", "people", 1000, accounting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "fit_measurement", partial(fit_measurement, rounds=1))
        repeat(patch)
        release(load_spec(folder / "spec.toml"), folder / "release")
    return folder, request.param


def test_it_can_be_verified(made):
    folder, _ = made
    verify_release(folder / "release", folder / "ledger.sqlite")


def test_declared_levels_and_labels_are_in_the_manifest_and_nothing_of_the_file_s_own_values_is(made):
    folder, _ = made
    public = folder / "release/public"
    facts = json.loads((public / "manifest.json").read_text())["survey"]
    assert facts["levels"]["age"] == AGES
    assert facts["levels"]["smokes"] == ["yes", "no", "not stated"]
    assert facts["variable_labels"] == {"age": "Age of the <householder>", "income": "Yearly income"}
    microdata = pl.read_csv(public / "microdata-1.csv")
    assert set(microdata["age"].unique()) <= set(AGES)
    assert "RIDAGEYR" not in microdata.columns
    tables = pl.read_csv(public / "tables.csv")
    assert tables.columns[:4] == ["table", "statistic", "age", "smokes"]


def test_the_numbers_of_records_are_those_of_the_bands(made):
    folder, _ = made
    ages = pl.read_csv(folder / "people.csv")["RIDAGEYR"].to_numpy()
    tables = pl.read_csv(folder / "release/public/tables.csv").filter(statistic="count", smokes="All")
    counts = np.histogram(ages[ages >= 0], [-np.inf, 45, 150, np.inf])[0]
    found = dict(tables.select("age", "n").rows())
    assert [found.get(age, 0) for age in AGES] == [*counts, (ages < 0).sum()]


def test_headings_show_variable_labels(made):
    folder, _ = made
    for page in ("public", "internal"):
        assert "Mean Yearly income" in (folder / "release" / page / "report.html").read_text()
    page = (folder / "release/public/report.html").read_text()
    assert "<h1>Yearly income by Age of the &lt;householder&gt;, smokes</h1>" in page
    assert "<h3>Age of the &lt;householder&gt; by smokes</h3>" in page
    assert "<householder>" not in page
    with zipfile.ZipFile(folder / "release/public/tables.xlsx") as workbook:
        assert "Age of the &lt;householder&gt;" in workbook.read("xl/sharedStrings.xml").decode()


def test_more_can_be_made_of_it(made):
    folder, kind = made
    if kind == "pseudo posterior":
        return
    more = svysynth.more(folder / "release/public")
    table = more.tabulate("age", "mean")
    assert set(table["age"]) <= {"All", *AGES}
    (again,) = more.synthetic(1).surveys
    assert again.levels("age") == tuple(AGES)
