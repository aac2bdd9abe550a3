"""The spec: what is accepted, what is refused, and what the refusals say."""

import pytest

from svysynth import SurveyError, load_spec
from svysynth.core.spec.whole import parse_spec

SURVEY = """
[survey]
data = "d.csv"
outcome = "salary"
weight = "weight"
public = ["field", "gender"]
"""

WHOLE = """
[survey]
data = "doctorates.csv"
outcome = "salary"
transform = "log"
weight = "weight"
strata = "field"
cluster = "school"
public = ["field", "gender"]
population_total = 125199
where = "age_group = 40 and salary > 0"

[privacy]
guarantee = "asymptotic"
mechanism = "fbs"
epsilon = 10.8
datasets = 3

[[tables]]
by = ["field", "gender"]
statistics = ["count", "mean"]
"""

BOUNDS = """
[privacy]
mechanism = "laplace"
guarantee = "global"
epsilon = 1

[privacy.bounds]
outcome = [0, 500_000]
weight = [1, 100]
"""


def test_the_whole_page_is_read():
    spec = parse_spec(WHOLE)
    assert spec.survey.population_total == 125199
    assert spec.survey.cluster == "school"
    assert spec.privacy is not None
    assert spec.privacy.epsilon == 10.8
    assert spec.tables[0].by == ("field", "gender")
    assert spec.estimation.cv_thresholds == (0.15, 0.30)


def test_bounds_are_read_and_needed_by_one_mechanism_only():
    privacy = parse_spec(SURVEY + BOUNDS).privacy
    assert privacy is not None
    assert privacy.bounds is not None
    assert privacy.bounds.outcome == (0, 500_000)
    assert privacy.bounds.weight == (1, 100)
    for mechanism, promise in (("fbs", "asymptotic"), ("fbp", "asymptotic"), ("laplace-paper", "none")):
        text = f"[privacy]\nepsilon = 1\nmechanism = '{mechanism}'\nguarantee = '{promise}'"
        privacy = parse_spec(SURVEY + text).privacy
        assert privacy is not None
        assert privacy.bounds is None


def test_defaults():
    spec = parse_spec(SURVEY)
    assert spec.survey.transform == "log"
    assert spec.privacy is None
    assert [table.by for table in spec.requested_tables] == [("field", "gender")]
    assert spec.requested_tables[0].statistics == ("count", "mean")


def test_data_are_found_from_the_spec_s_folder(tmp_path):
    (tmp_path / "spec.toml").write_text(SURVEY)
    assert load_spec(tmp_path / "spec.toml").survey.data == tmp_path / "d.csv"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SURVEY + "wieght = 1", "'survey.wieght' is not a known setting.*did you mean 'weight'"),
        (SURVEY + "[privcy]\n", "'privcy' is not a known setting.*did you mean 'privacy'"),
        (SURVEY.replace('weight = "weight"', ""), "'survey.weight' is required"),
        (SURVEY.replace('"weight"', "3"), "'survey.weight'.*valid string"),
        (SURVEY + "transform = 'sqrt'", "'survey.transform' must be one of 'log', 'identity'"),
        (SURVEY + "population_total = -1", "'survey.population_total'.*greater than 0"),
        (SURVEY + "population_total = nan", "'survey.population_total'.*finite"),
        (SURVEY.replace('"salary"', '"weight"'), "a name is listed twice"),
        (SURVEY.replace('"salary"', '"field"'), "also the outcome"),
        (SURVEY + "strata = 'weight'", "'strata' names a column that is also"),
        (SURVEY + "strata = 'c'\ncluster = 'c'", "same column"),
        (SURVEY + "[survey.labels.age]\n1 = 'x'", "'labels.age' is not one of the public columns"),
        (SURVEY + "[survey.labels.field]\n1 = 'x'\n2 = 'x'", "'labels.field': a name is listed twice"),
        (SURVEY + "[privacy]\nepsilon = 0", "'privacy.epsilon'.*greater than 0"),
        (SURVEY + "[privacy]\nepsilon = inf", "'privacy.epsilon'.*(finite|less)"),
        (SURVEY + "[privacy]\nepsilon = '1'", "'privacy.epsilon'.*valid number"),
        (
            SURVEY + "[privacy]\nepsilon = 1\nguarantee = 'asymptotic'\ndatasets = 0",
            "'privacy.datasets' must be 1 or more",
        ),
        (SURVEY + "[privacy]\nepsilon = 1\ndatasets = -1", "'privacy.datasets'.*greater than or equal to 0"),
        (SURVEY + "[privacy]\nepsilon = 1\ndatasets = true", "'privacy.datasets'.*valid integer"),
        (
            SURVEY + "[privacy]\nepsilon = 1\nmechanism = 'laplace'\nguarantee = 'global'",
            r"'privacy\.bounds' is required",
        ),
        (SURVEY + "[privacy]\nepsilon = 1", r"'privacy\.guarantee' is required: .*not differential privacy"),
        (
            SURVEY + "[privacy]\nepsilon = 1\nguarantee = 'none'",
            "must be 'asymptotic' or 'global' for the mechanism 'fbs'",
        ),
        (SURVEY + BOUNDS.replace("global", "asymptotic"), "must be 'global' for the mechanism 'laplace'"),
        (SURVEY + BOUNDS.replace("outcome = [0, 500_000]\n", ""), r"'privacy\.bounds\.outcome' is required"),
        (SURVEY + BOUNDS + "wieght = [1, 2]", r"'privacy\.bounds\.wieght' is not a known.*did you mean 'weight'"),
        (SURVEY + BOUNDS.replace("[1, 100]", "[100, 1]"), r"'privacy\.bounds\.weight' must be in ascending order"),
        (SURVEY + BOUNDS.replace("[1, 100]", "[1, 1]"), r"'privacy\.bounds\.weight' must be in ascending order"),
        (SURVEY + BOUNDS.replace("[1, 100]", "[-1, 100]"), r"'privacy\.bounds\.weight' must not be negative"),
        (SURVEY + BOUNDS.replace("500_000", "inf"), r"'privacy\.bounds\.outcome\.2'.*(finite|less)"),
        (SURVEY + BOUNDS.replace("500_000", "nan"), r"'privacy\.bounds\.outcome\.2'.*(finite|less)"),
        (SURVEY + BOUNDS.replace("[1, 100]", "[1]"), r"'privacy\.bounds\.weight"),
        (SURVEY.replace("gender", "se_privacy"), "'public' names 'se_privacy'"),
        (SURVEY + "[[tables]]\nby = ['gendr']", "table 1: 'by' names 'gendr'.*did you mean 'gender'"),
        (SURVEY + "[[tables]]\nby = ['field', 'field']", "'by': a name is listed twice"),
        (SURVEY + "[[tables]]\nby = ['field']\nstatistics = []", "'tables.1.statistics' must not be empty"),
        (SURVEY + "[[tables]]\nby = ['field']\nstatistics = ['middle']", r"statistics.1' must be one of [^;]*Remedy"),
        (SURVEY + "[[tables]]\nby = ['field']\n[[tables]]\nby = ['field']", "give each a 'name'"),
        (SURVEY + "[estimation]\ncv_thresholds = [0.3, 0.1]", "ascending"),
        (SURVEY + "[estimation]\nlonely = 'drop'", "'estimation.lonely' must be one of"),
        (
            SURVEY.replace('"salary"', '"id"') + "[privacy]\nguarantee = 'asymptotic'\nepsilon = 1.0",
            "'id', which is a column of every synthetic file",
        ),
        (SURVEY + '[about]\ntitle = "a\\u0007b"', "about.title"),
        ("[survey\n", "line 1 is not valid TOML"),
        ("", "'survey' is required"),
    ],
)
def test_a_wrong_spec_is_one_error_that_names_the_setting(text, message):
    with pytest.raises(SurveyError, match=message) as caught:
        parse_spec(text)
    assert caught.value.kind == "spec"
    assert "Remedy" in str(caught.value)


def test_every_problem_is_listed_at_once():
    with pytest.raises(SurveyError) as caught:
        parse_spec(SURVEY + "colour = 1\n[privacy]\nmechanism = 'x'\n")
    for place in ("survey.colour", "privacy.mechanism", "privacy.epsilon"):
        assert place in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x = 1\n" * 400_000])
def test_what_cannot_be_a_spec_is_refused(tmp_path, content):
    (tmp_path / "spec.toml").write_bytes(content)
    with pytest.raises(SurveyError, match=r"spec\.toml: is (not UTF-8 text|too large)"):
        load_spec(tmp_path / "spec.toml")


def test_a_missing_spec_is_refused(tmp_path):
    with pytest.raises(SurveyError, match="svysynth init"):
        load_spec(tmp_path / "none.toml")
