"""Finite population corrections and several stages of sampling on disk: the figures of the same survey in memory."""

import re

import numpy as np
import polars as pl
import pytest

import places
import svysynth
from repeatable import repeat
from svysynth import SurveyError, TableSpec
from svysynth.cli.main import main
from svysynth.core.engine import LOCAL, Local
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import load_spec
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms import synthetic_files
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey
from svysynth.mechanisms.noisy_sums.published import measurement_json
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.verification import verify_release
from svysynth.survey import large_files as large
from svysynth.survey.large_files import read_large
from svysynth.survey.on_disk import store_survey
from svysynth.survey.survey import survey_from_file

GOLDEN = places.GOLDEN / "stages"
ROLES = {"strata": ("stratum", "part"), "cluster": ("psu", "ssu"), "fpc": ("fpc", "fpc1", "fpc2", "fpc3")}
STATISTICS = ("count", "total", "mean", "proportion")
STAGES = ("apiclus2", "mu284", "three_stages", "fractions", "strata_by_stage", "lonely_by_stage")
ONE_STAGE = ("stratified_fpc", "fpc_fractions", "simple_fpc")


def source_of(design, folder, **settings):
    """The spec of a golden design, whose records are repeated in an order of their own and written to Parquet."""
    place = next(place for place in (GOLDEN, places.GOLDEN / "survey") if (place / f"{design}.csv").exists())
    frame = pl.read_csv(place / f"{design}.csv")
    frame.write_parquet(folder / "data.parquet", row_group_size=7)
    roles = {role: [name for name in names if name in frame.columns] for role, names in ROLES.items()}
    named = {"outcome": "y", "weight": "w", "public": ["a", "b"], "transform": "identity"}
    declared = {role: names for role, names in roles.items() if names}
    return SurveySpec.model_validate({"data": folder / "data.parquet"} | named | declared | settings)


def stored(source, folder):
    """The survey in memory, from disk in one part and in three, and from memory to disk."""
    small = survey_from_file(source)
    made = [lambda own: read_large(source, own, LOCAL), lambda own: read_large(source, own, Local(parts=3))]
    made.append(lambda own: store_survey(small, own, LOCAL))
    found = []
    for number, make in enumerate(made):
        own = folder / str(number)
        own.mkdir()
        found.append(make(own))
    return small, found


def tables(survey, lonely="certainty"):
    both = [TableSpec(by=("a", "b"), statistics=STATISTICS), TableSpec(by=("a",), statistics=("mean",), domain=DOMAIN)]
    return tabulate_all(survey, both, EstimationSpec(lonely=lonely))


DOMAIN = "w > 20"


def assert_close(mine, expected):
    """To 11 digits; a standard error that is but rounding has to be so in both."""
    scale = expected["estimate"].abs().fill_null(0.0).fill_nan(0.0).to_numpy()
    for name in ("estimate", "se", "df", "n"):
        one, other = (table[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for table in (mine, expected))
        assert np.array_equal(np.isnan(one), np.isnan(other))
        assert (np.nan_to_num(np.abs(one - other)) <= 1e-11 * np.nan_to_num(np.abs(other)) + 1e-14 * scale).all(), name


@pytest.mark.parametrize("design", STAGES)
def test_stages_on_disk_give_the_tables_of_stages_in_memory(design, tmp_path):
    small, found = stored(source_of(design, tmp_path, domains=[DOMAIN]), tmp_path)
    expected = tables(small)
    for survey in found:
        assert survey.index.degrees_of_freedom == small.index.degrees_of_freedom
        assert [len(one.psus) for one in survey.index.later] == [len(one.psus) for one in small.index.later]
        mine = tables(survey)
        assert_close(mine, expected)
        assert mine.equals(tables(found[0]))  # to the last bit, whatever the parts


@pytest.mark.parametrize("design", ONE_STAGE)
def test_corrections_on_disk_give_the_same_tables_to_the_last_bit(design, tmp_path):
    small, found = stored(source_of(design, tmp_path, domains=[DOMAIN]), tmp_path)
    for survey in found:
        assert tables(survey).equals(tables(small))
        assert survey.in_memory().frame.equals(small.frame.select(*survey.schema))
        assert np.array_equal(survey.index.unsampled, small.index.unsampled)


def test_averaged_strata_of_later_stages_are_the_same_on_disk(tmp_path):
    small, found = stored(source_of("lonely_by_stage", tmp_path, domains=[DOMAIN]), tmp_path)
    expected = tables(small, "average")
    for survey in found:
        assert_close(tables(survey, "average"), expected)


@pytest.mark.parametrize(
    ("fpc", "words"),
    [
        ([1e4, 1e4, 5e3, 6e3], "varies within a stratum"),
        ([1e4, 1e4, 150.0, 150.0], "a population smaller than their sample"),
        ([1e4, 1e4, 0.0, 0.0], "values that are not positive"),
        ([1e4, 1e4, None, 6e3], "column 'fpc': 100 of 400 records are missing"),
        (["1000", "1000", "many", "many"], "column 'fpc': 200 of 400 records are not a number"),
    ],
)
def test_corrections_that_are_wrong_are_refused_when_they_are_read(tmp_path, fpc, words):
    columns = {"y": [1.0, 2, 3, 4] * 100, "w": [9.0] * 400, "h": ["a", "a", "b", "b"] * 100, "g": ["x"] * 400}
    pl.DataFrame(columns | {"fpc": fpc * 100}).write_parquet(tmp_path / "d.parquet")
    spec = SurveySpec(data=tmp_path / "d.parquet", outcome="y", weight="w", strata="h", fpc="fpc", public=("g",))
    for read in (lambda: read_large(spec, tmp_path, Local(parts=1)), lambda: survey_from_file(spec)):
        with pytest.raises(SurveyError, match=re.escape(words)):
            read()


SPEC = """
[survey]
data = "people"
outcome = "income"
weight = "wt"
strata = "region"
fpc = "size"
fpc_public = true
public = ["region", "sex"]
population_total = 60000

[privacy]
mechanism = "fbs"
guarantee = "asymptotic"
epsilon = 20.0
datasets = 2
draws = 400
correction = false
budget = "people"

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean", "total"]
"""
BOUNDS = BoundsSpec(outcome=(1e3, 1e6), weight=(0.1, 1000.0))


@pytest.fixture
def people(tmp_path):
    """Two files of a stratified sample, and the spec of a release."""
    generator, records = np.random.default_rng(2), 2000
    region, sex = generator.integers(0, 3, records), generator.integers(0, 2, records)
    t = 10 + 0.2 * region + 0.3 * sex + 0.5 * generator.standard_normal(records)
    columns = {"region": [f"r{one}" for one in region], "sex": np.array(["f", "m"])[sex], "income": np.exp(t)}
    weight = np.exp(2.5 - 0.3 * (t - 10) + 0.3 * generator.standard_normal(records))
    frame = pl.DataFrame(columns | {"wt": weight, "size": np.array([4000.0, 5000.0, 15000.0])[region]})
    (tmp_path / "people").mkdir()
    frame[:700].write_parquet(tmp_path / "people/1.parquet")
    frame[700:].write_parquet(tmp_path / "people/2.parquet")
    (tmp_path / "s.toml").write_text(SPEC)
    open_budget(tmp_path / "ledger.sqlite", "people", 100, "asymptotic")
    return tmp_path


def released(folder, name):
    """What a release publishes; it is verified."""
    with pytest.MonkeyPatch.context() as patch:
        repeat(patch, 3)
        svysynth.release(folder / "s.toml", folder / name)
    assert verify_release(folder / name, folder / "s.toml").ledger
    found = sorted((folder / name / "public").glob("*.parquet"))
    return [path.read_bytes() for path in (*found, folder / name / "public/tables.csv")]


def test_a_release_with_a_correction_is_the_same_from_disk(people, monkeypatch):
    expected, parts = released(people, "memory"), []
    monkeypatch.setattr(large, "MOST_IN_MEMORY", 1000)
    monkeypatch.setattr(large, "read_large", lambda *given: parts.append(given) or read_large(*given))
    monkeypatch.setattr(
        synthetic_files, "read_large", lambda *given, **more: parts.append(0) or read_large(*given, **more)
    )
    assert released(people, "disk") == expected
    assert len(parts) == 3  # the survey, and two files that are verified
    assert len(expected) == 3


def test_noisy_sums_with_a_correction_are_the_same_from_disk(people, tmp_path):
    spec = load_spec(people / "s.toml")
    small, found = stored(spec.survey, tmp_path)
    expected = measured(small, spec.requested_tables)
    assert b"15000.0" in expected
    assert [measured(survey, spec.requested_tables) for survey in found] == 3 * [expected]


def measured(survey, tables):
    """All that is measured with noise and all public facts, as a release publishes them."""
    noise = StudyNoise(svysynth.Streams.seeded(4))
    return measurement_json(*measure_survey(survey, "answers", tables, BOUNDS, "log", 20.0, noise))


@pytest.mark.parametrize("command", ["check", "tables"])
def test_commands_work_on_several_stages_from_disk(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    source_of("three_stages", tmp_path)
    roles = 'strata = "stratum"\ncluster = ["psu", "ssu"]\nfpc = ["fpc1", "fpc2", "fpc3"]\npublic = ["a", "b"]'
    text = f'[survey]\ndata = "data.parquet"\noutcome = "y"\nweight = "w"\n{roles}\n\n[[tables]]\nby = ["a", "b"]\n'
    (tmp_path / "s.toml").write_text(text)
    said, parts = [], []
    monkeypatch.setattr(large, "read_large", lambda *given: parts.append(given) or read_large(*given))
    for most in (10**6, 10):
        monkeypatch.setattr(large, "MOST_IN_MEMORY", most)
        with pytest.raises(SystemExit) as left:
            main([command, "s.toml"])
        assert not left.value.code
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert len(parts) == 1
