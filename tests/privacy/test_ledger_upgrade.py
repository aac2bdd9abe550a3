"""From version 1 to version 2: a ledger that an earlier svysynth wrote is checked, upgraded once, and loses nothing."""

import json
import shutil
import sqlite3

import pytest

from ledger_child import GOLDEN
from svysynth import SurveyError
from svysynth.cli.main import main
from svysynth.privacy.ledger import charge, entries, open_budget, record_release, show, upgrade, verify
from svysynth.privacy.tamper_marks import Anchor, seal_path
from test_ledger import child_outcomes, fast, flipped  # noqa: F401  a fixture

ANCHORS = [Anchor(**fields) for fields in json.loads((GOLDEN / "anchors.json").read_text())]


@pytest.fixture
def old(tmp_path):
    """A ledger that version 1 wrote: `mixed` with both kinds of charges, `paper` with one, `unused` with none."""
    for name in ("ledger.sqlite", "ledger.sqlite.anchor"):
        shutil.copy(GOLDEN / name, tmp_path / name)
    return tmp_path / "ledger.sqlite"


def run(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return caught.value.code or 0, said.out, said.err


def test_a_ledger_of_version_1_is_not_used_until_it_is_upgraded(old):
    before = old.read_bytes(), seal_path(old).read_bytes()
    for action in (
        lambda: show(old),
        lambda: entries(old),
        lambda: verify(old, ANCHORS),
        lambda: charge(old, "paper", 1, "a", "asymptotic"),
        lambda: open_budget(old, "new", 1, "asymptotic"),
    ):
        with pytest.raises(SurveyError, match="version 1 of the ledger"):
            action()
    assert (old.read_bytes(), seal_path(old).read_bytes()) == before


def test_old_anchors_hold_after_the_upgrade_and_new_entries_follow(old):
    database = sqlite3.connect(old)
    rows = database.execute("SELECT number, kind, budget, millionths, purpose, guarantee, time, hash FROM entries")
    before = rows.fetchall()
    database.close()
    upgrade(old)
    chain = verify(old, ANCHORS)
    kept = [
        (e.number, e.kind, e.budget, e.millionths, e.purpose, e.accounting, e.time, e.hash)
        for e in chain[: len(before)]
    ]
    assert kept == before
    assert [entry.kind for entry in chain[len(before) :]] == ["upgrade"]
    paid = charge(old, "paper", 1, "new", "asymptotic")
    verify(old, [*ANCHORS, paid.anchor, record_release(paid, "0" * 64)])


def test_each_kind_goes_on_with_what_was_left_and_old_global_charges_count_twice(old):
    """`mixed` had 20, of which 3 went for asymptotic releases and 2.5 for global ones: 14.5 were left."""
    upgrade(old)
    found = {(state.name, state.accounting): (state.total, state.spent, state.left) for state in show(old)}
    assert found == {
        ("mixed", "differential privacy"): (19_500_000, 5_000_000, 14_500_000),
        ("mixed", "asymptotic"): (17_500_000, 3_000_000, 14_500_000),
        ("paper", "asymptotic"): (32_400_000, 10_800_000, 21_600_000),
    }
    open_budget(old, "unused", 5, "differential privacy")
    with pytest.raises(SurveyError, match="is open already"):
        open_budget(old, "paper", 5, "asymptotic")


def test_an_upgrade_is_made_once(old):
    upgrade(old)
    before = old.read_bytes(), seal_path(old).read_bytes()
    with pytest.raises(SurveyError, match="is of version 2 already"):
        upgrade(old)
    assert (old.read_bytes(), seal_path(old).read_bytes()) == before


def test_an_old_ledger_that_was_changed_is_not_upgraded(old):
    """Every 40th byte; each time the files stay as they are."""
    database, seal = old.read_bytes(), seal_path(old).read_bytes()
    for place in range(0, len(database), 40):
        old.write_bytes(flipped(database, place, place % 8))
        with pytest.raises(SurveyError):
            upgrade(old)
        assert seal_path(old).read_bytes() == seal
    old.write_bytes(database)
    seal_path(old).unlink()
    with pytest.raises(SurveyError, match="has lost its anchor"):
        upgrade(old)


def test_an_upgraded_ledger_cannot_be_put_back(old):
    database = old.read_bytes()
    upgrade(old)
    old.write_bytes(database)
    for action in (show, upgrade):
        with pytest.raises(SurveyError, match="put back"):
            action(old)


def test_an_upgrade_that_dies_at_any_step_is_made_or_not_made(fast):  # noqa: F811
    *deaths, last = child_outcomes("dying_upgrades", fast / "ledger.db", "killed")
    assert {death["again"] for death in deaths} == {0, 256}
    assert {death["pending"] for death in deaths} == {False, True}
    assert all(death["entries"] == 7 for death in [*deaths, last])
    assert len(deaths) > 100


def test_the_command_upgrades_and_says_where_each_budget_stands(old, capsys):
    assert run(capsys, "ledger", "show", old)[0] == 1
    code, out, err = run(capsys, "ledger", "upgrade", old)
    assert (code, err) == (0, "")
    assert "is of version 2 now" in out
    assert "differential privacy" in out
    assert "19.5" in out
    code, out, _ = run(capsys, "ledger", "show", old)
    assert code == 0
    assert "from version 1" in out
