"""Direct tables beside svy and R survey, in one run: time as ratios, growth with n, and peak memory.

A 27-cell table set (8 fields × 2 genders, margins and total; counts and means with standard errors, fields as strata)
from a frame in memory. Each tool is timed whole: from the frame to the finished set, its design object included.
The machine is shared, so each time is the best of a few runs and only ratios within one run mean anything.

    python bench/tables.py --out docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl

import svysynth

ROWS = 1_000_000
GROWTH = [10_000, 100_000, 1_000_000, 10_000_000]

R_PROGRAM = """
suppressPackageStartupMessages(library(survey))
d <- read.csv(commandArgs(TRUE)[1])
best <- Inf
for (run in 1:2) {
  start <- proc.time()[["elapsed"]]
  design <- svydesign(ids = ~1, strata = ~field, weights = ~weight, data = d)
  counts <- list(svytotal(~interaction(field, gender), design), svytotal(~factor(field), design),
                 svytotal(~factor(gender), design), svytotal(~I(weight > 0), design))
  means <- list(svyby(~salary, ~field + gender, design, svymean), svyby(~salary, ~field, design, svymean),
                svyby(~salary, ~gender, design, svymean), svymean(~salary, design))
  best <- min(best, proc.time()[["elapsed"]] - start)
}
cat(best, SE(means[[4]]), as.character(packageVersion("survey")))
"""


def make_frame(rows: int, seed: int = 1) -> pl.DataFrame:
    generator = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "field": generator.integers(1, 9, rows),
            "gender": generator.integers(1, 3, rows),
            "salary": generator.lognormal(11.5, 0.5, rows),
            "weight": generator.lognormal(2, 0.6, rows),
        }
    )


def with_svysynth(frame: pl.DataFrame) -> float:
    survey = svysynth.read_survey(frame, outcome="salary", weight="weight", strata="field", public=["field", "gender"])
    table = svysynth.tabulate(survey, ["field", "gender"], ["count", "mean"])
    return table.filter(statistic="mean", field="All", gender="All")["se"].item()


def with_svy(frame: pl.DataFrame) -> float:
    import svy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = svy.Sample(frame.with_columns(one=1.0), svy.Design(stratum="field", wgt="weight"))
        for by in (["field", "gender"], "field", "gender", None):
            sample.estimation.total("one", by=by)
            overall = sample.estimation.mean("salary", by=by)
    return overall.estimates[0].se


def best_of(runs: int, function, *arguments) -> tuple[float, float]:
    best, result = float("inf"), None
    for _ in range(runs):
        start = time.perf_counter()
        result = function(*arguments)
        best = min(best, time.perf_counter() - start)
    return best, result


def with_r(frame: pl.DataFrame) -> tuple[float, float, str] | None:
    if shutil.which("Rscript") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        frame.write_csv(f"{folder}/d.csv")
        Path(f"{folder}/p.R").write_text(R_PROGRAM)
        done = subprocess.run(
            ["Rscript", f"{folder}/p.R", f"{folder}/d.csv"], capture_output=True, text=True, check=True
        )
    seconds, se, package = done.stdout.split()
    return float(seconds), float(se), package


def peak_memory(rows: int) -> tuple[int, int]:
    """Bytes of the input columns, and the peak above a process that has imported everything and read nothing."""
    with tempfile.TemporaryDirectory() as folder:
        make_frame(rows).write_parquet(f"{folder}/d.parquet")
        done = subprocess.run(
            [sys.executable, __file__, "--memory", f"{folder}/d.parquet"], capture_output=True, text=True, check=True
        )
    size, peak = done.stdout.split()
    return int(size), int(peak)


def report_memory(path: str) -> None:
    with_svysynth(make_frame(1000))
    before = _status("VmRSS")
    survey = svysynth.read_survey(path, outcome="salary", weight="weight", strata="field", public=["field", "gender"])
    svysynth.tabulate(survey, ["field", "gender"], ["count", "mean"])
    size = pl.scan_parquet(path).select(pl.len()).collect().item() * 4 * 8
    print(size, _status("VmHWM") - before)


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def page() -> str:
    frame = make_frame(ROWS)
    with_svysynth(make_frame(1000)), with_svy(make_frame(1000))
    ours, our_se = best_of(5, with_svysynth, frame)
    svy_seconds, svy_se = best_of(3, with_svy, frame)
    r = with_r(frame)
    lines = [
        "# Benchmarks",
        "",
        f"`make bench`, {time.strftime('%Y-%m-%d')}: {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}, polars {version('polars')}. "
        "The machine is shared: read the ratios.",
        "",
        "## A 27-cell set of counts and means with standard errors, 1,000,000 records",
        "",
        "From a frame in memory to the finished set, 8 strata, design object included.",
        "",
        "| tool | seconds | times svysynth | standard error of the overall mean |",
        "|---|---:|---:|---:|",
        f"| svysynth {svysynth.__version__} | {ours:.3f} | 1 | {our_se:.9f} |",
        f"| svy {version('svy')} | {svy_seconds:.2f} | {svy_seconds / ours:.0f} | {svy_se:.9f} |",
    ]
    if r:
        lines.append(f"| R survey {r[2]} | {r[0]:.1f} | {r[0] / ours:.0f} | {r[1]:.5g} |")
    lines += [
        "",
        "## Growth with the number of records",
        "",
        "| records | seconds | nanoseconds per record | peak memory over input columns |",
        "|---:|---:|---:|---:|",
    ]
    for rows in GROWTH:
        seconds, _ = best_of(3, with_svysynth, make_frame(rows))
        size, peak = peak_memory(rows)
        memory = f"{peak / size:.1f}" if rows >= ROWS else "(fixed costs)"
        lines.append(f"| {rows:,} | {seconds:.4f} | {seconds / rows * 1e9:.0f} | {memory} |")
    lines += [
        "",
        "Peak memory is the process's high-water mark above what it held before reading, for reading a Parquet file, "
        "checking it and making the tables, over the size of the four input columns at 8 bytes a value.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.memory:
        report_memory(chosen.memory)
    else:
        text = page()
        print(text)
        if chosen.out:
            chosen.out.write_text(text, encoding="utf-8")
