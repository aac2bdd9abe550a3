"""Fuzzing: whatever the bytes, svysynth makes sense of them or raises a SurveyError that keeps the data to itself.

The examples are the same in every run. A search for new ones, `pytest --hypothesis-profile=search`, tries more of them.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyreadstat
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import svysynth
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import Spec, parse_spec

CANARY_TEXT = "CANARYx7f3"
CANARY_NUMBER = 9137313.77
CANARIES = ("CANARY", "9137313")


SEARCHING = not settings.default.derandomize
"""Whether new examples are looked for: then there are many of them."""


def fuzz(examples, **options):
    """So many examples, in a folder that they share."""
    health = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, suppress_health_check=health, **options)


def assert_no_canary(message):
    assert not any(canary in message for canary in CANARIES)


# --- specs ---

SPEC = f"""\
[survey]
data = "survey.csv"
outcome = "salary"
weight = "weight"
strata = "stratum"
public = ["region", "sector"]
population_total = {CANARY_NUMBER}
where = "salary > 0 and region <> '{CANARY_TEXT}'"

[survey.labels.region]
1 = "North"
2 = "{CANARY_TEXT}"

[privacy]
guarantee = "asymptotic"
mechanism = "fbs"
epsilon = 10.8
datasets = 3

[estimation]
variance = "jackknife"
cv_thresholds = [0.1, 0.2]

[[tables]]
name = "{CANARY_TEXT}"
by = ["region", "sector"]
statistics = ["count", "mean"]
"""

SECTIONS = {
    "survey": [*SurveySpec.model_fields, "colour"],
    "privacy": ["mechanism", "epsilon", "datasets", "delta"],
    "estimation": [*svysynth.EstimationSpec.model_fields, "alpha"],
    "tables": ["name", "statistics", "caption"],
}
PLAUSIBLE = ["salary", "weight", "region", "stratum", "psu", "log", "identity", "fbs", "taylor", "brr", "count", "mean"]

REQUIRED = {"data": "d.csv", "outcome": "salary", "weight": "weight", "public": ["region"]}

columns = st.lists(st.sampled_from(PLAUSIBLE) | st.just(1), max_size=3)
scalars = st.one_of(
    st.sampled_from(PLAUSIBLE),
    st.sampled_from([CANARY_TEXT, CANARY_NUMBER, -CANARY_NUMBER, 9137313, f"x = '{CANARY_TEXT}'"]),
    st.sampled_from(
        [0, -1, 1, 3, 2**63, 10**400, 0.5, 1e-320, 1e308, float("inf"), float("nan"), True, "", "\0", "\x1b"]
    ),
    st.text(max_size=10),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["region", "1", "a b"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def toml(value):
    """A value as TOML; JSON's strings are TOML's too, but for the delete character."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


@st.composite
def structured_specs(draw):
    """The keys there are and a few more, each with a value that may suit it.

    Messages may show the names of columns: `by` gets no canary.
    """
    lines = []
    for section, keys in SECTIONS.items():
        if section == "survey" or draw(st.booleans()):
            lines.append("[[tables]]" if section == "tables" else f"[{section}]")
            chosen = draw(st.dictionaries(st.sampled_from(keys), values))
            if section == "survey" and draw(st.booleans()):
                chosen = REQUIRED | chosen
            if section == "tables":
                chosen |= draw(st.fixed_dictionaries({}, optional={"by": columns}))
            lines += [f"{key} = {toml(value)}" for key, value in chosen.items()]
    return "\n".join(lines)


@st.composite
def mutations(draw, original, alphabet):
    """The original after some cuts and insertions."""
    mutant = original
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(mutant)))
        length = draw(st.sampled_from([0, 0, 1, 1, 2, 10, len(mutant)]))
        mutant = mutant[:start] + draw(alphabet) + mutant[start + length :]
    return mutant


spec_pieces = st.sampled_from(
    ["", "\n", '"', "'", "[", "]", "[[", ".", "=", "#", "0", "e9", "nan", "\0", "\\u0000", "é"]
)


@fuzz(1500 if SEARCHING else 500)
@given(structured_specs() | mutations(SPEC, spec_pieces | st.text(max_size=5)) | st.text())
def test_any_text_is_a_spec_or_a_survey_error(text):
    try:
        assert isinstance(parse_spec(text), Spec)
    except svysynth.SurveyError as error:
        assert_no_canary(str(error))


# --- data ---

ROLES = {"outcome": "salary", "weight": "weight", "public": ["region"], "strata": "stratum", "transform": "identity"}
ROWS = [
    "salary,weight,region,stratum,note",
    "41000.5,1.5,North,a,x",
    f"{CANARY_NUMBER},2,{CANARY_TEXT},a,y",
    '38000,3,"North",b,"a, b"',
    f"-52000,2.5,South,b,{CANARY_TEXT}",
    f'47000,{CANARY_NUMBER},"South ""x""",b,',
    "1e3,1,North,a,z",
]
CSV = "\n".join([*ROWS, ""]).encode()

PIECES = [
    *[b"", b",", b";", b"\t", b"|", b'"', b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\x1b[31m"],
    *[b"nan", b"1e999", b"1e-320", b"1e59", b"0", b"-", b"=", b" ", b",,,,,,", b"All", b"PK", b"\x1f\x8b", b"x\x01"],
]


@st.composite
def swapped_separators(draw):
    old, new = draw(st.permutations([b",", b";", b"\t", b"|", b"\n", b"\r", b'"', b"."]))[:2]
    return CSV.replace(old, new)


@st.composite
def random_tables(draw):
    """Lines of the right columns, with values that may be numbers."""
    cells = st.sampled_from(["1", "2.5", "-3", "1e-310", "1e59", "-1e59", "1e-59", "0", "", "NA", "inf", "a", "All"])
    usual = st.tuples(st.sampled_from(["1", "-1", "1e-310", "7e58"]), st.sampled_from(["1", "1e-59", "7e58"]))
    regular = st.tuples(usual, st.sampled_from("ab"), st.sampled_from("st")).map(
        lambda row: [*row[0], row[1], row[2], "n"]
    )
    lines = draw(st.lists(regular | st.lists(cells, min_size=4, max_size=6), max_size=8))
    return "\n".join([ROWS[0], *(",".join(line) for line in lines)]).encode()


def assert_tables_or_survey_error(path):
    """Read and tabulate; the only exception is a SurveyError without a value, and no number is NaN or infinite."""
    try:
        survey = svysynth.read_survey(path, **ROLES)
        table = svysynth.tabulate(survey, ["region"], ["count", "mean", "total", "proportion"])
    except svysynth.SurveyError as error:
        assert_no_canary(str(error))
    else:
        numbers = table.select(pl.col(pl.Float64).drop_nulls().is_finite().all())
        assert all(numbers.row(0)), "NaN or infinity"


@fuzz(1500 if SEARCHING else 500)
@given(
    mutations(CSV, st.sampled_from(PIECES) | st.binary(max_size=4))
    | swapped_separators()
    | random_tables()
    | st.binary(max_size=200)
)
def test_any_bytes_are_a_survey_or_a_survey_error(tmp_path, capfd, content):
    path = tmp_path / "survey.csv"
    path.write_bytes(content)
    assert_tables_or_survey_error(path)
    assert capfd.readouterr() == ("", "")


# --- binary files: the readers are native code, so each batch of mutants gets a process of its own ---

JUDGE = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
warnings.simplefilter("error")
sys.path.insert(0, sys.argv[1])
from test_fuzz import assert_tables_or_survey_error
for path in sys.argv[2:]:
    print(path, flush=True)
    assert_tables_or_survey_error(path)
"""


def write_survey(path):
    frame = pl.DataFrame(
        {
            "salary": [41000.5, CANARY_NUMBER, 38000.0, -52000.0, 47000.0, 1000.0],
            "weight": [1.5, 2.0, 3.0, 2.5, CANARY_NUMBER, 1.0],
            "region": [1, 2, 1, 3, 3, 1],
            "stratum": ["a", "a", "b", "b", "b", "a"],
        }
    )
    labels = {"region": {1: "North", 2: CANARY_TEXT, 3: "South"}}
    match path.suffix:
        case ".parquet":
            frame.write_parquet(path)
        case ".sav":
            pyreadstat.write_sav(frame, str(path), variable_value_labels=labels)
        case ".dta":
            pyreadstat.write_dta(frame, str(path), variable_value_labels=labels)
        case ".xpt":
            pyreadstat.write_xport(frame, str(path))


def flipped(original, generator):
    """The original with some bytes changed, and now and then cut short."""
    mutant = bytearray(original)
    for _ in range(generator.choice([1, 1, 2, 5, 20])):
        mutant[generator.randrange(len(mutant))] = generator.choice([0, 1, 127, 128, 255, generator.randrange(256)])
    return bytes(mutant[: generator.randrange(1, len(mutant))] if generator.random() < 0.2 else mutant)


def assert_mutants_are_read_or_refused(ending, tmp_path, batches, size):
    original = tmp_path / f"original.{ending}"
    write_survey(original)

    @fuzz(batches, phases=[Phase.generate])
    @given(st.integers(0, 2**32))
    def judge(seed):
        generator = random.Random(seed)
        paths = [tmp_path / f"mutant{number}.{ending}" for number in range(size)]
        for path in paths:
            path.write_bytes(flipped(original.read_bytes(), generator))
        command = [sys.executable, "-c", JUDGE, str(Path(__file__).parent), *map(str, paths)]
        child = subprocess.run(command, capture_output=True, text=True, timeout=120)
        judged = child.stdout.splitlines()
        assert (child.returncode, child.stderr[:1000]) == (0, ""), judged[-1]
        assert judged == list(map(str, paths))

    judge()


@pytest.mark.parametrize(("ending", "size"), [("parquet", 100), ("sav", 4), ("dta", 4), ("xpt", 4)])
def test_mutated_files_are_a_survey_or_a_survey_error(ending, size, tmp_path):
    """SAS, Stata and SPSS files are read in a process each, which takes its time: few here, many in the study."""
    batches = 3 if SEARCHING else 1
    assert_mutants_are_read_or_refused(ending, tmp_path, batches, size)


@pytest.mark.study
@pytest.mark.parametrize("ending", ["sav", "dta", "xpt"])
def test_many_mutated_files_are_a_survey_or_a_survey_error(ending, tmp_path):
    assert_mutants_are_read_or_refused(ending, tmp_path, batches=5, size=60)
