"""Bias correction: what the weights α do to the parameters of the pseudo posterior is taken off (docs/privacy.md).

Records far from the middle have large bounds and count less, so the pseudo posterior lies not at the true parameters θ
but at θ* = θ + δ(θ), with spreads that are too small. The αᵢ are confidential, but δ need not be found from them: it is
a property of the mechanism. Records are simulated from θ, the whole mechanism is run on them (fit, bounds, weights
calibrated to the same ε), and δ(θ) is how far its fit lies from the unweighted fit to the same records. Solving
θ + δ(θ) = draw takes the draws, public constants and random numbers of its own; the constants are the design matrix,
the number of records in each cell, ε, the number of data sets, the scheme, the number of draws and the priors. It is
post-processing of what has been paid for, and costs nothing (indirect inference, Gouriéroux, Monfort and Renault 1993).

Which parameters are moved, and how, is for the model to say (`WeightingBias`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec import Scheme
from svysynth.core.streams import Streams
from svysynth.mechanisms.pseudo_posterior.calibration import calibrate_records, fit_unweighted
from svysynth.models.arrays import Parameters
from svysynth.models.base import Model, WeightingBias
from svysynth.models.records import Records

SIMULATIONS, FEWEST = 9, 3
"""Simulated surveys, and how many are enough where they agree. The first is made from the draws as they are and only
serves to place the others."""
MOST_ATTEMPTS = 2 * SIMULATIONS
"""A simulated survey that the mechanism refuses is replaced by another, up to so many in all."""
MOST_RECORDS = 30_000
"""Records of a simulated survey. δ depends on their number through the posterior's width, and hardly any more beyond:
with 120,000 a log standard deviation is shifted by 0.093 and not 0.097."""
BLOCK = 1_000_000
"""Records that are counted at a time."""
LARGEST_ERROR = 0.1
"""Of the shift of a log standard deviation, over the simulated surveys; beyond it δ is not known."""
CLOSE = 0.01
"""An error that is small enough: of 1% in a standard deviation."""

Progress = Callable[[str], None]


@outlined
class PublicRecords(NamedTuple):
    """What is public of the records that a model sees: neither outcome nor weight has a place here."""

    x: Floats
    """Cell × coefficient: the design matrix."""
    sizes: Integers
    """The number of records in each cell."""
    terms: tuple[str, ...]
    """The names of the coefficients."""


def public_part(records: Records) -> PublicRecords:
    """The design matrix and the number of records in each of its cells."""
    blocks = (records.cell[start : start + BLOCK] for start in range(0, len(records), BLOCK))
    sizes = np.sum([np.bincount(block, minlength=len(records.x)) for block in blocks], axis=0)
    return PublicRecords(records.x, sizes, records.terms)


@outlined
@dataclass(frozen=True, eq=False)
class Undone:
    """Draws after the attempt to undo what weights do to them."""

    draws: tuple[Parameters, ...]
    known: bool
    """Whether the shift could be found; if not, the draws are as they were."""


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
    """The parameters of which these draws are the weighted image; all are moved by the shift found at their mean.

    Where too few simulated surveys can be calibrated, or they disagree, the draws stay as they are: they have been paid
    for by now, and stopping would waste that. So do those of a model that does not know its weighting bias.
    """
    bias = model.weighting_bias
    if bias is None:
        return Undone(tuple(draws), known=False)
    middle = {name: jnp.mean(jnp.stack([draw[name] for draw in draws]), axis=0) for name in draws[0]}
    mechanism = _Mechanism(model, bias, epsilon, datasets, scheme, number_of_draws)
    found = _find_shift(mechanism, middle, public, streams, progress)
    if found is None:
        return Undone(tuple(draws), known=False)
    return Undone(tuple(bias.remove(draw, found) for draw in draws), known=True)


@dataclass(frozen=True)
class _Mechanism:
    """The whole mechanism but for the records."""

    model: Model
    bias: WeightingBias
    epsilon: float
    datasets: int
    scheme: Scheme
    draws: int

    def shift(self, records: Records, streams: Streams) -> Floats:
        """How far its fit to these records lies from the unweighted one, with the same random numbers."""
        start = fit_unweighted(self.model, records, streams, self.draws)
        weighted = calibrate_records(
            self.model, records, self.epsilon, self.datasets, streams, self.scheme, self.draws, start_from=start
        )
        return np.asarray(self.bias.measure(weighted.fit.draws) - self.bias.measure(start.fit.draws))


def _find_shift(
    mechanism: _Mechanism, middle: Parameters, public: PublicRecords, streams: Streams, progress: Progress
) -> Floats | None:
    """δ where θ + δ(θ) is the middle of the draws: each survey is simulated from the θ that those before it give.

    δ changes so little with θ (by a fifth, on the log scale) that the second survey's θ is near enough. None where too
    few surveys can be calibrated, or they disagree.
    """
    found: list[Floats] = []
    for number in range(MOST_ATTEMPTS):
        progress(f"simulated survey {len(found) + 1} of at most {SIMULATIONS}")
        own = streams.split("undoing weights", number)
        theta = mechanism.bias.remove(middle, np.median(found[1:] or found, axis=0)) if found else middle
        try:
            found.append(mechanism.shift(simulate_sample(mechanism.bias, theta, public, own), own))
        except SurveyError:
            continue
        spreads = [mechanism.bias.spreads(shift) for shift in found[1:]]
        if len(found) == SIMULATIONS or (len(found) >= FEWEST and _error(spreads) <= CLOSE):
            return np.median(found[1:], axis=0) if _error(spreads) <= LARGEST_ERROR else None
    return None


def _error(spreads: list[Floats]) -> float:
    """The standard error of the median of the spreads' shifts, by the middle half of the simulated surveys."""
    low, high = np.quantile(spreads, [0.25, 0.75], axis=0)
    # the middle half of a normal law is 1.35 standard deviations wide, and its median has an error of 1.25/√n of them
    return float(np.max(high - low) / 1.35 * 1.25 / np.sqrt(len(spreads)))


def simulate_sample(bias: WeightingBias, parameters: Parameters, public: PublicRecords, streams: Streams) -> Records:
    """Records by the law of the sample, as many in each cell as there are; where these are too many, in proportion."""
    sizes = np.ceil(public.sizes * min(1.0, MOST_RECORDS / public.sizes.sum())).astype(int)
    cell = np.repeat(np.arange(len(sizes)), sizes)
    noise = streams.generator("simulated sample").standard_normal((2, len(cell)))
    theta = {name: np.asarray(value) for name, value in parameters.items()}
    t, v = bias.simulate(theta, public.x, cell, noise)
    highest = v.max()
    return Records(t, v - highest - np.log(np.mean(np.exp(v - highest))), cell, public.x, public.terms)
