"""Scales that are public constants: no ε and nothing of the data goes to them, and nothing is said to be checked."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.core.errors import SurveyError
from svysynth.core.spec.whole import StandInSpec, parse_spec
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums import from_public_folder
from svysynth.mechanisms.noisy_sums.measuring import measurement as measuring
from svysynth.mechanisms.noisy_sums.measuring.measurement import measure
from svysynth.mechanisms.noisy_sums.measuring.planning import plan_measurement
from svysynth.mechanisms.noisy_sums.measuring.public_facts import facts_of
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale, public_scales
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey
from svysynth.mechanisms.noisy_sums.posterior.fitting import describe, fit_measurement
from svysynth.mechanisms.noisy_sums.published import measurement_json, read_measurement
from svysynth.models.fbs import FBS
from svysynth.privacy.ledger import open_budget, show
from svysynth.privacy.manifest import Manifest
from test_noisy_sums import BOUNDS, STREAMS, TABLES, NoNoise, people, survey_of

CONSTANTS = StandInSpec(mean=11.0, spread=0.7, weight_spread=0.5)
SPEC = """
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
scales = "standin"
epsilon = 6.0
draws = 400
datasets = 0
budget = "people"
bounds = { outcome = [1000, 10000000], weight = [1, 1000] }
"""
STANDIN = """
[standin]
mean = 11.0
spread = 0.7
weight_spread = 0.5
"""


def measured(frame, noise, epsilon=4.0, constants=CONSTANTS, protect="answers", **roles):
    return measure_survey(survey_of(frame, **roles), protect, TABLES, BOUNDS, "log", epsilon, noise, constants)


# --- what is spent and what is read ---


def test_the_scales_are_the_constants_whatever_the_answers_are():
    """An answer a thousand times as large would move any scale that is taken from the data."""
    frame = people()
    for answers in (frame, frame.with_columns(pl.col("income") * 1000, pl.col("wt") * 3)):
        found, _ = measured(answers, NoNoise())
        assert (found.scaling.outcome, found.scaling.weight) == (Scale(11.0, 0.7), Scale(-0.125, 0.5))


@pytest.mark.parametrize("protect", ["answers", "record"])
def test_all_of_epsilon_goes_to_what_is_measured_and_no_histogram_is(protect):
    noise = NoNoise()
    levels = {"levels": {"region": [f"r{number}" for number in range(6)], "sex": ["f", "m"]}}
    found, _ = measured(people(), noise, 4.0, protect=protect, **levels)
    assert not any("histogram" in use.name for use in noise.uses)
    assert sum(use.epsilon for use in noise.uses) == found.plan.epsilon == Fraction(4)
    assert found.plan.histogram == 0
    assert len(found.outcome_bands) == len(found.weight_bands) == 0


def test_the_sums_get_what_the_histograms_would_have_had():
    facts = facts_of(survey_of(people()))
    with_them, without = (plan_measurement(facts, TABLES, 4.0, scales=scales) for scales in ("histograms", "standin"))
    assert with_them.histogram > 0
    assert without.epsilon == with_them.epsilon == Fraction(4)
    sums = [
        sum(part for _, part in plan.levels) + plan.squares + plan.weighted.epsilon for plan in (with_them, without)
    ]
    assert sums[1] - sums[0] == 2 * with_them.histogram


def test_the_records_are_read_once(monkeypatch):
    """A histogram that is made and not used would still be a look at the data."""

    def never(*_):
        raise AssertionError("the bands were counted")

    monkeypatch.setattr(measuring._Counts, "__call__", never)
    measured(people(), NoNoise())
    with pytest.raises(AssertionError, match="the bands were counted"):
        measured(people(), NoNoise(), constants=None)


def test_a_plan_and_scales_that_do_not_belong_together_are_refused():
    survey = survey_of(people())
    facts = facts_of(survey)
    for scales, given in (("histograms", public_scales(CONSTANTS)), ("standin", None)):
        plan = plan_measurement(facts, TABLES, 4.0, scales=scales)
        with pytest.raises(ValueError, match="needs no scales"):
            measure(survey, facts, plan, BOUNDS, "log", NoNoise(), None, given)


# --- what follows ---


def test_the_constants_say_nothing_of_the_spreads():
    """Of the posterior density the part for histograms is gone: it would draw spreads towards a wrong guess."""
    narrow = StandInSpec(mean=11.0, spread=0.35, weight_spread=0.25)
    found, facts = measured(people(), StudyNoise(STREAMS), 400.0, narrow)
    assert found.width_error >= 1e6
    model, statistics = describe(found, facts, FBS(), None)
    z = np.append(model._start(statistics), np.zeros(sum(model._unwhitened(statistics))))
    _, latent = model._at(z, statistics)
    sure = statistics._replace(width_error=statistics.width_error / 1e7)
    assert abs(model.log_density(z, statistics) - model.log_density(z, sure)) > 1
    gone = statistics._replace(width_error=statistics.width_error * 1e3)
    assert model.log_density(z, statistics) == pytest.approx(float(model.log_density(z, gone)), abs=1e-9)
    assert latent.scatter.shape == (3,)


def test_a_guess_that_is_a_little_off_gives_the_tables_of_the_histograms():
    """With little noise either way leads to the spreads and means of the file."""
    survey = survey_of(people())
    facts = facts_of(survey)
    t, v = np.log(survey.outcome_values), np.log(survey.weights * len(survey) / 50_000)
    place = survey.present_cells(survey.public)[1][:]
    within = [values - (np.bincount(place, values) / np.bincount(place))[place] for values in (t, v)]
    drawn = fit_measurement(measured(people(), StudyNoise(STREAMS), 2000.0)[0], facts, FBS(), None, 400, STREAMS).drawn
    for variance, values in zip((drawn.outcome_variance, drawn.weight_variance), within, strict=True):
        assert np.sqrt(variance.mean()) == pytest.approx(np.sqrt((values**2).mean()), rel=0.03)


def test_the_measurement_says_so_and_is_read_again():
    found, facts = measured(people(), StudyNoise(STREAMS))
    text = measurement_json(found, facts)
    content = json.loads(text)
    assert (content["scales"], content["histograms"]) == ("standin", None)
    again, _ = read_measurement(text)
    assert (again.plan, again.scaling) == (found.plan, found.scaling)
    assert again.width_error == found.width_error
    content["scales"] = "histograms"
    with pytest.raises(ValueError, match="scales"):
        read_measurement(json.dumps(content).encode())


# --- the spec ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SPEC, "'privacy.scales' is 'standin', and .standin. lacks mean, spread, weight_spread"),
        (SPEC + "[standin]\nmean = 11.0\nspread = 0.7\n", "lacks weight_spread: add them from public knowledge"),
        (SPEC + "[standin]\nmean = 11.0\nweight_spread = 0.7\n", "standin.spread"),
        (
            SPEC.replace('"global"', '"asymptotic"').replace("datasets = 0", "") + STANDIN,
            "fbs and fbp with the guarantee",
        ),
        (SPEC.replace('"fbs"', '"laplace"') + STANDIN, "fbs and fbp with the guarantee"),
        (SPEC.replace('"standin"', '"guess"') + STANDIN, "privacy.scales"),
    ],
)
def test_constants_that_are_missing_are_one_clear_error(text, says):
    with pytest.raises(SurveyError, match=says):
        parse_spec(text)


def house(folder, text):
    people().write_csv(folder / "people.csv")
    (folder / "spec.toml").write_text(text)
    open_budget(folder / "ledger.sqlite", "people", "10", "differential privacy")
    return folder / "spec.toml"


def test_a_mean_on_another_scale_is_refused_before_the_charge(tmp_path):
    spec = house(tmp_path, SPEC + STANDIN.replace("11.0", "60000"))
    with pytest.raises(SurveyError, match=r"standin\.mean"):
        svysynth.release(spec, tmp_path / "out")
    (state,) = show(tmp_path / "ledger.sqlite")
    assert state.spent == 0


# --- a release ---


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("house")
    spec = house(folder, SPEC + STANDIN)
    svysynth.release(spec, folder / "out")
    return folder


def test_a_release_states_its_constants_and_is_verified(released):
    manifest = svysynth.verify(released / "out", released / "spec.toml").manifest
    assert (manifest.privacy.scales, manifest.privacy.constants) == ("standin", CONSTANTS)
    assert manifest.guarantee.units == "in public scales, clamped to public bounds"
    assert any("no histograms were measured" in note for note in manifest.notes)


def test_what_was_not_checked_is_a_reason_to_look_closer(released):
    """It is no complaint about the draws, which would say do not publish."""
    verdict = json.loads((released / "out/internal/verdict.json").read_text())
    found = [reason for reason in verdict["reasons"] if "not checked: no histograms were measured" in reason["text"]]
    assert [reason["level"] for reason in found] == ["look closer"]
    assert verdict["verdict"] != "publish"
    assert (released / "out/internal/report.html").read_text().count("not checked: no histograms were measured") == 3


def test_constants_that_are_not_the_manifest_s_are_refused(released):
    public = released / "out/public"
    manifest = Manifest.model_validate_json((public / "manifest.json").read_text())
    measurement, facts = read_measurement((public / "measurement.json").read_bytes())
    from_public_folder._check_measurement(measurement, facts, manifest)
    wider = replace(measurement.scaling, weight=Scale(-0.125, 0.6))
    paid = replace(measurement.plan, histogram=Fraction(1, 10))
    other = {"scales": "histograms"}, {"constants": None}, {"constants": CONSTANTS.model_copy(update={"mean": 11.1})}
    wrong = [
        (replace(measurement, scaling=wider), {}),
        (replace(measurement, plan=paid), {}),
        *((measurement, update) for update in other),
    ]
    for found, update in wrong:
        stated = manifest.model_copy(update={"privacy": manifest.privacy.model_copy(update=update)})
        with pytest.raises(ValueError, match="does not belong to the manifest"):
            from_public_folder._check_measurement(found, facts, stated)
