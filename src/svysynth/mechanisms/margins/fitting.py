"""Fitting: the parameters of the graphical model given noisy margins, and draws from their posterior.

Each noisy margin y has normal errors with the standard deviation s of its noise about the expected margin μ(θ), and
parameters have independent normal priors about zero. The posterior mode is found by Gauss-Newton steps with conjugate
gradients: products with the derivative of μ by θ are second derivatives of Σ n log Z, and no matrix is ever formed.

A draw of the posterior is the mode for a perturbed problem (randomise, then optimise): noise is added once more to the
margins, and the centres of the priors are drawn from these. For a model that is linear in θ this is exact.

The prior of an interaction has the variance τ² + 1/μ₀, where μ₀ is its expected margin without it: sample counts have
the relative variance 1/μ₀ around those of the population, and the interactions of the population have the variance τ²,
which is estimated for each level of the last answer of a factor: rare levels may depart from independence far more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg

from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.mechanisms.margins.graph import Graph, Parameters

MAIN_SPREAD = 5.0
"""The prior standard deviation of the levels of an answer as a whole."""
USUAL_SPREAD = 0.4
"""The scale of the half-Cauchy prior of τ."""
SPREADS = np.concatenate([[0.0], np.geomspace(0.02, 3.0, 40)])
MOST_STEPS, MOST_PRODUCTS = 24, 100
ENOUGH = 1e-6
"""The relative improvement of the objective at which the search stops."""


@outlined
@dataclass(frozen=True, eq=False)
class Problem:
    """What parameters are fitted to: a noisy margin for each factor, or None, and the priors."""

    noisy: Parameters
    """Zeros for a factor whose margin was not measured."""
    precision: Parameters
    """1/s² for each entry; zero where nothing was measured."""
    centre: Parameters
    spread: Parameters
    """The prior standard deviations."""


class Fitter:
    """Fits one graph; compiled once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._fit = jax.jit(self._search)

    def __call__(self, problem: Problem, start: Parameters) -> Parameters:
        """The posterior mode."""
        found: Parameters = self._fit(problem.noisy, problem.precision, problem.centre, problem.spread, start)[0]
        return found

    def _search(self, noisy: Any, precision: Any, centre: Any, spread: Any, start: Any) -> Any:
        each = jax.tree.map
        strength = each(lambda one: 1 / one**2, spread)

        def objective(theta: Any) -> tuple[Any, Any]:
            expected = self.graph.margins(theta)
            of_noise = each(lambda e, y, p: jnp.sum(p * (e - y) ** 2), expected, noisy, precision)
            of_prior = each(lambda t, c, p: jnp.sum(p * (t - c) ** 2), theta, centre, strength)
            return (sum(of_noise) + sum(of_prior)) / 2, expected

        def step(state: Any) -> Any:
            theta, value, expected, damping, count, _ = state
            moved_by = jax.linearize(self.graph.margins, theta)[1]  # symmetric, so it is its own transpose
            off = each(lambda e, y, p: p * (e - y), expected, noisy, precision)
            gradient = each(lambda a, t, c, p: a + p * (t - c), moved_by(off), theta, centre, strength)

            def product(direction: Any) -> Any:
                through = moved_by(each(lambda a, p: a * p, moved_by(direction), precision))
                return each(lambda a, d, p: a + (1 + damping) * p * d, through, direction, strength)

            rough = each(lambda e, p, q: 1 / (p * e**2 + (1 + damping) * q), expected, precision, strength)
            change, _ = cg(  # type: ignore[no-untyped-call]
                product,
                each(lambda g: -g, gradient),
                tol=1e-3,
                maxiter=MOST_PRODUCTS,
                M=lambda d: each(lambda a, b: a * b, d, rough),
            )
            tried = each(lambda t, d: t + d, theta, change)
            found, at = objective(tried)
            better = found < value
            done = better & (value - found < ENOUGH * (1 + value))
            kept = each(lambda a, b: jnp.where(better, a, b), (tried, found, at), (theta, value, expected))
            damping = jnp.where(better, damping / 5, jnp.maximum(damping * 8, 1.0))
            return (*kept, damping, count + 1, done | (damping > 1e8))

        value, expected = objective(start)
        state = start, value, expected, jnp.asarray(0.1), 0, jnp.asarray(False)
        return jax.lax.while_loop(lambda state: ~state[-1] & (state[4] < MOST_STEPS), step, state)


@outlined
@dataclass(frozen=True, eq=False)
class Fitted:
    """The posterior mode, and what further draws need."""

    fitter: Fitter
    problem: Problem
    mode: Parameters
    spreads: tuple[Floats, ...]
    """The estimated τ of each factor, for each level of its last answer."""

    def draw(self, generator: np.random.Generator) -> Parameters:
        """A draw from the posterior, from fresh noise."""
        problem = self.problem
        noisy = tuple(
            jnp.asarray(y + np.where(p > 0, generator.normal(size=y.shape) / np.sqrt(np.where(p > 0, p, 1.0)), 0.0))
            for y, p in zip(map(np.asarray, problem.noisy), map(np.asarray, problem.precision), strict=True)
        )
        centre = tuple(
            jnp.asarray(c + generator.normal(size=c.shape) * s)
            for c, s in zip(map(np.asarray, problem.centre), map(np.asarray, problem.spread), strict=True)
        )
        return self.fitter(replace(problem, noisy=noisy, centre=centre), self.mode)


def fit(graph: Graph, noisy: Sequence[Floats | None], sd: Sequence[Any]) -> Fitted:
    """Fit a model to noisy margins with these errors, and estimate the τ of each factor on the way."""
    shapes = [factor.shape for factor in graph.factors]
    given = zip(noisy, shapes, strict=True)
    filled = tuple(jnp.zeros(shape) if y is None else jnp.asarray(y, float) for y, shape in given)
    known = [0.0 if y is None else 1 / s**2 for y, s in zip(noisy, sd, strict=True)]
    precision = tuple(jnp.broadcast_to(jnp.asarray(p), shape) for p, shape in zip(known, shapes, strict=True))
    orders = [len(factor.answers) + (factor.shape[0] > 1) for factor in graph.factors]
    fitter = Fitter(graph)
    theta, centre = _main_effects(graph, noisy, sd), graph.zeros()
    spread = [jnp.full(shape, MAIN_SPREAD if order == 1 else 1e-3) for shape, order in zip(shapes, orders, strict=True)]
    spreads = [
        np.full(shape[-1], MAIN_SPREAD if order == 1 else 0.0) for shape, order in zip(shapes, orders, strict=True)
    ]
    for order in range(2, max(orders) + 1):
        if order > 2:
            theta = fitter(Problem(filled, precision, centre, tuple(spread)), theta)
        expected = graph.margins(theta)
        for place, own in enumerate(orders):
            if own == order:
                before, base = np.asarray(filled[place]), np.asarray(expected[place])
                if noisy[place] is not None:
                    spreads[place] = spreads_of(before - base, base, sd[place])
                else:
                    spreads[place] = np.full(base.shape[-1], USUAL_SPREAD)
                spread[place] = jnp.sqrt(spreads[place] ** 2 + 1 / jnp.maximum(expected[place], 1.0))
    problem = Problem(filled, precision, centre, tuple(spread))
    return Fitted(fitter, problem, fitter(problem, theta), tuple(spreads))


def _main_effects(graph: Graph, noisy: Sequence[Floats | None], sd: Sequence[Any]) -> Parameters:
    """Parameters of the levels of each answer alone, from all margins that have it."""
    records = float(graph.count.sum())
    theta = list(graph.zeros())
    for answer, levels in enumerate(graph.levels):
        total, weight = np.zeros(levels), 0.0
        for factor, values, noise in zip(graph.factors, noisy, sd, strict=True):
            if values is not None and answer in factor.answers and len(factor.answers) + (factor.shape[0] > 1) > 1:
                axis = 1 + factor.answers.index(answer)
                found = values.sum(axis=tuple(one for one in range(values.ndim) if one != axis))
                own = 1 / (noise**2 * values.size / levels)
                total, weight = total + own * found, weight + own
        place = next(n for n, one in enumerate(graph.factors) if one.answers == (answer,) and one.shape[0] == 1)
        least = max(1.0, 1 / np.sqrt(weight))
        share = np.maximum(total / weight, least) / records
        theta[place] = jnp.log(share / share.sum())[None]
    return tuple(theta)


def spreads_of(off: Floats, expected: Floats, noise: float) -> Floats:
    """τ of each level, from the deviations of a noisy margin from its expectation without the interaction."""
    levels = range(expected.shape[-1])
    return np.array([_spread_of(off[..., level], expected[..., level], noise) for level in levels])


def _spread_of(off: Floats, expected: Floats, noise: float) -> float:
    """The root of the posterior mean of τ²."""
    off, expected = off.reshape(-1), expected.reshape(-1)
    variance = noise**2 + expected + (SPREADS[:, None] * expected) ** 2
    fits = -0.5 * (np.log(variance) + off**2 / variance).sum(axis=1)
    prior = np.gradient(SPREADS) / (1 + (SPREADS / USUAL_SPREAD) ** 2)
    weight = np.exp(fits - fits.max()) * prior
    return float(np.sqrt((weight * SPREADS**2).sum() / weight.sum()))
