"""Times a calibrated release from a frame in memory, to compare with one fit by rstan, and the demo's release.

A release here consists of reading, all fits, bounds, calibration, three synthetic surveys and their tables by field and
gender.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

import svysynth
from measuring import answer, keep, program, run
from svysynth.cli.release import open_demo_budget, write_example
from svysynth.core.errors import SurveyError
from svysynth.core.streams import Streams
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.pseudo_posterior.python_interface import calibrate
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.survey.doctorates import POPULATION, doctorates

EPSILON, DATASETS = 10.8, 3
SAMPLES, SEEDS = 7, 5
"""The number of samples of 1,000 records, and the number of seeds for the stand-in, whose records stay the same."""
PAPER = f'guarantee = "asymptotic"\nepsilon = {EPSILON}\ndatasets = {DATASETS}\n'
"""Settings of the paper's mechanism, which replace those of the demo."""
MODELS = {"fbs": FBS(), "fbp": FBP()}


def measure() -> None:
    for records in (1_000, 10_355):
        for model in MODELS:
            found = run(program("calibrated.py", "releases", model, records))
            keep("calibrated", {"model": model, "records": records} | found)
    with tempfile.TemporaryDirectory() as folder:
        spec = write_example(Path(folder) / "demo")
        spec.write_text(re.sub(r'guarantee = "global".*?(?=budget = )', PAPER, spec.read_text(), flags=re.DOTALL))
        open_demo_budget(svysynth.load_spec(spec))
        environment = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
        for turn in ("first", "second"):
            command = program("calibrated.py", "wait", spec, f"{folder}/{turn}")
            keep("waits", {"turn": turn} | run(command, environment=environment))


def release(frame: pl.DataFrame, total: float, model: str, seed: int):
    survey = svysynth.read_survey(
        frame,
        outcome="salary",
        weight="weight",
        strata="field",
        public=["field", "gender"],
        population_total=total,
    )
    found = calibrate(MODELS[model], survey, EPSILON, DATASETS, streams=Streams.seeded(seed))
    found.synthesize(correction=False).tabulate(["field", "gender"])
    return found.calibration


def time_releases(model: str, records: int) -> None:
    """Time a release of each frame, each with its own seed; a first release, which compiles, does not count."""
    if records == 1_000:
        population = make_population(Streams.seeded(1))
        samples = [draw_sample(population, Streams.seeded(1), index).frame for index in range(SAMPLES)]
        frames, total = [sample.select("field", "gender", "salary", "weight") for sample in samples], 100_000.0
    else:
        frames, total = [doctorates()] * SEEDS, float(POPULATION)
    seconds, fits, verdicts = [], [], []
    for seed, frame in enumerate([frames[0], *frames]):
        start = time.perf_counter()
        try:
            calibration = release(frame, total, model, seed)
        except SurveyError:
            continue
        if seed > 0:
            seconds.append(time.perf_counter() - start)
            fits.append(1 + len(calibration.trials))
            verdicts.append(calibration.fit.verdict)
    answer(
        released=len(seconds),
        refused=len(frames) - len(seconds),
        fits=int(statistics.median(fits)),
        best_seconds=min(seconds),
        median_seconds=statistics.median(seconds),
        effective_draws=float(min(verdict.ess_bulk for verdict in verdicts)),
        divergences=sum(verdict.divergences for verdict in verdicts),
    )


def wait(spec: str, out: str) -> None:
    """Measure the wall-clock time of the command, from the start of its process to its end."""
    command = [sys.executable, "-m", "svysynth", "release", spec, "--seed", "1", "--out", out]
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True, env=os.environ)
    answer(seconds=time.perf_counter() - start)


if __name__ == "__main__":
    if sys.argv[1] == "wait":
        wait(sys.argv[2], sys.argv[3])
    else:
        time_releases(sys.argv[2], int(sys.argv[3]))
