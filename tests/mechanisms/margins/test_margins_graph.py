"""The graphical model against a list of all combinations of answers, and the fit against cases with known answers."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from svysynth.mechanisms.margins.fitting import MAIN_SPREAD, fit, spreads_of
from svysynth.mechanisms.margins.graph import Graph, draw_levels, even_uniforms

LEVELS = (2, 3, 2, 4)
COUNT = np.array([30, 0, 12, 8])
ALL = np.zeros(4, int)
CYCLE = [((0,), ALL), ((0, 1), ALL), ((1, 2), ALL), ((2, 3), ALL), ((0, 3), ALL), ((3,), np.array([0, 0, 1, 2]))]


def parameters_of(graph, seed=4):
    generator = np.random.default_rng(seed)
    return tuple(jnp.asarray(generator.normal(size=factor.shape)) for factor in graph.factors)


def listed(graph, parameters):
    """The probability of every combination of answers in every cell, from the definition."""
    found = np.zeros((len(graph.count), *graph.levels))
    for cell in range(len(graph.count)):
        for levels in itertools.product(*(range(size) for size in graph.levels)):
            terms = (
                float(value[(factor.row[cell], *(levels[one] for one in factor.answers))])
                for factor, value in zip(graph.factors, parameters, strict=True)
            )
            found[(cell, *levels)] = np.exp(sum(terms))
    return found


def test_margins_of_a_cycle_of_answers_are_those_of_all_combinations():
    graph = Graph.of(LEVELS, CYCLE, COUNT)
    parameters = parameters_of(graph)
    weight = listed(graph, parameters)
    total = weight.reshape(len(COUNT), -1).sum(axis=1)
    assert np.allclose(graph.eliminate(parameters)[0], np.log(total), rtol=1e-5)
    expected = weight / total.reshape(-1, 1, 1, 1, 1) * COUNT.reshape(-1, 1, 1, 1, 1)
    for factor, found in zip(graph.factors, graph.margins(parameters), strict=True):
        away = tuple(1 + one for one in range(len(LEVELS)) if one not in factor.answers)
        by_cell = expected.sum(axis=away)
        own = np.zeros(factor.shape)
        np.add.at(own, factor.row, by_cell)
        assert np.allclose(found, own, rtol=1e-4, atol=1e-4)


def test_the_largest_table_of_a_cycle_is_that_of_three_answers():
    graph = Graph.of(LEVELS, CYCLE, COUNT)
    assert graph.largest_table <= len(COUNT) * 2 * 3 * 4
    everything = [(pair, ALL) for pair in itertools.combinations(range(4), 2)]
    assert Graph.of(LEVELS, everything, COUNT).largest_table == len(COUNT) * 2 * 3 * 2 * 4


def test_drawn_levels_have_the_frequencies_of_the_model():
    graph = Graph.of(LEVELS, CYCLE, np.array([4000, 0, 4000, 4000]))
    parameters = parameters_of(graph)
    cell = np.repeat(np.arange(4), graph.count)
    drawn = draw_levels(graph, parameters, cell, np.random.default_rng(7))
    weight = listed(graph, parameters)
    for one in (0, 2, 3):
        own = drawn[cell == one]
        share = weight[one] / weight[one].sum()
        found = np.zeros(graph.levels)
        np.add.at(found, tuple(own.T), 1 / len(own))
        assert np.abs(found - share).max() < 0.02


def test_even_uniforms_are_even_within_a_state_and_over_its_neighbours():
    state = np.sort(np.random.default_rng(1).integers(0, 5, 1000))
    found = even_uniforms(state, np.random.default_rng(2))
    assert np.abs(np.histogram(found, 10, (0, 1))[0] - 100).max() <= 3
    assert np.abs(np.histogram(found[state == 2], 4, (0, 1))[0] / (state == 2).sum() - 0.25).max() < 0.02


def test_independent_data_have_no_spread_of_interactions_and_others_have():
    generator = np.random.default_rng(5)
    expected = np.full(200, 400.0)
    noise = 3.0
    alone = generator.poisson(expected) - expected + noise * generator.normal(size=200)
    assert spreads_of(alone[:, None], expected[:, None], noise)[0] < 0.03
    related = expected * 0.3 * generator.normal(size=200) + alone
    assert 0.25 < spreads_of(related[:, None], expected[:, None], noise)[0] < 0.36


@pytest.fixture(scope="module")
def fitted():
    """A margin of two cells and three levels, with many records and little noise."""
    rows = np.array([0, 1])
    graph = Graph.of((3,), [((0,), np.zeros(2, int)), ((0,), rows)], np.array([60_000, 40_000]))
    margin = np.array([[12_000.0, 18_000.0, 30_000.0], [20_000.0, 8_000.0, 12_000.0]])
    return fit(graph, [None, margin], [1.0, 40.0]), margin


def test_the_fit_has_the_measured_margin(fitted):
    found, margin = fitted
    expected = np.asarray(found.fitter.graph.margins(found.mode)[1])
    assert np.abs(expected - margin).max() < 40
    assert (found.spreads[0] == MAIN_SPREAD).all()


def test_draws_spread_as_the_exact_posterior_of_a_linear_problem(fitted):
    """The count of each row is known, so the noise of three levels is what is left across the row: 40·√(2/3)."""
    found, _ = fitted
    generator = np.random.default_rng(9)
    drawn = np.stack([np.asarray(found.fitter.graph.margins(found.draw(generator))[1]) for _ in range(60)])
    spread = np.sqrt(drawn.var(axis=0, ddof=1).mean())
    assert spread == pytest.approx(40 * np.sqrt(2 / 3), rel=0.2)
