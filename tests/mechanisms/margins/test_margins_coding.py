"""Levels of answers, and the plan of what is measured: values fall where they came from, and parts add up to ε."""

from fractions import Fraction

import numpy as np
import pytest

from svysynth.core.spec.whole import parse_spec
from svysynth.mechanisms.margins.coding import NARROW, WEIGHT, Coding, codings
from svysynth.mechanisms.margins.planning import modelled_columns, pairs_of, plan_margins

AMOUNTS = {
    "positive": Coding("a", "amount", bounds=(2.0, 5000.0), wide=(10, 30, 60)),
    "zeros": Coding("a", "amount", bounds=(0.0, 5000.0), wide=(10, 30, 60)),
    "losses": Coding("a", "amount", bounds=(-200.0, 5000.0), may_miss=True, wide=(10, 30, 60)),
    "debts": Coding("a", "amount", bounds=(-200.0, -1.0), may_miss=True, wide=(40,)),
}
SHARE = np.full(NARROW, 1 / NARROW)


@pytest.mark.parametrize("kind", AMOUNTS)
def test_values_fall_in_the_level_that_they_were_drawn_for(kind):
    coding = AMOUNTS[kind]
    level = np.repeat(np.arange(coding.wide_levels), 500)
    share = np.random.default_rng(1).dirichlet(np.ones(NARROW))
    values = coding.values(level, share, np.random.default_rng(2).random(len(level)))
    low, high = coding.bounds
    known = values[~np.isnan(values)]
    assert (known >= low * (1 + 1e-12 * np.sign(-low))).all()
    assert (known <= high * (1 + 1e-12 * np.sign(high))).all()
    found = coding.widened(coding.narrow(values))
    assert np.mean(found != level) < 0.002  # an end of a band may be rounded into the next


@pytest.mark.parametrize("kind", AMOUNTS)
def test_zero_and_missing_are_levels_and_what_is_out_of_bounds_is_at_an_end(kind):
    coding = AMOUNTS[kind]
    low, high = coding.bounds
    ends = coding.narrow(np.array([low, low - 1, -np.inf, high, high + 1, np.inf]))
    first = 0 if low == 0 else coding.single
    assert ends.tolist() == [first] * 3 + [coding.narrow_levels - 1] * 3
    if coding.zero:
        assert coding.narrow(np.array([0.0, -0.0])).tolist() == [0, 0]
        assert coding.narrow(np.array([1e-9]))[0] >= coding.single
    if coding.may_miss:
        assert coding.narrow(np.array([np.nan]))[0] == coding.single - 1


def test_narrow_bands_are_even_in_the_logarithm_of_a_positive_amount():
    edges = AMOUNTS["positive"].edges
    assert np.allclose(np.diff(np.log(edges)), np.log(2500) / NARROW, rtol=1e-9)
    assert (np.diff(AMOUNTS["losses"].edges) > 0).all()


def test_values_within_a_wide_band_have_the_density_of_the_narrow_ones():
    coding = AMOUNTS["positive"]
    share = np.zeros(NARROW)
    share[[12, 20]] = 0.25, 0.75
    values = coding.values(np.ones(4000, int), share, (np.arange(4000) + 0.5) / 4000)
    assert np.bincount(coding.narrow(values), minlength=NARROW)[[12, 20]].tolist() == [1000, 3000]


def test_yes_no_and_categories_are_levels_as_they_are():
    works, status = Coding("w", "yes/no", 3, may_miss=True), Coding("s", "category", 4)
    assert works.narrow(np.array([1.0, 0.0, np.nan])).tolist() == [0, 1, 2]
    again = works.values(np.array([0, 1, 2]), np.empty(0), np.empty(3))
    assert again[:2].tolist() == [1.0, 0.0]
    assert np.isnan(again[2])
    assert status.values(status.narrow(np.arange(4.0)), np.empty(0), np.empty(4)).tolist() == [0, 1, 2, 3]


SPEC = """
[survey]
data = "f.csv"
outcome = "y"
weight = "wt"
strata = "s"
public = ["p", "q"]
population_total = 100
[survey.variables.a]
kind = "amount"
bounds = [0, 10]
[survey.variables.b]
kind = "yes/no"
yes = ["1"]
[survey.variables.c]
kind = "category"
levels = ["1", "2"]
[privacy]
mechanism = "margins"
guarantee = "global"
epsilon = 0.7
bounds = { outcome = [0, 9], weight = [1, 9] }
[[tables]]
by = ["p", "c"]
of = "b"
[[tables]]
by = ["p"]
statistics = ["ratio(a, b)"]
"""


@pytest.mark.parametrize("public_weights", [False, True])
@pytest.mark.parametrize("epsilon", [0.01, 0.7, 1 / 3, 12.0])
def test_the_parts_add_up_to_epsilon_exactly_and_each_noise_is_large_enough(epsilon, public_weights):
    text = SPEC.replace("population_total = 100", "weight_public = true") if public_weights else SPEC
    spec = parse_spec(text)
    own = codings(spec.survey, spec.privacy.bounds)
    columns = modelled_columns(spec.survey, spec.tables)
    assert columns == ("p", "s")
    pairs = pairs_of(spec.survey.answers, spec.survey, spec.tables)
    plan = plan_margins(own, dict.fromkeys(columns, 4), pairs, epsilon)
    assert plan.epsilon == Fraction(epsilon)
    assert all(Fraction(use.scale) * use.epsilon >= use.sensitivity for use in plan.uses)
    assert len({use.name for use in plan.uses}) == len(plan.uses)  # each has noise of its own in a study
    assert any(WEIGHT in use.answers for use in plan.uses) != public_weights


def test_the_pairs_that_tables_need_are_measured_once():
    spec = parse_spec(SPEC)
    pairs = [frozenset(pair) for pair in pairs_of(spec.survey.answers, spec.survey, spec.tables)]
    assert len(set(pairs)) == len(pairs)
    assert {frozenset(pair) for pair in ("ya", "yb", "yc", "bc", "ab")} == set(pairs)
