"""The attack on the clipped mechanism, which is why `release` withdraws it: neighbours told apart by one draw."""

import numpy as np

from svysynth.attack import attack
from svysynth.censor import trusted_censored
from svysynth.clusters import above_the_middle, clipped_draws, two_clusters
from svysynth.streams import Streams

CLAIM = 2.0
"""For a changed answer, of one draw with ε = 1 for one blanked out."""


def broken(draws):
    """The lower bound on ε that so many draws of each file prove, with all of the mechanism's own checks passed."""
    samples = [
        above_the_middle(trusted_censored(clipped_draws(side, 1.0, draws, Streams.seeded(3)))) for side in (-1, 1)
    ]
    return samples, attack(*samples, ["side of the middle"])


def test_the_files_are_neighbours():
    one, other = (two_clusters(side) for side in (-1, 1))
    assert len(one) == 200
    assert np.array_equal(one.t[1:], other.t[1:])
    assert np.array_equal(one.v, other.v)


def test_one_draw_tells_them_apart_with_every_diagnostic_passed():
    samples, found = broken(200)
    assert [sample.sum() for sample in samples] == [0, 200]
    assert found.epsilon > 3.2 > CLAIM
