"""An exact audit: a model of two parameters on a grid, whose posteriors of neighbouring samples are compared.

On a grid a posterior is a finite list of probabilities, so the largest ratio between two of them is exact, and so is
the hockey-stick divergence. The clipped sum is the one that releases are made with. Bugs that would break the promise
are planted one by one, and the audit has to notice each.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from svysynth.clipped import clipped_sum, make_blocks
from svysynth.interval import Interval
from svysynth.models.base import Records
from svysynth.models.joint import Placed

LOW, HIGH = -3.5, -1.0
WIDTH = HIGH - LOW
INTERVAL = Interval(LOW, HIGH)
MOST = 20
"""Records of the largest sample."""
PAIRS = 500
SOME = 150
"""Pairs that are enough to notice a bug, or to run the slower mechanism on."""
POPULATION = 1000.0
BOUNDS_T, BOUNDS_W = (-6.0, 6.0), (1.0, 1000.0)
ROUNDING = 1e-9
DELTAS = (0.0, 1e-6, 1e-3)


@dataclass(frozen=True)
class Toy:
    """t ~ N(mean, sd²) and v ~ N(0, 1): a mean and a log standard deviation are its parameters."""

    name = "toy"
    whole_rows = False

    @property
    def joint(self):
        return self

    def size(self, whitening, statistics):
        return 2

    def place(self, u, whitening, statistics):
        return Placed({"mean": u[0], "log_sd": u[1]}, jnp.zeros(()))

    def log_likelihood(self, parameters, t, v, x):
        off = (t - parameters["mean"]) / jnp.exp(parameters["log_sd"])
        return -0.5 * (off**2 + v**2) - parameters["log_sd"] - jnp.log(2 * jnp.pi)


MEANS, LOG_SDS = np.linspace(-8, 8, 81), np.linspace(-2.5, 1.5, 33)
GRID = {
    name: jnp.asarray(axis.ravel()) for name, axis in zip(("mean", "log_sd"), np.meshgrid(MEANS, LOG_SDS), strict=True)
}
LOG_PRIOR = np.asarray(-0.5 * (GRID["mean"] / 3) ** 2 - 0.5 * GRID["log_sd"] ** 2)


@dataclass(frozen=True)
class Sample:
    """Outcomes and weights, and which records are there: one that is blanked out has a constant for its term."""

    t: np.ndarray
    w: np.ndarray
    there: np.ndarray

    @property
    def v(self):
        return np.log(self.w * (len(self.t) / POPULATION))


def clamped(t, w):
    """A sample within the public bounds, as `censored_records` makes it."""
    return Sample(np.clip(t, *BOUNDS_T), np.clip(w, *BOUNDS_W), np.ones(len(t), bool))


# --- mechanisms: a sample in, log-likelihoods on the grid out ---


def terms(t, v):
    """Records × grid, unclipped."""
    parameters = {name: np.asarray(value) for name, value in GRID.items()}
    return np.asarray(Toy().log_likelihood(parameters, t[:, np.newaxis], v[:, np.newaxis], None))


@jax.jit
def grid_sums(blocks, low, high):
    return jax.vmap(lambda parameters: clipped_sum(Toy(), parameters, blocks, low, high))(GRID)


def censored(sample):
    """The released mechanism's own sum. A blanked record has no weight: its term is a constant."""
    records = Records(sample.t, sample.v, np.zeros(len(sample.t), int), np.ones((1, 1)), ("1",))
    blocks = make_blocks(records, size=MOST)
    weight = np.zeros(MOST)
    weight[: len(sample.t)] = sample.there
    blocks = blocks._replace(weight=jnp.asarray(weight.reshape(blocks.weight.shape)))
    return np.asarray(grid_sums(blocks, LOW, HIGH))


def plain_clip(sample, low=LOW, high=HIGH, t=None, v=None):
    """The same in plain NumPy, with places where a bug can be put."""
    own = terms(sample.t if t is None else t, sample.v if v is None else v)
    return (np.clip(own, low, high) * sample.there[:, np.newaxis]).sum(axis=0)


def alpha_from_the_data(sample):
    """Weights from bounds over the posterior of the whole sample, before clipping."""
    own = terms(sample.t, sample.v)
    alpha = inverse_alpha(own, sample.there, 1.0)
    return (np.clip(alpha[:, np.newaxis] * own, LOW, HIGH) * sample.there[:, np.newaxis]).sum(axis=0)


def clip_after_the_sum(sample):
    count = np.sum(sample.there)
    return np.clip((terms(sample.t, sample.v) * sample.there[:, np.newaxis]).sum(axis=0), count * LOW, count * HIGH)


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


def three_draws(sample):
    """The density of three independent draws at one and the same θ is the cube."""
    return 3 * plain_clip(sample) + 2 * LOG_PRIOR


def inverse_alpha(own, there, c):
    """min(1, c/f) with f the largest |term| where the posterior with α = 1 has 99.9% of its mass: of 1000 draws."""
    log_posterior = LOG_PRIOR + (own * there[:, np.newaxis]).sum(axis=0)
    bounds = np.max(np.abs(own[:, likely(log_posterior)]), axis=1)
    return np.minimum(1.0, c / bounds)


def likely(log_posterior, mass=0.999):
    probability = np.exp(normalized(log_posterior))
    order = np.argsort(-probability)
    return order[: np.searchsorted(np.cumsum(probability[order]), mass) + 1]


def asymptotic(sample, bound=1.8):
    """The paper's mechanism at Δ_α = `bound`: weights from the data, c by bisection, no clipping."""
    own, there = terms(sample.t, sample.v), sample.there

    def weighted(c):
        alpha = inverse_alpha(own, there, c)
        total = (alpha[:, np.newaxis] * own * there[:, np.newaxis]).sum(axis=0)
        largest = np.max((alpha * np.max(np.abs(own[:, likely(LOG_PRIOR + total)]), axis=1))[there])
        return total, largest

    low, high = 1e-3, bound
    for _ in range(12):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if weighted(middle)[1] <= bound else (low, middle)
    return weighted(low)[0]


# --- neighbours ---


def neighbours():
    """Pairs (before, changed, blanked): ordinary ones, and ones made to do harm."""
    generator = np.random.default_rng(1)
    pairs = []
    for number in range(PAIRS):
        n = int(generator.integers(5, MOST + 1))
        t, w = 0.8 * generator.standard_normal(n), 100 * np.exp(0.5 * generator.standard_normal(n))
        position = int(generator.integers(n))
        new_t, new_w = 0.8 * generator.standard_normal(), 100 * np.exp(0.5 * generator.standard_normal())
        if number % 2:  # the rest in one place, or in two; the record far off, with an extreme weight, or among them
            t = generator.choice([-5.0, 0.0, 5.0]) + 0.05 * generator.standard_normal(n)
            t[: n // 3] += generator.choice([0.0, 3.0])
            t[position] = generator.choice([-1e3, -6, -2.5, 2.5, 6, 1e3, t[0]])
            new_t, new_w = generator.choice([-1e3, -5.0, 0.0, 5.0, 1e3]), generator.choice([0.01, 1.0, 100.0, 1e9])
        before = clamped(t, w)
        after_t, after_w = t.copy(), w.copy()
        after_t[position], after_w[position] = new_t, new_w
        there = np.arange(n) != position
        pairs.append((before, clamped(after_t, after_w), Sample(before.t, before.w, there)))
    return pairs


NEIGHBOURS = neighbours()


def extreme_pair():
    """All others at one place, where the record was too; it goes to another, where the prior has hardly any weight."""
    n = 8
    t = np.full(n, 5.0)
    before, after = clamped(t, np.full(n, POPULATION / n)), t.copy()
    after[0] = -5.0
    return before, clamped(after, np.full(n, POPULATION / n)), Sample(before.t, before.w, np.arange(n) > 0)


def normalized(log_density):
    largest = log_density.max()
    return log_density - largest - np.log(np.sum(np.exp(log_density - largest)))


def log_ratio(one, other):
    return float(np.max(np.abs(one - other)))


def hockey_stick(one, other, epsilon):
    """The δ with which (ε, δ) holds between two distributions."""
    return max(float(np.sum(np.maximum(np.exp(a) - np.exp(epsilon + b), 0))) for a, b in ((one, other), (other, one)))


def audit(mechanism, pairs=NEIGHBOURS):
    """The normalised posteriors of every pair: before, changed, blanked."""
    return [[normalized(LOG_PRIOR + mechanism(sample)) for sample in trio] for trio in pairs]


def worst(posteriors):
    """The largest |log ratio| over all pairs: for a record changed, and for one blanked out."""
    changed = max(log_ratio(before, after) for before, after, _ in posteriors)
    return changed, max(max(log_ratio(a, c), log_ratio(b, c)) for a, b, c in posteriors)


@pytest.fixture(scope="module")
def released():
    return audit(censored)


def test_every_neighbour_is_within_the_promise(released):
    changed, blanked = worst(released)
    assert changed <= 2 * WIDTH + ROUNDING
    assert blanked <= WIDTH + ROUNDING


def test_the_hockey_stick_divergence_is_within_the_promise(released):
    """At the promised ε nothing is left over, and for a δ above zero ε is no larger."""
    for before, after, blanked in released:
        assert hockey_stick(before, after, 2 * WIDTH) < ROUNDING
        assert hockey_stick(before, blanked, WIDTH) < ROUNDING
    needed = {delta: max(least_epsilon(a, c, delta) for a, _, c in released) for delta in DELTAS}
    assert needed[1e-3] <= needed[1e-6] <= needed[0.0] <= WIDTH + ROUNDING


def least_epsilon(one, other, delta):
    """The smallest ε with which (ε, δ) holds, to 1e-3."""
    low, high = 0.0, log_ratio(one, other)
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if hockey_stick(one, other, middle) <= delta else (middle, high)
    return high


def test_the_promise_is_tight():
    """Samples for which nearly all of it is needed: no smaller ε could be promised."""
    changed, blanked = worst(audit(censored, [extreme_pair()]))
    assert 0.8 * 2 * WIDTH < changed <= 2 * WIDTH + ROUNDING
    assert 0.8 * WIDTH < blanked <= WIDTH + ROUNDING


def test_the_audited_sum_is_the_plain_one(released):
    for own, other in zip(released[:SOME], audit(plain_clip, NEIGHBOURS[:SOME]), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-9)


BUGS = {
    "alpha from the data": (alpha_from_the_data, 2 * WIDTH),
    "clip after the sum": (clip_after_the_sum, 2 * WIDTH),
    "bound doubled": (bound_doubled, 2 * WIDTH),
    "no upper bound": (no_upper_bound, 2 * WIDTH),
    "weights scaled by their sum": (weights_scaled_by_their_sum, 2 * WIDTH),
    "centred by the sample mean": (centred_by_the_sample_mean, 2 * WIDTH),
    "scaled by the sample spread": (scaled_by_the_sample_spread, 2 * WIDTH),
    "epsilon counted once for three draws": (three_draws, 2 * WIDTH),
    "changed printed as blanked out": (plain_clip, WIDTH),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug):
    mechanism, claimed = BUGS[bug]
    changed, _ = worst(audit(mechanism, [*NEIGHBOURS[:SOME], extreme_pair()]))
    assert changed > claimed + 0.1


def test_three_draws_cost_three_times_as_much():
    changed, blanked = worst(audit(three_draws, [*NEIGHBOURS[:SOME], extreme_pair()]))
    assert changed <= 6 * WIDTH + ROUNDING
    assert 0.8 * 3 * WIDTH < blanked <= 3 * WIDTH + ROUNDING


def test_what_the_asymptotic_mechanism_does_not_promise():
    """At Δ_α = 1.8 and m = 1, ε is 3.6 for a respondent blanked out. The page shows what the audit finds."""
    found = asymptotic_figures()
    assert min(ratio for ratio, _, _ in found.values()) > 3.6
    text = (Path(__file__).parent.parent / "docs/privacy.md").read_text(encoding="utf-8")
    for kind, figures in found.items():
        row = re.search(rf"^\| {kind} \|(.*)\|$", text, re.MULTILINE)[1]
        shown = [float(cell) for cell in row.split("|")]
        np.testing.assert_allclose(shown, figures, rtol=0.02)


def test_every_test_that_the_page_names_exists():
    text = (Path(__file__).parent.parent / "docs/privacy.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = re.findall(r"`([a-z_0-9]{20,})`", text)
    assert len(named) > 20
    assert [name for name in named if f"def test_{name}(" not in tests] == []


def asymptotic_figures():
    """One blanked out: the largest |log ratio|, the share of pairs with δ > 1e-3 at ε = 3.6, and the largest δ."""
    posteriors = audit(asymptotic, NEIGHBOURS[:SOME])
    found = {}
    for kind, part in (("ordinary", posteriors[::2]), ("harmful", posteriors[1::2])):
        ratios = [log_ratio(before, blanked) for before, _, blanked in part]
        deltas = [hockey_stick(before, blanked, 3.6) for before, _, blanked in part]
        found[kind] = max(ratios), float(np.mean(np.array(deltas) > 1e-3)), max(deltas)
    return found
