"""Two clusters: the pair of neighbours through which the clipped mechanism's guarantee was broken (docs/privacy.md).

Outcomes lie in two groups far apart, mirror images of each other, and one respondent's answer is far out on one side
or on the other. A clipped likelihood then has a mode at either group, of equal height but for that respondent. Chains
start where a climb from the data's middle ends: at the group on the respondent's side. The other mode is too far off
for them, each group's posterior is as regular as can be, and every diagnostic passes.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from svysynth.censor import CensoredFit, fit_censored
from svysynth.groups import Floats
from svysynth.interval import place_interval
from svysynth.models.base import Records
from svysynth.models.fbp import FBP
from svysynth.spec import StandInSpec
from svysynth.streams import Streams

PAIRS = 99
APART, FAR, SPREAD = 3.0, 12.0, 0.4
"""Where the groups and the respondent are, in log outcomes, and the spread within groups and of log weights."""


def two_clusters(side: int) -> Records:
    """200 records, all but the first the same for both sides (−1 and 1)."""
    generator = np.random.default_rng(1)
    score = ndtri((np.arange(PAIRS) + 0.5) / PAIRS)
    t, v = APART + SPREAD * generator.permutation(score), SPREAD * generator.permutation(score)
    outcome = np.concatenate([[side * FAR], t, -t, [0.0]])
    return Records(outcome, np.concatenate([[0.0], v, v, [0.0]]), np.zeros(len(outcome), int), np.ones((1, 1)), ("1",))


def clipped_draws(side: int, epsilon: float, draws: int, streams: Streams) -> CensoredFit:
    """Draws of the clipped FBP at this ε each, for a respondent blanked out, from the file of one side."""
    interval, _ = place_interval(epsilon, 1, StandInSpec(mean=0.0, spread=SPREAD, weight_spread=SPREAD))
    return fit_censored(FBP(), two_clusters(side), interval, draws, streams)


def above_the_middle(found: CensoredFit) -> Floats:
    """1 for each draw whose mean lies on the upper side, else 0: what tells the two files apart."""
    return (np.asarray(found.draws["beta"])[:, :1] > 0).astype(float)
