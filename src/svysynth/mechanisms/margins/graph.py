"""Graph: a log-linear model of the answers of a record given its public cell, and its expected margins.

    log p(a | c) = Σ_m θ_m[row of c, levels of a] − log Z_c(θ)

A factor m has a parameter for each combination of a row of public cells and levels of one or more answers. Answers are
summed out one after another (variable elimination), so that a graph of answers may have any shape: only the largest
set of answers that have to be treated together matters for time and memory. The public cells are given: the number of
records in each is exact whatever the parameters. Expected margins are the derivatives of Σ n_c log Z_c by θ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.models.arrays import Array

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread more evenly than those of any other number."""
Parameters = tuple[Any, ...]
"""An array for each factor: row of public cells × levels of its answers."""


@outlined
@dataclass(frozen=True, eq=False)
class Factor:
    """The answers of a factor, and the row of each public cell."""

    answers: tuple[int, ...]
    """Their positions, in ascending order."""
    row: Integers
    """The row of each cell; all zeros if the factor does not depend on the cell."""
    sizes: tuple[int, ...]
    """The number of levels of each of its answers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its parameters and of its margin."""
        return (int(self.row.max()) + 1, *self.sizes)


@outlined
@dataclass(frozen=True, eq=False)
class Graph:
    """The factors of a model, and the number of records in each public cell."""

    levels: tuple[int, ...]
    """The number of levels of each answer."""
    factors: tuple[Factor, ...]
    count: Integers
    """The number of records in each cell."""

    @classmethod
    def of(cls, levels: Sequence[int], factors: Sequence[tuple[Sequence[int], Integers]], count: Integers) -> Graph:
        """A graph with factors of these answers and rows."""
        made = (Factor(tuple(own), row, tuple(levels[one] for one in own)) for own, row in factors)
        return cls(tuple(levels), tuple(made), count)

    @property
    def order(self) -> tuple[int, ...]:
        """The order in which answers are summed out: each time one whose sum needs the smallest table."""
        return tuple(answer for answer, _ in self._eliminated())

    @property
    def largest_table(self) -> float:
        """The number of entries of the largest table that is needed to sum the answers out."""
        return len(self.count) * max(size for _, size in self._eliminated())

    def _eliminated(self) -> list[tuple[int, float]]:
        """The answers in the order in which they are summed out, with the size of each one's table in a cell."""
        left, scopes, found = set(range(len(self.levels))), [set(one.answers) for one in self.factors], []
        while left:
            reach = {one: set().union({one}, *(scope for scope in scopes if one in scope)) for one in left}
            size = {one: float(np.prod([float(self.levels[other]) for other in reach[one]])) for one in left}
            first = min(left, key=lambda one: (size[one], -one))
            scopes = [scope for scope in scopes if first not in scope] + [reach[first] - {first}]
            left.remove(first)
            found.append((first, size[first]))
        return found

    def zeros(self) -> Parameters:
        """Parameters that are all zero."""
        return tuple(jnp.zeros(factor.shape) for factor in self.factors)

    def eliminate(self, parameters: Parameters) -> tuple[Any, list[tuple[int, tuple[int, ...], Any]]]:
        """log Z of each cell, and for each answer in the order of elimination its table given the answers left.

        An entry of a table is a log probability up to a constant: cell × levels of the answers of its scope.
        """
        # products with rows of 0 and 1: their derivatives are products too, and far faster than sums by index
        parts: list[tuple[tuple[int, ...], Array]] = [
            (factor.answers, jnp.tensordot(np.eye(factor.shape[0])[factor.row], value, 1))
            for factor, value in zip(self.factors, parameters, strict=True)
        ]
        tables = []
        for answer in self.order:
            own = [part for part in parts if answer in part[0]]
            scope = tuple(sorted({answer}.union(*(set(answers) for answers, _ in own))))
            total = jnp.zeros(())
            for answers, value in own:
                total = total + _spread(value, answers, scope)
            total = jnp.broadcast_to(total, (len(self.count), *(self.levels[one] for one in scope)))
            tables.append((answer, scope, total))
            rest = tuple(one for one in scope if one != answer)
            parts = [part for part in parts if answer not in part[0]]
            parts.append((rest, logsumexp(total, axis=1 + scope.index(answer))))
        return jnp.sum(jnp.stack([value for _, value in parts]), axis=0), tables

    def margins(self, parameters: Parameters) -> Parameters:
        """The expected number of records in each cell of each factor."""
        count = jnp.asarray(self.count, float)
        found: Parameters = jax.grad(lambda given: jnp.sum(count * self.eliminate(given)[0]))(parameters)
        return found


def _spread(value: Any, answers: tuple[int, ...], scope: tuple[int, ...]) -> Any:
    """A table of some answers with axes of length 1 for the others of a scope."""
    places = [1 + answers.index(one) if one in answers else None for one in scope]
    shape = (value.shape[0], *(1 if place is None else value.shape[place] for place in places))
    return value.reshape(shape)


def draw_levels(graph: Graph, parameters: Parameters, cell: Integers, generator: np.random.Generator) -> Integers:
    """The levels of the answers of records, drawn evenly: record × answer. Records are in ascending order of cells.

    Answers are drawn in the reverse order of elimination, each given those drawn before. Records are sorted by their
    cell and these levels, in random order where they share them, and get uniform numbers that are spread evenly over
    any records next to each other. So levels have nearly their expected frequencies in any larger group of records.
    """
    tables = graph.eliminate(parameters)[1]
    found = np.zeros((len(cell), len(graph.levels)), np.int64)
    for answer, scope, table in reversed(tables):
        axis = scope.index(answer)
        rest = [one for one in scope if one != answer]
        weight = np.exp(np.moveaxis(np.asarray(table - table.max(axis=1 + axis, keepdims=True)), 1 + axis, -1))
        reached = np.cumsum(weight, axis=-1).reshape(-1, graph.levels[answer])
        sizes = [len(graph.count), *(graph.levels[one] for one in rest)]
        state = np.ravel_multi_index([cell, *(found[:, one] for one in rest)], sizes)
        target = even_uniforms(state, generator) * reached[state, -1]
        found[:, answer] = np.minimum((reached[state] <= target[:, None]).sum(axis=1), graph.levels[answer] - 1)
    return found


def even_uniforms(state: Integers, generator: np.random.Generator) -> Floats:
    """Uniform numbers that are spread evenly among the records of each state, and of states next to each other."""
    order = np.lexsort((generator.random(len(state)), state))
    found = np.empty(len(state))
    found[order] = (generator.random() + GOLDEN * np.arange(len(state))) % 1.0
    return found
