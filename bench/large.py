"""Releases of large files: time and peak memory against the number of records; studies; the bounds and their floor.

A release is the command that a user gives, in a process of its own: from a folder of Parquet to tables, three synthetic
files and both reports. Data are generated: 8 fields × 2 genders, fields as strata. The machine is shared, so only
ratios within one run mean anything. Rows of sizes and devices that a run does not measure are kept from the page that
is already there, with the date they were measured on.

    python bench/large.py --out docs/benchmarks-large.md
    python bench/large.py --measure releases --records 100000000
    python bench/large.py --measure gpu
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import bounds

HERE = Path(__file__).parent
MEASURED = ["releases", "studies", "bounds", "gpu"]
SIZES = [100_000, 1_000_000, 10_000_000]
FILE_ROWS = 5_000_000
REPLICATES, FEW = 48, 4
SPEC = """[survey]
data = "data"
outcome = "salary"
weight = "weight"
strata = "field"
public = ["field", "gender"]
population_total = {population}

[privacy]
mechanism = "fbs"
epsilon = 10.8
datasets = 3
budget = "bench"

[[tables]]
by = ["field", "gender"]
statistics = ["count", "mean"]
"""
DATE = time.strftime("%Y-%m-%d")


def write_survey(folder: Path, rows: int) -> Path:
    """A folder of Parquet and a spec; the spec's path."""
    generator = np.random.default_rng(1)
    (folder / "data").mkdir(parents=True)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        size = min(FILE_ROWS, rows - start)
        field, gender = np.divmod(generator.integers(0, 16, size), 2)
        t = 11 + 0.025 * field - 0.1 * gender + 0.4 * generator.standard_normal(size)
        v = 3 - 0.6 * (t - 11) + 0.1 * field + 0.4 * generator.standard_normal(size)
        names = pl.Series(
            ["biology", "computing", "mathematics", "physics", "psychology", "social", "engineering", "health"]
        )
        frame = pl.DataFrame(
            {
                "field": names.gather(field),
                "gender": pl.Series(["Male", "Female"]).gather(gender),
                "salary": np.exp(t),
                "weight": np.exp(v),
            }
        )
        frame.write_parquet(folder / "data" / f"{number:04}.parquet", row_group_size=500_000)
    spec = folder / "spec.toml"
    spec.write_text(SPEC.format(population=25 * rows), encoding="utf-8")
    command("ledger", "open", str(spec), "--total", "1000")
    return spec


def command(*arguments: str) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and GiB of peak memory of a command."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "svysynth", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"svysynth {arguments[0]} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def release_row(rows: int, folder: Path) -> str:
    """A release of so many records."""
    spec = write_survey(folder / f"survey-{rows}", rows)
    seconds, processor, memory = command("release", str(spec), "--seed", "1", "--out", str(folder / f"release-{rows}"))
    size = sum(path.stat().st_size for path in (folder / f"release-{rows}/public").glob("*.parquet")) / 2**30
    load = os.getloadavg()[0]
    return f"| {rows:,} | {seconds:.1f} | {processor:.1f} | {memory:.2f} | {size:.2f} | {load:.1f} | {DATE} |"


def throughput_rows(folder: Path) -> list[str]:
    """Replicates of the simulation a minute, from two runs of different length: what each starts with cancels."""
    ways = {"1 process": ["--workers", "1"], "2 processes": ["--workers", "2"], "Dask, 2 workers": ["--engine", "dask"]}
    rows, first = [], 0.0
    for number, (name, options) in enumerate(ways.items()):
        goals, seconds = (4, 4 + FEW, 4 + FEW + FEW + REPLICATES), []
        for goal in goals:
            arguments = ["study", "simulation", "--replicates", str(goal), "--out", str(folder / f"study-{number}")]
            seconds.append(command(*arguments, *options)[0])
        rate = 60 * REPLICATES / (seconds[2] - seconds[1])
        first = first or rate
        rows.append(f"| {name} | {rate:.1f} | {rate / first:.2f} | {DATE} |")
    return rows


def kept(before: str, heading: str) -> dict[str, str]:
    """The rows of a table on the page that is already there, by what stands in their first column."""
    found = re.search(rf"## {re.escape(heading)}\n(.*?)(?=\n## |\Z)", before, re.DOTALL)
    rows = [line for line in (found[1] if found else "").splitlines() if re.match(r"\| [^-:]", line)]
    return by_first_cell(rows[1:])


def by_first_cell(rows: Iterable[str]) -> dict[str, str]:
    return {row.split("|")[1].strip(): row for row in rows}


def draw(rows: dict[str, str], path: Path) -> None:
    """Time and memory against the number of records."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "svysynth"
    cells = sorted([part.strip() for part in row.split("|")[1:-1]] for row in rows.values())
    points = sorted((int(cell[0].replace(",", "")), float(cell[2]), float(cell[3])) for cell in cells)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    sizes, seconds, memory = zip(*points, strict=True)
    left.loglog(sizes, seconds, "o-")
    left.set(xlabel="records", ylabel="processor seconds", title="A release, time")
    right.semilogx(sizes, memory, "s-")
    right.set(xlabel="records", ylabel="GiB", title="A release, peak memory", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


RELEASES, STUDIES, BOUNDS = "Releases", "Studies", "The bounds of the records"


def page(before: str, picture: Path, sizes: list[int], wanted: list[str]) -> str:
    releases, studies, floors = (kept(before, heading) for heading in (RELEASES, STUDIES, BOUNDS))
    with tempfile.TemporaryDirectory() as name:
        if "releases" in wanted:
            releases |= by_first_cell(release_row(size, Path(name)) for size in sizes)
        if "studies" in wanted:
            studies |= by_first_cell(throughput_rows(Path(name)))
    if "gpu" in wanted:
        floors |= by_first_cell(map(floor_row, bounds.measure_device(100_000_000)))
    if "bounds" in wanted:
        floors |= by_first_cell(map(floor_row, bounds.measure(bounds.SIZES, (1, os.cpu_count() or 1))))
    draw(releases, picture)
    ordered = sorted(releases.values(), key=lambda row: int(row.split("|")[1].replace(",", "")))
    return "\n".join(
        [
            "# Benchmarks of large files",
            "",
            f"`make bench`, last {DATE}: {os.cpu_count()} cores, {platform.machine()}, Python "
            f"{platform.python_version()}. The machine is shared: read ratios, and processor seconds rather than those "
            "by the clock.",
            "",
            f"## {RELEASES}",
            "",
            "`svysynth release` of generated Parquet: FBS, ε = 10.8, three synthetic files, tables by field and "
            "gender, both reports; a process of its own each, start and compiled programs included. Memory is the "
            "largest that the process held (ru_maxrss).",
            "",
            "| records | seconds | processor seconds | peak GiB | public Parquet, GiB | load average | measured |",
            "|--:|--:|--:|--:|--:|--:|---|",
            *ordered,
            "",
            f"![Time and memory against the number of records]({picture.name})",
            "",
            f"## {STUDIES}",
            "",
            f"`svysynth study simulation`, by the clock: the seconds that {REPLICATES} replicates more take.",
            "",
            "| processes | replicates a minute | relative | measured |",
            "|---|--:|--:|---|",
            *studies.values(),
            "",
            f"## {BOUNDS}",
            "",
            f"One pass over n records with {bounds.DRAWS} draws, preparation included. The floor is what the "
            "multiplications and additions alone take at the speed of a float64 matrix product on as many threads (of "
            "a loop of them that JAX compiles, on a graphics processor), or moving the records, whichever is longer.",
            "",
            "| device, threads × records | seconds | ns a record | GFLOP/s | floor | ratio | measured |",
            "|---|--:|--:|--:|--:|--:|---|",
            *floors.values(),
            "",
        ]
    )


def floor_row(found: dict) -> str:
    where = f"{found['device']}, {found['threads']} × {found['records']:,}"
    return (
        f"| {where} | {found['seconds']:.3f} | {found['ns_a_record']:.1f} | {found['gflops']:.1f} | "
        f"{found['floor_seconds']:.3f} | {found['ratio']:.2f} | {DATE} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "benchmarks-large.md")
    parser.add_argument("--records", type=int, nargs="*", default=SIZES)
    parser.add_argument("--measure", nargs="*", choices=MEASURED, default=MEASURED[:3])
    chosen = parser.parse_args()
    before = chosen.out.read_text(encoding="utf-8") if chosen.out.exists() else ""
    text = page(before, chosen.out.with_suffix(".svg"), chosen.records, chosen.measure)
    print(text)
    chosen.out.write_text(text, encoding="utf-8")
