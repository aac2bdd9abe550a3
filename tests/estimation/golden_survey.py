"""The golden files of R `survey`, and what it means to agree with them. `golden/survey/versions.txt` says which R."""

import polars as pl
import pytest

import places
import svysynth

GOLDEN = places.GOLDEN / "survey"
REPLICATES = GOLDEN / "replicates"
STATISTICS = ("count", "total", "mean", "proportion")

RELATIVE = 1e-9
NO_SPREAD = 1e-12
"""A standard error below this part of the estimate is rounding: the true one is zero."""


def read_golden_survey(path):
    """The records of a design, with those roles for which the file has a column."""
    roles = {"strata": "stratum", "cluster": "psu", "fpc": "fpc"}
    columns = pl.read_csv(path, n_rows=0).columns
    declared = {role: column for role, column in roles.items() if column in columns}
    return svysynth.read_survey(path, outcome="y", weight="w", public=["a", "b"], transform="identity", **declared)


def assert_agrees(ours, theirs):
    """The same rows, the same missing numbers, and estimates and standard errors that agree."""
    both = ours.join(theirs, on=["statistic", "a", "b"], suffix="_r", maintain_order="left")
    assert len(both) == len(ours) == len(theirs) > 0
    for row in both.rows(named=True):
        if row["estimate_r"] is None:
            assert row["estimate"] is None, row
            assert row["se"] is None, row
        else:
            assert row["estimate"] == pytest.approx(row["estimate_r"], rel=RELATIVE, abs=0), row
            assert same_spread(row["se"], row["se_r"], abs(row["estimate_r"])), row


def same_spread(se, expected, scale):
    """Relative agreement; where the expected standard error is but rounding, ours has to be negligible too.

    A mean of identical values, the share of everybody and a fully observed population have a standard error of exactly
    zero. R then leaves something like 1e-16 of the estimate, and so may we, but not the same 1e-16: there are no digits
    to compare, only a size. In an empty cell the estimate is zero, and then ours has to be exactly zero.
    """
    if expected <= NO_SPREAD * scale:
        return se <= RELATIVE * scale
    return se == pytest.approx(expected, rel=RELATIVE, abs=0)
