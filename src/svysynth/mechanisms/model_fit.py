"""Misfit: how far a model is from the data before anything is protected. For internal use.

FBS and FBP are normal models of (t, v) given x. With parameters estimated from the sample's sums, both imply the same
table of counts and means. In a cell with means (m_t, m_v), variance s² of t and slope g of v on t, the mean of the
smoothed weights is proportional to exp(m_v), and the weighted mean of exp(t) is exp(m_t + (1 + 2g)s²/2). With these
weights t has the mean m_t + gs² and the variance s², which gives quantiles and shares. The difference between these
figures and the direct ones is the error of the model, which would be there without any privacy protection. The
distribution of t about its mean is compared too, by the largest distance between its distribution function and the
normal one, because readers of the microdata look at more than the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import polars as pl
from scipy.special import ndtr, ndtri
from scipy.stats import ks_2samp

from svysynth.core.column_storage import Column, derive
from svysynth.core.engine import map_blocks
from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.statistics import Statistic, of_distribution
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate_all
from svysynth.estimation.utility import standard_distance
from svysynth.models.records import Records
from svysynth.models.sampler import Fit
from svysynth.models.sufficient_statistics import plain_statistics
from svysynth.models.synthesis import make_synthetic, synthesize_surveys
from svysynth.survey.design import Design
from svysynth.survey.survey import Survey, SurveyInMemory

CLASSES = 2000
"""The number of classes into which standardised values are counted, from −FAR to FAR."""
FAR = 8.0
TWO_SAMPLES = 0.8
"""Divided by √n, how much further apart two samples are than a sample and a curve, if one sample is SIMULATED times as
large as the other."""
SIMULATED = 4
"""The number of surveys that are drawn from a model without a closed form."""
VALUES, MOST_VALUES = (20, 400), 400_000
"""The number of outcomes that stand for the distribution in a cell, at least and at most, and in all cells together."""
CONSTANT = 1e-9
"""The standard deviation of log weights up to which they count as constant."""


@outlined
@dataclass(frozen=True, eq=False)
class Misfit:
    """The differences between the figures that the model implies and the direct ones, without privacy protection."""

    tables: pl.DataFrame
    """The direct tables with the model's figure, `model`, and its difference in direct standard errors, `off`."""
    distance: float
    """The largest distance between the distribution of the outcome about its mean and the normal distribution."""
    weight_distance: float | None
    """This distance for the log weights; None if weights are public or do not vary."""
    records: int


def measure_misfit(
    survey: Survey,
    records: Records,
    tables: Sequence[TableSpec],
    direct: pl.DataFrame,
    alpha: Column | None = None,
) -> Misfit:
    """Compare the counts and means that the model implies with the direct ones, and its distribution with the data's.

    With weights α, the means and the slope are estimated with these weights. The spread is estimated without them,
    because the bias that they cause in it is corrected.
    """
    statistics = plain_statistics(records, derive(np.ones_like, records.t))
    covariance = np.array(statistics.scatter) / len(records)
    if alpha is not None:
        statistics = plain_statistics(records, alpha)
        scatter = np.asarray(statistics.scatter)
        covariance[0, 1] = covariance[1, 0] = covariance[0, 0] * scatter[0, 1] / scatter[0, 0]
    means = records.x @ np.asarray(statistics.coefficients)
    cells = _implied(survey, records, means, covariance)
    tidy = tabulate_all(cells, tables, EstimationSpec(lonely="certainty"))
    implied = tidy["estimate"].to_numpy()
    if any(of_distribution(table.statistics) for table in tables):
        spread = _implied(survey, records, means, covariance, values=True)
        of_values = tabulate_all(spread, tables, EstimationSpec(lonely="certainty"))["estimate"].to_numpy()
        implied = np.where(tidy["statistic"].is_in(get_args(Statistic)).to_numpy(), implied, of_values)
    estimate, se = (direct[name].to_numpy() for name in ("estimate", "se"))
    off = standard_distance(implied, estimate, se)
    spreads = np.sqrt(np.diagonal(covariance))
    modelled = not survey.weight_public and spreads[1] > CONSTANT
    return Misfit(
        direct.with_columns(pl.Series("model", implied), pl.Series("off", off).fill_nan(None)),
        _normal_distance(records, records.t, means[:, 0], spreads[0]),
        _normal_distance(records, records.v, means[:, 1], spreads[1]) if modelled else None,
        len(records),
    )


def simulate_misfit(survey: Survey, fit: Fit, tables: Sequence[TableSpec], streams: Streams) -> Misfit:
    """Measure the misfit of a model without a closed form: surveys are drawn from its unweighted fit and tabulated.

    `distance` is then the distance between the outcomes of the sample and those of the drawn surveys.
    """
    total = sum(map_blocks(survey.engine, _Total(survey.weights), len(survey)))
    drawn = synthesize_surveys(fit, replace(survey, population_total=total), SIMULATED, streams.split("misfit"))
    direct = tabulate_all(survey, tables)
    # estimates from the drawn surveys, which use smoothed weights, vary by chance
    found = make_synthetic(drawn, fit.model).tabulate_all(tables, EstimationSpec(standard_errors="paper"))
    estimate, se = (direct[name].to_numpy() for name in ("estimate", "se"))
    implied, spread = (found[name].to_numpy() for name in ("estimate", "se"))
    off = standard_distance(implied, estimate, np.hypot(se, spread / np.sqrt(SIMULATED)))
    columns = direct.with_columns(pl.Series("model", implied), pl.Series("off", off).fill_nan(None))
    outcomes = np.concatenate([one.outcome_values for one in drawn])
    # by chance two samples are further apart than a sample and a curve
    distance = ks_2samp(survey.outcome_values, outcomes).statistic - TWO_SAMPLES / np.sqrt(len(survey))
    return Misfit(columns, float(distance), None, len(survey))


def _implied(survey: Survey, records: Records, means: Floats, covariance: Floats, *, values: bool = False) -> Survey:
    """The survey that the model implies: a record for each cell, with the cell's total weight and mean outcome.

    With `values` a cell has many records, at equally probable values of the outcome.
    """
    cells, own, _ = survey.model_cells()
    count = sum(map_blocks(survey.engine, _Counts(records.cell, len(means)), len(survey)))
    total = sum(map_blocks(survey.engine, _Total(survey.weights), len(survey)))
    variance, log = covariance[0, 0], survey.transform == "log"
    slope = covariance[0, 1] / variance if own is None and variance > 0 else 0.0
    weight = np.exp(means[:, 1] - means[:, 1].max()) if own is None else own
    weight = weight * count
    mean = np.exp(means[:, 0] + (1 + 2 * slope) * variance / 2) if log else means[:, 0] + slope * variance
    if values:
        points = int(np.clip(MOST_VALUES // len(cells), *VALUES))
        scores = ndtri((np.arange(points) + 0.5) / points)
        t = (means[:, :1] + slope * variance + np.sqrt(variance) * scores).ravel()
        mean, weight, cells = np.exp(t) if log else t, np.repeat(weight, points), np.repeat(cells, points)
    sizes = [len(survey.levels(column)) for column in survey.public]
    labels = {
        column: pl.Series(column, np.asarray(survey.levels(column), object)[codes], dtype=survey.schema[column])
        for column, codes in zip(survey.public, np.unravel_index(cells, sizes), strict=True)
    }
    frame = pl.DataFrame(labels | {survey.outcome: mean, survey.design.weight: weight * (total / weight.sum())})
    design = Design(survey.design.weight)
    like = SurveyInMemory(survey.outcome, design, survey.public, survey.transform, frame=frame)
    return replace(like, domain=survey.domain, domains=survey.domains)


def _normal_distance(records: Records, column: Column, mean: Floats, spread: float) -> float:
    """max |F − Φ| over the edges of many classes, where F is the share of standardised values below an edge."""
    if not spread > 0:
        return 0.5
    block = _Classes(column, records.cell, mean, float(spread))
    count = np.sum(map_blocks(records.engine, block, len(records)), axis=0)
    below = np.cumsum(count)[:-1] / len(records)
    return float(np.max(np.abs(below - ndtr(np.linspace(-FAR, FAR, CLASSES + 1)))))


@outlined
@dataclass(frozen=True)
class _Classes:
    """How many standardised values of a block lie in each class, with one further class at either end."""

    column: Column
    cell: Column
    mean: Floats
    spread: float

    def __call__(self, piece: slice) -> Floats:
        standardized = (self.column[piece] - self.mean[self.cell[piece]]) / self.spread
        place = np.ceil((standardized + FAR) * (CLASSES / (2 * FAR)))
        return np.bincount(np.clip(place, 0, CLASSES + 1).astype(np.int64), minlength=CLASSES + 2).astype(float)


@outlined
@dataclass(frozen=True)
class _Counts:
    cell: Column
    cells: int

    def __call__(self, piece: slice) -> Floats:
        return np.bincount(self.cell[piece], minlength=self.cells).astype(float)


@outlined
@dataclass(frozen=True)
class _Total:
    column: Column

    def __call__(self, piece: slice) -> float:
        return float(self.column[piece].sum())
