"""Estimates and Taylor-linearised variances of domains, from moments alone (paper §2.3).

A domain is a union of finest cells. The linearised value of record i is zᵢ = a·wᵢ + b·wᵢ(yᵢ − r) inside the domain:

    count        zᵢ = wᵢ
    total        zᵢ = wᵢyᵢ
    mean         zᵢ = wᵢ(yᵢ − μ̂)/N̂           N̂ and μ̂ of the domain
    proportion   zᵢ = wᵢ(1ᵢ − p̂)/N̂           N̂ of the whole population; not zero outside the domain

Where weights were scaled to a known total N, counts and totals are ratios times N, with zᵢ = wᵢ(1ᵢ − N̂/N) and
wᵢ(1ᵢyᵢ − Ŷ/N). Like that of a proportion they are not zero outside the domain.

V is Σ_h (1 − f_h)·n_h/(n_h − 1)·Σ_{PSU ∈ h}(z − z̄_h)². A domain is not a filter: PSUs without a record of the domain
count as zeros, so n_h and z̄_h are those of the whole stratum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from svysynth.core.grouping import Floats, Integers, group_ids, group_sums
from svysynth.core.outline import outlined
from svysynth.core.spec import Lonely, Statistic
from svysynth.estimation.moments import Moments
from svysynth.survey.design import EXHAUSTED, DesignIndex


@outlined
@dataclass(frozen=True, eq=False)
class DomainSums:
    """n, Σw and Σwy of each domain, and Σw of the whole file."""

    count: Integers
    weight: Floats
    outcome: Floats
    population: float


def sum_domains(moments: Moments, domain: Integers, domains: int) -> DomainSums:
    """Add up the groups of each domain; `domain` gives the domain of each group."""
    return DomainSums(
        group_sums(domain, domains, moments.count).astype(np.int64),
        group_sums(domain, domains, moments.weight),
        group_sums(domain, domains, moments.weighted_outcome),
        float(moments.weight.sum()),
    )


def estimate(statistic: Statistic, weight: Floats, outcome: Floats, population: Floats | float) -> Floats:
    """A statistic from Σw and Σwy; a mean of nobody is not a number."""
    match statistic:
        case "count":
            return weight
        case "total":
            return outcome
        case "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                return outcome / weight
        case "proportion":
            return weight / population


def taylor_variance(
    statistic: Statistic,
    moments: Moments,
    index: DesignIndex,
    domain: Integers,
    sums: DomainSums,
    lonely: Lonely,
    scaled: bool = False,
) -> Floats:
    """The linearised variance of a statistic for each domain; zero for a domain without records.

    `scaled` says that the weights were scaled to a known total.
    """
    domains = len(sums.count)
    of_domains = moments, index, domain, domains, lonely
    one, nothing = np.ones(len(domain)), np.zeros(len(domain))
    share = sums.weight / sums.population
    match statistic:
        case "count":
            return _ratio_variance(*of_domains, one, nothing, share) if scaled else _variance(*of_domains, one, nothing)
        case "total":
            if scaled:
                return _ratio_variance(*of_domains, moments.reference, one, sums.outcome / sums.population)
            return _variance(*of_domains, moments.reference, one)
        case "mean":
            size = sums.weight[domain]
            offset = moments.reference - sums.outcome[domain] / size
            # Far from zero the mean is rounded: make the linearised values add up to zero, as they must.
            leftover = group_sums(domain, domains, moments.count * (moments.mean_e + offset * moments.mean_w))
            offset = offset - leftover[domain] / size
            return _variance(*of_domains, offset / size, 1 / size)
        case "proportion":
            return _ratio_variance(*of_domains, one, nothing, share) / sums.population**2


def _ratio_variance(
    moments: Moments,
    index: DesignIndex,
    domain: Integers,
    domains: int,
    lonely: Lonely,
    a: Floats,
    b: Floats,
    ratio: Floats,
) -> Floats:
    """V of z = a·w + b·w(y − r) inside the domain, less ratio·w inside and outside.

    A domain can be computed as the whole file, with a and b for its own groups only. That is slow for many, and needed
    for one at most: what is outside a domain is the stratum less what is inside, which loses no digits unless most of
    the weight is inside. Clusters, whose records may be inside and outside, have no such bound.
    """
    found = np.zeros(domains)
    slow: Iterable[int] = range(domains)
    if index.psu is None:
        rest = _Whole.of(moments, index, ratio)
        found = _variance(moments, index, domain, domains, lonely, a - ratio[domain], b, rest)
        slow = np.flatnonzero(2 * group_sums(domain, domains, moments.weight) > moments.weight.sum())
    whole = np.zeros(len(domain), np.int64)
    for one in slow:
        own = domain == one
        z = np.where(own, a, 0.0) - ratio[one], np.where(own, b, 0.0)
        found[one] = _variance(moments, index, whole, 1, lonely, *z)[0]
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
    """Mean and scatter of the weight over groups of so many records."""
    total = partial(group_sums, group, len(size))
    mean = total(moments.weight) / size
    return mean, total(moments.scatter_ww + moments.count * (moments.mean_w - mean[group]) ** 2)


def _variance(
    moments: Moments,
    index: DesignIndex,
    domain: Integers,
    domains: int,
    lonely: Lonely,
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
    scale = _scale(index, lonely)
    found = group_sums(domain, domains, scale[strata] * squares)
    return found if whole is None else found + whole.absent(scale, index, strata, domain)


def _scale(index: DesignIndex, lonely: Lonely) -> Floats:
    """By what Σ(z − z̄_h)² is multiplied in each stratum."""
    unsampled = np.where(index.unsampled < EXHAUSTED, 0.0, index.unsampled)
    scale = unsampled * np.where(index.lonely, 1.0, index.psus / np.maximum(index.psus - 1, 1))
    return scale if lonely == "adjust" else np.where(index.lonely, 0.0, scale)
