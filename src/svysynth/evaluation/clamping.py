"""Clamping: the bias that public bounds cause if they cut into the data.

A record outside its bounds counts as if it stood at the nearer end. This moves means, and no standard error shows it.
This file computes by how much, for the distributions behind proposed constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
from scipy.special import ndtr

from svysynth.privacy.public_constants import Law, Proposal

REACHES = (1.5, 2.0, 2.5, 3.0, 4.0)
"""The bounds that are tried, in spreads from the middle."""


def by_bounds(proposal: Proposal, reaches: Sequence[float] = REACHES) -> pl.DataFrame:
    """For the proposed bounds and for others: the shares of records that are clamped, and the bias of means.

    `bias_of_mean` is the bias of the mean of clamped values, `bias_of_model` that of the mean of a lognormal (normal)
    distribution fitted to them; both as a share of the mean, or of the spread where the transform is `identity`.
    """
    rows = []
    for variable, law, bounds in (
        ("outcome", proposal.outcome, proposal.bounds.outcome),
        ("weight", proposal.weight, proposal.bounds.weight),
    ):
        rows.append({"variable": variable, "reach": None, **clamped(law, *bounds)})
        for reach in reaches:
            rows.append({"variable": variable, "reach": float(reach), **clamped(law, law.at(-reach), law.at(reach))})
    return pl.DataFrame(rows, schema_overrides={"reach": pl.Float64})


def clamped(law: Law, low: float, high: float) -> dict[str, float]:
    """The effect of clamping to bounds on the mean of a distribution."""
    a, b = ((math.log(end) if law.transform == "log" else end) for end in (low, high))
    a, b = (a - law.middle) / law.spread, (b - law.middle) / law.spread
    below, above = float(ndtr(a)), float(ndtr(-b))
    shift = a * below + b * above + _density(a) - _density(b)
    square = a**2 * below + b**2 * above + 1 - below - above + a * _density(a) - b * _density(b)
    found = {"low": low, "high": high, "share_below": below, "share_above": above}
    if law.transform == "identity":
        return found | {"bias_of_mean": shift, "bias_of_model": shift}
    sigma = law.spread
    kept = float(ndtr(b - sigma) - ndtr(a - sigma))
    of_mean = math.exp(sigma * a - sigma**2 / 2) * below + kept + math.exp(sigma * b - sigma**2 / 2) * above
    of_model = math.exp(sigma * shift + sigma**2 * (square - shift**2 - 1) / 2)
    return found | {"bias_of_mean": of_mean - 1, "bias_of_model": of_model - 1}


def _density(z: float) -> float:
    return math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
