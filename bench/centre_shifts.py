"""Measures how far the weights α move the centre of FBS, in two-stage samples and in surveys simulated from the model.

    python bench/centre_shifts.py OUT --icc 0.05 --replicates 40

The samples are those of bench/clusters.py. For each, the whole asymptotic mechanism is run on the sample and on one
survey that is simulated from the model at the estimates of the sample. The CSV has both shifts of the mean log outcome
of all records, weighted less unweighted, and the mean weight α. If standard errors are to be right, both shifts have
the same standard deviation; the program prints them.
"""

import argparse
from pathlib import Path

import numpy as np
import polars as pl

import svysynth
from clusters import Study
from svysynth.mechanisms.pseudo_posterior.bias_correction import public_part, simulate_sample
from svysynth.mechanisms.pseudo_posterior.calibration import calibrate_records, fit_unweighted
from svysynth.models.records import make_records

EPSILON, DATASETS = 10.8, 3
MODEL = svysynth.ClusteredFBS()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--icc", type=float, default=0.05)
    parser.add_argument("--replicates", type=int, default=40)
    settings = parser.parse_args()
    study = Study(settings.icc, 500, 2, 0)
    rows = []
    for replicate in range(settings.replicates):
        records = make_records(study.survey(replicate))
        streams = svysynth.Streams.seeded(5000 + replicate)
        try:
            own, alpha, estimates = shift(records, streams.split("own", 0))
            simulated = simulate_sample(
                MODEL.weighting_bias, estimates, public_part(records), streams.split("simulated", 0)
            )
            other, other_alpha, _ = shift(simulated, streams.split("simulated", 0))
        except svysynth.SurveyError:  # the mechanism refused one of the two
            continue
        rows.append((settings.icc, replicate, own, alpha, other, other_alpha))
    columns = ["icc", "replicate", "shift", "mean_alpha", "simulated_shift", "simulated_mean_alpha"]
    found = pl.DataFrame(rows, schema=columns, orient="row")
    found.write_csv(settings.out)
    print(found.select(pl.len(), pl.col("shift", "simulated_shift").pow(2).mean().sqrt(), pl.col("^.*alpha$").mean()))


def shift(records, streams):
    """The shift of the mean log outcome, the mean weight α, and the estimates of the unweighted fit."""
    start = fit_unweighted(MODEL, records, streams)
    weighted = calibrate_records(MODEL, records, EPSILON, DATASETS, streams, start_from=start).fit
    before, after = (
        {name: np.asarray(value).mean(axis=0) for name, value in fit.draws.items()} for fit in (start.fit, weighted)
    )
    size = np.bincount(records.cell) / len(records)
    centres = (np.asarray(MODEL.weighting_bias.centre(one, records))[0] @ size for one in (after, before))
    return next(centres) - next(centres), float(np.mean(np.asarray(weighted.alpha))), before


if __name__ == "__main__":
    main()
