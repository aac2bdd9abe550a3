"""NumPyro models of the user's own: any such model with one observed site becomes a `Model` (docs/models.md).

The function is `model(x, records=None)`: x is the design matrix, a row for each record; records holds (t, v), a row for
each record, or is None when new records are drawn. NumPyro says what the sites and their supports are; the
log-likelihood is split into one term per record and weighted here. Such a density needs all the records each time, and
is compiled again for another number of records. FBS and FBP need only weighted sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.estimation.combining import CombiningRule
from svysynth.models.arrays import Array, Parameters
from svysynth.models.base import Sampling, Traits
from svysynth.models.records import Records
from svysynth.models.whitening import Whitening

PLACE = "the NumPyro model"
PRIOR_DRAWS = 200
"""How many draws of the prior give its median and spread."""
ROWS = 4
"""How many invented records a model is tried on."""
MOST_STEPS = 200
STEPS = 2.0 ** np.arange(2, -16, -1)
"""The lengths that are tried for each Newton step."""
LOWEST = np.finfo(np.float64).min

Site = dict[str, Any]
Function = Callable[..., Any]
Smooth = Callable[[Parameters, Array, Array], Array]


@outlined
class Prior(NamedTuple):
    """The location and width of the prior of the unconstrained parameters: the start and the units of the search."""

    median: Array
    spread: Array


@outlined
class WeightedRecords(NamedTuple):
    """The records themselves, with their weights: no shorter summary is enough for an arbitrary model."""

    t: Array
    v: Array
    x: Array
    alpha: Array
    prior: Prior


@dataclass(frozen=True)
class NumPyroModel:
    """A NumPyro model of (t, v) given x, with one observed site whose log probability has one entry per record."""

    function: Function
    """`model(x, records=None)`."""
    smooth: Smooth | None = None
    """`smooth(parameters, x, t)`: the smoothed log weight of each record, as E[v | t]; without it v itself is used."""
    step_size: float = 0.5
    """The step of NUTS, in units of the whitened density's spread: make it smaller when transitions diverge."""
    name = "numpyro"
    traits = Traits()
    combining = CombiningRule()
    coefficients = ()
    """Nothing is integrated out: all its parameters are sampled, and diagnosed as such."""
    weighting_bias = None
    covariance_prior = None

    @property
    def sampling(self) -> Sampling:
        """NUTS."""
        return Sampling(step_size=self.step_size)

    def __post_init__(self) -> None:
        try:
            import numpyro  # noqa: F401
        except ImportError:
            raise SurveyError(
                "spec", PLACE, "needs the extra `numpyro`", "run pip install 'svysynth[numpyro]'"
            ) from None

    def statistics(self, records: Records, alpha: Floats) -> WeightedRecords:
        """The records and their weights; another replaces a record of weight zero, because 0·(−∞) is not a number."""
        prior = _checked_prior(self.function, records.x.shape[1])
        weighted = np.flatnonzero(alpha > 0)
        if not len(weighted):
            raise SurveyError("data", "the weighted records", "have no weight left", "use a larger epsilon")
        position = np.where(alpha > 0, np.arange(len(alpha)), weighted[0])
        t, v, x = records.t[position], records.v[position], records.x[records.cell[position]]
        return WeightedRecords(jnp.asarray(t), jnp.asarray(v), jnp.asarray(x), jnp.asarray(alpha), prior)

    def whitening(self, statistics: WeightedRecords) -> Whitening:
        """The mode and its curvature, searched from the prior's median in units of the prior's spread."""
        median, spread = statistics.prior

        def density(y: Array) -> Array:
            return self.log_density(median + spread * y, statistics)

        mode, curvature = _climb(density, jnp.zeros_like(median))
        root = jnp.linalg.inv(jnp.linalg.cholesky(curvature)).T
        return Whitening(median + spread * mode, spread[:, None] * root)

    def log_density(self, z: Array, statistics: WeightedRecords) -> Array:
        """Log prior, log Jacobian of the constraints, and the weighted sum of the records' log-likelihoods."""
        values = _unflatten(self.function, z, statistics.x.shape[1])
        records = jnp.stack([statistics.t, statistics.v], axis=1)
        sites = _sites(self.function, statistics.x, records, _constrained(values))
        latent = [_log_prob(sites[name]) + _log_jacobian(sites[name], values[name]) for name in values]
        return sum(latent, statistics.alpha @ _log_prob(_observed(sites)))

    def latent(self, z: Array, x: Array) -> tuple[Parameters, Array]:
        """The latent sites on their own scales, and their log prior with the Jacobian of the constraints."""
        values = _unflatten(self.function, z, x.shape[1])
        sites = _sites(self.function, x, jnp.zeros((len(x), 2)), _constrained(values))
        terms = [_log_prob(sites[name]) + _log_jacobian(sites[name], values[name]) for name in values]
        return {name: sites[name]["value"] for name in values}, sum(terms, jnp.zeros(()))

    def complete(self, key: Array, z: Array, statistics: WeightedRecords) -> Parameters:
        """The latent sites on their own scales; nothing was integrated out, so nothing is drawn."""
        return self.latent(z, statistics.x)[0]

    def log_likelihood(self, parameters: Parameters, t: Array, v: Array, x: Array) -> Array:
        """The observed site's log probability, one term per record."""
        records = jnp.stack([jnp.asarray(t), jnp.asarray(v)], axis=1)
        return _log_prob(_observed(_sites(self.function, jnp.asarray(x), records, _given(parameters))))

    def synthesize(self, key: Array, parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
        """(t*, v*) drawn at the observed site, and the smoothed log weight."""
        from numpyro import handlers

        sites = _sites(handlers.seed(self.function, key), jnp.asarray(x), None, _given(parameters))
        drawn = next(site["value"] for name, site in sites.items() if name not in parameters)
        t, v = drawn[:, 0], drawn[:, 1]
        return t, v, self.smooth(parameters, x, t) if self.smooth else v


def _sites(function: Function, x: Array, records: Array | None, value: Callable[[Site], Any]) -> dict[str, Site]:
    """The sample sites of one run of the model, with the values that `value` chooses for its sites."""
    from numpyro import handlers

    run = handlers.trace(handlers.substitute(function, substitute_fn=value))
    return {name: site for name, site in run.get_trace(x, records=records).items() if site["type"] == "sample"}


def _given(parameters: Parameters) -> Callable[[Site], Any]:
    return lambda site: parameters.get(site["name"])


def _constrained(values: Parameters) -> Callable[[Site], Any]:
    return lambda site: _transform(site)(values[site["name"]]) if site["name"] in values else None


def _transform(site: Site) -> Any:
    from numpyro.distributions import biject_to

    return biject_to(site["fn"].support)


def _log_jacobian(site: Site, unconstrained: Array) -> Array:
    return jnp.sum(_transform(site).log_abs_det_jacobian(unconstrained, site["value"]))


def _log_prob(site: Site) -> Array:
    """The log probability of a site: one term per record where it is observed, one number where it is not."""
    terms = site["fn"].log_prob(site["value"])
    terms = terms if site["scale"] is None else site["scale"] * terms
    return jnp.asarray(terms if site["is_observed"] else jnp.sum(terms))


def _observed(sites: dict[str, Site]) -> Site:
    return next(site for site in sites.values() if site["is_observed"])


def _latent(sites: dict[str, Site]) -> dict[str, Site]:
    return {name: site for name, site in sites.items() if not site["is_observed"]}


def _unflatten(function: Function, z: Array, columns: int) -> Parameters:
    """The vector of all unconstrained parameters as one array for each latent site."""
    empty = {name: jnp.zeros(shape) for name, shape in _shapes(function, columns).items()}
    values: Parameters = ravel_pytree(empty)[1](z)
    return values


@lru_cache
def _shapes(function: Function, columns: int) -> dict[str, tuple[int, ...]]:
    """The shape of each latent site's unconstrained value."""
    draw = jax.eval_shape(lambda: _prior_draw(function, jax.random.key(0), columns))
    return {name: value.shape for name, value in draw.items()}


def _climb(density: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    """The mode and the curvature there, by Newton steps of the length that climbs most, until none climbs."""

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, height, _, _, count = state
        slope, curvature = _slope_and_curvature(density, y)
        tried = y + STEPS[:, None] * jnp.linalg.solve(curvature, slope)
        heights = jnp.nan_to_num(jax.vmap(density)(tried), nan=-jnp.inf, posinf=-jnp.inf)
        best = jnp.argmax(heights)
        climbs = heights[best] > height
        gain = jnp.where(climbs, heights[best] - height, 0.0)
        return jnp.where(climbs, tried[best], y), jnp.maximum(heights[best], height), gain, curvature, count + 1

    def unfinished(state: tuple[Array, ...]) -> Array:
        _, height, gain, _, count = state
        return (gain > 1e-9 + 1e-13 * jnp.abs(height)) & (count < MOST_STEPS)

    first: tuple[Array, ...] = (start, jnp.asarray(LOWEST), jnp.asarray(jnp.inf), jnp.eye(len(start)), jnp.asarray(0))
    mode, _, _, curvature, _ = jax.lax.while_loop(unfinished, step, first)
    return mode, curvature


def _slope_and_curvature(density: Callable[[Array], Array], y: Array) -> tuple[Array, Array]:
    """The gradient, and minus the Hessian with eigenvalues of at least 1: no direction is wider than the prior."""
    hessian, slope = jax.jacfwd(lambda y: (jax.grad(density)(y),) * 2, has_aux=True)(y)
    values, vectors = jnp.linalg.eigh(-hessian)
    return slope, (vectors * jnp.maximum(jnp.abs(values), 1.0)) @ vectors.T


def _invented(columns: int) -> tuple[Array, Array]:
    """A few rows of x and records, to try a model on."""
    x = [[1.0 if column in (0, row) else 0.3 * row for column in range(columns)] for row in range(ROWS)]
    return jnp.asarray(x), jnp.asarray([[0.5 * row + 0.5, 0.1 * row - 0.2] for row in range(ROWS)])


def _prior_sites(function: Function, key: Array, x: Array, records: Array | None) -> dict[str, Site]:
    """One run with the latent sites drawn from the prior."""
    from numpyro import handlers
    from numpyro.infer import init_to_sample

    return _sites(handlers.seed(function, key), x, records, init_to_sample())


def _prior_draw(function: Function, key: Array, columns: int) -> Parameters:
    """A draw of the prior, unconstrained."""
    sites = _latent(_prior_sites(function, key, *_invented(columns)))
    return {name: _transform(site).inv(site["value"]) for name, site in sites.items()}


@lru_cache
def _checked_prior(function: Function, columns: int) -> Prior:
    """The prior of a model that keeps the contract; one that does not is refused."""
    _attempt(lambda: _check_sites(function, columns))
    prior: Prior
    prior, terms, other_terms, priors, other_priors = jax.jit(lambda: _prior_and_terms(function, columns))()
    # a record may contribute to its own term and to nothing else: bounds of records come from the terms alone
    if not np.allclose(terms[1:-1], other_terms[1:], rtol=1e-6, atol=0, equal_nan=True):
        _refuse("lets one record change another's log probability", "let each depend on its own t, v and row of x only")
    if not np.allclose(priors, other_priors, rtol=1e-6, atol=0, equal_nan=True):
        _refuse("has priors that depend on the records", "let them depend on nothing but the number of columns of x")
    return prior


def _attempt(check: Callable[[], None]) -> None:
    """Run checks of shapes, without computing anything."""
    try:
        jax.eval_shape(check)
    except SurveyError:
        raise
    except Exception as error:  # whatever the user's function raises; the records are invented, so it shows no data
        problem = f"fails on {ROWS} invented records ({type(error).__name__})"
        raise SurveyError("spec", PLACE, problem, "write it for any number of rows of x") from error


def _check_sites(function: Function, columns: int) -> None:
    x, records = _invented(columns)
    key = jax.random.key(0)
    sites, fewer = (_prior_sites(function, key, x[:rows], records[:rows]) for rows in (ROWS, ROWS - 1))
    _check_kinds(sites)
    shapes = [{name: jnp.shape(site["value"]) for name, site in _latent(run).items()} for run in (sites, fewer)]
    if shapes[0] != shapes[1]:
        _refuse("has latent sites for single records", "give it parameters that all records share")
    drawn = _prior_sites(function, key, x, None)
    new = {name: jnp.shape(site["value"]) for name, site in drawn.items() if name not in shapes[0]}
    if new != {_observed(sites)["name"]: (ROWS, 2)}:
        _refuse("does not draw (t, v) for each row of x when records is None", "pass obs=records to the observed site")


def _check_kinds(sites: dict[str, Site]) -> None:
    latent = _latent(sites)
    observed = len(sites) - len(latent)
    if observed == 0:
        _refuse("has no observed site", "pass obs=records to one sample site")
    if observed > 1:
        _refuse(f"has {observed} observed sites", "have one, for t and v together, and no numpyro.factor")
    if not latent:
        _refuse("has no latent sites", "give its parameters priors with numpyro.sample")
    discrete = [name for name, site in latent.items() if site["fn"].support.is_discrete]
    if discrete:
        _refuse(f"has the discrete latent site '{discrete[0]}'", "sum it out, as with a mixture distribution")
    if _log_prob(_observed(sites)).shape != (ROWS,):
        remedy = "use a distribution with event shape (2,), by .to_event(1) if need be"
        _refuse("does not give its observed site one log probability per record", remedy)


def _prior_and_terms(function: Function, columns: int) -> tuple[Prior, Array, Array, Array, Array]:
    """The prior; the records' terms and log priors, and both again without the last record and with another first."""
    keys = jax.random.split(jax.random.key(0), PRIOR_DRAWS)
    draws = jax.vmap(lambda key: ravel_pytree(_prior_draw(function, key, columns))[0])(keys)
    low, median, high = jnp.quantile(draws, jnp.array([0.25, 0.5, 0.75]), axis=0)
    spread = (high - low) / 1.35
    x, records = _invented(columns)
    value = _constrained(_unflatten(function, median + 0.3 * spread, columns))
    sites = _sites(function, x, records, value)
    others = _sites(function, x[:-1].at[0].add(0.5), records[:-1].at[0].add(0.5), value)
    terms, other_terms = (_log_prob(_observed(run)) for run in (sites, others))
    priors, other_priors = (jnp.stack([_log_prob(site) for site in _latent(run).values()]) for run in (sites, others))
    return Prior(median, spread), terms, other_terms, priors, other_priors


def _refuse(problem: str, remedy: str) -> None:
    raise SurveyError("spec", PLACE, problem, remedy)
