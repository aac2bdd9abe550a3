"""Expected margins of the graphical model agree with mbi's, for a graph with a cycle (golden/margins/make.py)."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from svysynth.mechanisms.margins.graph import Graph, draw_levels

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/margins/mbi.json").read_text())
ANSWERS = [name for name in GOLDEN["levels"] if name != "cell"]
CELLS = np.arange(GOLDEN["levels"]["cell"])


def graph_and_parameters():
    factors, parameters = [], []
    for factor in GOLDEN["factors"]:
        own, values = factor["columns"], np.array(factor["parameters"])
        by_cell = own[0] == "cell"
        factors.append(([ANSWERS.index(name) for name in own[by_cell:]], CELLS if by_cell else 0 * CELLS))
        parameters.append(jnp.asarray(values if by_cell else values[None]))
    graph = Graph.of([GOLDEN["levels"][name] for name in ANSWERS], factors, np.array(GOLDEN["count"]))
    return graph, tuple(parameters)


def test_margins_are_those_of_mbi():
    graph, parameters = graph_and_parameters()
    for factor, found in zip(GOLDEN["factors"], graph.margins(parameters), strict=True):
        expected = np.array(factor["margin"])
        assert np.allclose(np.asarray(found).reshape(expected.shape), expected, rtol=1e-9, atol=0)


def test_levels_drawn_evenly_have_these_margins():
    graph, parameters = graph_and_parameters()
    times = 200
    cell = np.repeat(CELLS, np.array(GOLDEN["count"]) * times)
    levels = draw_levels(graph, parameters, cell, np.random.default_rng(3))
    for factor in GOLDEN["factors"]:
        own, expected = factor["columns"], np.array(factor["margin"]) * times
        columns = [cell if name == "cell" else levels[:, ANSWERS.index(name)] for name in own]
        place = np.ravel_multi_index(columns, expected.shape)
        found = np.bincount(place, minlength=expected.size).reshape(expected.shape)
        # independent draws of 20,000 records would have standard deviations of up to 70; these have at most 25
        assert np.abs(found - expected).max() < 100
