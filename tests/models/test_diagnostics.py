"""Diagnostics: the numbers of R's `posterior` to rounding, and a verdict that names each thing that is wrong."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import places
from svysynth.models.diagnostics import LARGEST_RHAT, SMALLEST_EBFMI, SMALLEST_ESS, Verdict, judge

GOLDEN = places.GOLDEN / "diagnostics"
VALUES = pl.read_csv(GOLDEN / "values.csv")
ROUNDING = 1e-12
"""Relative: the two sides differ in the order of sums of a thousand terms only."""

GOOD = Verdict(rhat=1.0, ess_bulk=1000.0, ess_tail=900.0, divergences=0, ebfmi=1.0)
ONE_FAULT = [
    ("rhat", LARGEST_RHAT, "chains disagree"),
    ("ess_bulk", SMALLEST_ESS - 0.1, "too few effective draws"),
    ("ess_tail", SMALLEST_ESS - 0.1, "too few effective draws"),
    ("divergences", 1, "1 transitions diverged"),
    ("ebfmi", SMALLEST_EBFMI - 0.01, "energy is explored too slowly"),
]


def golden_draws(file):
    """Chain × draw."""
    return pl.read_csv(GOLDEN / file).to_numpy().T


def judge_one(draws):
    """The verdict on a single quantity, whose draws serve as energies too: its figures are that quantity's own."""
    return judge(draws[:, :, np.newaxis], 0, draws)


def independent(chains=4, length=500, quantities=1):
    return np.random.default_rng(7).normal(size=(chains, length, quantities))


@pytest.mark.parametrize("figure", ["rhat", "ess_bulk", "ess_tail", "ebfmi"])
@pytest.mark.parametrize("file", VALUES["file"])
def test_figures_agree_with_r_posterior(file, figure):
    """E-BFMI, which `posterior` does not have, is by Betancourt's formula; odd lengths are among the files."""
    wanted = VALUES.row(by_predicate=pl.col("file") == file, named=True)[figure]
    assert getattr(judge_one(golden_draws(file)), figure) == pytest.approx(wanted, rel=ROUNDING)


def test_figures_are_the_worst_of_all_quantities():
    files = ["independent_4x250.csv", "positive_4x250.csv", "wider_chain_4x250.csv"]
    each = [judge_one(golden_draws(file)) for file in files]
    together = judge(np.stack([golden_draws(file) for file in files], axis=2), 3, golden_draws(files[0]))
    assert together.rhat == pytest.approx(max(verdict.rhat for verdict in each), rel=ROUNDING)
    assert together.ess_bulk == pytest.approx(min(verdict.ess_bulk for verdict in each), rel=ROUNDING)
    assert together.ess_tail == pytest.approx(min(verdict.ess_tail for verdict in each), rel=ROUNDING)
    assert together.ebfmi == each[0].ebfmi
    assert together.divergences == 3


def test_a_good_verdict_has_no_complaint():
    assert GOOD.passed
    assert GOOD.complaints == []


@pytest.mark.parametrize(("figure", "value", "complaint"), ONE_FAULT)
def test_one_fault_is_enough_and_is_named(figure, value, complaint):
    verdict = replace(GOOD, **{figure: value})
    assert not verdict.passed
    assert len(verdict.complaints) == 1
    assert complaint in verdict.complaints[0]


@pytest.mark.parametrize("figure", ["rhat", "ess_bulk", "ess_tail", "ebfmi"])
def test_a_figure_that_cannot_be_computed_is_a_fault(figure):
    assert len(replace(GOOD, **{figure: np.nan}).complaints) == 1


def test_a_draw_that_is_not_a_number_is_a_fault():
    """Even of one quantity among others."""
    draws = independent(quantities=2)
    draws[1, 3, 0] = np.nan
    assert not judge(draws, 0, independent()[:, :, 0]).passed


def test_a_quantity_that_does_not_vary_is_left_out():
    draws = independent(quantities=2)
    draws[:, :, 0] = 1.0
    assert judge(draws, 0, independent()[:, :, 0]).passed


def test_every_fault_is_named_when_there_are_several():
    verdict = replace(GOOD, **{figure: value for figure, value, _ in ONE_FAULT})
    for _, _, complaint in ONE_FAULT:
        assert any(complaint in text for text in verdict.complaints)


def test_independent_draws_pass():
    assert judge(independent(), 0, independent()[:, :, 0]).passed


def test_a_chain_elsewhere_shows_in_rhat():
    draws = independent()
    draws[0] += 0.5
    (complaint,) = judge(draws, 0, independent()[:, :, 0]).complaints
    assert "chains disagree" in complaint


def test_a_wider_chain_shows_in_rhat():
    """Its centre is right: only the folded draws show it."""
    draws = independent()
    draws[0] *= 2
    complaints = judge(draws, 0, independent()[:, :, 0]).complaints
    assert "chains disagree" in complaints[0]


def test_a_drift_common_to_all_chains_shows_in_rhat():
    """The chains agree with each other, and their halves do not."""
    draws = independent() + np.linspace(-0.5, 0.5, 500)[:, np.newaxis]
    complaints = judge(draws, 0, independent()[:, :, 0]).complaints
    assert "chains disagree" in complaints[0]


def test_few_draws_show_in_the_effective_number():
    """Independent, and yet a hundred draws are not four hundred; R-hat of so few is left out of it."""
    complaints = judge(independent(length=25), 0, independent()[:, :, 0]).complaints
    assert any("too few effective draws" in complaint for complaint in complaints)
    assert not any("energy" in complaint for complaint in complaints)


def test_an_energy_that_moves_in_small_steps_shows_in_ebfmi():
    energy = np.cumsum(independent()[:, :, 0], axis=1)
    (complaint,) = judge(independent(), 0, energy).complaints
    assert "energy is explored too slowly" in complaint


def test_one_chain_with_a_slow_energy_is_enough():
    energy = independent()[:, :, 0]
    energy[2] = np.cumsum(energy[2])
    (complaint,) = judge(independent(), 0, energy).complaints
    assert "energy is explored too slowly" in complaint
