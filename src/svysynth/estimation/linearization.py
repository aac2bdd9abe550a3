"""Taylor-linearised variances of domains, from moments alone (paper §2.3).

The linearised value of record i is zᵢ = a·wᵢ + b·wᵢ(yᵢ − r) inside a domain; `statistics.py` has a and b of each
statistic.

V is Σ_h (1 − f_h)·n_h/(n_h − 1)·Σ_{PSU ∈ h}(z − z̄_h)². A domain is not a filter: PSUs without a record of the domain
count as zeros, so n_h and z̄_h are those of the whole stratum.

With several stages of sampling and finite population corrections, V is the sum of such a term for each stage. At later
stages the strata are those within each unit of the stage before, and the term of a stratum is multiplied by the sampled
fractions of all units that it lies in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from svysynth.core.grouping import Booleans, Floats, Integers, group_ids, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import Lonely
from svysynth.core.spec.statistics import Statistic
from svysynth.estimation.calibration import Calibration
from svysynth.estimation.moments import Moments
from svysynth.estimation.statistics import DomainSums, Linearized, linearize
from svysynth.survey.design import EXHAUSTED, DesignIndex


def taylor_variance(
    statistic: Statistic,
    moments: Moments,
    index: DesignIndex,
    domain: Integers,
    sums: DomainSums,
    lonely: Lonely,
    scaled: bool = False,
    calibration: Calibration | None = None,
) -> Floats:
    """The linearised variance of a statistic for each domain; zero for a domain without records.

    `scaled` says that the weights were scaled to a known total. If they were calibrated, `moments` has the calibrated
    weights.
    """
    if calibration is not None:
        z = linearize(statistic, moments, domain, sums)
        return _calibrated_variance(moments, index, domain, len(sums.count), lonely, z, sums.in_base, calibration)
    z = linearize(statistic, moments, domain, sums, scaled)
    in_base = sums.in_base if statistic == "proportion" else None
    found = np.zeros(len(sums.count))
    for stage in (index, *index.later):
        here = replace(moments, block=stage.blocks_here(moments.block))
        own = None if statistic == "mean" else _strata_of(here, stage, sums.in_base)
        of_domains = here, stage, domain, len(sums.count), _Scale.of(stage, lonely, own)
        if z.ratio is None:
            found += _variance(*of_domains, z.a, z.b)
        else:
            found += _ratio_variance(*of_domains, z.a, z.b, z.ratio, in_base) / z.divisor**2
    return found


def factors_of_strata(index: DesignIndex, lonely: Lonely, strata: Integers) -> Floats:
    """(1 − f_h)·n_h/(n_h − 1) of each stratum of a stage, with lonely strata as asked for.

    An average for lonely strata is taken over some of the strata, those that an estimate is about.
    """
    return _Scale.of(index, lonely, strata).of_stratum


@outlined
@dataclass(frozen=True, eq=False)
class _Scale:
    """The factor of Σ(z − z̄_h)² in each stratum of a stage."""

    of_stratum: Floats
    by_domain: bool = False
    """Whether strata with one unit get the average of those strata that have records of the domain."""

    @classmethod
    def of(cls, index: DesignIndex, lonely: Lonely, strata: Integers | None) -> _Scale:
        """The factors; an average is taken over some strata, or without them over those of each domain."""
        unsampled = np.where(index.unsampled < EXHAUSTED, 0.0, index.unsampled)
        scale = index.share * unsampled * np.where(index.lonely, 1.0, index.psus / np.maximum(index.psus - 1, 1))
        if lonely != "adjust":
            scale = np.where(index.lonely, 0.0, scale)
        if lonely != "average" or not index.lonely.any():
            return cls(scale)
        if strata is None:
            return cls(scale, by_domain=True)
        scale[strata] *= _averaged(index, strata, index.parents[strata])
        return cls(scale)

    def of_pairs(self, index: DesignIndex, strata: Integers, domain: Integers, domains: int) -> Floats:
        """The factor for each pair of stratum and domain that has records."""
        scale = self.of_stratum[strata]
        return scale * _averaged(index, strata, index.parents[strata] * domains + domain) if self.by_domain else scale


def _averaged(index: DesignIndex, strata: Integers, group: Integers) -> Floats:
    """All strata of a group over those that are not lonely, which have to stand for all; NaN if there are none."""
    keys, group = np.unique(group, return_inverse=True)
    known = np.bincount(group, ~index.lonely[strata], len(keys))
    with np.errstate(divide="ignore"):
        factor = np.bincount(group, minlength=len(keys)) / known
    return np.asarray(np.where(known > 0, factor, np.nan)[group])


def _strata_of(moments: Moments, index: DesignIndex, in_base: Booleans | None) -> Integers:
    """The strata that have records in the base."""
    if in_base is None:
        return np.arange(index.strata)
    block = np.unique(moments.block[in_base])
    return block if index.psu is None else np.unique(index.psu_stratum[block])


def _calibrated_variance(
    moments: Moments,
    index: DesignIndex,
    domain: Integers,
    domains: int,
    lonely: Lonely,
    z: Linearized,
    in_base: Booleans | None,
    calibration: Calibration,
) -> Floats:
    """V of the residuals of z in the regression on the totals; outside a domain they are not zero: all groups count."""
    found, whole = np.zeros(domains), np.zeros(len(domain), np.int64)
    for one in range(domains):
        own = domain == one
        a, b = np.where(own, z.a, 0.0), np.where(own, z.b, 0.0)
        if z.ratio is not None:
            a = a - (z.ratio[one] if in_base is None else np.where(in_base, z.ratio[one], 0.0))
        a = a - calibration.fitted(moments, a, b)
        for stage in (index, *index.later):
            here = replace(moments, block=stage.blocks_here(moments.block))
            scale = _Scale.of(stage, lonely, _strata_of(here, stage, None))
            found[one] += _variance(here, stage, whole, 1, scale, a, b)[0]
    return found / z.divisor**2


def _ratio_variance(
    moments: Moments,
    index: DesignIndex,
    domain: Integers,
    domains: int,
    scale: _Scale,
    a: Floats,
    b: Floats,
    ratio: Floats,
    in_base: Booleans | None,
) -> Floats:
    """V of z = a·w + b·w(y − r) inside the domain, minus ratio·w inside and outside, or in the base alone.

    A domain can be computed from the whole file, with a and b zero outside its groups. That is slow for many domains.
    Without clusters it is needed for one domain at most: what is outside a domain is the stratum minus what is inside,
    which loses no digits unless most of the weight is inside. With clusters, which may have records inside and outside,
    and with a base, every domain is computed in the slow way.
    """
    found = np.zeros(domains)
    slow: Iterable[int] = range(domains)
    if index.psu is None and in_base is None:
        rest = _Whole.of(moments, index, ratio)
        found = _variance(moments, index, domain, domains, scale, a - ratio[domain], b, rest)
        slow = np.flatnonzero(2 * group_sums(domain, domains, moments.weight) > moments.weight.sum())
    whole = np.zeros(len(domain), np.int64)
    for one in slow:
        own = domain == one
        share = ratio[one] if in_base is None else np.where(in_base, ratio[one], 0.0)
        z = np.where(own, a, 0.0) - share, np.where(own, b, 0.0)
        found[one] = _variance(moments, index, whole, 1, scale, *z)[0]
    return found


@outlined
@dataclass(frozen=True, eq=False)
class _Whole:
    """Mean and scatter of the weight in each stratum, and the ratio of each domain; without clusters."""

    mean: Floats
    scatter: Floats
    ratio: Floats

    @classmethod
    def of(cls, moments: Moments, index: DesignIndex, ratio: Floats) -> _Whole:
        return cls(*_spread(moments, moments.block, index.psus), ratio)

    def outside(
        self, moments: Moments, pair: Integers, strata: Integers, inside: Floats, outside: Floats
    ) -> tuple[Floats, Floats]:
        """Mean and scatter of the weight outside a domain, for each pair of stratum and domain."""
        mean = self.mean[strata]
        own, scatter = _spread(moments, pair, inside)
        left = np.where(outside > 0, mean - inside * (own - mean) / np.maximum(outside, 1), 0.0)
        between = inside * (own - mean) ** 2 + outside * (left - mean) ** 2
        return left, np.where(outside > 1, np.maximum(self.scatter[strata] - scatter - between, 0.0), 0.0)

    def absent(self, scale: Floats, index: DesignIndex, strata: Integers, domain: Integers) -> Floats:
        """Σ_h scale_h·Σ(z − z̄_h)² for each domain over the strata that have no record of it."""
        squares = scale * np.where(index.lonely, self.mean**2, self.scatter)
        domains = len(self.ratio)
        left = np.maximum(squares.sum() - group_sums(domain, domains, squares[strata]), 0.0)
        return self.ratio**2 * np.where(np.bincount(domain, minlength=domains) == index.strata, 0.0, left)


def _spread(moments: Moments, group: Integers, size: Integers | Floats) -> tuple[Floats, Floats]:
    """Mean and scatter of the weight in groups of the given sizes."""
    total = partial(group_sums, group, len(size))
    mean = total(moments.weight) / size
    return mean, total(moments.scatter_ww + moments.count * (moments.mean_w - mean[group]) ** 2)


def _variance(
    moments: Moments,
    index: DesignIndex,
    domain: Integers,
    domains: int,
    scale: _Scale,
    a: Floats,
    b: Floats,
    whole: _Whole | None = None,
) -> Floats:
    """V of z = a·w + b·w(y − r) inside the domain, with a and b given for each group.

    Outside the domain z is zero, or −ratio·w with the ratio of `whole`.
    """
    z = a * moments.mean_w + b * moments.mean_e
    if index.psu is None:
        stratum, count = moments.block, moments.count
        within = a * a * moments.scatter_ww + 2 * a * b * moments.scatter_we + b * b * moments.scatter_ee
        within = np.maximum(within, 0)
    else:
        keys, group = group_ids(moments.block * domains + domain, len(index.psu_stratum) * domains)
        z = group_sums(group, len(keys), z * moments.count)
        stratum, domain = index.psu_stratum[keys // domains], keys % domains
        count, within = np.ones(len(keys), np.int64), np.zeros(len(keys))
    keys, pair = group_ids(stratum * domains + domain, index.strata * domains)
    strata, domain = keys // domains, keys % domains
    total = partial(group_sums, pair, len(keys))
    drawn, inside = index.psus[strata], total(count)
    outside, left, scatter = drawn - inside, np.zeros(len(keys)), np.zeros(len(keys))
    if whole is not None:
        left, scatter = whole.outside(moments, pair, strata, inside, outside)
        left, scatter = -whole.ratio[domain] * left, whole.ratio[domain] ** 2 * scatter
    mean = (total(count * z) + outside * left) / drawn
    center = np.where(index.lonely[strata], 0.0, mean)
    squares = total(within + count * (z - center[pair]) ** 2) + scatter + outside * (left - center) ** 2
    found = group_sums(domain, domains, scale.of_pairs(index, strata, domain, domains) * squares)
    return found if whole is None else found + whole.absent(scale.of_stratum, index, strata, domain)
