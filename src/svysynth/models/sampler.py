"""Sampler: posterior draws on the whitened density, several chains at once. No other file uses the MCMC library.

The posteriors of FBS and FBP are whitened to nearly standard normal ones. On such a density a trajectory of a quarter
turn ends at an independent draw; NUTS would spend its gradients on finding this length. So FBS and FBP are sampled by
Hamiltonian Monte Carlo with three steps, whose integrator follows the standard normal exactly; a density may name other
steps (`Sampling`). A density that is not nearly normal is sampled by NUTS.

The compiled program depends on the model and on the shapes of its statistics, not on the data or the weights α. For FBS
and FBP these shapes do not depend on the number of records. With the same random stream the draws move smoothly with α,
on which calibration relies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from blackjax.mcmc.integrators import IntegratorState

from svysynth.core.column_storage import Column
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.streams import Streams
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Density, Model
from svysynth.models.diagnostics import Verdict, judge, judge_together
from svysynth.models.jax_keys import jax_key, wrapped
from svysynth.models.records import Records
from svysynth.models.whitening import Whitening

CHAINS = 4
JITTER = 0.2
"""By what share the step varies from transition to transition, so that no parameter moves periodically."""
START_SPREAD = 0.5
"""The standard deviation of the chains' starting points, in units of the whitened density's spread."""
LEG = 50
"""How many transitions one call to the compiled program makes: it serves the warm-up and runs of any length."""
MOST_ROUNDS = 4
"""While the verdict is not good the chains are continued, up to this many times their first length. The draws of a
pseudo posterior are those of the first round, thinned, however long the chains become: so Δ moves smoothly with α."""


@outlined
@dataclass(frozen=True, eq=False)
class Fit:
    """Draws from a pseudo posterior, and what the diagnostics say about them."""

    model: Model
    records: Records
    alpha: Column
    draws: Parameters
    """Each parameter with the draws as its first axis, chain after chain."""
    verdict: Verdict

    @property
    def size(self) -> int:
        """How many draws were kept."""
        return len(next(iter(self.draws.values())))


def fit(model: Model, records: Records, alpha: Column, streams: Streams, draws: int = 1000, label: str = "fit") -> Fit:
    """Draw from the α-weighted pseudo posterior; the verdict says whether the draws can be trusted."""
    kept, verdict = draw_from(model, model.statistics(records, alpha), streams, draws, label, from_first_round=True)
    return Fit(model, records, alpha, kept, verdict)


def draw_from(
    model: Density,
    statistics: Any,
    streams: Streams,
    draws: int,
    label: str,
    rounds: int = MOST_ROUNDS,
    from_first_round: bool = False,
) -> tuple[Parameters, Verdict]:
    """Draws from a density, given what it needs of the data; a run that fails is made once more with half the step.

    With one round the chains have their first length and are not run again, whatever the verdict, as in studies of
    thousands of fits.
    """
    found, verdict = _run(model, statistics, streams, draws, label, 0, rounds, from_first_round)
    if not verdict.passed and rounds > 1:
        found, verdict = _run(model, statistics, streams, draws, label, 1, rounds, from_first_round)
    return {name: jnp.asarray(value) for name, value in found.items()}, verdict


def _run(
    model: Density,
    statistics: Any,
    streams: Streams,
    draws: int,
    label: str,
    halvings: int,
    rounds: int,
    from_first_round: bool,
) -> tuple[dict[str, Floats], Verdict]:
    """The kept draws and the verdict of a run: a warm-up at half the step, and rounds until the verdict is settled."""
    key = jax_key(streams, label)
    whitening, state = _start(model, statistics, key)
    advance = partial(_advance, model, statistics, whitening, key=key)
    state, _ = advance(state, number=0, halvings=halvings + 1)
    legs: list[_Leg] = []
    for _ in range(rounds):
        for _ in range(_legs(model, draws)):
            state, leg = advance(state, number=1 + len(legs), halvings=halvings)
            legs.append(leg)
        run = _Leg(*jax.tree.map(lambda *pieces: np.concatenate(pieces, axis=1), *legs))
        verdict = judge(_quantities(run, model.coefficients), int(run.divergent.sum()), run.energy)
        if verdict.passed or verdict.divergences:
            break
    kept = _legs(model, draws) if from_first_round else len(legs)
    return {name: _thin(value, draws, kept) for name, value in run.parameters.items()}, verdict


def fit_together(
    model: Density, statistics: Any, keys: npt.NDArray[np.uint32], draws: int
) -> tuple[Parameters, list[Verdict]]:
    """Many fits of one model at once, each as `fit` would make it; statistics and keys have the fit as first axis."""
    verdicts: dict[int, Verdict] = {}
    kept: Parameters = {}
    for halvings in (0, 1):
        pending = [i for i in range(len(keys)) if i not in verdicts or not verdicts[i].passed]
        for rounds in range(1, MOST_ROUNDS + 1):
            if not pending:
                break
            chosen = np.array(pending)[padded(len(pending), len(keys))]
            own = jax.tree.map(lambda value, chosen=chosen: value[chosen], statistics)
            found, figures, divergences = _run_together(model, own, keys[chosen], draws, rounds, halvings)
            for place, i in enumerate(pending):
                rhat, bulk, tail, ebfmi = figures[place].tolist()
                verdicts[i] = Verdict(rhat, bulk, tail, int(divergences[place]), ebfmi)
            whole = len(pending) == len(keys)
            rows = np.array(pending)
            kept = found if whole else {n: kept[n].at[rows].set(value[: len(rows)]) for n, value in found.items()}
            pending = [i for i in pending if not verdicts[i].passed and not verdicts[i].divergences]
    return kept, [verdicts[i] for i in range(len(keys))]


def padded(count: int, most: int) -> Integers:
    """The positions 0 … count − 1, the last repeated up to one of a few sizes, so that few programs are compiled."""
    size = next(size for size in (most // 64, most // 8, most) if size >= count)
    return np.minimum(np.arange(size), count - 1)


def _run_together(
    model: Density, statistics: Any, keys: npt.NDArray[np.uint32], draws: int, rounds: int, halvings: int
) -> tuple[Parameters, Floats, Integers]:
    """A number of rounds of all chains: the kept draws of each fit, its diagnostics and its divergences."""
    key = wrapped(keys)
    whitening, state = _start_together(model, statistics, key)
    state, _ = _advance_together(model, statistics, whitening, state, key, 0, halvings + 1)
    legs: list[_Leg] = []
    for number in range(1, 1 + rounds * _legs(model, draws)):
        state, leg = _advance_together(model, statistics, whitening, state, key, number, halvings)
        legs.append(leg)
    run = _Leg(*jax.tree.map(lambda *pieces: jnp.concatenate(pieces, axis=2), *legs))
    figures = judge_together(jax.vmap(partial(_quantities, names=model.coefficients, xp=jnp))(run), run.energy)
    thin = jax.vmap(partial(_thin, draws=draws, legs=_legs(model, draws)))
    kept = {name: thin(value) for name, value in run.parameters.items()}
    return kept, np.asarray(figures), np.asarray(run.divergent.sum(axis=(1, 2)))


@partial(jax.jit, static_argnames="model")
def _start_together(model: Density, statistics: Any, key: Array) -> Any:
    return jax.vmap(partial(_start, model))(statistics, key)


@partial(jax.jit, static_argnames="model")
def _advance_together(
    model: Density, statistics: Any, whitening: Whitening, state: Any, key: Array, number: int, halvings: int
) -> Any:
    advance = partial(_advance, model, number=number, halvings=halvings)
    return jax.vmap(advance)(statistics, whitening, state, key)


@outlined
class _Leg(NamedTuple):
    """A stretch of every chain; the first two axes of each array are chain and draw."""

    z: Any
    parameters: dict[str, Any]
    divergent: Any
    energy: Any


def _legs(model: Density, draws: int) -> int:
    """How many legs a round has: its transitions are thinned to that many draws."""
    return -(-model.sampling.oversampling * draws // (CHAINS * LEG))


def _thin(value: Any, draws: int, legs: int) -> Any:
    """Every k-th draw of the first legs of every chain, so that `draws` are left."""
    each = -(-draws // CHAINS)
    first = value[:, : legs * LEG]
    return first[:, :: first.shape[1] // each][:, :each].reshape(-1, *value.shape[2:])[:draws]


def _quantities(run: _Leg, names: tuple[str, ...], xp: Any = np) -> Any:
    """What is diagnosed, chain × draw × quantity: all that was sampled, and the coefficients drawn from it."""
    return xp.concatenate([run.z, *(run.parameters[name] for name in names)], axis=2)


@partial(jax.jit, static_argnames="model")
def _start(model: Density, statistics: Any, key: Array) -> tuple[Whitening, Any]:
    whitening = model.whitening(statistics)
    start = START_SPREAD * jax.random.normal(jax.random.fold_in(key, 0), (CHAINS, len(whitening.center)))
    density = _whitened(model, statistics, whitening)
    return whitening, jax.vmap(lambda u: blackjax.hmc.init(u, density))(start)


def _whitened(model: Density, statistics: Any, whitening: Whitening) -> Callable[[Array], Array]:
    def density(u: Array) -> Array:
        z, log_jacobian = whitening(u)
        return model.log_density(z, statistics) + log_jacobian

    return density


@partial(jax.jit, static_argnames="model")
def _advance(
    model: Density, statistics: Any, whitening: Whitening, state: Any, key: Array, number: int, halvings: int
) -> tuple[Any, _Leg]:
    """One leg of every chain, by its number: the state at its end, and its draws."""
    transition = make_transition(model, _whitened(model, statistics, whitening), len(whitening.center))
    moves, jitters, finishes = jax.random.split(jax.random.fold_in(key, 1 + number), 3)
    jitter = jax.random.uniform(jitters, (LEG,), minval=1 - JITTER, maxval=1 + JITTER)

    def one_draw(state: Any, inputs: tuple[Array, Array]) -> Any:
        move = partial(transition, jitter=inputs[1], halvings=halvings)
        before = state
        state, info = jax.vmap(move)(jax.random.split(inputs[0], CHAINS), state)
        energy = 0.5 * jnp.sum(info.momentum**2, axis=1) - before.logdensity
        return state, (state.position, info.is_divergent, energy)

    state, leg = jax.lax.scan(one_draw, state, (jax.random.split(moves, LEG), jitter))
    u, divergent, energy = jax.tree.map(lambda value: jnp.swapaxes(value, 0, 1), leg)
    z = jax.vmap(jax.vmap(lambda u: whitening(u)[0]))(u)
    complete = jax.vmap(jax.vmap(partial(model.complete, statistics=statistics)))
    parameters = complete(jax.random.split(finishes, (CHAINS, LEG)), z)
    return state, _Leg(z, parameters, divergent, energy)


def make_transition(model: Density, density: Callable[[Array], Array], size: int) -> Callable[..., Any]:
    """One transition of one chain; `jitter` scales its step and `halvings` halves it, for the same distance."""
    metric, (near_normal, turn, steps, step, _) = jnp.ones(size), model.sampling
    if near_normal:
        kernel = blackjax.hmc.build_kernel(integrator=_turning)
        return lambda key, state, jitter, halvings: kernel(
            key, state, density, jitter * turn / 2**halvings, metric, steps * 2**halvings
        )
    nuts = blackjax.nuts.build_kernel()
    return lambda key, state, jitter, halvings: nuts(key, state, density, step / 2**halvings, metric)


def _turning(density: Callable[[Array], Array], kinetic_energy: Any) -> Callable[[IntegratorState, Array], Any]:
    """A symplectic step that is exact for the standard normal: a rotation, and kicks by the rest of the density.

    H = (u² + p²)/2 + (−log density(u) − u²/2): the first part rotates (u, p), the second moves p (Shahbaba, Lan,
    Johnson and Neal 2014).
    """
    slope = jax.value_and_grad(density)

    def step(state: IntegratorState, angle: Array) -> IntegratorState:
        u, p, _, gradient = state
        p = p + 0.5 * angle * (gradient + u)
        u, p = jnp.cos(angle) * u + jnp.sin(angle) * p, jnp.cos(angle) * p - jnp.sin(angle) * u
        value, gradient = slope(u)
        return IntegratorState(u, p + 0.5 * angle * (gradient + u), value, gradient)

    return step
