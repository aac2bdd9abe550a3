"""The formula of a model: a grammar that cannot run code, and the design matrices that it stands for."""

import contextlib

import formulaic
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svysynth import read_survey
from svysynth.core.errors import SurveyError
from svysynth.core.formula import MOST_BRACKETS, Formula, parse_formula
from svysynth.core.spec.whole import parse_spec
from svysynth.models.records import make_records

COLUMNS = ("a", "b", "c", "two words")
SPEC = """
[survey]
data = "x.csv"
outcome = "y"
weight = "w"
public = ["a", "b", "c", "two words"]
[model]
formula = '''{}'''
"""
ATTACKS = [
    "__import__('os').system('touch {place}')",
    "a + open('{place}', 'w')",
    "{{open('{place}', 'w')}}",
    "{{__import__('pathlib').Path('{place}').touch()}}",
    "C(a, contr.poly)",
    "C(a)",
    'Q("a")',
    "I(a)",
    "np.log(a)",
    "`a`(open('{place}', 'w'))",
]
ILLEGAL = [
    *("", " ", ".", "a | b", "-1", "a - 1", "a - b", "a / b", "a ** 2", "a ^ 2", "a ~ b", "~ a", "a %in% b", "a, b"),
    *("a b", "a +", "+ a", "a * ", ": a", "()", "(a", "a)", "a + (b", "`a", "a`", "``", "2", "a + 2", "1.0", "0.5"),
    *(
        "0",
        "0:a",
        "a:0",
        "0 * a",
        "(0 + a)",
        "0 + 1 + a",
        "1a",
        "a.b",
        "a\\b",
        "a;b",
        "'a'",
        '"a"',
        "a[0]",
        "a=b",
        "a@b",
    ),
    *("y", "w", "a + y", "salary", "A", "`a `", "a\0", "e\u0301"),
]
LEGAL = [
    *("1", "a", "0 + a", "a + 0", "a + 1", "1 + a", "a + b", "b + a", "a*b", "a:b", "b:a", "0 + a:b", "0 + a*b"),
    *("(a + b) : c", "a:(b + c)", "(a + b) * c", "a * b * c", "a + b:c", "a * b:c", "a:b + a", "a + a", "a:a", "a*a"),
    *("((a))", " a  +\tb ", "a\n+ b", "0 + a + b + a:b", "0 + b:a + a", "c:b:a", "(a*b):c", "`a` + b", "0+(a+b):c"),
    *("(a + 1):b", "a:b + b:a", "`two words` + a", "`two words`:a", "0 + `two words` * b"),
]


def survey_of(seed=1, labels=("p", "q", "r")):
    generator = np.random.default_rng(seed)
    columns = {name: generator.choice(labels[: 2 + place % 2], 300) for place, name in enumerate(COLUMNS)}
    frame = pl.DataFrame({"y": generator.uniform(1, 2, 300), "w": generator.uniform(1, 2, 300), **columns})
    return read_survey(frame, outcome="y", weight="w", public=list(COLUMNS))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_formula_runs_no_code(attack, tmp_path):
    text = attack.format(place=tmp_path / "made")
    with pytest.raises(SurveyError, match=r"model\.formula.*Remedy: use names of public columns"):
        make_records(survey_of(), text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_spec_with_code_for_a_formula_is_refused_before_data_are_read(attack, tmp_path):
    with pytest.raises(SurveyError, match=r"'model\.formula' "):
        parse_spec(SPEC.format(attack.format(place=tmp_path / "made")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ILLEGAL)
def test_what_the_grammar_does_not_have_is_refused(text):
    with pytest.raises(SurveyError, match=r"model\.formula"):
        parse_formula(text, COLUMNS)


@pytest.mark.parametrize("text", LEGAL)
def test_legal_formulas_have_the_design_matrix_that_they_had(text):
    survey = survey_of()
    records = make_records(survey, text)
    plain = {name: f"x{place}" for place, name in enumerate(COLUMNS)}
    cells, _ = survey.present_cells(COLUMNS)
    positions = np.unravel_index(cells, [len(survey.levels(name)) for name in COLUMNS])
    frame = pl.DataFrame(
        {
            plain[name]: pl.Series([survey.levels(name)[code] for code in place], dtype=pl.Enum(survey.levels(name)))
            for name, place in zip(COLUMNS, positions, strict=True)
        }
    )
    for name in sorted(plain, key=len, reverse=True):
        text = text.replace(f"`{name}`", plain[name])
        text = text if " " in name else text.replace(name, plain[name])
    expected = formulaic.model_matrix(text, frame.to_pandas())
    names = list(expected.columns)
    for name in plain:
        names = [one.replace(plain[name], name) for one in names]
    assert np.array_equal(records.x, np.asarray(expected, float))
    assert list(records.terms) == names


def test_labels_that_look_like_code_or_like_numbered_columns_stay_as_they_are():
    survey = survey_of(labels=(r"\g<1> {open('x')}", "c1[T.l0]", "c0"))
    terms = make_records(survey, "a + b").terms
    assert set(terms) == {"Intercept", "a[T.c1[T.l0]]", "b[T.c1[T.l0]]", "b[T.c0]"}


def test_a_refusal_names_the_place_the_grammar_and_a_close_name():
    with pytest.raises(SurveyError, match=r"has '\|' at character 7") as caught:
        parse_formula("field | gender", ["field", "gender"])
    assert "+ * : 0 1" in str(caught.value)
    with pytest.raises(SurveyError, match=r"names 'gendre' at character 9, .*did you mean 'gender'"):
        parse_formula("field + gendre", ["field", "gender"])


def test_the_confidential_columns_cannot_be_named():
    with pytest.raises(SurveyError, match=r"names 'y' .*not in survey\.public"):
        parse_spec(SPEC.format("a + y"))


def test_a_legal_formula_passes_the_spec():
    assert parse_spec(SPEC.format("0 + a * `two words`")).model.formula == "0 + a * `two words`"


def test_many_interactions_and_brackets_are_refused_at_once():
    columns = [f"c{number}" for number in range(60)]
    with pytest.raises(SurveyError, match="terms"):
        parse_formula(" * ".join(columns), columns)
    with pytest.raises(SurveyError, match="brackets"):
        parse_formula("(" * 100_000 + "c0" + ")" * 100_000, columns)
    most = "(" * MOST_BRACKETS + "c0" + ")" * MOST_BRACKETS
    assert parse_formula(most, columns) == Formula(True, (("c0",),))


@given(st.text(alphabet="ab c01+*:()`-{}.", max_size=30) | st.text(max_size=20))
def test_any_text_is_a_formula_or_one_refusal(text):
    with contextlib.suppress(SurveyError):
        found = parse_formula(text, COLUMNS)
        assert {name for term in found.terms for name in term} <= set(COLUMNS)
