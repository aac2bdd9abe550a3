"""Measures coverages and lengths in eight other populations than the paper's: docs/published/populations*.csv.

    python bench/study_of_paper_populations.py
    python bench/study_of_paper_populations.py --replicates 2 --populations 2 --out FOLDER

The paper drew one population, and so do we. This study repeats the simulation as published in other populations, with
the paper's number of replicates. The paper's mean coverages must be compatible with those of one more population, by
Student's t at the level of 3 standard errors. docs/reproduction.md interprets the figures.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

from criteria import judge, settings
from study_of_paper_choices import coverages
from svysynth.evaluation.paper.comparison import PAPER_REPLICATES
from svysynth.evaluation.paper.repeated import AS_PUBLISHED
from svysynth.evaluation.paper.study import simulation_frames
from svysynth.survey.doctorates import published_table

POPULATIONS = 8
SHOWN = ["Field 2, male", "Field 7", "Field 7, male"]


def main(given=None):
    chosen = settings(__doc__, given, replicates=PAPER_REPLICATES, populations=POPULATIONS)
    comparisons = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, chosen.populations + 1):
            study = replace(AS_PUBLISHED, seed=seed, plan=replace(AS_PUBLISHED.plan, bounds=(1.8,)))
            frames = simulation_frames(study, Path(folder) / str(seed), chosen.replicates, None, lambda *_: None)
            comparisons[seed] = frames["comparison"]
    populations = pl.DataFrame([row_of(seed, chosen.replicates, one) for seed, one in comparisons.items()])
    populations = populations.with_columns(pl.selectors.float().round(4))
    target = chosen.out / "published"
    target.mkdir(parents=True, exist_ok=True)
    populations.write_csv(target / "populations.csv")
    lengths_of(comparisons.values()).write_csv(target / "populations-lengths.csv")
    return judge(criteria(populations))


def row_of(seed, replicates, comparison):
    found = coverages(comparison).with_columns(
        table=pl.col("section").str.extract("(Counts|salary)").str.to_lowercase(),
        method=pl.col("column").str.head(3),
    )
    means = found.group_by("table", "method", maintain_order=True).agg(pl.col("here").mean())
    columns = {f"{table} coverage {method}": share for table, method, share in means.iter_rows()}
    fbp = found.filter(pl.col("row").is_in(SHOWN), table="counts", method="FBP")
    return {"seed": seed, "replicates": replicates} | columns | dict(fbp.select("row", "here").iter_rows())


def lengths_of(comparisons):
    """The mean and the standard deviation over the populations of every mean interval length."""
    lengths = [one.filter(pl.col("column").str.ends_with("length")) for one in comparisons]
    cells = pl.concat(lengths).group_by("section", "row", "column", maintain_order=True)
    mean, spread = pl.mean("here").round(1), pl.std("here").round(1)
    return cells.agg(pl.first("paper"), mean=mean, spread=spread, populations=pl.len())


def criteria(found):
    for table in ("counts", "salary"):
        for method in ("FBS", "FBP"):
            here, paper = found[f"{table} coverage {method}"], published_table(f"coverage_{table}_m3")
            error = here.std() * np.sqrt(1 + 1 / len(here))
            off = (here.mean() - paper[f"{method.lower()}_coverage"].mean()) / error
            text = f"{table} coverage {method}: the paper's is {off:.1f} standard deviations from these populations"
            yield stats.t.sf(abs(off), len(here) - 1) > stats.norm.sf(3), text
    least, most = found["Field 7, male"].min(), found["Field 7, male"].max()
    spread = f"FBP's coverages of the count of field 7's men are {least} to {most}, not from below 0.6 to above 0.7"
    yield least < 0.6 < 0.7 < most, spread


if __name__ == "__main__":
    sys.exit(main())
