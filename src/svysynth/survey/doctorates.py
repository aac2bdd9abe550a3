"""A stand-in for the 2017 Survey of Doctorate Recipients, generated from the paper's published tables (paper §3).

The public-use file cannot be shipped. The stand-in has that file's layout and n = 10,355 records, and is made so
that the direct estimates of the 16 inner cells and of all margins reproduce the published Sample columns: weighted
counts and mean salaries, and their standard errors with the field as stratum. No record in it describes a person.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import brentq
from scipy.special import ndtri

from svysynth.core.grouping import Floats, Integers

RECORDS = 10_355
POPULATION = 125_199
GENDERS = {"Male": "M", "Female": "F"}

ROUNDING = 1_000.0
TOP_CODE = 400_000.0
DEPENDENCE = 0.09
"""Correlation of the normal scores of salary and weight within a cell; gives cor(salary, weight) ≈ 0.09 overall."""
SEED = 2017


def doctorates() -> pl.DataFrame:
    """The stand-in: field, gender, salary and weight, in random order, always the same."""
    published = _published()
    sizes = _cell_sizes(published)
    cells = []
    for position, (cell, size) in enumerate(zip(published.iter_rows(named=True), sizes, strict=True)):
        in_field = int(sizes[(published["field"] == cell["field"]).to_numpy()].sum())
        cells.append(_cell(cell, int(size), in_field, _generator("stand-in cell", position)))
    frame = pl.concat(cells)
    order = _generator("stand-in order").permutation(frame.height)
    return frame[order]


def published_table(name: str) -> pl.DataFrame:
    """One of the paper's tables, as printed."""
    source = resources.files("svysynth.survey") / "published" / f"{name}.csv"
    return pl.read_csv(source.read_bytes(), schema_overrides={"field": pl.String})


def _generator(name: str, index: int = 0) -> np.random.Generator:
    """A generator independent of streams.py: the stand-in is not confidential, and has to stay the same file."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], dtype="<u4")
    sequence = np.random.SeedSequence(SEED, spawn_key=(*(int(word) for word in words), index))
    return np.random.Generator(np.random.PCG64DXSM(sequence))


def _published() -> pl.DataFrame:
    """The inner cells: counts and salaries of the Sample columns side by side, and FBP's counts for the cell sizes."""
    keys = ["field", "gender"]
    counts, salaries = (published_table(name) for name in ("sdr_counts", "sdr_salary"))
    return counts.join(salaries, on=keys, suffix="_salary", maintain_order="left").filter(
        pl.all_horizontal(pl.col(keys) != "All")
    )


def _cell_sizes(published: pl.DataFrame) -> Integers:
    """Records per cell: in proportion to FBP's counts, rounded so that they add up (largest remainders)."""
    share = published["fbp_estimate"].to_numpy() / published["fbp_estimate"].sum() * RECORDS
    sizes = np.floor(share).astype(np.int64)
    short = RECORDS - int(sizes.sum())
    sizes[np.argsort(sizes - share, kind="stable")[:short]] += 1
    return sizes


def _cell(cell: dict[str, Any], size: int, in_field: int, generator: np.random.Generator) -> pl.DataFrame:
    """The records of one cell: lognormal weights and salaries whose moments give the published estimates."""
    weight_score, salary_score = _normal_scores(size, generator)
    weight = _weights(weight_score, cell["sample_estimate"], cell["sample_se"], in_field)
    salary = _salaries(salary_score, weight, cell["sample_estimate_salary"], cell["sample_se_salary"], in_field)
    return pl.DataFrame(
        {
            "field": pl.Series([int(cell["field"])] * size, dtype=pl.Int64),
            "gender": [GENDERS[cell["gender"]]] * size,
            "salary": np.round(salary).astype(np.int64),
            "weight": np.round(weight, 4),
        }
    )


def _normal_scores(size: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Two correlated sets of exact normal quantiles, so that small cells have the moments of large ones."""
    quantiles = ndtri((np.arange(size) + 0.5) / size)
    first = generator.permutation(quantiles)
    noise = generator.standard_normal(size)
    mixed = DEPENDENCE * first + np.sqrt(1 - DEPENDENCE**2) * noise
    second = np.empty(size)
    second[np.argsort(mixed)] = quantiles
    return first, second


def _weights(score: Floats, total: float, se: float, in_field: int) -> Floats:
    """Weights exp(spread·score), scaled to the cell's count, with the spread that gives the count's standard error.

    Outside the cell a record of the stratum counts as zero: SE² = n/(n − 1)·(Σw² − (Σw)²/n).
    """

    def weights(spread: float) -> Floats:
        raw = np.exp(spread * score)
        return np.asarray(raw * (total / raw.sum()))

    def excess(spread: float) -> float:
        variance = in_field / (in_field - 1) * (np.square(weights(spread)).sum() - total**2 / in_field)
        return float(np.sqrt(variance) - se)

    return weights(_solve(excess, 0.01, 3.0))


def _salaries(score: Floats, weight: Floats, mean: float, se: float, in_field: int) -> Floats:
    """Salaries exp(level + spread·score), rounded and top-coded, with the published mean and standard error."""

    def salaries(spread: float) -> Floats:
        raw = np.exp(spread * score)

        def short(level: float) -> float:
            return float(weight @ np.clip(level * raw, ROUNDING, TOP_CODE) - mean * weight.sum())

        return np.clip(_solve(short, 1.0, 10 * mean) * raw, ROUNDING, TOP_CODE)

    def excess(spread: float) -> float:
        residual = weight * (salaries(spread) - mean) / weight.sum()
        return float(np.sqrt(in_field / (in_field - 1) * np.square(residual).sum()) - se)

    return np.round(salaries(_solve(excess, 0.01, 3.0)) / ROUNDING) * ROUNDING


def _solve(function: Callable[[float], float], low: float, high: float) -> float:
    """The root between two bounds, or the bound that comes nearest."""
    if function(low) * function(high) > 0:
        return min((low, high), key=lambda value: abs(function(value)))
    return float(brentq(function, low, high))
