"""Implied tables: the tables that posterior draws of the true sums imply, in closed form, and their standard errors.

Under a draw, a cell has the mean weight exp(v̄ + γ_v), scaled so that the whole file has the declared population total.
Its weighted mean outcome is exp(t̄ + Var t/2 + Cov(t, v) + γ_t), or t̄ + Cov(t, v) + γ_t without a logarithm, kept
within the public bounds. Means, variances within cells and γ are those of the draw. The variance of a figure is

    variance over draws + median over draws of the design variance that such a sample has.

The first term is the uncertainty that noise causes. The second is the design variance of a sample of lognormal answers
and unsmoothed weights, with the linearised values of files that are scaled to the population total. It treats the sizes
of cells within strata as those of one sample. There are so many draws that degrees of freedom do not matter. One part
of the sampling variation of direct figures is absent from figures of the model: a cell's own spread of answers and
weights differs from that of all cells, which changes direct figures (by t²/2 + tv in a mean, by v²/2 in the weights).
This part is left out of the second term.

If sizes of cells were measured with noise, each draw has its own sizes, the design variance is that of the noisy sizes,
and a row whose noisy sizes are all zero has no mean.

If the design has clusters, the design variance is that between clusters (`clustered_variance.py`), and the degrees of
freedom are clusters less strata, as for direct tables. If totals are declared, the weights of each draw are calibrated
to them, and the design variance is that of calibrated weights (`calibrated_variance.py`).

If weights are public, they are used unchanged: counts and proportions are exact (`counts.py`), weighted means use the
known weights, group by group, and nothing is scaled to a total. If there are clusters too, the design variance of means
and totals is that of `clusters_given_weights.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.statistics import Statistic
from svysynth.core.transforms import Transform
from svysynth.estimation.combining import ROUNDING
from svysynth.estimation.frames import Layout, domain_columns, finish_table, title_of
from svysynth.estimation.statistics import estimate, records_less_strata
from svysynth.mechanisms.noisy_sums.calibrated_variance import CalibratedVariance
from svysynth.mechanisms.noisy_sums.clustered_variance import ClusteredVariance, PairMoments, kept_inside
from svysynth.mechanisms.noisy_sums.clusters_given_weights import KnownClusters
from svysynth.mechanisms.noisy_sums.counts import ExactCounts
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes, clusters_less_strata
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.within_cells import own_spread, quadratic

LEAST_SIZE = 1e-6
"""The size given to a cell that is empty in a draw, so that its mean, which does not depend on the size, exists."""
MOST_NOT_FOLLOWED = 0.5
"""The largest share of a design variance that is left out, however large the spreads."""
LARGEST_EXPONENT = 300.0
LARGEST_VARIANCE = 10.0
"""The largest exponent and the largest variance that are exponentiated, so that extreme draws do not overflow."""


@outlined
@dataclass(frozen=True, eq=False)
class CellDraws:
    """The draws of the cells' figures, in units of the transformed answers: draw × cell, or one value for each draw.

    If weights are public, the figures of weights are empty, and the covariance is that of t and the scores of weights.
    """

    outcome_mean: Floats
    weight_mean: Floats
    outcome_misfit: Floats
    """The difference between the weighted mean and its value under a lognormal, or normal, model."""
    weight_misfit: Floats
    outcome_variance: Floats
    weight_variance: Floats
    covariance: Floats
    size: Floats | None = None
    """Posterior draws of the true sizes of the cells; None if sizes are public."""
    between: Floats | None = None
    """The part of the two variances and the covariance that is between clusters, in the order t, tv, v: draw × 3, or
    draw × 1 if weights are public; None if the design has no clusters."""

    def __len__(self) -> int:
        return len(self.outcome_mean)

    def only(self, draws: Integers) -> CellDraws:
        """The chosen draws."""
        own = {name: values[draws] for name, values in vars(self).items() if values is not None}
        return CellDraws(**own)


def unscaled(found: dict[str, Floats], measurement: Measurement) -> CellDraws:
    """Convert draws in scales to draws in units of the transformed answers."""
    (first, second), (width, other) = measurement.scaling.centres, measurement.scaling.widths
    if measurement.plan.weights_public:
        within = found["mean_square"]
        nothing = np.empty((len(within), 0))
        return CellDraws(
            first + width * found["outcome_mean"],
            nothing,
            found["outcome_misfit"] * (1.0 if measurement.transform == "log" else width),
            nothing,
            width**2 * within[:, 0],
            nothing,
            width * within[:, 1:].sum(axis=1),  # zero if weights are constant within cells
            between=width**2 * found["between"] if "between" in found else None,
        )
    spread, between = found["spread"], None
    s_t, s_v = width * spread[:, 0], other * spread[:, 1]
    variances = s_t**2, s_t * s_v * spread[:, 2], s_v**2
    if "between" in found:
        between = kept_inside(found["between"] * [width**2, width * other, other**2], np.stack(variances, axis=1))
    return CellDraws(
        first + width * found["outcome_mean"],
        second + other * found["weight_mean"],
        found["outcome_misfit"] * (1.0 if measurement.transform == "log" else width),
        found["weight_misfit"],
        variances[0],
        variances[2],
        variances[1],
        between=between,
    )


@outlined
@dataclass(frozen=True, eq=False)
class CellFigures:
    """The mean weight w̄ and the weighted mean outcome ȳ of each cell, and the spread about them: draw × cell."""

    weight: Floats
    outcome: Floats
    squared_weight: Floats
    """E w²."""
    tilted_outcome: Floats
    """E w²y / E w²."""
    tilted_variance: Floats
    """E w²y² / E w² minus the square of `tilted_outcome`."""
    own_spread: tuple[Floats, Floats, Floats]
    """What t², tv and v² of one record, relative to the model's, add to the (co)variances of log w̄ and ȳ: first the
    variance of log w̄, then the covariance, then the variance of ȳ."""
    size: Floats
    """The number of records: draw × cell, or one for each cell if sizes are public."""
    scaled: bool = True
    """Whether weights are scaled to a known total."""
    pairs: PairMoments | None = None
    """The covariances of two records of a cluster; None if the design has no clusters."""
    calibration: CalibratedVariance | None = None
    """The regression on the totals that weights are calibrated to; None if there are none."""
    known: KnownClusters | None = None
    """The clusters if weights are public too; None otherwise."""

    def calibrated(self, facts: PublicFacts) -> CellFigures:
        """The figures with weights that are calibrated to the totals of the facts, if there are any."""
        if facts.calibration is None:
            return self
        found, factor = CalibratedVariance.of(facts.calibration, facts, self.weight * self.size)
        squared = factor**2 * self.squared_weight
        return replace(self, weight=factor * self.weight, squared_weight=squared, calibration=found)


def cell_figures(
    draws: CellDraws, size: Integers, population_total: float, transform: Transform, bounds: tuple[float, float]
) -> CellFigures:
    """The figures of every cell under every draw."""
    records = size.astype(float) if draws.size is None else np.maximum(draws.size, LEAST_SIZE)
    log_weight = draws.weight_mean + draws.weight_misfit
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weight *= population_total / (weight * records).sum(axis=1, keepdims=True)
    across, variance = draws.covariance[:, None], draws.outcome_variance[:, None]
    outcome = draws.outcome_mean + across + draws.outcome_misfit
    squared = weight**2 * np.exp(np.minimum(draws.weight_variance, LARGEST_VARIANCE))[:, None]
    own = [
        values + np.zeros_like(outcome)
        for values in own_spread(draws.outcome_variance, draws.weight_variance, draws.covariance, transform)
    ]
    pairs = None if draws.between is None else PairMoments.of(draws.between, transform)
    if transform == "identity":
        outcome = np.clip(outcome, *bounds)
        tilted = np.clip(outcome + across, *bounds)
        spread = variance + 0 * outcome
        return CellFigures(weight, outcome, squared, tilted, spread, (own[0], own[1], own[2]), records, pairs=pairs)
    outcome = np.clip(np.exp(np.minimum(outcome + variance / 2, LARGEST_EXPONENT)), *bounds)
    tilted = np.clip(outcome * np.exp(np.clip(across, -LARGEST_VARIANCE, LARGEST_VARIANCE)), *bounds)
    spread = tilted**2 * np.expm1(np.minimum(variance, LARGEST_VARIANCE))
    by_outcome = own[0], own[1] * outcome, own[2] * outcome**2
    return CellFigures(weight, outcome, squared, tilted, spread, by_outcome, records, pairs=pairs)


def tables_of_draws(
    cells: CellFigures, facts: PublicFacts, tables: Sequence[TableSpec], estimation: EstimationSpec
) -> pl.DataFrame:
    """The requested tables, with an estimate and a standard error in each row."""
    columns = tuple(dict.fromkeys(column for table in tables for column in table.by))
    chosen = [list(facts.labels).index(column) for column in columns]
    levels = facts.codes[facts.cell][:, chosen]
    sampled = facts
    place: Integers = np.arange(len(facts.count))
    if cells.known is not None:
        sampled, place = cells.known.facts, cells.known.place
    exact, clusters = ExactCounts.of(sampled), ClusterSizes.of(sampled)
    frames = []
    for table in tables:
        layout, title, inside = Layout.of(table, columns, facts), title_of(table, facts.domain), _base(table, facts)
        for statistic in table.sums:
            value = np.full(layout.rows + 1, np.nan if statistic == "mean" else 0.0)
            variance, count = value.copy(), np.zeros(layout.rows + 1, np.int64)
            known = exact if statistic in ("count", "proportion") else None
            for row in layout.domains(levels) if inside.any() else ():
                # groups outside the base have a row of their own, which is left out in the end
                filled, domain = np.unique(np.where(inside, row, layout.rows), return_inverse=True)
                if known is None:
                    found, spread = _figures(statistic, cells, facts, domain, inside, clusters)
                    spread = np.where(spread > (ROUNDING * found) ** 2, spread, 0.0)
                else:
                    found, spread = known(statistic, domain[place], estimation.lonely, inside[place])
                value[filled], variance[filled] = found, spread
                count[filled] = np.bincount(domain, facts.count, len(filled)).astype(np.int64)
            if statistic == "mean":
                value[count == 0] = variance[count == 0] = np.nan
            if statistic == "proportion" and not inside.any():
                value[:] = variance[:] = np.nan
            df = np.inf if known is None else float(records_less_strata(facts.count, facts.stratum, inside))
            df = df if clusters is None else float(clusters_less_strata(sampled, inside[place]))
            rows = value[:-1], variance[:-1], count[:-1]
            frames.append(finish_table(title, statistic, layout.label_columns(columns), *rows, df, estimation))
    return pl.concat(frames)


def _base(table: TableSpec, facts: PublicFacts) -> Booleans:
    """Which groups are inside the domains of a table; all of them without a domain."""
    levels, columns, inside = facts.codes[facts.cell], list(facts.labels), np.ones(len(facts.cell), bool)
    for name in domain_columns(table, facts.domain, facts.domains):
        domain = facts.domains[name]
        inside &= domain.holds([levels[:, columns.index(column)] for column in domain.columns])
    return inside


def _figures(
    statistic: Statistic,
    cells: CellFigures,
    facts: PublicFacts,
    domain: Integers,
    inside: Booleans,
    clusters: ClusterSizes | None,
) -> tuple[Floats, Floats]:
    """Estimate and variance of a statistic for each domain; `domain` gives the domain of each group.

    Proportions are of the groups that are inside the table's base.
    """
    base = inside if statistic == "proportion" else np.ones(len(inside), bool)
    sums = _Sums.of(cells, cells.size, facts, domain, base)
    figures = estimate(statistic, sums.weight, sums.outcome, sums.base)
    typical = _Sums.of(cells, np.maximum(facts.size, LEAST_SIZE), facts, domain, base)
    values = _linearised(statistic, typical, cells.scaled)
    left_out = _not_followed(statistic, typical, cells, facts, domain)
    of_clusters = None
    if clusters is not None and cells.pairs is not None:
        of_clusters = ClusteredVariance(clusters, cells.weight, cells.outcome, cells.pairs)
    if cells.calibration is not None:
        moments = _moments_within(cells, facts), _moments_of_spread(cells, facts)
        of_records = (cells.weight, cells.outcome), moments, facts, domain, typical.in_base
        design, left_out = cells.calibration(*of_records, values, of_clusters)
    elif cells.known is not None:
        design = cells.known(domain, *values[:2])
    elif of_clusters is None:
        design = _design_variance(statistic, typical, cells, facts, domain)
    else:
        design = of_clusters(*_of_cells(facts, domain, base), *values)
        design += _within_cells(cells, facts, typical.in_base, domain, *values)
    design = design - np.minimum(left_out, MOST_NOT_FOLLOWED * design)
    return figures.mean(axis=0), figures.var(axis=0, ddof=1) + np.median(design, axis=0)


@outlined
@dataclass(frozen=True, eq=False)
class _Sums:
    """Σw and Σwy of each domain, and Σw of the base, which is the whole file or the base of proportions."""

    weight: Floats
    """Draw × domain."""
    outcome: Floats
    base: Floats
    in_base: Floats
    """1 for each group that is in the base, else 0."""

    @classmethod
    def of(cls, cells: CellFigures, size: Floats, facts: PublicFacts, domain: Integers, base: Booleans) -> _Sums:
        place, in_base = _of_cells(facts, domain, base)
        inside = np.eye(int(domain.max()) + 1)[place]
        weight = cells.weight * size
        whole = (weight @ in_base)[:, np.newaxis]
        return cls(weight @ inside, (weight * cells.outcome) @ inside, whole, base.astype(float))


def _of_cells(facts: PublicFacts, domain: Integers, base: Booleans) -> tuple[Integers, Floats]:
    """The domain of each cell, and 1 for each cell in the base, from those of groups: a domain is a union of cells."""
    place, in_base = np.empty(len(facts.codes), np.int64), np.zeros(len(facts.codes))
    place[facts.cell], in_base[facts.cell] = domain, base
    return place, in_base


def _linearised(statistic: Statistic, sums: _Sums, scaled: bool) -> tuple[Floats, Floats, Floats]:
    """The a, b and c of the linearised values z = w(1_d(a + b·y) − c·1_base): draw × domain."""
    nothing = np.zeros_like(sums.weight)
    match statistic:
        case "mean":
            return -sums.outcome / sums.weight**2, 1 / sums.weight, nothing
        case "total":
            return nothing, nothing + 1, scaled * sums.outcome / sums.base
        case "count":
            return nothing + 1, nothing, sums.weight / sums.base
        case "proportion":
            return nothing + 1 / sums.base, nothing, sums.weight / sums.base**2


def _design_variance(
    statistic: Statistic, sums: _Sums, cells: CellFigures, facts: PublicFacts, domain: Integers
) -> Floats:
    """E Σ_h (1 − f_h)·n_h/(n_h − 1)·Σ(z − z̄_h)² under each draw, for linearised values z of a statistic: draw × domain.

    Between cells it is the variance of records at the means of their cells; within cells it is Σ (1 − f)n_c Var z.
    Files are scaled to the population total N, so the linearised count is w(1_d − N_d/N), and the total likewise. The
    linearised mean is w·1_d(y − ȳ_d)/N_d. All have the form z = w(1_d(a + b·y) − c), with a, b and c constant within a
    domain. In a proportion of a base, c is zero outside the base.
    """
    a, b, c = _linearised(statistic, sums, cells.scaled)
    domains = a.shape[1]
    of_stratum, unsampled = facts.of_stratum, facts.unsampled
    found = np.zeros_like(a)
    for stratum in np.flatnonzero(of_stratum > 1):
        own = np.flatnonzero(facts.stratum == stratum)
        inside, size = np.eye(domains)[domain[own]], of_stratum[stratum]
        weight, outcome = cells.weight[:, facts.cell[own]], cells.outcome[:, facts.cell[own]]
        w, ww, in_base = weight * facts.count[own], weight**2 * facts.count[own], sums.in_base[own, np.newaxis]
        form = a * (ww @ inside) + b * ((ww * outcome) @ inside)
        square = a * form + b * (a * ((ww * outcome) @ inside) + b * ((ww * outcome**2) @ inside))
        square += c * (c * (ww @ in_base) - 2 * form)
        total = a * (w @ inside) + b * ((w * outcome) @ inside) - c * (w @ in_base)
        found = found + unsampled[stratum] * size / (size - 1) * np.maximum(square - total**2 / size, 0.0)
    return found + _within_cells(cells, facts, sums.in_base, domain, a, b, c)


def _within_cells(
    cells: CellFigures, facts: PublicFacts, in_base: Floats, domain: Integers, a: Floats, b: Floats, c: Floats
) -> Floats:
    """Σ (1 − f)n_c Var z, with z = w(1_d(a + b·y) − c·1_base)."""
    return quadratic(_moments_within(cells, facts), facts, in_base, domain, a, b, c)


def _moments_within(cells: CellFigures, facts: PublicFacts) -> tuple[Floats, Floats, Floats]:
    """The variance of w, the covariance of w and wy, and the variance of wy, of a record in each group."""
    cell = facts.cell
    mean, outcome, second = (values[:, cell] for values in (cells.weight, cells.outcome, cells.squared_weight))
    tilted, spread = cells.tilted_outcome[:, cell], cells.tilted_variance[:, cell]
    # E w², E w²y, E w²y², less the squares of E w and E wy
    of_weight = second - mean**2
    of_both = second * tilted - mean**2 * outcome
    of_outcome = second * (tilted**2 + spread) - (mean * outcome) ** 2
    return of_weight, of_both, of_outcome


def _not_followed(
    statistic: Statistic, sums: _Sums, cells: CellFigures, facts: PublicFacts, domain: Integers
) -> Floats:
    """The part of the design variance that figures of the model do not have: draw × domain.

    The random variation of the spread in each cell changes direct figures, but not those of the model. The common
    spread of all cells, which the model uses, has a sampling error of its own; this error is not left out.
    """
    a, b, c = _linearised(statistic, sums, cells.scaled)
    weight, last = cells.weight[:, facts.cell], cells.own_spread[2][:, facts.cell]
    found = quadratic(_moments_of_spread(cells, facts), facts, sums.in_base, domain, a, b, c)
    common = b * ((weight * np.sqrt(last) * facts.count) @ np.eye(a.shape[1])[domain])
    unsampled = np.average(facts.unsampled[facts.stratum], weights=facts.count)
    return np.asarray(np.maximum(found - unsampled * common**2 / facts.count.sum(), 0.0))


def _moments_of_spread(cells: CellFigures, facts: PublicFacts) -> tuple[Floats, Floats, Floats]:
    """What the random variation of the spread in each cell adds to (co)variances of w and wy, for a record."""
    weight, outcome = cells.weight[:, facts.cell], cells.outcome[:, facts.cell]
    first, both, last = (each[:, facts.cell] for each in cells.own_spread)
    both_all, last_all = outcome * first + both, outcome**2 * first + 2 * outcome * both + last
    return weight**2 * first, weight**2 * both_all, weight**2 * last_all
