"""Statistics: what a table can show of a domain, each with its estimate and its linearised value.

A domain is a union of finest cells. The linearised value of record i is zᵢ = a·wᵢ + b·wᵢ(yᵢ − r) inside the domain:

    count        zᵢ = wᵢ
    total        zᵢ = wᵢyᵢ
    mean         zᵢ = wᵢ(yᵢ − μ̂)/N̂           N̂ and μ̂ of the domain
    proportion   zᵢ = wᵢ(1ᵢ − p̂)/N̂           N̂ of the base: not zero outside the cell, and zero outside the base

Where weights were scaled to a known total N, counts and totals are ratios times N, with zᵢ = wᵢ(1ᵢ − N̂/N) and
wᵢ(1ᵢyᵢ − Ŷ/N). Like the value of a proportion, these values are not zero outside the domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from svysynth.core.grouping import Booleans, Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.statistics import Statistic
from svysynth.estimation.moments import Moments


@outlined
@dataclass(frozen=True, eq=False)
class DomainSums:
    """n, Σw and Σwy of each domain, and Σw of the whole file and of the base of proportions."""

    count: Integers
    weight: Floats
    outcome: Floats
    population: float
    base: float
    """Of the records that proportions are a part of: all, or those inside the table's own domain."""
    in_base: Booleans | None = None
    """Which groups are in the base; None if all are."""


def sum_domains(moments: Moments, domain: Integers, domains: int, in_base: Booleans | None = None) -> DomainSums:
    """Add up the groups of each domain; `domain` gives the domain of each group."""
    population = float(moments.weight.sum())
    return DomainSums(
        group_sums(domain, domains, moments.count).astype(np.int64),
        group_sums(domain, domains, moments.weight),
        group_sums(domain, domains, moments.weighted_outcome),
        population,
        population if in_base is None else float(moments.weight[in_base].sum()),
        in_base,
    )


def records_less_strata(count: Integers, stratum: Integers, in_base: Booleans) -> int:
    """The number of records inside a base, minus the number of their strata, if each record is a sampling unit."""
    return int(count[in_base].sum()) - len(np.unique(stratum[in_base & (count > 0)]))


def estimate(statistic: Statistic, weight: Floats, outcome: Floats, base: Floats | float) -> Floats:
    """A statistic from Σw and Σwy, and from Σw of the base; the mean of an empty domain is NaN."""
    match statistic:
        case "count":
            return weight
        case "total":
            return outcome
        case "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                return outcome / weight
        case "proportion":
            with np.errstate(invalid="ignore", divide="ignore"):
                return weight / base


@outlined
class Linearized(NamedTuple):
    """divisor·z = a·w + b·w(y − r) in the groups of a domain; for a ratio, minus ratio·w inside and outside."""

    a: Floats
    b: Floats
    ratio: Floats | None = None
    """The ratio of each domain; None for a statistic that is not one."""
    divisor: float = 1.0


def linearize(
    statistic: Statistic, moments: Moments, domain: Integers, sums: DomainSums, scaled: bool = False
) -> Linearized:
    """The linearised value of a statistic; `scaled` says that the weights were scaled to a known total."""
    one, nothing = np.ones(len(domain)), np.zeros(len(domain))
    share = sums.weight / sums.population
    match statistic:
        case "count":
            return Linearized(one, nothing, share if scaled else None)
        case "total":
            return Linearized(moments.reference, one, sums.outcome / sums.population if scaled else None)
        case "mean":
            size = sums.weight[domain]
            offset = moments.reference - sums.outcome[domain] / size
            # A mean far from zero has rounding error: make the linearised values add up to zero, as they must.
            leftover = group_sums(domain, len(sums.count), moments.count * (moments.mean_e + offset * moments.mean_w))
            offset = offset - leftover[domain] / size
            return Linearized(offset / size, 1 / size)
        case "proportion":
            return Linearized(one, nothing, sums.weight / sums.base, sums.base)
