"""Replicates computed together: what each gives is what it gives alone, and works of any length share their fits."""

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from svysynth.core.errors import SurveyError
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate
from svysynth.evaluation.paper.batched_fits import carry_out_together, prepare, replicate_together
from svysynth.evaluation.paper.methods import Plan
from svysynth.evaluation.paper.repeated import Simulation, replicate
from svysynth.evaluation.paper.stacked_surveys import AS_IN_THE_PAPER, stack_surveys, tabulate_stack
from svysynth.evaluation.paper.study import simulation_frames
from svysynth.evaluation.paper.workers import load_replicates
from svysynth.mechanisms.pseudo_posterior.record_bounds import bounds_together, record_bounds
from svysynth.models.diagnostics import judge, judge_together
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.models.sampler import Fit, padded
from svysynth.models.sufficient_statistics import linear_statistics, linear_statistics_together
from svysynth.models.synthesis import draw_keys, make_synthetic, shuffle_keys, synthesize_draws, synthesize_together

SMALL = Simulation(Plan(models=("fbp",), bounds=(1.8,), datasets=(1, 3), draws=400), n=400)
ROUNDING = 1e-9
"""Relative: programs of another shape add in another order, and a chain of 400 transitions passes that on."""


@pytest.fixture(scope="module")
def samples():
    """Three replicates; the second lacks a cell, the third is like the first."""
    found = [prepare(SMALL, index) for index in (1, 2, 3)]
    survey = found[1].survey
    rare = survey.frame.group_by("field", "gender").len().sort("len", "field").select("field", "gender").row(0)
    without = survey.frame.filter(~((pl.col("field") == rare[0]) & (pl.col("gender") == rare[1])))
    enough = pl.concat([without, without[: len(survey) - len(without)]])
    survey = replace(survey, frame=enough.sort(survey.published))
    found[1] = replace(found[1], survey=survey, groups=survey.groups, records=SMALL.plan.records_of(survey))
    assert len(found[1].records.x) == len(found[0].records.x) - 1
    return found


def stacked(samples):
    """t, v, cell and x of the samples; x is filled up."""
    records = [sample.records for sample in samples]
    x = np.stack([one.x[np.minimum(np.arange(16), len(one.x) - 1)] for one in records])
    return *(np.stack([getattr(one, name) for one in records]) for name in ("t", "v", "cell")), x


def draw_of(model, p=9):
    """Parameters near which the samples might have been drawn."""
    beta = {"beta_y": np.r_[11.0, np.full(p - 1, 0.1)], "beta_w": np.r_[0.2, np.full(p - 1, -0.1)]}
    if model.name == "fbs":
        return beta | {"covariance": np.array([[0.16, -0.12], [-0.12, 0.3]])}
    return {
        "beta": beta["beta_y"],
        "kappa_x": np.r_[-11.0, np.full(p - 1, 0.1)],
        "kappa_y": np.array(0.9),
        "sigma_y": np.array(0.4),
        "sigma_pi": np.array(0.5),
    }


@pytest.mark.study
def test_replicates_of_the_whole_study_together_are_what_they_are_alone():
    study = Simulation()
    together = dict(replicate_together(study, [prepare(study, index) for index in (1, 2, 3)], batch=3))
    for index, result in together.items():
        np.testing.assert_allclose(result["tables"], replicate(study, index)["tables"], rtol=ROUNDING)


def test_a_study_in_batches_is_what_it_is_alone_and_takes_up_where_it_stopped(tmp_path):
    seen = []
    for replicates in (2, 4):
        simulation_frames(SMALL, tmp_path, replicates, 1, lambda done, _: seen.append(done), batch=3)
    assert seen == [0, 1, 2, 2, 3, 4]
    for index, found in enumerate(load_replicates(tmp_path / "replicates", range(4))):
        alone = replicate(SMALL, index)
        assert set(found) == set(alone)
        for name in ("tables", "fits", "correlation"):
            np.testing.assert_allclose(found[name], alone[name], rtol=ROUNDING, atol=1e-12, err_msg=name)


def test_batches_are_for_one_machine(tmp_path):
    elsewhere = SimpleNamespace(remote=True, parts=None)
    with pytest.raises(SurveyError, match="--batch: is for one machine"):
        simulation_frames(SMALL, tmp_path / "study", 2, elsewhere, lambda *_: None, batch=8)
    assert not (tmp_path / "study").exists()


# --- who carries out the orders ---


def work(number, length, model, seen):
    """Orders so many fits, goes on after an error, and gives back the sum of what it received."""
    received = 0
    for step in range(length):
        try:
            received += yield SimpleNamespace(model=model, number=number, step=step)
        except SurveyError:
            seen.append((number, step))
            received -= 1
    return received


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_every_work_receives_the_answers_to_its_own_orders(batch):
    lengths = np.random.default_rng(1).integers(1, 9, 30)
    refused, sizes = [], []

    def answer(orders):
        sizes.append(len(orders))
        assert len({order.model for order in orders}) == 1
        bad = SurveyError("data", "a", "b", "c")
        return [bad if order.number % 7 == order.step else 100 * order.number + order.step for order in orders]

    works = ((number, work(number, length, "ab"[number % 2], refused)) for number, length in enumerate(lengths))
    found = dict(carry_out_together(works, answer, batch))
    steps = {number: [step for step in range(length) if number % 7 != step] for number, length in enumerate(lengths)}
    errors = {number: length - len(steps[number]) for number, length in enumerate(lengths)}
    assert found == {n: sum(100 * n + step for step in own) - errors[n] for n, own in steps.items()}
    assert sorted(refused) == [(n, n % 7) for n, length in enumerate(lengths) if n % 7 < length]
    assert sum(sizes) == lengths.sum()
    assert max(sizes) <= batch
    assert list(carry_out_together([], answer, batch)) == []


def test_batches_have_few_sizes():
    assert {len(padded(count, 1024)) for count in range(1, 1025)} == {16, 128, 1024}
    assert padded(3, 8).tolist() == [0, 1, 2, 2, 2, 2, 2, 2]
    assert padded(1, 1).tolist() == [0]


def test_samples_are_in_the_order_of_their_groups(samples):
    for sample in samples:
        assert sample.survey.frame.select(sample.groups.frame.columns).equals(
            sample.groups.frame[np.repeat(np.arange(len(sample.groups.count)), sample.groups.count)]
        )


# --- the pieces, each beside what it is for one survey ---


def test_statistics_together(samples):
    t, v, cell, x = stacked(samples)
    alpha = np.random.default_rng(2).random(t.shape)
    alpha[2] = 0.0
    found, usable = linear_statistics_together(t, v, cell, x, alpha)
    assert usable.tolist() == [True, True, False]
    for i in (0, 1):
        wanted = linear_statistics(samples[i].records, alpha[i])
        for name, mine, theirs in zip(wanted._fields, found, wanted, strict=True):
            np.testing.assert_allclose(np.abs(mine[i]), np.abs(theirs), rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("model", [FBS(), FBP()], ids=lambda model: model.name)
def test_bounds_together(samples, model):
    t, v, cell, x = stacked(samples)
    steps = np.linspace(0.9, 1.1, 50)
    draws = {name: np.stack([value * step for step in steps]) for name, value in draw_of(model).items()}
    several = {name: jnp.asarray(np.stack([value] * 3)) for name, value in draws.items()}
    found = np.asarray(bounds_together(model, several, x, t, v, cell))
    for i, sample in enumerate(samples):
        one = {name: jnp.asarray(value) for name, value in draws.items()}
        wanted = record_bounds(Fit(model, sample.records, np.ones(len(t[i])), one, None))
        np.testing.assert_allclose(found[i], wanted, rtol=1e-9)


@pytest.mark.parametrize("model", [FBS(), FBP(smoothing="paper"), FBP()], ids=["fbs", "paper", "full"])
def test_synthesis_together(samples, model):
    draw, streams = draw_of(model), [Streams.seeded(seed) for seed in range(3)]
    groups = [sample.groups for sample in samples]
    count = np.array([np.r_[one.count, np.zeros(16 - len(one.count), int)] for one in groups])
    x = np.stack([s.records.x[s.groups.cell[np.minimum(np.arange(16), len(s.groups.cell) - 1)]] for s in samples])
    keys = [np.stack([make(one, 0) for one in streams]) for make in (shuffle_keys, draw_keys)]
    several = {name: np.stack([value] * 3) for name, value in draw.items()}
    found = synthesize_together(model, several, x, count, SMALL.n, *keys)
    for i, sample in enumerate(samples):
        (one,) = synthesize_draws(model, sample.records, [draw], sample.survey, streams[i])
        mine = pl.DataFrame({"salary": np.exp(found.t[i]), "weight": np.exp(found.log_weight[i])}).with_columns(
            pl.col("weight") / pl.col("weight").sum() * one.population_total, *sample.survey.frame["field", "gender"]
        )
        order = ["field", "gender", "salary"]
        mine, theirs = mine.sort(order), one.frame.select(mine.columns).sort(order)
        assert mine.select(order[:2]).equals(theirs.select(order[:2]))
        for column in ("salary", "weight"):
            np.testing.assert_allclose(mine[column], theirs[column], rtol=1e-12)


def test_verdicts_together():
    generator = np.random.default_rng(3)
    draws = generator.standard_normal((3, 4, 100, 5))
    draws[0, :, 1::3] = draws[0, :, 0:-1:3]  # as where proposals are refused
    draws[1, 0, :, 2] += 1
    draws[2, :, 7, 3] = np.nan
    energy = generator.standard_normal((3, 4, 100))
    for found, one, energies in zip(np.asarray(judge_together(draws, energy)), draws, energy, strict=True):
        wanted = judge(one, 0, energies)
        figures = [wanted.rhat, wanted.ess_bulk, wanted.ess_tail, wanted.ebfmi]
        known = 4 if np.isfinite(one).all() else 1  # R-hat says what is wrong; the rest means nothing then
        np.testing.assert_allclose(found[:known], figures[:known], rtol=1e-11)


@pytest.mark.parametrize(("name", "smoothing"), [("fbs", "full"), ("fbp", "paper"), ("fbp", "full")])
def test_a_stack_has_the_tables_of_its_surveys(samples, name, smoothing):
    surveys = [sample.survey for sample in samples]
    rules = make_synthetic((), FBP(smoothing) if name == "fbp" else FBS())
    found = tabulate_stack(stack_surveys(surveys), rules)
    for i, survey in enumerate(surveys):
        own = replace(rules, surveys=(survey,))
        wanted = own.tabulate(survey.public, estimation=AS_IN_THE_PAPER).select("estimate", "se")
        np.testing.assert_allclose(found[i], wanted.fill_null(float("nan")).to_numpy(), rtol=1e-12)


def test_a_survey_without_strata_can_be_stacked(samples):
    surveys = [replace(sample.survey, design=replace(sample.survey.design, strata=None)) for sample in samples]
    found = tabulate_stack(stack_surveys(surveys), make_synthetic((), FBS()))
    wanted = tabulate(surveys[2], surveys[2].public).select("estimate", "se").fill_null(float("nan"))
    np.testing.assert_allclose(found[2], wanted.to_numpy(), rtol=1e-12)
