"""Measures standard errors of noisy sums with public weights where the effects of clusters are skewed.

    python bench/skewed_clusters_public_weights.py --samples 10

Each sample has 60 clusters of 20 records with equal weights, which are declared public, and 0.2 of the variance of the
outcome's logarithm, or of the outcome without one, is between clusters. Effects of clusters are those of
bench/skewed_clusters.py. ε = 5 for an outcome that is blanked out. Printed are the mean, the least and the largest
ratio of the released standard error of the mean of the whole file to the direct one.
"""

import argparse

import numpy as np
import polars as pl

import svysynth
from skewed_clusters import EFFECTS
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of
from svysynth.models.fbs import FBS

CLUSTERS, SIZE, SHARE, EPSILON, DRAWS = 60, 20, 0.2, 10.0, 400
TABLES = [TableSpec(by=("sex",), statistics=("mean",))]
BOUNDS = {
    "log": BoundsSpec(outcome=(1e2, 1e7), weight=(1.0, 1000.0)),
    "identity": BoundsSpec(outcome=(5.0, 20.0), weight=(1.0, 1000.0)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10)
    samples = parser.parse_args().samples
    print("transform    effects      mean  least  largest")
    for transform in BOUNDS:
        for name in EFFECTS:
            found = [ratio(transform, name, seed) for seed in range(samples)]
            print(f"{transform:12s} {name:12s} {np.mean(found):.2f}  {min(found):.2f}  {max(found):.2f}", flush=True)


def ratio(transform, name, seed):
    """The released standard error of the mean of the whole file over the direct one."""
    survey, streams = sample(transform, EFFECTS[name], seed), svysynth.Streams.seeded(seed)
    parts = TABLES, BOUNDS[transform], transform, EPSILON, StudyNoise(streams)
    measurement, facts = measure_survey(survey, "answers", *parts)
    drawn = fit_measurement(measurement, facts, FBS(), None, DRAWS, streams).drawn
    released = tables_of(drawn, measurement, facts, TABLES, EstimationSpec())
    one, other = (table.filter(sex="All")["se"].item() for table in (released, tabulate_all(survey, TABLES)))
    return one / other


def sample(transform, effects, seed):
    generator = np.random.default_rng(seed)
    cluster, sex = np.repeat(np.arange(CLUSTERS), SIZE), np.tile([0, 1], CLUSTERS * SIZE // 2)
    own = np.sqrt(SHARE) * effects(generator, CLUSTERS)[cluster]
    t = 10.3 + 0.3 * sex + 0.6 * (own + np.sqrt(1 - SHARE) * generator.standard_normal(len(cluster)))
    columns = {"sex": np.array(["f", "m"])[sex], "village": [f"v{one}" for one in cluster], "wt": np.full(len(t), 25.0)}
    frame = pl.DataFrame(columns | {"income": np.exp(t) if transform == "log" else t})
    roles = {"weight": "wt", "weight_public": True, "cluster": "village", "public": ["sex"], "transform": "identity"}
    return svysynth.read_survey(frame, outcome="income", **roles)


if __name__ == "__main__":
    main()
