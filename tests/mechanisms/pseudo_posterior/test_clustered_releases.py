"""Releases of samples of clusters: from the spec to verified public files, and what is refused on the way."""

import html
import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import svysynth
from repeatable import repeat
from svysynth import SurveyError, pipeline
from svysynth.core.spec.whole import load_spec
from svysynth.core.streams import Streams
from svysynth.estimation.tables import make_table, tabulate_all
from svysynth.mechanisms.base import find_public, mechanism_of
from svysynth.mechanisms.findings import no_clusters
from svysynth.mechanisms.pseudo_posterior import bias_correction, clusters
from svysynth.mechanisms.pseudo_posterior.bias_correction import public_part
from svysynth.mechanisms.pseudo_posterior.calibration import fit_unweighted
from svysynth.mechanisms.pseudo_posterior.record_bounds import record_bounds
from svysynth.mechanisms.synthetic_files import SHIFTS
from svysynth.mechanisms.weights_in_clusters import weights_in_clusters
from svysynth.models.clustered_fbs import ClusteredFBS
from svysynth.models.fbs import FBS
from svysynth.models.records import make_records
from svysynth.privacy.ledger import open_budget
from svysynth.privacy.manifest import Manifest

CLUSTERS, EACH = 40, 15
TOTAL = 60_000
SPEC = f"""
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "region"
cluster = "school"
public = ["sex"]
population_total = {TOTAL}

[privacy]
guarantee = "asymptotic"
mechanism = "fbs"
epsilon = 10.8
datasets = 3
draws = 400
correction = true
budget = "people"

[[tables]]
by = ["sex"]
statistics = ["count", "mean"]
"""


def people(seed=1):
    """40 schools of two regions with 15 pupils each. A third of the variance of log income is between schools."""
    generator = np.random.default_rng(seed)
    school = np.repeat(np.arange(CLUSTERS), EACH)
    effect = 0.3 * generator.standard_normal((CLUSTERS, 2))
    t = 10 + effect[school, 0] + 0.5 * generator.standard_normal(len(school))
    v = 0.5 * effect[school, 1] - 0.3 * (t - 10) + 0.4 * generator.standard_normal(len(school))
    weight = np.exp(v)
    return pl.DataFrame(
        {
            "income": np.exp(t),
            "wt": weight * TOTAL / weight.sum(),
            "region": np.where(school % 2, "east", "west"),
            "school": school + 700,
            "sex": generator.choice(["F", "M"], len(school)),
        }
    )


def survey(frame=None, **roles):
    usual = {"outcome": "income", "weight": "wt", "strata": "region", "cluster": "school", "public": "sex"}
    return svysynth.read_survey(people() if frame is None else frame, population_total=TOTAL, **usual | roles)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters")
    people().write_csv(folder / "people.csv")
    (folder / "spec.toml").write_text(SPEC)
    open_budget(folder / "ledger.sqlite", "people", 20, "asymptotic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bias_correction, "SIMULATIONS", 3)
        repeat(patch)
        spec = load_spec(folder / "spec.toml")
        pipeline.release(spec, folder / "release")
    return folder


def test_a_release_has_the_clusters_under_new_numbers_and_can_be_made_again(released):
    public = released / "release" / "public"
    files = [pl.read_parquet(public / f"microdata-{number}.parquet") for number in (1, 2, 3)]
    for file in files:
        assert sorted(map(int, file["school"].unique())) == list(range(1, CLUSTERS + 1))
        assert file.group_by("school").agg(pl.col("region").n_unique())["region"].max() == 1
        assert file["weight"].sum() == pytest.approx(TOTAL, rel=1e-5)
    sizes = [file.group_by("school", "sex").len().sort("school", "sex")["len"].to_list() for file in files]
    assert sizes[0] == sizes[1] == sizes[2]
    manifest = json.loads((public / "manifest.json").read_text())
    assert manifest["survey"]["cluster"] == "school"
    svysynth.verify(public, released / "ledger.sqlite")  # raises unless the tables can be made again


def test_standard_errors_and_their_degrees_of_freedom_are_those_of_clusters(released):
    """Roughly: each of the 3 noisy draws has a variance of 38 degrees of freedom. Without clusters it is a quarter.

    A single ratio has a standard deviation of about 0.15, so the middle one of three is judged.
    """
    own = survey()
    tables = pl.read_csv(released / "release" / "public" / "tables.csv").filter(pl.col("statistic") == "mean")
    direct, plain = (tabulate_all(one, [make_table("sex", ("mean",))]) for one in (own, survey(cluster=None)))
    assert 0.7 < (tables["se"] / direct["se"]).median() < 1.6
    assert (plain["se"] < 0.75 * direct["se"]).any()
    assert (tables["df"] < 1.9 * (CLUSTERS - 2)).all()
    assert ((tables["estimate"] - direct["estimate"]).abs() < 3 * direct["se"]).all()


def read_back(public, shifts):
    files = [public / f"microdata-{number}.parquet" for number in (1, 2, 3)]
    roles = {"outcome": "income", "public": "sex", "strata": "region", "cluster": "school"}
    return svysynth.read_synthetic(files, shifts=shifts, **roles).tabulate("sex", ("count", "mean"))


def test_the_files_read_back_give_the_tables_of_the_release(released):
    """With the centre shifts; without them the standard errors of means are smaller."""
    public = released / "release" / "public"
    found, without = (read_back(public, shifts) for shifts in (public / SHIFTS, None))
    published = pl.read_csv(public / "tables.csv")
    for name in ("estimate", "se", "df"):
        np.testing.assert_allclose(
            found[name].to_numpy(), published[name].cast(pl.Float64).to_numpy(), rtol=1e-4, atol=0.01
        )
    means = found["statistic"] == "mean"
    assert (without.filter(means)["se"] < 0.999 * found.filter(means)["se"]).all()
    assert "centre of the model" in (public / "report.html").read_text()


def test_the_code_of_the_report_uses_the_shifts(released, monkeypatch):
    public = released / "release" / "public"
    page = html.unescape((public / "report.html").read_text())
    start = page.index("import svysynth\n")
    monkeypatch.chdir(public)
    names = {}
    exec(page[start : page.index("</code>", start)], names)
    published = pl.read_csv("tables.csv")["se"].cast(pl.Float64).to_numpy()
    np.testing.assert_allclose(names["table"]["se"].to_numpy(), published, rtol=1e-4, atol=0.01)


def test_other_shifts_are_not_those_of_the_release(released, tmp_path):
    """Verification makes the tables again with the shifts, and the bytes of their file are bound to the charge."""
    shutil.copytree(released / "release" / "public", tmp_path / "public")
    public = tmp_path / "public"
    manifest = Manifest.model_validate_json((public / "manifest.json").read_text())
    assert SHIFTS in manifest.files
    larger = pl.read_parquet(public / SHIFTS).with_columns(pl.col("income") * 2)
    larger.write_parquet(public / SHIFTS)
    with pytest.raises(SurveyError, match="SHA256SUMS"):
        svysynth.verify(public, files_only=True)
    mechanism = mechanism_of(manifest.privacy)
    tables, changed = (mechanism.remake(folder, manifest).tables for folder in (released / "release/public", public))
    means = tables["statistic"] == "mean"
    assert (changed.filter(means)["se"] > tables.filter(means)["se"]).all()
    assert changed["estimate"].equals(tables["estimate"])


def test_shifts_are_made_from_draws_and_public_facts(monkeypatch):
    """Two surveys that differ in every outcome and weight have the same public part, and so the same shifts."""
    monkeypatch.setattr(bias_correction, "SIMULATIONS", 2)
    records = make_records(survey())
    other = replace(records, t=100 - 3 * np.asarray(records.t), v=np.asarray(records.v)[::-1])
    start = fit_unweighted(ClusteredFBS(), records, Streams.seeded(1), 400)
    draw = {name: value[0] for name, value in start.fit.draws.items()}
    made = [
        bias_correction.undo_weights(
            ClusteredFBS(), [draw], public_part(one), 10.8, 3, Streams.seeded(2), number_of_draws=400
        )
        for one in (records, other)
    ]
    assert made[0].centres.shape == (1, 2, 2)
    assert np.array_equal(made[0].centres, made[1].centres)
    assert np.all(made[0].centres != 0)


def test_the_centre_of_a_cell_is_the_mean_of_its_records():
    records = make_records(survey())
    generator = np.random.default_rng(1)
    beta = generator.standard_normal((2, records.x.shape[1]))
    draw = {"beta_y": beta[0], "beta_w": beta[1], "effects": generator.standard_normal((CLUSTERS, 2))}
    found = ClusteredFBS().weighting_bias.centre(draw, records)
    for outcome in range(2):
        expected = records.x[records.cell] @ beta[outcome] + draw["effects"][records.cluster, outcome]
        means = [expected[records.cell == cell].mean() for cell in range(len(records.x))]
        np.testing.assert_allclose(found[outcome], means, rtol=1e-12)


def test_bounds_are_those_of_the_likelihood_given_the_effects():
    """The bound of each record is its largest |log-likelihood| over draws of all parameters, effects included."""
    records = make_records(survey())
    found = fit_unweighted(ClusteredFBS(), records, Streams.seeded(1), 400)
    bounds = np.asarray(record_bounds(found.fit))
    draws = {name: np.asarray(value) for name, value in found.fit.draws.items()}
    x, largest = records.x[records.cell], np.zeros(len(records))
    for number in range(len(draws["beta_y"])):
        mean = np.stack([x @ draws["beta_y"][number], x @ draws["beta_w"][number]], axis=1)
        off = np.stack([records.t, records.v], axis=1) - mean - draws["effects"][number][records.cluster]
        covariance = draws["covariance"][number]
        form = np.einsum("ni,ij,nj->n", off, np.linalg.inv(covariance), off)
        terms = -np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * form
        largest = np.maximum(largest, np.abs(terms))
    np.testing.assert_allclose(bounds, largest, rtol=1e-9)


def test_calibration_keeps_its_target_and_small_clusters_do_not_decide_for_all():
    """With weights from unweighted bounds, the records of the four small clusters would cost all others most of α."""
    frame = people(3).with_columns(place=pl.int_range(pl.len()).over("school"))
    frame = frame.filter((pl.col("school") >= 704) | (pl.col("place") < 3)).drop("place")
    found = svysynth.calibrate(ClusteredFBS(), survey(frame), 10.8, draws=400, streams=Streams.seeded(4)).calibration
    assert 0.8 * found.target < found.largest_bound <= found.target
    alpha, bounds = np.asarray(found.fit.alpha), np.asarray(record_bounds(found.fit))
    assert np.max(alpha * bounds) == pytest.approx(found.largest_bound)
    assert alpha.mean() > 0.45


# --- what is refused ---


def spec_with(tmp_path, *changes):
    text = SPEC
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    people().write_csv(tmp_path / "people.csv")
    (tmp_path / "spec.toml").write_text(text)
    return load_spec(tmp_path / "spec.toml")


def test_models_without_effects_and_public_weights_are_refused(tmp_path):
    found = find_public(spec_with(tmp_path, ('mechanism = "fbs"', 'mechanism = "fbp"')))
    assert [finding.place for finding in found if finding.stops] == ["survey.cluster"]
    assert "mechanism = 'fbs', which has them, or guarantee = 'global'" in found[0].instead
    public = ("population_total = 60000", "weight_public = true")
    found = find_public(spec_with(tmp_path, public))
    assert [finding.place for finding in found if finding.stops] == ["survey.weight_public"]
    corrected = ('cluster = "school"', 'cluster = "school"\nfpc = "schools"\nfpc_public = true')
    found = find_public(spec_with(tmp_path, corrected))
    assert [finding.place for finding in found if finding.stops] == ["survey.fpc"]
    assert not [finding for finding in find_public(spec_with(tmp_path)) if finding.stops]


def test_a_model_and_a_survey_of_which_only_one_has_clusters_are_refused():
    with pytest.raises(SurveyError, match="ClusteredFBS"):
        svysynth.calibrate(FBS(), survey(), 10.8)
    with pytest.raises(SurveyError, match="no clusters"):
        svysynth.calibrate(ClusteredFBS(), survey(cluster=None), 10.8)


def test_more_clusters_than_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr(clusters, "MOST_CLUSTERS", CLUSTERS - 1)
    with pytest.raises(SurveyError, match="has 40 clusters"):
        svysynth.calibrate(ClusteredFBS(), survey(), 10.8)


GLOBAL = ('guarantee = "asymptotic"', 'guarantee = "global"')
BOUNDS = ("draws = 400", "draws = 400\nbounds = { outcome = [100.0, 10000000.0], weight = [1.0, 1000.0] }")


@pytest.mark.parametrize("mechanism", ["fbs", "fbp", "laplace"])
def test_what_refusals_of_clusters_recommend_is_not_refused(tmp_path, mechanism):
    remedy = "use mechanism = 'fbs' or 'fbp' with guarantee = 'global', or mechanism = 'laplace'"
    assert no_clusters("school", "the model")[0].instead.startswith(remedy)
    recommended = spec_with(tmp_path, ('mechanism = "fbs"', f'mechanism = "{mechanism}"'), GLOBAL, BOUNDS)
    assert not [finding for finding in find_public(recommended) if finding.stops]


def test_weights_that_do_not_vary_within_clusters_are_refused():
    frame = people()
    assert weights_in_clusters(survey(frame)) == []
    assert weights_in_clusters(survey(frame, cluster=None)) == []
    same = frame.with_columns(wt=pl.col("wt").mean().over("school"))
    assert [finding.stops for finding in weights_in_clusters(survey(same))] == [True]
    by_cell = frame.with_columns(wt=pl.col("wt").mean().over("school", "sex"))
    assert [finding.stops for finding in weights_in_clusters(survey(by_cell))] == [True]
