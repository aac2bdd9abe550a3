"""The censored mechanism: posterior draws that are ε-differentially private at every n (docs/privacy.md).

Each record's log-likelihood is clipped to a public interval before it is added up:

    p(θ) ∝ prior(θ)·exp(Σ clip(llᵢ(θ), low, high)).

Whatever one respondent says moves the sum by no more than high − low, at any θ. So a draw costs ε = high − low if the
respondent is blanked out, that is, the term replaced by a constant, and 2(high − low) if it is changed to any other; m
independent draws cost m times that. All that comes before the clip is public: outcome and weight are clamped to public
bounds and the weights scaled by the public population total, never by their own sum.

A clipped sum has no sufficient statistics: Hamiltonian Monte Carlo goes through all records at each step. Where it
starts and how long its steps are is taken from the data. This changes nothing in the distribution that the chains
converge to, which is what the promise is about; of a draw that is short of it by τ in total variation it holds with
δ = (1 + e^ε)τ. With starts and steps from public constants the chains would depend on the data as much, through every
gradient, and be further from their goal, as a clipped likelihood is flat far from its mode. The pilot chains, which the
steps are taken from, are thrown away; the m chains that are released have nothing in common but the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from svysynth.clipped import Blocks, clipped_sum, make_blocks, record_terms
from svysynth.diagnostics import Verdict, judge
from svysynth.errors import SurveyError
from svysynth.groups import Floats
from svysynth.interval import Interval
from svysynth.keys import wrapped
from svysynth.models.base import Array, Model, Parameters, Records, make_records
from svysynth.models.joint import joint_of
from svysynth.models.whitening import Whitening
from svysynth.outline import outlined
from svysynth.sampler import JITTER, START_SPREAD, make_transition
from svysynth.separation import LARGEST_ODDS, odds_of_giving_up
from svysynth.spec import BoundsSpec
from svysynth.streams import Streams
from svysynth.survey import Survey

LEAST_CHAINS = 4
"""More chains than draws that are released serve the diagnostics alone."""
LEG = 50
"""Transitions of one call to the compiled program."""
PILOT_LEGS = 4
"""Of chains that are thrown away: from their second half come the center and the spread of every coordinate."""
LEGS = 20
"""Of a chain, whose last state is released; diagnosed are the second halves."""
MOST_ROUNDS = 4
"""Where the verdict is not yet good the chains are run on, up to so many times their length. This serves the verdict
alone: what is released was fixed before."""
CENTERINGS = 5
FLOOR = 0.02
"""The weight of a clipped record in the search for the center, so that no coefficient is without data."""


@outlined
@dataclass(frozen=True, eq=False)
class CensoredFit:
    """m independent draws from the censored posterior. The draws may be released; all else is internal."""

    model: Model
    records: Records
    interval: Interval
    draws: Parameters
    """Each parameter with the m draws as its first axis."""
    verdict: Verdict
    odds: float
    """That the posterior has another part, which the chains do not come to (`separation.py`)."""
    history: dict[str, Floats]
    """Each parameter, chain × draw, over what was diagnosed."""

    @property
    def datasets(self) -> int:
        """How many draws there are."""
        return len(next(iter(self.draws.values())))

    @property
    def epsilon_blanked(self) -> float:
        """ε of all draws together for one respondent's outcome and weight being blanked out."""
        return self.datasets * self.interval.width

    @property
    def epsilon_changed(self) -> float:
        """ε of all draws together for one respondent's outcome and weight being changed."""
        return 2 * self.epsilon_blanked


def censored_records(survey: Survey, bounds: BoundsSpec, formula: str | None = None) -> Records:
    """The records with outcome and weight clamped to public bounds and v = log(w·n/N), N the public total."""
    if survey.population_total is None:
        remedy = "declare the published figure by which weights are scaled"
        raise SurveyError("spec", "survey.population_total", "is not declared", remedy)
    if bounds.weight[0] <= 0:
        raise SurveyError("spec", "privacy.bounds.weight", "must start above zero here", "give the least weight")
    if survey.transform == "log" and bounds.outcome[0] <= 0:
        raise SurveyError("spec", "privacy.bounds.outcome", "must start above zero here", "give the least outcome")
    outcome, weight = np.clip(survey.outcome_values, *bounds.outcome), np.clip(survey.weights, *bounds.weight)
    t = np.log(outcome) if survey.transform == "log" else outcome
    v = np.log(weight * (len(survey) / survey.population_total))
    return replace(make_records(survey, formula), t=t, v=v)


def fit_censored(
    model: Model, records: Records, interval: Interval, datasets: int, streams: Streams, label: str = "censored"
) -> CensoredFit:
    """m independent draws from the censored posterior; `trusted_censored` says whether they may be released.

    A run that fails its diagnostics is made once more with half the step.
    """
    target = _pilot(model, _center(model, records, interval), streams, label)
    for halvings in (0, 1):
        draws, run, verdict = _run(model, target, datasets, streams, f"{label} {halvings}", halvings)
        if verdict.passed:
            break
    odds = odds_of_giving_up(model, records, target.blocks, interval, run.parameters, run.u, run.density)
    return CensoredFit(model, records, interval, draws, verdict, odds, run.parameters)


def trusted_censored(found: CensoredFit) -> CensoredFit:
    """The fit, if its diagnostics pass and its posterior has no other part; one that fails is never released."""
    complaints = list(found.verdict.complaints)
    if not found.odds < LARGEST_ODDS:
        complaints.append("the interval is too narrow for so few records: the posterior may give some of them up")
    if complaints:
        remedy = "use a larger epsilon or fewer datasets, an interval placed better, or a simpler model.formula"
        raise SurveyError("data", "the posterior draws", "; ".join(complaints), remedy)
    return found


@outlined
class _Target(NamedTuple):
    """All that the density of u needs. Only the first three enter the distribution of the parameters."""

    blocks: Blocks
    low: Array
    high: Array
    statistics: Any
    whitening: Whitening
    shift: Array
    spread: Array


@outlined
class _Leg(NamedTuple):
    """A stretch of every chain; each array is chain × draw first."""

    u: Any
    density: Any
    parameters: dict[str, Any]
    divergent: Any
    energy: Any


def _place(model: Model, target: _Target, u: Array) -> tuple[Parameters, Array]:
    """The parameters at u, which is in units of the pilot's spread, and the prior's log density of u."""
    own = joint_of(model).place(target.shift + target.spread * u, target.whitening, target.statistics)
    return own.parameters, own.log_prior + jnp.sum(jnp.log(target.spread))


def _density(model: Model, target: _Target) -> Callable[[Array], Array]:
    """The log density of u: the prior's, and the clipped sum at the parameters."""

    def density(u: Array) -> Array:
        parameters, log_prior = _place(model, target, u)
        return log_prior + clipped_sum(model, parameters, target.blocks, target.low, target.high)

    return density


def _center(model: Model, records: Records, interval: Interval) -> _Target:
    """Whiten around the censored mode: fit the records that count, decide anew which do, then climb."""
    alpha, blocks, joint = np.ones(len(records)), make_blocks(records), joint_of(model)
    for _ in range(CENTERINGS):
        statistics = model.statistics(records, alpha)
        whitening, parameters = _whiten(model, statistics)
        terms = record_terms(model, parameters, records)
        before, alpha = alpha, np.where((terms > interval.low) & (terms < interval.high), 1.0, FLOOR)
        if np.array_equal(alpha, before):
            break
    size = joint.size(whitening, statistics)
    limits = jnp.asarray(interval.low), jnp.asarray(interval.high)
    target = _Target(blocks, *limits, statistics, whitening, jnp.zeros(size), jnp.ones(size))

    def loss(u: Floats) -> tuple[float, Floats]:
        # all chains at one point: so the program that starts them serves here too
        state = _states(model, target, jnp.broadcast_to(u, (LEAST_CHAINS, size)))
        return -float(state.logdensity[0]), -np.asarray(state.logdensity_grad[0])

    return target._replace(shift=jnp.asarray(minimize(loss, np.zeros(size), jac=True, method="L-BFGS-B").x))


@partial(jax.jit, static_argnames="model")
def _whiten(model: Model, statistics: Any) -> tuple[Whitening, Parameters]:
    joint, whitening = joint_of(model), model.whitening(statistics)
    middle = jnp.zeros(joint.size(whitening, statistics))
    return whitening, joint.place(middle, whitening, statistics).parameters


def _pilot(model: Model, target: _Target, streams: Streams, label: str) -> _Target:
    """The target in units of the spread that chains from the center show, each coordinate apart."""
    keys = _keys(streams, f"{label} pilot", LEAST_CHAINS)
    state = _states(model, target, _starts(keys, len(target.shift)))
    legs = []
    for number in range(PILOT_LEGS):
        state, leg = _advance(model, target, state, keys, number, 1)
        legs.append(leg.u)
    u = np.concatenate(legs[PILOT_LEGS // 2 :], axis=1).reshape(-1, len(target.shift))
    spread = np.maximum(u.std(axis=0), np.finfo(float).tiny)
    return target._replace(shift=target.shift + u.mean(axis=0), spread=jnp.asarray(spread))


def _run(
    model: Model, target: _Target, datasets: int, streams: Streams, label: str, halvings: int
) -> tuple[Parameters, _Leg, Verdict]:
    """The last state of each of the first m chains after LEGS legs, and what the second halves say of them."""
    keys = _keys(streams, label, max(datasets, LEAST_CHAINS))
    state = _states(model, target, _starts(keys, len(target.shift)))
    legs: list[_Leg] = []
    for _ in range(MOST_ROUNDS):
        for _ in range(LEGS):
            state, leg = _advance(model, target, state, keys, len(legs), halvings)
            legs.append(leg)
        second = _Leg(*jax.tree.map(lambda *pieces: np.concatenate(pieces, axis=1), *legs[len(legs) // 2 :]))
        verdict = judge(_quantities(second), int(second.divergent.sum()), second.energy)
        if verdict.passed or verdict.divergences:
            break
    released = {name: jnp.asarray(value[:datasets, -1]) for name, value in legs[LEGS - 1].parameters.items()}
    return released, second, verdict


def _quantities(run: _Leg) -> Floats:
    """What is diagnosed, chain × draw × quantity: all coordinates, and the coefficients made from them."""
    drawn = [value for name, value in run.parameters.items() if value.ndim == 3 and not name.startswith("scale")]
    return np.concatenate([run.u, *drawn], axis=2)


def _keys(streams: Streams, label: str, chains: int) -> Array:
    """One key for each chain, of a stream of its own."""
    data = np.stack([streams.key_data(label, chain) for chain in range(chains)])
    return wrapped(data)


def _starts(keys: Array, size: int) -> Array:
    normal = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, 0), (size,)))(keys)
    return START_SPREAD * jnp.asarray(normal)


@partial(jax.jit, static_argnames="model")
def _states(model: Model, target: _Target, u: Array) -> Any:
    """The state of a chain at each point: its place, the log density there and its slope."""
    return jax.vmap(lambda u: blackjax.hmc.init(u, _density(model, target)))(u)


@partial(jax.jit, static_argnames="model")
def _advance(model: Model, target: _Target, state: Any, keys: Array, number: int, halvings: int) -> tuple[Any, _Leg]:
    """The leg of that number of every chain: where it ends, and what it went through."""
    transition = make_transition(model, _density(model, target), len(target.shift))

    def move(key: Array, state: Any) -> Any:
        move_key, jitter_key = jax.random.split(key)
        jitter = jax.random.uniform(jitter_key, minval=1 - JITTER, maxval=1 + JITTER)
        return transition(move_key, state, jitter=jitter, halvings=halvings)

    def one_draw(before: Any, keys: Array) -> Any:
        state, info = jax.vmap(move)(keys, before)
        energy = 0.5 * jnp.sum(info.momentum**2, axis=1) - before.logdensity
        return state, (state.position, state.logdensity, info.is_divergent, energy)

    own = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, 1 + number), LEG))(keys)
    state, leg = jax.lax.scan(one_draw, state, jnp.swapaxes(own, 0, 1))
    u, density, divergent, energy = jax.tree.map(lambda value: jnp.swapaxes(value, 0, 1), leg)
    parameters = jax.vmap(jax.vmap(lambda u: _place(model, target, u)[0]))(u)
    return state, _Leg(u, density, parameters, divergent, energy)
