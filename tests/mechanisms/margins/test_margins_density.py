"""Densities of amounts: smooth, with tails that continue, with the noisy sum, and with errors that are honest."""

import numpy as np
import pytest

from svysynth.mechanisms.margins.density import NoisySum, fit_density

BANDS = 80
PLACE = np.linspace(-3.5, 3.5, BANDS)
TRUE = np.exp(-0.5 * PLACE**2) / np.exp(-0.5 * PLACE**2).sum()
RECORDS = 2000.0
NOISE = 6.0


def seen(seed):
    generator = np.random.default_rng(seed)
    return generator.multinomial(int(RECORDS), TRUE), generator.normal(0, NOISE, BANDS)


@pytest.fixture(scope="module")
def found():
    counts, noise = seen(1)
    return fit_density(counts + noise, NOISE, RECORDS)


def test_a_density_is_smooth_and_far_closer_to_the_truth_than_the_noisy_counts(found):
    counts, noise = seen(1)
    raw = np.abs((counts + noise) / RECORDS - TRUE).sum()
    assert np.abs(found.share - TRUE).sum() < raw / 3
    assert np.abs(np.diff(np.log(found.share), 3)).max() < 0.3
    assert found.share.sum() == pytest.approx(1)


def test_tails_that_are_lost_in_noise_go_on_falling(found):
    log = np.log(found.share)
    assert (np.diff(log[-12:]) < 0).all()
    assert (np.diff(log[:12]) > 0).all()
    assert found.share[[0, -1]].max() < 1 / RECORDS


def test_wide_bands_begin_at_the_quantiles(found):
    bands = found.quantile_bands((0.1, 0.5, 0.9))
    assert np.abs(np.cumsum(TRUE)[bands - 1] - [0.1, 0.5, 0.9]).max() < 0.06


def test_an_exact_sum_is_honoured_and_a_noisy_one_counts_little():
    counts, noise = seen(1)
    value = np.exp(PLACE)
    total = 1.03 * RECORDS * value @ TRUE
    exact = fit_density(counts + noise, NOISE, RECORDS, NoisySum(value, total, 1.0))
    assert RECORDS * value @ exact.share == pytest.approx(total, rel=0.002)
    loose = fit_density(counts + noise, NOISE, RECORDS, NoisySum(value, 10 * total, 1e9))
    assert np.abs(loose.share - fit_density(counts + noise, NOISE, RECORDS).share).max() < 1e-3


def test_draws_spread_as_far_as_the_density_is_from_the_truth():
    generator = np.random.default_rng(3)
    scores = []
    for seed in range(8):
        counts, noise = seen(10 + seed)
        density = fit_density(counts + noise, NOISE, RECORDS)
        drawn = np.array([PLACE @ density.draw(generator) for _ in range(12)])
        scores.append((PLACE @ density.share - PLACE @ TRUE) / drawn.std(ddof=1))
    assert 0.4 < np.sqrt(np.mean(np.square(scores))) < 1.8
