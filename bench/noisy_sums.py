"""Coverage of tables from noisy sums on repeated samples: the paper's simulation, and real files as populations.

    python bench/noisy_sums.py OUT --population paper|CPS1988|CPSSW8|apipop --records 1000 --epsilon 3 10.8

ε is for blanked answers; changed answers cost twice as much. Writes a CSV with a row for each ε, model, statistic and
class of cells: coverage, median length and RMSE over the sample's own, standard error over RMSE.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np
import polars as pl

import svysynth
from svysynth.mechanisms.noisy_sums.facts import facts_of
from svysynth.mechanisms.noisy_sums.fitting import cell_draws, tables_of
from svysynth.mechanisms.noisy_sums.measurement import measure
from svysynth.mechanisms.noisy_sums.planning import plan_measurement
from svysynth.mechanisms.noisy_sums.posterior import NoisyModel, statistics_of
from svysynth.noise import StudyNoise
from svysynth.sampler import fit_together
from svysynth.spec import BoundsSpec, EstimationSpec, TableSpec

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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--population", default="paper")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 10.8])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--models", nargs="+", default=["fbs"])
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--draws", type=int, default=1000)
    settings = parser.parse_args()
    generator = np.random.default_rng(7)
    if settings.population == "paper":
        population, bounds = paper_population(generator)
    else:
        population, bounds = real_population(settings.population, settings.folder, generator)
    total = float(len(population))
    tables = [TableSpec(by=("stratum", "group"))]
    mean_weight = total / settings.records
    limits = BoundsSpec(outcome=bounds, weight=(mean_weight / 20, mean_weight * 20))
    truth = truth_of(population)
    samples = [draw_sample(generator, population, settings.records) for _ in range(settings.replicates)]
    surveys = [
        svysynth.read_survey(
            sample, outcome="y", weight="w", strata="stratum", public=["stratum", "group"], population_total=total
        )
        for sample in samples
    ]
    direct = [svysynth.tabulate(survey, by=["stratum", "group"]) for survey in surveys]
    keys = [found.join(truth, on=["statistic", "stratum", "group"], how="left") for found in direct]
    true = keys[0]["truth"].to_numpy()
    kinds = class_of(direct[0])
    sample_rmse = rmse(direct, true)
    rows = summary("sample", None, direct, true, kinds, sample_rmse, None)
    sample_length = lengths(direct, true)
    for model in settings.models:
        for epsilon in settings.epsilon:
            start = time.time()
            found, passed = [], 0
            for first in range(0, len(surveys), settings.batch):
                part = surveys[first : first + settings.batch]
                frames, verdicts = run(part, model, epsilon, limits, tables, first, settings.draws)
                found += frames
                passed += sum(verdict.passed for verdict in verdicts)
            rows += summary(model, epsilon, found, true, kinds, sample_rmse, sample_length)
            print(
                f"{model} ε = {epsilon}: {passed} of {len(surveys)} passed, {time.time() - start:.0f} s",
                flush=True,
            )
            pl.DataFrame(rows).write_csv(settings.out)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=3):
        print(pl.DataFrame(rows))


def run(surveys, prior, epsilon, bounds, tables, first, draws):
    """The tables of a batch of samples, and what the diagnostics say of each fit."""
    facts = [facts_of(survey) for survey in surveys]
    x = facts[0].indicators()
    model = NoisyModel(prior, deviations=True, transform="log")
    measured = []
    for number, (survey, known) in enumerate(zip(surveys, facts, strict=True)):
        plan = plan_measurement(known, tables, 2 * epsilon)
        noise = StudyNoise(svysynth.Streams.seeded(1000 + first + number))
        measured.append(measure(survey, known, plan, bounds, "log", noise))
    statistics = [
        statistics_of(one, known.size, x, np.ones(x.shape[1])) for one, known in zip(measured, facts, strict=True)
    ]
    stacked = jax.tree.map(lambda *values: jax.numpy.stack(values), *statistics)
    keys = np.stack(
        [svysynth.Streams.seeded(first + number).key_data("posterior", 0) for number in range(len(surveys))]
    )
    drawn, verdicts = fit_together(model, stacked, keys, draws)
    drawn = {name: np.asarray(value) for name, value in drawn.items()}
    found = [
        tables_of(
            cell_draws({name: value[number] for name, value in drawn.items()}, one),
            one,
            known,
            tables,
            EstimationSpec(),
        )
        for number, (one, known) in enumerate(zip(measured, facts, strict=True))
    ]
    return found, verdicts


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


def summary(model, epsilon, frames, true, kinds, sample_rmse, sample_length):
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
            if chosen.any():
                rows.append(
                    {
                        "model": model,
                        "epsilon": epsilon,
                        "statistic": name,
                        "class": kind,
                        "coverage": float(covered[chosen].mean()),
                        "length": float(length[chosen].mean()),
                        "length_over_sample": None
                        if sample_length is None
                        else float((length / sample_length)[chosen].mean()),
                        "rmse_over_sample": float((error / sample_rmse)[chosen].mean()),
                        "se_over_rmse": float((se[chosen] / error[chosen]).mean()),
                    }
                )
    return rows


if __name__ == "__main__":
    main()
