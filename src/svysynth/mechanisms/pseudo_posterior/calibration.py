"""Calibration: the search for weights α that bring the pseudo posterior to a stated ε (paper §1.4.1).

The target is Δ_α ≤ ε/(2m), no more than 2% below. Every trial is a refit with the same random numbers, so that Δ_α
changes smoothly with the scheme's constant c. If Δ_α jumps all the same, because one extreme draw appears or
disappears, other random numbers are tried. In the end the best trial at or below the target is used, never one above.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from svysynth.core.column_storage import Column, derive
from svysynth.core.engine import map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import Scheme
from svysynth.core.streams import Streams
from svysynth.mechanisms.pseudo_posterior.record_bounds import record_bounds, summarize_bounds
from svysynth.mechanisms.pseudo_posterior.record_weights import inverse_weights, linear_weights, reweighted, weigh
from svysynth.models.base import Model
from svysynth.models.records import Records
from svysynth.models.sampler import Fit, fit

TOLERANCE = 0.02
AIM = 0.99
"""The share of the target at which a trial aims, within the band from 1 − TOLERANCE to 1."""
RISE = 0.55
"""How far Δ_α usually ends above c with inverse weights: they narrow the fitted spread, which raises the density's
peak."""
MOST_REFITS = 16
"""The most refits. Two or three are usual, and 8 were enough in 200 calibrations with inverse weights
(docs/studies.md)."""
LARGEST_LEVEL, SMALLEST_SPREAD = 100.0, 1e-3
"""The root mean square and the standard deviation of the transformed outcome between which the models' priors are
suitable: the priors expect coefficients and spreads of about 10 at most. Logarithms of amounts lie far within these
limits, outcomes in dollars far outside."""
START, STEP, RECENT, ENOUGH = 0.8, 0.93, 3, 0.85
"""For a model with effects of clusters: the share of the target at which weights aim first, by how much this share is
lowered at most from trial to trial, the number of trials whose bounds are used, and the share of the target from which
on a trial is good enough."""
STRETCH = 4
"""The number of refits with the same random numbers. If Δ_α jumps over the target in all of them, others are tried."""

Progress = Callable[[str], None]
Found = TypeVar("Found")


@outlined
@dataclass(frozen=True)
class Trial:
    """One refit: the constant that was tried, and the largest weighted bound."""

    constant: float
    largest_bound: float


@outlined
@dataclass(frozen=True, eq=False)
class Unweighted:
    """The fit with α = 1 and the bounds of its records: the start of calibration for every target."""

    fit: Fit
    bounds: Column


@outlined
@dataclass(frozen=True, eq=False)
class Calibration:
    """A fit whose largest weighted bound meets the target, and the trials that led to it."""

    fit: Fit
    bounds: Column
    """The unweighted bounds of the fit with α = 1."""
    weighted_bounds: Column
    """α_i·max|ll_i| under the final fit."""
    largest_bound: float
    """Δ_α of the final fit."""
    target: float
    epsilon: float
    datasets: int
    trials: tuple[Trial, ...]


@outlined
@dataclass(frozen=True, eq=False)
class Order:
    """A request for a fit and for the bounds of its records."""

    model: Model
    records: Records
    alpha: Column
    streams: Streams
    draws: int
    label: str = "fit"
    """The name of the stream of random numbers."""
    name: str = "bounds"
    """The name of the column of bounds, if the records are on disk."""


Answer = tuple[Fit, Column]
"""The fit that was requested, and the unweighted bounds of its records."""
Steps = Generator[Order, Answer, Found]
"""A computation that requests one fit after another. Its caller may do the fits of many such computations together."""


def carry_out(steps: Steps[Found]) -> Found:
    """Run a computation, and do each fit when it is requested."""
    try:
        order = next(steps)
        while True:
            try:
                found = fit(order.model, order.records, order.alpha, order.streams, order.draws, order.label)
                answer = found, record_bounds(found, order.name)
            except SurveyError as error:
                order = steps.throw(error)
            else:
                order = steps.send(answer)
    except StopIteration as done:
        result: Found = done.value
        return result


def calibrate_records(
    model: Model,
    records: Records,
    epsilon: float,
    datasets: int,
    streams: Streams,
    scheme: Scheme = "inverse",
    draws: int = 1000,
    progress: Progress = lambda _: None,
    start_from: Unweighted | None = None,
) -> Calibration:
    """Find the weights for which m draws cost ε, and the fit with them.

    `start_from` saves the first fit if several targets are to be met with the same random numbers.
    """
    progress("fitting without weights")
    start_from = start_from or fit_unweighted(model, records, streams, draws)
    return carry_out(calibration_steps(start_from, epsilon, datasets, streams, scheme, draws, progress))


def fit_unweighted(model: Model, records: Records, streams: Streams, draws: int = 1000) -> Unweighted:
    """The fit with α = 1, and the bounds of its records."""
    return carry_out(unweighted_steps(model, records, streams, draws))


def unweighted_steps(model: Model, records: Records, streams: Streams, draws: int = 1000) -> Steps[Unweighted]:
    """The steps to the fit with α = 1."""
    found, bounds = yield Order(model, records, derive(np.ones_like, records.t), streams, draws)
    first = trusted(found)
    if not summarize_bounds(bounds, records.engine).any_finite:
        remedy = "check the columns survey.outcome and survey.weight"
        raise SurveyError("data", "the model", "gives no record a finite likelihood", remedy)
    return Unweighted(first, bounds)


def calibration_steps(
    start_from: Unweighted,
    epsilon: float,
    datasets: int,
    streams: Streams,
    scheme: Scheme = "inverse",
    draws: int = 1000,
    progress: Progress = lambda _: None,
    inverse: Callable[..., Floats] = inverse_weights,
) -> Steps[Calibration]:
    """The steps from the unweighted fit to one that meets the target.

    With `inverse`, studies replace the weights of the scheme `inverse` by weights with other constants.
    """
    target = epsilon / (2 * datasets)
    first, bounds = start_from.fit, start_from.bounds
    model, records = first.model, first.records
    found = summarize_bounds(bounds, records.engine)
    if found.all_finite and found.largest <= target:
        only = Trial(float("inf"), found.largest)
        return Calibration(first, bounds, bounds, found.largest, target, epsilon, datasets, (only,))

    weights: Callable[[float], Column]
    if scheme == "reweighted":
        alpha = derive(partial(inverse_weights, c=target), bounds)
        base, base_bounds = yield Order(model, records, alpha, streams, draws, name="base-bounds")
        largest = _largest(trusted(base).alpha, base_bounds, records)
        if not 0 < largest < np.inf:
            problem = "needs weights α under which the model has no finite bound"
            raise SurveyError("spec", "privacy.epsilon", problem, _remedies(scheme))
        weights = lambda c: derive(partial(reweighted, k=c, largest=largest), alpha, base_bounds)  # noqa: E731
        start = 0.95
    elif scheme == "linear":
        limits = found.smallest, found.largest
        weights = lambda c: derive(partial(linear_weights, c=c, limits=limits), bounds)  # noqa: E731
        start = 4 * AIM * target / max(found.largest, target)
    else:
        weights = lambda c: derive(partial(inverse, c=c), bounds)  # noqa: E731
        start = max(target - RISE, target / 2)

    if model.traits.clusters and scheme == "inverse":
        search = _search_in_clusters(start_from, inverse, target, streams, draws, progress)
    else:
        search = _search(start_from, weights, start, target, scheme, streams, draws, progress)
    trials, best = yield from search
    weighted = derive(weigh, best[0].alpha, best[1])
    return Calibration(best[0], bounds, weighted, best[2], target, epsilon, datasets, trials)


def _search_in_clusters(
    start_from: Unweighted,
    inverse: Callable[..., Floats],
    target: float,
    streams: Streams,
    draws: int,
    progress: Progress,
) -> Steps[tuple[tuple[Trial, ...], tuple[Fit, Column, float]]]:
    """Take the bounds from weighted fits, and lower c until Δ_α meets the target.

    Small weights make the effects of small clusters vary more from draw to draw, and so raise the bounds of their
    records by far more than those of others. With bounds from the unweighted fit these few records would decide Δ_α,
    and all others would be weighted down for their sake. Every trial has random numbers of its own: weights that were
    fitted to some draws are tried on others.
    """
    model, records = start_from.fit.model, start_from.fit.records
    trials: list[Trial] = []
    best: tuple[Fit, Column, float] | None = None
    recent, c = [start_from.bounds], START * target
    for number in range(MOST_REFITS):
        progress(f"refit {number + 1}")
        alpha = derive(partial(inverse, c=c), derive(_largest_of, *recent))
        found, bounds = yield Order(model, records, alpha, streams, draws, f"fit {number}", f"bounds-{number}")
        largest = _largest(alpha, bounds, records)
        trials.append(Trial(c, largest))
        if largest <= target and found.verdict.passed and (best is None or largest > best[2]):
            best = found, bounds, largest
        if best is not None and best[2] >= ENOUGH * target:
            break
        if number > 1:  # the first weights are far from those that belong to their own bounds
            c *= float(np.clip(AIM * target / largest, STEP, 1.0))
        recent = [*(recent if number else []), bounds][-RECENT:]
    if best is not None:
        return tuple(trials), best
    problem = f"no weights α were found that meet it in {MOST_REFITS} refits"
    raise _off_scale(records, problem) or SurveyError("spec", "privacy.epsilon", problem, _remedies("inverse"))


def _largest_of(*bounds: Floats) -> Floats:
    return np.asarray(np.max(bounds, axis=0))


def _search(
    start_from: Unweighted,
    weights: Callable[[float], Column],
    start: float,
    target: float,
    scheme: Scheme,
    streams: Streams,
    draws: int,
    progress: Progress,
) -> Steps[tuple[tuple[Trial, ...], tuple[Fit, Column, float]]]:
    """Change c by the ratio of the aim to the Δ_α found, then by secants of log Δ_α against log c.

    Returns all trials, and the fit, the bounds and Δ_α of the best one.
    """
    model, records = start_from.fit.model, start_from.fit.records
    trials: list[Trial] = []
    best: tuple[Fit, Column, float] | None = None
    untrusted: list[str] = []
    c = start
    for number in range(MOST_REFITS):
        progress(f"refit {number + 1}")
        alpha = weights(c)
        stretch = number // STRETCH
        label = f"fit {stretch}" if stretch else "fit"
        found, bounds = yield Order(model, records, alpha, streams, draws, label, f"bounds-{number}")
        largest = _largest(alpha, bounds, records)
        trials.append(Trial(c, largest))
        if largest <= target and not found.verdict.passed:
            untrusted = found.verdict.complaints
        elif largest <= target and (best is None or largest > best[2]):
            best = found, bounds, largest
        if best is not None and best[2] >= (1 - TOLERANCE) * target:
            break
        c = _next_constant(trials[stretch * STRETCH :], AIM * target)
    if best is not None:
        return tuple(trials), best
    why = f", and in a refit that met the target {'; '.join(untrusted)}" if untrusted else ""
    problem = f"no weights α were found that meet it in {MOST_REFITS} refits{why}"
    raise _off_scale(records, problem) or SurveyError("spec", "privacy.epsilon", problem, _remedies(scheme))


def _largest(alpha: Column, bounds: Column, records: Records) -> float:
    """Δ_α; infinite if a record with positive weight has a log-likelihood that is not finite in some draw."""
    found = summarize_bounds(derive(weigh, alpha, bounds), records.engine)
    return found.largest if found.all_finite else float("inf")


def _remedies(scheme: Scheme) -> str:
    other = "" if scheme == "inverse" else ", or the scheme 'inverse'"
    return f"use a larger privacy.epsilon, fewer privacy.datasets or more privacy.draws{other}"


def _next_constant(trials: list[Trial], aim: float) -> float:
    """The root of log Δ_α(c) − log aim on the line through the last two trials, between the trials that enclose it."""
    last = trials[-1]
    low = max((trial.constant for trial in trials if trial.largest_bound < aim), default=0.0)
    high = min((trial.constant for trial in trials if trial.largest_bound > aim), default=np.inf)
    if not 0 < last.largest_bound < np.inf:  # only the direction is known
        step = np.log(3) if last.largest_bound == 0 else -np.log(3)
    else:
        step = np.clip(np.log(aim / last.largest_bound) / _slope(trials), -np.log(3), np.log(3))
    proposed = float(last.constant * np.exp(step))
    if low < proposed < high or not low < high:
        return proposed
    if low == 0 or high == np.inf:
        return high / 3 if low == 0 else 3 * low
    return float(np.sqrt(low * high))


def _slope(trials: list[Trial]) -> float:
    """The slope of log Δ_α against log c through the last two trials, if both bounds are finite and positive."""
    if len(trials) < 2 or not 0 < trials[-2].largest_bound < np.inf:
        return 0.9
    last, before = trials[-1], trials[-2]
    run = np.log(last.constant / before.constant)
    return float(np.clip(np.log(last.largest_bound / before.largest_bound) / run, 0.3, 3.0)) if run else 0.9


def trusted(found: Fit) -> Fit:
    """The fit, if it passes its diagnostics. A fit that fails them is never released."""
    if not found.verdict.passed:
        problem = "; ".join(found.verdict.complaints)
        remedy = "use more draws (privacy.draws), a simpler model.formula, or a larger privacy.epsilon"
        raise _off_scale(found.records, problem) or SurveyError("data", "the posterior draws", problem, remedy)
    return found


def _off_scale(records: Records, symptom: str) -> SurveyError | None:
    """The error for a fit that fails because the scale of the outcome does not suit the priors; None if it does."""
    sums = map_blocks(records.engine, _BlockMoments(records.t), len(records))
    mean, square = np.sum(sums, axis=0) / len(records)
    spread = float(np.sqrt(max(square - mean**2, 0.0)))
    if np.sqrt(square) > LARGEST_LEVEL:
        cause = "its values are far larger than the model's priors expect"
        remedy = "use survey.transform = 'log' for amounts, or larger units (thousands or millions, say)"
    elif spread < SMALLEST_SPREAD:
        cause = "its values vary far less than the model's priors expect"
        remedy = "use survey.transform = 'log' for amounts, or smaller units"
    else:
        return None
    return SurveyError("data", "the outcome as transformed", f"{cause}, so that {symptom}", remedy)


@outlined
@dataclass(frozen=True)
class _BlockMoments:
    t: Column

    def __call__(self, piece: slice) -> tuple[float, float]:
        t = self.t[piece]
        return float(np.sum(t)), float(np.sum(t * t))
