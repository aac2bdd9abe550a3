"""Measured pairs: which coefficients of a regression from a release from margins rest on something measured.

A regression needs how its answer goes with each regressor, and how confidential regressors go with each other. Both are
pairs whose margin was measured, or they follow from the rest of the model. Public columns are in the files as they are.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from svysynth.core.spec.whole import Spec
from svysynth.estimation.combined_regression import CombinedRegression
from svysynth.estimation.regression import Regression
from svysynth.mechanisms.margins.planning import modelled_columns, pairs_of
from svysynth.mechanisms.measured_terms import with_reasons


@dataclass(frozen=True)
class MeasuredPairs:
    """What a release measured together."""

    answers: tuple[str, ...]
    columns: tuple[str, ...]
    """The public columns that each answer was measured with."""
    pairs: frozenset[frozenset[str]]

    @classmethod
    def of(cls, spec: Spec) -> MeasuredPairs:
        """What a release with this spec measures."""
        survey, tables = spec.survey, spec.requested_tables
        pairs = pairs_of(survey.answers, survey, tables)
        return cls(survey.answers, modelled_columns(survey, tables), frozenset(map(frozenset, pairs)))

    def explain(self, found: CombinedRegression) -> Regression:
        """A regression with the columns `measured` and `because`, and notes on them."""
        left = found.parsed.left.column
        names = dict.fromkeys(name for term in found.terms for name in (*term, *found.inside))
        apart = [pair for pair in itertools.combinations([left, *names], 2) if not self._together(*pair)]
        crossed = next((term for term in found.terms if len(term) > 1), None)
        reason = True, "all pairs of its columns were measured together"
        if apart:
            reason = False, f"{' and '.join(apart[0])} were not measured together: they are independent given the rest"
        elif crossed:
            reason = False, f"only pairs were measured, and the formula has {':'.join(crossed)}"
        elif found.inside:
            reason = False, "only pairs were measured, and the regression is inside a domain"
        return with_reasons(found, [reason for _ in found.terms])

    def _together(self, one: str, other: str) -> bool:
        """Whether two columns were measured together; two public columns need no measurement."""
        hidden = [name for name in (one, other) if name in self.answers]
        known = [name for name in (one, other) if name not in self.answers]
        if len(hidden) == 2:
            return frozenset(hidden) in self.pairs
        return not hidden or known[0] in self.columns
