"""The simulation study: the same bytes for any number of workers and after a kill, and every published number."""

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

import places
from places import importing
from svysynth.core.errors import SurveyError
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate
from svysynth.evaluation.paper import comparison, repeated
from svysynth.evaluation.paper.methods import Plan, Scenario
from svysynth.evaluation.paper.repeated import Results, Simulation
from svysynth.evaluation.paper.simulation import choose_systematically, draw_sample, make_population
from svysynth.evaluation.paper.study import run_simulation, simulation_frames
from svysynth.models.fbp import FBP
from svysynth.survey.doctorates import published_table

SMALL = Simulation(Plan(models=("fbp",), bounds=(1.8,), datasets=(1, 3), draws=400))
REPLICATES = 3


def numbers(folder, workers):
    """The CSVs of the small study."""
    simulation_frames(SMALL, folder, REPLICATES, workers, lambda done, total: None)
    return {path.name: path.read_bytes() for path in folder.glob("*.csv")}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """All files of the small study, run with one worker."""
    folder = tmp_path_factory.mktemp("studies") / "one"
    run_simulation(SMALL, folder, REPLICATES, 1)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def small_numbers(small):
    return {name: content for name, content in small.items() if name.endswith(".csv")}


@pytest.mark.parametrize("workers", [2, 4])
def test_the_numbers_are_the_same_for_any_number_of_workers(small_numbers, tmp_path, workers):
    assert numbers(tmp_path / "study", workers) == small_numbers


def test_the_numbers_are_the_same_after_a_kill_half_way(small_numbers, tmp_path):
    folder = tmp_path / "study"
    script = tmp_path / "run.py"
    script.write_text(
        "from pathlib import Path\nimport test_simulation as t\n"
        f"if __name__ == '__main__':\n    t.numbers(Path({str(folder)!r}), 1)\n"
    )
    run = subprocess.Popen([sys.executable, str(script)], env=importing(Path(__file__).parent))
    end = time.monotonic() + 600
    while not list(folder.glob("replicates/0*.npz")):
        assert run.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert len(list(folder.glob("replicates/0*.npz"))) < REPLICATES
    assert not (folder / "coverage.csv").exists()
    assert numbers(folder, 2) == small_numbers


def test_the_files_of_a_study(small):
    names = {"averages", "bounds", "comparison", "coverage", "fits", "length-ratios", "points", "rmse-ratios"}
    assert {name.removesuffix(".csv") for name in small if name.endswith(".csv")} == names
    drawn = {name.rsplit(".", 1)[0] for name in small if name.endswith(".svg")}
    assert drawn == {name.rsplit(".", 1)[0] for name in small if name.endswith(".png")}
    assert len(drawn) == 7
    for name, content in small.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")


def well_formed(page):
    head, _, body = page.decode("utf-8").partition("\n")
    assert head == "<!doctype html>"
    return ElementTree.fromstring(body)


def test_the_page_is_well_formed_and_self_contained(small):
    page = well_formed(small["simulation.html"])
    images = [image.get("src") for image in page.iter("img")]
    assert len(images) == 7
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)
    assert not re.search(rb'(src|href)="(?!data:)', small["simulation.html"])
    for table in page.iter("table"):
        rows = table.find("tbody")
        assert {len(row) for row in rows} == {len(table.find("thead")[-1])}


def test_a_replicate_has_what_a_release_would_have():
    """One data set's table in a replicate equals the table made by the pipeline's own steps."""
    result = repeated.replicate(SMALL, 1)
    survey = SMALL.sample(1)
    direct = tabulate(survey, ["field", "gender"])
    np.testing.assert_array_equal(result["tables"][0, :, 0], direct["estimate"].to_numpy())
    np.testing.assert_array_equal(result["tables"][0, :, 1], direct["se"].to_numpy())
    one, three = (SMALL.plan.scenarios.index(Scenario("fbp", 1.8, m)) for m in (1, 3))
    total = 0  # the first row: all fields and genders
    assert result["tables"][one, total, 0] == pytest.approx(100_000, rel=1e-12)
    assert (result["tables"][three, :, 1] > 0).all()
    unweighted, weighted, alpha, _, attempts = result["fits"][0]
    assert 1.8 * 0.98 <= weighted <= 1.8 < unweighted
    assert 0 < alpha < 1
    assert attempts == 1


def made_up(study, replicates):
    """Replicates of the full plan without any fitting: noise around the truth."""
    truth = study.truth()["truth"].to_numpy()
    generator = study.streams.generator("made up")
    found = []
    for _ in range(replicates):
        shape = (len(study.plan.scenarios), len(truth))
        se = 0.1 * truth * generator.uniform(0.8, 1.2, shape)
        estimate = truth + se * generator.standard_normal(shape)
        fits = np.tile([9.0, 1.79, 0.9, 2.0, 1.0], (len(study.plan.fits), 1)) * generator.uniform(0.9, 1.1)
        tables = np.stack([estimate, se, 2 * 1.96 * se], axis=2)
        found.append({"tables": tables, "fits": fits, "correlation": generator.normal(-0.58, 0.01, 1)})
    return found


@pytest.fixture(scope="module")
def full():
    study = Simulation()
    found = made_up(study, 50)
    results = Results.of(study, found)
    summary, ratios = repeated.summarize(results), repeated.length_ratios(results)
    correlations = repeated.population_correlations(study)
    compared = comparison.compare_simulation(summary, ratios, repeated.fit_figures(study, found), correlations)
    return results, summary, ratios, compared


def test_every_published_number_is_compared(full):
    *_, compared = full
    values = compared["paper"].to_list()
    for statistic in ("counts", "salary"):
        table = published_table(f"coverage_{statistic}_m3")
        own = compared.filter(pl.col("section").str.starts_with("Counts" if statistic == "counts" else "Average"))
        names = {"Population": "population"}
        for model in ("fbs", "fbp"):
            names |= {f"{model.upper()} coverage": f"{model}_coverage", f"{model.upper()} length": f"{model}_ci_length"}
        for column, published in names.items():
            assert own.filter(column=column)["paper"].to_list() == table[published].to_list()
        ratios = published_table("ci_length_ratios")[f"{statistic}_fbp_over_fbs"].to_list()
        title = "Counts" if statistic == "counts" else "Average salary"
        own = compared.filter(pl.col("section").str.starts_with("Length"), column=title)
        assert own["paper"].to_list() == ratios
    assert {8.89, 9.92, -0.57, -0.58} <= set(values)
    assert compared.height == 2 * 24 * 5 + 16 + 4
    assert compared["difference"].null_count() == 0


def test_a_summary_of_made_up_replicates_is_right(full):
    """Intervals of ±1.96 s.e. cover 95%: over 33·54 cells of 50 replicates, within 5 standard errors."""
    results, summary, ratios, _ = full
    assert summary.height == len(results.scenarios) * 54
    shares = summary["coverage"].to_numpy()
    assert abs(shares.mean() - 0.95) < 5 * np.sqrt(0.95 * 0.05 / (50 * len(shares)))
    cell = summary.filter(method="fbs", lipschitz=3.4, datasets=5, statistic="mean", field="3", gender="Female")
    row = results.truth.with_row_index().filter(statistic="mean", field="3", gender="Female")["index"][0]
    place = results.position(Scenario("fbs", 3.4, 5))
    lengths, estimates = results.length[:, place, row], results.estimate[:, place, row]
    assert cell["length"][0] == pytest.approx(lengths.mean())
    assert cell["length_se"][0] == pytest.approx(lengths.std(ddof=1) / np.sqrt(50))
    assert cell["bias"][0] == pytest.approx(estimates.mean() - cell["truth"][0])
    assert ratios.height == 2 * 2 * 8
    assert ((ratios["ratio"] - 1).abs() < 5 * ratios["ratio_se"]).all()


def test_cells_without_records_are_left_out():
    study = Simulation(Plan(models=(), bounds=(1.8,), datasets=(1,)))
    found = made_up(study, 10)
    found[0]["tables"][:, 30] = np.nan
    summary = repeated.summarize(Results.of(study, found)).filter(method="sample")
    assert summary["replicates"].to_list() == [9 if row == 30 else 10 for row in range(54)]
    assert summary["coverage"].is_not_nan().all()


def test_differences_are_in_standard_errors():
    figures = [
        comparison.Figure("s", "a", "c", 2, 0.9, 1.0, comparison.pooled_error(0.9, 100, 1.0, 100)),
        comparison.Figure("s", "b", "c", 2, 1.0, 1.0, comparison.pooled_error(1.0, 100, 1.0, 100)),
        comparison.Figure("s", "c", "c", 2, 1.0, 1.5, None),
    ]
    difference = comparison.as_frame(figures)["difference"].to_list()
    assert difference[0] == pytest.approx(0.1 / np.sqrt(0.95 * 0.05 * 2 / 100))
    assert difference[1:] == [0.0, None]


def test_the_truth_is_the_population_s():
    study = Simulation()
    population = make_population(study.streams)
    truth = study.truth()
    women = (population.field == 4) & (population.gender == 1)
    found = truth.filter(field="5", gender="Female")["truth"].to_list()
    assert found == pytest.approx([women.sum(), population.salary[women].mean()])
    counts = published_table("coverage_counts_m3")
    both = truth.filter(statistic="count").join(counts, on=["field", "gender"])
    assert both.height == 24
    assert both["truth"].to_list() == both["population"].to_list()


def test_the_sample_of_a_replicate_depends_on_its_number_alone():
    study = Simulation()
    expected = draw_sample(make_population(study.streams), study.streams, 5)
    assert study.sample(5).frame.equals(expected.frame)
    assert not study.sample(6).frame.equals(expected.frame)


GOLDEN = places.GOLDEN / "sampling/systematic.csv"


@pytest.mark.parametrize("case", [1, 2, 3, 4])
def test_systematic_samples_are_those_of_r_sampling(case):
    wanted = pl.read_csv(GOLDEN).filter(case=case)
    found = choose_systematically(wanted["share"].to_numpy(), wanted["size"][0], wanted["start"][0])
    assert found.tolist() == np.flatnonzero(wanted["chosen"]).tolist()


def test_a_systematic_sample_has_men_and_women_in_proportion():
    population = make_population(Streams.seeded(1))
    of_men = [
        population.measure[(population.field == field) & (population.gender == 0)].sum()
        / population.measure[population.field == field].sum()
        for field in range(8)
    ]
    for index in range(5):
        survey = draw_sample(population, Streams.seeded(2), index, systematic=True)
        assert len(survey) == 1000
        assert survey.weights.sum() == pytest.approx(100_000, rel=0.1)
        found = survey.frame.group_by("field").agg(pl.len(), men=(pl.col("gender") == "Male").sum())
        assert all(abs(men - size * of_men[int(field) - 1]) <= 1 for field, size, men in found.iter_rows())


def test_x_has_a_column_for_every_field():
    """Nine columns with or without an intercept; without it no field is what the others are measured from."""
    survey = Simulation().sample(1)
    records, usual = Simulation().plan.records_of(survey), Plan(intercept=True).records_of(survey)
    assert records.x.shape[1] == usual.x.shape[1] == 9
    assert records.terms == (*(f"field[{field}]" for field in range(1, 9)), "gender[T.Female]")
    assert usual.terms[:2] == ("Intercept", "field[T.2]")
    assert records.x[:, :8].sum(axis=1) == pytest.approx(1)
    assert np.linalg.matrix_rank(np.hstack([records.x, usual.x])) == 9


def test_a_study_as_published_is_another_study(tmp_path):
    assert repeated.AS_PUBLISHED.settings != Simulation().settings
    assert repeated.AS_PUBLISHED.settings["ceiling"] == 0.85
    assert Simulation().settings["ceiling"] == 1.0
    assert repeated.AS_PUBLISHED.plan.methods_of("fbp")["fbp"] == FBP(smoothing="paper", lognormal=True)
    assert Simulation().plan.methods_of("fbp")["fbp"] == FBP(smoothing="paper")
    simulation_frames(SMALL, tmp_path, 2, 1, lambda *_: None)
    with pytest.raises(SurveyError, match="other settings"):
        simulation_frames(replace(SMALL, systematic=True), tmp_path, 2, 1, lambda *_: None)


def test_one_replicate_is_refused(tmp_path):
    with pytest.raises(SurveyError, match="Monte Carlo"):
        run_simulation(SMALL, tmp_path / "study", 1)
