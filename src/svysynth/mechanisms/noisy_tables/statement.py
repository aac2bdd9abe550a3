"""Statement: what was measured for noisy tables, in words for readers of the release.

It states the guarantee, every sum with its noise, and what the standard errors leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

from svysynth.core.spec.privacy import BoundsSpec, Unit
from svysynth.mechanisms.noise import RESOLUTION, Noise, OpenDPNoise, Use
from svysynth.mechanisms.noisy_tables.alike import PairUse
from svysynth.mechanisms.noisy_tables.combinations import Grid, Strata
from svysynth.survey.survey import Survey

WHOSE: dict[Unit, str] = {"respondent": "one respondent", "cluster": "all respondents of one cluster"}


def statement(
    epsilon: float, own: float, whose: Unit, bounds: BoundsSpec, uses: Sequence[Use], pairs: Sequence[PairUse]
) -> str:
    """State the guarantee, what it covers, and how the budget was spent; `own` is the ε of each respondent."""
    (least, most), (low, high) = bounds.weight, bounds.outcome
    unit = {"points": (most, (high - low) / 2), "variances": (most**2, (high - low) / 2)}
    lines = [
        f"ε = {epsilon:g} (the privacy loss; smaller is safer): pure differential privacy, at every sample size. "
        f"Neighbouring data sets differ in the outcome and weight of {WHOSE[whose]}, replaced by any other values. The "
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
    lines += [_of_pairs(use, most if use.answer == "weights" else most * (high - low) / 2) for use in pairs]
    total = "the total ε"
    if whose == "cluster":
        total = f"ε = {own:.6g} for each respondent, which is the total ε for the largest cluster"
    lines.append(
        f"The ε of these lines add up to {total}. The measured tables and margins, and the shares of ε for points "
        "and for variances, were chosen only from the requested tables, the bounds, ε and the numbers of records and "
        "rows, so that noise is small compared with the sampling error."
    )
    return "\n".join(lines)


def _of_pairs(use: PairUse, size: float) -> str:
    """What was measured to learn how alike respondents of a cluster are, and its noise."""
    cost = "no limit" if use.epsilon is None else f"ε = {float(use.epsilon):.6g}"
    of_record = "w" if use.answer == "weights" else "w(d − its mean)"
    if use.answer == "spread":
        cut, scale = use.cut / RESOLUTION * size, use.scale * use.unit * size**2
        return f"- {use.name}, {cost}; Σ of the square of {of_record} clamped to ±{cut:.4g} (scale {scale:.4g})"
    return (
        f"- {use.name}, {cost}; Σ over clusters of the square of the cluster's sum, less Σ over records of the square, "
        f"of {of_record} clamped to ±{use.cut / RESOLUTION * size:.4g}, the sums (for w less their mean in the "
        f"stratum) clamped to ±{use.limit / RESOLUTION * size:.4g} (scale {use.scale * use.unit * size**2:.4g})"
    )


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
    if survey.design.cluster is not None:
        notes.append(
            "Which respondents share a cluster is public. How alike respondents of a cluster are was measured for the "
            "whole file, and standard errors assume that this is the same in every cell. They are never smaller than "
            "those of a design without clusters. Clusters far from all others were clamped, which makes standard "
            "errors too small."
        )
    if survey.design.fpc is not None:
        notes.append("The finite population correction of each stratum is public.")
    if not isinstance(noise or OpenDPNoise(), OpenDPNoise):
        notes.append("NOT FOR RELEASE: the noise was made for a study.")
    return tuple(notes)
