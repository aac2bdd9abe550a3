"""The formula of a regression: its left side, the grammar of its right side, and errors that say where."""

import pytest

from svysynth.core.errors import SurveyError
from svysynth.core.regression_formula import LeftSide, parse_regression
from svysynth.core.spec.statistics import Share

ANSWERS, COLUMNS = ("pay", "hours worked"), ("field", "sex", "hours worked")


@pytest.mark.parametrize(
    ("text", "left", "terms", "intercept"),
    [
        ("pay ~ field", LeftSide("pay"), (("field",),), True),
        (" log( pay )~0+field*sex", LeftSide("pay", log=True), (("field",), ("sex",), ("field", "sex")), False),
        ("pay>=5e4 ~ 1", LeftSide("pay", share=Share(">=", 50000.0)), (), True),
        ("`hours worked` < 35 ~ sex", LeftSide("hours worked", share=Share("<", 35.0)), (("sex",),), True),
        ("pay ~ `hours worked`:sex", LeftSide("pay"), (("hours worked", "sex"),), True),
    ],
)
def test_the_two_sides(text, left, terms, intercept):
    found = parse_regression(text, ANSWERS, COLUMNS)
    assert (found.left, found.right.terms, found.right.intercept) == (left, terms, intercept)


def test_columns_are_named_once():
    assert parse_regression("pay ~ sex * field", ANSWERS, COLUMNS).columns == ("sex", "field")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pay", "has no ~"),
        ("", "has no ~"),
        ("payy ~ sex", "has 'payy' on its left side, which is no answer (did you mean 'pay'?)"),
        ("sex ~ pay", "has 'sex' on its left side"),
        ("pay + 1 ~ sex", "has a left side that is neither"),
        ("sqrt(pay) ~ sex", "has a left side that is neither"),
        ("log(pay) > 3 ~ sex", "has a left side that is neither"),
        ("pay > much ~ sex", "has a threshold that is not a number"),
        ("pay > 1e999 ~ sex", "has a threshold that is not a number"),
        ("pay ~ feld", "names 'feld' at character 7, which is not one of field, sex"),
        ("pay ~ field ~ sex", "has '~' at character 13"),
        ("pay ~ ", "ends too early"),
        ("pay ~ field + log(sex)", "names 'log' at character 15"),
        ("pay ~ 0", "has no term"),
        ("pay ~ __import__('os')", "names '__import__' at character 7"),
    ],
)
def test_what_is_no_formula_is_one_clear_error(text, words):
    with pytest.raises(SurveyError) as error:
        parse_regression(text, ANSWERS, COLUMNS)
    assert str(error.value).startswith("the formula: ")
    assert words in str(error.value)


def test_a_long_formula_is_refused_quickly():
    names = [f"c{number}" for number in range(12)]
    with pytest.raises(SurveyError, match="more than 1,000 terms"):
        parse_regression("pay ~ " + " * ".join(names), ["pay"], names)
