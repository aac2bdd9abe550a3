"""A release of noisy tables whose bounds cut into the data: its verdict and its internal report say so."""

import contextlib
import html
import io
import json
import re

import polars as pl
import pytest

from incomes import house, people, run

CUTTING = [("1000000.0", "15000.0"), ("epsilon = 10.8", "epsilon = 60")]
"""A bound below most incomes, and more than half of a budget of 100."""


def release(folder, changes=()):
    """What the terminal shows of a release, and the verdict on file."""
    spec = house(folder, people(), "laplace", "global", changes)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert run("release", spec, "--out", folder / "out") == 0
    return shown.getvalue(), json.loads((folder / "out/internal/verdict.json").read_text())


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A release whose bound of the outcome is too small, its folder first."""
    folder = tmp_path_factory.mktemp("house")
    return folder / "out", *release(folder, CUTTING)


def reasons(verdict, words):
    return [(reason["level"], reason["text"]) for reason in verdict["reasons"] if words in reason["text"]]


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("privacy.bounds.outcome: more than 1% of the records lie beyond these bounds", "look closer"),
        ("The mean of the whole file is far from the direct estimate", "do not publish"),
        ("direct means lie outside the released intervals", "do not publish"),
        ("60% of the budget is spent: ε = 40 is left for all later releases", "look closer"),
    ],
    ids=["what was found before", "the whole file", "the cells", "the budget"],
)
def test_the_verdict_names_the_reason_on_the_terminal_and_on_file(cut, words, level):
    folder, shown, verdict = cut
    assert verdict["verdict"] == "do not publish"
    assert "Verdict: do not publish." in shown
    ((weight, text),) = reasons(verdict, words)
    assert weight == level
    assert f"  {level}: {text}\n" in shown[shown.index("Verdict:") :]
    page = html.unescape((folder / "internal/report.html").read_text())
    assert text in page


def test_bounds_that_hold_the_data_and_a_small_part_of_the_budget_are_no_reasons(tmp_path):
    """The noise is random: nothing is said here of reasons that noise may give."""
    shown, verdict = release(tmp_path)
    for words in ("privacy.bounds", "of the budget is spent"):
        assert reasons(verdict, words) == []
    assert f"Verdict: {verdict['verdict']}." in shown


def facts(folder):
    """The rows of the section on noise in the internal report."""
    page = (folder / "internal/report.html").read_text()
    (section,) = re.findall(r'<section id="noise".*?</section>', page, re.DOTALL)
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', section, re.DOTALL)
    return {html.unescape(name): html.unescape(value) for name, value in rows}


def test_the_internal_report_says_how_much_of_the_variance_is_noise(cut):
    folder, *_ = cut
    tables = pl.read_csv(folder / "public/tables.csv").filter(pl.col("se") > 0)
    for statistic in ("count", "mean"):
        rows = tables.filter(statistic=statistic)
        share = (rows["se_privacy"].to_numpy() / rows["se"].to_numpy()) ** 2
        middle = float(pl.Series(share).median())
        assert 0 < middle <= 1
        assert facts(folder)[f"Share of the variance that is noise, {statistic}, median"] == f"{middle:.0%}"


def test_the_internal_report_has_the_split_of_the_budget_and_the_other_notes(cut):
    folder, *_ = cut
    notes = json.loads((folder / "public/manifest.json").read_text())["notes"]
    assert len(notes) > 1
    assert "60" in notes[0]
    assert [facts(folder)[f"Note {number}"] for number in range(1, len(notes) + 1)] == notes
