"""Simulation-based calibration of FBS and FBP, in small: enough to notice a likelihood with the exponent 0.8.

What is drawn and ranked is in bench/study_of_posterior_ranks.py, which does it at length.
"""

import numpy as np
import pytest
from scipy import stats

from criteria import unmet
from places import DOCS
from study_of_posterior_ranks import (
    CELL,
    DESIGN,
    FALSE_ALARM,
    MODELS,
    criteria,
    draw_correlation,
    fbp_sample_law,
    main,
    ranks,
    rejected,
    simulate,
)
from svysynth.core.streams import Streams

SIMULATIONS = {"fbs": 120, "fbp": 320}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_correlations_are_drawn_from_their_prior(size):
    """Every correlation of an LKJ matrix is a beta variable on (−1, 1)."""
    generator = Streams.seeded(size).generator("correlations")
    drawn = np.array([draw_correlation(generator, size, 6.0) for _ in range(2000)])
    marginal = stats.beta(6 + size / 2 - 1, 6 + size / 2 - 1, loc=-1, scale=2)
    for row, column in zip(*np.tril_indices(size, -1), strict=True):
        assert stats.kstest(drawn[:, row, column], marginal.cdf).pvalue > FALSE_ALARM


def test_fbp_is_simulated_by_the_density_of_its_docstring():
    """On the scale of (t, log π) the density gains the Jacobian π: that is the law of the simulated sample."""
    model, x = MODELS[1], DESIGN[CELL]
    parameters, records = simulate(model, Streams.seeded(0).generator("law"))
    law_t, law_log_pi = fbp_sample_law(parameters, x)
    simulated = law_t.logpdf(records.t) + law_log_pi(records.t).logpdf(-records.v)
    modelled = model.log_likelihood(parameters, records.t, records.v, x) - records.v
    np.testing.assert_allclose(modelled, simulated, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_ranks_are_uniform(model):
    assert rejected(ranks(model, SIMULATIONS[model.name]), bins=5) == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_wrong_exponent_is_noticed(model):
    """Draws that are an eighth too wide: no single parameter shows it so early, the log-likelihood does."""
    assert "log-likelihood" in rejected(ranks(model, SIMULATIONS[model.name], exponent=0.8), bins=5)


def test_a_page_is_written_and_judged(tmp_path):
    assert main(["--simulations", "20", "--out", str(tmp_path)]) == 0
    committed, written = (
        (folder / "calibration.md").read_text(encoding="utf-8").splitlines() for folder in (DOCS, tmp_path)
    )
    assert committed[:3] == written[:3]
    assert [line.split("|")[1] for line in committed if line.startswith("|")] == [
        line.split("|")[1] for line in written if line.startswith("|")
    ]
    assert (tmp_path / "calibration.svg").exists()


def test_ranks_that_are_not_uniform_are_told():
    uniform = np.tile(np.arange(100), 10)
    assert unmet(criteria({"fbs": {"beta": uniform, "kappa": uniform}})) == []
    told = unmet(criteria({"fbs": {"beta": uniform, "kappa": uniform // 2}}))
    assert told == ["FBS: the ranks of kappa are not uniform"]
