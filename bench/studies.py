"""Measures how many replicates of a study are made per minute: in one process, in two, and with Dask.

Other rows of `results/studies.csv`, for a graphics processor for instance, are entered by hand and are kept.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from measuring import answer, keep, program, run

REPLICATES, FEW = 48, 4
WAYS = {
    "1 process": ["--workers", "1"],
    "2 processes": ["--workers", "2"],
    "Dask, 2 workers": ["--engine", "dask"],
}


def measure() -> None:
    for name, options in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            keep("studies", {"name": name} | run(program("studies.py", folder, *options)))


def throughput(folder: str, options: list[str]) -> None:
    """Time runs with different numbers of replicates; in the difference the time to start a run cancels."""
    seconds = []
    for goal in (4, 4 + FEW, 4 + FEW + FEW + REPLICATES):
        command = ["study", "simulation", "--replicates", str(goal), "--out", folder, *options]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "svysynth", *command], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    taken = seconds[2] - seconds[1]
    answer(replicates=REPLICATES, seconds=taken, replicates_per_minute=60 * REPLICATES / taken)


if __name__ == "__main__":
    throughput(sys.argv[1], sys.argv[2:])
