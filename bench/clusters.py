"""Measures coverage of tables on repeated two-stage samples: 60 clusters of about 20 records.

    python bench/clusters.py OUT --keep FOLDER --icc 0.05 0.2 --replicates 300 --workers 16
        --methods fbs "fbs ignoring clusters" fbp laplace "asymptotic fbs" --epsilon 5 --asymptotic-epsilon 10.8

A finite population has 1,000 clusters in five regions. From each region twelve clusters are drawn with replacement,
with chances that go with the outcome, and from a cluster 10 to 30 records, again with unequal chances. --icc is the
share of the variance of the log outcome that is between clusters. ε is for answers that are blanked out; for changed
answers it is twice as large. (With noise on the tables it is this twice as large ε in both cases.)

The program writes a CSV with a row for each share, method, statistic and class of cells: the whole, margins of one
column, cells of two columns, cells of three. The row has coverage of 95% intervals (the mean, and the least of any
cell), interval length as a ratio to the direct analysis of the sample with its clusters, and standard error over RMSE.
The direct analysis, and one that ignores clusters, are always among the rows. With --files there are further rows
(kind: files) for what a user gets from synthetic files. Results are kept in the folder --keep, and a run that was
stopped continues from there.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import polars as pl

import svysynth
from repeated_samples import add_options, bounds_around, by_class, figures, noisy_sums, run, write
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_tables.tables import additive_tables

LAPLACE = {"laplace": ((1e3, 1e6), 20, 20), "laplace, narrow bounds": ((5e3, 2.5e5), 10, 6)}
"""Noise on the tables: bounds of the outcome, and factors below and above the mean weight."""
ASYMPTOTIC = {"asymptotic fbs": svysynth.FBS}
IGNORING = " ignoring clusters"
DIRECT = ("direct", f"direct{IGNORING}")
BY = ("region", "sex", "age")
TABLES = [TableSpec(by=BY, statistics=("count", "proportion", "mean"))]
REGIONS, CLUSTERS_OF_REGION, DRAWN = 5, 200, 12
CLASSES = ("cells of three", "cells of two", "margins", "whole")
COLUMNS = ("coverage", "least_coverage", "length_over_direct", "rmse_over_direct", "se_over_rmse")
CHUNK, SLOW_CHUNK = 10, 2
"""The number of replicates in one file of results, and of those that take long."""


def normal_effects(generator, clusters):
    """Effects of clusters with mean zero and variance one."""
    return generator.standard_normal(clusters)


def make_population(icc, effects=normal_effects, tilt=0.5):
    """Records in clusters in regions, with the chances of clusters and of records in them.

    `tilt` is how much the log chance of a cluster goes with its effect.
    """
    generator = np.random.default_rng(17)
    clusters = REGIONS * CLUSTERS_OF_REGION
    records = generator.integers(100, 301, clusters)
    effect = np.sqrt(icc) * effects(generator, clusters)
    cluster = np.repeat(np.arange(clusters), records)
    own = np.sqrt(1 - icc) * generator.standard_normal(len(cluster))
    region = cluster // CLUSTERS_OF_REGION
    sex, age = generator.integers(0, 2, len(cluster)), generator.choice(3, len(cluster), p=[0.5, 0.3, 0.2])
    t = 10.3 + 0.1 * region + 0.25 * sex + 0.15 * age + 0.6 * (effect[cluster] + own)
    return pl.DataFrame(
        {
            "cluster": cluster,
            "region": [f"r{number}" for number in region],
            "sex": np.where(sex == 1, "m", "f"),
            "age": [f"a{number}" for number in age],
            "y": np.exp(t),
            "of_cluster": (records * np.exp(tilt * effect + 0.3 * generator.standard_normal(clusters)))[cluster],
            "of_record": np.exp(0.25 * own + 0.3 * generator.standard_normal(len(cluster))),
        }
    )


def draw_sample(generator, population):
    """Draw clusters in each region, and records in each; a cluster that is drawn twice counts as two."""
    clusters = population.group_by("cluster", maintain_order=True).agg(pl.col("of_cluster").first(), records=pl.len())
    ends = clusters["records"].cum_sum().to_numpy()
    records, of_cluster = clusters["records"].to_numpy(), clusters["of_cluster"].to_numpy()
    of_record = population["of_record"].to_numpy()
    rows, weights, psus = [], [], []
    for region in range(REGIONS):
        inside = np.arange(region * CLUSTERS_OF_REGION, (region + 1) * CLUSTERS_OF_REGION)
        chance = of_cluster[inside] / of_cluster[inside].sum()
        for place in generator.choice(CLUSTERS_OF_REGION, DRAWN, p=chance):
            end = ends[inside[place]]
            members = np.arange(end - records[inside[place]], end)
            count = int(np.clip(round(len(members) / 10), 10, 30))
            share = of_record[members] / of_record[members].sum()
            chosen = generator.choice(len(members), count, p=share)
            rows.append(members[chosen])
            weights.append(1 / (DRAWN * chance[place] * count * share[chosen]))
            psus.append(np.full(count, len(psus)))
    frame = population[np.concatenate(rows)].drop("cluster", "of_cluster", "of_record")
    psu = pl.Series("psu", np.concatenate(psus)).cast(pl.String)
    return frame.with_columns(psu, w=pl.Series(np.concatenate(weights)))


@dataclass(frozen=True)
class Study:
    """A population, and how its samples are protected."""

    icc: float
    draws: int
    rounds: int
    files: int
    effects: Callable = normal_effects
    tilt: float = 0.5

    @cached_property
    def population(self):
        return make_population(self.icc, self.effects, self.tilt)

    def survey(self, replicate, clusters=True):
        """One sample, read as a user would read it, with or without its clusters."""
        sample = draw_sample(np.random.default_rng([17, replicate]), self.population)
        roles = {"outcome": "y", "weight": "w", "strata": "region", "public": list(BY)}
        roles |= {"cluster": "psu"} if clusters else {}
        return svysynth.read_survey(sample, population_total=float(len(self.population)), **roles)

    def one(self, case, epsilon, replicate):
        """The tables of one sample by one method; their column `kind` is "tables" or "files"."""
        method = case.removesuffix(IGNORING)
        survey, streams = self.survey(replicate, method == case), svysynth.Streams.seeded(1000 + replicate)
        if method == "direct":
            found = [("tables", True, True, tabulate_all(survey, TABLES))]
        elif method in LAPLACE:
            outcome, below, above = LAPLACE[method]
            weight = len(self.population) / len(survey)
            bounds = BoundsSpec(outcome=outcome, weight=(weight / below, weight * above))
            made = additive_tables(survey, TABLES, 2 * epsilon, bounds, noise=StudyNoise(streams))
            found = [("tables", True, True, made.tables)]
        elif method in ASYMPTOTIC:
            found = self.asymptotic(survey, method, epsilon, streams)
        else:
            bounds = bounds_around((1e3, 1e6), len(self.population), len(survey))
            found = noisy_sums(self, survey, method, TABLES, bounds, epsilon, streams)
        return figures(replicate, found)

    def asymptotic(self, survey, method, epsilon, streams):
        """Tables by the asymptotic mechanism, from three files; none if it refuses."""
        try:
            model = svysynth.ClusteredFBS() if survey.design.cluster else ASYMPTOTIC[method]()
            calibrated = svysynth.calibrate(model, survey, epsilon, 3, streams=streams)
            return [("tables", True, True, calibrated.synthesize().tabulate_all(TABLES))]
        except svysynth.SurveyError as error:
            print(f"{method}: {error}", file=sys.stderr)
            return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, replicates=300, methods=["fbs", f"fbs{IGNORING}"], draws=500, rounds=2)
    parser.add_argument("--icc", type=float, nargs="+", default=[0.05, 0.2])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[5.0])
    parser.add_argument("--asymptotic-epsilon", type=float, nargs="+", default=[10.8])
    parser.add_argument("--asymptotic-replicates", type=int, default=300)
    settings = parser.parse_args()
    settings.keep.mkdir(parents=True, exist_ok=True)
    further = settings.draws, settings.rounds, settings.files
    studies = {icc: Study(icc, *further) for icc in settings.icc}
    cases = list(product(studies, DIRECT, [0.0]))
    for method in settings.methods:
        cases += product(studies, [method], settings.asymptotic_epsilon if slow(method) else settings.epsilon)
    paths, jobs = {case: [] for case in cases}, []
    for icc, method, epsilon in cases:
        most = min(settings.replicates, settings.asymptotic_replicates) if slow(method) else settings.replicates
        chunk = SLOW_CHUNK if slow(method) else CHUNK
        for first in range(0, most, chunk):
            replicates = range(first, min(first + chunk, most))
            parts = icc, *map(str, further), method.replace(" ", "-"), epsilon, first, replicates.stop
            path = settings.keep / ("_".join(map(str, parts)) + ".parquet")
            paths[icc, method, epsilon].append(path)
            jobs.append((studies[icc], method, epsilon, replicates, path))
    run(jobs, settings.workers)
    rows = (summary(studies[case[0]], case, paths[case], paths[case[0], "direct", 0.0]) for case in cases)
    write([one for some in rows for one in some], settings.out)


def slow(method):
    """Whether a method is asymptotic, which takes long."""
    return method.removesuffix(IGNORING) in ASYMPTOTIC


def truth_of(population):
    """The true count, proportion and mean of every cell and margin."""
    frames = []
    for keep in (list(kept) for size in range(len(BY) + 1) for kept in combinations(BY, size)):
        figures = {"count": pl.len().cast(pl.Float64), "proportion": pl.len() / len(population), "mean": pl.mean("y")}
        found = population.group_by(keep, maintain_order=True).agg(**figures) if keep else population.select(**figures)
        found = found.with_columns(pl.lit("All").alias(column) for column in BY if column not in keep)
        frames.append(
            found.select(*BY, *figures).unpivot(
                on=list(figures), index=list(BY), variable_name="statistic", value_name="truth"
            )
        )
    return pl.concat(frames)


def summary(study, case, paths, direct_paths):
    """Coverage, length and errors of one case, as means over each class of cells."""
    icc, method, epsilon = case
    direct = tabulate_all(study.survey(0), TABLES)
    on = ["statistic", *BY]
    rows = direct.join(truth_of(study.population), on=on, how="left", maintain_order="left")
    summed = pl.sum_horizontal((pl.col(column) == "All").cast(pl.Int32) for column in BY)
    rows = rows.select("statistic", "truth", row=pl.int_range(pl.len()), all=summed)
    rows = rows.with_columns(cells=pl.col("all").replace_strict(dict(enumerate(CLASSES)), return_dtype=pl.String))
    head = {"icc": icc, "method": method, "kind": "", "epsilon": epsilon}
    found, beside = pl.read_parquet(paths), pl.read_parquet(direct_paths)
    return by_class(found, rows, beside, pl.Expr.mean, head, COLUMNS)


if __name__ == "__main__":
    main()
