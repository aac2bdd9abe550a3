"""The exact audit: the privacy loss between generated neighbouring data sets, computed and not estimated.

The noise of tables: the sums of two neighbours are whole numbers, and noise with P(j) ∝ e^(−|j|/b) on each gives any
result a log ratio of at most Σ|Δ|/b, which is reached. Sums and scales are those that releases use. The noisy sums to
which models are fitted are audited in the same way: all that is measured of the records, at a scaling that the noisy
histograms may have given. So are whole clusters, whose records have the largest cluster's share of ε each, and samples
of clusters whose weights are public.

The asymptotic mechanism: each posterior of a model with two parameters on a grid is a finite list of probabilities. The
privacy loss between two posteriors is therefore exact: the largest ratio, and the hockey-stick divergence at any ε.
With the probabilities p and q sorted by p/q and added up to P and Q, the divergence is max_k(P_k − e^ε·Q_k), so that
(ε, δ) holds from ε = max_k log((P_k − δ)/Q_k) on. Samples are generated, never read: the audit is about the mechanism,
and looks at no survey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import polars as pl

from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.streams import Streams
from svysynth.mechanisms.noise import Use, contributions, split_budget
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import between_sensitivity, clamped_squares
from svysynth.mechanisms.noisy_sums.measuring.measurement import HISTOGRAM_SENSITIVITY, bands_of, squares_sensitivity
from svysynth.mechanisms.noisy_sums.measuring.measurement import Use as Measured
from svysynth.mechanisms.noisy_sums.measuring.public_weights import Scores
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale, Scaling
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import (
    LARGEST,
    Answers,
    outcome_numbers,
    weighted_numbers,
    whole_numbers,
)

LARGEST_SAMPLE = 20
SMALLEST_SAMPLE = 5
POPULATION = 1000.0
"""The public total by which weights are scaled."""
BOUNDS = BoundsSpec(outcome=(-6.0, 6.0), weight=(1.0, 1000.0))
EPSILON = 1.0
"""ε of the audited noise, unless another is asked for."""
SHARES = (Fraction(1, 10), Fraction(2, 5), Fraction(1, 5), Fraction(1, 5))
"""Parts of ε for each of two histograms, sums, squares and weighted sums, where noisy sums are audited."""
CLUSTER_SHARES = (Fraction(1, 10), Fraction(3, 10), Fraction(1, 5), Fraction(1, 5), Fraction(1, 10))
"""The same where squares between clusters are measured too."""
LIMIT = LARGEST // 5
"""D of the squares between clusters."""
SCALING = Scaling(Scale(0.0, 0.8), Scale(0.0, 0.5), 5.0)
PUBLIC_SHARES = (Fraction(1, 5), Fraction(3, 10), Fraction(1, 5), Fraction(1, 5), Fraction(1, 10))
"""Parts of ε for one histogram, sums, squares, weighted sums and squares between clusters, if weights are public."""
PUBLIC_SCALING = Scaling(Scale(0.0, 0.8), Scale(0.0, 0.5), 3.5, alone=True)
LARGEST_BOUND = 1.8
"""Δ_α of the asymptotic mechanism, the paper's: ε = 3.6 for one draw and a record blanked out."""
BISECTIONS = 10
MASS = 0.999
"""The likely part of a posterior, over which the asymptotic mechanism takes its bounds: as 1000 draws would show it."""
DELTAS = (0.0, 1e-6, 1e-3)
NOTICEABLE = 1e-3
"""A δ that is counted where nothing exact is promised."""
ROUNDING = 1e-9
"""Floating-point sums may exceed a claim by this much."""
BATCH = 50
"""Pairs worked on at a time."""

Mechanism = Callable[[Sequence["Sample"]], Floats]
"""Samples in, their log-likelihoods out: sample × point of the grid."""
Relation = Literal["blanked out", "changed"]
NEIGHBOURS = ("natural", "adversarial")


# --- the grid: t ~ N(mean, sd²) and v ~ N(0, 1), with a mean and a log standard deviation for parameters ---

MEANS, LOG_SDS = np.meshgrid(np.linspace(-8, 8, 81), np.linspace(-2.5, 1.5, 33))
POINTS: dict[str, Floats] = {"mean": MEANS.ravel(), "log_sd": LOG_SDS.ravel()}
LOG_PRIOR: Floats = -0.5 * (POINTS["mean"] / 3) ** 2 - 0.5 * POINTS["log_sd"] ** 2


# --- samples and their neighbours ---


@outlined
@dataclass(frozen=True, eq=False)
class Sample:
    """Outcomes and weights, and which records are present: a blanked-out record has a constant for its term."""

    t: Floats
    w: Floats
    there: Booleans

    @classmethod
    def of(cls, t: Floats, w: Floats) -> Sample:
        """The sample in which every record is present."""
        return cls(t, w, np.ones(len(t), bool))

    def on_grid(self) -> tuple[Floats, Floats]:
        """Outcome and log weight, scaled by the public total; what lies beyond the bounds counts as at their end."""
        t, w = np.clip(self.t, *BOUNDS.outcome), np.clip(self.w, *BOUNDS.weight)
        return t, np.asarray(np.log(w * (len(t) / POPULATION)))

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
    """Whether the pair was made to be a hard case for privacy."""


def make_pairs(count: int, streams: Streams) -> list[Pair]:
    """Natural neighbours, all from one normal distribution, and adversarial ones, in turn."""
    return [_make_pair(streams.generator("audit pairs", number), number % 2 == 1) for number in range(count)]


def _make_pair(generator: np.random.Generator, adversarial: bool) -> Pair:
    n = int(generator.integers(SMALLEST_SAMPLE, LARGEST_SAMPLE + 1))
    position = int(generator.integers(n))
    t, w = 0.8 * generator.standard_normal(n), 100 * np.exp(0.5 * generator.standard_normal(n))
    new_t, new_w = 0.8 * generator.standard_normal(), 100 * np.exp(0.5 * generator.standard_normal())
    if adversarial:  # the others in one place, or in two; the record far away, with an extreme weight, or among them
        t = generator.choice([-5.0, 0.0, 5.0]) + generator.choice([0.0, 0.05]) * generator.standard_normal(n)
        t[: n // 3] += generator.choice([0.0, 3.0])
        t[position] = generator.choice([-1e3, -6, -5, -2.5, 0.0, 2.5, 5, 6, 1e3, t[0]])
        new_t, new_w = generator.choice([-1e3, -5.0, 0.0, 5.0, 1e3]), generator.choice([0.01, 1.0, 100.0, 1e9])
    return pair_of(t, w, position, float(new_t), float(new_w), adversarial)


def pair_of(t: Floats, w: Floats, position: int, new_t: float, new_w: float, adversarial: bool = True) -> Pair:
    """The pair in which one record's outcome and weight become others."""
    before, (after_t, after_w) = Sample.of(t, w), (t.copy(), w.copy())
    after_t[position], after_w[position] = new_t, new_w
    return Pair(before, Sample.of(after_t, after_w), before.without(position), adversarial)


# --- mechanisms ---


def noisy_sums(sample: Sample, uses: Sequence[Use]) -> list[Integers]:
    """The exact sums that each use of the budget adds noise to. A blanked record adds nothing."""
    return [
        contributions(use.group, sample.w, sample.t, BOUNDS, use.with_outcome)[:, sample.there].sum(axis=1)
        for use in uses
    ]


def noise_losses(pairs: Sequence[Pair], epsilon: float) -> dict[Relation, Losses]:
    """The largest log ratio of any noisy sums, for every pair: the ε needed with δ = 0, and no other."""
    found: dict[Relation, list[float]] = {"blanked out": [], "changed": []}
    for pair in pairs:
        uses = split_budget({(): 1}, len(pair.before.t), ("count", "mean"), BOUNDS, epsilon)
        before, changed, blanked = (noisy_sums(own, uses) for own in (pair.before, pair.changed, pair.blanked))
        found["blanked out"].append(max(_log_ratio(own, blanked, uses) for own in (before, changed)))
        found["changed"].append(_log_ratio(before, changed, uses))
    return {relation: Losses(np.array(losses)[:, np.newaxis]) for relation, losses in found.items()}


def _log_ratio(one: Sequence[Integers], other: Sequence[Integers], uses: Sequence[Use | Measured]) -> float:
    moved = (float(np.abs(own - its).sum()) for own, its in zip(one, other, strict=True))
    return sum(far / use.scale for far, use in zip(moved, uses, strict=True))


def measured_losses(pairs: Sequence[Pair], epsilon: float) -> dict[Relation, Losses]:
    """The same for the noisy sums of models. Neighbours' sums differ by what the one record adds to them."""
    uses = _uses([Fraction(epsilon) * share for share in SHARES])
    found: dict[Relation, list[float]] = {"blanked out": [], "changed": []}
    for pair in pairs:
        place = int(np.flatnonzero(~pair.blanked.there)[0])
        before, changed = (_sums(own, slice(place, place + 1)) for own in (pair.before, pair.changed))
        nothing = [np.zeros_like(own) for own in before]
        found["blanked out"].append(max(_log_ratio(own, nothing, uses) for own in (before, changed)))
        found["changed"].append(_log_ratio(before, changed, uses))
    return {relation: Losses(np.array(losses)[:, np.newaxis]) for relation, losses in found.items()}


def cluster_losses(pairs: Sequence[Pair], epsilon: float) -> dict[Relation, Losses]:
    """The same if all answers of a cluster are replaced: the sample is a cluster, and each record has its share of ε.

    Each record is in a cell of its own, and gets the answers of the changed record, or is blanked out.
    """
    found: dict[Relation, list[float]] = {"blanked out": [], "changed": []}
    for pair in pairs:
        size, place = len(pair.before.t), int(np.flatnonzero(~pair.blanked.there)[0])
        parts = [Fraction(epsilon) / size * share for share in CLUSTER_SHARES]
        uses = [*_uses(parts), Measured("squares between clusters", between_sensitivity(LIMIT), parts[-1])]
        other = Sample.of(np.full(size, pair.changed.t[place]), np.full(size, pair.changed.w[place]))
        before, changed = (_sums(own, slice(0, size)) for own in (pair.before, other))
        nothing = [np.zeros_like(own) for own in before]
        for sums in (before, changed, nothing):
            whole = sums[2].sum(axis=1).astype(np.int64)
            sums.append(clamped_squares(whole[np.newaxis], np.array([size]), LIMIT))
        found["blanked out"].append(max(_log_ratio(own, nothing, uses) for own in (before, changed)))
        found["changed"].append(_log_ratio(before, changed, uses))
    return {relation: Losses(np.array(losses)[:, np.newaxis]) for relation, losses in found.items()}


def public_weights_losses(pairs: Sequence[Pair], epsilon: float) -> dict[Relation, Losses]:
    """The same if weights are public and the sample is a cluster: one outcome is changed, or blanked out.

    The weights are those of the sample before. A blanked record counts with T = 0 in every sum, with half of the
    largest square, and in no histogram. The public centre between clusters is the one that does the most harm.
    """
    found: dict[Relation, list[float]] = {"blanked out": [], "changed": []}
    parts = [Fraction(epsilon) * share for share in PUBLIC_SHARES]
    uses = [
        Measured("outcome", HISTOGRAM_SENSITIVITY, parts[0]),
        Measured("sums", 2 * LARGEST, parts[1]),
        Measured("squares", squares_sensitivity(2, PUBLIC_SCALING.reach), parts[2]),
        Measured("weighted sums", 2 * LARGEST, parts[3]),
        Measured("squares between clusters", between_sensitivity(LIMIT, weights_public=True), parts[4]),
    ]
    for pair in pairs:
        place = int(np.flatnonzero(~pair.blanked.there)[0])
        changed = Sample.of(pair.changed.t, pair.before.w)
        before, after = (_sums_given_weights(own, place) for own in (pair.before, changed))
        nothing, size = _sums_given_weights(pair.before, place, blanked=True), len(pair.before.t)
        blanked = (_log_ratio(*_between(own, nothing, size), uses) for own in (before, after))
        found["blanked out"].append(max(blanked))
        found["changed"].append(_log_ratio(*_between(before, after, size), uses))
    return {relation: Losses(np.array(losses)[:, np.newaxis]) for relation, losses in found.items()}


def _between(one: list[Integers], other: list[Integers], size: int) -> tuple[list[Integers], list[Integers]]:
    """Two results with the squares between clusters at the end, from the sums in the cluster, which is at the limit."""
    sums = np.array([one[1], other[1]])
    sums += LIMIT * size - sums.max()
    squares = (clamped_squares(own[np.newaxis], np.array([size]), LIMIT) for own in sums)
    first, second = ([*own, square] for own, square in zip((one, other), squares, strict=True))
    return first, second


def _sums_given_weights(sample: Sample, place: int, blanked: bool = False) -> list[Integers]:
    """What is measured of a cluster with public weights but the squares, with one record blanked out or not."""
    step, size = PUBLIC_SCALING.reach / LARGEST, len(sample.t)
    answers = Answers(sample.t, sample.w, BOUNDS, "identity", size / sample.w.sum(), True)
    t, v = answers(slice(0, size))
    count = bands_of(BOUNDS, "identity", size, POPULATION)[0].count(np.delete(t, place) if blanked else t)
    spread = max(float(v.std()), 1e-3)
    score = Scores(np.array([v.mean()]), spread, step)(v, np.zeros(size, np.int64))
    whole, weighted = (
        outcome_numbers(t, PUBLIC_SCALING),
        weighted_numbers(t, v, PUBLIC_SCALING, "identity", both=False)[0],
    )
    squares = whole**2
    if blanked:
        whole[place], weighted[place], squares[place] = 0, 0, LARGEST**2 // 2
    products = np.array([squares.sum(), whole @ score])
    return [count, np.array([whole.sum()], np.int64), products, np.array([weighted.sum()])]


def _uses(parts: Sequence[Fraction]) -> list[Measured]:
    return [
        *(Measured(name, HISTOGRAM_SENSITIVITY, parts[0]) for name in ("outcome", "weight")),
        Measured("sums", 2 * LARGEST, parts[1]),
        Measured("squares", 2 * LARGEST**2, parts[2]),
        Measured("weighted sums", 2 * LARGEST, parts[3]),
    ]


def _sums(sample: Sample, own: slice) -> list[Integers]:
    """What records add to all that noisy sums measure: two histograms, sums, squares, weighted sums."""
    answers = Answers(sample.t, sample.w, BOUNDS, "identity", len(sample.t) / POPULATION)
    t, v = answers(own)
    bands = bands_of(BOUNDS, "identity", len(sample.t), POPULATION)
    first, second = whole = whole_numbers(t, v, SCALING)
    squares = np.array([first @ first, first @ second, second @ second])
    weighted = weighted_numbers(t, v, SCALING, "identity", both=True)
    return [*(band.count(values) for band, values in zip(bands, (t, v), strict=True)), whole, squares, weighted]


def record_terms(t: Floats, v: Floats) -> Floats:
    """The terms of every record: record × point."""
    off = (t[:, np.newaxis] - POINTS["mean"]) / np.exp(POINTS["log_sd"])
    return np.asarray(-0.5 * (off**2 + v[:, np.newaxis] ** 2) - POINTS["log_sd"] - np.log(2 * np.pi))


def asymptotic(samples: Sequence[Sample], bound: float = LARGEST_BOUND) -> Floats:
    """The paper's mechanism at Δ_α = `bound`: weights α from the data, their constant c by bisection."""
    return np.stack([_asymptotic(sample, bound) for sample in samples])


def _asymptotic(sample: Sample, bound: float) -> Floats:
    own = record_terms(*sample.on_grid())[sample.there]
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
    """The privacy loss of every pair in one relation: ε for each of DELTAS, and δ at the claimed ε."""

    epsilon: Floats
    """Pair × δ; only δ = 0 where nothing else is computed."""
    delta: Floats | None = None


def measure(mechanism: Mechanism, pairs: Sequence[Pair], claims: dict[Relation, float]) -> dict[Relation, Losses]:
    """The losses of a mechanism over all pairs; for a record blanked out, the larger loss of its two versions."""
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
    return {relation: _joined(parts) for relation, parts in found.items()}


def _joined(parts: Sequence[Losses]) -> Losses:
    deltas = [own.delta for own in parts if own.delta is not None]
    return Losses(np.concatenate([own.epsilon for own in parts]), np.concatenate(deltas))


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
    pairs: Sequence[Pair], epsilon: float = EPSILON, progress: Callable[[str], None] = lambda _: None
) -> pl.DataFrame:
    """One row for each guarantee, sort of neighbours and relation; `holds` is null where nothing exact is promised.

    The global guarantee is that of the noise of tables at that ε, and that of noisy sums, where a respondent blanked
    out has ε/2, also with whole clusters protected by ε/k for each of k records, and in clusters with public
    weights. The asymptotic guarantee is that of
    the paper's mechanism at Δ_α = 1.8 with one draw; it does not promise a bound for every pair, so nothing is judged.
    """
    progress(f"global: {len(pairs):,} pairs")
    rows = _rows("global", pairs, {"blanked out": epsilon, "changed": epsilon}, noise_losses(pairs, epsilon))
    progress(f"noisy sums: {len(pairs):,} pairs")
    halved: dict[Relation, float] = {"blanked out": epsilon / 2, "changed": epsilon}
    rows += _rows("global, noisy sums", pairs, halved, measured_losses(pairs, epsilon))
    rows += _rows("global, whole clusters", pairs, halved, cluster_losses(pairs, epsilon))
    rows += _rows("global, clusters, public weights", pairs, halved, public_weights_losses(pairs, epsilon))
    progress(f"asymptotic: {len(pairs):,} pairs")
    claims: dict[Relation, float] = {"blanked out": 2 * LARGEST_BOUND, "changed": 4 * LARGEST_BOUND}
    rows += _rows("asymptotic", pairs, claims, measure(asymptotic, pairs, claims))
    return pl.DataFrame(rows, infer_schema_length=None)


def _rows(
    guarantee: str, pairs: Sequence[Pair], claims: dict[Relation, float], losses: dict[Relation, Losses]
) -> list[dict[str, Any]]:
    kinds = {name: np.array([pair.adversarial == (name == "adversarial") for pair in pairs]) for name in NEIGHBOURS}
    return [
        _row(guarantee, name, relation, claim, losses[relation], own)
        for name, own in kinds.items()
        for relation, claim in claims.items()
        if own.any()
    ]


def _row(
    guarantee: str, neighbours: str, relation: Relation, claim: float, losses: Losses, own: Booleans
) -> dict[str, Any]:
    needed = losses.epsilon[own].max(axis=0).tolist()
    needed += [None] * (len(DELTAS) - len(needed))
    delta = None if losses.delta is None else losses.delta[own]
    return {
        "guarantee": guarantee,
        "neighbours": neighbours,
        "relation": relation,
        "pairs": int(own.sum()),
        "claim": claim,
        **{f"epsilon at delta {each:g}": value for each, value in zip(DELTAS, needed, strict=True)},
        "largest delta at claim": None if delta is None else float(delta.max()),
        "share above 0.001": None if delta is None else float(np.mean(delta > NOTICEABLE)),
        "holds": bool(needed[0] <= claim + ROUNDING) if guarantee.startswith("global") else None,
    }
