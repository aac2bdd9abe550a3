"""Bias correction: the bias that the weights α cause in the pseudo posterior is subtracted (docs/privacy.md).

Records far from the centre have large bounds and get small weights. So the pseudo posterior is centred not at the true
parameters θ but at θ* = θ + δ(θ), with spreads that are too small. The αᵢ are confidential, but they are not needed to
find δ, which is a property of the mechanism. Records are simulated from θ, and the whole mechanism is run on them (fit,
bounds, weights calibrated to the same ε). δ(θ) is the difference between its fit and the unweighted fit to the same
records. Solving θ + δ(θ) = draw needs the draws, public constants and independent random numbers. The constants are the
design matrix, the number of records in each cell, ε, the number of data sets, the scheme, the number of draws and the
priors. This is post-processing of draws that have been paid for, and costs no privacy (indirect inference, Gouriéroux,
Monfort and Renault 1993).

The model says which parameters are corrected, and how (`WeightingBias`).

δ is a mean over surveys. In each single survey the weights move the centre too, by amounts whose mean is zero. For a
model that says where its centre is, the same simulated surveys show these shifts, by which standard errors are enlarged
(`estimation/centre_shifts.py`). They too are post-processing of the draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.privacy import Scheme
from svysynth.core.streams import Streams
from svysynth.mechanisms.pseudo_posterior.calibration import calibrate_records, fit_unweighted
from svysynth.models.arrays import Parameters
from svysynth.models.base import Model, WeightingBias
from svysynth.models.records import Records

SIMULATIONS, FEWEST = 9, 3
"""The most simulated surveys, and the fewest that are enough if they agree. The first is made from the uncorrected
draws, and is used only to choose the parameters of the others."""
MOST_ATTEMPTS = 2 * SIMULATIONS
"""A simulated survey that the mechanism refuses is replaced by another, up to this number in all."""
MOST_RECORDS = 30_000
"""The most records of a simulated survey. δ depends on their number through the width of the posterior, but hardly
changes beyond this number: with 120,000 records a log standard deviation is shifted by 0.093 instead of 0.097."""
BLOCK = 1_000_000
"""The number of records that are counted at a time."""
LARGEST_ERROR = 0.1
"""The largest standard error, over the simulated surveys, of the shift of a log standard deviation. Above it δ counts
as unknown."""
CLOSE = 0.01
"""A standard error of the shift that is small enough: 1% of a standard deviation."""

Progress = Callable[[str], None]


@outlined
class PublicRecords(NamedTuple):
    """The public part of a model's records. It has neither outcomes nor weights."""

    x: Floats
    """Cell × coefficient: the design matrix."""
    sizes: Integers
    """The number of records in each cell, or in each cell of each cluster."""
    terms: tuple[str, ...]
    """The names of the coefficients."""
    cells: Integers | None = None
    """With clusters: the cell of each size."""
    clusters: Integers | None = None
    """With clusters: the cluster of each size, by its number."""


def public_part(records: Records) -> PublicRecords:
    """The design matrix and the number of records in each of its cells, or in each of its cells and each cluster."""
    if records.cluster is not None:
        cells, clusters, place = records.in_clusters()
        return PublicRecords(records.x, np.bincount(place), records.terms, cells, clusters)
    blocks = (records.cell[start : start + BLOCK] for start in range(0, len(records), BLOCK))
    sizes = np.sum([np.bincount(block, minlength=len(records.x)) for block in blocks], axis=0)
    return PublicRecords(records.x, sizes, records.terms)


@outlined
@dataclass(frozen=True, eq=False)
class Undone:
    """Draws after the attempt to correct them for the bias from the weights α."""

    draws: tuple[Parameters, ...]
    known: bool
    """Whether the shift could be found; if not, the draws are unchanged."""
    centres: Floats | None = None
    """Survey × outcome × cell: how far the weights moved the centre in each simulated survey; None if the model does
    not say where its centre is."""


@outlined
class Shift(NamedTuple):
    """What the weights changed in one simulated survey."""

    bias: Floats
    """The change of what the model measures (`WeightingBias.measure`)."""
    centre: Floats | None = None
    """Outcome × cell: the change of the centre that is left if the bias is removed."""


def undo_weights(
    model: Model,
    draws: Sequence[Parameters],
    public: PublicRecords,
    epsilon: float,
    datasets: int,
    streams: Streams,
    scheme: Scheme = "inverse",
    number_of_draws: int = 1000,
    progress: Progress = lambda _: None,
) -> Undone:
    """Correct the draws for the bias from the weights α: all are corrected by the shift found at their mean.

    If too few simulated surveys can be calibrated, or if they disagree, the draws stay unchanged: they are already paid
    for, and stopping would waste the ε. The draws of a model without a `weighting_bias` stay unchanged too.
    """
    bias = model.weighting_bias
    if bias is None:
        return Undone(tuple(draws), known=False)
    middle = _mean({name: jnp.stack([draw[name] for draw in draws]) for name in draws[0]})
    mechanism = _Mechanism(model, bias, epsilon, datasets, scheme, number_of_draws)
    found = _find_shifts(mechanism, middle, public, streams, progress)
    moved = [one.centre for one in found if one.centre is not None]
    centres = np.stack(moved) if moved else None
    if not found or _error(bias, found) > LARGEST_ERROR:
        return Undone(tuple(draws), known=False, centres=centres)
    shift = _median([one.bias for one in found])
    return Undone(tuple(bias.remove(draw, shift) for draw in draws), known=True, centres=centres)


@dataclass(frozen=True)
class _Mechanism:
    """The whole mechanism with its settings, without the records."""

    model: Model
    bias: WeightingBias
    epsilon: float
    datasets: int
    scheme: Scheme
    draws: int

    def shift(self, records: Records, streams: Streams) -> Shift:
        """The difference between its fit to these records and the unweighted fit, with the same random numbers."""
        start = fit_unweighted(self.model, records, streams, self.draws)
        weighted = calibrate_records(
            self.model, records, self.epsilon, self.datasets, streams, self.scheme, self.draws, start_from=start
        )
        bias = np.asarray(self.bias.measure(weighted.fit.draws) - self.bias.measure(start.fit.draws))
        before = self.bias.centre(_mean(start.fit.draws), records)
        if before is None:
            return Shift(bias)
        after = self.bias.centre(self.bias.remove(_mean(weighted.fit.draws), bias), records)
        return Shift(bias, np.asarray(after) - np.asarray(before))


def _mean(draws: Parameters) -> Parameters:
    return {name: jnp.mean(value, axis=0) for name, value in draws.items()}


def _median(shifts: Sequence[Floats]) -> Floats:
    return np.asarray(np.median(shifts, axis=0))


def _find_shifts(
    mechanism: _Mechanism, middle: Parameters, public: PublicRecords, streams: Streams, progress: Progress
) -> list[Shift]:
    """Shifts whose median is the δ at which θ + δ(θ) is the mean of the draws.

    Each survey is simulated from the θ that earlier surveys give, and the shift of the first is left out.

    δ changes so little with θ (by a fifth, on the log scale) that the θ of the second survey is close enough. There are
    none if too few surveys can be calibrated. The spread of a centre is known the better the more surveys there are, so
    their number is the largest for a model that says where its centre is.
    """
    found: list[Shift] = []
    for number in range(MOST_ATTEMPTS):
        progress(f"simulated survey {len(found) + 1} of at most {SIMULATIONS}")
        own = streams.split("undoing weights", number)
        theta = mechanism.bias.remove(middle, _median([one.bias for one in found[1:] or found])) if found else middle
        try:
            records = simulate_sample(mechanism.bias, theta, public, own)
            found.append(mechanism.shift(records, own))
        except SurveyError:
            continue
        fewest = FEWEST if found[0].centre is None else SIMULATIONS
        if len(found) == SIMULATIONS or (len(found) >= fewest and _error(mechanism.bias, found[1:]) <= CLOSE):
            return _in_proportion(found[1:], len(records), public)
    return []


def _in_proportion(found: list[Shift], records: int, public: PublicRecords) -> list[Shift]:
    """The shifts, with those of centres reduced to the size that they have in a survey of all the public records."""
    factor = np.sqrt(records / public.sizes.sum())
    return [one if one.centre is None else one._replace(centre=one.centre * factor) for one in found]


def _error(bias: WeightingBias, found: list[Shift]) -> float:
    """The standard error of the median shift of the spreads, from the interquartile range over simulated surveys."""
    spreads = [bias.spreads(shift.bias) for shift in found]
    low, high = np.quantile(spreads, [0.25, 0.75], axis=0)
    # a normal distribution has an interquartile range of 1.35 standard deviations, and its median an error of 1.25/√n
    return float(np.max(high - low) / 1.35 * 1.25 / np.sqrt(len(spreads)))


def simulate_sample(bias: WeightingBias, parameters: Parameters, public: PublicRecords, streams: Streams) -> Records:
    """Simulate records from the model of the sample: as many per cell as there are, or fewer in proportion."""
    sizes = np.ceil(public.sizes * min(1.0, MOST_RECORDS / public.sizes.sum())).astype(int)
    place = np.repeat(np.arange(len(sizes)), sizes)
    cell = place if public.cells is None else public.cells[place]
    cluster = None if public.clusters is None else public.clusters[place]
    records = Records(np.zeros(len(cell)), np.zeros(len(cell)), cell, public.x, public.terms, cluster=cluster)
    theta = {name: np.asarray(value) for name, value in parameters.items()}
    x, row = (public.x, place) if cluster is None else records.rows_in_clusters()
    t, v = bias.simulate(theta, x, row, streams.generator("simulated sample"))
    highest = v.max()
    return replace(records, t=t, v=v - highest - np.log(np.mean(np.exp(v - highest))))
