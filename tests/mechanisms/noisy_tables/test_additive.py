"""Additive noise: exact sums, exact sensitivity, the noise that OpenDP really adds, and what the tables say of it."""

import itertools
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import svysynth
from svysynth import EstimationSpec, Streams, SurveyError, TableSpec, tabulate_all
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.mechanisms.noise import (
    RESOLUTION,
    OpenDPNoise,
    StudyNoise,
    Use,
    contributions,
    laplace_measurement,
    laplace_scale,
    least_steps,
    sensitivity,
    split_budget,
)
from svysynth.mechanisms.noisy_tables.combinations import Grid, add_up, as_measured, measure
from svysynth.mechanisms.noisy_tables.tables import additive_tables, check_additive

FALSE_ALARM = 1e-6
GROUPS = ("points", "variances")
BOUNDS = BoundsSpec(outcome=(0.0, 100.0), weight=(5.0, 20.0))
EVERYTHING = ("count", "mean", "total", "proportion")
BY_BOTH = [TableSpec(by=("field", "gender"), statistics=EVERYTHING)]


def make_survey(seed=1, n=400, strata="field", **columns):
    """Two public columns with 4 × 2 cells, one of them empty, whatever the seed; outcomes and weights follow it."""
    public, secret = np.random.default_rng(0), np.random.default_rng(seed)
    gender = public.choice(["f", "m"], n)
    data = {
        "field": np.where(gender == "f", public.choice(["a", "b", "c"], n), public.choice(["a", "b", "c", "d"], n)),
        "gender": gender,
        "y": secret.uniform(5, 98, n),
        "w": secret.uniform(5, 20, n),
    }
    frame = pl.DataFrame(data | columns)
    return svysynth.read_survey(
        frame,
        outcome="y",
        weight="w",
        strata=strata,
        public=["field", "gender"],
        fpc="fpc" if "fpc" in columns else None,
        cluster="cluster" if "cluster" in columns else None,
    )


@dataclass
class Recorder:
    """No noise, but a memory of what noise would have been added to."""

    seen: dict = field(default_factory=dict)

    def __call__(self, values, use):
        self.seen[use] = values.copy()
        return values


def recorded(survey, tables, epsilon, bounds=BOUNDS, **settings):
    recorder = Recorder()
    additive_tables(survey, tables, epsilon, bounds, noise=recorder, **settings)
    return recorder.seen


def one_use(epsilon, moved=RESOLUTION):
    return Use((), "points", False, 1, moved, Fraction(epsilon))


# --- the noise ---


@pytest.mark.parametrize("noise", [OpenDPNoise(), StudyNoise(Streams.seeded(5))])
def test_the_noise_has_its_scale_and_no_other(noise):
    """100,000 draws by the Kolmogorov–Smirnov distance, with critical value √(−log(α/2)/2n)."""
    draws = noise(np.zeros(100_000, np.int64), one_use(0.5)).astype(float)
    critical = math.sqrt(-math.log(FALSE_ALARM / 2) / (2 * len(draws)))
    scale = 2 * RESOLUTION

    def distance(factor):
        return stats.kstest(draws, stats.laplace(scale=factor * scale).cdf).statistic

    assert distance(1) < critical
    assert distance(0.85) > critical
    assert distance(1.15) > critical


def test_the_noise_is_added_to_the_values():
    values = np.array([0, 10 * RESOLUTION, -(2**40), 2**61])
    noisy = OpenDPNoise()(values, one_use(1))
    assert noisy.dtype == np.int64
    assert (np.abs(noisy - values) < 100 * RESOLUTION).all()
    assert (noisy != values).all()


@given(
    st.fractions(min_value=Fraction(1, 2**20), max_value=1000, max_denominator=10**9),
    st.sampled_from([1, RESOLUTION, 2 * RESOLUTION, 3 * RESOLUTION]),
)
def test_opendp_accounts_for_no_more_than_the_budget(epsilon, moved):
    """OpenDP's map of the L1 distance of change-one, in rationals; the scale wastes less than 10⁻¹² of the budget."""
    scale = laplace_scale(moved, epsilon)
    spent = Fraction(laplace_measurement(scale).map(moved))
    assert Fraction(moved) / Fraction(scale) <= spent <= epsilon
    assert spent >= epsilon * (1 - Fraction(1, 10**12))


def test_noise_too_small_for_its_budget_is_refused(monkeypatch):
    monkeypatch.setattr("svysynth.mechanisms.noise.laplace_scale", lambda moved, epsilon: 0.5 * moved / float(epsilon))
    with pytest.raises(ArithmeticError):
        OpenDPNoise()(np.zeros(1, np.int64), one_use(1))


# --- sensitivity and composition ---


def corners(bounds):
    inside = list(itertools.product(bounds.weight, [*bounds.outcome, sum(bounds.outcome) / 2]))
    return [*inside, (1e-60, -1e60), (1e60, 1e60), (1e60, -1e60)]


@pytest.mark.parametrize("bounds", [BOUNDS, BoundsSpec(outcome=(-3.0, 1e7), weight=(0.0, 1e-3))])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("with_outcome", [True, False])
def test_no_two_records_differ_by_more_than_the_sensitivity(bounds, group, with_outcome):
    """All pairs of 400 random records, in and out of the bounds, and of the corners; and the bound is reached."""
    generator = np.random.default_rng(2)
    low, high = bounds.outcome
    weight = bounds.weight[1] * generator.uniform(0, 1.2, 400)
    outcome = generator.uniform(low - 0.2 * (high - low), high + 0.2 * (high - low), 400)
    weight, outcome = (np.append(*pair) for pair in zip((weight, outcome), np.array(corners(bounds)).T, strict=True))
    steps = contributions(group, weight, outcome, bounds, with_outcome)
    moved = np.abs(steps[:, :, np.newaxis] - steps[:, np.newaxis, :]).sum(axis=0)
    limit = sensitivity(group, bounds, with_outcome)
    assert moved.max() <= limit
    if not with_outcome or group == "points" or bounds.weight[0] == 0:
        assert moved.max() == limit


@given(
    st.lists(st.tuples(st.floats(1e-60, 1e60), st.floats(-1e60, 1e60)), min_size=2, max_size=2),
    st.sampled_from(GROUPS),
    st.booleans(),
)
def test_no_floats_move_a_sum_by_more(records, group, with_outcome):
    weight, outcome = np.array(records).T
    steps = contributions(group, weight, outcome, BOUNDS, with_outcome)
    assert np.abs(steps[:, 0] - steps[:, 1]).sum() <= sensitivity(group, BOUNDS, with_outcome)


@pytest.mark.parametrize(
    "tables",
    [
        BY_BOTH,
        [TableSpec(by=("field",)), TableSpec(by=("gender",), statistics=("proportion",))],
        [TableSpec(by=("gender",), statistics=("count",))],
        [TableSpec(by=())],
    ],
)
@pytest.mark.parametrize("consistency", [True, False])
@pytest.mark.parametrize("epsilon", [0.3, 10.8])
def test_the_whole_costs_what_is_stated(tables, consistency, epsilon):
    """The ε of all uses add up exactly, and a replaced respondent moves each vector by no more than it was paid for."""
    survey = make_survey()
    before = recorded(survey, tables, epsilon, consistency=consistency)
    assert sum(use.epsilon for use in before) == Fraction(epsilon)
    for weight, outcome in corners(BOUNDS):
        y, w = survey.outcome_values.copy(), survey.weights.copy()
        w[7], y[7] = weight, outcome
        changed = replace(survey, frame=survey.frame.with_columns(y=pl.Series(y), w=pl.Series(w)))
        after = recorded(changed, tables, epsilon, consistency=consistency)
        assert list(after) == list(before)
        spent = Fraction(0)
        for use, values in after.items():
            moved = int(np.abs(values - before[use]).sum())
            assert moved <= use.sensitivity
            spent += Fraction(moved) / Fraction(use.scale)
        assert spent <= Fraction(epsilon)


def test_the_split_depends_on_public_information_only():
    one, other = (additive_tables(make_survey(seed), BY_BOTH, 1.0, BOUNDS) for seed in (1, 2))
    assert one.uses == other.uses
    assert one.budget == other.budget
    assert one.notes == other.notes
    public = ["table", "statistic", "field", "gender", "n"]
    assert one.tables.select(public).equals(other.tables.select(public))


def test_every_level_is_measured_once():
    """A level that several tables share is paid for once."""
    tables = [
        TableSpec(by=("field", "gender")),
        TableSpec(by=("gender", "field"), name="again"),
        TableSpec(by=("field",)),
    ]
    uses = additive_tables(make_survey(), tables, 1.0, BOUNDS, consistency=False).uses
    levels = [use.level for use in uses if use.group == "points"]
    assert sorted(levels) == [(), ("field",), ("field", "gender"), ("gender",)]


def test_a_dense_table_is_measured_at_its_finest_level_and_a_sparse_one_at_more():
    dense = split_budget({(): 1, ("a",): 8, ("b",): 2, ("a", "b"): 16}, 10_000, {"count"}, BOUNDS, 1.0)
    assert [use.level for use in dense if use.group == "points"] == [("a", "b")]
    sparse = split_budget({(): 1, ("a",): 30, ("b",): 30, ("a", "b"): 900}, 1000, {"count"}, BOUNDS, 1.0)
    assert len([use.level for use in sparse if use.group == "points"]) > 1


# --- a privacy audit ---


@dataclass(frozen=True)
class Halved:
    """A planted fault: noise at half its scale."""

    def __call__(self, values, use):
        return OpenDPNoise()(values, replace(use, epsilon=2 * use.epsilon))


def audited_epsilon(noise, draws=40_000):
    """A lower bound to ε, wrong with probability 1e-6: two surveys that differ in one respondent are told apart.

    The event is that the exact log-likelihood ratio of everything measured is above 0.7 of the stated ε; both of its
    probabilities have Clopper–Pearson bounds.
    """
    bounds = BoundsSpec(outcome=(0.0, 100.0), weight=(0.0, 20.0))
    tables = [TableSpec(by=())]
    frame = pl.DataFrame({"y": [100.0, 30.0], "w": [20.0, 10.0], "x": ["a", "b"]})
    hits = []
    seen = [
        recorded(svysynth.read_survey(data, outcome="y", weight="w", public=["x"]), tables, 1.0, bounds)
        for data in (frame, frame.with_columns(y=pl.Series([50.0, 30.0]), w=pl.Series([1e-9, 10.0])))
    ]
    for truth in seen:
        ratio = np.zeros(draws)
        for use, values in truth.items():
            out = noise(np.tile(values, draws), use).reshape(draws, -1)
            near, far = (np.abs(out - data[use]).sum(axis=1) for data in seen)
            ratio += (far - near) / use.scale
        hits.append(int((ratio > 0.7).sum()))
    low = stats.beta.ppf(FALSE_ALARM / 2, hits[0], draws - hits[0] + 1)
    high = stats.beta.ppf(1 - FALSE_ALARM / 2, hits[1] + 1, draws - hits[1])
    return math.log(low / high)


def test_an_audit_finds_no_more_than_epsilon_and_finds_a_planted_fault():
    assert 0.5 < audited_epsilon(OpenDPNoise()) <= 1.0
    assert audited_epsilon(Halved()) > 1.0


# --- without noise: exact ---


def slow_steps(group, w, y, bounds):
    """What one record adds, in rationals rounded at the end."""
    (least, most), (low, high) = bounds.weight, bounds.outcome
    u = Fraction(min(max(w, least), most)) / Fraction(most)
    t = (Fraction(min(max(y, low), high)) - (Fraction(low) + Fraction(high)) / 2) / (
        (Fraction(high) - Fraction(low)) / 2
    )
    parts = (u, u * t) if group == "points" else (u * u, u * u * t, u * u * t * t)
    return [round(part * RESOLUTION) for part in parts]


def test_an_infinite_budget_measures_the_exact_sums():
    """Against whole numbers in Python; outcomes and weights with few digits, so that no float rounds a half away."""
    generator = np.random.default_rng(8)
    n = 400
    survey = make_survey(n=n, y=generator.integers(1, 140, n).astype(float), w=generator.integers(3, 23, n) + 0.5)
    bounds = BoundsSpec(outcome=(0.0, 128.0), weight=(4.0, 16.0))
    for use, values in recorded(survey, BY_BOTH, math.inf, bounds, consistency=False).items():
        cells = survey.frame.select(use.level).rows() if use.level else [()] * n
        expected = {key: np.zeros(len(use.sums), object) for key in sorted(set(cells))}
        for key, w, y in zip(cells, survey.weights.tolist(), survey.outcome_values.tolist(), strict=True):
            expected[key] += slow_steps(use.group, w, y, bounds)
        assert values.tolist() == np.array(list(expected.values())).T.ravel().tolist()


DESIGNS = {
    "strata in the table": (make_survey(), BY_BOTH, {}),
    "several tables": (
        make_survey(),
        [TableSpec(by=("gender",), statistics=EVERYTHING), TableSpec(by=("field", "gender")), TableSpec(by=())],
        {},
    ),
    "no strata": (make_survey(strata=None), BY_BOTH, {}),
    "finite population": (
        make_survey(fpc=make_survey().frame["field"].to_physical().cast(pl.Float64) * 100 + 500),
        BY_BOTH,
        {},
    ),
    "counts only": (make_survey(), [TableSpec(by=("field",), statistics=("count", "proportion"))], {}),
}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("consistency", [True, False])
def test_an_infinite_budget_gives_the_tables_of_the_clamped_survey(design, consistency):
    survey, tables, settings = DESIGNS[design]
    bounds = BoundsSpec(outcome=(10.0, 90.0), weight=(6.0, 19.0))
    found = additive_tables(survey, tables, math.inf, bounds, consistency=consistency, **settings).tables
    clamped = survey.frame.with_columns(pl.col("y").clip(10, 90), pl.col("w").clip(6, 19))
    expected = tabulate_all(replace(survey, frame=clamped), tables)
    assert found.drop("se_sampling", "se_privacy").columns == expected.columns
    np.testing.assert_allclose(found["estimate"], expected["estimate"], rtol=1e-8)
    np.testing.assert_allclose(found["se_sampling"], expected["se"], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found["lower"], expected["lower"], rtol=1e-8, atol=1e-8)
    assert found["se_privacy"].drop_nulls().max() == 0
    assert found["n"].equals(expected["n"])


@pytest.mark.parametrize("lonely", ["certainty", "adjust"])
def test_a_stratum_of_one_follows_its_policy(lonely):
    frame = make_survey().frame.with_columns(pl.col("field").cast(pl.String), pl.col("gender").cast(pl.String))
    extra = pl.DataFrame({"y": [44.0], "w": [7.0], "field": ["e"], "gender": ["m"]})
    survey = svysynth.read_survey(
        pl.concat([frame.select(extra.columns), extra]),
        outcome="y",
        weight="w",
        strata="field",
        public=["field", "gender"],
    )
    with pytest.raises(SurveyError, match="only one record"):
        additive_tables(survey, BY_BOTH, math.inf, BOUNDS)
    estimation = EstimationSpec(lonely=lonely)
    found = additive_tables(survey, BY_BOTH, math.inf, BOUNDS, estimation=estimation).tables
    expected = tabulate_all(survey, BY_BOTH, estimation)
    # The variance of a mean of one record is zero; a step of 2⁻³⁰ in it is 3·10⁻⁵ of the range in the standard error.
    alone = (expected["n"] == 1) & (expected["statistic"] == "mean")
    np.testing.assert_allclose(found["se_sampling"].filter(~alone), expected["se"].filter(~alone), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found["se_sampling"].filter(alone), 0, atol=100 * 2**-14)


def test_strata_that_no_table_tells_apart_count_as_one():
    tables = [TableSpec(by=("gender",), statistics=EVERYTHING)]
    found = additive_tables(make_survey(), tables, math.inf, BOUNDS)
    expected = tabulate_all(make_survey(strata=None), tables)
    np.testing.assert_allclose(found.tables["se_sampling"], expected["se"], rtol=1e-8, atol=1e-9)
    assert any("one stratum" in note for note in found.notes)
    assert not any("one stratum" in note for note in additive_tables(make_survey(), BY_BOTH, math.inf, BOUNDS).notes)


# --- tables with noise ---


def inner_sums(table, column):
    inner = table.filter((pl.col("field") != "All") & (pl.col("gender") != "All"))
    return inner.group_by(column).agg(pl.col("estimate").sum()).sort(column)["estimate"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_margins_add_up_and_counts_are_possible(seed, epsilon):
    """With so little budget that most cells have to be lifted to what their records weigh at least."""
    found = additive_tables(make_survey(), BY_BOTH, epsilon, BOUNDS, noise=StudyNoise(Streams.seeded(seed))).tables
    for statistic in ("count", "total", "proportion"):
        table = found.filter(statistic=statistic)
        size = table["estimate"].abs().max()
        for column, other in (("field", "gender"), ("gender", "field")):
            margin = table.filter((pl.col(other) == "All") & (pl.col(column) != "All")).sort(column)["estimate"]
            np.testing.assert_allclose(inner_sums(table, column), margin, atol=1e-9 * size)
        whole = table.filter(field="All", gender="All")["estimate"].item()
        assert inner_sums(table, "field").sum() == pytest.approx(whole, abs=1e-9 * size)
    counts = found.filter(statistic="count")
    assert (counts["estimate"] >= 5 * counts["n"] * (1 - 1e-9)).all()
    means = found.filter(statistic="mean")["estimate"].drop_nulls()
    assert means.is_between(0, 100).all()


@pytest.mark.parametrize(("epsilon", "seeds"), [(2.0, range(20)), (10.0, range(60))])
def test_no_sampling_error_is_zero_however_large_the_noise_in_it(epsilon, seeds):
    survey = make_survey()
    for seed in seeds:
        table = additive_tables(survey, BY_BOTH, epsilon, BOUNDS, noise=StudyNoise(Streams.seeded(seed))).tables
        uncertain = (pl.col("n") > 0) & ~((pl.col("statistic") == "proportion") & (pl.col("n") == 400))
        assert (table.filter(uncertain)["se_sampling"] > 0).all()


def test_standard_errors_have_two_parts():
    table = additive_tables(make_survey(), BY_BOTH, 2.0, BOUNDS, noise=StudyNoise(Streams.seeded(1))).tables
    assert table.columns == [
        *("table", "statistic", "field", "gender", "estimate", "se", "se_sampling", "se_privacy", "df"),
        *("lower", "upper", "cv", "n", "reliability"),
    ]
    filled = table.filter((pl.col("n") > 0) & ~((pl.col("statistic") == "proportion") & (pl.col("n") == 400)))
    assert (filled["se_sampling"] > 0).all()
    assert (filled["se_privacy"] > 0).all()
    np.testing.assert_allclose(filled["se"] ** 2, filled["se_sampling"] ** 2 + filled["se_privacy"] ** 2, rtol=1e-12)
    assert filled["df"].is_between(2 / 0.25 * 0.9, 396).all()
    assert filled["df"].min() < 50
    quantile = stats.t.ppf(0.975, filled["df"])
    np.testing.assert_allclose(filled["upper"] - filled["estimate"], quantile * filled["se"], rtol=1e-9)
    empty = table.filter(field="d", gender="f")
    assert empty["estimate"].to_list() == [0, None, 0, 0]


def test_privacy_errors_are_what_the_noise_does():
    """Over 250 draws on one survey: the mean reported variance against the estimates' own.

    A sample variance has relative standard deviation √((kurtosis + 2)/n), and Laplace noise an excess kurtosis of at
    most 3; two such variances are compared at a false alarm of 1e-6 for 14 × 4 rows.
    """
    draws = 250
    survey = make_survey()
    found = [
        additive_tables(survey, BY_BOTH, 20.0, BOUNDS, noise=StudyNoise(Streams.seeded(seed))).tables
        for seed in range(draws)
    ]
    estimates = np.array([table["estimate"].to_numpy() for table in found])
    reported = np.square([table["se_privacy"].to_numpy() for table in found]).mean(axis=0)
    rows = reported > 0
    tolerance = stats.norm.isf(FALSE_ALARM / rows.sum() / 2) * math.sqrt((3 + 2) / draws)
    ratio = estimates.var(axis=0)[rows] / reported[rows]
    assert np.abs(ratio - 1).max() < tolerance


def test_least_squares_lowers_the_error_on_every_level():
    """The same measurements of every level, as they are and made to add up, over 1000 draws.

    The variance that is then reported is the mean squared error, within what 1000 draws can tell at 1e-6.
    """
    survey, draws = make_survey(), 1000
    grid = Grid.of(survey, ("field", "gender"), BY_BOTH)
    uses = split_budget(grid.rows, len(survey), EVERYTHING, BOUNDS, 5.0, every_level=True)
    least = least_steps("points", BOUNDS) / RESOLUTION
    truth = as_measured(uses, measure(survey, grid, uses, BOUNDS, Recorder()))
    error = {(level, how): np.empty((draws, 2)) for level in grid.rows for how in ("raw", "fitted")}
    for seed in range(draws):
        noisy = measure(survey, grid, uses, BOUNDS, StudyNoise(Streams.seeded(seed)))
        found = {"raw": as_measured(uses, noisy), "fitted": add_up(grid, uses, noisy, least)}
        for (level, how), errors in error.items():
            errors[seed] = np.square(found[how][level].points - truth[level].points).sum(axis=1)
    for level in grid.rows:
        fitted, raw = error[level, "fitted"], error[level, "raw"]
        assert (fitted.mean(axis=0) < raw.mean(axis=0)).all()
        reported = found["fitted"][level].point_variance.sum()
        off = stats.norm.isf(FALSE_ALARM / 2) * fitted[:, 1].std() / math.sqrt(draws)
        assert fitted[:, 1].mean() == pytest.approx(reported, abs=off)
        assert reported < found["raw"][level].point_variance.sum()


def test_lifting_counts_to_their_least_moves_no_margin_that_is_possible():
    """Noise so large that cells fall below their least. Cut off one by one, they would lift every margin."""
    survey = make_survey()
    grid = Grid.of(survey, ("field", "gender"), BY_BOTH)
    uses = split_budget(grid.rows, len(survey), EVERYTHING, BOUNDS, 0.3)
    least = least_steps("points", BOUNDS) / RESOLUTION
    lifted = 0
    for seed in range(100):
        noisy = measure(survey, grid, uses, BOUNDS, StudyNoise(Streams.seeded(seed)))
        free, bound = (add_up(grid, uses, noisy, limit) for limit in (-np.inf, least))
        above = {level: free[level].points[0] - least * grid.add(level, grid.size) for level in grid.rows}
        if above[()] >= 0:
            assert bound[()].points[0] == pytest.approx(free[()].points[0], rel=1e-9)
        if all((above[level] >= 0).all() for level in ((), ("field",), ("gender",))):
            lifted += bool((above["field", "gender"] < 0).any())
            for level in ((), ("field",), ("gender",)):
                np.testing.assert_allclose(bound[level].points[0], free[level].points[0], rtol=1e-6)
    assert lifted > 5


@pytest.mark.parametrize("epsilon", [3.0, 30.0])
def test_intervals_cover(epsilon):
    """200 samples from a population of known counts and means, in strata, with noise afresh.

    Noise alone has 94% within its 95% interval. The number of intervals that cover must be no smaller, in any row, than
    94% would give with probability 1e-6 over all rows, and at most 99.5% on average over counts.
    """
    generator = np.random.default_rng(4)
    samples, size = 200, 20_000
    x = generator.integers(0, 4, size)
    g = generator.integers(0, 2, size)
    y = np.clip(30 + 8 * x + 10 * g + generator.normal(0, 12, size), 0, 100)
    sizes = np.array([150, 150, 100, 100])
    tables = [TableSpec(by=("x", "g"), statistics=("count", "mean"))]
    covered = []
    for sample in range(samples):
        chosen, weight = [], []
        for stratum, drawn in enumerate(sizes):
            units = np.flatnonzero(x == stratum)
            share = np.exp(0.01 * y[units])
            share /= share.sum()
            picked = generator.choice(len(units), drawn, p=share)
            chosen.append(units[picked])
            weight.append(1 / (drawn * share[picked]))
        unit = np.concatenate(chosen)
        frame = pl.DataFrame({"x": x[unit], "g": g[unit], "y": y[unit], "w": np.concatenate(weight)})
        survey = svysynth.read_survey(
            frame, outcome="y", weight="w", strata="x", public=["x", "g"], transform="identity"
        )
        bounds = BoundsSpec(outcome=(0.0, 100.0), weight=(5.0, 120.0))
        table = additive_tables(survey, tables, epsilon, bounds, noise=StudyNoise(Streams.seeded(sample))).tables
        truth = [
            true_value(statistic, row_x, row_g, x, g, y)
            for statistic, row_x, row_g in table.select("statistic", "x", "g").rows()
        ]
        covered.append(((table["lower"] <= pl.Series(truth)) & (table["upper"] >= pl.Series(truth))).to_numpy())
    hits = np.sum(covered, axis=0)
    fewest = stats.binom.ppf(FALSE_ALARM / len(hits), samples, 0.94)
    assert hits.min() >= fewest
    assert hits[: len(hits) // 2].mean() <= 0.995 * samples


def true_value(statistic, row_x, row_g, x, g, y):
    inside = np.ones(len(x), bool)
    inside &= True if row_x == "All" else x == int(row_x)
    inside &= True if row_g == "All" else g == int(row_g)
    return float(inside.sum()) if statistic == "count" else float(y[inside].mean())


# --- what is said and what is refused ---


def test_the_statement_says_what_was_spent():
    found = additive_tables(make_survey(), BY_BOTH, 1.5, BOUNDS)
    for words in (
        "ε = 1.5",
        "outcome and weight",
        "0 … 100",
        "5 … 20",
        "field by gender, points",
        "add up to the total ε",
    ):
        assert words in found.budget
    for use in found.uses:
        assert f"ε = {float(use.epsilon):.6g}" in found.budget
    assert not any("NOT FOR RELEASE" in note for note in found.notes)
    studied = additive_tables(make_survey(), BY_BOTH, 1.5, BOUNDS, noise=StudyNoise(Streams.seeded(1)))
    assert any("NOT FOR RELEASE" in note for note in studied.notes)


def test_two_releases_differ():
    one, other = (additive_tables(make_survey(), BY_BOTH, 1.0, BOUNDS).tables for _ in range(2))
    assert not one["estimate"].equals(other["estimate"])


@pytest.mark.parametrize(
    ("epsilon", "settings", "message"),
    [
        (0.0, {}, "not positive"),
        (math.nan, {}, "not positive"),
        (1e-6, {}, "too small"),
        (1.0, {"estimation": EstimationSpec(variance="jackknife")}, "taylor"),
    ],
)
def test_what_cannot_be_done_is_refused(epsilon, settings, message):
    for attempt in (additive_tables, check_additive):
        with pytest.raises(SurveyError, match=message):
            attempt(make_survey(), BY_BOTH, epsilon, BOUNDS, **settings)


def test_a_column_that_is_not_public_is_refused():
    with pytest.raises(SurveyError, match="not public"):
        additive_tables(make_survey(), [TableSpec(by=("y",))], 1.0, BOUNDS)


@pytest.mark.parametrize("bounds", [((-1e59, 1e59), (0.0, 1e59)), ((1e15, 1e15 + 1), (1e-40, 1e-39))])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, math.inf])
def test_extreme_bounds_give_finite_tables(bounds, epsilon):
    """Nothing overflows, divides by zero or warns."""
    bounds = BoundsSpec(outcome=bounds[0], weight=bounds[1])
    for consistency in (True, False):
        noise = StudyNoise(Streams.seeded(3))
        table = additive_tables(make_survey(), BY_BOTH, epsilon, bounds, noise=noise, consistency=consistency).tables
        for column in ("estimate", "se", "lower", "upper"):
            assert table[column].drop_nulls().is_finite().all()
