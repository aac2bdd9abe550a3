"""Quantiles with Woodruff intervals, and shares above a threshold, agree with R (`golden/quantiles/make.R`)."""

from functools import cache

import polars as pl
import pytest

import places
import svysynth
from golden_survey import RELATIVE

GOLDEN = places.GOLDEN / "quantiles"
VALUES = pl.read_csv(GOLDEN / "values.csv").with_columns(pl.col("domain", "rule", "interval").fill_null(""))
CASES = VALUES.select("design", "domain").unique(maintain_order=True).rows()
FOLDERS = [places.GOLDEN / name for name in ("survey", "domains", "calibration")]
ROLES = {"strata": "stratum", "cluster": "psu", "fpc": "fpc"}
SCALES = pl.read_csv(places.GOLDEN / "replicate_weights" / "scales.csv")["scale"].to_list()
OWN = {"fay": {"rho": 0.3}, "jk1": {"scale": 14 / 15}, "jkn": {"scales": SCALES}}
TOTALS = pl.read_csv(places.GOLDEN / "calibration" / "totals.csv")


@cache
def read(design, domain):
    kind, name, center = (design if " " in design else f"linear {design}").split() + ["true"] * (design.count(" ") < 2)
    settings = {"outcome": "y", "weight": "w", "public": ["a", "b"], "transform": "identity", "domain": domain or None}
    if kind == "replicates":
        path = places.GOLDEN / "replicate_weights" / f"{name}.csv"
        count = sum(column.startswith("r") for column in pl.read_csv(path, n_rows=0).columns)
        replicates = {"weights": f"r1-r{count}", "method": name, "center": "estimate" if center == "true" else "mean"}
        return svysynth.read_survey(path, replicates=replicates | OWN.get(name, {}), **settings)
    if kind == "stages":
        stages = {"cluster": ["psu", "ssu"], "fpc": ["fpc1", "fpc2"]}
        return svysynth.read_survey(places.GOLDEN / "stages" / f"{name}.csv", **stages, **settings)
    path = next(folder / f"{name}.csv" for folder in FOLDERS if (folder / f"{name}.csv").exists())
    columns = pl.read_csv(path, n_rows=0).columns
    settings |= {role: column for role, column in ROLES.items() if column in columns}
    if kind == "post-stratify":
        totals = TOTALS.filter(design=name, method="post-stratify a")
        margins = [{"by": ["a"], "totals": dict(totals.select("a", "total").rows())}]
        settings["calibration"] = {"method": "post-stratify", "margins": margins}
    return svysynth.read_survey(path, **settings)


def assert_agrees(ours, theirs):
    both = theirs.join(ours, on=["statistic", "a", "b"], how="left", suffix="_ours", maintain_order="left")
    assert len(both) == len(theirs) > 0
    for row in both.rows(named=True):
        assert row["df_ours"] == row["df"], row
        for name in ("estimate", "se", "lower", "upper"):
            expected = row[name] if row[name] is None else pytest.approx(row[name], rel=RELATIVE, abs=1e-12)
            assert row[f"{name}_ours"] == expected, (name, row)


@pytest.mark.parametrize(("design", "domain"), CASES)
def test_quantiles_are_those_of_svyquantile(design, domain):
    theirs = VALUES.filter(pl.col("rule") != "", design=design, domain=domain)
    for (rule, interval), values in theirs.group_by("rule", "interval", maintain_order=True):
        estimation = svysynth.EstimationSpec(quantile_rule=rule, quantile_interval=interval)
        statistics = values["statistic"].unique().to_list()
        if interval == "mean":  # where no record is above the quantile, R gives the interval from itself to itself
            without = [
                pl.when(pl.col("se") == 0).then(None).otherwise(name).alias(name) for name in ("lower", "upper", "se")
            ]
            values = values.with_columns(without)
        assert_agrees(svysynth.tabulate(read(design, domain), ["a", "b"], statistics, estimation), values)


@pytest.mark.parametrize(("design", "domain"), CASES)
def test_shares_above_a_threshold_are_means_of_an_indicator(design, domain):
    theirs = VALUES.filter(rule="", design=design, domain=domain)
    ours = svysynth.tabulate(read(design, domain), ["a", "b"], theirs["statistic"].unique().to_list())
    assert_agrees(ours, theirs)


def test_most_golden_values_are_those_of_svyquantile_itself():
    """The others are where R's rule is off its definition; make.R checks that for every one of them."""
    assert VALUES["own"].is_in([0, 1, 2]).all()
    assert (VALUES["own"] == 0).mean() > 0.85
