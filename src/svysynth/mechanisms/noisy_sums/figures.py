"""Figures: the tables that posterior draws imply, in closed form, and their standard errors.

Under a draw a cell has the mean weight exp(E v), scaled so that the whole file has the declared population total, and
the weighted mean outcome exp(E t + Var t/2 + Cov(t, v)), or E t + Cov(t, v) without a logarithm, kept within the public
bounds. The variance of a figure is

    variance over draws + mean over draws of the design variance with every record at its cell's weight and outcome.

The first is what sampling and noise leave unknown of the cells. The second is what they cannot know: that the sizes of
cells within strata are those of one sample. There are so many draws that degrees of freedom play no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from svysynth.combine import ROUNDING
from svysynth.groups import Floats, Integers
from svysynth.linearization import estimate
from svysynth.mechanisms.noisy_sums.facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measurement import Measurement
from svysynth.outline import outlined
from svysynth.spec import EstimationSpec, Statistic, TableSpec, Transform
from svysynth.tables import Layout, finish_table

LARGEST_EXPONENT = 300.0
"""Of what is exponentiated: nothing overflows where noise leaves a draw without bounds."""


@outlined
@dataclass(frozen=True, eq=False)
class CellDraws:
    """What each draw says of each cell, in the units of the transformed answers: draw × cell, or one for each draw."""

    outcome_mean: Floats
    weight_mean: Floats
    outcome_variance: Floats
    weight_variance: Floats
    covariance: Floats

    def __len__(self) -> int:
        return len(self.outcome_mean)


def unscaled(means: tuple[Floats, Floats], spread: Floats, measurement: Measurement) -> CellDraws:
    """Draws in scales, as draws in the units of the transformed answers."""
    (first, second), (width, other) = measurement.scaling.centres, measurement.scaling.widths
    s_t, s_v = width * spread[:, 0], other * spread[:, 1]
    return CellDraws(first + width * means[0], second + other * means[1], s_t**2, s_v**2, s_t * s_v * spread[:, 2])


@outlined
@dataclass(frozen=True, eq=False)
class CellFigures:
    """A record's mean weight and weighted mean outcome in each cell: draw × cell."""

    weight: Floats
    outcome: Floats


def cell_figures(
    draws: CellDraws, size: Integers, population_total: float, transform: Transform, bounds: tuple[float, float]
) -> CellFigures:
    """What every cell looks like under every draw."""
    weight = np.exp(draws.weight_mean - draws.weight_mean.max(axis=1, keepdims=True))
    weight *= population_total / (weight @ size)[:, None]
    outcome = draws.outcome_mean + draws.covariance[:, None]
    if transform == "log":
        outcome = np.exp(np.minimum(outcome + draws.outcome_variance[:, None] / 2, LARGEST_EXPONENT))
    return CellFigures(weight, np.clip(outcome, *bounds))


def tables_of_draws(
    cells: CellFigures, facts: PublicFacts, tables: Sequence[TableSpec], estimation: EstimationSpec
) -> pl.DataFrame:
    """The requested tables, each row with its estimate and standard error."""
    columns = tuple(dict.fromkeys(column for table in tables for column in table.by))
    chosen = [list(facts.labels).index(column) for column in columns]
    levels = facts.codes[facts.cell][:, chosen]
    frames = []
    for table in tables:
        layout = Layout.of(table, columns, facts)
        for statistic in table.statistics:
            value = np.full(layout.rows, np.nan if statistic == "mean" else 0.0)
            variance, count = value.copy(), np.zeros(layout.rows, np.int64)
            for row in layout.domains(levels):
                filled, domain = np.unique(row, return_inverse=True)
                found, spread = _figures(statistic, cells, facts, domain)
                value[filled], variance[filled] = found, np.where(spread > (ROUNDING * found) ** 2, spread, 0.0)
                count[filled] = np.bincount(domain, facts.count, len(filled)).astype(np.int64)
            labels = layout.label_columns(columns)
            frames.append(finish_table(table.title, statistic, labels, value, variance, count, np.inf, estimation))
    return pl.concat(frames)


def _figures(statistic: Statistic, cells: CellFigures, facts: PublicFacts, domain: Integers) -> tuple[Floats, Floats]:
    """Estimate and variance of a statistic for each domain; `domain` gives that of each group."""
    sums = _Sums.of(cells, facts, domain)
    figures = estimate(statistic, sums.weight, sums.outcome, sums.population)
    design = _design_variance(statistic, sums, cells, facts, domain)
    return figures.mean(axis=0), figures.var(axis=0, ddof=1) + design.mean(axis=0)


@outlined
@dataclass(frozen=True, eq=False)
class _Sums:
    """Σw and Σwy of each domain, and Σw of the whole file: draw × domain."""

    weight: Floats
    outcome: Floats
    population: Floats

    @classmethod
    def of(cls, cells: CellFigures, facts: PublicFacts, domain: Integers) -> _Sums:
        inside = np.eye(int(domain.max()) + 1)[domain]
        weight = cells.weight[:, facts.cell] * facts.count
        outcome = weight * cells.outcome[:, facts.cell]
        return cls(weight @ inside, outcome @ inside, weight.sum(axis=1, keepdims=True))


def _design_variance(
    statistic: Statistic, sums: _Sums, cells: CellFigures, facts: PublicFacts, domain: Integers
) -> Floats:
    """Σ_h n_h/(n_h − 1)·Σ(z − z̄_h)² under each draw, for the linearised values z of a statistic: draw × domain.

    Files are scaled to the population total N, so the linearised count is w(1_d − N_d/N), and the total likewise; that
    of a mean is w·1_d(y − ȳ_d)/N_d. All are z = w(1_d(a + b·y) − c), with a, b and c the same in all of a domain.
    """
    domains = sums.weight.shape[1]
    nothing = np.zeros_like(sums.weight)
    match statistic:
        case "mean":
            a, b, c = -sums.outcome / sums.weight**2, 1 / sums.weight, nothing
        case "total":
            a, b, c = nothing, nothing + 1, sums.outcome / sums.population
        case "count":
            a, b, c = nothing + 1, nothing, sums.weight / sums.population
        case "proportion":
            a, b, c = nothing + 1 / sums.population, nothing, sums.weight / sums.population**2
    of_stratum = np.bincount(facts.stratum, facts.count, facts.strata)
    found = nothing
    for stratum in np.flatnonzero(of_stratum > 1):
        own = np.flatnonzero(facts.stratum == stratum)
        inside, size = np.eye(domains)[domain[own]], of_stratum[stratum]
        weight, outcome = cells.weight[:, facts.cell[own]], cells.outcome[:, facts.cell[own]]
        w, ww = weight * facts.count[own], weight**2 * facts.count[own]
        form = a * (ww @ inside) + b * ((ww * outcome) @ inside)
        square = a * form + b * (a * ((ww * outcome) @ inside) + b * ((ww * outcome**2) @ inside))
        square += c * (c * ww.sum(axis=1, keepdims=True) - 2 * form)
        total = a * (w @ inside) + b * ((w * outcome) @ inside) - c * w.sum(axis=1, keepdims=True)
        found = found + size / (size - 1) * np.maximum(square - total**2 / size, 0.0)
    return found
