"""Finite population corrections in releases from noisy sums: in the files, in the tables and for their users."""

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import svysynth
from r_survey import r_is_here
from svysynth.core.errors import SurveyError
from svysynth.mechanisms.noisy_sums.counts import ExactCounts
from svysynth.mechanisms.noisy_sums.measuring.public_facts import facts_of
from svysynth.mechanisms.noisy_sums.posterior.fitting import tables_of
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.report.snippets import snippets
from svysynth.publishing.verification import verify_release
from test_noisy_files import SPEC, TABLE, TOTAL, maker, people

SIZES = {"a0": 500.0, "a1": 900.0, "a2": 300.0}
"""Of each area, which has 300 records: the last is fully observed."""
ROLES = {"outcome": "income", "weight": "wt", "strata": "area", "public": ["region", "sex"], "transform": "identity"}
FPC = {"fpc": "households", "fpc_public": True}
ESTIMATION = svysynth.EstimationSpec()


def sampled(**sizes):
    return people().with_columns(households=pl.col("area").replace_strict(SIZES | sizes, return_dtype=pl.Float64))


def read(frame, **changes):
    return svysynth.read_survey(frame, population_total=TOTAL, **ROLES | changes)


@pytest.mark.parametrize("as_fractions", [False, True])
def test_the_facts_have_the_correction_of_every_stratum(as_fractions):
    frame = sampled()
    frame = frame.with_columns(300 / pl.col("households")) if as_fractions else frame
    np.testing.assert_allclose(facts_of(read(frame, **FPC)).unsampled, [0.4, 2 / 3, 0], rtol=1e-12)
    assert (facts_of(read(frame)).unsampled == 1).all()


def test_the_sampling_part_of_the_variance_alone_is_corrected():
    """With the same fraction f everywhere it is 1 − f times as large, and the part from noise is as it was."""
    make = maker()
    settings = make.measurement, [TABLE], ESTIMATION
    plain, third, all_of_it = (
        tables_of(make.drawn, settings[0], replace(make.facts, fpc=fpc), *settings[1:])["se"].to_numpy() ** 2
        for fpc in (None, np.full(3, 1 / 3), np.full(3, 300.0))
    )
    np.testing.assert_allclose(third - all_of_it, (plain - all_of_it) * 2 / 3, rtol=1e-9, atol=1e-9 * plain.max())
    assert (all_of_it[plain > 0] < plain[plain > 0]).all()


def test_exact_counts_have_the_standard_errors_of_direct_tables():
    survey = read(sampled(), weight_public=True, **FPC)
    direct = svysynth.tabulate(survey, ["region", "sex"], ["count", "proportion"])
    facts = facts_of(survey)
    found, variance = ExactCounts.of(facts)("count", facts.cell, "fail", np.ones(len(facts.cell), bool))
    expected = direct.filter((pl.col("statistic") == "count") & (pl.col("region") != "All") & (pl.col("sex") != "All"))
    np.testing.assert_allclose(found, expected["estimate"], rtol=1e-12)
    np.testing.assert_allclose(np.sqrt(variance), expected["se"], rtol=1e-9)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    house = tmp_path_factory.mktemp("house")
    sampled().write_csv(house / "people.csv")
    (house / "s.toml").write_text(
        SPEC.replace('strata = "area"', 'strata = "area"\nfpc = "households"\nfpc_public = true')
    )
    open_budget(house / "ledger.sqlite", "people", 100, "differential privacy")
    return house, svysynth.release(house / "s.toml", house / "out")


def test_a_release_publishes_the_correction_and_is_verified(released):
    house, done = released
    verify_release(house / "out", house / "ledger.sqlite")
    file = pl.read_csv(house / "out/public/microdata-1.csv")
    expected = file["area"].replace_strict({0: 500, 1: 900, 2: 300})
    assert file["households"].cast(pl.Int64).equals(expected)
    assert "households" in done.guarantee.public
    more = svysynth.more(house / "out/public").synthetic(1)
    assert more.surveys[0].index.unsampled.tolist() == pytest.approx([0.4, 2 / 3, 0])


def test_users_get_the_same_standard_errors(released, tmp_path):
    house, done = released
    code = snippets(done)
    assert 'fpc="households"' in code["python"]
    assert "fpc(households)" in code["stata"]
    public = tmp_path / "public"
    shutil.copytree(house / "out/public", public)
    names = sorted(public.glob("microdata-*.csv"))
    roles = {"outcome": "income", "public": ["region", "sex"], "strata": "area", "rules": "imputed"}
    statistics = ["count", "mean", "total"]
    mine = svysynth.read_synthetic(names, fpc="households", **roles).tabulate(["region", "sex"], statistics)
    uncorrected = svysynth.read_synthetic(names, **roles).tabulate(["region", "sex"], statistics)
    errors = uncorrected["se"] > 0
    assert (mine["se"].filter(errors) < uncorrected["se"].filter(errors)).all()
    if not r_is_here():
        pytest.skip("R with the packages survey and mitools is not installed here: the code cannot be run")
    kept = [f'write.csv({one}, "{one}.csv", row.names = FALSE)' for one in statistics]
    (public / "use.R").write_text(code["r"] + "\n".join(kept))
    done = subprocess.run(["Rscript", "--vanilla", "use.R"], cwd=public, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for statistic in statistics:
        made = pl.read_csv(public / f"{statistic}.csv").join(
            mine.filter(statistic=statistic), on=["region", "sex"], suffix="_python"
        )
        assert made.height == 6
        for name in ("estimate", "se", "df"):
            np.testing.assert_allclose(made[name], made[f"{name}_python"], rtol=1e-9)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("\n[privacy]", '\nfpc = "households"\n[privacy]', "the finite population correction is not declared public"),
        (
            "\n[privacy]",
            '\nfpc = "households"\nfpc_public = true\nlevels = {region = ["r0", "r1", "r2"], sex = ["f", "m"], '
            'area = ["a0", "a1", "a2"]}\n[privacy]\nprotect = "record"',
            "survey.fpc: cannot be used where whole records are protected",
        ),
        (
            "[[tables]]",
            '[estimation]\nlonely = "average"\n[[tables]]',
            "releases cannot give a stratum of one unit the average",
        ),
    ],
)
def test_what_a_release_cannot_do_is_refused_before_the_charge(tmp_path, old, new, problem):
    sampled().write_csv(tmp_path / "people.csv")
    (tmp_path / "s.toml").write_text(SPEC.replace(old, new, 1))
    open_budget(tmp_path / "ledger.sqlite", "people", 100, "differential privacy")
    with pytest.raises(SurveyError, match=problem):
        svysynth.release(tmp_path / "s.toml", tmp_path / "out")
    assert not (tmp_path / "out").exists()
