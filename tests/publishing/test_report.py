"""What people read: the wide layout, the terminal and the workbook."""

import io

import openpyxl
import polars as pl
import pytest
from rich.console import Console

import svysynth
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.estimation.layout import NO_ESTIMATE, NO_INTERVAL, decimals, notes_on, wide_tables
from svysynth.publishing.report.excel import write_workbook
from svysynth.publishing.report.terminal import render_tables

ODD_LABELS = ["=1+1", "[red]x[/red]", "<b>x</b>", "http://x.example", "plain"]


@pytest.fixture
def odd():
    frame = pl.DataFrame({"y": [1.0, 2.0] * 5, "w": [1.0, 3.0] * 5, "g": ODD_LABELS * 2})
    survey = svysynth.read_survey(frame, outcome="y", weight="w", public=["g"])
    return svysynth.tabulate_all(survey, [TableSpec(by=("g",)), TableSpec(by=(), name="a/b: the [total]")])


def rendered(tidy):
    console = Console(file=io.StringIO(), width=120, highlight=False)
    console.print(render_tables(tidy, EstimationSpec(), {}))
    return console.file.getvalue()


def test_wide_tables_have_a_row_for_each_cell(doctorate_survey):
    tidy = svysynth.tabulate(doctorate_survey, ["field", "gender"], ["count", "mean"])
    (wide,) = wide_tables(tidy, {})
    assert wide.by == ("field", "gender")
    assert len(wide.rows) == 27
    assert [row.estimates[1].se for row in wide.rows] == tidy.filter(statistic="mean")["se"].to_list()


def test_labels_are_shown_as_they_are(odd):
    text = rendered(odd)
    for label in ODD_LABELS:
        assert label in text
    assert "a/b: the [total]" in text


def test_marks_follow_the_flags(odd):
    text = rendered(odd)
    assert "**" in text
    assert "above 15%" in text


def test_labels_are_text_in_a_workbook(odd, tmp_path):
    write_workbook(odd, tmp_path / "t.xlsx", ["note"], {})
    book = openpyxl.load_workbook(tmp_path / "t.xlsx")
    sheet = book["g"]
    found = [(cell.value, cell.data_type) for (cell,) in sheet.iter_rows(min_row=4, max_row=8, max_col=1)]
    assert found == [(label, "s") for label in sorted(ODD_LABELS)]
    assert not any(cell.hyperlink for row in sheet.iter_rows() for cell in row)
    assert book.sheetnames[2] == "a b  the  total"


@pytest.fixture
def gaps():
    """Quantiles for cells of three records, of a hundred and of none."""
    frame = pl.DataFrame({"y": [*range(1, 104)], "w": [1.0] * 103, "g": ["a"] * 3 + ["b"] * 100})
    frame = frame.with_columns(h=pl.when(pl.col("y") < 60).then(pl.lit("c")).otherwise(pl.lit("d")))
    survey = svysynth.read_survey(frame, outcome="y", weight="w", public=["g", "h"])
    return svysynth.tabulate(survey, ["g", "h"], ["mean", "quantile(0.1)"])


def test_figures_that_are_missing_are_explained(gaps):
    assert notes_on(gaps) == [NO_ESTIMATE, NO_INTERVAL]
    text = " ".join(rendered(gaps).split())
    assert f"** above 30%. – not available. {NO_ESTIMATE} {NO_INTERVAL}" in text
    whole = gaps.filter(g="All", h="All")
    assert notes_on(whole) == []
    assert "not available" not in rendered(whole)


def test_decimals_suit_the_size():
    assert decimals([12345.6, 1.0], "count") == 0
    assert decimals([-123.4], "mean") == 1
    assert decimals([1.2, None], "mean") == 3
    assert decimals([0.2], "proportion") == 4
    assert decimals([None], "mean") == 0
