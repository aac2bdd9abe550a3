"""Coverage of tables from noisy sums on repeated samples: the paper's simulation, and real files as populations.

    python bench/noisy_sums.py OUT --population paper|CPS1988|CPSSW8|apipop --records 1000 --epsilon 3 10.8 --files 10

ε is for blanked answers, or with --protect record for taking part; changed ones cost twice as much. Writes a CSV with a
row for each ε, model, statistic and class of cells: coverage, median length and RMSE over the sample's own, standard
error over RMSE, how many fits passed their diagnostics, and in how many the private check of the model's shape had no
objection. With --files there are further rows for what a user gets from so many synthetic files by the rules of
multiple imputation.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np
import polars as pl

import svysynth
from svysynth.combine import Synthetic
from svysynth.mechanisms.noisy_sums.files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.fitting import fit_measurement, tables_of
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey
from svysynth.noise import StudyNoise
from svysynth.spec import BoundsSpec, EstimationSpec, TableSpec

TABLES = [TableSpec(by=("stratum", "group"))]
POP = [
    [14599, 13364],
    [1951, 783],
    [2918, 1117],
    [12381, 5728],
    [3861, 7336],
    [6433, 6409],
    [14358, 3773],
    [2033, 2956],
]
SALARY = [
    [121125, 99226],
    [146916, 125358],
    [118338, 105081],
    [122601, 100618],
    [120531, 98060],
    [122676, 97595],
    [136370, 116566],
    [137349, 106388],
]


def paper_population(generator):
    """The paper's simulation: lognormal salaries, inclusion probabilities that go with them."""
    rows = [
        pl.DataFrame({"stratum": [f"f{i}"] * n, "group": [f"g{j}"] * n, "mean": [float(SALARY[i][j])] * n})
        for i in range(8)
        for j, n in enumerate(POP[i])
    ]
    frame = pl.concat(rows)
    y = np.exp(np.log(frame["mean"].to_numpy()) - 0.08 + 0.4 * generator.standard_normal(len(frame)))
    size = y * np.exp(0.4 * generator.standard_normal(len(frame)))
    return frame.select("stratum", "group").with_columns(y=pl.Series(y), size=pl.Series(size)), (1e4, 1e6)


def real_population(name, folder, generator):
    """A real file as a population; sizes go with the answers as in the paper's simulation."""
    frame = pl.read_csv(Path(folder) / f"{name}.csv", infer_schema_length=None)
    if name == "CPS1988":
        frame = frame.select(stratum=pl.col("region"), group=pl.col("ethnicity"), y=pl.col("wage"))
        bounds = (20.0, 20_000.0)
    elif name == "CPSSW8":
        frame = frame.select(stratum=pl.col("region"), group=pl.col("gender"), y=pl.col("earnings"))
        bounds = (1.0, 200.0)
    else:
        frame = frame.select(stratum=pl.col("stype"), group=pl.col("sch.wide"), y=pl.col("api00"))
        bounds = (200.0, 1000.0)
    y = frame["y"].to_numpy().astype(float)
    size = y * np.exp(0.4 * generator.standard_normal(len(y)))
    return frame.with_columns(y=pl.Series(y), size=pl.Series(size)), bounds


def draw_sample(generator, population, records):
    """Stratified, with replacement, with probabilities in proportion to size; proportional allocation."""
    parts = []
    for (_,), stratum in population.group_by("stratum", maintain_order=True):
        count = max(2, round(records * len(stratum) / len(population)))
        chance = stratum["size"].to_numpy() / stratum["size"].sum()
        chosen = generator.choice(len(stratum), count, p=chance)
        parts.append(stratum[chosen].with_columns(w=pl.Series(1 / (count * chance[chosen]))))
    return pl.concat(parts)


@dataclass(frozen=True)
class Study:
    """A population, how it is sampled, and what a user declares of it."""

    population: str
    folder: str
    records: int
    draws: int = 1000
    files: int = 0
    protect: str = "answers"

    @cached_property
    def frame_and_bounds(self):
        generator = np.random.default_rng(7)
        if self.population == "paper":
            return paper_population(generator)
        return real_population(self.population, self.folder, generator)

    def survey(self, replicate):
        """One sample, read as a user would."""
        population, _ = self.frame_and_bounds
        sample = draw_sample(np.random.default_rng([7, replicate]), population, self.records)
        roles = {"outcome": "y", "weight": "w", "strata": "stratum", "public": ["stratum", "group"]}
        return svysynth.read_survey(sample, population_total=float(len(population)), **roles)

    def one(self, replicate, model, epsilon):
        """Direct or released tables, whether diagnostics passed and shapes fit, and what synthetic files give."""
        survey = self.survey(replicate)
        direct = svysynth.tabulate(survey, by=["stratum", "group"])
        if model == "sample":
            return replicate, direct, True, True, None
        population, bounds = self.frame_and_bounds
        mean_weight = len(population) / self.records
        limits = BoundsSpec(outcome=bounds, weight=(mean_weight / 20, mean_weight * 20))
        streams = svysynth.Streams.seeded(1000 + replicate)
        noise = StudyNoise(streams)
        measurement, facts = measure_survey(survey, self.protect, TABLES, limits, "log", 2 * epsilon, noise)
        fitted = fit_measurement(measurement, facts, model, None, self.draws, streams)
        fits = fitted.outcome_shape.fits and fitted.weight_shape.fits
        tables = tables_of(fitted.drawn, measurement, facts, TABLES, EstimationSpec())
        imputed = None
        if self.files:
            known = FilePlan.of(self.draws, self.files, streams)
            make = FileMaker(fitted.drawn, measurement, facts, known.seed, "y", "stratum")
            imputed = Synthetic(tuple(map(make.survey, known.draws)), "imputed").tabulate_all(TABLES)
        return replicate, tables, fitted.verdict.passed, fits, imputed


def some(study, model, epsilon, replicates):
    """The work of one process."""
    return [study.one(replicate, model, epsilon) for replicate in replicates]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--population", default="paper")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 10.8])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--models", nargs="+", default=["fbs"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--protect", choices=["answers", "record"], default="answers")
    settings = parser.parse_args()
    further = settings.draws, settings.files, settings.protect
    study = Study(settings.population, settings.folder, settings.records, *further)
    shares = [range(first, settings.replicates, settings.workers) for first in range(settings.workers)]
    cases = [("sample", None), *((model, epsilon) for model in settings.models for epsilon in settings.epsilon)]
    rows = []
    with ProcessPoolExecutor(settings.workers, get_context("spawn")) as pool:
        work = {case: [pool.submit(some, study, *case, share) for share in shares] for case in cases}
        for (model, epsilon), pending in work.items():
            found = sorted((one for part in pending for one in part.result()), key=lambda one: one[0])
            frames, passed, fits, imputed = ([one[place] for one in found] for place in (1, 2, 3, 4))
            if model == "sample":
                keys = frames[0].join(
                    truth_of(study.frame_and_bounds[0]),
                    on=["statistic", "stratum", "group"],
                    how="left",
                    maintain_order="left",
                )
                true = keys["truth"].to_numpy()
                kinds, sample = class_of(frames[0]), (rmse(frames, true), lengths(frames, true))
            rows += summary(model, epsilon, frames, true, kinds, *sample, sum(passed), sum(fits))
            if imputed[0] is not None:
                name = f"{model}, {settings.files} files"
                rows += summary(name, epsilon, imputed, true, kinds, *sample, sum(passed), sum(fits))
            print(f"{model} ε = {epsilon}: {sum(passed)} of {len(found)} passed, {sum(fits)} fit", flush=True)
            pl.DataFrame(rows, infer_schema_length=None).write_csv(settings.out)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=3):
        print(pl.DataFrame(rows, infer_schema_length=None))


def truth_of(population):
    frames = []
    for keep in ([], ["stratum"], ["group"], ["stratum", "group"]):
        found = (
            population.group_by(keep).agg(count=pl.len(), mean=pl.col("y").mean())
            if keep
            else population.select(count=pl.len(), mean=pl.col("y").mean())
        )
        for column in ("stratum", "group"):
            if column not in keep:
                found = found.with_columns(pl.lit("All").alias(column))
        frames.append(
            found.with_columns(pl.col("count").cast(pl.Float64)).unpivot(
                on=["count", "mean"], index=["stratum", "group"], variable_name="statistic", value_name="truth"
            )
        )
    return pl.concat(frames)


def class_of(table):
    stratum, group = (table[column] != "All" for column in ("stratum", "group"))
    return np.where(stratum & group, "inner", np.where(stratum, "field", np.where(group, "group", "total")))


def rmse(frames, true):
    return np.sqrt(np.mean([(frame["estimate"].to_numpy() / true - 1) ** 2 for frame in frames], axis=0))


def lengths(frames, true):
    return np.median([(frame["upper"] - frame["lower"]).to_numpy() / true for frame in frames], axis=0)


def summary(model, epsilon, frames, true, kinds, sample_rmse, sample_length, passed, fits):
    covered = np.mean(
        [((frame["lower"].to_numpy() <= true) & (true <= frame["upper"].to_numpy())) for frame in frames], axis=0
    )
    error = rmse(frames, true)
    se = np.sqrt(np.mean([(frame["se"].to_numpy() / true) ** 2 for frame in frames], axis=0))
    length = lengths(frames, true)
    statistic = frames[0]["statistic"].to_numpy()
    rows = []
    for name in ("count", "mean"):
        for kind in ("field", "group", "inner", "total"):
            chosen = (statistic == name) & (kinds == kind) & (sample_rmse > 1e-9)
            if chosen.any() and se[chosen].any():  # the population total is known, and has no error
                rows.append(
                    {
                        "model": model,
                        "epsilon": epsilon,
                        "statistic": name,
                        "class": kind,
                        "coverage": float(covered[chosen].mean()),
                        "length": float(length[chosen].mean()),
                        "length_over_sample": float((length / sample_length)[chosen].mean()),
                        "rmse_over_sample": float((error / sample_rmse)[chosen].mean()),
                        "se_over_rmse": float((se[chosen] / error[chosen]).mean()) if error[chosen].any() else None,
                        "replicates": len(frames),
                        "passed": passed,
                        "fit": fits,
                    }
                )
    return rows


if __name__ == "__main__":
    main()
