"""What noisy tables measured, in words: the guarantee, every sum with its noise, and what standard errors leave out."""

from __future__ import annotations

from collections.abc import Sequence

from svysynth.core.spec import BoundsSpec
from svysynth.mechanisms.noise import RESOLUTION, Noise, OpenDPNoise, Use
from svysynth.mechanisms.noisy_tables.combinations import Grid, Strata
from svysynth.survey.survey import Survey


def statement(epsilon: float, bounds: BoundsSpec, uses: Sequence[Use]) -> str:
    """What is promised, for what, and how the budget was spent."""
    (least, most), (low, high) = bounds.weight, bounds.outcome
    unit = {"points": (most, (high - low) / 2), "variances": (most**2, (high - low) / 2)}
    lines = [
        f"ε = {epsilon:g}: pure differential privacy, at every sample size, for one respondent's outcome and weight "
        "being replaced by any others. The public columns, the strata and the number of records in every cell are "
        "public and do not change.",
        f"Before anything else the outcome was clamped to {low:g} … {high:g} and the weight to {least:g} … {most:g}; "
        f"d is the outcome less {(low + high) / 2:g}.",
        "These sums were measured, each for all rows of a level, with discrete Laplace noise:",
    ]
    for use in uses:
        size, half = unit[use.group]
        scales = (use.scale / RESOLUTION * size * half**power for power in range(len(use.sums)))
        sums = ", ".join(f"{name} (scale {scale:.4g})" for name, scale in zip(use.sums, scales, strict=True))
        cost = "no limit" if use.epsilon is None else f"ε = {float(use.epsilon):.6g}"
        lines.append(f"- {use.name}, rows: {use.rows:,}, {cost}; {sums}")
    lines.append(
        "The ε of these lines add up to the whole. Which levels, and how much for points and for variances, was "
        "chosen from the bounds, ε and the numbers of records and rows alone, so that noise is small beside the "
        "sampling error."
    )
    return "\n".join(lines)


def notes_on(survey: Survey, grid: Grid, strata: Strata, noise: Noise | None) -> tuple[str, ...]:
    """What a reader should know of standard errors and bounds."""
    notes = [
        "Means and totals of records outside the bounds are those of the nearer bound; no standard error shows that."
    ]
    if any(strata.finer(grid, level) is None for level in grid.rows):
        notes.append(
            "Standard errors of rows whose strata no table tells apart treat the sample as one stratum: too large "
            "rather than too small where strata differ."
        )
    if survey.design.fpc is not None:
        notes.append("The finite population correction is taken as public.")
    if not isinstance(noise or OpenDPNoise(), OpenDPNoise):
        notes.append("NOT FOR RELEASE: the noise was made for a study.")
    return tuple(notes)
