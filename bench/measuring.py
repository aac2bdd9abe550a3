"""Functions that the comparisons share: they run tools in processes of their own and keep results in files.

Each measured program runs in a process of its own and prints one line of JSON at its end, with its peak memory. Rows go
to `results/`, each with its date; a row that is not measured again stays as it is. Memory and processor time are read
from Linux's /proc.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SIZES = [10**power for power in range(3, 8)]
KEYS = {
    "tables": ["tool", "records"],
    "fits": ["model", "tool", "records"],
    "calibrated": ["model", "records"],
    "waits": ["turn"],
    "releases": ["records"],
    "sums": ["records"],
    "bounds": ["device", "threads", "records"],
    "studies": ["name"],
}
"""The files of results, and the columns that identify their rows."""
FOUND = {
    "tables": ["version", "seconds", "peak_mib", "standard_error", "stopped"],
    "fits": ["version", "seconds", "effective_draws", "divergences", "peak_mib", "stopped"],
    "calibrated": ["released", "refused", "fits", "best_seconds", "median_seconds", "effective_draws", "divergences"],
    "waits": ["seconds"],
    "releases": ["seconds", "processor_seconds", "peak_mib", "public_mib"],
    "sums": ["polars_seconds", "prepare_seconds", "measure_seconds", "peak_mib", "release_seconds", "release_peak_mib"],
    "bounds": ["draws", "seconds", "floor_seconds"],
    "studies": ["replicates", "seconds", "replicates_per_minute"],
}
STAMP = ["others", "measured", "note"]
"""The cores that other work on the machine used meanwhile, the date, and a remark."""

Row = dict[str, str]


def load(name: str) -> list[Row]:
    """Read the rows of a file of results, ordered by number of records where they have one."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return sorted(csv.DictReader(file), key=lambda row: int(row.get("records", 0)))


def keep(name: str, found: dict) -> None:
    """Write a row into a file of results, where it replaces the row with the same key."""
    columns = KEYS[name] + FOUND[name] + STAMP
    row = {column: _text(found.get(column, "")) for column in columns}
    rows = {tuple(old[column] for column in KEYS[name]): old for old in load(name)}
    rows[tuple(row[column] for column in KEYS[name])] = row
    with (RESULTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
    print(name, {column: value for column, value in row.items() if value}, flush=True)


def _text(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def describe_machine() -> None:
    """Write a description of the machine to a file."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    text = (
        f"{os.cpu_count()} cores ({processor or platform.machine()}), {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}"
    )
    (RESULTS / "machine.txt").write_text(text + "\n", encoding="utf-8")


def program(name: str, *arguments: object) -> list[str]:
    """The command that runs a file of this folder."""
    return [sys.executable, str(HERE / name), *map(str, arguments)]


def has_r(package: str) -> bool:
    """Whether R is installed with the given package."""
    if shutil.which("Rscript") is None:
        return False
    return subprocess.run(["Rscript", "-e", f"library({package})"], capture_output=True, check=False).returncode == 0


def run(
    command: list[str],
    patience: float = float("inf"),
    most_gib: float = float("inf"),
    environment: dict[str, str] | None = None,
) -> dict:
    """Run a command and return what its last line says, with a stamp; `stopped` says why, if it was stopped."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start, ours, all_work = time.perf_counter(), _our_work(), _all_work()
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=os.environ | (environment or {}))
        stopped = _watch(process, patience, most_gib)
        seconds = time.perf_counter() - start
        output.seek(0), errors.seek(0)
        if process.returncode and not stopped:
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read().decode()[-2000:]}")
        lines = output.read().decode().splitlines()
    others = max(_all_work() - all_work - (_our_work() - ours), 0.0) / seconds
    found = {"stopped": stopped} if stopped else json.loads(lines[-1])
    return {"wall_seconds": seconds, "others": f"{others:.1f}", "measured": time.strftime("%Y-%m-%d")} | found


def _watch(process: subprocess.Popen, patience: float, most_gib: float) -> str:
    """Wait for a process, or stop it if it takes too much time or memory; returns why it was stopped, or nothing."""
    start = time.perf_counter()
    while True:
        try:
            process.wait(0.1)
            return ""
        except subprocess.TimeoutExpired:
            late = time.perf_counter() - start > patience
            if late or _status("VmRSS", process.pid) > most_gib * 1024:
                process.kill()
                process.wait()
                return f"after {patience:.0f} s" if late else f"above {most_gib:.0f} GiB"


def _our_work() -> float:
    """Processor seconds of this process and of those it has waited for."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _all_work() -> float:
    """Processor seconds of all work on the machine, including those that other virtual machines took (steal)."""
    user, nice, system, _, _, hard, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + hard + soft + steal) / os.sysconf("SC_CLK_TCK")


def _status(key: str, process: int | str = "self") -> float:
    """The MiB in one line of a process's status under /proc; 0 where the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(key)), 0.0)


def answer(**values: object) -> None:
    """Print the result of a measured process as its last line."""
    print("\n" + json.dumps({"peak_mib": round(_status("VmHWM"))} | values))
