"""Woodruff: quantiles of the rows of a table, with Woodruff's intervals, as R's `svyquantile` has them.

q̂ is where the weighted distribution function F̂ of a row reaches p. F̂(q̂) is the mean of an indicator, and has the
variance of a mean. The ends of its interval are shares, and F̂ is inverted at both. The standard error is the length of
the interval over twice the quantile of Student's t.

The interval of the share is symmetric (`mean`), symmetric for its logit (`xlogit`), or that of Korn and Graubard from
the beta distribution (`beta`). Where it reaches below 0 or above 1, which only `mean` does, there is no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import betaincinv, expit, logit

from svysynth.core.column_storage import Column, derive, look_up
from svysynth.core.engine import Engine
from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.spec.statistics import Share, Statistic
from svysynth.estimation.intervals import quantile
from svysynth.estimation.moments import Moments
from svysynth.estimation.quantiles import ROUNDING, Distribution
from svysynth.estimation.statistics import DomainSums, estimate, sum_domains


class Variance(Protocol):
    """The variances of the statistics of an outcome."""

    def __call__(self, statistic: Statistic, domain: Integers, sums: DomainSums) -> Floats:
        """The variance of a statistic for each domain."""


Measure = Callable[[Column], tuple[Moments, Variance]]
"""The moments of any column in place of the outcome, and the variances of its statistics."""


@outlined
@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes and weights of the records, and the finest cell of each."""

    value: Column
    weight: Column
    cell: Column
    """The cell of each record, by its position among the cells that have records."""
    group_cell: Integers
    """The same for each group of the moments."""
    measure: Measure
    engine: Engine

    def domain_of_record(self, domain: Integers) -> Column:
        """The domain of each record, from that of each group of the moments."""
        of_cell = np.empty(int(self.group_cell.max()) + 1, np.int64)
        of_cell[self.group_cell] = domain
        return derive(partial(look_up, table=of_cell), self.cell)


@outlined
class RowQuantiles(NamedTuple):
    """The quantile of each row with its interval; NaN where there is none."""

    value: Floats
    se: Floats
    lower: Floats
    upper: Floats
    records: Integers


def compare(share: Share, value: Column) -> Column:
    """1 for the outcomes that a share counts, and 0 for the others."""
    compared = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}[share.comparison]
    return derive(partial(_compared, compared, share.threshold), value)


def _compared(compared: Callable[[Floats, float], Booleans], threshold: float, value: Floats) -> Floats:
    return compared(value, threshold).astype(np.float64)


def quantiles_of_rows(
    share: float,
    moments: Moments,
    domains: Sequence[Integers],
    rows: int,
    in_base: Booleans | None,
    df: float,
    outcomes: Outcomes,
    estimation: EstimationSpec,
) -> RowQuantiles:
    """The quantile for a share in every row of a table; `domains` are as in `Layout.domains`."""
    found = np.full((4, rows + 1), np.nan)
    count = np.zeros(rows + 1, np.int64)
    for row in () if in_base is not None and not in_base.any() else domains:
        # groups outside the base have a row of their own, which is left out in the end
        filled, domain = np.unique(row if in_base is None else np.where(in_base, row, rows), return_inverse=True)
        sums = sum_domains(moments, domain, len(filled), in_base)
        count[filled] = sums.count
        found[:, filled] = _quantiles(share, domain, sums, df, outcomes, estimation)
    value, se, lower, upper = found[:, :rows]
    return RowQuantiles(value, se, lower, upper, count[:rows])


def _quantiles(
    share: float, domain: Integers, sums: DomainSums, df: float, outcomes: Outcomes, estimation: EstimationSpec
) -> Floats:
    """Quantile, standard error and interval of each domain."""
    row = outcomes.domain_of_record(domain)
    distribution = Distribution(row, outcomes.value, outcomes.weight, sums.weight, sums.count, outcomes.engine)
    rule = estimation.quantile_rule
    value = distribution.quantiles(np.full((1, len(sums.count)), share), rule)[0]
    below, variance = outcomes.measure(derive(partial(_at_most, value), outcomes.value, row))
    own = sum_domains(below, domain, len(sums.count), sums.in_base)
    reached, squared = estimate("mean", own.weight, own.outcome, own.base), variance("mean", domain, own)
    ends = share_interval(reached, np.sqrt(squared), sums.count, df, estimation)
    lower, upper = distribution.quantiles(np.stack(ends), rule)
    return np.stack([value, (upper - lower) / (2 * quantile(df, estimation.confidence)), lower, upper])


def _at_most(limit: Floats, value: Floats, row: Integers) -> Floats:
    return (value <= limit[row]).astype(np.float64)


def share_interval(
    share: Floats, se: Floats, count: Integers, df: float, estimation: EstimationSpec
) -> tuple[Floats, Floats]:
    """The interval of a share; NaN for an end beyond 0 or 1.

    If all records of a cell are at or below the quantile, their share has a variance of 0, which says nothing of how
    far the population reaches. There is no interval then.
    """
    student = quantile(df, estimation.confidence)
    se = np.where(se < ROUNDING, 0.0, se)
    with np.errstate(divide="ignore", invalid="ignore"):
        match estimation.quantile_interval:
            case "mean":
                half = np.where(share > 1 - ROUNDING, np.nan, student * se)
                ends = share - half, share + half
            case "xlogit":
                half = student * se / (share * (1 - share))
                ends = expit(logit(share) - half), expit(logit(share) + half)
            case "beta":
                of_records = np.array([quantile(each - 1, estimation.confidence) for each in count.astype(float)])
                effective = share * (1 - share) / se**2 * (of_records / student) ** 2
                tail, yes, no = (1 - estimation.confidence) / 2, effective * share, effective * (1 - share)
                ends = betaincinv(yes, no + 1, tail), betaincinv(yes + 1, no, 1 - tail)
        lower, upper = (np.where((end < -ROUNDING) | (end > 1 + ROUNDING), np.nan, end) for end in ends)
    return np.clip(lower, 0, 1), np.clip(upper, 0, 1)
