"""Releases from margins: the folder, its verification, what is refused before the charge, and what is never shown.

The model is not fitted here, which takes most of the time: its parameters are those that the fit starts with.
"""

import json
from types import SimpleNamespace

import polars as pl
import pytest

import svysynth
from household import RECORDS, SPEC, make_household, people
from svysynth import SurveyError
from svysynth.core.spec.whole import load_spec, parse_spec
from svysynth.mechanisms.base import find_public, mechanism_of
from svysynth.mechanisms.findings import refuse
from svysynth.mechanisms.margins import drawing, mechanism
from svysynth.mechanisms.margins.fitting import Fitted, Problem, _main_effects
from svysynth.mechanisms.margins.measured_pairs import MeasuredPairs
from svysynth.privacy.ledger import show
from svysynth.publishing import internal_folder as internal
from svysynth.publishing import public_folder as publish


def unfitted(graph, noisy, sd):
    """Stands in for the fit: the shares of levels, and no relation between answers."""
    zeros = graph.zeros()

    def fitter(problem, start):
        return start

    fitter.graph = graph
    ones = tuple(one + 1 for one in zeros)
    return Fitted(fitter, Problem(zeros, zeros, zeros, ones), _main_effects(graph, noisy, sd), ())


def quick(patch):
    patch.setattr(drawing, "fit", unfitted)
    patch.setattr(drawing, "DRAWS", 2)
    patch.setattr(publish, "public_page", lambda _: "<p>page</p>")
    patch.setattr(internal, "internal_page", lambda *_: "<p>page</p>")


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("margins") / "house"
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        made = svysynth.release(make_household(folder), folder / "release")
    return SimpleNamespace(folder=folder, made=made, public=folder / "release" / "public")


def test_a_release_has_answers_of_every_kind_with_their_labels(released):
    for number in (1, 2):
        file = pl.read_csv(released.public / f"microdata-{number}.csv", null_values="")
        assert file["id"].to_list() == list(range(1, RECORDS + 1))
        assert file.columns[:3] == ["id", "region", "sex"]
        assert set(file["status"].unique()) <= {"a", "b", "c"}
        assert set(file["works"].drop_nulls().unique()) == {"yes", "no"}
        assert file["income"].null_count() == 0
        assert (file["benefit"].drop_nulls() == 0).any()
        assert file["benefit"].max() <= 5000
        assert file["weight"].sum() == pytest.approx(20_000, rel=1e-6)
        public = people().select("region", "sex").sort("region", "sex")
        assert file.select("region", "sex").equals(public)  # sorted: the order of the file does not show


def test_a_release_is_verified_against_its_ledger(released):
    found = svysynth.verify(released.folder / "release", released.folder / "ledger.sqlite")
    assert found.ledger
    said = json.loads((released.public / "manifest.json").read_text())
    assert set(said["guarantee"]["confidential"]) == {"income", "wt", "benefit", "status", "works"}
    assert show(released.folder / "ledger.sqlite")[0].spent == 20_000_000  # millionths


@pytest.mark.parametrize(
    ("old", "new"), [('"epsilon": "', '"epsilon": "1'), ('"name": "income"', '"name": "wages"'), ('"format": 1', "")]
)
def test_a_changed_measurement_is_refused(released, tmp_path, old, new):
    text = (released.public / "measurement.json").read_text()
    assert old in text
    manifest = svysynth.verify(released.public, files_only=True).manifest
    (tmp_path / "measurement.json").write_text(text.replace(old, new))
    with pytest.raises((ValueError, LookupError)):
        mechanism_of(manifest.privacy).remake(tmp_path, manifest)


def test_one_changed_byte_of_the_measurement_is_refused(released):
    path = released.public / "measurement.json"
    mode, text = path.stat().st_mode, path.read_bytes()
    path.chmod(0o644)
    try:
        path.write_bytes(text.replace(b"1", b"2", 1))
        with pytest.raises(SurveyError, match="SHA256SUMS"):
            svysynth.verify(released.public, files_only=True)
    finally:
        path.write_bytes(text)
        path.chmod(mode)


def test_other_tables_follow_from_the_folder_and_further_files_do_not(released):
    more = svysynth.more(released.public)
    assert more.left == 0
    table = more.tabulate("status", "count")
    assert table.filter(status="All")["estimate"].item() == pytest.approx(20_000, rel=1e-6)
    with pytest.raises(SurveyError, match="all of its files"):
        more.synthetic(1)


KNOWN_WEIGHTS = {
    "population_total = 20000": "weight_public = true",
    'outcome = "income"': 'outcome = "works"',
    '[survey.columns.works]\nmissing = ["NA"]\n': "",
    '["count", "mean", "median"]': '["count", "mean"]',
    ', "ratio(benefit, income)"': "",
    '"mean", "answered"': '"mean"',
    "outcome = [0, 100000.0]": "outcome = [0, 1.0]",
    'strata = "region"\n': "",
}


def test_public_weights_are_kept_and_an_outcome_may_be_a_yes_no_answer(tmp_path, monkeypatch):
    quick(monkeypatch)
    text = SPEC
    for old, new in KNOWN_WEIGHTS.items():
        assert old in text
        text = text.replace(old, new)
    frame = people().with_columns(pl.col("works").fill_null(1))
    svysynth.release(make_household(tmp_path / "house", text, frame), tmp_path / "release")
    assert svysynth.verify(tmp_path / "release", tmp_path / "house" / "ledger.sqlite").ledger
    content = json.loads((tmp_path / "release" / "public" / "measurement.json").read_text())
    assert {one["name"] for one in content["answers"]} == {"works", "benefit", "status"}
    assert content["sums_of_weights"] == []
    file = pl.read_csv(tmp_path / "release" / "public" / "microdata-1.csv")
    known = frame.sort("region", "sex", "wt")
    assert file["weight"].to_list() == pytest.approx(known["wt"].to_list())
    assert set(file["works"].unique()) == {0.0, 1.0}


REFUSED = {
    ("population_total = 20000", ""): "survey.population_total",
    ("weight = [5.0, 500.0]", "weight = [0, 500.0]"): "privacy.bounds.weight",
    ("epsilon = 20.0", "epsilon = 0.001"): "privacy.epsilon",
    ('levels = ["a", "b", "c"]\n', ""): "survey.variables.status.levels",
    ("bounds = [0, 5000]\n", ""): "survey.variables.benefit.bounds",
    ('strata = "region"', 'strata = "region"\ncluster = "sex"'): "survey.cluster",
    (
        "[survey.variables.status]",
        '[survey.variables.income]\nkind = "amount"\n[survey.columns.income]\nmissing = ["NA"]\n'
        "[survey.variables.status]",
    ): "survey.columns.income.missing",
    (
        '[[tables]]\nby = ["region"',
        '[estimation]\nvariance = "jackknife"\n[[tables]]\nby = ["region"',
    ): "estimation.variance",
}


@pytest.mark.parametrize("change", REFUSED, ids=REFUSED.values())
def test_what_margins_cannot_do_is_refused_from_the_spec_alone(change):
    old, new = change
    assert old in SPEC
    stops = [finding.place for finding in find_public(parse_spec(SPEC.replace(old, new, 1))) if finding.stops]
    assert stops[:1] == [REFUSED[change]]


def test_the_spec_itself_has_nothing_against_it():
    assert find_public(parse_spec(SPEC)) == []


@pytest.mark.parametrize("name", ["id", "weight"])
def test_an_answer_with_the_name_of_a_column_of_synthetic_files_is_refused(name):
    """One called weight would be measured in the place of the weight, and fail after the charge."""
    with pytest.raises(SurveyError, match="is a column of every synthetic file"):
        parse_spec(SPEC.replace("status", name))


def test_refusals_cost_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(mechanism, "MOST_ENTRIES", 100)
    path = make_household(tmp_path / "house")
    with pytest.raises(SurveyError, match="would not fit in memory"):
        svysynth.release(path, tmp_path / "release")
    monkeypatch.setattr(mechanism, "MOST_CELLS", 5)
    with pytest.raises(SurveyError, match="more than 5 combinations"):
        svysynth.release(path, tmp_path / "release")
    assert show(tmp_path / "house" / "ledger.sqlite")[0].spent == 0
    assert not (tmp_path / "release").exists()


def test_codes_that_are_not_declared_are_refused_before_the_charge_and_not_named(tmp_path):
    frame = people().with_columns(pl.Series("status", ["zebra", *people()["status"][1:]]))
    path = make_household(tmp_path / "house", frame=frame)
    with pytest.raises(SurveyError) as error:
        svysynth.release(path, tmp_path / "release")
    assert "zebra" not in str(error.value)
    assert show(tmp_path / "house" / "ledger.sqlite")[0].spent == 0


def test_what_later_steps_take_of_the_survey_is_its_public_part(tmp_path):
    path = make_household(tmp_path / "house")
    spec = load_spec(path).of_release
    survey = svysynth.read_survey(**{**spec.survey.model_dump(exclude_unset=True), "data": str(spec.survey.data)})
    assert mechanism._public_part(survey).columns == ["region", "sex"]


def test_a_regression_says_which_columns_were_measured_with_the_outcome(released):
    found = svysynth.regress("income ~ sex + status", released.public).table
    assert found["measured"].to_list() == ["yes"] * 4
    spec = parse_spec(
        SPEC.replace('strata = "region"\n', "").replace('["region", "sex"]\nstatistics', '["sex"]\nstatistics')
    )
    assert MeasuredPairs.of(spec).columns == ("sex",)  # no table has the region


USES_OF_ANSWERS = {
    "a filter of records by an answer": ("population_total", 'where = "works == 1"\npopulation_total'),
    "a filter that declares it": ("population_total", 'where = "works == 1"\nuniverse = ["works"]\npopulation_total'),
    "a domain by an answer": ('by = ["sex"]\nof = "benefit"', 'by = ["sex"]\ndomain = "works == 1"\nof = "benefit"'),
    "a public copy of an answer": ('"sex"]\npop', '"sex", "copy"]\ncolumns.copy.from = "status"\npop'),
    "strata of an answer": ('strata = "region"', 'strata = "copy"\ncolumns.copy.from = "status"'),
    "whole records": ("datasets = 2", 'datasets = 2\nprotect = "record"'),
    "whole clusters": ("datasets = 2", 'datasets = 2\nunit = "cluster"'),
}


@pytest.mark.parametrize("use", USES_OF_ANSWERS)
def test_answers_cannot_reach_the_public_part_and_no_wider_promise_is_made(use):
    old, new = USES_OF_ANSWERS[use]
    assert old in SPEC
    with pytest.raises(SurveyError, match=r"works|made from the column of a confidential|protect|unit"):
        refuse(find_public(parse_spec(SPEC.replace(old, new, 1))))
