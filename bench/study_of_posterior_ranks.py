"""Simulation-based calibration (Talts and others 2018) of FBS and FBP: docs/calibration.md and its figure.

    python bench/study_of_posterior_ranks.py
    python bench/study_of_posterior_ranks.py --simulations 20 --out FOLDER

Draws parameters from the prior and records from the model, fits the model to them, and ranks the true values among the
posterior draws. If prior, likelihood, sampler and draws are consistent, the ranks are uniform, for every parameter
and for the log-likelihood, which detects errors that single parameters do not show (Modrák and others 2023): a
chi-square test must reject none. The priors and the data are drawn here by NumPy, by other methods than the models use.
The priors are the models' own with smaller scales, so that sixty records inform the posterior but do not determine it.
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from criteria import judge, settings, write
from svysynth.core.streams import Streams
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.records import Records
from svysynth.models.sampler import draw_from

SIMULATIONS = 1000
BINS = 20
DESIGN = np.array([[1.0, 0, 0], [1, 1, 0], [1, 0, 1]])
CELL = np.arange(60) % len(DESIGN)
MODELS = [FBS(scale=0.5), FBP(coefficient_variance=0.25, scale=0.3)]
DRAWS = 99
"""With 99 draws there are a hundred ranks, in bins of equal size. Every second draw is used, for independence."""
PLAUSIBLE = (0.05, 3.0)
"""The standard deviation of t and of the log weights within cells: beyond these limits no survey has such records."""
FALSE_ALARM = 1e-4
"""The probability that a correct model is rejected, over all its quantities together."""
LOOKS = {"svg.hashsalt": "calibration", "svg.fonttype": "none"}


def main(given=None):
    chosen = settings(__doc__, given, simulations=SIMULATIONS)
    found = {model.name: ranks(model, chosen.simulations) for model in MODELS}
    write(chosen.out / "calibration.md", page(found))
    draw_differences(found, chosen.out / "calibration.svg")
    return judge(criteria(found))


def criteria(found):
    for name, of_model in found.items():
        wrong = rejected(of_model, BINS)
        yield not wrong, f"{name.upper()}: the ranks of {', '.join(wrong)} are not uniform"


# --- simulation ---


def draw_correlation(generator, size, shape):
    """An LKJ correlation matrix by the onion method of Lewandowski, Kurowicka and Joe (2009), one row at a time."""
    correlation = np.ones((1, 1))
    for rows in range(1, size):
        length = np.sqrt(generator.beta(rows / 2, shape + (size - 1 - rows) / 2))
        direction = generator.normal(size=rows)
        row = np.linalg.cholesky(correlation) @ (length * direction / np.linalg.norm(direction))
        correlation = np.block([[correlation, row[:, np.newaxis]], [row, np.ones(1)]])
    return correlation


def draw_fbs(model, generator):
    half_t = partial(stats.t(model.degrees, scale=model.scale).rvs, random_state=generator)
    spread, scale = np.abs(half_t(size=2)), np.abs(half_t(size=(2, 3)))
    correlation = draw_correlation(generator, 3, model.correlation_shape)
    beta = [generator.multivariate_normal(np.zeros(3), correlation * np.outer(row, row)) for row in scale]
    return {
        "beta_y": beta[0],
        "beta_w": beta[1],
        "covariance": draw_correlation(generator, 2, model.correlation_shape) * np.outer(spread, spread),
        "scale_y": scale[0],
        "scale_w": scale[1],
        "correlation_beta": correlation,
    }


def draw_fbp(model, generator):
    coefficient = partial(generator.normal, 0, np.sqrt(model.coefficient_variance))
    half_cauchy = partial(stats.halfcauchy(scale=model.scale).rvs, random_state=generator)
    return {
        "beta": coefficient(size=3),
        "kappa_y": coefficient(),
        "kappa_x": coefficient(size=3),
        "sigma_y": half_cauchy(),
        "sigma_pi": half_cauchy(),
    }


def simulate_fbs(parameters, x, generator):
    mean = np.stack([x @ parameters["beta_y"], x @ parameters["beta_w"]])
    return mean + np.linalg.cholesky(parameters["covariance"]) @ generator.normal(size=mean.shape)


def fbp_sample_law(parameters, x):
    """The sample's law of t given x, and of log π given t and x: sampling with probability π shifts both means."""
    variance_y, variance_pi = parameters["sigma_y"] ** 2, parameters["sigma_pi"] ** 2
    t = stats.norm(x @ parameters["beta"] + parameters["kappa_y"] * variance_y, parameters["sigma_y"])

    def log_pi(value):
        mean = parameters["kappa_y"] * value + x @ parameters["kappa_x"] + variance_pi
        return stats.norm(mean, parameters["sigma_pi"])

    return t, log_pi


def simulate_fbp(parameters, x, generator):
    law_t, law_log_pi = fbp_sample_law(parameters, x)
    t = law_t.rvs(random_state=generator)
    return t, -law_log_pi(t).rvs(random_state=generator)


def simulate(model, generator):
    """Parameters from the prior and records from the model; a choice by the records alone leaves ranks uniform."""
    draw, law = (draw_fbs, simulate_fbs) if model.name == "fbs" else (draw_fbp, simulate_fbp)
    while True:
        parameters = draw(model, generator)
        t, v = law(parameters, DESIGN[CELL], generator)
        if plausible(t) and plausible(v):
            return parameters, Records(t, v, CELL, DESIGN, ("1", "b", "c"))


def plausible(values):
    spread = np.mean([np.std(values[cell == CELL]) for cell in range(len(DESIGN))])
    return PLAUSIBLE[0] < spread < PLAUSIBLE[1]


@partial(jax.jit, static_argnames="model")
def log_likelihoods(model, parameters, t, v, x):
    """The log-likelihood of all records, for each draw."""
    return jax.vmap(lambda draw: model.log_likelihood(draw, t, v, x).sum())(parameters)


def quantities(model, parameters, records):
    """Name and values, over draws, of every distinct entry of every parameter and of the log-likelihood."""
    total = log_likelihoods(model, parameters, records.t, records.v, records.x[records.cell])
    found = {"log-likelihood": np.asarray(total)}
    for name, value in parameters.items():
        for index in distinct_entries(name, value.shape[1:]):
            found[name + "".join(f"[{i + 1}]" for i in index)] = np.asarray(value)[:, *index]
    return found


def distinct_entries(name, shape):
    """The lower triangle of a symmetric matrix; without the diagonal if it is a correlation matrix."""
    if len(shape) < 2:
        return list(np.ndindex(shape))
    return list(zip(*np.tril_indices(shape[0], -1 if name == "correlation_beta" else 0), strict=True))


def ranks(model, simulations, exponent=1.0):
    """Quantity → the rank of the truth among the draws, for each simulation."""
    found = []
    for number in range(simulations):
        streams = Streams.seeded(number)
        truth, records = simulate(model, streams.generator("truth"))
        truth = {name: np.asarray(value)[np.newaxis] for name, value in truth.items()}
        right = quantities(model, truth, records)
        drawn = quantities(model, posterior(model, records, exponent, streams), records)
        found.append({name: int(np.sum(drawn[name] < right[name])) for name in right})
    return {name: np.array([rank[name] for rank in found]) for name in found[0]}


def posterior(model, records, exponent, streams):
    """Nearly independent draws, from one round of sampling: every fit is used here, whatever its verdict."""
    statistics = model.statistics(records, np.full(len(records), exponent))
    drawn, _ = draw_from(model, statistics, streams, 2 * DRAWS, "fit", rounds=1)
    return {name: value[::2] for name, value in drawn.items()}


def p_values(found, bins):
    """Quantity → the p-value of a chi-square test that its ranks are uniform."""
    counts = {name: np.bincount(rank * bins // (DRAWS + 1), minlength=bins) for name, rank in found.items()}
    return {name: float(stats.chisquare(count).pvalue) for name, count in counts.items()}


def rejected(found, bins):
    """The quantities whose ranks are not uniform."""
    return [name for name, p in p_values(found, bins).items() if p < FALSE_ALARM / len(found)]


# --- the page ---


def page(found):
    """The page in Markdown: what was done, the smallest p-value of each model, and all p-values."""
    tables = "\n".join(f"## {name.upper()}\n\n{table(of_model)}" for name, of_model in found.items())
    summaries = "\n".join(summary(name, of_model) for name, of_model in found.items())
    return f"""# Simulation-based calibration

Made by `make study` (`bench/study_of_posterior_ranks.py`).
FBS is the fully Bayes model of the observed sample, FBP the fully Bayes model of the population and the sampling.
In each simulation parameters are drawn from the prior, and {len(CELL)} records are drawn from the model with these
parameters. The model is fitted to the records with weights α = 1. If prior, likelihood and sampler are consistent, the
rank of the true value among {DRAWS} posterior draws is uniform. Each p-value is that of a chi-square test with {BINS}
bins. A model is rejected if one of its p-values is below {FALSE_ALARM:g} divided by their number. The priors have
smaller scales than by default, so that the simulated records resemble a survey's:
`{MODELS[0]}` and `{MODELS[1]}`.
Parameters and records are drawn anew if the standard deviation of the transformed outcome t or of the log weights
within cells is not between {PLAUSIBLE[0]:g} and {PLAUSIBLE[1]:g}.
This choice depends on the records alone, so the ranks stay uniform.

| Model | Simulations | Quantities | Smallest p-value | Rejected below |
|---|--:|--:|--:|--:|
{summaries}

![The empirical distribution of the ranks minus the uniform distribution](calibration.svg)

Each line is a quantity. If a model is correct, all its lines stay in the grey band with probability 95%.

{tables}"""


def summary(name, of_model):
    smallest = min(p_values(of_model, BINS).values())
    simulations, limit = len(of_model["log-likelihood"]), FALSE_ALARM / len(of_model)
    return f"| {name.upper()} | {simulations} | {len(of_model)} | {smallest:.3f} | {limit:.1e} |"


def table(of_model):
    rows = "".join(f"| `{name}` | {p:.3f} |\n" for name, p in p_values(of_model, BINS).items())
    return f"| Quantity | p-value |\n|---|--:|\n{rows}"


def draw_differences(found, path):
    """For each model the empirical distribution function of every quantity's ranks minus the uniform one."""
    with mpl.rc_context(LOOKS):
        figure = Figure(figsize=(10, 3.5), layout="constrained")
        axes = figure.subplots(1, len(found), sharey=True)
        for axis, (name, of_model) in zip(axes, found.items(), strict=True):
            band = uniform_band(len(of_model["log-likelihood"]), 1 - 0.05 / len(of_model))
            axis.fill_between(range(DRAWS + 1), -band, band, color="0.9")
            for quantity, rank in of_model.items():
                heavy = quantity == "log-likelihood"
                axis.plot(differences(rank), color="black" if heavy else "tab:blue", linewidth=1.5 if heavy else 0.6)
            axis.set(title=f"{name.upper()} (black: log-likelihood)", xlabel="rank")
        axes[0].set_ylabel("difference of distribution functions")
        figure.savefig(path, metadata={"Date": None})


def differences(rank):
    distribution = np.cumsum(np.bincount(rank, minlength=DRAWS + 1)) / len(rank)
    return distribution - np.arange(1, DRAWS + 2) / (DRAWS + 1)


def uniform_band(simulations, level):
    """Half the width of a band that contains the whole line of uniform ranks with this probability, by simulation."""
    generator = Streams.seeded(0).generator("band")
    uniform = np.arange(1, DRAWS + 2) / (DRAWS + 1)
    spread = np.sqrt(uniform * (1 - uniform) / simulations)
    lines = [differences(generator.integers(DRAWS + 1, size=simulations)) for _ in range(5000)]
    largest = np.max(np.abs(lines)[:, :-1] / spread[:-1], axis=1)
    return spread * np.quantile(largest, level)


if __name__ == "__main__":
    sys.exit(main())
