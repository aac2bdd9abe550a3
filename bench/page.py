"""Makes docs/benchmarks.md and its pictures from the files of results alone."""

from __future__ import annotations

from collections.abc import Iterator

from measuring import HERE, RESULTS, Row, load
from plots import draw_fits, draw_releases, draw_tables
from writing import memory, number, page, paragraph, seconds, table, thousands, times

DOCS = HERE.parent / "docs"
OTHER_TOOLS = {"tables": ["svy", "R survey"], "fits": ["NumPyro", "rstan"]}
MODELS = ["fbs", "fbp"]


def write_page() -> None:
    draw_tables(load("tables"), DOCS / "benchmarks-tables.svg")
    draw_fits(load("fits"), DOCS / "benchmarks-fits.svg")
    draw_releases(load("releases"), DOCS / "benchmarks-releases.svg")
    text = page(head(), tables(), fits(), calibrated(), releases(), sums(), bounds(), studies())
    (DOCS / "benchmarks.md").write_text(text + "\n", encoding="utf-8")


def head() -> str:
    machine = (RESULTS / "machine.txt").read_text(encoding="utf-8").strip()
    rows = list(beside("tables", "1000000", load("tables"), "Tables, 10⁶ records"))
    for model in MODELS:
        found = [row for row in load("fits") if row["model"] == model]
        rows += beside("fits", "1000", found, f"One fit of {model.upper()}, 10³ records")
    for row in load("calibrated"):
        if rstan := rstan_seconds(row):
            ours = float(row["median_seconds"])
            name = f"A calibrated release by {row['model'].upper()}, 10³ records"
            rows.append([name, seconds(ours), f"one fit by rstan: {seconds(rstan)}", times(rstan / ours), ""])
    for row in load("releases")[-2:]:
        name = f"A release from files, {thousands(row['records'])} records"
        rows.append([name, f"{seconds(row['seconds'])}, {memory(row['peak_mib'])}", "", "", ""])
    return page(
        "# Benchmarks",
        paragraph("""This page compares the time and memory of svysynth with those of other tools. `make bench`
            measures, keeps the numbers in `bench/results/`, and makes this page from them. FBS is the fully Bayes model
            of the observed sample, FBP the fully Bayes model of the population and the sampling; ε is the privacy loss
            (smaller is safer)."""),
        table(
            "comparison | svysynth | other tool | its time over svysynth's | its memory over svysynth's", "lllrr", rows
        ),
        paragraph(f"""**How to read the tables.** The times were measured on {machine}. The machine is shared,
            so seconds differ from day to day. The ratios are more reliable, because their two parts were measured one
            after the other. *Others* is the number of cores that other work on the machine used meanwhile: where it is
            not near 0, the seconds may be too large. Every tool runs in a process of its own. Peak memory is the most
            that this process ever held, so the smallest number of records shows how much an interpreter, its libraries
            and its compiler use. A tool that is not installed keeps its last values and their date. Nothing is
            extrapolated: cases that were not measured are marked."""),
    )


def beside(name: str, records: str, rows: list[Row], title: str) -> Iterator[list[str]]:
    """Rows of the summary table: each other tool beside svysynth, at one number of records."""
    found = {row["tool"]: row for row in rows if row["records"] == records and row["seconds"]}
    for tool in OTHER_TOOLS[name]:
        if tool in found:
            ours, theirs = (
                f"{seconds(found[which]['seconds'])}, {memory(found[which]['peak_mib'])}"
                for which in ("svysynth", tool)
            )
            ratios = [ratio(found[tool], found["svysynth"], column) for column in ("seconds", "peak_mib")]
            yield [title, ours, f"{tool}: {theirs}", *ratios]


def tables() -> str:
    rows = [
        [thousands(records), tool, *time, *peak, row.get("standard_error", ""), *stamp(row)]
        for records, tool, row, _, time, peak in side_by_side("tables", load("tables"))
    ]
    return page(
        "## Tables beside svy and R survey",
        paragraph("""Each tool makes a 27-cell set of tables (8 fields × 2 genders, margins and total) of counts and
            means with standard errors; fields are strata. Time is from a frame in memory to the finished set, including
            the design object, for the best of 2 to 5 runs. svysynth and svy use all cores, R one. A tool is stopped
            after 120 seconds or above 4 GiB, and is then not run with more records."""),
        "![Tables: seconds and peak memory against the number of records](benchmarks-tables.svg)",
        table(
            """records | tool | seconds | over svysynth's | peak MiB | over svysynth's | standard error of the overall
            mean | others | measured""",
            "rlrrrrrrl",
            rows,
        ),
    )


def fits() -> str:
    parts = [
        "## One fit beside rstan and NumPyro",
        paragraph("""The records are samples from the simulated population. svysynth runs four chains on the integrated
            density and keeps 1000 of 2000 draws; its time includes statistics, sampling and diagnostics, for the best
            of 3 runs. The others fit the same model and priors record by record: one chain, 1000 warm-up iterations and
            1000 draws, default settings, double precision, one run. All seconds exclude compilation. Peak memory
            includes it for svysynth and NumPyro, while rstan's compiler is a process of its own. Effective draws are
            the smallest bulk effective sample size of β and Σ (FBS; in rstan of β and the factors of Σ) or of β, κ and
            the σ's (FBP). NumPyro is stopped after 200 seconds, compilation included. rstan is run at 10³ records only,
            where one fit already takes more than a minute."""),
        "![Fits: seconds and peak memory against the number of records](benchmarks-fits.svg)",
    ]
    for model in MODELS:
        rows = []
        found = [row for row in load("fits") if row["model"] == model]
        for records, tool, row, ours, time, peak in side_by_side("fits", found):
            rate = draws_a_second(row)
            better = times(draws_a_second(ours) / rate) if rate and row is not ours else ""
            draws = [row.get("divergences", ""), number(rate) if rate else "", better]
            rows.append([thousands(records), tool, *time, *draws, *peak, *stamp(row), row.get("note", "")])
        heading = """records | tool | seconds | over svysynth's | divergences | effective draws a second | svysynth's
            over this | peak MiB | over svysynth's | others | measured | note"""
        parts += [f"### {model.upper()}", table(heading, "rlrrrrrrrrll", rows)]
    return page(*parts)


def calibrated() -> str:
    found = load("calibrated")
    rows = []
    for row in found:
        rstan, median = rstan_seconds(row), float(row["median_seconds"])
        counts = [row["model"].upper(), thousands(row["records"]), row["released"], row["refused"], row["fits"]]
        times_this = times(rstan / median) if rstan else ""
        rows.append([*counts, number(row["best_seconds"]), number(median), times_this, *stamp(row)])
    worst = min(float(row["effective_draws"]) for row in found)
    divergences = sum(int(row["divergences"]) for row in found)
    return page(
        "## A calibrated release beside one fit by rstan",
        paragraph("""Time is from a frame in memory to the tables by field and gender. It includes all fits, bounds,
            calibration to ε = 10.8 for 3 data sets, and synthesis, after a first run, which compiles. The 1,000 records
            are 7 samples of the simulated population; the 10,355 records are the stand-in, with 5 seeds. *Refused*
            counts runs in which calibration found no weights within its refits and released nothing; they are left out
            of the seconds. There is no bias correction for the weights α here; `svysynth release` has one by default,
            see below. The ratio divides the seconds of one rstan fit to the first sample of 1,000 by those of the
            median release."""),
        table(
            """model | records | released | refused | fits | best seconds | median seconds | one rstan fit over the
            median | others | measured""",
            "lrrrrrrrrl",
            rows,
        ),
        paragraph(f"""The fits from which releases were made have {divergences} divergences in total; the smallest bulk
            effective sample size of these fits is {worst:.0f}."""),
        paragraph("""The next table shows how long a user waits for `svysynth release` of the demo survey with the
            paper's mechanism (10,355 records, FBS). Each run is a new process. In the first run nothing is compiled
            yet."""),
        table(
            "turn | seconds | others | measured",
            "lrrl",
            [[f"{row['turn']} time", number(row["seconds"]), *stamp(row)] for row in load("waits")],
        ),
    )


def releases() -> str:
    rows = []
    for row in load("releases"):
        numbers = [number(row[column]) for column in ("seconds", "processor_seconds")]
        numbers += [thousands(row["peak_mib"]), number(row["public_mib"])]
        rows.append([thousands(row["records"]), *numbers, *stamp(row), row["note"]])
    return page(
        "## Releases from files",
        paragraph("""`svysynth release` makes a release from generated Parquet files: FBS, ε = 10.8, three synthetic
            files, tables by field and gender, and both reports. Each release is a process of its own, whose start is
            included in the time. Programs had been compiled before (except at 10⁸). Files of more than 2,000,000
            records are processed from disk. 10⁸ records are measured on request: `python bench/run.py --only releases
            --records 100000000`."""),
        "![Releases: seconds and peak memory against the number of records](benchmarks-releases.svg)",
        table(
            "records | seconds | processor seconds | peak MiB | public Parquet, MiB | others | measured | note",
            "rrrrrrll",
            rows,
        ),
    )


def sums() -> str:
    rows = []
    for row in load("sums"):
        read, prepared, measured = (float(row[f"{name}_seconds"]) for name in ("polars", "prepare", "measure"))
        taken = [number(read), number(measured), times(measured / read)]
        taken += [number(prepared), times((prepared + measured) / read), thousands(row["peak_mib"])]
        release = [number(row["release_seconds"]), thousands(row["release_peak_mib"])]
        rows.append([thousands(row["records"]), *taken, *release, *stamp(row), row["note"]])
    return page(
        "## The measurement of noisy sums beside polars",
        paragraph("""The data are generated Parquet files as for the releases: outcome, weight and two public columns.
            *polars* is the time in which polars reads these columns into memory. *measurement* is two passes over
            columns in plain files, and the noise. *columns* is the time to make these plain files from Parquet, which a
            release does once, before its tables and its measurement; the second ratio includes both. Each figure is the
            best of 7 turns, in one process, with files in the system's cache. Peak memory is that of a process that
            goes from Parquet to the measurement. *release* is `svysynth release` by FBS with the guarantee `global`,
            tables by field and gender and both reports, for the second of two runs; up to 2,000,000 records it works in
            memory."""),
        table(
            """records | polars, seconds | measurement, seconds | over polars | columns, seconds | both over polars |
            peak MiB | release, seconds | release, peak MiB | others | measured | note""",
            "rrrrrrrrrrll",
            rows,
        ),
    )


def bounds() -> str:
    rows = []
    for row in sorted(load("bounds"), key=lambda row: row["device"] != "cpu"):
        taken, floor, records = float(row["seconds"]), float(row["floor_seconds"]), int(row["records"])
        speed = 10 * records * int(row["draws"]) / taken / 1e9
        numbers = [number(value) for value in (taken, 1e9 * taken / records, speed, floor, taken / floor)]
        rows.append([row["device"], row["threads"], thousands(row["records"]), *numbers, *stamp(row), row["note"]])
    return page(
        "## The bounds of the records, beside what the machine can do",
        paragraph("""Seconds are for one pass over n records with 1000 draws, preparation included. The floor is a lower
            limit: the time of the multiplications and additions alone, or the time to move the records, whichever is
            longer. Multiplications and additions are taken at the speed of a float64 matrix product on as many threads
            or, on a graphics processor, at the speed of a compiled JAX loop of them. With one thread, seconds are
            processor time."""),
        table(
            """device | threads | records | seconds | ns a record | GFLOP/s | floor, seconds | over the floor |
            others | measured | note""",
            "lrrrrrrrrll",
            rows,
        ),
    )


def studies() -> str:
    found = load("studies")
    rows = []
    for row in found:
        rate = float(row["replicates_per_minute"])
        relative = times(rate / float(found[0]["replicates_per_minute"]))
        taken = number(row["seconds"]) if row["seconds"] else ""
        rows.append([row["name"], row["replicates"], taken, number(rate), relative, *stamp(row), row["note"]])
    return page(
        "## Studies",
        paragraph("""The replicates are those of `svysynth study simulation`, measured by wall-clock time. For runs in
            processes, the seconds are the difference between a longer and a shorter run, and the replicates are those
            by which the two runs differ, so that the time to start a run cancels."""),
        table(
            "way | replicates | seconds | replicates a minute | over the first | others | measured | note",
            "lrrrrrll",
            rows,
        ),
    )


def side_by_side(name: str, rows: list[Row]) -> Iterator[tuple[str, str, Row, Row, list[str], list[str]]]:
    """For each row: records, tool and version, its row, svysynth's row, and time and memory with their ratios."""
    found = {(row["records"], row["tool"]): row for row in rows}
    for records in dict.fromkeys(row["records"] for row in rows):
        ours = found[records, "svysynth"]
        for tool in ["svysynth", *OTHER_TOOLS[name]]:
            row = found.get((records, tool), {})
            time, peak = ["not run", ""], ["", ""]
            if row and row["stopped"]:
                time = [f"stopped {row['stopped']}", ""]
            elif row:
                time = [number(row["seconds"]), ratio(row, ours, "seconds")]
                peak = [thousands(row["peak_mib"]), ratio(row, ours, "peak_mib")]
            yield records, f"{tool} {row.get('version', '')}".strip(), row, ours, time, peak


def ratio(theirs: Row, ours: Row, column: str) -> str:
    if theirs is ours:
        return "1 ×"
    return times(float(theirs[column]) / float(ours[column])) if theirs[column] and ours[column] else ""


def rstan_seconds(row: Row) -> float | None:
    """Seconds of one rstan fit of the same model to as many records; None where there is none."""
    same = (row["model"], "rstan", row["records"])
    found = (float(fit["seconds"]) for fit in load("fits") if (fit["model"], fit["tool"], fit["records"]) == same)
    return next(found, None)


def draws_a_second(row: Row) -> float:
    return float(row["effective_draws"]) / float(row["seconds"]) if row.get("effective_draws") else 0.0


def stamp(row: Row) -> list[str]:
    return [row.get("others", ""), row.get("measured", "")]
