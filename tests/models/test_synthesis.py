"""Synthesis and combining: from draws to synthetic surveys, and from their tables to one."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy import stats

import svysynth
from svysynth import FBP, FBS, EstimationSpec, Streams, SurveyError
from svysynth.estimation.combining import Synthetic, combine
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.models.synthesis import choose_draws
from svysynth.survey.files import write_frame

PAPER = EstimationSpec(standard_errors="paper")


@pytest.fixture(scope="module")
def survey():
    streams = Streams.seeded(1)
    return draw_sample(make_population(streams), streams)


@pytest.fixture(scope="module", params=[FBS(), FBP(), FBP("paper")], ids=["fbs", "fbp", "fbp paper"])
def calibrated(request, survey):
    return svysynth.calibrate(request.param, survey, epsilon=10.8, datasets=3, streams=Streams.seeded(5))


def test_public_columns_are_as_given_and_rows_are_shuffled(calibrated, survey):
    for synthetic in calibrated.synthesize(None, correction=False).surveys:
        keys = ["field", "gender"]
        counts = synthetic.frame.group_by(keys).len().sort(keys)
        assert counts.equals(survey.frame.group_by(keys).len().sort(keys))
        assert not synthetic.frame["field"].equals(survey.frame["field"])


def test_weights_sum_to_the_population_total(calibrated, survey):
    for synthetic in calibrated.synthesize(None, correction=False).surveys:
        for column in ("weight", "weight_unsmoothed"):
            assert synthetic.frame[column].sum() == pytest.approx(survey.population_total, rel=1e-12)


def test_no_confidential_value_survives(calibrated, survey):
    for synthetic in calibrated.synthesize(None, correction=False).surveys:
        assert not set(synthetic.frame["salary"]) & set(survey.frame["salary"])
        assert not set(synthetic.frame["weight"]) & set(survey.frame["weight"])


def test_smoothed_weights_vary_less(calibrated):
    for synthetic in calibrated.synthesize(None, correction=False).surveys:
        assert synthetic.frame["weight"].log().std() < synthetic.frame["weight_unsmoothed"].log().std()


def test_the_same_synthetic_surveys_come_each_time(calibrated):
    first, second = calibrated.synthesize(None, correction=False), calibrated.synthesize(None, correction=False)
    assert first.surveys[0].frame.equals(second.surveys[0].frame)
    assert not first.surveys[0].frame["salary"].equals(first.surveys[1].frame["salary"])


def test_margins_add_up(calibrated):
    table = calibrated.synthesize(None, correction=False).tabulate(["field", "gender"], ["count", "total"])
    for statistic in ("count", "total"):
        own = table.filter(statistic=statistic)
        inner = own.filter((pl.col("field") != "All") & (pl.col("gender") != "All"))["estimate"].sum()
        rows = own.filter((pl.col("field") != "All") & (pl.col("gender") == "All"))["estimate"].sum()
        whole = own.filter(field="All", gender="All")["estimate"].item()
        assert inner == pytest.approx(whole, rel=1e-10)
        assert rows == pytest.approx(whole, rel=1e-10)


def test_tables_are_near_the_population(calibrated):
    """Within a fifth of the truth in the margins: a coarse check that scales and signs are right."""
    table = calibrated.synthesize(None, correction=False).tabulate(["field", "gender"])
    mean = table.filter(statistic="mean", field="All", gender="All")["estimate"].item()
    male = table.filter(statistic="count", field="All", gender="Male")["estimate"].item()
    assert mean == pytest.approx(115_800, rel=0.05)
    assert male == pytest.approx(58_534, rel=0.2)


def test_tables_with_random_replicates_can_be_made_again(calibrated):
    estimation = EstimationSpec(variance="preston", replicates=20)
    first, again = (
        calibrated.synthesize(None, correction=False).tabulate(["field"], estimation=estimation) for _ in range(2)
    )
    assert first.equals(again)


def test_the_rules_of_fbp(survey):
    """Cell means are unweighted; margins weigh them by the cells' counts; the paper's variances ignore strata."""
    synthetic = Synthetic((survey,), "population")
    table = synthetic.tabulate(["field", "gender"], ["count", "mean"], PAPER)
    cell = survey.frame.filter((pl.col("field") == "7") & (pl.col("gender") == "Male"))
    found = table.filter(field="7", gender="Male")
    assert found.filter(statistic="mean")["estimate"].item() == pytest.approx(cell["salary"].mean())
    assert found.filter(statistic="count")["estimate"].item() == pytest.approx(cell["weight"].sum())
    cells = (
        survey.frame.filter(pl.col("field") == "7")
        .group_by("gender")
        .agg(pl.col("salary").mean(), pl.col("weight").sum())
    )
    margin = (cells["salary"] * cells["weight"]).sum() / cells["weight"].sum()
    assert table.filter(statistic="mean", field="7", gender="All")["estimate"].item() == pytest.approx(margin)
    without = Synthetic((survey,), "population", strata_in_variance=False).tabulate(["field"], ["count"], PAPER)
    with_strata = synthetic.tabulate(["field"], ["count"], PAPER)
    assert (without["se"] > with_strata["se"])[1:].all()


def stratified_variance(z, stratum):
    """Σ_h n_h/(n_h − 1)·Σ(z − z̄_h)²."""
    parts = [z[stratum == one] for one in np.unique(stratum)]
    return sum(len(part) * np.var(part, ddof=1) for part in parts)


@pytest.mark.parametrize("cell", [{"field": "7"}, {"gender": "Male"}, {"field": "2", "gender": "Female"}, {}])
def test_standard_errors_have_the_spread_of_the_weights_as_drawn(calibrated, cell):
    """ū by hand: unsmoothed weights for all of FBS and for FBP's counts, cells' weights for FBP's outcomes."""
    synthetic = calibrated.synthesize(None, correction=False)
    by_cells, stratified = synthetic.rules == "population", synthetic.strata_in_variance
    statistics = ("count", "mean", "total", "proportion")
    for one in synthetic.surveys:
        table = Synthetic((one,), synthetic.rules, stratified).tabulate(["field", "gender"], statistics)
        found = dict(table.filter(**({"field": "All", "gender": "All"} | cell)).select("statistic", "se").iter_rows())
        frame = one.frame.with_columns(share=pl.col("weight").mean().over("field", "gender"))
        stratum = frame["field"].to_physical().to_numpy() * stratified
        inside = np.all([(frame[name] == label).to_numpy() for name, label in cell.items()] or [np.ones(1000)], axis=0)
        y, drawn = frame["salary"].to_numpy(), frame["weight_unsmoothed"].to_numpy()
        w = frame["share"].to_numpy() if by_cells else drawn
        population, size = drawn.sum(), (drawn * inside).sum()
        mean, total = (w * inside * y).sum() / (w * inside).sum(), (w * inside * y).sum()
        z = {
            "count": drawn * (inside - size / population),
            "proportion": drawn * (inside - size / population) / population,
            "mean": w * inside * (y - mean) / (w * inside).sum(),
            "total": w * (inside * y - total / population),
        }
        for statistic in statistics if cell else ("mean", "total"):
            expected = np.sqrt(stratified_variance(z[statistic], stratum))
            assert found[statistic] == pytest.approx(expected, rel=1e-8), statistic
        if not cell:
            assert found["count"] == 0


def test_the_choice_of_standard_errors_changes_no_estimate(calibrated):
    synthetic = calibrated.synthesize(None, correction=False)
    full, paper = (synthetic.tabulate(["field", "gender"], estimation=one) for one in (None, PAPER))
    assert full["estimate"].equals(paper["estimate"])


@pytest.mark.parametrize("variance", ["jackknife", "bootstrap"])
def test_replicates_are_scaled_as_the_file_is(calibrated, variance):
    one = Synthetic(calibrated.synthesize(None, correction=False).surveys[:1], "weighted")
    settings = {"variance": variance, "replicates": 1000}
    replicated, linearised = (
        one.tabulate(["gender"], ["count", "total"], EstimationSpec(**own)).filter(gender="Male")["se"].to_numpy()
        for own in (settings, {})
    )
    np.testing.assert_allclose(replicated, linearised, rtol=0.01 if variance == "jackknife" else 0.1)
    whole = one.tabulate([], ["count"], EstimationSpec(**settings))
    assert whole["se"].item() == 0


def test_public_weights_have_one_kind_of_standard_error(survey):
    """They are neither smoothed nor scaled, so that the two rules are one."""
    both = survey.frame.with_columns(weight_unsmoothed=pl.col("weight"))
    synthetic = Synthetic((replace(survey, frame=both, weight_public=True),))
    full, paper = (synthetic.tabulate(["field"], ["count", "mean", "total"], one) for one in (None, PAPER))
    assert full.equals(paper)


def test_a_survey_without_the_weights_as_drawn_is_refused(survey):
    with pytest.raises(SurveyError, match="read_synthetic"):
        Synthetic((survey,)).tabulate(["field"])


def test_synthetic_files_are_read_with_both_weights(calibrated, tmp_path):
    synthetic = calibrated.synthesize(correction=False)
    paths = [tmp_path / f"microdata-{number}.csv" for number in range(3)]
    for path, one in zip(paths, synthetic.surveys, strict=True):
        write_frame(one.frame, path)
    rules = {"rules": synthetic.rules, "strata_in_variance": synthetic.strata_in_variance}
    roles = {"outcome": "salary", "public": ["field", "gender"], "strata": "field"}
    read = svysynth.read_synthetic(paths, **roles, **rules).tabulate(["field"])
    made = synthetic.tabulate(["field"])
    for column in ("estimate", "se"):
        np.testing.assert_allclose(read[column].to_numpy(), made[column].to_numpy(), rtol=1e-9)
    for files in (paths[0], str(paths[0]), []):
        with pytest.raises(SurveyError, match="needs a list"):
            svysynth.read_synthetic(files, **roles)
    with pytest.raises(SurveyError, match="weight_unsmoothed"):
        svysynth.read_synthetic([synthetic.surveys[0].frame.drop("weight_unsmoothed")], **roles)


def table_of(estimate, se):
    row = {"table": "t", "statistic": "count", "g": "All", "estimate": estimate, "se": se, "df": 9}
    return pl.DataFrame([row | {"lower": 0.0, "upper": 0.0, "cv": 0.0, "n": 5, "reliability": "reliable"}])


def test_the_combining_rules():
    combined = combine([table_of(10.0, 1.0), table_of(13.0, 2.0), table_of(10.0, 1.5)], EstimationSpec()).row(
        0, named=True
    )
    within, between = (1 + 4 + 2.25) / 3, 3.0
    df = 2 * (1 + within / (between / 3)) ** 2
    assert combined["estimate"] == pytest.approx(11.0)
    assert combined["se"] ** 2 == pytest.approx(within + between / 3)
    assert combined["df"] == pytest.approx(df)
    assert combined["upper"] == pytest.approx(11 + stats.t.ppf(0.975, df) * combined["se"])


def test_with_clusters_the_standard_error_within_has_its_own_degrees_of_freedom():
    """Satterthwaite's formula for a sum of two variances, with 9 and with m − 1 degrees of freedom."""
    tables = [table_of(10.0, 1.0), table_of(13.0, 2.0), table_of(10.0, 1.5)]
    within, between = (1 + 4 + 2.25) / 3, 3.0 / 3
    found = combine(tables, EstimationSpec(), clusters=True).row(0, named=True)
    assert found["df"] == pytest.approx((within + between) ** 2 / (within**2 / 9 + between**2 / 2))
    assert combine([table_of(10.0, 2.0)] * 3, EstimationSpec(), clusters=True)["df"].to_list() == [9]
    assert combine([table_of(10.0, 0.0)] * 3, EstimationSpec(), clusters=True)["df"].to_list() == [np.inf]


@pytest.mark.parametrize("tables", [[table_of(10.0, 2.0)], [table_of(10.0, 2.0)] * 3])
def test_one_data_set_or_no_difference_between_them_uses_the_normal_quantile(tables):
    combined = combine(tables, EstimationSpec()).row(0, named=True)
    assert combined["se"] == pytest.approx(2.0)
    assert combined["df"] == float("inf")
    assert combined["upper"] == pytest.approx(10 + 2 * stats.norm.ppf(0.975))


def test_released_draws_are_far_apart(calibrated):
    chosen = choose_draws(calibrated.calibration.fit.size, 10)
    assert (np.diff(chosen) >= 100).all()
    with pytest.raises(SurveyError, match=r"privacy\.datasets"):
        choose_draws(calibrated.calibration.fit.size, 200)


def test_a_population_total_is_needed(survey):
    undeclared = svysynth.read_survey(
        survey.frame, outcome="salary", weight="weight", strata="field", public=["field", "gender"]
    )
    calibrated = svysynth.calibrate(FBP(), undeclared, epsilon=10.8, streams=Streams.seeded(1))
    with pytest.raises(SurveyError, match="population_total"):
        calibrated.synthesize(None, correction=False)
