"""Compares one fit of FBS and of FBP by svysynth, rstan and NumPyro: time, effective draws and peak memory.

Records are a sample of any size from the simulated population, with replacement. svysynth runs four chains on the
integrated density; its time includes statistics, sampling and diagnostics. The other tools fit the same model and
priors record by record: one chain, 1000 warm-up iterations and 1000 draws, default settings, double precision. No time
includes compilation.
"""

from __future__ import annotations

import sys
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

from measuring import HERE, SIZES, answer, has_r, keep, program, run

MODELS = ["fbs", "fbp"]
PATIENCE = {"NumPyro": 200.0}
"""Seconds after which a tool is stopped, compilation included."""
RUNS = 3
RSTAN_SIZES = SIZES[:1]
NUMPYRO_SIZES = SIZES[:3]
WATCHED = {"fbs": ("beta_y", "beta_w", "covariance"), "fbp": ("beta", "kappa_y", "kappa_x", "sigma_y", "sigma_pi")}
"""The parameters whose effective draws are counted."""


def measure(sizes: list[int] = SIZES) -> None:
    """Measure each tool that is installed, at each number of records that is listed for it."""
    late: set[tuple[str, str]] = set()
    for records in sizes:
        with tempfile.TemporaryDirectory() as folder:
            run(program("fits.py", "write", folder, records))
            for model in MODELS:
                for tool, command in commands(folder, model, records).items():
                    if (tool, model) not in late:
                        found = run(command, PATIENCE.get(tool, float("inf")))
                        keep("fits", {"model": model, "tool": tool, "records": records} | found)
                        late |= {(tool, model)} if found.get("stopped") else set()


def commands(folder: str, model: str, records: int) -> dict[str, list[str]]:
    found = {"svysynth": program("fits.py", "svysynth", folder, model)}
    if records in RSTAN_SIZES and has_r("rstan"):
        found["rstan"] = ["Rscript", str(HERE / "rstan_fit.R"), f"{folder}/records.csv", model]
    if records in NUMPYRO_SIZES and find_spec("numpyro"):
        found["NumPyro"] = program("fits.py", "numpyro", folder, model)
    return found


def write(folder: Path, records: int) -> None:
    """Write the files that the tools read: columns as arrays, and a CSV file for R."""
    from svysynth.core.streams import Streams
    from svysynth.evaluation.paper.simulation import draw_sample, make_population
    from svysynth.models.records import make_records

    survey = draw_sample(make_population(Streams.seeded(1)), Streams.seeded(1), n=records)
    found = make_records(survey)
    for name in ("t", "v", "cell", "x"):
        np.save(folder / f"{name}.npy", np.asarray(getattr(found, name)))
    if records in RSTAN_SIZES:
        labels = survey.frame.select(pl.col("field", "gender").cast(pl.String))
        labels.with_columns(t=found.t, v=found.v, alpha=1.0).write_csv(folder / "records.csv")


def with_svysynth(folder: Path, name: str) -> None:
    """Time fits by svysynth: the best run, after a first run, which compiles."""
    import svysynth
    from svysynth.core.streams import Streams
    from svysynth.models.fbp import FBP
    from svysynth.models.fbs import FBS
    from svysynth.models.records import Records
    from svysynth.models.sampler import CHAINS, fit

    t, v, cell, x = (np.load(folder / f"{column}.npy") for column in ("t", "v", "cell", "x"))
    records = Records(t, v, cell, x, tuple(f"b{number}" for number in range(x.shape[1])))
    runs = []
    for seed in range(1 + RUNS):
        start = time.perf_counter()
        found = fit({"fbs": FBS(), "fbp": FBP()}[name], records, np.ones(len(t)), Streams.seeded(seed))
        seconds = time.perf_counter() - start
        assert found.verdict.passed, "a fit that fails its diagnostics may stop early, so its time would be too short"
        runs.append((seconds, effective_draws(found.draws, name, CHAINS), found.verdict.divergences))
    seconds, effective, divergences = min(runs[1:])
    answer(seconds=seconds, effective_draws=effective, divergences=divergences, version=svysynth.__version__)


def with_numpyro(folder: Path, name: str) -> None:
    """Time one fit by NumPyro, without the seconds of the compiler."""
    import jax
    import jax.monitoring
    from numpyro.infer import MCMC, NUTS

    import svysynth  # noqa: F401  the import makes JAX use double precision
    from numpyro_models import MODELS as PER_RECORD

    compiler = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiler.append(seconds) if event.endswith("backend_compile_duration") else None
    )
    t, v, cell, x = (np.load(folder / f"{column}.npy") for column in ("t", "v", "cell", "x"))
    chain = MCMC(NUTS(PER_RECORD[name]), num_warmup=1000, num_samples=1000, progress_bar=False)
    start = time.perf_counter()
    chain.run(jax.random.key(1), t, v, x[cell], extra_fields=("diverging",))
    draws = jax.block_until_ready(chain.get_samples())
    seconds = time.perf_counter() - start
    effective = effective_draws(draws, name, chains=1)
    divergences = int(chain.get_extra_fields()["diverging"].sum())
    note = f"and {sum(compiler):.1f} s to compile"
    seconds -= sum(compiler)
    answer(seconds=seconds, effective_draws=effective, divergences=divergences, version=version("numpyro"), note=note)


def effective_draws(draws: dict, name: str, chains: int) -> float:
    """The smallest bulk effective sample size of the watched parameters."""
    from svysynth.models.diagnostics import judge

    columns = [np.asarray(draws[key]).reshape(chains, -1, draws[key][0].size) for key in WATCHED[name]]
    values = np.concatenate(columns, axis=2)
    return float(judge(values, 0, values[:, :, 0]).ess_bulk)


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "write":
        write(folder, int(sys.argv[3]))
        answer()
    else:
        {"svysynth": with_svysynth, "numpyro": with_numpyro}[sys.argv[1]](folder, sys.argv[3])
