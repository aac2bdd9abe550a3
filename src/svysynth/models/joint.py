"""The joint prior of all of a model's parameters, on coordinates in which its posterior is nearly standard normal.

A sampler that goes through the records cannot integrate the coefficients out (`censor.py`). So u holds the whitened
parameters z of the model and one coordinate for each coefficient. Given z the coefficients are an affine function of
theirs, with the mean and the spread that an ordinary likelihood would give them: this takes the funnel out of FBS's
coefficient scales. The map may come from any data. It is a change of variables whose Jacobian is counted, and decides
how fast a sampler moves, not what it draws from: the prior density of the parameters is the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log, pi
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from svysynth.models.base import Array, LinearStatistics, Model, Parameters
from svysynth.models.fbp import FBP, fit_coefficients
from svysynth.models.fbs import FBS, covariance_of, unpack_scales
from svysynth.models.numpyro import NumPyroModel, WeightedRecords
from svysynth.models.whitening import Whitening


class Placed(NamedTuple):
    """A point u as parameters, and the prior's log density of u: that of the parameters and the log Jacobian."""

    parameters: Parameters
    log_prior: Array


class Joint(Protocol):
    """All parameters of a model as a function of u."""

    @property
    def whole_rows(self) -> bool:
        """Whether `log_likelihood` needs x with a row for each record; else one row serves records that share it."""

    def size(self, whitening: Whitening, statistics: Any) -> int:
        """The dimension of u."""

    def place(self, u: Array, whitening: Whitening, statistics: Any) -> Placed:
        """The parameters at u, and the prior's log density of u, normalised."""


def joint_of(model: Model) -> Joint:
    """The joint prior of FBS, FBP or a model written in NumPyro; a model of another kind has a `joint` of its own."""
    if isinstance(model, FBS):
        return JointFBS(model)
    if isinstance(model, FBP):
        return JointFBP(model)
    if isinstance(model, NumPyroModel):
        return JointNumPyro(model)
    joint: Joint = model.joint  # type: ignore[attr-defined]
    return joint


@dataclass(frozen=True)
class JointFBS:
    """FBS: z = (log s, arctanh ρ, log σ, partial correlations of Ω_β), then β_y and β_w."""

    model: FBS
    whole_rows = False

    def size(self, whitening: Whitening, statistics: LinearStatistics) -> int:
        """The parameters that the model samples and two coefficients for each term."""
        return len(whitening.center) + 2 * statistics.gram.shape[0]

    def place(self, u: Array, whitening: Whitening, statistics: LinearStatistics) -> Placed:
        """The coefficients are centred where weighted least squares and the prior's scales put them."""
        columns = statistics.gram.shape[0]
        z, log_jacobian = whitening(u[: len(whitening.center)])
        covariance, _ = covariance_of(z[:3])
        scales, partial, factor = unpack_scales(z[3:], columns)
        root = solve_triangular(factor, jnp.eye(columns), lower=True) / scales[:, None, :]
        beta, log_slope = _regression(u[len(whitening.center) :], root, statistics)
        standardized = jnp.einsum("okl,ol->ok", root, beta)
        log_prior = -0.5 * jnp.sum(standardized**2) - columns * log(2 * pi)
        log_prior -= jnp.sum(jnp.log(scales)) + 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
        log_prior += self._log_prior_of_rest(z, scales, partial)
        parameters = {
            "beta_y": beta[0],
            "beta_w": beta[1],
            "covariance": covariance,
            "scale_y": scales[0],
            "scale_w": scales[1],
            "correlation_beta": factor @ factor.T,
        }
        log_factor = jnp.linalg.slogdet(whitening.factor)[1]
        return Placed(parameters, log_prior + log_jacobian + log_factor + log_slope)

    def _log_prior_of_rest(self, z: Array, scales: Array, partial: Array) -> Array:
        model, columns = self.model, scales.shape[1]
        half_t = log(2) + lgamma((model.degrees + 1) / 2) - lgamma(model.degrees / 2)
        half_t -= 0.5 * log(model.degrees * pi) + log(model.scale)
        logs = jnp.concatenate([z[:2], jnp.log(scales).reshape(-1)])
        shapes = np.concatenate([[model.correlation_shape], model.correlation_shapes(columns)])
        # ∫(1 − tanh²z)ᵇ dz = B(½, b)
        constants = sum(lgamma(b + 0.5) - lgamma(b) - 0.5 * log(pi) for b in shapes)
        correlations = jnp.concatenate([jnp.tanh(z[2:3]), partial])
        return (
            model.log_half_t(logs).sum()
            + len(logs) * half_t
            + jnp.sum(shapes * jnp.log1p(-(correlations**2)))
            + constants
        )


def _regression(xi: Array, root: Array, statistics: LinearStatistics) -> tuple[Array, Array]:
    """β = m + Q^(−½)ξ with Q = Σ̂⁻¹ ⊗ G + P⁻¹ and m = Q⁻¹(Σ̂⁻¹ ⊗ G)B; and the log of its Jacobian."""
    columns = statistics.gram.shape[0]
    likelihood = jnp.kron(jnp.linalg.inv(statistics.scatter / statistics.total), statistics.gram)
    prior = jnp.einsum("oka,okb->oab", root, root)
    nothing = jnp.zeros((columns, columns))
    precision = likelihood + jnp.block([[prior[0], nothing], [nothing, prior[1]]])
    half = jnp.linalg.cholesky(precision)
    seen = solve_triangular(half, likelihood @ statistics.coefficients.T.reshape(-1), lower=True)
    beta = solve_triangular(half, seen + xi, lower=True, trans=1)
    return beta.reshape(2, columns), -jnp.sum(jnp.log(jnp.diagonal(half)))


@dataclass(frozen=True)
class JointFBP:
    """FBP: z = (κ_y, log σ_y, log σ_π), then β and κ_x in the coordinates of the Gram matrix's eigenvectors."""

    model: FBP
    whole_rows = False

    def size(self, whitening: Whitening, statistics: LinearStatistics) -> int:
        """Three parameters and two coefficients for each term."""
        return len(whitening.center) + 2 * statistics.gram.shape[0]

    def place(self, u: Array, whitening: Whitening, statistics: LinearStatistics) -> Placed:
        """β and κ_x are centred where the weighted sums and the prior put them, given z."""
        columns, variance = statistics.gram.shape[0], self.model.coefficient_variance
        z, log_jacobian = whitening(u[:3])
        kappa_y, variance_y, variance_pi = z[0], jnp.exp(2 * z[1]), jnp.exp(2 * z[2])
        fit = fit_coefficients(kappa_y, variance_y, variance_pi, statistics)
        noise = jnp.stack([variance_y * fit.values, variance_pi * fit.values])
        shrinkage = variance / (variance + noise)
        spread = jnp.sqrt(shrinkage * noise)
        xi = u[3:].reshape(2, columns)
        coefficients = (shrinkage * jnp.stack([fit.beta, fit.kappa]) + spread * xi) @ fit.vectors.T
        squares = jnp.sum(coefficients**2) + kappa_y**2
        log_prior = -0.5 * squares / variance - (columns + 0.5) * log(2 * pi * variance)
        log_prior += jnp.sum(z[1:] - jnp.log1p(jnp.exp(2 * z[1:]) / self.model.scale**2))
        log_prior += 2 * log(2 / (pi * self.model.scale))
        parameters = {
            "beta": coefficients[0],
            "kappa_y": kappa_y,
            "kappa_x": coefficients[1],
            "sigma_y": jnp.exp(z[1]),
            "sigma_pi": jnp.exp(z[2]),
        }
        log_factor = jnp.linalg.slogdet(whitening.factor)[1]
        return Placed(parameters, log_prior + log_jacobian + log_factor + jnp.sum(jnp.log(spread)))


@dataclass(frozen=True)
class JointNumPyro:
    """A NumPyro model integrates nothing out: z holds all its latent sites."""

    model: NumPyroModel
    whole_rows = True

    def size(self, whitening: Whitening, statistics: WeightedRecords) -> int:
        """As many as z."""
        return len(whitening.center)

    def place(self, u: Array, whitening: Whitening, statistics: WeightedRecords) -> Placed:
        """The latent sites; their priors do not depend on the records, so one row is enough to find them."""
        z, log_jacobian = whitening(u)
        parameters, log_prior = self.model.latent(z, statistics.x[:1])
        log_factor = jnp.linalg.slogdet(whitening.factor)[1]
        return Placed(parameters, log_prior + log_jacobian + log_factor)
