"""Clusters with public weights in noisy sums: the one sum of squares, its sensitivity, and standard errors."""

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
from svysynth.core import engine
from svysynth.core.engine import Local
from svysynth.core.errors import SurveyError
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.figures_given_weights import figures_given_weights
from svysynth.mechanisms.noisy_sums.from_public_folder import FromPublic
from svysynth.mechanisms.noisy_sums.implied_tables import CellDraws
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker, FilePlan
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import (
    UNIT,
    between_sensitivity,
    excess_step,
    outcome_square,
    widened,
)
from svysynth.mechanisms.noisy_sums.measuring.cluster_sizes import ClusterSizes
from svysynth.mechanisms.noisy_sums.measuring.measurement import measure
from svysynth.mechanisms.noisy_sums.measuring.planning import plan_measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import facts_of
from svysynth.mechanisms.noisy_sums.measuring.public_weights import KnownWeights
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST, Answers, weighted_numbers
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of
from svysynth.mechanisms.noisy_sums.posterior.outcome_clusters import (
    chance_of_clusters,
    outcome_cluster_statistics,
    outcome_clusters_at,
)
from svysynth.mechanisms.noisy_sums.posterior.squares_given_weights import expected_square
from svysynth.mechanisms.noisy_sums.published import (
    draws_parquet,
    measurement_json,
    read_draws,
    read_measurement,
    read_weights,
    weights_parquet,
)
from svysynth.models.fbs import FBS
from svysynth.publishing.verification import verify_release
from svysynth.survey.on_disk import store_survey
from test_clusters_in_noisy_sums import (
    BOUNDS,
    DOMAIN,
    OF_TABLE,
    SPEC,
    STREAMS,
    TABLE,
    AsBefore,
    Fixed,
    NoNoise,
    of_huber,
    people,
    written,
)

PUBLIC = SPEC.replace("population_total = 50000", "weight_public = true")


def even(frame):
    """All weights are the same, as in a simple random sample of clusters."""
    return frame.with_columns(wt=pl.lit(25.0))


def of_clusters(frame):
    """Every cluster has a weight of its own, which goes with its outcomes, as if drawn in proportion to a size."""
    return frame.with_columns(wt=pl.col("wt").log().mean().over("region", "village").exp())


WEIGHTS = {"varying": lambda frame: frame, "even": even, "of clusters": of_clusters}


def survey_of(frame, **roles):
    own = {"outcome": "income", "weight": "wt", "strata": "region", "public": ["region", "sex"]}
    own |= {"cluster": "village", "transform": "identity", "weight_public": True}
    return svysynth.read_survey(frame, **own | roles)


def measured(survey, epsilon=6.0, noise=None, transform="log", bounds=BOUNDS):
    facts = facts_of(survey)
    plan = plan_measurement(facts, [TABLE], epsilon)
    return measure(survey, facts, plan, bounds, transform, noise or StudyNoise(STREAMS)), facts


# --- the promise ---


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 30_000))
def test_no_outcome_moves_the_square_further_than_the_noise_covers(seed, most_records, limit):
    """A changed outcome moves the sum of one cluster by 2·LARGEST at most, a blanked one by LARGEST."""
    generator = np.random.default_rng(seed)
    size = generator.integers(1, most_records + 1, 3)
    reach = generator.choice([0.0, 0.5, 1.0, 1.5, 20.0]) * limit * size[:, None]
    sums = np.rint(generator.choice([-1.0, 1.0], (3, 1)) * reach * generator.uniform(0.8, 1.2, (3, 1))).astype(int)
    sensitivity = between_sensitivity(limit, weights_public=True)
    for largest, most in ((2 * LARGEST, sensitivity), (LARGEST, sensitivity / 2)):
        moved = sums.copy()
        moved[0] += generator.choice([-1, 1]) * generator.choice([largest, generator.integers(0, largest + 1)])
        assert (
            np.abs(outcome_square(moved, UNIT * size, limit) - outcome_square(sums, UNIT * size, limit)).sum() <= most
        )


@pytest.mark.parametrize("limit", [1, 3, 40])
def test_of_all_small_clusters_no_outcome_moves_the_square_further(limit, monkeypatch):
    """Every sum of a cluster, and every change of one record, with a small bound of a record."""
    largest, sums = 4, np.arange(-120, 121)
    monkeypatch.setattr("svysynth.mechanisms.noisy_sums.measuring.between_clusters.LARGEST", largest)
    sensitivity = between_sensitivity(limit, weights_public=True)
    for records in (1, 2, 7):
        known = [int(outcome_square(np.array([[one]]), np.array([records]) * UNIT, limit)[0]) for one in sums]
        for change in range(1, 2 * largest + 1):
            moved = max(abs(one - other) for one, other in zip(known[change:], known, strict=False))
            assert moved <= sensitivity / (2 if change <= largest else 1)


def test_the_bound_is_reached():
    """By a cluster beyond the limit, however far, where each step counts as much as at the limit."""
    size, limit = np.array([20]), 60_000
    for off in (1, 50):
        sums = np.full((1, 1), off * limit * 20)
        change = outcome_square(sums + 2 * LARGEST, UNIT * size, limit) - outcome_square(sums, UNIT * size, limit)
        assert 0.999 * between_sensitivity(limit, weights_public=True) < change.sum()
        assert change.sum() <= between_sensitivity(limit, weights_public=True)


def with_outcomes(frame, rows, generator):
    """Other outcomes of some records: ordinary, at the bounds, and far beyond them. Weights stay as they are."""
    income = frame["income"].to_numpy().copy()
    income[rows] = generator.choice([1e-9, 1e2, 3e4, 1e8, 1e12]) * np.exp(generator.normal(0, 0.3, len(rows)))
    return frame.with_columns(pl.Series("income", income))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("whole", [False, True])
def test_all_that_is_measured_together_loses_no_more_than_epsilon(weights, whole):
    """Exactly, for one record or a whole cluster of k records with ε/k for each: the sum of |Δ|/scale over all uses."""
    generator = np.random.default_rng(8)
    frame = WEIGHTS[weights](people(20, least=2, most=6))
    village = (frame["region"] + frame["village"]).to_numpy()
    largest = max(np.unique(village, return_counts=True)[1]) if whole else 1
    epsilon, losses = 4.0, []
    for _ in range(40):
        own = np.flatnonzero(village == generator.choice(village))
        rows = own if whole else own[:1]
        noises = Fixed(), Fixed()
        for noise in noises:
            measured(survey_of(with_outcomes(frame, rows, generator)), epsilon / largest, noise)
        one, other = noises
        assert one.uses == other.uses
        pairs = zip(one.seen, other.seen, one.uses, strict=True)
        losses.append(sum(np.abs(mine - its).sum() / use.scale for mine, its, use in pairs))
    assert "squares between clusters" in [use.name for use in one.uses]
    assert max(losses) <= epsilon
    assert max(losses) > 0.4 * epsilon


@pytest.mark.parametrize("spread", [0.5, 200.0, 20_000.0])
@pytest.mark.parametrize("apart", [0.0, 8.0])
def test_scales_and_weights_that_are_far_too_wide_cost_no_more_than_epsilon(spread, apart):
    """Centres are made of both, and of noisy sums. Given the same earlier results, only the record itself counts."""
    generator = np.random.default_rng(3)
    frame = people(20, least=2, most=40)
    frame = frame.with_columns(wt=pl.Series(np.exp(apart * generator.standard_normal(frame.height))))
    wide = BoundsSpec(outcome=(1e-50, 1e50), weight=(1.0, 1000.0))

    def seen(frame, noise):
        survey = survey_of(frame)
        facts = facts_of(survey)
        plan = plan_measurement(facts, [TABLE], 60.0, scales="standin")
        measure(survey, facts, plan, wide, "log", noise, scales=(Scale(-40 * spread, spread), Scale(-0.1, 0.5)))
        return noise

    before = seen(frame, AsBefore()).seen
    for row in generator.choice(frame.height, 10):
        one, other = (seen(with_outcomes(frame, np.array([row]), generator), AsBefore(before)) for _ in range(2))
        for mine, its, use in zip(one.seen, other.seen, one.uses, strict=True):
            assert np.abs(mine - its).sum() <= use.sensitivity, use.name


def test_nothing_but_the_outcome_is_measured_between_clusters(tmp_path, monkeypatch):
    """One sum, by Python's integers, cluster by cluster; the same whatever the parts and the disk."""
    frame = people()
    survey = survey_of(frame)
    noise = NoNoise()
    found, _ = measured(survey, noise=noise)
    between = found.between
    total = frame["wt"].sum()
    answers = Answers(survey.outcome_values, survey.weights, BOUNDS, "log", len(frame) / total, True)
    t, v = answers(slice(0, len(frame)))
    whole = weighted_numbers(t, v, widened(found.scaling), "log", both=False)[0].astype(int)
    u = frame["wt"].to_numpy() * len(frame) / total
    centre = between.centre[np.asarray(survey.present_cells(survey.public)[1]), 0]
    off = whole - np.rint(u * centre).astype(int)
    names, expected = (frame["region"] + frame["village"]).to_list(), 0
    for name in sorted(set(names)):
        own = [value for value, one in zip(off.tolist(), names, strict=True) if one == name]
        size = sum(max(round(UNIT * value), 1) for value, one in zip(u.tolist(), names, strict=True) if one == name)
        expected += of_huber(sum(own), between.limit * size // UNIT) * UNIT // size
    assert between.squares.tolist() == [expected]
    use = next(use for use in noise.uses if use.name == "squares between clusters")
    assert use.sensitivity == between_sensitivity(between.limit, weights_public=True) == 4 * between.limit * LARGEST + 2
    assert sum(use.epsilon for use in noise.uses) == found.plan.epsilon == Fraction(6)
    monkeypatch.setattr(engine, "BLOCK", 128)
    text = published(survey)
    for other in (replace(survey, engine=Local(2)), store_survey(survey, tmp_path, Local(2))):
        assert published(other) == text


def published(survey):
    measurement, facts = measured(survey)
    return measurement_json(measurement, facts), weights_parquet(facts.weights)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_numbers_of_clusters_do_not_depend_on_the_file(weights):
    """Rows in another order and clusters with other names give the same public facts: weights tell clusters apart."""
    frame = WEIGHTS[weights](people(24, least=2, most=3))
    generator = np.random.default_rng(5)
    names = frame["village"].unique().sort()
    other = frame.with_columns(pl.col("village").replace_strict(names, generator.permutation(names.to_list())))
    found = [facts_of(survey_of(one)) for one in (frame, other.sample(fraction=1.0, shuffle=True, seed=3))]
    for name in ("cell", "stratum", "cluster", "count"):
        np.testing.assert_array_equal(*(getattr(facts, name) for facts in found))
    for name in ("group", "value", "count"):
        np.testing.assert_array_equal(*(getattr(facts.weights, name) for facts in found))


# --- the posterior's numbers, by simulation ---


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("transform", ["log", "identity"])
def test_what_was_measured_has_its_expectation(weights, transform):
    """Records are drawn from the model, and the sums of squares between clusters are computed from them."""
    survey = survey_of(WEIGHTS[weights](people()))
    bounds = BOUNDS if transform == "log" else BoundsSpec(outcome=(-1e6, 1e6), weight=(1.0, 1000.0))
    measurement, facts = measured(survey, transform=transform, bounds=bounds)
    # there is no limit, and centres are not those of the model
    between = replace(measurement.between, limit=10**9)
    measurement = replace(measurement, between=between)
    statistics = outcome_cluster_statistics(measurement, facts, np.eye(len(facts.codes)))
    known, listed = KnownWeights.of(facts.weights, facts, measurement.step), facts.weights
    cell, cluster = (np.repeat(one[listed.group], listed.count) for one in (facts.cell, facts.cluster))
    score, weight = np.repeat(known.score, listed.count), np.repeat(listed.value, listed.count)
    u = weight * len(weight) / weight.sum()
    off = score - np.bincount(cell, score)[cell] / np.bincount(cell)[cell]
    size, generator = np.bincount(cluster), np.random.default_rng(4)
    t, sigma, slope, width = 0.3, 0.8, 0.4, 0.5
    centre = between.centre[:, 0] * excess_step(measurement.scaling, transform)
    squares, expected, along, chance = [], [], [], []
    for number in range(2000):
        effect, own = np.sqrt(t) * generator.standard_normal(len(size)), sigma * generator.standard_normal(len(cell))
        drawn = effect[cluster] + own
        drawn -= np.bincount(cell, drawn)[cell] / np.bincount(cell)[cell]
        along.append(drawn @ off + slope * known.scatter)
        chance.append(np.bincount(cell, weight * drawn) / np.bincount(cell, weight))
        y = drawn + slope * off
        if transform == "log":
            y = np.expm1(width * y - width**2 * (t + sigma**2) / 2)
        squares.append((np.bincount(cluster, u * (y - centre[cell])) ** 2 / np.bincount(cluster, u)).sum())
        if number < 200:
            excess = np.bincount(cell, u * y) / np.bincount(cell, u)
            line = along[-1] / known.scatter if known.scatter else 0.0
            values = (jnp.array(one) for one in (1.0, t, sigma**2, line, excess, width))
            expected.append(float(expected_square(*values, statistics.squares, transform)))
    assert np.mean(expected) == pytest.approx(np.mean(squares), rel=0.05)
    clusters = outcome_clusters_at(jnp.zeros(2), jnp.array(t), jnp.array(sigma), statistics)
    of_line = float(clusters.line) + sigma**2 * known.scatter
    assert np.var(along) == pytest.approx(of_line, rel=0.1, abs=1e-12)
    # without a logarithm, the variance by chance is that of records and what clusters add to it
    squared = np.bincount(cell, weight**2) / np.bincount(cell, weight) ** 2 - 1 / np.bincount(cell)
    of_chance = (sigma**2 + t) * squared + np.asarray(chance_of_clusters(jnp.array(t), None, statistics))
    np.testing.assert_allclose(np.var(chance, axis=0), of_chance, rtol=0.15, atol=1e-12)


def test_the_numbers_of_clusters_and_weights_are_those_of_dense_matrices():
    """The quadratic forms of the module's first page, from one row for each record."""
    measurement, facts = measured(survey_of(people(24, least=2, most=6)))
    statistics = outcome_cluster_statistics(measurement, facts, np.eye(len(facts.codes)))
    known, listed = KnownWeights.of(facts.weights, facts, measurement.step), facts.weights
    cell, cluster = (
        np.eye(one.max() + 1)[np.repeat(one[listed.group], listed.count)] for one in (facts.cell, facts.cluster)
    )
    weight, score = np.repeat(listed.value, listed.count), np.repeat(known.score, listed.count)
    u = weight * len(weight) / weight.sum()
    n, big_u = cluster.T @ cell, cluster.T @ (u[:, None] * cell)
    middle = (cell.T @ (u * score)) / (cell.T @ u)
    tilt = cluster.T @ ((u * (score - cell @ middle))[:, None] * cell)
    per, size = np.diag(1 / big_u.sum(axis=1)), n.sum(axis=0)
    line = cluster.T @ (score - cell @ (cell.T @ score / size))
    slope, alike = 0.3, np.zeros((len(size), len(size)))
    bent = big_u + slope * tilt
    for j in range(len(n)):  # what an effect of cluster k adds to the sum of cluster j, cell by cell
        moved = np.array([(k == j) * bent[j] - bent[j] * n[k] / size for k in range(len(n))])
        alike += moved.T @ moved / big_u[j].sum()
    sizes = ClusterSizes.of(facts)
    left = 1 - (line**2).sum() / known.scatter / sizes.of_clusters
    found = [
        sum(slope**power * np.asarray(one) for power, one in enumerate(parts)) for parts in statistics.squares[6:8]
    ]
    np.testing.assert_allclose(found[0], left * alike, atol=1e-9)
    squared = cluster.T @ (((u * (1 + slope * (score - cell @ middle))) ** 2)[:, None] * cell)
    left = 1 - (line**2 / n.sum(axis=1)).sum() / known.scatter / sizes.of_records
    np.testing.assert_allclose(found[1], left * np.diag(per).dot(squared - bent**2 / size))
    forms = big_u.T @ per @ big_u, big_u.T @ per @ tilt, tilt.T @ per @ tilt
    for found, form in zip(statistics.squares[-3:], forms, strict=True):
        np.testing.assert_allclose(found, form, atol=1e-9)
    np.testing.assert_allclose(statistics.squares.share, big_u.sum(axis=0))


# --- tables and files of given draws ---


def maker(frame, transform="log", draws=4, between=0.06):
    """Makes files of draws that no sampler made."""
    survey = survey_of(frame, domains=[OF_TABLE])
    bounds = BOUNDS if transform == "log" else BoundsSpec(outcome=(-1e6, 1e6), weight=(1.0, 1000.0))
    measurement, facts = measured(survey, transform=transform, bounds=bounds)
    generator = np.random.default_rng(1)
    level, width = (10.5, 1.0) if transform == "log" else (30_000.0, 1e4)
    nothing, cells = np.empty((draws, 0)), len(facts.codes)
    means = np.tile(level + 0.2 * width * generator.standard_normal(cells), (draws, 1))
    across = -0.08 * width * KnownWeights.of(facts.weights, facts, measurement.step).scatter / len(facts)
    own = np.full(draws, 0.3 * width**2), nothing, np.full(draws, across)
    drawn = CellDraws(means, nothing, np.zeros((draws, cells)), nothing, *own)
    drawn = replace(drawn, between=np.full((draws, 1), between * width**2))
    return FileMaker(drawn, measurement, facts, 77, "income", "region", cluster="village")


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("transform", ["log", "identity"])
def test_standard_errors_of_files_are_on_average_those_of_tables(transform, weights):
    """A file's own clustered variance, over residuals, and the closed form. Without clusters they would be far off."""
    make = maker(WEIGHTS[weights](people(150, least=5, most=15)), transform)
    tables = [TABLE, DOMAIN]
    table = FromPublic(make, FilePlan(77, ()), svysynth.EstimationSpec()).tabulate_all(tables)
    found, files = [], [replace(make, seed=seed).survey(1) for seed in range(40)]
    for one in files:
        found.append(Synthetic((one,), "imputed").tabulate_all(tables)["se"].to_numpy() ** 2)
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    expected = table["se"].to_numpy() ** 2
    assert table["df"].to_list() == 48 * [147.0] + 9 * [98.0]
    exact = np.array(table["statistic"].is_in(["count", "proportion"]))
    np.testing.assert_allclose(mean[exact], expected[exact], rtol=1e-5, atol=1e-6 * np.nanmax(expected))
    known = ~exact & (expected > 0)
    # residuals are centred in cells: what clusters share with the mean of their cell is lost, about 1 in 50 here
    assert (np.abs(mean - expected)[known] <= 4 * error[known] + 0.05 * expected[known]).all()
    drawn, facts = replace(make.drawn, between=None), make.facts.without_clusters()[0]
    alone = replace(make, facts=facts, drawn=drawn, cluster=None)
    ignoring = FromPublic(alone, FilePlan(77, ()), svysynth.EstimationSpec()).tabulate_all(tables)["se"].to_numpy() ** 2
    means = np.array(table["statistic"] == "mean")
    assert (expected[means] / ignoring[means]).min() > 1.3
    estimates = Synthetic((files[0],), "imputed").tabulate_all(tables)["estimate"]
    np.testing.assert_allclose(estimates, table["estimate"], rtol=2e-7)


def test_the_variance_is_that_of_dense_matrices():
    """For one domain: ζ of each cluster, variances of records and covariances of pairs, all of them one by one."""
    make = maker(people(12, least=3, most=6))
    groups = figures_given_weights(make.drawn, make.facts, make.measurement.step, "log", BOUNDS.outcome)
    known, facts = groups.known, make.facts
    domain = (np.arange(len(groups.size)) % 2).astype(int)
    a, b = np.full((4, 2), -2.0), np.full((4, 2), 3e-4)
    found = known(domain, a, b)
    own, mean = domain[known.place], known.means(slice(0, 1))[0]
    (variance, *_), (between, *_) = known.spreads
    for one in (0, 1):
        inside = own == one
        z = np.where(inside, known.weight * (a[0, one] + b[0, one] * mean), 0.0)
        zeta = np.bincount(facts.cluster, z)
        stratum = np.array([facts.stratum[facts.cluster == number][0] for number in range(len(zeta))])
        expected = sum(len(part) * np.var(part, ddof=1) for part in (zeta[stratum == h] for h in range(3)))
        f = np.where(inside, known.weight * mean, 0.0)
        squared = np.where(inside, known.squared * mean**2, 0.0)
        pairs = (np.bincount(facts.cluster, f) ** 2).sum() - squared.sum()
        expected += b[0, one] ** 2 * (np.expm1(variance) * squared.sum() + np.expm1(between) * pairs)
        np.testing.assert_allclose(found[:, one], expected, rtol=1e-9)


def test_files_carry_the_weights_and_clusters_of_the_survey():
    frame = people()
    made = maker(frame, between=0.12).survey(1).frame
    rows = []
    for one, weight in ((frame, "wt"), (made, "weight")):
        parts = one.group_by("region", "village").agg(pl.col(weight).round_sig_figs(8).sort())
        rows.append(sorted(parts[weight].to_list()))
    assert rows[0] == rows[1]
    means = made.with_columns(t=pl.col("income").log()).group_by("region", "sex", "village").agg(pl.mean("t"))
    spread = means.with_columns(pl.col("t") - pl.mean("t").over("region", "sex"))["t"].var()
    assert 0.09 < spread < 0.25


def test_the_measurement_and_the_draws_come_back_from_what_is_published():
    make = maker(people())
    text = measurement_json(make.measurement, make.facts)
    measurement, facts = read_measurement(text, read_weights(weights_parquet(make.facts.weights)))
    assert measurement_json(measurement, facts) == text
    assert measurement.plan == make.measurement.plan
    assert measurement.between.scale == make.measurement.between.scale
    content = draws_parquet(make.drawn, make.facts)
    assert "cluster_weight_variance" not in pl.read_parquet(content).columns
    np.testing.assert_array_equal(read_draws(content, len(facts.codes)).between, make.drawn.between)


# --- posterior and tables ---


def test_counts_are_the_direct_ones_and_means_are_close_to_them():
    """With little noise, and with weights that are constant in clusters and go with the outcomes."""
    frame = of_clusters(people())
    survey = survey_of(frame)
    measurement, facts = measured(survey, 60.0)
    fitted = fit_measurement(measurement, facts, FBS(), None, 400, STREAMS)
    assert fitted.verdict.passed
    found = tables_of(fitted.drawn, measurement, facts, [TABLE], svysynth.EstimationSpec())
    columns = {"by": ["region", "sex"], "statistics": ["count", "mean", "total", "proportion"]}
    direct = svysynth.tabulate(survey, **columns)
    exact = pl.col("statistic").is_in(["count", "proportion"])
    for column in ("estimate", "se", "lower", "upper"):
        one, two = (table.filter(exact)[column].to_numpy() for table in (found, direct))
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)
    assert found["df"].to_list() == direct["df"].to_list()
    mean = pl.col("statistic") == "mean"
    one, two = found.filter(mean), direct.filter(mean)
    assert (((one["estimate"] - two["estimate"]) / two["se"]).abs() < 1.0).all()
    ratio = (one["se"] / two["se"]).to_numpy()
    assert ratio.min() > 0.75
    assert ratio.max() < 1.6
    ignoring = svysynth.tabulate(survey_of(frame, cluster=None), **columns).filter(mean)
    assert (one["se"] / ignoring["se"]).median() > 1.3


# --- a release ---


def test_too_few_clusters_and_strata_of_one_are_refused(tmp_path):
    path = written(tmp_path, PUBLIC, people(6, most=60, least=50))
    with pytest.raises(SurveyError, match="too few clusters"):
        svysynth.release(path, tmp_path / "out")
    frame = people().filter((pl.col("region") != "r1") | (pl.col("village") == "v3"))
    frame.write_csv(tmp_path / "people.csv")
    path.write_text(PUBLIC + '\n[estimation]\nlonely = "certainty"\n')
    with pytest.raises(SurveyError, match="strata with one cluster"):
        svysynth.release(path, tmp_path / "out")
    assert not (tmp_path / "out/public").exists()


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A release that was paid for and protects whole clusters, and its public folder alone, elsewhere."""
    house = tmp_path_factory.mktemp("house")
    text = PUBLIC.replace("epsilon = 20.0", 'epsilon = 600.0\nunit = "cluster"')
    with pytest.MonkeyPatch.context() as patch:
        repeat(patch)
        svysynth.release(written(house, text), house / "out")
    public = tmp_path_factory.mktemp("user") / "public"
    shutil.copytree(house / "out/public", public)
    return SimpleNamespace(house=house, out=house / "out", public=public)


def test_a_release_is_verified_and_gives_more(released):
    checked = verify_release(released.out, released.house / "s.toml").checked
    assert "10 synthetic files, made again from the draws and the seed" in checked
    tables = pl.read_csv(released.public / "tables.csv", schema_overrides={"df": pl.Float64})
    assert set(tables["df"]) == {57.0}
    found = svysynth.more(released.public).synthetic(20).tabulate(["region", "sex"], ["mean"])
    both = found.join(tables, on=["statistic", "region", "sex"], suffix="_table")
    assert both.height == 12
    assert (both["se"] / both["se_table"]).is_between(0.75, 1.35).all()
    direct = svysynth.tabulate(survey_of(people()), by=["region", "sex"], statistics=["mean"])
    mine = tables.filter(statistic="mean")
    assert (((mine["estimate"] - direct["estimate"]) / direct["se"]).abs() < 2.5).all()
    assert 0.8 < (mine["se"] / direct["se"]).median() < 1.5


def test_the_promise_is_about_the_outcomes_of_a_cluster(released):
    manifest = json.loads((released.public / "manifest.json").read_text())
    guarantee = manifest["guarantee"]
    assert guarantee["unit"] == "cluster"
    assert guarantee["confidential"] == ["income"]
    assert "wt" in guarantee["public"]
    content = json.loads((released.public / "measurement.json").read_text())
    assert len(content["between_clusters"]["values"]) == 1
    parts = [content[part] for part in ("squares", "weighted_sums", "between_clusters", "histograms")]
    spent = sum(Fraction(part["epsilon"]) for part in [*parts, *content["sums"]])
    assert 0.5 * 600 < spent * people().group_by("region", "village").len()["len"].max() <= 600
    weights = pl.read_parquet(released.public / "weights.parquet")
    assert sorted(np.repeat(weights["weight"], weights["count"]).tolist()) == sorted(people()["wt"].to_list())
    real = set(people()["income"].round_sig_figs(8).to_list())
    file = pl.read_parquet(released.public / "microdata-1.parquet")
    assert len(real & set(file["income"].to_list())) <= 2


def test_r_gives_the_standard_errors_of_a_file_from_its_clusters(released, tmp_path):
    skip_without_r()
    theirs = r_of_clusters(released.public, tmp_path)
    file = svysynth.read_synthetic(
        [released.public / "microdata-1.csv"],
        outcome="income",
        public=["region", "sex"],
        strata="region",
        cluster="village",
        weight_public=True,
        rules="imputed",
    )
    mine = file.tabulate(["region", "sex"], ["mean", "count"])
    both = mine.filter(statistic="mean").join(theirs, on=["region", "sex"], suffix="_r")
    assert both.height == 6
    np.testing.assert_allclose(both["se"], both["se_r"], rtol=1e-9)
    count = mine.filter(statistic="count", region="All", sex="m")
    assert count["se"].item() == pytest.approx(theirs["total"][0], rel=1e-9)
