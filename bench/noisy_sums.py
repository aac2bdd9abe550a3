"""Coverage of tables from noisy sums on repeated samples: the paper's simulation, and real files as populations.

    python bench/noisy_sums.py OUT --population paper|CPS1988|CPSSW8|apipop --records 1000 --epsilon 3 10.8 --files 10

On a GPU many measurements are fitted at once (--block); a release makes the same draws, up to rounding.

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
from functools import cached_property, partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import numpy as np
import polars as pl

import svysynth
from svysynth.combine import Synthetic
from svysynth.mechanisms.noisy_sums.files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.fitting import LABEL, describe, fitted_from, tables_of
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey
from svysynth.noise import StudyNoise
from svysynth.sampler import draw_from, fit_together, padded
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

    def direct(self, replicates):
        """The samples' own tables."""
        return [svysynth.tabulate(self.survey(replicate), by=["stratum", "group"]) for replicate in replicates]

    def measure(self, replicates, epsilon):
        """What is measured of each sample, and the public facts."""
        population, bounds = self.frame_and_bounds
        mean_weight = len(population) / self.records
        limits = BoundsSpec(outcome=bounds, weight=(mean_weight / 20, mean_weight * 20))
        settings = self.protect, TABLES, limits, "log", 2 * epsilon
        return [measure_survey(self.survey(one), *settings, StudyNoise(streams_of(one))) for one in replicates]

    def released(self, replicate, measurement, facts, drawn, verdict):
        """Released tables, whether diagnostics passed and shapes fit, and what synthetic files give."""
        streams = streams_of(replicate)
        fitted = fitted_from(drawn, verdict, measurement, facts, streams)
        fits = fitted.outcome_shape.fits and fitted.weight_shape.fits
        tables = tables_of(fitted.drawn, measurement, facts, TABLES, EstimationSpec())
        imputed = None
        if self.files:
            known = FilePlan.of(self.draws, self.files, streams)
            make = FileMaker(fitted.drawn, measurement, facts, known.seed, "y", "stratum")
            imputed = Synthetic(tuple(map(make.survey, known.draws)), "imputed").tabulate_all(TABLES)
        return tables, verdict.passed, fits, imputed


def streams_of(replicate):
    """Of one release."""
    return svysynth.Streams.seeded(1000 + replicate)


def release_some(study, model, epsilon, replicates):
    """The work of one process where fits are made one by one."""
    found = []
    for replicate, (measurement, facts) in zip(replicates, study.measure(replicates, epsilon), strict=True):
        form, statistics = describe(measurement, facts, model, None)
        drawn, verdict = draw_from(form, statistics, streams_of(replicate), study.draws, LABEL)
        found.append(study.released(replicate, measurement, facts, drawn, verdict))
    return found


def fit_blocks(pool, study, model, measured, block):
    """Fit all measurements, those of one shape together, and give each with what was drawn to the pool."""
    described = [describe(*one, model, None) for one in measured]
    shapes = {}
    for replicate, (form, statistics) in enumerate(described):
        leaves, tree = jax.tree.flatten(statistics)
        shapes.setdefault((form, tree, tuple(leaf.shape for leaf in leaves)), []).append(replicate)
    pending = {}
    for (form, *_), replicates in shapes.items():
        for first in range(0, len(replicates), block):
            own = replicates[first : first + block]
            chosen = [own[place] for place in padded(len(own), block)]
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(described[one][1] for one in chosen))
            keys = np.stack([streams_of(one).key_data(LABEL, 0) for one in chosen])
            drawn, verdicts = fit_together(form, stacked, keys, study.draws)
            drawn = {name: np.asarray(value) for name, value in drawn.items()}
            for place, one in enumerate(own):
                part = {name: value[place] for name, value in drawn.items()}
                pending[one] = pool.submit(study.released, one, *measured[one], part, verdicts[place])
    return [pending[replicate].result() for replicate in range(len(measured))]


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
    parser.add_argument("--block", type=int, default=0, help="fits at once, on a GPU; 0: one by one")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--protect", choices=["answers", "record"], default="answers")
    settings = parser.parse_args()
    further = settings.draws, settings.files, settings.protect
    study = Study(settings.population, settings.folder, settings.records, *further)
    shares = np.array_split(np.arange(settings.replicates), settings.workers)
    rows = []
    with ProcessPoolExecutor(settings.workers, get_context("spawn"), processor_alone) as pool:
        frames = [one for part in pool.map(study.direct, shares) for one in part]
        keys = frames[0].join(
            truth_of(study.frame_and_bounds[0]),
            on=["statistic", "stratum", "group"],
            how="left",
            maintain_order="left",
        )
        true, kinds = keys["truth"].to_numpy(), class_of(frames[0])
        sample = rmse(frames, true), lengths(frames, true)
        rows += summary("sample", None, frames, true, kinds, *sample, len(frames), len(frames))
        for epsilon in settings.epsilon:
            for model in settings.models:
                if settings.block:
                    measured = [one for part in pool.map(study.measure, shares, repeat(epsilon)) for one in part]
                    found = fit_blocks(pool, study, model, measured, settings.block)
                else:
                    parts = pool.map(partial(release_some, study, model, epsilon), shares)
                    found = [one for part in parts for one in part]
                frames, passed, fits, imputed = ([one[place] for one in found] for place in range(4))
                rows += summary(model, epsilon, frames, true, kinds, *sample, sum(passed), sum(fits))
                if imputed[0] is not None:
                    name = f"{model}, {settings.files} files"
                    rows += summary(name, epsilon, imputed, true, kinds, *sample, sum(passed), sum(fits))
                print(f"{model} ε = {epsilon}: {sum(passed)} of {len(found)} passed, {sum(fits)} fit", flush=True)
                pl.DataFrame(rows, infer_schema_length=None).write_csv(settings.out)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=3):
        print(pl.DataFrame(rows, infer_schema_length=None))


def processor_alone():
    """Workers leave the GPU to the fits."""
    jax.config.update("jax_platforms", "cpu")


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
