"""Coefficients: weighted least squares and weighted logistic regression, by Newton steps in orthonormal columns.

The estimate β solves Σ w x(y − μ(x′β)) = 0 over the records of the regression, where μ is the identity or the logistic
function. The columns of √w·X are made orthonormal first: √w·X = QR, with R from the blocks of records (each block gives
a triangle, and the triangles are put together). In the columns q = xR⁻¹ Newton's steps are well-conditioned whatever
the units of the amounts, and no squares of x are added up, which would lose half of the digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import expit

from svysynth.core.engine import map_blocks
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats
from svysynth.core.regression_formula import PLACE
from svysynth.core.safe_repr import outlined
from svysynth.estimation.explained import Explained, Family, Rows

DETERMINED = 1e-7
"""A column is determined by those before it if less than this fraction of its length is left, as in R's `lm`."""
CONVERGED = 1e-12
"""Newton's steps end when the linear predictor changes by less than this fraction of 1 + its size, in the mean."""
STEPS: dict[Family, int] = {"linear": 3, "logistic": 40}
"""The most steps. A linear model needs one; the others remove rounding error."""
HALVINGS = 20


@outlined
@dataclass(frozen=True, eq=False)
class Coefficients:
    """Estimated coefficients, and what their variance needs."""

    triangle: Floats
    """R of √w·X = QR."""
    turned: Floats
    """Rβ: the coefficients of the orthonormal columns."""
    information: Floats
    """Σ w μ′ qq′."""
    weight: float
    """Σ w."""

    @property
    def values(self) -> Floats:
        """The coefficients β."""
        return self.turned_back(self.turned)

    def turned_back(self, turned: Floats) -> Floats:
        """Coefficients of the columns, from those of the orthonormal columns."""
        return np.asarray(solve_triangular(self.triangle, turned, check_finite=False))  # NaN where there is no variance

    def covariance(self, turned: Floats) -> Floats:
        """The covariance of the coefficients, from that of the coefficients of the orthonormal columns."""
        return self.turned_back(self.turned_back(turned).T)


def orthonormal(x: Floats, triangle: Floats) -> Floats:
    """The rows q = xR⁻¹."""
    return np.asarray(solve_triangular(triangle, x.T, trans="T").T)


def mean_and_slope(family: Family, predictor: Floats) -> tuple[Floats, Floats]:
    """μ and μ′ of a linear predictor."""
    if family == "linear":
        return predictor, np.ones_like(predictor)
    mean = expit(predictor)
    return mean, mean * (1 - mean)


def fit(explained: Explained, family: Family) -> Coefficients:
    """The coefficients; columns that others determine, and a model that does not converge, are refused."""
    engine, records = explained.survey.engine, len(explained.survey)
    pieces = map_blocks(engine, _Triangle(explained.rows), records)
    triangle = _triangle_of(np.vstack([own for own, _ in pieces]))
    _refuse_determined(triangle, explained)
    weight = sum(total for _, total in pieces)

    def sums(turned: Floats) -> _Sums:
        found = map_blocks(engine, _BlockSums(explained.rows, family, triangle, turned), records)
        return _Sums(*(np.sum(parts, axis=0) for parts in zip(*found, strict=True)))

    turned, converged = _newton(sums, np.zeros(len(triangle)), family, weight)
    if not converged:
        problem = "is a logistic model that does not converge: for some of its columns every answer is the same"
        remedy = "leave such columns out, merge their levels, or use the family 'linear'"
        raise SurveyError("data", PLACE, problem, remedy)
    return Coefficients(triangle, turned, sums(turned).information, weight)


def _newton(sums: Callable[[Floats], _Sums], turned: Floats, family: Family, weight: float) -> tuple[Floats, bool]:
    """Newton's steps from a starting value, and whether they converged."""
    here = sums(turned)
    for _ in range(STEPS[family]):
        try:
            step = np.linalg.solve(here.information, here.score)
        except np.linalg.LinAlgError:
            return turned, False
        for _ in range(HALVINGS):
            there = sums(turned + step)
            if family == "linear" or there.deviance <= here.deviance * (1 + CONVERGED):
                break
            step = step / 2
        turned, here = turned + step, there
        size, change = (float(np.sqrt(value @ value / weight)) for value in (turned, step))
        if family == "logistic" and change <= CONVERGED * (1 + size):
            return turned, True
    return turned, family == "linear"


def _triangle_of(matrix: Floats) -> Floats:
    """R of a matrix QR."""
    return np.asarray(np.linalg.qr(matrix, mode="r"), np.float64)


@outlined
@dataclass(frozen=True, eq=False)
class _Sums:
    """Half the deviance, the score Σ w q(y − μ) and the information at some coefficients."""

    deviance: float
    score: Floats
    information: Floats


@outlined
@dataclass(frozen=True)
class _Triangle:
    """The triangle of a block, and its Σw."""

    rows: Rows

    def __call__(self, piece: slice) -> tuple[Floats, float]:
        block = self.rows.block(piece)
        return _triangle_of(np.sqrt(block.weight)[:, np.newaxis] * block.x), float(block.weight.sum())


@outlined
@dataclass(frozen=True)
class _BlockSums:
    """The sums of a block."""

    rows: Rows
    family: Family
    triangle: Floats
    turned: Floats

    def __call__(self, piece: slice) -> tuple[float, Floats, Floats]:
        block = self.rows.block(piece)
        q = orthonormal(block.x, self.triangle)
        predictor = q @ self.turned
        mean, slope = mean_and_slope(self.family, predictor)
        left = block.y - mean
        if self.family == "linear":
            deviance = float(block.weight @ left**2) / 2
        else:
            deviance = float(block.weight @ (np.logaddexp(0.0, predictor) - block.y * predictor))
        return deviance, q.T @ (block.weight * left), (q * (block.weight * slope)[:, np.newaxis]).T @ q


def _refuse_determined(triangle: Floats, explained: Explained) -> None:
    length, left = np.sqrt((triangle**2).sum(axis=0)), np.abs(np.diag(triangle))
    determined = np.flatnonzero(left <= DETERMINED * length)
    if len(determined):
        named = (explained.regressors.term_of[place] for place in determined.tolist())
        terms = ", ".join(dict.fromkeys(":".join(term) or "1" for term in named))
        problem = f"has terms that the terms before them determine among the records of the regression: {terms}"
        raise SurveyError("data", PLACE, problem, "leave these out, or use fewer interactions")
