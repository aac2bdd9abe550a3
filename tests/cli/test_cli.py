"""The command line, as a user meets it."""

import signal
import subprocess
import sys

import openpyxl
import polars as pl
import pytest

import svysynth
from svysynth.cli import main as cli
from svysynth.cli.main import main


def run(capsys, *arguments):
    """Run a command in this process; its exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return caught.value.code or 0, captured.out, captured.err


def test_demo_releases_verifies_and_shows_what_to_open(tmp_path, capsys):
    code, out, err = run(capsys, "demo", "--out", tmp_path / "d")
    assert (code, err) == (0, "")
    names = {path.name for path in (tmp_path / "d").iterdir()}
    assert names == {"doctorates.csv", "doctorates.toml", "ledger.sqlite", "ledger.sqlite.anchor", "release-1"}
    for text in (
        "INTERNAL USE ONLY",
        "Life sciences",
        "ok  charged as entry 2 of the ledger",
        "release-1/public/report.html",
    ):
        assert text in out
    assert "ε = 1.5 if a respondent's salary and weight are blanked out, and 3 if they are changed" in out
    assert "This holds for every data set" in out
    assert "10 synthetic files, made again from the draws and the seed" in out


def test_check_shows_the_design(demo, capsys):
    code, out, _ = run(capsys, "check", demo / "doctorates.toml")
    assert code == 0
    for text in ("10,355", "8 (field)", "16 of 16 filled", "114 records", "125,199", "check spends nothing"):
        assert text in out


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_are_written_tidy_and_marked_internal(demo, tmp_path, capsys, ending):
    target = tmp_path / f"t.{ending}"
    code, out, _ = run(capsys, "tables", demo / "doctorates.toml", "--out", target)
    assert code == 0
    assert "INTERNAL USE ONLY" in out
    written = pl.read_csv(target) if ending == "csv" else pl.read_parquet(target)
    spec = svysynth.load_spec(demo / "doctorates.toml")
    direct = svysynth.tabulate_all(svysynth.survey.survey.survey_from_file(spec.survey), spec.tables)
    assert written.columns == [*direct.columns, "source"]
    assert written["estimate"].to_list() == pytest.approx(direct["estimate"].to_list(), rel=1e-15)
    assert written["source"].unique().to_list() == ["confidential, internal use only"]


def test_a_workbook_has_numbers_as_numbers_and_says_what_it_is(demo, tmp_path, capsys):
    run(capsys, "tables", demo / "doctorates.toml", "--out", tmp_path / "t.xlsx")
    book = openpyxl.load_workbook(tmp_path / "t.xlsx")
    assert book.sheetnames == ["Notes", "field by gender"]
    assert "INTERNAL USE ONLY" in book["Notes"]["A1"].value
    rows = list(book["field by gender"].iter_rows(values_only=True))
    assert rows[0][3] == "count"
    assert rows[1][:5] == ("field", "gender", "n", "estimate", "standard error")
    assert len(rows) == 2 + 27
    assert rows[2][:3] == ("All", "All", 10_355)
    assert rows[2][3] == pytest.approx(125_200, abs=1)


def test_a_seed_repeats_the_bootstrap(demo, tmp_path, capsys):
    spec = tmp_path / "s.toml"
    text = (demo / "doctorates.toml").read_text().replace('"doctorates.csv"', f'"{demo}/doctorates.csv"')
    spec.write_text(text + '\n[estimation]\nvariance = "preston"\nreplicates = 20\n')
    outputs = [run(capsys, "tables", spec, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert outputs[0] == outputs[1] != outputs[2]


def test_a_draft_says_step_by_step_what_is_to_be_filled_in(demo, tmp_path, capsys):
    """Bounds, then the total, then the budget: each is named with what to do, and direct tables need none of them."""
    target = tmp_path / "draft.toml"

    def fill_in(blank, setting):
        text = target.read_text(encoding="utf-8")
        assert text.count(blank) == 1
        target.write_text(text.replace(blank, setting), encoding="utf-8")

    code, out, _ = run(capsys, "init", demo / "doctorates.csv", "--out", target)
    assert code == 0
    assert "weight   weight" in out
    assert "fill in what is marked as needed" in out
    assert run(capsys, "tables", target)[0] == 0
    code, _, err = run(capsys, "check", target)
    assert code == 1
    assert "'privacy.bounds' is required" in err
    assert "svysynth constants" in err
    fill_in(
        "# bounds = { outcome = […, …], weight = […, …] }", "bounds = { outcome = [5e3, 1e6], weight = [0.5, 500] }"
    )
    code, out, _ = run(capsys, "check", target)
    assert code == 0
    assert "release would refuse: survey.population_total: is not declared" in out
    assert "Instead: declare survey.population_total" in out
    fill_in("# population_total = …", "population_total = 125199")
    code, out, _ = run(capsys, "check", target)
    assert (code, "release would refuse" in out) == (0, False)
    code, _, err = run(capsys, "release", target, "--out", tmp_path / "r")
    assert code == 1
    assert "privacy.budget" in err
    fill_in('# budget = "…"', 'budget = "doctorates"')
    code, _, err = run(capsys, "release", target, "--out", tmp_path / "r")
    assert code == 1
    assert "svysynth ledger open" in err
    code, _, err = run(capsys, "init", demo / "doctorates.csv", "--out", target)
    assert code == 1
    assert "--force" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "nowhere.toml"], 1, "cannot be read"),
        (["tables", "{demo}/doctorates.toml", "--out", "{tmp}/x.docx"], 1, "cannot be written"),
        (["tables", "{demo}/doctorates.toml", "--out", "{tmp}/no/x.csv"], 1, "folder exists"),
        (["init", "{demo}/none.csv"], 1, "cannot be found"),
        (["tables"], 2, "Missing argument"),
        (["tabels"], 2, "No such command"),
        (["tables", "x.toml", "--seed", "-1"], 2, "Invalid value"),
    ],
)
def test_a_mistake_is_one_error_and_an_exit_code(demo, tmp_path, capsys, arguments, code, message):
    arguments = [argument.format(demo=demo, tmp=tmp_path) for argument in arguments]
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_an_unforeseen_failure_shows_no_value(demo, monkeypatch, capsys):
    def fail(*_):
        raise ValueError("the salary of 123456 is wrong")

    monkeypatch.setattr("svysynth.cli.check.overview", fail)
    code, _, err = run(capsys, "check", demo / "doctorates.toml")
    assert code == 70
    assert "123456" not in err
    assert "ValueError" in err
    assert err.count("\n") == 1


def test_version_and_module_door():
    done = subprocess.run([sys.executable, "-m", "svysynth", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"svysynth {svysynth.__version__}"


def test_help_teaches(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "svysynth demo" in out
    for command in ("init", "check", "tables", "demo"):
        assert command in out
        assert run(capsys, command, "--help")[0] == 0


def test_a_signal_that_a_library_turns_into_an_error_is_still_a_signal(monkeypatch, capsys):
    """It may come while a lock is let go, say, which is then another error by the time it gets here."""

    def command(args):
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise RuntimeError("cannot release un-acquired lock") from None

    monkeypatch.setattr(cli, "app", command)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            cli.main([])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 128 + signal.SIGTERM
