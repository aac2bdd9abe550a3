"""Planning: which margins are measured and how ε is split, decided from public information alone.

Measured are, for each confidential answer a, for the weight w, and for each column c that tables or the strata use:

    narrow bands of each amount and of w, and a sum of each amount cut off at a quantile of these bands
    sums of the weights, in the rows of each column and in all
    margins a × c and w × c, a × w, and pairs of answers: the outcome with each other, and pairs that tables ask for

Each use of the budget has a part of ε in proportion to the shares below, which were chosen on real files
(docs/margins.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.requests import request
from svysynth.core.spec.statistics import Ratio, parse_statistic
from svysynth.core.spec.survey import SurveySpec
from svysynth.mechanisms.margins.coding import WEIGHT, Coding
from svysynth.mechanisms.noise import laplace_scale
from svysynth.survey.domains import columns_of_domain

NARROW_BANDS, SUM_OF_AMOUNTS = 1.25, 0.75
BY_COLUMN, BY_COARSE_COLUMN, AMOUNT = 1.0, 0.6, 1.25
"""The share of a margin with a column of more than COARSE levels, of one with fewer, and a factor for amounts."""
COARSE = 4
OF_WEIGHT, BY_WEIGHT, PAIR, SUM_OF_WEIGHTS = 0.35, 0.4, 0.35, 0.35
"""A factor for margins of the weight, and the shares of answers by weight, of pairs of answers, of sums of weights."""
WEIGHT_BAND = "weight band"
"""The column of the bands of public weights."""


@dataclass(frozen=True)
class Use:
    """One use of the budget: numbers that get independent discrete Laplace noise."""

    name: str
    answers: tuple[str, ...]
    """The answers of a margin, or the one that is banded or summed."""
    columns: tuple[str, ...]
    """The public columns of its rows; none for the whole."""
    sensitivity: int
    epsilon: Fraction

    @property
    def scale(self) -> float:
        """The scale of the noise in whole numbers: sensitivity/ε, rounded up."""
        return laplace_scale(self.sensitivity, self.epsilon)


@dataclass(frozen=True)
class Plan:
    """How ε is spent. The parts add up to ε exactly."""

    bands: tuple[Use, ...]
    amounts: tuple[Use, ...]
    weights: tuple[Use, ...]
    """Sums of weights; empty if weights are public."""
    margins: tuple[Use, ...]

    @property
    def uses(self) -> tuple[Use, ...]:
        """All uses of the budget."""
        return (*self.bands, *self.amounts, *self.weights, *self.margins)

    @property
    def epsilon(self) -> Fraction:
        """The total ε, for changed answers."""
        return sum((use.epsilon for use in self.uses), Fraction())


STEPS = 2**29
"""The largest contribution to a sum, in whole numbers."""
BANDS_CHANGED, SUM_CHANGED = 2, 2 * STEPS
"""A changed record leaves an entry of a margin and enters another; its part of a sum moves from end to end."""


def modelled_columns(survey: SurveySpec, tables: Sequence[TableSpec]) -> tuple[str, ...]:
    """The public columns that margins are measured with: those of tables and domains, and the strata."""
    named = [column for table in tables for column in table.by if column in survey.public]
    domains = [survey.domain, *(table.domain for table in tables)]
    named += [column for domain in domains if domain for column in columns_of_domain(domain)]
    known = [column for column in named if column in survey.public]
    return tuple(dict.fromkeys([*known, *([survey.strata] if survey.strata else [])]))


def pairs_of(answers: Sequence[str], survey: SurveySpec, tables: Sequence[TableSpec]) -> tuple[tuple[str, str], ...]:
    """The pairs of answers whose margins are measured: the outcome with all others, and those of tables."""
    names = [name for name in answers if name != WEIGHT]
    found = [(survey.outcome, other) for other in names if other != survey.outcome]
    for table in tables:
        asked = request(table, survey.outcome, survey.kinds)
        used = [*asked.by, *asked.answers]
        for statistic in map(parse_statistic, asked.statistics):
            used += [*statistic] if isinstance(statistic, Ratio) else []
        found += itertools.combinations(dict.fromkeys(name for name in used if name in names), 2)
    return tuple({frozenset(pair): pair for pair in reversed(found) if pair[0] != pair[1]}.values())[::-1]


def plan_margins(
    codings: Sequence[Coding],
    columns: Mapping[str, int],
    pairs: Sequence[tuple[str, str]],
    epsilon: float,
) -> Plan:
    """Split ε over all uses; `columns` has the number of levels of each column."""
    amounts = [one for one in codings if one.banded]
    answers = [one for one in codings if one.name != WEIGHT]
    known = not any(one.name == WEIGHT for one in codings)
    shares: list[tuple[str, str, tuple[str, ...], tuple[str, ...], float]] = []
    for one in amounts:
        shares.append(("bands", f"narrow bands of {one.name}", (one.name,), (), NARROW_BANDS))
        if one.name != WEIGHT:
            shares.append(("amounts", f"sum of {one.name}", (one.name,), (), SUM_OF_AMOUNTS))
    if not known:
        for rows in [(), *((column,) for column in columns)]:
            shares.append(("weights", _named("weights", rows), (WEIGHT,), rows, SUM_OF_WEIGHTS))
    for one, column in itertools.product(codings, columns):
        share = BY_COLUMN if columns[column] > COARSE else BY_COARSE_COLUMN
        share *= OF_WEIGHT if one.name == WEIGHT else AMOUNT if one.banded else 1.0
        shares.append(("margins", _named(one.name, (column,)), (one.name,), (column,), share))
    if not columns:
        shares += [("margins", one.name, (one.name,), (), BY_COLUMN) for one in answers if not one.banded]
    if not known:
        shares += [("margins", f"{one.name} by weight", (WEIGHT, one.name), (), BY_WEIGHT) for one in answers]
    shares += [("margins", f"{first} by {second}", (first, second), (), PAIR) for first, second in pairs]
    total = sum(Fraction(share) for *_, share in shares)
    parts: dict[str, list[Use]] = {"bands": [], "amounts": [], "weights": [], "margins": []}
    for part, name, own, rows, share in shares:
        changed = SUM_CHANGED if part in ("amounts", "weights") else BANDS_CHANGED
        parts[part].append(Use(name, own, rows, changed, Fraction(epsilon) * Fraction(share) / total))
    return Plan(**{name: tuple(uses) for name, uses in parts.items()})


def _named(what: str, rows: tuple[str, ...]) -> str:
    return f"{what} by {' and '.join(rows)}" if rows else what
