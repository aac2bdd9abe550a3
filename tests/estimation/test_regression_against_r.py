"""Regressions of a survey agree with R's `svyglm`: `golden/regression/make.R` says how they are made there."""

from functools import cache

import polars as pl
import pytest

import places
import svysynth
from golden_survey import RELATIVE, same_spread
from svysynth.estimation.regression import regression_of

GOLDEN = places.GOLDEN
VALUES = pl.read_csv(GOLDEN / "regression/values.csv").with_columns(pl.col("domain").fill_null(""))
COMBINED = pl.read_csv(GOLDEN / "regression/combined.csv")
CASES = VALUES.select("case", "formula", "family", "domain", "lonely").unique(maintain_order=True).rows()
FOLDERS = {
    "two_stages": "stages/apiclus2",
    "apiclus1": "calibration/apiclus1",
    "jackknife": "calibration/apiclus1",
    "post": "answers/apistrat",
    "fay": "replicate_weights/fay",
    "fay_mean": "replicate_weights/fay",
    "jkn": "replicate_weights/jkn",
    **{name: f"survey/{name}" for name in ("lonely", "lonely_fpc", "lonely_clusters")},
}
ROLES = {"strata": ["stratum"], "cluster": ["psu", "ssu"], "fpc": ["fpc", "fpc1", "fpc2"]}
ANSWERS = {
    "x": {"kind": "amount"},
    "z": {"kind": "amount"},
    "s": {"kind": "category"},
    "u": {"kind": "yes/no", "yes": "Yes", "no": "No"},
}
REPLICATES = {
    "jk1": {"method": "jk1"},
    "fay": {"method": "fay", "rho": 0.3},
    "fay_mean": {"method": "fay", "rho": 0.3, "center": "mean"},
    "jkn": {"method": "jkn", "scales": pl.read_csv(GOLDEN / "replicate_weights/scales.csv")["scale"].to_list()},
}
SMALL = 1e-9
"""Of the largest standard error of a model: a coefficient is a difference, and agrees in absolute terms."""


@cache
def read(case, domain):
    path = GOLDEN / f"{FOLDERS.get(case, f'answers/{case}')}.csv"
    header = pl.read_csv(path, n_rows=0).columns
    found = {role: [name for name in names if name in header] or None for role, names in ROLES.items()}
    if case == "jackknife":
        found["fpc"] = None
    found |= {"outcome": "y", "weight": "w", "transform": "identity", "domain": in_the_spec(domain)}
    found["public"] = [name for name in ("a", "b") if name in header]
    if "u" in header:
        found |= {"variables": ANSWERS, "columns": {"z": {"missing": "NA"}, "u": {"missing": "NA"}}}
    elif case.startswith("fay"):  # y is 0 or 1
        found["variables"] = {"y": {"kind": "yes/no", "yes": "1", "no": "0"}}
    if case in REPLICATES:
        names = [name for name in header if name[0] == "r" and name[1:].isdigit()]
        found["replicates"] = {"weights": names} | REPLICATES[case]
    if case == "post":
        margins = [{"by": ["a"], "totals": {"No": 2100, "Yes": 4094}}]
        found["calibration"] = {"method": "post-stratify", "margins": margins}
    return svysynth.read_survey(path, **found)


def in_the_spec(domain):
    """R's condition as a domain; those who answered are a domain by themselves."""
    return None if "is.na" in domain else domain or None


def same_number(ours, theirs, scale):
    return ours == pytest.approx(theirs, rel=RELATIVE, abs=SMALL * scale)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_coefficients_errors_and_degrees_of_freedom_are_those_of_r(case):
    name, formula, family, domain, lonely = case
    theirs = VALUES.filter(case=name, formula=formula, family=family, domain=domain, lonely=lonely)
    estimation = svysynth.EstimationSpec(lonely=lonely, variance="jackknife" if name == "jackknife" else "taylor")
    ours = regression_of(read(name, domain), formula, family, estimation).table
    assert len(ours) == len(theirs)
    scale = theirs["se"].max()
    for mine, row in zip(ours.rows(named=True), theirs.rows(named=True), strict=True):
        assert in_rs_words(mine["term"]) == row["term"], (mine, row)
        assert same_number(mine["estimate"], row["estimate"], scale), (mine, row)
        assert same_spread(mine["se"], row["se"], abs(row["estimate"])), (mine, row)
        assert mine["df"] == row["df"], (mine, row)
        assert same_number(mine["lower"], row["lower"], scale), (mine, row)
        assert same_number(mine["upper"], row["upper"], scale), (mine, row)


def in_rs_words(term):
    """The name that R has for a coefficient; a yes/no answer is a number there."""
    if term == "Intercept":
        return "(Intercept)"
    return term.replace("[yes]", "").replace("[", "").replace("]", "")


@pytest.mark.parametrize(("formula", "family"), COMBINED.select("formula", "family").unique(maintain_order=True).rows())
def test_imputed_files_are_combined_as_by_mitools(formula, family):
    files = [GOLDEN / f"regression/file-{number}.csv" for number in (1, 2, 3)]
    roles = {"outcome": "y", "public": ["a", "s"], "strata": "stratum", "transform": "identity"}
    ours = svysynth.regress(formula, svysynth.read_synthetic(files, **roles, rules="imputed"), family).table
    theirs = COMBINED.filter(formula=formula, family=family)
    assert [in_rs_words(term) for term in ours["term"]] == theirs["term"].to_list()
    for mine, row in zip(ours.rows(named=True), theirs.rows(named=True), strict=True):
        assert same_number(mine["estimate"], row["estimate"], theirs["se"].max()), row
        assert mine["se"] == pytest.approx(row["se"], rel=RELATIVE, abs=0), row
        assert mine["df"] == pytest.approx(row["df"], rel=RELATIVE, abs=0), row
