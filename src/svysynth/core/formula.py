"""The formula of a model: column names, `+ * :`, `0`, `1` and brackets, and nothing else.

It is parsed here before any library sees it: formulas of the library that makes the design matrices can run Python.
A formula becomes a list of terms; `a * b` stands for `a + b + a:b`, and `0` leaves the intercept out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from svysynth.core.errors import SurveyError, did_you_mean, shown

PLACE = "model.formula"
KNOWN = "in survey.public"
GRAMMAR = "use names of public columns (in backticks where a name is not a single word), + * : 0 1 and brackets"
MOST_TERMS = 1000
MOST_BRACKETS = 50
"""How deeply brackets may be nested."""

Term = tuple[str, ...]
"""The columns that interact; none for the intercept."""

_TOKEN = re.compile(r"\s*(?:`(?P<quoted>[^`]*)`|(?P<word>\w+)|(?P<sign>[-+*:()]|\S))")


@dataclass(frozen=True)
class Formula:
    """A parsed formula: the terms of the design matrix x."""

    intercept: bool
    terms: tuple[Term, ...]
    """In the order of the formula, without the intercept."""

    @classmethod
    def main_effects(cls, columns: Sequence[str]) -> Formula:
        """The intercept and a term for each column."""
        return cls(True, tuple((column,) for column in columns))


def parse_formula(text: str, columns: Sequence[str], place: str = PLACE, known: str = KNOWN) -> Formula:
    """The formula that a text stands for; only the columns given may be named.

    `place` says in errors where the text stands, and `known` what these columns are.

    >>> parse_formula("0 + field * gender", ["field", "gender"]).terms
    (('field',), ('gender',), ('field', 'gender'))
    """
    return _Parser(_tokens(text), columns, place, known).formula()


class _Token(NamedTuple):
    kind: str
    """`name`, `number`, `sign` or `end`."""
    text: str
    place: int


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        kind, place = str(match.lastgroup), match.start(str(match.lastgroup)) + 1
        token = match[kind]
        if kind == "word":
            kind = "name" if token.isidentifier() else "number"
        found.append(_Token("name" if kind == "quoted" else kind, token, place))
    return [*found, _Token("end", "", len(text) + 1)]


class _Parser:
    """Parses the tokens from left to right: a sum consists of products, and a product of interactions."""

    def __init__(self, tokens: list[_Token], columns: Sequence[str], place: str, known: str) -> None:
        self.tokens, self.columns = iter(tokens), columns
        self.place, self.known = place, known
        self.next = next(self.tokens)
        self.depth = 0
        self.without_intercept = False

    def formula(self) -> Formula:
        terms = self.sum()
        if self.next.kind != "end":
            raise self.unexpected()
        chosen = tuple(term for term in terms if term)
        intercept = not self.without_intercept
        if self.without_intercept and len(chosen) < len(terms):
            raise self.refused("has both 0 and 1", "0 leaves the intercept out, 1 keeps it: choose one")
        if not chosen and not intercept:
            raise self.refused("has no term", GRAMMAR)
        return Formula(intercept, chosen)

    def sum(self) -> list[Term]:
        found = self.summand()
        while self.accept("+"):
            found = self.distinct([*found, *self.summand()])
        return found

    def summand(self) -> list[Term]:
        if (self.next.kind, self.next.text) == ("number", "0") and self.depth == 0:
            zero = self.advance()
            if self.next.text in ("*", ":") and self.next.kind == "sign":
                raise self.refused(f"has a 0 that is multiplied, at character {zero.place}", GRAMMAR)
            self.without_intercept = True
            return []
        return self.product()

    def product(self) -> list[Term]:
        found = self.interaction()
        while self.accept("*"):
            other = self.interaction()
            found = self.distinct([*found, *other, *self.crossed(found, other)])
        return found

    def interaction(self) -> list[Term]:
        found = self.atom()
        while self.accept(":"):
            found = self.crossed(found, self.atom())
        return found

    def atom(self) -> list[Term]:
        if self.accept("("):
            self.depth += 1
            if self.depth > MOST_BRACKETS:
                raise self.refused(f"has more than {MOST_BRACKETS} nested brackets", "use fewer brackets")
            found = self.sum()
            if not self.accept(")"):
                raise self.unexpected()
            self.depth -= 1
            return found
        if self.next.kind == "name":
            return [(self.column(self.advance()),)]
        if (self.next.kind, self.next.text) == ("number", "1"):
            self.advance()
            return [()]
        raise self.unexpected()

    def column(self, token: _Token) -> str:
        if token.text not in self.columns:
            hint = did_you_mean(token.text, self.columns)
            problem = f"names '{shown(token.text)}' at character {token.place}, which is not {self.known}{hint}"
            raise self.refused(problem, GRAMMAR)
        return token.text

    def accept(self, sign: str) -> bool:
        if (self.next.kind, self.next.text) != ("sign", sign):
            return False
        self.advance()
        return True

    def advance(self) -> _Token:
        token, self.next = self.next, next(self.tokens, self.next)
        return token

    def unexpected(self) -> SurveyError:
        if self.next.kind == "end":
            return self.refused("ends too early", GRAMMAR)
        return self.refused(f"has '{shown(self.next.text)}' at character {self.next.place}", GRAMMAR)

    def crossed(self, left: list[Term], right: list[Term]) -> list[Term]:
        return self.distinct(tuple(dict.fromkeys((*one, *other))) for one in left for other in right)

    def distinct(self, terms: Iterable[Term]) -> list[Term]:
        """Each term once: a:b and b:a are the same."""
        found = list({frozenset(term): term for term in reversed(list(terms))}.values())[::-1]
        if len(found) > MOST_TERMS:
            raise self.refused(f"has more than {MOST_TERMS:,} terms", "use fewer interactions")
        return found

    def refused(self, problem: str, remedy: str) -> SurveyError:
        return SurveyError("spec", self.place, problem, remedy)
