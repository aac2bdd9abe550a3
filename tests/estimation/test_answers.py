"""Tables of further answers: what they show, what is refused, and agreement with tables made in another way."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import svysynth
from golden_survey import RELATIVE
from svysynth import EstimationSpec, SurveyError, TableSpec
from svysynth.core.spec.whole import parse_spec
from svysynth.estimation.layout import notes_on, wide_tables
from test_answers_against_r import GOLDEN, VALUES, VARIABLES, assert_agrees, read, settings

FEW = ["count", "mean", "total", "median", "quantile(0.9)", "share(> 400)"]
SPEC = """
[survey]
data = "people.csv"
outcome = "salary"
weight = "w"
public = ["region"]
[survey.variables.status]
kind = "category"
levels = ["1", "2"]
[survey.variables.hours]
kind = "amount"
[survey.variables.sick]
kind = "yes/no"
yes = "1"
"""


def test_a_table_of_those_who_answered_is_that_of_a_domain():
    """The same as a file in which a flag says who answered, and the missing amounts are anything at all."""
    path, named = settings("apiclus2", None)
    frame = pl.read_csv(path, null_values="NA")
    filled = frame.with_columns(flag=pl.col("z").is_not_null().cast(int), z=pl.col("z").fill_null(10**6))
    kept = {name: named["columns"][name] for name in ["u"]}
    other = svysynth.read_survey(filled, **named | {"columns": kept, "domains": ["flag = 1"]})
    ours = svysynth.tabulate(read("apiclus2", ""), "a", [*FEW, "answered"], of="z")
    theirs = svysynth.tabulate(other, "a", FEW, of="z", domain="flag = 1")
    same = ours.filter(pl.col("statistic") != "answered")
    for name in set(ours.columns) - {"table"}:
        assert same[name].to_list() == theirs[name].to_list(), name
    assert ours["table"].unique().to_list() == ["z: a (of those who answered)"]


def test_the_share_of_those_who_answered_stands_beside_without_being_asked_for():
    found = svysynth.tabulate(read("apistrat", ""), "a", "mean", of="z")
    beside = found.filter(statistic="answered")
    assert found["statistic"].unique(maintain_order=True).to_list() == ["mean", "answered"]
    assert (beside["n"] > found.filter(statistic="mean")["n"]).all()
    assert beside["estimate"].is_between(0.5, 0.999).all()
    assert len(notes_on(found)) == 1
    assert notes_on(svysynth.tabulate(read("apistrat", ""), "a", "mean", of="x")) == []


def test_tables_that_look_at_no_answer_are_of_everybody():
    survey = read("apistrat", "")
    assert svysynth.tabulate(survey, "a", "count")["n"].max() == len(survey)
    assert svysynth.tabulate(survey, "a", "count", of="z").filter(statistic="count")["n"].max() < len(survey)


@pytest.mark.parametrize(("by", "within"), [(["a", "s"], ["a"]), (["a", "s", "u"], ["s", "u"]), (["u"], [])])
def test_shares_within_rows_and_columns_add_up_to_one(by, within):
    found = svysynth.tabulate(read("apiclus2", ""), by, "proportion", within=within)
    others = [column for column in by if column not in within]
    cells = found.filter(pl.all_horizontal(pl.col(column) != "All" for column in others))
    sums = cells.group_by(within or pl.lit(1)).agg(pl.col("estimate").sum())["estimate"]
    np.testing.assert_allclose(sums.to_numpy(), 1.0, rtol=1e-12)
    whole = found.filter(pl.all_horizontal(pl.col(column) == "All" for column in others))
    np.testing.assert_allclose(whole["estimate"].to_numpy(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(whole["se"].to_numpy(), 0.0, atol=1e-12)


def test_a_table_of_a_category_has_its_levels_as_rows_and_shares_within_the_others():
    survey = read("apistrat", "")
    found = svysynth.tabulate(survey, "a", of="s")
    expected = svysynth.tabulate(survey, ["a", "s"], ["count", "proportion"], within="a")
    assert found.drop("table").equals(expected.drop("table"))
    of_all = svysynth.tabulate(survey, [], of="s")
    assert of_all["s"].to_list() == ["All", "E", "H", "M"] * 2


def test_a_level_without_records_has_a_share_of_zero_where_there_is_somebody():
    path, named = settings("apistrat", None)
    variables = VARIABLES | {"s": {"kind": "category", "levels": ["E", "H", "M", "none"]}}
    survey = svysynth.read_survey(path, **named | {"variables": variables, "domains": ["s <> 'H'"]})
    found = svysynth.tabulate(survey, ["a", "s"], "proportion", within="s", domain="s <> 'H'")
    rows = {(row["a"], row["s"]): (row["estimate"], row["se"], row["n"]) for row in found.rows(named=True)}
    assert rows["Yes", "none"] == rows["Yes", "H"] == (None, None, 0)
    within_a = svysynth.tabulate(survey, ["a", "s"], "proportion", within="a", domain="s <> 'H'")
    rows = {(row["a"], row["s"]): (row["estimate"], row["se"], row["n"]) for row in within_a.rows(named=True)}
    assert rows["Yes", "none"] == rows["Yes", "H"] == (0.0, 0.0, 0)


@pytest.mark.parametrize("table", [("", "a s", "a"), ("", "a s", "s"), ("u", "a", ""), ("", "a", "ratio(z, x)")])
def test_the_jackknife_gives_what_its_replicate_weights_give(table):
    of, by, more = table
    theirs = VALUES.filter(design="jk1", domain="", of=of, by=by)
    is_ratio = more.startswith("ratio")
    theirs = theirs.filter(statistic=more) if is_ratio else theirs.filter(within=more)
    path, named = settings("jk1", None)
    survey = replace(svysynth.read_survey(path, **named), replicates=None)
    clustered = pl.read_csv(GOLDEN / "apiclus2.csv")["psu"]
    del named["replicates"]
    frame = pl.read_csv(path).with_columns(psu=clustered)
    survey = svysynth.read_survey(frame, **named | {"cluster": "psu"})
    statistics = theirs["statistic"].unique(maintain_order=True).to_list()
    estimation = EstimationSpec(variance="jackknife")
    within = "" if is_ratio else more
    assert_agrees(svysynth.tabulate(survey, by.split(), statistics, estimation, of=of or None, within=within), theirs)


def test_a_ratio_of_an_answer_to_itself_is_one_without_error():
    found = svysynth.tabulate(read("apiclus2", ""), "a", "ratio(x, x)")
    assert found["estimate"].to_list() == [1.0] * 3
    assert found["se"].to_list() == [0.0] * 3


def test_a_ratio_to_ones_is_a_mean():
    path, named = settings("apiclus2", None)
    frame = pl.read_csv(path, null_values="NA").with_columns(one=pl.lit(1))
    survey = svysynth.read_survey(frame, **named | {"variables": VARIABLES | {"one": {"kind": "amount"}}})
    ours = svysynth.tabulate(survey, ["a", "s"], ["ratio(x, one)"])
    theirs = svysynth.tabulate(survey, ["a", "s"], "mean", of="x")
    for name in ("estimate", "se", "lower", "upper"):
        assert ours[name].to_list() == pytest.approx(theirs[name].to_list(), rel=RELATIVE, nan_ok=True)


def test_a_ratio_to_nothing_has_no_value():
    path, named = settings("apiclus2", None)
    frame = pl.read_csv(path, null_values="NA").with_columns(none=(pl.col("a") == "Yes").cast(int))
    survey = svysynth.read_survey(frame, **named | {"variables": VARIABLES | {"none": {"kind": "amount"}}})
    found = svysynth.tabulate(survey, "a", "ratio(x, none)")
    assert found.filter(a="No").select("estimate", "se", "lower").row(0) == (None, None, None)
    assert found.filter(a="Yes")["estimate"][0] > 100


def test_the_outcome_may_be_a_yes_or_no_answer_with_gaps():
    path, named = settings("nhanes", None)
    roles = named | {"outcome": "u", "variables": {"u": VARIABLES["u"]}, "columns": {"u": {"missing": "NA"}}}
    found = svysynth.tabulate(svysynth.read_survey(path, **roles | {"transform": "log"}), "a", ["mean", "answered"])
    theirs = VALUES.filter(design="nhanes", domain="", of="u", by="a", statistic="mean")
    assert_agrees(found.filter(statistic="mean"), theirs)


def test_numbers_do_not_depend_on_the_other_tables_and_answers():
    tables = [TableSpec(by="a"), TableSpec(by="a", of="s"), TableSpec(by=("s", "a"), of="z"), TableSpec(by=())]
    survey = read("apiclus2", "")
    together = svysynth.tabulate_all(survey, tables)
    path, named = settings("apiclus2", None)
    plain = svysynth.tabulate_all(svysynth.read_survey(path, **named | {"variables": {}, "columns": {}}), tables[::3])
    for title in ("a", "total"):
        ours, theirs = (found.filter(table=title) for found in (together, plain))
        for name in theirs.columns:
            assert ours[name].to_list() == theirs[name].to_list(), name


def test_missing_answers_are_refused_where_no_code_is_declared():
    path, named = settings("apistrat", None)
    for name in ("z", "u"):
        kept = {other: codes for other, codes in named["columns"].items() if other != name}
        with pytest.raises(SurveyError, match=rf"survey\.columns\.{name}\.missing") as error:
            svysynth.read_survey(path, **named | {"columns": kept})
        assert "missing" in error.value.problem
    variables = VARIABLES | {"u": {"kind": "category"}}
    with pytest.raises(SurveyError, match=r"survey\.columns\.u\.missing_level"):
        svysynth.read_survey(path, **named | {"variables": variables})
    level = {"u": {"missing": "NA", "missing_level": "not asked"}, "z": {"missing": "NA"}}
    survey = svysynth.read_survey(path, **named | {"variables": variables, "columns": level})
    assert survey.levels("u") == ("No", "Yes", "not asked")
    outcome = {"outcome": "z", "variables": {}, "columns": {}}
    with pytest.raises(
        SurveyError, match=r"declare z in survey\.variables and its codes .* survey\.columns\.z\.missing"
    ):
        svysynth.read_survey(path, **named | outcome)


@pytest.mark.parametrize("code", ["5", "x", 0.5, 5])
def test_a_code_that_is_neither_yes_nor_no_is_refused(code):
    codes = [code, type(code)(1), type(code)(0)]
    frame = pl.DataFrame({"y": [1.0] * 3, "w": [1.0] * 3, "a": ["k"] * 3, "u": codes})
    named = {"outcome": "y", "weight": "w", "public": "a"}
    with pytest.raises(SurveyError, match="not among the codes of 'yes' and 'no'"):
        svysynth.read_survey(frame, **named, variables={"u": {"kind": "yes/no", "yes": "1", "no": "0"}})


@pytest.mark.parametrize(
    "codes", [["1", "0", "NA"], ["1.0", "0.0", ""], [" 1", "0 ", "."], [1.0, 0.0, None], [1, 0, None]]
)
def test_codes_of_yes_and_no_are_known_however_the_file_writes_them(codes, tmp_path):
    path = tmp_path / "people.csv"
    frame = pl.DataFrame({"y": [1.0] * 6, "w": [1.0] * 6, "a": ["k"] * 6, "u": [*codes, *codes]})
    frame.write_csv(path)
    for data in (frame, path):
        named = {"outcome": "y", "weight": "w", "public": "a", "columns": {"u": {"missing": "NA"}}}
        for more in ({}, {"no": "0"}):
            survey = svysynth.read_survey(data, **named, variables={"u": {"kind": "yes/no", "yes": "1"} | more})
            found = svysynth.tabulate(survey, [], "mean", of="u").select("statistic", "estimate", "n").rows()
            assert found == [("mean", 0.5, 4), ("answered", pytest.approx(4 / 6), 6)]


def test_titles_of_workbooks_and_terminals_have_labels():
    labels = {"a": "Awards", "s": "School type", "z": "Pupils"}
    survey = read("apistrat", "")
    found = [
        svysynth.tabulate(survey, "a", of="z"),
        svysynth.tabulate(survey, "a", of="s"),
        svysynth.tabulate(survey, ["a", "s"], within="s"),
    ]
    titles = [wide_tables(table, labels)[0].title for table in found]
    expected = [
        "Pupils: Awards (of those who answered)",
        "School type: Awards",
        "Awards by School type (within School type)",
    ]
    assert titles == expected
    assert wide_tables(found[1], labels)[0].by == ("Awards", "School type")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[[tables]]\nby = ["hours"]', "'by' names 'hours', which is an amount"),
        ('[[tables]]\nby = []\nof = "wages"', "'of' names 'wages', which is not in survey.variables"),
        ('[[tables]]\nby = []\nof = "status"\nstatistics = ["mean"]', "'status' is a category, which has no 'mean'"),
        (
            '[[tables]]\nby = []\nof = "sick"\nstatistics = ["median"]',
            "is a yes/no answer, which has no 'median'",
        ),
        ('[[tables]]\nby = ["status"]\nof = "status"', "'of' and 'by' both name 'status'"),
        ('[[tables]]\nby = ["status"]\nwithin = ["region"]', "'within' names 'region', which is not in 'by'"),
        ('[[tables]]\nby = ["status"]\nwithin = ["status"]\nstatistics = ["mean"]', "'within' is for proportions"),
        ('[[tables]]\nby = []\nstatistics = ["ratio(hours, status)"]', "names 'status', which is neither an amount"),
        ('[survey.variables.region]\nkind = "category"', "is a confidential answer, and cannot be in public too"),
        ('[survey.variables.w]\nkind = "amount"', "cannot be in the design too"),
        ('[survey.variables.se]\nkind = "amount"', "has the name of a column of every table"),
        ('[survey.variables.salary]\nkind = "category"', "is a category, and survey.outcome cannot be one"),
        (
            '[survey.columns.region]\nfrom = "hours"',
            "'region' is published, and is made from the column of",
        ),
        ("[survey.columns.hours]\nbands = [30]", "'columns.hours.bands' is not for a variable of the kind 'amount'"),
        (
            '[survey.variables.x]\nkind = "amount"\nlevels = ["1"]',
            "'levels' is not a setting of a variable",
        ),
        ('[survey.variables.x]\nkind = "amount"\nbounds = [3, 2]', "in ascending order"),
        ('[survey.variables.x]\nkind = "yes/no"', "needs 'yes', the codes that mean yes"),
        ('[survey.variables.x]\nkind = "yes/no"\nyes = "1"\nno = "1"', "'yes and no': a name is listed twice"),
        ('[survey.variables.x]\nkind = "category"\nordered = true', "'variables.x.ordered' needs 'levels'"),
        ('[survey.columns.sick]\nmissing = ["1"]', "has a code that 'columns.sick.missing' lists too"),
    ],
)
def test_contradictions_are_one_clear_error(more, words):
    with pytest.raises(SurveyError) as error:
        parse_spec(SPEC + more)
    assert words in str(error.value)


def test_answers_are_not_shown():
    survey = read("apistrat", "")
    text = repr(survey) + str(survey._repr_html_())
    assert "840" not in text
    assert "'E'" not in repr(survey.variables)
