"""Wrong scales: the cost of a wrong guess of the scales, if they are public constants.

Noise grows with the scales, and scales that are too narrow clamp records. Both effects are computed here from public
figures alone: standard errors by the formulas of `planning.py`, and clamping by integration over normal answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from svysynth.core.grouping import Floats, Integers
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.mechanisms.noisy_sums.measuring.planning import expected_errors, plan_measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale, Scaling, reach_of
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST, whole_numbers
from svysynth.privacy.public_constants import Proposal

GUESSES = {
    "as proposed": (1.0, 1.0),
    "outcome: half": (0.5, 1.0),
    "outcome: twice": (2.0, 1.0),
    "weight: half": (1.0, 0.5),
    "weight: twice": (1.0, 2.0),
}
"""The guesses, as factors of the right scales of outcome and weight."""
FARTHEST, NODES = 7.0, 801
"""The end and the number of nodes of the grid for each of two normal variables."""


def declared_facts(survey: SurveySpec, records: int) -> PublicFacts:
    """Cells of equal size from the declared levels; one cell if not all levels are declared or records are too few."""
    levels = {column: survey.declared(column) for column in survey.public}
    labels = {column: tuple(found.values()) for column, found in levels.items() if found}
    shape = [len(found) for found in labels.values()] if len(labels) == len(levels) else []
    cells = math.prod(shape)
    if not shape or 2 * cells > records:
        return PublicFacts({}, np.zeros((1, 0), np.int64), *_one_stratum(np.array([records])))
    codes = np.array(np.unravel_index(np.arange(cells), shape)).T
    return PublicFacts(labels, codes, *_one_stratum(np.diff(np.arange(cells + 1) * records // cells)))


def _one_stratum(size: Integers) -> tuple[Integers, Integers, Integers]:
    return np.arange(len(size)), np.zeros(len(size), np.int64), size.astype(np.int64)


def cost_of_guesses(
    proposal: Proposal, facts: PublicFacts, tables: Sequence[TableSpec], epsilon: float
) -> pl.DataFrame:
    """For each guess: the share of clamped records, the bias of a mean, and standard errors relative to right scales.

    Answers are assumed to have the distributions of the proposal. `bias_of_model` is the bias of the mean outcome that
    a model estimates from clamped sums, as a share of the mean, or of the spread if the transform is `identity`.
    Standard errors are medians over rows.
    """
    standin, transform, reach = proposal.standin, proposal.outcome.transform, reach_of(len(facts), epsilon)
    right, *_ = guesses = [
        Scaling(
            Scale(proposal.outcome.middle, first * standin.spread),
            Scale(-(proposal.weight.spread**2) / 2, second * standin.weight_spread),
            reach,
        )
        for first, second in GUESSES.values()
    ]
    plan = plan_measurement(facts, tables, epsilon, scales="standin")
    errors = expected_errors(facts, tables, plan, right, guesses, transform)
    means, counts = (np.median(found / found[:, :1], axis=0) for found in errors)
    answers = _answers(proposal)
    rows = []
    for number, (name, guess) in enumerate(zip(GUESSES, guesses, strict=True)):
        clamped, bias = _clamping(*answers, guess, transform == "log")
        figures = {
            "clamped": clamped,
            "bias_of_model": bias,
            "se_of_means": means[number],
            "se_of_counts": counts[number],
        }
        rows.append({"guess": name, **figures})
    return pl.DataFrame(rows)


def _answers(proposal: Proposal) -> tuple[Floats, Floats, Floats]:
    """t and v on a fine grid, and the share of normal records at each point."""
    nodes = np.linspace(-FARTHEST, FARTHEST, NODES)
    first, second = (grid.ravel() for grid in np.meshgrid(nodes, nodes))
    share = np.exp(-(first**2 + second**2) / 2)
    correlation, weight = proposal.standin.correlation, proposal.weight.spread
    second = correlation * first + math.sqrt(1 - correlation**2) * second
    t, v = proposal.outcome.middle + proposal.outcome.spread * first, weight * (second - weight / 2)
    return t, v, share / share.sum()


def _clamping(t: Floats, v: Floats, share: Floats, guess: Scaling, log: bool) -> tuple[float, float]:
    """The share of records that are clamped, and the bias of the mean that a model estimates."""
    far = sum(np.abs(values - scale.centre) / scale.width for values, scale in ((t, guess.outcome), (v, guess.weight)))
    kept = whole_numbers(t, v, guess) * (guess.reach / LARGEST) * guess.widths[:, None] + guess.centres[:, None]
    off = _level(kept[0], kept[1], share, log) - _level(t, v, share, log)
    spread = math.sqrt(float(np.cov(t, aweights=share, ddof=0)))
    return float(share @ (far > guess.reach)), math.expm1(off) if log else off / spread


def _level(t: Floats, v: Floats, share: Floats, log: bool) -> float:
    """The weighted mean that a normal model estimates, on the scale of t."""
    covariance = np.cov(t, v, aweights=share, ddof=0)
    return float(share @ t + log * covariance[0, 0] / 2 + covariance[0, 1])
