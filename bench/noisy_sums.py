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
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

import svysynth
from repeated_samples import add_options, bounds_around, by_class, figures, noisy_sums, run, write
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.whole import Spec
from svysynth.mechanisms.base import Grid, mechanism_of
from svysynth.mechanisms.noisy_sums.posterior.fitting import MOST_ROUNDS

ASYMPTOTIC = {"asymptotic fbs": svysynth.FBS, "asymptotic fbp": svysynth.FBP}
CHUNK = 10
"""The number of replicates in one file of results."""
COLUMNS = {
    "coverage": "coverage",
    "length": "length",
    "length_over_direct": "length_over_sample",
    "rmse_over_direct": "rmse_over_sample",
    "se_over_rmse": "se_over_rmse",
}
"""The columns of the results, as `by_class` and as this program name them."""
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
        """The public bounds of outcome and weight."""
        population, outcome = self.frame_and_bounds
        return bounds_around(outcome, len(population), self.records)

    def one(self, case, epsilon, replicate):
        """The tables of one sample by one method; their column `kind` is "tables" or "files"."""
        survey, streams = self.survey(replicate), svysynth.Streams.seeded(1000 + replicate)
        if case == "sample":
            found = [("tables", True, True, svysynth.tabulate(survey, by=["stratum", "group"]))]
        elif case in ("fbs", "fbp"):
            found = noisy_sums(self, survey, case, TABLES, self.bounds, epsilon, streams, self.protect)
        else:
            found = [("tables", True, True, table) for table in self.beside(survey, case, epsilon, streams)]
        return figures(replicate, found)

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, replicates=200, methods=["fbs"], draws=1000, rounds=MOST_ROUNDS)
    parser.add_argument("--population", default="paper")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--records", type=int, nargs="+", default=[1000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 10.8])
    parser.add_argument("--asymptotic-epsilon", type=float, nargs="+", default=[3.0, 5.0, 10.8])
    parser.add_argument("--asymptotic-replicates", type=int, nargs="+", default=[20, 100, 1000], help="one for each ε")
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
    paths, jobs = {case: [] for case in cases}, []
    for first, case in product(range(0, settings.replicates, CHUNK), cases):
        records, method, epsilon = case
        if method in ASYMPTOTIC and first >= fewer[epsilon]:
            continue
        parts = settings.population, records, *map(str, further), method.replace(" ", "-"), epsilon, first
        path = settings.keep / ("_".join(map(str, parts)) + ".parquet")
        replicates = range(first, min(first + CHUNK, settings.replicates))
        paths[case].append(path)
        jobs.append((studies[records], method, epsilon, replicates, path))
    run(jobs, settings.workers)
    rows = (summary(studies[case[0]], case, paths[case], paths[case[0], "sample", 0.0]) for case in cases)
    write([one for some in rows for one in some], settings.out)


def truth_of(population):
    frames = []
    for keep in ([], ["stratum"], ["group"], ["stratum", "group"]):
        found = (
            population.group_by(keep, maintain_order=True).agg(count=pl.len(), mean=pl.col("y").mean())
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
    head = {"population": study.population, "records": records, "method": method, "kind": "", "epsilon": epsilon}
    found, sample = pl.read_parquet(paths), pl.read_parquet(sample_paths)
    return [frame.rename(COLUMNS) for frame in by_class(found, rows, sample, pl.Expr.median, head, tuple(COLUMNS))]


if __name__ == "__main__":
    main()
