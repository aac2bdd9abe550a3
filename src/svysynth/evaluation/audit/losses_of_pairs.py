"""Losses of pairs: the privacy loss of the numbers that tables with additive noise measure if records share clusters.

Those are how alike records of a cluster are in weight and outcome, and the spread of outcomes
(`noisy_tables/alike.py`). The whole sample is one cluster and one stratum, and one record is changed or blanked out.
The cuts follow from earlier noisy sums, so any may occur: the sums in the cluster are at the cut D, where a square
moves furthest.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from svysynth.core.grouping import Integers
from svysynth.evaluation.audit.pairs import BOUNDS, Losses, Pair, Relation, Sample, log_ratio
from svysynth.mechanisms.noise import RESOLUTION, contributions
from svysynth.mechanisms.noisy_tables.alike import Answer, PairUse, squares_of_pairs

PARTS: dict[Answer, int] = {"spread": 1, "weights": 2, "outcomes": 2}
"""The parts of ε, as in tables with means."""
CUT = RESOLUTION // 16
"""B: a part of the largest contribution, so that usual weights and far outcomes are clamped."""
FARTHEST = 20
"""The largest D, in B."""


def pairs_losses(pairs: Sequence[Pair], epsilon: Fraction) -> dict[Relation, Losses]:
    """The largest log ratio of any noisy results, for every pair of samples."""
    found: dict[Relation, list[float]] = {"blanked out": [], "changed": []}
    for pair in pairs:
        versions = pair.before, pair.changed, pair.blanked
        values = [_contributed(own) for own in versions]
        uses = [_use(answer, values, epsilon * part / sum(PARTS.values())) for answer, part in PARTS.items()]
        before, changed, blanked = (_numbers(own, uses, values) for own in values)
        found["blanked out"].append(max(log_ratio(own, blanked, uses) for own in (before, changed)))
        found["changed"].append(log_ratio(before, changed, uses))
    return {relation: Losses(np.array(losses)[:, np.newaxis]) for relation, losses in found.items()}


def _contributed(sample: Sample) -> tuple[Integers, Integers]:
    """What each record contributes to the sums of weights and of outcomes; a blanked record contributes nothing."""
    first, second = contributions("points", sample.w, sample.t, BOUNDS, True) * sample.there
    return first, second


def _of(answer: Answer, values: tuple[Integers, Integers]) -> Integers:
    return values[answer != "weights"]


def _use(answer: Answer, values: Sequence[tuple[Integers, Integers]], epsilon: Fraction) -> PairUse:
    """B and D; D is the sum in the cluster that is furthest, or as large as it can be for weights."""
    if answer == "spread":
        return PairUse(answer, CUT, CUT, epsilon)
    furthest = FARTHEST * CUT if answer == "weights" else max(abs(_sum(answer, own)) for own in values)
    return PairUse(answer, CUT, int(np.clip(furthest, CUT, FARTHEST * CUT)), epsilon)


def _sum(answer: Answer, values: tuple[Integers, Integers]) -> int:
    return int(np.clip(_of(answer, values), -CUT, CUT).sum())


def _numbers(
    own: tuple[Integers, Integers], uses: Sequence[PairUse], values: Sequence[tuple[Integers, Integers]]
) -> list[Integers]:
    """The whole numbers before noise. The centre C of weights puts the largest of the sums at D."""
    found = []
    for use in uses:
        centre = max(_sum("weights", each) for each in values) - use.limit if use.answer == "weights" else 0
        x = _of(use.answer, own)
        number = squares_of_pairs(x, np.zeros(len(x), np.int64), np.array([centre], np.int64), use)
        found.append(np.array([number]))
    return found
