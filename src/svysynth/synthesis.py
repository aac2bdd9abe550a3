"""Synthesis: one posterior draw becomes one synthetic survey, with smoothed weights (paper §2.1, §2.2).

The public columns and the strata are as given; outcome and weight are drawn from the model. Rows are shuffled and ids
are fresh, so that a record's place says nothing. Weights are scaled to the declared population total.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

from svysynth.design import Design
from svysynth.errors import SurveyError
from svysynth.groups import Integers
from svysynth.models.base import Array, Model, Parameters, Records
from svysynth.sampler import Fit
from svysynth.spec import DRAWS_APART
from svysynth.streams import Streams
from svysynth.survey import Survey

SMOOTHED, UNSMOOTHED = "weight", "weight_unsmoothed"


def choose_draws(fit: Fit, datasets: int) -> Integers:
    """Which draws are released: as far apart as can be, so that they are independent."""
    apart = fit.size // datasets
    if apart < DRAWS_APART:
        raise SurveyError(
            "spec",
            "privacy.datasets",
            f"{datasets} independent data sets need {DRAWS_APART} draws each",
            "use fewer datasets or more draws (privacy.draws)",
        )
    return np.arange(datasets) * apart + apart // 2


def synthesize_surveys(fit: Fit, survey: Survey, datasets: int, streams: Streams) -> tuple[Survey, ...]:
    """m synthetic surveys from m independent draws."""
    draws = [{name: value[draw] for name, value in fit.draws.items()} for draw in choose_draws(fit, datasets)]
    return synthesize_draws(fit.model, fit.records, draws, survey, streams)


def synthesize_draws(
    model: Model, records: Records, draws: Sequence[Parameters], survey: Survey, streams: Streams
) -> tuple[Survey, ...]:
    """A synthetic survey from each draw."""
    if survey.population_total is None:
        remedy = "declare the published figure that released weights are scaled to"
        raise SurveyError("spec", "survey.population_total", "is not declared", remedy)
    total, x = survey.population_total, jnp.asarray(records.x[records.cell])
    return tuple(_synthesize_one(model, draw, x, survey, total, number, streams) for number, draw in enumerate(draws))


def _synthesize_one(
    model: Model, draw: Parameters, x: Array, survey: Survey, total: float, number: int, streams: Streams
) -> Survey:
    key = jax.random.wrap_key_data(jnp.asarray(streams.key_data("synthesis", number)))
    t, v, smoothed = (np.asarray(column) for column in _draw_records(model, key, draw, x))
    public = list(dict.fromkeys([*survey.public, *([survey.design.strata] if survey.design.strata else [])]))
    frame = survey.frame.select(public).with_columns(
        pl.Series(survey.outcome, np.exp(t) if survey.transform == "log" else t),
        _scaled(SMOOTHED, smoothed, total),
        _scaled(UNSMOOTHED, v, total),
    )
    order = streams.generator("shuffle", number).permutation(len(survey))
    return Survey(
        frame[order],
        survey.outcome,
        Design(SMOOTHED, survey.design.strata),
        survey.public,
        survey.transform,
        total,
        survey.codes,
    )


def _scaled(name: str, log_weight: np.ndarray[tuple[int], np.dtype[np.float64]], total: float) -> pl.Series:
    weight = np.exp(log_weight - log_weight.max())
    return pl.Series(name, weight * (total / weight.sum()))


@partial(jax.jit, static_argnames="model")
def _draw_records(model: Model, key: Array, parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
    return model.synthesize(key, parameters, x)
