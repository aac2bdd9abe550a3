"""Measures coverage of tables on repeated samples of school districts, whose weights are declared public.

    python bench/districts.py OUT --keep FOLDER --districts 15 40 --epsilon 3 5 10 --replicates 200

The population is apipop of R's package `survey`: 6,194 schools in California in 757 districts, with the outcome api00
(without a logarithm) and the type of school. R has to be installed. Districts are drawn without replacement, and

- `equal`: with equal chances, and all their schools, as in R's apiclus1: all weights are the same;
- `by size`: with replacement and chances in proportion to the number of schools, and from a district ten schools, or
  all if there are fewer: weights vary between districts.

ε is for an outcome that is blanked out; for a changed outcome it is twice as large. The program writes a CSV with a row
for each design, number of districts, ε, statistic and class of cells: the whole, and the three types of school. The row
has coverage of 95% intervals, their length and their RMSE as ratios to those of the direct analysis of the sample with
its clusters, and standard error over RMSE. Results are kept in the folder --keep, and a run that was stopped continues
from there.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import polars as pl

import svysynth
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.whole import ModelSpec
from svysynth.estimation.combining import Synthetic
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey, prior_of
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of

DESIGNS = ("equal", "by size")
MOST_SCHOOLS = 10
TABLES = [TableSpec(by=("stype",), statistics=("count", "mean", "total"))]
BOUNDS = BoundsSpec(outcome=(200.0, 1000.0), weight=(1.0, 1000.0))


@dataclass(frozen=True)
class Study:
    """The population, and how its samples are drawn and protected."""

    schools: pl.DataFrame
    draws: int
    rounds: int
    files: int

    @cached_property
    def districts(self):
        """The rows of each district."""
        return self.schools.with_row_index().group_by("dnum", maintain_order=True).agg("index")["index"].to_list()

    def survey(self, design, districts, replicate):
        """One sample, read as a user would read it."""
        generator = np.random.default_rng([23, districts, replicate])
        size = np.array([len(rows) for rows in self.districts])
        by_size = design == "by size"
        chance = size / size.sum() if by_size else np.full(len(size), 1 / len(size))
        drawn = generator.choice(len(size), districts, replace=by_size, p=chance)
        rows, weights, psus = [], [], []
        for place in drawn:
            own = np.array(self.districts[place])
            chosen = generator.permutation(own)[:MOST_SCHOOLS] if by_size else own
            rows.append(chosen)
            weights.append(np.full(len(chosen), len(own) / len(chosen) / (districts * chance[place])))
            psus.append(np.full(len(chosen), len(psus)))
        frame = self.schools[np.concatenate(rows)].drop("dnum")
        psu = pl.Series("psu", np.concatenate(psus)).cast(pl.String)
        frame = frame.with_columns(psu, w=pl.Series(np.concatenate(weights)))
        roles = {"outcome": "api00", "weight": "w", "public": ["stype"], "cluster": "psu", "transform": "identity"}
        return svysynth.read_survey(frame, weight_public=True, **roles)

    def one(self, design, districts, epsilon, replicate):
        """The direct tables of a sample, those of a release and, if `files` is set, those from synthetic files."""
        survey, streams = self.survey(design, districts, replicate), svysynth.Streams.seeded(1000 + replicate)
        if not epsilon:
            return self._rows(tabulate_all(survey, TABLES), "direct", True, replicate)
        settings = TABLES, BOUNDS, "identity", 2 * epsilon
        measurement, facts = measure_survey(survey, "answers", *settings, StudyNoise(streams))
        prior = prior_of("fbs", ModelSpec())
        fitted = fit_measurement(measurement, facts, prior, None, self.draws, streams, self.rounds)
        tables = tables_of(fitted.drawn, measurement, facts, TABLES, EstimationSpec())
        found = [self._rows(tables, "tables", fitted.verdict.passed, replicate)]
        if self.files:
            plan = FilePlan.of(self.draws, self.files, streams)
            make = FileMaker(fitted.drawn, measurement, facts, plan.seed, "api00", None, cluster="psu")
            tables = Synthetic(tuple(map(make.survey, plan.draws)), "imputed").tabulate_all(TABLES)
            found.append(self._rows(tables, "files", fitted.verdict.passed, replicate))
        return pl.concat(found)

    @staticmethod
    def _rows(tables, kind, passed, replicate):
        numbers = tables.select("statistic", "stype", pl.col("estimate", "se", "lower", "upper").cast(pl.Float64))
        return numbers.with_columns(kind=pl.lit(kind), passed=passed, replicate=replicate)

    def truth(self):
        """The true count, mean and total of all schools and of each type."""
        figures = {"count": pl.len().cast(pl.Float64), "mean": pl.mean("api00"), "total": pl.sum("api00")}
        whole = self.schools.select(stype=pl.lit("All"), **figures)
        found = pl.concat([whole[:1], self.schools.group_by("stype").agg(**figures)], how="vertical_relaxed")
        return found.unpivot(on=list(figures), index="stype", variable_name="statistic", value_name="truth")


def read_schools():
    """Apipop, from R."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "apipop.csv"
        code = (
            f'library(survey); data(api); write.csv(apipop[c("api00", "stype", "dnum")], "{path}", row.names = FALSE)'
        )
        subprocess.run(["Rscript", "--vanilla", "-e", code], check=True, capture_output=True)
        return pl.read_csv(path).with_columns(pl.col("api00").cast(pl.Float64))


def summary(found, truth):
    """Coverage and errors of each kind, as means over each class of cells, relative to the direct analysis."""
    of, on = pl.col, ["statistic", "stype"]
    found = found.join(truth, on=on).with_columns(
        inside=(of("lower") <= of("truth")) & (of("truth") <= of("upper")), length=of("upper") - of("lower")
    )
    each = found.group_by("kind", *on).agg(
        of("inside").mean().alias("coverage"),
        of("length").mean(),
        ((of("estimate") - of("truth")) ** 2).mean().sqrt().alias("rmse"),
        (of("se") ** 2).mean().sqrt().alias("se"),
        of("passed").sum(),
        replicates=pl.len(),
    )
    direct = each.filter(kind="direct").select(*on, direct_length="length", direct_rmse="rmse")
    each = each.join(direct, on=on).with_columns(
        cells=pl.when(of("stype") == "All").then(pl.lit("whole")).otherwise(pl.lit("types"))
    )
    return each.group_by("kind", "statistic", "cells").agg(
        of("coverage").mean(),
        (of("length") / of("direct_length")).mean().alias("length_over_direct"),
        (of("rmse") / of("direct_rmse")).mean().alias("rmse_over_direct"),
        (of("se") / of("rmse")).mean().alias("se_over_rmse"),
        of("passed").min(),
        of("replicates").min(),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--designs", nargs="+", default=list(DESIGNS), choices=DESIGNS)
    parser.add_argument("--districts", type=int, nargs="+", default=[15, 40])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 5.0, 10.0])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=4, help="most rounds of the chains; a release has up to 24")
    parser.add_argument("--files", type=int, default=0)
    settings = parser.parse_args()
    settings.keep.mkdir(parents=True, exist_ok=True)
    study = Study(read_schools(), settings.draws, settings.rounds, settings.files)
    frames, order = [], ["design", "districts", "epsilon", "kind", "statistic", "cells"]
    for design, districts in product(settings.designs, settings.districts):
        parts = {epsilon: [] for epsilon in (0.0, *settings.epsilon)}
        for replicate, epsilon in product(range(settings.replicates), parts):
            numbers = districts, settings.draws, settings.rounds, settings.files, epsilon, replicate
            path = settings.keep / ("_".join([design.replace(" ", "-"), *map(str, numbers)]) + ".parquet")
            if not path.exists():
                study.one(design, districts, epsilon, replicate).write_parquet(path)
                print(path.stem, file=sys.stderr, flush=True)
            parts[epsilon].append(pl.read_parquet(path))
        direct, truth = pl.concat(parts.pop(0.0)), study.truth()
        for epsilon, own in parts.items():
            found = summary(pl.concat([direct, *own]), truth)
            columns = {"design": pl.lit(design), "districts": pl.lit(districts), "epsilon": pl.lit(epsilon)}
            frames.append(found.with_columns(**columns).select(*order, *found.columns[3:]))
    frame = pl.concat(frames).sort(order)
    frame.write_csv(settings.out)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=3):
        print(frame)


if __name__ == "__main__":
    main()
