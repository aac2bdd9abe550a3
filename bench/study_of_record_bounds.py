"""Measures Δ on the paper's simulation, without the weights α and after their calibration: docs/studies.md.

    python bench/study_of_record_bounds.py
    python bench/study_of_record_bounds.py --samples 4 --calibrated 2 --out FOLDER

`--samples` is how many samples are fitted without the weights α: the median of their Δ must lie in a fixed range, and
the paper's Δ between their 10% and 90% quantiles. `--calibrated` is how many samples are calibrated to two target Δ:
each must end at or below its target, within the tolerance, after at most 8 refits. A fit that fails its diagnostics
stops the study.
"""

from __future__ import annotations

import sys

import numpy as np

from criteria import judge, settings, write
from svysynth.core.streams import Streams
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.pseudo_posterior.calibration import TOLERANCE, calibrate_records
from svysynth.mechanisms.pseudo_posterior.record_bounds import record_bounds
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.records import make_records
from svysynth.models.sampler import fit

SAMPLES, CALIBRATED = 200, 50
POPULATIONS = 4
MODELS = {"FBS": FBS(), "FBP": FBP()}
QUANTILES = [0.1, 0.25, 0.5, 0.75, 0.9]
PUBLISHED = {"FBS": 8.89, "FBP": 9.92}
"""The paper's Δ without the weights α, for one sample."""
MEDIANS = {"FBS": (8.0, 9.5), "FBP": (8.7, 10.5)}
TARGETS = (1.8, 3.4)
DATASETS = 3
MOST_REFITS = 8


def main(given=None):
    chosen = settings(__doc__, given, samples=SAMPLES, calibrated=CALIBRATED)
    unweighted, calibrated = unweighted_bounds(chosen.samples), calibrations(chosen.calibrated)
    write(chosen.out / "studies.md", page(unweighted, calibrated, chosen.samples, chosen.calibrated))
    return judge([*criteria_of_unweighted(unweighted), *criteria_of_calibrations(calibrated)])


def samples(count):
    """Samples of n = 1000, drawn from several populations in turn."""
    streams = Streams.seeded(100)
    populations = [make_population(streams, index) for index in range(POPULATIONS)]
    return [make_records(draw_sample(populations[i % POPULATIONS], streams, i)) for i in range(count)]


def unweighted_bounds(count):
    """Model → quantiles over samples of the unweighted fit's Δ."""
    records, found = samples(count), {}
    for name, model in MODELS.items():
        largest = [
            record_bounds(fit(model, sample, np.ones(len(sample)), Streams.seeded(i))).max()
            for i, sample in enumerate(records)
        ]
        found[name] = np.quantile(largest, QUANTILES)
    return found


def calibrations(count):
    """Model and target → for every sample the Δ that was reached, and the number of refits."""
    records, found = samples(count), {}
    for name, model in MODELS.items():
        for target in TARGETS:
            reached = [
                calibrate_records(model, sample, 2 * DATASETS * target, DATASETS, Streams.seeded(1000 + i))
                for i, sample in enumerate(records)
            ]
            found[name, target] = [(one.largest_bound, len(one.trials)) for one in reached]
    return found


def criteria_of_unweighted(unweighted):
    for name, (low, _, median, _, high) in unweighted.items():
        (least, most), paper = MEDIANS[name], PUBLISHED[name]
        yield least <= median <= most, f"{name}: the median of the unweighted Δ is {median:.2f}, not {least} to {most}"
        text = f"{name}: the paper's Δ, {paper}, is not between the quantiles, {low:.2f} and {high:.2f}"
        yield low <= paper <= high, text


def criteria_of_calibrations(calibrated):
    for (name, target), found in calibrated.items():
        short, refits, where = furthest_below(found, target), most_refits(found), f"{name} at Δ = {target}"
        yield all(bound <= target for bound, _ in found), f"{where}: a calibration ended above its target"
        yield short <= TOLERANCE, f"{where}: a calibration ended {short:.2%} below its target"
        yield refits <= MOST_REFITS, f"{where}: a calibration took {refits} refits"


def furthest_below(found, target):
    return max(1 - bound / target for bound, _ in found)


def most_refits(found):
    return max(refits for _, refits in found)


# --- the page ---


def page(unweighted, calibrated, samples, calibrated_samples):
    """The page in Markdown: a table of calibrations and a table of unweighted Δ."""
    calibration_rows = "\n".join(
        f"| {name} | {target} | {calibrated_samples} | {furthest_below(found, target):.2%} "
        f"| {np.mean([refits for _, refits in found]):.2f} | {most_refits(found)} |"
        for (name, target), found in calibrated.items()
    )
    unweighted_rows = "\n".join(
        f"| {name} | {samples} | {' | '.join(f'{value:.2f}' for value in values)} | {PUBLISHED[name]} |"
        for name, values in unweighted.items()
    )
    return f"""# Studies

Written by `make study` (`bench/study_of_record_bounds.py`). FBS is the fully Bayes model of the observed sample, FBP
the fully Bayes model of the population and the sampling. Δ is the largest bound of a record after weighting (before
weighting, where it is called unweighted), m is the number of synthetic data sets, and ε = 2·Δ·m is the privacy loss
(smaller is safer).

## Calibration

| model | target Δ | samples | furthest below the target | refits: mean | refits: most |
|---|---:|---:|---:|---:|---:|
{calibration_rows}

m = {DATASETS}, so that ε = 2·Δ·{DATASETS}. A fit that failed its diagnostics would have stopped the study.

## Unweighted Δ

| model | samples | 10% | 25% | median | 75% | 90% | paper |
|---|---:|---:|---:|---:|---:|---:|---:|
{unweighted_rows}

{POPULATIONS} simulated populations, n = 1000, 1000 draws.

The columns with percentages have quantiles over the samples; the last column has the paper's figure.
"""


if __name__ == "__main__":
    sys.exit(main())
