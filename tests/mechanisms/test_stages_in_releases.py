"""Releases of samples of several stages: they take the first stage alone, say so, and never understate errors."""

import json

import numpy as np
import polars as pl
import pytest

import places
import svysynth
from svysynth import pipeline
from svysynth.cli.main import main
from svysynth.core.spec.whole import parse_spec
from svysynth.mechanisms.base import find_public
from svysynth.mechanisms.findings import WITH_REPLACEMENT, WITH_REPLACEMENT_NOTE

STAGES = places.GOLDEN / "stages"
SPEC = """
[survey]
data = "people.csv"
outcome = "y"
weight = "w"
strata = "stratum"
cluster = {cluster}
{fpc}
public = ["sex"]
population_total = 6000

[privacy]
mechanism = "{mechanism}"
guarantee = "global"
epsilon = 8.0
bounds = {{ outcome = [1000, 1000000], weight = [1, 100] }}

[[tables]]
by = ["sex"]
"""
TWO = {"cluster": '["district", "school"]', "fpc": 'fpc = ["districts", "schools"]'}
WITHOUT = {"cluster": '["district", "school"]', "fpc": ""}
PERSONS = {"cluster": '["district"]', "fpc": 'fpc = ["districts", "persons"]'}
FIRST = {"cluster": '"district"', "fpc": ""}


def people():
    """Twenty districts in two strata, with three schools each and five persons of each school."""
    generator = np.random.default_rng(2)
    school = np.repeat(np.arange(60), 5)
    effects = 0.3 * generator.standard_normal(20)[school // 3] + 0.2 * generator.standard_normal(60)[school]
    columns = {
        "stratum": [f"s{one // 30}" for one in school],
        "district": [f"d{one // 3}" for one in school],
        "school": [f"e{one % 3}" for one in school],
        "sex": np.where(generator.integers(0, 2, 300) == 1, "m", "f"),
        "y": np.exp(10 + effects + 0.5 * generator.standard_normal(300)).round(2),
        "w": (20 * np.exp(0.3 * generator.standard_normal(300))).round(3),
    }
    return pl.DataFrame(columns).with_columns(districts=pl.lit(30.0), schools=pl.lit(6.0), persons=pl.lit(45.0))


def written(folder, stages, mechanism="laplace"):
    folder.mkdir(exist_ok=True)
    people().write_csv(folder / "people.csv")
    (folder / "s.toml").write_text(SPEC.format(mechanism=mechanism, **stages))
    return folder / "s.toml"


@pytest.mark.parametrize("stages", [TWO, PERSONS, WITHOUT])
def test_a_release_is_that_of_the_first_stage_alone(tmp_path, stages):
    """The same public tables and the same direct ones; with corrections it says what its standard errors are."""
    for name, own in (("all", stages), ("first", FIRST)):
        svysynth.release(written(tmp_path / name, own), tmp_path / name / "out", svysynth.Streams.seeded(3))
    for file in ("public/NOT-FOR-RELEASE-tables.csv", "internal/NOT-FOR-RELEASE-direct-tables.csv"):
        one, other = (
            next((tmp_path / name / "out").glob(file.replace("NOT-FOR-RELEASE-", "*"))) for name in ("all", "first")
        )
        assert one.read_text() == other.read_text()
    manifest = next((tmp_path / "all/out/public").glob("*manifest.json")).read_text()
    found = json.loads(manifest)
    assert (WITH_REPLACEMENT_NOTE in found["notes"]) is bool(stages["fpc"])
    assert "school" not in manifest
    assert "districts" not in manifest


@pytest.mark.parametrize("mechanism", ["fbs", "fbp", "laplace"])
def test_every_mechanism_gets_the_first_stage_alone(tmp_path, mechanism, monkeypatch):
    class ReachedError(Exception):
        pass

    def stop(spec, privacy, survey, *_):
        assert survey.design.cluster == "district"
        assert (survey.design.later, survey.design.fpc, spec.survey.later) == ((), None, ())
        raise ReachedError

    monkeypatch.setattr(pipeline, "_whole_way", stop)
    with pytest.raises(ReachedError):
        svysynth.release(written(tmp_path / "a", TWO, mechanism), tmp_path / "out", svysynth.Streams.seeded(3))


def test_check_says_what_the_standard_errors_are(tmp_path, capsys):
    path = written(tmp_path / "a", TWO)
    with pytest.raises(SystemExit) as done:
        main(["check", str(path)])
    assert done.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "drawn with replacement" in printed
    assert "would refuse" not in printed
    assert find_public(parse_spec(SPEC.format(mechanism="laplace", **TWO))) == [WITH_REPLACEMENT]
    assert find_public(parse_spec(SPEC.format(mechanism="laplace", **WITHOUT))) == []


def test_what_the_first_stage_cannot_have_is_still_refused(tmp_path):
    """Models with the guarantee asymptotic: FBP has no effects of clusters, at whatever stage."""
    spec = SPEC.format(mechanism="fbp", **TWO).replace('guarantee = "global"', 'guarantee = "asymptotic"')
    assert any(finding.stops for finding in find_public(parse_spec(spec)))


@pytest.mark.parametrize("design", ["apiclus2", "mu284"])
def test_standard_errors_are_at_most_that_much_larger_than_those_of_r(design):
    """R's standard errors of both stages with their corrections, beside those of the first stage with replacement."""
    data = pl.read_csv(STAGES / f"{design}.csv")
    survey = svysynth.read_survey(data, outcome="y", weight="w", cluster="psu", public=["a", "b"], transform="identity")
    ours = svysynth.tabulate(survey, ["a", "b"], ["mean", "total"])
    theirs = (
        pl.read_csv(STAGES / "values.csv")
        .filter(design=design, lonely="fail")
        .filter(pl.col("domain").fill_null("") == "")
    )
    both = ours.join(theirs, on=["statistic", "a", "b"], suffix="_r").filter(pl.col("se_r") > 0)
    sampled = data["psu"].n_unique() / data["fpc1"][0]
    ratio = (both["se"] / both["se_r"]).to_numpy()
    assert both.height > 6
    assert ratio.max() <= 1 / np.sqrt(1 - sampled) + 1e-9
    assert np.median(ratio) >= 1
