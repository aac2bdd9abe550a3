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


def find(design, *folders):
    """The file of a design, in the first of some folders that has it."""
    return next(folder / f"{design}.csv" for folder in folders if (folder / f"{design}.csv").exists())


def read_golden_survey(path, **named):
    """The records of a design, with those roles for which the file has a column, and the settings that are named."""
    roles = {"strata": "stratum", "cluster": "psu", "fpc": "fpc"}
    columns = pl.read_csv(path, n_rows=0).columns
    declared = {role: column for role, column in roles.items() if column in columns}
    settings = {"outcome": "y", "weight": "w", "public": ["a", "b"], "transform": "identity"}
    return svysynth.read_survey(path, **(settings | declared | named))


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


def assert_agrees_where_known(ours, theirs):
    """The same, where R averages over all replicates; where nobody is left in one, there is no standard error here."""
    known = theirs.filter(pl.col("se").is_not_null() | pl.col("estimate").is_null())
    on = ["statistic", "a", "b"]
    kept, left = (ours.join(known, on=on, how=how, maintain_order="left") for how in ("semi", "anti"))
    assert_agrees(kept, known)
    assert left["se"].null_count() == len(left)
    assert set(ours["df"]) == set(theirs["df"])


def same_spread(se, expected, scale):
    """Relative agreement; where the expected standard error is but rounding, ours has to be negligible too.

    A mean of identical values, the share of everybody and a fully observed population have a standard error of exactly
    zero. R then leaves something like 1e-16 of the estimate, and so may we, but not the same 1e-16: there are no digits
    to compare, only a size. In an empty cell the estimate is zero, and then ours has to be exactly zero.
    """
    if expected <= NO_SPREAD * scale:
        return se <= RELATIVE * scale
    return se == pytest.approx(expected, rel=RELATIVE, abs=0)
