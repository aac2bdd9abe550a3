"""Studies of the mechanism on the paper's simulation, run by `make study`, which writes docs/studies.md."""

import numpy as np
import pytest

from places import DOCS
from svysynth.core.streams import Streams
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.pseudo_posterior.calibration import TOLERANCE, calibrate_records
from svysynth.mechanisms.pseudo_posterior.record_bounds import record_bounds
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.records import make_records
from svysynth.models.sampler import fit

pytestmark = pytest.mark.study

PAGE = DOCS / "studies.md"
INTRODUCTION = """# Studies

Written by `make study`. FBS is the fully Bayes model of the observed sample, FBP the fully Bayes model of the
population and the sampling. Δ is the largest bound of a record after weighting (before weighting, where it is called
unweighted), m is the number of synthetic data sets, and ε = 2·Δ·m is the privacy loss (smaller is safer).
"""
MODELS = {"FBS": FBS(), "FBP": FBP()}
PUBLISHED = {"FBS": 8.89, "FBP": 9.92}
MEDIANS = {"FBS": (8.0, 9.5), "FBP": (8.7, 10.5)}
POPULATIONS, SAMPLES = 4, 200


def samples(count):
    """Samples of n = 1000, in turn from several populations."""
    streams = Streams.seeded(100)
    populations = [make_population(streams, index) for index in range(POPULATIONS)]
    return [make_records(draw_sample(populations[i % POPULATIONS], streams, i)) for i in range(count)]


def write_section(title, lines):
    """Replace one section of the page, and keep the others."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else INTRODUCTION
    sections = {part.split("\n", 1)[0]: part for part in text.split("\n## ")[1:]}
    sections[title] = "\n".join([title, "", *lines, ""])
    head = text.split("\n## ")[0]
    PAGE.write_text("\n## ".join([head, *(sections[name] for name in sorted(sections))]), encoding="utf-8")


def test_unweighted_bounds_are_the_papers():
    """Δ of the unweighted fit over simulated samples: the paper reports one sample's, 8.89 and 9.92."""
    lines = ["| model | samples | 10% | 25% | median | 75% | 90% | paper |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    results = {}
    records = samples(SAMPLES)
    for name, model in MODELS.items():
        largest = [
            record_bounds(fit(model, sample, np.ones(len(sample)), Streams.seeded(i))).max()
            for i, sample in enumerate(records)
        ]
        results[name] = np.quantile(largest, [0.1, 0.25, 0.5, 0.75, 0.9])
        figures = " | ".join(f"{value:.2f}" for value in results[name])
        lines.append(f"| {name} | {SAMPLES} | {figures} | {PUBLISHED[name]} |")
    size = f"{POPULATIONS} simulated populations, n = 1000, 1000 draws."
    note = "Percentages are quantiles over the samples; the last column has the paper's figure."
    write_section("Unweighted Δ", [*lines, "", size, "", note])
    for name, (low, _, median, _, high) in results.items():
        assert MEDIANS[name][0] <= median <= MEDIANS[name][1]
        assert low <= PUBLISHED[name] <= high


def test_calibration_is_private_close_and_quick():
    """50 samples at two targets: always on the private side, within 2%, at most 8 refits, no failed diagnostics."""
    lines = [
        "| model | target Δ | samples | furthest below the target | refits: mean | refits: most |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    failures = []
    records = samples(50)
    for name, model in MODELS.items():
        for target in (1.8, 3.4):
            found = [
                calibrate_records(model, sample, 6 * target, 3, Streams.seeded(1000 + i))
                for i, sample in enumerate(records)
            ]
            short = max(1 - one.largest_bound / target for one in found)
            refits = [len(one.trials) for one in found]
            lines.append(f"| {name} | {target} | 50 | {short:.2%} | {np.mean(refits):.2f} | {max(refits)} |")
            if short > TOLERANCE or max(refits) > 8 or any(one.largest_bound > target for one in found):
                failures.append((name, target, short, max(refits)))
    note = "m = 3, so that ε = 2·Δ·3. A fit that failed its diagnostics would have stopped the study."
    write_section("Calibration", [*lines, "", note])
    assert not failures
