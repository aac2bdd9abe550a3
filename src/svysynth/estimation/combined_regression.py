"""Combined regression: one regression of each synthetic file, and all of them combined by the rules of the files.

The rules are those of tables (`combining.py`): partial synthesis for smoothed weights and for the counts of cells,
multiple imputation for files from noisy sums. A regression coefficient does not depend on the scale of the weights, so
it has the variance of a mean, and nothing is scaled to a total.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.formula import Term
from svysynth.core.grouping import Floats
from svysynth.core.regression_formula import PLACE, RegressionFormula
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import (
    Synthetic,
    combine_estimates,
    with_cell_weights,
    with_unsmoothed_weights,
)
from svysynth.estimation.explained import Family
from svysynth.estimation.regression import Fitted, Regression, coefficient_table, fit_survey, notes_on, parse_for
from svysynth.estimation.replicates import make_replicates
from svysynth.survey.domains import domain_column
from svysynth.survey.survey import Survey

ONE_FILE = "One synthetic file does not show how much such files differ: standard errors are too small."


@outlined
@dataclass(frozen=True, eq=False)
class CombinedRegression:
    """A regression of several synthetic files, and the columns that it depends on."""

    regression: Regression
    parsed: RegressionFormula
    terms: tuple[Term, ...]
    """The columns of each coefficient."""
    inside: tuple[str, ...]
    """The public columns of the domains that it is restricted to."""


def regression_of_files(
    synthetic: Synthetic,
    formula: str,
    family: Family = "linear",
    estimation: EstimationSpec | None = None,
    domain: str | None = None,
) -> CombinedRegression:
    """Fit a regression to each synthetic file, and combine the results."""
    estimation = estimation or EstimationSpec()
    if not synthetic.surveys:
        problem = "has no synthetic files, and a regression needs records"
        raise SurveyError("file", "the release", problem, "use its tables")
    first = synthetic.surveys[0]
    parsed = parse_for(first, formula, family)
    found = [_fit_file(synthetic, survey, parsed, family, estimation, domain) for survey in synthetic.surveys]
    names, terms = found[0].names, found[0].terms
    if any(other.names != names for other in found):
        problem = "has a level that some of the synthetic files have and others do not"
        raise SurveyError("data", PLACE, problem, "leave its column out, or loosen the domain")
    values, covariances = np.stack([one.values for one in found]), np.stack([one.covariance for one in found])
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    imputed, clusters = synthetic.rules == "imputed", any(survey.design.cluster for survey in synthetic.surveys)
    design_df = found[0].df if clusters else np.inf
    combined = combine_estimates(values, variances, estimation.confidence, imputed=imputed, design_df=design_df)
    half = combined.upper - combined.estimate
    table = coefficient_table(names, combined.estimate, combined.se, combined.df, half)
    conditions = dict.fromkeys(condition for condition in (first.domain, domain) if condition)
    regression = Regression(
        parsed.text,
        family,
        table,
        _covariance(values, covariances, imputed),
        found[0].records,
        len(found),
        notes_on(found[0]) + ((ONE_FILE,) if len(found) == 1 else ()),
        synthetic.standing,
        domain=" and ".join(conditions) or None,
    )
    domains = [first.domains[name] for name in map(domain_column, conditions) if name in first.domains]
    inside = tuple(dict.fromkeys(column for one in domains for column in one.columns))
    return CombinedRegression(regression, parsed, terms, inside)


def _covariance(values: Floats, covariances: Floats, imputed: bool) -> Floats:
    """The covariance matrix by the rules whose variances `combine_estimates` gives."""
    m, within = len(values), covariances.mean(axis=0)
    if m == 1:
        return np.asarray(within)
    deviation = values - values.mean(axis=0)
    share = 1 + 1 / m if imputed else 1 / m
    return np.asarray(within + share * deviation.T @ deviation / (m - 1))


def _fit_file(
    synthetic: Synthetic,
    survey: Survey,
    parsed: RegressionFormula,
    family: Family,
    estimation: EstimationSpec,
    domain: str | None,
) -> Fitted:
    """The regression of one file, with the weights and the design variance that its rules ask for."""
    if not synthetic.strata_in_variance:
        survey = replace(survey, design=replace(survey.design, strata=None))
    replicates = None
    if estimation.variance != "taylor":  # a fixed seed, as for tables: anyone can make the results again
        replicates = make_replicates(survey.index, estimation, Streams.seeded(0))

    def fitted(weighted: Survey) -> Fitted:
        return fit_survey(parsed, weighted, family, estimation, domain, replicates)

    if synthetic.rules == "imputed":
        return fitted(survey)
    if synthetic.rules == "population":
        return fitted(with_cell_weights(survey))
    found = fitted(survey)
    if estimation.standard_errors == "full" and not survey.weight_public:
        return replace(found, covariance=fitted(with_unsmoothed_weights(survey)).covariance)
    return found
