"""Regressors: the columns of a regression's design matrix, made from the levels and the numbers of the records.

Coding is R's treatment coding. A category has a column for each level but the first, its reference; levels without a
record in the regression are left out. In a term of several columns a category has a column for every level if the rest
of the term is no term of its own, and without an intercept the first category has one too. Terms come in the order of
how many columns interact. A yes/no answer is a number, 1 for yes and 0 for no, and an amount is itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.errors import SurveyError
from svysynth.core.formula import Formula, Term
from svysynth.core.grouping import Floats, Integers
from svysynth.core.regression_formula import PLACE
from svysynth.core.safe_repr import outlined
from svysynth.survey.survey import Survey

INTERCEPT = "Intercept"
MOST_COEFFICIENTS = 500


@outlined
@dataclass(frozen=True, eq=False)
class Categories:
    """A category on the right side: its level in each record, and the levels that records of the regression have."""

    code: Column
    labels: tuple[str, ...]
    present: Integers
    """The positions of the levels, in order."""

    def numbers(self, piece: slice, inside: Integers, contrast: bool) -> Floats:
        """A column of 1 and 0 for each level, without the first where it is the reference."""
        code = np.asarray(self.code[piece])[inside]
        return np.asarray(code[:, np.newaxis] == self.present[int(contrast) :], np.float64)

    def names(self, column: str, contrast: bool) -> list[str]:
        """What its columns are called."""
        return [f"{column}[{self.labels[level]}]" for level in self.present[int(contrast) :].tolist()]


@outlined
@dataclass(frozen=True, eq=False)
class Numbers:
    """An amount or a yes/no answer on the right side."""

    value: Column
    yes_or_no: bool

    def numbers(self, piece: slice, inside: Integers, contrast: bool) -> Floats:
        """The numbers themselves, as one column."""
        return np.asarray(self.value[piece], np.float64)[inside][:, np.newaxis]

    def names(self, column: str, contrast: bool) -> list[str]:
        """What the column is called."""
        return [f"{column}[yes]" if self.yes_or_no else column]


Source = Categories | Numbers


@outlined
@dataclass(frozen=True, eq=False)
class Regressors:
    """The design matrix of a regression, of which any records can be asked for."""

    sources: dict[str, Source]
    terms: tuple[Term, ...]
    """In the order of the coefficients, with the empty term for the intercept."""
    contrasts: tuple[tuple[bool, ...], ...]
    """For each column of each term: whether its first level is the reference."""
    names: tuple[str, ...]
    """The names of the coefficients."""
    term_of: tuple[Term, ...]
    """The term of each coefficient."""

    @classmethod
    def of(cls, formula: Formula, sources: dict[str, Source]) -> Regressors:
        """The design matrix of the right side of a formula."""
        for column, source in sources.items():
            if isinstance(source, Categories) and len(source.present) < 2:
                problem = f"names '{column}', which has the same level in all records of the regression"
                raise SurveyError("data", PLACE, problem, "leave it out")
        terms = sorted(formula.terms, key=len)
        terms = [(), *terms] if formula.intercept else terms
        categories = (name for term in terms for name in term if isinstance(sources[name], Categories))
        first = None if formula.intercept else next(categories, None)
        contrasts = tuple(_contrasts(term, terms, first) for term in terms)
        names: list[str] = []
        term_of: list[Term] = []
        for term, coded in zip(terms, contrasts, strict=True):
            own = _names(term, coded, sources)
            names, term_of = [*names, *own], [*term_of, *[term] * len(own)]
            if len(names) > MOST_COEFFICIENTS:
                problem = f"has more than {MOST_COEFFICIENTS} coefficients"
                raise SurveyError("spec", PLACE, problem, "use fewer interactions, or merge small levels")
        return cls(sources, tuple(terms), contrasts, tuple(names), tuple(term_of))

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, piece: slice, inside: Integers) -> Floats:
        """The rows of some records of a block, whose positions in the block are `inside`."""
        found = [self._columns(piece, inside, *term) for term in zip(self.terms, self.contrasts, strict=True)]
        return np.hstack(found)

    def _columns(self, piece: slice, inside: Integers, term: Term, contrasts: Sequence[bool]) -> Floats:
        found = np.ones((len(inside), 1))
        for column, contrast in zip(term, contrasts, strict=True):  # the first column of a term varies fastest, as in R
            own = self.sources[column].numbers(piece, inside, contrast)
            found = (own[:, :, np.newaxis] * found[:, np.newaxis, :]).reshape(len(inside), -1)
        return found


def _contrasts(term: Term, terms: Sequence[Term], first: str | None) -> tuple[bool, ...]:
    """For each column of a term, whether its first level is the reference.

    It is if the rest of the term is in the formula, so that a column for every level would be one too many. `first` is
    the category that takes the place of the intercept, in the first term that has it.
    """
    own = first is not None and term == next(other for other in terms if first in other)
    rests = {frozenset[str](), *map(frozenset, terms)}
    return tuple(frozenset(term) - {name} in rests and not (own and name == first) for name in term)


def _names(term: Term, contrasts: Sequence[bool], sources: dict[str, Source]) -> list[str]:
    if not term:
        return [INTERCEPT]
    found = [""]
    for column, contrast in zip(term, contrasts, strict=True):
        own = sources[column].names(column, contrast)
        found = [f"{before}:{name}" if before else name for name in own for before in found]
    return found


def is_number(column: str, survey: Survey) -> bool:
    """Whether a column is a number on the right side: an amount or a yes/no answer, the outcome among them."""
    if column in survey.variables:
        return survey.variables[column].kind != "category"
    return column == survey.outcome and column not in survey.public
