"""Intervals: confidence intervals from standard errors and degrees of freedom, and grades of reliability."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from svysynth.core.grouping import Floats
from svysynth.core.spec.estimation import EstimationSpec

RELIABILITY = ("reliable", "caution", "unreliable")
"""The grades of an estimate: its coefficient of variation is below, between or above the spec's two thresholds."""


def quantile(df: float | Floats, confidence: float) -> Floats:
    """The quantile of Student's t for a two-sided interval: the normal one for infinite df, NaN if there are none."""
    df, level = np.asarray(df, float), 0.5 + confidence / 2
    finite = np.isfinite(df) & (df > 0)
    found = stdtrit(np.where(finite, df, 1.0), level)
    return np.where(finite, found, np.where(df > 0, ndtri(level), np.nan))


def half_length(se: Floats, df: float | Floats, confidence: float) -> Floats:
    """How far a confidence interval reaches from the estimate to either side."""
    return np.asarray(quantile(df, confidence) * se)


def grade(cv: Floats, df: Floats, estimation: EstimationSpec) -> npt.NDArray[np.object_]:
    """How reliable an estimate is, by its coefficient of variation with an allowance for few degrees of freedom.

    With few degrees of freedom an interval is longer than the standard error alone suggests, and without any there is
    no interval. So cv·t/z is compared with the thresholds, where t and z are the quantiles of Student's t and of the
    normal distribution.

    >>> grade(np.array([0.1, 0.1, 0.0]), np.array([np.inf, 2.0, 0.0]), EstimationSpec()).tolist()
    ['reliable', 'caution', 'unreliable']
    """
    student, normal = quantile(df, estimation.confidence), quantile(np.inf, estimation.confidence)
    size = np.where(df > 0, np.nan_to_num(cv, nan=0.0, posinf=0.0) * student / normal, np.inf)
    names: npt.NDArray[np.object_] = np.array(RELIABILITY, dtype=object)
    return names[np.searchsorted(estimation.cv_thresholds, size, side="left")]
