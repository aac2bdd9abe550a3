"""Whole records protected: cells, sizes and taking part reach the public side through noise alone."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.core.engine import LOCAL, Local
from svysynth.core.errors import SurveyError
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import parse_spec
from svysynth.mechanisms.base import find_public, mechanism_of
from svysynth.mechanisms.findings import undeclared
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums import from_public_folder
from svysynth.mechanisms.noisy_sums import mechanism as noisy_sums
from svysynth.mechanisms.noisy_sums.measuring import measurement as measuring
from svysynth.mechanisms.noisy_sums.measuring import whole_numbers as counting
from svysynth.mechanisms.noisy_sums.measuring.measurement import NoisySizes, measure
from svysynth.mechanisms.noisy_sums.measuring.planning import plan_sizes
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale, Scaling
from svysynth.mechanisms.noisy_sums.measuring.sizes import (
    count_records,
    declared_groups,
    draw_sizes,
    facts_of_noisy,
)
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of
from svysynth.mechanisms.noisy_sums.published import draws_parquet, measurement_json, read_draws, read_measurement
from svysynth.models.fbs import FBS
from svysynth.privacy.ledger import open_budget, show
from svysynth.survey.large_files import read_large
from svysynth.survey.survey import survey_from_file
from test_noisy_sums import hostile_answers
from test_noisy_sums import people as answers_of

BOUNDS = BoundsSpec(outcome=(1e3, 1e7), weight=(1.0, 1000.0))
STREAMS = svysynth.Streams.seeded(11)
REGIONS, SEXES = tuple(f"r{number}" for number in range(7)), ("f", "m")
"""The last region has no records."""
SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "region"
public = ["region", "sex"]
population_total = 50000

[survey.levels]
region = ["r0", "r1", "r2", "r3", "r4", "r5", "r6"]
sex = ["f", "m"]

[privacy]
mechanism = "fbs"
guarantee = "global"
protect = "record"
epsilon = 6.0
draws = 400
budget = "people"
bounds = { outcome = [1000, 10000000], weight = [1, 1000] }
"""


def people(records=1200, **columns):
    return answers_of(records, **columns)


def survey_of(frame, **roles):
    settings = {"strata": "region", "levels": {"region": REGIONS, "sex": SEXES}} | roles
    settings = {"outcome": "income", "weight": "wt", "public": ["region", "sex"], "transform": "identity"} | settings
    return svysynth.read_survey(frame, population_total=50_000.0, **settings)


def measured_of(survey, noise, epsilon=6.0):
    tables = (TableSpec(by=("region", "sex")),)
    return noisy_sums.measure_survey(survey, "record", tables, BOUNDS, "log", epsilon, noise)


class Remembered:
    """Gives the answers that the first file got, whatever it is asked of later ones: noise that hides everything."""

    def __init__(self):
        self.answers, self.uses, self.asked = {}, {}, []

    def __call__(self, values, use):
        if use.name not in self.answers:
            self.answers[use.name] = StudyNoise(STREAMS)(values, use)
        self.uses[use.name] = use
        self.asked.append((use.name, values))
        return self.answers[use.name]


# --- neighbours ---


def changed(frame, row, **columns):
    place = pl.int_range(pl.len()) == row
    return frame.with_columns(
        pl.when(place).then(pl.lit(value)).otherwise(name).alias(name) for name, value in columns.items()
    )


FRAME = people()
NEIGHBOURS = {
    "another cell": changed(FRAME, 7, sex="m" if FRAME["sex"][7] == "f" else "f"),
    "another stratum, alone in it": changed(FRAME, 7, region="r6"),
    "a level that nobody declared": changed(FRAME, 7, region="elsewhere"),
    "no level": changed(FRAME, 7, sex=None),
    "all of it": changed(FRAME, 7, region="r6", sex="m", income=1e9, wt=1e-3),
    "removed": FRAME[1:],
    "added": pl.concat([FRAME, FRAME[:1].with_columns(region=pl.lit("r6"), income=pl.lit(3e6))]),
}


def test_no_neighbour_moves_anything_further_than_its_noise_covers():
    """10,000 pairs of records in any two cells, one of which takes the other's place, is added or is removed."""
    generator = np.random.default_rng(4)
    scaling = Scaling(Scale(11.0, 0.6), Scale(0.0, 0.5), 5.0)
    count, everything = 10_000, slice(0, 10_000)
    groups = declared_groups(survey_of(people(60)))
    places = generator.integers(0, len(groups.codes), (2, count))
    bands = measuring.bands_of(BOUNDS, "log", 1000, 50_000.0)
    rows, squares, weighted, histograms = [], [], [], []
    for _ in range(2):
        answers = counting.Answers(*hostile_answers(generator, count), BOUNDS, "log", 0.02)
        t, v = answers(everything)
        whole = counting.whole_numbers(t, v, scaling)
        rows.append(whole)
        squares.append(np.stack([whole[0] ** 2, whole[0] * whole[1], whole[1] ** 2]))
        weighted.append(counting.weighted_numbers(t, v, scaling, "log", True))
        ends = [np.clip(np.digitize(values, band.edges) - 1, 0, 31) for values, band in zip((t, v), bands, strict=True)]
        histograms.append(ends)
    moved = {
        "sums": in_rows(rows, places, groups.rows(("region", "sex"))),
        "sums of a margin": in_rows(rows, places, groups.rows(("sex",))),
        "weighted": in_rows(weighted, places, groups.rows(("region",))),
        "squares": np.abs(squares[0] - squares[1]).sum(axis=0),
        "sizes": 2 * (places[0] != places[1]),
        "histogram": 2 * (histograms[0][0] != histograms[1][0]),
    }
    alone = {
        "sums": np.abs(rows[0]).sum(axis=0),
        "weighted": np.abs(weighted[0]).sum(axis=0),
        "squares": np.abs(squares[0]).sum(axis=0),
    }
    bound = {"sums": 2 * LARGEST, "sums of a margin": 2 * LARGEST, "weighted": 2 * LARGEST, "squares": 2 * LARGEST**2}
    bound |= {"sizes": 2, "histogram": 2}
    for name, distance in moved.items():
        assert distance.max() <= bound[name], name
        assert distance.max() > 0.9 * bound[name], name  # and the bound is no larger than it has to be
    for name, size in alone.items():
        assert 2 * size.max() <= bound[name], name


def in_rows(pair, places, row_of_cell):
    """How far sums move, over all rows, where one record leaves its row and the other enters its own."""
    one, two = pair
    same = row_of_cell[places[0]] == row_of_cell[places[1]]
    return np.where(same, np.abs(one - two).sum(axis=0), (np.abs(one) + np.abs(two)).sum(axis=0))


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_between_whole_files_every_use_moves_within_its_sensitivity(neighbour):
    """The code that measures, on two files; an added or removed record moves everything half as far at most."""
    other = {"region": "r0", "sex": "f"}
    noise = Remembered()
    files = FRAME, NEIGHBOURS[neighbour]
    for frame in files:
        measured_of(survey_of(frame, other=other), noise)
    half = len(files[0]) != len(files[1])
    uses = len(noise.asked) // 2
    assert uses == len(noise.uses)
    moved = {
        name: int(np.abs(one - two).sum())
        for (name, one), (_, two) in zip(noise.asked[:uses], noise.asked[uses:], strict=True)
    }
    for name, distance in moved.items():
        assert distance * (1 + half) <= noise.uses[name].sensitivity, name
    assert sum(moved.values()) > 0
    assert sum(distance / noise.uses[name].scale for name, distance in moved.items()) <= 6.0 / (1 + half)


def test_every_use_has_its_sensitivity_and_they_add_up_to_epsilon():
    noise = Remembered()
    measurement, _ = measured_of(survey_of(FRAME), noise)
    uses = list(noise.uses.values())
    assert uses[0].name == "sizes of cells"
    assert [use.sensitivity for use in uses[:3]] == [2, 2, 2]
    assert {use.sensitivity for use in uses[3:]} == {2 * LARGEST, 2 * LARGEST**2}
    assert sum(use.epsilon for use in uses) == measurement.plan.epsilon == Fraction(6)
    assert measurement.records == facts_of_noisy(declared_groups(survey_of(FRAME)), measurement.sizes).count.sum()


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 6.0, 21.6, 1e6])
def test_what_sizes_cost_is_chosen_before_anything_is_known_of_them(epsilon):
    part = plan_sizes(14, epsilon, 50_000.0, BOUNDS)
    assert 0 < part <= Fraction(epsilon) / 4
    assert measured_of(survey_of(FRAME), Remembered(), max(epsilon, 3.0))[0].plan.epsilon == Fraction(max(epsilon, 3.0))


# --- sizes ---


@pytest.mark.parametrize("strata", [None, "region", "area"])
def test_groups_are_all_declared_combinations_and_counts_those_of_the_records(tmp_path, strata):
    """Counted here record by record, in memory and from disk; strata may be those of another column."""
    areas = tuple(f"a{number}" for number in range(4))
    frame = people(300, area=[areas[number % 3] for number in range(300)])
    levels = {"region": REGIONS, "sex": SEXES} | ({"area": areas} if strata == "area" else {})
    survey = survey_of(frame, strata=strata, levels=levels)
    groups = declared_groups(survey)
    assert len(groups.codes) == 14
    assert len(groups.count) == (56 if strata == "area" else 14)
    expected = []
    for cell, stratum in zip(groups.cell, groups.stratum, strict=True):
        region, sex = groups.codes[cell]
        own = frame.filter(region=REGIONS[region], sex=SEXES[sex])
        expected.append(len(own.filter(area=areas[stratum]) if strata == "area" else own))
        assert strata != "region" or stratum == region
    assert count_records(survey, groups).tolist() == expected
    frame.write_parquet(tmp_path / "people.parquet")
    spec = parse_spec(SPEC.replace("people.csv", str(tmp_path / "people.parquet"))).survey
    spec = spec.model_copy(update={"strata": strata, "levels": levels, "transform": "identity"})
    (tmp_path / "scratch").mkdir()
    assert count_records(read_large(spec, tmp_path / "scratch", LOCAL), groups).tolist() == expected


def seven_regions():
    return declared_groups(survey_of(FRAME, public=["region"], levels={"region": REGIONS}))


def test_sizes_given_their_noise_are_near_the_noisy_ones_where_these_are_large():
    sizes, facts = (
        NoisySizes(np.full(7, 400), 3.0),
        declared_groups(survey_of(FRAME, public=["region"], levels={"region": REGIONS})),
    )
    assert facts_of_noisy(facts, sizes).count.tolist() == [400] * 7
    drawn = draw_sizes(sizes, facts, 4000, np.arange(4))
    # a discrete Laplace variable of scale b has variance 2b² − 1/6, nearly; 5 standard errors of it, with kurtosis 6
    assert abs(drawn.var() / (2 * 3.0**2 - 1 / 6) - 1) < 5 * np.sqrt(5 / drawn.size)


def test_many_empty_cells_do_not_fill_up_with_noise():
    """Of 1,000 cells 50 have 40 records each: cutting noise off at zero would give the others 1,425 of their own."""
    generator = np.random.default_rng(8)
    true = np.where(np.arange(1000) < 50, 40, 0)
    noise = np.rint(generator.laplace(0, 3.0, 1000)).astype(int)
    codes = np.arange(1000)[:, None]
    groups = PublicFacts({"place": tuple(map(str, range(1000)))}, codes, codes[:, 0], 0 * true, true)
    found = facts_of_noisy(groups, NoisySizes(true + noise, 3.0)).count
    assert abs(found[:50].sum() - 2000) < 5 * 3.0 * np.sqrt(2 * 50)
    assert found[50:].sum() < 100
    assert np.maximum(true + noise, 0)[50:].sum() > 1000


def test_noisy_counts_below_zero_are_sizes_of_zero_or_little_more():
    facts = seven_regions()
    sizes = NoisySizes(np.array([-9, -1, 0, 1, 60, 80, 100]), 2.0)
    assert facts_of_noisy(facts, sizes).count[:3].tolist() == [0, 0, 0]
    drawn = draw_sizes(sizes, facts, 500, np.arange(4))
    assert drawn.min() == 0
    assert (drawn == np.rint(drawn)).all()


# --- levels that nobody declared ---


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        (["f", " m ", "x", None, ""], ["f", "m"]),
        ([1, 2, 3, None, 2**60], ["1", "2"]),
        ([1.0, 2.0, 2.5, None, float("nan")], ["1", "2"]),
    ],
    ids=["text", "whole numbers", "floats"],
)
@pytest.mark.parametrize("other", [0, 1])
def test_what_is_not_declared_or_missing_counts_as_the_other_level(tmp_path, values, codes, other):
    frame = pl.DataFrame({"g": values, "y": [1.0] * 5, "w": [1.0] * 5}, strict=False)
    roles = {"outcome": "y", "weight": "w", "public": "g", "levels": {"g": codes}}
    found = svysynth.read_survey(frame, **roles, other={"g": codes[other]})
    expected = [codes[0], codes[1], *[codes[other]] * 3]
    assert found.frame["g"].cast(pl.String).to_list() == expected
    assert found.levels("g") == tuple(codes)
    frame.write_parquet(tmp_path / "five.parquet")
    spec = SurveySpec(data=tmp_path / "five.parquet", **roles, other={"g": codes[other]})
    (tmp_path / "scratch").mkdir()
    large = read_large(spec, tmp_path / "scratch", LOCAL).rows(0, 5)
    assert large.frame["g"].cast(pl.String).to_list() == expected
    with pytest.raises(SurveyError, match="missing"):
        svysynth.read_survey(frame, **roles)


@pytest.mark.parametrize(
    ("codes", "told"), [(["f", "m"], 0.0), (["f", "m", "x"], 0.0), (["m"], 0.5), (["m", "F"], 0.5)]
)
def test_the_reviewer_is_told_of_records_that_count_as_the_first_level(tmp_path, codes, told):
    """Half of the file coded otherwise than declared gave a wrong count, the direct table the same, and "publish"."""
    spec = parse_spec(SPEC.replace('sex = ["f", "m"]', f"sex = {json.dumps(codes)}"))
    frame = people(400).with_columns(sex=pl.Series(["f", "m"] * 200))
    frame.write_parquet(tmp_path / "people.parquet")
    (tmp_path / "scratch").mkdir()
    mechanism = mechanism_of(spec.privacy)
    reads = mechanism.reads(spec).model_copy(update={"data": tmp_path / "people.parquet"})
    for survey in (survey_from_file(reads), read_large(reads, tmp_path / "scratch", Local(parts=3))):
        assert survey.other == {"region": 0.0, "sex": told}
        found = [finding.found for finding in undeclared(survey, spec.survey)]
        assert len(found) == (told > 0)
        assert all("50.0% of the records" in line for line in found)
        named = spec.survey.model_copy(update={"other": {"sex": codes[0]}})
        assert undeclared(survey, named) == []  # the spec says what they count as


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('sex = ["f", "m"]', "", "does not list the levels of column 'sex'"),
        ("[survey.levels]", "where = \"sex = 'f'\"\n[survey.levels]", "cannot be used where whole records"),
        ('sex = ["f", "m"]', f"sex = {[str(number) for number in range(200)]}", "more than 1,000 combinations"),
    ],
)
def test_what_the_spec_has_to_say_is_asked_of_it_before_the_data_are_read(old, new, words):
    assert find_public(parse_spec(SPEC)) == []
    (finding,) = find_public(parse_spec(SPEC.replace(old, new)))
    assert finding.stops
    assert words in finding.found


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('guarantee = "global"', 'guarantee = "asymptotic"', "'privacy.protect' can be 'record' only for fbs and fbp"),
        ('mechanism = "fbs"', 'mechanism = "laplace"', "'privacy.protect' can be 'record' only for fbs and fbp"),
        ("[survey.levels]", "[survey.levels]\nage = ['1']", "neither one of the public columns nor the strata"),
        ("[privacy]", "[survey.other]\nsex = 'x'\n[privacy]", "'other.sex' is not one of the levels"),
        ("[privacy]", "[survey.labels.sex]\nf = 'female'\n[privacy]", "both list the levels"),
        ('"f", "m"', '"f", "f"', "a name is listed twice"),
        ("[survey.levels]", "missing = ['f']\n[survey.levels]", "that 'missing' lists too"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(old, new, words):
    with pytest.raises(SurveyError, match=words):
        parse_spec(SPEC.replace(old, new))


# --- releases ---


@pytest.fixture(scope="module")
def fitted():
    noise = Remembered()
    measurement, facts = measured_of(survey_of(FRAME), noise)
    return measurement, facts, fit_measurement(measurement, facts, FBS(), None, 400, STREAMS)


def release(folder, frame, monkeypatch, noise, fit):
    """The public files of a seeded release, by name, and what was shown on the way."""
    folder.mkdir()
    frame.write_csv(folder / "people.csv")
    (folder / "spec.toml").write_text(SPEC)
    monkeypatch.setattr(noisy_sums, "StudyNoise", lambda _: noise)
    monkeypatch.setattr(noisy_sums, "fit_measurement", lambda *_: fit)
    shown = []
    svysynth.release(folder / "spec.toml", folder / "out", STREAMS, shown.append)
    return {path.name: path.read_bytes() for path in sorted((folder / "out/public").iterdir())}, shown


@pytest.fixture
def compare(tmp_path, monkeypatch, fitted):
    """Which public files differ between a file and its neighbour, with noise that hides everything.

    The fit is the same one: it sees the measurement alone, and that is published in full.
    """

    def differing(neighbour):
        noise = Remembered()
        (one, first), (two, second) = (
            release(tmp_path / name, frame, monkeypatch, noise, fitted[2])
            for name, frame in (("one", FRAME), ("two", NEIGHBOURS[neighbour]))
        )
        assert "NOT-FOR-RELEASE-measurement.json" in one
        assert one.keys() == two.keys()
        return [name for name in one if one[name] != two[name]] + [step for step in first if step not in second]

    return differing


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_nothing_public_differs_between_neighbours_but_through_noise(compare, neighbour):
    assert compare(neighbour) == []


def exact_sizes(survey, groups, epsilon, noise):
    return NoisySizes(count_records(survey, groups), 1.0)


@pytest.mark.parametrize("neighbour", ["another cell", "removed", "added"])
def test_cell_sizes_without_noise_are_caught(compare, monkeypatch, neighbour):
    monkeypatch.setattr(noisy_sums, "measure_sizes", exact_sizes)
    assert {"NOT-FOR-RELEASE-measurement.json", "NOT-FOR-RELEASE-tables.csv"} <= set(compare(neighbour))


@pytest.mark.parametrize("neighbour", ["removed", "added"])
def test_a_number_of_records_that_is_the_survey_s_own_is_caught(compare, monkeypatch, neighbour):
    made = noisy_sums.Made
    monkeypatch.setattr(noisy_sums, "Made", lambda *parts: made(*parts[:-1]))
    found = compare(neighbour)
    assert {"NOT-FOR-RELEASE-manifest.json", "NOT-FOR-RELEASE-report.html"} <= set(found)
    assert "NOT-FOR-RELEASE-tables.csv" not in found


@pytest.mark.parametrize("neighbour", ["removed", "added"])
def test_a_measurement_with_the_true_number_of_records_is_caught(compare, monkeypatch, neighbour):
    def with_own_number(survey, *rest):
        return replace(measure(survey, *rest), records=len(survey))

    monkeypatch.setattr(noisy_sums, "measure", with_own_number)
    assert "NOT-FOR-RELEASE-measurement.json" in compare(neighbour)


def test_a_release_says_what_is_protected_is_charged_and_verified(tmp_path, fitted):
    FRAME.write_csv(tmp_path / "people.csv")
    (tmp_path / "spec.toml").write_text(SPEC)
    open_budget(tmp_path / "ledger.sqlite", "people", "10", "differential privacy")
    svysynth.release(tmp_path / "spec.toml", tmp_path / "out")
    (state,) = show(tmp_path / "ledger.sqlite")
    assert state.spent == 6_000_000
    verified = svysynth.verify(tmp_path / "out", tmp_path / "spec.toml")
    assert any("made again from 400 posterior draws" in line for line in verified.checked)
    manifest, guarantee = verified.manifest, verified.manifest.guarantee
    assert (manifest.privacy.protect, guarantee.protects) == ("record", "record")
    assert (guarantee.epsilon_blanked, guarantee.epsilon_changed, guarantee.public) == (3.0, 6.0, ())
    assert set(guarantee.confidential) == {"income", "wt", "region", "sex"}
    assert "whether or not they took part" in manifest.statement[0]
    page = (tmp_path / "out/public/report.html").read_text()
    assert "Respondents, with noise" in page
    assert "Published as they are" not in page
    tables = pl.read_csv(tmp_path / "out/public/tables.csv")
    whole = tables.filter(pl.col("region") == "All", pl.col("sex") == "All", pl.col("statistic") == "count")
    assert whole["estimate"].item() == pytest.approx(50_000)
    assert whole["n"].item() == manifest.survey.records
    measurement, facts = read_measurement((tmp_path / "out/public/measurement.json").read_bytes())
    for wrong in (
        replace(measurement, sizes=None),
        replace(measurement, plan=replace(measurement.plan, sizes=Fraction())),
        replace(measurement, sizes=replace(measurement.sizes, counts=measurement.sizes.counts + 3)),
    ):
        with pytest.raises(ValueError, match="does not belong to the manifest"):
            from_public_folder._check_measurement(wrong, facts, manifest)


def test_too_few_noisy_records_are_refused_after_the_charge_and_not_before(tmp_path):
    """Whether there are enough is asked of the noisy sizes: what was charged stays spent."""
    FRAME[:4].write_csv(tmp_path / "people.csv")
    (tmp_path / "spec.toml").write_text(SPEC.replace("epsilon = 6.0", "epsilon = 600.0"))
    open_budget(tmp_path / "ledger.sqlite", "people", "1000", "differential privacy")
    with pytest.raises(SurveyError, match="the noisy sizes of cells leave no records"):
        svysynth.release(tmp_path / "spec.toml", tmp_path / "out")
    assert show(tmp_path / "ledger.sqlite")[0].spent == 600_000_000


def test_direct_tables_beside_it_refuse_no_lonely_stratum():
    spec = parse_spec(SPEC)
    assert (spec.estimation.lonely, spec.direct_estimation.lonely) == ("fail", "adjust")
    assert parse_spec(SPEC.replace('protect = "record"', "")).direct_estimation.lonely == "fail"


# --- tables ---


def test_the_noise_of_sizes_is_in_the_standard_errors_of_counts(fitted):
    """Draws with sizes of their own vary more than the same draws with the noisy sizes taken as true."""
    measurement, facts, fit = fitted
    tables = (TableSpec(by=("region", "sex")),)
    sure = replace(fit.drawn, size=np.tile(facts.size.astype(float), (len(fit.drawn), 1)))
    with_noise, without = (
        tables_of(drawn, measurement, facts, tables, EstimationSpec()) for drawn in (fit.drawn, sure)
    )
    variance = (with_noise["se"] ** 2 - without["se"] ** 2).to_numpy()
    chosen = with_noise.select(
        (pl.col("statistic") == "count") & (pl.col("region") != "All") & (pl.col("sex") != "All") & (pl.col("n") > 30)
    ).to_series()
    weight = 50_000 / len(facts)
    expected = 2 * measurement.sizes.scale**2 * weight**2
    assert chosen.sum() > 8
    assert 0.6 < np.median(variance[chosen.to_numpy()]) / expected < 1.6


def test_a_row_without_records_has_no_mean_and_the_total_has_no_error(fitted):
    measurement, facts, fit = fitted
    count = np.where(facts.stratum == 6, 0, np.maximum(facts.count, 1))
    known = replace(facts, count=count)
    size = fit.drawn.size * (count > 0)
    found = tables_of(
        replace(fit.drawn, size=size), measurement, known, (TableSpec(by=("region", "sex")),), EstimationSpec()
    )
    empty = found.filter(region="r6")
    assert empty.filter(statistic="mean")["estimate"].null_count() == 3
    assert empty["n"].to_list() == [0] * 6
    total = found.filter(region="All", sex="All", statistic="count")
    assert total["estimate"].item() == pytest.approx(50_000)
    assert total["se"].item() == 0


def test_the_measurement_and_the_draws_come_back_from_what_is_published(fitted):
    measurement, facts, fit = fitted
    text = measurement_json(measurement, facts)
    again, known = read_measurement(text)
    assert measurement_json(again, known) == text
    assert json.loads(text)["sizes"]["values"] == measurement.sizes.counts.tolist()
    drawn = read_draws(draws_parquet(fit.drawn, facts), len(facts.codes))
    one, two = (
        tables_of(own, *parts, (TableSpec(by=("region", "sex")),), EstimationSpec())
        for own, parts in ((fit.drawn, (measurement, facts)), (drawn, (again, known)))
    )
    assert one.equals(two)
