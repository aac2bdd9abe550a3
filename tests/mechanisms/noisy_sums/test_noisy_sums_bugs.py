"""Privacy bugs of noisy sums: planted one by one in releases that are watched, and each raises its own alarm.

The watch stands where the noise is added and where the charge is made. It compares releases of neighbouring files, with
noise that hides everything: then nothing public may differ. `test_whole_record.py` does so for whole records.
"""

from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.core.spec.whole import parse_spec
from svysynth.mechanisms.noisy_sums import mechanism
from svysynth.mechanisms.noisy_sums.implied_tables import unscaled
from svysynth.mechanisms.noisy_sums.measuring import measurement as measuring
from svysynth.mechanisms.noisy_sums.measuring import whole_numbers as counting
from svysynth.mechanisms.noisy_sums.measuring.measurement import Use
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale, Scaling
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST
from svysynth.mechanisms.noisy_sums.posterior.fitting import Fitted
from svysynth.mechanisms.noisy_sums.posterior.shape_check import Shape
from svysynth.models.diagnostics import Verdict
from svysynth.privacy.release import NotCharged
from test_noisy_sums import people, survey_of

SPEC = parse_spec("""
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "region"
public = ["region", "sex"]
population_total = 50000

[privacy]
mechanism = "fbs"
guarantee = "global"
epsilon = 2.0
draws = 400
datasets = 2
bounds = { outcome = [1000.0, 10000000.0], weight = [1.0, 1000.0] }

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean"]
""")
FRAME = people(300)
EXTREMES = [(1e3, 1.0), (1e7, 1000.0), (1e-9, 1e-9), (1e12, 1e12), (4e4, 160.0)]
"""Answers of one respondent, within the bounds and far beyond."""


class Watch:
    """Stands between the sums and the noise, and at the charge."""

    def __init__(self, noise=None):
        self.alarms, self.seen, self.added, self.charges, self.noise = set(), {}, [], 0, noise

    def pay(self, guarantee):
        self.charges += 1
        self.charged = Fraction(guarantee.charged)
        return NotCharged()

    def __call__(self, values, use):
        if self.charges != 1:
            self.alarms.add("something is measured before the charge")
        if values.dtype != np.int64:
            self.alarms.add("sums are not whole numbers")
        if use.name in self.seen:
            self.alarms.add("something is measured twice")
        if "histogram" in use.name and values.sum() != 300:
            self.alarms.add("records are missing")
        self.seen[use.name] = use, values
        if self.noise is None:
            return np.full(values.shape, 7, np.int64)  # hides everything
        noisy = self.noise(np.asarray(values, np.int64), use)
        self.added.append((noisy - values).ravel()[:6] / use.scale)
        return noisy

    def spent(self):
        return sum((use.epsilon for use, _ in self.seen.values()), Fraction())


def plain_fit(measurement, facts, prior, formula, draws, streams):
    """Stands for the sampler: draws that follow from the measurement and the facts, and from nothing else."""
    level = measurement.levels[0]
    mean = level.sums[level.place] * measurement.step / facts.size[:, None]
    turn = np.sin(np.arange(draws))[:, None] / 50
    none = np.zeros((draws, len(mean)))
    found = {"outcome_mean": mean[:, 0] + turn, "weight_mean": mean[:, 1] + turn, "spread": np.full((draws, 3), 0.5)}
    drawn = unscaled(found | {"outcome_misfit": none, "weight_misfit": none}, measurement)
    return Fitted(drawn, Verdict(1.0, 1e4, 1e4, 0, 1.0), Shape(0.0, 1.0), Shape(0.0, 1.0))


def released(frame, watch, monkeypatch):
    """All public bytes of a release that is watched."""
    with monkeypatch.context() as patch:
        patch.setattr(mechanism, "StudyNoise", lambda streams: watch)
        made = mechanism.NoisySums().run(
            survey_of(frame), SPEC, watch.pay, svysynth.Streams.seeded(3), lambda message: None
        )
    files = [one.frame.write_csv() for one in made.synthetic.surveys]
    return made.tables.write_csv(), sorted(made.attachments.items()), files


def with_answers(income, weight):
    first = pl.int_range(pl.len()) == 0
    return FRAME.with_columns(
        income=pl.when(first).then(income).otherwise("income"), wt=pl.when(first).then(weight).otherwise("wt")
    )


def alarms(monkeypatch, plant=None):
    """All alarms of some releases, with a bug if one is given."""
    monkeypatch.setattr(mechanism, "fit_measurement", plain_fit)
    if plant:
        plant(monkeypatch)
    found, worlds, pages = set(), [], []
    for answers in EXTREMES:
        watch = Watch()
        pages.append(released(with_answers(*answers), watch, monkeypatch))
        worlds.append(watch)
        found |= watch.alarms
        if watch.spent() > watch.charged:
            found.add("more is spent than charged")
    if any(page != pages[0] for page in pages):
        found.add("something public does not come from the noise")
    for one in worlds:
        for other in worlds:
            for name, (use, values) in one.seen.items():
                if np.abs(values - other.seen[name][1]).sum() > use.sensitivity:
                    found.add("sums move further than the noise covers")
    watch = Watch(mechanism.StudyNoise(svysynth.Streams.seeded(9)))
    released(FRAME, watch, monkeypatch)
    for place, one in enumerate(watch.added):
        if any(np.abs(one[:3] - other[:3]).max() < 1e-3 for other in watch.added[:place]):
            found.add("noise is used twice")
    generator = np.random.default_rng(2)
    reach = counting.whole_numbers(*generator.normal(0, 6, (2, 20_000)), Scaling(Scale(0, 1.0), Scale(0, 1.0), 5.0))
    if np.abs(reach).sum(axis=0).max() > LARGEST:
        found.add("a record reaches too far")
    return found


def test_a_clean_release_raises_no_alarm(monkeypatch):
    assert alarms(monkeypatch) == set()


# --- what is planted ---


def sensitivity_halved(monkeypatch):
    monkeypatch.setattr(measuring, "Use", lambda name, sensitivity, epsilon: Use(name, sensitivity // 2, epsilon))


def floats_in_the_sum(monkeypatch):
    own = counting.bounded
    monkeypatch.setattr(counting, "bounded", lambda values, reach: own(values, reach) + 0.25)
    monkeypatch.setattr(measuring, "whole_sums", lambda cell, cells, values, _: np.bincount(cell, values, cells))
    monkeypatch.setattr(measuring, "whole_product", lambda one, other, _: one @ other)


def noise_used_again(monkeypatch):
    class Same:
        def __init__(self, streams):
            self.streams = streams

        def __call__(self, values, use):
            drawn = self.streams.generator("noise").laplace(0, use.scale, values.size)
            return values + np.rint(drawn).astype(np.int64).reshape(values.shape)

    monkeypatch.setattr(mechanism, "StudyNoise", Same)


def weights_over_their_own_sum(monkeypatch):
    own = counting.Answers.__call__

    def scaled(self, piece):
        t, v = own(self, piece)
        whole = np.clip(self.weight[:], *self.bounds.weight)
        return t, v - np.log(whole.sum() / 50_000.0)

    monkeypatch.setattr(counting.Answers, "__call__", scaled)


def bounds_from_the_data(monkeypatch):
    own = mechanism.measure

    def wrong(survey, facts, plan, bounds, *rest):
        least, most = survey.outcome_values.min(), survey.outcome_values.max()
        return own(survey, facts, plan, bounds.model_copy(update={"outcome": (least, most)}), *rest)

    monkeypatch.setattr(mechanism, "measure", wrong)


def scale_from_the_data(monkeypatch):
    own = mechanism.measure

    def wrong(survey, *rest):
        true = Scale(float(np.log(survey.outcome_values).mean()), 0.7)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measuring, "scale_from_counts", lambda counts, bands, records: true)
            return own(survey, *rest)

    monkeypatch.setattr(mechanism, "measure", wrong)


def clamped_before_rounding(monkeypatch):
    def wrong(values, reach):
        scaled = np.stack(values) * (LARGEST / reach)
        size = np.maximum(np.abs(scaled).sum(axis=0), LARGEST)
        return (np.sign(scaled) * np.ceil(np.abs(scaled) * LARGEST / size)).astype(np.int64)

    monkeypatch.setattr(counting, "bounded", wrong)


def answers_dropped(monkeypatch):
    own = measuring._Counts.__call__

    def fewer(self, piece):
        inside = (self.answers.outcome[piece] >= 1e3) & (self.answers.outcome[piece] <= 1e7)
        return tuple(count - (~inside).sum() * (np.arange(len(count)) == 0) for count in own(self, piece))

    monkeypatch.setattr(measuring._Counts, "__call__", fewer)


def chains_started_from_the_data(monkeypatch):
    known = {}
    own = mechanism.measure

    def remembered(survey, *rest):
        known["start"] = float(np.log(survey.outcome_values[:10]).mean())
        return own(survey, *rest)

    def wrong(measurement, *rest):
        found = plain_fit(measurement, *rest)
        found.drawn.outcome_mean[:, 0] += 1e-6 * known["start"]
        return found

    monkeypatch.setattr(mechanism, "measure", remembered)
    monkeypatch.setattr(mechanism, "fit_measurement", wrong)


def measured_twice(monkeypatch):
    own = mechanism.measure

    def twice(*arguments):
        own(*arguments)
        return own(*arguments)

    monkeypatch.setattr(mechanism, "measure", twice)


def charged_at_last(monkeypatch):
    own = mechanism.NoisySums.run

    def late(self, survey, spec, pay, *rest):
        held = []
        made = own(self, survey, spec, lambda guarantee: held.append(guarantee) or NotCharged(), *rest)
        pay(held[0])
        return made

    monkeypatch.setattr(mechanism.NoisySums, "run", late)


def spent_twice_over(monkeypatch):
    own = mechanism.plan_measurement

    def twice(facts, tables, epsilon, **more):
        return own(facts, tables, 2 * epsilon, **more)

    monkeypatch.setattr(mechanism, "plan_measurement", twice)


@pytest.mark.parametrize(
    ("plant", "alarm"),
    [
        (sensitivity_halved, "sums move further than the noise covers"),
        (floats_in_the_sum, "sums are not whole numbers"),
        (noise_used_again, "noise is used twice"),
        (weights_over_their_own_sum, "sums move further than the noise covers"),
        (bounds_from_the_data, "something public does not come from the noise"),
        (scale_from_the_data, "something public does not come from the noise"),
        (clamped_before_rounding, "a record reaches too far"),
        (answers_dropped, "records are missing"),
        (chains_started_from_the_data, "something public does not come from the noise"),
        (measured_twice, "something is measured twice"),
        (charged_at_last, "something is measured before the charge"),
        (spent_twice_over, "more is spent than charged"),
    ],
)
def test_a_planted_bug_raises_its_alarm(monkeypatch, plant, alarm):
    assert alarm in alarms(monkeypatch, plant)
