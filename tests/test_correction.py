"""The correction: what clipping does to a model is predicted, is what fits to many records show, and can be undone."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from svysynth.censor import fit_censored
from svysynth.correction import _expected_score, correct, correct_by_simulation, correct_fbp, correct_fbs
from svysynth.interval import (
    Interval,
    _Clipped,
    efficiency,
    mean_between,
    peak_of,
    predicted_shrinkage,
    shrinkage,
    shrinkage_by_guess,
)
from svysynth.models.base import Records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.streams import Streams

X = np.array([[1.0, 0], [1, 1]])
N = 20_000
CELL = np.repeat([0, 1], [12_000, 8_000])
SIZES = np.array([12_000.0, 8_000.0])
COVARIANCE = np.array([[0.16, -0.16], [-0.16, 0.32]])
"""Of the simulation: log salaries spread by 0.4, and log weights by 0.4 given them."""
PEAK = peak_of(0.4, np.sqrt(0.32), -np.sqrt(0.5))
NARROW = Interval(-3.1, 0.5)
LOWER = Interval.around(5.4, 3, PEAK)
FALSE_ALARM = 1e-3


# --- the interval's effect on a normal model ---


def test_the_predicted_shrinkage_of_the_simulation():
    assert pytest.approx(-0.005, abs=1e-3) == PEAK
    assert predicted_shrinkage(PEAK, NARROW) == pytest.approx(0.800, abs=0.002)


@given(st.floats(-4, 4), st.floats(0.3, 30), st.floats(-2.5, 2.5))
@settings(max_examples=200)
def test_the_prediction_maximises_the_expected_clipped_likelihood(peak, width, above):
    """Against a quadrature written apart, on both sides of the maximum; and the draw's own equation gives s back."""
    interval = Interval(peak + above - width, peak + above)
    s = predicted_shrinkage(peak, interval)
    if not 0.06 < s < 18:
        return
    q = -np.log1p(-(np.arange(200_000) + 0.5) / 200_000)

    def expected(rate):
        return np.mean(np.clip(peak - np.log(rate) - q / rate, interval.low, interval.high))

    assert expected(s) >= max(expected(s * 1.05), expected(s / 1.05)) - 1e-6
    assert shrinkage(peak - np.log(s), interval) == pytest.approx(s, rel=1e-6)


def test_the_mean_between_two_numbers_is_that_of_the_exponential():
    for rate, low, high in ((0.5, 0.0, 3.0), (2.0, 1.0, 1.5), (1.0, 0.0, 2000.0), (1e-5, 0.2, 2.0), (20.0, 0.5, 9.0)):
        law = stats.truncexpon(rate * (high - low), loc=low, scale=1 / rate)
        assert mean_between(rate, low, high) == pytest.approx(law.mean(), rel=1e-6)


def test_without_clipping_nothing_is_corrected():
    wide = Interval(-200.0, 20.0)
    assert predicted_shrinkage(PEAK, wide) == pytest.approx(1, abs=1e-6)
    assert efficiency(PEAK, wide) == pytest.approx(1, abs=1e-6)
    draw = {"covariance": jnp.asarray(COVARIANCE), "beta_y": jnp.ones(2)}
    np.testing.assert_allclose(correct_fbs(draw, wide)["covariance"], COVARIANCE, rtol=1e-9)
    draw = {name: jnp.asarray(value) for name, value in FBP_TRUTH.items()}
    for name, value in correct_fbp(draw, wide, X, SIZES).items():
        np.testing.assert_allclose(value, FBP_TRUTH[name], atol=1e-7)


def test_the_best_place_is_better_than_others_and_costs_the_same():
    for epsilon in (1.8, 5.4, 10.8):
        best = Interval.around(epsilon, 3, PEAK)
        assert 3 * best.width <= epsilon
        for move in (-0.4, 0.4):
            assert efficiency(PEAK, best) > efficiency(PEAK, Interval(best.low + move, best.high + move))
    assert efficiency(PEAK, LOWER) == pytest.approx(0.70, abs=0.005)


def test_a_guess_counts_where_a_draw_says_little():
    """With a wide interval and many records the draw decides, with a narrow one and few the guess does."""
    for guess in (PEAK - 0.5, PEAK, PEAK + 0.5):
        wide = Interval.around(10.8, 3, PEAK)
        own = PEAK - np.log(predicted_shrinkage(PEAK, wide))
        assert shrinkage_by_guess(own, wide, guess, 10**6) == pytest.approx(shrinkage(own, wide), rel=1e-3)
        narrow = Interval.around(0.6, 3, PEAK)
        own = PEAK - np.log(predicted_shrinkage(PEAK, narrow))
        for noise in (-0.1, 0.0, 0.1):
            s = shrinkage_by_guess(own + noise, narrow, guess, 100)
            assert own + noise + np.log(s) == pytest.approx(guess, abs=0.05)


def test_the_variance_of_a_draw_s_peak_is_that_of_fits():
    """Simulated: q exponential, log s drawn around its clipped maximum with the curvature's spread, 400 times."""
    interval, n, generator = Interval.around(2.7, 3, PEAK), 4000, np.random.default_rng(3)
    clipped = _Clipped.of(PEAK, interval)
    grid = np.log(clipped.rate) + np.linspace(-0.4, 0.4, 161)
    peaks = []
    for _ in range(400):
        q = generator.exponential(size=n)
        heights = np.clip(PEAK - grid[:, np.newaxis] - q / np.exp(grid[:, np.newaxis]), *limits(interval)).sum(axis=1)
        chance = np.exp(heights - heights.max())
        peaks.append(PEAK - generator.choice(grid, p=chance / chance.sum()))
    found, expected = np.var(peaks), clipped.variance_of_peak(PEAK, interval, n)
    # the variance of 400 draws is known to 7%
    assert found == pytest.approx(expected, rel=stats.norm.isf(FALSE_ALARM / 2) * np.sqrt(2 / 400))


def limits(interval):
    return interval.low, interval.high


# --- FBS ---


def fbs_records(seed):
    generator = np.random.default_rng(seed)
    off = generator.multivariate_normal([0, 0], COVARIANCE, N)
    mean = X[CELL] @ np.array([[11.0, 0.2], [0.3, -0.1]])
    return Records(mean[:, 0] + off[:, 0], mean[:, 1] + off[:, 1], CELL, X, ("1", "b"))


@pytest.mark.parametrize("interval", [NARROW, LOWER], ids=["from above the peak", "below the peak"])
def test_the_censored_posterior_of_fbs_is_where_it_is_predicted(interval):
    """Σ* = sΣ, and Σ*/s = Σ, within the error of 20,000 records."""
    found = fit_censored(FBS(), fbs_records(1), interval, 3, Streams.seeded(1))
    drawn = found.history["covariance"]
    own = drawn.reshape(-1, 2, 2)
    s = predicted_shrinkage(PEAK, interval)
    corrected = np.stack([correct_fbs({"covariance": one}, interval)["covariance"] for one in own[::20]])
    for estimate, truth in ((own, s * COVARIANCE), (corrected, COVARIANCE)):
        assert_near(figures_of(estimate), figures_of(truth[np.newaxis])[:, 0], interval)


def figures_of(covariances):
    """log variances and arctanh correlation, figure × draw."""
    first, second = np.log(covariances[:, 0, 0]), np.log(covariances[:, 1, 1])
    return np.stack([first, second, np.arctanh(covariances[:, 0, 1] * np.exp(-(first + second) / 2))])


def assert_near(draws, truth, interval):
    """The middle of the draws, in standard errors of an estimate: these are not the posterior's standard deviations."""
    limit = stats.norm.isf(FALSE_ALARM / 2 / len(truth))
    error = draws.std(axis=1) * error_over_spread(interval)
    distance = (draws.mean(axis=1) - truth) / error
    assert np.all(np.abs(distance) < limit), distance


def error_over_spread(interval):
    """An estimate's standard error over the posterior's deviation, √(K/J) with K the variance of the score and −J its
    slope: 1/√s for means and the shape of Σ, for its size by a derivative; the larger of both.
    """
    s, step = predicted_shrinkage(PEAK, interval), 1e-4

    def moments(log_rate):
        own = PEAK - log_rate
        x = np.linspace(max(0.0, own - interval.high), own - interval.low, 20_001)
        density = np.exp(log_rate - np.exp(log_rate) * x)
        return [np.trapezoid((x - 1) ** power * density, x) for power in (1, 2)]

    slope = (moments(np.log(s) + step)[0] - moments(np.log(s) - step)[0]) / (2 * step)
    return np.sqrt(max(1 / s, moments(np.log(s))[1] / -slope))


# --- FBP ---

FBP_TRUTH = {
    "beta": np.array([11.3, 0.2]),
    "kappa_y": np.array(0.95),
    "kappa_x": np.array([-10.9, 0.1]),
    "sigma_y": np.array(0.4),
    "sigma_pi": np.array(0.4),
}


def fbp_records(seed):
    """Records by the sample's law: outcomes shifted by κ_yσ_y², log π by σ_π²."""
    generator = np.random.default_rng(seed)
    t = X[CELL] @ FBP_TRUTH["beta"] + 0.95 * 0.16 + 0.4 * generator.standard_normal(N)
    p = 0.95 * t + X[CELL] @ FBP_TRUTH["kappa_x"] + 0.16 + 0.4 * generator.standard_normal(N)
    return Records(t, -p, CELL, X, ("1", "b"))


@pytest.mark.parametrize("interval", [Interval(-3.5, 0.1), Interval(-3.2, -1.4)], ids=["wide", "narrow and low"])
def test_corrected_draws_of_fbp_surround_the_truth(interval):
    """Every parameter, within the error of the records; as drawn, the spreads are many errors away."""
    found = fit_censored(FBP(), fbp_records(2), interval, 3, Streams.seeded(3))
    flat = {name: value.reshape(-1, *value.shape[2:])[::40] for name, value in found.history.items()}
    draws = [{name: jnp.asarray(value[k]) for name, value in flat.items()} for k in range(len(flat["beta"]))]
    corrected = [correct(FBP(), draw, interval, found.records, Streams.seeded(1)) for draw in draws]
    limit = stats.norm.isf(FALSE_ALARM / 2 / 7)
    worst = 0.0
    for name, truth in FBP_TRUTH.items():
        own, before = (np.stack([np.asarray(draw[name]) for draw in each]) for each in (corrected, draws))
        error = own.std(axis=0) * max(1.0, error_over_spread(interval))
        assert np.all(np.abs(own.mean(axis=0) - truth) < limit * error), name
        worst = max(worst, np.max(np.abs(before.mean(axis=0) - truth) / before.std(axis=0)))
    assert worst > 10


def test_the_expected_score_is_that_of_the_model():
    """By simulation from the sample's law: the clipped gradient of the model's own log-likelihood."""
    interval = Interval(-3.2, -1.4)
    generator = np.random.default_rng(7)
    draw = np.array([11.35, 0.15, -10.2, 0.12, 0.9, np.log(0.45), np.log(0.43)])
    truth = np.array([11.3, 0.2, -10.9, 0.1, 0.95, np.log(0.4), np.log(0.4)])
    limits = jnp.asarray(interval.low), jnp.asarray(interval.high)
    found = _expected_score(jnp.asarray(truth), jnp.asarray(draw), *limits, jnp.asarray(X), jnp.asarray(SIZES))
    count = 50_000
    cell = np.repeat([0, 1], [30_000, 20_000])
    t = X[cell] @ truth[:2] + 0.95 * 0.16 + 0.4 * generator.standard_normal(count)
    p = 0.95 * t + X[cell] @ truth[2:4] + 0.16 + 0.4 * generator.standard_normal(count)

    def terms(theta):
        names = {"beta": theta[:2], "kappa_x": theta[2:4], "kappa_y": theta[4]}
        names |= {"sigma_y": jnp.exp(theta[5]), "sigma_pi": jnp.exp(theta[6])}
        return FBP().log_likelihood(names, t, -p, X[cell])

    inside = (np.asarray(terms(draw)) > interval.low) & (np.asarray(terms(draw)) < interval.high)
    scores = np.asarray(jax.jacfwd(terms)(jnp.asarray(draw))) * inside[:, np.newaxis]
    error = scores.std(axis=0) / np.sqrt(count)
    limit = stats.norm.isf(FALSE_ALARM / 2 / 7)
    assert np.all(np.abs(scores.mean(axis=0) - np.asarray(found) / N) < limit * error)


def test_a_draw_without_solution_stays_as_it_is():
    draw = {name: jnp.asarray(value) for name, value in FBP_TRUTH.items()}
    hopeless = Interval(40.0, 41.0)
    assert correct_fbp(draw, hopeless, X, SIZES) is draw


# --- by simulation ---


@dataclass(frozen=True)
class Laplacian:
    """t and v are Laplace variables around means: neither of the models that have formulas of their own."""

    name = "laplacian"

    def log_likelihood(self, parameters, t, v, x):
        off = jnp.abs(t - x @ parameters["beta_t"]) + jnp.abs(v - x @ parameters["beta_v"])
        return -off / parameters["spread"] - 2 * jnp.log(2 * parameters["spread"])

    def synthesize(self, key, parameters, x):
        t, v = parameters["spread"] * jax.random.laplace(key, (2, len(x)))
        return t + x @ parameters["beta_t"], v + x @ parameters["beta_v"], v


def test_a_model_of_another_kind_is_corrected_by_simulation():
    """The spread at which the clipped likelihood of very many records is largest becomes the spread they have."""
    model, interval = Laplacian(), Interval(-3.0, -0.5)
    truth = {"beta_t": np.array([1.0, 0.5]), "beta_v": np.array([0.0, -0.5]), "spread": np.array(0.7)}
    # |t| + |v| around their means is a gamma variable of shape 2
    size = 0.7 * stats.gamma(2).ppf((np.arange(100_000) + 0.5) / 100_000)
    spreads = np.linspace(0.2, 2, 3601)
    heights = [np.clip(-size / s - 2 * np.log(2 * s), interval.low, interval.high).mean() for s in spreads]
    star = spreads[int(np.argmax(heights))]
    assert abs(star - 0.7) > 0.1
    draw = {name: jnp.asarray(value) for name, value in truth.items()} | {"spread": jnp.asarray(star)}
    found = correct_by_simulation(model, draw, interval, X, SIZES, Streams.seeded(5))
    # the spread of 200,000 simulated records of which some half count is known to 0.3%
    assert float(found["spread"]) == pytest.approx(0.7, rel=0.01)
    np.testing.assert_allclose(found["beta_t"], truth["beta_t"], atol=0.02)
    np.testing.assert_allclose(found["beta_v"], truth["beta_v"], atol=0.02)
