"""Replicates: factors keep the weights' total on average, and variances agree with linearisation."""

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth import EstimationSpec, Streams, SurveyError, tabulate
from svysynth.estimation.replicates import half_samples, make_replicates, preston_factors

METHODS = ["preston", "bootstrap", "jackknife", "brr"]


def make_survey(psus_per_stratum, clustered=False, fpc=None, seed=1):
    generator = np.random.default_rng(seed)
    stratum = np.repeat(np.arange(len(psus_per_stratum)), psus_per_stratum)
    psu = np.arange(len(stratum))
    if clustered:
        stratum, psu = np.repeat(stratum, 3), np.repeat(psu, 3)
    n = len(stratum)
    frame = pl.DataFrame(
        {
            "y": generator.lognormal(3, 0.4, n),
            "w": generator.lognormal(1, 0.3, n),
            "h": stratum,
            "c": psu,
            "a": generator.choice(["x", "z"], n),
            "N": [fpc or 1.0] * n,
        }
    )
    frame = frame.sample(fraction=1, shuffle=True, seed=3)
    return svysynth.read_survey(
        frame,
        outcome="y",
        weight="w",
        strata="h",
        cluster="c" if clustered else None,
        fpc="N" if fpc else None,
        public=["a"],
    )


@pytest.mark.parametrize("clustered", [False, True])
def test_half_samples_keep_half_of_every_stratum(clustered):
    index = make_survey([2, 5, 8], clustered).index
    kept = half_samples(index, 50, Streams.seeded(1))
    for stratum, half in enumerate([1, 2, 4]):
        assert (kept[index.psu_stratum == stratum].sum(axis=0) == half).all()
    assert 0.3 < kept.mean() < 0.6


def test_preston_factors_are_zero_or_two_in_even_strata():
    index = make_survey([4, 6]).index
    factors = preston_factors(index, half_samples(index, 20, Streams.seeded(1)))
    assert set(np.unique(factors)) == {0.0, 2.0}


@pytest.mark.parametrize("method", METHODS)
def test_replicates_do_not_depend_on_the_order_of_the_work(method):
    """Replicate r is drawn from stream r: a shorter run is the start of a longer one."""
    index = make_survey([2, 2, 2]).index
    few = make_replicates(index, EstimationSpec(variance=method, replicates=5), Streams.seeded(4))
    many = make_replicates(index, EstimationSpec(variance=method, replicates=9), Streams.seeded(4))
    few_factors, many_factors = next(few.blocks()), next(many.blocks())
    assert np.array_equal(few_factors, many_factors[:, : few_factors.shape[1]])


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("method", ["jackknife", "brr"])
def test_jackknife_and_brr_equal_linearisation_for_linear_statistics(method, clustered):
    survey = make_survey([2] * 7, clustered)
    taylor = tabulate(survey, ["a"], ["count", "total"])
    replicated = tabulate(survey, ["a"], ["count", "total"], EstimationSpec(variance=method))
    np.testing.assert_allclose(replicated["se"], taylor["se"], rtol=1e-12)


@pytest.mark.parametrize(("method", "fpc"), [("preston", None), ("preston", 0.4), ("bootstrap", None)])
def test_bootstrap_variances_agree_with_linearisation(method, fpc):
    """The variance of R replicates has a relative error near √(2/R): 4000 replicates and 5 of those errors."""
    survey = make_survey([9, 14, 20], fpc=fpc)
    count = 4000
    estimation = EstimationSpec(variance=method, replicates=count)
    replicates = make_replicates(survey.index, estimation, Streams.seeded(11))
    taylor = tabulate(survey, ["a"], ["count", "total"])["se"].to_numpy() ** 2
    bootstrap = tabulate(survey, ["a"], ["count", "total"], estimation, replicates)["se"].to_numpy() ** 2
    np.testing.assert_allclose(bootstrap, taylor, rtol=5 * np.sqrt(2 / count))


def test_degrees_of_freedom_are_bounded_by_the_replicates():
    survey = make_survey([30])
    table = tabulate(survey, ["a"], ["mean"], EstimationSpec(variance="bootstrap", replicates=10))
    assert table["df"].unique().to_list() == [9]
    assert tabulate(survey, ["a"], ["mean"], EstimationSpec(variance="jackknife"))["df"].unique().to_list() == [29]


@pytest.mark.parametrize("method", ["preston", "bootstrap", "jackknife"])
def test_a_certainty_stratum_adds_no_variance(method):
    """A stratum with one unit keeps its weight in every replicate."""
    survey = make_survey([1, 6])
    estimation = EstimationSpec(variance=method, lonely="certainty", replicates=8)
    alone = survey.index.psu_stratum == 0
    factors = next(make_replicates(survey.index, estimation, Streams.seeded(1)).blocks())
    assert (factors[alone] == 1).all()


@pytest.mark.parametrize(
    ("psus", "settings", "message"),
    [
        ([3, 2], {"variance": "brr"}, "exactly two units"),
        ([1, 2], {"variance": "jackknife"}, "only one record"),
        ([1, 2], {"variance": "jackknife", "lonely": "adjust"}, "cannot adjust"),
    ],
)
def test_a_method_that_does_not_fit_the_design_says_so(psus, settings, message):
    with pytest.raises(SurveyError, match=message):
        tabulate(make_survey(psus), ["a"], ["count"], EstimationSpec(**settings))


@pytest.mark.parametrize("method", ["bootstrap", "brr"])
def test_methods_without_a_finite_population_correction_say_so(method):
    with pytest.raises(SurveyError, match="finite population correction"):
        tabulate(make_survey([2, 2], fpc=0.5), ["a"], ["count"], EstimationSpec(variance=method))
