"""Posterior draws: NUTS on the whitened density, several chains at once. The only file that knows the MCMC engine.

The compiled program depends on the model and on the shapes of its statistics, not on the data, the weights α or the
number of records. With the same random stream the draws move smoothly with α, which calibration relies on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from svysynth.diagnostics import Verdict, judge
from svysynth.groups import Floats
from svysynth.models.base import Array, Model, Parameters, Records
from svysynth.streams import Streams

CHAINS = 4
OVERSAMPLING = 2
"""Draws made for each draw kept: with fewer, R-hat is too noisy to be held to 1.01 for every quantity."""
STEP_SIZE = 0.5
"""In units of the whitened density's spread, for a model that names none of its own."""
START_SPREAD = 0.5
"""How far from the center the chains start, in the same units."""
LEG = 50
"""Transitions of one call to the compiled program, which serves the warm-up and runs of any length."""
MOST_ROUNDS = 4
"""Where R-hat is not yet convincing the chains are run on, up to so many times their length. The draws kept are those
of the first stretch, thinned, whatever it took to convince: so Δ moves smoothly with α."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Draws from a pseudo posterior, and what the diagnostics say of them."""

    model: Model
    records: Records
    alpha: Floats
    draws: Parameters
    """Each parameter with the draws as its first axis, chain after chain."""
    verdict: Verdict

    @property
    def size(self) -> int:
        """How many draws were kept."""
        return len(next(iter(self.draws.values())))


def fit(model: Model, records: Records, alpha: Floats, streams: Streams, draws: int = 1000, label: str = "fit") -> Fit:
    """Draw from the α-weighted pseudo posterior; the verdict says whether the draws can be trusted.

    A run that fails is made once more with half the step: rare in small samples, usual for FBS from 10⁵ records on.
    """
    statistics = model.statistics(records, alpha)
    step = float(getattr(model, "step_size", STEP_SIZE))
    found, verdict = _run(model, statistics, streams, draws, label, step)
    if not verdict.passed:
        found, verdict = _run(model, statistics, streams, draws, label, step / 2)
    kept = {name: jnp.asarray(value) for name, value in found.items()}
    return Fit(model, records, alpha, kept, verdict)


def _run(
    model: Model, statistics: Any, streams: Streams, draws: int, label: str, step: float
) -> tuple[dict[str, Floats], Verdict]:
    """Warm up at half the step, then run until the verdict is good or cannot become so; the draws that are kept."""
    whitening, state = _start(model, statistics, _key(streams, label, 0))
    state, *_ = _advance(model, statistics, whitening, state, _key(streams, label, 1), step / 2)
    legs: list[tuple[Array, Parameters, Array, Array]] = []
    legs_per_round = -(-OVERSAMPLING * draws // (CHAINS * LEG))
    for _ in range(MOST_ROUNDS):
        for _ in range(legs_per_round):
            key = _key(streams, label, 2 + len(legs))
            state, *leg = _advance(model, statistics, whitening, state, key, step)
            legs.append((leg[0], leg[1], leg[2], leg[3]))
        z, divergent, energy = (np.concatenate([leg[i] for leg in legs], axis=1) for i in (0, 2, 3))
        run = {name: np.concatenate([leg[1][name] for leg in legs], axis=1) for name in legs[0][1]}
        verdict = judge(_quantities(z, run), int(divergent.sum()), energy)
        if verdict.passed or verdict.divergences:
            break
    first = legs_per_round * LEG
    return {name: _thin(value[:, :first], draws) for name, value in run.items()}, verdict


def _key(streams: Streams, label: str, index: int) -> Array:
    return jnp.asarray(jax.random.wrap_key_data(jnp.asarray(streams.key_data(label, index))))


def _thin(value: Floats, draws: int) -> Floats:
    """Every k-th draw of every chain, so that `draws` are left."""
    chains, length = value.shape[:2]
    each = -(-draws // chains)
    return value[:, :: length // each][:, :each].reshape(-1, *value.shape[2:])[:draws]


def _quantities(z: Floats, parameters: dict[str, Floats]) -> Floats:
    """What is diagnosed, chain × draw × quantity: all that was sampled, and every vector of coefficients."""
    vectors = [value for value in parameters.values() if value.ndim == 3]
    return np.concatenate([z, *vectors], axis=2)


@partial(jax.jit, static_argnames="model")
def _start(model: Model, statistics: Any, key: Array) -> tuple[Any, Any]:
    whitening = model.whitening(statistics)
    start = START_SPREAD * jax.random.normal(key, (CHAINS, len(whitening.center)))
    density = _whitened(model, statistics, whitening)
    return whitening, jax.vmap(lambda u: blackjax.nuts.init(u, density))(start)


def _whitened(model: Model, statistics: Any, whitening: Any) -> Any:
    return lambda u: model.log_density(whitening.center + whitening.factor @ u, statistics)


@partial(jax.jit, static_argnames="model")
def _advance(
    model: Model, statistics: Any, whitening: Any, state: Any, key: Array, step: float
) -> tuple[Any, Array, Parameters, Array, Array]:
    """One leg of every chain: its end, the draws, all parameters of each, divergences and energies."""
    density = _whitened(model, statistics, whitening)
    kernel = blackjax.nuts.build_kernel()
    metric = jnp.ones(len(whitening.center))

    def one_draw(state: Any, key: Array) -> Any:
        move, finish = jax.random.split(key)
        state, info = kernel(move, state, density, step, metric)
        z = whitening.center + whitening.factor @ state.position
        return state, (z, model.complete(finish, z, statistics), info.is_divergent, info.energy)

    def one_chain(state: Any, key: Array) -> Any:
        return jax.lax.scan(one_draw, state, jax.random.split(key, LEG))

    state, (z, parameters, divergent, energy) = jax.vmap(one_chain)(state, jax.random.split(key, CHAINS))
    return state, z, parameters, divergent, energy
