"""The one-pass variances against a twin that visits every record for every cell, over random designs."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svysynth
from twin import twin_table

STATISTICS = ["count", "total", "mean", "proportion"]
LEVELS = {"a": ["p", "q", "r"], "b": ["u", "v"]}


@st.composite
def designs(draw):
    """A random design: its shape is drawn by hypothesis, so that failures shrink to small ones."""
    strata = draw(st.integers(1, 5))
    clustered = draw(st.booleans())
    corrected = draw(st.booleans())
    weights = draw(st.sampled_from(["equal", "mild", "extreme"]))
    outcomes = draw(st.sampled_from(["constant", "spread", "far from zero"]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    records = []
    for stratum in range(strata):
        psus = draw(st.integers(1, 6))
        size = psus + draw(st.integers(0, 5)) if corrected else float("inf")
        for psu in range(psus):
            for _ in range(draw(st.integers(1, 4)) if clustered else 1):
                records.append(
                    {
                        "stratum": stratum,
                        "psu": psu,
                        "size": size,
                        "a": LEVELS["a"][generator.integers(3)],
                        "b": LEVELS["b"][generator.integers(2)],
                        "w": {"equal": 7.3, "mild": generator.lognormal(), "extreme": 10 ** generator.uniform(-6, 8)}[
                            weights
                        ],
                        "y": {
                            "constant": 3.7,
                            "spread": generator.normal(),
                            "far from zero": 1e9 + generator.normal(),
                        }[outcomes],
                    }
                )
    return records, clustered, corrected


def as_survey(records, clustered, corrected):
    return svysynth.read_survey(
        pl.DataFrame(records, schema_overrides={"size": pl.Float64}),
        outcome="y",
        weight="w",
        strata="stratum",
        cluster="psu" if clustered else None,
        fpc="size" if corrected else None,
        public=["a", "b"],
        labels={column: {level: level for level in levels} for column, levels in LEVELS.items()},
        transform="identity",
    )


def assert_agrees(records, clustered, corrected, lonely):
    survey = as_survey(records, clustered, corrected)
    estimation = svysynth.EstimationSpec(lonely=lonely)
    table = svysynth.tabulate(survey, ["a", "b"], STATISTICS, estimation)
    ratios = svysynth.TableSpec(by=("a", "b"), statistics=("count", "total"))
    scaled = svysynth.tabulate_all(survey, [ratios], estimation, scaled=True)
    named = scaled.with_columns(pl.concat_str(pl.lit("scaled "), "statistic").alias("statistic"))
    twin = twin_table(records, LEVELS, lonely)
    for row in pl.concat([table, named]).iter_rows(named=True):
        key = row["statistic"], row["a"], row["b"]
        if key not in twin:
            assert row["statistic"] == "mean"
            assert row["n"] == 0
            assert row["estimate"] is None
            assert row["se"] is None
            continue
        estimate, se, scale = twin[key]
        assert row["estimate"] == pytest.approx(estimate, rel=1e-12), key
        assert row["se"] == pytest.approx(se, rel=1e-10, abs=1e-13 * scale), key


@settings(max_examples=300)
@given(designs(), st.sampled_from(["certainty", "adjust"]))
def test_one_pass_equals_the_twin(design, lonely):
    assert_agrees(*design, lonely)


@pytest.mark.study
@settings(max_examples=20_000)
@given(designs(), st.sampled_from(["certainty", "adjust"]))
def test_one_pass_equals_the_twin_over_many_designs(design, lonely):
    assert_agrees(*design, lonely)


def test_equal_weights_have_no_variance():
    """Nothing cancels in centred moments: plain sums of squares would leave a standard error of about 1e-8 here."""
    frame = pl.DataFrame({"w": [0.1] * 1000, "y": [5.3] * 1000, "g": [1, 2] * 500})
    survey = svysynth.read_survey(frame, outcome="y", weight="w", public=["g"])
    total = svysynth.tabulate(survey, [], ["count", "mean"])
    assert total["se"].to_list() == pytest.approx([0, 0], abs=1e-13)
