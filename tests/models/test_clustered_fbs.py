"""FBS with cluster effects: likelihoods against nlme in R, densities and draws against dense normal distributions."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from scipy import stats

import places
from svysynth.core.streams import Streams
from svysynth.models.cluster_statistics import cluster_statistics
from svysynth.models.clustered_fbs import ClusteredFBS, unconstrained, with_effects_integrated
from svysynth.models.fbs import FBS, covariance_of, unpack_scales
from svysynth.models.records import Records
from svysynth.models.sampler import fit

GOLDEN = places.GOLDEN / "clusters"
X = np.array([[1.0, 0, 0], [1, 1, 0], [1, 0, 1]])
MODEL = ClusteredFBS()
FALSE_ALARM = 1e-3


@cache
def golden():
    """The R sample as records, and how often each record is counted."""
    sample = pl.read_csv(GOLDEN / "sample.csv")
    t, v, cell, cluster, times = (sample[name].to_numpy() for name in ("t", "v", "cell", "cluster", "times"))
    return Records(t, v, cell, X, ("1", "a", "b"), cluster=cluster), times.astype(float)


def golden_values(method):
    rows = pl.read_csv(GOLDEN / "values.csv").filter(pl.col("method") == method)
    return dict(rows.select("quantity", "value").iter_rows())


def golden_covariances(values):
    def of(name):
        return np.array([[values[f"{name}_{first}{second}"] for second in "tv"] for first in "tv"])

    full = values | {"sigma_vt": values["sigma_tv"], "effects_vt": values["effects_tv"]}
    values = full
    return of("sigma"), of("effects")


# --- the likelihood ---


@pytest.mark.parametrize("method", ["ML", "REML"])
def test_the_likelihood_equals_that_of_nlme(method):
    """Records with α = 2 are counted twice there, and those with α = 0 left out."""
    (records, alpha), values = golden(), golden_values(method)
    statistics = cluster_statistics(records, alpha)
    sigma, effects = golden_covariances(values)
    found = with_effects_integrated(unconstrained(jnp.array(sigma)), unconstrained(jnp.array(effects)), statistics)
    shift = np.linalg.solve(found.precision, found.pull)
    likelihood = found.log_determinants - 0.5 * (found.form - found.pull @ shift) - alpha.sum() * np.log(2 * np.pi)
    if method == "REML":
        likelihood += X.shape[1] * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(found.precision)[1]
    assert float(likelihood) == pytest.approx(values["log_likelihood"], rel=1e-11)
    beta = statistics.linear.coefficients.T.reshape(-1) + shift
    expected = [values[f"what{outcome}{cell}"] for outcome in "tv" for cell in ("", ":cell1", ":cell2")]
    np.testing.assert_allclose(beta, expected, rtol=1e-7)


def few_records():
    """Twelve records in four clusters, one of them without weight."""
    generator = np.random.default_rng(4)
    cell, cluster = generator.integers(0, 2, 12), np.repeat(np.arange(4), 3)
    t, v = 2 + generator.standard_normal(12), generator.standard_normal(12)
    alpha = generator.uniform(0.2, 1, 12) * (cluster != 2)
    return Records(t, v, cell, X[:2, :2], ("1", "a"), cluster=cluster), alpha


def some_point(generator):
    return 0.5 * generator.standard_normal(6 + 4 + 1)


def joint(records, alpha, z):
    """The log density of (β, u) and the data as a quadratic form: precision, linear term and constant, with the prior.

    (β_y, β_w, u_1t, u_1v, …): written with Kronecker products and no sums by cluster.
    """
    (sigma, _), (effects, _) = covariance_of(z[:3]), covariance_of(z[3:6])
    scales, partial_correlations, factor = unpack_scales(z[6:], 2)
    x = records.x[records.cell]
    clusters = np.eye(4)[records.cluster]
    rows = np.vstack(
        [np.kron(np.eye(2), x[i : i + 1]) for i in range(len(x))],
    )
    rows = np.hstack([rows, np.vstack([np.kron(clusters[i : i + 1], np.eye(2)) for i in range(len(x))])])
    y = np.stack([records.t, records.v], axis=1).reshape(-1)
    noise = np.kron(np.diag(alpha), np.linalg.inv(sigma))
    flat = scales.reshape(-1)
    beta_prior = np.kron(np.eye(2), factor @ factor.T) * np.outer(flat, flat)
    prior = np.zeros((4 + 8, 4 + 8))
    prior[:4, :4] = np.linalg.inv(beta_prior)
    prior[4:, 4:] = np.kron(np.eye(4), np.linalg.inv(effects))
    constant = -0.5 * y @ noise @ y - 0.5 * alpha.sum() * np.linalg.slogdet(sigma)[1]
    constant += 0.5 * np.linalg.slogdet(prior)[1]
    half_t = stats.t(3, scale=10)
    constant += sum(half_t.logpdf(np.exp(log)) + log for log in [*z[:2], *z[3:5], *z[6:10]])
    constant += 6 * np.log1p(-(np.tanh(z[2]) ** 2)) + 2 * np.log1p(-(np.tanh(z[5]) ** 2))
    constant += 6 * np.log1p(-(partial_correlations[0] ** 2))
    return rows.T @ noise @ rows + prior, rows.T @ noise @ y, constant


def test_the_density_equals_the_dense_one():
    records, alpha = few_records()
    statistics = cluster_statistics(records, alpha)
    generator = np.random.default_rng(5)
    gaps = []
    for _ in range(20):
        z = some_point(generator)
        precision, linear, constant = joint(records, alpha, z)
        integrated = constant - 0.5 * np.linalg.slogdet(precision)[1]
        integrated += 0.5 * linear @ np.linalg.solve(precision, linear)
        gaps.append(float(MODEL.log_density(z, statistics)) - integrated)
    np.testing.assert_allclose(gaps, gaps[0], rtol=1e-10, atol=1e-9)


def test_coefficients_and_effects_are_drawn_from_their_joint_normal_distribution():
    records, alpha = few_records()
    statistics = cluster_statistics(records, alpha)
    z = some_point(np.random.default_rng(6))
    count = 20_000
    keys = jax.random.split(jax.random.key(1), count)
    found = jax.jit(jax.vmap(partial(MODEL.complete, z=z, statistics=statistics)))(keys)
    drawn = np.hstack([found["beta_y"], found["beta_w"], np.asarray(found["effects"]).reshape(count, -1)])
    precision, linear, _ = joint(records, alpha, z)
    standard = np.linalg.cholesky(precision).T @ (drawn - np.linalg.solve(precision, linear)).T
    size = len(standard)
    limit = stats.norm.isf(FALSE_ALARM / size**2)
    assert np.abs(standard.mean(axis=1)).max() * np.sqrt(count) < limit
    products = standard @ standard.T / count - np.eye(size)
    assert np.abs(products / np.where(np.eye(size), np.sqrt(2), 1)).max() * np.sqrt(count) < limit


def test_the_likelihood_of_a_record_is_that_given_the_effect_of_its_cluster():
    records, _ = few_records()
    generator = np.random.default_rng(7)
    parameters = {
        "beta_y": generator.standard_normal(2),
        "beta_w": generator.standard_normal(2),
        "covariance": np.array([[0.5, -0.2], [-0.2, 0.4]]),
        "effects": generator.standard_normal((4, 2)),
    }
    rows, place = records.rows_in_clusters()
    found = MODEL.log_likelihood(parameters, records.t, records.v, rows[place])
    x, effect = records.x[records.cell], parameters["effects"][records.cluster]
    off = np.stack([records.t - x @ parameters["beta_y"], records.v - x @ parameters["beta_w"]], axis=1) - effect
    expected = stats.multivariate_normal(np.zeros(2), parameters["covariance"]).logpdf(off)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# --- draws ---


def test_draws_are_trusted_and_agree_with_reml():
    """The priors are wide: posteriors are centred near the REML estimates, within a fraction of their spread."""
    records, alpha = golden()
    found = fit(MODEL, records, alpha, Streams.seeded(2), draws=2000)
    assert found.verdict.passed, found.verdict.complaints
    values = golden_values("REML")
    for name, covariance in zip(("covariance", "cluster_covariance"), golden_covariances(values), strict=True):
        for place in (0, 1):
            drawn = np.log(np.asarray(found.draws[name])[:, place, place])
            assert abs(np.median(drawn) - np.log(covariance[place, place])) < 0.35 * drawn.std()
    for outcome, name in (("t", "beta_y"), ("v", "beta_w")):
        expected = [values[f"what{outcome}{cell}"] for cell in ("", ":cell1", ":cell2")]
        drawn = np.asarray(found.draws[name])
        assert np.abs((drawn.mean(axis=0) - expected) / drawn.std(axis=0)).max() < 0.35


# --- the bias from weights ---


def test_a_shift_is_what_removal_takes_off_and_none_changes_no_digit():
    records, alpha = golden()
    draws = fit(MODEL, records, alpha, Streams.seeded(2), draws=1000).draws
    bias = MODEL.weighting_bias
    draw = {name: value[7] for name, value in draws.items()}
    draw["cluster_covariance"] = jnp.diag(jnp.var(draw["effects"], axis=0))
    same = bias.remove(draw, np.zeros(3))
    assert all(np.array_equal(same[name], draw[name]) for name in draw)
    shift = np.array([-0.1, -0.05, 0.04])
    moved = bias.remove(draw, shift)
    one, other = (bias.measure({name: value[None] for name, value in each.items()}) for each in (moved, draw))
    np.testing.assert_allclose(other - one, shift, atol=1e-12)
    np.testing.assert_allclose(moved["effects"].mean(axis=0), draw["effects"].mean(axis=0), atol=1e-12)
    ratio = np.std(moved["effects"], axis=0) ** 2 / np.std(draw["effects"], axis=0) ** 2
    spread = [np.diagonal(each["cluster_covariance"]) for each in (moved, draw)]
    np.testing.assert_allclose(ratio, spread[0] / spread[1], rtol=1e-10)


def test_synthetic_records_have_the_effect_of_their_cluster():
    x = np.array([[1.0, 0, 0], [1.0, 0, 1]])[np.arange(100_000) % 2]
    parameters = {
        "beta_y": jnp.array([2.0, 0]),
        "beta_w": jnp.array([-1.0, 0]),
        "covariance": jnp.array([[0.5, -0.2], [-0.2, 0.4]]),
        "effects": jnp.array([[0.3, -0.6], [-0.2, 0.4]]),
    }
    key = jax.random.key(3)
    found = np.stack(MODEL.synthesize(key, parameters, x))
    plain = np.stack(FBS().synthesize(key, parameters, x[:, :-1]))
    np.testing.assert_allclose((found - plain)[:, :2].T, [[0.3, -0.6, -0.6], [-0.2, 0.4, 0.4]], atol=1e-12)
