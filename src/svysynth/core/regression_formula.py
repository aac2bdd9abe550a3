"""The formula of a regression: `answer ~ columns`, with the columns in the grammar of `formula.py`.

The left side names a number of each record: an answer as it is, its logarithm `log(salary)`, or whether it lies above
or below a threshold, `salary > 50000`, which is 1 or 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from svysynth.core.errors import SurveyError, did_you_mean, shown
from svysynth.core.formula import Formula, parse_formula
from svysynth.core.spec.statistics import Share, number, parse_statistic

PLACE = "the formula"
EXAMPLES = "write it like salary ~ field + gender, log(salary) ~ field * gender or salary > 50000 ~ field"

_NAME = r"(?:`(?P<quoted>[^`]*)`|(?P<word>\w+))"
_PLAIN = re.compile(rf"\s*{_NAME}\s*")
_LOG = re.compile(rf"\s*log\(\s*{_NAME}\s*\)\s*")
_ABOVE = re.compile(rf"\s*{_NAME}\s*(?P<comparison>>=|<=|>|<)\s*(?P<threshold>[^\s<>=]+)\s*")
_SIDES = re.compile(r"(?P<left>(?:[^~`]|`[^`]*`)*)~(?P<right>.*)", re.DOTALL)


@dataclass(frozen=True)
class LeftSide:
    """The number that a regression explains."""

    column: str
    log: bool = False
    share: Share | None = None
    """The threshold, where the number is 1 on one side of it and 0 on the other."""

    def __str__(self) -> str:
        if self.share is not None:
            return f"{self.column} {self.share.comparison} {number(self.share.threshold)}"
        return f"log({self.column})" if self.log else self.column


@dataclass(frozen=True)
class RegressionFormula:
    """A parsed formula of a regression."""

    left: LeftSide
    right: Formula
    text: str
    """The formula as it was written."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the right side, each once, in the order of the formula."""
        return tuple(dict.fromkeys(column for term in self.right.terms for column in term))


def parse_regression(text: str, answers: Sequence[str], columns: Sequence[str]) -> RegressionFormula:
    """The formula that a text stands for; `answers` may be on its left side and `columns` on its right side.

    >>> found = parse_regression("log(pay) ~ field * sex", ["pay"], ["field", "sex"])
    >>> str(found.left), found.right.terms
    ('log(pay)', (('field',), ('sex',), ('field', 'sex')))
    >>> str(parse_regression("pay>1e3 ~ 1", ["pay"], []).left)
    'pay > 1000'
    """
    sides = _SIDES.fullmatch(text)
    if sides is None:
        raise SurveyError("spec", PLACE, "has no ~ between its two sides", EXAMPLES)
    left = _left_side(sides["left"], answers)
    # blanks in the place of the left side, so that errors count the characters of the whole formula
    right = " " * (len(sides["left"]) + 1) + sides["right"]
    known = f"one of {', '.join(columns)}" if columns else "known here"
    return RegressionFormula(left, parse_formula(right, columns, PLACE, known), text.strip())


def _left_side(text: str, answers: Sequence[str]) -> LeftSide:
    for form in (_PLAIN, _LOG, _ABOVE):
        match = form.fullmatch(text)
        if match is None:
            continue
        column = match["word"] if match["quoted"] is None else match["quoted"]
        if column not in answers:
            problem = f"has '{shown(column)}' on its left side, which is no answer{did_you_mean(column, answers)}"
            raise SurveyError("spec", PLACE, problem, f"name one of {', '.join(answers)}")
        return LeftSide(column, form is _LOG, _share(match) if form is _ABOVE else None)
    problem = "has a left side that is neither an answer, nor its logarithm, nor an answer with a threshold"
    raise SurveyError("spec", PLACE, problem, EXAMPLES)


def _share(match: re.Match[str]) -> Share:
    try:
        found = parse_statistic(f"share({match['comparison']} {match['threshold']})")
    except ValueError:
        raise SurveyError("spec", PLACE, "has a threshold that is not a number", EXAMPLES) from None
    return cast(Share, found)
