"""The two studies from start to end: run the replicates, write tidy CSVs, figures and the page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from svysynth.core.engine import Engine, cores
from svysynth.core.errors import SurveyError
from svysynth.evaluation.paper.application import Application, correlation, release, release_figures, tidy_tables
from svysynth.evaluation.paper.batched_fits import run_together
from svysynth.evaluation.paper.comparison import (
    PAPER_REPLICATES,
    agreement,
    compare_application,
    compare_simulation,
    sample_agreement,
)
from svysynth.evaluation.paper.figures import (
    bounds_figure,
    coverage_figure,
    rmse_figure,
    save_figure,
    scatter_figure,
    trade_off_figure,
)
from svysynth.evaluation.paper.methods import NAMES, Method
from svysynth.evaluation.paper.page import Picture, write_page
from svysynth.evaluation.paper.repeated import (
    AS_PUBLISHED,
    Results,
    Simulation,
    averages,
    fit_figures,
    length_ratios,
    population_correlations,
    replicate,
    rmse_ratios,
    summarize,
)
from svysynth.evaluation.paper.selected_sample import tidy_bounds, tidy_points
from svysynth.evaluation.paper.workers import Progress, claim_folder, load_replicates, run_replicates
from svysynth.publishing.report.terminal import INTERNAL
from svysynth.survey.files import write_frame

REPLICATES, RELEASES = "replicates", "releases"
SYNTHETIC: tuple[Method, ...] = ("fbs", "fbp", "fbp-full")
SCATTERS: dict[Method, int] = {"fbs": 1, "fbp": 2}
"""The supplement's figure number of each scatter plot of salary and weight."""
SYMBOLS = {"lipschitz": "Δ", "datasets": "m", "epsilon": "ε"}
LAPLACE: Method = "laplace"
SUPPLEMENT = {(1.8, 3): 3, (1.8, 1): 4, (1.8, 5): 5, (1.8, 10): 6, (3.4, 3): 7, (3.4, 1): 8, (3.4, 5): 9, (3.4, 10): 10}
"""The supplement's figure number of each plot of coverage and CV, by (Δ, m)."""
AS_PUBLISHED_MEANS = (
    "Samples are drawn systematically, and FBP's bounds are those of the lognormal density of the inclusion "
    "probability π, as the paper's figures suggest that its authors did. The weights α are at most 0.85, so that "
    "intervals have the published lengths."
)
SOURCE = "confidential, internal use only"
"""The source column of numbers that come from a file; `svysynth tables` writes the same."""
TERMS = (
    "FBS is the fully Bayes model of the observed sample, FBP the fully Bayes model of the population and the "
    "sampling. Δ is the largest Lipschitz bound of a record, m the number of synthetic data sets, and ε = 2·Δ·m the "
    "privacy loss (smaller is safer). The guarantee of FBS and FBP is asymptotic here, and the ε of the paper's "
    "Laplace noise is nominal: neither is differential privacy."
)
HOW_TO_READ = (
    "A difference is our number minus the paper's, in Monte Carlo standard errors of that difference, which include "
    "the error of both sides. Differences beyond 2 are marked yellow, beyond 3 red. If both sides did the same, about "
    "5% of the differences would be beyond 2, and 0.3% beyond 3."
)


def run_simulation(
    study: Simulation,
    folder: Path,
    replicates: int,
    workers: int | Engine | None = None,
    progress: Progress = lambda done, total: None,
    batch: int | None = None,
) -> Path:
    """Run the simulation: one selected sample, and repeated sampling. Returns the path of the page.

    With `batch`, this many fits are computed together on JAX's device, and the workers draw the samples.
    """
    frames = simulation_frames(study, folder, replicates, workers, progress, batch)
    pictures = _draw_simulation(study, folder, frames)
    paragraphs = [
        f"The paper's simulation, run here with R = {replicates} repeated samples (the paper: {PAPER_REPLICATES}) of "
        f"n = {study.n} records, {study.plan.draws} posterior draws for each fit, and seed {study.seed}. "
        f"{_attempts(frames['fits'])}",
        *([AS_PUBLISHED_MEANS] if study == AS_PUBLISHED else []),
        TERMS,
        HOW_TO_READ,
    ]
    compared = frames["comparison"]
    means = [("Means over the 24 cells of fields, for every method", _wide(frames["averages"]))]
    target = folder / "simulation.html"
    write_page(target, "Simulation: paper and here", paragraphs, agreement(compared), compared, means, pictures)
    _open_to_all(folder)
    return target


def simulation_frames(
    study: Simulation,
    folder: Path,
    replicates: int,
    workers: int | Engine | None,
    progress: Progress,
    batch: int | None = None,
) -> dict[str, pl.DataFrame]:
    """Run the replicates that the folder does not hold yet, and write the study's numbers as CSV."""
    indices, using = range(_enough(replicates)), _workers(workers)
    if batch and not isinstance(using, int):
        raise SurveyError("spec", "--batch", "is for one machine", "leave out --batch or --engine")
    claim_folder(folder, study.settings)
    target = folder / REPLICATES
    if batch and isinstance(using, int):
        run_together(study, indices, target, using, batch, progress)
    else:
        run_replicates(partial(replicate, study), indices, target, using, progress)
    numbers = load_replicates(target, indices)
    results = Results.of(study, numbers)
    frames = {
        "coverage": summarize(results),
        "length-ratios": length_ratios(results),
        "rmse-ratios": rmse_ratios(results),
        "fits": fit_figures(study, numbers),
        "bounds": tidy_bounds(numbers[0]),
        "points": tidy_points(numbers[0]),
    }
    frames["averages"] = averages(frames["coverage"])
    frames["comparison"] = compare_simulation(
        frames["coverage"], frames["length-ratios"], frames["fits"], population_correlations(study)
    )
    _write_frames(folder, frames)
    return frames


def _draw_simulation(study: Simulation, folder: Path, frames: dict[str, pl.DataFrame]) -> list[Picture]:
    methods = [method for method in SYNTHETIC if method.split("-")[0] in study.plan.models]
    cells, points = frames["rmse-ratios"], frames["points"]
    lowest, m = study.plan.bounds[0], 3 if 3 in study.plan.datasets else study.plan.datasets[0]
    drawn: list[tuple[Picture, Figure]] = [
        (
            Picture(
                "figure-3-bounds",
                f"Figure 3. Lipschitz bounds of the records without and with the weights α, Δ = {lowest}.",
            ),
            bounds_figure(frames["bounds"]),
        ),
        (
            Picture(
                "figure-4-weights",
                "Figure 4. Salary and weight in the sample, and in synthetic data with smoothed weights.",
            ),
            scatter_figure(
                points,
                [("Confidential sample", "sample", "confidential"), *((NAMES[x], x, "smoothed") for x in methods)],
            ),
        ),
        (
            Picture(
                "figure-5-rmse",
                f"Figure 5. RMSE ratios in 27 cells of the selected sample, m = {m}, Δ = {lowest}; logarithmic axis.",
            ),
            rmse_figure(
                cells.filter(lipschitz=lowest, datasets=m), "rmse_ratio", [*methods, LAPLACE], logarithmic=True
            ),
        ),
    ]
    for number, bound in enumerate(study.plan.bounds, start=6):
        scenarios = [(m, round(2 * bound * m, 9)) for m in study.plan.datasets if m <= 5]
        caption = f"Figure {number}. RMSE ratios in 27 cells of the selected sample by m, Δ = {bound}."
        drawn.append((Picture(f"figure-{number}-trade-off", caption), trade_off_figure(cells, methods, scenarios)))
    for method, number in SCATTERS.items():
        if method not in methods:
            continue
        panels: list[tuple[str, Method, str]] = [
            ("Confidential sample", "sample", "confidential"),
            (f"{NAMES[method]}, synthesised weights", method, "synthesised"),
            (f"{NAMES[method]}, smoothed weights", method, "smoothed"),
        ]
        caption = (
            f"Figure S{number}. Salary and weight in the sample, and in {NAMES[method]}'s synthetic data with "
            "synthesised and with smoothed weights."
        )
        drawn.append((Picture(f"figure-s{number}-weights", caption), scatter_figure(points, panels)))
    drawn += _draw_coverage(study, frames["coverage"], methods)
    return _save(folder, drawn)


def _draw_coverage(study: Simulation, summary: pl.DataFrame, methods: Sequence[Method]) -> list[tuple[Picture, Figure]]:
    drawn = []
    wanted = [(bound, m) for bound in study.plan.bounds for m in study.plan.datasets]
    for bound, m in sorted(wanted, key=lambda pair: SUPPLEMENT.get(pair, 99)):
        own = summary.filter(pl.col("field") != "All", pl.col("method").is_in(methods), lipschitz=bound, datasets=m)
        number = f"s{SUPPLEMENT[bound, m]}-" if (bound, m) in SUPPLEMENT else ""
        name = f"figure-{number}coverage-{bound}-{m}"
        caption = (
            f"Figure {number.rstrip('-').upper()}. Coverage and coefficient of variation (CV) in 24 cells, m = {m}, "
            f"Δ = {bound}, ε = {2 * bound * m:g}. The line is at a coverage of 0.95."
        )
        drawn.append((Picture(name, caption), coverage_figure(own, methods)))
    return drawn


def run_application(
    study: Application,
    folder: Path,
    releases: int,
    workers: int | Engine | None = None,
    progress: Progress = lambda done, total: None,
) -> Path:
    """Run the application on the stand-in or on the public-use file. Returns the path of the page.

    With a file, each page, table and figure is marked as internal, in a folder that only its owner can enter.
    """
    indices = range(_enough(releases))
    survey = study.survey
    banner = None if study.data is None else INTERNAL
    claim_folder(folder, study.settings, 0o777 if study.data is None else 0o700)
    run_replicates(partial(release, study), indices, folder / RELEASES, _workers(workers), progress)
    numbers = load_replicates(folder / RELEASES, indices)
    frames = {
        "tables": tidy_tables(study, numbers),
        "fits": release_figures(study, numbers),
        "bounds": tidy_bounds(numbers[0]),
    }
    frames["comparison"] = compare_application(frames["tables"], frames["fits"], correlation(survey), len(survey))
    _write_frames(folder, frames, None if study.data is None else SOURCE)
    pictures = _draw_application(folder, frames, banner)
    source = "the generated stand-in" if study.data is None else "the file given"
    paragraphs = [
        f"The paper's tables of the Survey of Doctorate Recipients, made here from {source}: n = {len(survey):,}, "
        f"ε = 10.8, m = 3. {_attempts(frames['fits'])}",
        TERMS,
        f"The page shows the first of {releases} releases with different random numbers; the spread over the releases "
        f"is the Monte Carlo error. {HOW_TO_READ} The sample's own figures have no Monte Carlo error: "
        f"{sample_agreement(frames['comparison'])}.",
    ]
    if study.data is None:
        paragraphs.append(
            "The stand-in reproduces the published Sample columns, but not the records behind them. The private "
            "columns differ from the paper's by more than the Monte Carlo error where they depend on features of the "
            "records that the published tables do not show."
        )
    compared = frames["comparison"]
    target = folder / "application.html"
    write_page(target, "Application: paper and here", paragraphs, agreement(compared), compared, [], pictures, banner)
    if study.data is None:
        _open_to_all(folder)
    return target


def _draw_application(folder: Path, frames: dict[str, pl.DataFrame], banner: str | None) -> list[Picture]:
    bounds = Picture(
        "figure-1-bounds", "Figure 1. Lipschitz bounds of the records without and with the weights α, Δ = 1.8."
    )
    caption = "Figure 2. RMSE in 27 cells against the confidential estimates, m = 3, ε = 10.8; logarithmic axis."
    rmse = frames["tables"].filter(pl.col("rmse") > 0)
    methods = [method for method in (*SYNTHETIC, LAPLACE) if method in rmse["method"]]
    return _save(
        folder,
        [
            (bounds, bounds_figure(frames["bounds"])),
            (Picture("figure-2-rmse", caption), rmse_figure(rmse, "rmse", methods, logarithmic=True)),
        ],
        banner,
    )


def _save(folder: Path, drawn: Sequence[tuple[Picture, Figure]], banner: str | None = None) -> list[Picture]:
    for picture, figure in drawn:
        save_figure(figure, folder, picture.name, banner)
    return [picture for picture, _ in drawn]


def _write_frames(folder: Path, frames: dict[str, pl.DataFrame], source: str | None = None) -> None:
    for name, frame in frames.items():
        marked = frame if source is None else frame.with_columns(pl.lit(source).alias("source"))
        write_frame(marked, folder / f"{name}.csv")


def _open_to_all(folder: Path) -> None:
    """Let everybody read the files; called only for results from generated data."""
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(0o644)


def _wide(averages: pl.DataFrame) -> pl.DataFrame:
    """A row for each method, Δ and m, with counts and salaries side by side."""
    labels = [
        pl.col("method").replace_strict(NAMES),
        *(pl.col(name).cast(pl.String).fill_null("").alias(symbol) for name, symbol in SYMBOLS.items()),
    ]
    sides = []
    for statistic, title in (("count", "counts"), ("mean", "salary")):
        own = averages.filter(statistic=statistic).select("coverage", "length", "cv", "absolute_bias")
        sides.append(own.rename(lambda name, title=title: f"{title}: {name}"))  # type: ignore[misc]
    return pl.concat([averages.filter(statistic="count").select(labels), *sides], how="horizontal")


def _attempts(fits: pl.DataFrame) -> str:
    again = int((fits["attempts"] > 1).sum())
    return f"{fits.height} calibrations were made; {again} of them had to be repeated with other random numbers."


def _workers(wanted: int | Engine | None) -> int | Engine:
    return wanted or cores()


def _enough(count: int) -> int:
    if count < 2:
        raise SurveyError(
            "spec", "--replicates", "is less than 2, and a single replicate has no Monte Carlo error", "use 2 or more"
        )
    return count
