"""Sizes: the number of records in each cell and stratum, measured with noise if whole records are protected.

The cells are all combinations of declared levels, whether or not there are records in them. A record is in one group of
cell and stratum. So a changed record moves two counts by 1 each, and an added or removed record moves one count by 1:

    counts of records by cell and stratum    1 leaves a group, 1 enters one    2; 1 for taking part

Later steps account for the noise. Given a noisy count m with noise of scale b, the probability of a true size k ≥ 0 is

    P(k | m) ∝ π(k) exp(−|m − k|/b),    π(0) = p,    π(k) ∝ (1 − p)/k for k ≥ 1,

where p, the share of groups without records, is the value that makes the noisy counts most likely. Noisy counts are not
cut off at zero: that would give the empty cells of a sparse file records that do not exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.noise import Noise
from svysynth.mechanisms.noisy_sums.measuring.measurement import NoisySizes, Use
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.survey.survey import Survey

SENSITIVITY = 2
"""The sensitivity of the counts if a record is changed."""
FAR = 20
"""A bound on the noise, in scales of the noise, that it exceeds with a probability of about e⁻²⁰."""
STEPS = 50
"""The number of iterations by which p is found."""


def declared_groups(survey: Survey) -> PublicFacts:
    """Every combination of declared levels of the public columns and the strata, before records are counted."""
    labels = {column: survey.levels(column) for column in survey.public}
    shape = [len(levels) for levels in labels.values()]
    cells = math.prod(shape)
    codes = np.array(np.unravel_index(np.arange(cells), shape)).T
    strata = survey.design.strata
    if strata is None or strata in survey.public:
        cell = np.arange(cells)
        stratum = np.zeros(cells, np.int64) if strata is None else codes[:, survey.public.index(strata)]
    else:
        each = len(survey.levels(strata))
        cell, stratum = np.repeat(np.arange(cells), each), np.tile(np.arange(each), cells)
    restricted = survey.domain, survey.domains
    return PublicFacts(labels, codes, cell, stratum, np.zeros(len(cell), np.int64), None, *restricted)


def count_records(survey: Survey, groups: PublicFacts) -> Integers:
    """The true number of records of each group. Confidential."""
    found, strata = survey.groups, survey.design.strata
    place = np.zeros(len(found.count), np.int64)
    own = [*survey.public, *([strata] if strata and strata not in survey.public else [])]
    for column in own:  # in the order of the groups: the last column fastest
        place = place * len(survey.levels(column)) + found.frame[column].to_physical().to_numpy()
    return np.bincount(place, found.count, len(groups.count)).astype(np.int64)


def measure_sizes(survey: Survey, groups: PublicFacts, epsilon: Fraction, noise: Noise) -> NoisySizes:
    """Measure the counts with noise. They are confidential until it is added."""
    use = Use("sizes of cells", SENSITIVITY, epsilon)
    return NoisySizes(noise(count_records(survey, groups), use), use.scale)


def facts_of_noisy(groups: PublicFacts, sizes: NoisySizes) -> PublicFacts:
    """The groups with sizes estimated from the noisy counts: the posterior means of the true sizes, rounded."""
    return replace(groups, count=np.array([round(float(size @ chance)) for size, chance in _chances(sizes)], np.int64))


def draw_sizes(sizes: NoisySizes, facts: PublicFacts, draws: int, seed: Integers) -> Floats:
    """Posterior draws of the true sizes of the cells: draw × cell."""
    generator = np.random.default_rng(seed)
    found = np.zeros((draws, len(facts.codes)))
    for cell, (size, chance) in zip(facts.cell, _chances(sizes), strict=True):
        found[:, cell] += generator.choice(size, draws, p=chance)
    return found


@outlined
@dataclass(frozen=True, eq=False)
class _Likely:
    """The sizes k ≥ 1 that are possible for a noisy count, and the likelihood terms of k = 0 and of these sizes."""

    size: Floats
    empty: float
    filled: Floats

    @classmethod
    def of(cls, noisy: int, scale: float, most: float) -> _Likely:
        reach = math.ceil(FAR * scale)
        size = np.arange(max(1, noisy - reach), max(1, noisy + reach) + 1, dtype=float)
        near = np.abs(noisy - np.append(0.0, size)) / scale
        likely = np.exp(near.min() - near)
        return cls(size, float(likely[0]), likely[1:] / size / (1 + math.log(most)))


def _chances(sizes: NoisySizes) -> list[tuple[Floats, Floats]]:
    """For each group, the possible sizes with their probabilities."""
    most = max(float(sizes.counts.sum()), 1.0)
    groups = [_Likely.of(int(noisy), sizes.scale, most) for noisy in sizes.counts]
    filled = np.array([group.filled.sum() for group in groups])
    empty = np.array([group.empty for group in groups])
    share = 0.5
    for _ in range(STEPS):  # half a group added to either kind keeps p away from 0 and 1
        ratio = share * empty / (share * empty + (1 - share) * filled)
        share = float((ratio.sum() + 0.5) / (len(groups) + 1))
    found = []
    for group in groups:
        chance = np.append(share * group.empty, (1 - share) * group.filled)
        found.append((np.append(0.0, group.size), chance / chance.sum()))
    return found
