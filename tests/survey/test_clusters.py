"""Published clusters get numbers that follow from public facts alone."""

from __future__ import annotations

import numpy as np

from svysynth.survey.clusters import number_clusters


def test_numbers_follow_from_strata_and_the_sizes_of_cells_alone() -> None:
    random = np.random.default_rng(5)
    psu_stratum = np.sort(random.integers(0, 4, 30))
    psu, cell = random.integers(0, 30, 400), random.integers(0, 6, 400)
    psu[:30] = np.arange(30)  # every cluster occurs
    before = number_clusters(cell, psu, psu_stratum)[psu]
    shuffled = np.empty(30, np.int64)  # the same sample, whose clusters have other numbers within their strata
    for stratum in range(4):
        own = np.flatnonzero(psu_stratum == stratum)
        shuffled[own] = random.permutation(own)
    after = number_clusters(cell, shuffled[psu], psu_stratum)[shuffled[psu]]
    sizes = [np.bincount(number * 6 + cell, minlength=180) for number in (before, after)]
    assert np.array_equal(*sizes)
    assert sorted(np.unique(before)) == list(range(30))
    order = np.argsort(before, kind="stable")
    assert (np.diff(psu_stratum[psu[order]]) >= 0).all()
