"""Whitening: increasing maps, their Jacobians, normal scores; and the integrator that is exact for the normal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.integrators import IntegratorState
from scipy import stats

from svysynth.core.streams import Streams
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.models.fbs import FBS
from svysynth.models.records import make_records
from svysynth.models.sampler import _turning
from svysynth.models.whitening import KNOTS, Whitening, identity_cubics, normal_score_cubics

GRID = np.linspace(-40, 40, 4001)


def scored(*distributions):
    """The whitening whose parameters have these distributions."""
    rows = jnp.asarray([distribution.logpdf(GRID) for distribution in distributions])
    cubics = normal_score_cubics(jnp.broadcast_to(GRID, rows.shape), jnp.maximum(rows, -700))
    return Whitening(jnp.zeros(len(rows)), jnp.eye(len(rows)), cubics)


@pytest.mark.parametrize(
    "distribution", [stats.norm(3, 2), stats.logistic(), stats.gumbel_r(-2, 0.5), stats.gumbel_l(1, 3), stats.t(5)]
)
def test_normal_scores_are_the_quantiles_of_the_distribution(distribution):
    u = np.linspace(-3, 3, 61)
    found = [float(scored(distribution)(jnp.array([value]))[0][0]) for value in u]
    np.testing.assert_allclose(found, distribution.ppf(stats.norm.cdf(u)), atol=0.03 * distribution.std())


def test_the_jacobian_is_that_of_the_map_and_the_map_increases():
    whitening = scored(stats.norm(3, 2), stats.gumbel_l(1, 3), stats.t(5))
    u = jnp.linspace(-7, 7, 3001)
    z = jax.vmap(lambda value: whitening(jnp.full(3, value))[0])(u)
    assert (jnp.diff(z, axis=0) > 0).all()
    for seed in range(20):
        point = jnp.asarray(2 * np.random.default_rng(seed).standard_normal(3))
        derivative = jax.jacobian(lambda u: whitening(u)[0])(point)
        np.testing.assert_allclose(float(whitening(point)[1]), np.linalg.slogdet(derivative)[1], rtol=1e-10)


def test_the_identity_is_the_identity():
    u = jnp.asarray([-6.0, -5.0, -0.3, 0.0, 1.7, 5.0, 8.0])
    z, log_jacobian = Whitening(jnp.zeros(7), jnp.eye(7), identity_cubics(7))(u)
    np.testing.assert_allclose(z, u, atol=1e-14)
    assert float(log_jacobian) == pytest.approx(0)


def test_a_knot_belongs_to_both_of_its_intervals():
    whitening = scored(stats.gumbel_l(1, 3))
    for knot in KNOTS[1:-1:7]:
        below, above = (whitening(jnp.array([knot + step]))[0][0] for step in (-1e-9, 1e-9))
        assert abs(float(above - below)) < 1e-7


def test_the_coefficient_scales_of_fbs_become_standard_normal():
    """One coefficient alone, whose one-dimensional density is then the whole truth but for the other parameters."""
    records = make_records(draw_sample(make_population(Streams.seeded(1)), Streams.seeded(1)))
    model = FBS()
    statistics = model.statistics(records, np.ones(len(records)))
    whitening = model.whitening(statistics)
    covariance = statistics.scatter / statistics.total
    noise = np.sqrt(np.diagonal(covariance)[0] * np.diagonal(statistics.gram_inverse))
    for position, (estimate, sd) in enumerate(zip(np.asarray(statistics.coefficients)[:, 0], noise, strict=True)):
        grid = np.linspace(-20, 12, 20001)
        variance = np.exp(2 * grid) + sd**2
        density = (
            np.exp(-0.5 * estimate**2 / variance + grid) / np.sqrt(variance) * stats.t(3, scale=10).pdf(np.exp(grid))
        )
        below = np.cumsum(density) / density.sum()
        for u in (-1.5, -0.5, 0.0, 0.5, 1.5):
            point = jnp.zeros(len(whitening.center)).at[3 + position].set(u)
            value = float(whitening(point)[0][3 + position])
            assert np.interp(value, grid, below) == pytest.approx(stats.norm.cdf(u), abs=0.01)


def test_a_step_of_the_sampler_turns_the_standard_normal_without_error():
    def density(u):
        return -0.5 * jnp.sum(u**2)

    u, p = jnp.asarray([1.0, -2.0]), jnp.asarray([0.5, 0.3])
    start = IntegratorState(u, p, density(u), jax.grad(density)(u))
    end = _turning(density, None)(start, np.pi / 2)
    np.testing.assert_allclose(end.position, p, atol=1e-12)
    np.testing.assert_allclose(end.momentum, -u, atol=1e-12)


def test_a_step_of_the_sampler_is_reversible_and_of_second_order():
    def density(u):
        return -jnp.sum(jnp.cosh(u)) + 0.3 * u[0] * u[1]

    u, p = jnp.asarray([0.7, -0.4]), jnp.asarray([0.5, 1.3])
    step = _turning(density, None)

    def energy(state):
        return float(0.5 * jnp.sum(state.momentum**2) - state.logdensity)

    def error(angle):
        state = start = IntegratorState(u, p, density(u), jax.grad(density)(u))
        for _ in range(round(1 / angle)):
            state = step(state, angle)
        back = state._replace(momentum=-state.momentum)
        for _ in range(round(1 / angle)):
            back = step(back, angle)
        np.testing.assert_allclose(back.position, u, atol=1e-10)
        return abs(energy(state) - energy(start))

    assert 3.4 < error(0.1) / error(0.05) < 4.6
