"""Bounds, weights and calibration: always on the private side, within 2%, in few refits."""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from svysynth import SurveyError, read_survey
from svysynth.core.engine import BLOCK
from svysynth.core.streams import Streams
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.pseudo_posterior.calibration import (
    MOST_REFITS,
    STRETCH,
    TOLERANCE,
    Trial,
    Unweighted,
    _next_constant,
    calibrate_records,
    calibration_steps,
    carry_out,
    fit_unweighted,
    trusted,
)
from svysynth.mechanisms.pseudo_posterior.record_bounds import record_bounds, summarize_bounds
from svysynth.mechanisms.pseudo_posterior.record_weights import inverse_weights, linear_weights, reweighted, weigh
from svysynth.models.diagnostics import Verdict
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.records import make_records
from svysynth.models.sampler import Fit, fit

MODELS = [FBS(), FBP()]


@pytest.fixture(scope="module")
def records():
    streams = Streams.seeded(1)
    return make_records(draw_sample(make_population(streams), streams))


@pytest.fixture(scope="module")
def unweighted(records):
    """The fit of each model with α = 1 and the random numbers of seed 2, from which every calibration here starts."""
    return {model: fit_unweighted(model, records, Streams.seeded(2)) for model in MODELS}


@pytest.fixture(scope="module")
def fits(records):
    """A fit of each model with few draws and the random numbers of seed 1."""
    return {model: fit(model, records, np.ones(len(records)), Streams.seeded(1), draws=400) for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_bounds_are_the_largest_likelihoods_over_the_draws(model, records, fits):
    """Against a loop over draws; the last block of records is not full."""
    found = fits[model]
    few = Fit(model, records, found.alpha, {name: draw[:20] for name, draw in found.draws.items()}, found.verdict)
    assert len(records) % BLOCK != 0
    x = records.x[records.cell]
    largest = np.zeros(len(records))
    for draw in range(20):
        parameters = {name: value[draw] for name, value in few.draws.items()}
        largest = np.maximum(largest, np.abs(model.log_likelihood(parameters, records.t, records.v, x)))
    np.testing.assert_allclose(record_bounds(few), largest, rtol=1e-12)


def test_a_likelihood_that_is_not_finite_is_an_infinite_bound_and_gets_no_weight(fits):
    found = fits[FBS()]
    broken = {name: value.at[7].set(jnp.nan) if name == "beta_y" else value for name, value in found.draws.items()}
    bounds = record_bounds(Fit(found.model, found.records, found.alpha, broken, found.verdict))
    assert np.isinf(bounds).all()
    assert (inverse_weights(bounds, 1.8) == 0).all()
    mixed = np.array([2.0, np.inf, 9.0])
    assert inverse_weights(mixed, 3.0).tolist() == [1, 0, pytest.approx(1 / 3)]
    assert linear_weights(mixed, 1.0, limits=(2.0, 9.0)).tolist() == [1, 0, 0]
    assert summarize_bounds(weigh(inverse_weights(mixed, 3.0), mixed)).largest == pytest.approx(3.0)


def test_reweighting_gives_weight_back_below_the_largest_bound():
    bounds, alpha = np.array([10.0, 10.0, 1.0, 5.0]), np.array([0.2, 0.1, 1.0, 0.0])
    assert reweighted(alpha, bounds, 2.0, 1.0).tolist() == pytest.approx([0.2, 0.2, 1.0, 0.0])


@pytest.mark.parametrize("scheme", ["inverse", "linear", "reweighted"])
@pytest.mark.parametrize("model", MODELS)
def test_calibration_ends_just_below_the_target(model, records, unweighted, scheme):
    found = calibrate_records(model, records, 10.8, 3, Streams.seeded(2), scheme, start_from=unweighted[model])
    assert found.target == pytest.approx(1.8)
    assert found.largest_bound <= 1.8
    assert found.largest_bound >= (1 - TOLERANCE) * 1.8
    assert len(found.trials) <= MOST_REFITS
    assert found.fit.verdict.passed
    assert found.largest_bound in [trial.largest_bound for trial in found.trials]
    assert ((found.fit.alpha >= 0) & (found.fit.alpha <= 1)).all()
    np.testing.assert_allclose(found.weighted_bounds, found.fit.alpha * record_bounds(found.fit))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_calibration_with_a_study_s_constants(model, unweighted, shift):
    inverse = partial(inverse_weights, ceiling=0.8, shift=shift)
    found = carry_out(calibration_steps(unweighted[model], 10.8, 3, Streams.seeded(2), inverse=inverse))
    assert (1 - TOLERANCE) * 1.8 <= found.largest_bound <= 1.8
    alpha, bounds = np.asarray(found.fit.alpha), np.asarray(found.bounds)
    c = next(trial.constant for trial in found.trials if trial.largest_bound == found.largest_bound)
    safe = bounds <= c / (0.8 - shift)
    assert 0 < safe.sum() < len(safe)
    assert (alpha[safe] == 0.8).all()
    np.testing.assert_allclose(alpha[~safe], c / bounds[~safe] + shift, rtol=1e-12)


def test_a_generous_budget_needs_no_weights(records):
    found = calibrate_records(FBP(), records, 1000.0, 3, Streams.seeded(2))
    assert (found.fit.alpha == 1).all()
    assert found.trials == (Trial(float("inf"), found.largest_bound),)


def test_an_impossible_budget_is_one_clear_error(records):
    with pytest.raises(SurveyError, match="epsilon"):
        calibrate_records(FBP(), records, 0.01, 3, Streams.seeded(2), draws=400)


def test_a_fit_that_fails_its_diagnostics_is_never_released(fits):
    found = fits[FBP()]
    bad = Fit(found.model, found.records, found.alpha, found.draws, Verdict(1.2, 50.0, 500.0, 3, 0.1))
    with pytest.raises(
        SurveyError, match=r"R-hat 1\.200.*too few effective draws.*3 transitions.*E-BFMI 0\.10.*Remedy"
    ):
        trusted(bad)


@pytest.mark.parametrize("scheme", ["inverse", "linear", "reweighted"])
def test_infinite_bounds_of_weighted_records_are_never_within_the_target(records, scheme):
    """Every refit passes its diagnostics and has records whose log-likelihood is not finite in some draw."""
    good = Fit(FBS(), records, np.ones(len(records)), {}, Verdict(1.0, 500.0, 500.0, 0, 1.0))
    bounds = np.where(np.arange(len(records)) % 2, 5.0, np.inf)
    steps = calibration_steps(Unweighted(good, np.full(len(records), 5.0)), 10.8, 3, Streams.seeded(1), scheme)

    def answer_all(order):
        while True:
            order = steps.send((replace(good, alpha=order.alpha), bounds))

    with pytest.raises(SurveyError, match=r"privacy\.epsilon: "):
        answer_all(next(steps))


@pytest.mark.parametrize("largest", [0.0, np.inf])
def test_the_search_goes_on_from_a_bound_that_says_nothing(largest):
    with np.errstate(all="raise"):
        for trials in (
            [Trial(1.0, largest)],
            [Trial(1.0, largest), Trial(2.0, 1.5)],
            [Trial(1.0, 3.0), Trial(0.5, largest)],
        ):
            found = _next_constant(trials, 1.0)
            assert 0 < found < np.inf
        found = _next_constant([Trial(1.0, largest)], 1.0)
        assert found == pytest.approx(3.0 if largest == 0 else 1 / 3)


@pytest.mark.parametrize("scheme", ["inverse", "linear", "reweighted"])
def test_a_budget_that_cannot_be_met_says_so_and_names_no_scheme_in_use(records, scheme, monkeypatch):
    """The words are the same after few refits, of which the last has other random numbers than the first."""
    monkeypatch.setattr("svysynth.mechanisms.pseudo_posterior.calibration.MOST_REFITS", STRETCH + 1)
    with pytest.raises(SurveyError) as caught:
        calibrate_records(FBS(), records, 0.01, 3, Streams.seeded(1), scheme, draws=400)
    assert ("the scheme 'inverse'" in caught.value.remedy) <= (scheme != "inverse")


def identity_records(level, spread):
    """As many terms as the records above have: the same compiled programs serve both."""
    generator = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "y": generator.normal(level, spread, 600),
            "w": generator.lognormal(3, 0.5, 600),
            "a": generator.choice(list("pqrstuvwx"), 600),
        }
    )
    return make_records(read_survey(frame, outcome="y", weight="w", public=["a"], transform="identity"))


@pytest.mark.parametrize(
    ("level", "spread", "cause"), [(1e3, 200, "far larger than the model's priors"), (1e-4, 1e-5, "vary far less")]
)
def test_chains_that_fail_for_the_outcome_s_scale_say_so(level, spread, cause):
    with pytest.raises(SurveyError, match=cause) as caught:
        calibrate_records(FBP(), identity_records(level, spread), 10.8, 3, Streams.seeded(1), draws=400)
    assert "survey.transform = 'log'" in caught.value.remedy
    assert "R-hat" in caught.value.problem


def test_chains_that_fail_for_other_reasons_do_not_blame_the_scale(records):
    bad = Fit(FBS(), records, np.ones(len(records)), {}, Verdict(1.2, 500.0, 500.0, 0, 1.0))
    with pytest.raises(SurveyError, match="the posterior draws: the chains disagree"):
        trusted(bad)


def test_the_same_stream_gives_the_same_draws(records, fits):
    alpha = np.ones(len(records))
    same, other = (fit(FBP(), records, alpha, Streams.seeded(seed), draws=400) for seed in (1, 2))
    one = fits[FBP()]
    assert np.array_equal(one.draws["beta"], same.draws["beta"])
    assert not np.array_equal(one.draws["beta"], other.draws["beta"])


def test_one_program_serves_every_weighting_and_number_of_records(records):
    """Nothing is compiled again for other weights, other data or another n."""
    from svysynth.models import sampler

    fit(FBP(), records, np.ones(len(records)), Streams.seeded(1), draws=400)
    before = sampler._advance._cache_size()
    streams = Streams.seeded(3)
    larger = make_records(draw_sample(make_population(streams), streams, n=1500))
    fit(FBP(), larger, np.full(len(larger), 0.7), Streams.seeded(1), draws=400)
    assert sampler._advance._cache_size() == before
