"""Regressions from a release: by its folder or in memory, and which coefficients rest on something measured."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import svysynth
from quick_release import SPEC, make_release
from svysynth.cli.main import main
from svysynth.core.errors import SurveyError
from svysynth.core.spec.whole import parse_spec
from svysynth.estimation.combined_regression import regression_of_files
from svysynth.mechanisms.measured_terms import MeasuredTerms
from svysynth.privacy.manifest import Manifest
from svysynth.publishing.public_folder import MANIFEST

GLOBAL = {
    '"asymptotic"': '"global"',
    "draws = 400\ncorrection = false": "bounds = { outcome = [1.0, 1e9], weight = [0.1, 1e4] }",
}
INTERCEPT, SEX, REGION = "Intercept", "sex[M]", "region[north]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    text = SPEC.replace('"wt"\n', '"wt"\ndomains = ["sex = \'F\'"]\n')
    return make_release(tmp_path_factory.mktemp("regress") / "people", text) / "release"


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code or 0


def facts(formula=None, promise="asymptotic", transform="log"):
    """What a release with these settings measures."""
    text = SPEC.replace("[survey]", f'[survey]\ntransform = "{transform}"')
    for old, new in GLOBAL.items() if promise == "global" else ():
        assert old in text
        text = text.replace(old, new)
    text += f'\n[model]\nformula = "{formula}"\n' if formula else ""
    spec = parse_spec(text)
    return MeasuredTerms.of(spec.survey, spec.privacy, spec.model)


def measured(made, regression, **settings):
    """Which coefficients are measured, by name."""
    family = "logistic" if ">" in regression else "linear"
    table = facts(**settings).explain(regression_of_files(made, regression, family)).table
    return dict(table.select("term", "measured").rows()), dict(table.select("term", "because").rows())


@pytest.fixture(scope="module")
def made(folder):
    """The synthetic files, as surveys."""
    files = [folder / f"public/microdata-{number}.parquet" for number in (1, 2)]
    return svysynth.read_synthetic(
        files, outcome="salary", public=["region", "sex"], strata="region", rules="population"
    )


@pytest.mark.parametrize(
    ("regression", "settings", "expected"),
    [
        ("salary ~ region + sex", {}, {INTERCEPT: "yes", REGION: "yes", SEX: "yes"}),
        ("salary ~ sex", {"formula": "region * sex"}, {INTERCEPT: "yes", SEX: "yes"}),
        # the others are then not adjusted for it
        ("salary ~ region + sex", {"formula": "region"}, {INTERCEPT: "no", REGION: "no", SEX: "no"}),
        ("salary ~ region", {"formula": "region"}, {INTERCEPT: "yes", REGION: "yes"}),
        ("salary ~ region * sex", {}, {INTERCEPT: "no", REGION: "no", SEX: "no", "region[north]:sex[M]": "no"}),
        ("salary ~ region * sex", {"formula": "0 + region:sex"}, {REGION: "yes", "region[north]:sex[M]": "yes"}),
        ("salary ~ region * sex", {"promise": "global"}, {REGION: "yes", "region[north]:sex[M]": "yes"}),
        ("salary ~ region * sex", {"promise": "global", "formula": "region + sex"}, {SEX: "no"}),
        ("log(salary) ~ sex", {}, {INTERCEPT: "yes", SEX: "yes"}),
        ("log(salary) ~ sex", {"transform": "identity"}, {INTERCEPT: "no", SEX: "no"}),
        ("salary > 22000 ~ sex", {"promise": "global"}, {INTERCEPT: "no", SEX: "no"}),
    ],
)
def test_a_coefficient_is_measured_if_its_terms_are(made, regression, settings, expected):
    found, _ = measured(made, regression, **settings)
    assert {name: found[name] for name in expected} == expected


def test_each_coefficient_says_why(made):
    _, why = measured(made, "salary ~ region + sex", formula="region")
    assert why[SEX] == "the release's model has no sex"
    assert why[REGION] == "it is not adjusted for sex, which the release's model does not have: leave that out"
    _, why = measured(made, "salary ~ sex")
    assert why == {"Intercept": "means of salary were measured", SEX: "means of salary by sex were measured"}
    _, why = measured(made, "salary ~ region * sex", promise="global")
    assert "drawn towards no interaction where their noise is large" in why["region[north]:sex[M]"]
    _, why = measured(made, "salary > 22000 ~ sex")
    assert "follows from the model's shape" in why[SEX]
    found = facts("region").explain(regression_of_files(made, "salary ~ region + sex"))
    assert "The release's model has no sex." in found.notes


def test_what_the_model_does_not_know_is_not_measured(made):
    """Another answer on the left, or a column on the right that is not public: no file has them yet."""
    found = regression_of_files(made, "salary ~ region + sex")
    other = replace(facts(promise="global"), outcome="wage").explain(found)
    assert other.table["measured"].to_list() == ["no"] * 4
    assert other.table["because"][0] == "the release's model is of wage, and not of salary"
    fewer = replace(facts(promise="global"), public=("region",), terms=(("region",),)).explain(found)
    assert fewer.table["because"][3] == "the release's model has no sex"


def test_a_folder_gives_what_its_files_give(folder, made):
    found = svysynth.regress("salary ~ region + sex", folder)
    same = regression_of_files(made, "salary ~ region + sex").regression.table
    assert found.table.select(same.columns).equals(same)
    assert found.table["measured"].to_list() == ["yes"] * 4
    assert (found.files, found.records, found.standing) == (2, 120, "post-processing")
    assert "covered by its guarantee" in repr(found)
    assert "sex[M]" in repr(found)
    assert "measured" in found._repr_html_()
    assert svysynth.regress("salary ~ region + sex", folder / "public").table.equals(found.table)


def test_inside_a_domain_a_coefficient_needs_the_columns_of_the_domain_too(folder):
    """The model has no interaction: it says the same of regions for both sexes."""
    found = svysynth.regress("log(salary) ~ region", folder, domain="sex = 'F'")
    assert found.records < 120
    assert found.title.endswith("(sex = 'F')")
    assert found.table["measured"].to_list() == ["no"] * 3
    assert found.table["because"][1] == "the release's model has no region:sex"
    assert svysynth.regress("salary ~ 1", folder, domain="sex = 'F'").table["measured"].to_list() == ["yes"]


@pytest.mark.parametrize(
    ("formula", "options", "words"),
    [
        (
            "salary ~ regoin",
            {},
            "names 'regoin' at character 10, which is not one of region, sex, salary (did you mean",
        ),
        ("wage ~ region", {}, "has 'wage' on its left side, which is no answer"),
        ("salary ~ region", {"domain": "sex = 'M'"}, "is not one of the domains of this release"),
        ("salary ~ region", {"files": 0}, "is not a number of files"),
        ("salary ~ region", {"files": 3}, "allows no further files"),
        ("salary ~ region:sex", {}, "terms before them determine among the records of the regression: region:sex"),
    ],
)
def test_what_a_release_cannot_give_is_one_clear_error(folder, formula, options, words):
    with pytest.raises(SurveyError) as error:
        svysynth.regress(formula, folder, **options)
    assert words in str(error.value)


def test_the_command_prints_and_writes(folder, tmp_path, capsys):
    assert run("regress", folder, "salary ~ region + sex") == 0
    shown = capsys.readouterr().out
    assert "120 records in each of 2 synthetic files." in shown
    assert "uncharged post-processing of the release" in shown
    assert "INTERNAL" not in shown
    assert run("regress", folder / "public", "salary ~ region + sex", "--out", tmp_path / "r.csv") == 0
    written = pl.read_csv(tmp_path / "r.csv")
    expected = svysynth.regress("salary ~ region + sex", folder).table
    assert written.columns == expected.columns
    assert np.allclose(written["se"], expected["se"])
    assert run("regress", folder, "salary ~ sex", "--out", tmp_path / "r.docx") == 1
    assert run("regress", folder, "salary ~ sex", "--out", folder / "public/microdata-1.csv") == 1


def test_the_command_fits_the_survey_of_a_spec_for_internal_use(folder, tmp_path, capsys):
    spec = folder.parent / "spec.toml"
    assert run("regress", spec, "salary > 22000 ~ sex", "--family", "logistic", "--domain", "region != 'south'") == 0
    shown = capsys.readouterr().out
    assert "INTERNAL USE ONLY" in shown
    assert "Logistic regression: salary > 22000 ~ sex (region != 'south')" in shown
    assert run("regress", spec, "salary ~ sex", "--out", tmp_path / "r.parquet") == 0
    assert "INTERNAL USE ONLY" in capsys.readouterr().out
    assert pl.read_parquet(tmp_path / "r.parquet")["source"].unique().to_list() == ["confidential, internal use only"]
    assert run("regress", spec, "salary ~ sex", "--files", 3) == 1
    assert "--files: is for a release" in capsys.readouterr().err
    assert run("regress", folder, "salary ~ sex", "--seed", 3) == 1
    assert "--seed: is for a survey" in capsys.readouterr().err
    assert run("regress", spec, "salary ~ sex", "--out", folder.parent / "people.csv") == 1


def test_the_manifest_says_what_was_measured(folder):
    manifest = Manifest.model_validate_json((folder / "public" / MANIFEST).read_text())
    assert MeasuredTerms.of(manifest.survey, manifest.privacy, manifest.model) == facts()
