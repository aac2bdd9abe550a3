"""Suitability: what about a survey and its spec would make a release wrong, found before anything is charged.

These findings look at the confidential data and are internal. They stop the asymptotic mechanisms, whose guarantee does
not cover refusals anyway. Under a global guarantee only public facts stop a release, and findings from the data are
advice to the reviewer (docs/privacy.md). `check`, `release` and `calibrate` use the same tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from svysynth.core.column_storage import Column, derive
from svysynth.core.engine import map_blocks
from svysynth.core.grouping import Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import MOST_BY_COLUMNS, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.statistics import plural
from svysynth.core.streams import Streams
from svysynth.estimation.calibration import uncalibrated
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.findings import LAPLACE, Finding, no_clusters, refuse, unlike_an_amount, whatever_the_mechanism
from svysynth.mechanisms.model_fit import Misfit, measure_misfit, simulate_misfit
from svysynth.mechanisms.pseudo_posterior.calibration import LARGEST_LEVEL, Calibration
from svysynth.mechanisms.weights_in_clusters import weights_in_clusters
from svysynth.models.base import Model
from svysynth.models.records import make_records, within_groups
from svysynth.models.sampler import Fit
from svysynth.survey.columns import ALL
from svysynth.survey.survey import Survey

NEARLY_CONSTANT = 0.02
"""The standard deviation of log weights within groups of strata and public columns (2% of a weight) below which weights
count as constant. Such weights have practically no density, and a model of them takes information away from the model
of the outcome (docs/real-files.md has examples)."""
SOME_CONSTANT, MANY_CONSTANT = 0.1, 0.5
"""The shares of records with such weights above which the reviewer is warned, and above which the release stops."""
FEW_VALUES = 20
"""An outcome with no more values than this is a category or a scale, not an amount."""
RECORDS_A_VALUE = 3
"""A small file has few different values whatever it measures, so only fewer than one value per so many records count
as few."""
COMMON, VERY_COMMON = 0.10, 0.25
"""The shares of records with the same outcome that warn and that stop: a continuous model has no such values."""
LOOKED_AT = 200_000
"""The most records whose values are counted; in a larger file every k-th record is used."""
TELLING = 0.99
"""The absolute rank correlation of public weights and outcomes from which on the weights reveal the outcomes."""
FAR_OFF, WORTH = 5.0, 0.02
"""A figure implied by the model is wrong if it differs from the direct one by more than this many direct standard
errors and by more than this share."""
WHOLE_OFF = 4.0
"""The limit in standard errors for figures of the whole file, which are the most precise and the most read."""
OFF, OFTEN = 3.0, 0.05
"""Differences above this many standard errors in more than this share of the cells are a warning."""
ENOUGH, FEWEST = 30, 5
"""The fewest records of a cell whose direct standard error can be relied on, and the fewest of a cell that is judged
together with other small cells."""
SMALL_OFF = 4.0
"""The limit for the mean squared difference over small cells, in direct standard errors; 1 to 2 if the model holds."""
STRANGE, ODD = 0.10, 0.05
"""The distances between the distribution of the outcome and that of the model that stop, and that warn."""
CHANCE = 1.04
"""Divided by √n, the distance that chance exceeds once in a hundred if mean and spread are those of the sample."""
CUT = 0.01
"""The share of records beyond a public bound above which the reviewer is told."""
TOTALS_APART, DIFFERENT = 0.01, 10.0
"""The relative difference between the sum of weights and the declared total that warns, and the factor that stops."""
LEAST_INFORMATION, RECORDS_A_COEFFICIENT = 0.02, 5
"""The share of the records' information that weights α must leave, and how many records' worth per coefficient."""
FAR_BELOW = 0.8
"""A share of the target. Calibration aims at 0.98 to 1 of it; one that ends below this share has failed."""


@outlined
@dataclass(frozen=True, eq=False)
class Examined:
    """What the confidential data say about the mechanism of a spec. For internal use."""

    findings: tuple[Finding, ...] = ()
    misfit: Misfit | None = None
    """How well the model fits; None if the mechanism has no model that can be tested."""


def examine_bounds(survey: Survey, bounds: BoundsSpec) -> Examined:
    """What a reviewer should know about noise with public bounds. No finding stops a release."""
    found = [*_copies(survey), *_beyond_bounds(survey, bounds)]
    return Examined(tuple(replace(finding, stops=False) for finding in found))


def examine_values(survey: Survey) -> list[Finding]:
    """Advice to the reviewer on outcomes that are no amounts, where nothing in the data may stop a release."""
    return [replace(finding, stops=False) for finding in _values(survey)]


def examine_model(
    survey: Survey, formula: str | None, tables: Sequence[TableSpec], direct: pl.DataFrame | None = None
) -> Examined:
    """Find out whether FBS and FBP can represent the distribution of these data, with the weights of the file."""
    if survey.calibration is not None:
        survey, direct = uncalibrated(survey), None
    found = [
        *whatever_the_mechanism(survey),
        *unlike_an_amount(survey),
        *_weights(survey),
        *weights_in_clusters(survey),
        *_copies(survey),
        *_values(survey),
        *_scale(survey),
        *_total(survey),
    ]
    if any(finding.stops for finding in found):
        return Examined(tuple(found))
    if direct is None:
        direct = tabulate_all(survey, tables)
    misfit = measure_misfit(survey, make_records(survey, formula), tables, direct)
    return Examined((*found, *judge_misfit(misfit, survey)), misfit)


def refuse_unsuitable(model: Model, survey: Survey, formula: str | None) -> None:
    """Refuse what `calibrate` refuses in Python: a model that does not fit counts and means by all public columns."""
    refuse([*whatever_the_mechanism(survey), *unlike_an_amount(survey)])
    if not model.traits.clusters:
        refuse(no_clusters(survey.design.cluster, "the model"))
    if model.traits.normal:
        refuse(examine_model(survey, formula, [_whole_table(survey)]).findings)


def refuse_misfit(fit: Fit, survey: Survey, streams: Streams) -> None:
    """Refuse a user-defined model that does not fit. It has to be fitted before this can be judged."""
    if not fit.model.traits.normal:
        refuse(judge_misfit(simulate_misfit(survey, fit, [_whole_table(survey)], streams), survey))


def _whole_table(survey: Survey) -> TableSpec:
    return TableSpec(by=survey.public[:MOST_BY_COLUMNS])


def _weights(survey: Survey) -> list[Finding]:
    """The finding for weights that are constant, or nearly, given strata and public columns: they have no density."""
    if survey.weight_public:
        return []
    cells, cell = survey.present_cells(survey.public)
    strata = survey.index.strata
    group = derive(partial(_crossed, strata=strata), cell, survey.index.stratum)
    count, spread = within_groups(survey.engine, derive(np.log, survey.weights), group, len(cells) * strata)
    several = count > 1
    share = count[several & (spread <= NEARLY_CONSTANT)].sum() / max(count[several].sum(), 1)
    if share <= SOME_CONSTANT:
        return []
    stops = bool(share > MANY_CONSTANT)
    return [
        Finding(
            f"column '{survey.design.weight}'",
            f"the weights of {'most' if stops else 'some'} records are constant, or nearly, within their stratum and "
            "cell of the public columns",
            "such weights cannot be modelled, and the attempt would spoil the model of the outcome",
            "if the weights follow from the public design, declare them public (survey.weight_public = true): they "
            f"are then kept as they are and only the outcome is modelled; or {LAPLACE}",
            stops,
        )
    ]


def _crossed(cell: Integers, stratum: Integers, strata: int) -> Integers:
    return np.asarray(cell, np.int64) * strata + stratum


def _copies(survey: Survey) -> list[Finding]:
    """The findings for public columns that determine the outcome, which would be published with them."""
    found = []
    for column in dict.fromkeys([*survey.public, *([survey.design.strata] if survey.design.strata else [])]):
        if column not in survey.public or len(survey.levels(column)) <= FEW_VALUES:
            continue
        levels, level = survey.present_cells([column])
        count, spread = within_groups(survey.engine, survey.outcome_values, level, len(levels))
        if (count > 1).any() and (spread[count > 1] == 0).all():
            problem = f"column '{column}', which is declared public, determines the outcome"
            why = "a release publishes this column unchanged for every record, and so reveals the outcome"
            remedy = "leave the column out of survey.public, or recode it into broad classes"
            found.append(Finding("survey.public", problem, why, remedy, stops=True))
    return [*found, *_telling_weights(survey)]


def _telling_weights(survey: Survey) -> list[Finding]:
    """The finding for public weights that reveal the outcome, as in samples drawn in proportion to the outcome."""
    if not survey.weight_public or len(survey) <= FEW_VALUES:
        return []
    chosen = np.arange(0, len(survey), -(-len(survey) // LOOKED_AT))
    weights, outcomes = (column.take(chosen) for column in (survey.weights, survey.outcome_values))
    if min(len(np.unique(weights)), len(np.unique(outcomes))) <= FEW_VALUES:
        return []
    if abs(float(spearmanr(weights, outcomes).statistic)) < TELLING:
        return []
    problem = "the weights, which are declared public, determine the outcome"
    why = "a release publishes the weights unchanged for every record, and so reveals the outcome"
    remedy = "leave survey.weight_public out: the weights are then protected too"
    return [Finding("survey.weight_public", problem, why, remedy, stops=True)]


def _values(survey: Survey) -> list[Finding]:
    """The findings for outcomes that are categories, or that are heaped at one value."""
    step = -(-len(survey) // LOOKED_AT)
    values = survey.outcome_values.take(np.arange(0, len(survey), step))
    distinct, count = np.unique(values, return_counts=True)
    place = f"column '{survey.outcome}'"
    if len(distinct) <= min(FEW_VALUES, len(values) / RECORDS_A_VALUE):
        kind = "only two values" if len(distinct) <= 2 else f"no more than {FEW_VALUES} different values"
        why = "the models are for amounts: figures of a categorical or yes/no outcome would be wrong"
        return [Finding(place, f"the outcome has {kind}", why, LAPLACE, stops=True)]
    share = count.max() / len(values)
    if share <= COMMON:
        return []
    problem = f"more than {COMMON if share <= VERY_COMMON else VERY_COMMON:.0%} of the records have the same outcome"
    why = "a continuous model spreads these values out, and takes them for typical ones"
    remedy = f"model only the other records, selected by a public column in survey.where, or {LAPLACE}"
    return [Finding(place, problem, why, remedy, share > VERY_COMMON)]


def _scale(survey: Survey) -> list[Finding]:
    """The finding for outcomes too large for the models' priors: chains would fail on them."""
    if survey.transform == "log":
        return []
    step = -(-len(survey) // LOOKED_AT)
    values = survey.outcome_values.take(np.arange(0, len(survey), step))
    if np.sqrt(np.mean(values**2)) <= LARGEST_LEVEL:
        return []
    problem = f"the outcome has values above {LARGEST_LEVEL:g}, for which the priors of the models are unsuitable"
    remedy = (
        f"use larger units (thousands or millions, say), survey.transform = 'log' if all are positive, or {LAPLACE}"
    )
    return [Finding(f"column '{survey.outcome}'", problem, "chains would not converge", remedy, stops=True)]


def _total(survey: Survey) -> list[Finding]:
    if survey.population_total is None or survey.weight_public:
        return []
    total = sum(map_blocks(survey.engine, _Sum(survey.weights), len(survey)))
    if abs(total / survey.population_total - 1) <= TOTALS_APART:
        return []
    far = not 1 / DIFFERENT < total / survey.population_total < DIFFERENT
    return [
        Finding(
            "survey.population_total",
            "the sum of the weights differs from the declared total by more than "
            f"{f'a factor of {DIFFERENT:g}' if far else '1%'}",
            "released counts are scaled to the declared total, and will differ from the direct ones by the same factor",
            "declare the published total of the population from which the sample was drawn",
            stops=far,
        )
    ]


@outlined
@dataclass(frozen=True)
class _Sum:
    column: Column

    def __call__(self, piece: slice) -> float:
        return float(self.column[piece].sum())


def judge_misfit(misfit: Misfit, survey: Survey) -> list[Finding]:
    """The findings from a misfit: those that stop a release, and those that warn."""
    place, found = f"column '{survey.outcome}'", []
    instead = f"{LAPLACE}; or try a model.formula with interactions"
    if survey.transform == "identity":
        instead += ", or survey.transform = 'log' if all outcomes are positive"
    chance = CHANCE / np.sqrt(misfit.records)
    if misfit.distance > max(ODD, chance):
        stops = misfit.distance > max(STRANGE, 1.5 * chance)
        problem = (
            "the distribution of the outcome about its mean is not the model's, which is normal: the share of records "
            f"below some value differs by more than {STRANGE if stops else ODD:.0%}"
        )
        why = "the model cannot represent this distribution, even without privacy protection"
        found.append(Finding(place, problem, why, instead, stops))
    found += _off(misfit, place, instead)
    if misfit.weight_distance is not None and misfit.weight_distance > max(STRANGE, chance):
        problem = "the log weights are not normally distributed about their mean"
        why = "standard errors of counts, which come from the modelled weights, may be wrong"
        instead = "compare these standard errors with the direct ones in the internal report"
        found.append(Finding(f"column '{survey.design.weight}'", problem, why, instead, False))
    return found


def _off(misfit: Misfit, place: str, instead: str) -> list[Finding]:
    """The findings for figures of the model that differ from the direct ones.

    Messages name thresholds and not the differences found, because messages end up in logs. The internal report has the
    differences.
    """
    tables = misfit.tables.filter(pl.col("off").is_not_null())
    small = tables.filter(pl.col("n").is_between(FEWEST, ENOUGH, closed="left"))
    tables = tables.filter(pl.col("n") >= ENOUGH)
    off, part = tables["off"].abs(), (tables["model"] / tables["estimate"] - 1).abs()
    labels = tables.columns[2 : tables.columns.index("estimate")]
    whole = pl.all_horizontal(pl.lit(value=True), *(pl.col(column) == ALL for column in labels))
    limit = pl.when(whole).then(WHOLE_OFF).otherwise(FAR_OFF)
    wrong = tables.filter((off > tables.select(limit.alias("limit"))["limit"]) & (part > WORTH))
    if not wrong.is_empty():
        statistics = " and ".join(map(plural, wrong["statistic"].unique().sort()))
        problem = (
            f"some {statistics} that the model implies differ from the direct ones by more than {FAR_OFF:g} standard "
            f"errors ({WHOLE_OFF:g} for the whole file) and {WORTH:.0%}, even without privacy protection"
        )
        return [Finding(place, problem, "released figures would be wrong by as much", instead, stops=True)]
    squared = small.group_by("statistic").agg((pl.col("off") ** 2).clip(upper_bound=FAR_OFF**2).mean())
    if (squared["off"] > SMALL_OFF).any():
        problem = f"cells of fewer than {ENOUGH} records differ from the model by more than chance explains"
        why = "the formula leaves out differences between these cells"
        return [Finding(place, problem, why, instead, stops=False)]
    if (off > OFF).sum() > OFTEN * tables.height:
        problem = (
            f"more than {OFTEN:.0%} of the figures that the model implies differ from the direct ones by more than "
            f"{OFF:g} standard errors"
        )
        why = "the formula leaves out differences between these cells"
        return [Finding(place, problem, why, instead, stops=False)]
    return []


def _beyond_bounds(survey: Survey, bounds: BoundsSpec) -> list[Finding]:
    """The findings for public bounds that cut off data. They are for the reviewer: noise does not show the bias."""
    found = []
    columns = [("outcome", survey.outcome_values, bounds.outcome), ("weight", survey.weights, bounds.weight)]
    for name, column, (low, high) in columns[: 1 if survey.weight_public else 2]:
        beyond = sum(map_blocks(survey.engine, _Beyond(column, low, high), len(survey))) / len(survey)
        if beyond > CUT:
            problem = f"more than {CUT:.0%} of the records lie beyond these bounds"
            why = "these records count with the value of the nearer bound, a bias that no standard error shows"
            instead = (
                "widen the bounds from public knowledge; widening them because of this finding is not covered by ε"
            )
            found.append(Finding(f"privacy.bounds.{name}", problem, why, instead, stops=False))
    return found


@outlined
@dataclass(frozen=True)
class _Beyond:
    column: Column
    low: float
    high: float

    def __call__(self, piece: slice) -> int:
        values = self.column[piece]
        return int(np.sum((values < self.low) | (values > self.high)))


def judge_weights(found: Calibration, survey: Survey) -> list[Finding]:
    """The finding for weights α that move the model's mean of the whole file, as they do if outcomes are not normal."""
    records = found.fit.records
    if not found.fit.model.traits.symmetric:
        return []
    whole, survey = [TableSpec(by=())], replace(survey, domain=None)
    moved = measure_misfit(survey, records, whole, tabulate_all(survey, whole), found.fit.alpha).tables
    off, part = moved["off"].abs(), (moved["model"] / moved["estimate"] - 1).abs()
    if not ((off > WHOLE_OFF) & (part > WORTH)).any():
        return []
    problem = (
        f"the weights α that this ε needs move the mean of the whole file by more than {WHOLE_OFF:g} standard errors "
        f"and {WORTH:.0%}"
    )
    why = "the outcome is not normal enough for downweighting records by their distance from the mean"
    remedy = f"use a larger privacy.epsilon, another survey.transform, or {LAPLACE}"
    return [Finding("privacy.epsilon", problem, why, remedy, stops=True)]


def judge_calibration(found: Calibration) -> list[Finding]:
    """The findings for weights α that end far below the target of calibration, or that leave almost no information."""
    engine, alpha = found.fit.records.engine, found.fit.alpha
    share = sum(map_blocks(engine, _Sum(alpha), len(alpha))) / len(alpha)
    remedy = f"use a larger privacy.epsilon or fewer privacy.datasets, or {LAPLACE}"
    judged = []
    if share < LEAST_INFORMATION or share * len(alpha) < RECORDS_A_COEFFICIENT * found.fit.records.x.shape[1]:
        problem = (
            f"the weights α that this ε needs leave less than {LEAST_INFORMATION:.0%} of the records' information, or "
            f"less than that of {RECORDS_A_COEFFICIENT} records for each coefficient"
        )
        why = "the draws then come from the prior and from a few records"
        judged.append(Finding("privacy.epsilon", problem, why, remedy, stops=True))
    if share < 1 and found.largest_bound < FAR_BELOW * found.target:
        problem = (
            f"calibration ended below {FAR_BELOW:.0%} of its target: the bounds of some records jump when the weights "
            "α change"
        )
        why = "more ε would be charged than is used, and chance decides which information the fit rests on"
        judged.append(Finding("privacy.epsilon", problem, why, f"use more privacy.draws; {remedy}", stops=True))
    return judged
