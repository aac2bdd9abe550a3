"""Releases of one outcome and further answers: what they cannot have is refused before the charge."""

import json

import numpy as np
import polars as pl
import pytest

import svysynth
from quick_release import SPEC, make_release
from svysynth import SurveyError, TableSpec
from svysynth.core.spec.whole import parse_spec
from svysynth.evaluation.frontier import refuse_unsupported
from svysynth.mechanisms.base import find_public
from svysynth.privacy.ledger import show
from svysynth.publishing.verification import verify_release

MORE = """
[survey.variables.households]
kind = "amount"
[survey.columns.households]
label = "Persons in the household, confidential"
missing = ["-1"]

[survey.variables.status]
kind = "category"
levels = ["b1", "b2"]
[survey.columns.status]
from = "block"

[survey.variables.second]
kind = "yes/no"
yes = ["b2"]
[survey.columns.second]
from = "block"
"""
GLOBAL = 'guarantee = "global"\nbounds = { outcome = [1000.0, 900000.0], weight = [0.01, 900.0] }'
CLASSES = 'by = ["sex", "status"]\nstatistics = ["count"]'
ROWS = 'by = ["sex", "region"]\nwithin = ["sex"]\nstatistics = ["proportion"]'
REFUSED = {
    'by = ["sex"]\nof = "households"': "it is of 'households'",
    'by = ["sex"]\nof = "status"': "it is of 'status'",
    CLASSES: "'by' names 'status', and there only public columns have levels",
    ROWS: "proportions 'within' columns",
    'by = ["sex"]\nstatistics = ["ratio(salary, households)"]': r"it asks for 'ratio\(salary, households\)'",
    'by = ["sex"]\nstatistics = ["mean", "answered"]': "it asks for 'answered'",
}


def spec_text(table="", more=MORE):
    return SPEC + more + (f"\n[[tables]]\n{table}\n" if table else "")


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("table", REFUSED)
def test_what_cannot_be_released_yet_is_refused_before_the_charge(tmp_path, table):
    with pytest.raises(SurveyError, match=REFUSED[table]) as error:
        make_release(tmp_path / "run", spec_text(table))
    assert "cannot be released by this mechanism" in str(error.value)
    assert "svysynth tables" in str(error.value)
    assert show(tmp_path / "run" / "ledger.sqlite")[0].spent == 0
    assert not (tmp_path / "run" / "release").exists()


@pytest.mark.parametrize("table", REFUSED)
@pytest.mark.parametrize("mechanism", ["fbs", "fbp", "laplace"])
def test_every_mechanism_refuses_it_from_the_spec_alone(mechanism, table):
    text = spec_text(table).replace('"fbp"', f'"{mechanism}"').replace("correction = false", "")
    text = text.replace('guarantee = "asymptotic"', GLOBAL).replace("datasets = 2", "").replace("draws = 400", "")
    stops = [finding.found for finding in find_public(parse_spec(text)) if finding.stops]
    assert any("cannot be released by this mechanism" in found for found in stops)
    with pytest.raises(SurveyError, match="cannot be released by this mechanism"):
        refuse_unsupported(parse_spec(text), [mechanism])


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('[survey.variables.salary]\nkind = "yes/no"\nyes = ["1"]', "declared as a yes/no answer"),
        ('[survey.variables.salary]\nkind = "amount"\n[survey.columns.salary]\nmissing = ["-1"]', "may be missing"),
    ],
)
def test_an_outcome_that_is_not_an_amount_of_everybody_is_refused_before_the_charge(tmp_path, section, words):
    with pytest.raises(SurveyError, match=words):
        make_release(tmp_path / "run", spec_text(more=f"\n{section}\n"))
    assert show(tmp_path / "run" / "ledger.sqlite")[0].spent == 0


def test_further_answers_do_not_change_a_release_and_are_not_mentioned_in_it(tmp_path):
    """The same release with and without them, byte for byte: names, labels, codes and values are nowhere."""
    plain = files_of(make_release(tmp_path / "plain", SPEC, pages=True) / "release" / "public")
    more = files_of(make_release(tmp_path / "more", spec_text(), pages=True) / "release" / "public")
    assert plain.keys() == more.keys()
    for name, content in more.items():
        for word in (b"households", b"Persons in the household", b"status", b"second"):
            if word not in plain[name]:
                assert word not in content, (name, word)
    tables = [pl.read_csv(content) for content in (plain["tables.csv"], more["tables.csv"])]
    assert tables[0].equals(tables[1])
    assert plain["microdata-1.csv"] == more["microdata-1.csv"]
    said = [json.loads(content["manifest.json"]) for content in (plain, more)]
    for part in said[0].keys() - {"files", "ledger", "created"}:
        assert said[0][part] == said[1][part], part


def test_a_table_of_the_outcome_by_name_is_a_table_of_the_outcome(tmp_path):
    asked = 'by = ["sex"]\nof = "salary"\nstatistics = ["mean", "median"]'
    public = make_release(tmp_path / "run", spec_text(asked), pages=True) / "release" / "public"
    tables = pl.read_csv(public / "tables.csv")
    means = tables.filter(pl.col("region") == "All", statistic="mean")
    ours, theirs = (means.filter(table=title).drop("table") for title in ("salary: sex", "region by sex"))
    assert ours["estimate"].to_list() == theirs.sort("sex")["estimate"].to_list()
    assert verify_release(public, files_only=True)


def test_further_answers_are_not_even_read_by_a_release(tmp_path):
    """So no refusal and no message of a release can depend on them: here they hold what no amount may hold."""
    broken = '\n[survey.variables.sex2]\nkind = "amount"\n[survey.columns.sex2]\nfrom = "block"\n'
    make_release(tmp_path / "run", spec_text(more=broken))
    with pytest.raises(SurveyError, match="not a number"):
        svysynth.read_survey(
            tmp_path / "run" / "people.csv",
            outcome="salary",
            weight="wt",
            public="sex",
            variables={"block": {"kind": "amount"}},
        )


@pytest.mark.parametrize(
    "asked",
    [{"within": ("sex",), "statistics": ("proportion",)}, {"statistics": ("answered",)}, {"of": "weight"}],
    ids=str,
)
def test_synthetic_files_have_no_such_tables(asked):
    generator = np.random.default_rng(3)
    frame = pl.DataFrame(
        {
            "id": range(40),
            "salary": generator.random(40) + 1,
            "sex": generator.choice(["F", "M"], 40),
            "region": generator.choice(["n", "s"], 40),
            "weight": np.ones(40),
            "weight_unsmoothed": np.ones(40),
        }
    )
    synthetic = svysynth.read_synthetic([frame, frame], outcome="salary", public=["sex", "region"], rules="weighted")
    with pytest.raises(SurveyError, match="cannot be made from synthetic files yet"):
        synthetic.tabulate_all([TableSpec(by=("sex", "region"), **asked)])
