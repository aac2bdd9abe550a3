"""Within cells: variances of linear values of records, z = w(1_d(a + b·y) − c·1_base), and of the spread of cells."""

from __future__ import annotations

import numpy as np

from svysynth.core.grouping import Floats, Integers
from svysynth.core.transforms import Transform
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts


def quadratic(
    moments: tuple[Floats, ...],
    facts: PublicFacts,
    in_base: Floats,
    domain: Integers,
    a: Floats,
    b: Floats,
    c: Floats,
) -> Floats:
    """Σ (1 − f)n_c Var z, with z = w(1_d(a + b·y) − c·1_base), from the variances and covariance of w and wy."""
    inside, count = np.eye(a.shape[1])[domain], facts.count * facts.unsampled[facts.stratum]
    of_weight, of_both, of_outcome = ((moment * count) @ inside for moment in moments)
    whole = ((moments[0] * count) @ in_base)[:, np.newaxis]
    own = (a - c) ** 2 * of_weight + 2 * (a - c) * b * of_both + b**2 * of_outcome
    return np.asarray(np.maximum(own, 0.0) + c**2 * (whole - of_weight))


def own_spread(t: Floats, v: Floats, across: Floats, transform: Transform) -> tuple[Floats, Floats, Floats]:
    """Variances and covariance of v²/2 and of t²/2 + tv, or tv without a logarithm, for normal t and v.

    Given are their variances and their covariance in each draw; the result has a column.
    """
    t, v, across = (values[:, None] for values in (t, v, across))
    of_weight, of_both, of_outcome = v**2 / 2, across * v, t * v + across**2
    if transform == "log":
        of_both, of_outcome = of_both + across**2 / 2, of_outcome + t**2 / 2 + 2 * t * across
    return of_weight, of_both, of_outcome
