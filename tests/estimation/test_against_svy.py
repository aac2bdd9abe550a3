"""Means, totals and proportions agree with `svy`, an independent Python package, on random samples."""

import numpy as np
import polars as pl
import pytest
import svy

import svysynth
from golden_survey import assert_agrees

# What svysynth calls the roles of the columns, and what svy does.
DESIGNS = {
    "simple": {},
    "stratified": {"strata": "stratum"},
    "clusters": {"cluster": "psu"},
    "stratified clusters": {"strata": "stratum", "cluster": "psu"},
    "stratified with fpc": {"strata": "stratum", "fpc": "units"},
    "stratified clusters with fpc": {"strata": "stratum", "cluster": "psu", "fpc": "clusters"},
}
SVY_ROLES = {"strata": "stratum", "cluster": "psu", "fpc": "pop_size"}
BREAKDOWNS = [(), ("a",), ("b",), ("a", "b")]


def draw_sample(seed, n=400):
    """A random sample; `units` and `clusters` are the sizes of each stratum in the population."""
    random = np.random.default_rng(seed)
    stratum = random.integers(4, size=n)
    psu = random.integers(8, size=n)
    return pl.DataFrame(
        {
            "y": random.lognormal(7, 0.6, n) * (1 + psu / 8),
            "w": random.uniform(2, 40, n),
            "stratum": stratum,
            "psu": psu,
            "units": 300 + 400 * stratum,
            "clusters": 12 + 7 * stratum,
            "a": random.choice(["a1", "a2", "a3"], n),
            "b": random.choice(["b1", "b2"], n),
        }
    )


def our_table(data, roles, statistics):
    survey = svysynth.read_survey(data, outcome="y", weight="w", public=["a", "b"], transform="identity", **roles)
    return svysynth.tabulate(survey, ["a", "b"], statistics)


def svy_estimation(data, roles):
    design = svy.Design(wgt="w", **{SVY_ROLES[role]: column for role, column in roles.items()})
    return svy.Sample(data, design).estimation


def as_rows(estimates, statistic):
    """What svy estimated, in the shape of our tables."""
    table = estimates.to_polars().rename({"est": "estimate"})
    margins = [pl.lit("All").alias(column) for column in ("a", "b") if column not in table.columns]
    return table.with_columns(pl.lit(statistic).alias("statistic"), *margins)


def broken_down_by(table, by):
    return table.filter((pl.col(column) != "All") == (column in by) for column in ("a", "b"))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("by", BREAKDOWNS, ids=lambda by: " by ".join(by) or "total")
@pytest.mark.parametrize("statistic", ["mean", "total"])
@pytest.mark.parametrize("roles", DESIGNS.values(), ids=DESIGNS)
def test_means_and_totals(roles, statistic, by, seed):
    data = draw_sample(seed)
    theirs = getattr(svy_estimation(data, roles), statistic)("y", by=by or None)
    assert_agrees(broken_down_by(our_table(data, roles, [statistic]), by), as_rows(theirs, statistic))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("column", ["a", "b"])
@pytest.mark.parametrize("roles", DESIGNS.values(), ids=DESIGNS)
def test_proportions(roles, column, seed):
    data = draw_sample(seed)
    theirs = svy_estimation(data, roles).prop(column)
    ours = broken_down_by(our_table(data, roles, ["proportion"]), [column])
    assert_agrees(ours, as_rows(theirs, "proportion"))


@pytest.mark.parametrize("roles", DESIGNS.values(), ids=DESIGNS)
def test_degrees_of_freedom(roles):
    data = draw_sample(seed=3)
    theirs = svy_estimation(data, roles).mean("y").to_polars()
    assert our_table(data, roles, ["mean"])["df"][0] == theirs["df"].item()
