"""Regressions: what is refused, what is shown, files on disk, and how synthetic files are combined."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import places
import svysynth
from svysynth.core.engine import LOCAL
from svysynth.estimation.combined_regression import ONE_FILE, regression_of_files
from svysynth.estimation.combining import Synthetic, combine_estimates
from svysynth.estimation.regression import regression_of
from svysynth.survey.on_disk import store_survey
from test_regression_against_r import read

SCHOOLS = {"outcome": "y", "weight": "w", "strata": "stratum", "public": ["a"], "transform": "identity"}


@pytest.fixture(scope="module")
def schools():
    return read("apistrat", "")


@pytest.mark.parametrize(
    ("formula", "family", "words"),
    [
        ("y ~ a", "probit", "family: is not one that can be fitted"),
        ("y ~ stratum", "linear", "names 'stratum' at character 5, which is not one of a, x, z, s, u, y"),
        ("s ~ a", "linear", "has 's' on its left side, which is no answer"),
        ("y ~ a + y", "linear", "has 'y' on both of its sides"),
        ("y ~ a:s", "linear", "terms before them determine among the records of the regression: a:s"),
        ("y ~ a", "logistic", "which has values other than 0 and 1"),
        ("y > 100000 ~ a", "logistic", "which is the same in all records"),
        ("u ~ a + x", "logistic", "does not converge"),  # schools with an award all said yes
        (3, "linear", "the formula: is of the type 'int'"),
    ],
)
def test_what_cannot_be_fitted_is_one_clear_error(schools, formula, family, words):
    with pytest.raises(svysynth.SurveyError) as error:
        svysynth.regress(formula, schools, family)
    assert words in str(error.value)


def test_errors_name_columns_and_no_label():
    frame = pl.read_csv(places.GOLDEN / "answers/apistrat.csv", null_values="NA")
    frame = frame.with_columns(copy=pl.col("a").replace_strict({"Yes": "SECRET1", "No": "SECRET2"}))
    survey = svysynth.read_survey(frame, **SCHOOLS | {"public": ["a", "copy"]}, fpc="fpc")
    with pytest.raises(svysynth.SurveyError, match="determine among the records of the regression: copy") as error:
        regression_of(survey, "y ~ a + copy")
    assert "SECRET" not in str(error.value)
    one = svysynth.read_survey(frame, **SCHOOLS, fpc="fpc", domains=["a == 'Yes'"])
    with pytest.raises(svysynth.SurveyError, match="names 'a', which has the same level in all records"):
        regression_of(one, "y ~ a", domain="a == 'Yes'")
    with pytest.raises(svysynth.SurveyError, match="was not read with the survey"):
        regression_of(one, "y ~ 1", domain="y > 3")
    with pytest.raises(svysynth.SurveyError, match="some records have an amount that is zero or negative"):
        regression_of(svysynth.read_survey(frame.with_columns(y=pl.col("y") - 500), **SCHOOLS), "log(y) ~ a")


def test_a_survey_has_no_synthetic_files_and_other_things_are_no_source(schools):
    with pytest.raises(svysynth.SurveyError, match="files: is for the folder of a release"):
        svysynth.regress("y ~ a", schools, files=3)
    with pytest.raises(svysynth.SurveyError, match="the source of the regression: is of the type 'int'"):
        svysynth.regress("y ~ a", 3)


def test_a_confidential_regression_shows_no_number(schools):
    found = svysynth.regress("y ~ a + x", schools)
    assert "for internal use" in repr(found)
    assert "Confidential" in found._repr_html_()
    shown = repr(found) + found._repr_html_()
    for value in found.table.select(pl.exclude("term")).to_numpy().ravel():
        digits = re.sub(r"[^0-9]", "", f"{abs(value):.12g}")[:4]
        assert digits not in re.sub(r"[^0-9]", " ", shown).split(), value


def test_records_without_an_answer_are_left_out_and_said(schools):
    found = regression_of(schools, "y ~ z + u")
    assert found.notes == (f"Of those who answered: {found.records} of 200 records gave all answers.",)
    assert regression_of(schools, "y ~ x").notes == ()


def test_the_covariance_has_the_standard_errors(schools):
    found = regression_of(schools, "y ~ s * a")
    assert np.allclose(np.sqrt(np.diag(found.covariance)), found.table["se"], rtol=1e-12)
    assert np.allclose(found.covariance, found.covariance.T, rtol=1e-9)


def test_contrasts_agree_whatever_the_coding(schools):
    """The same model in two codings: differences of cell means have the variance that the covariance gives."""
    reference, cells = regression_of(schools, "y ~ s"), regression_of(schools, "y ~ 0 + s")
    (first, _, last), covariance = cells.table["estimate"], cells.covariance
    assert reference.table["estimate"][2] == pytest.approx(last - first, rel=1e-9)
    variance = covariance[0, 0] + covariance[2, 2] - 2 * covariance[0, 2]
    assert reference.table["se"][2] == pytest.approx(variance**0.5, rel=1e-9)


@pytest.mark.parametrize(
    ("case", "formula", "family"),
    [
        ("apistrat", "y > 650 ~ s * a + z", "logistic"),
        ("two_stages", "y ~ a + b", "linear"),
        ("jk1", "y ~ a * x", "linear"),
        ("post", "y ~ s + a + x", "linear"),
    ],
)
def test_a_survey_on_disk_gives_the_same(case, formula, family, tmp_path):
    survey = read(case, "")
    stored = store_survey(survey, tmp_path, LOCAL)
    one, other = (regression_of(each, formula, family).table for each in (survey, stored))
    assert_frame_equal(one, other, rel_tol=1e-12, abs_tol=0)


def test_a_replicate_without_a_level_gives_no_standard_error():
    frame = pl.DataFrame({"a": list("ppqqqqqq"), "y": [1.0, 2, 4, 3, 6, 5, 8, 6], "w": [1.0] * 8})
    weights = {f"r{one}": [0.0 if row // 2 == one else 4 / 3 for row in range(8)] for one in range(4)}
    replicates = {"weights": list(weights), "method": "jk1"}
    roles = {"outcome": "y", "weight": "w", "public": ["a"], "transform": "identity"}
    survey = svysynth.read_survey(frame.with_columns(**{k: pl.Series(v) for k, v in weights.items()}), **roles)
    replicated = svysynth.read_survey(
        frame.with_columns(**{k: pl.Series(v) for k, v in weights.items()}), **roles, replicates=replicates
    )
    found = regression_of(replicated, "y ~ a")
    assert found.table["estimate"].to_list() == pytest.approx(
        regression_of(survey, "y ~ a").table["estimate"].to_list()
    )
    assert found.table["se"].null_count() == 2
    assert "no estimate in some replicate" in found.notes[0]


# --- synthetic files ---


@pytest.fixture(scope="module")
def files():
    """Four files of 300 records in six cells, with smoothed and unsmoothed weights."""
    generator = np.random.default_rng(4)

    def one():
        noise = generator.standard_normal((3, 300))
        region, sex = np.arange(300) % 3, (np.arange(300) // 3) % 2
        return pl.DataFrame(
            {
                "region": np.array(["n", "s", "w"])[region],
                "sex": np.array(["f", "m"])[sex],
                "pay": np.exp(10 + 0.2 * region + 0.1 * sex + 0.5 * noise[0]),
                "weight": np.exp(0.3 * noise[1]),
                "weight_unsmoothed": np.exp(0.3 * noise[1] + 0.4 * noise[2]),
            }
        )

    return [one() for _ in range(4)]


def synthetic(files, **named):
    return svysynth.read_synthetic(files, outcome="pay", public=["region", "sex"], strata="region", **named)


def each(files, weight="weight"):
    roles = {"outcome": "pay", "weight": weight, "strata": "region", "public": ["region", "sex"]}
    return [regression_of(svysynth.read_survey(file, **roles), "pay ~ region + sex") for file in files]


@pytest.mark.parametrize("rules", ["weighted", "imputed"])
def test_files_are_combined_by_their_rules(files, rules):
    found = svysynth.regress("pay ~ region + sex", synthetic(files, rules=rules))
    estimates = np.stack([one.table["estimate"] for one in each(files)])
    weight = "weight" if rules == "imputed" else "weight_unsmoothed"
    within = np.stack([one.table["se"] for one in each(files, weight)]) ** 2
    expected = combine_estimates(estimates, within, 0.95, imputed=rules == "imputed")
    assert np.allclose(found.table["estimate"], expected.estimate, rtol=1e-12)
    assert np.allclose(found.table["se"], expected.se, rtol=1e-12)
    assert np.allclose(found.table["df"], expected.df, rtol=1e-9)
    assert np.allclose(found.table["upper"], expected.upper, rtol=1e-9)
    assert np.allclose(np.sqrt(np.diag(found.covariance)), expected.se, rtol=1e-9)
    assert found.files == 4
    assert "measured" not in found.table.columns
    assert "depends on the release's model" in found.notes[-1]


def test_a_regression_on_all_cells_has_the_means_of_tables(files):
    """In a saturated model the coefficients are means of cells, with their standard errors, for each kind of files."""
    for rules in ("weighted", "imputed", "population"):
        made = synthetic(files, rules=rules)
        found = svysynth.regress("pay ~ 0 + region:sex", made).table
        cells = made.tabulate(["sex", "region"], "mean").filter(pl.all_horizontal(pl.col("sex", "region") != "All"))
        assert np.allclose(found["estimate"], cells["estimate"], rtol=1e-9), rules
        assert np.allclose(found["se"], cells["se"], rtol=1e-9), rules


def test_the_paper_s_standard_errors_use_the_smoothed_weights(files):
    paper = svysynth.EstimationSpec(standard_errors="paper")
    found = regression_of_files(synthetic(files), "pay ~ region + sex", "linear", paper).regression
    estimates = np.stack([one.table["estimate"] for one in each(files)])
    within = np.stack([one.table["se"] for one in each(files)]) ** 2
    assert np.allclose(found.table["se"], combine_estimates(estimates, within, 0.95).se, rtol=1e-12)


def test_one_file_says_that_it_does_not_show_how_files_differ(files):
    found = svysynth.regress("pay ~ region", synthetic(files[:1], rules="imputed"))
    assert ONE_FILE in found.notes


def test_files_that_are_not_charged_show_no_number(files):
    made = replace(synthetic(files), standing="uncharged")
    found = svysynth.regress("pay ~ region", made)
    assert "not charged to a budget" in repr(found)
    assert "lower" not in repr(found)
    assert "lower" in repr(svysynth.regress("pay ~ region", synthetic(files)))


def test_no_files_no_regression():
    with pytest.raises(svysynth.SurveyError, match="has no synthetic files, and a regression needs records"):
        svysynth.regress("y ~ a", Synthetic(()))
