"""Sensitivity: what a release under the guarantee `global` loses where its public constants are off.

A guess of the spreads places the interval. If √|Σ| is really f times the guess, log densities peak log f lower than
they were taken to, the share s·p of the information about means is left, and standard errors from the posterior grow by
1/√(s·p) (`interval.py`). Bounds that cut into the data move means: here by how much, for the proposal's own laws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
from scipy.special import ndtr

from svysynth.constants import Law, Proposal, bad_figure
from svysynth.interval import Interval, efficiency, place_interval, predicted_shrinkage
from svysynth.spec import StandInSpec

FACTORS = (0.4, 0.63, 1.0, 1.6, 2.5)
"""√|Σ| over its guess."""
SHARES = (0.25, 0.5, 1.0, 2.0)
"""Widths that are looked at, over the one asked for."""
REACHES = (1.5, 2.0, 2.5, 3.0, 4.0)
"""Bounds that are looked at, in spreads from the middle."""
LEAST_WIDTH, MOST_WIDTH = 0.02, 1000.0


def interval_of(constants: StandInSpec, epsilon: float, datasets: int) -> tuple[Interval, float]:
    """The interval that a release would use, and the peak of the log density that the constants imply."""
    if not (1 <= datasets <= 1000 and LEAST_WIDTH <= epsilon / datasets <= MOST_WIDTH):
        problem = f"must be at least 1, and epsilon over datasets between {LEAST_WIDTH:g} and {MOST_WIDTH:g}"
        raise bad_figure("--epsilon, --datasets", problem, "write it like --epsilon 10.8 --datasets 3")
    return place_interval(epsilon, datasets, constants)


def by_guess(constants: StandInSpec, widths: Sequence[float], factors: Sequence[float] = FACTORS) -> pl.DataFrame:
    """For each width ε/m and each factor by which the guess of √|Σ| is too small: s, s·p and 1/√(s·p)."""
    rows = []
    for width in widths:
        interval, peak = interval_of(constants, width, 1)
        for factor in factors:
            truth = peak - math.log(factor)
            left = efficiency(truth, interval)
            rows.append(
                {
                    "width": float(width),
                    "truth_over_guess": float(factor),
                    "low": interval.low,
                    "high": interval.high,
                    "shrinkage": predicted_shrinkage(truth, interval),
                    "efficiency": left,
                    "standard_error_factor": left**-0.5 if left > 0 else math.inf,
                }
            )
    return pl.DataFrame(rows)


def by_bounds(proposal: Proposal, reaches: Sequence[float] = REACHES) -> pl.DataFrame:
    """For the proposed bounds and for others: the shares of records that are clamped, and what it does to means.

    `bias_of_mean` is that of the mean of clamped values, `bias_of_model` that of the mean of a lognormal (normal) law
    fitted to them; both as a share of the mean, or of the spread where the transform is `identity`.
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
    """What clamping to bounds does to a law's mean."""
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
