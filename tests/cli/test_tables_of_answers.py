"""`check` and `tables` with several answers: what they print, and what a workbook says."""

import zipfile

import pytest

import places
from svysynth.cli.main import main
from svysynth.estimation.layout import NO_INTERVAL

SPEC = f"""
[survey]
data = "{places.GOLDEN / "answers" / "apistrat.csv"}"
outcome = "y"
transform = "identity"
weight = "w"
strata = "stratum"
public = ["a"]
[survey.variables.z]
kind = "amount"
[survey.columns.z]
missing = ["NA"]
label = "Pupils"
[survey.variables.s]
kind = "category"
[[tables]]
by = "a"
of = "z"
[[tables]]
by = "a"
of = "s"
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "schools.toml"
    path.write_text(SPEC)
    return path


def run(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    assert left.value.code == 0


def test_check_shows_the_answers_and_how_many_are_missing(spec, capsys):
    run("check", spec)
    shown = capsys.readouterr().out
    assert "z (amount), s (category)" in shown
    assert "z in 29 of 200 records" in shown


def test_tables_say_that_missing_answers_are_left_out(spec, capsys):
    run("tables", spec)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Pupils: a (of those who answered)" in shown
    assert "leave missing answers out: n is the number of records with an answer" in shown


def test_a_workbook_says_so_too(spec, tmp_path):
    run("tables", spec, "--out", tmp_path / "schools.xlsx")
    with zipfile.ZipFile(tmp_path / "schools.xlsx") as book:
        texts = book.read("xl/sharedStrings.xml").decode()
        sheets = book.read("xl/workbook.xml").decode()
    assert "leave missing answers out" in texts
    assert 'name="Pupils  a (of those who' in sheets
    assert 'name="s  a"' in sheets


def test_a_workbook_says_why_a_quantile_has_no_standard_error(spec, tmp_path):
    spec.write_text(SPEC + '[[tables]]\nby = "s"\nstatistics = "quantile(0.001)"\n')
    run("tables", spec, "--out", tmp_path / "schools.xlsx")
    with zipfile.ZipFile(tmp_path / "schools.xlsx") as book:
        assert NO_INTERVAL in book.read("xl/sharedStrings.xml").decode()


def test_an_outcome_with_gaps_has_no_correlation_with_the_weights(spec, capsys):
    spec.write_text(SPEC.replace('outcome = "y"', 'outcome = "z"'))
    run("check", spec)
    assert "correlation" not in capsys.readouterr().out
