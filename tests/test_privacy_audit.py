"""The exact audit (`svysynth.audit`) of the censored and the asymptotic mechanism, and bugs that it has to notice.

A bug that would break the promise is planted in the mechanism, one at a time; `test_audit_bugs.py` plants those that
are not in the sum but around it.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from svysynth.audit import (
    DELTAS,
    HIGH,
    LARGEST_BOUND,
    LOG_PRIOR,
    ROUNDING,
    WIDTH,
    asymptotic,
    audit_exact,
    censored,
    extreme_pair,
    hockey_stick,
    least_epsilon,
    likely,
    make_pairs,
    measure,
    normalized,
    unclipped,
)
from svysynth.interval import Interval
from svysynth.streams import Streams

DOCS = Path(__file__).parent.parent / "docs"
INTERVAL = Interval.of_budget(WIDTH, 1, HIGH)
LOW = INTERVAL.low
PAIRS = make_pairs(500, Streams.seeded(1))
SOME = [*PAIRS[:150], extreme_pair()]
"""Pairs that are enough to notice a bug, or to run the slower mechanism on."""
CLAIMS = {"blanked out": WIDTH, "changed": 2 * WIDTH}
released = partial(censored, interval=INTERVAL)


def worst(mechanism, pairs, claims=CLAIMS):
    """The largest |log ratio| over all pairs: for a record changed, and for one blanked out."""
    found = measure(mechanism, pairs, claims)
    return found["changed"].epsilon[:, 0].max(), found["blanked out"].epsilon[:, 0].max()


@pytest.fixture(scope="module")
def losses():
    return measure(released, PAIRS, CLAIMS)


def test_every_neighbour_is_within_the_promise(losses):
    for relation, claim in CLAIMS.items():
        assert losses[relation].epsilon[:, 0].max() <= claim + ROUNDING


def test_the_hockey_stick_divergence_is_within_the_promise(losses):
    """At the promised ε nothing is left over, and for a δ above zero ε is no larger."""
    for relation, claim in CLAIMS.items():
        assert losses[relation].delta.max() < ROUNDING
        needed = losses[relation].epsilon.max(axis=0)
        assert needed[2] <= needed[1] <= needed[0] <= claim + ROUNDING


def test_the_promise_is_tight(losses):
    """Samples for which nearly all of it is needed: no smaller ε could be promised."""
    for relation, claim in CLAIMS.items():
        assert losses[relation].epsilon[:, 0].max() > 0.98 * claim


def test_the_least_epsilon_is_the_one_at_which_delta_is_met():
    """Against the divergence itself, between random distributions on five points."""
    generator = np.random.default_rng(2)
    one, other = normalized(2 * generator.standard_normal((2, 200, 5)))
    for position, delta in enumerate(DELTAS):
        needed = least_epsilon(one, other)[:, position]
        for pair in range(len(one)):
            assert hockey_stick(one[pair], other[pair], needed[pair]) <= delta + 1e-12
            if needed[pair] > 1e-6:
                assert hockey_stick(one[pair], other[pair], needed[pair] - 1e-6) > delta


def test_pairs_are_neighbours():
    """All records but one are the same, and half of the pairs are adversarial."""
    for pair in SOME:
        differ = (pair.before.t != pair.changed.t) | (pair.before.w != pair.changed.w)
        assert differ.sum() <= 1
        assert (~pair.blanked.there).sum() == 1
        assert not (differ & pair.blanked.there).any()
    assert sum(pair.adversarial for pair in PAIRS) == len(PAIRS) / 2


# --- planted bugs: a sample in, its log-likelihoods on the grid out ---


def plain_clip(sample, low=LOW, high=HIGH, t=None, v=None):
    """The mechanism in plain NumPy, with places where a bug can be put."""
    own = unclipped(sample.t if t is None else t, sample.v if v is None else v)
    return (np.clip(own, low, high) * sample.there[:, np.newaxis]).sum(axis=0)


def each(mechanism):
    return lambda samples: np.stack([mechanism(sample) for sample in samples])


def test_the_audited_sum_is_the_plain_one():
    samples = [sample for pair in SOME for sample in (pair.before, pair.blanked)]
    np.testing.assert_allclose(released(samples), each(plain_clip)(samples), atol=1e-9)


def alpha_from_the_data(sample):
    """Weights from bounds over the posterior of the whole sample, before clipping."""
    own = unclipped(sample.t, sample.v)
    at = likely(LOG_PRIOR + own[sample.there].sum(axis=0))
    alpha = np.minimum(1.0, 1.0 / np.max(np.abs(own[:, at]), axis=1))
    return np.clip(alpha[:, np.newaxis] * own, LOW, HIGH)[sample.there].sum(axis=0)


def clip_after_the_sum(sample):
    own = unclipped(sample.t, sample.v)[sample.there]
    return np.clip(own.sum(axis=0), len(own) * LOW, len(own) * HIGH)


def bound_doubled(sample):
    return plain_clip(sample, 2 * LOW, 2 * HIGH)


def no_upper_bound(sample):
    return plain_clip(sample, LOW, np.inf)


def weights_scaled_by_their_sum(sample):
    total = np.sum(sample.w * sample.there)
    return plain_clip(sample, v=np.log(sample.w * (np.sum(sample.there) / total)))


def centred_by_the_sample_mean(sample):
    return plain_clip(sample, t=sample.t - np.mean(sample.t[sample.there]))


def scaled_by_the_sample_spread(sample):
    return plain_clip(sample, t=sample.t / (np.std(sample.t[sample.there]) + 1e-3))


def interval_from_the_data(sample):
    """As wide as was said, but placed below the largest term that the sample shows."""
    own = unclipped(sample.t, sample.v)[sample.there]
    high = np.quantile(own[:, likely(LOG_PRIOR + own.sum(axis=0))], 0.9)
    return np.clip(own, high - WIDTH, high).sum(axis=0)


def three_draws(sample):
    """The density of three independent draws at one and the same θ is the cube."""
    return 3 * plain_clip(sample) + 2 * LOG_PRIOR


BUGS = {
    "alpha from the data": (alpha_from_the_data, 2 * WIDTH),
    "clip after the sum": (clip_after_the_sum, 2 * WIDTH),
    "bound doubled": (bound_doubled, 2 * WIDTH),
    "no upper bound": (no_upper_bound, 2 * WIDTH),
    "weights scaled by their sum": (weights_scaled_by_their_sum, 2 * WIDTH),
    "centred by the sample mean": (centred_by_the_sample_mean, 2 * WIDTH),
    "scaled by the sample spread": (scaled_by_the_sample_spread, 2 * WIDTH),
    "interval from the data": (interval_from_the_data, 2 * WIDTH),
    "epsilon counted once for three draws": (three_draws, 2 * WIDTH),
    "changed printed as blanked out": (plain_clip, WIDTH),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug):
    mechanism, claimed = BUGS[bug]
    changed, _ = worst(each(mechanism), SOME)
    assert changed > claimed + 0.1


def test_three_draws_cost_three_times_as_much():
    changed, blanked = worst(each(three_draws), SOME)
    assert changed <= 6 * WIDTH + ROUNDING
    assert 0.8 * 3 * WIDTH < blanked <= 3 * WIDTH + ROUNDING


# --- the asymptotic mechanism ---


def test_what_the_asymptotic_mechanism_does_not_promise():
    """At Δ_α = 1.8 and m = 1, ε is 3.6 for a respondent blanked out. The page shows what the audit finds."""
    found = measure(asymptotic, PAIRS[:150], {"blanked out": 2 * LARGEST_BOUND})["blanked out"]
    adversarial = np.array([pair.adversarial for pair in PAIRS[:150]])
    text = (DOCS / "privacy.md").read_text(encoding="utf-8")
    for kind, own in (("natural", ~adversarial), ("adversarial", adversarial)):
        ratio, delta = found.epsilon[own, 0].max(), found.delta[own]
        assert ratio > 2 * LARGEST_BOUND
        row = re.search(rf"^\| {kind} \|(.*)\|$", text, re.MULTILINE)[1]
        shown = [float(cell) for cell in row.split("|")]
        np.testing.assert_allclose(shown, [ratio, np.mean(delta > 1e-3), delta.max()], rtol=0.02)


def test_the_asymptotic_kind_is_shown_and_not_judged():
    found = audit_exact(PAIRS[:20])
    for guarantee, verdict in (("global", True), ("asymptotic", None)):
        assert found.filter(guarantee=guarantee)["holds"].to_list() == [verdict] * 4


def test_every_test_that_the_page_names_exists():
    text = (DOCS / "privacy.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = re.findall(r"`([a-z_0-9]{20,})`", text)
    assert len(named) > 20
    assert [name for name in named if f"def test_{name}(" not in tests] == []
