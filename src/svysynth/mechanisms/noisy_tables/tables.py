"""Tables with additive noise that can be released: ε-differentially private at every n (beyond the paper's §2.4).

Neighbouring data sets differ in one respondent's outcome and weight. The public columns, the strata, the finite
population correction and the number of records in every cell are public and the same in both. Only noisy sums
(`noise.py`) of some levels (combinations of kept columns) are taken from the confidential data; the rest is arithmetic
on these sums.

How estimates and standard errors follow from the sums is in `variances.py`.
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
from svysynth.core.grouping import Floats
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
    Strata,
    add_up,
    as_measured,
    levels_of,
    measure,
)
from svysynth.mechanisms.noisy_tables.statement import notes_on, statement
from svysynth.mechanisms.noisy_tables.variances import Estimates, Model, estimate
from svysynth.mechanisms.unit import epsilon_of_record
from svysynth.survey.survey import Survey

PAIRS_SHARE = 0.15
"""The share of ε that measures how alike respondents of a cluster are, if the design has clusters."""


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
    strata, model = Strata.of(survey, grid, estimation.lonely), Model.of(grid, levels)
    alike = _alike(survey, grid, strata, levels, model, bounds, parts, noise or OpenDPNoise())
    if alike is not None:
        model = replace(model, sigma_squared=alike.spread, sigma_noise=alike.spread_noise)
    estimates = cache(
        lambda statistic, level: estimate(statistic, level, levels, grid, strata, bounds, model, alike, consistency)
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
    model: Model,
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


# --- the tidy tables ---


def _tidy(
    number: int,
    table: TableSpec,
    layout: Layout,
    statistic: Statistic,
    survey: Survey,
    grid: Grid,
    estimates: Callable[[Level], Estimates],
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
