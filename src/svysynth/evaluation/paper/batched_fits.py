"""Batched fits: the fits of many replicates of the simulation in one program on JAX's device, for graphics processors.

Each replicate needs the same computations as in `repeated.replicate`, which makes one fit after another. Here the fits
that unfinished replicates request (as an `Order`) are computed a batch at a time, and finished replicates are
synthesised and tabulated together, as one stack. Meanwhile other processes draw the samples and make the tables that
need no fit. The numbers are those of `replicate` up to rounding, which depends on the device and on the batch size.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.engine import cores
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.streams import Streams
from svysynth.evaluation.paper.methods import (
    Fitted,
    Plan,
    Scenario,
    combine_tables,
    fitting_steps,
    synthesis_streams,
    tabulate_rivals,
)
from svysynth.evaluation.paper.repeated import Simulation, replicate
from svysynth.evaluation.paper.stacked_surveys import stack_surveys, tabulate_stack
from svysynth.evaluation.paper.workers import Progress, keep_replicate, processes, unfinished
from svysynth.mechanisms.pseudo_posterior.calibration import Answer, Order, Steps
from svysynth.mechanisms.pseudo_posterior.record_bounds import bounds_together
from svysynth.models.base import Model
from svysynth.models.records import Records
from svysynth.models.sampler import Fit, fit_together, padded
from svysynth.models.sufficient_statistics import linear_statistics_together, no_data
from svysynth.models.synthesis import choose_draws, draw_keys, make_synthetic, shuffle_keys, synthesize_together
from svysynth.survey.groups import Groups
from svysynth.survey.survey import SurveyInMemory

BATCH = 1024
"""The number of fits in one program: enough to keep a large graphics processor busy."""
STACK = 500
"""The number of replicates whose tables are made together."""

Fits = dict[tuple[str, float], Fitted]
Result = tuple[int, dict[str, Floats]]
"""A replicate's number, and what `replicate` gives for it."""


@outlined
@dataclass(frozen=True, eq=False)
class Sample:
    """A replicate's sample, with all results of the replicate that need no fit."""

    index: int
    survey: SurveyInMemory
    """The sample, with its records sorted by the groups of public values."""
    groups: Groups
    records: Records
    rivals: dict[Scenario, Floats]
    correlation: Floats
    streams: Streams


def run_together(
    study: Simulation, indices: Sequence[int], folder: Path, workers: int, batch: int, progress: Progress
) -> None:
    """Compute the replicates that the folder does not hold yet, a batch of fits at a time."""
    pending = unfinished(folder, indices)
    before = len(indices) - len(pending)
    progress(before, len(indices))
    with processes(min(workers, max(len(pending), 1))) as pool:
        # the first replicate also keeps the raw points for the figures, which a stack does not have
        selected = pool.submit(replicate, study, 0) if 0 in pending else None
        samples = pool.map(partial(prepare, study), [index for index in pending if index])
        for done, (index, result) in enumerate(replicate_together(study, samples, batch), start=1):
            keep_replicate(folder, index, result)
            progress(before + done, len(indices))
        if selected is not None:
            keep_replicate(folder, 0, selected.result())
            progress(len(indices), len(indices))


def prepare(study: Simulation, index: int) -> Sample:
    """Draw the sample of a replicate, and make the tables that need no fit."""
    survey, streams = study.sample(index), study.streams_of(index)
    return Sample(
        index,
        replace(survey, frame=survey.frame.sort(survey.published)),
        survey.groups,
        study.plan.records_of(survey),
        tabulate_rivals(survey, study.plan, streams),
        np.corrcoef(survey.outcome_values, survey.weights)[0, 1:],
        streams,
    )


def replicate_together(study: Simulation, samples: Iterable[Sample], batch: int = BATCH) -> Iterator[Result]:
    """The results of the samples' replicates, with their numbers, in the order in which they are finished."""
    works = ((sample, fitting_steps(sample.records, study.plan, sample.streams)) for sample in samples)
    fitted = carry_out_together(works, lambda orders: _answer(orders, study.plan, batch), batch)
    coming: deque[Future[list[Result]]] = deque()
    with ThreadPoolExecutor(1) as background:  # tables are made while the device is busy with the next fits
        while done := list(itertools.islice(fitted, STACK)):
            coming.append(background.submit(_results, study.plan, done))
            while coming and coming[0].done():
                yield from coming.popleft().result()
        for stack in coming:
            yield from stack.result()


def carry_out_together(
    works: Iterable[tuple[Sample, Steps[Fits]]],
    answer: Callable[[Sequence[Order]], Sequence[Answer | SurveyError]],
    batch: int,
) -> Iterator[tuple[Sample, Fits]]:
    """Compute the fits that many replicates request, a batch of fits of one model at a time.

    When a replicate is finished, the next one takes its place.
    """
    waiting: dict[Model, deque[tuple[Sample, Steps[Fits], Order]]] = defaultdict(deque)
    coming = iter(works)
    while True:
        room = 2 * batch - sum(len(queue) for queue in waiting.values())
        for sample, steps in itertools.islice(coming, room):
            order = next(steps)
            waiting[order.model].append((sample, steps, order))
        queue = max(waiting.values(), key=len, default=deque())
        if not queue:
            return
        chosen = [queue.popleft() for _ in range(min(batch, len(queue)))]
        for (sample, steps, _), found in zip(chosen, answer([order for *_, order in chosen]), strict=True):
            try:
                order = steps.throw(found) if isinstance(found, SurveyError) else steps.send(found)
            except StopIteration as finished:
                yield sample, finished.value
            else:
                waiting[order.model].append((sample, steps, order))


def _answer(orders: Sequence[Order], plan: Plan, batch: int) -> list[Answer | SurveyError]:
    """The requested fits, each with only the draws that may be released, and its records' bounds under all draws."""
    model = orders[0].model
    rows = [orders[i] for i in padded(len(orders), batch)]
    records = [order.records for order in rows]
    t, v, cell = (np.stack([getattr(one, column) for one in records]) for column in ("t", "v", "cell"))
    x = _stacked([one.x for one in records])
    statistics, usable = linear_statistics_together(t, v, cell, x, np.stack([order.alpha for order in rows]))
    keys = np.stack([order.streams.key_data(order.label) for order in rows])
    draws, verdicts = fit_together(model, statistics, keys, plan.draws)
    bounds = np.asarray(bounds_together(model, draws, x, t, v, cell))
    released = choose_draws(plan.draws, max(plan.datasets))
    kept = {name: np.asarray(value[:, released]) for name, value in draws.items()}
    found: list[Answer | SurveyError] = []
    for i, order in enumerate(orders):
        own = {name: value[i] for name, value in kept.items()}
        fit = Fit(model, order.records, order.alpha, own, verdicts[i])
        found.append((fit, bounds[i]) if usable[i] else no_data())
    return found


def _results(plan: Plan, done: Sequence[tuple[Sample, Fits]]) -> list[Result]:
    """The results of each replicate in a stack, as `replicate` returns them."""
    stack = _Stack.of([sample for sample, _ in done])
    private: dict[Scenario, Floats] = {}
    with ThreadPoolExecutor(cores()) as threads:
        for name, bound in plan.fits:
            drawn = _Drawn.of(stack, [fitted[name, bound].calibration.fit for _, fitted in done], name, bound)
            for method, model in plan.methods_of(name).items():
                tables = threads.map(partial(_tabulate, stack, drawn, model), range(max(plan.datasets)))
                private |= combine_tables(method, bound, np.stack(list(tables)), plan)
    results = []
    for place, (sample, fitted) in enumerate(done):
        own = sample.rivals | {scenario: table[place] for scenario, table in private.items()}
        result = {
            "tables": np.stack([own[scenario] for scenario in plan.scenarios]),
            "fits": np.array([fitted[key].figures for key in plan.fits]),
            "correlation": sample.correlation,
        }
        results.append((sample.index, result))
    return results


@outlined
@dataclass(frozen=True, eq=False)
class _Stack:
    """The public part of the samples of replicates that are synthesised and tabulated together."""

    samples: Sequence[Sample]
    rows: Integers
    """Which sample each row of the arrays belongs to; the last sample fills the spare rows."""
    survey: SurveyInMemory
    x: Floats
    """Row × group × coefficient."""
    count: Integers
    """Row × group."""

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Stack:
        rows = padded(len(samples), STACK)
        x = _stacked([samples[i].records.x[samples[i].groups.cell] for i in rows])
        count = _stacked([samples[i].groups.count for i in rows])
        groups = np.array([len(samples[i].groups.count) for i in rows])
        count[np.arange(count.shape[1]) >= groups[:, np.newaxis]] = 0
        return cls(samples, rows, stack_surveys([sample.survey for sample in samples]), x, count)


@outlined
@dataclass(frozen=True, eq=False)
class _Drawn:
    """The released draws of one fit for each replicate in a stack, and the random streams for synthesis."""

    draws: dict[str, Floats]
    """Row × data set × the parameter's own shape."""
    streams: Sequence[Streams]

    @classmethod
    def of(cls, stack: _Stack, fits: Sequence[Fit], name: str, bound: float) -> _Drawn:
        draws = {key: np.stack([fits[i].draws[key] for i in stack.rows]) for key in fits[0].draws}
        return cls(draws, [synthesis_streams(sample.streams, name, bound) for sample in stack.samples])


def _tabulate(stack: _Stack, drawn: _Drawn, model: Model, number: int) -> Floats:
    """The tables of synthetic data set `number` for every replicate in a stack, by one model."""
    size, total = len(stack.samples[0].survey), stack.survey.population_total
    laid = synthesize_together(
        model,
        {name: value[:, number] for name, value in drawn.draws.items()},
        stack.x,
        stack.count,
        size,
        np.stack([shuffle_keys(streams, number) for streams in drawn.streams])[stack.rows],
        np.stack([draw_keys(streams, number) for streams in drawn.streams])[stack.rows],
    )
    t, log_weight = (np.asarray(column)[: len(stack.samples)] for column in laid)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    assert total is not None
    weight *= total / weight.sum(axis=1, keepdims=True)
    survey = stack.survey
    columns = pl.Series(survey.outcome, np.exp(t).ravel()), pl.Series(survey.design.weight, weight.ravel())
    synthetic = replace(survey, frame=survey.frame.with_columns(columns))
    return tabulate_stack(synthetic, make_synthetic((), model))


def _stacked(tables: Sequence[Any]) -> Any:
    """Stack arrays with different numbers of rows, each padded with its last row."""
    most = max(len(table) for table in tables)
    rows = np.arange(1 << (most - 1).bit_length())
    return np.stack([table[np.minimum(rows, len(table) - 1)] for table in tables])
