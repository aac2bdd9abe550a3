"""Privacy bugs around the noise: planted one by one in releases that are watched, and each raises its own alarm.

`test_exact.py` plants those within the sums, `test_audit_fields.py` leaks into public fields, `test_attack.py`
one that whole releases show. Clean releases raise no alarm.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from neighbours import ANSWERS, make_house
from svysynth import pipeline
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.whole import load_spec
from svysynth.core.streams import Streams
from svysynth.mechanisms import noise
from svysynth.mechanisms.noise import RESOLUTION
from svysynth.mechanisms.noisy_tables import mechanism as noisy_tables
from svysynth.mechanisms.noisy_tables import tables
from svysynth.privacy.release import TABLE_DIGITS, NotCharged
from svysynth.publishing import public_folder as publish
from svysynth.publishing import release_folder
from svysynth.survey.survey import read_survey


class Watch:
    """Sees what passes through the pipeline, bugs and all, and notes alarms."""

    def __init__(self, monkeypatch):
        self.alarms, self.charged = set(), False
        monkeypatch.setattr(pipeline, "NotCharged", self.charge)
        for place, name in ((noisy_tables, "additive_tables"), (release_folder, "publish")):
            monkeypatch.setattr(place, name, getattr(self, name)(getattr(place, name)))

    def charge(self):
        """A run with a seed comes to the same place and pays nothing there."""
        self.charged = True
        return NotCharged()

    def additive_tables(self, own):
        def watched(*arguments, **named):
            found = own(*arguments, **named)
            self.spent = sum(use.epsilon for use in found.uses)
            return found

        return self._after_the_charge(watched)

    def publish(self, own):
        return self._after_the_charge(own)

    def _after_the_charge(self, own):
        def watched(*arguments, **named):
            if not self.charged:
                self.alarms.add("something is made before the charge")
            return own(*arguments, **named)

        return watched

    def judge(self, released, folder):
        """What the finished release says, against what was done."""
        guarantee = released.guarantee
        if self.spent > Fraction(released.spec.privacy.epsilon):
            self.alarms.add("more is spent than the budget")
        if min(guarantee.epsilon_blanked, guarantee.epsilon_changed) < self.spent:
            self.alarms.add("less is stated than is spent")
        if guarantee.charged < self.spent:  # ε for an answer changed
            self.alarms.add("less is charged than is spent")
        estimates = pl.read_csv(folder / "out/public/NOT-FOR-RELEASE-tables.csv")["estimate"].drop_nulls().to_list()
        if any(float(f"{value:.{TABLE_DIGITS}g}") != value for value in estimates):
            self.alarms.add("more digits than stated")


def alarms(folder, monkeypatch, plant=None):
    """All alarms of a release of noisy tables, with a bug if one is given."""
    monkeypatch.setattr(release_folder, "write_internal", lambda *_, **__: None)
    monkeypatch.setattr(publish, "public_page", lambda *_, **__: "")
    if plant:
        plant(monkeypatch)
    spec = load_spec(make_house(folder / "house", "laplace", ANSWERS[0]))
    with monkeypatch.context() as patch:
        watch = Watch(patch)
        watch.judge(pipeline.release(spec, folder / "house/out", Streams.seeded(5)), folder / "house")
    return watch.alarms


def test_a_clean_release_raises_no_alarm(tmp_path, monkeypatch):
    assert alarms(tmp_path, monkeypatch) == set()


# --- what is planted ---


def charged_at_last(monkeypatch):
    """Everything is drawn and made first, and paid for afterwards."""
    own = noisy_tables.NoisyTables.run

    def late(self, survey, spec, pay, *rest):
        made = own(self, survey, spec, lambda _: None, *rest)
        return replace(made, paid=pay(made.guarantee))

    monkeypatch.setattr(noisy_tables.NoisyTables, "run", late)


def charged_less(monkeypatch):
    """The guarantee that the release states, and is charged for, is half of what it spends."""
    own = noisy_tables.additive
    monkeypatch.setattr(noisy_tables, "additive", lambda epsilon, **named: own(epsilon / 2, **named))


def blanked_for_less(monkeypatch):
    """A respondent blanked out is said to cost half of one changed."""
    own = noisy_tables.additive

    def stated(epsilon, **named):
        return own(epsilon, **named).model_copy(update={"epsilon_blanked": epsilon / 2})

    monkeypatch.setattr(noisy_tables, "additive", stated)


def whole_budget_each(monkeypatch):
    """Every use has the whole of ε."""
    own = tables.split_budget

    def whole(rows, records, statistics, bounds, epsilon, **named):
        uses = own(rows, records, statistics, bounds, epsilon, **named)
        return tuple(replace(use, epsilon=Fraction(epsilon)) for use in uses)

    monkeypatch.setattr(tables, "split_budget", whole)


PLANTED = {
    "released before the charge": (charged_at_last, "something is made before the charge"),
    "charged for half": (charged_less, "less is charged than is spent"),
    "blanked out stated for less": (blanked_for_less, "less is stated than is spent"),
    "the budget spent more than once": (whole_budget_each, "more is spent than the budget"),
    "tables not rounded": (
        lambda patch: patch.setattr(pipeline, "rounded", lambda frame, _: frame),
        "more digits than stated",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_raises_its_alarm(bug, tmp_path, monkeypatch):
    plant, alarm = PLANTED[bug]
    assert alarm in alarms(tmp_path, monkeypatch, plant)


# --- the cost of the noise ---


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
    tables.additive_tables(survey, [TableSpec(by=("cell",))], 1.5, bounds, noise=recorder)
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
    whole_budget_each(monkeypatch)
    assert cost_of_noise() > 1.6
