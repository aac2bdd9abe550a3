"""Measures noisy sums from disk, and polars reading the same columns of Parquet: time and peak memory.

The measurement makes two passes over columns in plain files: one for histograms and one for sums, with noise. A release
first makes these files from Parquet. One process takes turns between polars, making the columns, and the measurement,
so that other work on the machine slows all three alike; the best turn of each counts. A second process goes from
Parquet to the measurement once, to find its peak memory. A third runs `svysynth release` as a whole. Here files of at
most 2,000,000 records are processed from disk too; `svysynth release` keeps such files in memory.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import polars as pl

from measuring import answer, keep, program, run

SIZES = [10**6, 10**7]
TURNS = 21
COLUMNS = ["salary", "weight", "field", "gender"]
NOISY = """guarantee = "global"
bounds = { outcome = [1e3, 1e7], weight = [0.5, 2e3] }"""


def measure(sizes: list[int] = SIZES) -> None:
    for records in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            environment = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
            run(program("releases.py", "write", folder, records))
            write_spec(folder)
            found = run(program("sums.py", "time", folder))
            found["peak_mib"] = run(program("sums.py", "memory", folder))["peak_mib"]
            for turn in ("first", "second"):
                release = run(program("releases.py", "release", folder, folder / turn), environment=environment)
            found |= {"release_seconds": release["seconds"], "release_peak_mib": release["peak_mib"]}
            keep("sums", {"records": records} | found)


def write_spec(folder: Path) -> None:
    """Change the spec of the releases from files: the guarantee `global`, and tables alone."""
    text = (folder / "spec.toml").read_text(encoding="utf-8")
    noisy = text.replace('guarantee = "asymptotic"', NOISY).replace("datasets = 3\n", "datasets = 0\n")
    (folder / "spec.toml").write_text(noisy, encoding="utf-8")


def prepare(folder: Path, scratch: Path) -> Callable[[], object]:
    """Make the columns in plain files; returns the function that measures them."""
    from svysynth import Streams, load_spec
    from svysynth.core.engine import LOCAL
    from svysynth.mechanisms.base import mechanism_of
    from svysynth.mechanisms.noise import StudyNoise
    from svysynth.mechanisms.noisy_sums.mechanism import measure_survey
    from svysynth.survey.large_files import read_large

    spec = load_spec(folder / "spec.toml")
    survey = read_large(mechanism_of(spec.privacy).reads(spec), scratch, LOCAL)

    def measurement() -> object:
        noise, privacy = StudyNoise(Streams.seeded(1)), spec.privacy
        given = privacy.protect, spec.requested_tables, privacy.bounds, spec.survey.transform, privacy.epsilon
        return measure_survey(survey, *given, noise)

    return measurement


def seconds_of(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def time_both(folder: Path) -> None:
    files = sorted((folder / "data").glob("*.parquet"))
    prepared, read, measured = [], [], []
    for _ in range(TURNS):
        read.append(seconds_of(lambda: pl.read_parquet(files, columns=COLUMNS)))
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            start = time.perf_counter()
            measurement = prepare(folder, Path(scratch))
            prepared.append(time.perf_counter() - start)
            measured.append(seconds_of(measurement))
    answer(polars_seconds=median(read), prepare_seconds=median(prepared), measure_seconds=median(measured))


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "time":
        time_both(folder)
    else:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            prepare(folder, Path(scratch))()
        answer()
