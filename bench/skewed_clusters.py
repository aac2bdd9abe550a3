"""Measures standard errors of noisy sums where the effects of clusters are skewed, or a few clusters are far from all.

    python bench/skewed_clusters.py OUT --keep FOLDER --replicates 60 --epsilon 5

Samples are those of bench/clusters.py: 60 clusters of about 20 records. The effects of clusters on the log outcome are
normal, exponential, or those of clusters of which one in twenty is far from all others: by 4 standard deviations of the
others (outliers), or by 20 (far). The chance of a cluster does not go with its effect, so that weights do not make up
for it. ε is for answers that are blanked out.

The CSV has a row for each kind of effects, share of the variance between clusters, ε, statistic and class of cells:
the mean ratio of standard errors to the direct ones, the ratio of interval lengths, and coverage of 95% intervals, with
that of the direct analysis.
"""

import argparse
from itertools import product
from pathlib import Path

import polars as pl

from clusters import BY, CLASSES, TABLES, Study, normal_effects, truth_of
from repeated_samples import run, write
from svysynth.estimation.tables import tabulate_all

FAR_CLUSTERS = 20
"""One cluster in so many is far from the others."""
CHUNK = 10


def exponential(generator, clusters):
    return generator.exponential(size=clusters) - 1


def outliers(generator, clusters):
    return with_far(generator, clusters, 4.0)


def far(generator, clusters):
    return with_far(generator, clusters, 20.0)


def with_far(generator, clusters, distance):
    found = generator.standard_normal(clusters)
    found[generator.choice(clusters, clusters // FAR_CLUSTERS, replace=False)] += distance
    return (found - found.mean()) / found.std()


EFFECTS = {"normal": normal_effects, "exponential": exponential, "outliers": outliers, "far": far}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="a folder for results")
    parser.add_argument("--effects", nargs="+", default=list(EFFECTS), choices=EFFECTS)
    parser.add_argument("--icc", type=float, nargs="+", default=[0.05, 0.2])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[5.0])
    parser.add_argument("--replicates", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    settings = parser.parse_args()
    settings.keep.mkdir(parents=True, exist_ok=True)
    further, jobs, paths = (settings.draws, settings.rounds, 0), [], {}
    for name, icc in product(settings.effects, settings.icc):
        study = Study(icc, *further, EFFECTS[name], 0.0)
        for method, epsilon in [("direct", 0.0), *(("fbs", epsilon) for epsilon in settings.epsilon)]:
            paths[name, icc, method, epsilon] = own = []
            for first in range(0, settings.replicates, CHUNK):
                replicates = range(first, min(first + CHUNK, settings.replicates))
                parts = name, icc, *further[:2], method, epsilon, first, replicates.stop
                own.append(settings.keep / ("_".join(map(str, parts)) + ".parquet"))
                jobs.append((study, method, epsilon, replicates, own[-1]))
    run(jobs, settings.workers)
    cases = [case for case in paths if case[2] != "direct"]
    write([summary(*case, paths[case], paths[(*case[:2], "direct", 0.0)]) for case in cases], settings.out)


def summary(name, icc, method, epsilon, paths, direct_paths):
    study = Study(icc, 0, 0, 0, EFFECTS[name], 0.0)
    rows = tabulate_all(study.survey(0), TABLES).select("statistic", *BY)
    rows = rows.join(truth_of(study.population), on=["statistic", *BY], how="left", maintain_order="left")
    summed = pl.sum_horizontal((pl.col(column) == "All").cast(pl.Int32) for column in BY)
    cells = summed.replace_strict(dict(enumerate(CLASSES)), return_dtype=pl.String)
    rows = rows.select("statistic", "truth", cells=cells, row=pl.int_range(pl.len()))
    of = pl.col
    mine, direct = (
        pl.read_parquet(kept).select(
            "row",
            "replicate",
            "estimate",
            "se",
            "passed",
            "fits",
            length=of("upper") - of("lower"),
            lower=of("lower"),
            upper=of("upper"),
        )
        for kept in (paths, direct_paths)
    )
    both = mine.join(direct, on=["row", "replicate"], suffix="_direct").join(rows, on="row")
    both = both.filter((of("se_direct") > 0) & (of("se") > 0))
    covered = of("truth").is_between("lower", "upper"), of("truth").is_between("lower_direct", "upper_direct")
    ratio = of("se") / of("se_direct")
    found = both.group_by("statistic", "cells").agg(
        se_over_direct=ratio.mean(),
        median_se_over_direct=ratio.median(),
        length_over_direct=of("length").mean() / of("length_direct").mean(),
        coverage=covered[0].mean(),
        coverage_direct=covered[1].mean(),
        replicates=of("replicate").n_unique(),
        passed=of("passed").mean(),
    )
    head = {"effects": name, "icc": icc, "epsilon": epsilon}
    return found.sort("statistic", "cells").select(
        *(pl.lit(value).alias(key) for key, value in head.items()), *found.columns
    )


if __name__ == "__main__":
    main()
