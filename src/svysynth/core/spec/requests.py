"""Requests: what a table asks of a survey, once it is known which answers are amounts, categories or yes/no.

A table `of` a category gives the share of each of its levels. It is the table by one more column, the category, with
proportions within the other columns. All other tables are of one number, the outcome or the answer that `of` names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from svysynth.core.errors import did_you_mean
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.statistics import ANSWERED, Quantile, Ratio, Share, parse_statistic
from svysynth.core.spec.variables import Kind

OF_THE_POPULATION = ("count", "proportion")
"""The statistics that do not look at any answer."""


class Request(NamedTuple):
    """What a table asks for."""

    of: str
    """The number that means and other statistics are of."""
    by: tuple[str, ...]
    within: tuple[str, ...]
    """The columns that proportions are within; without any they are of the whole."""
    statistics: tuple[str, ...]
    answers: tuple[str, ...]
    """The numbers that its statistics look at: the table is about those who answered all of them."""


def request(table: TableSpec, outcome: str, kinds: Mapping[str, Kind]) -> Request:
    """What a table asks for; `kinds` has the declared answers, the outcome perhaps among them."""
    given = "statistics" in table.model_fields_set
    if table.of is not None and kinds.get(table.of) == "category":
        statistics = table.statistics if given else OF_THE_POPULATION
        within = table.within if "within" in table.model_fields_set else table.by
        return Request(outcome, (*table.by, table.of), within, statistics, _of_ratios(statistics))
    statistics = OF_THE_POPULATION if table.within and not given else table.statistics
    of, ratios = table.of or outcome, _of_ratios(statistics)
    looked_at = [name for name in statistics if name not in OF_THE_POPULATION and "ratio(" not in name]
    answers = (of, *ratios) if table.of is not None or looked_at else ratios
    return Request(of, table.by, table.within, statistics, tuple(dict.fromkeys(answers)))


def explicit(table: TableSpec, outcome: str, kinds: Mapping[str, Kind]) -> TableSpec:
    """The same table with the statistics and the columns `within` that it has by default."""
    asked = request(table, outcome, kinds)
    if (asked.statistics, asked.within) == (table.statistics, table.within):
        return table
    return table.model_copy(update={"name": table.title, "statistics": asked.statistics, "within": asked.within})


def _of_ratios(statistics: Collection[str]) -> tuple[str, ...]:
    ratios = [found for name in statistics if isinstance(found := parse_statistic(name), Ratio)]
    return tuple(name for ratio in ratios for name in ratio)


def problem(table: TableSpec, outcome: str, kinds: Mapping[str, Kind], public: Collection[str]) -> str | None:
    """What is wrong with the columns and statistics of a table, in words; None if nothing is."""
    numbers = [name for name in dict.fromkeys([outcome, *kinds]) if kinds.get(name) != "category"]
    classes = [name for name in kinds if kinds[name] != "amount"]
    for column in table.by:
        if column in numbers and column not in (*classes, *public):
            return f"'by' names '{column}', which is an amount: put it in bands, as a category in survey.variables"
        if column not in (*public, *classes):
            return f"'by' names '{column}', which is not in survey.public{did_you_mean(column, [*public, *classes])}"
    if table.of is not None and table.of not in (*numbers, *kinds):
        known = list(dict.fromkeys([*numbers, *kinds]))
        return f"'of' names '{table.of}', which is not in survey.variables{did_you_mean(table.of, known)}"
    if table.of in table.by:
        return f"'of' and 'by' both name '{table.of}'"
    for column in table.within:
        if column not in table.by:
            return f"'within' names '{column}', which is not in 'by'"
    asked = request(table, outcome, kinds)
    if table.within and "proportion" not in asked.statistics:
        return "'within' is for proportions: add 'proportion' to 'statistics'"
    for name in asked.statistics:
        own = _problem_of_statistic(name, table, kinds.get(asked.of, "amount"), asked, numbers)
        if own is not None:
            return own
    return None


def _problem_of_statistic(
    name: str, table: TableSpec, kind: Kind, asked: Request, numbers: Collection[str]
) -> str | None:
    statistic = parse_statistic(name)
    if isinstance(statistic, Ratio):
        other = [column for column in statistic if column not in numbers]
        return f"'{name}' names '{other[0]}', which is neither an amount nor a yes/no answer" if other else None
    if table.of in asked.by and name not in OF_THE_POPULATION:
        return f"'{table.of}' is a category, which has no '{name}': ask for 'count' or 'proportion'"
    if kind == "yes/no" and isinstance(statistic, Quantile | Share):
        return f"'{asked.of}' is a yes/no answer, which has no '{name}': its 'mean' is the share of yes"
    return None


def only_direct(table: TableSpec, outcome: str, public: Collection[str]) -> str | None:
    """What a table asks for that releases of one outcome do not have; None if they have it all."""
    answers = [column for column in table.by if column not in public]
    parsed = {name: parse_statistic(name) for name in table.statistics}
    more = [name for name, statistic in parsed.items() if statistic == ANSWERED or isinstance(statistic, Ratio)]
    if table.of not in (None, outcome):
        return f"it is of '{table.of}', and there the outcome is the only answer"
    if answers:
        return f"'by' names '{answers[0]}', and there only public columns have levels"
    if table.within:
        return "it has proportions 'within' columns, and there they are of the whole"
    return f"it asks for '{more[0]}', and there the outcome is the only answer, and never missing" if more else None
