"""Readers and writers: what goes out comes back, value labels included, and a file appears whole or not at all."""

import stat

import polars as pl
import pytest

import svysynth
from places import GOLDEN
from svysynth import SurveyError
from svysynth.survey.files import open_data, read_columns, write_frame
from svysynth.survey.formats.statistical import code_text

FRAME = pl.DataFrame(
    {"y": [1.5, 2.5, 1e-7, 123456789.125], "w": [1.0, 2.0, 0.1, 4.0], "g": ["Male", "Female", "Male", "Female"]}
)
LABELS = {"g": {"1": "Male", "2": "Female"}}


def read(path, **settings):
    return svysynth.read_survey(path, outcome="y", weight="w", public=["g"], **settings)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "dta", "sav"])
def test_what_is_written_comes_back(tmp_path, ending):
    path = tmp_path / f"d.{ending}"
    write_frame(FRAME, path, LABELS)
    survey = read(path)
    assert survey.frame["y"].to_list() == FRAME["y"].to_list()
    assert survey.frame["g"].cast(pl.String).to_list() == FRAME["g"].to_list()


@pytest.mark.parametrize("ending", ["dta", "sav"])
def test_value_labels_round_trip(tmp_path, ending):
    """Codes and labels stay apart: the file holds 1 and 2, and says that they mean Male and Female."""
    path = tmp_path / f"d.{ending}"
    write_frame(FRAME, path, LABELS)
    file = open_data(path)
    assert file.value_labels == LABELS
    assert read_columns(file, ["g"])["g"].to_list() == [1, 2, 1, 2]
    survey = read(path)
    assert survey.levels("g") == ("Male", "Female")
    assert survey.codes == LABELS


def test_sas_transport_files_are_read(tmp_path):
    import pyreadstat

    pyreadstat.write_xport(FRAME, str(tmp_path / "d.xpt"), file_format_version=8)
    assert read(tmp_path / "d.xpt").frame["y"].to_list() == FRAME["y"].to_list()


def test_sas_files_are_read():
    """A file written by R's haven; see golden/files/make.R."""
    path = GOLDEN / "files/small.sas7bdat"
    survey = svysynth.read_survey(path, outcome="salary", weight="weight", strata="field", public=["region", "field"])
    assert survey.outcome_values.tolist() == [41000.5, 52000, 38000.25, 61000]
    assert survey.levels("region") == ("East", "North", "South")
    assert survey.levels("field") == ("1", "2")


def test_a_folder_of_parquet_is_one_file(tmp_path):
    for part in range(2):
        FRAME[2 * part : 2 * part + 2].write_parquet(tmp_path / f"part-{part}.parquet")
    assert read(tmp_path).outcome_values.tolist() == FRAME["y"].to_list()


def test_hive_folders_are_columns(tmp_path):
    for gender in ("Male", "Female"):
        folder = tmp_path / f"g={gender}"
        folder.mkdir()
        FRAME.filter(g=gender).drop("g").write_parquet(folder / "0.parquet")
    assert sorted(read(tmp_path).levels("g")) == ["Female", "Male"]


def test_value_labels_that_repeat_are_told_apart(tmp_path):
    import pyreadstat

    frame = FRAME.with_columns(g=pl.Series([1.0, 2.0, 3.0, 1.0]))
    labels = {"g": {1: "Other", 2: "Other", 3: "Same"}}
    pyreadstat.write_sav(frame, str(tmp_path / "d.sav"), variable_value_labels=labels)
    assert read(tmp_path / "d.sav").levels("g") == ("Other (1)", "Other (2)", "Same")


@pytest.mark.parametrize(
    "text",
    [
        "y,w,g\n1.5,2,a\n2,3,b\n",
        "\ufeffy,w,g\r\n1.5,2,a\r\n2,3,b\r\n",
        "y;w;g\n1,5;2;a\n2;3;b\n",
        "y\tw\tg\n1.5\t2\ta\n2\t3\tb\n",
        'y,w,g\n"1.5","2","a"\n 2 , 3 ,b\n',
        "y,w,g\n1.5,2,a\n2,3,b",
    ],
)
def test_the_usual_dialects_of_csv(tmp_path, text):
    (tmp_path / "d.csv").write_bytes(text.encode())
    survey = read(tmp_path / "d.csv")
    assert survey.outcome_values.tolist() == [1.5, 2]
    assert survey.levels("g") == ("a", "b")


def test_codes_keep_their_zeros(tmp_path):
    (tmp_path / "d.csv").write_text("y,w,g\n1,2,01\n2,3,1\n")
    assert read(tmp_path / "d.csv").levels("g") == ("01", "1")


def test_a_csv_does_not_carry_formulas(tmp_path):
    labels = ["=1+1", "+SUM(A1)", "@x", "-2+3", "-5", "+65", "plain"]
    write_frame(pl.DataFrame({"g": labels}), tmp_path / "d.csv")
    written = (tmp_path / "d.csv").read_text().splitlines()[1:]
    assert written == ["'=1+1", "'+SUM(A1)", "'@x", "'-2+3", "-5", "+65", "plain"]


def test_a_written_file_is_its_owner_s_only(tmp_path):
    write_frame(FRAME, tmp_path / "d.csv")
    assert stat.S_IMODE((tmp_path / "d.csv").stat().st_mode) == 0o600


@pytest.mark.parametrize("target", ["missing/d.csv", "d.docx", "d"])
def test_where_and_what_cannot_be_written_says_so(tmp_path, target):
    with pytest.raises(SurveyError, match="cannot be written"):
        write_frame(FRAME, tmp_path / target)


def test_the_same_code_has_one_text():
    assert {code_text(code) for code in (1, 1.0, "1", " 1 ")} == {"1"}
