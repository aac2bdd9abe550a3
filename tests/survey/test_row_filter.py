"""Who takes part: a release filters by public columns alone, and a condition says plainly what it compares."""

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth import SurveyError
from svysynth.cli.main import main
from svysynth.core.engine import LOCAL
from svysynth.core.spec.whole import load_spec, parse_spec
from svysynth.core.streams import Streams
from svysynth.pipeline import release
from svysynth.privacy.guarantee import additive, asymptotic
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.verification import verify_release
from svysynth.survey.large_files import read_large
from svysynth.survey.row_filter import parse_condition, refuse_private_filter
from svysynth.survey.survey import survey_from_file

SPEC = """
[survey]
data = "people.csv"
outcome = "salary"
weight = "wt"
strata = "field"
public = ["sex"]
population_total = 5000
{settings}

[privacy]
mechanism = "laplace"
guarantee = "global"
epsilon = 1.0
budget = "people"

[privacy.bounds]
outcome = [1000, 100000]
weight = [1, 100]
"""
ROLES = {"outcome": "y", "weight": "w", "public": ["g"]}


def survey_spec(settings):
    return parse_spec(SPEC.format(settings=settings)).survey


def frame(**columns):
    return pl.DataFrame({"y": [1.0, 2.0, 3.0, 4.0], "w": [1.0, 2.0, 1.0, 2.0], "g": ["a", "b", "a", "b"]} | columns)


def kept(data, where, **settings):
    return svysynth.read_survey(data, **ROLES, where=where, **settings).outcome_values.tolist()


# --- what a release may look at ---


PUBLIC = {
    "no filter": "",
    "a public column": "where = \"sex = 'F'\"",
    "a stratum": "where = 'field = 1'",
    "a column of the universe": "where = 'age >= 40 and sex is not null'\nuniverse = ['age']",
    "no column": "where = '1 = 1'",
}


@pytest.mark.parametrize("settings", PUBLIC.values(), ids=PUBLIC)
def test_a_release_may_filter_by_what_is_public(settings):
    refuse_private_filter(survey_spec(settings))


@pytest.mark.parametrize(
    ("where", "column"),
    [("salary > 50000", "salary"), ("sex = 'F' and wt < 90", "wt"), ('abs("salary") > 0 or age = 1', "salary")],
)
def test_a_release_never_filters_by_the_outcome_or_the_weight(where, column):
    reason = f"confidential column '{column}'.*who is left out would reveal something about it"
    with pytest.raises(SurveyError, match=reason):
        refuse_private_filter(survey_spec(f"where = '''{where}'''\nuniverse = ['age']"))


def test_a_release_never_filters_by_a_column_that_is_not_declared():
    with pytest.raises(SurveyError, match=r"names column 'age', which is not public.*survey\.universe"):
        refuse_private_filter(survey_spec("where = \"sex = 'F' and age > 40\""))


def test_the_refusal_comes_before_the_data_are_read_and_costs_nothing(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC.format(settings="where = 'salary > 50000'"))
    open_budget(tmp_path / "ledger.sqlite", "people", 10, load_spec(tmp_path / "spec.toml").privacy.accounting)
    with pytest.raises(SurveyError, match="confidential column 'salary'"):  # and not: the file is missing
        release(load_spec(tmp_path / "spec.toml"), tmp_path / "release", Streams.seeded(1))
    assert not (tmp_path / "release").exists()


@pytest.mark.parametrize("column", ["salary", "wt", "drawn"])
def test_the_universe_never_depends_on_what_is_confidential(column):
    with pytest.raises(SurveyError, match="'universe' names a column that is also the outcome, the weight or the fpc"):
        survey_spec(f"fpc = 'drawn'\nuniverse = ['age', '{column}']")


def test_a_filter_that_is_published_has_no_control_characters():
    with pytest.raises(SurveyError, match="has control characters"):
        refuse_private_filter(survey_spec("where = \"sex = '\\u001b[2J'\""))


@pytest.mark.parametrize(
    "where",
    [
        *(f"y > {name}(y)" for name in ("min", "max", "avg", "sum", "count", "median", "AVG")),
        *('y > "avg"(y)', "y > `avg`(y)", "y > avg (y)", "y > avg\u00a0(y)", "y > {fn avg(y)}", "count(*) > 2"),
        "quantile_cont(y, 0.5) < 2",
    ],
)
def test_no_condition_depends_on_all_records(where):
    with pytest.raises(SurveyError, match="has an aggregate, whose value depends on all records"):
        parse_condition(where)


@pytest.mark.parametrize(
    "where",
    [
        *("y > avg/**/(y)", "y > 0 -- ' \n and y > avg(y) -- '", "g = $$a$$", "g = e'\\' or y > avg(y) or g = '"),
        *("y > any(y)", "y > all(y)", "y > first(y)", "sum(y) over (partition by g) > 2"),
    ],
)
def test_there_is_no_way_around_that(where):
    with pytest.raises(SurveyError, match=r"survey\.where: (has|calls)"):
        parse_condition(where)


def test_quotes_and_brackets_in_text_are_text():
    assert kept(frame(g=["it's", "avg(y)", "--", "b"]), "g = 'it''s' or g = 'avg(y)' or g in ('--')") == [1, 2, 3]


# --- what is promised and published ---


def test_the_promise_says_who_belongs():
    roles = {"confidential": ("salary", "wt"), "public": ("sex",)}
    filtered = roles | {"universe": "age = 40\nand sex = 'F'"}
    for make in (
        lambda roles: additive(1.0, **roles),
        lambda roles: asymptotic("fbs", 1.0, 3, transform="log", draws=1000, **roles),
    ):
        assert (
            "Who belongs to the universe (age = 40 and sex = 'F') is taken as public." in make(filtered).sentences()[1]
        )
        assert "universe" not in " ".join(make(roles).sentences())


def write_people(folder, **columns):
    generator = np.random.default_rng(1)
    people = {
        "salary": generator.uniform(2000, 90000, 200),
        "wt": generator.uniform(1, 50, 200),
        "field": generator.integers(1, 3, 200),
        "sex": generator.choice(["F", "M"], 200),
        "age": generator.choice([40, 50], 200),
    }
    pl.DataFrame(people | columns).write_csv(folder / "people.csv")


def test_a_release_publishes_who_belongs_and_verify_reads_it(tmp_path):
    write_people(tmp_path, note=["<b>", "c"] * 100)
    settings = "where = \"age = 40 and note <> '<i>'\"\nuniverse = ['age', 'note']"
    (tmp_path / "spec.toml").write_text(SPEC.format(settings=settings))
    open_budget(tmp_path / "ledger.sqlite", "people", 10, load_spec(tmp_path / "spec.toml").privacy.accounting)
    done = release(load_spec(tmp_path / "spec.toml"), tmp_path / "release")
    manifest = verify_release(tmp_path / "release", tmp_path / "spec.toml").manifest
    assert manifest.survey.where == manifest.guarantee.universe == "age = 40 and note <> '<i>'"
    assert manifest.survey.universe == ("age", "note")
    assert manifest.survey.records == done.records < 200
    assert "universe (age = 40 and note <> '<i>') is taken as public" in manifest.statement[1]
    page = (tmp_path / "release/public/report.html").read_text(encoding="utf-8")
    assert "is taken as public" in page
    assert "<i>" not in page


def check(folder, capsys, settings):
    (folder / "spec.toml").write_text(SPEC.format(settings=settings))
    with pytest.raises(SystemExit) as left:
        main(["check", str(folder / "spec.toml")])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_check_says_that_a_release_would_refuse_the_filter(tmp_path, capsys):
    write_people(tmp_path)
    assert "release would refuse: survey.where" in check(tmp_path, capsys, "where = 'age = 40'")
    assert "would refuse" not in check(tmp_path, capsys, "where = 'age = 40'\nuniverse = ['age']")


# --- numbers and text ---


@pytest.mark.parametrize(
    ("where", "column"),
    [
        ("age = '40'", "age"),
        ("y > 0 and age in ('40', '50')", "age"),
        ("age between '30' and '45'", "age"),
        ("y > '1' and age = '40'", "y"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "frame"])
def test_numbers_are_not_compared_with_digits_in_quotes(tmp_path, where, column, ending):
    data = frame(age=[40, 50, 40, 60])
    if ending == "csv":
        data.write_csv(tmp_path / "d.csv")
        data = tmp_path / "d.csv"
    with pytest.raises(
        SurveyError, match=f"compares column '{column}', which is not text, with text.*without 'quotes'"
    ):
        kept(data, where)


@pytest.mark.parametrize("where", ["code = 1", "code > 1", "code in (1, 2)", "y > 0 and not code = 1"])
def test_text_is_not_compared_with_a_number(tmp_path, where):
    frame(code=["1", "2", "N", "1"]).write_csv(tmp_path / "d.csv")
    with pytest.raises(SurveyError, match=r"compares column 'code', which is text, with a number.*survey\.missing"):
        kept(tmp_path / "d.csv", where)
    assert kept(tmp_path / "d.csv", where.replace("not ", ""), missing=["N"]) != []


def test_dates_are_compared_with_dates():
    data = frame(day=pl.date_range(pl.date(2030, 1, 1), pl.date(2030, 1, 4), eager=True))
    assert kept(data, "day > cast('2030-01-02' as date)") == [3, 4]
    with pytest.raises(SurveyError, match=r"compares column 'day'.*cast\('2030-12-31' as date\)"):
        kept(data, "day > 'Tuesday'")


def test_a_list_is_of_numbers_or_of_text():
    with pytest.raises(SurveyError, match="list of numbers and text"):
        kept(frame(), "g in ('a', 1)")


def test_a_condition_sees_text_trimmed_and_nothing_as_missing():
    data = frame(code=[" x", "x ", "", None], age=[40.0, np.nan, 50.0, np.nan])
    assert kept(data, "code = 'x'") == [1, 2]
    assert kept(data, "code is null") == [3, 4]
    assert kept(data, "age > 30") == [1, 3]


# --- codes for missing answers ---


@pytest.mark.parametrize("ending", ["csv", "parquet", "frame"])
def test_declared_codes_are_missing_in_conditions(tmp_path, ending):
    data = frame(y=[1.0, 2.0, 3.0, 9999998.0], code=["1", " N ", "2", "1"])
    if ending != "frame":
        path = tmp_path / f"d.{ending}"
        data.write_csv(path) if ending == "csv" else data.write_parquet(path)
        data = path
    missing = ["N", "9999998"]
    assert kept(data, "y is not null", missing=missing) == [1, 2, 3]
    assert kept(data, "y <> 9999998", missing=missing) == [1, 2, 3]
    assert kept(data, "y <> 9999998 and code is not null", missing=missing) == [1, 3]


@pytest.mark.parametrize("values", [[1.0, 9.0, 3.0, 4.0], [1, 9, 3, 4], ["1", "9.0", "3", " 9"], ["1", "N", "3", "4"]])
@pytest.mark.parametrize("role", ["y", "w", "g"])
def test_declared_codes_are_refused_with_their_number_in_every_role(role, values):
    bad = sum(str(value).strip() in ("9", "9.0", "N") for value in values)
    with pytest.raises(SurveyError, match=f"column '{role}': {bad} of 4 records (is|are) missing"):
        kept(frame(**{role: values}), None, missing=["9", "N"])


def test_codes_that_are_not_declared_are_values():
    assert kept(frame(y=[1, 9999998, 3, 4]), None) == [1, 9999998, 3, 4]
    with pytest.raises(SurveyError, match=r"not a number.*survey\.missing"):
        kept(frame(y=["1", "N", "3", "4"]), None)


def test_a_code_is_missing_or_has_a_label():
    with pytest.raises(SurveyError, match=r"'labels\.sex' has a label for a code that 'missing' lists"):
        survey_spec("missing = ['9']\nlabels.sex = {1 = 'F', 9 = 'unknown'}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"missing": ["4"]}, "1 of 4 records is missing.*who answered is confidential too"),
        ({"y": [0.0, 1.0, 2.0, 3.0]}, "no logarithm.*who answered is confidential too"),
        ({"w": [0.0, 1.0, 2.0, 3.0]}, "as a weight must be.*who answered is confidential too"),
    ],
)
def test_records_without_an_answer_are_refused_and_the_message_says_why(settings, message):
    columns = {name: values for name, values in settings.items() if name != "missing"}
    with pytest.raises(SurveyError, match=message):
        kept(frame(**columns), None, missing=settings.get("missing", ()))


def test_a_release_refuses_a_missing_outcome_before_it_is_charged(tmp_path):
    write_people(tmp_path, salary=[*range(2000, 2199), 9999998])
    text = SPEC.format(settings="missing = ['9999998']\ntransform = 'identity'")
    (tmp_path / "spec.toml").write_text(text)
    open_budget(tmp_path / "ledger.sqlite", "people", 10, load_spec(tmp_path / "spec.toml").privacy.accounting)
    with pytest.raises(SurveyError, match="column 'salary': 1 of 200 records is missing"):
        release(load_spec(tmp_path / "spec.toml"), tmp_path / "release", Streams.seeded(1))
    assert svysynth.privacy.ledger.show(tmp_path / "ledger.sqlite")[0].left == 10_000_000


def test_a_survey_on_disk_filters_as_one_in_memory(tmp_path):
    data = pl.DataFrame(
        {
            "salary": [1.0, 2.0, 9999998.0, 4.0, 5.0],
            "wt": [1.0] * 5,
            "field": [1, 2, 1, 2, 9],
            "sex": ["F", "M", "F", "M", "F"],
            "age": ["40 ", "40", "40", "N", "50"],
        }
    )
    data.write_parquet(tmp_path / "people.parquet")
    missing = "missing = ['N', '9999998', '9']\n"
    for where, number in (("age is not null and salary > 0 and field < 3", 2), ("field is not null", None)):
        spec = survey_spec(f"{missing}where = '{where}'").model_copy(update={"data": tmp_path / "people.parquet"})
        scratch = tmp_path / f"scratch-{number}"
        scratch.mkdir()
        if number is None:
            for read in (survey_from_file, lambda spec: read_large(spec, scratch, LOCAL)):  # noqa: B023
                with pytest.raises(SurveyError, match="column 'salary': 1 of 4 records is missing"):
                    read(spec)
        else:
            found = read_large(spec, scratch, LOCAL)
            small = survey_from_file(spec)
            assert len(found) == len(small) == number
            assert found.rows(0, number).frame.select(small.frame.columns).equals(small.frame)


PATTERNS = [
    'cast("^sal.*$" as double) > 60000',
    '"^salary$" > 60000',
    '"^(salary|wt)$" > 10',
    "`^sal.*$` > 60000",
    '"*" > 3',
    "* > 3",
    "current_date > cast('2020-01-01' as date)",
    "random() > 0.5",
]


@pytest.mark.parametrize("where", PATTERNS)
def test_no_pattern_of_columns_reaches_the_outcome(where):
    """polars takes a quoted name of the form ^…$ for a pattern; one released by the outcome, and verified."""
    with pytest.raises(SurveyError, match=r"survey\.where"):
        refuse_private_filter(survey_spec(f"where = '''{where}'''"))


def test_a_condition_without_columns_sees_no_column():
    assert kept(frame(), "1 = 1") == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(SurveyError, match="no records"):
        kept(frame(), "1 = 2")
