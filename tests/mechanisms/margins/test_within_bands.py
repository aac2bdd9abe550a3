"""Amounts go together within their bands as they do from band to band."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

from svysynth.mechanisms.margins.coding import Coding
from svysynth.mechanisms.margins.graph import Graph
from svysynth.mechanisms.margins.within_bands import Within

RECORDS = 40_000
CODINGS = [Coding("a", "amount", bounds=(1.0, 9.0), wide=wide) for wide in ((10, 20, 40, 60), (15, 30, 45, 70))]


def drawn(levels, margin):
    """The scores of two amounts, from their levels and the expected counts of pairs of bands."""
    graph = Graph.of(margin.shape, [((0, 1), np.zeros(1, int))], np.array([len(levels)]))
    parameters = (jnp.log(jnp.asarray(margin) + 1e-12)[None],)
    within = Within(graph, parameters, CODINGS, levels, np.random.default_rng(1))
    return np.stack([within.scores[0], within.scores[1]]), [within.places(0), within.places(1)]


@pytest.mark.parametrize("correlation", [0.0, 0.5, -0.9])
def test_scores_have_the_correlation_that_bands_are_from(correlation):
    generator = np.random.default_rng(2)
    scores = generator.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], RECORDS)
    shares = [0.1, 0.25, 0.5, 0.75]
    levels = np.stack([np.searchsorted(ndtri(shares), one) for one in scores.T], axis=1)
    margin = np.bincount(levels[:, 0] * 5 + levels[:, 1], minlength=25).reshape(5, 5).astype(float)
    found, uniform = drawn(levels, margin)
    assert np.corrcoef(found)[0, 1] == pytest.approx(correlation, abs=0.03)
    in_the_middles_of_bands = np.corrcoef(levels.T)[0, 1]
    if correlation < -0.8:
        assert np.corrcoef(found)[0, 1] < in_the_middles_of_bands - 0.02
    for place in (0, 1):  # places are within the bands, and spread over them
        assert 0 <= uniform[place].min() <= uniform[place].max() <= 1
        assert abs(np.mean(uniform[place]) - 0.5) < 0.02


def test_an_amount_with_one_band_goes_with_nothing(monkeypatch):
    monkeypatch.setitem(globals(), "CODINGS", [Coding("a", "amount", bounds=(1.0, 9.0)), CODINGS[1]])
    levels = np.stack([np.zeros(1000, int), np.arange(1000) % 5], axis=1)
    found, _ = drawn(levels, np.full((1, 5), 200.0))
    assert np.isfinite(found).all()
    assert abs(np.corrcoef(found)[0, 1]) < 0.1
