"""Taylor-linearised tables agree with R `survey` on every kind of design (`golden/survey/make.R`)."""

import polars as pl
import pytest

import svysynth
from golden_survey import GOLDEN, STATISTICS, assert_agrees, read_golden_survey

VALUES = pl.read_csv(GOLDEN / "values.csv")
CASES = VALUES.select("design", "options").unique(maintain_order=True).rows()


def tables(design, options, statistics):
    """Our table and R's."""
    estimation = svysynth.EstimationSpec(lonely=options.removeprefix("lonely="))
    ours = svysynth.tabulate(read_golden_survey(GOLDEN / f"{design}.csv"), ["a", "b"], statistics, estimation)
    theirs = VALUES.filter(
        pl.col("design") == design, pl.col("options") == options, pl.col("statistic").is_in(statistics)
    )
    return ours, theirs


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("design", "options"), CASES)
def test_estimates_and_standard_errors(design, options, statistic):
    assert_agrees(*tables(design, options, [statistic]))


@pytest.mark.parametrize(("design", "options"), CASES)
def test_degrees_of_freedom(design, options):
    ours, theirs = tables(design, options, STATISTICS)
    assert set(ours["df"]) == set(theirs["df"])


def test_an_empty_cell_counts_nobody_and_has_no_mean():
    ours, _ = tables("sparse_cells", "lonely=fail", STATISTICS)
    empty = ours.filter(pl.col("a") == "a1", pl.col("b") == "b1").select("statistic", "estimate", "se", "n")
    assert empty.rows() == [
        ("count", 0.0, 0.0, 0),
        ("total", 0.0, 0.0, 0),
        ("mean", None, None, 0),
        ("proportion", 0.0, 0.0, 0),
    ]
