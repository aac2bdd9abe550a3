"""Hidden folders: nothing half written is seen, and nothing stays behind, also of runs that were killed."""

import signal
import stat
import subprocess
import sys
from contextlib import contextmanager

import pytest

from svysynth import SurveyError
from svysynth.core.hidden_folders import appearing, clear_leftovers, in_hiding

SECONDS = 120
"""Of patience with a process that hangs; nothing else depends on it."""


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("old")

    def write_half():
        with appearing(path) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


HOLDING = """
import sys
from pathlib import Path
from svysynth.core.hidden_folders import appearing, in_hiding

place = Path(sys.argv[2])

def hold(folder):
    (folder / "columns").write_text("confidential")
    print("held", flush=True)
    sys.stdin.readline()

if sys.argv[1] == "folder":
    in_hiding(place, hold)
else:
    with appearing(place / "table.csv") as temporary:
        temporary.write_text("confidential")
        print("held", flush=True)
        sys.stdin.readline()
"""


@contextmanager
def holder(kind, place):
    """A process that has hidden something and waits for a line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDING, kind, str(place)], **pipes) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def hidden(place):
    return [path for path in place.iterdir() if path.name.startswith(".svysynth-")]


def write(place):
    with appearing(place / "other.csv") as temporary:
        temporary.write_text("new")


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("next_run", [write, lambda place: in_hiding(place, lambda _: None)])
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path, kind, next_run):
    with holder(kind, tmp_path) as process:
        process.kill()
        assert process.wait(SECONDS) == -signal.SIGKILL
    assert any(b"confidential" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    next_run(tmp_path)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_a_living_run_has_hidden_is_left_alone(tmp_path, kind):
    with holder(kind, tmp_path) as process:
        before = sorted(tmp_path.rglob("*"))
        in_hiding(tmp_path, lambda _: None)
        write(tmp_path)
        (tmp_path / "other.csv").unlink()
        assert sorted(tmp_path.rglob("*")) == before
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(SECONDS) == 0
    assert hidden(tmp_path) == []
    assert (kind == "file") == (tmp_path / "table.csv").exists()


def test_one_run_may_hide_several_things_in_one_place(tmp_path):
    def nested(folder):
        (folder / "columns").write_text("confidential")
        write(tmp_path)
        in_hiding(tmp_path, lambda _: None)
        assert (folder / "columns").exists()

    in_hiding(tmp_path, nested)
    assert hidden(tmp_path) == []


def test_a_folder_without_a_lock_is_removed_only_when_empty(tmp_path):
    (tmp_path / ".svysynth-empty").mkdir()
    (tmp_path / ".svysynth-full").mkdir()
    (tmp_path / ".svysynth-full" / "file").touch()
    clear_leftovers(tmp_path)
    assert [path.name for path in hidden(tmp_path)] == [".svysynth-full"]


def test_nothing_outside_is_removed_by_way_of_a_link(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "lock").touch()
    (other / "room").mkdir()
    (tmp_path / ".svysynth-link").symlink_to(other)
    linked = tmp_path / ".svysynth-within"
    linked.mkdir()
    (linked / "lock").touch()
    (linked / "room").symlink_to(other)
    clear_leftovers(tmp_path)
    assert sorted(path.name for path in other.iterdir()) == ["lock", "room"]
    assert not linked.exists()


def test_where_there_are_no_locks_nothing_is_removed(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    (tmp_path / ".svysynth-other").mkdir()
    (tmp_path / ".svysynth-other" / "lock").touch()
    monkeypatch.setattr("svysynth.core.hidden_folders.fcntl.flock", no_locks)
    write(tmp_path)
    assert [path.name for path in hidden(tmp_path)] == [".svysynth-other"]
    assert (tmp_path / "other.csv").read_text() == "new"


def test_a_run_whose_folder_was_taken_for_a_leftover_makes_it_again(tmp_path, monkeypatch):
    """At the moment between making the lock and locking it, another run clears up."""
    import fcntl

    calls, flock = [], fcntl.flock

    def after_another(lock, how):
        calls.append(lock)
        if len(calls) == 1:
            clear_leftovers(tmp_path)
        flock(lock, how)

    monkeypatch.setattr("svysynth.core.hidden_folders.fcntl.flock", after_another)
    in_hiding(tmp_path, lambda folder: folder.rename(tmp_path / "done"))
    assert len(calls) > 2
    assert [path.name for path in tmp_path.iterdir()] == ["done"]


def test_what_is_hidden_is_for_its_owner_alone(tmp_path):
    def look(folder):
        write(folder)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)}
        assert modes == {0o700}
        assert stat.S_IMODE((folder / "other.csv").stat().st_mode) == 0o600

    in_hiding(tmp_path, look)


def test_where_nothing_can_be_hidden_says_so(tmp_path):
    with pytest.raises(SurveyError, match="cannot be written"):
        write(tmp_path / "missing")
    with pytest.raises(OSError, match="missing"):
        in_hiding(tmp_path / "missing", lambda _: None)


STOPPED = """
import os, signal, sys
from pathlib import Path
from svysynth.core import hidden_folders as hidden

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
parent, stopped = Path(sys.argv[1]), 0

def hide():
    hidden.in_hiding(parent, lambda folder: (folder / "half").write_text("written"))

class Shot:
    # sends a signal to this process at a step of the code that hides
    def __init__(self, step):
        self.left = step

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename != hidden.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return self

step = 0
while True:
    step += 1
    shot = Shot(step)
    sys.settrace(shot)
    try:
        hide()
    except SystemExit:
        stopped += 1
    finally:
        sys.settrace(None)
    if left := list(parent.iterdir()):
        print("left at step", step)
        sys.exit(1)
    if shot.left > 0:
        break
print(step, stopped)
"""


def test_a_signal_at_any_step_leaves_no_hidden_folder(tmp_path):
    command = [sys.executable, "-c", STOPPED, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert found.returncode == 0, found.stdout + found.stderr
    steps, stopped = map(int, found.stdout.split())
    assert stopped == steps - 1 > 200
