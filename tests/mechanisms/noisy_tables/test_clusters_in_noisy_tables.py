"""Clusters in tables with additive noise: what is measured for them, how far anybody moves it, and standard errors."""

import itertools
import json
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth import EstimationSpec, Streams, SurveyError, TableSpec, tabulate_all
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.mechanisms.noise import RESOLUTION, StudyNoise
from svysynth.mechanisms.noisy_tables.alike import PairUse, squares_of_pairs
from svysynth.mechanisms.noisy_tables.tables import additive_tables, check_additive
from svysynth.mechanisms.unit import largest_cluster
from svysynth.privacy.ledger import open_budget, show

BOUNDS = BoundsSpec(outcome=(0.0, 100.0), weight=(2.0, 60.0))
STATISTICS = ("count", "mean", "proportion", "total")
BY_BOTH = [TableSpec(by=("region", "sex"), statistics=STATISTICS)]
REGIONS, OF_REGION = 5, 12


def sample(generator, own_size=True):
    """Clusters of 10 to 30 people, alike in weight and outcome; twelve from each of five regions."""
    clusters = REGIONS * OF_REGION
    size = generator.integers(10, 31, clusters) if own_size else np.full(clusters, 20)
    effect, weight = generator.standard_normal((2, clusters))
    cluster = np.repeat(np.arange(clusters), size)
    own = generator.standard_normal(len(cluster))
    return pl.DataFrame(
        {
            "region": [f"r{number // OF_REGION}" for number in cluster],
            "sex": generator.choice(["f", "m"], len(cluster)),
            "village": cluster,
            "villages": np.full(len(cluster), 60),
            "y": np.clip(45 + 15 * (0.5 * effect[cluster] + 0.85 * own), 0.5, 99.5),
            "w": 12 * np.exp(0.3 * weight[cluster] + 0.1 * effect[cluster] + 0.15 * own),
        }
    )


def survey_of(frame, **settings):
    roles = {"strata": "region", "cluster": "village", "public": ["region", "sex"]} | settings
    return svysynth.read_survey(frame, outcome="y", weight="w", transform="identity", **roles)


def survey(seed=1, **settings):
    return survey_of(sample(np.random.default_rng(seed)), **settings)


def quiet(seed=1):
    return StudyNoise(Streams.seeded(seed))


def one_row(table, statistic, **levels):
    chosen = {"region": "All", "sex": "All"} | levels
    return table.filter(pl.col("statistic") == statistic, *(pl.col(name) == level for name, level in chosen.items()))


# --- how far anybody moves what is measured ---


def number_of(x, cluster, centre, use):
    return squares_of_pairs(np.array(x, np.int64), np.array(cluster), np.array(centre, np.int64), use)


@pytest.mark.parametrize("answer", ["weights", "outcomes"])
@pytest.mark.parametrize(("cut", "limit"), [(7, 7), (7, 8), (7, 40), (7, 280), (100, 173), (1, 1)])
def test_no_answer_moves_the_number_by_more_than_its_sensitivity(answer, cut, limit):
    """Brute force: small files, every answer of a grid in place of every other, and the most that any did."""
    use, generator = PairUse(answer, cut, limit, Fraction(1)), np.random.default_rng(cut + limit)
    grid = np.unique(np.rint(np.linspace(0 if answer == "weights" else -2 * cut, 2 * cut, 33))).astype(int)
    most = 0
    for _ in range(60):
        size = int(generator.integers(1, 6 + 3 * limit // cut))
        cluster = generator.integers(0, 2, size)
        x = np.where(generator.random(size) < 0.5, grid[-1], generator.choice(grid, size))
        centre = generator.integers(0, limit + 1, 2) * (answer == "weights")
        found = [number_of([*x[:-1], one], cluster, centre, use) for one in grid]
        most = max(most, max(found) - min(found))
    assert most <= use.sensitivity
    if limit >= 20 * cut:
        assert most > 0.7 * use.sensitivity  # an attack that would find a sensitivity of half the size


@pytest.mark.parametrize("cut", [1, 7, 173])
def test_no_answer_moves_the_spread_by_more_than_its_sensitivity(cut):
    use = PairUse("spread", cut, cut, Fraction(1))
    found = [number_of([3, one], [0, 0], [0], use) for one in range(-2 * cut, 2 * cut + 1)]
    assert use.sensitivity >= max(found) - min(found) > 0.9 * use.sensitivity - 1


def test_the_number_is_a_sum_of_whole_numbers_whatever_their_size():
    """Large whole numbers, against Python's own."""
    use = PairUse("outcomes", 2 * RESOLUTION, 2**45 + 1, Fraction(1))
    generator = np.random.default_rng(4)
    x, cluster = generator.integers(-(2**32), 2**32, 3000), generator.integers(0, 5, 3000)
    cut = [max(min(int(one), use.cut), -use.cut) for one in x]
    sums = [sum(one for one, own in zip(cut, cluster, strict=True) if own == number) for number in range(5)]
    sums = [max(min(one, use.limit), -use.limit) for one in sums]
    expected = sum(one**2 // use.limit for one in sums) - sum(one**2 // use.limit for one in cut)
    assert number_of(x, cluster, np.zeros(5), use) == expected


@dataclass
class Replay:
    """Records the sums before noise. Gives those that were recorded first, as if the noise had been what differs."""

    first: list = field(default_factory=list)
    seen: list = field(default_factory=list)

    def __call__(self, values, use):
        self.seen.append((values.copy(), use))
        if len(self.first) < len(self.seen):
            self.first.append(values.copy())
        return self.first[len(self.seen) - 1]


def loss(frames, unit, epsilon=3.0):
    """The log ratio of the most telling result: Σ|Δ|/scale over all that is measured, for equal earlier results."""
    first, seen = [], []
    for frame in frames:
        replay = Replay(first)
        additive_tables(survey_of(frame), BY_BOTH, epsilon, BOUNDS, noise=replay, unit=unit)
        seen.append(replay.seen)
    assert [use for _, use in seen[0]] == [use for _, use in seen[1]]
    pairs = list(zip(*seen, strict=True))
    for (one, use), (other, _) in pairs:
        if unit == "respondent":
            assert sum(abs(int(a) - int(b)) for a, b in zip(one, other, strict=True)) <= use.sensitivity
    return sum(float(np.abs(one - other).sum()) / use.scale for (one, use), (other, _) in pairs)


ANSWERS = [(0.5, 2.0), (99.5, 60.0), (0.5, 60.0), (99.5, 2.0), (50.0, 12.0), (1e9, 1e9)]


def changed(frame, rows, answer):
    there = pl.int_range(pl.len()).is_in(rows)
    return frame.with_columns(
        y=pl.when(there).then(answer[0]).otherwise("y"), w=pl.when(there).then(answer[1]).otherwise("w")
    )


@pytest.mark.parametrize("unit", ["respondent", "cluster"])
def test_between_whole_files_nobody_moves_more_than_epsilon(unit):
    """The exact audit: one respondent, or all of the largest cluster, with answers that do the most harm."""
    frame = sample(np.random.default_rng(2))
    largest = frame["village"].value_counts().sort("count", "village")["village"][-1]
    rows = frame.with_row_index().filter(pl.col("village") == largest)["index"].to_list()
    rows = rows if unit == "cluster" else rows[:1]
    found = []
    for one in ANSWERS[:4]:
        before = changed(frame, rows, one)
        found += [loss([before, changed(frame, rows, other)], unit) for other in ANSWERS if other != one]
    assert max(found) <= 3.0
    assert max(found) > 1.5


def test_the_noise_of_a_respondent_is_too_small_for_a_whole_cluster():
    """The attack on the promise for clusters finds noise that is made for one respondent."""
    frame = sample(np.random.default_rng(2))
    rows = frame.with_row_index().filter(pl.col("village") == 3)["index"].to_list()
    first, seen = [], []
    for answer in ANSWERS[:2]:
        replay = Replay(first)
        additive_tables(survey_of(changed(frame, rows, answer)), BY_BOTH, 3.0, BOUNDS, noise=replay)
        seen.append(replay.seen)
    pairs = zip(*seen, strict=True)
    assert sum(float(np.abs(one - other).sum()) / use.scale for (one, use), (other, _) in pairs) > 3.0


@pytest.mark.parametrize("unit", ["respondent", "cluster"])
@pytest.mark.parametrize("statistics", [("count",), STATISTICS])
def test_all_uses_add_up_to_epsilon(unit, statistics):
    own = survey()
    made = additive_tables(own, [TableSpec(by=("sex",), statistics=statistics)], 5.0, BOUNDS, noise=quiet(), unit=unit)
    spent = sum(use.epsilon for use in made.uses) * (largest_cluster(own) if unit == "cluster" else 1)
    assert 5 * (1 - 1e-12) <= spent <= 5
    assert [use.name for use in made.uses[-2:]].count("pairs within clusters, outcomes") == (len(statistics) > 1)
    for use in made.uses:
        assert Fraction(use.sensitivity) / Fraction(use.scale) <= use.epsilon


# --- standard errors ---


def test_without_noise_the_whole_has_the_standard_error_of_the_direct_analysis(monkeypatch):
    """Counts with strata; means with one stratum, as strata that differ are part of the likeness of outcomes."""
    for constant in ("WIDE", "WEIGHT_CUT", "OUTCOME_CUT"):
        monkeypatch.setattr(f"svysynth.mechanisms.noisy_tables.alike.{constant}", 30.0)  # nothing is clamped
    for settings, statistic, tables in (
        ({}, "count", BY_BOTH),
        ({"fpc": "villages"}, "count", BY_BOTH),
        ({"strata": None}, "mean", [TableSpec(by=(), statistics=("mean",))]),
    ):
        own = survey(3, **settings)
        found, direct = additive_tables(own, tables, math.inf, BOUNDS).tables, tabulate_all(own, tables)
        one, other = (table.filter(pl.col("statistic") == statistic).row(0, named=True) for table in (found, direct))
        assert one["estimate"] == pytest.approx(other["estimate"], rel=1e-7)
        assert one["se"] == pytest.approx(other["se"], rel=1e-6)
        assert one["df"] == other["df"] == OF_REGION * REGIONS - (REGIONS if own.design.strata else 1)


def test_clusters_of_one_record_are_no_clusters():
    frame = sample(np.random.default_rng(5)).with_columns(village=pl.int_range(pl.len()))
    alone, none = (
        additive_tables(survey_of(frame, cluster=cluster), BY_BOTH, math.inf, BOUNDS).tables
        for cluster in ("village", None)
    )
    for column in ("estimate", "se", "lower", "upper"):
        np.testing.assert_allclose(alone[column].to_numpy(), none[column].to_numpy(), rtol=1e-9)


def test_standard_errors_are_those_of_repeated_samples():
    """The average of se² beside the variance of estimates of 40 samples, whose relative error is about 0.22."""
    found, ignored = [], []
    for number in range(40):
        frame = sample(np.random.default_rng([7, number]))
        found.append(additive_tables(survey_of(frame), BY_BOTH, 10.0, BOUNDS, noise=quiet(number)).tables)
        if number < 10:
            without = survey_of(frame, cluster=None)
            ignored.append(additive_tables(without, BY_BOTH, 10.0, BOUNDS, noise=quiet(number)).tables)
    for statistic, levels in itertools.product(
        ("count", "mean"), ({}, {"sex": "m"}, {"region": "r1"}, {"region": "r2", "sex": "f"})
    ):
        rows = pl.concat([one_row(table, statistic, **levels) for table in found])
        ratio = math.sqrt((rows["se"] ** 2).mean() / rows["estimate"].var())
        assert 0.8 < ratio < 1.6, (statistic, levels)
    rows = pl.concat([one_row(table, "count") for table in ignored])
    assert math.sqrt((rows["se"] ** 2).mean() / one_variance(found, "count")) < 0.7


def one_variance(tables, statistic):
    return pl.concat([one_row(table, statistic) for table in tables])["estimate"].var()


def test_no_standard_error_is_smaller_than_without_pairs(monkeypatch):
    """Clusters whose totals are all the same: the design is better than one without clusters, and this is not used."""
    frame = sample(np.random.default_rng(8), own_size=False).with_columns(w=pl.lit(12.0))
    sizes = frame.group_by("village").len()["len"]
    assert sizes.n_unique() == 1
    found = additive_tables(survey_of(frame), BY_BOTH, math.inf, BOUNDS).tables
    monkeypatch.setattr("svysynth.mechanisms.noisy_tables.tables._alike", lambda *_: None)
    without = additive_tables(survey_of(frame), BY_BOTH, math.inf, BOUNDS).tables
    assert (found["se_sampling"].fill_null(0) >= without["se_sampling"].fill_null(0) * (1 - 1e-12)).all()


@pytest.mark.parametrize("epsilon", [0.01, 1.0, math.inf])
@pytest.mark.parametrize("bounds", [((-1e59, 1e59), (0.0, 1e59)), ((1e15, 1e15 + 1), (1e-40, 1e-39))])
def test_extreme_bounds_give_finite_tables(bounds, epsilon):
    bounds = BoundsSpec(outcome=bounds[0], weight=bounds[1])
    for strata in ("region", None):
        made = additive_tables(survey(strata=strata), BY_BOTH, epsilon, bounds, noise=quiet())
        for column in ("estimate", "se", "lower", "upper"):
            assert made.tables[column].drop_nulls().is_finite().all()


def test_a_stratum_with_one_cluster_counts_as_the_spec_says():
    frame = sample(np.random.default_rng(9)).filter((pl.col("region") != "r4") | (pl.col("village") == 59))
    with pytest.raises(SurveyError, match="only one cluster"):
        check_additive(survey_of(frame), BY_BOTH, 3.0, BOUNDS)
    for lonely in ("adjust", "certainty"):
        rule = EstimationSpec(lonely=lonely)
        found = additive_tables(survey_of(frame), BY_BOTH, math.inf, BOUNDS, estimation=rule).tables
        direct = tabulate_all(survey_of(frame), BY_BOTH, rule)
        one, other = (one_row(table, "count", region="r4")["se"].item() for table in (found, direct))
        assert one == pytest.approx(other, rel=0.15)


# --- what is said and refused ---

SPEC = """
[survey]
data = "people.csv"
outcome = "y"
weight = "w"
strata = "region"
cluster = "village"
public = ["region", "sex"]
transform = "identity"

[privacy]
mechanism = "laplace"
guarantee = "global"
epsilon = 60.0
unit = "cluster"
budget = "people"
bounds = { outcome = [0.0, 100.0], weight = [2.0, 60.0] }

[[tables]]
by = ["region", "sex"]
"""


def test_a_release_that_protects_clusters_is_charged_for_them_and_says_so(tmp_path):
    sample(np.random.default_rng(1)).write_csv(tmp_path / "people.csv")
    (tmp_path / "s.toml").write_text(SPEC)
    open_budget(tmp_path / "ledger.sqlite", "people", 100, "differential privacy")
    svysynth.release(tmp_path / "s.toml", tmp_path / "out")
    manifest = json.loads((tmp_path / "out/public/manifest.json").read_text())
    assert manifest["guarantee"]["unit"] == "cluster"
    assert manifest["guarantee"]["epsilon_changed"] == 60.0
    assert manifest["guarantee"]["cluster"] == "village"
    assert any("pairs within clusters, outcomes" in note for note in manifest["notes"])
    assert show(tmp_path / "ledger.sqlite")[0].holds_for == "one cluster of 'village'"


@pytest.mark.parametrize(("unit", "words"), [("respondent", "of one respondent,"), ("cluster", "of one cluster,")])
def test_the_statement_says_what_was_measured_and_whose_answers_differ(unit, words):
    made = additive_tables(survey(), BY_BOTH, 50.0, BOUNDS, noise=quiet(), unit=unit)
    assert words in made.budget
    assert "pairs within clusters, weights" in made.budget
    assert any("share a cluster is public" in note for note in made.notes)
    assert "pairs" not in additive_tables(survey(cluster=None), BY_BOTH, 5.0, BOUNDS, noise=quiet()).budget


@pytest.mark.parametrize(
    ("epsilon", "unit", "message"), [(0.1, "cluster", "largest cluster"), (1e-6, "respondent", "too small")]
)
def test_an_epsilon_that_is_too_small_is_refused_before_the_charge(epsilon, unit, message):
    with pytest.raises(SurveyError, match=message):
        check_additive(survey(), BY_BOTH, epsilon, BOUNDS, unit=unit)
