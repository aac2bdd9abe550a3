"""Drafts: roles are guessed from names and types, and no value of the data goes into a draft."""

import json
import re
from importlib import resources

import numpy as np
import polars as pl
import pytest

from svysynth import SurveyError
from svysynth.core.spec.whole import parse_spec
from svysynth.survey.drafting import draft_spec
from svysynth.survey.files import write_frame

BLANK = "# bounds = { outcome = […, …], weight = […, …] }"


def draft_of(tmp_path, columns, ending="parquet"):
    path = tmp_path / f"d.{ending}"
    write_frame(pl.DataFrame(columns), path)
    return draft_spec(path, tmp_path)


def filled_in(draft):
    """The drafted spec with bounds, which no draft can guess."""
    assert draft.text.count(BLANK) == 1
    return parse_spec(draft.text.replace(BLANK, "bounds = { outcome = [1, 2], weight = [1, 2] }"))


def columns(n=200):
    generator = np.random.default_rng(1)
    return {
        "CASEID": range(n),
        "stratum": generator.integers(1, 5, n),
        "psu": generator.integers(1, 60, n),
        "region": generator.choice(["north", "south"], n),
        "sex": generator.integers(1, 3, n),
        "hh_size": generator.integers(1, 9, n),
        "income": generator.lognormal(10, 1, n),
        "final_wt": generator.lognormal(1, 1, n),
    }


@pytest.mark.parametrize("ending", ["parquet", "csv", "sav", "dta"])
def test_every_role_is_found(tmp_path, ending):
    draft = draft_of(tmp_path, columns(), ending)
    spec = filled_in(draft)
    assert spec.survey.outcome == "income"
    assert spec.survey.weight == "final_wt"
    assert spec.survey.strata == "stratum"
    assert spec.survey.cluster == "psu"
    assert spec.survey.public == ("stratum", "region")
    assert 'further candidates, if they are public and not answers: ["sex", "hh_size"]' in draft.text
    assert spec.survey.data.name == f"d.{ending}"


@pytest.mark.parametrize("name", ["weight", "WTSURVY", "wt", "finalwt", "pweight", "PERWT", "hh.weight", "w"])
def test_the_usual_names_of_weights(tmp_path, name):
    data = columns()
    data[name] = data.pop("final_wt")
    assert filled_in(draft_of(tmp_path, data)).survey.weight == name


def test_zeros_in_the_outcome_bring_another_scale_and_never_a_filter(tmp_path):
    data = columns() | {"income": [0.0, *([10.0, 20.0, 30.0] * 67)][:200]}
    survey = filled_in(draft_of(tmp_path, data)).survey
    assert (survey.outcome, survey.where, survey.transform) == ("income", None, "identity")


def test_what_cannot_be_guessed_is_left_to_the_user(tmp_path):
    draft = draft_of(tmp_path, {"a": ["x", "y"], "b": ["u", "v"]})
    with pytest.raises(SurveyError, match=r"'survey\.outcome' is required; 'survey\.weight' is required"):
        filled_in(draft)


def test_no_value_goes_into_a_draft(tmp_path):
    data = columns() | {"region": ["CANARY-A", "CANARY-B"] * 100, "income": [77123.5, 88234.5] * 100}
    text = draft_of(tmp_path, data).text
    assert "CANARY" not in text
    assert "77123" not in text


def test_odd_column_names_are_quoted(tmp_path):
    data = {'sal"ary\\': [1.5, 2.5, 3.5], "weight": [1.0, 2.0, 3.0], "a b": ["x", "y", "x"]}
    spec = filled_in(draft_of(tmp_path, data))
    assert spec.survey.outcome == 'sal"ary\\'
    assert spec.survey.public == ("a b",)


# --- well-known files ---


FILES = {
    "ACS persons": ("SERIALNO SPORDER ST PUMA PWGTP AGEP SEX SCHL PINCP ADJINC", 80, "PWGTP", "PWGTP", None, None),
    "ACS households": ("SERIALNO ST PUMA WGTP TEN HINCP", 80, "WGTP", "WGTP", None, None),
    "CPS basic": ("HRHHID HRHHID2 PULINENO GESTFIPS PESEX PRTAGE PWSSWGT PTERNWA", 0, "", "PWSSWGT", None, None),
    "CPS supplement": ("PH_SEQ PPPOS A_SEX MARSUPWT WSAL_VAL", 160, "PWWGT", "MARSUPWT", None, None),
    "CPS at IPUMS": ("YEAR SERIAL CPSID PERNUM ASECWT WTFINL SEX RACE INCWAGE", 160, "REPWTP", "ASECWT", None, None),
    "NHANES": (
        "SEQN RIAGENDR RIDRETH3 INDFMPIR WTINT2YR WTMEC2YR SDMVPSU SDMVSTRA",
        0,
        "",
        "WTMEC2YR",
        "SDMVSTRA",
        "SDMVPSU",
    ),
    "NHANES before the pandemic": (
        "SEQN RIAGENDR LBXTC WTMECPRP SDMVPSU SDMVSTRA",
        0,
        "",
        "WTMECPRP",
        "SDMVSTRA",
        "SDMVPSU",
    ),
    "api, clusters": (
        "cds stype name sname snum dname dnum cnum flag api00 enroll fpc pw",
        0,
        "",
        "pw",
        "stype",
        "dnum",
    ),
    "SDR": ("REFID NSDRMEMTOD GENDER AGEGRP LFSTAT SALARY WTSURVY", 0, "", "WTSURVY", "NSDRMEMTOD", None),
    "RECS": ("DOEID REGIONC DIVISION NHSLDMEM TOTALDOL NWEIGHT", 60, "NWEIGHT", "NWEIGHT", None, None),
    "EU-SILC": (
        "DB020 DB030 DB040 DB050 DB060 DB090 RB030 RB050 PB030 PB040 PB150 HY020",
        0,
        "",
        "PB040",
        "DB050",
        "DB060",
    ),
    "GSS": ("ID_ YEAR SEX DEGREE REALRINC WTSSPS WTSSALL VSTRAT VPSU", 0, "", "WTSSPS", "VSTRAT", "VPSU"),
    "DHS": ("CASEID v001 v002 v003 v005 v021 v022 v023 v025 v106 v201", 0, "", "v005", "v022", "v021"),
    "BRFSS": ("_STATE SEQNO _PSU _STSTR _LLCPWT SEXVAR EDUCA _BMI5", 0, "", "_LLCPWT", "_STSTR", "_PSU"),
    "NHIS": ("HHX FMX FPX SRVY_YR PSTRAT PPSU WTFA SEX HINOTYR AGE_P", 0, "", "WTFA", "PSTRAT", "PPSU"),
    "MEPS": (
        "DUID PID DUPERSID PANEL SEX RACETHX TOTEXP20 PERWT20F VARSTR VARPSU",
        0,
        "",
        "PERWT20F",
        "VARSTR",
        "VARPSU",
    ),
    "ESS": (
        "idno cntry gndr hinctnta netpay dweight pspwght anweight stratum psu",
        0,
        "",
        "anweight",
        "stratum",
        "psu",
    ),
    "PISA": ("CNTRYID CNTSCHID CNTSTUID ST004D01T PV1MATH W_FSTUWT", 80, "W_FSTR", "W_FSTUWT", None, "CNTSCHID"),
    "PISA since 2015": ("CNTRYID CNTSCHID CNTSTUID ESCS W_FSTUWT", 80, "W_FSTURWT", "W_FSTUWT", None, "CNTSCHID"),
}
OUTCOMES = (
    *("PINCP", "HINCP", "PTERNWA", "WSAL_VAL", "INCWAGE", "INDFMPIR", "LBXTC", "api00", "enroll", "SALARY", "TOTALDOL"),
    *("HY020", "REALRINC", "v201", "_BMI5", "AGE_P", "PRTAGE", "TOTEXP20", "netpay", "PV1MATH", "ESCS", "NHSLDMEM"),
)
"""What is measured in these files; all other columns are roles, codes and categories."""
CATEGORIES = (
    *(
        "ST",
        "AGEP",
        "SEX",
        "SCHL",
        "TEN",
        "GESTFIPS",
        "PESEX",
        "A_SEX",
        "RACE",
        "RIAGENDR",
        "RIDRETH3",
        "stype",
        "cnum",
    ),
    *("NSDRMEMTOD", "GENDER", "AGEGRP", "LFSTAT", "REGIONC", "DIVISION", "DB020", "DB040", "DB050", "PB150", "DEGREE"),
    *("VSTRAT", "v022", "v023", "v025", "v106", "_STATE", "_STSTR", "SEXVAR", "EDUCA", "PSTRAT", "HINOTYR", "RACETHX"),
    *("VARSTR", "cntry", "gndr", "hinctnta", "stratum", "ST004D01T", "YEAR", "SRVY_YR", "PANEL", "SDMVSTRA", "CNTRYID"),
    *("PUMA", "ADJINC", "NHSLDMEM"),
)


def made_up(names, records=300):
    """Columns of those names: measurements vary, all else has few values, so that any of it looks like a category."""
    generator = np.random.default_rng(3)
    few = {name: generator.integers(1, 5, records) for name in names if name not in OUTCOMES}
    return few | {name: generator.lognormal(3, 1, records) for name in names if name in OUTCOMES}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("varied", ["few values", "many values"])
def test_the_roles_of_well_known_files_are_found(tmp_path, file, varied):
    """Also where weights and identifiers look like categories, and where they look like measurements."""
    header, replicates, stem, weight, strata, cluster = FILES[file]
    names = [*header.split(), *(f"{stem}{number}" for number in range(1, replicates + 1))]
    data = made_up(names)
    if varied == "many values":
        generator = np.random.default_rng(4)
        others = [name for name in names if name not in (*OUTCOMES, *CATEGORIES)]
        data |= {name: generator.permutation(300) + 1.0 for name in others}
    survey = filled_in(draft_of(tmp_path, data)).survey
    assert (survey.weight, survey.strata, survey.cluster) == (weight, strata, cluster)
    assert survey.outcome in OUTCOMES
    assert set(survey.public) <= set(CATEGORIES)
    candidates = [line for line in draft_of(tmp_path, data).text.splitlines() if "further candidates" in line]
    offered = {name for line in candidates for name in json.loads(line.split(": ")[1])}
    assert offered <= {*CATEGORIES, *OUTCOMES}


def test_replicate_weights_are_many_of_one_name(tmp_path):
    """A number behind a single weight does not make it one of many."""
    data = columns() | {f"repwt{number:02}": np.arange(200) % 7 + 1 for number in range(1, 41)}
    data["weight2020"] = data.pop("final_wt")
    survey = filled_in(draft_of(tmp_path, data)).survey
    assert survey.weight == "weight2020"
    assert survey.outcome == "income"


def test_what_numbers_the_records_is_not_measured(tmp_path):
    data = {
        "code": np.random.default_rng(5).permutation(200) + 1001,
        "age": np.arange(200) % 60,
        "weight": [1.5, 2] * 100,
    }
    assert filled_in(draft_of(tmp_path, data | {"sex": ["F", "M"] * 100})).survey.outcome == "age"


def test_a_draft_says_what_it_promises_and_what_is_needed(tmp_path):
    draft = draft_of(tmp_path, columns())
    privacy = filled_in(draft).privacy
    assert (privacy.mechanism, privacy.guarantee, privacy.epsilon, privacy.datasets) == ("fbs", "global", 3, 10)
    with pytest.raises(SurveyError, match=r"'privacy\.bounds' is required"):
        parse_spec(draft.text)
    assert "public knowledge, not read off the data" in draft.text


def test_the_paper_s_mechanism_is_one_line_of_a_draft_and_of_the_demo(tmp_path):
    """The settings that their comments name give a spec with the paper's guarantee."""
    demo = (resources.files("svysynth.survey") / "doctorates.toml").read_text(encoding="utf-8")
    for text in (draft_of(tmp_path, columns()).text, demo):
        (named,) = re.findall(r'^# .*?(guarantee = "asymptotic", .*)$', text, re.MULTILINE)
        shorter = re.sub(r"^(guarantee|epsilon) = .*$", "", text, flags=re.MULTILINE)
        privacy = parse_spec(shorter.replace("[privacy]", "[privacy]\n" + named.replace(", ", "\n"))).privacy
        assert (privacy.guarantee, privacy.epsilon, privacy.datasets) == ("asymptotic", 10.8, 3)


def test_a_column_with_missing_values_is_an_answer_and_not_public(tmp_path):
    """High cholesterol in NHANES was once drafted as a public column."""
    columns = {"SDMVSTRA": [1, 2] * 50, "WTMEC2YR": [1.5] * 100, "HI_CHOL": [0, 1, None, 0] * 25}
    pl.DataFrame(columns | {"race": [1, 2, 3, 4] * 25, "BMX": [20 + 0.1 * n for n in range(100)]}).write_csv(
        tmp_path / "n.csv"
    )
    draft = draft_spec(tmp_path / "n.csv", tmp_path)
    assert "HI_CHOL" not in draft.roles["public"]
    assert draft.roles["outcome"] == "BMX"


def test_variable_labels_of_the_file_are_drafted(tmp_path):
    pyreadstat = pytest.importorskip("pyreadstat")
    generator = np.random.default_rng(2)
    columns = {
        "income": np.exp(generator.standard_normal(200)),
        "weight": generator.uniform(1, 2, 200),
        "sex": generator.integers(1, 3, 200),
        "region": generator.integers(1, 5, 200),
    }
    labels = {"income": ' Income "before" taxes ', "weight": "Final weight", "sex": "Sex\x07", "region": "R" * 250}
    path = tmp_path / "d.sav"
    pyreadstat.write_sav(pl.DataFrame(columns), str(path), column_labels=labels)
    spec = filled_in(draft_spec(path, tmp_path))
    assert spec.survey.outcome == "income"
    assert {"sex", "region"} == set(spec.survey.public)
    assert spec.survey.variable_labels == {"income": 'Income "before" taxes', "region": "R" * 200}
