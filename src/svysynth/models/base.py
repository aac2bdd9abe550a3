"""Model: the interface of a model, with one log-likelihood term per record and what follows from it (docs/models.md).

A model sees records (t, v, x): the transformed outcome, the log weight scaled to mean 1, and a row of the design
matrix. Weighting, bounds, calibration and every guarantee work with any `Model`. Whatever other parts of the package
need to know about a model is declared here; none depends on its name or its class. What a model cannot offer is None or
False: the package then does without it, or computes more slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from svysynth.core.column_storage import Column
from svysynth.core.grouping import Floats, Integers
from svysynth.core.registry import find_model
from svysynth.core.spec.whole import ModelSpec
from svysynth.estimation.combining import CombiningRule
from svysynth.models.arrays import Array, Parameters
from svysynth.models.records import Records
from svysynth.models.whitening import Whitening


class Sampling(NamedTuple):
    """How chains move on the whitened density."""

    near_normal: bool = False
    """Whether that density is nearly standard normal whatever the data. Trajectories of a fixed length then take the
    place of NUTS."""
    turn: float = 0.5
    """The angle of one step in radians, for a nearly normal density. With 0.6 a third of the studies' fits of FBS
    diverge, because its density is less normal where x has no intercept."""
    steps: int = 3
    """Steps of one transition: three of 0.5 radians are nearly a quarter turn."""
    step_size: float = 0.5
    """The step of NUTS, in units of the whitened density's spread."""
    oversampling: int = 2
    """Draws made for each draw kept: with fewer, R-hat is too noisy to be held to 1.01 for every quantity."""


class Traits(NamedTuple):
    """Known properties of a model's likelihood, for which the package has faster methods."""

    normal: bool = False
    """Whether (t, v) is normal given x, so that sums of the records give the tables that the model implies."""
    quadratic: bool = False
    """Whether x has few distinct rows, each shared by many records, and the log-likelihood given a row is a quadratic
    form in (t, v): the bound of a record then costs five multiplications a draw."""
    symmetric: bool = False
    """Whether the bound of a record depends on its distance from the mean alone: the weights α of normal records then
    do not bias the means."""
    public_weights: bool = False
    """Whether the model has a form for public weights, in which the outcome alone is modelled."""
    clusters: bool = False
    """Whether the model has effects of clusters: the last entry of x is then the number of the record's cluster."""


class WeightingBias(Protocol):
    """The bias that weights α cause in a model's draws, in numbers that can be estimated by simulation and removed."""

    def measure(self, draws: Parameters) -> Array:
        """The means over draws of the quantities that weights α shift; logs of spreads come first."""

    def remove(self, draw: Parameters, shift: Floats) -> Parameters:
        """The bias-corrected draw, moved back by a shift. A shift of zero changes no digit of the draw."""

    def spreads(self, shift: Floats) -> Floats:
        """The entries of a shift that belong to log spreads."""

    def centre(self, draw: Parameters, records: Records) -> Array | None:
        """Outcome × cell: the mean of t and of v over the records of each cell, given the draw.

        None if standard errors need not have what the weights change in it from sample to sample.
        """

    def simulate(
        self, parameters: Mapping[str, Floats], x: Floats, cell: Integers, generator: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """(t, v) of records from the distribution in the sample."""


class CovariancePrior(Protocol):
    """The model's prior of the spreads s_t, s_v of (t, v) in the sample and of their correlation ρ, up to a constant.

    The terms of a log density are given one by one, to be added up.
    """

    def log_narrowing(self, log_ratio: Array) -> Array:
        """The log of the factor that narrows tan θ (ρ = sin θ) to avoid a funnel; log_ratio: log s_v/s_t."""

    def log_terms(self, log_spread: Array, correlation: Array, rest: Array) -> tuple[Array, ...]:
        """The log density of log s_t, log s_v and θ; rest: √(1 − ρ²)."""

    def log_terms_of_spread(self, log_spread: Array) -> Array:
        """The log density of log s_t alone, where weights are public."""

    def log_terms_given_weights(self, log_spread: Array, weight_spread: Array, correlation: Array) -> tuple[Array, ...]:
        """The log density of arctanh ρ given log s_t and s_v."""


class Density(Protocol):
    """What the sampler needs. Immutable and hashable: the sampler is compiled once per density and shape."""

    @property
    def sampling(self) -> Sampling:
        """How chains move."""

    @property
    def coefficients(self) -> tuple[str, ...]:
        """The parameters that are vectors and are drawn by `complete`; they are diagnosed with what was sampled."""

    def whitening(self, statistics: Any) -> Whitening:
        """The approximate location and width of the posterior."""

    def log_density(self, z: Array, statistics: Any) -> Array:
        """Log posterior of the unconstrained parameters, up to a constant."""

    def complete(self, key: Array, z: Array, statistics: Any) -> Parameters:
        """All parameters of one draw, constrained; those that the density integrates out are drawn here."""


@runtime_checkable
class Model(Density, Protocol):
    """A model of (t, v) given x."""

    @property
    def name(self) -> str:
        """Its name in the spec and in published files."""

    @property
    def traits(self) -> Traits:
        """The known properties of its likelihood."""

    @property
    def combining(self) -> CombiningRule:
        """How tables are made from its synthetic surveys."""

    @property
    def weighting_bias(self) -> WeightingBias | None:
        """The bias that weights α cause in its draws; None if that is not known: draws are then left as they are."""

    @property
    def covariance_prior(self) -> CovariancePrior | None:
        """Its prior of spreads and correlation, with which it is fitted to noisy sums; None if it cannot be."""

    def statistics(self, records: Records, alpha: Column) -> Any:
        """What the density needs of the weighted records, as arrays, if possible of shapes that do not depend on
        their number."""

    def log_likelihood(self, parameters: Parameters, t: Array, v: Array, x: Array) -> Array:
        """The log-likelihood, one term per record."""

    def synthesize(self, key: Array, parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
        """Outcome t*, log weight v* and smoothed log weight for each row of x, from one draw."""


class NamedModel(Model, Protocol):
    """A model that a spec can name (`core/registry.py`)."""

    @classmethod
    def from_spec(cls, settings: ModelSpec, weight_public: bool) -> Model:
        """The model with the settings of a spec."""


def make_model(name: str, settings: ModelSpec, weight_public: bool = False, clusters: bool = False) -> Model:
    """The model of that name, with the settings of a spec; with effects of clusters if it can have them."""
    listed = find_model(name)
    return _load((clusters and listed.clustered) or listed.home).from_spec(settings, weight_public)


@cache
def _load(home: str) -> type[NamedModel]:
    module, _, name = home.rpartition(".")
    found: type[NamedModel] = getattr(import_module(module), name)
    return found
