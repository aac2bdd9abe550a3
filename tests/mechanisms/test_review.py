"""What a hostile review found, each as an attack that has to fail."""

import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import svysynth
from incomes import TABLES, findings, house, people, run, survey_of
from svysynth.core.streams import Streams
from svysynth.mechanisms.suitability import examine_model
from svysynth.privacy.ledger import entries
from svysynth.privacy.ledger_entries import VERSION, entry_hash


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A house with one release of noisy tables."""
    folder = tmp_path_factory.mktemp("house")
    spec = house(folder, people(), "laplace", "global")
    assert run("release", spec, "--out", folder / "first") == 0
    return folder


def copy_of(released, folder):
    shutil.copytree(released, folder / "copy")
    text = (folder / "copy/first/internal/run.json").read_text()
    (folder / "copy/first/internal/run.json").write_text(text.replace(str(released), str(folder / "copy")))
    return folder / "copy"


def test_a_ledger_that_was_deleted_and_opened_again_is_noticed(released, tmp_path, capsys):
    place = copy_of(released, tmp_path)
    for name in ("ledger.sqlite", "ledger.sqlite.anchor"):
        (place / name).unlink()
    run("ledger", "open", place / "s.toml", "--total", 100)
    capsys.readouterr()
    assert run("release", place / "s.toml", "--out", place / "second") == 1
    assert "is not the one that the release 'first' beside was charged to" in capsys.readouterr().err


def test_a_damaged_anchor_beside_is_an_error(released, tmp_path, capsys):
    place = copy_of(released, tmp_path)
    (place / "first/anchor.json").write_text("{")
    assert run("release", place / "s.toml", "--out", place / "second") == 1
    assert "anchor of 'first'" in capsys.readouterr().err


def test_verify_names_the_ledger_that_it_asked(released, capsys):
    for named in (released / "ledger.sqlite", released / "s.toml"):
        assert run("verify", released / "first", "--ledger", named) == 0
        assert str(released / "ledger.sqlite") in capsys.readouterr().out


def test_nobody_can_call_entropy_of_their_own_fresh(released, tmp_path):
    with pytest.raises(TypeError):
        Streams(12345, fresh=True)
    assert not Streams(12345).fresh
    one = Streams.from_system()
    place = copy_of(released, tmp_path)
    tables = [svysynth.release(place / "s.toml", place / name, one).tables for name in ("second", "third")]
    assert not tables[0].equals(tables[1])


def test_no_published_hash_depends_on_the_answers(released, tmp_path):
    """The fingerprint of a charge is in the ledger, and in no hash that is published."""
    charge = next(entry for entry in entries(released / "ledger.sqlite") if entry.kind == "charge")
    assert charge.detail
    manifest = json.loads((released / "first/public/manifest.json").read_text())
    assert manifest["ledger"]["hash"] == charge.hash
    other = replace(charge, detail="0" * 64)
    assert entry_hash(VERSION, "before", other) == entry_hash(VERSION, "before", charge)


def test_a_seeded_run_of_noisy_tables_repeats_and_gives_no_real_noise_away(released, tmp_path, capsys):
    """It is not charged: with real noise anybody could draw it again and again, and average."""
    found = []
    for name in ("one", "two"):
        assert run("release", released / "s.toml", "--out", tmp_path / name, "--seed", 5) == 0
        said = capsys.readouterr().out
        assert "Verdict: do not publish." in said
        assert "None of it may be published." in said
        found.append((tmp_path / name / "public/NOT-FOR-RELEASE-tables.csv").read_bytes())
    assert found[0] == found[1]


def test_an_answer_without_a_logarithm_does_not_stop_noisy_tables(tmp_path):
    frame = people().with_columns(income=pl.when(pl.int_range(pl.len()) == 3).then(0.0).otherwise("income"))
    spec = house(tmp_path, frame, "laplace", "global")
    assert run("release", spec, "--out", tmp_path / "out") == 0


def test_two_humps_in_a_small_file_are_noticed():
    generator = np.random.default_rng(3)
    t = 11 + 0.8 * generator.choice([-1, 1], 480) + 0.35 * generator.standard_normal(480)
    found = findings(people(480).with_columns(income=pl.Series(np.exp(t))))
    assert any("is not the model's" in finding.found for finding in found)


def test_small_cells_are_looked_at_together():
    """Twenty areas of 24 records, and a formula that leaves them out."""
    frame = people(480).with_columns(region=pl.Series([f"a{number % 20:02d}" for number in range(480)]))
    level = pl.col("region").str.slice(1).cast(pl.Float64) / 20 - 0.5
    frame = frame.with_columns(income=pl.col("income") * (1.2 * level).exp())
    survey = survey_of(frame)
    found = examine_model(survey, "sex", TABLES).findings
    assert any(finding.stops or "fewer than 30 records" in finding.found for finding in found)


def test_weights_that_are_constant_in_most_strata_are_refused():
    frame = people().with_columns(wt=pl.when(pl.col("region") == "a").then("wt").otherwise(20.0))
    assert any(finding.stops and "wt" in finding.place for finding in findings(frame))


def test_a_public_copy_of_the_outcome_is_refused():
    frame = people(600).with_columns(copy=(pl.col("income") / 1000).round() * 1000)
    frame = frame.with_columns(income=pl.col("copy"), copy=pl.col("copy").cast(pl.String))
    found = findings(frame, public=["region", "sex", "copy"])
    assert any(finding.stops and finding.place == "survey.public" for finding in found)


def test_a_total_that_is_another_population_s_is_refused():
    (finding,) = findings(people(), population_total=1000.0)
    assert finding.stops


def test_amounts_in_units_that_the_priors_do_not_know_are_refused():
    assert any(finding.stops for finding in findings(people(), transform="identity"))
