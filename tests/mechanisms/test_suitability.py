"""What cannot be done right is refused before anything is charged: generated files with the traits of real ones."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import svysynth
from incomes import SPEC, TABLES, findings, house, people, run, survey_of
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.whole import parse_spec
from svysynth.mechanisms.base import examine
from svysynth.mechanisms.pseudo_posterior.calibration import Calibration, fit_unweighted
from svysynth.mechanisms.suitability import (
    examine_bounds,
    judge_calibration,
    judge_weights,
    refuse_misfit,
)
from svysynth.models.base import Traits
from svysynth.models.diagnostics import Verdict
from svysynth.models.records import Records, make_records
from svysynth.models.sampler import Fit, fit
from svysynth.privacy.ledger import show


def srs_within_strata():
    """A stratified simple random sample: N_h/n_h is every weight, as in R's `apistrat`."""
    return people().with_columns(wt=pl.col("region").replace_strict({"a": 44.21, "b": 20.36, "c": 15.1}))


def nearly_constant():
    noise = np.random.default_rng(3).standard_normal(2000)
    return srs_within_strata().with_columns(wt=pl.col("wt") * np.exp(0.005 * noise))


def yes_or_no():
    """One in nine, as high cholesterol in NHANES."""
    return people().with_columns(income=pl.Series((np.random.default_rng(2).random(2000) < 1 / 9) + 1.0))


def a_scale():
    return people().with_columns(income=pl.Series(np.random.default_rng(2).integers(1, 11, 2000).astype(float)))


def many_at_one_value():
    return people().with_columns(income=pl.when(pl.int_range(pl.len()) % 3 == 0).then(5.0).otherwise("income"))


def skewed_to_the_left(size=8000):
    """Log incomes with a long left tail, as of employees some of whom worked part of the year."""
    generator = np.random.default_rng(5)
    frame = people(size)
    part = np.where(generator.random(size) < 0.25, generator.exponential(1.4, size), 0.0)
    t = 10 + 0.25 * generator.standard_normal(size) - part
    return frame.with_columns(income=pl.Series(np.exp(t)))


UNSUITABLE = {
    "weights fixed by the strata": (srs_within_strata, "weight_public = true"),
    "weights nearly fixed by the strata": (nearly_constant, "weight_public = true"),
    "yes or no": (yes_or_no, "only two values"),
    "a scale from one to ten": (a_scale, "no more than 20 different values"),
    "a third at one value": (many_at_one_value, "have the same outcome"),
    "incomes skewed to the left": (skewed_to_the_left, "is not the model's"),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_it_is_refused_with_the_reason_and_the_way_out(name):
    make, words = UNSUITABLE[name]
    stopping = [finding for finding in findings(make()) if finding.stops]
    assert stopping
    assert words in " ".join(finding.line() for finding in stopping)
    assert all(finding.instead for finding in stopping)


@pytest.mark.parametrize("seed", range(8))
def test_what_the_models_are_made_for_raises_no_finding(seed):
    assert findings(people(seed=seed)) == ()


@pytest.mark.parametrize("mechanism", ["fbs", "fbp"])
@pytest.mark.parametrize("name", ["weights fixed by the strata", "yes or no", "incomes skewed to the left"])
def test_check_release_and_python_say_the_same_and_nothing_is_charged(name, mechanism, tmp_path, capsys):
    make, words = UNSUITABLE[name]
    spec = house(tmp_path, make(), mechanism)
    before = show(tmp_path / "ledger.sqlite")
    capsys.readouterr()
    assert run("check", spec) == 0
    shown = capsys.readouterr().out
    assert "release would refuse" in shown
    assert words in shown
    assert run("release", spec, "--out", tmp_path / "out") == 1
    assert words in capsys.readouterr().err
    assert show(tmp_path / "ledger.sqlite") == before
    assert not (tmp_path / "out").exists()
    model = svysynth.FBS() if mechanism == "fbs" else svysynth.FBP()
    with pytest.raises(svysynth.SurveyError, match=words):
        svysynth.calibrate(model, survey_of(make()), epsilon=10.8, datasets=2, draws=400)


def test_messages_show_no_figure_of_the_data():
    for make, _ in UNSUITABLE.values():
        frame = make()
        for finding in findings(frame):
            for value in (*frame["income"][:50], *frame["wt"][:50], frame["income"].mean(), frame["wt"].sum()):
                assert value == round(value) or f"{value:.4g}" not in finding.line()


def test_clusters_are_refused_before_the_data_are_read(tmp_path, capsys):
    changes = [('strata = "region"', 'strata = "region"\ncluster = "village"'), ("people.csv", "not-there.csv")]
    spec = house(tmp_path, people(), "fbp", "asymptotic", changes)
    assert run("release", spec, "--out", tmp_path / "out") == 1
    assert "survey.cluster" in capsys.readouterr().err


def test_python_refuses_clusters_too():
    frame = people().with_columns(village=pl.int_range(pl.len()) // 20 * 3 + pl.int_range(pl.len()) % 3)
    with pytest.raises(svysynth.SurveyError, match=r"survey\.cluster"):
        svysynth.calibrate(svysynth.FBS(), survey_of(frame, cluster="village"), epsilon=10.8, datasets=2)


def test_a_total_that_is_not_the_weights_is_worth_a_look():
    (finding,) = findings(people(), population_total=1e5)
    assert finding.place == "survey.population_total"
    assert not finding.stops


def test_under_a_global_guarantee_the_data_stop_nothing():
    frame = people()
    text = SPEC.format(total=1000, mechanism="laplace", guarantee="global").replace("1000000.0", "20000.0")
    spec, survey = parse_spec(text), survey_of(frame)
    (finding,) = examine(survey, spec, svysynth.tabulate_all(survey, TABLES)).findings
    assert (finding.place, finding.stops) == ("privacy.bounds.outcome", False)
    assert "not covered by ε" in finding.line()


class OwnModel(svysynth.FBS):
    """A model of the user's own, of which nothing is known but its draws."""

    traits = Traits()


def test_a_model_of_the_user_s_own_is_tried_by_what_it_draws():
    survey, skewed = survey_of(people()), survey_of(skewed_to_the_left())
    start = fit_unweighted(OwnModel(), make_records(survey), svysynth.Streams.seeded(1), 400)
    refuse_misfit(start.fit, survey, svysynth.Streams.seeded(1))
    with pytest.raises(svysynth.SurveyError, match="is not the model's"):
        svysynth.calibrate(OwnModel(), skewed, epsilon=10.8, datasets=2, draws=400)


def calibrated(alpha, largest, columns=2):
    size = len(alpha)
    records = Records(np.zeros(size), np.zeros(size), np.zeros(size, int), np.ones((1, columns)), ("1",) * columns)
    return Calibration(
        Fit(svysynth.FBS(), records, alpha, {}, None), np.ones(size), np.ones(size), largest, 1.8, 10.8, 3, ()
    )


def test_weights_that_leave_nothing_and_targets_that_are_missed_are_refused():
    assert judge_calibration(calibrated(np.full(1000, 0.5), 1.79)) == []
    (nothing,) = judge_calibration(calibrated(np.full(1000, 0.007), 1.79))
    assert "of the records' information" in nothing.found
    (few,) = judge_calibration(calibrated(np.full(60, 0.5), 1.79, columns=8))
    assert "for each coefficient" in few.found
    (below,) = judge_calibration(calibrated(np.full(1000, 0.5), 1.0))
    assert "ended below 80% of its target" in below.found
    assert nothing.stops
    assert few.stops
    assert below.stops


def test_weights_that_move_the_mean_are_refused():
    """Records are weighted down by their distance from the mean; of skewed outcomes more on one side."""
    survey = survey_of(people())
    records = make_records(survey)
    even = np.where(np.abs(records.t - records.t.mean()) > 0.7, 0.2, 1.0)
    for alpha, refused in ((even, False), (one_sided(records), True)):
        found = Calibration(Fit(svysynth.FBS(), records, alpha, {}, None), alpha, alpha, 1.7, 1.8, 10.8, 3, ())
        assert [finding.stops for finding in judge_weights(found, survey)] == [True] * refused


def one_sided(records):
    return np.where(records.t < records.t.mean() - 0.3, 0.2, 1.0)


BADLY_CALIBRATED = {
    "of the records' information": lambda records: (np.full(len(records), 0.007), 0.99),
    "ended below 80% of its target": lambda records: (np.full(len(records), 0.5), 0.79),
    "move the mean of the whole file": lambda records: (one_sided(records), 0.99),
}


@pytest.mark.parametrize("words", BADLY_CALIBRATED)
def test_a_calibration_that_went_badly_is_refused_before_the_charge(words, tmp_path, monkeypatch, capsys):
    """The search for weights is replaced by one that ends badly; all that comes after it is real."""
    calibrated = []

    def search(model, records, epsilon, datasets, *rest):
        alpha, share = BADLY_CALIBRATED[words](records)
        target = epsilon / (2 * datasets)
        weighted = Fit(model, records, alpha, {}, Verdict(1.0, 500.0, 500.0, 0, 1.0))
        calibrated.append(target)
        return Calibration(weighted, alpha, alpha, share * target, target, epsilon, datasets, ())

    monkeypatch.setattr("svysynth.mechanisms.pseudo_posterior.python_interface.calibrate_records", search)
    frame = people()
    with pytest.raises(svysynth.SurveyError, match=words):
        svysynth.calibrate(svysynth.FBS(), survey_of(frame), epsilon=10.8, datasets=2, draws=400)
    spec = house(tmp_path, frame)
    before = show(tmp_path / "ledger.sqlite")
    capsys.readouterr()
    assert run("release", spec, "--out", tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert "privacy.epsilon" in said
    assert words in said
    assert show(tmp_path / "ledger.sqlite") == before
    assert not (tmp_path / "out").exists()
    assert len(calibrated) == 2


def test_an_epsilon_that_leaves_almost_nothing_of_the_records_is_refused():
    """Nothing is replaced here: weights are found that meet ε = 1, and they sum to less than 2% of the records."""
    survey, settings = survey_of(people(4000)), {"datasets": 3, "draws": 400, "streams": svysynth.Streams.seeded(1)}
    with pytest.raises(svysynth.SurveyError, match="of the records' information"):
        svysynth.calibrate(svysynth.FBP(), survey, epsilon=1, **settings)
    assert svysynth.calibrate(svysynth.FBP(), survey, epsilon=4, **settings).calibration.epsilon == 4


# --- public weights ---


def test_public_weights_are_kept_and_the_outcome_alone_is_modelled(tmp_path, capsys):
    """The remedy for a stratified simple random sample works: means are right, and weights are those of the file."""
    frame = srs_within_strata()
    spec = house(tmp_path, frame, changes=[('weight = "wt"', 'weight = "wt"\nweight_public = true')])
    assert run("release", spec, "--out", tmp_path / "out") == 0
    capsys.readouterr()
    assert run("verify", tmp_path / "out", "--ledger", spec) == 0
    said = capsys.readouterr().out
    assert "a respondent's income is blanked out" in said
    assert "Published as they are: region, sex, wt" in said
    direct = svysynth.tabulate(survey_of(frame), by=["region", "sex"])
    tables = pl.read_csv(tmp_path / "out/public/tables.csv")
    counts, means = (tables["statistic"] == name for name in ("count", "mean"))
    assert tables.filter(counts)["estimate"].to_list() == pytest.approx(direct.filter(counts)["estimate"].to_list())
    off = (tables["estimate"] - direct["estimate"]).abs() / (tables["se"] ** 2 + direct["se"] ** 2).sqrt()
    assert off.filter(means).max() < 3.5
    synthetic = pl.read_csv(tmp_path / "out/public/microdata-1.csv")
    assert synthetic.group_by("region").agg(pl.col("weight").unique().first()).sort("region")["weight"].to_list() == [
        44.21,
        20.36,
        15.1,
    ]
    assert synthetic["weight"].equals(synthetic["weight_unsmoothed"], check_names=False)


def test_public_weights_that_go_with_the_outcome_keep_doing_so():
    """With the log weight in x the weighted mean is right although the weights are not drawn."""
    frame = people(4000)
    survey = survey_of(frame, weight_public=True)
    found = svysynth.calibrate(
        svysynth.FBS(weight_public=True), survey, epsilon=40, datasets=4, draws=400, streams=svysynth.Streams.seeded(1)
    )
    assert found.calibration.fit.records.terms[-1] == "log weight"
    synthetic = found.synthesize()
    direct, tables = svysynth.tabulate(survey, by=["region"]), synthetic.tabulate(by=["region"])
    mean = pl.col("statistic") == "mean"
    off = (tables.filter(mean)["estimate"] - direct.filter(mean)["estimate"]).abs() / direct.filter(mean)["se"]
    assert off.max() < 3.5
    apart = np.corrcoef(np.log(frame["income"]), np.log(frame["wt"]))[0, 1]
    first = synthetic.surveys[0]
    assert np.corrcoef(np.log(first.outcome_values), np.log(first.weights))[0, 1] == pytest.approx(apart, abs=0.1)


@pytest.mark.parametrize(("mechanism", "guarantee"), [("fbp", "asymptotic"), ("laplace", "global")])
def test_public_weights_have_a_form_in_fbs_alone(mechanism, guarantee, tmp_path, capsys):
    changes = [('weight = "wt"', 'weight = "wt"\nweight_public = true'), ("people.csv", "not-there.csv")]
    spec = house(tmp_path, people(), mechanism, guarantee, changes)
    assert run("release", spec, "--out", tmp_path / "out") == 1
    assert "survey.weight_public" in capsys.readouterr().err


def test_the_draws_of_an_outcome_alone_are_those_of_the_same_prior():
    """With a weight that says nothing of the outcome FBS gives the outcome's part the same posterior, about."""
    generator = np.random.default_rng(7)
    cell = np.arange(600) % 3
    records = Records(
        10 + 0.3 * cell + 0.4 * generator.standard_normal(600),
        0.3 * generator.standard_normal(600),
        cell,
        np.array([[1.0, 0, 0], [1, 1, 0], [1, 0, 1]]),
        ("1", "b", "c"),
    )
    one, both = (
        fit(model, records, np.ones(600), svysynth.Streams.seeded(2), 1000).draws
        for model in (svysynth.FBS(weight_public=True), svysynth.FBS())
    )
    spread = np.std(np.asarray(both["beta_y"]), axis=0)
    off = np.mean(np.asarray(one["beta_y"]), axis=0) - np.mean(np.asarray(both["beta_y"]), axis=0)
    assert np.abs(off / spread).max() < 0.2  # 1000 draws of each: a standard error of 0.045, and priors that are shared
    assert np.std(np.asarray(one["beta_y"]), axis=0) == pytest.approx(spread, rel=0.15)
    variance = np.mean(np.asarray(both["covariance"])[:, 0, 0])
    assert float(np.mean(np.asarray(one["covariance"]))) == pytest.approx(float(variance), rel=0.02)


def test_replaced_surveys_keep_the_declaration():
    survey = survey_of(people(), weight_public=True)
    assert replace(survey).confidential == ("income",)
    assert survey.published == ("region", "sex", "wt")


@pytest.mark.parametrize("power", [-1.0, 0.5])
def test_public_weights_that_tell_the_outcome_are_named(power):
    """As in a sample drawn in proportion to the outcome; drawn by something like it, they are public in truth."""
    generator = np.random.default_rng(8)
    y = np.exp(10 + 0.5 * generator.standard_normal(500))
    bounds = BoundsSpec(outcome=(1.0, 1e7), weight=(1e-9, 1e9))
    like = y * np.exp(0.4 * generator.standard_normal(500))
    for size, named in ((y, 1), (like, 0)):
        frame = pl.DataFrame({"y": y, "w": 1000 * size**power, "sex": ["F", "M"] * 250})
        for public in (True, False):
            survey = svysynth.read_survey(frame, outcome="y", weight="w", public=["sex"], weight_public=public)
            found = [one.place for one in examine_bounds(survey, bounds).findings]
            assert found.count("survey.weight_public") == named * public
