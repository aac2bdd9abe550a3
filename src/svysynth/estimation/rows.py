"""Rows: the estimates of every row of a table, their variances, and the number of records in each row.

A proportion within other columns is the mean of an indicator: of the cell, among the records that share the row's
levels in these columns. The share of those who answered is a mean of this kind too. The linearised value of a ratio
R = Σwy/Σwx is w(y − Rx)/Σwx.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from svysynth.core.column_storage import Column, derive
from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.statistics import Statistic
from svysynth.estimation.passes import Measured, over
from svysynth.estimation.statistics import DomainSums, estimate, sum_domains
from svysynth.estimation.woodruff import Outcomes


@outlined
class Rows(NamedTuple):
    """Estimate, variance and number of records of every row; NaN where there is no estimate."""

    value: Floats
    variance: Floats
    records: Integers
    interval: tuple[Floats, Floats] | None = None
    """The interval, if it is not symmetric about the estimate."""


def estimates_of_rows(
    statistic: Statistic, domains: Iterable[Integers], rows: int, measured: Measured, in_base: Booleans | None
) -> Rows:
    """A statistic of every row; zeros, or NaN for a mean, where there are no records.

    Groups that are not in the base have a row of their own, which is left out in the end.
    """
    count = np.zeros(rows + 1, np.int64)
    empty = in_base is not None and not in_base.any()
    value = np.full(rows + 1, np.nan if statistic == "mean" or (empty and statistic == "proportion") else 0.0)
    squared_error = value.copy()
    for row in () if empty else domains:
        filled, domain, sums = _sums_of_rows(row, rows, measured, in_base)
        count[filled] = sums.count
        value[filled] = estimate(statistic, sums.weight, sums.outcome, sums.base)
        squared_error[filled] = measured.variance(statistic, domain, sums)
    return Rows(value[:rows], squared_error[:rows], count[:rows])


def _sums_of_rows(
    row: Integers, rows: int, measured: Measured, in_base: Booleans | None
) -> tuple[Integers, Integers, DomainSums]:
    """The rows that have records, for each group the position of its row among them, and their sums."""
    filled, domain = np.unique(row if in_base is None else np.where(in_base, row, rows), return_inverse=True)
    return filled, domain, sum_domains(measured.moments, domain, len(filled), in_base)


def indicating(measured: Measured, groups: Booleans) -> Measured:
    """The same for an indicator of some groups in place of the column, without a further pass."""
    return Measured(measured.moments.indicating(groups), measured.variance.indicating(groups))


def shares_within(
    parts: Sequence[tuple[Integers, Integers]], base_of_row: Integers, measured: Measured, in_base: Booleans | None
) -> Rows:
    """For every row, its share of those who have the same levels in the columns that proportions are within.

    `parts` has, for each combination of kept columns and each group, the row of its levels in those columns, and what
    its levels in the other columns add to it. `base_of_row` is the row that each row is a share of.
    """
    rows, moments = len(base_of_row), measured.moments
    found, count, somebody = np.full((2, rows), np.nan), np.zeros(rows, np.int64), np.zeros(rows, bool)
    inside = np.ones(len(moments.count), bool) if in_base is None else in_base
    for base, other in parts:
        np.add.at(count, (base + other)[inside], moments.count[inside])
        somebody[base[inside]] = True
        for added in np.unique(other[inside]):
            own = indicating(measured, inside & (other == added))
            filled, domain, sums = _sums_of_rows(base, rows, own, in_base)
            share = estimate("mean", sums.weight, sums.outcome, sums.base), own.variance("mean", domain, sums)
            known = filled < rows
            found[:, filled[known] + added] = np.stack(share)[:, known]
    found[:, np.isnan(found[0]) & somebody[base_of_row]] = 0.0  # a level that nobody has
    return Rows(found[0], found[1], count)


def ratios_of_rows(
    domains: Iterable[Integers],
    rows: int,
    top: Measured,
    bottom: Measured,
    in_base: Booleans | None,
    numerator: Outcomes,
    denominator: Column,
) -> Rows:
    """The ratio of the totals of two columns in every row; NaN where the second total is zero."""
    found, count = np.full((2, rows + 1), np.nan), np.zeros(rows + 1, np.int64)
    for row in () if in_base is not None and not in_base.any() else domains:
        filled, domain, sums = _sums_of_rows(row, rows, top, in_base)
        total = sum_domains(bottom.moments, domain, len(filled), in_base).outcome
        count[filled] = sums.count
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(total == 0, np.nan, sums.outcome / total)
            replicated = over(top.variance, bottom.variance)
            if replicated is None:
                variance = _linearized(ratio, total, domain, sums, numerator, denominator)
            else:
                variance = replicated("mean", domain, replace(sums, weight=total))
        found[:, filled] = ratio, np.where(np.isnan(ratio), np.nan, variance)
    return Rows(found[0, :rows], found[1, :rows], count[:rows])


def _linearized(
    ratio: Floats, total: Floats, domain: Integers, sums: DomainSums, numerator: Outcomes, denominator: Column
) -> Floats:
    """The variances of ratios from one more pass, for y − Rx."""
    row = numerator.domain_of_record(domain)
    residual = derive(partial(_residual, np.nan_to_num(ratio)), numerator.value, denominator, row)
    moments, variance = numerator.measure(residual)
    own = sum_domains(moments, domain, len(ratio), sums.in_base)
    return np.asarray(variance("mean", domain, own) * (own.weight / total) ** 2)


def _residual(ratio: Floats, numerator: Floats, denominator: Floats, row: Integers) -> Floats:
    return numerator - ratio[row] * denominator
