"""The exact audit of the noise on tables and of the asymptotic mechanism, and bugs it must notice.

A bug that would break the promise is planted in the sums, one at a time; `test_audit_bugs.py` plants those that are
around them.
"""

import re
from fractions import Fraction

import numpy as np
import pytest

from places import DOCS, ROOT
from svysynth.core.streams import Streams
from svysynth.evaluation.audit import exact as audit
from svysynth.evaluation.audit import losses_of_pairs, noisy_losses
from svysynth.evaluation.audit.exact import (
    DELTAS,
    LARGEST_BOUND,
    ROUNDING,
    asymptotic,
    audit_exact,
    clustered_losses,
    hockey_stick,
    least_epsilon,
    measure,
    noise_losses,
    normalized,
)
from svysynth.evaluation.audit.losses_of_pairs import pairs_losses
from svysynth.evaluation.audit.noisy_losses import cluster_losses, measured_losses, public_weights_losses
from svysynth.evaluation.audit.pairs import BOUNDS, POPULATION, make_pairs, pair_of
from svysynth.mechanisms.noise import RESOLUTION, contributions
from svysynth.mechanisms.noise import split_budget as split_for
from svysynth.mechanisms.noisy_sums.measuring import measurement as measuring
from svysynth.mechanisms.noisy_sums.measuring import whole_numbers as counting
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST
from svysynth.mechanisms.noisy_tables.alike import PairUse

PAIRS = make_pairs(500, Streams.seeded(1))
CORNERS = [
    pair_of(np.full(10, 6.0), np.full(10, weight), 0, -6.0, new_weight)
    for weight in (1.0, 1e3)
    for new_weight in (1, 1e3)
]
"""All records at one end of the bounds, and one that goes to the other."""
EXTREME = pair_of(np.full(8, 5.0), np.full(8, POPULATION / 8), 0, -5.0, POPULATION / 8)
"""All others at one place, where the record was too; it goes to another, where the prior has hardly any weight."""
SOME = [*PAIRS[:150], EXTREME, *CORNERS]
"""Pairs that are enough to notice a bug, or to run the slower mechanism on."""
EPSILONS = (0.5, 1.0, 3.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_neighbour_is_within_the_promise(epsilon):
    """And nearly all of it is needed: no smaller ε could be promised."""
    for losses in noise_losses([*PAIRS, *CORNERS], epsilon).values():
        assert 0.99 * epsilon < losses.epsilon.max() <= epsilon + ROUNDING


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_neighbour_is_within_the_promise_of_noisy_sums(epsilon):
    """Half of it where answers are blanked out; nearly all of it is needed."""
    losses = measured_losses([*PAIRS, *CORNERS], epsilon)
    for relation, claim in (("blanked out", epsilon / 2), ("changed", epsilon)):
        assert 0.95 * claim < losses[relation].epsilon.max() <= claim + ROUNDING


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_whole_cluster_is_within_the_promise(epsilon):
    """All answers of a cluster changed or blanked out, with the cluster's share of ε for each record."""
    losses = cluster_losses(PAIRS, epsilon)
    for relation, claim in (("blanked out", epsilon / 2), ("changed", epsilon)):
        assert 0.8 * claim < losses[relation].epsilon.max() <= claim + ROUNDING


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_outcome_in_a_cluster_with_public_weights_is_within_the_promise(epsilon):
    losses = public_weights_losses([*PAIRS, *CORNERS], epsilon)
    for relation, claim in (("blanked out", epsilon / 2), ("changed", epsilon)):
        assert 0.7 * claim < losses[relation].epsilon.max() <= claim + ROUNDING


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_neighbour_is_within_the_promise_of_tables_of_clusters(epsilon):
    """Of each number about pairs by itself too, and nearly all of what the three may cost is needed."""
    for losses in clustered_losses([*PAIRS, *CORNERS], epsilon).values():
        assert 0.9 * epsilon < losses.epsilon.max() <= epsilon + ROUNDING
    for losses in pairs_losses([*PAIRS, *CORNERS], Fraction(epsilon)).values():
        assert 0.7 * epsilon < losses.epsilon.max() <= epsilon + ROUNDING


def test_half_of_the_sensitivity_of_pairs_and_sums_that_are_not_clamped_are_caught(monkeypatch):
    """Two planted bugs in what is measured of pairs."""
    with monkeypatch.context() as patch:
        patch.setattr(PairUse, "scale", property(lambda use: use.sensitivity / float(use.epsilon) / 2))
        assert pairs_losses(SOME, Fraction(1))["changed"].epsilon.max() > 1.2
    monkeypatch.setattr(
        losses_of_pairs, "squares_of_pairs", lambda x, cluster, centre, use: int(x.sum() - centre[0]) ** 2 // use.limit
    )
    assert pairs_losses(SOME, Fraction(1))["changed"].epsilon.max() > 1.2


def test_half_of_the_sensitivity_between_clusters_is_caught(monkeypatch):
    """A planted bug, in the sum of squares that is measured if weights are public, with nearly all of ε."""
    monkeypatch.setattr(noisy_losses, "between_sensitivity", lambda limit, weights_public: 2 * limit * LARGEST + 1)
    monkeypatch.setattr(noisy_losses, "PUBLIC_SHARES", (Fraction(1, 1000),) * 4 + (Fraction(996, 1000),))
    assert public_weights_losses(SOME, 1.0)["changed"].epsilon.max() > 1.2


def test_clusters_with_the_epsilon_of_a_record_are_caught(monkeypatch):
    """A planted bug: noise for two thirds of the size of the cluster."""
    monkeypatch.setattr(measuring.Use, "scale", property(lambda use: use.sensitivity / float(use.epsilon) / 1.5))
    assert cluster_losses(SOME, 1.0)["changed"].epsilon.max() > 1.05


def test_noisy_sums_with_half_of_the_sensitivity_or_without_a_bound_are_caught(monkeypatch):
    """Two planted bugs."""
    with monkeypatch.context() as patch:
        patch.setattr(counting, "bounded", lambda values, reach: np.stack(values).astype(np.int64) * 2**16)
        assert measured_losses(SOME, 1.0)["changed"].epsilon.max() > 1.1
    monkeypatch.setattr(measuring.Use, "scale", property(lambda use: use.sensitivity / float(use.epsilon) / 2))
    assert measured_losses(SOME, 1.0)["changed"].epsilon.max() > 1.8


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


# --- planted bugs: what each record adds to the sums ---


def unclamped(group, weight, outcome, bounds, with_outcome):
    """Answers count as they are."""
    wide = bounds.model_copy(update={"outcome": (-2e3, 2e3), "weight": (0.0, 1e10)})
    (_, most), (low, high) = bounds.weight, bounds.outcome
    found = contributions(group, weight, outcome, wide, with_outcome) / RESOLUTION
    power = 2 if group == "variances" else 1
    unit = (wide.weight[1] / most) ** power * (4e3 / (high - low)) ** np.arange(len(found))
    return np.rint(np.clip(found * unit[:, np.newaxis], -1e8, 1e8) * RESOLUTION)


def with_weights(change):
    return lambda group, weight, outcome, *rest: contributions(group, change(weight), outcome, *rest)


def with_outcomes(change):
    return lambda group, weight, outcome, *rest: contributions(group, weight, change(outcome), *rest)


def bounds_of_the_data(group, weight, outcome, bounds, with_outcome):
    own = bounds.model_copy(update={"weight": (bounds.weight[0], float(np.clip(weight, *bounds.weight).max()) + 1)})
    return contributions(group, weight, outcome, own, with_outcome)


def clipped(values, limits):
    return np.clip(values, *limits)


BUGS = {
    "no clamp": unclamped,
    "weights scaled by their sum": with_weights(lambda w: 500 * (w := clipped(w, BOUNDS.weight)) / w.mean()),
    "centred by the sample mean": with_outcomes(lambda t: (t := clipped(t, BOUNDS.outcome)) - t.mean()),
    "scaled by the sample spread": with_outcomes(lambda t: (t := clipped(t, BOUNDS.outcome)) / (t.std() + 1e-3)),
    "bounds of the data": bounds_of_the_data,
    "every record twice": lambda *arguments: 2 * contributions(*arguments),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    monkeypatch.setattr(audit, "contributions", BUGS[bug])
    assert noise_losses(SOME, 1.0)["changed"].epsilon.max() > 1.1


def test_half_of_the_sensitivity_is_caught(monkeypatch):
    """A planted bug: noise of half the scale."""
    monkeypatch.setattr(audit, "split_budget", lambda *arguments: split_for(*arguments[:-1], 2 * arguments[-1]))
    assert noise_losses(SOME, 1.0)["changed"].epsilon.max() > 1.8


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
    assert found["claim"].to_list() == [1.0] * 8 + [0.5, 1.0] * 6 + [3.6, 7.2] * 2
    for guarantee, verdict in (
        ("global", True),
        ("global, tables of clusters", True),
        ("global, noisy sums", True),
        ("global, whole clusters", True),
        ("global, clusters, public weights", True),
        ("asymptotic", None),
    ):
        assert found.filter(guarantee=guarantee)["holds"].to_list() == [verdict] * 4


def test_every_test_that_the_page_names_exists():
    text = (DOCS / "privacy.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`([a-z_0-9]{20,})`", text)
    assert len(named) > 20
    assert [name for name in named if f"def test_{name}(" not in tests] == []
