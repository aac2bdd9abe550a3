"""Tables by bands, recodes and missing answers agree with R's `cut` and `survey` (`golden/columns/make.R`)."""

import polars as pl
import pytest

import places
import svysynth
from golden_survey import STATISTICS, assert_agrees, read_golden_survey

GOLDEN = places.GOLDEN / "columns"
VALUES = pl.read_csv(GOLDEN / "values.csv")
DESIGNS = {
    "apiclus2": {
        "cluster": "psu",
        "fpc": "fpc",
        "columns": {
            "a": {"from": "enroll", "bands": [263, 396, 1000], "missing": "-9", "missing_level": "not stated"},
            "b": {"from": "classes", "bands": [18.5, 20], "missing_level": "not stated"},
        },
    },
    "nhanes": {
        "strata": "stratum",
        "cluster": "psu",
        "columns": {
            "a": {
                "from": "cholesterol",
                "recode": {"0": "low", "1": "high"},
                "missing": ["98"],
                "missing_level": "not stated",
            },
            "b": {"from": "race", "recode": {"1": "other", "2": "white", "3": "other", "4": "other"}},
        },
    },
}


@pytest.mark.parametrize("design", DESIGNS)
def test_tables_are_r_s(design):
    theirs = VALUES.filter(design=design)
    survey = read_golden_survey(GOLDEN / f"{design}.csv", **DESIGNS[design])
    ours = svysynth.tabulate(survey, ["a", "b"], STATISTICS)
    assert_agrees(ours, theirs)
    both = ours.join(theirs, on=["statistic", "a", "b"], suffix="_r")
    assert both["n"].to_list() == both["n_r"].to_list()
