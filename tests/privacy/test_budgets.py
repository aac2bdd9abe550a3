"""Kinds of ε, releases bound to charges, refusals and fingerprints: what a ledger holds besides amounts."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from svysynth import SurveyError, read_survey
from svysynth.cli.main import main
from svysynth.core.engine import Local
from svysynth.privacy.budgets import ImpossibleError
from svysynth.privacy.fingerprint import fingerprint
from svysynth.privacy.ledger import (
    Charge,
    charge,
    entries,
    fingerprint_key,
    open_budget,
    record_refusal,
    record_release,
    show,
    verify,
)
from svysynth.privacy.ledger_entries import Entry, entry_hash, first_hash
from svysynth.privacy.ledger_file import _digest
from svysynth.privacy.tamper_marks import Anchor, Seal, read_seal, write_seal
from svysynth.survey.on_disk import store_survey

KINDS = ("differential privacy", "asymptotic")
MANIFEST = "a" * 64


@pytest.fixture
def path(tmp_path):
    """A ledger with a budget of each kind, of one name."""
    for kind, total in zip(KINDS, (3, 20), strict=True):
        open_budget(tmp_path / "ledger.db", "people", total, kind)
    return tmp_path / "ledger.db"


# --- two kinds of ε ---


def test_budgets_of_two_kinds_have_totals_of_their_own_and_are_never_added(path):
    charge(path, "people", 3, "a", "differential privacy")
    charge(path, "people", 20, "b", "asymptotic")
    found = [(state.name, state.accounting, state.total, state.spent, state.charges) for state in show(path)]
    assert found == [
        ("people", "differential privacy", 3 * 10**6, 3 * 10**6, 1),
        ("people", "asymptotic", 20 * 10**6, 20 * 10**6, 1),
    ]
    for kind, total in zip(KINDS, (3, 20), strict=True):
        with pytest.raises(SurveyError, match=f"has 0 left of {total}"):
            charge(path, "people", 1, "c", kind)


def test_a_budget_of_the_other_kind_is_not_charged(tmp_path):
    open_budget(tmp_path / "ledger.db", "people", 10, "asymptotic")
    with pytest.raises(SurveyError, match="is open for asymptotic and not for differential privacy"):
        charge(tmp_path / "ledger.db", "people", 1, "a", "differential privacy")
    with pytest.raises(SurveyError, match="unknown kind of ε"):
        open_budget(tmp_path / "ledger.db", "people", 10, "global")
    assert len(entries(tmp_path / "ledger.db")) == 1


# --- whose answers ε is for ---


def test_the_ledger_says_whether_a_charge_is_for_a_respondent_or_for_a_whole_cluster(path):
    charge(path, "people", 1, "a", "asymptotic", "f" * 64, "school of pupils")
    charge(path, "people", 1, "b", "asymptotic", "f" * 64, "school of pupils")
    state = show(path)[1]
    assert (state.spent, state.holds_for, state.mixed) == (2 * 10**6, "one cluster of 'school of pupils'", False)
    charge(path, "people", 1, "c", "asymptotic", "e" * 64)
    state = show(path)[1]
    assert (state.spent, state.holds_for, state.mixed) == (3 * 10**6, "one respondent", True)
    assert "the sum holds for" in state._repr_html_()
    *_, first, second, third = entries(path)
    assert [entry.clusters for entry in (first, second, third)] == ["school of pupils"] * 2 + [""]
    assert [entry.fingerprint for entry in (first, second, third)] == ["f" * 64] * 2 + ["e" * 64]
    assert show(path)[0].holds_for == "one respondent"  # nothing was charged to it


def test_the_clusters_of_a_charge_are_covered_by_its_hash_and_the_fingerprint_is_not(path):
    charge(path, "people", 1, "a", "asymptotic", "f" * 64, "school")
    *_, last = entries(path)
    previous = entries(path)[-2].hash
    hashes = {
        detail: entry_hash(2, previous, replace(last, detail=detail))
        for detail in (f"{'f' * 64} school", f"{'e' * 64} school", f"{'f' * 64} household", "f" * 64)
    }
    same, other, *changed = hashes.values()
    assert same == other == last.hash
    assert len({same, *changed}) == 3


def test_the_same_data_are_noticed_under_another_name_whatever_their_charges_are_for(path):
    open_budget(path, "others", 10, "asymptotic")
    charge(path, "people", 1, "a", "asymptotic", "f" * 64, "school")
    assert charge(path, "others", 1, "b", "asymptotic", "f" * 64).also_charged == ("people",)


def test_the_command_tells_whom_the_sum_holds_for(path, capsys):
    charge(path, "people", 1, "a", "asymptotic", "f" * 64, "school")
    shown = printed(path, capsys)
    assert "one cluster of 'school'" in shown
    assert "counts k times" not in shown
    charge(path, "people", 1, "b", "asymptotic", "f" * 64)
    shown = printed(path, capsys)
    assert "Budget 'people' (asymptotic): not all charges are for the same clusters." in shown
    assert "a charge for one respondent counts k times" in shown
    assert "fff" not in shown


def printed(path, capsys):
    with pytest.raises(SystemExit):
        main(["ledger", "show", str(path)])
    return " ".join(capsys.readouterr().out.split())


# --- one charge, one release ---


def test_a_release_is_bound_to_its_charge(path):
    paid = charge(path, "people", 1, "spring", "asymptotic")
    anchor = record_release(paid, MANIFEST)
    *_, last = entries(path)
    assert (last.kind, last.budget, last.accounting, last.millionths) == ("release", "people", "asymptotic", 0)
    assert (last.paid, last.detail, last.purpose) == (paid.entry, MANIFEST, "spring")
    assert anchor == Anchor(read_seal(path).ledger, last.number, last.hash)
    verify(path, [paid.anchor, anchor])
    assert show(path)[1].spent == 10**6


def test_a_charge_serves_one_release(path):
    paid = charge(path, "people", 1, "spring", "asymptotic")
    record_release(paid, MANIFEST)
    before = path.read_bytes()
    for manifest in (MANIFEST, "b" * 64):
        with pytest.raises(SurveyError, match="has a release for entry 3 already"):
            record_release(paid, manifest)
    assert path.read_bytes() == before


def test_what_is_no_charge_of_this_ledger_gets_no_release(path, tmp_path):
    """Another ledger's charge, an opening in a charge's place, and what is no hash: nothing is written."""
    open_budget(tmp_path / "other.db", "people", 10, "asymptotic")
    elsewhere = charge(tmp_path / "other.db", "people", 1, "a", "asymptotic")
    opening = entries(path)[1]
    paid = charge(path, "people", 1, "a", "asymptotic")
    before = path.read_bytes()
    with pytest.raises(SurveyError, match="is not the ledger"):
        record_release(replace(elsewhere, ledger=path), MANIFEST)
    with pytest.raises(ImpossibleError):
        record_release(replace(paid, anchor=Anchor(paid.anchor.ledger, 2, opening.hash)), MANIFEST)
    with pytest.raises(ImpossibleError):
        record_release(paid, "not a hash")
    assert path.read_bytes() == before
    record_release(paid, MANIFEST)


def forged(path, change):
    """The ledger with one entry changed, and every hash and the seal made anew."""
    database = sqlite3.connect(path)
    with database:
        rows = [Entry(*row) for row in database.execute("SELECT * FROM entries ORDER BY number")]
        previous = first_hash(2, *database.execute("SELECT id, key FROM ledger").fetchone())
        database.execute("DELETE FROM entries")
        for row in change(rows):
            entry = replace(row, hash=entry_hash(2, previous, row))
            previous = entry.hash
            database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", list(vars(entry).values()))
    seal = Seal(read_seal(path).ledger, entry.number, entry.hash, _digest(path, database))
    database.close()
    write_seal(path, seal)


FORGERIES = {
    "a second release": lambda rows: [*rows, replace(rows[-2], number=len(rows) + 1)],
    "a release of nothing": lambda rows: [*rows[:3], replace(rows[3], paid=2), rows[4]],
    "a release before its charge": lambda rows: [
        *rows[:2], replace(rows[3], number=3, paid=4), replace(rows[2], number=4), rows[4]
    ],
    "a release of the other kind": lambda rows: [
        *rows[:3], replace(rows[3], accounting="differential privacy"), rows[4]
    ],
    "a release that costs": lambda rows: [*rows[:3], replace(rows[3], millionths=5), rows[4]],
    "a release without a hash": lambda rows: [*rows[:3], replace(rows[3], detail=""), rows[4]],
    "a refusal that gives back": lambda rows: [*rows[:4], replace(rows[4], millionths=-5)],
    "a refusal of no budget": lambda rows: [*rows[:4], replace(rows[4], budget="nobody")],
    "an upgrade of what was never old": lambda rows: [
        *rows, Entry(len(rows) + 1, "upgrade", "", "", 0, "", 0, rows[0].hash, "")
    ],
    "a kind of ε that there is not": lambda rows: [replace(rows[0], accounting="other"), *rows[1:]],
}  # fmt: skip


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_entries_that_cannot_follow_one_another_are_refused_though_all_is_signed_again(path, change):
    record_release(charge(path, "people", 1, "a", "asymptotic"), MANIFEST)
    record_refusal(path, "people", "asymptotic", "b", "privacy.epsilon")
    forged(path, lambda rows: rows)
    verify(path)  # nothing was changed: the forger's hashes are right
    forged(path, change)
    with pytest.raises(SurveyError, match="it was changed"):
        verify(path)


# --- refusals ---


def test_a_refusal_names_its_place_and_costs_nothing(path):
    before = show(path)
    record_refusal(path, "people", "asymptotic", "spring", "column 'salary'\n\x1b[31m" + "x" * 500)
    *_, last = entries(path)
    assert (last.kind, last.millionths, last.purpose) == ("refusal", 0, "spring")
    assert last.detail.startswith("column 'salary'??[31mxxx")
    assert len(last.detail) < 200
    assert show(path) == before
    with pytest.raises(SurveyError, match="is not in ledger"):
        record_refusal(path, "nobody", "asymptotic", "spring", "somewhere")


# --- fingerprints ---


def survey(changed=0.0, records=1000):
    generator = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "sex": generator.choice(["F", "M"], records),
            "salary": np.exp(generator.standard_normal(records)) + changed * (np.arange(records) == 7),
            "wt": np.exp(generator.standard_normal(records)),
        }
    )
    return read_survey(frame, outcome="salary", weight="wt", public=["sex"])


def test_the_same_answers_have_the_same_fingerprint_under_one_key_alone():
    key, other = bytes(32), bytes([1] * 32)
    assert fingerprint(survey(), key) == fingerprint(survey(), key)
    assert fingerprint(survey(), key) != fingerprint(survey(1e-9), key)
    assert fingerprint(survey(), key) != fingerprint(survey(), other)


def test_a_survey_on_disk_has_the_fingerprint_of_the_same_in_memory(tmp_path):
    large = survey(records=150_000)
    stored = store_survey(large, tmp_path, Local(threads=2, parts=3))
    assert fingerprint(stored, bytes(32)) == fingerprint(large, bytes(32))


def test_each_ledger_has_a_key_of_its_own(path, tmp_path):
    open_budget(tmp_path / "other.db", "people", 10, "asymptotic")
    keys = {fingerprint_key(path), fingerprint_key(tmp_path / "other.db")}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == 2


def test_the_same_data_under_another_name_are_noticed(path):
    open_budget(path, "others", 10, "asymptotic")
    first = charge(path, "people", 1, "a", "asymptotic", "f" * 64)
    again = charge(path, "people", 1, "b", "differential privacy", "f" * 64)
    assert first.also_charged == again.also_charged == ()
    assert charge(path, "others", 1, "c", "asymptotic", "e" * 64).also_charged == ()
    assert charge(path, "others", 1, "d", "asymptotic", "f" * 64).also_charged == ("people",)
    assert charge(path, "people", 1, "e", "asymptotic", "f" * 64).also_charged == ("others",)
    assert charge(path, "people", 1, "f", "asymptotic").also_charged == ()


def test_a_charge_does_not_carry_the_fingerprint_or_the_key(path):
    paid = charge(path, "people", 1, "a", "asymptotic", "f" * 64)
    assert isinstance(paid, Charge)
    assert "f" * 64 not in repr(paid)
    assert fingerprint_key(path).hex() not in repr(paid)
    assert isinstance(paid.ledger, Path)
