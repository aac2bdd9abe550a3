"""Coverage on repeated samples: what bench/noisy_sums.py and bench/clusters.py share.

A study draws samples from a population; `study.one(method, epsilon, replicate)` gives the tables of one sample by one
method. The tables of some replicates are kept in one file, so that a run that was stopped continues. `by_class` then
compares the tables of all replicates with the truth.
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import polars as pl

from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.whole import ModelSpec
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey, prior_of
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of

NUMBERS = dict.fromkeys(("estimate", "se", "lower", "upper"), pl.Float64)
NOTHING = pl.DataFrame(
    schema=NUMBERS
    | {"row": pl.Int64, "replicate": pl.Int32, "kind": pl.String, "passed": pl.Boolean, "fits": pl.Boolean}
)


# --- options, and what is kept ---


def add_options(parser, *, replicates, methods, draws, rounds):
    """Add the options that both programs have, with their defaults."""
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--keep", type=Path, required=True, help="a folder for results, from which a stopped run continues"
    )
    parser.add_argument("--replicates", type=int, default=replicates)
    parser.add_argument("--methods", nargs="*", default=methods)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--draws", type=int, default=draws)
    parser.add_argument("--rounds", type=int, default=rounds, help="most rounds of the chains; a release has up to 24")
    parser.add_argument("--files", type=int, default=0)


def run(jobs, workers, task=None):
    """Carry out jobs, each the arguments of `some` or of another task, in several processes."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        work = [pool.submit(task or some, *job) for job in jobs]
        for number, one in enumerate(as_completed(work), 1):
            one.result()
            print(f"{number} of {len(work)}", end="\r", file=sys.stderr, flush=True)


def some(study, method, epsilon, replicates, path):
    """Run one method on some replicates, and keep the result in a file."""
    if not path.exists():
        frames = [frame for replicate in replicates for frame in study.one(method, epsilon, replicate)]
        part = path.with_suffix(".part")
        pl.concat([NOTHING, *frames]).write_parquet(part)
        part.rename(path)


def write(frames, out):
    """Write the results to a CSV file, and show them."""
    frame = pl.concat(frames)
    frame.write_csv(out)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=220, float_precision=3):
        print(frame)


# --- one sample ---


def figures(replicate, found):
    """The figures of one sample, from its tables of each kind ("tables" or "files") and whether the fit passed."""
    return [
        frame.select("estimate", "se", "lower", "upper", row=pl.int_range(pl.len())).with_columns(
            replicate=replicate, kind=pl.lit(kind), passed=passed, fits=fits
        )
        for kind, passed, fits, frame in found
    ]


def bounds_around(outcome, population, records):
    """The public bounds: the outcome's as known beforehand, the weights' a factor of 20 around their mean."""
    mean_weight = population / records
    return BoundsSpec(outcome=outcome, weight=(mean_weight / 20, mean_weight * 20))


def noisy_sums(study, survey, model, tables, bounds, epsilon, streams, protect="answers"):
    """Tables made with the code of a release and, if the study has `files`, the tables from synthetic files."""
    noise = StudyNoise(streams)
    measurement, facts = measure_survey(survey, protect, tables, bounds, "log", 2 * epsilon, noise)
    fitted = fit_measurement(measurement, facts, prior_of(model, ModelSpec()), None, study.draws, streams, study.rounds)
    fits = all(shape is None or shape.fits for shape in (fitted.outcome_shape, fitted.weight_shape))
    verdict = fitted.verdict.passed, fits
    found = [("tables", *verdict, tables_of(fitted.drawn, measurement, facts, tables, EstimationSpec()))]
    if study.files:
        known, design = FilePlan.of(study.draws, study.files, streams), survey.design
        make = FileMaker(fitted.drawn, measurement, facts, known.seed, "y", design.strata, cluster=design.cluster)
        imputed = Synthetic(tuple(map(make.survey, known.draws)), "imputed")
        found.append(("files", *verdict, imputed.tabulate_all(tables)))
    return found


# --- all samples ---


def by_class(found, rows, direct, length, head, columns):
    """Coverage, length and errors of one case, as means over each class of cells, for each kind of tables.

    `rows` has the truth and the class of each row of the tables, `direct` the figures of the direct analysis, to which
    lengths and errors are related, `length` says how interval lengths are averaged over replicates, and `columns` are
    the columns of the result, after those of `head`, which has the place of the column `kind`.
    """
    beside = by_row(direct, rows, length).filter(pl.col("rmse") > 1e-9)
    beside = beside.select("row", direct_rmse="rmse", direct_length="length")
    of, order, frames = pl.col, ["statistic", "cells"], []
    for kind in found["kind"].unique(maintain_order=True):
        own = found.filter(of("kind") == kind)
        each = by_row(own, rows, length).join(beside, on="row", maintain_order="left").filter(of("se") > 0)
        classes = each.group_by(order, maintain_order=True).agg(
            of("coverage").mean(),
            of("coverage").min().alias("least_coverage"),
            of("length").mean(),
            (of("length") / of("direct_length")).mean().alias("length_over_direct"),
            (of("rmse") / of("direct_rmse")).mean().alias("rmse_over_direct"),
            (of("se") / of("rmse")).mean().alias("se_over_rmse"),
        )
        once = own.unique("replicate")
        numbers = {"replicates": len(once), "passed": once["passed"].sum(), "fit": once["fits"].sum()}
        added = {name: pl.lit(value) for name, value in (head | {"kind": kind} | numbers).items()}
        frames.append(classes.sort(order).with_columns(**added).select(*head, *order, *columns, *numbers))
    return frames


def by_row(found, rows, length):
    """Coverage, length and errors of each row of the tables, over replicates, relative to the truth."""
    found = found.join(rows, on="row", how="left", maintain_order="left")
    of, truth = pl.col, pl.col("truth")
    return found.group_by("row", "statistic", "cells", maintain_order=True).agg(
        coverage=((of("lower") <= truth) & (truth <= of("upper"))).mean(),
        length=length((of("upper") - of("lower")) / truth),
        rmse=((of("estimate") / truth - 1) ** 2).mean().sqrt(),
        se=((of("se") / truth) ** 2).mean().sqrt(),
    )
