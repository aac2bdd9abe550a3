"""The ledger: exact to a millionth, never overspent, whole after any crash, and closed to whoever changed it."""

import contextlib
import hashlib
import json
import math
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, astuple, replace
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svysynth
from ledger_child import BUDGET, UNIT, check_releases
from svysynth import SurveyError
from svysynth.privacy import ledger_file as ledgerfile
from svysynth.privacy import tamper_marks as anchors
from svysynth.privacy.accounting import epsilon_text, millionths
from svysynth.privacy.ledger import (
    charge,
    entries,
    fingerprint_key,
    open_budget,
    record_refusal,
    show,
    verify,
)
from svysynth.privacy.ledger_entries import Entry, entry_hash, first_hash
from svysynth.privacy.tamper_marks import Anchor, Seal, read_seal, seal_path, write_seal

CHILD = Path(__file__).with_name("ledger_child.py")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(svysynth.__file__).parent.parent)}


@pytest.fixture
def fast():
    """A folder in memory where there is one: killing a process loses nothing from either kind of disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def path(fast):
    """A ledger with one budget of 10."""
    open_budget(fast / "ledger.db", BUDGET, 10, "asymptotic")
    return fast / "ledger.db"


def child(*arguments, **options):
    """A process of `ledger_child.py`, without the site packages: what the ledger imports, it imports fast."""
    command = [sys.executable, "-S", str(CHILD), *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, **options)


def child_outcomes(*arguments):
    with child(*arguments, stdout=subprocess.PIPE, text=True) as process:
        outcomes = json.load(process.stdout)
    assert process.returncode == 0
    return outcomes


def spent(path, name=BUDGET):
    return {state.name: state.spent for state in show(path)}[name]


# --- exact amounts ---


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (0.1, 100_000),
        (10.8, 10_800_000),
        (0.1 + 0.2, 300_001),  # 0.30000000000000004
        (1e-6, 1),
        (1e-7, 1),
        (5e-324, 1),
        ("1.0000001", 1_000_001),
        ("1e-6", 1),
        ("1e-999999999", 1),
        ("0." + "3" * 10_000, 333_334),
        (Decimal("2.718281828"), 2_718_282),
        (3, 3_000_000),
        (1e9, 10**15),
        (123456.789012, 123_456_789_012),
    ],
)
def test_an_amount_is_what_the_user_reads_rounded_up(amount, expected):
    assert millionths(amount) == expected


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_floats_are_rounded_up_from_their_shortest_text(amount):
    exact = Fraction(repr(amount)) * 10**6
    assert millionths(amount) == math.ceil(exact) >= exact
    assert millionths(amount) == millionths(repr(amount)) == millionths(Decimal(repr(amount)))


@given(st.integers(1, 10**15), st.integers(0, 10**30))
def test_totals_are_rounded_down_and_charges_up(whole, beyond):
    text = f"{epsilon_text(whole)}" if whole % 10**6 else f"{whole // 10**6}.000000"
    text = text + "0" * (6 - len(text.partition(".")[2])) + f"{beyond:031d}"
    if Fraction(text) > 10**9:
        with pytest.raises(SurveyError, match="epsilon"):
            millionths(text)
    else:
        assert millionths(text) == whole + (beyond > 0)
        assert millionths(text, ROUND_FLOOR) == whole


@given(st.integers(1, 10**15))
def test_amounts_are_shown_as_they_are_read(amount):
    assert millionths(epsilon_text(amount)) == amount


def test_the_decimal_context_of_the_caller_does_not_matter():
    with localcontext(prec=2, Emin=-2, Emax=2):
        assert millionths("123.4567891") == 123_456_790


@pytest.mark.parametrize(
    "amount",
    [
        0,
        -1,
        "-0.1",
        "nan",
        "snan",
        "inf",
        float("inf"),
        float("nan"),
        1.1e9,
        "1e999999999",
        "",
        "ten",
        True,
        None,
        "1,5",
    ],
)
def test_what_is_no_amount_is_refused(path, amount):
    before = path.read_bytes()
    with pytest.raises(SurveyError, match="epsilon: is not an amount"):
        charge(path, BUDGET, amount, "release", "asymptotic")
    with pytest.raises(SurveyError, match="epsilon: is not an amount"):
        open_budget(path, "another", amount, "asymptotic")
    assert path.read_bytes() == before


# --- opening, charging, refusing ---


def test_a_charge_is_an_entry_with_an_anchor(path):
    paid = charge(path, BUDGET, 2.5, "release-1", "asymptotic")
    opened, charged = entries(path)
    assert (opened.kind, opened.budget, opened.millionths) == ("open", BUDGET, 10_000_000)
    assert astuple(charged)[:8] == (2, "charge", BUDGET, "asymptotic", 2_500_000, "release-1", 0, "")
    assert charged.time.endswith("+00:00")
    assert (paid.budget, paid.accounting, paid.millionths, paid.entry) == (BUDGET, "asymptotic", 2_500_000, 2)
    assert paid.anchor == Anchor(read_seal(path).ledger, 2, charged.hash)
    assert Anchor.from_json(paid.anchor.to_json()) == paid.anchor
    verify(path, [paid.anchor])


def test_every_hash_follows_from_the_one_before_and_all_fields(path):
    """The encoding, written out a second time: an auditor may need to do the same."""

    def hashed(*fields):
        return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()

    charge(path, BUDGET, 2.5, "release-1", "asymptotic")
    charge(path, BUDGET, 1, "Zürich, 10–19", "asymptotic")
    charge(path, BUDGET, 1, "release-3", "asymptotic", "f" * 64, "school")
    previous = hashed("svysynth ledger", 2, read_seal(path).ledger, fingerprint_key(path).hex())
    for entry in entries(path):
        # the hash is published: it leaves out the fingerprint of the answers, which is the detail of a charge
        left_out = ("hash", "detail") if entry.kind == "charge" else ("hash",)
        fields = [value for name, value in asdict(entry).items() if name not in left_out]
        previous = hashed(previous, *fields, *(["school"] if entry.purpose == "release-3" else []))
        digest = entry.hash
        assert digest == previous
    assert (read_seal(path).entry, read_seal(path).hash) == (4, previous)


def test_each_budget_of_a_ledger_is_its_own(path):
    open_budget(path, "sdr-2019", "3.0000019", "asymptotic")
    charge(path, "sdr-2019", "1.0000001", "a", "asymptotic")
    charge(path, BUDGET, 4, "b", "asymptotic")
    charge(path, BUDGET, 6, "c", "asymptotic")
    first, second = show(path)
    assert (first.name, first.total, first.spent, first.left, first.charges) == (BUDGET, 10**7, 10**7, 0, 2)
    assert (second.total, second.spent, second.left, second.charges) == (3_000_001, 1_000_001, 2_000_000, 1)


def test_a_charge_beyond_the_total_is_refused_and_leaves_no_trace(path):
    charge(path, BUDGET, "9.9", "a", "asymptotic")
    before = path.read_bytes(), seal_path(path).read_bytes()
    message = f"budget '{BUDGET}': has 0.1 left of 10, and 0.100001 was asked for. Remedy: "
    with pytest.raises(SurveyError, match=message):
        charge(path, BUDGET, "0.1000000001", "b", "asymptotic")
    assert (path.read_bytes(), seal_path(path).read_bytes()) == before
    charge(path, BUDGET, "0.1", "b", "asymptotic")
    with pytest.raises(SurveyError, match="has 0 left of 10"):
        charge(path, BUDGET, UNIT, "c", "asymptotic")


def test_a_budget_is_opened_once(path):
    with pytest.raises(SurveyError, match=rf"budget '{BUDGET}' \(asymptotic\): is open already"):
        open_budget(path, BUDGET, 100, "asymptotic")
    assert [state.total for state in show(path)] == [10**7]


def test_an_unknown_budget_is_refused_with_a_hint(path):
    with pytest.raises(
        SurveyError, match=r"budget 'sdr-2071': is not in ledger 'ledger\.db' \(did you mean 'sdr-2017'"
    ):
        charge(path, "sdr-2071", 1, "a", "asymptotic")


def test_names_that_look_the_same_are_the_same(path):
    open_budget(path, "Zu\u0308rich", 1, "asymptotic")
    with pytest.raises(SurveyError, match="is open already"):
        open_budget(path, "Z\u00fcrich", 1, "asymptotic")
    open_budget(path, "n" * 200, 1, "asymptotic")


@pytest.mark.parametrize("name", ["", " sdr", "sdr ", "two\nlines", "a\x1b[31m", "nul\0", "\ud800", "n" * 201, None, 7])
def test_names_are_plain(path, name):
    for action in (
        lambda: open_budget(path, name, 1, "asymptotic"),
        lambda: charge(path, name, 1, "a", "asymptotic"),
        lambda: charge(path, BUDGET, 1, name, "asymptotic"),
        lambda: record_refusal(path, name, "asymptotic", "a", "somewhere"),
        lambda: record_refusal(path, BUDGET, "asymptotic", name, "somewhere"),
    ):
        with pytest.raises(SurveyError, match="is not a plain name"):
            action()
    assert len(entries(path)) == 1


def test_a_total_below_one_millionth_is_refused(path):
    with pytest.raises(SurveyError, match="below one millionth"):
        open_budget(path, "tiny", "0.0000009", "asymptotic")


operations = st.tuples(
    st.sampled_from(["open", "charge"]),
    st.sampled_from(["a", "b"]),
    st.decimals(min_value="0.0000001", max_value=5, places=7),
)


@settings(max_examples=40)
@given(st.lists(operations, max_size=12))
def test_any_sequence_of_openings_and_charges_adds_up(sequence):
    """A dictionary of fractions is the twin of the ledger."""
    left, taken = {}, []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = Path(folder) / "ledger.db"
        open_budget(path, "first", 1, "asymptotic")
        for kind, name, amount in sequence:
            up, down = math.ceil(Fraction(amount) * 10**6), math.floor(Fraction(amount) * 10**6)
            try:
                if kind == "open":
                    open_budget(path, name, amount, "asymptotic")
                    assert name not in left
                    assert down > 0
                    left[name] = down
                else:
                    taken.append(charge(path, name, amount, "release", "asymptotic").anchor)
                    left[name] -= up
                    assert left[name] >= 0
            except SurveyError:
                assert name in left or down == 0 if kind == "open" else left.get(name, 0) < up
        assert {state.name: state.left for state in show(path)} == {"first": 10**6, **left}
        verify(path, taken)


# --- the files ---


def test_the_files_are_private_and_nothing_else_is_left(fast):
    before = os.umask(0)
    try:
        open_budget(fast / "ledger.db", BUDGET, 10, "asymptotic")
        charge(fast / "ledger.db", BUDGET, 1, "a", "asymptotic")
    finally:
        os.umask(before)
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in fast.iterdir()} == {
        "ledger.db": 0o600,
        "ledger.db.anchor": 0o600,
    }


def test_the_database_says_what_it_is(path):
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"SVYS", "big"),)
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        with pytest.raises(sqlite3.IntegrityError):
            database.execute("INSERT INTO entries VALUES (2, 'charge', 'sdr-2017', '', 'much', '', 0, '', '', '')")
    database.close()


def test_everything_is_flushed_before_a_charge_returns(path, monkeypatch):
    """The database in SQLite's strictest mode, and the seal and its folder twice over."""
    flushed, statements = [], []
    flush, connect = os.fsync, sqlite3.connect

    def connect_and_trace(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    def flush_and_tell(handle):
        flushed.append((stat.S_ISDIR(os.fstat(handle).st_mode), "COMMIT" in statements))
        flush(handle)

    monkeypatch.setattr(os, "fsync", flush_and_tell)
    monkeypatch.setattr(sqlite3, "connect", connect_and_trace)
    charge(path, BUDGET, 1, "a", "asymptotic")
    assert flushed == [(False, False), (True, False), (False, True), (True, True)]
    assert statements.index("PRAGMA synchronous = EXTRA") < statements.index("BEGIN EXCLUSIVE")


def test_no_other_process_comes_between_the_commit_and_the_seal(path, monkeypatch):
    """The last moment before a charge returns: the database is still locked."""
    locked = []

    def write_and_look(place, seal):
        other = sqlite3.connect(place, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("SELECT * FROM entries")
        other.close()
        locked.append(seal.next is not None)
        write_seal(place, seal)

    monkeypatch.setattr(ledgerfile, "write_seal", write_and_look)
    charge(path, BUDGET, 1, "a", "asymptotic")
    assert locked == [True, False]


def test_a_ledger_is_one_ledger_through_any_link(path, fast):
    (fast / "link").symlink_to(path)
    charge(fast / "link", BUDGET, 1, "a", "asymptotic")
    charge(path, BUDGET, 1, "b", "asymptotic")
    assert spent(fast / "link") == 2 * 10**6
    assert not (fast / "link.anchor").exists()


@pytest.mark.parametrize("name", ["odd name?#%20&mode=memory", "läger 'x'", "-journal"])
def test_odd_file_names_are_file_names(fast, name):
    open_budget(fast / name, BUDGET, 10, "asymptotic")
    assert {file.name for file in fast.iterdir()} == {name, f"{name}.anchor"}
    charge(str(fast / name), BUDGET, 1, "a", "asymptotic")


def refused(path, match=None):
    """Every way to use the ledger is refused, with one message."""
    messages = set()
    for action in (
        lambda: verify(path),
        lambda: show(path),
        lambda: entries(path),
        lambda: charge(path, BUDGET, UNIT, "more", "asymptotic"),
        lambda: open_budget(path, "another", 1, "asymptotic"),
    ):
        with pytest.raises(SurveyError, match=match) as caught:
            action()
        messages.add(str(caught.value))
    return messages


def test_files_that_are_no_ledger_are_refused_and_left_alone(fast):
    (fast / "notes.txt").write_text("not a ledger " * 500)
    with sqlite3.connect(fast / "other.db") as database:
        database.execute("CREATE TABLE entries (number INTEGER)")
    database.close()
    for name in ("notes.txt", "other.db"):
        before = (fast / name).read_bytes()
        assert len(refused(fast / name, "is not a privacy ledger")) == 1
        assert (fast / name).read_bytes() == before
        assert not seal_path(fast / name).exists()
    (fast / "folder").mkdir()
    refused(fast / "folder", "is not a regular file")
    refused(fast / "nowhere" / "ledger.db", "is in a folder that does not exist")
    refused(fast / "nul\0", "cannot be reached")
    (fast / "loop").symlink_to(fast / "loop")
    refused(fast / "loop", "cannot be reached|cannot be opened|cannot be found")


def test_where_there_is_no_ledger_a_budget_must_be_opened_first(fast):
    with pytest.raises(SurveyError, match="cannot be found"):
        charge(fast / "ledger.db", BUDGET, 1, "a", "asymptotic")
    assert not list(fast.iterdir())
    (fast / "ledger.db").touch()
    with pytest.raises(SurveyError, match="holds no budget yet"):
        show(fast / "ledger.db")
    open_budget(fast / "ledger.db", BUDGET, 1, "asymptotic")


def test_another_version_is_refused_by_name(path):
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 3")
        digest = ledgerfile._digest(path, database)
    database.close()
    write_seal(path, replace(read_seal(path), digest=digest))
    refused(path, "written by another version")


def test_an_old_sqlite_is_refused_by_name(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    refused(path, "SQLite: is too old")


def test_a_folder_that_takes_no_file_is_refused():
    """Not even the superuser can create a file there."""
    with pytest.raises(SurveyError, match="cannot be opened for writing"):
        open_budget("/sys/ledger.db", BUDGET, 1, "asymptotic")


def test_whoever_may_only_read_can_verify_and_not_charge(path, fast):
    charge(path, BUDGET, 1, "a", "asymptotic")
    for file in (path, seal_path(path)):
        file.chmod(0o444)
    fast.chmod(0o555)
    before = path.read_bytes(), seal_path(path).read_bytes()
    try:
        outcome = child_outcomes("without_permission", path)
    finally:
        fast.chmod(0o755)
    assert all("cannot be opened for writing" in message for message in outcome["messages"]), outcome
    assert outcome["charges"] == 1
    assert (path.read_bytes(), seal_path(path).read_bytes()) == before


def test_the_ledger_starts_fast():
    """Nothing of the package's heavy ground is needed to look at a budget."""
    code = "import sys, svysynth.privacy.ledger; print({'jax', 'polars', 'numpy', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# --- many at once ---


def test_a_busy_ledger_is_waited_for_and_then_refused(path, monkeypatch):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(ledgerfile, "BUSY_SECONDS", 0.1)
    refused(path, r"in use by other processes for 0\.1 seconds. Remedy: try again")
    monkeypatch.setattr(ledgerfile, "BUSY_SECONDS", 600)
    waiting = threading.Thread(target=charge, args=(path, BUDGET, 1, "a", "asymptotic"))
    waiting.start()
    time.sleep(0.3)
    other.close()
    waiting.join()
    assert spent(path) == 10**6


def test_threads_of_one_process_spend_exactly_the_total(path):
    refusals = []

    def spend():
        try:
            while True:
                charge(path, BUDGET, "0.1", "release", "asymptotic")
        except SurveyError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 8
    assert all("has 0 left of 10" in refusal for refusal in refusals)
    assert spent(path) == 10**7
    verify(path)


def test_32_processes_race_for_the_last_units(tmp_path):
    path, folder = tmp_path / "ledger.db", tmp_path / "releases"
    folder.mkdir()
    open_budget(path, BUDGET, "0.000083", "asymptotic")
    charge(path, BUDGET, "0.000003", "before", "asymptotic")
    racers = [child("spend", path, folder, f"racer{number}", "0.000002") for number in range(32)]
    (folder / "start").touch()
    assert [racer.wait() for racer in racers] == [0] * 32
    assert spent(path) == 83
    assert len(list(folder.glob("*.release"))) == 40
    refusals = [file.read_text() for file in folder.glob("*.refused")]
    assert len(refusals) == 32
    assert all("has 0 left of 0.000083, and 0.000002 was asked for" in refusal for refusal in refusals)
    check_releases(path, folder)


def test_processes_race_to_create_one_ledger(fast):
    path = fast / "ledger.db"
    arguments = f"{str(path)!r}, sys.argv[1], 1, 'asymptotic'"
    code = f"from svysynth.privacy.ledger import open_budget; import sys; open_budget({arguments})"
    command = [sys.executable, "-S", "-c", code]
    racers = [subprocess.Popen([*command, f"b{number}"], env=ENVIRONMENT) for number in range(12)]
    assert [racer.wait() for racer in racers] == [0] * 12
    assert {state.name for state in show(path)} == {f"b{number}" for number in range(12)}
    assert len(entries(path)) == 12


# --- dying at it ---


def survive_kills(folder, rounds, kills, seed):
    """The counts say that enough kills found a process in the act; about one in ten does, and one in ten is charged."""
    outcomes = child_outcomes("kill_while_spending", folder, rounds, kills, seed)
    assert len(outcomes) == rounds * kills
    assert sum(outcome["pending"] for outcome in outcomes) > 0
    assert sum(outcome["unreleased"] for outcome in outcomes) > 0


def test_300_kills_lose_no_charge_and_pay_every_release(fast):
    survive_kills(fast, 15, 20, seed=1)


@pytest.mark.study
def test_5000_kills_lose_no_charge_and_pay_every_release(fast, tmp_path):
    survive_kills(fast, 150, 20, seed=3)
    survive_kills(tmp_path, 100, 20, seed=4)


@pytest.mark.parametrize(
    ("kind", "way", "status"),
    [
        ("charge", "killed", signal.SIGKILL),
        ("charge", "interrupted", 256),
        ("release", "killed", signal.SIGKILL),
        ("refusal", "killed", signal.SIGKILL),
    ],
)
def test_an_entry_whose_writing_dies_at_any_step_is_made_or_not_made(path, kind, way, status):
    """Before every call out of Python; what happens inside the commit is SQLite's own, and random kills'."""
    *deaths, last = child_outcomes("dying_entries", path, kind, way)
    assert all(death["status"] == status for death in deaths)
    states = [(death["entries"] - death["before"], death["pending"]) for death in deaths]
    assert list(dict.fromkeys(states)) == [(0, False), (0, True), (1, True), (1, False)]
    assert (last["entries"] - last["before"], last["pending"]) == (1, False)
    assert len(deaths) > 100


def test_a_ledger_whose_creation_dies_at_any_step_can_be_created_again(fast):
    outcomes = child_outcomes("dying_openings", fast)
    assert {outcome["again"] for outcome in outcomes} == {0, 256}
    assert all(outcome["entries"] == 1 for outcome in outcomes)
    assert outcomes[-1]["again"] == 256
    assert len(outcomes) > 100


def test_a_full_disk_leaves_the_old_state_or_the_new(path):
    """Every limit on the size of a file, from nothing to enough."""
    charge(path, BUDGET, 1, "a", "asymptotic")
    outcomes = child_outcomes("limited_charges", path)
    for outcome in outcomes:
        made = outcome["entries"] - outcome["before"]
        assert (outcome["status"], made) in ((0, 1), (256, 0)), outcome
    assert {outcome["status"] for outcome in outcomes} == {0, 256}


def test_a_disk_that_fills_up_between_the_steps_is_told(path, monkeypatch):
    """Each flush and each renaming fails once; the charge counts only if the database had committed."""
    for name, fails in [("fsync", 4), ("replace", 2)]:
        home = os if name == "fsync" else Path
        real = getattr(home, name)
        for failing in range(fails):
            before, calls = len(entries(path)), []

            def fail(*arguments, real=real, failing=failing, calls=calls):
                calls.append(arguments)
                if len(calls) == failing + 1:
                    raise OSError(28, "No space left on device")
                return real(*arguments)

            monkeypatch.setattr(home, name, fail)
            with pytest.raises(
                SurveyError, match=r"cannot be written\. Remedy: check the free space.*may count as spent"
            ):
                charge(path, BUDGET, UNIT, "release", "asymptotic")
            monkeypatch.undo()
            verify(path)
            assert len(entries(path)) - before == (failing >= fails // 2)


def test_a_database_that_cannot_grow_is_told(path, monkeypatch):
    connect = sqlite3.connect

    def connect_without_room(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_without_room)
    outcomes = []
    with contextlib.suppress(SurveyError):
        for _ in range(100):
            outcomes.append(charge(path, BUDGET, UNIT, "release " * 20 + "x", "asymptotic"))
    with pytest.raises(SurveyError, match=r"could not be read or written in full\. Remedy: check the free space"):
        charge(path, BUDGET, UNIT, "release " * 20 + "x", "asymptotic")
    monkeypatch.undo()
    assert 0 < len(outcomes) == show(path)[0].charges < 100


@pytest.mark.parametrize("graceful", [False, True])
def test_sigterm_at_a_random_time_leaves_the_old_state_or_the_new(path, fast, graceful):
    random_numbers = random.Random(3)
    (fast / "start").touch()
    for round_ in range(12):
        handler = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3));" if graceful else ""
        code = f"import sys; {handler} sys.path.insert(0, {str(CHILD.parent)!r}); import ledger_child as c; "
        code += f"c.spend({str(path)!r}, {str(fast)!r}, 'r{round_}', {UNIT!r})"
        with subprocess.Popen([sys.executable, "-S", "-c", code], env=ENVIRONMENT) as spender:
            while not (fast / f"r{round_}-1.asked").exists():
                assert spender.poll() is None
                time.sleep(0.001)
            time.sleep(random_numbers.uniform(0, 0.03))
            spender.terminate()
        assert spender.returncode == (3 if graceful else -signal.SIGTERM)
        assert len(check_releases(path, fast)) <= round_ + 1


# --- changing it behind the program's back ---


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """The files of one ledger after each of twelve entries, the anchors of its releases, and another's files."""
    path = tmp_path_factory.mktemp("history") / "ledger.db"
    open_budget(path, BUDGET, 10, "asymptotic")
    copies, given = [(path.read_bytes(), seal_path(path).read_bytes())], []
    open_budget(path, "sdr-2019", 5, "asymptotic")
    copies.append((path.read_bytes(), seal_path(path).read_bytes()))
    for number in range(10):
        name = ("sdr-2019", BUDGET)[number % 3 > 0]
        given.append(charge(path, name, f"0.{number + 1}", f"release-{number}", "asymptotic").anchor)
        copies.append((path.read_bytes(), seal_path(path).read_bytes()))
    return copies, given


@pytest.fixture
def lay_out(fast, history):
    """Put these bytes in the place of the ledger and its seal, by default the latest ones; None leaves a file out."""

    def place(database=history[0][-1][0], seal=history[0][-1][1]):
        path = fast / "ledger.db"
        for file in fast.glob("ledger.db*"):
            file.unlink()
        for file, content in ((path, database), (seal_path(path), seal)):
            if content is not None:
                file.write_bytes(content)
        return path

    return place


def flipped(content, position, bit):
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)


def rewritten(path, change, rehash):
    """Change entries by SQL; then, to order, make every hash follow again."""
    database = sqlite3.connect(path)
    with database:
        change(database)
        if rehash:
            previous = first_hash(2, *database.execute("SELECT id, key FROM ledger").fetchone())
            rows = [Entry(*row) for row in database.execute("SELECT * FROM entries ORDER BY number")]
            database.execute("DELETE FROM entries")
            for number, row in enumerate(rows, start=1):
                entry = replace(row, number=number)
                entry = replace(entry, hash=entry_hash(2, previous, entry))
                previous = entry.hash
                database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(entry))
    database.close()


def test_the_untouched_copy_is_in_order(lay_out, history):
    """The other tests of this part would pass for a ledger that refuses everything."""
    path = lay_out()
    verify(path, history[1])
    assert len(entries(path)) == 12
    charge(path, BUDGET, UNIT, "more", "asymptotic")


def test_truncated_and_extended_ledgers_are_refused(lay_out, history):
    database = history[0][-1][0]
    sizes = [*range(0, len(database), 256), 1, 15, 16, 99, 100, 101, len(database) - 1]
    for size in sizes:
        refused(lay_out(database[:size]))
    for extra in (b"\0", b"x" * 4096, database):
        refused(lay_out(database + extra))
    refused(lay_out(b"\0" * len(database)))
    refused(lay_out(b"x" * len(database)))
    assert len(sizes) > 50


def test_any_flipped_bit_is_refused(lay_out, history):
    """In the header every byte, elsewhere at random, unused bytes of pages included; and every byte of the seal."""
    random_numbers = random.Random(4)
    database, seal = history[0][-1]
    places = [*range(100), *(random_numbers.randrange(len(database)) for _ in range(200))]
    for place in places:
        refused(lay_out(flipped(database, place, random_numbers.randrange(8))))
    for place in range(len(seal)):
        refused(lay_out(seal=flipped(seal, place, random_numbers.randrange(8))), r"anchor 'ledger\.db\.anchor'")


@pytest.mark.study
def test_every_flipped_bit_is_refused(lay_out, history):
    database = history[0][-1][0]
    for place in range(len(database)):
        for bit in range(8):
            path = lay_out(flipped(database, place, bit))
            with pytest.raises(SurveyError):
                verify(path)


def test_restored_ledgers_are_refused(lay_out, history):
    copies, _ = history
    for database, seal in copies[:-1]:
        refused(lay_out(database=database), "it was changed, cut short or put back")
        refused(lay_out(seal=seal), "it was changed, cut short or put back")


def test_restoring_both_files_is_caught_by_the_anchors_of_the_releases(lay_out, history):
    copies, given = history
    for database, seal in copies[:-1]:
        path = lay_out(database, seal)
        verify(path)
        with pytest.raises(SurveyError, match="lacks the charge of a release, entry"):
            verify(path, given)


def test_a_missing_file_is_refused(lay_out):
    refused(lay_out(database=None), "is missing, though its anchor is there")
    refused(lay_out(seal=None), "has lost its anchor")
    refused(lay_out(database=b""))
    refused(lay_out(seal=b""), "is damaged")
    assert not lay_out(database=None).exists()


def test_edited_ledgers_are_refused(lay_out):
    columns = {
        "budget": "iif(budget = 'sdr-2017', 'sdr-2019', 'sdr-2017')",
        "millionths": "1",
        "purpose": "'x'",
        "accounting": "'x'",
        "detail": "'x'",
        "time": "'x'",
    }
    edits = [f"UPDATE entries SET {column} = {value} || ''" for column, value in columns.items()]
    changes = ["DELETE FROM entries", "DROP TABLE entries", "UPDATE ledger SET id = lower(hex(randomblob(16)))"]
    changes += ["CREATE INDEX i ON entries (hash)", "CREATE VIEW v AS SELECT 1", "VACUUM", "PRAGMA user_version = 9"]
    changes += ["CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE number = new.number; END"]
    changes += ["PRAGMA application_id = 1", "PRAGMA journal_mode = WAL", "DELETE FROM ledger"]
    for change in changes:
        path = lay_out()
        database = sqlite3.connect(path, isolation_level=None)
        database.execute(change)
        database.close()
        refused(path)
    for number in range(1, 13):
        for rehash in (False, True):
            for edit in [*(f"{edit} WHERE number = {number}" for edit in edits)]:
                path = lay_out()
                rewritten(path, lambda database, edit=edit: database.execute(edit), rehash)
                refused(path)
            path = lay_out()
            rewritten(
                path, lambda d, number=number: d.execute("DELETE FROM entries WHERE number = ?", (number,)), rehash
            )
            refused(path)


def test_a_whole_forgery_is_caught_by_the_anchors_of_the_releases(lay_out, history):
    """Hashes and seal made anew after a charge was made smaller: consistent in itself, but not what was given out."""
    _, given = history
    path = lay_out()
    rewritten(path, lambda d: d.execute("UPDATE entries SET millionths = 1 WHERE number = 7"), rehash=True)
    database = sqlite3.connect(path)
    last = [Entry(*row) for row in database.execute("SELECT * FROM entries ORDER BY number")][-1]
    seal = Seal(read_seal(path).ledger, last.number, last.hash, ledgerfile._digest(path, database))
    database.close()
    write_seal(path, seal)
    verify(path)
    verify(path, given[:4])
    with pytest.raises(SurveyError, match="lacks the charge of a release, entry 7"):
        verify(path, given)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET millionths = 20000000 WHERE number = 5",
        "UPDATE entries SET millionths = 0 WHERE number = 5",
        "UPDATE entries SET millionths = -5 WHERE number = 5",
        "UPDATE entries SET kind = 'refund' WHERE number = 5",
        "UPDATE entries SET kind = 'open' WHERE number = 5",
        "UPDATE entries SET budget = 'never opened' WHERE number = 5",
        "UPDATE entries SET millionths = 2000000 WHERE number = 1",
    ],
)
def test_sums_that_cannot_be_are_refused_even_with_hashes_and_seal_made_anew(lay_out, change):
    path = lay_out()
    rewritten(path, lambda database: database.execute(change), rehash=True)
    database = sqlite3.connect(path)
    last = [Entry(*row) for row in database.execute("SELECT * FROM entries ORDER BY number")][-1]
    seal = Seal(read_seal(path).ledger, last.number, last.hash, ledgerfile._digest(path, database))
    database.close()
    write_seal(path, seal)
    refused(path, "it was changed")


def test_the_ledger_of_another_population_is_refused(lay_out, history, tmp_path):
    _, given = history
    other = tmp_path / "other.db"
    open_budget(other, BUDGET, 10, "asymptotic")
    for number in range(11):
        charge(other, BUDGET, "0.1", f"release-{number}", "asymptotic")
    refused(lay_out(database=other.read_bytes()))
    refused(lay_out(seal=seal_path(other).read_bytes()))
    path = lay_out(other.read_bytes(), seal_path(other).read_bytes())
    verify(path)
    with pytest.raises(SurveyError, match="is not the ledger that an anchor names"):
        verify(path, given)


def test_a_journal_from_elsewhere_is_refused(lay_out, history, fast):
    """SQLite plays back a journal that it finds; the seal knows that the result is not the latest state."""
    path = lay_out(history[0][-2][0], None)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN IMMEDIATE")
    database.execute("PRAGMA cache_spill = 1")
    database.executemany("INSERT INTO ledger VALUES (?, '')", [("x" * 1000,)] * 100)
    journal = Path(f"{path}-journal").read_bytes()
    database.close()
    assert len(journal) > 512
    path = lay_out()
    Path(f"{path}-journal").write_bytes(journal)
    refused(path)


def cut_short(path, monkeypatch, writes):
    """A charge that dies after so many writings of the seal."""
    done = []

    def write(place, seal):
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(seal)
        write_seal(place, seal)

    monkeypatch.setattr(ledgerfile, "write_seal", write)
    with pytest.raises(KeyboardInterrupt):
        charge(path, BUDGET, "0.5", "cut short", "asymptotic")
    monkeypatch.undo()
    return done


def test_between_commit_and_seal_a_change_is_refused_or_changes_nothing(lay_out, history, monkeypatch):
    """The digest is not known yet; the chain up to the announced entry is."""
    random_numbers = random.Random(5)
    path = lay_out()
    cut_short(path, monkeypatch, 1)
    database, seal = path.read_bytes(), seal_path(path).read_bytes()
    expected = entries(path)
    assert [entry.purpose for entry in expected[-1:]] == ["cut short"]
    refusals = 0
    places = [*range(100), *(random_numbers.randrange(len(database)) for _ in range(400))]
    for place in places:
        path = lay_out(flipped(database, place, random_numbers.randrange(8)), seal)
        try:
            assert entries(path) == expected
            assert charge(path, BUDGET, UNIT, "next", "asymptotic").entry == len(expected) + 1
            verify(path, history[1])
        except SurveyError:
            refusals += 1
    assert refusals > 100
    for size in range(0, len(database), 512):
        refused(lay_out(database[:size], seal))
    for older, _ in history[0][:-1]:
        refused(lay_out(older, seal))
    path = lay_out(history[0][-1][0], seal)
    verify(path, history[1])
    rewritten(path, lambda d: d.execute("UPDATE entries SET millionths = 1 WHERE number = 3"), rehash=True)
    refused(path)


def test_a_charge_cut_short_before_its_commit_leaves_the_budget_as_it_was(lay_out, history, monkeypatch):
    path = lay_out()
    before = path.read_bytes()
    cut_short(path, monkeypatch, 0)
    assert (path.read_bytes(), seal_path(path).read_bytes()) == (before, history[0][-1][1])
    charge(path, BUDGET, UNIT, "next", "asymptotic")


# --- anchors as text ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "[" * 100_000,
        json.dumps({"ledger": "0" * 32, "entry": 0, "hash": "0" * 64}),
        json.dumps({"ledger": "0" * 32, "entry": True, "hash": "0" * 64}),
        json.dumps({"ledger": "0" * 32, "entry": 1.0, "hash": "0" * 64}),
        json.dumps({"ledger": "0" * 32, "entry": 1, "hash": "0" * 63}),
        json.dumps({"ledger": "G" * 32, "entry": 1, "hash": "0" * 64}),
        json.dumps({"ledger": None, "entry": 1, "hash": "0" * 64}),
        json.dumps({"ledger": "0" * 32, "entry": 1, "hash": "0" * 64, "more": 1}),
    ],
)
def test_what_is_no_anchor_is_refused(text):
    with pytest.raises(SurveyError, match="anchor: is not an anchor"):
        Anchor.from_json(text)


@given(st.text("0123456789abcdef", min_size=32, max_size=32), st.integers(1), st.binary(min_size=32, max_size=32))
def test_anchors_come_back_from_their_text(name, entry, digest):
    anchor = Anchor(name, entry, digest.hex())
    assert Anchor.from_json(anchor.to_json()) == anchor
    assert asdict(anchor) == json.loads(anchor.to_json())


@given(
    st.lists(st.one_of(st.text(), st.integers(), st.none())), st.lists(st.one_of(st.text(), st.integers(), st.none()))
)
def test_different_fields_have_different_hashes(first, second):
    assert (anchors.canonical_hash(*first) == anchors.canonical_hash(*second)) == (first == second)
