"""The paper's simulation: a population of 100,000 with informative sampling, and stratified PPS samples (paper §4.1).

Cell sizes and mean salaries are those of the paper's coverage tables; log y ~ N(log mean − 0.08, 0.4²) and
log π = log y + N(0, 0.4²). Fields are strata, and n is allocated in proportion to their sizes. Within a stratum units
are drawn with replacement, with probabilities in proportion to π.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.streams import Streams
from svysynth.survey.doctorates import published_table
from svysynth.survey.survey import SurveyInMemory, read_survey

SPREAD = 0.4
GENDERS = ("Male", "Female")


@outlined
@dataclass(frozen=True, eq=False)
class Population:
    """Every unit's field (0 … 7), gender (0 male, 1 female), salary and size measure π."""

    field: Integers
    gender: Integers
    salary: Floats
    measure: Floats


def make_population(streams: Streams, index: int = 0) -> Population:
    """Draw a population."""
    counts, salaries = (
        published_table(name).filter(pl.col("gender") != "All") for name in ("coverage_counts_m3", "coverage_salary_m3")
    )
    sizes, means = counts["population"].to_numpy(), salaries["population"].to_numpy()
    generator = streams.generator("population", index)
    field = np.repeat(counts["field"].cast(pl.Int64).to_numpy() - 1, sizes)
    gender = np.repeat([GENDERS.index(label) for label in counts["gender"]], sizes)
    log_salary = np.repeat(np.log(means) - SPREAD**2 / 2, sizes) + SPREAD * generator.standard_normal(len(field))
    log_measure = log_salary + SPREAD * generator.standard_normal(len(field))
    return Population(field, gender, np.exp(log_salary), np.exp(log_measure))


def draw_sample(
    population: Population, streams: Streams, index: int = 0, n: int = 1000, systematic: bool = False
) -> SurveyInMemory:
    """A stratified PPS sample of exactly n units: with replacement, or systematic in the population's order.

    In that order the men of a field come before its women, so that a systematic sample has men and women in proportion.
    """
    generator = streams.generator("sample", index)
    chosen, weights = [], []
    for stratum, size in enumerate(_allocate(np.bincount(population.field), n)):
        units = np.flatnonzero(population.field == stratum)
        share = population.measure[units] / population.measure[units].sum()
        if systematic:
            drawn = choose_systematically(share, size, generator.random())
        else:
            drawn = generator.choice(len(units), size, p=share)
        chosen.append(units[drawn])
        weights.append(1 / (size * share[drawn]))
    unit = np.concatenate(chosen)
    frame = pl.DataFrame(
        {
            "field": population.field[unit] + 1,
            "gender": [GENDERS[code] for code in population.gender[unit]],
            "salary": population.salary[unit],
            "weight": np.concatenate(weights),
        }
    )
    return read_survey(
        frame,
        outcome="salary",
        weight="weight",
        strata="field",
        public=["field", "gender"],
        population_total=float(len(population.field)),
        labels={"gender": {label: label for label in GENDERS}},
    )


def choose_systematically(share: Floats, size: int, start: float) -> Integers:
    """The units chosen by systematic sampling from a random start between 0 and 1.

    The units lie one after another on a line of length `size`, each with a length in proportion to its share. Chosen
    are the units in which start, start + 1, … fall.
    """
    ends = np.cumsum(share)
    return np.searchsorted(ends / ends[-1] * size, start + np.arange(size), side="right")


def _allocate(sizes: Integers, n: int) -> Integers:
    """n in proportion to the sizes, by largest remainders."""
    exact = sizes / sizes.sum() * n
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: n - int(whole.sum())]] += 1
    return np.asarray(whole)
