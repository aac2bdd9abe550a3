"""A run that is told to stop ends soon, though what it computes would go on for ever."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from places import importing

PATIENCE = 120
"""Seconds after which a process counts as one that does not end: what it computes here never does."""
ENDLESS = """
import signal
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp

from svysynth.cli import main as cli
from svysynth.core.hidden_folders import in_hiding


def say():  # a little later: a signal that met this call itself would be its error, not the computation's end
    threading.Timer(0.5, print, ["computing"], {"flush": True}).start()


@jax.jit
def compute(value):
    def step(value):
        jax.lax.cond(value == 0, lambda: jax.debug.callback(say), lambda: None)
        return (value + 1) % 2**30 + 1

    return jax.lax.while_loop(lambda value: value >= 0, step, value)


def command(args):
    def work(folder):
        (folder / "columns").write_text("confidential")
        compute(jnp.int32(0)).block_until_ready()

    in_hiding(Path(sys.argv[1]), work)


signal.signal(signal.SIGINT, signal.default_int_handler)  # which a caller in the background may have ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as nohup does
cli.app = command
cli.main()
"""


def process_of(code, *arguments):
    return subprocess.Popen(
        [sys.executable, *code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=importing(Path(__file__).parent),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_does_not_wait_for_a_computation(tmp_path, number):
    with process_of(["-c", ENDLESS], tmp_path) as process:
        try:
            assert process.stdout.readline() == "computing\n"
            process.send_signal(number)
            assert process.wait(PATIENCE) == 128 + number
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []


REPLICATES = """
import signal, sys
from pathlib import Path
import test_signals
from svysynth.evaluation.paper.workers import run_replicates

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a caller in the background may have ignored
    run_replicates(test_signals.endless, range(4), Path(sys.argv[1]), 2)
"""


def endless(index):
    """A replicate that says so when it starts, and does not end."""
    print("computing", flush=True)  # noqa: T201
    signal.pause()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 3), (signal.SIGINT, -signal.SIGINT)])
def test_a_stopped_study_does_not_wait_for_its_workers(tmp_path, number, code):
    script, folder = tmp_path / "run.py", tmp_path / "replicates"
    script.write_text(REPLICATES)
    with process_of([script], folder) as process:
        try:
            assert [process.stdout.readline() for _ in range(2)] == ["computing\n"] * 2
            process.send_signal(number)
            assert process.wait(PATIENCE) == code
            assert process.stdout.read() == ""  # which its workers hold open as long as they live
        finally:
            process.kill()
    assert list(folder.iterdir()) == []
