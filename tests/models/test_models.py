"""The models: log densities against plain NumPy twins, and the identities that any weighting must obey."""

import sys
from dataclasses import replace
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from svysynth import SurveyError, read_survey
from svysynth.core.streams import Streams
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.records import Records, make_records
from svysynth.models.sufficient_statistics import linear_statistics

X = np.array([[1.0, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]])
MODELS = [FBS(), FBP()]


def some_records(n=200, seed=1):
    generator = np.random.default_rng(seed)
    cell = generator.integers(len(X), size=n)
    t = 11 + X[cell] @ [0.0, 0.3, -0.2] + 0.4 * generator.standard_normal(n)
    return Records(t, -0.8 * (t - 11) + 0.5 * generator.standard_normal(n), cell, X, ("1", "a", "b"))


def some_parameters(model, generator):
    if isinstance(model, FBS):
        half = generator.normal(size=(2, 2)) / 2
        return {
            "beta_y": np.array([11.0, 0, 0]) + generator.normal(size=3),
            "beta_w": generator.normal(size=3),
            "covariance": half @ half.T + 0.1 * np.eye(2),
        }
    return {
        "beta": np.array([11.0, 0, 0]) + generator.normal(size=3),
        "kappa_y": generator.normal(),
        "kappa_x": generator.normal(size=3),
        "sigma_y": generator.uniform(0.2, 1),
        "sigma_pi": generator.uniform(0.2, 1),
    }


def twin_log_likelihood(model, parameters, t, v, x):
    """The density of each record, written with SciPy's distributions."""
    if isinstance(model, FBS):
        apart = np.stack([t - x @ parameters["beta_y"], v - x @ parameters["beta_w"]], axis=-1)
        return stats.multivariate_normal(np.zeros(2), parameters["covariance"]).logpdf(apart)
    mean_t, mean_x = x @ parameters["beta"], x @ parameters["kappa_x"]
    kappa_y, sigma_y, sigma_pi = parameters["kappa_y"], parameters["sigma_y"], parameters["sigma_pi"]
    expected = mean_x + sigma_pi**2 / 2 + kappa_y * mean_t + kappa_y**2 * sigma_y**2 / 2
    rest = stats.norm(mean_t, sigma_y).logpdf(t) - expected
    if model.lognormal:
        return stats.lognorm(sigma_pi, scale=np.exp(kappa_y * t + mean_x)).logpdf(np.exp(-v)) + rest
    return stats.norm(kappa_y * t + mean_x, sigma_pi).logpdf(-v) + rest


@pytest.mark.parametrize("model", [*MODELS, FBP(lognormal=True)])
def test_log_likelihoods_equal_the_twin(model):
    """10,000 random pairs of parameters and record."""
    records = some_records(100)
    for seed in range(100):
        parameters = some_parameters(model, np.random.default_rng(seed))
        found = model.log_likelihood(parameters, records.t, records.v, X[records.cell])
        twin = twin_log_likelihood(model, parameters, records.t, records.v, X[records.cell])
        np.testing.assert_allclose(found, twin, rtol=1e-10, atol=1e-10)


def log_prior(model, z, parameters):
    """Log prior of coefficients and unconstrained parameters with its Jacobian, up to a constant, written apart."""
    if isinstance(model, FBP):
        coefficients = np.concatenate([parameters["beta"], parameters["kappa_x"], [z[0]]])
        prior = stats.norm(0, 10).logpdf(coefficients).sum()
        return prior + sum(stats.halfcauchy(scale=1).logpdf(np.exp(log)) + log for log in z[1:])
    prior = sum(stats.t(3, scale=10).logpdf(np.exp(log)) + log for log in [*z[:2], *z[3:9]])
    prior += 6 * np.log(1 - np.tanh(z[2]) ** 2)  # LKJ(6) in two dimensions, (1 − ρ²)⁵, and the Jacobian of tanh
    correlation = np.asarray(parameters["correlation_beta"])
    prior += 5 * np.linalg.slogdet(correlation)[1] + _log_jacobian_of_partials(z[9:])
    for coefficients, scales in (("beta_y", "scale_y"), ("beta_w", "scale_w")):
        covariance = correlation * np.outer(parameters[scales], parameters[scales])
        prior += stats.multivariate_normal(np.zeros(3), covariance).logpdf(parameters[coefficients])
    return prior


def _log_jacobian_of_partials(z):
    """|∂Ω/∂z| for three coefficients: the partial correlations z₂₁, z₃₁, z₃₂, by finite differences."""

    def correlations(z):
        first, second, third = np.tanh(z)
        return np.array([first, second, first * second + third * np.sqrt((1 - first**2) * (1 - second**2))])

    step = 1e-5
    columns = [(correlations(z + step * e) - correlations(z - step * e)) / (2 * step) for e in np.eye(3)]
    return np.linalg.slogdet(np.array(columns).T)[1]


def log_conditional(model, z, parameters, records, alpha):
    """log p(coefficients | rest, data): the Gaussian that `complete` draws from, by its own normal equations."""
    a, x = alpha, X[records.cell]
    gram = (x * a[:, None]).T @ x
    if isinstance(model, FBP):
        kappa_y, sigma_y, sigma_pi = z[0], np.exp(z[1]), np.exp(z[2])
        ones = a @ x
        total = 0.0
        pieces = [("beta", records.t, sigma_y, kappa_y), ("kappa_x", -records.v - kappa_y * records.t, sigma_pi, 1.0)]
        for name, response, sigma, tilt in pieces:
            precision = gram / sigma**2 + np.eye(3) / 100
            mean = np.linalg.solve(precision, (x * a[:, None]).T @ response / sigma**2 - tilt * ones)
            total += stats.multivariate_normal(mean, np.linalg.inv(precision)).logpdf(parameters[name])
        return total
    correlation, covariance = np.asarray(parameters["correlation_beta"]), np.asarray(parameters["covariance"])
    prior = np.zeros((6, 6))
    for position, scales in enumerate(("scale_y", "scale_w")):
        block = correlation * np.outer(parameters[scales], parameters[scales])
        prior[3 * position : 3 * position + 3, 3 * position : 3 * position + 3] = block
    inverse = np.linalg.inv(covariance)
    y = np.stack([records.t, records.v], axis=1)
    precision = np.kron(inverse, gram) + np.linalg.inv(prior)
    mean = np.linalg.solve(precision, ((x * a[:, None]).T @ y @ inverse).T.reshape(-1))
    coefficients = np.concatenate([parameters["beta_y"], parameters["beta_w"]])
    return stats.multivariate_normal(mean, np.linalg.inv(precision)).logpdf(coefficients)


@pytest.mark.parametrize("model", MODELS)
def test_the_density_is_the_joint_density_with_the_coefficients_integrated_out(model):
    """log p(z) = log p(data, coefficients, z) − log p(coefficients | z, data), at any coefficients: per record."""
    records = some_records()
    alpha = np.random.default_rng(3).uniform(0.1, 1, len(records))
    statistics = model.statistics(records, alpha)
    center = np.asarray(model.whitening(statistics).center)
    found, expected = [], []
    for seed in range(5):
        z = center + 0.3 * np.random.default_rng(seed).standard_normal(len(center))
        parameters = model.complete(jax.random.key(seed), jnp.asarray(z), statistics)
        terms = model.log_likelihood(parameters, records.t, records.v, X[records.cell])
        joint = float(alpha @ np.asarray(terms)) + log_prior(model, z, parameters)
        expected.append(joint - log_conditional(model, z, parameters, records, alpha))
        found.append(float(model.log_density(jnp.asarray(z), statistics)))
    np.testing.assert_allclose(np.diff(found), np.diff(expected), atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_draws_move_smoothly_with_the_weights(model):
    """Even where groups of one size, without an intercept, leave the eigenvectors of X'AX free to turn and swap."""
    records = some_records(400)
    balanced = replace(records, cell=np.arange(400) % 4, x=np.eye(4), terms=("a", "b", "c", "d"))
    z = model.whitening(model.statistics(balanced, np.ones(400))).center
    drawn = []
    for seed in range(5):
        alpha = 1 - 1e-9 * np.random.default_rng(seed).uniform(size=400)
        drawn.append(model.complete(jax.random.key(1), z, model.statistics(balanced, alpha)))
    for name, value in drawn[0].items():
        for other in drawn[1:]:
            np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-7, err_msg=name)


def assert_same_statistics(one, other):
    for name, left, right in zip(one._fields, one, other, strict=True):
        if name != "vectors":  # eigenvectors may differ in sign
            np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9, err_msg=name)


def chosen(records, rows):
    return Records(records.t[rows], records.v[rows], records.cell[rows], records.x, records.terms)


def test_no_weight_is_deletion_and_double_weight_is_duplication():
    records = some_records()
    alpha = np.ones(len(records))
    alpha[:20], alpha[20:40] = 0, 2
    rows = np.concatenate([np.arange(20, len(records)), np.arange(20, 40)])
    same = linear_statistics(chosen(records, rows), np.ones(len(rows)))
    assert_same_statistics(linear_statistics(records, alpha), same)


def test_fbp_without_dependence_is_plain_regression():
    """κ_y = 0: t is an ordinary regression, and the weights another."""
    model, generator = FBP(), np.random.default_rng(5)
    parameters = some_parameters(model, generator) | {"kappa_y": 0.0}
    t, v, x = 11.3, 0.4, X[1]
    found = model.log_likelihood(parameters, jnp.array([t]), jnp.array([v]), x[np.newaxis])
    mean = x @ parameters["kappa_x"]
    weights = stats.norm(mean, parameters["sigma_pi"]).logpdf(-v) - mean - parameters["sigma_pi"] ** 2 / 2
    assert float(found[0]) == pytest.approx(
        stats.norm(x @ parameters["beta"], parameters["sigma_y"]).logpdf(t) + weights
    )


def test_the_sample_marginal_of_fbp():
    """exp(ll) times π, integrated over log π: t in the sample is N(xβ + κ_yσ_y², σ_y²)."""
    model = FBP()
    parameters = some_parameters(model, np.random.default_rng(8))
    p = np.linspace(-60, 60, 200_001)
    for t in (10.5, 11.0, 12.0):
        ones = np.ones_like(p)
        terms = np.asarray(model.log_likelihood(parameters, t * ones, -p, X[2] * ones[:, np.newaxis]))
        marginal = np.trapezoid(np.exp(terms + p), p)
        shifted = X[2] @ parameters["beta"] + parameters["kappa_y"] * parameters["sigma_y"] ** 2
        assert marginal == pytest.approx(stats.norm(shifted, parameters["sigma_y"]).pdf(t), rel=1e-6)


def test_the_default_formula_is_main_effects_and_any_formula_is_possible():
    streams = Streams.seeded(1)
    survey = draw_sample(make_population(streams), streams)
    assert make_records(survey).x.shape == (16, 9)
    assert make_records(survey, "field * gender").x.shape == (16, 16)
    assert make_records(survey, "gender").terms == ("Intercept", "gender[T.Female]")
    with pytest.raises(SurveyError, match=r"not in survey\.public"):
        make_records(survey, "field + salary")


def test_design_matrices_do_without_packages_that_the_wheel_does_not_declare(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("polars.DataFrame.to_pandas", None)
    streams = Streams.seeded(1)
    survey = draw_sample(make_population(streams), streams)
    assert make_records(survey, "field * gender").x.shape == (16, 16)


def test_what_is_missing_is_not_taken_for_a_wrong_formula(monkeypatch):
    streams = Streams.seeded(1)
    survey = draw_sample(make_population(streams), streams)
    monkeypatch.setattr("formulaic.model_matrix", lambda *_, **__: import_module("no_such_package"))
    with pytest.raises(ImportError):
        make_records(survey)


def test_terms_that_cannot_be_told_apart_are_refused():
    import polars as pl

    frame = pl.DataFrame({"y": [1.0, 2, 3, 4], "w": [1.0] * 4, "a": ["p", "p", "q", "q"], "b": ["u", "u", "v", "v"]})
    survey = read_survey(frame, outcome="y", weight="w", public=["a", "b"])
    with pytest.raises(SurveyError, match="cannot tell apart"):
        make_records(survey)


def test_synthesis_follows_the_model():
    """Means and covariances of many synthetic records, within five standard errors."""
    n = 200_000
    x = np.repeat(X[3][np.newaxis], n, axis=0)
    parameters = some_parameters(FBS(), np.random.default_rng(2))
    t, v, smoothed = (np.asarray(column) for column in FBS().synthesize(jax.random.key(1), parameters, x))
    covariance = np.cov(t, v)
    np.testing.assert_allclose(covariance, parameters["covariance"], rtol=5 * np.sqrt(4 / n), atol=0.01)
    slope = parameters["covariance"][0, 1] / parameters["covariance"][0, 0]
    np.testing.assert_allclose(smoothed, X[3] @ parameters["beta_w"] + slope * (t - X[3] @ parameters["beta_y"]))

    parameters = some_parameters(FBP(), np.random.default_rng(2))
    for smoothing in ("full", "paper"):
        t, v, smoothed = (np.asarray(c) for c in FBP(smoothing).synthesize(jax.random.key(1), parameters, x))
        assert t.mean() == pytest.approx(X[3] @ parameters["beta"], abs=5 * parameters["sigma_y"] / np.sqrt(n))
        of_x = X[3] @ parameters["kappa_x"] if smoothing == "full" else 0
        np.testing.assert_allclose(smoothed, -parameters["kappa_y"] * t - of_x)
        assert np.std(v - (-parameters["kappa_y"] * t)) == pytest.approx(parameters["sigma_pi"], rel=0.02)
