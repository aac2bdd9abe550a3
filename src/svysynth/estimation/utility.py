"""Utility: how close private estimates come to the truth, or to the confidential estimates (paper §3.3, §4.3).

Pure functions of arrays, the same for one cell or for replicates × cells. The truth is the population's value in a
simulation and the confidential estimate in an application.
"""

from __future__ import annotations

import numpy as np

from svysynth.core.grouping import Booleans, Floats

NO_ERROR = 1e-12
"""A standard error that is a smaller fraction of its estimate than this is zero up to rounding."""


def bias(estimate: Floats, truth: Floats) -> Floats:
    """Estimate minus truth; over replicates, its mean along the first axis is the Monte Carlo bias."""
    return np.asarray(estimate - truth)


def rmse(estimate: Floats, se: Floats, truth: Floats) -> Floats:
    """√(bias² + T) of each estimate, with its variance T = se².

    >>> float(rmse(np.array(13.0), np.array(4.0), np.array(10.0)))
    5.0
    """
    return np.hypot(bias(estimate, truth), se)


def standard_distance(estimate: Floats, other: Floats, se: Floats) -> Floats:
    """An estimate minus another, in standard errors of the other; NaN where that standard error is zero.

    >>> standard_distance(np.array([3.0, 3.0]), np.array([1.0, 1.0]), np.array([0.5, 1e-14])).tolist()
    [4.0, nan]
    """
    nothing = np.full(np.broadcast(estimate, other, se).shape, np.nan)
    return np.asarray(np.divide(estimate - other, se, out=nothing, where=has_error(other, se)))


def has_error(estimate: Floats, se: Floats) -> Booleans:
    """Whether a standard error is more than rounding error: a count that the design fixes has none."""
    return np.asarray(se > NO_ERROR * np.abs(estimate))


def rmse_ratio(estimate: Floats, se: Floats, sample_estimate: Floats, sample_se: Floats, truth: Floats) -> Floats:
    """The RMSE of a private estimate over that of the confidential sample; below 1 the private one is closer.

    NaN where the sample has no error.
    """
    own = rmse(sample_estimate, sample_se, truth)
    nothing = np.full(np.broadcast(own, estimate).shape, np.nan)
    return np.asarray(np.divide(rmse(estimate, se, truth), own, out=nothing, where=has_error(truth, own)))


def covers(lower: Floats, upper: Floats, truth: Floats) -> Booleans:
    """Whether each interval holds the truth, its ends included."""
    return np.asarray((lower <= truth) & (truth <= upper))


def coefficient_of_variation(estimate: Floats, se: Floats) -> Floats:
    """se/|estimate|; NaN where the estimate is zero."""
    size = np.abs(np.asarray(estimate, np.float64))
    nothing = np.full(np.broadcast(size, se).shape, np.nan)
    return np.asarray(np.divide(se, size, out=nothing, where=size > 0), np.float64)


def interval_overlap(lower: Floats, upper: Floats, other_lower: Floats, other_upper: Floats) -> Floats:
    """The common part of two intervals as a share of each, averaged (Karr et al. 2006): 1 if equal, 0 if apart.

    >>> float(interval_overlap(np.array(0.0), np.array(2.0), np.array(1.0), np.array(5.0)))
    0.375
    """
    common = np.maximum(np.minimum(upper, other_upper) - np.maximum(lower, other_lower), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(0.5 * (common / (upper - lower) + common / (other_upper - other_lower)))
