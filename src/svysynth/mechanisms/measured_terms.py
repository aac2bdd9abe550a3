"""Measured terms: which coefficients of a regression from synthetic files rest on something measured from the survey.

Synthetic files have what the release measured and, for everything else, what its model says. The means of the answer by
a term of the model were measured: its columns without a formula, the terms of the formula with one. The coefficient of
any other column, or of an interaction that the model does not have, is what the model says without it, usually near
zero, however large it is in the survey. The other coefficients of such a regression are not adjusted for it: they are
those of a regression without it. So none of them counts as measured until that term is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from svysynth.core.formula import Formula, Term, parse_formula
from svysynth.core.registry import find_mechanism
from svysynth.core.regression_formula import LeftSide
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import ModelSpec
from svysynth.core.transforms import Transform
from svysynth.estimation.combined_regression import CombinedRegression
from svysynth.estimation.regression import Regression
from svysynth.privacy.manifest import PrivacyFacts, SurveyFacts

YES, NO = "yes", "no"
TRUSTED = "Coefficients with measured = yes rest on means that the release measured from the survey."
NOT_TRUSTED = (
    "Coefficients with measured = no follow, wholly or in part, from the release's model and not from the survey, and "
    "their standard errors do not show that."
)
UNKNOWN = (
    "Which coefficients were measured depends on the release's model, which the files alone do not name: give the "
    "release or its public folder to svysynth.regress."
)


@dataclass(frozen=True)
class MeasuredTerms:
    """What a release measured of its answer."""

    outcome: str
    transform: Transform
    public: tuple[str, ...]
    terms: tuple[Term, ...]
    """The terms of the model."""
    every_cell: bool
    """Whether the means of every combination of public columns were measured."""

    @classmethod
    def of(
        cls,
        survey: SurveySpec | SurveyFacts,
        privacy: PrivacySpec | PrivacyFacts,
        model: ModelSpec | None,
        tables: Sequence[TableSpec] = (),
    ) -> MeasuredTerms:
        """What a release with these settings measures; of one with several answers, that of its outcome."""
        formula = None if model is None else model.formula
        member = find_mechanism(privacy.mechanism, privacy.guarantee)
        columns = tuple(survey.public)
        if member is not None and member.answers:
            used = {column for table in tables for column in table.by}
            classes = [name for name, answer in survey.variables.items() if answer.kind != "amount"]
            terms = tuple((name,) for name in (*columns, *classes) if name in used or name in classes)
            return cls(survey.outcome, "identity", columns, terms, every_cell=False)
        parsed = Formula.main_effects(columns) if formula is None else parse_formula(formula, columns)
        every_cell = formula is None and member is not None and member.every_cell
        return cls(survey.outcome, survey.transform, columns, parsed.terms, every_cell)

    def explain(self, found: CombinedRegression) -> Regression:
        """A regression with the columns `measured` and `because`, and notes on them."""
        # inside a domain the mean by a term is one by the columns of the domain too
        needed = {term: tuple(dict.fromkeys((*term, *found.inside))) for term in found.terms}
        lacking = [needed[term] for term in needed if not self._has(needed[term])]
        reasons = [self._reason(needed[term], lacking, found.parsed.left) for term in found.terms]
        measured = [YES if trusted else NO for trusted, _ in reasons]
        table = found.regression.table.with_columns(
            pl.Series("measured", measured, dtype=pl.String),
            pl.Series("because", [reason for _, reason in reasons], dtype=pl.String),
        )
        notes = [note for answer, note in ((YES, TRUSTED), (NO, NOT_TRUSTED)) if answer in measured]
        why = dict.fromkeys(reason for trusted, reason in reasons if not trusted)
        notes += [f"{reason[0].upper()}{reason[1:]}." for reason in why]
        return replace(found.regression, table=table, notes=(*found.regression.notes, *notes))

    def _reason(self, term: Term, lacking: Sequence[Term], left: LeftSide) -> tuple[bool, str]:
        """Whether coefficients that need the means by a term are measured, and why."""
        outcome = self.outcome
        if left.column != outcome:
            return False, f"the release's model is of {outcome}, and not of {left.column}"
        if left.share is not None:
            why = f"means of {outcome} were measured; how many lie beyond a threshold follows from the model's shape"
            return False, why
        if left.log and self.transform == "identity":
            return False, f"means of {outcome} were measured, and not those of its logarithm"
        if term in lacking:
            return False, f"the release's model has no {':'.join(term)}"
        if lacking:
            others = ", ".join(":".join(other) for other in lacking)
            return False, f"it is not adjusted for {others}, which the release's model does not have: leave that out"
        by = f" by {' and '.join(term)}" if term else ""
        shrunk = "" if self._models(term) else ", and are drawn towards no interaction where their noise is large"
        return True, f"means of {outcome}{by} were measured{shrunk}"

    def _has(self, term: Term) -> bool:
        """Whether the means by a term were measured, or the model was fitted to them."""
        return (self.every_cell and set(term) <= set(self.public)) or self._models(term)

    def _models(self, term: Term) -> bool:
        return not term or any(set(term) <= set(other) for other in self.terms)


def explain_unknown(found: CombinedRegression) -> Regression:
    """A regression of files whose model is not known."""
    return replace(found.regression, notes=(*found.regression.notes, UNKNOWN))
