"""What margins measure: nobody's answers move it by more than its noise pays for, whatever the values are."""

import itertools
import json
from functools import cache

import numpy as np
import polars as pl
import pytest

from svysynth.mechanisms.margins import measuring
from svysynth.mechanisms.margins.coding import WEIGHT, Coding
from svysynth.mechanisms.margins.measuring import STEPS, Cells, measure, most_levels
from svysynth.mechanisms.margins.planning import plan_margins
from svysynth.mechanisms.margins.published import measurement_json, read_measurement

RECORDS = 36
CODINGS = (
    Coding(WEIGHT, "amount", bounds=(1.0, 100.0)),
    Coding("income", "amount", bounds=(0.0, 1000.0), may_miss=True),
    Coding("gain", "amount", bounds=(-50.0, 20.0)),
    Coding("price", "amount", bounds=(2.0, 300.0), may_miss=True),
    Coding("status", "category", 3),
    Coding("works", "yes/no", 3, may_miss=True),
)
PAIRS = (("income", "status"), ("income", "gain"), ("status", "works"))
AMOUNTS = (-np.inf, -1e300, -51.0, -50.0, -1e-300, 0.0, 1e-300, 0.5, 2.0, 19.9, 20.0, 299.0, 1000.0, 1e300, np.inf)
EXTREMES = {
    WEIGHT: (5e-324, 0.5, 1.0, 37.0, 100.0, 1e300, np.inf),
    "income": (*AMOUNTS, np.nan),
    "gain": AMOUNTS,
    "price": (*AMOUNTS, np.nan),
    "status": (0.0, 1.0, 2.0),
    "works": (0.0, 1.0, np.nan),
}
FRAME = pl.DataFrame({"region": np.arange(RECORDS) % 3, "sex": np.arange(RECORDS) % 2})
CELLS = Cells.of(FRAME, ("region", "sex"))
PLAN = plan_margins(CODINGS, CELLS.sizes, PAIRS, 1.5)


def answers(seed=2):
    generator = np.random.default_rng(seed)
    return {name: generator.choice(values, RECORDS) for name, values in EXTREMES.items()}


class Seen:
    """Keeps the exact numbers. The bands that come out are always the same, so that all that follows from them is."""

    def __init__(self):
        self.exact = {}

    def __call__(self, values, use):
        self.exact[use.name] = values.copy()
        if not use.name.startswith("narrow"):
            return values
        place = np.linspace(-2, 2, len(values))
        return np.rint(RECORDS / 20 * np.exp(-(place**2))).astype(np.int64)


@pytest.fixture(autouse=True)
def _one_density(monkeypatch):
    """The noisy bands are always the same, and so is their density: it is fitted once."""
    monkeypatch.setattr(measuring, "fit_density", fitted_once)


ORIGINAL = measuring.fit_density


def fitted_once(counts, noise, records, sums=None):
    assert sums is None
    return _fitted(tuple(counts), noise)


@cache
def _fitted(counts, noise):
    return ORIGINAL(np.array(counts), noise, RECORDS)


def exact(values, cells=CELLS):
    seen = Seen()
    found = measure(values, cells, CODINGS, PLAN, seen)
    return seen.exact, found


def without(values, record):
    """The numbers if a respondent adds nothing; the rows are those of the public columns."""
    count = CELLS.count.copy()
    count[CELLS.of_record[record]] -= 1
    cells = Cells(CELLS.columns, CELLS.codes, count, np.delete(CELLS.of_record, record))
    return exact({name: np.delete(own, record) for name, own in values.items()}, cells)[0]


def moved(first, second):
    return {use.name: int(np.abs(first[use.name] - second[use.name]).sum()) for use in PLAN.uses}


def test_changed_and_blanked_out_answers_move_each_number_by_what_is_claimed_and_by_no_more():
    values = answers()
    before = exact(values)[0]
    furthest = dict.fromkeys(before, 0)
    blanked = dict.fromkeys(before, 0)
    worlds = {}
    for place in range(max(map(len, EXTREMES.values()))):
        other = {name: own.copy() for name, own in values.items()}
        for name, possible in EXTREMES.items():
            other[name][0] = possible[place % len(possible)]
        worlds[place] = exact(other)[0]
        gone = moved(worlds[place], without(other, 0))
        blanked = {name: max(most, gone[name]) for name, most in blanked.items()}
    for one, two in itertools.combinations([before, *worlds.values()], 2):
        change = moved(one, two)
        furthest = {name: max(most, change[name]) for name, most in furthest.items()}
        assert sum(change[use.name] / use.scale for use in PLAN.uses) <= 1.5
    for use in PLAN.uses:
        assert blanked[use.name] <= use.sensitivity // 2
        assert furthest[use.name] <= use.sensitivity
    tight = [use.name for use in PLAN.uses if furthest[use.name] == use.sensitivity]
    assert {use.name for use in (*PLAN.bands, *PLAN.margins)} <= set(tight)
    assert set(tight) & {use.name for use in PLAN.weights}  # so a smaller claim would have failed
    assert sum(blanked[use.name] / use.scale for use in PLAN.uses) <= 0.75


def test_one_answer_moves_nothing_that_is_not_about_it():
    values = answers()
    before = exact(values)[0]
    for name, possible in EXTREMES.items():
        for value in possible:
            other = {**values, name: np.r_[value, values[name][1:]]}
            change = moved(before, exact(other)[0])
            assert all(change[use.name] == 0 for use in PLAN.uses if name not in use.answers)


def test_bands_and_limits_follow_from_the_noisy_bands_alone():
    first, second = (exact(answers(seed))[1] for seed in (2, 3))
    assert first.codings == second.codings
    assert first.limits == second.limits
    for one in first.codings:
        assert one.wide_levels <= most_levels(one)


def test_each_answer_is_counted_once_in_every_margin():
    numbers, _ = exact(answers())
    for use in (*PLAN.bands, *PLAN.margins):
        assert numbers[use.name].sum() == RECORDS
        assert numbers[use.name].min() >= 0


def test_missing_amounts_add_nothing_to_sums_and_no_amount_adds_more_than_an_end():
    values = answers() | {"income": np.full(RECORDS, np.nan)}
    assert exact(values)[0]["sum of income"].tolist() == [0]
    for value, expected in ((np.inf, STEPS), (1e300, STEPS), (-np.inf, -STEPS)):
        found = exact(values | {"income": np.full(RECORDS, value)})[0]["sum of income"]
        assert found.tolist() == [RECORDS * expected]


def test_limits_have_zero_where_it_is_a_level_of_its_own():
    """What a record of zero adds to a sum is taken off again, which needs it not to be cut off."""
    limits = exact(answers())[1].limits
    assert limits["gain"][0] <= 0 <= limits["gain"][1]
    assert limits["income"][0] == 0


def test_a_measurement_is_read_as_it_was_written():
    measurement = exact(answers())[1]
    text = measurement_json(measurement)
    again = read_measurement(text)
    assert measurement_json(again) == text
    assert again.plan == measurement.plan
    assert again.codings == measurement.codings
    assert again.plan.epsilon == measurement.plan.epsilon
    content = json.loads(text) | {"format": 2}
    with pytest.raises(ValueError, match="another format"):
        read_measurement(json.dumps(content).encode())


def test_no_value_is_shown():
    measurement = exact(answers())[1]
    assert "[" not in repr(measurement)
