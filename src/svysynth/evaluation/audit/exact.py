"""The exact audit: the privacy loss between generated neighbouring data sets, computed and not estimated.

The noise of tables: the sums of two neighbours are whole numbers, and noise with P(j) ∝ e^(−|j|/b) on each gives any
result a log ratio of at most Σ|Δ|/b, which is reached. Sums and scales are those that releases use. In samples of
clusters how alike the records of a cluster are is measured too. The noisy sums to
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
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.evaluation.audit.losses_of_pairs import pairs_losses
from svysynth.evaluation.audit.noisy_losses import cluster_losses, measured_losses, public_weights_losses
from svysynth.evaluation.audit.pairs import BOUNDS, Losses, Pair, Relation, Sample, log_ratio
from svysynth.mechanisms.noise import Use, contributions, split_budget
from svysynth.mechanisms.noisy_tables.tables import PAIRS_SHARE

EPSILON = 1.0
"""ε of the audited noise, unless another is asked for."""
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
NEIGHBOURS = ("natural", "adversarial")


# --- the grid: t ~ N(mean, sd²) and v ~ N(0, 1), with a mean and a log standard deviation for parameters ---

MEANS, LOG_SDS = np.meshgrid(np.linspace(-8, 8, 81), np.linspace(-2.5, 1.5, 33))
POINTS: dict[str, Floats] = {"mean": MEANS.ravel(), "log_sd": LOG_SDS.ravel()}
LOG_PRIOR: Floats = -0.5 * (POINTS["mean"] / 3) ** 2 - 0.5 * POINTS["log_sd"] ** 2


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
        found["blanked out"].append(max(log_ratio(own, blanked, uses) for own in (before, changed)))
        found["changed"].append(log_ratio(before, changed, uses))
    return {relation: Losses(np.array(losses)[:, np.newaxis]) for relation, losses in found.items()}


def clustered_losses(pairs: Sequence[Pair], epsilon: float) -> dict[Relation, Losses]:
    """The same for tables of clusters, whose sums have a part of ε, and how alike records of a cluster are the rest."""
    rest = epsilon * (1 - PAIRS_SHARE)
    sums, alike = noise_losses(pairs, rest), pairs_losses(pairs, Fraction(epsilon) - Fraction(rest))
    return {relation: Losses(own.epsilon + alike[relation].epsilon) for relation, own in sums.items()}


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

    The global guarantee is that of the noise of tables at that ε, also of samples of clusters, and that of noisy sums,
    where a respondent blanked out has ε/2, also with whole clusters protected by ε/k for each of k records, and in
    clusters with public weights. The asymptotic guarantee is that of the paper's mechanism at Δ_α = 1.8 with one draw;
    it does not promise a bound for every pair, so nothing is judged.
    """
    progress(f"global: {len(pairs):,} pairs")
    whole: dict[Relation, float] = {"blanked out": epsilon, "changed": epsilon}
    rows = _rows("global", pairs, whole, noise_losses(pairs, epsilon))
    rows += _rows("global, tables of clusters", pairs, whole, clustered_losses(pairs, epsilon))
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
