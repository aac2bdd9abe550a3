"""Compares Laplace noise on the stand-in with the paper's printed columns: bench/study_of_laplace_tables.py."""

import numpy as np
import polars as pl

from criteria import unmet
from places import DOCS
from study_of_laplace_tables import KINDS, compare, criteria, main
from svysynth.mechanisms.paper_comparison.tables import LABEL


def test_inner_standard_errors_are_of_the_paper_s_order_of_magnitude():
    beside, _ = compare(20)
    assert unmet(criteria(beside)) == []
    for statistic, order in (("count", 3), ("mean", 5)):
        inner = beside[statistic].filter(KINDS["inner cells"])
        assert int(np.log10(inner["here"].median())) == int(np.log10(inner["laplace_se"].median())) == order


def test_another_order_of_magnitude_and_missing_cells_are_told():
    beside, _ = compare(1)
    far = beside["mean"].with_columns(ratio=4 * pl.col("ratio"))
    told = unmet(criteria({"count": beside["count"][1:], "mean": far}))
    assert "Counts: 26 cells" in told[0]
    assert "Average salaries: in inner cells" in told[1]
    assert len(told) == 2


def test_the_committed_page_says_what_it_shows():
    text = (DOCS / "laplace.md").read_text(encoding="utf-8")
    assert LABEL in text
    assert (DOCS / "laplace.svg").exists()
    assert text.count("\n| ") >= 2 * 27


def test_a_page_is_written_and_judged(tmp_path):
    assert main(["--draws", "3", "--out", str(tmp_path)]) == 0
    committed, written = (
        (folder / "laplace.md").read_text(encoding="utf-8").splitlines() for folder in (DOCS, tmp_path)
    )
    assert committed[:4] == written[:4]
    assert [line.split("|")[1:3] for line in committed if line.startswith("|")] == [
        line.split("|")[1:3] for line in written if line.startswith("|")
    ]
    assert (tmp_path / "laplace.svg").exists()
