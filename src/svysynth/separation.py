"""Separation: how sure it is that the censored posterior has no weight where chains from its mode do not come.

A clipped likelihood can give records up. Where all their terms are at the low end it does not fall any further, and the
parameters that only they tell about are free to go wherever the prior lets them: a posterior of two parts, with a gap
that no chain crosses. The draws would then come from one part alone, and the promise is about both. The odds of giving
up a group of records against what the chains show are

    exp(low·n_group − Σ clipped terms) / (prior density of its coefficients · volume that the draws take up),

small where the group has enough records for the width of the interval. Here they are computed for all records, and for
every group of cells that the design matrix lets move alone. This is internal: it looks at the confidential records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from svysynth.clipped import Blocks, cell_gains
from svysynth.groups import Booleans, Floats, Integers
from svysynth.interval import Interval
from svysynth.models.base import Model, Records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS

LARGEST_ODDS = 1e-6
"""With larger odds of another part a fit is not released."""
LOOKED_AT = 16
"""Draws for which the records are gone through."""
COEFFICIENTS = {"fbs": ("beta_y", "beta_w"), "fbp": ("beta", "kappa_x")}


def odds_of_giving_up(
    model: Model,
    records: Records,
    blocks: Blocks,
    interval: Interval,
    draws: Mapping[str, Floats],
    u: Floats,
    density: Floats,
) -> float:
    """The sum over groups of the odds that the posterior gives them up; draws, u and its log density: chain × draw."""
    log_odds = [_all_records(len(records), interval, u, density)]
    if isinstance(model, FBS | FBP):
        flat = {name: np.asarray(value).reshape(-1, *value.shape[2:]) for name, value in draws.items()}
        log_odds += list(log_odds_of_groups(model, records.x, blocks, interval, flat))
    return float(np.exp(np.minimum(logsumexp(log_odds), 0.0)))


def _all_records(count: int, interval: Interval, u: Floats, density: Floats) -> float:
    """Against the prior alone: the evidence of what the chains show is that of a normal with their covariance."""
    points = u.reshape(-1, u.shape[-1])
    log_determinant = np.linalg.slogdet(np.cov(points, rowvar=False))[1]
    evidence = density.mean() + 0.5 * (points.shape[1] * (1 + np.log(2 * np.pi)) + log_determinant)
    return float(count * interval.low - evidence)


def log_odds_of_groups(
    model: FBS | FBP, x: Floats, blocks: Blocks, interval: Interval, draws: Mapping[str, Floats]
) -> Iterator[float]:
    """For each group that can move alone; the prior's density is that along its direction, given all else in a draw."""
    coefficients = np.stack([draws[name] for name in COEFFICIENTS[model.name]], axis=1)
    inverse = np.linalg.inv(np.cov(coefficients.reshape(len(coefficients), -1), rowvar=False))
    chosen = np.linspace(0, len(coefficients) - 1, LOOKED_AT).astype(int)
    picked = {name: jnp.asarray(value[chosen]) for name, value in draws.items()}
    gains = cell_gains(model, picked, blocks, len(x), interval)
    prior = _prior_precision(model, draws, chosen)
    for cells, direction in movable_groups(x):
        moved = np.kron(np.eye(2), direction[:, np.newaxis])
        log_volume = np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(moved.T @ inverse @ moved)[1]
        stiffness = np.einsum("k,sokl,l->so", direction, prior, direction)
        pull = np.einsum("k,sokl,sol->so", direction, prior, coefficients[chosen])
        log_prior = 0.5 * (np.log(stiffness / (2 * np.pi)) - pull**2 / stiffness).sum(axis=1)
        yield float(logsumexp(-gains[:, cells].sum(axis=1) - log_prior) - np.log(LOOKED_AT) - log_volume)


def _prior_precision(model: FBS | FBP, draws: Mapping[str, Floats], chosen: Integers) -> Floats:
    """Draw × outcome × coefficient × coefficient."""
    if isinstance(model, FBP):
        columns = draws["beta"].shape[1]
        return np.broadcast_to(np.eye(columns) / model.coefficient_variance, (len(chosen), 2, columns, columns))
    scales = np.stack([draws["scale_y"][chosen], draws["scale_w"][chosen]], axis=1)
    inverse = np.linalg.inv(draws["correlation_beta"][chosen])
    return np.asarray(inverse[:, np.newaxis] / (scales[..., :, np.newaxis] * scales[..., np.newaxis, :]))


def movable_groups(x: Floats) -> list[tuple[Booleans, Floats]]:
    """Groups of cells whose means can move while all others stay, with the direction in which coefficients move.

    Tried are the cells in which a column of zeros and ones is one, those in which it is zero, and those in which all of
    several columns that exclude each other are zero: the levels of a factor, the first among them.
    """
    indicators = [column == 1 for column in x.T if np.isin(column, (0, 1)).all()]
    families: list[Booleans] = []
    for own in indicators:
        for position, family in enumerate(families):
            if not (own & family).any():
                families[position] = family | own
                break
        else:
            families.append(own)
    tried = [np.ones(len(x), bool), *indicators, *(~own for own in indicators), *(~family for family in families)]
    found = {}
    for cells in tried:
        direction = np.linalg.lstsq(x, cells.astype(float), rcond=None)[0]
        if cells.any() and np.allclose(x @ direction, cells, atol=1e-8):
            found[cells.tobytes()] = cells, direction
    return list(found.values())
