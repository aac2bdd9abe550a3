"""The application: the published Sample column, and the public-use file's layout in every format."""

import io
import stat
from importlib import resources
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pyreadstat
import pytest
from typer.testing import CliRunner

import svysynth
from places import ROOT
from svysynth.cli.study import study as commands
from svysynth.core.errors import SurveyError
from svysynth.evaluation.paper import application, study
from svysynth.evaluation.paper.application import Application
from svysynth.evaluation.paper.methods import Plan
from svysynth.evaluation.paper.repeated import AS_PUBLISHED
from svysynth.survey.doctorates import RECORDS, published_table
from svysynth.survey.row_filter import refuse_private_filter
from svysynth.survey.survey import survey_from_file

EXAMPLE = ROOT / "examples/sdr2017.toml"
PLAN = Plan(models=("fbp",), bounds=(1.8,), datasets=(3,), draws=400)
TABLES = {"count": "sdr_counts", "mean": "sdr_salary"}


def public_use_frame():
    """The stand-in among records that the study must leave out: other ages, the unemployed, skips and zeros."""
    frame = application.standin_in_layout()
    others = [
        frame[:200].with_columns(pl.lit(45).alias("AGEGRP")),
        frame[200:300].with_columns(pl.lit(2).alias("LFSTAT"), pl.lit(9999998).alias("SALARYP")),
        frame[300:400].with_columns(pl.lit(9999998).alias("SALARYP")),
        frame[400:450].with_columns(pl.lit(0).alias("SALARYP")),
    ]
    mixed = pl.concat([frame, *(other.cast(frame.schema) for other in others)])
    return mixed.with_columns(pl.lit(1).alias("REFID")).sample(fraction=1, shuffle=True, seed=1)


def as_text(frame):
    """Codes as text, as SAS files often have them."""
    return frame.with_columns(pl.col("NSDRMEMTOD", "AGEGRP", "LFSTAT").cast(pl.String))


WRITERS = {
    "sdr.csv": lambda frame, path: frame.write_csv(path),
    "sdr.sav": lambda frame, path: pyreadstat.write_sav(
        frame, path, variable_value_labels={"NSDRMEMTOD": {1: "Biological"}, "GENDER": {"M": "Men", "F": "Women"}}
    ),
    "text.sav": lambda frame, path: pyreadstat.write_sav(as_text(frame), path),
    "sdr.xpt": lambda frame, path: pyreadstat.write_xport(frame, path),
    "text.xpt": lambda frame, path: pyreadstat.write_xport(as_text(frame), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_public_use_file_is_read_in_every_format(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](public_use_frame(), str(path))
    survey = Application(path).survey
    assert len(survey) == RECORDS
    tables = svysynth.tabulate(survey, survey.public)
    expected = svysynth.tabulate(Application().survey, survey.public)
    assert tables.select("NSDRMEMTOD", "GENDER", "n").equals(expected.select("NSDRMEMTOD", "GENDER", "n"))
    np.testing.assert_allclose(tables["estimate"], expected["estimate"], rtol=1e-9)
    np.testing.assert_allclose(tables["se"], expected["se"], rtol=1e-9)


def test_the_example_is_the_study_s_own_mapping(tmp_path):
    spec = svysynth.load_spec(EXAMPLE)
    own = resources.files("svysynth.evaluation.paper") / "sdr2017.toml"
    assert EXAMPLE.read_bytes() == own.read_bytes()
    refuse_private_filter(spec.survey)
    public_use_frame().filter(pl.col("SALARYP") > 0, pl.col("SALARYP") < 9999998).write_csv(tmp_path / "sdr.csv")
    survey = survey_from_file(spec.survey.model_copy(update={"data": tmp_path / "sdr.csv"}))
    assert survey.levels("NSDRMEMTOD")[6] == "Engineering"
    assert survey.levels("GENDER") == ("Male", "Female")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The study on the stand-in, with FBP only."""
    folder = tmp_path_factory.mktemp("studies") / "application"
    study.run_application(Application(plan=PLAN), folder, 2, 1)
    return folder


def test_the_sample_column_is_the_published_one(folder):
    tables = pl.read_csv(folder / "tables.csv", schema_overrides={"field": pl.String}).filter(method="sample")
    for statistic, table in TABLES.items():
        both = tables.filter(statistic=statistic).join(published_table(table), on=["field", "gender"])
        assert both.height == 27
        np.testing.assert_allclose(both["estimate"], both["sample_estimate"], rtol=0.01)
        np.testing.assert_allclose(both["se"], both["sample_se"], rtol=0.15)


def test_private_columns_are_there_and_add_up(folder):
    tables = pl.read_csv(folder / "tables.csv", schema_overrides={"field": pl.String})
    assert tables.group_by("method", "statistic").len()["len"].to_list() == [27] * 8
    for method in ("fbp", "fbp-full"):
        counts = tables.filter(method=method, statistic="count")
        total = counts.filter(field="All", gender="All")["estimate"][0]
        assert total == pytest.approx(125_199)
        assert counts.filter(pl.col("field") != "All", gender="All")["estimate"].sum() == pytest.approx(total)
    private = tables.filter(pl.col("method") != "sample", ~((pl.col("field") == "All") & (pl.col("gender") == "All")))
    assert (private["estimate_sd"] > 0).all()
    assert (tables["rmse"] >= tables["se"] * (1 - 1e-12)).all()


def test_every_published_number_of_the_run_s_methods_is_on_the_page(folder):
    compared = pl.read_csv(folder / "comparison.csv")
    for method, name in {"sample": "Sample", "laplace": "Laplace", "fbp": "FBP"}.items():
        own = compared.filter(pl.col("section").str.starts_with(f"{name}:"))
        for title, table in {"Counts": "sdr_counts", "Average salary": "sdr_salary"}.items():
            for quantity, label in {"estimate": "estimate", "se": "s.e."}.items():
                found = own.filter(column=f"{title}: {label}")["paper"].to_list()
                assert found == published_table(table)[f"{method}_{quantity}"].to_list()
    assert {10_355.0, 0.09, 15.9} <= set(compared["paper"])
    page = (folder / "application.html").read_text(encoding="utf-8")
    tree = ElementTree.fromstring(page.partition("\n")[2])
    assert len(list(tree.iter("img"))) == 2
    shown = {cell.text for cell in tree.iter("td")}
    for value in compared.filter(digits=0)["paper"]:
        assert f"{value:,.0f}" in shown


def test_figures_are_there(folder):
    for name in ("figure-1-bounds", "figure-2-rmse"):
        assert (folder / f"{name}.png").stat().st_size > 10_000
        ElementTree.parse(io.BytesIO((folder / f"{name}.svg").read_bytes()))


@pytest.fixture(scope="module")
def confidential(tmp_path_factory):
    """The study on a file, in a folder that was there and open to others."""
    place = tmp_path_factory.mktemp("confidential")
    public_use_frame().write_csv(place / "sdr.csv")
    (place / "application").mkdir(mode=0o755)
    study.run_application(Application(place / "sdr.csv", plan=PLAN), place / "application", 2, 1)
    return place / "application"


def test_all_that_comes_from_a_file_is_marked_as_internal(confidential):
    page = (confidential / "application.html").read_text(encoding="utf-8")
    assert page.count("INTERNAL USE ONLY") == 2
    assert "<title>INTERNAL: " in page
    ElementTree.fromstring(page.partition("\n")[2])
    tables = sorted(confidential.glob("*.csv"))
    assert len(tables) == 4
    for table in tables:
        assert set(pl.read_csv(table, infer_schema=False)["source"]) == {"confidential, internal use only"}
    for name in ("figure-1-bounds", "figure-2-rmse"):
        assert b"INTERNAL USE ONLY" in (confidential / f"{name}.svg").read_bytes()
        assert b"INTERNAL USE ONLY" in (confidential / f"{name}.png").read_bytes()


def test_all_that_comes_from_a_file_is_for_its_owner_alone(confidential):
    assert stat.S_IMODE(confidential.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in confidential.rglob("*") if path.is_file()} == {0o600}


def test_what_comes_from_the_stand_in_is_not_internal(folder):
    assert not any(b"INTERNAL" in path.read_bytes() for path in folder.iterdir() if path.is_file())
    assert "source" not in (folder / "tables.csv").read_text().partition("\n")[0]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()} == {0o644}


def test_a_folder_of_other_data_is_refused(folder, tmp_path):
    public_use_frame().write_csv(tmp_path / "sdr.csv")
    with pytest.raises(SurveyError, match="other settings"):
        study.run_application(Application(tmp_path / "sdr.csv", plan=PLAN), folder, 2, 1)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SurveyError, match=r"nothing\.sav"):
        study.run_application(Application(tmp_path / "nothing.sav"), tmp_path / "study", 2, 1)


@pytest.mark.parametrize("command", ["simulation", "application"])
def test_the_commands_pass_on_what_they_are_given(monkeypatch, tmp_path, command):
    calls = []

    def record(found, folder, count, workers, progress, batch=None):
        progress(1, count)
        calls.append((found, folder, count, workers, batch))
        return folder / "page.html"

    monkeypatch.setattr(study, f"run_{command}", record)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    options = ["--out", str(tmp_path / "study"), "--replicates", "7", "--workers", "3"]
    data = ["--data", str(tmp_path / "sdr.sav")] if command == "application" else ["--batch", "5"]
    done = CliRunner().invoke(commands, [command, *options, *data])
    assert done.exit_code == 0, done.output
    assert "page.html" in done.output.replace("\n", "")
    ((found, folder, count, workers, batch),) = calls
    assert (folder, count, workers) == (tmp_path / "study", 7, 3)
    assert batch == (5 if command == "simulation" else None)
    if command == "application":
        assert found.data == tmp_path / "sdr.sav"
    assert ("INTERNAL USE ONLY" in done.output) == (command == "application")


def test_on_a_gpu_fits_are_made_together(monkeypatch, tmp_path):
    batches = []
    monkeypatch.setattr(study, "run_simulation", lambda *arguments: batches.append(arguments[-1]) or tmp_path)
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert CliRunner().invoke(commands, ["simulation", "--out", str(tmp_path / "study")]).exit_code == 0
    assert batches == [1024]


def test_the_study_as_published(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(study, "run_simulation", lambda *arguments: found.append(arguments[0]) or tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert CliRunner().invoke(commands, ["simulation", "--as-published"]).exit_code == 0
    assert found == [AS_PUBLISHED]
