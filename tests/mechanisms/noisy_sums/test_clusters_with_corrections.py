"""Samples of clusters with finite population corrections: standard errors of tables and files."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import svysynth
import test_clusters_in_noisy_sums as confidential
import test_clusters_with_public_weights as public
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.noisy_sums import implied_tables as figuring
from svysynth.mechanisms.noisy_sums.from_public_folder import FromPublic
from svysynth.mechanisms.noisy_sums.imputed_files import FilePlan
from svysynth.mechanisms.noisy_sums.measuring.public_facts import facts_of

VILLAGES = {"r0": 100.0, "r1": 250.0, "r2": 50.0}
"""Of each region, which has 50 villages in the sample: the last is fully observed."""
MAKERS = {"confidential weights": confidential.maker, "public weights": public.maker}
ESTIMATION = svysynth.EstimationSpec()
FPC = {"fpc": "villages", "fpc_public": True}


def corrected(frame):
    return frame.with_columns(villages=pl.col("region").replace_strict(VILLAGES, return_dtype=pl.Float64))


def table_of(make):
    return FromPublic(make, FilePlan(77, ()), ESTIMATION).tabulate_all([confidential.TABLE])


@pytest.mark.parametrize("as_fractions", [False, True])
def test_the_facts_count_clusters(as_fractions):
    frame = corrected(confidential.people(150, least=2, most=3))
    frame = frame.with_columns(50 / pl.col("villages")) if as_fractions else frame
    for roles in ({}, {"weight_public": True}):
        facts = facts_of(confidential.survey_of(frame, **FPC, **roles))
        np.testing.assert_allclose(facts.unsampled, [0.5, 0.8, 0], rtol=1e-12)
        np.testing.assert_allclose(facts.without_clusters()[0].unsampled, [0.5, 0.8, 0], rtol=1e-12)


@pytest.mark.parametrize("weights", MAKERS)
def test_standard_errors_of_files_are_on_average_those_of_tables(weights, monkeypatch):
    """The files carry the correction, and their own clustered variance has it as direct tables do."""
    monkeypatch.setattr(figuring, "_not_followed", lambda *_: 0.0)
    plain = MAKERS[weights](confidential.people(150, least=5, most=15))
    make = replace(plain, facts=replace(plain.facts, fpc=np.array(list(VILLAGES.values()))), fpc="villages")
    table, uncorrected = table_of(make), table_of(plain)
    files = [replace(make, seed=seed).survey(1) for seed in range(40)]
    assert files[0].index.unsampled.tolist() == pytest.approx([0.5, 0.8, 0])
    tables = (Synthetic((one,), "imputed").tabulate_all([confidential.TABLE]) for one in files)
    found = [one["se"].to_numpy() ** 2 for one in tables]
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    expected, without = (each["se"].to_numpy() ** 2 for each in (table, uncorrected))
    known = expected > (1e-9 * np.nan_to_num(np.array(table["estimate"]))) ** 2  # others are known without error
    # residuals are centred in cells: what clusters share with the mean of their cell is lost, about 1 in 50 here
    assert (np.abs(mean - expected)[known] <= 4 * error[known] + 0.05 * expected[known]).all()
    # in a region the correction is that of its stratum
    statistic, region = np.array(table["statistic"]), np.array(table["region"])
    for name, left in {"r0": 0.5, "r1": 0.8}.items():
        mine = (statistic == "mean") & (region == name)
        np.testing.assert_allclose(expected[mine], left * without[mine], rtol=1e-6)
    whole = (statistic == "mean") & (region == "r2")
    assert (expected[whole] <= 1e-6 * without[whole]).all()


def test_exact_counts_have_the_standard_errors_of_direct_tables():
    survey = confidential.survey_of(corrected(confidential.people(150, least=5, most=15)), weight_public=True, **FPC)
    direct = svysynth.tabulate(survey, ["region", "sex"], ["count", "proportion"])
    make = public.maker(confidential.people(150, least=5, most=15))
    table = table_of(replace(make, facts=replace(make.facts, fpc=np.array(list(VILLAGES.values())))))
    exact = table.filter(pl.col("statistic").is_in(["count", "proportion"])).sort("statistic", "region", "sex")
    np.testing.assert_allclose(exact["se"], direct.sort("statistic", "region", "sex")["se"], rtol=1e-9, atol=1e-9)
