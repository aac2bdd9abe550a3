"""Measures time and peak memory of releases from files of 10³ to 10⁷ records, or 10⁸ on request.

A release is the command that a user gives, in a process of its own: from a folder of Parquet files to tables, three
synthetic files and both reports. The data are generated: 8 fields × 2 genders, with fields as strata. Each release is
made twice, so that programs are compiled in the first run; the second run counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from measuring import SIZES, answer, keep, program, run

FILE_ROWS = 5_000_000
ONCE = 50_000_000
"""From this number of records on, a release is made only once, because compiling is a small part of its time."""
SPEC = """[survey]
data = "data"
outcome = "salary"
weight = "weight"
strata = "field"
public = ["field", "gender"]
population_total = {population}

[privacy]
guarantee = "asymptotic"
mechanism = "fbs"
epsilon = 10.8
datasets = 3
budget = "bench"

[[tables]]
by = ["field", "gender"]
statistics = ["count", "mean"]
"""


def measure(sizes: list[int] = SIZES) -> None:
    for records in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            environment = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
            run(program("releases.py", "write", folder, records))
            turns = ["second"] if records >= ONCE else ["first", "second"]
            for turn in turns:
                found = run(program("releases.py", "release", folder, folder / turn), environment=environment)
            keep("releases", {"records": records} | found)


def write(folder: Path, records: int) -> None:
    """Write a folder of Parquet files and a spec, and open a budget."""
    generator = np.random.default_rng(1)
    (folder / "data").mkdir(parents=True)
    fields = ["biology", "computing", "mathematics", "physics", "psychology", "social", "engineering", "health"]
    for number, start in enumerate(range(0, records, FILE_ROWS)):
        size = min(FILE_ROWS, records - start)
        field, gender = np.divmod(generator.integers(0, 16, size), 2)
        t = 11 + 0.025 * field - 0.1 * gender + 0.4 * generator.standard_normal(size)
        v = 3 - 0.6 * (t - 11) + 0.1 * field + 0.4 * generator.standard_normal(size)
        frame = pl.DataFrame(
            {
                "field": pl.Series(fields).gather(field),
                "gender": pl.Series(["Male", "Female"]).gather(gender),
                "salary": np.exp(t),
                "weight": np.exp(v),
            }
        )
        frame.write_parquet(folder / "data" / f"{number:04}.parquet", row_group_size=500_000)
    (folder / "spec.toml").write_text(SPEC.format(population=25 * records), encoding="utf-8")
    subprocess.run(svysynth("ledger", "open", folder / "spec.toml", "--total", 1000), check=True, capture_output=True)


def svysynth(*arguments: object) -> list[str]:
    """The command that a user gives."""
    return [sys.executable, "-m", "svysynth", *map(str, arguments)]


def release(folder: Path, out: Path) -> None:
    """Measure the wall and processor seconds of the command, and the peak memory of its process."""
    start = time.perf_counter()
    process = subprocess.Popen(
        svysynth("release", folder / "spec.toml", "--seed", 1, "--out", out), stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    answer(
        seconds=time.perf_counter() - start,
        processor_seconds=usage.ru_utime + usage.ru_stime,
        peak_mib=round(usage.ru_maxrss / 1024),
        public_mib=sum(path.stat().st_size for path in (out / "public").glob("*.parquet")) / 2**20,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "write":
        write(folder, int(sys.argv[3]))
        answer()
    else:
        release(folder, Path(sys.argv[3]))
