"""Noise: records as whole numbers, sums of them with discrete Laplace noise, and the split of the budget over the sums.

Outcome and weight are clamped to their public bounds. Let u = w/high be the weight as a share of its upper bound, and
t = (y − r)/D the position of the outcome between its bounds, where r is their middle and D half their width. A record
contributes to two groups of sums,

    points       u, u·t               variances    u², u²·t, u²·t²

each rounded to a whole number of steps of 2⁻³⁰. Sums of whole numbers are exact, and so is the sensitivity, whatever
the rounding of floats. With M = 2³⁰, the first number s of a group is in 0 … M, the second p is in −s … s and the third
q in 0 … s, hence for two versions of a record

    |Δs| + |Δp| = max(|Δ(s + p)|, |Δ(s − p)|) ≤ 2M,    |Δq| ≤ M.

Replacing one respondent's (y, w) changes one row of a table, by at most 2M (points) or 3M (variances) in all. Where no
outcome is needed, it changes the row by at most the range of s. If u and u·t were measured separately, each with its
own budget, u·t would need twice the noise. OpenDP draws the noise with the operating system's entropy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from scipy.optimize import minimize_scalar

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import CHUNK, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.statistics import Statistic
from svysynth.core.streams import Streams
from svysynth.survey.survey import Survey

RESOLUTION = 2**30
"""M: the number of steps of the largest contribution."""
LEAST_EPSILON = Fraction(1, 2**20)
"""The smallest ε of a vector. Sums stay below 2⁶², as there are fewer than 2³² records, and the probability that noise
exceeds the range of 64-bit integers is then below exp(−1000). In that event the number would be clamped, at no cost in
ε."""
MOST_LEVELS_MEASURED = 256
"""With more levels than this, the option to measure all of them is not tried."""
GOOD_ENOUGH = 1.01
"""A simpler way to split the budget is preferred if its loss is within this factor of the smallest."""
MODEL_ERROR = 0.5
"""The relative error taken for the sampling variance of a row that is modelled from the whole sample: 25% of a standard
error."""
SHARE_STEPS = 1000
"""Shares of the budget are ratios of whole numbers of about this size, so that they add up exactly."""

Level = tuple[str, ...]
"""The columns whose combinations are the rows of a table or margin; none for the total."""
Group = Literal["points", "variances"]
SUMS: dict[Group, tuple[str, ...]] = {"points": ("Σw", "Σwd"), "variances": ("Σw²", "Σw²d", "Σw²d²")}


@dataclass(frozen=True)
class Use:
    """One use of the budget: the sums of a group for every row of a level, with noise.

    The noise vector has independent discrete Laplace entries, P(k) ∝ exp(−|k|/scale) over the integers. The noisy sums
    are ε-differentially private with ε = sensitivity/scale.
    """

    level: Level
    group: Group
    with_outcome: bool
    rows: int
    sensitivity: int
    """The largest change that one respondent can make to the vector, in the sum of absolute differences."""
    epsilon: Fraction | None
    """The ε that the vector may cost; None: no limit and no noise."""

    @property
    def name(self) -> str:
        """The level and the group, in words."""
        return f"{' by '.join(self.level) or 'total'}, {self.group}"

    @property
    def sums(self) -> tuple[str, ...]:
        """The sums, in symbols."""
        return SUMS[self.group][: None if self.with_outcome else 1]

    @property
    def scale(self) -> float:
        """The scale of the noise, in whole numbers."""
        return 0.0 if self.epsilon is None else laplace_scale(self.sensitivity, self.epsilon)

    @property
    def variance(self) -> float:
        """The variance of the noise in units of the largest contribution: 2·scale², accurate for such large scales."""
        return 2 * (self.scale / RESOLUTION) ** 2


class Spending(Protocol):
    """What the noise needs to know about a use of the budget."""

    @property
    def name(self) -> str:
        """What is measured."""

    @property
    def sensitivity(self) -> int:
        """The largest change that one respondent can make to the numbers, in the sum of absolute differences."""

    @property
    def epsilon(self) -> Fraction | None:
        """The ε that the numbers may cost; None: no limit and no noise."""

    @property
    def scale(self) -> float:
        """The scale of the noise, in whole numbers."""


class Noise(Protocol):
    """Adds the noise of one use to whole numbers."""

    def __call__(self, values: Integers, use: Any) -> Integers:
        """The values with noise; `use` is a `Spending`."""
        ...


@dataclass(frozen=True)
class OpenDPNoise:
    """The noise of a release: OpenDP's sampler, which is exact and draws on the operating system's entropy."""

    def __call__(self, values: Integers, use: Spending) -> Integers:
        """The values with noise. The privacy loss that OpenDP states must not exceed the ε of the use."""
        if use.epsilon is None:
            return values
        measurement = laplace_measurement(use.scale)
        if Fraction(measurement.map(use.sensitivity)) > use.epsilon:
            raise ArithmeticError("the noise is too small for its ε")
        return np.array(measurement(values.astype(np.int64).reshape(-1)), np.int64).reshape(values.shape)


@outlined
@dataclass(frozen=True)
class StudyNoise:
    """Noise with the same distribution from a named stream, for tests and studies.

    It is never for release, because seeds can be found.
    """

    streams: Streams

    def __call__(self, values: Integers, use: Spending) -> Integers:
        """The values with noise: the difference of two geometric variables."""
        if use.epsilon is None:
            return values
        generator = self.streams.generator(f"additive noise: {use.name}")
        stop = -math.expm1(-1 / use.scale)
        first, second = generator.geometric(stop, size=(2, *values.shape))
        return np.asarray(values + first - second)


def laplace_scale(sensitivity: int, epsilon: Fraction) -> float:
    """The scale at which at most ε is spent, also when the quotient is rounded up to a float in the computation."""
    exact = sensitivity / epsilon * (1 + Fraction(1, 2**50))
    scale = float(exact)
    return scale if Fraction(scale) >= exact else math.nextafter(scale, math.inf)


def laplace_measurement(scale: float) -> Any:
    """OpenDP's measurement for integers, the L1 distance and discrete Laplace noise."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return dp.m.make_laplace(*space, scale=scale)


def sensitivity(group: Group, bounds: BoundsSpec, with_outcome: bool) -> int:
    """The largest change of a group's sums if a record is replaced, in the sum of absolute differences."""
    if with_outcome:
        return {"points": 2, "variances": 3}[group] * RESOLUTION
    return max(RESOLUTION - least_steps(group, bounds), 1)


def least_steps(group: Group, bounds: BoundsSpec) -> int:
    """What a record with the least weight adds to the first sum of a group."""
    return int(contributions(group, np.array(bounds.weight[:1]), np.zeros(1), bounds, with_outcome=False).item())


def contributions(group: Group, weight: Floats, outcome: Floats, bounds: BoundsSpec, with_outcome: bool) -> Integers:
    """What each record adds to each sum of a group, in steps of 1/RESOLUTION: contributions × records."""
    (least, most), (low, high) = bounds.weight, bounds.outcome
    share = np.clip(weight, least, most) / most
    if group == "variances":
        share = share * share
    size = _steps(share)
    if not with_outcome:
        return size[np.newaxis]
    place = np.clip((outcome - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0)
    first = np.clip(_steps(share * place), -size, size)
    if group == "points":
        return np.stack([size, first])
    return np.stack([size, first, np.clip(_steps(share * place * place), 0, size)])


def _steps(share: Floats) -> Integers:
    return np.clip(np.rint(share * RESOLUTION), -RESOLUTION, RESOLUTION).astype(np.int64)


def cell_sums(
    group: Group, survey: Survey, cell: Integers, cells: int, bounds: BoundsSpec, with_outcome: bool
) -> Integers:
    """The exact sums of a group for each cell: contributions × cells. Confidential: noise is added later."""
    width = len(SUMS[group]) if with_outcome else 1
    total = np.zeros((width, cells), np.int64)
    weight, outcome = survey.weights, survey.outcome_values
    for start in range(0, len(survey), CHUNK):
        piece = slice(start, start + CHUNK)
        for sums, added in zip(
            total, contributions(group, weight[piece], outcome[piece], bounds, with_outcome), strict=True
        ):
            np.add.at(sums, cell[piece], added)
    return total


# --- splitting the budget ---


def split_budget(
    rows: Mapping[Level, int],
    records: int,
    statistics: Collection[Statistic],
    bounds: BoundsSpec,
    epsilon: float,
    every_level: bool = False,
) -> tuple[Use, ...]:
    """The uses of the budget, chosen from public information only. Their parts add up to ε exactly.

    `rows` is the number of rows with records of each level. The fraction f goes to points, the rest to variances. Each
    group is measured for the finest levels alone, from which margins are added up, or for these and the total, or for
    every level (always with `every_level`), with shares in proportion to rowsᵖ, p = 0, 1/3 or 2/3. Every such way has a
    loss: the mean, over levels and statistics, of

        log(1 + V_p/V_s) + log(1 + R·V_s²/(4(V_s + V_p)²)).

    The first way whose loss is within 1% of the smallest is taken. The first term compares the squared error that noise
    adds to an estimate, V_p, with the sampling variance V_s of the estimate. The second term compares the squared error
    that noise adds to its standard error with the square of this standard error. R is the relative noise variance of
    the sampling variance, blended as in `noisy_tables/variances.py`: 1/R = 1/(V_v/V_s²) + 1/(MODEL_ERROR² + V_v/V_s² of
    the total), where V_v is the noise variance of the direct sampling variance.

    V_s is a guess from the bounds, which people set with room to spare. The outcome is taken to have a standard
    deviation of an eighth of the width of its bounds, the weight a log-uniform distribution, and all rows of a level
    the same number of records. The guess need not be close, as f follows its cube root. The precision of a row is the
    sum of the precisions from the measured levels.
    """
    return _split(tuple(rows.items()), records, frozenset(statistics), bounds, epsilon, every_level)


@lru_cache(maxsize=64)
def _split(
    sizes: tuple[tuple[Level, int], ...],
    records: int,
    statistics: frozenset[Statistic],
    bounds: BoundsSpec,
    epsilon: float,
    every_level: bool,
) -> tuple[Use, ...]:
    rows = dict(sizes)
    with_outcome = not {"mean", "total"}.isdisjoint(statistics)
    moved = {group: sensitivity(group, bounds, with_outcome) for group in SUMS}
    guess = _Guess(rows, records, min(epsilon, 1e6), moved, _shapes(statistics, bounds), _mean_square(bounds))
    ways = [(shares, _precision(rows, shares)) for shares in _candidate_shares(rows, every_level)]
    trials = [
        (minimize_scalar(guess.loss, bounds=(0.05, 0.95), args=(first[1], second[1]), method="bounded"), first, second)
        for first, second in itertools.product(ways, ways)
    ]
    best = min(found.fun for found, _, _ in trials)
    found, *chosen = next(trial for trial in trials if trial[0].fun <= GOOD_ENOUGH * best)
    points = Fraction(round(found.x * SHARE_STEPS), SHARE_STEPS)
    uses = tuple(
        Use(level, group, with_outcome, rows[level], moved[group], _part(epsilon, share * part))
        for group, part, (shares, _) in zip(SUMS, (points, 1 - points), chosen, strict=True)
        for level, share in shares.items()
    )
    if any(use.epsilon is not None and use.epsilon < LEAST_EPSILON for use in uses):
        remedy = "request fewer tables, or use a larger privacy.epsilon"
        raise SurveyError("spec", "privacy.epsilon", "is too small for these tables", remedy)
    return uses


def _part(epsilon: float, share: Fraction) -> Fraction | None:
    return None if math.isinf(epsilon) else Fraction(epsilon) * share


@dataclass(frozen=True, eq=False)
class _Guess:
    """The public information about the errors to expect."""

    rows: Mapping[Level, int]
    records: int
    epsilon: float
    moved: Mapping[Group, int]
    shapes: tuple[tuple[float, float], ...]
    """(α, β) of each statistic, with z = u(α + βt) up to a factor."""
    mean_square: float
    """The mean square of u."""

    def loss(self, fraction: float, points: Floats, variances: Floats) -> float:
        """The loss if this fraction of the budget goes to points, given the precisions of both groups at ε = 1."""
        squares = self.records / np.array(list(self.rows.values())) * self.mean_square
        total = list(self.rows).index(())
        point = 2 * (self.moved["points"] / RESOLUTION / (fraction * self.epsilon)) ** 2 / points
        square = 2 * (self.moved["variances"] / RESOLUTION / ((1 - fraction) * self.epsilon)) ** 2 / variances
        loss = 0.0
        for alpha, beta in self.shapes:
            sampling = squares * (alpha**2 + beta**2 / 16)
            privacy = point * (alpha**2 + beta**2)
            direct = square * (alpha**4 + 4 * alpha**2 * beta**2 + beta**4) / sampling**2
            blended = 1 / (1 / direct + 1 / (MODEL_ERROR**2 + direct[total]))
            loss += float(np.log1p(privacy / sampling).mean())
            loss += float(np.log1p(blended * (sampling / (sampling + privacy)) ** 2 / 4).mean())
        return loss


def _shapes(statistics: Collection[Statistic], bounds: BoundsSpec) -> tuple[tuple[float, float], ...]:
    low, high = bounds.outcome
    total = (high + low) / (high - low), 1.0
    shape = {"count": (1.0, 0.0), "proportion": (1.0, 0.0), "mean": (0.0, 1.0), "total": total}
    return tuple(shape[statistic] for statistic in sorted(statistics))


def _mean_square(bounds: BoundsSpec) -> float:
    """The mean square of u if log u is uniform, down to the least weight or a hundredth of the largest."""
    least = min(max(bounds.weight[0] / bounds.weight[1], 0.01), 0.99)
    return (1 - least**2) / (-2 * math.log(least))


def _candidate_shares(rows: Mapping[Level, int], every_level: bool) -> Iterator[dict[Level, Fraction]]:
    """The ways of sharing a budget among levels that are tried."""
    coarser = {(*level[:gap], *level[gap + 1 :]) for level in rows for gap in range(len(level))}
    finest = [level for level in rows if level not in coarser and (level or len(rows) == 1)]
    some = [finest, list(dict.fromkeys([(), *finest]))]
    choices = [list(rows)] if every_level else [*some, list(rows)] if len(rows) <= MOST_LEVELS_MEASURED else some
    for levels, power in itertools.product(choices, (0, 1 / 3, 2 / 3)):
        most = max(rows[level] for level in levels)
        weight = {level: max(1, round(SHARE_STEPS * (rows[level] / most) ** power)) for level in levels}
        yield {level: Fraction(weight[level], sum(weight.values())) for level in levels}


def _precision(rows: Mapping[Level, int], shares: Mapping[Level, Fraction]) -> Floats:
    """1/variance of the rows of each level at ε = 1, as added up from all measured levels that contain its columns."""
    measured = [(set(level), float(share) ** 2 / rows[level]) for level, share in shares.items()]
    return np.array(
        [size * sum(weight for within, weight in measured if within >= set(level)) for level, size in rows.items()]
    )
