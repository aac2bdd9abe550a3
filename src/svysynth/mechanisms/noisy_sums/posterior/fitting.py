"""Fitting: from a measurement and public facts to draws and tables. Nothing here uses the survey.

Without a formula, a cell's mean is the sum of main effects of the columns and of an effect of the cell, which is shrunk
towards zero. With a formula, its terms alone determine the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from svysynth.core.formula import parse_formula
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.streams import Streams
from svysynth.mechanisms.noisy_sums.figures_given_weights import figures_given_weights
from svysynth.mechanisms.noisy_sums.implied_tables import (
    CellDraws,
    cell_figures,
    tables_of_draws,
    unscaled,
)
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.measurement import Measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.sizes import draw_sizes
from svysynth.mechanisms.noisy_sums.posterior.confidential_weights import NoisyModel, noise_is_mixed
from svysynth.mechanisms.noisy_sums.posterior.given_weights import GivenStatistics, GivenWeights, given_statistics
from svysynth.mechanisms.noisy_sums.posterior.scaled_measurement import NoisyStatistics, statistics_of
from svysynth.mechanisms.noisy_sums.posterior.shape_check import Shape, compare_shapes
from svysynth.models.base import CovariancePrior
from svysynth.models.diagnostics import Verdict
from svysynth.models.records import design_matrix
from svysynth.models.sampler import draw_from

MAIN_EFFECT = 1.0
"""The prior standard deviation of a level's effect about the centre, in scales."""
COEFFICIENT = 2.0
"""The prior standard deviation of a formula's coefficient, in scales; it may be the difference of two levels."""

MOST_ROUNDS = 24
"""The most rounds for which chains are run on: many, because the measurement has been charged by then."""


@outlined
@dataclass(frozen=True, eq=False)
class Fitted:
    """The draws from a measurement, with their diagnostics."""

    drawn: CellDraws
    verdict: Verdict
    outcome_shape: Shape | None
    """The fit of the outcome's distribution; None if no histogram was measured, so that it cannot be checked."""
    weight_shape: Shape | None


def describe(
    measurement: Measurement, facts: PublicFacts, prior: CovariancePrior, formula: str | None
) -> tuple[NoisyModel, NoisyStatistics] | tuple[GivenWeights, GivenStatistics]:
    """The posterior, and the arrays that it needs."""
    if formula is None:
        x = facts.indicators()
        spread, deviations = np.full(x.shape[1], MAIN_EFFECT), len(facts.labels) > 1
    else:
        positions = {column: facts.codes[:, number] for number, column in enumerate(facts.labels)}
        x, _ = design_matrix(positions, facts.labels, parse_formula(formula, tuple(facts.labels)))
        # clusters make the means of cells differ from those of a formula
        spread, deviations = np.full(x.shape[1], COEFFICIENT), facts.cluster is not None
    fitted = formula is not None or len(facts.labels) <= 1
    size, choices = np.maximum(facts.size, 1), (prior, deviations, measurement.transform)
    if measurement.plan.weights_public:
        model = GivenWeights(*choices, scores=len(measurement.squares) > 1)
        return model, given_statistics(measurement, facts, size, x, spread)
    statistics = statistics_of(measurement, facts, size, x, spread)
    return NoisyModel(*choices, mixed=noise_is_mixed(statistics), fitted=fitted), statistics


def fit_measurement(
    measurement: Measurement,
    facts: PublicFacts,
    prior: CovariancePrior,
    formula: str | None,
    draws: int,
    streams: Streams,
    rounds: int = MOST_ROUNDS,
) -> Fitted:
    """Draw from the posterior, and compare the model with the noisy histograms, if there are any."""
    model, statistics = describe(measurement, facts, prior, formula)
    found, verdict = draw_from(model, statistics, streams, draws, "noisy sums", rounds)
    drawn = unscaled({name: np.asarray(value) for name, value in found.items()}, measurement)
    if measurement.sizes is not None:
        sizes = draw_sizes(measurement.sizes, facts, len(drawn), streams.words("sizes of cells", 0, 4))
        drawn = replace(drawn, size=sizes)
    seed = streams.words("shape of noisy sums", 0, 4)
    clusters = ClusterSizes.of(facts)
    alike = 1.0 if clusters is None else clusters.usual_size
    return Fitted(drawn, verdict, *compare_shapes(drawn, facts.size, measurement, seed, alike))


def tables_of(
    drawn: CellDraws,
    measurement: Measurement,
    facts: PublicFacts,
    tables: Sequence[TableSpec],
    estimation: EstimationSpec,
) -> pl.DataFrame:
    """The requested tables."""
    total, bounds = measurement.population_total, measurement.bounds.outcome
    if facts.weights is not None:
        groups = figures_given_weights(drawn, facts, measurement.step, measurement.transform, bounds)
        return tables_of_draws(groups, facts.without_clusters()[0].by_group(), tables, estimation)
    cells = cell_figures(drawn, facts.size, total, measurement.transform, bounds)
    return tables_of_draws(cells.calibrated(facts), facts, tables, estimation)
