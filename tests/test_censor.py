"""The censored mechanism: its density against plain twins, what one record can do to it, and what its chains draw."""

from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from svysynth import SurveyError, read_survey
from svysynth.censor import CensoredFit, _density, _Target, censored_records, fit_censored, trusted_censored
from svysynth.clipped import cell_gains, clip_terms, clipped_sum, make_blocks, record_terms
from svysynth.diagnostics import Verdict, effective_draws
from svysynth.interval import Interval
from svysynth.models.base import Records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.joint import joint_of
from svysynth.sampler import fit
from svysynth.separation import LOOKED_AT, log_odds_of_groups, movable_groups
from svysynth.spec import BoundsSpec
from svysynth.streams import Streams
from test_models import X, log_prior, some_parameters, some_records, twin_log_likelihood

MODELS = [FBS(), FBP()]
NAMES = [model.name for model in MODELS]
INTERVAL = Interval(-3.1, 0.5)
FALSE_ALARM = 1e-3
ROUNDING = 1e-11
fast_sum = jax.jit(clipped_sum, static_argnums=0)


def total(model, parameters, records, interval=INTERVAL, **layout):
    parameters = {name: jnp.asarray(value) for name, value in parameters.items()}
    return float(fast_sum(model, parameters, make_blocks(records, **layout), interval.low, interval.high))


def plain_total(model, parameters, records, interval=INTERVAL):
    terms = [
        twin_log_likelihood(model, parameters, t, v, records.x[cell])
        for t, v, cell in zip(records.t, records.v, records.cell, strict=True)
    ]
    return np.clip(terms, interval.low, interval.high).sum()


# --- the clipped sum ---


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_the_sum_equals_the_plain_twin(model):
    records = some_records(60)
    for seed in range(10):
        parameters = some_parameters(model, np.random.default_rng(seed))
        assert total(model, parameters, records) == pytest.approx(plain_total(model, parameters, records), abs=1e-9)


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_order_padding_and_blocks_do_not_matter(model):
    records = some_records(203)
    parameters = some_parameters(model, np.random.default_rng(4))
    expected = total(model, parameters, records)
    order = np.random.default_rng(5).permutation(len(records))
    shuffled = replace(records, t=records.t[order], v=records.v[order], cell=records.cell[order])
    assert total(model, parameters, shuffled) == pytest.approx(expected, abs=1e-10)
    for layout in ({"size": 1}, {"size": 7}, {"size": 1024}, {"size": 8, "chunk": 16}, {"size": 8, "chunk": 100}):
        assert total(model, parameters, records, **layout) == pytest.approx(expected, abs=1e-10), layout
    places = make_blocks(records, size=64)
    assert float(places.weight.sum()) == len(records) < places.weight.size
    wild = places._replace(t=jnp.where(places.weight > 0, places.t, jnp.nan), v=places.v + 1e300 * (places.weight == 0))
    parameters = {name: jnp.asarray(value) for name, value in parameters.items()}
    assert float(fast_sum(model, parameters, wild, *limits())) == pytest.approx(expected, abs=1e-10)


def limits(interval=INTERVAL):
    return interval.low, interval.high


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_the_gradient_is_that_of_the_sum(model):
    records = some_records(80)
    parameters = {name: jnp.asarray(v) for name, v in some_parameters(model, np.random.default_rng(6)).items()}
    blocks, x = make_blocks(records, size=8, chunk=40), records.x[records.cell]
    found = jax.grad(lambda parameters: clipped_sum(model, parameters, blocks, *limits()))(parameters)
    plain = jax.grad(
        lambda parameters: clip_terms(model.log_likelihood(parameters, records.t, records.v, x), *limits()).sum()
    )(parameters)
    for name in parameters:
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_terms_and_gains_of_cells_are_the_records_own(model):
    records = some_records(50)
    parameters = [some_parameters(model, np.random.default_rng(seed)) for seed in range(2)]
    draws = {name: jnp.stack([jnp.asarray(one[name]) for one in parameters]) for name in parameters[0]}
    gains = cell_gains(model, draws, make_blocks(records), len(X), INTERVAL)
    for own, row in zip(parameters, gains, strict=True):
        terms = record_terms(model, own, records)
        clipped = np.clip(terms, *limits()) - INTERVAL.low
        np.testing.assert_allclose(row, np.bincount(records.cell, clipped, minlength=len(X)), atol=1e-9)


# --- what one record can do ---

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)
COMMON = st.floats(-30, 30)
SPREADS = st.floats(1e-12, 1e12)
BASE = some_records(12)


@st.composite
def parameters_of(draw, model):
    """Any parameters, far from the records or near them."""
    wide = st.one_of(COMMON, st.floats(-1e200, 1e200))
    vector = st.lists(wide, min_size=3, max_size=3).map(np.array)
    if model.name == "fbs":
        first, second, correlation = draw(SPREADS), draw(SPREADS), draw(st.floats(-0.999, 0.999))
        off = correlation * np.sqrt(first * second)
        covariance = np.array([[first, off], [off, second]])
        return {"beta_y": draw(vector), "beta_w": draw(vector), "covariance": covariance}
    spreads = {"sigma_y": draw(SPREADS), "sigma_pi": draw(SPREADS)}
    return {"beta": draw(vector), "kappa_x": draw(vector), "kappa_y": draw(wide), **spreads}


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
@given(data=st.data())
@settings(max_examples=60)
def test_one_record_moves_the_sum_by_no_more_than_the_width(model, data):
    """Whatever the record was, whatever it becomes, whatever the parameters: also where likelihoods overflow."""
    parameters = data.draw(parameters_of(model))
    parameters = {name: jnp.asarray(value) for name, value in parameters.items()}
    position = data.draw(st.integers(0, len(BASE) - 1))
    t, v = BASE.t.copy(), BASE.v.copy()
    t[position], v[position] = data.draw(st.one_of(COMMON, NUMBERS)), data.draw(st.one_of(COMMON, NUMBERS))
    before, after = (make_blocks(one, size=16) for one in (BASE, replace(BASE, t=t, v=v)))
    own, other = (float(fast_sum(model, parameters, blocks, *limits())) for blocks in (before, after))
    assert abs(own - other) <= INTERVAL.width + ROUNDING
    # blanked out: the term is a constant, and what is left of the sum is the same for both
    place = int(np.flatnonzero(np.asarray(after.t != before.t).ravel() | np.asarray(after.v != before.v).ravel())[0])
    weight = np.array(before.weight)
    weight.flat[place] = 0
    rest = [float(fast_sum(model, parameters, b._replace(weight=weight), *limits())) for b in (before, after)]
    assert rest[0] == rest[1]
    assert INTERVAL.low - ROUNDING <= own - rest[0] <= INTERVAL.high + ROUNDING
    assert INTERVAL.low - ROUNDING <= other - rest[0] <= INTERVAL.high + ROUNDING


def test_what_is_not_finite_counts_as_the_lowest():
    terms = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.0, 5.0, -50.0])
    np.testing.assert_array_equal(clip_terms(terms, -3.1, 0.5), [-3.1, -3.1, -3.1, 0.0, 0.5, -3.1])


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_a_record_that_overflows_leaves_the_gradient_finite(model):
    records = some_records(20)
    wild = replace(records, t=np.where(np.arange(20) == 3, 1e200, records.t))
    parameters = {name: jnp.asarray(v) for name, v in some_parameters(model, np.random.default_rng(6)).items()}
    value, slope = jax.value_and_grad(lambda p: clipped_sum(model, p, make_blocks(wild), *limits()))(parameters)
    assert np.isfinite(value)
    assert all(np.isfinite(part).all() for part in slope.values())


@given(st.floats(0.01, 100), st.integers(1, 1000), st.floats(-20, 20))
def test_the_interval_of_a_budget_never_costs_more(epsilon, datasets, high):
    interval = Interval.of_budget(epsilon, datasets, high)
    cost = datasets * (Fraction(interval.high) - Fraction(interval.low))
    assert cost <= Fraction(epsilon)
    assert float(cost) == pytest.approx(epsilon, rel=1e-9)


def test_an_interval_has_two_ends():
    for low, high in ((1.0, 1.0), (2.0, 1.0), (-np.inf, 0.0), (0.0, np.nan)):
        with pytest.raises(ValueError, match="low end"):
            Interval(low, high)


# --- before the clip ---

BOUNDS = BoundsSpec(outcome=(10.0, 1000.0), weight=(1.0, 50.0))


def some_survey(outcome=(100.0, 2000.0, 50.0, 1.0), weight=(10.0, 20.0, 0.1, 90.0), total=400.0, **changes):
    frame = pl.DataFrame({"y": list(outcome), "w": list(weight), "g": ["a", "b", "a", "b"]})
    return read_survey(frame, outcome="y", weight="w", public=["g"], population_total=total, **changes)


def test_records_are_clamped_and_scaled_by_public_constants_alone():
    records = censored_records(some_survey(), BOUNDS)
    np.testing.assert_allclose(np.exp(records.t), [100, 1000, 50, 10])
    np.testing.assert_allclose(np.exp(records.v), np.array([10, 20, 1, 50]) * 4 / 400)
    plain = censored_records(some_survey(transform="identity"), BOUNDS)
    np.testing.assert_allclose(plain.t, [100, 1000, 50, 10])


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers(0, 3))
@settings(max_examples=30)
def test_one_respondent_s_answers_change_no_other_record(outcome, weight, position):
    y, w = np.array([100.0, 2000, 50, 1]), np.array([10.0, 20, 0.1, 90])
    before = censored_records(some_survey(y, w), BOUNDS)
    y[position], w[position] = outcome, weight
    after = censored_records(some_survey(y, w), BOUNDS)
    others = np.arange(4) != position
    for one, other in ((before.t, after.t), (before.v, after.v)):
        np.testing.assert_array_equal(one[others], other[others])
    np.testing.assert_array_equal(before.x, after.x)
    np.testing.assert_array_equal(before.cell, after.cell)


def test_without_public_constants_nothing_starts():
    with pytest.raises(SurveyError, match="population_total"):
        censored_records(some_survey(total=None), BOUNDS)
    with pytest.raises(SurveyError, match=r"bounds\.weight"):
        censored_records(some_survey(), BoundsSpec(outcome=(1.0, 2.0), weight=(0.0, 2.0)))
    with pytest.raises(SurveyError, match=r"bounds\.outcome"):
        censored_records(some_survey(), BoundsSpec(outcome=(0.0, 2.0), weight=(1.0, 2.0)))
    censored_records(some_survey(transform="identity"), BoundsSpec(outcome=(0.0, 2.0), weight=(1.0, 2.0)))


# --- the density that is sampled ---


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_the_density_is_prior_and_clipped_sum_whatever_the_whitening(model):
    """Against a twin of the prior, with the Jacobian of u ↦ (z, coefficients); the map comes from other records."""
    records = some_records(40)
    statistics = model.statistics(some_records(90, seed=9), np.ones(90))
    whitening = model.whitening(statistics)
    size = joint_of(model).size(whitening, statistics)
    shift, spread = np.random.default_rng(1).normal(size=size), np.random.default_rng(2).uniform(0.5, 2, size)
    interval = jnp.asarray(INTERVAL.low), jnp.asarray(INTERVAL.high)
    target = _Target(make_blocks(records), *interval, statistics, whitening, jnp.asarray(shift), jnp.asarray(spread))
    sampled = len(whitening.center)

    def image(u):
        placed = joint_of(model).place(shift + spread * u, whitening, statistics)
        z, _ = whitening((shift + spread * u)[:sampled])
        point = jnp.concatenate([z, *(placed.parameters[name] for name in coefficients(model))])
        return point, (point, placed.parameters)

    found, expected = [], []
    slopes, density = jax.jit(jax.jacfwd(image, has_aux=True)), jax.jit(_density(model, target))
    for seed in range(4):
        u = 0.5 * np.random.default_rng(seed).standard_normal(size)
        jacobian, (point, parameters) = slopes(u)
        jacobian = np.linalg.slogdet(jacobian)[1]
        prior = log_prior(model, np.asarray(point[:sampled]), parameters)
        expected.append(prior + jacobian + plain_total(model, parameters, records))
        found.append(float(density(jnp.asarray(u))))
    np.testing.assert_allclose(np.diff(found), np.diff(expected), atol=1e-6)


def coefficients(model):
    return ("beta_y", "beta_w") if model.name == "fbs" else ("beta", "kappa_x")


def test_the_prior_is_normalised():
    """FBP's, by importance sampling from a wider law: its integral is one within five standard errors."""
    model, generator = FBP(coefficient_variance=1.0), np.random.default_rng(3)
    records = Records(np.array([0.1, -0.3, 0.4]), np.array([0.2, 0.1, -0.2]), np.zeros(3, int), np.ones((1, 1)), ("1",))
    statistics = model.statistics(records, np.ones(3))
    whitening = model.whitening(statistics)
    spread = 8.0
    u = spread * generator.standard_t(3, size=(40_000, 5))
    log_proposal = np.sum(np.log(t3_density(u / spread) / spread), axis=1)
    place = jax.jit(jax.vmap(lambda u: joint_of(model).place(u, whitening, statistics).log_prior))
    ratio = np.exp(np.asarray(place(u)) - log_proposal)
    assert ratio.mean() == pytest.approx(1, abs=5 * ratio.std() / np.sqrt(len(ratio)))
    assert ratio.std() / np.sqrt(len(ratio)) < 0.1


def t3_density(value):
    return 2 / (np.pi * np.sqrt(3) * (1 + value**2 / 3) ** 2)


# --- the chains ---


@pytest.fixture(scope="module", params=MODELS, ids=NAMES)
def wide(request):
    """A fit with an interval so wide that nothing is clipped, beside the ordinary one."""
    records = some_records(64)
    found = fit_censored(request.param, records, Interval(-1e4, 1e4), 3, Streams.seeded(1))
    return found, fit(request.param, records, np.ones(len(records)), Streams.seeded(2), draws=2000)


def test_without_clipping_the_posterior_is_the_ordinary_one(wide):
    """Means and mean squares of every parameter, in standard errors by their effective sizes."""
    found, ordinary = wide
    distances = {}
    for name, value in flat_quantities(found.history).items():
        other = flat_quantities({k: np.asarray(v).reshape(4, 500, *v.shape[1:]) for k, v in ordinary.draws.items()})[
            name
        ]
        middle = np.mean(np.concatenate([value, other]))
        for power in (1, 2):
            distances[name, power] = distance((value - middle) ** power, (other - middle) ** power)
    limit = -ndtri(FALSE_ALARM / 2 / len(distances))
    assert {key: d for key, d in distances.items() if not abs(d) < limit} == {}


def flat_quantities(draws):
    """Name → chain × draw, scales and covariances on scales with light tails."""
    found = {}
    for name, value in draws.items():
        if name == "correlation_beta":
            continue
        if name == "covariance":
            value = np.stack(
                [
                    np.log(value[..., 0, 0]),
                    np.log(value[..., 1, 1]),
                    np.arctanh(value[..., 0, 1] / np.sqrt(value[..., 0, 0] * value[..., 1, 1])),
                ],
                axis=-1,
            )
        elif name.startswith(("scale", "sigma")):
            value = np.log(value)
        value = np.asarray(value).reshape(*value.shape[:2], -1)
        found |= {f"{name}[{k}]": value[..., k] for k in range(value.shape[2])}
    return found


def distance(one, other):
    error = sum(np.var(part) / effective_draws(part[..., np.newaxis])[0] for part in (one, other))
    return (one.mean() - other.mean()) / np.sqrt(error)


def test_the_draws_are_the_last_of_their_chains_and_cost_what_they_say(wide):
    found, _ = wide
    assert trusted_censored(found) is found
    assert found.datasets == 3
    assert (found.epsilon_blanked, found.epsilon_changed) == (6e4, 12e4)
    for name, value in found.draws.items():
        assert value.shape[1:] == found.history[name].shape[2:]
        np.testing.assert_array_equal(value, found.history[name][:3, 499])
    assert len(np.unique(np.asarray(found.draws[coefficients(found.model)[0]])[:, 0])) == 3


def test_a_fit_that_fails_is_not_released(wide):
    found, _ = wide
    with pytest.raises(SurveyError, match="chains disagree"):
        trusted_censored(replace(found, verdict=Verdict(1.2, 500.0, 500.0, 0, 1.0)))
    with pytest.raises(SurveyError, match="give some of them up"):
        trusted_censored(replace(found, odds=1e-3))


# --- another part of the posterior ---


def test_groups_that_can_move_alone_are_the_levels_of_factors():
    x = np.array([[1.0, a == 1, a == 2, b] for a in range(3) for b in range(2)])
    groups = {tuple(np.flatnonzero(cells)) for cells, _ in movable_groups(x)}
    levels = {(0, 1), (2, 3), (4, 5), (0, 2, 4), (1, 3, 5), (0, 1, 2, 3, 4, 5)}
    assert levels <= groups
    for cells, direction in movable_groups(x):
        np.testing.assert_allclose(x @ direction, cells, atol=1e-9)


def test_the_odds_of_giving_up_equal_an_integral():
    """A group of three records, FBP: both parts of the posterior along its two coefficients, by summing over a grid."""
    model, interval, x = FBP(), Interval(-3.0, 0.6), np.array([[1.0, 0.0], [1.0, 1.0]])
    cell = np.repeat([0, 1], [40, 3])
    generator = np.random.default_rng(2)
    t = 1 + 0.3 * generator.standard_normal(43)
    records = Records(t, 0.3 * generator.standard_normal(43) - 0.5 * t, cell, x, ("1", "b"))
    found = fit_censored(model, records, interval, 3, Streams.seeded(4))
    draws = {name: value.reshape(-1, *value.shape[2:]) for name, value in found.history.items()}
    groups = [tuple(np.flatnonzero(cells)) for cells, _ in movable_groups(x)]
    odds = dict(zip(groups, log_odds_of_groups(model, x, make_blocks(records), interval, draws), strict=True))
    ratios = []
    for number in np.linspace(0, len(draws["beta"]) - 1, LOOKED_AT).astype(int):
        ratios.append(far_over_near(model, {k: v[number] for k, v in draws.items()}, records, interval))
    # the formula takes the part near the mode for normal and the rest of it for fixed: a factor of three is its error
    assert abs(odds[(1,)] - np.log(np.mean(ratios))) < np.log(3)
    assert found.odds > 1e-3
    with pytest.raises(SurveyError, match="give some of them up"):
        trusted_censored(found)


def far_over_near(model, draw, records, interval):
    """∫ prior·exp(Σ clip) over the dummy's coefficients: where all terms are lowest, over where they are not."""
    group = records.cell == 1
    fine = np.linspace(-4, 4, 401)
    step = fine[1] - fine[0]
    beta, kappa = (grid.ravel() for grid in np.meshgrid(fine, fine))
    terms = []
    for t, v in zip(records.t[group], records.v[group], strict=True):
        moved = {
            "beta": np.stack([np.full(len(beta), draw["beta"][0]), beta], axis=1),
            "kappa_x": np.stack([np.full(len(beta), draw["kappa_x"][0]), kappa], axis=1),
        }
        mean_t, mean_x = moved["beta"] @ [1, 1], moved["kappa_x"] @ [1, 1]
        off_p = (-v - draw["kappa_y"] * t - mean_x) / draw["sigma_pi"]
        off_t = (t - mean_t) / draw["sigma_y"]
        expected = mean_x + draw["sigma_pi"] ** 2 / 2 + draw["kappa_y"] * mean_t
        expected = expected + (draw["kappa_y"] * draw["sigma_y"]) ** 2 / 2
        density = -np.log(2 * np.pi * draw["sigma_y"] * draw["sigma_pi"]) - 0.5 * (off_p**2 + off_t**2) - expected
        terms.append(np.clip(density, *limits(interval)))
    height = np.sum(terms, axis=0) - 3 * interval.low
    prior = np.exp(-0.5 * (beta**2 + kappa**2) / model.coefficient_variance) / (2 * np.pi * model.coefficient_variance)
    near = np.sum(prior * np.where(height > 0, np.exp(height), 0)) * step**2
    return (1 - np.sum(prior * (height > 0)) * step**2) / near


def test_the_promise_is_printed_by_the_number_of_draws():
    draws = {"beta": jnp.zeros((5, 2))}
    verdict = Verdict(1.0, 1e3, 1e3, 0, 1.0)
    found = CensoredFit(FBS(), BASE, Interval(-1.5, 0.5), draws, verdict, 0.0, {})
    assert (found.datasets, found.epsilon_blanked, found.epsilon_changed) == (5, 10.0, 20.0)


# --- a model of another kind ---


def test_a_numpyro_model_has_the_same_density_without_clipping():
    """Up to a constant: the model's own density, and the clipped sum with its joint prior."""
    import numpyro
    import numpyro.distributions as dist

    from svysynth.models.numpyro import NumPyroModel

    def function(x, records=None):
        beta = numpyro.sample("beta", dist.Normal(jnp.zeros((2, x.shape[1])), 10.0).to_event(2))
        spread = numpyro.sample("spread", dist.HalfCauchy(jnp.ones(2)).to_event(1))
        numpyro.sample("records", dist.Normal(x @ beta.T, spread).to_event(1), obs=records)

    model, records = NumPyroModel(function), some_records(30)
    statistics = model.statistics(records, np.ones(30))
    whitening = model.whitening(statistics)
    size = joint_of(model).size(whitening, statistics)
    edges = jnp.asarray(-1e6), jnp.asarray(1e6)
    target = _Target(make_blocks(records), *edges, statistics, whitening, jnp.zeros(size), jnp.ones(size))
    own = jax.jit(_density(model, target))
    ordinary = jax.jit(lambda u: model.log_density(whitening(u)[0], statistics))
    u = [jnp.asarray(np.random.default_rng(seed).standard_normal(size)) for seed in range(3)]
    found, expected = [float(own(one)) for one in u], [float(ordinary(one)) for one in u]
    np.testing.assert_allclose(np.diff(found), np.diff(expected), atol=1e-7)
