"""Replicate variances agree with R `survey` (`golden/survey/make_replicates.R`).

R's random replicates cannot be drawn again, so they are given: the factors that R drew are put in place of ours, and
everything after them has to agree. The jackknife has nothing random and has to agree on its own.
"""

import numpy as np
import polars as pl
import pytest

import svysynth
from golden_survey import GOLDEN, RELATIVE, REPLICATES, STATISTICS, assert_agrees, read_golden_survey
from svysynth.estimation.replicates import Replicates, make_replicates, preston_factors

VALUES = pl.read_csv(REPLICATES / "values.csv")
SCALES = pl.read_csv(REPLICATES / "scales.csv")
CASES = VALUES.select("design", "method").unique(maintain_order=True).rows()
GIVEN = [case for case in CASES if case[1] != "jackknife"]


def designs_with(method):
    return [design for design, other in CASES if other == method]


def read_replicated_survey(design):
    return read_golden_survey(REPLICATES / f"{design}.csv")


def rs_values(design, method, statistics):
    mine = (pl.col("design") == design) & (pl.col("method") == method)
    return VALUES.filter(mine, pl.col("statistic").is_in(statistics))


def rs_replicates(design, method, index):
    """R's factors, in our order of the PSUs, and R's scales."""
    file = pl.read_csv(REPLICATES / f"{design}_{method}.csv")
    record = file["record"].to_numpy()
    factors = np.empty((file.height, file.width - 1))
    factors[record if index.psu is None else index.psu[record]] = file.drop("record").to_numpy()
    scales = SCALES.filter(pl.col("design") == design, pl.col("method") == method)["scale"].to_numpy()
    return Replicates(factors, scales, index)


def tabulate(design, method, statistics):
    estimation = svysynth.EstimationSpec(variance=method)
    return svysynth.tabulate(read_replicated_survey(design), ["a", "b"], statistics, estimation)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("design", "method"), GIVEN)
def test_variances_given_the_factors_of_r(design, method, statistic):
    survey = read_replicated_survey(design)
    given = rs_replicates(design, method, survey.index)
    ours = svysynth.tabulate(survey, ["a", "b"], [statistic], replicates=given)
    assert_agrees(ours, rs_values(design, method, [statistic]))


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("design", designs_with("jackknife"))
def test_jackknife(design, statistic):
    assert_agrees(tabulate(design, "jackknife", [statistic]), rs_values(design, "jackknife", [statistic]))


@pytest.mark.parametrize("design", designs_with("preston"))
def test_preston_factors_given_the_units_that_r_kept(design):
    index = read_replicated_survey(design).index
    factors = rs_replicates(design, "preston", index).factors
    kept = factors > 1
    assert preston_factors(index, kept) == pytest.approx(factors, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("design", designs_with("preston"))
def test_r_and_we_keep_half_of_the_units_of_a_stratum(design):
    index = read_replicated_survey(design).index
    theirs = rs_replicates(design, "preston", index)
    ours = make_replicates(index, svysynth.EstimationSpec(variance="preston"), svysynth.Streams.seeded(1))
    for stratum in range(index.strata):
        inside = index.psu_stratum == stratum
        kept = {*(theirs.factors[inside] > 1).sum(axis=0), *(ours.factors[inside] > 1).sum(axis=0)}
        assert kept == {inside.sum() // 2}


@pytest.mark.parametrize(("design", "method"), GIVEN)
def test_scales(design, method):
    index = read_replicated_survey(design).index
    theirs = rs_replicates(design, method, index)
    estimation = svysynth.EstimationSpec(variance=method, replicates=len(theirs))
    ours = make_replicates(index, estimation, svysynth.Streams.seeded(1))
    free = 0 if method == "brr" else 1  # a bootstrap divides by R − 1; R's number of half-samples may differ from ours
    assert theirs.scales == pytest.approx(np.full(len(theirs), 1 / (len(theirs) - free)), rel=1e-15)
    assert ours.scales == pytest.approx(np.full(len(ours), 1 / (len(ours) - free)), rel=1e-15)


@pytest.mark.parametrize("statistic", ["count", "total"])
def test_balanced_half_samples_give_the_linearised_variance_of_what_is_linear(statistic):
    columns = ["statistic", "a", "b", "estimate", "se"]
    balanced = tabulate("pairs", "brr", [statistic]).select(columns)
    assert_agrees(balanced, tabulate("pairs", "taylor", [statistic]).select(columns))
    assert_agrees(balanced, rs_values("pairs", "brr", [statistic]))


def test_a_replicate_that_empties_a_domain_leaves_its_mean_without_a_standard_error():
    # The only unit of cell (a3, b2) is deleted in one of the replicates, and a mean of nobody does not exist. R drops
    # that replicate with a warning and gives a standard error of 0, from the replicates that are all alike.
    survey = read_golden_survey(GOLDEN / "sparse_cells.csv")
    table = svysynth.tabulate(survey, ["a", "b"], STATISTICS, svysynth.EstimationSpec(variance="jackknife"))
    unit = survey.frame.filter(pl.col("a") == "a3", pl.col("b") == "b2")
    alone = {row["statistic"]: row for row in table.filter(pl.col("a") == "a3", pl.col("b") == "b2").rows(named=True)}
    assert alone["mean"]["estimate"] == pytest.approx(unit["y"].item(), rel=RELATIVE)
    assert alone["mean"]["se"] is None
    assert all(alone[statistic]["se"] > 0 for statistic in ("count", "total", "proportion"))
    assert table.filter(pl.col("se").is_null()).select("statistic", "a", "b").rows() == [
        ("mean", "a1", "b1"),  # nobody is there at all
        ("mean", "a3", "b2"),
    ]
