"""The exact audit: a model of two parameters on a grid, whose posteriors of neighbouring samples are compared.

On a grid a posterior is a finite list of probabilities, so the privacy loss between two of them is exact: the largest
ratio, and the hockey-stick divergence at any ε. With the probabilities p and q sorted by p/q and added up to P and Q,
the latter is max_k(P_k − e^ε·Q_k), so that (ε, δ) holds from ε = max_k log((P_k − δ)/Q_k) on. The censored mechanism's
log-likelihoods come from `clipped.clipped_sum`, with which releases are made. Samples are made up, never read: the
audit is about the mechanism, and looks at no survey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

from svysynth.clipped import Blocks, clipped_sum, make_blocks
from svysynth.groups import Booleans, Floats
from svysynth.interval import Interval
from svysynth.models.base import Array, Parameters, Records
from svysynth.models.joint import Placed
from svysynth.outline import outlined
from svysynth.streams import Streams

LARGEST_SAMPLE = 20
SMALLEST_SAMPLE = 5
POPULATION = 1000.0
"""The public total by which weights are scaled."""
BOUNDS_T, BOUNDS_W = (-6.0, 6.0), (1.0, 1000.0)
WIDTH, HIGH = 2.5, -1.0
"""The interval that is audited unless another width is asked for; its upper end is a likely log density."""
LARGEST_BOUND = 1.8
"""Δ_α of the asymptotic mechanism, the paper's: ε = 3.6 for one draw and a record blanked out."""
BISECTIONS = 10
MASS = 0.999
"""The likely part of a posterior, over which the asymptotic mechanism takes its bounds: as 1000 draws would show it."""
DELTAS = (0.0, 1e-6, 1e-3)
NOTICEABLE = 1e-3
"""A δ that is counted where nothing exact is promised."""
ROUNDING = 1e-9
"""By which floating-point sums may exceed a claim."""
BATCH = 50
"""Pairs worked on at a time."""

Mechanism = Callable[[Sequence["Sample"]], Floats]
"""Samples in, their log-likelihoods out: sample × point of the grid."""
Relation = Literal["blanked out", "changed"]


@dataclass(frozen=True)
class GridModel:
    """t ~ N(mean, sd²) and v ~ N(0, 1): a mean and a log standard deviation are its parameters."""

    name = "grid"
    whole_rows = False

    @property
    def joint(self) -> GridModel:
        """The parameters are their own coordinates."""
        return self

    def size(self, whitening: Any, statistics: Any) -> int:
        """Two."""
        return 2

    def place(self, u: Array, whitening: Any, statistics: Any) -> Placed:
        """The parameters at u; the prior is added on the grid."""
        return Placed({"mean": u[0], "log_sd": u[1]}, jnp.zeros(()))

    def log_likelihood(self, parameters: Parameters, t: Array, v: Array, x: Array | None) -> Array:
        """One term per record."""
        off = (t - parameters["mean"]) / jnp.exp(parameters["log_sd"])
        return -0.5 * (off**2 + v**2) - parameters["log_sd"] - jnp.log(2 * jnp.pi)


MEANS, LOG_SDS = np.meshgrid(np.linspace(-8, 8, 81), np.linspace(-2.5, 1.5, 33))
POINTS: dict[str, Floats] = {"mean": MEANS.ravel(), "log_sd": LOG_SDS.ravel()}
LOG_PRIOR: Floats = -0.5 * (POINTS["mean"] / 3) ** 2 - 0.5 * POINTS["log_sd"] ** 2


# --- samples and their neighbours ---


@outlined
@dataclass(frozen=True, eq=False)
class Sample:
    """Outcomes and weights, and which records are there: one that is blanked out has a constant for its term."""

    t: Floats
    w: Floats
    there: Booleans

    @classmethod
    def clamped(cls, t: Floats, w: Floats) -> Sample:
        """Within the public bounds, as `censored_records` makes it."""
        return cls(np.clip(t, *BOUNDS_T), np.clip(w, *BOUNDS_W), np.ones(len(t), bool))

    @property
    def v(self) -> Floats:
        """The log weight, scaled by the public total."""
        return np.asarray(np.log(self.w * (len(self.t) / POPULATION)))

    def without(self, position: int) -> Sample:
        """One record blanked out."""
        return Sample(self.t, self.w, self.there & (np.arange(len(self.t)) != position))


@outlined
@dataclass(frozen=True, eq=False)
class Pair:
    """A sample, and its neighbours by one record: changed, and blanked out."""

    before: Sample
    changed: Sample
    blanked: Sample
    adversarial: bool
    """Whether it was made to do harm."""


def make_pairs(count: int, streams: Streams) -> list[Pair]:
    """Natural neighbours, all from one normal law, and adversarial ones, by turns."""
    return [_make_pair(streams.generator("audit pairs", number), number % 2 == 1) for number in range(count)]


def _make_pair(generator: np.random.Generator, adversarial: bool) -> Pair:
    n = int(generator.integers(SMALLEST_SAMPLE, LARGEST_SAMPLE + 1))
    position = int(generator.integers(n))
    t, w = 0.8 * generator.standard_normal(n), 100 * np.exp(0.5 * generator.standard_normal(n))
    new_t, new_w = 0.8 * generator.standard_normal(), 100 * np.exp(0.5 * generator.standard_normal())
    if adversarial:  # the rest in one place, or in two; the record far off, with an extreme weight, or among them
        t = generator.choice([-5.0, 0.0, 5.0]) + generator.choice([0.0, 0.05]) * generator.standard_normal(n)
        t[: n // 3] += generator.choice([0.0, 3.0])
        t[position] = generator.choice([-1e3, -6, -5, -2.5, 0.0, 2.5, 5, 6, 1e3, t[0]])
        new_t, new_w = generator.choice([-1e3, -5.0, 0.0, 5.0, 1e3]), generator.choice([0.01, 1.0, 100.0, 1e9])
    return pair_of(t, w, position, float(new_t), float(new_w), adversarial)


def pair_of(t: Floats, w: Floats, position: int, new_t: float, new_w: float, adversarial: bool = True) -> Pair:
    """The pair in which one record's outcome and weight become others."""
    before, (after_t, after_w) = Sample.clamped(t, w), (t.copy(), w.copy())
    after_t[position], after_w[position] = new_t, new_w
    return Pair(before, Sample.clamped(after_t, after_w), before.without(position), adversarial)


def extreme_pair() -> Pair:
    """All others at one place, where the record was too; it goes to another, where the prior has hardly any weight."""
    t, w = np.full(8, 5.0), np.full(8, POPULATION / 8)
    return pair_of(t, w, 0, -5.0, float(w[0]))


# --- mechanisms ---


def censored(samples: Sequence[Sample], interval: Interval) -> Floats:
    """The released mechanism's own sums. A blanked record has no weight: its term is a constant."""
    return np.asarray(_grid_sums(_blocks(samples), jnp.asarray(interval.low), jnp.asarray(interval.high)))


def _blocks(samples: Sequence[Sample]) -> Blocks:
    """Every sample as a chunk of one block: laid out together, each as a cell of its own, and taken apart."""
    count = len(samples)
    t, v, there = (np.concatenate([getattr(sample, name) for sample in samples]) for name in ("t", "v", "there"))
    cell = np.repeat(np.arange(count), [len(sample.t) for sample in samples])
    blocks, present = (
        make_blocks(Records(t, values, cell, np.ones((count, 1)), ("1",)), LARGEST_SAMPLE)
        for values in (v, there.astype(float))
    )
    blocks = blocks._replace(weight=present.v)
    return Blocks(*(part.reshape(-1, 1, 1, *part.shape[2:])[:count] for part in blocks))


@jax.jit
def _grid_sums(blocks: Blocks, low: Array, high: Array) -> Array:
    points = {name: jnp.asarray(values) for name, values in POINTS.items()}

    def of_sample(own: Blocks) -> Array:
        return jax.vmap(lambda parameters: clipped_sum(GridModel(), parameters, own, low, high))(points)

    return jnp.asarray(jax.lax.map(of_sample, blocks))


def unclipped(t: Floats, v: Floats) -> Floats:
    """The terms of every record: record × point."""
    off = (t[:, np.newaxis] - POINTS["mean"]) / np.exp(POINTS["log_sd"])
    return np.asarray(-0.5 * (off**2 + v[:, np.newaxis] ** 2) - POINTS["log_sd"] - np.log(2 * np.pi))


def asymptotic(samples: Sequence[Sample], bound: float = LARGEST_BOUND) -> Floats:
    """The paper's mechanism at Δ_α = `bound`: weights from the data, c by bisection, no clipping."""
    return np.stack([_asymptotic(sample, bound) for sample in samples])


def _asymptotic(sample: Sample, bound: float) -> Floats:
    own = unclipped(sample.t, sample.v)[sample.there]
    size = np.abs(own)
    bounds = np.max(size[:, likely(LOG_PRIOR + own.sum(axis=0))], axis=1)

    def weighted(c: float) -> tuple[Floats, float]:
        alpha = np.minimum(1.0, c / bounds)
        total = alpha @ own
        return total, float(np.max(alpha * np.max(size[:, likely(LOG_PRIOR + total)], axis=1)))

    low, high = 1e-3, bound
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if weighted(middle)[1] <= bound else (low, middle)
    return weighted(low)[0]


def likely(log_posterior: Floats) -> Booleans:
    """Which points have nearly all of a posterior's mass: the most probable ones."""
    probability = np.exp(normalized(log_posterior))
    ascending = np.sort(probability)
    return np.asarray(probability >= ascending[np.searchsorted(np.cumsum(ascending), 1 - MASS)])


# --- privacy loss ---


def normalized(log_density: Floats) -> Floats:
    """Log probabilities along the last axis."""
    largest = log_density.max(axis=-1, keepdims=True)
    return np.asarray(
        log_density - largest - np.log(np.sum(np.exp(log_density - largest), axis=-1, keepdims=True)),
    )


def hockey_stick(one: Floats, other: Floats, epsilon: float) -> Floats:
    """The δ with which (ε, δ) holds between log probabilities, both ways; along the last axis."""
    with np.errstate(over="ignore"):
        left = [np.maximum(np.exp(a) - np.exp(epsilon + b), 0).sum(axis=-1) for a, b in ((one, other), (other, one))]
    return np.asarray(np.maximum(*left))


def least_epsilon(one: Floats, other: Floats, deltas: Sequence[float] = DELTAS) -> Floats:
    """The smallest ε with which (ε, δ) holds between log probabilities, both ways; δ is the last axis."""
    order = np.argsort(other - one, axis=-1)
    p, q = (np.exp(np.take_along_axis(values, order, axis=-1)) for values in (one, other))
    forth = np.cumsum(p, axis=-1), np.cumsum(q, axis=-1)
    back = np.cumsum(q[..., ::-1], axis=-1), np.cumsum(p[..., ::-1], axis=-1)
    found = [
        np.maximum(_one_way(*forth, delta), _one_way(*back, delta)) if delta else np.abs(one - other).max(axis=-1)
        for delta in deltas
    ]
    return np.stack(found, axis=-1)


def _one_way(p: Floats, q: Floats, delta: float) -> Floats:
    """max_k log((P_k − δ)/Q_k), not below zero; infinite where Q has no mass that a float can hold."""
    above = p - delta
    with np.errstate(all="ignore"):
        needed = np.where(above > 0, above / q, 1.0).max(axis=-1)
    return np.asarray(np.log(np.maximum(needed, 1.0)))


# --- the audit ---


@outlined
@dataclass(frozen=True, eq=False)
class Losses:
    """For every pair the privacy loss in one relation: ε for each of DELTAS, and δ at the claimed ε."""

    epsilon: Floats
    """Pair × δ."""
    delta: Floats


def measure(mechanism: Mechanism, pairs: Sequence[Pair], claims: dict[Relation, float]) -> dict[Relation, Losses]:
    """The losses of a mechanism over all pairs; of a record blanked out that of either version is the larger."""
    found: dict[Relation, list[Losses]] = {relation: [] for relation in claims}
    for before, changed, blanked in _posteriors(mechanism, pairs):
        compared: dict[Relation, list[tuple[Floats, Floats]]] = {
            "blanked out": [(before, blanked), (changed, blanked)],
            "changed": [(before, changed)],
        }
        for relation, claim in claims.items():
            epsilon = [least_epsilon(*two) for two in compared[relation]]
            delta = [hockey_stick(*two, claim) for two in compared[relation]]
            found[relation].append(Losses(np.max(epsilon, axis=0), np.max(delta, axis=0)))
    return {
        relation: Losses(np.concatenate([own.epsilon for own in parts]), np.concatenate([own.delta for own in parts]))
        for relation, parts in found.items()
    }


def _posteriors(mechanism: Mechanism, pairs: Sequence[Pair]) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Log posteriors of a batch of pairs: before, changed, blanked out."""
    for start in range(0, len(pairs), BATCH):
        # the last batch is filled up, so that one compiled program serves all
        part = list(pairs[start : start + BATCH])
        filled = part + [part[-1]] * (min(BATCH, len(pairs)) - len(part))
        samples = [getattr(pair, name) for name in ("before", "changed", "blanked") for pair in filled]
        before, changed, blanked = np.split(normalized(LOG_PRIOR + mechanism(samples)), 3)
        yield before[: len(part)], changed[: len(part)], blanked[: len(part)]


def audit_exact(
    pairs: Sequence[Pair], width: float = WIDTH, progress: Callable[[str], None] = lambda _: None
) -> pl.DataFrame:
    """One row for each guarantee, sort of neighbours and relation; `holds` is null where nothing exact is promised.

    The global kind is the censored mechanism with an interval of that width, one draw. The asymptotic kind is the
    paper's mechanism at Δ_α = 1.8; what it promises is not a bound for every pair, so nothing is judged.
    """
    interval = Interval.of_budget(width, 1, HIGH)
    kinds: dict[str, tuple[Mechanism, float]] = {
        "global": (partial(censored, interval=interval), width),
        "asymptotic": (asymptotic, 2 * LARGEST_BOUND),
    }
    rows = []
    for guarantee, (mechanism, claim) in kinds.items():
        progress(f"{guarantee}: {len(pairs):,} pairs")
        claims: dict[Relation, float] = {"blanked out": claim, "changed": 2 * claim}
        losses = measure(mechanism, pairs, claims)
        for adversarial, name in ((False, "natural"), (True, "adversarial")):
            own = np.array([pair.adversarial == adversarial for pair in pairs])
            if own.any():
                rows += [
                    _row(guarantee, name, relation, claims[relation], losses[relation], own) for relation in claims
                ]
    return pl.DataFrame(rows, infer_schema_length=None)


def _row(
    guarantee: str, neighbours: str, relation: Relation, claim: float, losses: Losses, own: Booleans
) -> dict[str, Any]:
    needed, delta = losses.epsilon[own].max(axis=0), losses.delta[own]
    holds = bool(needed[0] <= claim + ROUNDING) if guarantee == "global" else None
    figures = {f"epsilon at delta {each:g}": float(value) for each, value in zip(DELTAS, needed, strict=True)}
    return {
        "guarantee": guarantee,
        "neighbours": neighbours,
        "relation": relation,
        "pairs": int(own.sum()),
        "claim": claim,
        **figures,
        "largest delta at claim": float(delta.max()),
        "share above 0.001": float(np.mean(delta > NOTICEABLE)),
        "holds": holds,
    }
