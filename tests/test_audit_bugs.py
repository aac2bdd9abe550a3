"""Privacy bugs around the sum: planted one by one in releases that are watched, and each raises its own alarm.

`test_privacy_audit.py` plants those within the sum, `test_audit_fields.py` leaks into public fields, `test_audit.py`
two that whole releases show. Clean releases raise no alarm.
"""

from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from svysynth import additive, censor, noise, pipeline, publish
from svysynth.clipped import clipped_sum
from svysynth.interval import Interval
from svysynth.models.base import Records
from svysynth.models.fbp import FBP
from svysynth.models.joint import JointFBP, Placed
from svysynth.noise import RESOLUTION
from svysynth.releases import TABLE_DIGITS, NotCharged
from svysynth.spec import BoundsSpec, TableSpec, load_spec
from svysynth.streams import Streams
from svysynth.survey import read_survey
from test_audit_fields import make_house

ANSWERS = (22_000.0, 50.0), (2e9, 7e7)
"""Of the respondent who differs: the second beyond the public bounds."""
POSITION = 6


class Watch:
    """Sees what passes through the pipeline, bugs and all, and notes alarms."""

    def __init__(self, monkeypatch):
        self.alarms, self.charged = set(), False
        monkeypatch.setattr(pipeline, "NotCharged", self.charge)
        for name in ("fit_censored", "correct", "synthesize_draws", "publish"):
            monkeypatch.setattr(pipeline, name, getattr(self, name)(getattr(pipeline, name)))

    def fit_censored(self, own):
        def watched(model, records, interval, datasets, streams, *rest):
            self.records, self.width = records, datasets * Fraction(interval.high) - datasets * Fraction(interval.low)
            found = own(model, records, interval, datasets, streams, *rest)
            lasts = {name: value[:datasets, -1] for name, value in found.history.items()}
            if any(not np.array_equal(lasts[name], value) for name, value in found.draws.items()):
                self.alarms.add("a draw is not the end of a chain of its own")
            if any(len(np.unique(value, axis=0)) < datasets for value in found.draws.values()):
                self.alarms.add("two draws are one")
            return found

        return watched

    def correct(self, own):
        def watched(model, draw, interval, records, *rest):
            found = own(model, draw, interval, records, *rest)
            nothing = np.full(len(records), np.nan)
            blind = own(model, draw, interval, replace(records, t=nothing, v=nothing), *rest)
            if any(not np.array_equal(found[name], blind[name]) for name in found):
                self.alarms.add("the correction looks at answers")
            return found

        return watched

    def charge(self):
        """A run with a seed comes to the same place and pays nothing there."""
        self.charged = True
        return NotCharged()

    def synthesize_draws(self, own):
        return self._after_the_charge(own)

    def publish(self, own):
        return self._after_the_charge(own)

    def _after_the_charge(self, own):
        def watched(*arguments):
            if not self.charged:
                self.alarms.add("something is made before the charge")
            return own(*arguments)

        return watched

    def judge(self, released, folder):
        """What the finished release says, against what was done."""
        guarantee = released.guarantee
        if self.width > Fraction(released.spec.privacy.epsilon):
            self.alarms.add("the interval is wider than the budget")
        if guarantee.epsilon_blanked < self.width or guarantee.epsilon_changed < 2 * self.width:
            self.alarms.add("less is stated than is spent")
        if guarantee.charged < 2 * self.width:  # ε for an answer changed
            self.alarms.add("less is charged than is spent")
        estimates = pl.read_csv(folder / "out/public/NOT-FOR-RELEASE-tables.csv")["estimate"].drop_nulls().to_list()
        if any(float(f"{value:.{TABLE_DIGITS}g}") != value for value in estimates):
            self.alarms.add("more digits than stated")


def alarms(folder, monkeypatch, plant=None):
    """All alarms of two neighbouring releases of FBP with the global guarantee, with a bug if one is given."""
    monkeypatch.setattr(pipeline, "write_internal", lambda *_, **__: None)
    monkeypatch.setattr(publish, "public_page", lambda *_, **__: "")
    if plant:
        plant(monkeypatch)
    found, records = set(), []
    for world in (0, 1):
        spec = load_spec(make_house(folder / str(world), "fbp global", ANSWERS[world]))
        with monkeypatch.context() as patch:
            watch = Watch(patch)
            watch.judge(pipeline.release(spec, folder / str(world) / "out", Streams.seeded(5)), folder / str(world))
        found |= watch.alarms
        records.append(watch.records)
    one, other = (np.delete(np.stack([own.t, own.v]), POSITION, axis=1) for own in records)
    if not np.array_equal(one, other):
        found.add("another record moved")
    low, high = np.log([1000.0, 1_000_000.0])
    if not all(low <= own.t.min() <= own.t.max() <= high for own in records):
        found.add("a record is beyond the bounds")
    return found


def test_a_clean_release_raises_no_alarm(tmp_path, monkeypatch):
    assert alarms(tmp_path, monkeypatch) == set()


# --- what is planted ---


def changing(name, change):
    """A function of the pipeline whose result is changed."""

    def plant(monkeypatch):
        own = getattr(pipeline, name)
        monkeypatch.setattr(pipeline, name, lambda *arguments, **named: change(own(*arguments, **named), *arguments))

    return plant


def standardised(records, *_):
    return replace(records, t=10 + (records.t - records.t.mean()) / (2 * records.t.std()))


def weights_by_their_sum(records, survey, *_):
    weights = np.clip(survey.weights, 1.0, 1000.0)
    return replace(records, v=np.log(weights * (len(survey) / weights.sum())))


def no_clamp(records, survey, *_):
    return replace(records, t=np.log(survey.outcome_values))


def once_for_all_draws(monkeypatch):
    own = pipeline.place_interval
    monkeypatch.setattr(pipeline, "place_interval", lambda epsilon, _, constants: own(epsilon, 1, constants))


def changed_as_blanked(guarantee, *_):
    return guarantee.model_copy(update={"epsilon_changed": guarantee.epsilon_blanked})


def one_chain(monkeypatch):
    """Every chain has the first one's random numbers."""
    own = censor._keys

    def keys(streams, label, chains):
        return own(streams, label, chains)[jnp.zeros(chains, int)]

    monkeypatch.setattr(censor, "_keys", keys)


def adjacent_draws(monkeypatch):
    """The last m states of one chain."""
    own = censor._run

    def run(model, target, datasets, *rest):
        _, second, verdict = own(model, target, datasets, *rest)
        return {name: jnp.asarray(value[0, -datasets:]) for name, value in second.parameters.items()}, second, verdict

    monkeypatch.setattr(censor, "_run", run)


def corrected_by_the_data(draw, model, _, interval, records, *rest):
    return draw | {"sigma_y": draw["sigma_y"] * float(np.std(records.t))}


def charged_at_last(monkeypatch):
    """Everything is drawn and made first, and paid for afterwards."""
    own = pipeline._censored_surveys

    def late(survey, spec, privacy, streams, pay, progress):
        made = own(survey, spec, privacy, streams, lambda _: None, progress)
        return replace(made, paid=pay(made.guarantee))

    monkeypatch.setattr(pipeline, "_censored_surveys", late)


def charged_less(monkeypatch):
    """The guarantee that the release states, and is charged for, is that of one draw."""
    own = pipeline.censored
    monkeypatch.setattr(
        pipeline, "censored", lambda name, epsilon, *rest, **named: own(name, epsilon / 2, *rest, **named)
    )


PLANTED = {
    "standardised by the data before the clip": (changing("censored_records", standardised), "another record moved"),
    "weights scaled by their sum": (changing("censored_records", weights_by_their_sum), "another record moved"),
    "no clamp": (changing("censored_records", no_clamp), "a record is beyond the bounds"),
    "epsilon counted once for m": (once_for_all_draws, "the interval is wider than the budget"),
    "changed stated as blanked out": (changing("censored", changed_as_blanked), "less is stated than is spent"),
    "one chain for all draws": (one_chain, "two draws are one"),
    "adjacent draws of one chain": (adjacent_draws, "a draw is not the end of a chain of its own"),
    "a correction by the data": (changing("correct", corrected_by_the_data), "the correction looks at answers"),
    "released before the charge": (charged_at_last, "something is made before the charge"),
    "charged for one draw": (charged_less, "less is charged than is spent"),
    "tables not rounded": (
        lambda patch: patch.setattr(pipeline, "rounded", lambda frame, _: frame),
        "more digits than stated",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_raises_its_alarm(bug, tmp_path, monkeypatch):
    plant, alarm = PLANTED[bug]
    assert alarm in alarms(tmp_path, monkeypatch, plant)


# --- the target of the chains ---


def off_target(position_of_record):
    """How far the chains' log density is from log prior + clipped sum, at a point of a map made from the data."""
    generator = np.random.default_rng(4)
    t, v = 0.5 * generator.standard_normal((2, 64))
    t[0] = position_of_record
    model, interval = FBP(), Interval(-3.0, 0.5)
    records = Records(t, v, np.zeros(64, np.int64), np.ones((1, 1)), ("1",))
    target = censor._center(model, records, interval)

    def parameters(u):
        found = censor._place(model, target, u)[0]
        logs = jnp.log(jnp.stack([found["sigma_y"], found["sigma_pi"]]))
        return jnp.concatenate([found["beta"], found["kappa_x"], found["kappa_y"][None], logs]), found

    u = jnp.asarray(0.3 * generator.standard_normal(len(target.shift)))
    vector, named = parameters(u)
    jacobian = jnp.linalg.slogdet(jax.jacfwd(lambda u: parameters(u)[0])(u))[1]
    logs = vector[3:]
    prior = -0.5 * jnp.sum(vector[:3] ** 2) / 100 - 1.5 * np.log(200 * np.pi)
    prior += jnp.sum(np.log(2 / np.pi) + logs - jnp.log1p(jnp.exp(2 * logs)))
    expected = prior + clipped_sum(model, named, target.blocks, target.low, target.high)
    return abs(float(censor._density(model, target)(u) - jacobian - expected))


@pytest.mark.parametrize("outcome", [0.0, 40.0])
def test_the_target_is_the_same_from_any_map(outcome):
    assert off_target(outcome) < 1e-8


def test_a_prior_that_is_centred_by_the_data_is_caught(monkeypatch):
    """A planted bug: the prior of the whitened coordinates is taken to be standard normal."""
    own = JointFBP.place

    def centred(self, u, *rest):
        return Placed(own(self, u, *rest).parameters, -0.5 * jnp.sum(u**2))

    monkeypatch.setattr(JointFBP, "place", centred)
    assert off_target(0.0) > 0.1


# --- additive noise ---


class Recorder:
    """Notes the exact sums that noise would be added to."""

    def __init__(self):
        self.seen = []

    def __call__(self, values, use):
        self.seen.append((values, use))
        return values


def sums_of(answers):
    weight, income = np.full(20, 50.0), np.full(20, 30_000.0)
    income[0], weight[0] = answers
    frame = pl.DataFrame({"cell": ["a", "b"] * 10, "income": income, "wt": weight})
    survey = read_survey(frame, outcome="income", weight="wt", public=["cell"])
    recorder, bounds = Recorder(), BoundsSpec(outcome=(1000.0, 1_000_000.0), weight=(1.0, 1000.0))
    additive.additive_tables(survey, [TableSpec(by=("cell",))], 1.5, bounds, noise=recorder)
    return recorder.seen


def cost_of_noise():
    """ε that the uses of the budget come to, each for the worst of some pairs: Σ distance/scale."""
    worlds = [sums_of(answers) for answers in ((2e9, 7e7), (1e-3, 1e-9), (1_000_000.0, 1000.0), (1000.0, 1.0))]
    cost = 0.0
    for versions in zip(*worlds, strict=True):
        values = [values for values, _ in versions]
        farthest = max(np.abs(one - other).sum() for one in values for other in values)
        cost += float(farthest) / versions[0][1].scale
    return cost


def test_the_noise_pays_for_every_pair_of_answers():
    assert 1.3 < cost_of_noise() <= 1.5 * (1 + 1e-12)


def unclamped(group, weight, outcome, bounds, with_outcome):
    """A planted bug: answers count as they are."""
    (_, most), (low, high) = bounds.weight, bounds.outcome
    share = (weight / most) ** (2 if group == "variances" else 1)
    place = (outcome - (low + high) / 2) / ((high - low) / 2)
    powers = 1 if not with_outcome else 3 if group == "variances" else 2
    parts = [share * place**power for power in range(powers)]
    return np.stack([np.clip(np.rint(part * RESOLUTION), -(2**60), 2**60).astype(np.int64) for part in parts])


def test_noise_without_a_clamp_is_caught(monkeypatch):
    monkeypatch.setattr(noise, "contributions", unclamped)
    assert cost_of_noise() > 10


def test_a_budget_that_is_spent_more_than_once_is_caught(monkeypatch):
    """A planted bug: every use has the whole of ε."""
    own = additive.split_budget

    def whole(*arguments, **named):
        return tuple(replace(use, epsilon=Fraction(1.5)) for use in own(*arguments, **named))

    monkeypatch.setattr(additive, "split_budget", whole)
    assert cost_of_noise() > 1.6
