"""Samples of clusters with calibrated weights: standard errors of tables and files, and a release."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import svysynth
import test_clusters_in_noisy_sums as clustered
from raked import raked
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.noisy_sums import implied_tables as figuring
from svysynth.mechanisms.noisy_sums.from_public_folder import FromPublic
from svysynth.mechanisms.noisy_sums.imputed_files import FilePlan
from svysynth.publishing.verification import verify_release

OF_SEX = {"by": "sex", "totals": {"f": 24_000, "m": 26_000}}
OF_REGION = {"by": "region", "totals": {"r0": 16_000, "r1": 15_000, "r2": 19_000}}
CALIBRATIONS = {
    "post-stratify": {"method": "post-stratify", "margins": [OF_SEX]},
    "rake": {"method": "rake", "margins": [OF_SEX, OF_REGION]},
}
TABLES = [clustered.TABLE, clustered.DOMAIN]
TEXT = f"""
{raked(sex=OF_SEX["totals"], region=OF_REGION["totals"])}
[privacy]"""


def variances(make):
    table = FromPublic(make, FilePlan(77, ()), svysynth.EstimationSpec()).tabulate_all(TABLES)
    return table, table["se"].to_numpy() ** 2


@pytest.mark.parametrize("transform", ["log", "identity"])
@pytest.mark.parametrize("method", CALIBRATIONS)
def test_standard_errors_of_files_are_on_average_those_of_tables(transform, method, monkeypatch):
    """A file's own variance, of clusters and of what the totals leave, and the closed form."""
    monkeypatch.setattr(figuring, "_not_followed", lambda *_: 0.0)
    monkeypatch.setattr(figuring, "_moments_of_spread", lambda cells, facts: [0.0 * cells.weight[:, facts.cell]] * 3)
    plain = clustered.maker(clustered.people(150, least=5, most=15), transform)
    make = replace(plain, facts=replace(plain.facts, calibration=CalibrationSpec(**CALIBRATIONS[method])))
    table, expected = variances(make)
    files = [replace(make, seed=seed).survey(1) for seed in range(40)]
    tables = [Synthetic((one,), "imputed").tabulate_all(TABLES) for one in files]
    found = [one["se"].to_numpy() ** 2 for one in tables]
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    known = expected > (1e-6 * np.nan_to_num(np.array(table["estimate"]))) ** 2
    # residuals are centred in cells: what clusters share with the mean of their cell is lost, about 1 in 50 here
    assert (np.abs(mean - expected)[known] <= 4 * error[known] + 0.05 * expected[known]).all()
    assert (mean[~known] <= 1e-9 * np.nan_to_num(np.array(table["estimate"])[~known]) ** 2).all()
    np.testing.assert_allclose(tables[0]["estimate"], table["estimate"], rtol=1e-6)
    # clusters matter, and so do totals
    alone = replace(make, facts=replace(make.facts, cluster=None), drawn=replace(make.drawn, between=None))
    means, counts = (np.array(table["statistic"] == name) for name in ("mean", "count"))
    assert (expected[means] / variances(alone)[1][means]).min() > 1.2
    uncalibrated = variances(plain)[1]
    assert np.median(expected[counts & known] / uncalibrated[counts & known]) < 0.95


def test_a_release_has_the_totals_the_clusters_and_their_correction(tmp_path):
    text = clustered.SPEC.replace("population_total = 50000\n", "").replace("\n[privacy]", TEXT)
    text = text.replace('cluster = "village"', 'cluster = "village"\nfpc = "villages"\nfpc_public = true')
    path = clustered.written(tmp_path, text, clustered.people().with_columns(villages=pl.lit(50)))
    done = svysynth.release(path, tmp_path / "out")
    verify_release(tmp_path / "out", tmp_path / "ledger.sqlite")
    assert "villages" in done.guarantee.public
    table = pl.read_csv(tmp_path / "out/public/tables.csv").filter(statistic="count", sex="All")
    regions = table.filter(pl.col("region") != "All")
    assert regions["estimate"].to_list() == pytest.approx([16_000, 15_000, 19_000], rel=1e-9)
    assert regions["se"].to_list() == [0, 0, 0]
    more = svysynth.more(tmp_path / "out/public").synthetic(1).surveys[0]
    assert more.design.cluster == "village"
    np.testing.assert_allclose(more.index.unsampled, [1 - 20 / 50] * 3)
    assert np.bincount(more.cell_index(["sex"]), more.weights) == pytest.approx([24_000, 26_000], rel=1e-6)
