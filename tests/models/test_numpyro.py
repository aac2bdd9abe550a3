"""Models written in NumPyro: the contract, agreement with FBS, and the worked example of docs/models.md."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import svysynth
from places import ROOT
from svysynth.mechanisms.pseudo_posterior.record_bounds import record_bounds
from svysynth.models.records import Records


def normal(x, records=None, scale=100.0):
    """FBS's likelihood with simpler priors."""
    beta_y = numpyro.sample("beta_y", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))
    beta_w = numpyro.sample("beta_w", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(scale).expand([2]).to_event(1))
    correlation = numpyro.sample("correlation", dist.Uniform(-1, 1))
    center = jnp.stack([x @ beta_y, x @ beta_w], axis=1)
    numpyro.sample("record", dist.MultivariateNormal(center, covariance(spread, correlation)), obs=records)


def covariance(spread, correlation):
    off = correlation * spread[0] * spread[1]
    return jnp.array([[spread[0] ** 2, off], [off, spread[1] ** 2]])


MODEL = svysynth.NumPyroModel(normal)


@pytest.fixture(scope="module")
def records():
    generator = np.random.default_rng(1)
    x = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0]])
    cell = generator.integers(0, 3, 60)
    t = x[cell] @ [11.0, 0.4] + 0.5 * generator.standard_normal(60)
    v = x[cell] @ [-0.1, 0.2] - 0.3 * (t - 11) + 0.2 * generator.standard_normal(60)
    return Records(t, v, cell, x, ("Intercept", "slope"))


@pytest.fixture(scope="module")
def parameters():
    return {
        "beta_y": jnp.array([11.0, 0.3]),
        "beta_w": jnp.array([-0.1, 0.1]),
        "spread": jnp.array([0.5, 0.3]),
        "correlation": jnp.asarray(-0.6),
    }


# z in the order of the sites' names: beta_w, beta_y, correlation, log spread
POINTS = [np.array([-0.1, 0.2, 11.0, 0.4, -0.7, -0.6, -1.2]), np.array([0.3, 0.1, 10.8, 0.2, 0.4, -0.9, -0.8])]


def test_the_likelihood_of_a_normal_model_is_that_of_fbs(records, parameters):
    x = records.x[records.cell]
    ours = jax.jit(MODEL.log_likelihood)(parameters, records.t, records.v, x)
    given = parameters | {"covariance": covariance(parameters["spread"], parameters["correlation"])}
    theirs = svysynth.FBS().log_likelihood(given, records.t, records.v, x)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


def test_the_density_is_prior_jacobian_and_weighted_likelihood(records):
    alpha = np.random.default_rng(2).uniform(0.1, 1, len(records))
    statistics = MODEL.statistics(records, alpha)

    def by_hand(z):
        values = MODEL.complete(None, z, statistics)
        np.testing.assert_allclose(values["spread"], np.exp(z[5:]))
        prior = stats.norm.logpdf(z[:4], 0, 100).sum() + stats.halfnorm.logpdf(np.exp(z[5:]), 0, 100).sum()
        share = (float(values["correlation"]) + 1) / 2
        np.testing.assert_allclose(share, 1 / (1 + np.exp(-z[4])))
        likelihood = alpha @ MODEL.log_likelihood(values, records.t, records.v, records.x[records.cell])
        return prior + z[5:].sum() + np.log(share * (1 - share)) + likelihood

    density = jax.jit(MODEL.log_density)
    found, expected = (np.diff([float(f(z)) for z in POINTS]) for f in (lambda z: density(z, statistics), by_hand))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("outcome", [9.0, 1e200])
def test_a_record_without_weight_is_as_good_as_deleted(records, outcome):
    t = np.where(np.arange(60) == 7, outcome, records.t)
    kept = np.arange(60) != 7
    weightless = MODEL.statistics(Records(t, records.v, records.cell, records.x, records.terms), kept.astype(float))
    deleted = MODEL.statistics(
        Records(t[kept], records.v[kept], records.cell[kept], records.x, records.terms), np.ones(59)
    )
    density = jax.jit(jax.value_and_grad(MODEL.log_density))
    found = [[density(z, statistics) for z in POINTS] for statistics in (weightless, deleted)]
    np.testing.assert_allclose(*(np.diff([height for height, _ in runs]) for runs in found), rtol=1e-10)
    np.testing.assert_allclose(*(np.stack([slope for _, slope in runs]) for runs in found), rtol=1e-8)


def test_no_weights_at_all_are_refused(records):
    with pytest.raises(svysynth.SurveyError, match="larger epsilon"):
        MODEL.statistics(records, np.zeros(60))


def test_whitening_finds_least_squares_on_any_scale(records):
    """An outcome in units of 100,000, far from the priors' center in units of the spread."""

    def wide(x, records=None):
        normal(x, records, scale=1e6)

    size = 1e5
    large = Records(records.t * size, records.v * size, records.cell, records.x, records.terms)
    model = svysynth.NumPyroModel(wide)
    center, factor = jax.jit(model.whitening)(model.statistics(large, np.ones(60)))[:2]
    x = records.x[records.cell]
    fitted = [np.linalg.lstsq(x, column)[0] for column in (large.v, large.t)]
    np.testing.assert_allclose(center[:4], np.concatenate(fitted), rtol=1e-3)
    for k in range(2):
        variance = np.exp(2 * center[6 - k]) * np.linalg.inv(x.T @ x)
        found = (factor @ factor.T)[2 * k : 2 * k + 2, 2 * k : 2 * k + 2]
        np.testing.assert_allclose(found, variance, rtol=0.02, atol=0.02 * np.max(variance))


def test_synthesis_draws_from_the_observed_site(parameters):
    x = np.tile([[1.0, 1.0]], (20_000, 1))
    key = jax.random.key(3)
    t, v, smoothed = jax.jit(MODEL.synthesize)(key, parameters, x)
    np.testing.assert_array_equal(smoothed, v)
    np.testing.assert_allclose([np.mean(t), np.mean(v)], [11.3, 0.0], atol=5 * 0.5 / np.sqrt(20_000))
    expected = covariance(parameters["spread"], parameters["correlation"])
    np.testing.assert_allclose(np.cov(t, v), expected, atol=5 * 0.25 * np.sqrt(2 / 20_000))
    smoothing = svysynth.NumPyroModel(normal, smooth=lambda parameters, x, t: x @ parameters["beta_w"] + t)
    t, _, smoothed = smoothing.synthesize(key, parameters, x)
    np.testing.assert_allclose(smoothed, t)


def test_a_model_is_a_value(records):
    assert hash(svysynth.NumPyroModel(normal)) == hash(MODEL)
    assert svysynth.NumPyroModel(normal) == MODEL != svysynth.NumPyroModel(normal, step_size=0.2)


def test_without_numpyro_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(svysynth.SurveyError, match=r"svysynth\[numpyro\]"):
        svysynth.NumPyroModel(normal)


def pair(center):
    return dist.StudentT(4, jnp.asarray(center), 1).to_event(1)


def mean(x, shape=(2,)):
    return numpyro.sample("mean", dist.Normal(0, 1).expand(shape).to_event(len(shape))) + jnp.zeros((len(x), 2))


def unobserved(x, records=None):
    numpyro.sample("record", pair(mean(x)))


def observed_twice(x, records=None):
    for name in ("first", "second"):
        numpyro.sample(name, pair(mean(x) if name == "first" else jnp.zeros((len(x), 2))), obs=records)


def with_a_factor(x, records=None):
    numpyro.factor("penalty", jnp.asarray(-1.0))
    numpyro.sample("record", pair(mean(x)), obs=records)


def two_per_record(x, records=None):
    numpyro.sample("record", dist.Normal(mean(x), 1), obs=records)


def one_for_all(x, records=None):
    numpyro.sample("record", dist.Normal(mean(x), 1).to_event(2), obs=records)


def discrete(x, records=None):
    group = numpyro.sample("group", dist.Bernoulli(0.5))
    numpyro.sample("record", pair(mean(x) + group), obs=records)


def without_parameters(x, records=None):
    numpyro.sample("record", pair(jnp.zeros((len(x), 2))), obs=records)


def latent_per_record(x, records=None):
    numpyro.sample("record", pair(mean(x, (len(x), 2))), obs=records)


def of_fixed_length(x, records=None):
    with numpyro.plate("records", 300):
        numpyro.sample("record", pair(mean(x)), obs=records)


def never_drawn(x, records=None):
    center = mean(x)
    if records is not None:
        numpyro.sample("record", pair(center), obs=records)


def centred_on_the_data(x, records=None):
    center = mean(x) + (0 if records is None else records.mean(axis=0))
    numpyro.sample("record", pair(center), obs=records)


def prior_of_the_data(x, records=None):
    middle = 0 if records is None else records[:, 0].mean()
    level = numpyro.sample("level", dist.Normal(middle, 1))
    numpyro.sample("record", pair(mean(x) + level), obs=records)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (unobserved, "no observed site"),
        (observed_twice, "2 observed sites"),
        (with_a_factor, "2 observed sites"),
        (two_per_record, "one log probability per record"),
        (one_for_all, "one log probability per record"),
        (discrete, "discrete latent site 'group'"),
        (without_parameters, "no latent sites"),
        (latent_per_record, "single records"),
        (of_fixed_length, "any number of rows"),
        (never_drawn, "when records is None"),
        (centred_on_the_data, "another's log probability"),
        (prior_of_the_data, "priors that depend on the records"),
    ],
)
def test_a_model_that_breaks_the_contract_is_refused(records, function, complaint):
    with pytest.raises(svysynth.SurveyError, match=complaint):
        svysynth.NumPyroModel(function).statistics(records, np.ones(60))


@pytest.fixture(scope="module")
def example():
    """What the example of docs/models.md leaves behind."""
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    left: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, left)
    return left


@pytest.mark.study
def test_the_example_s_calibration_reaches_the_target(example):
    calibration = example["calibrated"].calibration
    assert calibration.target == 2.5
    assert 0.98 * 2.5 <= calibration.largest_bound <= 2.5
    fit = calibration.fit
    assert fit.verdict.passed
    x = fit.records.x[fit.records.cell]
    likelihood = jax.jit(jax.vmap(fit.model.log_likelihood, in_axes=(0, None, None, None)))
    terms = likelihood(fit.draws, fit.records.t, fit.records.v, x)
    np.testing.assert_allclose(record_bounds(fit), np.abs(terms).max(axis=0), rtol=1e-12)
    np.testing.assert_allclose(calibration.largest_bound, (fit.alpha * np.abs(terms)).max(), rtol=1e-12)


@pytest.mark.study
def test_the_example_s_table_is_close_to_the_direct_one(example):
    table, direct = example["table"], svysynth.tabulate(example["survey"], by=["gender"])
    error = np.hypot(table["se"].to_numpy(), direct["se"].to_numpy())
    assert (np.abs((table["estimate"] - direct["estimate"]).to_numpy()) < 4 * error).all()
    assert table["estimate"][0] == pytest.approx(100_000)


@pytest.mark.study
def test_the_example_gives_far_records_smaller_bounds_than_fbs(example):
    calibration = example["calibrated"].calibration
    draw = {name: value[0] for name, value in calibration.fit.draws.items()}
    root = draw["spread"][:, None] * draw["correlation"]
    given = {"beta_y": draw["beta_y"], "beta_w": draw["beta_w"], "covariance": root @ root.T}
    x = calibration.fit.records.x[:1]
    far = (x @ draw["beta_y"] + 6 * draw["spread"][0], x @ draw["beta_w"], x)
    robust, gaussian = (m.log_likelihood(p, *far)[0] for m, p in ((example["model"], draw), (svysynth.FBS(), given)))
    assert abs(robust) < abs(gaussian)
