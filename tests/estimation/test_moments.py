"""Moments: merging the moments of parts gives the moments of the whole, however the records are cut."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svysynth.core import engine
from svysynth.core.grouping import group_ids
from svysynth.estimation.moments import Moments, compute_moments, merge_moments

FIELDS = list(Moments.__dataclass_fields__)


def some_records(generator, n):
    return (
        generator.integers(4, size=n),
        generator.integers(6, size=n),
        generator.lognormal(size=n),
        100 + generator.normal(size=n),
    )


def plain_moments(block, cell, weight, outcome):
    """The definition, one group at a time."""
    for key in sorted({(b, c) for b, c in zip(block, cell, strict=True)}):
        chosen = (block == key[0]) & (cell == key[1])
        w, y = weight[chosen], outcome[chosen]
        reference = np.average(y, weights=w)
        e = w * (y - reference)
        cross = np.cov(np.array([w, e]), bias=True) * len(w) if len(w) > 1 else np.zeros((2, 2))
        yield key, len(w), reference, w.mean(), e.mean(), cross[0, 0], cross[0, 1], cross[1, 1]


def assert_same(one, other):
    assert np.array_equal(one.block, other.block)
    assert np.array_equal(one.cell, other.cell)
    assert np.array_equal(one.count, other.count)
    for name in ("reference", "mean_w"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)
    size = one.count * one.mean_w
    for name, unit in (("mean_e", size), ("scatter_ww", size**2), ("scatter_we", size**2), ("scatter_ee", size**2)):
        assert np.all(np.abs(getattr(one, name) - getattr(other, name)) <= 1e-9 * unit), name


def test_moments_follow_their_definition(monkeypatch):
    monkeypatch.setattr(engine, "BLOCK", 50)
    records = some_records(np.random.default_rng(1), 400)
    found = compute_moments(*records, cells=6)
    for position, expected in enumerate(plain_moments(*records)):
        assert (found.block[position], found.cell[position]) == expected[0]
        values = [getattr(found, name)[position] for name in FIELDS[2:]]
        assert values == pytest.approx(expected[1:], rel=1e-8, abs=1e-8)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 120), min_size=1, max_size=6))
def test_any_cut_gives_the_same_moments(seed, sizes):
    generator = np.random.default_rng(seed)
    records = some_records(generator, sum(sizes))
    edges = np.cumsum([0, *sizes])
    parts = [
        compute_moments(*(column[start:stop] for column in records), cells=6)
        for start, stop in itertools.pairwise(edges)
    ]
    assert_same(merge_moments(parts, cells=6), compute_moments(*records, cells=6))


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(51, 10_000))
def test_group_ids_are_those_of_unique(keys, bound):
    """Both ways of numbering, by table and by sorting, number the same."""
    keys = np.array(keys)
    expected = np.unique(keys, return_inverse=True)
    for found, wanted in zip(group_ids(keys, bound), expected, strict=True):
        assert np.array_equal(found, wanted)
