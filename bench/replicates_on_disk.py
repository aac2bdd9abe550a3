"""Measures the memory of direct tables from 80 replicate weights: python bench/replicates_on_disk.py [RECORDS]

It writes a Parquet file of 1,000,000 records, or of as many as are given, with a weight and 80 replicate weights for
successive differences. `svysynth tables` then makes the same table from this file, read as a whole and read in parts.
The program prints time and peak memory of both, and whether their tables are the same. docs/large.md has the figures.
"""

import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import polars as pl

SPEC = """
[survey]
data = "people.parquet"
outcome = "income"
weight = "wt"
public = ["sex", "region"]

[survey.replicates]
weights = "r1-r80"
method = "successive-difference"

[[tables]]
by = ["sex", "region"]
statistics = ["count", "mean"]
"""
TABLES = """
import sys
from svysynth.survey import large_files
from svysynth.cli.main import main
large_files.MOST_IN_MEMORY = int(sys.argv[1])
main(["tables", "s.toml", "--out", sys.argv[2]])
"""


def write(folder, records):
    """Write the file and the spec."""
    generator = np.random.default_rng(1)
    weight = generator.lognormal(3, 0.5, records)
    columns = {"income": generator.lognormal(10, 0.6, records), "wt": weight}
    columns["sex"] = np.array(["f", "m"])[generator.integers(0, 2, records)]
    columns["region"] = np.array([f"r{number}" for number in range(9)])[generator.integers(0, 9, records)]
    for number in range(1, 81):
        columns[f"r{number}"] = weight * generator.choice([1.7, 1.0, 0.3], records, p=[0.25, 0.5, 0.25])
    pl.DataFrame(columns).write_parquet(folder / "people.parquet")
    (folder / "s.toml").write_text(SPEC)


def measure(folder, most, out):
    """Seconds and peak MiB of the command, if files with more than `most` rows are read in parts."""
    start = time.perf_counter()
    command = [sys.executable, "-c", TABLES, str(most), out]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return time.perf_counter() - start, usage.ru_maxrss / 1024


if __name__ == "__main__":
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        # in a process of its own: the memory of this one would count as that of the commands
        writer = get_context("spawn").Process(target=write, args=(folder, records))
        writer.start()
        writer.join()
        assert writer.exitcode == 0
        for name, most in (("from disk", 0), ("in memory", records)):
            seconds, peak = measure(folder, most, f"{most}.csv")
            print(f"{name}: {seconds:.0f} s, {peak:,.0f} MiB", flush=True)
        same = (folder / "0.csv").read_bytes() == (folder / f"{records}.csv").read_bytes()
        print("same tables" if same else "tables differ")
