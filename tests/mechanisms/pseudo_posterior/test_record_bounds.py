"""Record bounds: the plain twin's to twelve digits, and a record's to the last bit in whatever company."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svysynth.mechanisms.pseudo_posterior.quadratics import TILES, device_bounds, make_quadratics
from svysynth.mechanisms.pseudo_posterior.record_bounds import make_bounds
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.numpyro import NumPyroModel

DRAWS = 30
CELLS, COLUMNS = 40, 5


def bivariate(x, records=None):
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([2, x.shape[1]]).to_event(2))
    spread = numpyro.sample("spread", dist.HalfNormal(2).expand([2]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(x @ beta.T, spread).to_event(1), obs=records)


def make_draws(model, seed=1):
    """Draws as far apart as those of a fit to some hundred records."""
    generator = np.random.default_rng(seed)
    near = lambda *shape: 0.1 * generator.standard_normal((DRAWS, *shape))  # noqa: E731
    location = np.r_[11.5, np.zeros(COLUMNS - 1)]
    root = 0.5 * np.eye(2) + 0.1 * near(2, 2)
    draws = {
        "fbs": {"beta_y": location + near(COLUMNS), "beta_w": near(COLUMNS), "covariance": root @ root.mT},
        "fbp": {
            "beta": location + near(COLUMNS),
            "kappa_y": 0.6 + near(),
            "kappa_x": -0.6 * location + near(COLUMNS),
            "sigma_y": 0.4 * np.exp(near()),
            "sigma_pi": 0.5 * np.exp(near()),
        },
        "numpyro": {"beta": np.stack([location, 0 * location]) + near(2, COLUMNS), "spread": 0.5 * np.exp(near(2))},
    }[model.name]
    return {name: jnp.asarray(value) for name, value in draws.items()}


def make_records(rows, cells=CELLS, seed=2):
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(cells), generator.integers(0, 2, (cells, COLUMNS - 1))]).astype(float)
    t, v = 11.5 + 0.5 * generator.standard_normal(rows), 0.6 * generator.standard_normal(rows)
    return t, v, generator.integers(0, cells, rows), x


def plain(model, draws, t, v, cell, x):
    """The twin: every draw for every record."""
    terms = jax.vmap(lambda parameters: model.log_likelihood(parameters, t, v, x[cell]))(draws)
    return np.abs(terms).max(axis=0)


MODELS = [FBS(), FBP(), NumPyroModel(bivariate)]
QUADRATIC = MODELS[:2]


@pytest.mark.parametrize("model", [*MODELS, FBP(lognormal=True)], ids=lambda model: model.name)
@pytest.mark.parametrize(("rows", "cells"), [(5000, CELLS), (1, 1), (50, 1000)], ids=str)
def test_bounds_are_those_of_the_plain_twin(model, rows, cells):
    """With many records in a cell, one, and mostly none."""
    t, v, cell, x = make_records(rows, cells)
    draws = make_draws(model)
    np.testing.assert_allclose(make_bounds(model, draws, x)(t, v, cell), plain(model, draws, t, v, cell, x), rtol=1e-12)


@pytest.mark.parametrize("model", QUADRATIC, ids=lambda model: model.name)
def test_one_record_in_each_cell_and_cells_without(model):
    t, v, _, x = make_records(30)
    cell = np.random.default_rng(3).permutation(CELLS)[:30]
    draws = make_draws(model)
    np.testing.assert_allclose(make_bounds(model, draws, x)(t, v, cell), plain(model, draws, t, v, cell, x), rtol=1e-12)


@pytest.mark.parametrize("model", QUADRATIC, ids=lambda model: model.name)
def test_far_from_the_center_no_digits_are_lost(model):
    """Records a hundred standard deviations away, and an outcome far from zero."""
    t, v, cell, x = make_records(400)
    far = t + 50 * np.sign(t - 11.5)
    draws = make_draws(model)
    np.testing.assert_allclose(
        make_bounds(model, draws, x)(far, v, cell), plain(model, draws, far, v, cell, x), rtol=1e-12
    )


@pytest.mark.parametrize("model", QUADRATIC, ids=lambda model: model.name)
def test_the_layout_of_a_device_gives_the_same(model):
    t, v, cell, x = make_records(3000)
    draws = make_draws(model)
    found = device_bounds(make_quadratics(model, draws, x), t, v, cell)
    np.testing.assert_allclose(found, plain(model, draws, t, v, cell, x), rtol=1e-12)


@pytest.fixture(scope="module")
def whole():
    t, v, cell, x = make_records(6000)
    find = make_bounds(FBS(), make_draws(FBS()), x)
    return find, t, v, cell, find(t, v, cell)


@settings(max_examples=40)
@given(data=st.data())
def test_a_record_has_one_bound_in_any_company_and_order(whole, data):
    """To the last bit: the sizes of tiles, and so the programs, change with what is asked for together."""
    find, t, v, cell, bounds = whole
    size = data.draw(st.integers(1, len(t)))
    chosen = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))).permutation(len(t))[:size]
    assert np.array_equal(find(t[chosen], v[chosen], cell[chosen]), bounds[chosen])


@pytest.mark.parametrize("size", TILES)
def test_every_size_of_tiles_gives_the_same_bits(whole, monkeypatch, size):
    find, t, v, cell, bounds = whole
    monkeypatch.setattr("svysynth.mechanisms.pseudo_posterior.quadratics.TILES", {size: 1.0})
    assert np.array_equal(find(t, v, cell), bounds)


def test_threads_give_what_one_gives(whole):
    find, t, v, cell, bounds = whole
    pieces = [slice(start, start + 500) for start in range(0, len(t), 500)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda piece: find(t[piece], v[piece], cell[piece]), pieces * 4))
    assert np.array_equal(np.concatenate(found), np.tile(bounds, 4))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_a_record_without_a_finite_likelihood_has_an_infinite_bound_and_no_other(model, value):
    t, v, cell, x = make_records(300)
    find = make_bounds(model, make_draws(model), x)
    broken = t.copy()
    broken[7] = value
    found = find(broken, v, cell)
    assert np.isposinf(found[7])
    others = np.arange(300) != 7
    assert np.array_equal(found[others], find(t, v, cell)[others])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_draw_that_is_not_finite_makes_every_bound_infinite(model, value):
    t, v, cell, x = make_records(300)
    draws = make_draws(model)
    name = next(iter(draws))
    draws[name] = draws[name].at[DRAWS - 1].set(value)
    assert np.isposinf(make_bounds(model, draws, x)(t, v, cell)).all()
