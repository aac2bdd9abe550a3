"""The paper's numbers beside those found here, with the difference in Monte Carlo standard errors.

The standard error of a difference includes the error of both sides: the paper had R = 100 replicates, or one sample.
Coverages are compared as two proportions with a pooled standard error. Lengths and ratios are compared with the spread
found here, at the number of replicates of each side. A figure of one sample or one release is compared with the spread
over the samples or releases found here.

The columns are section, row, column, digits, paper, here, standard_error and difference. Where the paper has no number,
`paper` and `difference` are null.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import polars as pl

from svysynth.core.grouping import Floats
from svysynth.evaluation.paper.methods import NAMES, Method
from svysynth.evaluation.paper.simulation import SPREAD
from svysynth.survey.columns import ALL
from svysynth.survey.doctorates import RECORDS, published_table

PAPER_REPLICATES = 100
MODELS: tuple[Method, ...] = ("fbs", "fbp")
PUBLISHED_BOUNDS = {"simulation": {"fbs": 8.89, "fbp": 9.92}, "application": {"fbs": 11.0, "fbp": 15.9}}
POPULATION_CORRELATION, SAMPLE_CORRELATION, APPLICATION_CORRELATION = -0.57, -0.58, 0.09
TABLES = {"count": "counts", "mean": "salary"}
QUANTITIES = {"estimate": "estimate", "s.e.": "se"}
TITLES = {"count": "Counts", "mean": "Average salary"}


class Figure(NamedTuple):
    """One published number and ours; `digits` is the number of decimals shown."""

    section: str
    row: str
    column: str
    digits: int
    paper: float | None
    here: float
    standard_error: float | None


def as_frame(figures: Iterable[Figure]) -> pl.DataFrame:
    """The figures with their differences in standard errors; the difference of equal numbers is 0."""
    numbers = {"paper": pl.Float64, "here": pl.Float64, "standard_error": pl.Float64}
    frame = pl.DataFrame(figures, schema=Figure._fields, orient="row", schema_overrides=numbers)
    gap = pl.col("here") - pl.col("paper")
    scaled = gap / pl.col("standard_error")
    return frame.with_columns(
        pl.when(gap == 0).then(0.0).when(scaled.is_finite()).then(scaled).otherwise(None).alias("difference")
    )


def compare_simulation(
    summary: pl.DataFrame, ratios: pl.DataFrame, fits: pl.DataFrame, correlations: Floats
) -> pl.DataFrame:
    """Every published number of the simulation (paper §4 and supplement) beside ours."""
    figures: list[Figure] = []
    for statistic in TABLES:
        figures += _coverage_figures(summary, statistic)
    figures += _ratio_figures(ratios)
    figures += _sample_figures(fits, correlations)
    return as_frame(figures)


def _coverage_figures(summary: pl.DataFrame, statistic: str) -> list[Figure]:
    section = f"{TITLES[statistic]}: coverage and mean length of 95% intervals (m = 3, Δ = 1.8, ε = 10.8)"
    table = published_table(f"coverage_{TABLES[statistic]}_m3")
    cells = summary.filter(statistic=statistic)
    figures = []
    for paper in table.iter_rows(named=True):
        own = cells.filter(field=paper["field"], gender=paper["gender"])
        row = cell_name(paper["field"], paper["gender"])
        truth = own["truth"][0]
        error = SPREAD * truth / np.sqrt(_size(paper["field"], paper["gender"])) if statistic == "mean" else 0.0
        figures.append(Figure(section, row, "Population", 0, paper["population"], truth, error))
        for method in MODELS:
            ours = own.filter(method=method, lipschitz=1.8, datasets=3)
            if not ours.height:
                continue
            found = ours.row(0, named=True)
            published, name = paper[f"{method}_coverage"], NAMES[method]
            error = pooled_error(published, PAPER_REPLICATES, found["coverage"], found["replicates"])
            figures.append(Figure(section, row, f"{name} coverage", 2, published, found["coverage"], error))
            error = found["length_se"] * np.sqrt(1 + found["replicates"] / PAPER_REPLICATES)
            length = paper[f"{method}_ci_length"]
            figures.append(Figure(section, row, f"{name} length", 0, length, found["length"], error))
    return figures


def _size(field: str, gender: str) -> int:
    return int(published_table("coverage_counts_m3").filter(field=field, gender=gender)["population"][0])


def pooled_error(first: float, first_count: int, second: float, second_count: int) -> float:
    """The standard error of the difference of two estimated proportions whose true values are equal.

    >>> round(pooled_error(0.9, 100, 1.0, 100), 4)
    0.0308
    """
    share = (first * first_count + second * second_count) / (first_count + second_count)
    return float(np.sqrt(share * (1 - share) * (1 / first_count + 1 / second_count)))


def _ratio_figures(ratios: pl.DataFrame) -> list[Figure]:
    section = "Length of FBP's intervals over FBS's, mean over 24 cells"
    figures = []
    for paper in published_table("ci_length_ratios").iter_rows(named=True):
        where = {"method": "fbp", "lipschitz": paper["lipschitz"], "datasets": paper["datasets"]}
        for statistic, name in TABLES.items():
            ours = ratios.filter(**where, statistic=statistic)
            if ours.height:
                ratio, error, count = ours.select("ratio", "ratio_se", "replicates").row(0)
                row = f"Δ = {paper['lipschitz']}, m = {paper['datasets']}, ε = {paper['epsilon']:g}"
                error = rounded(error * np.sqrt(1 + count / PAPER_REPLICATES), 2)
                published = paper[f"{name}_fbp_over_fbs"]
                figures.append(Figure(section, row, TITLES[statistic], 2, published, ratio, error))
    return figures


def _sample_figures(fits: pl.DataFrame, correlations: Floats) -> list[Figure]:
    section = "The population and the selected sample (here: mean over samples)"
    figures = [
        Figure(
            section,
            "cor(salary, weight) in the population",
            "Value",
            2,
            POPULATION_CORRELATION,
            correlations[0],
            rounded(correlations[1:].std(ddof=1) * np.sqrt(2), 2),
        )
    ]
    first = fits.unique("replicate", maintain_order=True)["correlation"].to_numpy()
    label = "cor(salary, weight) in a sample"
    figures.append(Figure(section, label, "Value", 2, SAMPLE_CORRELATION, first.mean(), single(first, 2)))
    for model, published in PUBLISHED_BOUNDS["simulation"].items():
        bounds = fits.filter(model=model).unique("replicate", maintain_order=True)["unweighted_bound"].to_numpy()
        if len(bounds):
            label = f"Δ of {NAMES[model]} without weights"  # type: ignore[index]
            figures.append(Figure(section, label, "Value", 2, published, bounds.mean(), single(bounds, 2)))
    return figures


def single(values: Floats, digits: int) -> float | None:
    """The standard error of the difference between the paper's single value and our mean; None for one value.

    It combines the spread of single values, the error of our mean and the rounding of the paper's value.
    """
    return rounded(values.std(ddof=1) * np.sqrt(1 + 1 / len(values)), digits) if len(values) > 1 else None


def rounded(error: float, digits: int) -> float:
    """A standard error, combined with the rounding error of a number printed to this many decimals."""
    return float(np.hypot(error, 10.0**-digits / np.sqrt(12)))


def compare_application(tables: pl.DataFrame, fits: pl.DataFrame, correlation: float, records: int) -> pl.DataFrame:
    """Every published number of the application (paper §3) beside ours."""
    figures: list[Figure] = []
    for method in ("sample", "laplace", *MODELS):
        figures += _application_figures(tables, method)
    section = "The sample and the fits"
    figures.append(Figure(section, "Records", "Value", 0, RECORDS, records, None))
    figures.append(Figure(section, "cor(salary, weight)", "Value", 2, APPLICATION_CORRELATION, correlation, None))
    for model, published in PUBLISHED_BOUNDS["application"].items():
        bounds = fits.filter(model=model)["unweighted_bound"].to_numpy()
        if len(bounds):
            label = f"Δ of {NAMES[model]} without weights"  # type: ignore[index]
            figures.append(Figure(section, label, "Value", 1, published, bounds[0], None))
    return as_frame(figures)


def _application_figures(tables: pl.DataFrame, method: Method) -> list[Figure]:
    """The columns of one method; those of the sample have no Monte Carlo error."""
    section = f"{NAMES[method]}: estimates and standard errors"
    figures = []
    own = tables.filter(method=method)
    for statistic, name in TABLES.items():
        for paper in published_table(f"sdr_{name}").iter_rows(named=True):
            ours = own.filter(statistic=statistic, field=paper["field"], gender=paper["gender"])
            if not ours.height:
                continue
            found = ours.row(0, named=True)
            for label, quantity in QUANTITIES.items():
                error = found[f"{quantity}_sd"] * np.sqrt(2) if method != "sample" else None
                column = f"{TITLES[statistic]}: {label}"
                row = cell_name(paper["field"], paper["gender"])
                published = paper[f"{method}_{quantity}"]
                figures.append(Figure(section, row, column, 0, published, found[quantity], error))
    return figures


def cell_name(field: str, gender: str) -> str:
    """The name of a cell on the page.

    >>> cell_name("All", "Male"), cell_name("3", "All"), cell_name("3", "Female"), cell_name("All", "All")
    ('Male', 'Field 3', 'Field 3, female', 'All')
    """
    if field == ALL:
        return gender
    return f"Field {field}" if gender == ALL else f"Field {field}, {gender.lower()}"


def agreement(comparison: pl.DataFrame) -> pl.DataFrame:
    """For each section and column: the share of numbers within 2 and 3 standard errors, and the means of both sides."""
    compared = comparison.filter(pl.col("difference").is_not_null())
    return compared.group_by("section", "column", maintain_order=True).agg(
        pl.len().alias("numbers"),
        (pl.col("difference").abs() <= 2).mean().alias("within_2"),
        (pl.col("difference").abs() <= 3).mean().alias("within_3"),
        pl.col("paper").mean().alias("mean_paper"),
        pl.col("here").mean().alias("mean_here"),
    )


def sample_agreement(comparison: pl.DataFrame) -> str:
    """How far the sample's estimates and standard errors are from the published ones at most, in words."""
    own = comparison.filter(pl.col("section").str.starts_with(f"{NAMES['sample']}:"))
    gap = own.with_columns((pl.col("here") / pl.col("paper") - 1).abs().alias("gap"))
    largest = {end: gap.filter(pl.col("column").str.ends_with(end))["gap"].to_numpy().max() for end in QUANTITIES}
    return (
        f"estimates are within {largest['estimate']:.2%} of the paper's, standard errors within {largest['s.e.']:.1%}"
    )
