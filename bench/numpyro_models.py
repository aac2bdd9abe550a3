"""FBS and FBP in NumPyro, record by record as a user would write them, with the priors of svysynth's own models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def fbs(t: jax.Array, v: jax.Array, x: jax.Array) -> None:
    size = x.shape[1]
    half_t = dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0))
    factor = numpyro.sample("factor", dist.LKJCholesky(size, 6.0))
    means = []
    for outcome in ("y", "w"):
        scale = numpyro.sample(f"scale_{outcome}", half_t.expand([size]).to_event(1))
        prior = dist.MultivariateNormal(jnp.zeros(size), scale_tril=scale[:, None] * factor)
        means.append(x @ numpyro.sample(f"beta_{outcome}", prior))
    spread = numpyro.sample("spread", half_t.expand([2]).to_event(1))
    root = spread[:, None] * numpyro.sample("correlation", dist.LKJCholesky(2, 6.0))
    numpyro.deterministic("covariance", root @ root.T)
    with numpyro.plate("records", len(t)):
        # t, then v given t: the density of a bivariate normal, whose gradient takes NumPyro far longer in one piece
        numpyro.sample("t", dist.Normal(means[0], root[0, 0]), obs=t)
        mean_v = means[1] + root[1, 0] / root[0, 0] * (t - means[0])
        numpyro.sample("v", dist.Normal(mean_v, root[1, 1]), obs=v)


def fbp(t: jax.Array, v: jax.Array, x: jax.Array) -> None:
    wide = dist.Normal(0.0, 10.0)
    beta = numpyro.sample("beta", wide.expand([x.shape[1]]).to_event(1))
    kappa_y = numpyro.sample("kappa_y", wide)
    kappa_x = numpyro.sample("kappa_x", wide.expand([x.shape[1]]).to_event(1))
    sigma_y = numpyro.sample("sigma_y", dist.HalfCauchy(1.0))
    sigma_pi = numpyro.sample("sigma_pi", dist.HalfCauchy(1.0))
    mean, rest = x @ beta, x @ kappa_x
    with numpyro.plate("records", len(t)):
        numpyro.sample("t", dist.Normal(mean, sigma_y), obs=t)
        numpyro.sample("p", dist.Normal(kappa_y * t + rest, sigma_pi), obs=-v)
        numpyro.factor("sampled", -(rest + sigma_pi**2 / 2 + kappa_y * mean + (kappa_y * sigma_y) ** 2 / 2))


MODELS = {"fbs": fbs, "fbp": fbp}
