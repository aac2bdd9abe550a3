"""Columns as they come: bands, recodes, missing codes and labels, and what cannot be converted is refused."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import svysynth
from svysynth import SurveyError, load_spec
from svysynth.core.engine import LOCAL
from svysynth.core.spec.columns import band_labels
from svysynth.core.spec.whole import parse_spec
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.findings import private_domains
from svysynth.mechanisms.noisy_sums.mechanism import NoisySums
from svysynth.mechanisms.noisy_sums.requirements import unmet_requirements
from svysynth.survey import columns_as_declared
from svysynth.survey.files import write_frame
from svysynth.survey.large_files import read_large
from svysynth.survey.row_filter import refuse_private_filter
from svysynth.survey.survey import survey_from_file, survey_from_frame

SECRET = "CANARYx7f3"


def frame_of(**columns):
    records = len(next(iter(columns.values())))
    return pl.DataFrame({"y": np.arange(1.0, records + 1), "w": np.ones(records), **columns}, strict=False)


def read(frame, public, **named):
    return svysynth.read_survey(frame, outcome="y", weight="w", public=public, **named)


def column(frame, name="x", public=("x",), other=None, **settings):
    """A column as it is made; its labels as a list."""
    return read(frame, list(public), columns={name: settings}, other=other or {}).frame[name].to_list()


@given(
    st.lists(st.integers(-50, 50) | st.floats(-1e9, 1e9), min_size=1, max_size=8, unique=True).map(sorted),
    st.lists(st.floats(allow_infinity=False) | st.integers(-50, 50), min_size=1, max_size=20),
)
def test_a_number_is_in_the_band_with_its_lower_end_and_not_its_upper_end(bands, numbers):
    bands = sorted({float(band) for band in bands})
    found = column(frame_of(x=[float(number) for number in numbers]), bands=bands, missing_level="none")
    ends = [-np.inf, *bands, np.inf]
    for number, label in zip(numbers, found, strict=True):
        if number != number:
            assert label == "none"
        else:
            place = band_labels(tuple(bands)).index(label)
            assert ends[place] <= number < ends[place + 1]


def test_one_column_of_the_file_gives_several():
    frame = frame_of(age=[17, 25, 64, 65])
    columns = {"young": {"from": "age", "bands": [25]}, "age": {}, "decade": {"from": "age", "bands": [20, 30, 40]}}
    survey = read(frame, ["young", "age", "decade"], columns=columns)
    assert survey.levels("age") == ("17", "25", "64", "65")
    assert survey.levels("decade") == ("under 20", "20 to under 30", "30 to under 40", "40 or more")
    assert survey.frame["young"].to_list() == ["under 25", "25 or more", "25 or more", "25 or more"]


def test_a_level_without_records_is_a_level():
    survey = read(frame_of(x=[1, 2]), ["x"], columns={"x": {"bands": [10, 20], "missing_level": "not stated"}})
    assert survey.levels("x") == ("under 10", "10 to under 20", "20 or more", "not stated")
    assert svysynth.tabulate(survey, "x", "count").filter(x="20 or more")["estimate"].to_list() == [0.0]
    survey = read(frame_of(x=[1, 2]), ["x"], columns={"x": {"missing_level": "not stated"}})
    assert survey.levels("x") == ("1", "2", "not stated")


@pytest.mark.parametrize("codes", [[1, 2, 3, 2], [1.0, 2.0, 3.0, 2.0], ["1", " 2", "3", "2 "]])
def test_codes_are_recoded_whatever_their_type(codes):
    frame = frame_of(x=codes)
    assert column(frame, recode={"1": "yes", "2": "no", "3": "yes"}) == ["yes", "no", "yes", "no"]
    assert read(frame, ["x"], columns={"x": {"recode": {"3": "b", "1": "a", "2": "b"}}}).levels("x") == ("b", "a")


def test_a_code_that_is_also_a_label_is_a_code():
    with pytest.raises(SurveyError, match=r"1 of 3 records is not among the codes of its 'recode'"):
        column(frame_of(x=["a", "b", "yes"]), recode={"a": "yes", "b": "no"})
    assert column(frame_of(x=["a", "b", "a"]), recode={"a": "b", "b": "a"}) == ["b", "a", "b"]


def test_the_rest_of_the_codes_can_be_another_level():
    frame = frame_of(x=["1", "2", "77", None])
    recode = {"1": "yes", "2": "no"}
    assert column(frame, recode=recode, other={"x": "no"}) == ["yes", "no", "no", "no"]
    assert column(frame, recode=recode, missing_level="?", other={"x": "no"}) == ["yes", "no", "no", "?"]
    survey = read(frame, ["x"], columns={"x": {"recode": recode, "missing_level": "?"}}, other={"x": "no"})
    assert survey.other == {"x": 0.25}


def test_missing_levels_of_codes_with_declared_or_found_labels():
    frame = frame_of(x=[2, -9, 10, None])
    own = {"missing": "-9", "missing_level": "not stated"}
    survey = read(frame, ["x"], columns={"x": own})
    assert survey.levels("x") == ("2", "10", "not stated")
    assert survey.frame["x"].to_list() == ["2", "not stated", "10", "not stated"]
    survey = read(frame, ["x"], columns={"x": own}, labels={"x": {"10": "ten", "2": "two"}})
    assert survey.levels("x") == ("ten", "two", "not stated")
    assert survey.frame["x"].to_list() == ["two", "not stated", "ten", "not stated"]
    survey = read(frame, ["x"], columns={"x": own}, levels={"x": ["not stated", "2", "10"]})
    assert survey.levels("x") == ("not stated", "2", "10")


def test_missing_codes_of_one_column_are_codes_in_another():
    frame = frame_of(x=[98, 1], z=[98, 1])
    survey = read(frame, ["x", "z"], columns={"x": {"missing": "98", "missing_level": "unknown"}})
    assert survey.levels("x") == ("1", "unknown")
    assert survey.levels("z") == ("1", "98")


def test_missing_codes_of_the_outcome_are_refused_as_missing():
    with pytest.raises(SurveyError, match=r"column 'y': 1 of 3 records is missing"):
        read(frame_of(x=[1, 2, 2]), ["x"], columns={"y": {"missing": ["2"], "label": "Income"}})


def test_labels_come_from_another_column():
    frame = frame_of(x=[10, 9, 10, None], text=["ten", "nine", " ten ", "?"])
    survey = read(frame, ["x"], columns={"x": {"labels_from": "text", "missing_level": "not stated"}})
    assert survey.levels("x") == ("nine", "ten", "not stated")
    assert survey.codes == {"x": {"9": "nine", "10": "ten", "not stated": "not stated"}}
    two = read(frame[:3], ["x", "z"], columns={"z": {"from": "x", "labels_from": "text"}})
    assert two.levels("x") == ("9", "10")
    assert two.levels("z") == ("nine", "ten")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["a", "b", SECRET], "several labels for a code"),
        (["a", SECRET, SECRET], "one label for several codes"),
        (["a", "b", None], "has no label for some codes"),
        (["a", " ", "a"], "has no label for some codes"),
        (["a", "\x1b[31m", "a"], "control characters"),
        ([1.5, 2.5, 1.5], "does not hold categories"),
    ],
)
def test_labels_that_do_not_belong_to_codes_are_refused(text, message):
    with pytest.raises(SurveyError, match=message) as raised:
        column(frame_of(x=[1, 2, 1], text=text), labels_from="text")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        ([1.0, None, 3.0], {"bands": [2]}, "1 of 3 records is missing"),
        ([1.0, float("nan"), 3.0], {"bands": [2]}, "1 of 3 records is missing"),
        ([1.0, float("inf"), float("-inf")], {"bands": [2]}, "2 of 3 records are not a finite number"),
        (["1", SECRET, "3"], {"bands": [2]}, "1 of 3 records is not a finite number"),
        (["1", "NA", "3"], {"bands": [2]}, "1 of 3 records is missing"),
        ([True, False, True], {"bands": [2]}, "is not numeric"),
        ([[1], [2], [3]], {"bands": [2]}, "is not numeric"),
        ([[1], [2], [3]], {"recode": {"1": "a"}}, "does not hold categories"),
        (["1", SECRET, ""], {"recode": {"1": "a"}}, "1 of 3 records is (missing|not among)"),
        ([1.5, 2.0, 1.0], {"recode": {"1": "a", "2": "b"}}, "1 of 3 records is not among"),
        ([1.5, 2.0, None], {"missing_level": "?"}, "does not hold categories"),
        (["1", "2", "\x00"], {"recode": {"1": "a", "2": "b"}}, "1 of 3 records is not among"),
        (["1", "2", "3"], {"recode": {"1": "All", "2": "b", "3": "b"}}, "a level called 'All'"),
    ],
)
def test_values_that_cannot_be_converted_are_refused_by_their_number(values, settings, message):
    with pytest.raises(SurveyError, match=message) as raised:
        column(frame_of(x=values), **settings)
    assert SECRET not in str(raised.value)
    assert "x" in raised.value.place


def test_a_missing_level_that_labels_of_the_data_have_too_is_refused(tmp_path):
    path = tmp_path / "d.sav"
    frame = frame_of(x=["Refused", "Male", "Male"])
    pytest.importorskip("pyreadstat")
    write_frame(frame, path, {"x": {"1": "Male", "9": "Refused"}})
    with pytest.raises(SurveyError, match=r"survey\.columns\.x\.missing_level: is also the label of a code"):
        column(path, missing_level="Refused")
    assert column(path, missing=["9"], missing_level="Refused") == ["Refused", "Male", "Male"]


def test_a_thousand_bands():
    bands = list(range(1000))
    survey = read(frame_of(x=np.arange(-1, 1000)), ["x"], columns={"x": {"bands": bands}})
    assert len(survey.levels("x")) == 1001
    assert survey.frame["x"].to_physical().to_list() == list(range(1001))


SPEC = """
[survey]
data = "d.csv"
outcome = "y"
weight = "w"
fpc = "f"
strata = "h"
public = ["x", "z"]
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[survey.columns.q]", "'columns.q' is neither one of the public columns, nor the strata, nor the outcome"),
        ("[survey.columns.w]", "'columns.w' is neither"),
        ("[survey.columns.x]\nform = 'q'", "'survey.columns.x.form' is not a known setting"),
        ("[survey.columns.x]\nfrom = 'y'", "'columns.x' is made from a column that is also the outcome"),
        ("[survey.columns.x]\nlabels_from = 'w'", "'columns.x' is made from a column that is also the outcome"),
        ("[survey.columns.x]\nfrom = 'f'", "'columns.x' is made from"),
        ("[survey.columns.h]\nlabels_from = 'x'", "'columns.h.labels_from' is for public columns"),
        ("[survey.columns.y]\nbands = [1]", "'columns.y' is the outcome, which may have"),
        ("[survey.columns.y]\nfrom = 'q'", "'columns.y' is the outcome, which may have"),
        ("[survey.columns.y]\nmissing_level = 'q'", "'columns.y' is the outcome, which may have"),
        ("[survey.columns.x]\nbands = []", "'survey.columns.x.bands' must not be empty"),
        ("[survey.columns.x]\nbands = [2, 1]", "'columns.x.bands' must be in ascending order"),
        ("[survey.columns.x]\nbands = [1, 1]", "'columns.x.bands' must be in ascending order"),
        ("[survey.columns.x]\nbands = [nan]", "'survey.columns.x.bands.1'"),
        ("[survey.columns.x]\nbands = [inf]", "'survey.columns.x.bands.1'"),
        ("[survey.columns.x]\nbands = ['1']", "'survey.columns.x.bands.1'"),
        ("[survey.columns.x]\nbands = [1]\nmissing_level = 'under 1'", "is the name of a band"),
        ("[survey.columns.x]\nrecode = {}", "'survey.columns.x.recode' must not be empty"),
        ("[survey.columns.x]\nbands = [1]\nrecode = {1 = 'a'}", "'columns.x.bands' and 'columns.x.recode' all give"),
        ("[survey.columns.x]\nrecode = {1 = 'a', ' 1' = 'b'}", "a code is listed twice"),
        ("[survey.columns.x]\nrecode = {1 = 'a'}\nmissing = '1'", "a label for a code that 'missing' lists"),
        ("missing = ['1']\n[survey.columns.x]\nrecode = {1 = 'a'}", "a label for a code that 'missing' lists"),
        ("[survey.columns.x]\nbands = [1]\n[survey.labels.x]\n1 = 'a'", "all give the levels"),
        ("[survey.columns.x]\nbands = [1]\n[survey.levels]\nx = ['a']", "all give the levels"),
        ("[survey.columns.x]\nmissing = '1'\n[survey.levels]\nx = ['1']", "a label for a code that 'missing' lists"),
        ("[survey.columns.x]\nmissing_level = 'a'\n[survey.labels.x]\n1 = 'a'", "list that code as missing"),
        ('[survey.columns.x]\nlabel = "a\\u001bb"', "'columns.x.label' has control characters"),
        ("[survey.columns.x]\nmissing_level = ' '", "'columns.x.missing_level' has control characters, or spaces"),
        ('[survey.columns.x]\nrecode = {1 = "\\u0000"}', "'columns.x.recode' has control characters"),
        ("[survey.columns.x]\nbands = [1]\n[survey.other]\nx = '1'", "'other.x' is not one of the levels"),
    ],
)
def test_sections_that_contradict_themselves_or_others_are_refused(text, message):
    with pytest.raises(SurveyError, match=message):
        parse_spec(SPEC + text)


def test_a_column_that_is_not_in_the_data_is_named():
    for settings in ({"from": "agee"}, {"labels_from": "agee"}):
        with pytest.raises(SurveyError, match=r"column 'agee': is not in the data.*did you mean 'age'"):
            column(frame_of(x=[1], age=[1]), **settings)


@pytest.mark.parametrize(
    ("section", "where", "message"),
    [
        ("", "x = 1", None),
        ("[survey.columns.x]\nfrom = 'q'", "q = 1", None),
        ("[survey.columns.x]\nfrom = 'q'", "x = 1", "column 'x', which is not public"),
        ("[survey.columns.x]\nbands = [1]", "x = 1", "column 'x', which is public in groups only"),
        ("[survey.columns.x]\nfrom = 'q'\nrecode = {1 = 'a'}", "q = 1", "column 'q', which is public in groups only"),
        ("[survey.columns.x]\nmissing = '9'\nmissing_level = '?'", "x = 1", "public in groups only"),
        ("[survey.columns.x]\nbands = [1]\n[survey.columns.z]\nfrom = 'x'", "x = 1", None),
    ],
)
def test_the_filter_of_a_release_sees_no_more_than_is_public(section, where, message):
    survey = parse_spec(f"{SPEC}where = '{where}'\n{section}").survey
    if message is None:
        refuse_private_filter(survey)
    else:
        with pytest.raises(SurveyError, match=message):
            refuse_private_filter(survey)
        refuse_private_filter(survey.model_copy(update={"universe": ("x", "q")}))


def test_filters_and_domains_see_the_columns_of_the_file():
    frame = frame_of(x=[1, 5, 20, -9])
    own = {"x": {"bands": [10], "missing": "-9", "missing_level": "not stated"}}
    survey = read(frame, ["x"], columns=own, where="x <> 20", domain="x < 2")
    assert survey.frame["x"].to_list() == ["under 10", "under 10", "not stated"]
    assert svysynth.tabulate(survey, "x", "count")["n"].to_list() == [2, 1, 0, 1]


LARGE = """
[survey]
data = "d.parquet"
outcome = "y"
weight = "w"
strata = "h"
public = ["age", "answer", "region"]
where = "region <> 3"

[survey.columns.age]
bands = [25, 45.5, 65, 200]
missing = "-9"
missing_level = "not stated"
[survey.columns.answer]
from = "code"
recode = {1 = "yes", 2 = "no", 3 = "yes"}
missing_level = "not stated"
[survey.columns.region]
labels_from = "name"
missing_level = "elsewhere"
[survey.columns.h]
from = "region"
missing_level = "elsewhere"
"""


@pytest.fixture
def large(tmp_path):
    generator = np.random.default_rng(3)
    records = 200_000
    region = generator.integers(1, 12, records)
    age = np.where(generator.random(records) < 0.05, -9, generator.uniform(0, 100, records))
    frame = pl.DataFrame(
        {
            "y": np.exp(generator.standard_normal(records)),
            "w": np.exp(generator.standard_normal(records)),
            "age": pl.Series(age).set(pl.Series(generator.random(records) < 0.01), None),
            "code": pl.Series(generator.integers(1, 4, records).astype(str)).set(pl.Series(region == 5), ""),
            "region": pl.Series(region).set(pl.Series(region == 7), None),
            "name": pl.Series([f"Region {number}" for number in region]),
        }
    )
    frame.write_parquet(tmp_path / "d.parquet", row_group_size=30_000)
    (tmp_path / "spec.toml").write_text(LARGE)
    return tmp_path


def test_a_survey_on_disk_is_the_one_in_memory(large):
    spec = load_spec(large / "spec.toml")
    small, stored = survey_from_file(spec.survey), read_large(spec.survey, large, replace(LOCAL, parts=7))
    bands = "under 25", "25 to under 45.5", "45.5 to under 65", "65 to under 200", "200 or more"
    assert small.levels("age") == (*bands, "not stated")
    assert small.levels("region")[1:] == ("Region 2", *(f"Region {n}" for n in (4, 5, 6, 8, 9, 10, 11)), "elsewhere")
    assert stored.in_memory().frame.equals(small.frame.select(*stored.schema))
    assert stored.codes == small.codes
    assert stored.groups.frame.equals(small.groups.frame)
    assert tabulate_all(stored, spec.requested_tables).equals(tabulate_all(small, spec.requested_tables))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": pl.lit("4")}, r"column 'answer': 2\d,\d\d\d of .* are not among the codes of its 'recode'"),
        ({"age": pl.lit("old")}, r"column 'age': 2\d,\d\d\d of .* are not a finite number"),
        ({"name": pl.lit("Region 1")}, "one label for several codes"),
        ({"name": pl.lit(None, pl.String)}, "has no label for some codes"),
    ],
)
def test_refusals_from_disk_are_those_in_memory(large, change, message):
    path = large / "d.parquet"
    ((name, value),) = change.items()
    frame = pl.read_parquet(path)
    wrong = pl.when(pl.int_range(pl.len()) % 8 == 3).then(value).otherwise(pl.col(name).cast(pl.String))
    frame.with_columns(wrong.alias(name)).write_parquet(path)
    spec, said = load_spec(large / "spec.toml").survey, []
    for read_it in (survey_from_file, lambda spec: read_large(spec, large, replace(LOCAL, parts=3))):
        with pytest.raises(SurveyError, match=message) as raised:
            read_it(spec)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_columns_are_converted_in_slices_as_in_one_piece(monkeypatch):
    frame = frame_of(x=[1, None, 3, 1, 2, None, 3])
    expected = column(frame, recode={"1": "a", "2": "b", "3": "a"}, missing_level="?")
    monkeypatch.setattr(columns_as_declared, "SLICE", 2)
    assert column(frame, recode={"1": "a", "2": "b", "3": "a"}, missing_level="?") == expected
    assert re.sub("[^?]", "", "".join(expected)) == "??"


RECORD = """
[survey]
data = "d.csv"
outcome = "y"
weight = "w"
public = ["age", "answer", "region"]
population_total = 5000

[survey.columns.age]
bands = [25, 45]
missing_level = "not stated"
[survey.columns.answer]
recode = {1 = "yes", 2 = "no"}
[survey.columns.region]
missing_level = "elsewhere"
[survey.levels]
region = ["n", "s"]

[privacy]
mechanism = "fbs"
guarantee = "global"
protect = "record"
epsilon = 6.0
bounds = { outcome = [1, 1000], weight = [1, 1000] }
"""


def test_with_whole_records_protected_every_value_has_a_declared_level():
    """Whatever one record says, the file is read, and no other record has another level."""
    spec = parse_spec(RECORD)
    assert not [finding for finding in unmet_requirements(spec) if finding.stops]
    ages, answers, regions = ["30", "", "inf", "old", "24.9"], ["1", "", "3", "yes", "2"], ["n", "", "q", "s", "n"]

    def levels(**columns):
        frame = frame_of(**{"age": ages, "answer": answers, "region": regions} | columns)
        survey = survey_from_frame(frame, NoisySums().reads(spec))
        assert survey.levels("age") == ("under 25", "25 to under 45", "45 or more", "not stated")
        assert survey.levels("answer") == ("yes", "no")
        assert survey.levels("region") == ("n", "s", "elsewhere")
        return survey.frame.select("age", "answer", "region").rows()

    usual = levels()
    assert [row[0] for row in usual] == ["25 to under 45", "not stated", "under 25", "under 25", "under 25"]
    assert [row[1] for row in usual] == ["yes", "yes", "yes", "yes", "no"]
    assert [row[2] for row in usual] == ["n", "elsewhere", "n", "s", "n"]
    for place in range(5):
        for value in (None, "", "1e999", "-3", "yes", "\x00", "99" * 300, SECRET):
            for name, column in (("age", ages), ("answer", answers), ("region", regions)):
                found = levels(**{name: [*column[:place], value, *column[place + 1 :]]})
                assert [*found[:place], *found[place + 1 :]] == [*usual[:place], *usual[place + 1 :]]


def test_with_whole_records_protected_levels_must_not_come_from_the_data():
    text = RECORD.replace('recode = {1 = "yes", 2 = "no"}', 'labels_from = "q"\nmissing_level = "?"')
    (finding,) = [finding for finding in unmet_requirements(parse_spec(text)) if finding.stops]
    assert "column 'answer'" in finding.found


@pytest.mark.parametrize("dtype", [pl.Null, pl.Float64, pl.String, pl.Categorical])
def test_a_column_without_any_answer_is_missing_throughout(dtype):
    frame = frame_of(x=pl.Series([None, None], dtype=dtype))
    assert column(frame, recode={"1": "a"}, missing_level="?") == ["?", "?"]
    assert column(frame, missing_level="?") == ["?", "?"]
    if dtype != pl.Categorical:
        assert column(frame, bands=[1], missing_level="?") == ["?", "?"]


def test_text_of_few_levels_can_be_recoded():
    frame = frame_of(x=pl.Series(["a", "b", None], dtype=pl.Categorical))
    assert column(frame, recode={"a": "A", "b": "B"}, missing_level="?") == ["A", "B", "?"]


def test_a_domain_sees_the_file_s_column_and_not_its_bands():
    frame = frame_of(age=[20, 30, 40, 50, 60], sex=["f", "m", "f", "m", "f"])
    banded = {"age": {"bands": [35]}}
    survey = read(frame, ["age", "sex"], columns=banded, domain="age > 40")
    assert svysynth.tabulate(survey, "sex", "count")["n"].to_list() == [2, 1, 1]
    assert not survey.domains  # it does not follow from what would be published
    spec = parse_spec(
        "[survey]\ndata = 'd.csv'\noutcome = 'y'\nweight = 'w'\npublic = ['age', 'sex']\ndomain = 'age > 40'\n"
        "[survey.columns.age]\nbands = [35]"
    )
    (found,) = private_domains(spec.survey)
    assert found.stops
    assert "'age'" in found.found


def test_a_domain_may_name_a_public_column_with_a_level_for_missing_answers():
    frame = frame_of(age=[1, 2, None, 2, 9], sex=["f", "m", "f", "m", "f"])
    survey = read(frame, ["age", "sex"], columns={"age": {"missing_level": "not stated"}}, domain="age >= 2")
    assert survey.domains
    assert svysynth.tabulate(survey, "sex", "count")["n"].to_list() == [3, 1, 2]


CODES = ["1", " 1", "1.0", "01", "2", "x", "X", "-9", "-9.0", "", " ", "NA", ".", "All", "\x00", SECRET]


def twin(code, recode, missing, missing_level, other):
    """The level of one code by the rules of docs/spec.md, slowly; None stands for an error."""
    code = None if code is None or code.strip() in ("", *missing) else code.strip()
    if "-9" in missing and code == "-9.0":
        code = None
    if code is None:
        return missing_level or other
    return recode.get(code, other)


@given(
    st.lists(st.sampled_from([*CODES, None]), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from(["1", "2", "x", "01"]), st.sampled_from(["yes", "no", "1"]), min_size=1),
    st.sampled_from([(), ("-9",), ("X", "NA")]),
    st.sampled_from([None, "not stated", "no"]),
    st.booleans(),
)
def test_recodes_are_those_of_a_slow_twin(codes, recode, missing, missing_level, has_other):
    other = next(iter(recode.values())) if has_other else None
    settings = {"recode": recode, "missing": missing, "missing_level": missing_level}
    expected = [twin(code, recode, missing, missing_level, other) for code in codes]
    frame, named = frame_of(x=pl.Series(codes, dtype=pl.String)), {"x": other} if has_other else None
    if None not in expected:
        assert column(frame, other=named, **settings) == expected
    else:
        with pytest.raises(SurveyError, match=r"missing|not among") as raised:
            column(frame, other=named, **settings)
        assert SECRET not in str(raised.value)


def test_names_of_columns_in_messages_are_printable():
    for text in ("bands = [2, 1]", "label = ' '", "labels_from = 'w'"):
        with pytest.raises(SurveyError) as raised:
            parse_spec(SPEC.replace('"x"', '"x\\u001b[31m"') + f'[survey.columns."x\\u001b[31m"]\n{text}')
        assert "\x1b" not in str(raised.value)
