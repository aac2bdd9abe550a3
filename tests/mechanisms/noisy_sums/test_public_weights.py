"""Noisy sums with weights that are declared public: exact counts, and a promise about the outcome alone."""

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.cli.main import main
from svysynth.core import engine
from svysynth.core.engine import HERE, LOCAL, Dask, Local
from svysynth.core.errors import SurveyError
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums import residuals
from svysynth.mechanisms.noisy_sums.from_public_folder import FromPublic
from svysynth.mechanisms.noisy_sums.imputed_files import FileMaker
from svysynth.mechanisms.noisy_sums.measuring import whole_numbers as counting
from svysynth.mechanisms.noisy_sums.measuring.measurement import measure, squares_sensitivity
from svysynth.mechanisms.noisy_sums.measuring.planning import plan_measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import facts_of
from svysynth.mechanisms.noisy_sums.measuring.public_weights import KnownWeights, Scores, largest_score
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale, Scaling
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of
from svysynth.mechanisms.noisy_sums.published import (
    draws_parquet,
    measurement_json,
    read_draws,
    read_measurement,
    read_weights,
    weights_parquet,
)
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.privacy.ledger import open_budget
from svysynth.privacy.manifest import Manifest
from svysynth.publishing.verification import verify_release
from svysynth.survey import large_files as large
from svysynth.survey.on_disk import store_survey
from test_noisy_sums import BOUNDS, STREAMS, TABLES, Fixed, hostile_answers, people, survey_of

AREAS = [f"a{number % 4}" for number in range(1200)]
DRAWN = EstimationSpec(lonely="adjust")


def public_survey(frame=None, **roles):
    """Weights that vary within cells and strata, which are not those of the public columns."""
    frame = people(area=AREAS) if frame is None else frame
    return survey_of(frame, **{"total": None, "weight_public": True, "strata": "area"} | roles)


def fixed_weights():
    """As in a stratified simple random sample: every record of a region has the same weight."""
    return people(area=AREAS).with_columns(wt=pl.col("wt").mean().over("region"))


def measured(survey, epsilon=4.0, noise=None, transform="log"):
    facts = facts_of(survey)
    plan = plan_measurement(facts, TABLES, epsilon)
    return measure(survey, facts, plan, BOUNDS, transform, noise or StudyNoise(STREAMS)), facts


# --- the promise ---


def test_no_outcome_moves_a_sum_further_than_its_noise_covers_whatever_the_weights():
    """10,000 pairs that differ in one outcome; weights are hostile too, and the same in both."""
    generator = np.random.default_rng(6)
    scaling = Scaling(Scale(11.0, 0.6), Scale(0.0, 0.5), 3.5, True)
    outcome, weight = hostile_answers(generator, 10_000)
    other, _ = hostile_answers(generator, 10_000)
    scores = Scores(np.zeros(1), 0.4, scaling.reach / LARGEST)
    vectors = []
    for values in (outcome, other):
        answers = counting.Answers(values, weight, BOUNDS, "log", 0.02, True)
        t, v = answers(slice(0, 10_000))
        first, score = counting.outcome_numbers(t, scaling), scores(v, np.zeros(10_000, int))
        weighted = counting.weighted_numbers(t, v, scaling, "log", both=False)[0]
        vectors.append((first, np.stack([first**2, first * score]), weighted))
    (first, squares, weighted), (first_other, squares_other, weighted_other) = vectors
    most = squares_sensitivity(2, scaling.reach)
    assert np.abs(first - first_other).max() == 2 * LARGEST  # reached, and not passed
    assert np.abs(weighted - weighted_other).max() <= 2 * LARGEST
    moved = np.abs(squares - squares_other).sum(axis=0)
    assert 0.5 * most < moved.max() <= most
    assert np.abs(squares[0] - squares_other[0]).max() <= squares_sensitivity(1, scaling.reach) == LARGEST**2
    # blanked out a record counts 0, and half of the largest square: half of each
    blanked = np.abs(squares - np.array([[LARGEST**2 // 2], [0]])).sum(axis=0)
    assert blanked.max() <= most / 2
    assert np.abs(first).max() <= LARGEST
    assert np.abs(weighted).max() <= LARGEST


@pytest.mark.parametrize("frame", [people(area=AREAS), fixed_weights()], ids=["varying", "constant in cells"])
@pytest.mark.parametrize("outcome", [9e6, 1e-9, 1e12, 3e4])
def test_between_whole_files_every_use_moves_within_its_sensitivity(frame, outcome):
    """One outcome is changed, and nothing else; what is lost in all is never more than ε."""
    worlds = []
    for value in (2e3, outcome):
        changed = pl.when(pl.int_range(pl.len()) == 5).then(value).otherwise("income")
        noise = Fixed()
        measurement, _ = measured(public_survey(frame.with_columns(income=changed)), 2.0, noise)
        worlds.append(noise)
    assert worlds[0].uses == worlds[1].uses
    moved = [int(np.abs(one - two).sum()) for one, two in zip(worlds[0].seen, worlds[1].seen, strict=True)]
    assert all(far <= use.sensitivity for far, use in zip(moved, worlds[0].uses, strict=True))
    assert sum(far / use.scale for far, use in zip(moved, worlds[0].uses, strict=True)) <= 2.0
    assert sum(use.epsilon for use in worlds[0].uses) == measurement.plan.epsilon == Fraction(2)


@pytest.mark.parametrize(("frame", "kinds"), [(people(area=AREAS), 2), (fixed_weights(), 1)])
def test_nothing_is_measured_of_the_weights(frame, kinds):
    """One histogram, sums of T and Y alone, and squares with no V²."""
    noise = Fixed()
    found, _ = measured(public_survey(frame), noise=noise)
    assert not any("weight" in use.name and "weighted" not in use.name for use in noise.uses)
    assert len([use for use in noise.uses if "histogram" in use.name]) == 1
    assert len(found.squares) == kinds
    assert len(found.weight_bands) == 0
    assert {level.sums.shape[1] for level in (*found.levels, found.weighted)} == {1}
    squares = next(use for use in noise.uses if use.name == "squares")
    score = largest_score(found.step)
    assert squares.sensitivity == LARGEST**2 + (kinds - 1) * 2 * LARGEST * score


def test_sums_are_those_of_the_records():
    survey = public_survey()
    noise = Fixed()
    found, facts = measured(survey, noise=noise)
    t = (np.log(np.clip(survey.outcome_values, *BOUNDS.outcome)) - found.scaling.outcome.centre) / (
        found.scaling.outcome.width * found.step
    )
    whole = np.rint(np.clip(t, -LARGEST, LARGEST)).astype(int)
    v = np.log(survey.weights)
    cell = np.asarray(survey.present_cells(survey.public)[1])
    off = v - (np.bincount(cell, v) / np.bincount(cell))[cell]
    spread = np.sqrt((off**2).sum() / (len(v) - len(facts.codes)))
    score = np.rint(np.clip(off / spread / found.step, -largest_score(found.step), largest_score(found.step)))
    assert found.squares.tolist() == [int((whole * whole).sum()), int((whole * score).sum())]
    assert found.levels[0].sums[:, 0].sum() == whole.sum()
    known = KnownWeights.of(facts.weights, facts, found.step)
    centred = score - (np.bincount(cell, score) / np.bincount(cell))[cell]
    assert known.scatter == pytest.approx(found.step**2 * (centred**2).sum(), rel=1e-9)


def test_whole_records_are_not_protected_with_public_weights(tmp_path):
    spec = written(tmp_path, ('guarantee = "global"', 'guarantee = "global"\nprotect = "record"'))
    with pytest.raises(SurveyError, match="would reveal who takes part"):
        svysynth.release(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- counts ---


@pytest.mark.parametrize(
    ("frame", "strata"),
    [(people(area=AREAS), "area"), (people(area=AREAS), None), (fixed_weights(), "region")],
    ids=["varying", "no strata", "constant in strata"],
)
def test_counts_and_proportions_are_those_of_the_direct_tables(frame, strata):
    survey = public_survey(frame, strata=strata)
    measurement, facts = measured(survey)
    drawn = fit_measurement(measurement, facts, FBS(), None, 400, STREAMS, rounds=4).drawn
    found = tables_of(drawn, measurement, facts, TABLES, EstimationSpec())
    direct = svysynth.tabulate(survey, by=["region", "sex"], statistics=["count", "mean", "total", "proportion"])
    exact = pl.col("statistic").is_in(["count", "proportion"])
    for column in ("estimate", "se", "lower", "upper"):
        one, two = (table.filter(exact)[column].to_numpy() for table in (found, direct))
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
    assert found.filter(exact)["df"].to_list() == direct.filter(exact)["df"].to_list()
    assert found["n"].equals(direct["n"])
    off = ((found["estimate"] - direct["estimate"]) / found["se"]).to_numpy()[(~exact_rows(found)).to_numpy()]
    assert 0 < np.abs(off).max() < 4


def exact_rows(table):
    return table["statistic"].is_in(["count", "proportion"])


@pytest.mark.parametrize(("transform", "prior"), [("log", FBS()), ("identity", FBP())], ids=["fbs", "fbp"])
def test_with_little_noise_means_go_with_the_weights(transform, prior):
    """Outcomes go with the weights: a plain mean of the records is more than 3 standard errors off the weighted one."""
    survey = public_survey()
    measurement, facts = measured(survey, 2000.0, transform=transform)
    fitted = fit_measurement(measurement, facts, prior, None, 400, STREAMS, rounds=4)
    found = tables_of(fitted.drawn, measurement, facts, TABLES, EstimationSpec())
    direct = svysynth.tabulate(survey, by=["region", "sex"], statistics=["count", "mean", "total", "proportion"])
    whole = (pl.col("region") == "All") & (pl.col("sex") == "All") & (pl.col("statistic") == "mean")
    one, two = found.filter(whole), direct.filter(whole)
    error = two["se"].item()
    assert abs(one["estimate"].item() - two["estimate"].item()) < error
    assert one["se"].item() > 0.9 * error
    assert abs(survey.outcome_values.mean() - two["estimate"].item()) > 3 * error


def test_constants_need_no_spread_of_weights(tmp_path):
    """`scales = "standin"` with a mean and a spread of the outcome alone; nothing is measured but sums."""
    standin = "\n[standin]\nmean = 11.0\nspread = 0.7\n"
    spec = written(tmp_path, ('guarantee = "global"', 'guarantee = "global"\nscales = "standin"'), end=standin)
    done = svysynth.release(spec, tmp_path / "out")
    content = json.loads((tmp_path / "out/public/measurement.json").read_text())
    assert content["histograms"] is None
    assert content["outcome_scale"] == {"centre": 11.0, "width": 0.7}
    assert verify_release(tmp_path / "out", spec).checked
    assert done is not None


# --- parts, disk and what is published ---


def test_a_measurement_does_not_depend_on_blocks_parts_and_disk(tmp_path, monkeypatch):
    survey = public_survey()
    expected = published(survey)
    monkeypatch.setattr(engine, "BLOCK", 64)
    workers = Local(threads=2, parts=3)
    assert published(replace(survey, engine=workers)) == expected
    stored = store_survey(survey, tmp_path, workers)
    assert stored.weight_public
    assert published(stored) == expected


def published(survey):
    measurement, facts = measured(survey)
    return measurement_json(measurement, facts), weights_parquet(facts.weights)


def test_measurement_weights_and_draws_come_back_from_what_is_published():
    measurement, facts = measured(public_survey())
    drawn = fit_measurement(measurement, facts, FBS(), None, 400, STREAMS, rounds=4).drawn
    text = measurement_json(measurement, facts)
    again, public = read_measurement(text, read_weights(weights_parquet(facts.weights)))
    assert measurement_json(again, public) == text
    assert again.squares_scale == measurement.squares_scale
    content = draws_parquet(drawn, facts)
    assert not {"weight_mean", "weight_misfit", "weight_variance"} & set(pl.read_parquet(io.BytesIO(content)).columns)
    one = tables_of(drawn, measurement, facts, TABLES, DRAWN)
    assert one.equals(tables_of(read_draws(content, len(public.codes)), again, public, TABLES, DRAWN))
    with pytest.raises(ValueError, match="not for these weights"):
        read_measurement(text)


# --- files ---


def maker(frame=None, draws=400, **roles):
    measurement, facts = measured(public_survey(frame, **roles))
    drawn = fit_measurement(measurement, facts, FBS(), None, draws, STREAMS, rounds=4).drawn
    return FileMaker(drawn, measurement, facts, 77, "income", roles.get("strata", "area"))


@pytest.mark.parametrize("frame", [people(area=AREAS), fixed_weights()], ids=["varying", "constant in cells"])
def test_files_have_the_weights_of_the_survey_and_the_means_of_their_draw(frame):
    make = maker(frame)
    table = TABLES[0]
    for draw in (3, 11):
        made = make.survey(draw)
        real = frame.select("region", "sex", "area", weight=pl.col("wt").round_sig_figs(8))
        found = made.frame.select("region", "sex", pl.format("a{}", "area").alias("area"), "weight")
        columns = ["region", "sex", "area", "weight"]
        found = found.with_columns(pl.col("region", "sex").cast(pl.String)).sort(columns)
        assert found.equals(real.sort(columns))
        tables = Synthetic((made,), "imputed").tabulate_all([table])
        one = replace(make, drawn=make.drawn.only(np.array([draw - 1, draw - 1])))
        of_draw = tables_of(one.drawn, make.measurement, make.facts, [table], EstimationSpec())
        # outcome and weight have eight digits
        np.testing.assert_allclose(tables["estimate"].to_numpy(), of_draw["estimate"].to_numpy(), rtol=1.1e-7)
        counts = exact_rows(tables).to_numpy()
        errors = [one["se"].to_numpy()[counts] for one in (tables, of_draw)]
        np.testing.assert_allclose(*errors, rtol=1e-6, atol=1e-7)


def test_residuals_go_with_the_scores_as_the_draw_says():
    make = maker()
    known = KnownWeights.of(make.facts.weights, make.facts, make.measurement.step)
    cell = np.repeat(make.facts.cell, make.facts.count)
    score = np.repeat(known.score, make.facts.weights.count)
    freedom = len(cell) - len(make.facts.codes)
    for draw in (1, 2):
        columns = np.stack([np.log(make.survey(draw).outcome_values), score])
        off = columns - np.stack([np.bincount(cell, one) / np.bincount(cell) for one in columns])[:, cell]
        found = off @ off.T / freedom
        assert found[0, 0] == pytest.approx(make.drawn.outcome_variance[draw - 1], rel=1e-6)
        assert found[0, 1] == pytest.approx(make.drawn.covariance[draw - 1], rel=1e-6)


def test_a_file_does_not_depend_on_parts_threads_and_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "BLOCK", 64)
    monkeypatch.setattr(residuals, "BLOCK", 64)
    make = maker()
    expected = make.survey(4).frame
    parted = replace(make, engine=Local(threads=2, parts=3))
    assert parted.survey(4).frame.equals(expected)
    stored = replace(parted, scratch=tmp_path).survey(4)
    assert stored.rows(0, len(stored)).frame.equals(expected)


# --- a release ---

SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
weight_public = true
strata = "area"
public = ["region", "sex"]

[privacy]
mechanism = "fbs"
guarantee = "global"
epsilon = 12.0
draws = 400
budget = "people"
bounds = { outcome = [1000.0, 10000000.0], weight = [1.0, 1000.0] }

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean", "total", "proportion"]
"""


def written(folder, *changes, end=""):
    """A spec, its data and its ledger in a folder."""
    people(area=AREAS).write_csv(folder / "people.csv")
    text = SPEC
    for one, other in changes:
        assert one in text
        text = text.replace(one, other)
    (folder / "s.toml").write_text(text + end)
    open_budget(folder / "ledger.sqlite", "people", 100, "differential privacy")
    return folder / "s.toml"


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    house = tmp_path_factory.mktemp("house")
    spec = written(house)
    svysynth.release(spec, house / "out")
    public = tmp_path_factory.mktemp("user") / "public"
    shutil.copytree(house / "out/public", public)
    return SimpleNamespace(spec=spec, out=house / "out", public=public)


def test_a_release_is_verified_and_its_promise_is_about_the_outcome(released):
    checked = verify_release(released.out, released.spec).checked
    assert "10 synthetic files, made again from the draws and the seed" in checked
    manifest = Manifest.model_validate_json((released.public / "manifest.json").read_text())
    assert manifest.guarantee.confidential == ("income",)
    assert "wt" in manifest.guarantee.public
    assert (manifest.guarantee.epsilon_changed, manifest.guarantee.epsilon_blanked) == (12.0, 6.0)
    direct = svysynth.tabulate(public_survey(), by=["region", "sex"], statistics=["count", "proportion"])
    tables = pl.read_csv(released.public / "tables.csv").filter(pl.col("statistic").is_in(["count", "proportion"]))
    for column in ("estimate", "se"):
        np.testing.assert_allclose(tables[column].to_numpy(), direct[column].to_numpy(), rtol=1e-9, atol=1e-12)


def test_the_public_folder_has_the_weights_and_no_outcome(released):
    frame = people(area=AREAS)
    weights = pl.read_parquet(released.public / "weights.parquet")
    assert sorted(np.repeat(weights["weight"], weights["count"]).tolist()) == sorted(frame["wt"].to_list())
    real = set(frame["income"].round_sig_figs(8).to_list())
    for number in (1, 10):
        file = pl.read_parquet(released.public / f"microdata-{number}.parquet")
        assert file.columns == ["id", "region", "sex", "area", "income", "weight"]
        assert len(real & set(file["income"].to_list())) <= 2  # one is met by chance in a few of a hundred files


def test_more_files_and_tables_are_made_from_the_public_folder_alone(released, tmp_path):
    more = svysynth.more(released.public)
    first = more.synthetic(1).surveys[0]
    own = pl.read_parquet(released.public / "microdata-1.parquet")
    assert first.frame["weight"].equals(own["weight"])
    assert not first.frame["income"].equals(own["income"])
    table = more.tabulate(["sex"], ["count"])
    direct = svysynth.tabulate(public_survey(), by=["sex"], statistics=["count"])
    np.testing.assert_allclose(table["estimate"].to_numpy(), direct["estimate"].to_numpy(), rtol=1e-9)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
        main(["more", str(released.public), "--files", "2", "--out", str(tmp_path / "more")])
    assert left.value.code == 0, err.getvalue()


FORGED = {
    "another weight": {"weight": pl.col("weight") + 1},
    "another number": {"count": pl.col("count") + 1},
    "another group": {"group": pl.col("group") - 1},
}


@pytest.mark.parametrize("forge", FORGED)
def test_weights_that_are_not_the_measurements_are_refused(released, tmp_path, forge):
    public = shutil.copytree(released.public, tmp_path / "public")
    manifest = Manifest.model_validate_json((public / "manifest.json").read_text())
    assert FromPublic.read(public, manifest).draws == 400
    weights = pl.read_parquet(public / "weights.parquet")
    last = pl.int_range(pl.len()) == weights.height - 1
    changed = {name: pl.when(last).then(value).otherwise(name) for name, value in FORGED[forge].items()}
    weights.with_columns(**changed).sort("group", "weight").write_parquet(public / "weights.parquet")
    with pytest.raises(ValueError, match="does not belong to the manifest"):
        FromPublic.read(public, manifest)


def test_a_release_from_disk_and_on_a_cluster_is_that_from_memory(tmp_path, monkeypatch):
    """With a seed, and so without a charge: measurement, weights, tables and files are the same bytes."""
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=2, **HERE) as client:
        compare_folders(tmp_path, monkeypatch, {"memory": LOCAL, "disk": Local(2, 3), "cluster": Dask(client, parts=3)})


def compare_folders(tmp_path, monkeypatch, engines):
    people(area=AREAS).write_parquet(tmp_path / "people.parquet")
    (tmp_path / "s.toml").write_text(SPEC.replace("people.csv", "people.parquet"))
    folders = []
    for name, most in (("memory", 10_000), ("disk", 100), ("cluster", 100)):
        monkeypatch.setattr(large, "MOST_IN_MEMORY", most)
        svysynth.release(tmp_path / "s.toml", tmp_path / name, svysynth.Streams.seeded(7), engine=engines[name])
        folders.append(tmp_path / name / "public")
    names = sorted(path.name for path in folders[0].iterdir() if path.suffix in (".parquet", ".csv", ".json"))
    same = [name for name in names if "manifest" not in name]
    assert len(same) == 24
    for name in same:
        assert len({(folder / name).read_bytes() for folder in folders}) == 1, name


def test_the_report_speaks_of_public_weights(released):
    page = (released.public / "report.html").read_text()
    assert "The weight: public, as in the survey" in page
    assert "weights.parquet" in page
    assert "calibrate(one" not in page  # nothing is scaled to a known total
    assert "weight 1 to 1,000" not in page
