"""Estimates and Taylor-linearised variances of domains, from moments alone (paper §2.3).

A domain is a union of finest cells. The linearised value of record i is zᵢ = a·wᵢ + b·wᵢ(yᵢ − r) inside the domain:

    count        zᵢ = wᵢ
    total        zᵢ = wᵢyᵢ
    mean         zᵢ = wᵢ(yᵢ − μ̂)/N̂           N̂ and μ̂ of the domain
    proportion   zᵢ = wᵢ(1ᵢ − p̂)/N̂           N̂ of the whole population; not zero outside the domain

and V = Σ_h (1 − f_h)·n_h/(n_h − 1)·Σ_{PSU ∈ h}(z − z̄_h)². A domain is not a filter: PSUs without a record of the domain
count as zeros, so n_h and z̄_h are those of the whole stratum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from svysynth.design import EXHAUSTED, DesignIndex
from svysynth.groups import Floats, Integers, group_ids, group_sums
from svysynth.moments import Moments
from svysynth.outline import outlined
from svysynth.spec import Lonely, Statistic


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
) -> Floats:
    """The linearised variance of a statistic for each domain; zero for a domain without records."""
    domains = len(sums.count)
    match statistic:
        case "count":
            return _variance(moments, index, domain, domains, np.ones(len(domain)), np.zeros(len(domain)), lonely)
        case "total":
            return _variance(moments, index, domain, domains, moments.reference, np.ones(len(domain)), lonely)
        case "mean":
            size = sums.weight[domain]
            offset = moments.reference - sums.outcome[domain] / size
            # Far from zero the mean is rounded: make the linearised values add up to zero, as they must.
            leftover = group_sums(domain, domains, moments.count * (moments.mean_e + offset * moments.mean_w))
            offset = offset - leftover[domain] / size
            return _variance(moments, index, domain, domains, offset / size, 1 / size, lonely)
        case "proportion":
            share = sums.weight / sums.population
            whole, nothing = np.zeros(len(domain), np.int64), np.zeros(len(domain))
            return np.array(
                [
                    _variance(
                        moments,
                        index,
                        whole,
                        1,
                        ((domain == d) - share[d]) / sums.population,
                        nothing,
                        lonely,
                    )[0]
                    for d in range(domains)
                ]
            )


def _variance(
    moments: Moments, index: DesignIndex, domain: Integers, domains: int, a: Floats, b: Floats, lonely: Lonely
) -> Floats:
    """V of z = a·w + b·w(y − r), with a and b given for each group and z zero outside the domain."""
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
    return _between_psus(stratum, domain, domains, count, z, within, index, lonely)


def _between_psus(
    stratum: Integers,
    domain: Integers,
    domains: int,
    count: Integers,
    z: Floats,
    within: Floats,
    index: DesignIndex,
    lonely: Lonely,
) -> Floats:
    """Σ_h scale_h·Σ(z − z̄_h)² for each domain, from batches of `count` PSUs with mean z and scatter `within`."""
    keys, pair = group_ids(stratum * domains + domain, index.strata * domains)
    strata = keys // domains

    total = partial(group_sums, pair, len(keys))
    drawn = index.psus[strata]
    inside = total(count)
    mean = total(count * z) / drawn
    alone = index.lonely[strata]
    center = np.where(alone, 0.0, mean)
    squares = total(within + count * (z - center[pair]) ** 2) + (drawn - inside) * center**2
    unsampled = np.where(index.unsampled[strata] < EXHAUSTED, 0.0, index.unsampled[strata])
    scale = unsampled * np.where(alone, 1.0, drawn / np.maximum(drawn - 1, 1))
    if lonely != "adjust":
        scale = np.where(alone, 0.0, scale)
    return group_sums(keys % domains, domains, scale * squares)
