"""Noisy losses: the privacy loss of noisy sums between neighbours, from all that they measure of the records.

The scaling is one that the noisy histograms may have given. Whole clusters are audited too, whose records have the
largest cluster's share of ε each, and samples of clusters whose weights are public.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from svysynth.core.grouping import Integers
from svysynth.evaluation.audit.pairs import BOUNDS, POPULATION, Losses, Pair, Relation, Sample, log_ratio
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import (
    UNIT,
    between_sensitivity,
    outcome_square,
    squares_between,
    widened,
)
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


def measured_losses(pairs: Sequence[Pair], epsilon: float) -> dict[Relation, Losses]:
    """The same for the noisy sums of models. Neighbours' sums differ by what the one record adds to them."""
    uses = _uses([Fraction(epsilon) * share for share in SHARES])
    found: dict[Relation, list[float]] = {"blanked out": [], "changed": []}
    for pair in pairs:
        place = int(np.flatnonzero(~pair.blanked.there)[0])
        before, changed = (_sums(own, slice(place, place + 1)) for own in (pair.before, pair.changed))
        nothing = [np.zeros_like(own) for own in before]
        found["blanked out"].append(max(log_ratio(own, nothing, uses) for own in (before, changed)))
        found["changed"].append(log_ratio(before, changed, uses))
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
            weighted = sums[4].sum(axis=1).astype(np.int64)
            sums.append(squares_between(weighted[np.newaxis], np.array([size]), LIMIT))
        found["blanked out"].append(max(log_ratio(own, nothing, uses) for own in (before, changed)))
        found["changed"].append(log_ratio(before, changed, uses))
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
        blanked = (log_ratio(*_between(own, nothing, size), uses) for own in (before, after))
        found["blanked out"].append(max(blanked))
        found["changed"].append(log_ratio(*_between(before, after, size), uses))
    return {relation: Losses(np.array(losses)[:, np.newaxis]) for relation, losses in found.items()}


def _between(one: list[Integers], other: list[Integers], size: int) -> tuple[list[Integers], list[Integers]]:
    """Two results with the square between clusters in place of the sum in the cluster, which is beyond the limit."""
    sums = np.array([one[-1], other[-1]])
    sums += LIMIT * size - sums.min()
    squares = (outcome_square(own[np.newaxis], np.array([UNIT * size]), LIMIT) for own in sums)
    first, second = ([*own[:-1], square] for own, square in zip((one, other), squares, strict=True))
    return first, second


def _sums_given_weights(sample: Sample, place: int, blanked: bool = False) -> list[Integers]:
    """What is measured of a cluster with public weights, one record blanked out or not, and its sum of Y at the end."""
    step, size = PUBLIC_SCALING.reach / LARGEST, len(sample.t)
    answers = Answers(sample.t, sample.w, BOUNDS, "identity", size / sample.w.sum(), True)
    t, v = answers(slice(0, size))
    count = bands_of(BOUNDS, "identity", size, POPULATION)[0].count(np.delete(t, place) if blanked else t)
    spread = max(float(v.std()), 1e-3)
    score = Scores(np.array([v.mean()]), spread, step)(v, np.zeros(size, np.int64))
    whole = outcome_numbers(t, PUBLIC_SCALING)
    scalings = PUBLIC_SCALING, widened(PUBLIC_SCALING)
    weighted = np.stack([weighted_numbers(t, v, scaling, "identity", both=False)[0] for scaling in scalings])
    squares = whole**2
    if blanked:
        whole[place], weighted[:, place], squares[place] = 0, 0, LARGEST**2 // 2
    products, (first, second) = np.array([squares.sum(), whole @ score]), weighted.sum(axis=1).astype(np.int64)
    return [count, np.array([whole.sum()], np.int64), products, np.array([first]), np.array([second])]


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
