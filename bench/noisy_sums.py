"""Measures coverage of tables from noisy sums on repeated samples of the paper's simulation or of real files.

    python bench/noisy_sums.py OUT --keep FOLDER --population paper|CPS1988|CPSSW8|apipop --records 1000 10000
        --methods fbs fbp "asymptotic fbs" "asymptotic fbp" laplace --epsilon 3 10.8 --replicates 200

ε is for answers that are blanked out or, with --protect record, for taking part in the survey; for changed answers or
records it is twice as large. Noise on the tables (laplace) has one ε for both, and is run with twice the ε given. The
program writes a CSV with a row for each sample size, method, ε, statistic and class of cells. The row has coverage,
median length and RMSE as ratios to the sample's own, standard error over RMSE, how many fits passed their diagnostics,
and in how many releases the private check of the model's shape had no objection. With --weight-public weights are
declared public, and ε is for the outcome alone. With --files there are further rows (kind: files) for the results that
a user gets from the given number of synthetic files by the rules of multiple imputation. Results are kept in the folder
--keep, and a run that was stopped continues from there.

A release has 1,000 draws, from chains that are continued until their diagnostics pass, in up to 24 rounds. For
thousands of samples --draws 250 --rounds 1 is enough to measure coverage, but tells little about diagnostics.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np
import polars as pl

import svysynth
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.whole import ModelSpec, Spec
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.base import Grid, mechanism_of
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey, prior_of
from svysynth.mechanisms.noisy_sums.posterior.fitting import MOST_ROUNDS, fit_measurement, tables_of

ASYMPTOTIC = {"asymptotic fbs": svysynth.FBS, "asymptotic fbp": svysynth.FBP}
CHUNK = 10
"""The number of replicates in one file of results."""
NUMBERS = dict.fromkeys(("estimate", "se", "lower", "upper"), pl.Float64)
NOTHING = pl.DataFrame(
    schema=NUMBERS
    | {"row": pl.Int64, "replicate": pl.Int32, "kind": pl.String, "passed": pl.Boolean, "fits": pl.Boolean}
)
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
    """The population of the paper's simulation: lognormal salaries, and size measures that are correlated with them."""
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
    """A real file as a population; size measures are correlated with the answers, as in the paper's simulation."""
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
    """Draw a stratified PPS sample with replacement, with proportional allocation."""
    parts = []
    for (_,), stratum in population.group_by("stratum", maintain_order=True):
        count = max(2, round(records * len(stratum) / len(population)))
        chance = stratum["size"].to_numpy() / stratum["size"].sum()
        chosen = generator.choice(len(stratum), count, p=chance)
        parts.append(stratum[chosen].with_columns(w=pl.Series(1 / (count * chance[chosen]))))
    return pl.concat(parts)


@dataclass(frozen=True)
class Study:
    """A population, how it is sampled, and what a user declares about it."""

    population: str
    folder: str
    records: int
    draws: int = 1000
    rounds: int = MOST_ROUNDS
    files: int = 0
    protect: str = "answers"
    weight_public: bool = False

    @cached_property
    def frame_and_bounds(self):
        generator = np.random.default_rng(7)
        if self.population == "paper":
            return paper_population(generator)
        return real_population(self.population, self.folder, generator)

    def survey(self, replicate):
        """One sample, read as a user would read it."""
        population, _ = self.frame_and_bounds
        sample = draw_sample(np.random.default_rng([7, replicate]), population, self.records)
        roles = {"outcome": "y", "weight": "w", "strata": "stratum", "public": ["stratum", "group"]}
        total = float(len(population))
        return svysynth.read_survey(sample, population_total=total, weight_public=self.weight_public, **roles)

    @property
    def bounds(self):
        """The public bounds: the outcome's as known beforehand, the weights' a factor of 20 around their mean."""
        population, outcome = self.frame_and_bounds
        mean_weight = len(population) / self.records
        return BoundsSpec(outcome=outcome, weight=(mean_weight / 20, mean_weight * 20))

    def one(self, case, epsilon, replicate):
        """The tables of one sample by one method; their column `kind` is "tables" or "files"."""
        survey, streams = self.survey(replicate), svysynth.Streams.seeded(1000 + replicate)
        if case == "sample":
            found = [("tables", True, True, svysynth.tabulate(survey, by=["stratum", "group"]))]
        elif case in ("fbs", "fbp"):
            found = self.noisy_sums(survey, case, epsilon, streams)
        else:
            found = [("tables", True, True, table) for table in self.beside(survey, case, epsilon, streams)]
        return [
            frame.select("estimate", "se", "lower", "upper", row=pl.int_range(pl.len())).with_columns(
                replicate=replicate, kind=pl.lit(kind), passed=passed, fits=fits
            )
            for kind, passed, fits, frame in found
        ]

    def noisy_sums(self, survey, model, epsilon, streams):
        """Tables made with the code of a release and, if `files` is set, the tables from synthetic files."""
        noise = StudyNoise(streams)
        measurement, facts = measure_survey(survey, self.protect, TABLES, self.bounds, "log", 2 * epsilon, noise)
        fitted = fit_measurement(
            measurement, facts, prior_of(model, ModelSpec()), None, self.draws, streams, self.rounds
        )
        fits = all(shape is None or shape.fits for shape in (fitted.outcome_shape, fitted.weight_shape))
        verdict = fitted.verdict.passed, fits
        found = [("tables", *verdict, tables_of(fitted.drawn, measurement, facts, TABLES, EstimationSpec()))]
        if self.files:
            known = FilePlan.of(self.draws, self.files, streams)
            make = FileMaker(fitted.drawn, measurement, facts, known.seed, "y", "stratum")
            imputed = Synthetic(tuple(map(make.survey, known.draws)), "imputed")
            found.append(("files", *verdict, imputed.tabulate_all(TABLES)))
        return found

    def beside(self, survey, case, epsilon, streams):
        """Tables by another mechanism: the asymptotic one, as released with three files, or noise on the tables.

        For a small ε there may be no weights α, or they leave too little information: the asymptotic mechanism then
        refuses, and there is no table.
        """
        if case in ASYMPTOTIC:
            try:
                calibrated = svysynth.calibrate(ASYMPTOTIC[case](), survey, epsilon, 3, streams=streams)
                return [calibrated.synthesize().tabulate_all(TABLES)]
            except svysynth.SurveyError:
                return []
        privacy = {"mechanism": case, "guarantee": "global", "epsilon": epsilon, "bounds": self.bounds.model_dump()}
        roles = {"data": "none", "outcome": "y", "weight": "w", "strata": "stratum", "public": ["stratum", "group"]}
        total = {"population_total": survey.population_total}
        tables = [table.model_dump() for table in TABLES]
        spec = Spec.model_validate({"survey": roles | total, "privacy": privacy, "tables": tables})
        tries = mechanism_of(spec.privacy).tries(
            survey, spec, case, Grid([2 * epsilon], [0], 1), streams, lambda _: None
        )
        return [tables for _, _, _, tables in tries]


def some(study, case, epsilon, replicates, path):
    """Run one method on some replicates, and keep the result in a file."""
    if not path.exists():
        frames = [frame for replicate in replicates for frame in study.one(case, epsilon, replicate)]
        part = path.with_suffix(".part")
        pl.concat([NOTHING, *frames]).write_parquet(part)
        part.rename(path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--keep", type=Path, required=True, help="a folder for results, from which a stopped run continues"
    )
    parser.add_argument("--population", default="paper")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--records", type=int, nargs="+", default=[1000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 10.8])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--methods", nargs="+", default=["fbs"])
    parser.add_argument("--asymptotic-epsilon", type=float, nargs="+", default=[3.0, 5.0, 10.8])
    parser.add_argument("--asymptotic-replicates", type=int, nargs="+", default=[20, 100, 1000], help="one for each ε")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=MOST_ROUNDS)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--protect", choices=["answers", "record"], default="answers")
    parser.add_argument("--weight-public", action="store_true")
    settings = parser.parse_args()
    settings.keep.mkdir(parents=True, exist_ok=True)
    further = settings.draws, settings.rounds, settings.files, settings.protect, settings.weight_public
    studies = {records: Study(settings.population, settings.folder, records, *further) for records in settings.records}
    cases = [(records, "sample", 0.0) for records in studies]
    fewer = dict(zip(settings.asymptotic_epsilon, settings.asymptotic_replicates, strict=True))
    for method in settings.methods:
        cases += product(studies, [method], fewer if method in ASYMPTOTIC else settings.epsilon)
    paths = {case: [] for case in cases}
    with ProcessPoolExecutor(settings.workers, get_context("spawn")) as pool:
        work = []
        for first in range(0, settings.replicates, CHUNK):
            replicates = range(first, min(first + CHUNK, settings.replicates))
            for case in cases:
                records, method, epsilon = case
                if method in ASYMPTOTIC and first >= fewer[epsilon]:
                    continue
                parts = settings.population, records, *map(str, further), method.replace(" ", "-"), epsilon, first
                path = settings.keep / ("_".join(map(str, parts)) + ".parquet")
                paths[case].append(path)
                work.append(pool.submit(some, studies[records], method, epsilon, replicates, path))
        for number, one in enumerate(as_completed(work), 1):
            one.result()
            print(f"{number} of {len(work)}", end="\r", file=sys.stderr, flush=True)
    rows = (summary(studies[case[0]], case, paths[case], paths[case[0], "sample", 0.0]) for case in cases)
    frame = pl.concat([one for some in rows for one in some])
    frame.write_csv(settings.out)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=3):
        print(frame)


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


def summary(study, case, paths, sample_paths):
    """Coverage, length and errors of one case, as means over each class of cells."""
    records, method, epsilon = case
    table = study.one("sample", 0.0, 0)[0]
    direct = svysynth.tabulate(study.survey(0), by=["stratum", "group"])
    truth = truth_of(study.frame_and_bounds[0])
    on = ["statistic", "stratum", "group"]
    rows = direct.join(truth, on=on, how="left", maintain_order="left").select("statistic", "truth")
    rows = rows.with_columns(row=table["row"], cells=pl.Series(class_of(direct)))
    sample = by_row(pl.read_parquet(sample_paths), rows).filter(pl.col("rmse") > 1e-9)
    sample = sample.select("row", sample_rmse="rmse", sample_length="length")
    found = pl.read_parquet(paths)
    frames = []
    for kind in found["kind"].unique(maintain_order=True):
        own = found.filter(pl.col("kind") == kind)
        each = by_row(own, rows).join(sample, on="row").filter(pl.col("se") > 0)
        of = pl.col
        classes = each.group_by("statistic", "cells").agg(
            of("coverage").mean(),
            of("length").mean(),
            (of("length") / of("sample_length")).mean().alias("length_over_sample"),
            (of("rmse") / of("sample_rmse")).mean().alias("rmse_over_sample"),
            (of("se") / of("rmse")).mean().alias("se_over_rmse"),
        )
        once = own.unique("replicate")
        head = {"population": study.population, "records": records, "method": method, "kind": kind, "epsilon": epsilon}
        numbers = {"replicates": len(once), "passed": once["passed"].sum(), "fit": once["fits"].sum()}
        columns = {name: pl.lit(value) for name, value in (head | numbers).items()}
        frames.append(
            classes.sort("statistic", "cells").with_columns(**columns).select(*head, *classes.columns, *numbers)
        )
    return frames


def by_row(found, rows):
    """Coverage, length and errors of each row of the tables, over replicates, relative to the truth."""
    found = found.join(rows, on="row", how="left")
    of, truth = pl.col, pl.col("truth")
    return found.group_by("row", "statistic", "cells").agg(
        coverage=((of("lower") <= truth) & (truth <= of("upper"))).mean(),
        length=((of("upper") - of("lower")) / truth).median(),
        rmse=((of("estimate") / truth - 1) ** 2).mean().sqrt(),
        se=((of("se") / truth) ** 2).mean().sqrt(),
    )


if __name__ == "__main__":
    main()
