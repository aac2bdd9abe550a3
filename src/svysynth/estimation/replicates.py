"""Replicate weights: Preston's half-sample bootstrap, Rao–Wu bootstrap, stratified jackknife, BRR.

Each method multiplies the weights of a PSU by a factor, in R replicates; the spread of an estimate over the replicates
is its variance, Σ_r scale_r(q_r − q)². Factors and scales are those of R `survey` (`mrbweights`, `subbootweights`,
`jknweights`, `brrweights`), so a variance can be checked digit by digit given the same replicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from scipy.linalg import hadamard

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, VarianceMethod
from svysynth.core.spec.statistics import Statistic
from svysynth.core.streams import Streams
from svysynth.estimation.statistics import DomainSums, estimate
from svysynth.survey.design import DesignIndex

BLOCK = 256
"""How many replicates are worked on at a time, so that a jackknife over many PSUs needs little memory."""


@outlined
@dataclass(frozen=True, eq=False)
class Replicates:
    """A set of replicates: a factor for each PSU and replicate, and the scale of each squared deviation."""

    factors: Floats | None
    """PSU × replicate; None for the jackknife, whose factors follow from the design."""
    scales: Floats
    index: DesignIndex

    def __len__(self) -> int:
        return len(self.scales)

    def blocks(self) -> Iterator[Floats]:
        """The factors, a block of replicates at a time."""
        for start in range(0, len(self), BLOCK):
            stop = min(start + BLOCK, len(self))
            if self.factors is None:
                yield _jackknife_factors(self.index, start, stop)
            else:
                yield self.factors[:, start:stop]

    def variance(self, replicated: Floats, center: Floats) -> Floats:
        """Σ_r scale_r(q_r − center)² along the last axis; `center` is the full-sample estimate."""
        deviation = replicated - center[..., np.newaxis]
        return np.asarray((deviation * deviation) @ self.scales)

    def sums(self, psu: Integers, cell: Integers, value: Floats, cells: int) -> Floats:
        """Σ factor·value per cell and replicate, from values per group of PSU × cell."""
        by_psu = sparse.csr_matrix((value, (cell, psu)), shape=(cells, len(self.index.psu_stratum)))
        return np.hstack([by_psu @ factors for factors in self.blocks()])


def make_replicates(index: DesignIndex, estimation: EstimationSpec, streams: Streams) -> Replicates:
    """The replicates that the spec asks for."""
    method, count = estimation.variance, estimation.replicates
    _check_method(index, estimation)
    match method:
        case "preston":
            kept = half_samples(index, count, streams)
            return Replicates(preston_factors(index, kept), np.full(count, 1 / (count - 1)), index)
        case "bootstrap":
            return Replicates(_rao_wu_factors(index, count, streams), np.full(count, 1 / (count - 1)), index)
        case "brr":
            factors = _brr_factors(index)
            return Replicates(factors, np.full(factors.shape[1], 1 / factors.shape[1]), index)
        case "jackknife":
            drawn = index.psus[index.psu_stratum]
            return Replicates(None, index.unsampled[index.psu_stratum] * (drawn - 1) / drawn, index)
        case _:
            raise ValueError(f"{method} has no replicates")


def _check_method(index: DesignIndex, estimation: EstimationSpec) -> None:
    index.refuse_lonely(estimation.lonely)
    method: VarianceMethod = estimation.variance
    if index.later:
        problem = "has no variance for later stages with a finite population correction"
        raise _unsuited(method, problem, "use 'taylor', or leave survey.fpc and the later stages out")
    if estimation.lonely in ("adjust", "average") and index.lonely.any():
        problem = f"cannot {estimation.lonely} for a stratum with one unit"
        raise _unsuited(method, problem, "set estimation.lonely to 'certainty'")
    if method in ("bootstrap", "brr") and (index.unsampled < 1).any():
        raise _unsuited(method, "has no finite population correction", "use 'taylor', 'preston' or 'jackknife'")
    if method == "brr" and (index.psus != 2).any():
        raise _unsuited(method, "needs exactly two units in every stratum", "use another method for this design")


def _unsuited(method: str, problem: str, remedy: str) -> SurveyError:
    return SurveyError("design", f"estimation.variance = '{method}'", problem, remedy)


def half_samples(index: DesignIndex, count: int, streams: Streams) -> Booleans:
    """PSU × replicate: which ⌊n_h/2⌋ PSUs of each stratum are kept."""
    order, starts = _by_stratum(index)
    halves = index.psus // 2
    kept = np.zeros((len(order), count), dtype=bool)
    for replicate in range(count):
        shuffled = _shuffled_within(order, index, streams.generator("half-samples", replicate))
        position = np.arange(len(order)) - np.repeat(starts, index.psus)
        kept[shuffled, replicate] = position < np.repeat(halves, index.psus)
    return kept


def preston_factors(index: DesignIndex, kept: Booleans) -> Floats:
    """Preston's (2009) factors given the kept PSUs: 1 − λ + λ(n/n*)·kept, λ = √(n*(1 − f)/(n − n*)), n* = ⌊n/2⌋.

    A stratum with one PSU keeps its weight: it adds no variance.
    """
    drawn = index.psus.astype(float)
    half = np.floor(drawn / 2)
    spread = np.sqrt(half * index.unsampled / np.maximum(drawn - half, 1))
    gain = spread * drawn / np.maximum(half, 1)
    stratum = index.psu_stratum
    return np.asarray(1 - spread[stratum, np.newaxis] + gain[stratum, np.newaxis] * kept)


def _rao_wu_factors(index: DesignIndex, count: int, streams: Streams) -> Floats:
    """n_h/(n_h − 1) times how often a PSU is drawn when n_h − 1 are drawn with replacement (Rao and Wu 1988)."""
    order, starts = _by_stratum(index)
    draws = np.maximum(index.psus - 1, 0)
    spread = index.psus / np.maximum(draws, 1)
    owner = np.repeat(np.arange(index.strata), draws)
    factors = np.empty((len(order), count))
    for replicate in range(count):
        uniform = streams.generator("rao-wu", replicate).random(len(owner))
        drawn = starts[owner] + np.floor(uniform * index.psus[owner]).astype(np.int64)
        times = np.bincount(order[drawn], minlength=len(order))
        factors[:, replicate] = times * spread[index.psu_stratum]
    factors[index.lonely[index.psu_stratum]] = 1
    return factors


def _brr_factors(index: DesignIndex) -> Floats:
    """Balanced half-samples: 2 for one PSU of each stratum and 0 for the other, by the columns of a Hadamard matrix."""
    order, _ = _by_stratum(index)
    size = 1 << int(index.strata).bit_length()
    signs = hadamard(size)[1 : index.strata + 1]
    factors = np.empty((len(order), size))
    factors[order[0::2]] = 1 + signs
    factors[order[1::2]] = 1 - signs
    return factors


def _jackknife_factors(index: DesignIndex, start: int, stop: int) -> Floats:
    """Delete one PSU and spread its weight over the others of its stratum, for replicates start … stop − 1."""
    stratum = index.psu_stratum
    deleted = np.arange(start, stop)
    drawn = index.psus[stratum[deleted]]
    factors = np.where(stratum[:, np.newaxis] == stratum[deleted], drawn / np.maximum(drawn - 1, 1), 1.0)
    factors[deleted, deleted - start] = np.where(drawn > 1, 0.0, 1.0)
    return factors


def _by_stratum(index: DesignIndex) -> tuple[Integers, Integers]:
    """The PSUs in the order of their strata, and where each stratum starts."""
    order = np.argsort(index.psu_stratum, kind="stable")
    return order, np.concatenate([[0], np.cumsum(index.psus)[:-1]])


def _shuffled_within(order: Integers, index: DesignIndex, generator: np.random.Generator) -> Integers:
    """The PSUs in the order of their strata, in random order within each."""
    ranks = np.lexsort((generator.random(len(order)), index.psu_stratum[order]))
    return order[ranks]


def replicate_estimates(
    statistic: Statistic, cell: Integers, weight: Floats, outcome: Floats, domain: Integers, sums: DomainSums
) -> Floats:
    """A statistic of each domain in each replicate, from Σw and Σwy of the finest cells (cell × replicate).

    `cell` and `domain` are those of each group. NaN where a replicate has no records to average.
    """
    of_cell = np.empty(len(weight), np.int64)
    of_cell[cell] = domain
    added = np.zeros((2, len(sums.count), weight.shape[1]))
    np.add.at(added[0], of_cell, weight)
    np.add.at(added[1], of_cell, outcome)
    base = weight if sums.in_base is None else weight[np.unique(cell[sums.in_base])]
    return estimate(statistic, added[0], added[1], base.sum(axis=0))


def indicated(row: Integers, groups: Booleans, rows: int) -> Floats:
    """1 for the rows of the sums that belong to some groups, and 0 for the others, as a column."""
    found = np.zeros((rows, 1))
    found[row[groups]] = 1
    return found
