"""Asked: the tables that are asked of a survey, with their titles, and the records that each of them is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from svysynth.core.errors import SurveyError
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.requests import Request, problem, request
from svysynth.core.spec.statistics import ANSWERED
from svysynth.estimation.frames import domain_columns, title_of
from svysynth.survey.answers import answered_column, coded
from svysynth.survey.survey import Survey

THOSE_WHO_ANSWERED = "of those who answered"
"""Added to the title of a table that leaves missing answers out."""


@dataclass(frozen=True)
class Asked:
    """A table, with what it asks of a survey."""

    table: TableSpec
    request: Request
    title: str
    domains: tuple[str, ...]
    """The columns of the domains that it is restricted to."""
    inside: tuple[str, ...]
    """The same, and the columns that say who gave the answers that it looks at, if these may be missing."""

    @classmethod
    def of(cls, table: TableSpec, survey: Survey) -> Asked:
        """What a table asks of a survey; what the survey does not have is refused."""
        require_public(survey, [column for column in table.by if column not in survey.variables])
        kinds = {name: variable.kind for name, variable in survey.variables.items()}
        wrong = problem(table, survey.outcome, kinds, survey.public)
        if wrong is not None:
            raise SurveyError("spec", f"table '{table.title}'", wrong, "correct it, or leave it out")
        found = request(table, survey.outcome, kinds)
        domains = tuple(domain_columns(table, survey.domain, {*survey.schema, *survey.domains}))
        gaps = [name for name in found.answers if name in survey.variables and survey.variables[name].may_miss]
        title = title_of(table, survey.domain)
        if gaps:
            more = [ANSWERED] if ANSWERED not in found.statistics else []
            found, title = found._replace(statistics=(*found.statistics, *more)), f"{title} ({THOSE_WHO_ANSWERED})"
        return cls(table, found, title, domains, (*domains, *map(answered_column, gaps)))

    def confidential(self, survey: Survey) -> tuple[str, ...]:
        """The columns of the table that follow from answers: tables that have the same ones share their passes."""
        return tuple(sorted(column for column in (*self.request.by, *self.inside) if coded(column, survey.variables)))


def refuse_apart(table: TableSpec, domains: Sequence[str], survey: Survey) -> None:
    """Stop at a table without a record inside, unless public levels say that there could be one."""
    known = [survey.domains[domain] for domain in domains if domain in survey.domains]
    if len(known) < len(domains) or not known[0].meets(known[-1]):
        problem = "has no record that is inside both its domain and that of the survey"
        raise SurveyError("data", f"table '{table.title}'", problem, "loosen one of them")


def require_public(survey: Survey, columns: Sequence[str]) -> None:
    """Stop if a column is not public."""
    for column in columns:
        if column not in survey.public:
            raise SurveyError("spec", f"column '{column}'", "is not public", "name it in survey.public, or drop it")
