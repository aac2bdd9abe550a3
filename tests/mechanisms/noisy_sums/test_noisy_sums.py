"""Noisy sums: what is measured is exact, moves no further than is claimed, and nothing else of the data goes on."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svysynth
from svysynth.core import engine
from svysynth.core.engine import BLOCK, BLOCKS_A_SUM, LOCAL, Local
from svysynth.core.errors import SurveyError
from svysynth.core.grouping import whole_product, whole_sums
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.mechanisms.noise import OpenDPNoise, StudyNoise
from svysynth.mechanisms.noisy_sums.implied_tables import (
    CellDraws,
    _design_variance,
    _not_followed,
    _Sums,
    cell_figures,
)
from svysynth.mechanisms.noisy_sums.measuring import measurement as measuring
from svysynth.mechanisms.noisy_sums.measuring import whole_numbers as counting
from svysynth.mechanisms.noisy_sums.measuring.measurement import Plan, Use, Weighted, measure
from svysynth.mechanisms.noisy_sums.measuring.planning import plan_measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import facts_of
from svysynth.mechanisms.noisy_sums.measuring.scaling import (
    Bands,
    Scale,
    Scaling,
    largest_excess,
    reach_of,
    scale_from_counts,
)
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of
from svysynth.mechanisms.noisy_sums.published import draws_parquet, measurement_json, read_draws, read_measurement
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.survey.on_disk import store_survey

BOUNDS = BoundsSpec(outcome=(1e3, 1e7), weight=(1.0, 1000.0))
TABLES = (TableSpec(by=("region", "sex"), statistics=("count", "mean", "total", "proportion")),)
STREAMS = svysynth.Streams.seeded(11)


def people(n=1200, seed=1, **columns):
    """Lognormal incomes and weights that go with them, in twelve cells."""
    generator = np.random.default_rng(seed)
    region, sex = np.arange(n) % 6, generator.integers(0, 2, n)
    t = 10.5 + 0.15 * region + 0.3 * sex + 0.6 * generator.standard_normal(n)
    v = -0.3 * (t - 11) + 0.1 * region + 0.4 * generator.standard_normal(n)
    content = {
        "region": [f"r{number}" for number in region],
        "sex": np.where(sex == 1, "m", "f"),
        "income": np.exp(t),
        "wt": 50_000 * np.exp(v) / np.exp(v).sum(),
    }
    return pl.DataFrame(content | columns)


def survey_of(frame, total=50_000.0, **roles):
    settings = {"outcome": "income", "weight": "wt", "strata": "region", "public": ["region", "sex"]} | roles
    return svysynth.read_survey(frame, population_total=total, transform="identity", **settings)


def plan_of(facts, epsilon=4.0):
    return plan_measurement(facts, TABLES, epsilon)


class NoNoise:
    """Remembers the uses of the budget, and adds nothing."""

    def __init__(self):
        self.uses = []

    def __call__(self, values, use):
        self.uses.append(use)
        return values


def exact(frame, plan=None, bounds=BOUNDS, transform="log", **roles):
    """The measurement without noise, and the uses it asked for."""
    survey = survey_of(frame, **roles)
    facts = facts_of(survey)
    plan = plan or plan_of(facts)
    noise = NoNoise()
    found = measure(survey, facts, plan, bounds, transform, noise)
    return found, noise.uses


# --- whole numbers and their bound ---


ODD = st.floats(allow_nan=True, allow_infinity=True)


def test_the_bound_holds_for_what_is_not_a_number_too():
    """No constant that is wrong on the way may turn into a record without a bound."""
    odd = [np.array([np.nan, np.inf, -np.inf, 1e300, 0.5]), np.array([np.nan, np.nan, 1e300, -1e300, 0.5])]
    with np.errstate(all="ignore"):
        assert (np.abs(counting.bounded(odd, 1.0)).sum(axis=0) <= LARGEST).all()
    with np.errstate(all="ignore"), pytest.raises(SurveyError, match="so extreme"):
        largest_excess(Scaling(Scale(0.0, 1e4), Scale(0.0, 1e4), 5.0), "log", both=False)


@settings(max_examples=300)
@given(st.lists(st.tuples(ODD, ODD), min_size=1, max_size=20), st.floats(1e-12, 1e12), st.floats(5.0, 12.0))
def test_no_record_reaches_further_than_its_bound(pairs, width, reach):
    t, v = np.array(pairs).T
    scaling = Scaling(Scale(0.3, width), Scale(-0.1, 1.0), reach)
    with np.errstate(all="ignore"):
        found = [counting.whole_numbers(np.nan_to_num(t), np.nan_to_num(v), scaling)]
        clamped = np.clip(np.nan_to_num(t), -700, 700), np.clip(np.nan_to_num(v), -700, 700)
        for transform in ("log", "identity"):
            found += [counting.weighted_numbers(*clamped, scaling, transform, both) for both in (False, True)]
    for whole in found:
        assert (np.abs(whole).sum(axis=0) <= LARGEST).all()


def test_ordinary_answers_are_rounded_and_no_more():
    t, v = np.random.default_rng(0).standard_normal((2, 1000))
    scaling = Scaling(Scale(0.0, 1.0), Scale(0.0, 1.0), 8.0)
    first, second = counting.whole_numbers(t, v, scaling)
    inside = np.abs(t) + np.abs(v) < 8
    assert np.allclose(first[inside] * 8 / LARGEST, t[inside], atol=8 / LARGEST)
    assert np.allclose(second[inside] * 8 / LARGEST, v[inside], atol=8 / LARGEST)


def test_what_reaches_too_far_keeps_its_direction():
    scaling = Scaling(Scale(0.0, 1.0), Scale(0.0, 1.0), 5.0)
    first, second = counting.whole_numbers(np.array([30.0, -30.0]), np.array([-10.0, 10.0]), scaling)
    assert np.abs(first + 3 * second).max() <= 6
    assert (LARGEST - np.abs(first) - np.abs(second)).max() <= 2


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=50))
def test_whole_numbers_are_those_of_exact_arithmetic(pairs):
    """Records within reach are rounded; the others are shrunk by a division of whole numbers, towards zero."""
    t, v = np.array(pairs).T
    found = counting.whole_numbers(t, v, Scaling(Scale(0.0, 1.0), Scale(0.0, 1.0), 4.0))
    for one, two, first, second in zip(t.tolist(), v.tolist(), *found.tolist(), strict=True):
        steps = round(one * LARGEST / 4), round(two * LARGEST / 4)
        size = max(abs(steps[0]) + abs(steps[1]), LARGEST)
        assert [first, second] == [(1 if step >= 0 else -1) * (abs(step) * LARGEST // size) for step in steps]


def test_sums_within_cells_are_exact_up_to_the_largest_numbers_of_a_block():
    cell, values = np.arange(BLOCK) % 3 // 2, np.full(BLOCK, LARGEST)
    assert whole_sums(cell, 3, values, LARGEST).tolist() == [
        LARGEST * int((cell == 0).sum()),
        LARGEST * (BLOCK // 3),
        0,
    ]
    assert whole_sums(np.array([0, 0]), 1, np.array([2**52, -(2**52) + 1]), 2**52).tolist() == [1]
    with pytest.raises(ValueError, match="too many records"):
        whole_sums(np.zeros(3, int), 1, np.zeros(3, int), 2**52)


def test_products_are_exact_up_to_the_largest_numbers_that_are_added_up_together():
    """Each sum is odd, so that it would be rounded if it were not kept exactly."""
    count = BLOCKS_A_SUM * BLOCK - 1
    one, other = np.full(count, float(LARGEST)), np.full(count, float(LARGEST))
    one[-1] = other[-1] = 1
    assert whole_product(one, other, LARGEST**2) == (count - 1) * LARGEST**2 + 1
    assert whole_product(one, -other, LARGEST**2) == -(count - 1) * LARGEST**2 - 1
    with pytest.raises(ValueError, match="too many records"):
        whole_product(np.zeros(3), np.zeros(3), 2**52)


def test_bands_are_closed_below_and_take_what_lies_outside():
    values = np.array([-1e300, -0.1, 0.0, 0.999, 1.0, 31.0, 31.999, 32.0, 1e300])
    assert Bands(0.0, 32.0).count(values).tolist() == [4, 1, *[0] * 29, 4]


@pytest.mark.parametrize(("block", "parts"), [(1, None), (7, 1), (100, 3), (100, 64), (10_000, None)])
def test_a_measurement_does_not_depend_on_blocks_parts_and_disk(tmp_path, monkeypatch, block, parts):
    """Seeded noise, and not one number that differs; some answers are out of bounds."""
    frame = people(501).with_columns(
        income=pl.when(pl.int_range(pl.len()) % 50 == 7).then(1e9).otherwise("income"),
        wt=pl.when(pl.int_range(pl.len()) % 60 == 5).then(1e-9).otherwise("wt"),
    )
    survey = survey_of(frame)
    expected = seeded_json(survey)
    monkeypatch.setattr(engine, "BLOCK", block)
    workers = Local(threads=2, parts=parts)
    assert seeded_json(replace(survey, engine=workers)) == expected
    assert seeded_json(store_survey(survey, tmp_path, workers)) == expected


def seeded_json(survey):
    """The measurement and the public facts as they would be published, with noise that repeats."""
    facts = facts_of(survey)
    plan = plan_of(facts)
    return measurement_json(measure(survey, facts, plan, BOUNDS, "log", StudyNoise(STREAMS)), facts)


@pytest.mark.parametrize("strata", [None, "region", "area"])
def test_facts_are_the_cells_and_strata_of_the_records(tmp_path, strata):
    """Counted here record by record; strata may be those of a column that is not public."""
    frame = people(300, area=[f"a{number % 7}" for number in range(300)])
    survey = survey_of(frame.filter(pl.col("region") + pl.col("sex") != "r2m"), strata=strata)
    index = np.zeros(len(survey), int) if strata is None else np.asarray(survey.index.stratum)
    cells = sorted({*survey.cell_index(survey.public).tolist()})
    expected = Counter(zip(map(cells.index, survey.cell_index(survey.public).tolist()), index.tolist(), strict=True))
    for one in (survey, replace(survey, weight_public=True), store_survey(survey, tmp_path, LOCAL)):
        facts = facts_of(one)
        found = zip(facts.cell.tolist(), facts.stratum.tolist(), strict=True)
        assert dict(zip(found, facts.count.tolist(), strict=True)) == expected
        assert (facts.codes @ [2, 1]).tolist() == cells
        assert len(cells) == 11


def test_sums_are_exact_whatever_the_order_and_the_size_of_the_numbers():
    frame = people(501)
    one, _ = exact(frame)
    other, _ = exact(frame.reverse())
    assert (one.levels[0].sums == other.levels[0].sums).all()
    assert (one.squares == other.squares).all()
    scaling = one.scaling
    t, v = np.log(frame["income"].to_numpy()), np.log(frame["wt"].to_numpy() * 501 / 50_000.0)
    whole = [[int(value) for value in column] for column in counting.whole_numbers(t, v, scaling)]
    assert one.squares.tolist() == [
        sum(a * b for a, b in zip(x, y, strict=True)) for x, y in ((whole[0], whole[0]), whole, (whole[1], whole[1]))
    ]
    assert one.levels[0].sums.sum(axis=0).tolist() == [sum(whole[0]), sum(whole[1])]


# --- neighbours ---


def hostile_answers(generator, count):
    """Answers at the bounds, far beyond them, in two clusters, and anywhere."""
    kinds = generator.integers(0, 5, count)
    outcome = np.choose(
        kinds,
        [
            np.exp(generator.normal(11, 1, count)),
            np.full(count, 1e3),
            np.full(count, 1e300),
            np.where(generator.random(count) < 0.5, 2e3, 5e6),
            10.0 ** generator.uniform(-10, 15, count),
        ],
    )
    weight = np.choose(
        generator.integers(0, 3, count),
        [np.exp(generator.normal(3, 1, count)), np.full(count, 1e-300), 10.0 ** generator.uniform(-6, 9, count)],
    )
    return outcome, weight


def test_no_neighbour_moves_a_sum_further_than_its_noise_covers():
    """10,000 pairs of files that differ in one respondent's answers; the scaling is what the noisy histograms said."""
    generator = np.random.default_rng(4)
    scaling = Scaling(Scale(11.0, 0.6), Scale(0.0, 0.5), 5.0)
    weighted = Weighted(("region",), True, Fraction(1, 3))
    plan = Plan(Fraction(1, 10), ((("region", "sex"), Fraction(1)),), Fraction(1, 2), weighted)
    before, after = (counting.Answers(*hostile_answers(generator, 10_000), BOUNDS, "log", 0.02) for _ in range(2))
    everything = slice(0, 10_000)
    one, two = (counting.whole_numbers(*answers(everything), scaling) for answers in (before, after))
    linear = [counting.weighted_numbers(*answers(everything), scaling, "log", both=True) for answers in (before, after)]
    weighted_moved = np.abs(linear[0] - linear[1]).sum(axis=0)
    assert weighted_moved.max() <= 2 * LARGEST
    assert np.abs(linear[0]).sum(axis=0).max() <= LARGEST
    blank = np.zeros_like(one)
    squares = [np.stack([x[0] ** 2, x[0] * x[1], x[1] ** 2]) for x in (one, two, blank)]
    sums_moved, squares_moved = np.abs(one - two).sum(axis=0), np.abs(squares[0] - squares[1]).sum(axis=0)
    assert sums_moved.max() <= 2 * LARGEST
    assert squares_moved.max() <= 2 * LARGEST**2
    assert np.abs(one).sum(axis=0).max() <= LARGEST
    assert np.abs(squares[0]).sum(axis=0).max() <= LARGEST**2
    # what is lost in all, at the scales of the noise, exactly: never more than ε, and for the worst pair nearly ε
    loss = 2 * 2 / Use("h", 2, plan.histogram).scale
    loss = loss + sums_moved / Use("sums", 2 * LARGEST, plan.levels[0][1]).scale
    loss = loss + squares_moved / Use("squares", 2 * LARGEST**2, plan.squares).scale
    loss = loss + weighted_moved / Use("weighted sums", 2 * LARGEST, weighted.epsilon).scale
    assert loss.max() <= float(plan.epsilon)
    assert loss.max() > 0.9 * float(plan.epsilon)


class Fixed(NoNoise):
    """Histograms that say the same of every file, so that the scaling is the same; all that was measured is kept."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __call__(self, values, use):
        self.uses.append(use)
        self.seen.append(values)
        return np.ones_like(values) * 6 if "histogram" in use.name else values


@pytest.mark.parametrize("answers", [(9e6, 900.0), (1e-9, 1e-9), (1e12, 1e-9), (2e3, 40.0)])
def test_the_pair_that_broke_clipping_is_within_the_promise(answers):
    """Two hundred outcomes in two clusters, and one respondent who goes from the one to the other, or further."""
    income = np.where(np.arange(200) < 100, 2e3, 5e6)
    losses = 0.0
    worlds = []
    for first in ((2e3, 250.0), answers):
        frame = people(200, income=np.append(first[0], income[1:]), wt=np.append(first[1], np.full(199, 250.0)))
        survey, noise = survey_of(frame), Fixed()
        facts = facts_of(survey)
        plan = plan_of(facts, 2.0)
        measure(survey, facts, plan, BOUNDS, "log", noise)
        worlds.append(noise)
    for use, one, two in zip(worlds[0].uses, worlds[0].seen, worlds[1].seen, strict=True):
        moved = int(np.abs(one - two).sum())
        assert moved <= use.sensitivity
        losses += moved / use.scale
    assert 0 < losses <= 2.0


def test_histograms_move_by_two_and_sums_of_one_cell_alone():
    frame = people(300)
    changed = frame.with_columns(
        income=pl.when(pl.int_range(pl.len()) == 7).then(1e9).otherwise("income"),
        wt=pl.when(pl.int_range(pl.len()) == 7).then(1e-3).otherwise("wt"),
    )
    survey, other = survey_of(frame), survey_of(changed)
    bands = measuring.bands_of(BOUNDS, "log", 300, 50_000.0)
    counts = []
    for one in (survey, other):
        answers = counting.Answers(one.outcome_values, one.weights, BOUNDS, "log", 300 / 50_000.0)
        counts.append(measuring._Counts(answers, bands)(slice(0, 300)))
    assert [np.abs(one - two).sum() for one, two in zip(*counts, strict=True)] == [2, 2]


def test_every_use_has_its_sensitivity_and_they_add_up_to_epsilon():
    found, uses = exact(people())
    assert [use.sensitivity for use in uses] == [2, 2, *[2 * LARGEST] * len(found.levels), 2 * LARGEST**2, 2 * LARGEST]
    assert sum(use.epsilon for use in uses) == found.plan.epsilon == Fraction(4)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 10.8, 1e6])
def test_the_parts_of_a_plan_add_up_exactly(epsilon):
    assert plan_of(facts_of(survey_of(people())), epsilon).epsilon == Fraction(epsilon)


def test_a_plan_looks_at_public_facts_alone():
    """The same cells with other answers: the same plan; and its squares are never left without a share."""
    one, two = facts_of(survey_of(people(seed=1))), facts_of(survey_of(people(seed=1, income=[5.0] * 1200)))
    assert plan_of(one) == plan_of(two)
    assert plan_of(one).squares > 0


# --- noise and scales ---


def test_noise_that_is_too_small_for_its_budget_is_refused(monkeypatch):
    use = Use("sums", 2 * LARGEST, Fraction(1))
    monkeypatch.setattr(measuring, "laplace_scale", lambda sensitivity, epsilon: sensitivity / epsilon / 2)
    with pytest.raises(ArithmeticError):
        OpenDPNoise()(np.zeros(3, np.int64), use)


def test_the_noise_is_the_operating_system_s_and_of_the_scale_that_is_stated():
    use = Use("sums", 2 * LARGEST, Fraction(1, 2))
    drawn = OpenDPNoise()(np.zeros(20_000, np.int64), use)
    again = OpenDPNoise()(np.zeros(20_000, np.int64), use)
    assert (drawn != again).any()
    # mean absolute value of a Laplace variable is its scale: within 5 standard errors of it
    assert abs(np.abs(drawn).mean() / use.scale - 1) < 5 / np.sqrt(20_000)
    seeded = StudyNoise(STREAMS)(np.zeros(20_000, np.int64), use)
    assert abs(np.abs(seeded).mean() / use.scale - 1) < 5 / np.sqrt(20_000)


def test_scales_follow_from_the_noisy_histograms_and_not_from_the_data():
    """Noise that replaces the histograms sets the scaling, whatever the answers are."""

    class Replaced:
        def __call__(self, values, use):
            return np.eye(len(values), dtype=np.int64)[20] * 900 if "histogram" in use.name else values

    scalings = []
    for seed in (1, 2):
        survey = survey_of(people(seed=seed))
        facts = facts_of(survey)
        plan = plan_of(facts)
        scalings.append(measure(survey, facts, plan, BOUNDS, "log", Replaced()).scaling)
    assert scalings[0] == scalings[1]


def test_missing_answers_count_as_the_lower_bound_and_are_not_dropped():
    answers = counting.Answers(np.array([np.nan, 1e4]), np.array([2.0, np.nan]), BOUNDS, "log", 1.0)
    t, v = answers(slice(0, 2))
    assert t.tolist() == [np.log(1e3), np.log(1e4)]
    assert v.tolist() == [np.log(2.0), 0.0]


def test_scales_come_back_from_exact_histograms():
    values = 3 + 0.7 * np.random.default_rng(2).standard_normal(20_000)
    bands = Bands(-2.0, 8.0)
    found = scale_from_counts(bands.count(values), bands, 20_000)
    assert abs(found.centre - 3) < 0.05
    assert abs(found.width - 0.7) < 0.05


@given(st.lists(st.integers(-(10**12), 10**12), min_size=32, max_size=32), st.integers(1, 10**6))
def test_no_noise_makes_a_scale_absurd(counts, records):
    bands = Bands(-1.0, 5.0)
    found = scale_from_counts(np.array(counts), bands, records)
    assert -1 <= found.centre <= 5
    assert 6 / 32 <= found.width <= 3


def test_large_files_reach_further():
    assert reach_of(1000, 3.0) == 5.0
    assert reach_of(10**7, 1.0) == pytest.approx(8.0)


# --- what comes after ---


@pytest.fixture(scope="module")
def measured():
    survey = survey_of(people())
    facts = facts_of(survey)
    plan = plan_of(facts)
    return measure(survey, facts, plan, BOUNDS, "log", StudyNoise(STREAMS)), facts


@pytest.fixture(scope="module")
def fitted(measured):
    return fit_measurement(*measured, FBS(), None, 400, STREAMS)


def test_the_measurement_and_the_draws_come_back_from_what_is_published(measured, fitted):
    text = measurement_json(*measured)
    again, facts = read_measurement(text)
    assert measurement_json(again, facts) == text
    drawn = read_draws(draws_parquet(fitted.drawn, facts), len(facts.codes))
    one = tables_of(fitted.drawn, *measured, TABLES, EstimationSpec())
    two = tables_of(drawn, again, facts, TABLES, EstimationSpec())
    assert one.equals(two)


def test_what_is_published_has_no_exact_sum(measured):
    """Every number of the measurement that depends on the answers is noisy."""
    exact_one, _ = exact(people())
    content = json.loads(measurement_json(*measured))
    assert content["squares"]["values"] != exact_one.squares.tolist()
    assert content["histograms"]["outcome"] != exact_one.outcome_bands.tolist()


def test_tables_are_near_the_direct_ones_and_their_errors_are_as_large(measured, fitted):
    frame = people()
    direct = svysynth.tabulate(survey_of(frame), by=["region", "sex"])
    found = tables_of(fitted.drawn, *measured, (TableSpec(by=("region", "sex")),), EstimationSpec())
    assert found.select("statistic", "region", "sex", "n").equals(direct.select("statistic", "region", "sex", "n"))
    off = (found["estimate"] - direct["estimate"]) / np.hypot(found["se"], direct["se"])
    assert np.nanmax(np.abs(off.to_numpy()[1:])) < 4
    total = found.filter(pl.col("statistic") == "count", pl.col("region") == "All", pl.col("sex") == "All")
    assert total["estimate"].item() == pytest.approx(50_000)
    assert total["se"].item() == 0
    ratio = (found["se"] / direct["se"]).to_numpy()[1:]
    assert 0.6 < np.nanmedian(ratio) < 1.6


def test_the_shape_of_the_model_is_accepted_and_another_is_not(measured, fitted):
    assert fitted.outcome_shape.fits
    assert fitted.weight_shape.fits
    generator = np.random.default_rng(3)
    humps = np.exp(np.where(generator.random(1200) < 0.5, 9.5, 12.5) + 0.1 * generator.standard_normal(1200))
    survey = survey_of(people(income=humps))
    facts = facts_of(survey)
    plan = plan_of(facts, 8.0)
    other = measure(survey, facts, plan, BOUNDS, "log", StudyNoise(STREAMS))
    assert not fit_measurement(other, facts, FBS(), None, 400, STREAMS, rounds=4).outcome_shape.fits


def test_another_model_and_a_formula_give_tables_too(measured, fitted):
    found = fit_measurement(*measured, FBP(), "region + sex", 400, STREAMS, rounds=4)
    one, two = (
        tables_of(one.drawn, *measured, (TableSpec(by=("region",)),), EstimationSpec()) for one in (found, fitted)
    )
    assert (np.abs((one["estimate"] - two["estimate"]) / two["se"]).fill_nan(0.0) < 1.5).all()


# --- figures ---


@pytest.mark.parametrize("regions", [3, 2])
def test_the_variance_within_and_between_cells_is_what_samples_have(regions):
    """The closed form against the mean of the usual estimator over samples that the same draw describes.

    With fewer regions than there are, proportions are of the records in these.
    """
    generator = np.random.default_rng(5)
    survey = survey_of(people(600))
    facts = facts_of(survey)
    cells = len(facts.codes)
    covariance = np.array([[0.3, -0.1], [-0.1, 0.2]])
    means = generator.normal(0, 0.2, (2, cells))
    one = CellDraws(
        10 + means[:1], means[1:], np.zeros((1, cells)), np.zeros((1, cells)), *np.array([[0.3], [0.2], [-0.1]])
    )
    found = cell_figures(one, facts.size, 50_000.0, "log", (1.0, 1e9))
    base = facts.codes[facts.cell][:, 0] < regions
    domain = np.where(base, np.unique(facts.codes[facts.cell][:, 1], return_inverse=True)[1], 2)
    every, in_base = np.ones(len(base), bool), np.repeat(base, facts.count).astype(float)
    cell, stratum = np.repeat(facts.cell, facts.count), np.repeat(facts.stratum, facts.count)
    drawn = means[:, cell] + (np.linalg.cholesky(covariance) @ generator.standard_normal((4000, 2, len(cell))))
    weight, outcome = np.exp(drawn[:, 1]), np.exp(10 + drawn[:, 0])
    weight *= 50_000.0 / (weight @ np.ones(len(cell)))[:, None]
    inside = (np.repeat(domain, facts.count) == 1).astype(float)
    for statistic in ("count", "mean", "total", "proportion"):
        sums = _Sums.of(found, found.size, facts, domain, base if statistic == "proportion" else every)
        expected = _design_variance(statistic, sums, found, facts, domain)[0, 1]
        own, whole = (weight * inside).sum(axis=1, keepdims=True), 50_000.0
        part = (weight * in_base).sum(axis=1, keepdims=True)
        total = (weight * inside * outcome).sum(axis=1, keepdims=True)
        z = {
            "count": weight * (inside - own / whole),
            "proportion": weight * (inside - in_base * own / part) / part,
            "total": weight * (inside * outcome - total / whole),
            "mean": weight * inside * (outcome - total / own) / own,
        }[statistic]
        usual = np.zeros(len(z))
        for number in range(facts.strata):
            mine = z[:, stratum == number]
            usual += mine.shape[1] * mine.var(axis=1, ddof=1)
        # the two differ by what linearisation leaves out, and by chance (4000 samples)
        assert expected == pytest.approx(usual.mean(), rel=0.06), statistic


@pytest.mark.parametrize("transform", ["log", "identity"])
@pytest.mark.parametrize("whole", [False, True])
def test_what_the_model_does_not_follow_is_what_direct_figures_vary_more(transform, whole):
    """Over samples that one draw describes: the variance of direct figures less that of the model's."""
    generator = np.random.default_rng(6)
    facts = facts_of(survey_of(people(600)))
    cells, (t, v, across) = len(facts.codes), (0.16, 0.2, -0.08)
    means = generator.normal(0, 0.2, (2, cells))
    one = CellDraws(means[:1], means[1:], *np.zeros((2, 1, cells)), *np.array([[t], [v], [across]]))
    found = cell_figures(one, facts.size, 1000.0, transform, (-1e9, 1e9))
    domain = 0 * facts.cell if whole else facts.cell
    inside = np.eye(domain.max() + 1)[np.repeat(domain, facts.count)]
    members = np.eye(cells)[np.repeat(facts.cell, facts.count)]
    root = np.linalg.cholesky([[t, across], [across, v]])
    drawn = (means @ members.T) + root @ generator.standard_normal((6000, 2, len(members)))
    outcome, weight = (np.exp(drawn[:, 0]) if transform == "log" else drawn[:, 0]), np.exp(drawn[:, 1])
    weight *= 1000.0 / weight.sum(axis=1, keepdims=True)
    count, total = weight @ inside, (weight * outcome) @ inside
    own = drawn @ members / facts.size
    off = drawn - own @ members.T
    within = np.einsum("rin,rjn->rij", off, off) / (len(members) - cells)
    zeros = np.zeros((len(own), cells))
    spreads = within[:, 0, 0], within[:, 1, 1], within[:, 0, 1]
    modelled = cell_figures(
        CellDraws(own[:, 0], own[:, 1], zeros, zeros, *spreads), facts.size, 1000.0, transform, (-1e9, 1e9)
    )
    every = np.ones(len(facts.cell), bool)
    sums = _Sums.of(modelled, modelled.size, facts, domain, every)
    for statistic, direct, model in (
        ("count", count, sums.weight),
        ("mean", total / count, sums.outcome / sums.weight),
    ):
        of_draw = _Sums.of(found, found.size, facts, domain, every)
        expected = _not_followed(statistic, of_draw, found, facts, domain)[0]
        varies, more = direct.var(axis=0).sum(), (direct.var(axis=0) - model.var(axis=0)).sum()
        assert expected.sum() == pytest.approx(more, rel=0.2, abs=0.02 * varies + 1e-9)
        assert whole or more > 0.05 * varies


def test_a_large_file_that_is_not_lognormal_is_right_on_average():
    """Two groups with the same log mean and other spreads: the model says the same of both, the file does not."""
    n = 60_000
    generator = np.random.default_rng(8)
    frame = people(n)
    wide = (frame["sex"] == "m").to_numpy()
    t = 11 + np.where(wide, 1.0, 0.2) * generator.standard_normal(n)
    frame = frame.with_columns(income=pl.Series(np.exp(t)), wt=pl.lit(50_000 / n))
    survey = survey_of(frame)
    facts = facts_of(survey)
    measurement = measure(survey, facts, plan_of(facts, 20.0), BOUNDS, "log", StudyNoise(STREAMS))
    tables = (TableSpec(by=("sex",), statistics=("mean",)),)
    drawn = fit_measurement(measurement, facts, FBS(), None, 400, STREAMS, rounds=4).drawn
    found = tables_of(drawn, measurement, facts, tables, EstimationSpec())
    plain = tables_of(
        replace(drawn, outcome_misfit=0 * drawn.outcome_misfit), measurement, facts, tables, EstimationSpec()
    )
    direct = svysynth.tabulate(survey, by=["sex"]).filter(pl.col("statistic") == "mean")
    for table, close in ((found, True), (plain, False)):
        both = table.join(direct, on="sex", suffix="_direct").filter(pl.col("sex") != "All")
        off = np.abs(both["estimate"] / both["estimate_direct"] - 1).to_numpy()
        assert (off.max() < 0.05) == close
