"""Calibration: the weights α that bring the pseudo posterior to a stated ε (paper §1.4.1).

The target is Δ_α ≤ ε/(2m), no more than 2% below. Every trial is a refit with the same random numbers, so that Δ_α
moves smoothly with the scheme's constant c. Where it jumps all the same, because one extreme draw comes or goes, other
random numbers are tried, and in the end the best trial on the private side counts: never one above the target.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from svysynth.errors import SurveyError
from svysynth.groups import Floats
from svysynth.lipschitz import (
    inverse_weights,
    linear_weights,
    record_bounds,
    reweighted,
    summarize_bounds,
    weigh,
)
from svysynth.models.base import Model, Records
from svysynth.outline import outlined
from svysynth.sampler import Fit, fit
from svysynth.spec import Scheme
from svysynth.store import Column, derive
from svysynth.streams import Streams

TOLERANCE = 0.02
AIM = 0.99
"""Where in the band from 1 − TOLERANCE to 1 of the target a trial aims."""
RISE = 0.55
"""How far Δ_α usually ends above c with inverse weights: they narrow the fitted spread, which raises its peak."""
MOST_REFITS = 16
"""Two or three are usual, and 8 were enough in 200 calibrations with inverse weights (docs/studies.md)."""
STRETCH = 4
"""Refits with the same random numbers. Where Δ_α jumps over the target with them, others are tried."""

Progress = Callable[[str], None]
Found = TypeVar("Found")


@outlined
@dataclass(frozen=True)
class Trial:
    """One refit: the constant that was tried, and what it gave."""

    constant: float
    largest_bound: float


@outlined
@dataclass(frozen=True, eq=False)
class Unweighted:
    """The fit with α = 1 and its records' bounds: where calibration starts, whatever the target."""

    fit: Fit
    bounds: Column


@outlined
@dataclass(frozen=True, eq=False)
class Calibration:
    """A fit whose largest weighted bound meets the target, and the way there."""

    fit: Fit
    bounds: Column
    """Unweighted bounds of the fit with α = 1."""
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
    """A fit that is asked for, and the bounds of its records."""

    model: Model
    records: Records
    alpha: Column
    streams: Streams
    draws: int
    label: str = "fit"
    """Names the random numbers."""
    name: str = "bounds"
    """Of the column of bounds, where the records are on disk."""


Answer = tuple[Fit, Column]
"""The fit that was ordered, and its records' bounds, unweighted."""
Steps = Generator[Order, Answer, Found]
"""Work that orders one fit after another: who carries the orders out may do those of many such works together."""


def carry_out(steps: Steps[Found]) -> Found:
    """Fit what is ordered, as it is ordered."""
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

    `start_from` spares the first fit where several targets are met with the same random numbers.
    """
    progress("fitting without weights")
    start_from = start_from or fit_unweighted(model, records, streams, draws)
    return carry_out(calibration_steps(start_from, epsilon, datasets, streams, scheme, draws, progress))


def fit_unweighted(model: Model, records: Records, streams: Streams, draws: int = 1000) -> Unweighted:
    """The fit with α = 1, and the bounds of its records."""
    return carry_out(unweighted_steps(model, records, streams, draws))


def unweighted_steps(model: Model, records: Records, streams: Streams, draws: int = 1000) -> Steps[Unweighted]:
    """The way to the fit with α = 1."""
    found, bounds = yield Order(model, records, derive(np.ones_like, records.t), streams, draws)
    first = trusted(found)
    if not summarize_bounds(bounds, records.engine).any_finite:
        raise SurveyError("data", "the model", "gives no record a finite likelihood", "check outcome and weights")
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
    """The way from the unweighted fit to one that meets the target.

    A study has constants of its own in the weights of the scheme `inverse`.
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
        largest = summarize_bounds(derive(weigh, trusted(base).alpha, base_bounds), records.engine).largest
        weights = lambda c: derive(partial(reweighted, k=c, largest=largest), alpha, base_bounds)  # noqa: E731
        start = 0.95
    elif scheme == "linear":
        limits = found.smallest, found.largest
        weights = lambda c: derive(partial(linear_weights, c=c, limits=limits), bounds)  # noqa: E731
        start = 4 * AIM * target / found.largest
    else:
        weights = lambda c: derive(partial(inverse, c=c), bounds)  # noqa: E731
        start = max(target - RISE, target / 2)

    trials, best = yield from _search(start_from, weights, start, target, streams, draws, progress)
    weighted = derive(weigh, best[0].alpha, best[1])
    return Calibration(best[0], bounds, weighted, best[2], target, epsilon, datasets, trials)


def _search(
    start_from: Unweighted,
    weights: Callable[[float], Column],
    start: float,
    target: float,
    streams: Streams,
    draws: int,
    progress: Progress,
) -> Steps[tuple[tuple[Trial, ...], tuple[Fit, Column, float]]]:
    """Move c by the ratio of the aim to what was found, then by secants of log Δ_α against log c.

    Gives back all trials, and of the best its fit, its bounds and Δ_α.
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
        largest = summarize_bounds(derive(weigh, alpha, bounds), records.engine).largest
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
    why = f", and where they were small enough {'; '.join(untrusted)}" if untrusted else ""
    raise SurveyError(
        "spec",
        "privacy.epsilon",
        f"no weights were found for it in {MOST_REFITS} refits{why}",
        "use a larger epsilon or fewer datasets, more privacy.draws, or the scheme 'inverse'",
    )


def _next_constant(trials: list[Trial], aim: float) -> float:
    """The root of log Δ_α(c) − log aim along the last two trials, between the trials that enclose it."""
    last = trials[-1]
    low = max((trial.constant for trial in trials if trial.largest_bound < aim), default=0.0)
    high = min((trial.constant for trial in trials if trial.largest_bound > aim), default=np.inf)
    slope = 0.9
    if len(trials) > 1:
        before = trials[-2]
        rise = np.log(last.largest_bound / before.largest_bound)
        run = np.log(last.constant / before.constant)
        slope = float(np.clip(rise / run, 0.3, 3.0)) if run else 0.9
    step = np.clip(np.log(aim / last.largest_bound) / slope, -np.log(3), np.log(3))
    proposed = float(last.constant * np.exp(step))
    return proposed if low < proposed < high or not low < high else float(np.sqrt(low * high))


def trusted(found: Fit) -> Fit:
    """The fit, if its diagnostics pass; a fit that fails is never released."""
    if not found.verdict.passed:
        raise SurveyError(
            "data",
            "the posterior draws",
            "; ".join(found.verdict.complaints),
            "use more draws (privacy.draws), a simpler model.formula, or a larger epsilon",
        )
    return found
