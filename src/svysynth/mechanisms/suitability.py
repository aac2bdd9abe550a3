"""Suitability: what about a survey and its spec would make a release wrong, found before anything is charged.

These findings look at the confidential data and are internal. They stop the asymptotic mechanisms, whose promise does
not cover refusals anyway; under a global guarantee only public facts stop a release, and what the data say is advice to
the reviewer (docs/privacy.md). `check`, `release` and `calibrate` ask the same questions.
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
from svysynth.core.spec import MOST_BY_COLUMNS, BoundsSpec, TableSpec
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.findings import CLUSTERS, LAPLACE, Finding, refuse
from svysynth.mechanisms.model_fit import Misfit, measure_misfit, simulate_misfit
from svysynth.mechanisms.pseudo_posterior.calibration import LARGEST_LEVEL, Calibration
from svysynth.models.base import Model
from svysynth.models.records import make_records, within_groups
from svysynth.models.sampler import Fit
from svysynth.survey.columns import ALL
from svysynth.survey.survey import Survey

NEARLY_CONSTANT = 0.02
"""A spread of log weights within groups of strata and public columns: 2% of a weight. Below it weights have no density
to speak of, and a model of them takes the information from the outcome (docs/real-files.md has what becomes of it)."""
SOME_CONSTANT, MANY_CONSTANT = 0.1, 0.5
"""Shares of records with such weights: look closer, and stop."""
FEW_VALUES = 20
"""An outcome with no more values than this is a category or a scale, not an amount."""
RECORDS_A_VALUE = 3
"""A small file has few values whatever it measures: fewer than one for so many records are few."""
COMMON, VERY_COMMON = 0.10, 0.25
"""Shares of records with one and the same outcome, which no continuous model has."""
LOOKED_AT = 200_000
"""Records whose values are counted; of more, every k-th."""
TELLING = 0.99
"""A rank correlation of public weights and outcomes from which on one tells the other."""
FAR_OFF, WORTH = 5.0, 0.02
"""A model's own figure that is so many direct standard errors and such a part of the direct one off is wrong."""
WHOLE_OFF = 4.0
"""The same of the whole file, whose figures are the most exact and the most read."""
OFF, OFTEN = 3.0, 0.05
"""And so many standard errors, in more than such a share of the cells, are a reason to look closer."""
ENOUGH, FEWEST = 30, 5
"""Records of a cell whose direct standard error can be relied on, and of one that is looked at together with others."""
SMALL_OFF = 4.0
"""The mean over small cells of the squared difference in direct standard errors; 1 to 2 where the model holds."""
STRANGE, ODD = 0.10, 0.05
"""Distances between the outcome's distribution and the model's: stop, and look closer."""
CHANCE = 1.04
"""Over √n: the distance that chance exceeds once in a hundred where mean and spread are those of the sample."""
CUT = 0.01
"""The share of records beyond a public bound that is worth a word."""
TOTALS_APART, DIFFERENT = 0.01, 10.0
"""Between the sum of weights and the declared total: the part from which to look closer, and the factor that stops."""
LEAST_INFORMATION, RECORDS_A_COEFFICIENT = 0.02, 5
"""The share of the records' information that weights α must leave, and how many records' for each coefficient."""
FAR_BELOW = 0.8
"""Of the target: calibration aims at 0.98 to 1 of it, and one that ends below this has not worked."""


@outlined
@dataclass(frozen=True, eq=False)
class Examined:
    """What the confidential data say of a spec's mechanism. For internal use."""

    findings: tuple[Finding, ...] = ()
    misfit: Misfit | None = None
    """How well its model fits, where it has one that can be tried."""


def examine_bounds(survey: Survey, bounds: BoundsSpec) -> Examined:
    """For noise with public bounds: what a reviewer should know. None of it stops a release."""
    found = [*_copies(survey), *_beyond_bounds(survey, bounds)]
    return Examined(tuple(replace(finding, stops=False) for finding in found))


def examine_model(
    survey: Survey, formula: str | None, tables: Sequence[TableSpec], direct: pl.DataFrame | None = None
) -> Examined:
    """Ask whether FBS and FBP can have the shape of these data."""
    found = [
        *([CLUSTERS] if survey.design.cluster else []),
        *_weights(survey),
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
    """What `calibrate` asks in Python: of counts and means by all public columns."""
    if model.traits.normal:
        refuse(examine_model(survey, formula, [_whole_table(survey)]).findings)
    elif survey.design.cluster:
        refuse([CLUSTERS])


def refuse_misfit(fit: Fit, survey: Survey, streams: Streams) -> None:
    """The same of a model of the user's own, which has to be fitted first."""
    if not fit.model.traits.normal:
        refuse(judge_misfit(simulate_misfit(survey, fit, [_whole_table(survey)], streams), survey))


def _whole_table(survey: Survey) -> TableSpec:
    return TableSpec(by=survey.public[:MOST_BY_COLUMNS])


def _weights(survey: Survey) -> list[Finding]:
    """Weights that strata and public columns fix, or nearly, have no density."""
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
            "public columns",
            "a model of weights has nothing to model there, and would spoil the outcome's",
            "if they follow from the public design, declare them public (survey.weight_public = true): they are then "
            f"kept as they are and the outcome alone is modelled; or {LAPLACE}",
            stops,
        )
    ]


def _crossed(cell: Integers, stratum: Integers, strata: int) -> Integers:
    return np.asarray(cell, np.int64) * strata + stratum


def _copies(survey: Survey) -> list[Finding]:
    """Public columns that tell the outcome: it would be published with them."""
    found = []
    for column in dict.fromkeys([*survey.public, *([survey.design.strata] if survey.design.strata else [])]):
        if column not in survey.public or len(survey.levels(column)) <= FEW_VALUES:
            continue
        levels, level = survey.present_cells([column])
        count, spread = within_groups(survey.engine, survey.outcome_values, level, len(levels))
        if (count > 1).any() and (spread[count > 1] == 0).all():
            problem = f"column '{column}', which is declared public, tells the outcome"
            why = "a release publishes it as it is, record by record"
            found.append(
                Finding("survey.public", problem, why, "leave it out, or publish it in coarse classes", stops=True)
            )
    return [*found, *_telling_weights(survey)]


def _telling_weights(survey: Survey) -> list[Finding]:
    """Public weights that go up or down with the outcome, as they do where a sample is drawn by its size."""
    if not survey.weight_public or len(survey) <= FEW_VALUES:
        return []
    chosen = np.arange(0, len(survey), -(-len(survey) // LOOKED_AT))
    weights, outcomes = (column.take(chosen) for column in (survey.weights, survey.outcome_values))
    if min(len(np.unique(weights)), len(np.unique(outcomes))) <= FEW_VALUES:
        return []
    if abs(float(spearmanr(weights, outcomes).statistic)) < TELLING:
        return []
    problem = "the weights, which are declared public, tell the outcome"
    why = "a release publishes them as they are, record by record"
    return [Finding("survey.weight_public", problem, why, "leave it out: weights are then protected too", stops=True)]


def _values(survey: Survey) -> list[Finding]:
    """Outcomes that are categories, or that heap up at one value."""
    step = -(-len(survey) // LOOKED_AT)
    values = survey.outcome_values.take(np.arange(0, len(survey), step))
    distinct, count = np.unique(values, return_counts=True)
    place = f"column '{survey.outcome}'"
    if len(distinct) <= min(FEW_VALUES, len(values) / RECORDS_A_VALUE):
        kind = "only two values" if len(distinct) <= 2 else f"no more than {FEW_VALUES} different values"
        why = "the models are of amounts: a category or a yes or no comes out wrong"
        return [Finding(place, f"the outcome has {kind}", why, LAPLACE, stops=True)]
    share = count.max() / len(values)
    if share <= COMMON:
        return []
    problem = f"more than {COMMON if share <= VERY_COMMON else VERY_COMMON:.0%} of the records have the same outcome"
    why = "a continuous model spreads them out, and takes them for the typical record"
    return [
        Finding(place, problem, why, f"model the others alone as a public universe, or {LAPLACE}", share > VERY_COMMON)
    ]


def _scale(survey: Survey) -> list[Finding]:
    """Outcomes on a scale for which the priors are not made: chains would fail on them."""
    if survey.transform == "log":
        return []
    step = -(-len(survey) // LOOKED_AT)
    values = survey.outcome_values.take(np.arange(0, len(survey), step))
    if np.sqrt(np.mean(values**2)) <= LARGEST_LEVEL:
        return []
    problem = f"the outcome's numbers are larger than {LARGEST_LEVEL:g}, for which the models' priors are not made"
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
            f"the sum of the weights differs from it by more than {f'a factor of {DIFFERENT:g}' if far else '1%'}",
            "released counts are scaled to it, and will be off the direct ones by that factor",
            "declare the published figure of the population that the file is a sample of",
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
    """What of a misfit stops a release, and what is worth a look."""
    place, found = f"column '{survey.outcome}'", []
    instead = f"{LAPLACE}; or try a model.formula with interactions"
    if survey.transform == "identity":
        instead += ", or survey.transform = 'log' if all outcomes are positive"
    chance = CHANCE / np.sqrt(misfit.records)
    if misfit.distance > max(ODD, chance):
        stops = misfit.distance > max(STRANGE, 1.5 * chance)
        problem = (
            "the outcome's distribution about its mean is not the model's, which is normal: the share of records below "
            f"some value differs by more than {STRANGE if stops else ODD:.0%}"
        )
        why = "the model cannot have this shape, whatever is protected"
        found.append(Finding(place, problem, why, instead, stops))
    found += _off(misfit, place, instead)
    if misfit.weight_distance is not None and misfit.weight_distance > max(STRANGE, chance):
        problem = "the log weights are not normal about their mean"
        why = "standard errors of counts, which come from the modelled weights, may be off"
        found.append(
            Finding(f"column '{survey.design.weight}'", problem, why, "compare them in the internal report", False)
        )
    return found


def _off(misfit: Misfit, place: str, instead: str) -> list[Finding]:
    """Messages name thresholds, not what was found: they travel into logs. The internal report has the figures."""
    tables = misfit.tables.filter(pl.col("off").is_not_null())
    small = tables.filter(pl.col("n").is_between(FEWEST, ENOUGH, closed="left"))
    tables = tables.filter(pl.col("n") >= ENOUGH)
    off, part = tables["off"].abs(), (tables["model"] / tables["estimate"] - 1).abs()
    labels = tables.columns[2 : tables.columns.index("estimate")]
    whole = pl.all_horizontal(pl.lit(value=True), *(pl.col(column) == ALL for column in labels))
    limit = pl.when(whole).then(WHOLE_OFF).otherwise(FAR_OFF)
    wrong = tables.filter((off > tables.select(limit.alias("limit"))["limit"]) & (part > WORTH))
    if not wrong.is_empty():
        statistics = " and ".join(f"{name}s" for name in wrong["statistic"].unique().sort())
        problem = (
            f"some of the model's own {statistics} are more than {FAR_OFF:g} standard errors (of the whole file "
            f"{WHOLE_OFF:g}) and {WORTH:.0%} off the direct ones, with no privacy at all"
        )
        return [Finding(place, problem, "released figures would be wrong by as much", instead, stops=True)]
    squared = small.group_by("statistic").agg((pl.col("off") ** 2).clip(upper_bound=FAR_OFF**2).mean())
    if (squared["off"] > SMALL_OFF).any():
        problem = f"cells of fewer than {ENOUGH} records differ from the model more than chance explains"
        return [Finding(place, problem, "the formula leaves out what tells them apart", instead, stops=False)]
    if (off > OFF).sum() > OFTEN * tables.height:
        problem = f"more than {OFTEN:.0%} of the model's own figures are {OFF:g} or more direct standard errors off"
        return [Finding(place, problem, "the formula leaves out what tells these cells apart", instead, stops=False)]
    return []


def _beyond_bounds(survey: Survey, bounds: BoundsSpec) -> list[Finding]:
    """Public bounds that cut into the data, for the reviewer: noise does not show that bias."""
    found = []
    columns = [("outcome", survey.outcome_values, bounds.outcome), ("weight", survey.weights, bounds.weight)]
    for name, column, (low, high) in columns[: 1 if survey.weight_public else 2]:
        beyond = sum(map_blocks(survey.engine, _Beyond(column, low, high), len(survey))) / len(survey)
        if beyond > CUT:
            problem = f"more than {CUT:.0%} of the records lie beyond it"
            why = "they count as if they stood at its end, a bias that no standard error shows"
            instead = "widen it from public knowledge; widening it because of this finding is not covered by ε"
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
    """Weights α that move the model's figures of the whole file, which outcomes that are not normal make them do."""
    records = found.fit.records
    if not found.fit.model.traits.symmetric:
        return []
    whole = [TableSpec(by=())]
    moved = measure_misfit(survey, records, whole, tabulate_all(survey, whole), found.fit.alpha).tables
    off, part = moved["off"].abs(), (moved["model"] / moved["estimate"] - 1).abs()
    if not ((off > WHOLE_OFF) & (part > WORTH)).any():
        return []
    problem = (
        f"the weights α that it needs move the mean of the whole file by more than {WHOLE_OFF:g} standard errors and "
        f"{WORTH:.0%}"
    )
    why = "the outcome is not normal enough for records to be weighted down by their distance from the mean"
    remedy = f"use a larger privacy.epsilon, another survey.transform, or {LAPLACE}"
    return [Finding("privacy.epsilon", problem, why, remedy, stops=True)]


def judge_calibration(found: Calibration) -> list[Finding]:
    """Weights α that end far below what was paid for, or that leave almost nothing of the data."""
    engine, alpha = found.fit.records.engine, found.fit.alpha
    share = sum(map_blocks(engine, _Sum(alpha), len(alpha))) / len(alpha)
    remedy = f"use a larger privacy.epsilon or fewer privacy.datasets, or {LAPLACE}"
    judged = []
    if share < LEAST_INFORMATION or share * len(alpha) < RECORDS_A_COEFFICIENT * found.fit.records.x.shape[1]:
        problem = (
            f"the weights α that it needs leave less than {LEAST_INFORMATION:.0%} of the records' information, or less "
            f"than that of {RECORDS_A_COEFFICIENT} records for each coefficient"
        )
        why = "what is drawn then comes from the prior and from a few records"
        judged.append(Finding("privacy.epsilon", problem, why, remedy, stops=True))
    if share < 1 and found.largest_bound < FAR_BELOW * found.target:
        problem = f"calibration ended below {FAR_BELOW:.0%} of its target: some records' bounds jump with the weights"
        why = "more would be charged than is used, and the fit rests on what is left by chance"
        judged.append(Finding("privacy.epsilon", problem, why, f"use more privacy.draws; {remedy}", stops=True))
    return judged
