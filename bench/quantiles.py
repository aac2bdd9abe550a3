"""Coverage of intervals for quantiles and for shares above a threshold, in the paper's simulation.

    python bench/quantiles.py --runs 64

Writes bench/results/quantiles.csv, from which docs/estimation.md takes its numbers: direct tables, and tables from the
synthetic files of three mechanisms, of samples of 1,000 records from a population of 100,000, by field and gender. `se`
is the mean standard error over the root mean square error. `log` is the coverage of intervals that are symmetric on the
logarithmic scale. `missing` is the share of figures without an interval; they count neither for coverage nor for `se`.
"""

import argparse
from pathlib import Path

import numpy as np
import polars as pl

import svysynth
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.whole import parse_spec
from svysynth.core.streams import Streams
from svysynth.estimation.intervals import quantile
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.base import mechanism_of
from svysynth.privacy.release import NotCharged

STATISTICS = ("quantile(0.1)", "median", "quantile(0.9)", "share(> 100000)")
TABLE = TableSpec(by=("field", "gender"), statistics=STATISTICS)
SPEC = """
[survey]
data = "nowhere.csv"
outcome = "salary"
weight = "weight"
strata = "field"
public = ["field", "gender"]
population_total = 100000

[privacy]
mechanism = "{}"
guarantee = "{}"
epsilon = {}
datasets = {}
bounds = {{ outcome = [5000.0, 1000000.0], weight = [1.0, 3000.0] }}
"""
RELEASES = {
    "`fbs`, asymptotic, ε = 10.8, m = 3": ("fbs", "asymptotic", 10.8, 3),
    "`fbp`, asymptotic, ε = 10.8, m = 3": ("fbp", "asymptotic", 10.8, 3),
    "files of `fbs`, global, ε = 5, m = 10": ("fbs", "global", 5.0, 10),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--out", default=Path(__file__).parent / "results" / "quantiles.csv")
    chosen = parser.parse_args()
    population = make_population(Streams.seeded(1))
    truth = truth_of(population)
    found = [
        table.with_columns(method=pl.lit(method))
        for index in range(chosen.runs)
        for method, table in tables_of_sample(population, index)
    ]
    found = pl.concat(found).join(truth, on=["statistic", "field", "gender"])
    summary(found).write_csv(chosen.out)


def truth_of(population):
    """The figures of the population: a survey of everybody."""
    frame = pl.DataFrame(
        {
            "field": population.field + 1,
            "gender": np.array(["Male", "Female"])[population.gender],
            "salary": population.salary,
            "weight": np.ones(len(population.field)),
        }
    )
    whole = svysynth.read_survey(frame, outcome="salary", weight="weight", public=["field", "gender"])
    found = svysynth.tabulate_all(whole, [TABLE])
    return found.select("statistic", "field", "gender", pl.col("estimate").alias("truth"))


def tables_of_sample(population, index):
    survey = draw_sample(population, Streams.seeded(2), index)
    yield from by_interval("sample, direct", lambda *asked: svysynth.tabulate_all(survey, *asked))
    for method, (mechanism, guarantee, epsilon, datasets) in RELEASES.items():
        spec = parse_spec(SPEC.format(mechanism, guarantee, epsilon, datasets))
        streams = Streams.seeded(1000 + index)
        try:
            made = mechanism_of(spec.privacy).run(survey, spec, lambda _: NotCharged(), streams, lambda _: None)
        except svysynth.SurveyError:  # a sample that is refused is left out
            continue
        yield from by_interval(method, made.synthetic.tabulate_all)


def by_interval(method, tabulate):
    columns = ["statistic", "field", "gender", "estimate", "se", "df", "lower", "upper"]
    for interval in ("mean", "xlogit"):
        table = tabulate([TABLE], EstimationSpec(quantile_interval=interval)).select(columns)
        yield f"{method}, `{interval}`", table.cast({"df": pl.Float64})


def summary(found):
    """Coverage by tables, statistic and level: 0 for the total, 1 for fields and genders, 2 for their cells."""
    level = pl.sum_horizontal((pl.col("field") != "All").cast(int), (pl.col("gender") != "All").cast(int))
    found = found.with_columns(
        level=level,
        covered=pl.col("truth").is_between("lower", "upper"),
        half=pl.Series(quantile(found["df"].to_numpy(), 0.95)) * pl.col("se") / pl.col("estimate"),
        apart=(pl.col("truth") / pl.col("estimate")).log().abs(),
        off=pl.col("estimate") - pl.col("truth"),
    )
    measures = {
        "coverage": pl.col("covered").mean(),
        "log": (pl.col("apart") <= pl.col("half")).mean(),
        "se": pl.col("se").mean() / (pl.col("off").filter(pl.col("se").is_not_null()) ** 2).mean().sqrt(),
        "bias": (pl.col("estimate") / pl.col("truth")).mean() - 1,
        "missing": pl.col("lower").is_null().mean(),
        "figures": pl.len(),
    }
    groups = found.group_by("method", "statistic", "level", maintain_order=True)
    return groups.agg(**measures).with_columns(pl.selectors.float().round(4))


if __name__ == "__main__":
    main()
