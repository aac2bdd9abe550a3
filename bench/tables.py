"""Compares direct tables with svy and R survey: time and peak memory by number of records.

Each tool makes a 27-cell table set from a frame in memory (8 fields × 2 genders, margins and total; counts and means
with standard errors, fields as strata). The time is from the frame to the finished set, including the design object.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

from measuring import HERE, SIZES, answer, has_r, keep, program, run

PATIENCE, MOST_GIB = 120.0, 4.0
RUNS, LONG_ENOUGH = 5, 5.0
"""The best of RUNS runs counts. After LONG_ENOUGH seconds no further run is begun, but two are always made."""
COLUMNS = {"field": np.int32, "gender": np.int32, "salary": np.float64, "weight": np.float64}


def measure(sizes: list[int] = SIZES) -> None:
    """Measure each tool at increasing numbers of records, until it takes too long or too much memory."""
    tools = [tool for tool, here in at_hand().items() if here]
    for records in sizes:
        with tempfile.TemporaryDirectory() as folder:
            run(program("tables.py", "write", folder, records))
            for tool in list(tools):
                r = ["Rscript", str(HERE / "tables.R"), folder, str(records), str(RUNS), str(LONG_ENOUGH)]
                command = r if tool == "R survey" else program("tables.py", tool, folder)
                found = run(command, PATIENCE, MOST_GIB)
                keep("tables", {"tool": tool, "records": records} | found)
                if found.get("stopped"):
                    tools.remove(tool)


def at_hand() -> dict[str, bool]:
    """Each tool, and whether it is installed."""
    return {
        "svysynth": True,
        "svy": find_spec("svy") is not None,
        "R survey": has_r("survey"),
    }


def write(folder: Path, records: int) -> None:
    """Write columns as plain numbers, which all tools can read."""
    generator = np.random.default_rng(1)
    columns = {
        "field": generator.integers(1, 9, records),
        "gender": generator.integers(1, 3, records),
        "salary": generator.lognormal(11.5, 0.5, records),
        "weight": generator.lognormal(2, 0.6, records),
    }
    for name, values in columns.items():
        values.astype(COLUMNS[name]).tofile(folder / name)


def read(folder: Path) -> pl.DataFrame:
    return pl.DataFrame({name: np.fromfile(folder / name, kind) for name, kind in COLUMNS.items()})


def with_svysynth(frame: pl.DataFrame) -> float:
    """The standard error of the overall mean."""
    import svysynth

    survey = svysynth.read_survey(frame, outcome="salary", weight="weight", strata="field", public=["field", "gender"])
    table = svysynth.tabulate(survey, ["field", "gender"], ["count", "mean"])
    return table.filter(statistic="mean", field="All", gender="All")["se"].item()


def with_svy(frame: pl.DataFrame) -> float:
    """The standard error of the overall mean."""
    import svy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = svy.Sample(frame.with_columns(one=1.0), svy.Design(stratum="field", wgt="weight"))
        for by in (["field", "gender"], "field", "gender", None):
            sample.estimation.total("one", by=by)
            overall = sample.estimation.mean("salary", by=by)
    return overall.estimates[0].se


def time_tool(tool: str, frame: pl.DataFrame) -> None:
    function = {"svysynth": with_svysynth, "svy": with_svy}[tool]
    begin, seconds = time.perf_counter(), []
    while len(seconds) < 2 or (len(seconds) < RUNS and time.perf_counter() - begin < LONG_ENOUGH):
        start = time.perf_counter()
        error = function(frame)
        seconds.append(time.perf_counter() - start)
    answer(seconds=min(seconds), standard_error=f"{error:.9f}", version=version(tool))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
        answer()
    else:
        time_tool(sys.argv[1], read(Path(sys.argv[2])))
