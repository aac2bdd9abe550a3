"""Measures coverage of released tables on samples of two stages of which many first-stage units were drawn.

    python bench/several_stages.py OUT --replicates 60 --mechanisms laplace fbs

The population has 100 clusters of 60 persons in two strata, and 0.1 of the variance of the log outcome is between
clusters. A sample has 30 of the clusters, drawn without replacement with equal chances in each stratum, and 20 persons
of each, so that all weights are the same. A release takes the first stage alone, as drawn with replacement; for `fbs`
weights are declared public. The direct analysis has both stages with their finite population corrections (in R,
`svydesign(id = ~cluster + person, strata = ~stratum, fpc = ~clusters + persons)`). ε is for a changed answer.

The CSV has a row for each method, statistic and class of cells: coverage of 95% intervals, mean standard error over the
actual RMSE, and the mean ratio of standard errors to the direct ones. `first stage` is the direct analysis of the first
stage alone.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

import svysynth
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of
from svysynth.mechanisms.noisy_tables.tables import additive_tables
from svysynth.models.fbs import FBS

CLUSTERS, PERSONS, DRAWN, ASKED, EPSILON = 100, 60, 30, 20, 10.0
TABLES = [TableSpec(by=("stratum", "sex"), statistics=("count", "mean"))]
BOUNDS = BoundsSpec(outcome=(2e3, 3e5), weight=(5.0, 20.0))
KEYS = ["statistic", "stratum", "sex"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--replicates", type=int, default=60)
    parser.add_argument("--mechanisms", nargs="+", default=["laplace"], choices=["laplace", "fbs"])
    settings = parser.parse_args()
    people = population()
    truth = tabulate_all(read(people.with_columns(wt=pl.lit(1.0)), cluster=None, fpc=None), TABLES)
    found = []
    for seed in range(settings.replicates):
        both = read(drawn(people, seed))
        first = replace(both, design=both.design.first_stage)
        tables = {"direct": tabulate_all(both, TABLES), "first stage": tabulate_all(first, TABLES)}
        tables |= {name: released(name, first, seed) for name in settings.mechanisms}
        for name, table in tables.items():
            own = table.select(*KEYS, "estimate", "se", "lower", "upper")
            found.append(own.with_columns(method=pl.lit(name), seed=seed))
    pl.Config(tbl_rows=-1, tbl_cols=-1)
    summed = summary(pl.concat(found), truth)
    summed.write_csv(settings.out)
    print(summed)


def population():
    """One population for all samples."""
    generator = np.random.default_rng(5)
    cluster = np.repeat(np.arange(CLUSTERS), PERSONS)
    sex = generator.integers(0, 2, len(cluster))
    effect = np.sqrt(0.1) * generator.standard_normal(CLUSTERS)[cluster]
    t = 10.3 + 0.3 * sex + 0.6 * (effect + np.sqrt(0.9) * generator.standard_normal(len(cluster)))
    columns = {"stratum": np.array(["s1", "s2"])[cluster % 2], "cluster": [f"c{one}" for one in cluster]}
    sampled = {"clusters": CLUSTERS / 2, "persons": float(PERSONS)}
    return pl.DataFrame(columns | {"sex": np.array(["f", "m"])[sex], "y": np.exp(t)}).with_columns(
        pl.lit(value).alias(name) for name, value in sampled.items()
    )


def drawn(people, seed):
    """A sample of clusters in each stratum, and of persons in each cluster."""
    generator = np.random.default_rng(1000 + seed)
    rows = []
    for stratum in (0, 1):
        own = np.arange(stratum, CLUSTERS, 2)
        for cluster in generator.choice(own, DRAWN // 2, replace=False):
            rows.append(cluster * PERSONS + generator.choice(PERSONS, ASKED, replace=False))
    return people[np.concatenate(rows)].with_columns(wt=pl.lit(CLUSTERS / DRAWN * PERSONS / ASKED))


def read(frame, **roles):
    own = {"outcome": "y", "weight": "wt", "strata": "stratum", "public": ["stratum", "sex"], "transform": "identity"}
    own |= {"cluster": "cluster", "fpc": ["clusters", "persons"], "population_total": float(CLUSTERS * PERSONS)}
    return svysynth.read_survey(frame, **own | roles)


def released(name, survey, seed):
    streams = svysynth.Streams.seeded(seed)
    if name == "laplace":
        return additive_tables(survey, TABLES, EPSILON, BOUNDS, noise=StudyNoise(streams)).tables
    survey = replace(survey, weight_public=True)
    measurement, facts = measure_survey(survey, "answers", TABLES, BOUNDS, "log", EPSILON, StudyNoise(streams))
    drawn = fit_measurement(measurement, facts, FBS(), None, 500, streams).drawn
    return tables_of(drawn, measurement, facts, TABLES, EstimationSpec())


def summary(found, truth):
    """One row for each method, statistic and number of columns that a cell is of."""
    of = pl.col
    both = found.join(truth.select(*KEYS, truth="estimate"), on=KEYS)
    direct = found.filter(method="direct").select(*KEYS, "seed", se_direct="se")
    both = both.join(direct, on=[*KEYS, "seed"]).filter(of("se_direct") > 0)
    columns = pl.sum_horizontal((of(name) != "All").cast(pl.Int32) for name in ("stratum", "sex"))
    rmse = ((of("estimate") - of("truth")) ** 2).mean().sqrt()
    kept = both.with_columns(columns=columns).group_by("method", "statistic", "columns")
    return kept.agg(
        coverage=of("truth").is_between("lower", "upper").mean(),
        se_over_rmse=of("se").mean() / rmse,
        se_over_direct=(of("se") / of("se_direct")).mean(),
        replicates=of("seed").n_unique(),
    ).sort("statistic", "columns", "method")


if __name__ == "__main__":
    main()
