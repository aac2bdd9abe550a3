"""Simulation-based calibration (Talts and others 2018) of the posterior given noisy sums: docs/calibration/*.csv.

    python bench/study_of_noisy_sums_ranks.py
    python bench/study_of_noisy_sums_ranks.py --simulations 10 --out FOLDER

Parameters come from the prior, the true sums from the parameters, the measurement from the true sums and Laplace noise,
all by NumPy. If density, sampler and draws are consistent, the rank of a true value among the draws is uniform. Noise
is small in some simulations and far above the sampling error in others. So, as in releases, it is mixed in some
simulations (sampled as normal noise with random variances), and used as it is in others.

The priors are wide: in most files drawn from FBP's prior the weights follow almost exactly from the outcomes, as in no
real survey. A file is drawn anew if its measurement looks like that. The posterior is conditioned on the measurement,
so a choice by the measurement alone leaves the ranks uniform.
"""

from __future__ import annotations

import sys

import numpy as np
import polars as pl
from scipy import stats

from criteria import judge, settings
from svysynth.core.streams import Streams
from svysynth.mechanisms.noisy_sums.posterior import confidential_weights as posterior
from svysynth.mechanisms.noisy_sums.posterior import misfit as priors
from svysynth.mechanisms.noisy_sums.posterior.confidential_weights import NoisyModel, noise_is_mixed
from svysynth.mechanisms.noisy_sums.posterior.fitting import MOST_ROUNDS
from svysynth.mechanisms.noisy_sums.posterior.scaled_measurement import NoisyStatistics
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.sampler import draw_from

SIMULATIONS = 200
SEED = 5
SIZE = np.array([10.0, 160.0, 40.0, 80.0, 200.0, 60.0, 30.0, 90.0, 20.0, 120.0, 50.0, 70.0])
CELLS = len(SIZE)
X = np.column_stack([np.ones(CELLS), np.repeat(np.eye(4), 3, axis=0), np.tile(np.eye(3), (4, 1))])
WIDTHS = np.array([0.5, 0.6])
ROWS = 4
MARGIN = np.repeat(np.eye(ROWS), 3, axis=1)
"""Which cells are in which row of the weighted sums."""
WIDTH_ERROR = 0.2
MOST_CORRELATION = 0.9
DRAWS = 199
FALSE_ALARM = 1e-4
PRIORS = {"fbs": FBS(), "fbp": FBP()}
NAMES = ("outcome_mean", "weight_mean", "spread", "outcome_misfit", "weight_misfit")


def main(given=None):
    chosen = settings(__doc__, given, simulations=SIMULATIONS)
    folder, rows = chosen.out / "calibration", []
    folder.mkdir(parents=True, exist_ok=True)
    for prior in PRIORS:
        row = row_of(prior, *ranks(prior, chosen.simulations, SEED))
        pl.DataFrame([row]).write_csv(folder / f"noisy-sums-{prior}.csv")
        rows.append(row)
    return judge(criterion for row in rows for criterion in criteria(row))


def row_of(prior, found, mixed, failed):
    values = p_values(found)
    row = {"model": prior, "simulations": len(found), "noise_mixed": mixed, "not_passed": failed}
    return row | {"quantities": len(values), "smallest_p": values.min(), "largest_p": values.max()}


def criteria(row):
    name, simulations, mixed = row["model"].upper(), row["simulations"], row["noise_mixed"]
    both = simulations // 10 < mixed < 9 * simulations // 10
    yield (
        both,
        f"{name}: noise is mixed in {mixed} of {simulations} simulations, so one of the two ways is hardly tested",
    )
    limit = FALSE_ALARM / row["quantities"]
    yield row["smallest_p"] > limit, f"{name}: ranks are not uniform, p = {row['smallest_p']:.1e}"


# --- simulation ---


def draw_covariance(prior, generator):
    """The covariance of t and v, in units of WIDTHS."""
    if prior == "fbs":
        spread = np.abs(stats.t(3, scale=10).rvs(2, random_state=generator)) / WIDTHS
        correlation = 2 * generator.beta(6, 6) - 1
    else:
        sigma_y, sigma_pi = np.abs(stats.cauchy.rvs(size=2, random_state=generator))
        kappa = 10 * generator.normal()
        whole = np.hypot(sigma_pi, kappa * sigma_y)
        spread, correlation = np.array([sigma_y, whole]) / WIDTHS, -kappa * sigma_y / whole
    return np.outer(spread, spread) * np.array([[1, correlation], [correlation, 1]])


def simulate(prior, generator):
    """The true values and a measurement that could come from a survey."""
    while True:
        true, statistics = draw_file(prior, generator)
        if looks_like_a_survey(statistics):
            return true, statistics


def looks_like_a_survey(statistics):
    """Judged by the noisy sums alone: within cells outcome and weight vary, and |correlation| < 0.9."""
    sums = statistics.sums[0]
    between = (sums.T / SIZE) @ sums - 2 * statistics.noise[0] ** 2 * (1 / SIZE).sum() * np.eye(2)
    first, both, second = statistics.squares - between[[0, 0, 1], [0, 1, 1]]
    return first > 0 and second > 0 and abs(both) < MOST_CORRELATION * np.sqrt(first * second)


def draw_file(prior, generator):
    """The true values and the measurement; the prior includes what the histograms tell about the total spread."""
    freedom = int(SIZE.sum()) - len(SIZE)
    while True:
        covariance = draw_covariance(prior, generator)
        beta = generator.normal(size=(X.shape[1], 2))
        tau = np.exp(np.log(posterior.DEVIATION) + posterior.DECADE * generator.normal(size=2))
        center = X @ beta + tau * generator.normal(size=(CELLS, 2))
        if not np.all(np.isfinite(covariance)) or np.max(np.diag(covariance)) > 100:
            continue  # would never be accepted below
        root = np.linalg.cholesky(covariance + 1e-12 * np.eye(2))
        sums = SIZE[:, None] * center + np.sqrt(SIZE)[:, None] * (generator.normal(size=(CELLS, 2)) @ root.T)
        records = generator.normal(size=(freedom, 2)) @ root.T
        scatter = records.T @ records
        squares = scatter + (sums.T / SIZE) @ sums
        n = SIZE.sum()
        log_variance = np.log(np.diag(squares) / n - (sums.sum(axis=0) / n) ** 2)
        if generator.random() < np.exp(-((log_variance / 2) ** 2).sum() / (2 * WIDTH_ERROR**2)):
            break
    own = priors.UNSURE * generator.normal(size=2) + priors.TAILS * generator.normal(size=(ROWS, 2))
    learned = priors.MISFIT * np.exp(own)
    chance = np.array([np.prod(WIDTHS**2), WIDTHS[1] ** 4 / 2]) * (1 / (MARGIN @ SIZE) - 1 / n)[:, None]
    lasting = MARGIN.T @ (learned * generator.normal(size=(ROWS, 2)))
    lasting[:, 0] += priors.COMMON * generator.normal()
    misfit = lasting + MARGIN.T @ (np.sqrt(chance) * generator.normal(size=(ROWS, 2)))
    kappa = np.exp(np.hypot(priors.SUM_OF_WEIGHTS, np.sqrt(np.expm1(WIDTHS[1] ** 2) / n)) * generator.normal())
    means, within = sums / SIZE[:, None], scatter / freedom
    weight = SIZE * np.exp(WIDTHS[1] * means[:, 1] + misfit[:, 1])
    weight *= kappa * n / weight.sum()
    level = WIDTHS[0] ** 2 * (within[0, 0] - 1) / 2 + WIDTHS[0] * WIDTHS[1] * within[0, 1]
    excess = np.expm1(WIDTHS[0] * means[:, 0] + level + misfit[:, 0])
    weighted = MARGIN @ np.column_stack([weight * excess, weight - SIZE])
    noise = np.exp(generator.uniform(np.log([1.0, 10.0, 1.5]), np.log([40.0, 60.0, 6.0])))
    noise[1:] *= noise[0]  # relative to the noise of the sums, as in plans
    three = squares[[0, 0, 1], [0, 1, 1]]
    statistics = NoisyStatistics(
        size=SIZE,
        x=X,
        spread=np.ones(X.shape[1]),
        widths=WIDTHS,
        members=(np.eye(CELLS),),
        sums=(sums + generator.laplace(0, noise[0], (CELLS, 2)),),
        noise=(noise[0],),
        squares=three + generator.laplace(0, noise[1], 3),
        squares_noise=noise[1],
        weighted_members=MARGIN,
        weighted=weighted + generator.laplace(0, noise[2], (ROWS, 2)),
        weighted_noise=noise[2],
        width_error=WIDTH_ERROR,
    )
    spread = np.sqrt(np.diag(within))
    true = {
        "outcome_mean": means[:, 0],
        "weight_mean": means[:, 1],
        "spread": np.array([*spread, within[0, 1] / spread.prod()]),
        "outcome_misfit": lasting[:, 0],
        "weight_misfit": lasting[:, 1],
    }
    return true, statistics


def ranks(prior, simulations, seed, believed=1.0):
    """The ranks (simulation × quantity), how often noise was mixed, and how many fits did not pass.

    A rank is the number of draws below the true value. Chains are continued until the diagnostics pass, within limits,
    as in a release. Fits that do not pass are used too: a release is made of them as well, and says so.
    """
    found, mixed, failed = [], 0, 0
    for number in range(simulations):
        true, simulated = simulate(prior, np.random.default_rng([seed, number]))
        statistics = NoisyStatistics(*map(as_arrays, simulated))
        statistics = statistics._replace(noise=tuple(believed * noise for noise in statistics.noise))
        model = NoisyModel(PRIORS[prior], True, "log", noise_is_mixed(statistics))
        drawn, verdict = draw_from(model, statistics, Streams.seeded(number), 995, "x", MOST_ROUNDS)
        mixed, failed = mixed + model.mixed, failed + (not verdict.passed)
        thinned = {name: np.asarray(drawn[name])[::5][:DRAWS] for name in NAMES}
        found.append(np.concatenate([(thinned[name] < true[name]).sum(axis=0) for name in NAMES]))
    return np.array(found), mixed, failed


def as_arrays(value):
    return tuple(map(np.asarray, value)) if isinstance(value, tuple) else np.asarray(value, float)


def p_values(found):
    """The p-value of each quantity: a chi-square test of its ranks in ten bins."""
    bins = found * 10 // (DRAWS + 1)
    return np.array([stats.chisquare(np.bincount(column, minlength=10)).pvalue for column in bins.T])


if __name__ == "__main__":
    sys.exit(main())
