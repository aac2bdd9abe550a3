"""Statement: what was measured for noisy tables, in words for readers of the release.

It states the guarantee, every sum with its noise, and what the standard errors leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

from svysynth.core.spec.privacy import BoundsSpec
from svysynth.mechanisms.noise import RESOLUTION, Noise, OpenDPNoise, Use
from svysynth.mechanisms.noisy_tables.combinations import Grid, Strata
from svysynth.survey.survey import Survey


def statement(epsilon: float, bounds: BoundsSpec, uses: Sequence[Use]) -> str:
    """State the guarantee, what it covers, and how the budget was spent."""
    (least, most), (low, high) = bounds.weight, bounds.outcome
    unit = {"points": (most, (high - low) / 2), "variances": (most**2, (high - low) / 2)}
    lines = [
        f"ε = {epsilon:g} (the privacy loss; smaller is safer): pure differential privacy, at every sample size. "
        "Neighbouring data sets differ in the outcome and weight of one respondent, replaced by any other values. The "
        "public columns, the strata and the number of records in every cell are public and the same in both.",
        f"First, outcomes were clamped to {low:g} … {high:g} and weights to {least:g} … {most:g}. In the following, w "
        f"is the weight and d is the outcome minus {(low + high) / 2:g}.",
        "Discrete Laplace noise with the stated scale was added to the following sums. Each line holds for all rows of "
        "a table or margin, which is named by its columns. Sums marked 'points' are for the estimates, sums marked "
        "'variances' for their sampling variances:",
    ]
    for use in uses:
        size, half = unit[use.group]
        scales = (use.scale / RESOLUTION * size * half**power for power in range(len(use.sums)))
        sums = ", ".join(f"{name} (scale {scale:.4g})" for name, scale in zip(use.sums, scales, strict=True))
        cost = "no limit" if use.epsilon is None else f"ε = {float(use.epsilon):.6g}"
        lines.append(f"- {use.name}, rows: {use.rows:,}, {cost}; {sums}")
    lines.append(
        "The ε of these lines add up to the total ε. The measured tables and margins, and the shares of ε for points "
        "and for variances, were chosen only from the requested tables, the bounds, ε and the numbers of records and "
        "rows, so that noise is small compared with the sampling error."
    )
    return "\n".join(lines)


def notes_on(survey: Survey, grid: Grid, strata: Strata, noise: Noise | None) -> tuple[str, ...]:
    """What a reader should know about standard errors and bounds."""
    notes = [
        "Any outcome or weight outside its bounds was replaced by the nearer bound. The standard errors do not include "
        "the bias that this causes."
    ]
    shown = [level for level in grid.rows if level or () in grid.domains]
    if any(strata.finer(grid, level) is None for level in shown):
        notes.append(
            "For rows that no table splits by stratum, standard errors treat the sample as one stratum. If strata "
            "differ, these standard errors are too large rather than too small."
        )
    if survey.design.fpc is not None:
        notes.append("The finite population correction of each stratum is public.")
    if not isinstance(noise or OpenDPNoise(), OpenDPNoise):
        notes.append("NOT FOR RELEASE: the noise was made for a study.")
    return tuple(notes)
