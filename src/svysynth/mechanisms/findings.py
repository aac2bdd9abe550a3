"""Findings: reasons why a release would be wrong, with the findings that several mechanisms share.

A finding says what was found, why it matters and what to use instead. One that `stops` prevents the release. The
findings of this file may stop a release under any guarantee, because they do not depend on confidential data. Only
`undeclared` depends on such data, and it never stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from svysynth.core.errors import SurveyError, is_plain
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.requests import only_direct
from svysynth.core.spec.statistics import of_distribution
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import Spec
from svysynth.survey.domains import columns_of_domain, domain_column, public_column, stored_domains
from svysynth.survey.row_filter import refuse_private_filter
from svysynth.survey.survey import Survey

PRIVATE_DOMAIN = (
    "its tables would reveal something about a column that is not public, and synthetic files without the column could "
    "not show which records are inside"
)
PUBLIC_DOMAIN = "name public columns only: add a column to survey.public if all its values may be published"
MOST_UNDECLARED = 0.005
"""The share of records whose level was replaced by another one, above which the reviewer is told."""
CLUSTERED = (
    "use mechanism = 'fbs' or 'fbp' with guarantee = 'global', or mechanism = 'laplace', which take clusters into "
    "account; leave survey.cluster out only if the sample has no clusters"
)
FROM_FILES = (
    "use mechanism = 'margins', which measures the distribution of the outcome; or leave these statistics out of the "
    "tables, and make them from the synthetic files of 'fbs' with guarantee = 'global' (svysynth.read_synthetic with "
    "rules = 'imputed'), which have the model's distribution"
)
DIRECT = (
    "use mechanism = 'margins' with guarantee = 'global', which releases several answers; or leave this out, or make "
    "the table with `svysynth tables` from the confidential data, for internal use"
)
LAPLACE = "use mechanism = 'margins', which counts answers of any shape, or 'laplace', whose tables need no model"


@outlined
@dataclass(frozen=True)
class Finding:
    """A reason against a release: what was found, why it matters, what to use instead."""

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


STAGES = Finding(
    "survey.cluster",
    "models cannot take later stages of sampling into account",
    "synthetic files have no units within their clusters, and the standard errors would be those of another design",
    "name the columns of the first stage alone, and leave survey.fpc out: the standard errors are then too large, "
    "and by little if few first-stage units were sampled",
    stops=True,
)
"""For surveys that are given to a model in Python; a release takes the first stage alone by itself."""


WITH_REPLACEMENT = Finding(
    "survey.fpc",
    "a release takes the first stage alone, and its units as drawn with replacement",
    "its standard errors are too large: at most 1/√(1 − f) times as large, where f is the largest sampled fraction of "
    "the first-stage units of a stratum",
    "leave it so if f is small; where all units of a first-stage stratum were sampled, name them as survey.strata and "
    "those of the second stage as survey.cluster",
    stops=False,
)
WITH_REPLACEMENT_NOTE = (
    "The sample was drawn in several stages with finite population corrections. Standard errors are those of "
    "first-stage units (clusters) drawn with replacement. They cover all stages and are too large: at most 1/√(1 − f) "
    "times as large, where f is the largest sampled fraction of the first-stage units of a stratum."
)


FPC = Finding(
    "survey.fpc",
    "the finite population correction is not declared public",
    "a release publishes it, because the standard errors depend on it",
    "set survey.fpc_public = true if it is public knowledge, or leave survey.fpc out, which makes standard errors too "
    "large",
    stops=True,
)


AVERAGE = Finding(
    "estimation.lonely",
    "releases cannot give a stratum of one unit the average of the others",
    "statistical packages do not agree on which strata to average, and synthetic files are analysed with any of them",
    "set estimation.lonely to 'certainty' or 'adjust'",
    stops=True,
)


REPLICATES = Finding(
    "survey.replicates",
    "releases cannot use replicate weights of the file",
    "they are functions of the confidential weights and of a sampling design that the synthetic files do not have, so "
    "the synthetic files can have none, and standard errors would be those of another design",
    "declare the strata and the clusters instead, if the file has them, and leave survey.replicates out; or make "
    "direct tables with `svysynth tables`",
    stops=True,
)


def whatever_the_mechanism(survey: SurveySpec | Survey) -> list[Finding]:
    """The findings for what no mechanism can take into account, from a spec or a survey."""
    design = survey if isinstance(survey, SurveySpec) else survey.design
    domains = private_domains(survey) if isinstance(survey, SurveySpec) else unknown_domains(survey)
    found = (design.later, STAGES), (design.fpc != design.released_fpc, FPC), (survey.replicates, REPLICATES)
    return [*(finding for declared, finding in found if declared), *domains]


def first_stage_alone(survey: SurveySpec) -> list[Finding]:
    """The finding for several stages with corrections. Without corrections the later stages change nothing."""
    return [WITH_REPLACEMENT] if survey.later and survey.fpc else []


def unlike_an_amount(survey: SurveySpec | Survey) -> list[Finding]:
    """The finding for an outcome that is declared as a yes/no answer, or as an amount that may be missing."""
    outcome = survey.outcome
    if outcome not in survey.variables:
        return []
    kind = survey.variables[outcome].kind
    gaps = survey.may_miss(outcome) if isinstance(survey, SurveySpec) else survey.variables[outcome].may_miss
    if kind == "amount" and not gaps:
        return []
    found = f"the outcome is declared as {'a yes/no answer' if kind != 'amount' else 'an amount that may be missing'}"
    why = "releases protect the outcome as an amount that every record has"
    remedy = (
        "use mechanism = 'margins' with guarantee = 'global', which takes yes/no outcomes, and other answers of all "
        "kinds, missing ones too; or name an amount without missing answers as survey.outcome"
    )
    return [Finding(f"survey.variables.{outcome}", found, why, remedy, stops=True)]


def no_other_answers(tables: Sequence[TableSpec], outcome: str, public: Sequence[str]) -> list[Finding]:
    """The finding for the first table that asks for more than the outcome by public columns."""
    for table in tables:
        found = only_direct(table, outcome, public)
        if found is not None:
            problem = f"cannot be released by this mechanism: {found}"
            return [Finding(f"table '{table.title}'", problem, "", DIRECT, stops=True)]
    return []


def private_domains(survey: SurveySpec) -> list[Finding]:
    """The finding for the first domain whose condition looks at a column that is not public."""
    for domain in survey.domains:
        private = [column for column in columns_of_domain(domain) if public_column(column, survey) is None]
        if not is_plain(" ".join(domain.split())):
            why = "a release publishes it"
            return [Finding("domain", "has control characters", why, "write the condition without them", stops=True)]
        if private:
            confidential = private[0] in (survey.outcome, survey.weight, *survey.fpcs)
            kind = "the confidential column" if confidential else "a column that is not public:"
            what = f"the condition names {kind} '{private[0]}'"
            return [Finding("domain", what, PRIVATE_DOMAIN, PUBLIC_DOMAIN, stops=True)]
    return []


def unknown_domains(survey: Survey) -> list[Finding]:
    """The finding for a domain of a survey that does not follow from its public columns."""
    if not stored_domains(survey.schema) and (survey.domain is None or domain_column(survey.domain) in survey.domains):
        return []
    what = "the condition names columns that are not public, or too many combinations of levels"
    return [Finding("domain", what, PRIVATE_DOMAIN, PUBLIC_DOMAIN, stops=True)]


def refuse(findings: Sequence[Finding]) -> None:
    """Raise the first finding that stops a release; the message counts the others."""
    stopping = [finding for finding in findings if finding.stops]
    if stopping:
        first = stopping[0]
        others = len(stopping) - 1
        more = f" ({others} further reason{'s' * (others > 1)} to stop: see `svysynth check`)" if others else ""
        raise SurveyError("data", first.place, first.reason + more, first.instead)


def no_clusters(cluster: str | None, who: str) -> list[Finding]:
    """The finding for a mechanism or a model that cannot take clusters into account."""
    if cluster is None:
        return []
    found = f"{who} cannot take clusters into account"
    why = "the standard errors would be those of a design without clusters, and far too small"
    return [Finding("survey.cluster", found, why, CLUSTERED, stops=True)]


def no_public_weights(spec: Spec) -> list[Finding]:
    """The finding for a mechanism that cannot use weights declared public."""
    if spec.privacy is None or not spec.survey.weight_public:
        return []
    return [
        Finding(
            "survey.weight_public",
            f"the mechanism '{spec.privacy.mechanism}' ({spec.privacy.guarantee}) cannot use public weights",
            "it models the weights, or always protects them",
            "use mechanism = 'fbs', or guarantee = 'global' with 'fbs' or 'fbp', or leave survey.weight_public out",
            stops=True,
        )
    ]


def no_calibration(survey: SurveySpec, who: str) -> list[Finding]:
    """The finding for a mechanism that has no weights of records which could be calibrated."""
    if survey.calibration is None:
        return []
    return [
        Finding(
            "survey.calibration",
            f"{who} cannot calibrate weights",
            "it adds noise to the tables, and has no weights of records that could be calibrated",
            "use mechanism = 'fbs' or 'fbp', or leave survey.calibration out",
            stops=True,
        )
    ]


def no_quantiles(tables: Sequence[TableSpec], who: str) -> list[Finding]:
    """The finding for statistics that need the distribution of the outcome, where only sums are measured."""
    asked = [(table, name) for table in tables for name in of_distribution(table.statistics)]
    if not asked:
        return []
    table, name = asked[0]
    found = f"{who} cannot give '{name}'"
    why = "its tables come from noisy counts and sums, which do not tell the distribution of the outcome"
    return [Finding(f"table '{table.title}'", found, why, FROM_FILES, stops=True)]


def unfit_calibration(survey: SurveySpec) -> list[Finding]:
    """The findings for a calibration that could fail after the charge, or that public weights rule out."""
    if survey.calibration is None:
        return []
    found = (
        (
            survey.calibration.method == "linear" and len(survey.calibration.margins) > 1,
            "survey.calibration.method",
            "is 'linear', and a release cannot use it with several margins",
            "weights of a synthetic file could become negative, and this would be known only after the charge",
            "use method = 'rake', whose standard errors are nearly the same",
        ),
        (
            survey.weight_public,
            "survey.calibration",
            "a release cannot calibrate weights that are public",
            "public weights are kept as they are",
            "leave survey.weight_public out, or leave survey.calibration out",
        ),
    )
    return [Finding(place, what, why, remedy, stops=True) for holds, place, what, why, remedy in found if holds]


def undeclared(survey: Survey, spec: SurveySpec) -> list[Finding]:
    """The findings for columns in which many records count as the first level, for lack of a declared code."""
    return [
        Finding(
            f"column '{name}'",
            f"{share:.1%} of the records have no code, or a code that is not declared, and count as the first level",
            "the figures of that level are wrong, in the direct tables as well",
            "declare these codes in survey.levels, or name in survey.other the level that these records count as",
            stops=False,
        )
        for name, share in survey.other.items()
        if name not in spec.other and share > MOST_UNDECLARED
    ]


def private_filter(survey: SurveySpec) -> list[Finding]:
    """The finding for a row filter that uses columns that are not public."""
    try:
        refuse_private_filter(survey)
    except SurveyError as error:
        return [Finding(error.place, error.problem, "", error.remedy, stops=True)]
    return []
