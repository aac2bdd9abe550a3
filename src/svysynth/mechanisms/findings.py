"""Findings: reasons why a release would be wrong, and those that several mechanisms share.

A finding says what was found, why it matters and what to use instead; one that `stops` means no release. What is found
here needs no data: it may stop a release under any guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from svysynth.core.errors import SurveyError
from svysynth.core.safe_repr import outlined
from svysynth.core.spec import Spec, SurveySpec
from svysynth.survey.row_filter import refuse_private_filter
from svysynth.survey.survey import Survey

MOST_UNDECLARED = 0.005
"""The share of records that may count as another level than their own before the reviewer is told."""
LAPLACE = "use mechanism = 'laplace', whose tables need no model"


@outlined
@dataclass(frozen=True)
class Finding:
    """One line: what was found, why it matters, what to use instead."""

    place: str
    found: str
    why: str
    instead: str
    stops: bool

    def line(self) -> str:
        """The finding in one line."""
        return f"{self.place}: {self.reason}. Instead: {self.instead}."

    @property
    def reason(self) -> str:
        """What was found, and why it matters."""
        return f"{self.found}. {self.why[0].upper()}{self.why[1:]}" if self.why else self.found


CLUSTERS = Finding(
    "survey.cluster",
    "releases do not carry clusters yet",
    "their standard errors would be those of another design, and far too small",
    "make direct tables with `svysynth tables`; leave it out only if the sample has no clusters",
    stops=True,
)


def refuse(findings: Sequence[Finding]) -> None:
    """Stop at the first finding that stops; the others are counted."""
    stopping = [finding for finding in findings if finding.stops]
    if stopping:
        first = stopping[0]
        more = f" ({len(stopping) - 1} more such: `svysynth check` lists them)" if stopping[1:] else ""
        raise SurveyError("data", first.place, first.reason + more, first.instead)


def no_public_weights(spec: Spec) -> list[Finding]:
    """Of a mechanism that has no form for weights that are declared public."""
    if spec.privacy is None or not spec.survey.weight_public:
        return []
    return [
        Finding(
            "survey.weight_public",
            f"the mechanism '{spec.privacy.mechanism}' ({spec.privacy.guarantee}) has no form for public weights",
            "it models how weights arise, or protects them in any case",
            "use mechanism = 'fbs', or guarantee = 'global' with 'fbs' or 'fbp', or leave survey.weight_public out",
            stops=True,
        )
    ]


def undeclared(survey: Survey, spec: SurveySpec) -> list[Finding]:
    """Columns in which many records count as another level that the spec does not name."""
    return [
        Finding(
            f"column '{name}'",
            f"{share:.1%} of the records have no code, or one that is not declared, and count as the first level",
            "that level's figures are wrong, and those of the direct tables are wrong in the same way",
            "declare these codes in survey.levels, or name in survey.other the level that they are to count as",
            stops=False,
        )
        for name, share in survey.other.items()
        if name not in spec.other and share > MOST_UNDECLARED
    ]


def private_filter(survey: SurveySpec) -> list[Finding]:
    """A row filter that looks at more than public columns."""
    try:
        refuse_private_filter(survey)
    except SurveyError as error:
        return [Finding(error.place, error.problem, "", error.remedy, stops=True)]
    return []
