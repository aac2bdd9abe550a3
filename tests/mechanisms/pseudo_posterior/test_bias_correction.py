"""Unweighting: what weights do to a fit is found from draws and public constants alone, and taken off again."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from svysynth.core.errors import SurveyError
from svysynth.core.streams import Streams
from svysynth.mechanisms.pseudo_posterior import bias_correction as unweighting
from svysynth.mechanisms.pseudo_posterior.bias_correction import (
    MOST_ATTEMPTS,
    MOST_RECORDS,
    PublicRecords,
    Shift,
    public_part,
    simulate_sample,
    undo_weights,
)
from svysynth.mechanisms.pseudo_posterior.calibration import calibrate_records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.records import Records

PUBLIC = PublicRecords(np.array([[1.0, 0], [1, 1]]), np.array([2400, 1600]), ("1", "b"))
CELL = np.repeat([0, 1], PUBLIC.sizes)
FBS_TRUTH = {
    "beta_y": jnp.array([11.0, 0.2]),
    "beta_w": jnp.array([0.3, -0.1]),
    "covariance": jnp.array([[0.16, -0.16], [-0.16, 0.32]]),
}
FBP_TRUTH = {
    "beta": jnp.array([11.3, 0.2]),
    "kappa_y": jnp.array(0.95),
    "kappa_x": jnp.array([-10.9, 0.1]),
    "sigma_y": jnp.array(0.4),
    "sigma_pi": jnp.array(0.4),
}
MODELS = [(FBS(), FBS_TRUTH), (FBP(), FBP_TRUTH)]
EPSILON, DATASETS = 10.8, 3
SAMPLES = 6
DRAWS = 400
FALSE_ALARM = 1e-3


@pytest.fixture(autouse=True)
def few_simulations(monkeypatch):
    """Enough for what is tested; the noise of so few is in the errors that the t tests see."""
    monkeypatch.setattr(unweighting, "SIMULATIONS", 4)
    monkeypatch.setattr(unweighting, "FEWEST", 4)


def undo(model, draws, streams, public=PUBLIC, epsilon=EPSILON):
    """What the tests have in common: m, and few draws."""
    return undo_weights(model, draws, public, epsilon, DATASETS, streams, number_of_draws=DRAWS)


# --- the truth comes back ---


def figures(parameters):
    """What is compared with the truth, spreads first; not the level of the weights, which are scaled to mean 1."""
    if "covariance" in parameters:
        a, b, c = (parameters["covariance"][..., i, j] for i, j in ((0, 0), (1, 1), (0, 1)))
        spreads = [0.5 * jnp.log(a), 0.5 * jnp.log(b), jnp.arctanh(c / jnp.sqrt(a * b))]
        return np.stack([*spreads, *parameters["beta_y"].T, parameters["beta_w"][..., 1]])
    logs = [jnp.log(parameters["sigma_y"]), jnp.log(parameters["sigma_pi"]), parameters["kappa_y"]]
    return np.stack([*logs, *parameters["beta"].T, parameters["kappa_x"][..., 1]])


def middle_of(draws):
    """One set of parameters: the mean over the draws."""
    return {name: jnp.mean(value, axis=0) for name, value in draws.items()}


@pytest.mark.study
@pytest.mark.parametrize(("model", "truth"), MODELS, ids=["fbs", "fbp"])
def test_the_truth_comes_back(model, truth):
    """Over samples of 4000 the mean error is none by t tests; as drawn, the spreads are off by far more."""
    drawn, undone = [], []
    for number in range(SAMPLES):
        streams = Streams.seeded(number)
        records = simulate_sample(model.weighting_bias, truth, PUBLIC, streams)
        middle = middle_of(calibrate_records(model, records, EPSILON, DATASETS, streams, draws=DRAWS).fit.draws)
        found = undo(model, [middle], streams)
        assert found.known
        drawn.append(figures(middle))
        undone.append(figures(found.draws[0]))
    before, after = (stats.ttest_1samp(each, figures(truth)) for each in (drawn, undone))
    assert np.all(after.pvalue > FALSE_ALARM / len(after.pvalue)), after
    assert np.all(before.pvalue[:2] < FALSE_ALARM / len(after.pvalue)), before
    # a tenth, give or take a hundredth of Monte Carlo error; half of that shows that there was something to undo
    assert np.all(np.mean(drawn, axis=0)[:2] < figures(truth)[:2] - 0.05)


@pytest.mark.parametrize(("model", "truth"), MODELS, ids=["fbs", "fbp"])
def test_where_nothing_is_weighted_nothing_is_moved(model, truth):
    draws = [truth, middle_of({name: jnp.stack([value, value * 1.01]) for name, value in truth.items()})]
    found = undo(model, draws, Streams.seeded(1), epsilon=1e5)
    assert found.known
    for before, after in zip(draws, found.draws, strict=True):
        assert all(np.array_equal(before[name], after[name]) for name in before)


# --- public constants alone ---


def test_outcomes_and_weights_have_no_way_in():
    """Records that differ in every outcome and weight have the same public part, and give the same draws bit by bit."""
    generator = np.random.default_rng(5)
    draw = FBP_TRUTH | {"sigma_y": jnp.array(0.35)}
    results = []
    for scale in (1.0, 1000.0):
        t, v = scale * generator.standard_normal((2, len(CELL)))
        public = public_part(Records(t, v, CELL, PUBLIC.x, PUBLIC.terms))
        assert not any(np.shares_memory(t, part) or np.shares_memory(v, part) for part in public[:2])
        results.append(undo(FBP(), [draw], Streams.seeded(2), public).draws[0])
    assert set(PublicRecords._fields) == {"x", "sizes", "terms", "cells", "clusters"}
    for name in draw:
        assert np.array_equal(results[0][name], results[1][name])
    assert float(results[0]["sigma_y"]) > 0.37


def test_draws_are_moved_together_whatever_their_order():
    draws = [FBP_TRUTH | {"sigma_y": jnp.array(value)} for value in (0.30, 0.32, 0.37)]
    forth = undo(FBP(), draws, Streams.seeded(3)).draws
    back = undo(FBP(), draws[::-1], Streams.seeded(3)).draws[::-1]
    factors = [float(after["sigma_y"] / before["sigma_y"]) for before, after in zip(draws, forth, strict=True)]
    assert factors == pytest.approx([factors[0]] * 3, rel=1e-12)
    for one, other in zip(forth, back, strict=True):
        assert float(one["sigma_y"]) == pytest.approx(float(other["sigma_y"]), rel=1e-9)


# --- simulated surveys ---


def test_a_large_survey_is_simulated_in_proportion():
    public = PUBLIC._replace(sizes=np.array([20_000_000, 3]))
    records = simulate_sample(FBP().weighting_bias, FBP_TRUTH, public, Streams.seeded(1))
    sizes = np.bincount(records.cell)
    assert MOST_RECORDS <= len(records) <= MOST_RECORDS + len(sizes)
    assert sizes[1] == 1
    assert np.exp(records.v).mean() == pytest.approx(1, rel=1e-12)


# --- where it cannot be done ---


def refuse(*_, **__):
    raise SurveyError("spec", "privacy.epsilon", "no weights were found", "use another")


def test_without_a_calibration_the_draws_stay_as_they_are(monkeypatch):
    calls = []
    monkeypatch.setattr(unweighting._Mechanism, "shift", lambda *_: calls.append(1) or refuse())
    found = undo(FBP(), [FBP_TRUTH], Streams.seeded(1))
    assert not found.known
    assert found.draws[0] is FBP_TRUTH
    assert len(calls) == MOST_ATTEMPTS


def test_a_refused_survey_is_replaced_by_another(monkeypatch):
    samples = []

    def sometimes(mechanism, records, streams):
        samples.append(records.t[0])
        return refuse() if len(samples) in (1, 4) else Shift(np.zeros(7))

    monkeypatch.setattr(unweighting._Mechanism, "shift", sometimes)
    assert undo(FBP(), [FBP_TRUTH], Streams.seeded(1)).known
    assert len(samples) == len(set(samples)) == unweighting.SIMULATIONS + 2


def test_surveys_that_agree_are_enough(monkeypatch):
    """As many as FEWEST where their shifts are the same; all of them where they are not quite."""
    monkeypatch.setattr(unweighting, "SIMULATIONS", 9)
    monkeypatch.setattr(unweighting, "FEWEST", 3)
    for spread, count in ((0.0, 3), (0.1, 9)):
        shifts = iter(spread * np.tile([1.0, -1.0, 0.5], 6))
        calls = []
        monkeypatch.setattr(
            unweighting._Mechanism, "shift", lambda *_, s=shifts, c=calls: c.append(1) or Shift(np.full(7, next(s)))
        )
        assert undo(FBP(), [FBP_TRUTH], Streams.seeded(1)).known
        assert len(calls) == count


def test_the_spread_of_a_centre_takes_all_surveys(monkeypatch):
    """Also if their biases agree, or are not known; in a part of a large survey centres vary by too much."""
    monkeypatch.setattr(unweighting, "SIMULATIONS", 9)
    monkeypatch.setattr(unweighting, "MOST_RECORDS", 1000)
    for apart, known in ((0.0, True), (1.0, False)):
        number = iter(range(9))
        monkeypatch.setattr(
            unweighting._Mechanism,
            "shift",
            lambda *_, n=number, a=apart: Shift(np.full(7, a * next(n)), np.array([[0.1, 0.2], [0.3, 0.4]])),
        )
        found = undo(FBP(), [FBP_TRUTH], Streams.seeded(1))
        assert found.known == known
        np.testing.assert_allclose(found.centres, [[[0.05, 0.1], [0.15, 0.2]]] * 8, rtol=1e-12)


def test_where_simulated_surveys_disagree_the_draws_stay_as_they_are(monkeypatch):
    shifts = iter(np.tile([1.0, -1.0, 0.5], 6))
    monkeypatch.setattr(unweighting._Mechanism, "shift", lambda *_: Shift(np.array([next(shifts)])))
    found = undo(FBS(), [FBS_TRUTH], Streams.seeded(1))
    assert not found.known
    assert found.draws[0] is FBS_TRUTH


@dataclass(frozen=True)
class Other:
    """A model of the user's own."""

    name = "other"
    weighting_bias = None


def test_a_model_of_another_kind_is_left_alone():
    found = undo(Other(), [FBS_TRUTH], Streams.seeded(1))
    assert not found.known
    assert found.draws[0] is FBS_TRUTH
