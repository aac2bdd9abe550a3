"""Variances: the statistics of noisy tables and their variances, from noisy sums.

Let S₀ = Σu and S₁ = Σut, with u = w/high and t = (y − r)/D. Every statistic is a sum over records of z = a·u + b·u·t,
or is linearised as one, and has the noise variance (a² + b²)·v, where v is the noise variance of S₀ and of S₁:

    count   high·S₀           a = high           b = 0
    total   high·(rS₀ + DS₁)  a = high·r         b = high·D
    mean    r + Dτ            a = −Dτ/S₀         b = D/S₀        τ = S₁/S₀, within −1 … 1

and a proportion is a ratio of counts. The sampling variance is Σ_h c_h·(Σz² − (Σz)²/n_h), as in `linearization.py`,
where the amount that noise adds to (Σz)² is subtracted. The direct estimate takes Σz² from the noisy sums of u², u²t
and u²t². In a row with few records these are mostly noise. So the direct variance is blended with a modelled one. The
model says that weights vary by the same κ = nΣu²/S₀² and outcomes by the same σ² in every cell. Both are estimated from
the whole sample, hence Σz² = κ·((Σz)² + b²σ²S₀²)/n. The blend is the precision-weighted mean of the two, with noise
variance q for the direct variance and MODEL_ERROR for the modelled one. Without noise it is the direct variance. The
blend is kept between what records with these sums must have, Σz² ≥ (Σz)²/n, and what they can have,
Σz² ≤ S₀·((a + bτ)² + b²(1 − τ²)). If no table splits a row by stratum, the sample counts as one stratum, which gives
too large a variance if strata differ.

In a design of clusters c_h and the degrees of freedom are those of clusters. What pairs of records of the same cluster
add is then added to the variance of records, unless it is negative. A row has Π such pairs, which is public. They add

    Σ_h c_h·(Π·(μ_w·z̄² + μ_y·b²ū² + cross) − (Σz)²·(1/m_h − 1/n_h)),

with m_h clusters in the stratum, means z̄ and ū of z and u in the row, and μ_w and μ_y measured for the whole file
(`alike.py`). Not measured is the cross part, of weights with outcomes: it is taken to be as large as it can be. Where
outcomes of a row vary more than the model says, the part of outcomes is larger in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from svysynth.core.grouping import Floats, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.statistics import Statistic
from svysynth.mechanisms.noise import MODEL_ERROR, RESOLUTION, Level
from svysynth.mechanisms.noisy_tables.alike import Alike
from svysynth.mechanisms.noisy_tables.combinations import Grid, LevelSums, Pieces, Strata

LEAST_COUNT = 1 / RESOLUTION
"""A smaller S₀ counts as zero."""


@outlined
@dataclass(frozen=True, eq=False)
class Estimates:
    """A statistic for every row of a level."""

    value: Floats
    sampling: Floats
    privacy: Floats
    relative: Floats
    """The relative variance of the estimated variance, which is the sum of sampling and privacy."""


@outlined
@dataclass(frozen=True, eq=False)
class Model:
    """The model for the records of a row: how weights and outcomes vary within it, estimated from the whole sample."""

    kappa: float
    """nΣu²/S₀² within a cell: 1 for equal weights."""
    sigma_squared: float
    """The variance of t."""
    kappa_noise: float
    """The relative noise variance of κ, and of κσ²."""
    sigma_noise: float
    of_weights: float
    """Σu² of the whole sample."""

    @classmethod
    def of(cls, grid: Grid, levels: Mapping[Level, LevelSums]) -> Model:
        """From the sums of the whole sample; κ − 1 and σ² are kept at least as large as the noise in them may be."""
        whole = levels[()]
        count, square = max(whole.points[0].item(), LEAST_COUNT), whole.squares[:, 0].tolist()
        finest = levels.get(grid.columns)
        sizes = grid.add(() if finest is None else grid.columns, grid.size)
        equal = float((_squared(finest or whole) / sizes).sum())
        noise = math.sqrt(whole.square_variance.item())
        kappa = min(max(square[0], equal + noise), max(count, equal)) / equal if equal > 0 else 1.0
        place = min(max(whole.points[1].item() / count, -1.0), 1.0)
        of_weights = max(square[0], kappa * equal, LEAST_COUNT)
        noises = noise * math.sqrt(1 + 4 * place**2 + place**4)
        around = max(square[2] - 2 * place * square[1] + place**2 * square[0], noises, LEAST_COUNT)
        sigma_squared = min(around / of_weights, 1 - place**2)
        return cls(kappa, sigma_squared, (noise / of_weights) ** 2, (noises / around) ** 2, of_weights)


def _squared(sums: LevelSums) -> Floats:
    """S₀² of each row, minus the amount that noise adds."""
    return np.asarray(np.maximum(sums.points[0] ** 2 - sums.point_variance, 0))


def estimate(
    statistic: Statistic,
    level: Level,
    levels: Mapping[Level, LevelSums],
    grid: Grid,
    strata: Strata,
    bounds: BoundsSpec,
    model: Model,
    alike: Alike | None,
    consistency: bool,
) -> Estimates:
    """The estimates with sampling and noise variance; NaN for a mean or proportion if the count is zero."""
    if statistic == "proportion":
        return _proportion(level, levels, grid, strata, model, alike, consistency)
    high, (low, top) = bounds.weight[1], bounds.outcome
    middle, half = (low + top) / 2, (top - low) / 2
    sums = levels[level]
    count, place = _count_and_place(sums)
    # The coefficients a and b are in units of `unit`, so that no square or fourth power overflows.
    match statistic:
        case "count":
            unit, a, b = high, np.ones(len(count)), np.zeros(len(count))
            value = high * sums.points[0]
        case "total":
            unit, a, b = high * half, np.full(len(count), middle / half), np.ones(len(count))
            value = high * (middle * sums.points[0] + half * sums.points[1])
        case "mean":
            unit, a, b = half, -place / count, 1 / count
            value = middle + half * place
    pieces = strata.pieces(grid, level, strata.finer(grid, level))
    privacy = (a**2 + b**2) * sums.point_variance
    sampling, error = _sampling_variance(sums, levels[pieces.level], pieces, a, b, model, alike)
    return Estimates(value, sampling * unit**2, privacy * unit**2, _relative(error, sampling + privacy))


def _count_and_place(sums: LevelSums) -> tuple[Floats, Floats]:
    """S₀ and τ; NaN if the count is zero."""
    count = np.where(sums.points[0] > LEAST_COUNT, sums.points[0], np.nan)
    return count, np.clip(sums.points[1] / count, -1, 1)


def _relative(error: Floats, variance: Floats) -> Floats:
    return np.divide(error, variance**2, out=np.zeros(len(variance)), where=variance**2 > 0)


def _sampling_variance(
    sums: LevelSums, parts: LevelSums, pieces: Pieces, a: Floats, b: Floats, model: Model, alike: Alike | None
) -> tuple[Floats, Floats]:
    """Σ c_h·(Σz² − (Σz)²/n_h) of z = a·u + b·ut for each row, from noisy sums, and the variance of this estimate.

    With clusters this is the part of single records, to which that of pairs is added.
    """
    add = partial(group_sums, pieces.owner, len(a))
    count, place = _count_and_place(sums)
    here_a, here_b = a[pieces.owner], b[pieces.owner]
    noise = (here_a**2 + here_b**2) * parts.point_variance
    linear = np.maximum((here_a * parts.points[0] + here_b * parts.points[1]) ** 2 - noise, 0)
    squares = here_a**2 * parts.squares[0] + 2 * here_a * here_b * parts.squares[1] + here_b**2 * parts.squares[2]
    center = pieces.centred * linear / pieces.drawn
    most = pieces.largest_scale(len(a))
    q = most**2 * (a**4 + 4 * a**2 * b**2 + b**4) * sums.square_variance
    by_weight = add(pieces.scale * model.kappa * linear / pieces.size)
    by_outcome = add(pieces.scale * model.kappa * model.sigma_squared * here_b**2 * _squared(parts) / pieces.size)
    modelled = by_weight + by_outcome - add(pieces.scale * center)
    of_model = model.kappa_noise * by_weight**2 + model.sigma_noise * by_outcome**2
    blend, error = _blend(add(pieces.scale * (squares - center)), q, modelled, of_model)
    floor = add(pieces.scale * np.maximum(linear / pieces.size - center, 0))
    ceiling = np.nan_to_num(most * count * ((a + b * place) ** 2 + b**2 * (1 - place**2)))
    single = np.clip(blend, floor, np.maximum(floor, ceiling))
    if alike is None:
        return single, error
    more = np.maximum(np.divide(single, modelled, out=np.ones(len(single)), where=modelled > 0), 1)
    outcome = here_b**2 * _squared(parts) / pieces.size**2
    of_weights, of_outcomes, of_both = alike.of_pairs(pieces.level, linear / pieces.size**2, outcome)
    fewer = pieces.centred * linear * (1 / pieces.units - 1 / pieces.drawn)
    of_outcomes = more * add(pieces.scale * of_outcomes)
    pairs = add(pieces.scale * (of_weights + of_both - fewer)) + of_outcomes
    error += alike.weights_noise * add(pieces.scale * of_weights / max(alike.weights, LEAST_COUNT)) ** 2
    error += alike.outcomes_noise * (of_outcomes / max(alike.outcomes, LEAST_COUNT)) ** 2
    return single + np.maximum(pairs, 0), error


def _blend(direct: Floats, noise: Floats, modelled: Floats, of_model: Floats) -> tuple[Floats, Floats]:
    """The precision-weighted mean of a direct variance with noise and a modelled one, and the variance of this mean.

    The noise variance of the model, `of_model`, is part of the variance of the mean. However far below zero noise takes
    the direct variance, half of the model's part remains.
    """
    spread = (MODEL_ERROR * modelled) ** 2
    weight = np.divide(spread, spread + noise, out=np.ones(len(noise)), where=noise > 0)
    blend = np.maximum(modelled + weight * (direct - modelled), (1 - weight) * modelled / 2)
    return blend, weight * noise + (1 - weight) ** 2 * of_model


def _proportion(
    level: Level,
    levels: Mapping[Level, LevelSums],
    grid: Grid,
    strata: Strata,
    model: Model,
    alike: Alike | None,
    consistency: bool,
) -> Estimates:
    """Proportions: z = u(1 − p)/S₀ in the row and −u·p/S₀ elsewhere in its base, with S₀ of the base.

    The base is the whole population, or the part of it that is inside the domains of the table.
    """
    of_base = grid.base(level)
    sums, whole, base = levels[level], levels[of_base], grid.owner(level, of_base)
    population = np.where(whole.points[0] > LEAST_COUNT, whole.points[0], np.nan)[base]
    share = np.clip(sums.points[0] / population, 0, 1)
    finer = strata.finer(grid, level)
    pieces = strata.pieces(grid, level, finer)
    around = strata.pieces(grid, of_base, None if finer is None else strata.finer(grid, of_base))
    inside, outside = levels[pieces.level], levels[around.level]
    stratum = grid.owner(pieces.level, around.level)
    p = share[pieces.owner]
    cross = pieces.centred * inside.points[0] * (inside.points[0] - 2 * p * outside.points[0][stratum]) / pieces.drawn
    center = around.centred * outside.points[0] ** 2 / around.drawn

    def variance(squares: Floats, all_squares: Floats) -> Floats:
        own = group_sums(pieces.owner, len(share), pieces.scale * ((1 - 2 * p) * squares - cross))
        of_bases = group_sums(around.owner, grid.rows[of_base], around.scale * (all_squares - center))
        return np.asarray(own + share**2 * of_bases[base])

    direct = variance(inside.squares[0], outside.squares[0])
    modelled = variance(*(model.kappa * _squared(part) / of.size for part, of in ((inside, pieces), (outside, around))))
    most = around.scale.max()
    q = most**2 * ((1 - 2 * share) ** 2 * sums.square_variance + share**4 * whole.square_variance[base])
    blend, error = _blend(direct, q, modelled, model.kappa_noise * modelled**2)
    sampling = np.clip(blend, 0, most * population * share * (1 - share))
    if alike is not None:
        own, of_bases = inside.points[0] / pieces.size, outside.points[0] / around.size
        known, known_base = alike.clusters.pairs[pieces.level], alike.clusters.pairs[around.level]
        beside = alike.clusters.in_base[pieces.level]
        fewer, fewer_base = 1 / pieces.units - 1 / pieces.drawn, 1 / around.units - 1 / around.drawn

        def add_pairs(weights: float, centred: float) -> Floats:
            products = weights * (known * own**2 - 2 * p * beside * own * of_bases[stratum])
            of_row = pieces.scale * (products - centred * cross * pieces.drawn * fewer)
            squares = around.scale * (weights * known_base * of_bases**2 - centred * center * around.drawn * fewer_base)
            of_base_row = group_sums(around.owner, grid.rows[of_base], squares)[base]
            return np.asarray(group_sums(pieces.owner, len(share), of_row) + share**2 * of_base_row)

        sampling = sampling + np.where(share < 1, np.maximum(add_pairs(alike.weights, 1.0), 0), 0)
        error = error + alike.weights_noise * add_pairs(1.0, 0.0) ** 2
    # The noise of a row is part of the noise of its base, in proportion to the row's cells, which all have the same.
    part = grid.cells(level) / grid.cells(of_base)[base]
    part = part if consistency or level == of_base else np.zeros(len(share))
    noise = np.maximum(sums.point_variance + whole.point_variance[base] * (share**2 - 2 * share * part), 0)
    return Estimates(share, sampling / population**2, noise / population**2, _relative(error, sampling + noise))
