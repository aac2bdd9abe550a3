"""Measures coverage of regression coefficients from the synthetic files of noisy sums, on repeated samples.

    python bench/regressions.py OUT --keep FOLDER --records 2000 --epsilon 5 --replicates 60 --files 10

Samples are those of bench/noisy_sums.py; ε is for answers that are blanked out. Each sample gets one release for each
of the formulas of --model ("none" for the model without a formula), and every regression is fitted to its files. The
truth is the same regression of the population. The program writes a CSV with a row for each model, regression and class
of coefficients (main effects and interactions): coverage of 95% intervals, length and RMSE as ratios to those of the
sample's own regression, standard error over RMSE, and the slope of the estimates on the true coefficients, which is
below 1 where they are drawn towards zero.
"""

import argparse
from functools import cache
from itertools import product

import polars as pl

import svysynth
from noisy_sums import TABLES, Study
from repeated_samples import add_options, run, write
from svysynth.core.spec.whole import ModelSpec
from svysynth.estimation.combined_regression import regression_of_files
from svysynth.estimation.combining import Synthetic
from svysynth.estimation.regression import regression_of
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey, prior_of
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement

THRESHOLDS = {"paper": 120_000, "apipop": 650, "CPS1988": 500}
"""Near the median of each population."""
CHUNK = 10


class Regressions(Study):
    """Repeated samples, and the regressions of one release of each."""

    def one(self, case, epsilon, replicate):
        """The coefficients of the sample itself, or of the files of its release by a model with the formula `case`."""
        survey, streams = self.survey(replicate), svysynth.Streams.seeded(1000 + replicate)
        if case == "sample":
            found = [regression_of(survey, *regression).table for regression in self.regressions]
            return self.tidy(found, replicate, True)
        formula = None if case == "none" else case
        noise = StudyNoise(streams)
        measurement, facts = measure_survey(survey, "answers", TABLES, self.bounds, "log", 2 * epsilon, noise)
        model = ModelSpec(formula=formula)
        own = self.draws, streams, self.rounds
        fitted = fit_measurement(measurement, facts, prior_of("fbs", model), formula, *own)
        known = FilePlan.of(self.draws, self.files, streams)
        make = FileMaker(fitted.drawn, measurement, facts, known.seed, "y", survey.design.strata)
        files = Synthetic(tuple(map(make.survey, known.draws)), "imputed")
        found = [regression_of_files(files, *regression).regression.table for regression in self.regressions]
        return self.tidy(found, replicate, fitted.verdict.passed)

    @property
    def regressions(self):
        """The formula and the family of each regression."""
        linear = ("y ~ stratum + group", "y ~ stratum * group", "log(y) ~ stratum + group")
        logistic = f"y > {THRESHOLDS[self.population]} ~ stratum + group"
        return (*((formula, "linear") for formula in linear), (logistic, "logistic"))

    def tidy(self, tables, replicate, passed):
        """The coefficients of all regressions of one sample."""
        return [
            table.with_columns(replicate=replicate, regression=pl.lit(text), passed=passed)
            for table, (text, _) in zip(tables, self.regressions, strict=True)
        ]


def some(study, case, epsilon, replicates, path):
    """Run some replicates, and keep the result in a file."""
    if not path.exists():
        frames = [frame for replicate in replicates for frame in study.one(case, epsilon, replicate)]
        part = path.with_suffix(".part")
        pl.concat(frames).write_parquet(part)
        part.rename(path)


@cache
def truth_of(study):
    """The regressions of the population."""
    population, _ = study.frame_and_bounds
    census = population.with_columns(w=pl.lit(1.0))
    roles = {"outcome": "y", "weight": "w", "public": ["stratum", "group"]}
    survey = svysynth.read_survey(census, population_total=float(len(census)), **roles)
    tables = [regression_of(survey, *regression).table for regression in study.regressions]
    return pl.concat([frame.select("regression", "term", truth="estimate") for frame in study.tidy(tables, 0, True)])


def summary(study, case, epsilon, found, sample):
    """Coverage, length and errors of one model, as means over each class of coefficients."""
    of, on = pl.col, ["regression", "term"]
    each = by_coefficient(found.join(truth_of(study), on=on, maintain_order="left"))
    beside = by_coefficient(sample.join(truth_of(study), on=on, maintain_order="left"))
    both = each.join(beside, on=on, suffix="_sample", maintain_order="left")
    kinds = pl.when(of("term") == "Intercept").then(pl.lit("intercept"))
    kinds = kinds.when(of("term").str.contains(":")).then(pl.lit("interactions"))
    kinds = kinds.when(of("term").str.starts_with("group")).then(pl.lit("group")).otherwise(pl.lit("stratum"))
    return both.group_by("regression", kinds.alias("coefficients"), maintain_order=True).agg(
        population=pl.lit(study.population),
        model=pl.lit(case),
        epsilon=pl.lit(epsilon),
        replicates=pl.lit(found["replicate"].n_unique()),
        coverage=of("coverage").mean(),
        least_coverage=of("coverage").min(),
        coverage_of_sample=of("coverage_sample").mean(),
        length_over_sample=(of("length") / of("length_sample")).mean(),
        rmse_over_sample=(of("rmse") / of("rmse_sample")).mean(),
        se_over_rmse=(of("se") / of("rmse")).mean(),
        slope=(of("estimate") * of("truth")).sum() / (of("truth") ** 2).sum(),
    )


def by_coefficient(found):
    """The figures of each coefficient over replicates."""
    of, truth = pl.col, pl.col("truth")
    return found.group_by("regression", "term", maintain_order=True).agg(
        truth=truth.first(),
        estimate=of("estimate").mean(),
        coverage=((of("lower") <= truth) & (truth <= of("upper"))).mean(),
        length=(of("upper") - of("lower")).median(),
        rmse=((of("estimate") - truth) ** 2).mean().sqrt(),
        se=(of("se") ** 2).mean().sqrt(),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, replicates=60, methods=["fbs"], draws=400, rounds=1)
    parser.add_argument("--population", choices=list(THRESHOLDS), default="paper")
    parser.add_argument("--folder", default=".", help="where the CSV file of a real population is")
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[5.0])
    parser.add_argument("--model", nargs="+", default=["none"], help="formulas of the model; none for main effects")
    settings = parser.parse_args()
    settings.keep.mkdir(parents=True, exist_ok=True)
    study = Regressions(
        settings.population, settings.folder, settings.records, settings.draws, settings.rounds, settings.files or 10
    )
    cases = [("sample", 0.0), *product(settings.model, settings.epsilon)]
    paths, jobs = {case: [] for case in cases}, []
    for first, case in product(range(0, settings.replicates, CHUNK), cases):
        parts = (
            settings.population,
            settings.records,
            settings.draws,
            study.files,
            case[0].replace(" ", ""),
            case[1],
            first,
        )
        path = settings.keep / ("_".join(map(str, parts)) + ".parquet")
        paths[case].append(path)
        jobs.append((study, *case, range(first, min(first + CHUNK, settings.replicates)), path))
    run(jobs, settings.workers, some)
    kept = {case: pl.read_parquet(own) for case, own in paths.items()}
    write([summary(study, *case, kept[case], kept[cases[0]]) for case in cases], settings.out)


if __name__ == "__main__":
    main()
