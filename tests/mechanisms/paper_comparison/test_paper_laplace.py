"""The paper's Laplace comparison: sensitivities, budget, noise, replicate variances, and what it says of itself."""

import itertools
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri

import svysynth
from svysynth import EstimationSpec, Streams, SurveyError, TableSpec, tabulate_all
from svysynth.estimation.replicates import make_replicates
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.paper_comparison.tables import LABEL, laplace_tables, split_evenly

FALSE_ALARM = 1e-6
DRAWS = 100_000
STATISTICS = ("count", "mean", "total")
PAPER = TableSpec(by=("field", "gender"), statistics=("count", "mean"))


def make_survey(y, w, strata=None, cluster=None, **public):
    columns = {"y": y, "w": w} | public
    roles = {}
    for role, values in (("strata", strata), ("cluster", cluster)):
        if values is not None:
            columns[role], roles[role] = values, role
    return svysynth.read_survey(
        pl.DataFrame(columns), outcome="y", weight="w", public=list(public), transform="identity", **roles
    )


@pytest.fixture
def sparse():
    """The cell (b, v) is empty and (b, u) has one record."""
    return make_survey(
        [1.0, -2.0, 3.0, 4.0, 5.0, 6.0],
        [1.0, 2.0, 1.0, 2.5, 1.0, 2.0],
        strata=[1, 1, 1, 1, 2, 2],
        a=["a", "a", "b", "a", "a", "a"],
        g=["u", "v", "u", "v", "u", "v"],
    )


# --- the budget ---


@pytest.mark.parametrize(
    ("tables", "uses"),
    [
        ([PAPER], 16),
        ([TableSpec(by=("field", "gender"), statistics=("count",))], 8),
        ([TableSpec(by=(), statistics=("mean",))], 2),
        ([TableSpec(by=("a", "b", "c"), statistics=("count", "mean", "total"))], 48),
        ([PAPER, TableSpec(by=("field",), statistics=("total",)), TableSpec(by=())], 16 + 4 + 4),
    ],
)
@pytest.mark.parametrize("replicates", [2, 10, 25])
def test_the_budget_is_spent_over_every_use(tables, uses, replicates):
    budget = split_evenly(tables, 8.0, replicates)
    assert budget.uses == uses
    assert budget.point == pytest.approx(8 / uses, rel=1e-15)
    assert budget.replicate == pytest.approx(8 / uses / replicates, rel=1e-15)
    # Half of the uses are points; the R replicates of the other half cost as much as one point each.
    assert uses / 2 * (budget.point + replicates * budget.replicate) == pytest.approx(8, rel=1e-12)


def test_the_paper_s_split():
    """Sixteen uses: ε = 8 leaves 0.5 for a point and 0.05 for each of 10 replicates."""
    budget = split_evenly([PAPER], 8.0)
    assert (budget.uses, budget.point, budget.replicate) == (16, 0.5, 0.05)
    assert split_evenly([PAPER], 10.8).replicate == pytest.approx(10.8 / 160, rel=1e-15)


def test_scales_are_sensitivity_over_budget(doctorate_survey):
    result = laplace_tables(doctorate_survey, [PAPER], 10.8, Streams.seeded(1))
    assert len(result.noise) == 8
    for level in result.noise:
        assert level.point_scale == pytest.approx(level.sensitivity * 16 / 10.8, rel=1e-12)
        assert level.replicate_scale == pytest.approx(level.sensitivity * 160 / 10.8, rel=1e-12)


# --- sensitivities ---


def twin_sensitivity(survey, statistic, level):
    """The formulas of the paper, record by record."""
    records = survey.frame.rows(named=True)
    largest = 0.0
    for cell in {tuple(record[column] for column in level) for record in records}:
        inside = [record for record in records if tuple(record[column] for column in level) == cell]
        w = [record["w"] for record in inside]
        wy = [record["w"] * record["y"] for record in inside]
        weight_range, outcome_range = max(w) - min(w), max(wy) - min(wy)
        found = {
            "count": weight_range,
            "total": outcome_range,
            "mean": outcome_range / (math.fsum(w) - weight_range),
        }
        largest = max(largest, found[statistic])
    return largest


@st.composite
def surveys(draw):
    """Up to 30 records in up to 3 × 2 × 2 cells, some of them empty and some with one record."""
    n = draw(st.integers(2, 30))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    y, w = generator.normal(10, 20, n), generator.lognormal(1, 1, n)
    a, b, c = (generator.choice(list("xyz")[:levels], n) for levels in (3, 2, 2))
    return make_survey(y, w, a=a, b=b, c=c)


@given(surveys())
@settings(max_examples=40)
def test_sensitivities_equal_those_of_a_loop_over_the_records(survey):
    tables = [TableSpec(by=("a", "b"), statistics=STATISTICS), TableSpec(by=("c", "a", "b"), name="all")]
    noise = laplace_tables(survey, tables, 1.0, Streams.seeded(1)).noise
    assert [(level.table, level.statistic, level.level) for level in noise] == [
        (table.title, statistic, level)
        for table in tables
        for statistic in table.statistics
        for level in levels(table.by)
    ]
    for level in noise:
        assert level.sensitivity == pytest.approx(
            twin_sensitivity(survey, level.statistic, level.level), rel=1e-12, abs=1e-12
        )


def levels(by):
    """The combinations of kept columns, the total first and the inner cells last."""
    return [tuple(itertools.compress(by, kept)) for kept in itertools.product((False, True), repeat=len(by))]


def test_one_record_has_no_sensitivity():
    survey = make_survey([3.0, 5.0], [1.0, 4.0], a=["x", "z"])
    result = laplace_tables(survey, [TableSpec(by=("a",), statistics=STATISTICS)], 1.0, Streams.seeded(1))
    inner = [level for level in result.noise if level.level]
    assert [level.sensitivity for level in inner] == [0, 0, 0]
    assert result.tables.filter(pl.col("a") != "All", statistic="mean")["estimate"].to_list() == [3.0, 5.0]


def test_weights_of_very_different_size_leave_the_mean_s_sensitivity_finite():
    """As printed, the denominator of this cell is rounded to zero."""
    survey = make_survey([1.0, 2.0], [1e30, 1e-30], a=["x", "x"])
    noise = laplace_tables(survey, [TableSpec(by=("a",), statistics=("mean",))], 1.0, Streams.seeded(1)).noise
    assert all(0 < level.sensitivity < math.inf for level in noise)


# --- noise ---


@pytest.fixture(scope="module")
def many_cells():
    """So many cells of two records, every record a stratum: replicates do not vary, and the largest range is 3."""
    generator = np.random.default_rng(1)
    range_of_cell = generator.uniform(0, 3, DRAWS)
    range_of_cell[7] = 3
    w = np.column_stack([np.ones(DRAWS), 1 + range_of_cell]).ravel()
    a, b = np.divmod(np.repeat(np.arange(DRAWS), 2), 250)
    survey = make_survey(np.ones(2 * DRAWS), w, strata=np.arange(2 * DRAWS), a=a, b=b)
    table = TableSpec(by=("a", "b"), statistics=("count",))
    estimation = EstimationSpec(lonely="certainty")
    exact = tabulate_all(survey, [table], estimation)
    noisy = laplace_tables(survey, [table], 2.0, Streams.seeded(2), estimation=estimation).tables
    inner = (pl.col("a") != "All") & (pl.col("b") != "All")
    return exact.filter(inner), noisy.filter(inner)


SCALE = 3 * 8 / 2.0
"""Of a point in `many_cells`: sensitivity 3, a table with four levels and one statistic is used 8 times, ε = 2."""


def is_laplace(noise, scale):
    """Kolmogorov and Smirnov accept it at the level of false alarms."""
    return stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > FALSE_ALARM


def test_points_have_laplace_noise_of_the_right_scale(many_cells):
    exact, noisy = many_cells
    noise = noisy["estimate"].to_numpy() - exact["estimate"].to_numpy()
    assert len(noise) == DRAWS
    assert is_laplace(noise, SCALE)
    assert not is_laplace(noise, 0.85 * SCALE)
    assert not is_laplace(noise, 1.15 * SCALE)


def test_the_mean_absolute_noise_is_that_of_a_gamma_variable(many_cells):
    exact, noisy = many_cells
    total = np.abs(noisy["estimate"].to_numpy() - exact["estimate"].to_numpy()).sum()
    law = stats.gamma(DRAWS)  # the sum of so many exponential variables

    def accepted(scale):
        return law.ppf(FALSE_ALARM / 2) < total / scale < law.ppf(1 - FALSE_ALARM / 2)

    assert accepted(SCALE)
    assert not accepted(0.85 * SCALE)
    assert not accepted(1.15 * SCALE)


def test_replicates_have_laplace_noise_of_the_right_scale(many_cells):
    """Σ(noise_r − noise_point)²/R with a scale 10 times the point's: mean 2·scale²·(1 + 1/100)."""
    _, noisy = many_cells
    seen = noisy["se"].to_numpy() ** 2

    def accepted(scale):
        off = seen.mean() - 2 * scale**2 * (1 + 1 / 100)
        return abs(off) < -ndtri(FALSE_ALARM / 2) * seen.std() / np.sqrt(DRAWS)

    assert accepted(10 * SCALE)
    assert not accepted(0.85 * 10 * SCALE)
    assert not accepted(1.15 * 10 * SCALE)


def test_noise_is_repeatable_and_differs_between_statistics(doctorate_survey):
    tables = [TableSpec(by=("gender",), statistics=("count",)), TableSpec(by=("gender",), name="again")]
    first, again = (laplace_tables(doctorate_survey, tables, 1.0, Streams.seeded(3)).tables for _ in range(2))
    other = laplace_tables(doctorate_survey, tables, 1.0, Streams.seeded(4)).tables
    assert first.equals(again)
    assert not set(first["estimate"]) & set(other["estimate"])
    assert first["estimate"].n_unique() == first.height


# --- no noise ---


@pytest.mark.parametrize("tables", [[PAPER], [TableSpec(by=("gender",), statistics=STATISTICS), TableSpec(by=())]])
def test_an_infinite_budget_gives_the_direct_estimates_bit_for_bit(doctorate_survey, tables):
    result = laplace_tables(doctorate_survey, tables, math.inf, Streams.seeded(1))
    direct = tabulate_all(doctorate_survey, tables)
    assert result.tables.columns == direct.columns
    same = [column for column in direct.columns if column in ("table", "statistic", "field", "gender", "estimate", "n")]
    assert result.tables.select(same).equals(direct.select(same))
    assert all(level.point_scale == level.replicate_scale == 0 for level in result.noise)


@pytest.mark.parametrize("clustered", [False, True])
def test_without_noise_variances_are_those_of_the_half_samples(clustered):
    """The same half-samples through the direct tables, with 1/R instead of 1/(R − 1)."""
    generator = np.random.default_rng(5)
    psu = np.repeat(np.arange(31), 3)
    survey = make_survey(
        generator.lognormal(3, 0.4, 93),
        generator.lognormal(1, 0.3, 93),
        strata=psu % 4,
        cluster=psu if clustered else None,
        a=generator.choice(["x", "z"], 93),
    )
    table = TableSpec(by=("a",), statistics=STATISTICS)
    drawn = make_replicates(survey.index, EstimationSpec(variance="preston", replicates=10), Streams.seeded(6))
    expected = tabulate_all(survey, [table], replicates=replace(drawn, scales=np.full(10, 1 / 10)))
    result = laplace_tables(survey, [table], math.inf, Streams.seeded(6)).tables
    assert result["se"].to_numpy() == pytest.approx(expected["se"].to_numpy(), rel=1e-9)
    assert result["df"].unique().to_list() == expected["df"].unique().to_list() == [9]


@pytest.mark.parametrize("index", range(2))
def test_without_noise_variances_agree_with_linearisation(index):
    """A variance of R nearly normal replicates is off by √(2/R) of itself."""
    survey = draw_sample(make_population(Streams.seeded(8)), Streams.seeded(9), index)
    count = 4000
    tables = [TableSpec(by=("field",), statistics=("count", "total")), TableSpec(by=("gender",), statistics=("mean",))]
    taylor = tabulate_all(survey, tables)["se"].to_numpy() ** 2
    seen = laplace_tables(survey, tables, math.inf, Streams.seeded(10), count).tables["se"].to_numpy() ** 2
    allowed = -ndtri(FALSE_ALARM / (2 * len(seen))) * math.sqrt(2 / count)
    assert seen == pytest.approx(taylor, rel=allowed)


# --- edges and refusals ---


def test_rows_without_records_stay_as_they_are(sparse):
    table = TableSpec(by=("a", "g"), statistics=STATISTICS)
    result = laplace_tables(sparse, [table], 1.0, Streams.seeded(1)).tables
    empty = result.filter(a="b", g="v")
    assert empty["estimate"].to_list() == [0, None, 0]
    assert empty["se"].to_list() == [0, None, 0]
    exact = tabulate_all(sparse, [table])
    filled = (result["n"] > 0) & (result["g"] != "All")
    assert (result.filter(filled)["estimate"] != exact.filter(filled)["estimate"]).all()


def test_a_mean_that_a_half_sample_empties_has_no_standard_error(sparse):
    result = laplace_tables(sparse, [TableSpec(by=("a", "g"), statistics=STATISTICS)], 1.0, Streams.seeded(1)).tables
    alone = result.filter(a="b", g="u")
    assert alone["n"].unique().to_list() == [1]
    assert [se is None for se in alone["se"]] == [False, True, False]


def test_a_survey_of_one_record():
    survey = make_survey([3.0], [2.0], a=["x"])
    result = laplace_tables(
        survey, [TableSpec(by=("a",))], 1.0, Streams.seeded(1), 2, EstimationSpec(lonely="certainty")
    )
    assert result.tables["estimate"].to_list() == [2, 2, 3, 3]
    assert result.tables["se"].to_list() == [0, 0, 0, 0]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_a_budget_must_be_positive(sparse, epsilon):
    with pytest.raises(SurveyError, match="not positive"):
        laplace_tables(sparse, [TableSpec(by=("a",))], epsilon, Streams.seeded(1))


@pytest.mark.parametrize("replicates", [-1, 0, 1, 10_001])
def test_the_number_of_replicates_is_bounded(sparse, replicates):
    with pytest.raises(SurveyError, match="between 2 and"):
        laplace_tables(sparse, [TableSpec(by=("a",))], 1.0, Streams.seeded(1), replicates)


def test_proportions_are_refused(sparse):
    with pytest.raises(SurveyError, match="no proportions"):
        laplace_tables(sparse, [TableSpec(by=("a",), statistics=("proportion",))], 1.0, Streams.seeded(1))


@pytest.mark.parametrize(("lonely", "problem"), [("fail", "only one record"), ("adjust", "cannot adjust")])
def test_a_stratum_with_one_unit_is_refused_as_in_other_tables(lonely, problem):
    survey = make_survey([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], strata=[1, 1, 2], a=["x", "x", "z"])
    with pytest.raises(SurveyError, match=problem):
        laplace_tables(survey, [TableSpec(by=("a",))], 1.0, Streams.seeded(1), estimation=EstimationSpec(lonely=lonely))


def test_a_column_that_is_not_public_is_refused(sparse):
    with pytest.raises(SurveyError, match="not public"):
        laplace_tables(sparse, [TableSpec(by=("y",))], 1.0, Streams.seeded(1))


# --- what it says of itself ---


def test_it_says_that_nothing_is_promised(doctorate_survey):
    result = laplace_tables(doctorate_survey, [PAPER], 10.8, Streams.seeded(1))
    assert LABEL == "comparison without a guarantee"
    assert LABEL in result.budget
    assert "sensitivities come from the confidential data" in result.budget
    assert "no differential privacy is promised" in result.budget
    for part in ("ε = 10.8", "16 uses", "0.675 per point", "0.0675 for each of 10 replicate"):
        assert part in result.budget
    assert LABEL in svysynth.mechanisms.paper_comparison.tables.__doc__
