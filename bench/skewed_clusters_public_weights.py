"""Measures standard errors of noisy sums with public weights where the effects of clusters are skewed.

    python bench/skewed_clusters_public_weights.py --samples 40 --transform log
    python bench/skewed_clusters_public_weights.py --samples 20 --weights clusters

Each sample has 60 clusters of 20 records, and 0.2 of the variance of the outcome's logarithm, or of the outcome without
one, is between clusters. Weights are declared public. They are equal, or vary between clusters or between records with
a standard deviation of 0.5 of their logarithm, and go with the outcome. Effects of clusters are those of
bench/skewed_clusters.py. ε is for an outcome that is blanked out. Printed is the ratio of the released standard error
of the mean of the whole file to the direct one: the mean, the standard deviation, the least and the largest.
"""

import argparse
from itertools import product

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

CLUSTERS, SIZE, SHARE, DRAWS = 60, 20, 0.2, 400
WEIGHTS = {"even": (0.0, 0.0), "clusters": (0.5, 0.0), "records": (0.0, 0.5)}
"""Standard deviations of log weights between clusters and within them."""
TABLES = [TableSpec(by=("sex",), statistics=("mean",))]
BOUNDS = {
    "log": BoundsSpec(outcome=(1e2, 1e7), weight=(1.0, 1000.0)),
    "identity": BoundsSpec(outcome=(5.0, 20.0), weight=(1.0, 1000.0)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--transform", nargs="+", default=list(BOUNDS), choices=BOUNDS)
    parser.add_argument("--effects", nargs="+", default=list(EFFECTS), choices=EFFECTS)
    parser.add_argument("--weights", default="even", choices=WEIGHTS)
    parser.add_argument("--epsilon", type=float, default=5.0)
    settings = parser.parse_args()
    print("transform    effects      mean  sd    least  largest")
    for transform, name in product(settings.transform, settings.effects):
        case = transform, name, settings.weights, settings.epsilon
        found = [ratio(*case, seed) for seed in range(settings.samples)]
        figures = f"{np.mean(found):.2f}  {np.std(found, ddof=1):.2f}  {min(found):.2f}   {max(found):.2f}"
        print(f"{transform:12s} {name:12s} {figures}", flush=True)


def ratio(transform, name, weights, epsilon, seed):
    """The released standard error of the mean of the whole file over the direct one."""
    survey, streams = sample(transform, EFFECTS[name], WEIGHTS[weights], seed), svysynth.Streams.seeded(seed)
    parts = TABLES, BOUNDS[transform], transform, 2 * epsilon, StudyNoise(streams)
    measurement, facts = measure_survey(survey, "answers", *parts)
    drawn = fit_measurement(measurement, facts, FBS(), None, DRAWS, streams).drawn
    released = tables_of(drawn, measurement, facts, TABLES, EstimationSpec())
    one, other = (table.filter(sex="All")["se"].item() for table in (released, tabulate_all(survey, TABLES)))
    return one / other


def sample(transform, effects, spreads, seed):
    generator = np.random.default_rng(seed)
    cluster, sex = np.repeat(np.arange(CLUSTERS), SIZE), np.tile([0, 1], CLUSTERS * SIZE // 2)
    own = np.sqrt(SHARE) * effects(generator, CLUSTERS)[cluster]
    rest = np.sqrt(1 - SHARE) * generator.standard_normal(len(cluster))
    t = 10.3 + 0.3 * sex + 0.6 * (own + rest)
    of_clusters, of_records = spreads
    chance = generator.standard_normal(CLUSTERS)[cluster], generator.standard_normal(len(cluster))
    parts = own / np.sqrt(SHARE) - 2 * chance[0], rest / np.sqrt(1 - SHARE) - 2 * chance[1]
    weight = 25 * np.exp(-(of_clusters * parts[0] + of_records * parts[1]) / np.sqrt(5))
    columns = {"sex": np.array(["f", "m"])[sex], "village": [f"v{one}" for one in cluster], "wt": weight}
    frame = pl.DataFrame(columns | {"income": np.exp(t) if transform == "log" else t})
    roles = {"weight": "wt", "weight_public": True, "cluster": "village", "public": ["sex"], "transform": "identity"}
    return svysynth.read_survey(frame, outcome="income", **roles)


if __name__ == "__main__":
    main()
