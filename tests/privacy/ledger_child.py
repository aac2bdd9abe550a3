"""Processes that spend from a ledger, fail at it or die at it; `test_ledger.py` starts them.

They import the ledger and the standard library alone, so they start fast and may fork.
"""

import fcntl
import itertools
import json
import os
import random
import resource
import signal
import struct
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

from svysynth.core.errors import SurveyError
from svysynth.privacy import ledger
from svysynth.privacy.tamper_marks import Anchor, read_seal, seal_path

BUDGET = "sdr-2017"
UNIT = "0.000001"
SPENDERS = 8
NOBODY = 65534
MANIFEST = "5" * 64
"""The hash of a manifest."""
GOLDEN = Path(__file__).parent.parent / "golden/ledger-1"


def spend(path, folder, name, amount, longest_pause="0"):
    """Charge and release, over and over, until the budget refuses; say in files what was asked and what came out."""
    folder, pauses, parent = Path(folder), random.Random(name), os.getppid()
    while not (folder / "start").exists():
        time.sleep(0.002)
    for number in itertools.takewhile(lambda _: os.getppid() == parent, itertools.count()):
        purpose = f"{name}-{number}"
        (folder / f"{purpose}.asked").touch()
        try:
            paid = ledger.charge(path, BUDGET, amount, purpose, "asymptotic")
        except SurveyError as error:
            (folder / f"{purpose}.refused").write_text(str(error))
            return
        release = folder / f"{purpose}.new"
        release.write_text(ledger.record_release(paid, MANIFEST).to_json())
        release.rename(folder / f"{purpose}.release")
        time.sleep(pauses.uniform(0, float(longest_pause)))


def check_releases(path, folder):
    """No release without its charge and its entry; returns the purposes that were charged and not released.

    The releases are read first: the ledger only grows.
    """
    released = {file.stem: Anchor.from_json(file.read_text()) for file in Path(folder).glob("*.release")}
    chain = ledger.verify(path, released.values())
    charged, bound = ([entry.purpose for entry in chain if entry.kind == kind] for kind in ("charge", "release"))
    assert len(charged) == len(set(charged))
    assert len(bound) == len(set(bound))
    assert set(released) <= set(bound) <= set(charged)
    assert all(chain[anchor.entry - 1].purpose == purpose for purpose, anchor in released.items())
    return set(charged) - set(released)


def kill_while_spending(folder, rounds, kills, seed):
    """Kill spenders of one ledger at random times, look at it after every kill; in each round a new ledger."""
    random_numbers, outcomes = random.Random(int(seed)), []
    for number in range(int(rounds)):
        path, releases = Path(folder) / f"ledger-{number}", Path(folder) / f"releases-{number}"
        releases.mkdir()
        (releases / "start").touch()
        ledger.open_budget(path, BUDGET, 1000, "asymptotic")
        outcomes += kills_of_one_round(path, releases, int(kills), random_numbers)
    json.dump(outcomes, sys.stdout)


def kills_of_one_round(path, releases, kills, random_numbers):
    """Kill one spender of eight, check, and start another in its place; over and over.

    Every second kill goes to the one that is charging just then, if it can be known; the others go to any.
    """
    started = itertools.count()

    def start():
        return forked(partial(spend, path, releases, f"spender{next(started)}", UNIT, "0.08"))

    def kill(process):
        os.kill(process, signal.SIGKILL)
        assert os.waitpid(process, 0)[1] == signal.SIGKILL, "a spender ended by itself"

    spenders, outcomes = [start() for _ in range(SPENDERS)], []
    for number in range(kills):
        time.sleep(random_numbers.uniform(0, 0.03))
        charging = first_lock_holder(path) if number % 2 else 0
        time.sleep(random_numbers.uniform(0, 0.002))
        victim = spenders.index(charging) if charging in spenders else random_numbers.randrange(SPENDERS)
        kill(spenders[victim])
        pending = read_seal(path).next is not None
        check_releases(path, releases)
        outcomes.append({"pending": pending, "unreleased": 0})
        spenders[victim] = start()
    for process in spenders:
        kill(process)
    outcomes[-1]["unreleased"] = check_last_charges(path, releases)
    return outcomes


def first_lock_holder(path):
    """The next process to be seen with the lock, or 0 if a while goes by without one."""
    for _ in range(100):
        if process := lock_holder(path):
            return process
        time.sleep(0.0002)
    return 0


def lock_holder(path):
    """The process that holds SQLite's exclusive lock, or 0 if none does or the system is not Linux."""
    if sys.platform != "linux":
        return 0
    layout, first_lock_byte, lock_bytes = "hhqqi4x", 0x40000000, 512
    question = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, first_lock_byte, lock_bytes, 0)
    with path.open("r+b") as file:
        kind, _, _, _, process = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, question))
    return process if kind == fcntl.F_WRLCK else 0


def check_last_charges(path, releases):
    """Once all are dead, what was asked for and not released was a process's last; returns how many were charged."""
    unreleased = check_releases(path, releases)
    asked = Counter(file.stem.rpartition("-")[0] for file in releases.glob("*.asked"))
    released = Counter(file.stem.rpartition("-")[0] for file in releases.glob("*.release"))
    assert all(asked[name] - released[name] in (0, 1) for name in asked)
    assert all(
        purpose == f"{name}-{asked[name] - 1}" for purpose in unreleased for name in [purpose.rpartition("-")[0]]
    )
    assert not list(releases.glob("*.refused"))
    assert sum(state.spent for state in ledger.show(path)) == sum(released.values()) + len(unreleased)
    return len(unreleased)


def forked(action):
    """Start a process that does one thing and exits: with 0 if that returned, with 1 if refused or interrupted."""
    process = os.fork()
    if process:
        return process
    try:
        action()
    except (SurveyError, KeyboardInterrupt):
        os._exit(1)
    except BaseException:
        os._exit(2)
    os._exit(0)


def outcome_of(action):
    """The wait status of a process that does one thing."""
    return os.waitpid(forked(action), 0)[1]


def killed():
    """The end that leaves no time for anything."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted():
    """What Ctrl-C does, or a handler of SIGTERM: an exception wherever the program happens to be."""
    sys.setprofile(None)
    raise KeyboardInterrupt


def dying_at(event, end):
    """End just before the n-th call of anything written in C: only those change anything outside."""
    seen = 0

    def count(frame, kind, argument):
        nonlocal seen
        if kind == "c_call":
            if seen == event:
                end()
            seen += 1

    sys.setprofile(count)


def state(path):
    """The ledger as whoever opens it next finds it."""
    pending = read_seal(Path(path)).next is not None
    return {"entries": len(ledger.entries(path)), "pending": pending}


def dying_entries(path, kind, way):
    """Add an entry again and again, each time dying one step later, until an attempt lives; print what each left.

    Each begins with the files as they were at first: a longer ledger would have more steps to die at.
    """
    paid = ledger.charge(path, BUDGET, UNIT, "release", "asymptotic")
    add = {
        "charge": lambda: ledger.charge(path, BUDGET, UNIT, "release", "asymptotic", "a" * 64),
        "release": lambda: ledger.record_release(paid, MANIFEST),
        "refusal": lambda: ledger.record_refusal(path, BUDGET, "asymptotic", "release", "privacy.epsilon"),
    }[kind]
    outcomes, files = [], (Path(path), seal_path(Path(path)))
    first = [file.read_bytes() for file in files]
    while not outcomes or outcomes[-1]["status"] != 0:
        for file, content in zip(files, first, strict=True):
            file.write_bytes(content)
        before = len(ledger.entries(path))
        status = outcome_of(partial(until_death, len(outcomes), way, add))
        ledger.verify(path)
        outcomes.append({"status": status, "before": before, **state(path)})
        ledger.verify(path, [ledger.charge(path, BUDGET, UNIT, "the next", "asymptotic").anchor])
    json.dump(outcomes, sys.stdout)


def until_death(event, way, action):
    """Do one thing, and die at some step of it if there are so many."""
    dying_at(event, globals()[way])
    action()
    sys.setprofile(None)


def dying_upgrades(path, way):
    """The same for the upgrade of the ledger of version 1; another try must then succeed, or find it done."""
    path, outcomes = Path(path), []
    anchors = [Anchor(**fields) for fields in json.loads((GOLDEN / "anchors.json").read_text())]
    while not outcomes or outcomes[-1]["status"] != 0:
        path.write_bytes((GOLDEN / "ledger.sqlite").read_bytes())
        seal_path(path).write_bytes((GOLDEN / "ledger.sqlite.anchor").read_bytes())
        status = outcome_of(partial(until_death, len(outcomes), way, partial(ledger.upgrade, path)))
        pending = read_seal(path).next is not None
        again = outcome_of(partial(ledger.upgrade, path))
        ledger.verify(path, anchors)
        outcomes.append({"status": status, "again": again, "pending": pending, "entries": len(ledger.entries(path))})
    json.dump(outcomes, sys.stdout)


def dying_openings(folder):
    """Create a ledger again and again, each time dying one step later; a second try must then succeed."""
    outcomes = []
    while not outcomes or outcomes[-1]["status"] != 0:
        path = Path(folder) / f"ledger-{len(outcomes)}"

        def open_budget(event, path=path):
            dying_at(event, killed)
            ledger.open_budget(path, BUDGET, 1, "asymptotic")
            sys.setprofile(None)

        status = outcome_of(partial(open_budget, len(outcomes)))
        again = outcome_of(partial(ledger.open_budget, path, BUDGET, 1, "asymptotic"))
        ledger.verify(path)
        outcomes.append({"status": status, "again": again, **state(path)})
    json.dump(outcomes, sys.stdout)


def limited_charges(path):
    """Charge under every limit on the size of files, which stops a write half way as a full disk does."""
    outcomes = []
    for limit in range(0, Path(path).stat().st_size + 8192, 128):
        before = len(ledger.entries(path))

        def charge(limit=limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            ledger.charge(path, BUDGET, UNIT, "release " * 20 + "x", "asymptotic")

        status = outcome_of(charge)
        ledger.verify(path)
        outcomes.append({"limit": limit, "status": status, "before": before, **state(path)})
    json.dump(outcomes, sys.stdout)


def without_permission(path):
    """Try everything as a user who may read the ledger and write nothing."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    messages = []
    for action in (
        lambda: ledger.charge(path, BUDGET, "0.1", "release", "asymptotic"),
        lambda: ledger.open_budget(path, "another", 1, "asymptotic"),
        lambda: ledger.open_budget(Path(path).parent / "new", "another", 1, "asymptotic"),
    ):
        try:
            action()
            messages.append("")
        except SurveyError as error:
            messages.append(str(error))
    ledger.verify(path)
    json.dump({"messages": messages, "charges": ledger.show(path)[0].charges}, sys.stdout)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
