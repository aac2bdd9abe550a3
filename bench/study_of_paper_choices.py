"""Measures what each choice of the paper's authors does, by leaving it out, at Δ 1.8: docs/published/choices.csv.

    python bench/study_of_paper_choices.py
    python bench/study_of_paper_choices.py --replicates 2 --out FOLDER

The file has the number of coverages that agree with the paper's, and the ratios of interval lengths to the paper's.
docs/reproduction.md says what the choices are. Each choice must be needed for a part of the agreement: systematic
samples for FBS's counts, the lognormal density for FBP's salaries, and the ceiling of α for the lengths.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from criteria import judge, settings
from svysynth.estimation.utility import covers
from svysynth.evaluation.paper.comparison import PAPER_REPLICATES
from svysynth.evaluation.paper.methods import Plan, Scenario
from svysynth.evaluation.paper.repeated import AS_PUBLISHED, Results, Simulation, rmse_ratios
from svysynth.evaluation.paper.study import REPLICATES as REPLICATES_FOLDER
from svysynth.evaluation.paper.study import simulation_frames
from svysynth.evaluation.paper.workers import load_replicates
from svysynth.survey.doctorates import published_table

REPLICATES = 200
FIGURES = 96
"""The number of coverages that the paper prints at Δ 1.8 and m = 3."""


def as_published(systematic=True, **choices):
    return replace(AS_PUBLISHED, systematic=systematic, plan=replace(AS_PUBLISHED.plan, **choices))


VARIANTS = {
    "none, x with an intercept": Simulation(Plan(intercept=True)),
    "none": Simulation(),
    "all but systematic samples": as_published(systematic=False),
    "all but the lognormal density": as_published(lognormal=False),
    "all but the ceiling": as_published(ceiling=1.0),
    "all": AS_PUBLISHED,
    "all, and a shift": as_published(ceiling=0.8, shift=0.05),
}


def main(given=None):
    chosen = settings(__doc__, given, replicates=REPLICATES)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, Path(folder) / name, chosen.replicates) for name in VARIANTS]
    found = pl.DataFrame(rows).with_columns(pl.selectors.float().round(3))
    target = chosen.out / "published/choices.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    found.write_csv(target)
    return judge(criteria(found))


def measure(name, folder, replicates):
    """Run the replicates of a variant in a folder, and return its row of the file."""
    study = replace(VARIANTS[name], plan=replace(VARIANTS[name].plan, bounds=(1.8,)))
    frames = simulation_frames(study, folder, replicates, None, lambda *_: None)
    results = Results.of(study, load_replicates(folder / REPLICATES_FOLDER, range(replicates)))
    return row_of(name, frames["comparison"], frames["length-ratios"], results)


def row_of(name, comparison, ratios, results):
    compared = coverages(comparison)
    lengths = {
        f"{table.split()[-1].lower()} length {column[:3]}": ratio
        for table, column, ratio in length_ratios(comparison).sort("table", "column").iter_rows()
    }
    cells = compared.with_columns(
        kind=pl.col("section").str.extract("(Counts|salary)").str.to_lowercase(),
        place=pl.when(pl.col("row").str.contains(",")).then(pl.lit("inner")).otherwise(pl.lit("fields")),
    )
    means = {
        f"{kind} coverage {column[:3]}, {place}": share
        for kind, column, place, share in cells.group_by("kind", "column", "place", maintain_order=True)
        .agg(pl.col("here").mean())
        .iter_rows()
    }
    row = {
        "choices": name,
        "replicates": len(results.estimate),
        "agree": int((compared["difference"].abs() <= 3).sum()),
        "ratio": ratios.filter(method="fbp", statistic="count", datasets=3)["ratio"].item(),
        "fbp better": share_of_samples_where_fbp_is_better(results),
    }
    return row | lengths | means | differences_of_mean_coverage(results)


def coverages(comparison):
    return comparison.filter(pl.col("column").str.ends_with("coverage"))


def length_ratios(comparison):
    """Mean length over 24 cells, ours over the paper's, by table and model."""
    lengths = comparison.filter(pl.col("column").str.ends_with("length"))
    by = pl.col("section").str.extract("^(Counts|Average salary)").alias("table"), "column"
    return lengths.group_by(*by).agg((pl.col("here").sum() / pl.col("paper").sum()).alias("ratio"))


def share_of_samples_where_fbp_is_better(results):
    """The share of samples in which FBP's median RMSE ratio of the 27 mean salaries is below FBS's, m = 3."""
    better = []
    for index in range(len(results.estimate)):
        salary = rmse_ratios(results, index).filter(statistic="mean", datasets=3).fill_nan(None)
        middle = {method: group["rmse_ratio"].median() for (method,), group in salary.group_by("method")}
        better.append(middle["fbp"] < middle["fbs"])
    return float(np.mean(better))


def differences_of_mean_coverage(results):
    """Our mean coverage over 24 cells minus the paper's, in standard errors that allow for correlated cells."""
    truth = results.truth["truth"].to_numpy()
    found = {}
    for statistic, table in (("count", "counts"), ("mean", "salary")):
        cells, paper = results.rows(statistic), published_table(f"coverage_{table}_m3")
        for method in ("fbs", "fbp"):
            place = results.position(Scenario(method, 1.8, 3))
            middle, half = results.estimate[:, place], results.length[:, place] / 2
            covered = np.where(np.isfinite(half), covers(middle - half, middle + half, truth), np.nan)
            share = np.nanmean(covered[:, cells], axis=1)
            error = share.std(ddof=1) * np.sqrt(1 / len(share) + 1 / PAPER_REPLICATES)
            difference = (share.mean() - paper[f"{method}_coverage"].mean()) / error
            found[f"{table} coverage {method.upper()}, difference in s.e."] = difference
    return found


def criteria(found):
    """What samples, density and ceiling must each explain; then the effects of an intercept and of a shift of α."""
    rows = {row["choices"]: row for row in found.iter_rows(named=True)}
    off = {name: max(abs(row[key] - 1) for key in row if "length" in key) for name, row in rows.items()}
    shortest = {name: min(row[key] for key in row if "length" in key) for name, row in rows.items()}
    differs = {
        name: {key[: key.index(",")]: abs(row[key]) for key in row if key.endswith("s.e.")}
        for name, row in rows.items()
    }
    everything, shifted = differs["all"], differs["all, and a shift"]
    agree = rows["all"]["agree"]
    yield agree >= 0.9 * FIGURES, f"with all choices {agree} of {FIGURES} coverages agree with the paper"
    for name in ("all", "all, and a shift"):
        yield off[name] < 0.03, f"{name}: a mean length is off by {off[name]:.3f} of the paper's"
    for kind, choice in (
        ("counts coverage FBS", "systematic samples"),
        ("salary coverage FBP", "the lognormal density"),
    ):
        without = differs[f"all but {choice}"][kind]
        text = f"{kind} is off by {everything[kind]} standard errors with all choices, {without} without {choice}"
        yield everything[kind] < 3 < without, text
    least = shortest["all but the ceiling"]
    yield least < 0.95, f"all but the ceiling: the shortest mean length is {least} of the paper's"
    plain, intercept = (rows[name]["ratio"] for name in ("none", "none, x with an intercept"))
    text = (
        f"the ratio of lengths, 1.38 in the paper, is {plain} with none of the choices, {intercept} with an intercept"
    )
    yield abs(plain - 1.38) < 0.06 < abs(intercept - 1.38), text
    salary = "salary coverage FBS"
    text = f"{salary} is off by {everything[salary]} standard errors with all choices, {shifted[salary]} with a shift"
    yield shifted[salary] < 2 < 3 < everything[salary], text
    counts = shifted["counts coverage FBS"]
    yield counts < 2, f"all, and a shift: counts coverage FBS is off by {counts} standard errors"


if __name__ == "__main__":
    sys.exit(main())
