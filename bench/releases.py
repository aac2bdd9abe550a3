"""Releases from files of 10³ to 10⁷ records, 10⁸ on request: time and peak memory.

A release is the command that a user gives, in a process of its own: from a folder of Parquet to tables, three synthetic
files and both reports. Data are generated: 8 fields × 2 genders, fields as strata. Each is made twice, so that programs
are compiled; the second counts.
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
"""From so many records on a release is made once: compiling is a small part of it."""
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
    """A folder of Parquet, a spec and an open budget."""
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
    """Wall and processor seconds of the command, and the most memory that its process held."""
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
