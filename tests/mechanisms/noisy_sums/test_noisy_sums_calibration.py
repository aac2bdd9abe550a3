"""Simulation-based calibration of the posterior that knows the noise: bench/study_of_noisy_sums_ranks.py."""

import numpy as np
import polars as pl
import pytest

import study_of_noisy_sums_ranks
from criteria import unmet
from places import DOCS
from study_of_noisy_sums_ranks import DRAWS, SIMULATIONS, criteria, main, p_values, ranks, row_of

UNIFORM = np.tile(np.arange(0, DRAWS + 1, 2), 2)[:, np.newaxis] * np.ones((1, 51), int)
"""Ranks of 200 simulations, of 51 quantities."""


def test_a_file_of_each_model_is_written_and_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(study_of_noisy_sums_ranks, "ranks", lambda prior, *_: (UNIFORM, 150, len(prior)))
    assert main(["--simulations", "200", "--out", str(tmp_path)]) == 0
    for prior in ("fbs", "fbp"):
        written = pl.read_csv(tmp_path / f"calibration/noisy-sums-{prior}.csv")
        assert written.rows() == [(prior, 200, 150, 3, 51, 1.0, 1.0)]
        assert written.columns == pl.read_csv(DOCS / f"calibration/noisy-sums-{prior}.csv").columns


def test_ranks_that_are_not_uniform_and_noise_that_is_never_mixed_are_told():
    upper = np.where(np.arange(51) == 7, (UNIFORM + DRAWS) // 2, UNIFORM)
    assert unmet(criteria(row_of("fbs", UNIFORM, 150, 0))) == []
    assert "FBS: ranks are not uniform" in unmet(criteria(row_of("fbs", upper, 150, 0)))[0]
    assert "FBP: noise is mixed in 190 of 200" in unmet(criteria(row_of("fbp", UNIFORM, 190, 0)))[0]


@pytest.mark.parametrize("prior", ["fbs", "fbp"])
def test_the_committed_ranks_meet_the_criteria(prior):
    assert unmet(criteria(pl.read_csv(DOCS / f"calibration/noisy-sums-{prior}.csv").row(0, named=True))) == []


@pytest.mark.study
def test_a_posterior_that_takes_noise_to_be_smaller_is_noticed():
    """A planted bug: the noise of sums is taken to be a fifth of what it is."""
    found, _, _ = ranks("fbs", SIMULATIONS, 6, believed=0.2)
    assert p_values(found).min() < 1e-6
