"""Clusters in noisy sums: what is measured between them, its sensitivity, and standard errors of tables and files."""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svysynth
from r_survey import r_of_clusters, skip_without_r
from repeatable import repeat
from svysynth.cli.main import main
from svysynth.core import engine
from svysynth.core.engine import Local
from svysynth.core.errors import SurveyError
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.whole import load_spec
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.base import find_public
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums import implied_tables as figuring
from svysynth.mechanisms.noisy_sums.clustered_variance import MOST_SHARE, kept_inside
from svysynth.mechanisms.noisy_sums.from_public_folder import FromPublic
from svysynth.mechanisms.noisy_sums.implied_tables import CellDraws
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import (
    between_sensitivity,
    centre_excess,
    centre_outcome,
    excess_spread,
    excess_step,
    limit_of,
    squares_between,
)
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.measurement import measure
from svysynth.mechanisms.noisy_sums.measuring.planning import CLUSTERS_SHARE, plan_measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import facts_of
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale, Scaling
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST, Answers, weighted_numbers
from svysynth.mechanisms.noisy_sums.posterior.cluster_effects import ClusterStatistics, clusters_at, measured_squares
from svysynth.mechanisms.noisy_sums.published import draws_parquet, measurement_json, read_draws, read_measurement
from svysynth.privacy.ledger import open_budget, show
from svysynth.publishing.verification import verify_release
from svysynth.survey.on_disk import store_survey

STREAMS = svysynth.Streams.seeded(21)
BOUNDS = BoundsSpec(outcome=(1e2, 1e8), weight=(1.0, 1000.0))
TABLE = TableSpec(by=("region", "sex"), statistics=("count", "mean", "total", "proportion"))
OF_TABLE = "region <> 'r1'"
DOMAIN = TableSpec(by=("sex",), statistics=("count", "mean", "proportion"), domain=OF_TABLE)
TOTAL = 50_000.0
T, V, ACROSS = 0.2, 0.15, -0.05
"""The variances and the covariance between clusters, in units in which those of records are about one."""


def people(clusters=60, seed=3, least=10, most=30):
    """Lognormal incomes and weights in clusters of different sizes, which are in three regions."""
    generator = np.random.default_rng(seed)
    size = generator.integers(least, most + 1, clusters)
    cluster = np.repeat(np.arange(clusters), size)
    effect = np.linalg.cholesky([[T, ACROSS], [ACROSS, V]]) @ generator.standard_normal((2, clusters))
    own = np.linalg.cholesky([[1 - T, -0.2], [-0.2, 1 - V]]) @ generator.standard_normal((2, len(cluster)))
    region, sex = cluster % 3, generator.integers(0, 2, len(cluster))
    first, second = effect[:, cluster] + own
    t, v = 10.3 + 0.2 * region + 0.3 * sex + 0.6 * first, 0.5 * second
    columns = {"region": [f"r{one}" for one in region], "sex": np.where(sex == 1, "m", "f")}
    numbers = {"income": np.exp(t), "wt": TOTAL * np.exp(v) / np.exp(v).sum()}
    return pl.DataFrame(columns | {"village": [f"v{one // 3}" for one in cluster]} | numbers)


def survey_of(frame, **roles):
    settings = {"outcome": "income", "weight": "wt", "strata": "region", "public": ["region", "sex"]}
    settings |= {"cluster": "village", "transform": "identity"}
    return svysynth.read_survey(frame, population_total=TOTAL, **settings | roles)


class NoNoise:
    """Remembers the uses of the budget, and adds nothing."""

    def __init__(self):
        self.uses = []

    def __call__(self, values, use):
        self.uses.append(use)
        return values


def exact(survey, epsilon=6.0):
    facts, noise = facts_of(survey), NoNoise()
    plan = plan_measurement(facts, [TABLE], epsilon)
    return measure(survey, facts, plan, BOUNDS, "log", noise), facts, noise.uses


# --- what is measured ---


def of_huber(value, most):
    """x² up to the limit, and the tangent beyond it."""
    return value * value if abs(value) <= most else 2 * most * abs(value) - most * most


def test_squares_between_clusters_are_exact_whatever_the_parts_and_the_disk(tmp_path, monkeypatch):
    """By Python's integers, cluster by cluster, from the whole numbers of the records."""
    frame = people()
    survey = survey_of(frame)
    found, _, uses = exact(survey)
    between = found.between
    answers = Answers(survey.outcome_values, survey.weights, BOUNDS, "log", len(frame) / TOTAL)
    whole = weighted_numbers(*answers(slice(0, len(frame))), found.scaling, "log", both=True).astype(int)
    cell = survey.present_cells(survey.public)[1]
    off = whole.T - between.centre[np.asarray(cell)]
    expected, beyond = [0, 0, 0], 0
    names = (frame["region"] + frame["village"]).to_list()
    for name in sorted(set(names)):
        own = [row for row, one in zip(off.tolist(), names, strict=True) if one == name]
        most = between.limit * len(own)
        r, q = (sum(row[place] for row in own) for place in (0, 1))
        both = of_huber(r + q, most) - of_huber(r - q, most)
        terms = of_huber(r, most) // len(own), both // (4 * len(own)), of_huber(q, most) // len(own)
        expected = [old + new for old, new in zip(expected, terms, strict=True)]
        beyond += abs(r) > most
    assert beyond > 0
    assert between.squares.tolist() == expected
    own = next(use for use in uses if use.name == "squares between clusters")
    assert own.sensitivity == between_sensitivity(between.limit) == 6 * between.limit * LARGEST + 6
    assert sum(use.epsilon for use in uses) == found.plan.epsilon == Fraction(6)
    assert own.epsilon == found.plan.clusters > 0
    monkeypatch.setattr(engine, "BLOCK", 128)
    for other in (replace(survey, engine=Local(2)), store_survey(survey, tmp_path, Local(2))):
        again = exact(other)[0].between
        assert again.squares.tolist() == expected
        assert (again.centre == between.centre).all()


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 30_000))
def test_no_record_moves_the_squares_further_than_the_noise_covers(seed, most_records, limit):
    """A changed answer moves the sums of one cluster by 2·LARGEST in all, a blanked one by LARGEST."""
    generator = np.random.default_rng(seed)
    size = generator.integers(1, most_records + 1, 3)
    reach = generator.choice([0.1, 0.5, 1.0, 1.5, 20.0], (3, 2)) * limit * size[:, None]
    sums = np.rint(generator.choice([-1.0, 1.0], (3, 2)) * reach * generator.uniform(0.8, 1.2, (3, 2))).astype(int)
    for largest, sensitivity in ((2 * LARGEST, between_sensitivity(limit)), (LARGEST, between_sensitivity(limit) / 2)):
        part = generator.choice([0, largest, generator.integers(0, largest + 1)])
        moved = sums.copy()
        moved[0] += generator.choice([-1, 1], 2) * [part, largest - part]
        change = np.abs(squares_between(moved, size, limit) - squares_between(sums, size, limit)).sum()
        assert change <= sensitivity


@pytest.mark.parametrize("limit", [1, 3, 40])
def test_of_all_small_clusters_none_moves_the_squares_further(limit, monkeypatch):
    """Every pair of sums of a cluster, and every change of one record, with a small bound of a record."""
    largest, grid = 4, np.arange(-24, 25, 2)
    monkeypatch.setattr("svysynth.mechanisms.noisy_sums.measuring.between_clusters.LARGEST", largest)
    steps = [(r, q) for r in range(-8, 9) for q in range(-8, 9) if abs(r) + abs(q) <= 2 * largest]
    for records in (1, 2, 7):
        sums = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)

        def each(values, size=records):
            return np.array([squares_between(value[None], np.array([size]), limit) for value in values])

        known = {(r, q): found for (r, q), found in zip(map(tuple, _all_sums()), each(_all_sums()), strict=True)}
        for r, q in steps:
            allowed = between_sensitivity(limit) / (2 if abs(r) + abs(q) <= largest else 1)
            change = [np.abs(known[a + r, b + q] - known[a, b]).sum() for a, b in sums.tolist()]
            assert max(change) <= allowed


def _all_sums():
    reach = np.arange(-32, 33)
    return np.stack(np.meshgrid(reach, reach), axis=-1).reshape(-1, 2)


def test_the_bound_is_reached():
    """Where one sum is beyond the limit and the other twice as far, a change of the first moves two of the squares."""
    size, limit = np.array([20]), 12_000
    sums = np.array([[2, 4]]) * limit * size
    change = squares_between(sums + np.array([2 * LARGEST, 0]), size, limit) - squares_between(sums, size, limit)
    assert 0.999 * between_sensitivity(limit) < np.abs(change).sum() <= between_sensitivity(limit)


def test_a_cluster_that_is_far_from_all_others_still_counts():
    """Squares that are clamped would not grow beyond the limit."""
    size, limit = np.array([20]), 1000
    near, far = (squares_between(np.array([[off, 0]]) * limit * size, size, limit)[0] for off in (1, 5))
    assert near == size[0] * limit**2
    assert far == 9 * near


def test_the_numbers_of_the_clusters_are_those_of_dense_matrices():
    facts = facts_of(survey_of(people()))
    found = ClusterSizes.of(facts)
    clusters, cells = int(facts.cluster.max()) + 1, len(facts.codes)
    counts = np.zeros((clusters, cells))
    np.add.at(counts, (facts.cluster, facts.cell), facts.count)
    own = counts.sum(axis=1)
    h = np.diag(own) - counts @ np.diag(1 / facts.size) @ counts.T
    assert clusters == 60
    assert found.own.tolist() == own.tolist()
    assert found.of_records == pytest.approx((np.diag(h) / own).sum())
    assert found.of_clusters == pytest.approx((np.diag(h @ h) / own).sum())
    np.testing.assert_allclose(found.pairs, counts.T @ counts - np.diag(facts.size))
    np.testing.assert_allclose(found.by_size, counts.T @ np.diag(1 / own) @ counts)
    stratum = np.array([facts.stratum[facts.cluster == number][0] for number in range(clusters)])
    design = np.zeros((cells, cells))
    for number in range(3):
        mine = counts[stratum == number]
        design += len(mine) * np.cov(mine.T, ddof=1)
    np.testing.assert_allclose(found.design, design)
    assert found.degrees_of_freedom == 57
    assert ClusterSizes.of(facts_of(survey_of(people(), cluster=None))) is None


def test_a_plan_gives_a_part_to_the_squares_between_clusters():
    facts = facts_of(survey_of(people()))
    least, most = CLUSTERS_SHARE
    shares = [float(plan_measurement(facts, [TABLE], epsilon).clusters / Fraction(epsilon)) for epsilon in (2, 10, 80)]
    assert shares == sorted(shares, reverse=True)
    assert least <= shares[2] < shares[1] < shares[0] <= most
    assert plan_measurement(facts_of(survey_of(people(), cluster=None)), [TABLE], 10.0).clusters == 0


@pytest.mark.parametrize("transform", ["log", "identity"])
def test_the_squares_that_the_posterior_expects_are_those_of_a_large_sample(transform):
    """Simulated cluster by cluster: lognormal weights, and outcomes with the same covariances."""
    generator = np.random.default_rng(2)
    clusters, each, cells, limit = 40_000, 6, 2, 1.2
    between, within = np.array([[0.2, -0.05], [-0.05, 0.1]]), np.array([[0.5, -0.1], [-0.1, 0.4]])
    widths, level = np.array([0.6, 0.5]), np.array([[0.3, -0.2], [-0.4, 0.1]])
    effect = np.linalg.cholesky(between) @ generator.standard_normal((2, clusters))
    own = np.linalg.cholesky(within) @ generator.standard_normal((2, clusters * each))
    cluster, cell = np.repeat(np.arange(clusters), each), np.arange(clusters * each) % cells
    t, v = effect[:, cluster] + own + level[cell].T
    u = np.exp(widths[1] * v - widths[1] ** 2 * (between + within)[1, 1] / 2)
    y = u * (np.expm1(widths[0] * t) if transform == "log" else t)
    values = np.stack([y, u - 1])
    means = np.stack([[one[cell == number].mean() for number in range(cells)] for one in values], axis=1)
    centre = means + 0.03
    sums = np.stack([np.bincount(cluster, one) for one in values - centre[cell].T])
    phi = lambda x: np.where(np.abs(x) <= limit * each, x**2, limit * each * (2 * np.abs(x) - limit * each))  # noqa: E731
    r, q = sums
    expected = np.array([phi(r).sum(), (phi(r + q) - phi(r - q)).sum() / 4, phi(q).sum()]) / each
    counts = np.full((clusters, cells), each // cells)
    n = clusters * each
    size, by_size = counts.sum(axis=0), counts.T @ counts / each
    numbers = n, clusters, n, 1e9, each
    known = jnp.zeros(3), jnp.zeros(()), jnp.array(limit), jnp.array(centre), jnp.array(size), jnp.array(by_size)
    statistics = ClusterStatistics(*known, *(jnp.array(float(number)) for number in numbers))
    spread = np.sqrt(np.diag(between))
    z = jnp.array([0, 0, 0, *np.log(spread / 0.25), np.arctanh(between[0, 1] / spread.prod()) / 0.5])
    found = clusters_at(z, jnp.array(within), statistics)
    np.testing.assert_allclose(found.covariance, between[[0, 0, 1], [0, 1, 1]], atol=1e-9)
    squares = measured_squares(found, jnp.array(within), jnp.array(means), jnp.array(widths), statistics, transform)
    np.testing.assert_allclose(squares, expected, rtol=0.04, atol=0.003 * n)


def test_the_limit_is_a_few_standard_deviations_of_a_cluster(monkeypatch):
    """In units of what a record adds to weighted sums, as it follows from the scales."""
    found, facts, _ = exact(survey_of(people()))
    limit = found.between.limit * excess_step(found.scaling, "log")
    first, second = found.scaling.widths
    spread = np.exp(second**2 / 2) * np.sqrt(np.expm1(first**2))
    assert excess_spread(found.scaling, "log") == pytest.approx(spread)
    assert limit == pytest.approx(limit_of(ClusterSizes.of(facts)) * spread, rel=1e-3)


# --- tables and files of given draws ---


def maker(frame, transform="log", draws=4, between=(0.06, -0.02, 0.05)):
    """Makes files of draws that no sampler made."""
    survey = survey_of(frame, domains=[OF_TABLE])
    facts = facts_of(survey)
    plan = plan_measurement(facts, [TABLE], 6.0)
    bounds = BOUNDS if transform == "log" else BoundsSpec(outcome=(-1e6, 1e6), weight=(1.0, 1000.0))
    measurement = measure(survey, facts, plan, bounds, transform, StudyNoise(STREAMS))
    generator = np.random.default_rng(1)
    level, width = (10.5, 1.0) if transform == "log" else (30_000.0, 1e4)
    means = 0.2 * generator.standard_normal((2, len(facts.codes)))
    cells = np.stack([level + width * means[0], means[1], *np.zeros((2, len(facts.codes)))])
    spreads = np.repeat([[0.3 * width**2], [0.25], [-0.08 * width]], draws, axis=1)
    drawn = CellDraws(*(np.tile(one, (draws, 1)) for one in cells), *spreads)
    drawn = replace(drawn, between=np.tile(np.array(between) * [width**2, width, 1], (draws, 1)))
    return FileMaker(drawn, measurement, facts, 77, "income", "region", cluster="village")


@pytest.mark.parametrize("transform", ["log", "identity"])
def test_standard_errors_of_files_are_on_average_those_of_tables(transform, monkeypatch):
    """A file's own clustered variance, over residuals, and the closed form. Without clusters they would be far off."""
    monkeypatch.setattr(figuring, "_not_followed", lambda *_: 0.0)
    make = maker(people(150, least=5, most=15), transform)
    estimation = svysynth.EstimationSpec()
    tables = [TABLE, DOMAIN]
    table = FromPublic(make, FilePlan(77, ()), estimation).tabulate_all(tables)
    found, files = [], [replace(make, seed=seed).survey(1) for seed in range(60)]
    for one in files:
        found.append(Synthetic((one,), "imputed").tabulate_all(tables)["se"].to_numpy() ** 2)
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    expected = table["se"].to_numpy() ** 2
    known = expected > 0
    assert known.sum() == 4 * 12 - 2 + 3 * 3 - 1
    assert table["df"].to_list() == 48 * [147.0] + 9 * [98.0]
    # residuals are centred in cells: what clusters share with the mean of their cell is lost, about 1 in 50 here
    assert (np.abs(mean - expected)[known] <= 4 * error[known] + 0.05 * expected[known]).all()
    alone = replace(make, facts=replace(make.facts, cluster=None), drawn=replace(make.drawn, between=None))
    ignoring = FromPublic(alone, FilePlan(77, ()), estimation).tabulate_all(tables)["se"].to_numpy() ** 2
    # the two sexes are in the same clusters, so counts of one sex hardly vary more; means of both do
    means = np.array(table["statistic"] == "mean")
    assert (expected[means] / ignoring[means]).min() > 1.3
    estimates = Synthetic((files[0],), "imputed").tabulate_all(tables)["estimate"]
    np.testing.assert_allclose(estimates, table["estimate"], rtol=1e-7)


def test_files_carry_numbered_clusters_and_their_effects():
    frame = people()
    make = maker(frame, between=(0.12, -0.02, 0.05))
    made = make.survey(1)
    sizes = made.frame.group_by("region", "village").len()["len"].sort().to_list()
    assert sizes == frame.group_by("region", "village").len()["len"].sort().to_list()
    assert sorted(set(made.frame["village"])) == list(range(1, 61))
    means = made.frame.with_columns(t=pl.col("income").log()).group_by("region", "sex", "village").agg(pl.mean("t"))
    spread = means.with_columns(pl.col("t") - pl.mean("t").over("region", "sex"))["t"].var()
    # T, and a record's variance over the harmonic mean of about seven records of a cluster in a cell
    assert 0.09 < spread < 0.25


def test_the_variance_between_clusters_stays_below_that_of_records():
    generator = np.random.default_rng(3)
    covariance = np.array([[0.3, -0.1, 0.2]] * 200)
    roots = generator.normal(0, 0.3, (200, 2, 2))
    between = roots @ roots.transpose(0, 2, 1)
    entries = between.reshape(-1, 4)[:, [0, 1, 3]]
    kept = kept_inside(entries, covariance)
    left = (covariance - kept)[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
    assert (np.linalg.eigvalsh(left) > 0).all()
    share = np.linalg.eigvals(np.linalg.solve(covariance[0][[0, 1, 1, 2]].reshape(2, 2), between)).real.max(axis=1)
    inside = share < MOST_SHARE
    assert 20 < inside.sum() < 180
    np.testing.assert_allclose(kept[inside], entries[inside], atol=1e-12)


def test_the_measurement_and_the_draws_come_back_from_what_is_published():
    make = maker(people())
    text = measurement_json(make.measurement, make.facts)
    measurement, facts = read_measurement(text)
    assert measurement_json(measurement, facts) == text
    assert measurement.plan == make.measurement.plan
    assert measurement.between.scale == make.measurement.between.scale
    drawn = read_draws(draws_parquet(make.drawn, make.facts), len(facts.codes))
    np.testing.assert_array_equal(drawn.between, make.drawn.between)


# --- what is refused ---


SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "region"
cluster = "village"
public = ["region", "sex"]
population_total = 50000

[privacy]
mechanism = "fbs"
guarantee = "global"
epsilon = 20.0
draws = 400
budget = "people"
bounds = { outcome = [1000.0, 1000000.0], weight = [1.0, 1000.0] }

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean", "total"]
"""


def written(folder, text=SPEC, frame=None):
    (people() if frame is None else frame).write_csv(folder / "people.csv")
    (folder / "s.toml").write_text(text)
    open_budget(folder / "ledger.sqlite", "people", 1000, "differential privacy")
    return folder / "s.toml"


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("draws = 400", 'draws = 400\nprotect = "record"', "survey.cluster"),
    ],
)
def test_what_is_not_supported_with_clusters_is_said_before_the_charge(tmp_path, old, new, place):
    path = written(tmp_path, SPEC.replace(old, new))
    assert any(finding.place == place and finding.stops for finding in find_public(load_spec(path)))


def test_too_few_clusters_are_refused(tmp_path):
    """Two in each region: there is no variance to speak of within regions."""
    path = written(tmp_path, frame=people(6, most=60, least=50))
    with pytest.raises(SurveyError, match="too few clusters"):
        svysynth.release(path, tmp_path / "out")
    assert not (tmp_path / "out/public").exists()


@pytest.mark.parametrize("weights", ["population_total = 50000", "weight_public = true"])
def test_clusters_of_one_record_are_refused_before_the_charge(tmp_path, weights):
    """Nothing tells the variance between clusters from that within them, and the posterior would have no end."""
    frame = people(200, least=1, most=1)
    path = written(tmp_path, SPEC.replace("population_total = 50000", weights), frame)
    with pytest.raises(SurveyError, match="too few records that share a cluster"):
        svysynth.release(path, tmp_path / "out")
    assert show(tmp_path / "ledger.sqlite")[0].spent == 0


def test_strata_of_one_cluster_are_refused_whatever_direct_tables_do_with_them(tmp_path):
    frame = people()
    frame = frame.filter((pl.col("region") != "r1") | (pl.col("village") == "v3"))
    path = written(tmp_path, SPEC + '\n[estimation]\nlonely = "certainty"\n', frame)
    with pytest.raises(SurveyError, match="strata with one cluster"):
        svysynth.release(path, tmp_path / "out")
    assert not (tmp_path / "out/public").exists()


# --- a release ---

WHOLE_CLUSTERS = (
    SPEC.replace("epsilon = 20.0", 'epsilon = 600.0\nunit = "cluster"')
    + f"""
[[tables]]
by = ["sex"]
statistics = ["count", "mean"]
domain = "{OF_TABLE}"
"""
)
"""The largest cluster has 30 records: each has ε = 20."""


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A release that was paid for and protects whole clusters, and its public folder alone, elsewhere."""
    house = tmp_path_factory.mktemp("house")
    with pytest.MonkeyPatch.context() as patch:
        repeat(patch)
        done = svysynth.release(written(house, WHOLE_CLUSTERS), house / "out")
    public = tmp_path_factory.mktemp("user") / "public"
    shutil.copytree(house / "out/public", public)
    tables = pl.read_csv(public / "tables.csv", schema_overrides={"df": pl.Float64})
    of_domain = tables.filter(pl.col("table").str.contains(OF_TABLE, literal=True))
    tables = tables.filter(table="region by sex")
    return SimpleNamespace(house=house, out=house / "out", public=public, done=done, tables=tables, domain=of_domain)


def test_tables_have_the_standard_errors_of_the_clustered_sample(released):
    """Nearly those of the direct clustered analysis, and far above those that ignore clusters."""
    frame = people()
    columns = {"by": ["region", "sex"], "statistics": ["mean"]}
    direct = svysynth.tabulate(survey_of(frame), **columns)
    ignoring = svysynth.tabulate(survey_of(frame, cluster=None), **columns)
    mine = released.tables.filter(statistic="mean")
    ratio = (mine["se"] / direct["se"]).to_numpy()
    assert 0.8 < np.median(ratio) < 1.5
    assert np.median((mine["se"] / ignoring["se"]).to_numpy()) > 1.3
    off = ((mine["estimate"] - direct["estimate"]) / direct["se"]).to_numpy()
    assert np.abs(off).max() < 2.5
    assert set(mine["df"]) == {57.0}


def test_a_release_with_clusters_is_verified_and_gives_more(released):
    checked = verify_release(released.out, released.house / "s.toml").checked
    assert "10 synthetic files, made again from the draws and the seed" in checked
    more = svysynth.more(released.public)
    found = more.synthetic(20).tabulate(["region", "sex"], ["mean"])
    both = found.join(released.tables, on=["statistic", "region", "sex"], suffix="_table")
    assert both.height == 12
    # the files of twenty draws, each with clusters of its own
    assert (both["se"] / both["se_table"]).is_between(0.75, 1.35).all()


@pytest.mark.parametrize(("by", "written"), [("sex", OF_TABLE), ("region,sex", "( region!='r1' )")])
def test_more_makes_tables_of_a_domain_of_the_release(released, tmp_path, capsys, by, written):
    """However the condition is written, the table has it as the release does."""
    code, _ = more_of(released, capsys, "--by", by, "--domain", written, "--out", tmp_path / "t.csv")
    assert code == 0
    found = pl.read_csv(tmp_path / "t.csv")
    assert (found["table"] == f"{by.replace(',', ' by ')} ({OF_TABLE})").all()
    margin = found.filter(region="All") if "region" in by else found
    both = margin.join(released.domain, on=["statistic", "sex"], suffix="_release")
    assert both.height == 6
    for name in ("estimate", "se"):
        np.testing.assert_allclose(both[name], both[f"{name}_release"], rtol=1e-9)
    whole = both.join(released.tables.filter(region="All"), on=["statistic", "sex"], suffix="_whole")
    assert (whole["estimate"] != whole["estimate_whole"]).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--files", "2", "--domain", OF_TABLE], "--domain: is for tables"),
        (["--by", "sex", "--domain", "sex = 'f'"], "is not one of the domains of this release"),
        (["--by", "sex", "--domain", "income > 3"], "is not one of the domains of this release. Remedy: choose from"),
        (["--by", "sex", "--domain", "region <>"], "domain: is not a SQL condition"),
    ],
)
def test_more_refuses_other_domains_in_one_clear_error(released, tmp_path, capsys, arguments, words):
    code, said = more_of(released, capsys, *arguments, "--out", tmp_path / "t.csv")
    assert code == 1
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "t.csv").exists()


def more_of(released, capsys, *arguments):
    """Run `svysynth more` on the public folder: its exit code, and its error."""
    with pytest.raises(SystemExit) as left:
        main(["more", str(released.public), *map(str, arguments)])
    return left.value.code, capsys.readouterr().err


def test_a_release_that_protects_clusters_says_so_and_gives_each_record_its_share(released):
    manifest = json.loads((released.public / "manifest.json").read_text())
    assert manifest["guarantee"]["unit"] == manifest["privacy"]["unit"] == "cluster"
    assert show(released.house / "ledger.sqlite")[0].holds_for == "one cluster of 'village'"
    assert "any one cluster of respondents" in manifest["statement"][0]
    assert manifest["guarantee"]["epsilon_changed"] == 600.0
    measured = json.loads((released.public / "measurement.json").read_text())
    parts = [measured[part] for part in ("squares", "weighted_sums", "between_clusters")]
    spent = sum(Fraction(part["epsilon"]) for part in [*parts, *measured["sums"]])
    spent += 2 * Fraction(measured["histograms"]["epsilon"])
    assert 0.5 * 600 < spent * people().group_by("region", "village").len()["len"].max() <= 600


def test_r_gives_the_standard_errors_of_a_file_from_its_clusters(released, tmp_path):
    """`svydesign` with the strata and clusters of a public file, and the tables that are made of it here."""
    skip_without_r()
    theirs = r_of_clusters(released.public, tmp_path)
    file = svysynth.read_synthetic(
        [released.public / "microdata-1.csv"],
        outcome="income",
        public=["region", "sex"],
        strata="region",
        cluster="village",
        rules="imputed",
    )
    mine = file.tabulate(["region", "sex"], ["mean"])
    both = mine.join(theirs, on=["region", "sex"], suffix="_r")
    assert both.height == 6
    np.testing.assert_allclose(both["se"], both["se_r"], rtol=1e-9)
    whole = mine.filter((pl.col("region") == "All") & (pl.col("sex") == "All"))
    assert whole["se"].item() == pytest.approx(both["whole"][0], rel=1e-9)


# --- neighbours ---


class Fixed(NoNoise):
    """Histograms and sums that say the same of every file, as for neighbours with the same results so far."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __call__(self, values, use):
        self.uses.append(use)
        self.seen.append(values)
        if "histogram" in use.name:
            return np.round(40 * np.exp(-0.5 * ((np.arange(len(values)) - 16) / 4) ** 2)).astype(int)
        return np.zeros_like(values) if use.name.startswith(("sums", "weighted sums")) else values


def seen(frame, epsilon):
    noise = Fixed()
    survey = survey_of(frame)
    facts = facts_of(survey)
    plan = plan_measurement(facts, [TABLE], epsilon)
    measure(survey, facts, plan, BOUNDS, "log", noise)
    return noise.seen, noise.uses


def with_answers(frame, rows, generator):
    """Other answers of some records: ordinary, at the bounds, and far beyond them."""
    income, weight = (frame[name].to_numpy().copy() for name in ("income", "wt"))
    income[rows] = generator.choice([1e-9, 1e2, 3e4, 1e8, 1e12]) * np.exp(generator.normal(0, 0.3, len(rows)))
    weight[rows] = generator.choice([1e-6, 1.0, 40.0, 1e3, 1e9])
    return frame.with_columns(pl.Series("income", income), pl.Series("wt", weight))


@pytest.mark.parametrize("whole", [False, True])
def test_all_that_is_measured_together_loses_no_more_than_epsilon(whole):
    """Exactly, for one record or a whole cluster of k records with ε/k for each: the sum of |Δ|/scale over all uses."""
    generator = np.random.default_rng(8)
    frame = people(20, least=2, most=6)
    village = (frame["region"] + frame["village"]).to_numpy()
    largest = max(np.unique(village, return_counts=True)[1]) if whole else 1
    epsilon, losses = 4.0, []
    for _ in range(60):
        name = generator.choice(village)
        own = np.flatnonzero(village == name)
        rows = own if whole else own[:1]
        one, other = (seen(with_answers(frame, rows, generator), epsilon / largest) for _ in range(2))
        pairs = zip(*one, other[0], strict=True)
        losses.append(sum(np.abs(mine - its).sum() / use.scale for mine, use, its in pairs))
    assert "squares between clusters" in [use.name for use in one[1]]
    assert max(losses) <= epsilon
    assert max(losses) > 0.5 * epsilon


class AsBefore(NoNoise):
    """Results of an earlier measurement, as for neighbours with the same results so far."""

    def __init__(self, before=()):
        super().__init__()
        self.seen, self.before = [], before

    def __call__(self, values, use):
        self.uses.append(use)
        self.seen.append(values)
        return self.before[len(self.seen) - 1] if self.before else values


@pytest.mark.parametrize("spread", [0.5, 200.0, 20_000.0])
def test_scales_that_are_far_too_wide_cost_no_more_than_epsilon(spread):
    """As where a spread is given in units of the outcome and not of its logarithm: exponentials overflow."""
    generator = np.random.default_rng(3)
    frame = people(20, least=10, most=40).with_columns(income=pl.col("income") ** 3)
    wide, epsilon = BoundsSpec(outcome=(1e-50, 1e50), weight=(1.0, 1000.0)), 60.0

    def measured(frame, noise):
        survey = survey_of(frame)
        facts = facts_of(survey)
        plan = plan_measurement(facts, [TABLE], epsilon, scales="standin")
        measure(survey, facts, plan, wide, "log", noise, scales=(Scale(-40 * spread, spread), Scale(-0.1, 0.5)))
        return noise

    before = measured(frame, AsBefore()).seen
    village = (frame["region"] + frame["village"]).to_numpy()
    for _ in range(20):
        rows = generator.choice(np.flatnonzero(village == generator.choice(village)), 1)
        one, other = (measured(with_answers(frame, rows, generator), AsBefore(before)) for _ in range(2))
        for mine, its, use in zip(one.seen, other.seen, one.uses, strict=True):
            assert np.abs(mine - its).sum() <= use.sensitivity, use.name


@pytest.mark.parametrize("transform", ["log", "identity"])
def test_centres_stay_within_what_a_record_adds_whatever_overflows(transform):
    """Sums in clusters are exact only if they do."""
    scaling = Scaling(Scale(10.0, 200.0), Scale(-0.1, 1.0), 8.0)
    means, size = np.array([[40.0, 40.0], [-40.0, -40.0], [5.0, 0.0]]), np.array([10, 20, 30])
    for total in (3.0, 1e200):
        centre = centre_excess(means, size, scaling, transform, total, 1.0)
        assert np.abs(centre).max() <= LARGEST
        alone = replace(scaling, alone=True)
        centre = centre_outcome(means[:, :1], size / 2.0, alone, transform, total, 1.0)
        assert np.abs(centre).max() <= LARGEST
    extreme = np.array([[np.nan], [np.inf], [-1e300]])
    assert np.abs(centre_outcome(extreme, size / 2.0, alone, transform, 3.0, 1.0)).max() <= LARGEST
