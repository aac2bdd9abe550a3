"""Tables with additive noise that can be released: ε-differentially private at every n (beyond the paper's §2.4).

Neighbouring data sets differ in one respondent's outcome and weight. The public columns, the strata, the finite
population correction and the number of records in every cell are public and the same in both. Only noisy sums
(`noise.py`) of some levels (combinations of kept columns) are taken from the confidential data; the rest is arithmetic
on these sums.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec, Unit
from svysynth.core.spec.statistics import Statistic
from svysynth.estimation.asked import require_public
from svysynth.estimation.frames import Layout, finish_table, title_of
from svysynth.mechanisms.findings import no_quantiles, refuse, unknown_domains
from svysynth.mechanisms.noise import (
    LEAST_EPSILON,
    MODEL_ERROR,
    RESOLUTION,
    Level,
    Noise,
    OpenDPNoise,
    Use,
    laplace_measurement,
    least_steps,
    split_budget,
)
from svysynth.mechanisms.noisy_tables.alike import Alike, Answer, Clusters, PairUse, Spread, StratumMeans, measure_alike
from svysynth.mechanisms.noisy_tables.combinations import (
    Grid,
    LevelSums,
    Pieces,
    Strata,
    add_up,
    as_measured,
    levels_of,
    measure,
)
from svysynth.mechanisms.noisy_tables.statement import notes_on, statement
from svysynth.mechanisms.unit import epsilon_of_record
from svysynth.survey.survey import Survey

PAIRS_SHARE = 0.15
"""The share of ε that measures how alike respondents of a cluster are, if the design has clusters."""
LEAST_COUNT = 1 / RESOLUTION
"""A smaller S₀ counts as zero."""


@outlined
@dataclass(frozen=True, eq=False)
class AdditiveTables:
    """Tables with additive noise. Everything here may be published."""

    tables: pl.DataFrame
    """The columns of `tabulate_all`, and se_sampling and se_privacy; se² is the sum of the squares of these two."""
    uses: tuple[Use | PairUse, ...]
    budget: str
    """The guarantee, what it covers, and how the budget was spent, in words."""
    notes: tuple[str, ...]


def additive_tables(
    survey: Survey,
    tables: Sequence[TableSpec],
    epsilon: float,
    bounds: BoundsSpec,
    *,
    estimation: EstimationSpec | None = None,
    noise: Noise | None = None,
    consistency: bool = True,
    unit: Unit = "respondent",
) -> AdditiveTables:
    """Tables of a survey that are ε-differentially private; an infinite ε adds no noise.

    Intervals use the t quantile with the degrees of freedom of the design, reduced for noise in the variance. Where
    noise is nearly all of the error, intervals of nominally 95% cover 94%, because a Laplace distribution has longer
    tails. With `consistency=False` every level is measured and the noisy sums are not made to add up. This setting and
    `noise` are for studies. Call this function once: every call is a release of its own.
    """
    estimation = estimation or EstimationSpec()
    own = epsilon_of_record(epsilon, unit, survey)
    layouts, grid, uses, parts = _plan(survey, tables, own, bounds, estimation, consistency)
    noisy = measure(survey, grid, uses, bounds, noise or OpenDPNoise())
    least = least_steps("points", bounds) / RESOLUTION
    levels = add_up(grid, uses, noisy, least) if consistency else as_measured(uses, noisy)
    strata, model = Strata.of(survey, grid, estimation.lonely), _Model.of(grid, levels)
    alike = _alike(survey, grid, strata, levels, model, bounds, parts, noise or OpenDPNoise())
    if alike is not None:
        model = replace(model, sigma_squared=alike.spread, sigma_noise=alike.spread_noise)
    estimates = cache(
        lambda statistic, level: _estimate(statistic, level, levels, grid, strata, bounds, model, alike, consistency)
    )
    frames = [
        _tidy(number, tables[number], layout, statistic, survey, grid, partial(estimates, statistic), estimation)
        for number, layout in enumerate(layouts)
        for statistic in tables[number].sums
    ]
    pairs = () if alike is None else alike.uses
    said = statement(epsilon, own, unit, bounds, uses, pairs)
    return AdditiveTables(pl.concat(frames), (*uses, *pairs), said, notes_on(survey, grid, strata, noise))


def check_additive(
    survey: Survey,
    tables: Sequence[TableSpec],
    epsilon: float,
    bounds: BoundsSpec,
    estimation: EstimationSpec | None = None,
    unit: Unit = "respondent",
) -> None:
    """Refuse what `additive_tables` would refuse, before any budget is spent."""
    own = epsilon_of_record(epsilon, unit, survey)
    _plan(survey, tables, own, bounds, estimation or EstimationSpec(), consistency=True)
    laplace_measurement(1.0)


def _plan(
    survey: Survey,
    tables: Sequence[TableSpec],
    epsilon: float,
    bounds: BoundsSpec,
    estimation: EstimationSpec,
    consistency: bool,
) -> tuple[list[Layout], Grid, tuple[Use, ...], dict[Answer, Fraction | None]]:
    """The tables' layouts, their levels and the split of the budget, with the ε of pairs: all public."""
    refuse(no_quantiles(tables, "noise on tables"))
    _refuse(survey, estimation, epsilon)
    columns = tuple(dict.fromkeys(column for table in tables for column in table.by))
    require_public(survey, columns)
    layouts = [Layout.of(table, columns, survey) for table in tables]
    grid = Grid.of(survey, columns, tables)
    statistics = {statistic for table in tables for statistic in table.sums}
    rest, parts = part_for_pairs(survey, statistics, epsilon)
    uses = split_budget(grid.rows, len(survey), statistics, bounds, rest, every_level=not consistency)
    return layouts, grid, uses, parts


def part_for_pairs(
    survey: Survey, statistics: Collection[Statistic], epsilon: float
) -> tuple[float, dict[Answer, Fraction | None]]:
    """The ε that is left for the tables, and that of each number about pairs. They add up exactly."""
    if survey.design.cluster is None:
        return epsilon, {}
    answers: dict[Answer, int] = {"weights": 1}
    if not {"mean", "total"}.isdisjoint(statistics):
        answers = {"spread": 1, "weights": 2, "outcomes": 2}
    rest = epsilon * (1 - PAIRS_SHARE)
    if math.isinf(epsilon):
        return rest, dict.fromkeys(answers)
    part = (Fraction(epsilon) - Fraction(rest)) / sum(answers.values())
    if part < LEAST_EPSILON:
        remedy = "use a larger privacy.epsilon"
        raise SurveyError("spec", "privacy.epsilon", "is too small for these tables", remedy)
    return rest, {answer: part * share for answer, share in answers.items()}


def _alike(
    survey: Survey,
    grid: Grid,
    strata: Strata,
    levels: Mapping[Level, LevelSums],
    model: _Model,
    bounds: BoundsSpec,
    parts: Mapping[Answer, Fraction | None],
    noise: Noise,
) -> Alike | None:
    """How alike respondents of a cluster are, measured with noise; None without clusters."""
    if not parts:
        return None
    means = StratumMeans.of(grid, strata.pieces(grid, (), strata.finer(grid, ())), levels, model.sigma_squared)
    clusters = Clusters.of(survey, grid)
    known = Spread(model.kappa, model.of_weights, model.sigma_squared, model.sigma_noise)
    return measure_alike(survey, grid, means, clusters, bounds, known, parts, noise)


def _refuse(survey: Survey, estimation: EstimationSpec, epsilon: float) -> None:
    if not epsilon > 0:
        raise SurveyError("spec", "privacy.epsilon", "is not positive", "set privacy.epsilon to the ε to spend")
    refuse(unknown_domains(survey))
    if estimation.variance != "taylor":
        place = f"estimation.variance = '{estimation.variance}'"
        raise SurveyError("spec", place, "noisy tables have no replicates", "set estimation.variance = 'taylor'")
    if estimation.lonely == "average":
        problem = "noisy tables cannot average other strata"
        raise SurveyError("spec", "estimation.lonely", problem, "set it to 'certainty' or 'adjust'")
    survey.index.refuse_lonely(estimation.lonely)


# --- estimates and their variances ---


@outlined
@dataclass(frozen=True, eq=False)
class _Estimates:
    """A statistic for every row of a level."""

    value: Floats
    sampling: Floats
    privacy: Floats
    relative: Floats
    """The relative variance of the estimated variance, which is the sum of sampling and privacy."""


@outlined
@dataclass(frozen=True, eq=False)
class _Model:
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
    def of(cls, grid: Grid, levels: Mapping[Level, LevelSums]) -> _Model:
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


def _estimate(
    statistic: Statistic,
    level: Level,
    levels: Mapping[Level, LevelSums],
    grid: Grid,
    strata: Strata,
    bounds: BoundsSpec,
    model: _Model,
    alike: Alike | None,
    consistency: bool,
) -> _Estimates:
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
    return _Estimates(value, sampling * unit**2, privacy * unit**2, _relative(error, sampling + privacy))


def _count_and_place(sums: LevelSums) -> tuple[Floats, Floats]:
    """S₀ and τ; NaN if the count is zero."""
    count = np.where(sums.points[0] > LEAST_COUNT, sums.points[0], np.nan)
    return count, np.clip(sums.points[1] / count, -1, 1)


def _relative(error: Floats, variance: Floats) -> Floats:
    return np.divide(error, variance**2, out=np.zeros(len(variance)), where=variance**2 > 0)


def _sampling_variance(
    sums: LevelSums, parts: LevelSums, pieces: Pieces, a: Floats, b: Floats, model: _Model, alike: Alike | None
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
    model: _Model,
    alike: Alike | None,
    consistency: bool,
) -> _Estimates:
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
    return _Estimates(share, sampling / population**2, noise / population**2, _relative(error, sampling + noise))


# --- the tidy tables ---


def _tidy(
    number: int,
    table: TableSpec,
    layout: Layout,
    statistic: Statistic,
    survey: Survey,
    grid: Grid,
    estimates: Callable[[Level], _Estimates],
    estimation: EstimationSpec,
) -> pl.DataFrame:
    """A statistic of a table as a tidy frame; rows without records have zero, or no value for a mean."""
    count, inside = np.zeros(layout.rows, np.int64), grid.inside(number)
    undefined = statistic == "mean" or (statistic == "proportion" and not inside.any())
    value, sampling, privacy, relative = np.full((4, layout.rows), np.nan if undefined else 0.0)
    levels = levels_of(table.by, grid.columns, grid.domains[number])
    for level, rows in zip(levels, layout.domains(grid.codes), strict=True):
        found, own, row = estimates(level), grid.row[level][inside], rows[inside]
        count[row] = grid.add(level, grid.size)[own]
        value[row], sampling[row], privacy[row] = found.value[own], found.sampling[own], found.privacy[own]
        relative[row] = found.relative[own]
    labels = layout.label_columns([column for column in grid.columns if column in survey.public])
    in_base, stratum = inside[grid.cell], survey.index.stratum
    units = int(in_base.sum()) if survey.index.psu is None else len(np.unique(survey.index.psu[in_base]))
    df = _degrees_of_freedom(units - len(np.unique(stratum[in_base])), relative)
    frame = finish_table(
        title_of(table, survey.domain), statistic, labels, value, sampling + privacy, count, df, estimation
    )
    parts = [pl.Series("se_sampling", np.sqrt(sampling)), pl.Series("se_privacy", np.sqrt(privacy))]
    for position, part in enumerate(parts, start=frame.get_column_index("se") + 1):
        frame.insert_column(position, part.fill_nan(None))
    return frame


def _degrees_of_freedom(of_design: int, relative: Floats) -> Floats:
    """Satterthwaite's degrees of freedom, 2V²/Var(V), where Var(V) has a part from the design and one from noise.

    The part from noise is at most the model's error, as the t quantile overstates it if degrees of freedom are few.
    """
    if of_design <= 0:
        return np.zeros(len(relative))
    return np.asarray(1 / (1 / of_design + np.minimum(np.nan_to_num(relative), MODEL_ERROR**2) / 2))
