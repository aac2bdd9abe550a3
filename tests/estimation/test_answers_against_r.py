"""Tables of several answers agree with R `survey`: `golden/answers/make.R` says how they are made there."""

from functools import cache

import polars as pl
import pytest

import places
import svysynth
from golden_survey import RELATIVE, same_spread

GOLDEN = places.GOLDEN / "answers"
TEXT = {"design": pl.String, "domain": pl.String, "a": pl.String, "s": pl.String, "u": pl.String}
ALONE = pl.when(pl.col("statistic").str.starts_with("ratio")).then("statistic").otherwise(pl.lit("")).alias("alone")
READ = pl.read_csv(GOLDEN / "values.csv", schema_overrides=TEXT)
VALUES = READ.with_columns(ALONE, pl.col("domain", "of", "within").fill_null(""))
TABLES = VALUES.select("design", "domain", "of", "by", "within", "alone").unique(maintain_order=True).rows()
ROLES = {"strata": "stratum", "cluster": "psu", "fpc": "fpc"}
VARIABLES = {
    "x": {"kind": "amount"},
    "z": {"kind": "amount"},
    "s": {"kind": "category"},
    "u": {"kind": "yes/no", "yes": "Yes", "no": "No"},
}
MISSING = {"z": {"missing": "NA"}, "u": {"missing": "NA"}}


def settings(design, domain):
    """The file of a design, and the settings with which it is read."""
    path = GOLDEN / f"{'apistrat' if design == 'post' else design}.csv"
    header = pl.read_csv(path, n_rows=0).columns
    found = {role: column for role, column in ROLES.items() if column in header}
    found |= {"outcome": "y", "weight": "w", "public": "a", "transform": "identity", "domain": domain or None}
    if design == "jk1":
        found["replicates"] = {"weights": f"r1-r{sum(name.startswith('r') for name in header)}", "method": "jk1"}
    if design == "post":
        margins = [{"by": ["a"], "totals": {"No": 2100, "Yes": 4094}}]
        found["calibration"] = {"method": "post-stratify", "margins": margins}
    return path, found | {"variables": VARIABLES, "columns": MISSING}


@cache
def read(design, domain):
    path, named = settings(design, domain)
    return svysynth.read_survey(path, **named)


def assert_agrees(ours, theirs):
    """Every golden row has its row here, with the same numbers. Where R leaves replicates out there is none."""
    labels = [column for column in ("a", "s", "u") if column in ours.columns]
    both = theirs.join(ours, on=["statistic", *labels], how="left", suffix="_ours", maintain_order="left")
    assert len(both) == len(theirs) > 0
    for row in both.rows(named=True):
        assert row["estimate_ours"] == pytest.approx(row["estimate"], rel=RELATIVE, abs=0), row
        assert (row["df_ours"], row["n_ours"]) == (row["df"], row["n"]), row
        if row["se"] is None:
            assert row["se_ours"] is None, row
        else:
            assert same_spread(row["se_ours"], row["se"], abs(row["estimate"])), row


@pytest.mark.parametrize("table", TABLES, ids=" ".join)
def test_tables_of_answers_are_those_of_r(table):
    design, domain, of, by, within, alone = table
    theirs = VALUES.filter(design=design, domain=domain, of=of, by=by, within=within, alone=alone)
    statistics = theirs["statistic"].unique(maintain_order=True).to_list()
    ours = svysynth.tabulate(read(design, domain), by.split(), statistics, of=of or None, within=within or ())
    assert_agrees(ours, theirs)
