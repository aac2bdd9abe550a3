"""Measures standard errors and coverage of tables from files of the asymptotic mechanism, on repeated samples.

    python bench/standard_errors.py OUT --replicates 300 --models fbs fbp

Samples are from the paper's simulation, by default with 1,000 records, ε = 10.8 and three files. Every sample is
calibrated once. Its draws are used with and without the bias correction for the weights α, and its tables are made with
both settings of `standard_errors`. The program writes a CSV with a row for each of these combinations, statistic and
class of cells. The row has coverage and median length of 95% intervals, the ratio of RMSE to the sample's own, and the
ratio of the standard error (root mean square, and median) to RMSE. Replicates are kept in a folder beside OUT until all
are made.
"""

import argparse
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

import svysynth
from svysynth.evaluation.paper.simulation import GENDERS, draw_sample, make_population
from svysynth.evaluation.paper.workers import load_replicates, run_replicates

STATISTICS = ("count", "mean", "total")
MODELS = {"fbs": svysynth.FBS, "fbp": svysynth.FBP}
KINDS = ("full", "paper")
ROOT = svysynth.Streams.seeded(2024)
FRESH = 60
"""The number of replicates after which processes are restarted, because JAX keeps everything that it compiles."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--epsilon", type=float, default=10.8)
    parser.add_argument("--datasets", type=int, default=3)
    parser.add_argument("--replicates", type=int, default=300)
    parser.add_argument("--workers", type=int, default=1)
    settings = parser.parse_args()
    population, rows = make_population(ROOT), []
    first = svysynth.tabulate(draw_sample(population, ROOT), ["field", "gender"], STATISTICS)
    truth, kinds, statistic = truth_of(population, first), class_of(first), first["statistic"].to_numpy()
    for model in settings.models:
        name = f"{model}-{settings.records}-{settings.epsilon:g}-{settings.datasets}"
        folder = settings.out.with_name(name)
        task = partial(replicate, model, settings.records, settings.epsilon, settings.datasets)
        for done in range(FRESH, settings.replicates + FRESH, FRESH):
            run_replicates(task, range(min(done, settings.replicates)), folder, settings.workers, say)
        found = load_replicates(folder, range(settings.replicates))
        kept = [one for one in found if len(one) > 1]
        print(f"{model}: {len(found) - len(kept)} of {len(found)} samples were refused", flush=True)
        own = np.stack([one["sample"] for one in kept])
        sample_rmse = rmse(own, truth)
        for key in [key for key in kept[0] if key != "sample" or model == settings.models[0]]:
            tables = np.stack([one[key] for one in kept])
            rows += summary(key if key == "sample" else f"{model} {key}", tables, truth, statistic, kinds, sample_rmse)
        shutil.rmtree(folder)
    pl.DataFrame(rows).write_csv(settings.out)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=3):
        print(pl.DataFrame(rows))


def replicate(model, records, epsilon, datasets, index):
    """Estimate, standard error and limits of every figure, for the sample and for each kind of table."""
    survey = draw_sample(make_population(ROOT), ROOT, index, records)
    found = {"sample": numbers(svysynth.tabulate(survey, ["field", "gender"], STATISTICS))}
    try:
        streams = svysynth.Streams.seeded(index)
        calibrated = svysynth.calibrate(MODELS[model](), survey, epsilon, datasets, streams=streams)
    except svysynth.SurveyError:
        return found
    for correction in (True, False):
        synthetic = calibrated.synthesize(correction=correction)
        for kind in KINDS:
            estimation = svysynth.EstimationSpec(standard_errors=kind)
            table = synthetic.tabulate(["field", "gender"], STATISTICS, estimation)
            found[f"{'corrected' if correction else 'uncorrected'} {kind}"] = numbers(table)
    return found


def numbers(table):
    return table.select("estimate", "se", "lower", "upper").cast(pl.Float64).to_numpy()


def say(done, total):
    if done % 25 == 0:
        print(f"{done} of {total}", flush=True)


def truth_of(population, table):
    """The population's true figure for every row of a table."""
    found = []
    for row in table.iter_rows(named=True):
        chosen = np.ones(len(population.field), bool)
        if row["field"] != "All":
            chosen &= population.field == int(row["field"]) - 1
        if row["gender"] != "All":
            chosen &= population.gender == GENDERS.index(row["gender"])
        salary = population.salary[chosen]
        found.append({"count": len(salary), "mean": salary.mean(), "total": salary.sum()}[row["statistic"]])
    return np.array(found, dtype=float)


def class_of(table):
    field, gender = (table[column] != "All" for column in ("field", "gender"))
    return np.where(field & gender, "inner", np.where(field, "field", np.where(gender, "gender", "whole")))


def rmse(tables, truth):
    return np.sqrt(np.mean((tables[..., 0] / truth - 1) ** 2, axis=0))


def summary(name, tables, truth, statistic, kinds, sample_rmse):
    error = rmse(tables, truth)
    se, lower, upper = np.moveaxis(tables[..., 1:], -1, 0)
    # published weights are rounded, so their sum may differ slightly from the population total
    covered = ((lower <= truth * (1 + 1e-7)) & (truth * (1 - 1e-7) <= upper)).mean(axis=0)
    length = np.median((upper - lower) / truth, axis=0)
    typical, middle = np.sqrt(np.mean((se / truth) ** 2, axis=0)), np.median(se / truth, axis=0)
    rows = []
    for one in STATISTICS:
        for kind in ("field", "inner", "gender", "whole"):
            chosen = (statistic == one) & (kinds == kind)
            known = error[chosen].min() > 1e-6  # the count of the whole file is exact
            rows.append(
                {
                    "tables": name,
                    "statistic": one,
                    "class": kind,
                    "samples": len(tables),
                    "coverage": covered[chosen].mean(),
                    "length": length[chosen].mean(),
                    "rmse_over_sample": (error / sample_rmse)[chosen].mean(),
                    "se_over_rmse": (typical[chosen] / error[chosen]).mean() if known else None,
                    "median_se_over_rmse": (middle[chosen] / error[chosen]).mean() if known else None,
                }
            )
    return [{key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} for row in rows]


if __name__ == "__main__":
    main()
