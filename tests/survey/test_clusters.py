"""Published clusters get numbers that follow from public facts alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.core.spec.whole import parse_spec
from svysynth.estimation.combining import SMOOTHED
from svysynth.mechanisms.synthetic_files import read_synthetic
from svysynth.privacy.release import as_published, survey_of_microdata
from svysynth.survey.clusters import exchange_alike, number_clusters
from svysynth.survey.on_disk import survey_of_columns


def test_numbers_follow_from_strata_and_the_sizes_of_cells_alone() -> None:
    random = np.random.default_rng(5)
    psu_stratum = np.sort(random.integers(0, 4, 30))
    psu, cell = random.integers(0, 30, 400), random.integers(0, 6, 400)
    psu[:30] = np.arange(30)  # every cluster occurs
    one = np.ones(400, np.int64)
    before = number_clusters(cell, psu, one, psu_stratum)[psu]
    shuffled = np.empty(30, np.int64)  # the same sample, whose clusters have other numbers within their strata
    for stratum in range(4):
        own = np.flatnonzero(psu_stratum == stratum)
        shuffled[own] = random.permutation(own)
    after = number_clusters(cell, shuffled[psu], one, psu_stratum)[shuffled[psu]]
    sizes = [np.bincount(number * 6 + cell, minlength=180) for number in (before, after)]
    assert np.array_equal(*sizes)
    assert sorted(np.unique(before)) == list(range(30))
    order = np.argsort(before, kind="stable")
    assert (np.diff(psu_stratum[psu[order]]) >= 0).all()


ROLES = {"outcome": "y", "public": "g", "strata": "h", "cluster": "c"}


def schools() -> pl.DataFrame:
    """Pupils of 12 schools, numbered anew in each of three districts."""
    random = np.random.default_rng(3)
    size = 240
    return pl.DataFrame(
        {
            "y": random.lognormal(3, 0.5, size),
            "w": random.lognormal(2, 0.3, size),
            "g": random.integers(0, 2, size).astype(str),
            "h": np.arange(size) % 3,
            "c": 900 - np.arange(size) // 3 % 4,
        }
    )


def test_groups_tell_clusters_apart_and_hide_their_numbers() -> None:
    survey = svysynth.read_survey(schools(), weight="w", **ROLES)
    groups = survey.groups
    assert groups.frame.columns == ["g", "h", "c"]
    assert sorted(set(groups.frame["c"])) == list(range(1, 13))
    assert groups.frame.n_unique(["h", "c"]) == 12
    assert groups.count.sum() == 240
    assert len(groups.count) == 24
    first = groups.frame.rows()
    assert first == sorted(first)  # by cell, then stratum, then cluster


def test_a_public_column_of_clusters_keeps_its_labels() -> None:
    frame = schools().with_columns(c=pl.format("{}-{}", "h", "c"))
    survey = svysynth.read_survey(frame, weight="w", **ROLES | {"public": ["g", "c"]})
    assert set(survey.groups.frame["c"].cast(pl.String)) == set(frame["c"])


def test_synthetic_files_have_the_clusters_and_give_their_standard_errors() -> None:
    survey = svysynth.read_survey(schools(), weight="w", **ROLES)
    groups, place = survey.grouped(np.ones(len(survey), np.int64))

    def columns(piece: slice):
        return place[piece], survey.outcome_values[piece], survey.weights[piece]

    made = survey_of_columns(survey, groups, columns, (SMOOTHED,), "synthetic")
    expected = svysynth.tabulate(survey, "g")
    assert made.index.degrees_of_freedom == 12 - 3
    assert_same(svysynth.tabulate(made, "g"), expected)
    published = as_published(made.frame, 0)
    assert published["c"].dtype == pl.String
    settings = ROLES | {"data": "microdata", "weight": "w"}
    text = "[survey]\n" + "\n".join(f"{name} = {value!r}" for name, value in settings.items())
    again = survey_of_microdata(published, parse_spec(text), {"g": survey.levels("g")})
    assert_same(svysynth.tabulate(again, "g"), expected)
    read = read_synthetic([published], rules="imputed", weight_public=True, **ROLES)
    assert_same(svysynth.tabulate(read.surveys[0], "g"), expected)


def assert_same(mine: pl.DataFrame, other: pl.DataFrame) -> None:
    for name in ("estimate", "se", "df"):
        assert np.allclose(mine[name], other[name], rtol=1e-12)


def test_clusters_that_are_alike_exchange_their_numbers_and_others_keep_theirs() -> None:
    """Their order is that of the confidential file, which would give a name to each of them."""
    number = np.repeat(np.arange(1, 61), 2)
    cell, count = np.tile([0, 1], 60), np.full(120, 10)
    count[-2:] = 11, 9  # the last cluster is unlike the others
    stratum = np.repeat([0, 1], 60)
    found = exchange_alike(number, stratum, cell, count, np.random.default_rng(1))
    assert (found[::2] == found[1::2]).all()
    own = found[::2]
    assert sorted(own[:30]) == list(range(1, 31))
    assert sorted(own[30:59]) == list(range(31, 60))
    assert own[59] == 60
    assert abs(np.corrcoef(own[:30], np.arange(30))[0, 1]) < 0.5


@pytest.mark.parametrize(
    "section", ["columns.c]\nbands = [3]", "columns.h]\nrecode = { '0' = 'a', '1' = 'a', '2' = 'b' }"]
)
def test_clusters_and_the_strata_that_number_them_cannot_be_grouped(section: str) -> None:
    text = "[survey]\ndata = 'd'\noutcome = 'y'\nweight = 'w'\npublic = ['g', 'c']\nstrata = 'h'\ncluster = 'c'\n"
    with pytest.raises(svysynth.SurveyError, match=r"groups the (clusters|strata)"):
        parse_spec(text + f"[survey.{section}\n")


def test_cells_with_large_numbers_give_the_numbers_of_their_ranks() -> None:
    """Where each weight makes a cell of its own, cells times clusters may exceed 64 bits."""
    random = np.random.default_rng(6)
    psu, cell, one = np.repeat(np.arange(40), 5), random.integers(0, 9, 200), np.ones(200, np.int64)
    alone = np.zeros(40, np.int64)
    expected = number_clusters(cell, psu, one, alone)
    np.testing.assert_array_equal(number_clusters(cell * 2**58 + 2**40, psu, one, alone), expected)
