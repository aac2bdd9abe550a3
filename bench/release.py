"""A calibrated release beside rstan and NumPyro, in one run: seconds, effective draws, growth with n, and the wait.

A release is everything from a frame in memory to the finished tables: reading, all fits, bounds, calibration, three
synthetic surveys and their tables by field and gender. The machine is shared, so only ratios within one run mean
anything. Where R or NumPyro is not at hand, their rows are kept from the page that is already there.

    python bench/release.py --out docs/benchmarks-release.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import svysynth
from svysynth.cli import open_demo_budget, write_example
from svysynth.diagnostics import judge
from svysynth.errors import SurveyError
from svysynth.lipschitz import record_bounds
from svysynth.models.base import LinearStatistics, Model, Records, linear_statistics, make_records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.pipeline import calibrate
from svysynth.sampler import CHAINS, Fit, fit
from svysynth.streams import Streams
from svysynth.studies.simulation import draw_sample, make_population
from svysynth.studies.standin import POPULATION, doctorates

EPSILON, DATASETS = 10.8, 3
SAMPLES = 7
RUNS_OF_DOCTORATES = 5
GROWTH = [1_000, 10_000, 100_000, 1_000_000, 10_000_000]
LONGEST_BOUNDS = 60.0
"""Seconds. A pass over the bounds that would take longer is extrapolated from a tenth of the records."""
MODELS: dict[str, Model] = {"fbs": FBS(), "fbp": FBP()}
WATCHED = {"fbs": ("beta_y", "beta_w", "covariance"), "fbp": ("beta", "kappa_y", "kappa_x", "sigma_y", "sigma_pi")}
"""The parameters whose effective draws are counted."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Releases:
    """Several releases with one model, after the first, which compiles."""

    seconds: list[float]
    fits: list[int]
    refused: int
    """Runs in which calibration found no weights for ε and released nothing."""
    effective: float
    divergences: int


def release(frame: pl.DataFrame, total: float, model: Model, seed: int):
    survey = svysynth.read_survey(
        frame,
        outcome="salary",
        weight="weight",
        strata="field",
        public=["field", "gender"],
        population_total=total,
    )
    found = calibrate(model, survey, EPSILON, DATASETS, streams=Streams.seeded(seed))
    found.synthesize().tabulate(["field", "gender"])
    return found.calibration


def time_releases(frames: list[pl.DataFrame], total: float, model: Model) -> Releases:
    """The frames in turn with a seed each; the first is run once more beforehand, to compile."""
    seconds, fits, refused, found = [], [], 0, []
    for seed, frame in enumerate([frames[0], *frames]):
        start = time.perf_counter()
        try:
            calibration = release(frame, total, model, seed)
        except SurveyError:
            refused += seed > 0
            continue
        if seed > 0:
            seconds.append(time.perf_counter() - start)
            fits.append(1 + len(calibration.trials))
            found.append(calibration.fit.verdict)
    return Releases(
        seconds,
        fits,
        refused,
        min(verdict.ess_bulk for verdict in found),
        sum(verdict.divergences for verdict in found),
    )


def with_rstan(survey: svysynth.Survey, records: Records, name: str) -> dict[str, str] | None:
    """What rstan_fit.R says of one fit: seconds, divergences, min_bulk_ess."""
    if shutil.which("Rscript") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        labels = survey.frame.select(pl.col("field", "gender").cast(pl.String))
        labels.with_columns(t=records.t, v=records.v, alpha=1.0).write_csv(f"{folder}/d.csv")
        done = subprocess.run(
            ["Rscript", str(HERE / "rstan_fit.R"), f"{folder}/d.csv", name], capture_output=True, text=True
        )
    return dict(re.findall(r"(\w+)=([\d.]+)", done.stdout)) if done.returncode == 0 else None


def numpyro_fit(name: str) -> None:
    """One run with NumPyro's default settings; prints seconds, compilation included, effective draws, divergences."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def fbs(t, v, x):
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
            # t, then v given t: the same density as a bivariate normal, whose gradient takes NumPyro far longer
            numpyro.sample("t", dist.Normal(means[0], root[0, 0]), obs=t)
            mean_v = means[1] + root[1, 0] / root[0, 0] * (t - means[0])
            numpyro.sample("v", dist.Normal(mean_v, root[1, 1]), obs=v)

    def fbp(t, v, x):
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

    records = make_records(first_sample())
    chain = MCMC(NUTS({"fbs": fbs, "fbp": fbp}[name]), num_warmup=1000, num_samples=1000, progress_bar=False)
    start = time.perf_counter()
    chain.run(
        jax.random.key(1), records.t, records.v, jnp.asarray(records.x[records.cell]), extra_fields=("diverging",)
    )
    draws = jax.block_until_ready(chain.get_samples())
    seconds = time.perf_counter() - start
    divergences = int(chain.get_extra_fields()["diverging"].sum())
    print(json.dumps([seconds, effective_draws(draws, name, chains=1), divergences]))


def effective_draws(draws: dict, name: str, chains: int) -> float:
    """The smallest bulk effective sample size of the watched parameters."""
    columns = [np.asarray(draws[key]).reshape(chains, -1, draws[key][0].size) for key in WATCHED[name]]
    values = np.concatenate(columns, axis=2)
    return judge(values, 0, values[:, :, 0]).ess_bulk


def with_numpyro(name: str, patience: float) -> tuple[float, float, int] | float | None:
    """Seconds, effective draws and divergences; the patience where it ran out; None where there is no NumPyro."""
    if find_spec("numpyro") is None:
        return None
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--numpyro", name], capture_output=True, text=True, check=True, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return patience
    seconds, effective, divergences = json.loads(done.stdout.splitlines()[-1])
    return seconds, effective, divergences


class GivenFBS(FBS):
    """FBS whose records bring their statistics along, so that a fit is timed without the pass over the records."""

    def statistics(self, records: SimpleNamespace, alpha: np.ndarray) -> LinearStatistics:
        return records.statistics


class GivenFBP(FBP):
    """FBP likewise."""

    def statistics(self, records: SimpleNamespace, alpha: np.ndarray) -> LinearStatistics:
        return records.statistics


def make_arrays(rows: int) -> Records:
    """Records as arrays: 8 fields × 2 genders, main effects, correlated t and v."""
    generator = np.random.default_rng(1)
    cell = generator.integers(0, 16, rows)
    field, gender = np.divmod(np.arange(16), 2)
    x = np.column_stack([np.ones(16), *(field == level for level in range(1, 8)), gender]).astype(float)
    t, v = 0.4 * generator.standard_normal(rows), 0.5 * generator.standard_normal(rows)
    v -= 0.6 * t
    t += (x @ np.r_[11.5, np.linspace(-0.2, 0.2, 7), -0.1])[cell]
    return Records(t, v, cell, x, tuple(f"b{number}" for number in range(9)))


@dataclass(frozen=True)
class Growth:
    """Seconds at one number of records."""

    rows: int
    statistics: float
    fits: dict[str, float]
    bounds: float
    extrapolated: bool


def growth() -> list[Growth]:
    found: list[Growth] = []
    given = {"fbs": GivenFBS(), "fbp": GivenFBP()}
    for rows in GROWTH:
        records, alpha = make_arrays(rows), np.ones(rows)
        passes = [_seconds(lambda r=records, a=alpha: linear_statistics(r, a)) for _ in range(3)]
        holder = SimpleNamespace(statistics=linear_statistics(records, alpha))
        seconds, last = {}, None
        for name, model in given.items():
            runs = []
            for seed in range(6):
                start = time.perf_counter()
                last = fit(model, holder, alpha, Streams.seeded(seed))
                # a fit that fails may stop early: its seconds would flatter
                runs.append(time.perf_counter() - start if last.verdict.passed else float("nan"))
            seconds[name] = float(np.nanmin(runs[1:]))
            if name == "fbs":
                draws = Fit(FBS(), records, alpha, last.draws, last.verdict)
        expected = 10 * found[-1].bounds if found else 0.0
        if expected <= LONGEST_BOUNDS:
            runs = 3 if rows <= 100_000 else 1
            bounds = min(_seconds(lambda d=draws: record_bounds(d)) for _ in range(runs))
        else:
            bounds = expected
        found.append(Growth(rows, min(passes), seconds, bounds, expected > LONGEST_BOUNDS))
    return found


def _seconds(function) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def draw_growth(found: list[Growth], path: Path) -> None:
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "svysynth"
    rows = [point.rows for point in found]
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    axes.loglog(rows, [point.fits["fbs"] for point in found], "o-", label="one FBS fit, given the statistics")
    axes.loglog(rows, [point.fits["fbp"] for point in found], "s-", label="one FBP fit, given the statistics")
    axes.loglog(rows, [point.statistics for point in found], "^--", label="statistics, one pass")
    axes.loglog(rows, [point.bounds for point in found], "v--", label="bounds, one pass with 1000 draws")
    axes.set(xlabel="records", ylabel="seconds")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def wait_for_release() -> tuple[float, float]:
    """Wall seconds of `svysynth release` on the demo survey, with nothing compiled and then once more."""
    command = [sys.executable, "-m", "svysynth"]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
        spec = write_example(Path(folder) / "demo")
        open_demo_budget(svysynth.load_spec(spec))
        waits = []
        for turn in ("first", "second"):
            start = time.perf_counter()
            arguments = ["release", str(spec), "--seed", "1", "--out", f"{folder}/{turn}"]
            subprocess.run([*command, *arguments], capture_output=True, check=True, env=environment)
            waits.append(time.perf_counter() - start)
    return waits[0], waits[1]


def first_sample() -> svysynth.Survey:
    return draw_sample(make_population(Streams.seeded(1)), Streams.seeded(1))


def kept_row(page: str, tool: str, name: str) -> str | None:
    """The row of a tool and a model on the page that is already there."""
    return next((line for line in page.splitlines() if line.startswith(f"| {name} | {tool}")), None)


def page(before: str, patience: float, picture: Path) -> str:
    population = make_population(Streams.seeded(1))
    surveys = [draw_sample(population, Streams.seeded(1), index) for index in range(SAMPLES)]
    frames = [survey.frame.select("field", "gender", "salary", "weight") for survey in surveys]
    records = make_records(surveys[0])
    small = {name: time_releases(frames, 100_000.0, model) for name, model in MODELS.items()}
    large = {
        name: time_releases([doctorates()] * RUNS_OF_DOCTORATES, float(POPULATION), model)
        for name, model in MODELS.items()
    }
    own = {}
    for name, model in MODELS.items():
        runs = [_timed_fit(model, records, seed) for seed in range(4)][1:]
        own[name] = min(runs, key=lambda run: run[0])
    cold, warm = wait_for_release()
    points = growth()
    draw_growth(points, picture)

    rows, notes = [], []
    rstan_seconds: dict[str, float] = {}
    for name in MODELS:
        rows.append(fit_row(name, f"svysynth {svysynth.__version__}", *own[name]))
        rstan = with_rstan(surveys[0], records, name)
        label = f"rstan, {name.upper()}"
        if rstan:
            seconds, effective = float(rstan["seconds"]), float(rstan["min_bulk_ess"])
            rows.append(fit_row(name, "rstan (all parameters)", seconds, effective, int(rstan["divergences"])))
        elif row := kept_row(before, "rstan", name):
            rows.append(row)
            notes.append(f"{label}: R or rstan was not at hand; the row is kept from an earlier run.")
            seconds = float(row.split("|")[3])
        else:
            notes.append(f"{label}: R or rstan was not at hand, and there is no earlier run.")
            seconds = float("nan")
        rstan_seconds[name] = seconds
        theirs = with_numpyro(name, patience)
        label = f"NumPyro, {name.upper()}"
        if isinstance(theirs, tuple):
            rows.append(fit_row(name, f"NumPyro {version('numpyro')}", *theirs))
        elif theirs is not None:
            rows.append(f"| {name} | NumPyro {version('numpyro')} | > {patience:.0f} | | | |")
            notes.append(
                f"{label}: not finished after {patience:.0f} s and stopped, so it has no effective draws here."
            )
        elif row := kept_row(before, "NumPyro", name):
            rows.append(row)
            notes.append(f"{label}: NumPyro was not at hand; the row is kept from an earlier run.")

    lines = [
        "# Benchmarks of a release",
        "",
        f"`make bench`, {time.strftime('%Y-%m-%d')}: {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}, jax {version('jax')}, blackjax {version('blackjax')}; "
        f"load average at the end {os.getloadavg()[0]:.1f}. The machine is shared: read the ratios.",
        "",
        "## A calibrated release, beside one fit by rstan",
        "",
        f"From a frame in memory to the tables by field and gender: all fits, bounds, calibration to ε = {EPSILON} for "
        f"{DATASETS} data sets, synthesis. After the first run, which compiles. n = 1,000: {SAMPLES} samples of the "
        f"simulated population; n = 10,355: the stand-in with {RUNS_OF_DOCTORATES} seeds. *Refused*: runs in which "
        "calibration found no weights within its refits, released nothing, and are left out of the seconds. The last "
        "column divides the seconds of one single rstan fit on the first sample of n = 1,000 by the median release.",
        "",
        "| model | records | released | refused | fits | best seconds | median seconds | rstan fit / release |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for n, results in (("1,000", small), ("10,355", large)):
        for name, result in results.items():
            median = float(np.median(result.seconds))
            ratio = f"{rstan_seconds[name] / median:.0f}" if n == "1,000" and rstan_seconds[name] > 0 else ""
            lines.append(
                f"| {name} | {n} | {len(result.seconds)} | {result.refused} | {np.median(result.fits):.0f} | "
                f"{min(result.seconds):.2f} | {median:.2f} | {ratio} |"
            )
    worst = min(result.effective for results in (small, large) for result in results.values())
    divergences = sum(result.divergences for results in (small, large) for result in results.values())
    lines += [
        "",
        f"Over all the fits that were released from: {divergences} divergences, smallest bulk effective sample size "
        f"{worst:.0f}.",
        "",
        "## One fit, n = 1,000",
        "",
        f"svysynth: {CHAINS} chains on the integrated density, 1000 draws kept of 2000; statistics and diagnostics "
        "included, best of 3 after compiling. The others fit the same model and priors record by record: one chain, "
        "1000 warm-up and 1000 draws, default settings, double precision. rstan's compilation is left out, NumPyro's "
        "is in. Effective draws: the smallest bulk ESS of β and Σ (FBS) or β, κ and the σ's (FBP); rstan's is over all "
        "its parameters, which for FBS include the coefficients' scales.",
        "",
        "| model | tool | seconds | divergences | effective draws | effective draws per second |",
        "|---|---|---:|---:|---:|---:|",
        *rows,
        "",
        *(line for note in notes for line in (note, "")),
        "## Growth with the number of records",
        "",
        f"![Seconds against the number of records]({picture.name})",
        "",
        "Seconds; a fit is the sampling and its diagnostics once the statistics exist, best of those of 5 that pass. "
        "It never looks at a record again. The pass over the bounds (FBS) looks at 1000 draws for each record.",
        "",
        "| records | statistics | FBS fit | FBP fit | bounds |",
        "|---:|---:|---:|---:|---:|",
    ]
    for point in points:
        mark = " (extrapolated)" if point.extrapolated else ""
        lines.append(
            f"| {point.rows:,} | {point.statistics:.4f} | {point.fits['fbs']:.2f} | {point.fits['fbp']:.3f} | "
            f"{point.bounds:.3f}{mark} |"
        )
    lines += [
        "",
        "## What a user waits for",
        "",
        "`svysynth release` of the demo survey (10,355 records, FBS), a fresh process each time, wall seconds.",
        "",
        "| | seconds |",
        "|---|---:|",
        f"| first time, nothing compiled | {cold:.1f} |",
        f"| second time, programs compiled before | {warm:.1f} |",
        "",
    ]
    return "\n".join(lines)


def _timed_fit(model: Model, records: Records, seed: int) -> tuple[float, float, int]:
    start = time.perf_counter()
    found = fit(model, records, np.ones(len(records)), Streams.seeded(seed))
    seconds = time.perf_counter() - start
    return seconds, effective_draws(found.draws, model.name, CHAINS), found.verdict.divergences


def fit_row(name: str, tool: str, seconds: float, effective: float, divergences: int) -> str:
    return f"| {name} | {tool} | {seconds:.2f} | {divergences} | {effective:.0f} | {effective / seconds:,.1f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "benchmarks-release.md")
    parser.add_argument("--patience", type=float, default=150.0, help="seconds that NumPyro is given for one fit")
    parser.add_argument("--numpyro", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.numpyro:
        numpyro_fit(chosen.numpyro)
    else:
        before = chosen.out.read_text(encoding="utf-8") if chosen.out.exists() else ""
        text = page(before, chosen.patience, chosen.out.with_suffix(".svg"))
        print(text)
        chosen.out.write_text(text, encoding="utf-8")
