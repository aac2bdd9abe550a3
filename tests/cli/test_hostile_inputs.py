"""Hostile inputs: whatever is in the files, the answer is one clear error, or the right tables.

A refusal is one line on standard error and exit code 1, within seconds and little memory. It writes no file, not even
a temporary one, and shows no value from the data: every survey here carries two canaries that must not be heard.
"""

import csv
import ctypes
import gzip
import io
import json
import lzma
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import openpyxl
import polars as pl
import pyreadstat
import pytest
from polars.testing import assert_frame_equal

from svysynth.cli.main import main

SECONDS = 10
"""Of processor time that a refusal may take, however busy the machine is."""
PATIENCE = 600
"""Seconds after which a run counts as one that hangs."""
MEGABYTES = 600
LONGEST_MESSAGE = 2000
CANARIES = ("9137313", "9.1373", "CANARY")

SURVEY = {
    "salary": ["41000.5", "9137313.77", "38000", "52000", "47000", "61000"],
    "weight": ["1.5", "2", "9137313.77", "3", "2.5", "1"],
    "region": ["North", "CANARYx7f3", "North", "South", "CANARYx7f3", "South"],
    "stratum": ["CANARYx7f3", "CANARYx7f3", "CANARYx7f3", "b", "b", "b"],
    "psu": ["1", "2", "3", "4", "5", "9137313"],
    "size": ["9137313.77", "9137313.77", "9137313.77", "80", "80", "80"],
}
SETTINGS = {"data": "'survey.csv'", "outcome": "'salary'", "weight": "'weight'", "public": "['region']"}


# --- laying out a survey and its spec ---


def csv_text(columns=SURVEY, separator=",", line_end="\n"):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator=line_end)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def spec_text(tail="", **settings):
    """A spec whose `[survey]` has these settings, as TOML, in place of the usual ones; None leaves one out."""
    lines = [f"{key} = {value}" for key, value in (SETTINGS | settings).items() if value is not None]
    return "\n".join(["[survey]", *lines, tail])


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def csv_file(content, name="survey.csv", tail="", **settings):
    """A data file with this content (or what a function returns), beside a spec that is in order."""

    def build(folder):
        write(folder / name, content() if callable(content) else content)
        write(folder / "spec.toml", spec_text(tail, **{"data": f"'{name}'"} | settings))

    return build


def csv_body(changed, **settings):
    """The usual CSV file, edited by a function."""
    return csv_file(lambda: changed(csv_text()), **settings)


def value(column, text, **settings):
    """The usual survey with another first value in a column."""
    return csv_file(csv_text(SURVEY | {column: [text, *SURVEY[column][1:]]}), **settings)


def spec(tail="", **settings):
    """The usual survey with another spec."""
    return csv_file(csv_text(), tail=tail, **settings)


def spec_file(content):
    """The usual survey with this for a spec."""

    def build(folder):
        write(folder / "survey.csv", csv_text())
        write(folder / "spec.toml", content() if callable(content) else content)

    return build


def where(condition):
    return spec(where=f'"""{condition}"""')


def typed_survey():
    numeric = ("salary", "weight", "size")
    return pl.DataFrame(SURVEY).with_columns(pl.col(numeric).cast(pl.Float64))


def parquet_column(column, values, **settings):
    """A Parquet file with another column of some type."""

    def build(folder):
        typed_survey().with_columns(pl.Series(column, values)).write_parquet(folder / "survey.parquet")
        write(folder / "spec.toml", spec_text(data="'survey.parquet'", **settings))

    return build


def parquet_bytes():
    file = io.BytesIO()
    typed_survey().write_parquet(file)
    return file.getvalue()


def parquet_folder(**parts):
    """A folder of Parquet files, each made of the usual survey by a function."""

    def build(folder):
        (folder / "survey").mkdir()
        for name, change in parts.items():
            change(typed_survey()).write_parquet(folder / "survey" / f"{name}.parquet")
        write(folder / "spec.toml", spec_text(data="'survey'"))

    return build


def statistical_bytes(ending, value_labels=None):
    """The usual survey as SPSS, Stata or SAS transport, with regions as codes 1, 2 and 3."""
    codes = {"North": 1, "CANARYx7f3": 2, "South": 3}
    frame = typed_survey().with_columns(pl.col("region").replace_strict(codes, return_dtype=pl.Int32))
    options = {"variable_value_labels": {"region": value_labels or {v: k for k, v in codes.items()}}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"survey.{ending}"
        writer = {"sav": pyreadstat.write_sav, "dta": pyreadstat.write_dta, "xpt": pyreadstat.write_xport}[ending]
        writer(frame, str(path), **({} if ending == "xpt" else options))
        return path.read_bytes()


def statistical_file(ending, change=lambda content: content):
    return csv_file(lambda: change(statistical_bytes(ending)), name=f"survey.{ending}")


def special_file(make, data="survey.csv"):
    """Something at the data's path that is not a plain file."""

    def build(folder):
        make(folder / "survey.csv")
        write(folder / "spec.toml", spec_text(data=f"'{data}'"))

    return build


def patched(content, marker, offset, replacement):
    start = content.index(marker) + offset
    return content[:start] + replacement + content[start + len(replacement) :]


def zlib_stored(text):
    """A zlib stream of one stored block whose first bytes pass for UTF-8 text: x, control characters, then the text."""
    length = 0x7F3D
    payload = text.encode().ljust(length, b"\n")
    return (
        b"x\x01\x01" + struct.pack("<HH", length, length ^ 0xFFFF) + payload + struct.pack(">I", zlib.adler32(payload))
    )


def zipped(text):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("survey.csv", text)
    return archive.getvalue()


def gzip_bomb():
    """A gigabyte of zeros, as a hundred gzip members of ten megabytes each."""
    return gzip.compress(bytes(10_000_000)) * 100


def noise(length=5000):
    return random.Random(1).randbytes(length)


def many_columns():
    extra = {f"c{i}": ["1"] * 6 for i in range(100_000)}
    return csv_text({name: values for name, values in SURVEY.items() if name != "region"} | extra)


# --- what must be refused, and the place that the error has to name ---


@dataclass(frozen=True)
class Hostile:
    build: object
    names: str = ""


PLAIN = csv_text()
HEADER, ROWS = PLAIN.split("\n", 1)
FPC = {"fpc": "'size'", "strata": "'stratum'"}
NOT_UTF_8 = "UTF-8"
DATA, SPEC, WHERE = "survey.csv", "spec.toml", "survey.where"
SALARY, WEIGHT, REGION = "column 'salary'", "column 'weight'", "column 'region'"

CSV_FILES = {
    "csv empty": Hostile(csv_file(""), DATA),
    "csv header only": Hostile(csv_file(HEADER + "\n"), "no records"),
    "csv header without line end": Hostile(csv_file(HEADER), "no records"),
    "csv blank lines only": Hostile(csv_file("\n\n\n"), DATA),
    "csv blank first line": Hostile(csv_body(lambda text: "\n" + text), DATA),
    "csv latin-1 header": Hostile(csv_body(lambda text: text.replace("psu", "psü").encode("latin-1")), NOT_UTF_8),
    "csv latin-1 body": Hostile(csv_body(lambda text: text.replace("North", "Nörd").encode("latin-1")), NOT_UTF_8),
    "csv latin-1 in a column not used": Hostile(
        csv_body(lambda text: text.replace(",80", ",8\xa0").encode("latin-1")), NOT_UTF_8
    ),
    "csv truncated within a character": Hostile(csv_body(lambda text: text.encode() + b"1,1,\xc3"), DATA),
    "csv utf-16 with byte order mark": Hostile(csv_body(lambda text: text.encode("utf-16")), "UTF-16"),
    "csv utf-16 without byte order mark": Hostile(csv_body(lambda text: text.encode("utf-16-le")), DATA),
    "csv utf-16 big endian": Hostile(csv_body(lambda text: text.encode("utf-16-be")), DATA),
    "csv utf-32": Hostile(csv_body(lambda text: text.encode("utf-32")), DATA),
    "csv two byte order marks": Hostile(csv_body(lambda text: "\ufeff\ufeff" + text), DATA),
    "csv nul in header": Hostile(csv_body(lambda text: text.replace("psu", "p\0su")), DATA),
    "csv nul in a number": Hostile(value("salary", "41\0000"), SALARY),
    "csv nul in a category": Hostile(value("region", "No\0rth"), REGION),
    "csv nothing but nul": Hostile(csv_file(bytes(10_000_000)), DATA),
    "csv noise": Hostile(csv_file(noise()), DATA),
    "csv adjacent duplicate headers": Hostile(csv_body(lambda text: text.replace("stratum", "region")), DATA),
    "csv distant duplicate headers": Hostile(csv_body(lambda text: text.replace("size", "salary")), DATA),
    "csv header differs in case": Hostile(csv_body(lambda text: text.replace("salary", "Salary")), "'Salary'"),
    "csv header differs in blanks": Hostile(csv_body(lambda text: text.replace("salary", "salary ")), SALARY),
    "csv two blank headers": Hostile(csv_body(lambda text: text.replace("psu,size", ",")), DATA),
    "csv blank header is a role": Hostile(csv_body(lambda text: text.replace("region", "")), REGION),
    "csv hundred thousand columns, one missing": Hostile(csv_file(many_columns), REGION),
    "csv twenty megabytes in a category": Hostile(
        csv_file(lambda: csv_text(SURVEY | {"region": ["x" * 20_000_000, *SURVEY["region"][1:]]})), REGION
    ),
    "csv twenty megabytes in a number": Hostile(
        csv_file(lambda: csv_text(SURVEY | {"salary": ["1" * 20_000_000, *SURVEY["salary"][1:]]})), SALARY
    ),
    "csv twenty megabytes in the header": Hostile(csv_file(lambda: "x" * 20_000_000 + "," + PLAIN), DATA),
    "csv unclosed quote in header": Hostile(csv_file('"' + PLAIN)),
    "csv stray quote in header": Hostile(csv_body(lambda text: text.replace("psu", 'ps"u')), DATA),
    "csv stray quote in header closed in the body": Hostile(
        csv_body(lambda text: text.replace("psu", 'ps"u').replace("North", 'Nor"th', 1)), DATA
    ),
    "csv unclosed quote in body": Hostile(csv_body(lambda text: text.replace("South", '"South', 1)), DATA),
    "csv unclosed quote at the end": Hostile(csv_body(lambda text: text + '1,1,"South'), DATA),
    "csv text after a closing quote": Hostile(csv_body(lambda text: text.replace("South", '"Sou"th', 1)), DATA),
    "csv long row": Hostile(csv_body(lambda text: text + "1,1,South,b,5,80,CANARYx7f3\n"), DATA),
    "csv short row": Hostile(csv_body(lambda text: text + "1,1\n"), REGION),
    "csv bare carriage returns": Hostile(csv_body(lambda text: text.replace("\n", "\r")), DATA),
    "csv bare carriage returns in the body": Hostile(csv_file(HEADER + "\n" + ROWS.replace("\n", "\r")), DATA),
    "csv without header, numbers": Hostile(csv_file("9137313.77,1,2\n1,2,3\n"), DATA),
    "csv without header, mixed": Hostile(csv_file(ROWS), DATA),
    "csv without header, first value close to a name": Hostile(
        csv_file("CANARYx7f3,1,2\n1,2,3\n", outcome="'canaryx7f'")
    ),
    "csv html page": Hostile(csv_file("<!DOCTYPE html>\n<p>salary, weight, region</p>\n")),
    "csv gzip": Hostile(csv_file(gzip.compress(PLAIN.encode())), DATA),
    "csv zip": Hostile(csv_file(zipped(PLAIN)), DATA),
    "csv xz": Hostile(csv_file(lzma.compress(PLAIN.encode())), DATA),
    "csv zstd": Hostile(csv_file(b"\x28\xb5\x2f\xfd" + noise()), DATA),
    "csv zlib": Hostile(csv_file(zlib.compress(PLAIN.encode())), DATA),
    "csv zlib disguised as text": Hostile(csv_file(zlib_stored("x," + PLAIN)), DATA),
    "csv called .csv.gz": Hostile(csv_file(gzip.compress(PLAIN.encode()), name="survey.csv.gz"), "survey.csv.gz"),
    "csv is a workbook": Hostile(csv_file(PLAIN, name="survey.xlsx"), "survey.xlsx"),
    "csv without ending": Hostile(csv_file(PLAIN, name="survey"), "survey"),
}

NOT_NUMBERS = {
    "nan": "NaN",
    "infinity": "inf",
    "minus infinity": "-inf",
    "beyond double precision": "1e400",
    "absurdly large": "1e308",
    "hexadecimal": "0x10",
    "underscore": "1_000",
    "decimal comma": "1,5",
    "thousands separator": "41,000.50",
    "full-width digits": "４１０００",
    "currency": "$41000",
    "text": "CANARYx7f3",
    "empty": "",
    "dot for missing": ".",
    "two signs": "--5",
}
NUMBERS = {
    f"{column} {name}": Hostile(value(column, text), f"column '{column}'")
    for column in ("salary", "weight")
    for name, text in NOT_NUMBERS.items()
}

RECORDS = {
    "weight zero": Hostile(value("weight", "0"), WEIGHT),
    "weight negative": Hostile(value("weight", "-9137313.77"), WEIGHT),
    "weight subnormal": Hostile(value("weight", "1e-320"), WEIGHT),
    "outcome zero with log": Hostile(value("salary", "0"), SALARY),
    "outcome negative with log": Hostile(value("salary", "-9137313.77"), SALARY),
    "category missing": Hostile(value("region", ""), REGION),
    "category blank": Hostile(value("region", "   "), REGION),
    "stratum missing": Hostile(value("stratum", "", strata="'stratum'"), "column 'stratum'"),
    "cluster missing": Hostile(value("psu", "", cluster="'psu'"), "column 'psu'"),
    "fpc missing": Hostile(value("size", "", **FPC), "column 'size'"),
    "fpc varies within a stratum": Hostile(value("size", "70", **FPC), "survey.fpc"),
    "fpc zero": Hostile(csv_file(csv_text(SURVEY | {"size": ["0"] * 6}), **FPC), "survey.fpc"),
    "fpc smaller than the sample": Hostile(csv_file(csv_text(SURVEY | {"size": ["2"] * 6}), **FPC), "survey.fpc"),
    "one-unit stratum": Hostile(value("stratum", "c", strata="'stratum'"), "strata"),
    "one cluster": Hostile(csv_file(csv_text(SURVEY | {"psu": ["9137313"] * 6}), cluster="'psu'"), "strata"),
    "one record": Hostile(csv_file(HEADER + "\n" + ROWS.split("\n", 1)[0] + "\n"), "strata"),
    "label of control characters": Hostile(value("region", "\x1b[31mCANARYx7f3\x1b[0m"), REGION),
    "label with right-to-left override": Hostile(value("region", "\u202eCANARYx7f3"), REGION),
    "label with a line break": Hostile(value("region", "CANARYx7f3\nSouth"), REGION),
    "label of ten thousand characters": Hostile(value("region", "CANARYx7f3" * 1000), REGION),
    "label All": Hostile(value("region", "All"), REGION),
    "more levels than anyone can read": Hostile(
        csv_file(lambda: csv_text({k: [*v[:1] * 10_001] for k, v in SURVEY.items()} | {"region": range(10_001)})),
        REGION,
    ),
}

ODD_TYPES = {
    "list": [[9137313.77]] * 6,
    "struct": [{"a": "CANARYx7f3"}] * 6,
    "binary": [b"CANARYx7f3"] * 6,
    "date": [date(2020, 1, 1)] * 6,
    "datetime": [datetime(2020, 1, 1)] * 6,
    "duration": [timedelta(days=9137313)] * 6,
    "nothing": [None] * 6,
}
PARQUET_TYPES = {
    f"parquet {kind} as {column}": Hostile(parquet_column(column, values, **settings), f"column '{column}'")
    for kind, values in ODD_TYPES.items()
    for column, settings in {
        "salary": {},
        "weight": {},
        "region": {},
        "stratum": {"strata": "'stratum'"},
        "psu": {"cluster": "'psu'"},
        "size": {"fpc": "'size'"},
    }.items()
}

PARQUET = {
    "parquet noise": Hostile(csv_file(noise(), name="survey.parquet"), "survey.parquet"),
    "parquet is csv": Hostile(csv_file(PLAIN, name="survey.parquet"), "survey.parquet"),
    "parquet empty": Hostile(csv_file("", name="survey.parquet"), "survey.parquet"),
    "parquet magic only": Hostile(csv_file("PAR1PAR1", name="survey.parquet"), "survey.parquet"),
    "parquet footer longer than the file": Hostile(
        csv_file(b"PAR1" + noise() + b"\xff\xff\xff\x7fPAR1", name="survey.parquet"), "survey.parquet"
    ),
    "parquet nan as category": Hostile(parquet_column("region", [1.0, 2.0, 3.0, 1.0, 2.0, float("nan")]), REGION),
    "parquet fractions as category": Hostile(parquet_column("region", [9137313.77] * 6), REGION),
    "parquet numbers beyond reason": Hostile(parquet_column("salary", [1e61] * 6), SALARY),
    "parquet truncated": Hostile(csv_file(lambda: parquet_bytes()[:-10], name="survey.parquet"), "survey.parquet"),
    "parquet without its middle": Hostile(
        csv_file(lambda: parquet_bytes()[:100] + parquet_bytes()[-300:], name="survey.parquet"), "survey.parquet"
    ),
    "parquet folder empty": Hostile(parquet_folder(), "survey"),
    "parquet folder of other types": Hostile(
        parquet_folder(a=lambda frame: frame, b=lambda frame: frame.cast({"salary": pl.String})), "survey"
    ),
    "parquet folder of other columns": Hostile(
        parquet_folder(a=lambda frame: frame, b=lambda frame: frame.rename({"salary": "CANARYx7f3"})), "survey"
    ),
    "parquet folder without the column": Hostile(parquet_folder(a=lambda frame: frame.drop("region")), REGION),
    "parquet without records": Hostile(parquet_folder(a=lambda frame: frame.clear()), "no records"),
}

STATISTICAL = {
    **{
        f"{ending} noise": Hostile(csv_file(noise(), name=f"survey.{ending}"), f"survey.{ending}")
        for ending in ("sav", "zsav", "dta", "sas7bdat", "xpt")
    },
    **{
        f"{ending} zeros": Hostile(csv_file(bytes(5000), name=f"survey.{ending}"), f"survey.{ending}")
        for ending in ("sav", "zsav", "dta", "sas7bdat", "xpt")
    },
    "sav truncated": Hostile(statistical_file("sav", lambda content: content[:-20]), "survey.sav"),
    "dta truncated": Hostile(statistical_file("dta", lambda content: content[: len(content) // 2]), "survey.dta"),
    "dta called sav": Hostile(csv_file(lambda: statistical_bytes("dta"), name="survey.sav"), "survey.sav"),
    "sav called dta": Hostile(csv_file(lambda: statistical_bytes("sav"), name="survey.dta"), "survey.dta"),
    "sav label All": Hostile(
        csv_file(lambda: statistical_bytes("sav", {1: "All", 2: "South"}), name="survey.sav"), REGION
    ),
}

PATHS = {
    "data missing": Hostile(spec(data="'elsewhere.csv'"), "elsewhere.csv"),
    "data is a folder without Parquet": Hostile(special_file(Path.mkdir), DATA),
    "data is a pipe": Hostile(special_file(os.mkfifo), DATA),
    "data is endless zeros": Hostile(special_file(lambda path: path.symlink_to("/dev/zero")), DATA),
    "data is the null device": Hostile(special_file(lambda path: path.symlink_to("/dev/null")), DATA),
    "data is a link to itself": Hostile(special_file(lambda path: path.symlink_to(path)), DATA),
    "data is a dangling link": Hostile(special_file(lambda path: path.symlink_to("/nowhere.csv")), DATA),
    "data path with nul": Hostile(spec(data='"survey\\u0000.csv"')),
    "data path with a line break": Hostile(spec(data='"sur\\nvey.csv"')),
    "data path with an escape sequence": Hostile(spec(data='"\\u001b[31msurvey.csv"')),
    "data path of a hundred thousand characters": Hostile(spec(data=f"'{'x' * 100_000}.csv'")),
    "data path below a file": Hostile(spec(data="'survey.csv/survey.csv'"), DATA),
    "data path empty": Hostile(spec(data="''")),
    "data folder with a pipe": Hostile(special_file(lambda path: (path.mkdir(), os.mkfifo(path / "a.parquet"))), DATA),
    "data folder with a link to itself": Hostile(
        special_file(lambda path: (path.mkdir(), (path / "a.parquet").symlink_to(path / "a.parquet"))), DATA
    ),
}

SPEC_FILES = {
    "spec empty": Hostile(spec_file(""), "survey"),
    "spec not utf-8": Hostile(spec_file(spec_text().replace("salary", "salär").encode("latin-1")), NOT_UTF_8),
    "spec utf-16": Hostile(spec_file(spec_text().encode("utf-16")), SPEC),
    "spec with nul": Hostile(spec_file(spec_text() + "\0"), SPEC),
    "spec noise": Hostile(spec_file(noise()), SPEC),
    "spec is the data": Hostile(spec_file(PLAIN), SPEC),
    "spec two megabytes": Hostile(spec_file(lambda: spec_text() + "#" * 2_000_000), SPEC),
    "spec is a folder": Hostile(lambda folder: (folder / "spec.toml").mkdir(), SPEC),
    "spec missing": Hostile(lambda folder: None, SPEC),
    "spec is endless zeros": Hostile(lambda folder: (folder / "spec.toml").symlink_to("/dev/zero"), SPEC),
    "spec is a link to itself": Hostile(lambda folder: (folder / "spec.toml").symlink_to("spec.toml"), SPEC),
    "spec nested arrays": Hostile(spec_file("a = " + "[" * 100_000), SPEC),
    "spec nested tables": Hostile(spec_file("a = " + "{a = " * 100_000), SPEC),
    "spec key of a hundred thousand parts": Hostile(spec(".".join(["a"] * 100_000) + " = 1")),
    "spec table of a hundred thousand parts": Hostile(spec("[" + ".".join(["a"] * 100_000) + "]")),
    "spec number of ten thousand digits": Hostile(spec("population_total = " + "9" * 10_000), SPEC),
    "spec fifty thousand unknown keys": Hostile(spec("\n".join(f"k{i} = 1" for i in range(50_000))), SPEC),
    "spec unknown key with a line break": Hostile(spec('"a\\nb" = 1'), SPEC),
    "spec unknown key with an escape sequence": Hostile(spec('"a\\u001b[31mb" = 1'), SPEC),
    "spec unpaired surrogate": Hostile(spec('where = "\\ud800"'), SPEC),
}

SPEC_SETTINGS = {
    "duplicate key": Hostile(spec("outcome = 'salary'"), SPEC),
    "duplicate table": Hostile(spec("[survey]"), SPEC),
    "unknown section": Hostile(spec("[survye]"), "survye"),
    "unknown key in survey": Hostile(spec("wieght = 1"), "survey.wieght"),
    "unknown key in privacy": Hostile(
        spec("[privacy]\nguarantee = 'asymptotic'\nepsilon = 1\ndelta = 1"), "privacy.delta"
    ),
    "unknown key in estimation": Hostile(spec("[estimation]\nreplicate = 10"), "estimation.replicate"),
    "unknown key in tables": Hostile(spec("[[tables]]\nby = []\ncaption = 'CANARYx7f3'"), "caption"),
    "survey is a number": Hostile(spec_file("survey = 9137313.77"), "survey"),
    "tables is one table": Hostile(spec("[tables]\nby = ['region']"), "tables"),
    "outcome missing": Hostile(spec(outcome=None), "survey.outcome"),
    "weight missing": Hostile(spec(weight=None), "survey.weight"),
    "data is a number": Hostile(spec(data="9137313.77"), "survey.data"),
    "data is a date": Hostile(spec(data="1979-05-27"), "survey.data"),
    "outcome is a number": Hostile(spec(outcome="9137313.77"), "survey.outcome"),
    "outcome is empty": Hostile(spec(outcome="''"), "survey.outcome"),
    "outcome is a long text": Hostile(spec(outcome=f"'{'CANARYx7f3' * 100}'"), "survey.outcome"),
    "outcome is the weight": Hostile(spec(outcome="'weight'"), "weight"),
    "outcome is public": Hostile(spec(public="['salary']"), "public"),
    "weight is the stratum": Hostile(spec(strata="'weight'"), "strata"),
    "stratum is the cluster": Hostile(spec(strata="'psu'", cluster="'psu'"), "cluster"),
    "public is a number": Hostile(spec(public="3"), "survey.public"),
    "public is empty": Hostile(spec(public="[]"), "survey.public"),
    "public repeats a column": Hostile(spec(public="['region', 'region']"), "public"),
    "public is unknown": Hostile(spec(public="['regoin']"), "regoin"),
    "transform is unknown": Hostile(spec(transform="'CANARYx7f3'"), "survey.transform"),
    "where is a number": Hostile(spec(where="9137313.77"), "survey.where"),
    "labels is a text": Hostile(spec(labels="'CANARYx7f3'"), "survey.labels"),
    "labels for a column that is not public": Hostile(spec("[survey.labels.stratum]\nb = 'B'"), "labels.stratum"),
    "labels lack a code": Hostile(spec("[survey.labels.region]\nNorth = 'N'\nSouth = 'S'"), REGION),
    "labels repeat": Hostile(spec("[survey.labels.region]\nNorth = 'N'\nSouth = 'N'"), "labels.region"),
    "labels of control characters": Hostile(
        spec('[survey.labels.region]\nNorth = "\\u001b[31m"\nSouth = "S"\nCANARYx7f3 = "C"'), REGION
    ),
    "population_total negative": Hostile(spec(population_total="-9137313.77"), "survey.population_total"),
    "population_total nan": Hostile(spec(population_total="nan"), "survey.population_total"),
    "population_total of four hundred digits": Hostile(spec(population_total="9" * 400), "survey.population_total"),
    **{
        f"epsilon {name}": Hostile(spec(f"[privacy]\nguarantee = 'asymptotic'\nepsilon = {text}"), "privacy.epsilon")
        for name, text in {
            "zero": "0",
            "negative": "-9137313.77",
            "infinite": "inf",
            "nan": "nan",
            "huge": "1e300",
            "text": "'CANARYx7f3'",
            "true": "true",
        }.items()
    },
    **{
        f"datasets {name}": Hostile(
            spec(f"[privacy]\nguarantee = 'asymptotic'\nepsilon = 1\ndatasets = {text}"), "privacy.datasets"
        )
        for name, text in {"zero": "0", "fraction": "1.5", "billion": "1_000_000_000", "true": "true"}.items()
    },
    "mechanism unknown": Hostile(
        spec("[privacy]\nguarantee = 'asymptotic'\nepsilon = 1\nmechanism = 'CANARYx7f3'"), "privacy.mechanism"
    ),
    "confidence nan": Hostile(spec("[estimation]\nconfidence = nan"), "estimation.confidence"),
    "confidence one": Hostile(spec("[estimation]\nconfidence = 1.0"), "estimation.confidence"),
    "replicates huge": Hostile(spec("[estimation]\nreplicates = 1_000_000_000"), "estimation.replicates"),
    "thresholds descend": Hostile(spec("[estimation]\ncv_thresholds = [0.3, 0.1]"), "cv_thresholds"),
    "thresholds nan": Hostile(spec("[estimation]\ncv_thresholds = [nan, nan]"), "cv_thresholds"),
    "three thresholds": Hostile(spec("[estimation]\ncv_thresholds = [0.1, 0.2, 0.3]"), "cv_thresholds"),
    "by is not public": Hostile(spec("[[tables]]\nby = ['stratum']"), "stratum"),
    "by repeats a column": Hostile(spec("[[tables]]\nby = ['region', 'region']"), "by"),
    "by of a thousand columns": Hostile(spec(f"[[tables]]\nby = {['region'] * 1000}"), "by"),
    "statistics empty": Hostile(spec("[[tables]]\nby = ['region']\nstatistics = []"), "statistics"),
    "statistics unknown": Hostile(spec("[[tables]]\nby = ['region']\nstatistics = ['CANARYx7f3']"), "statistics"),
    "ten thousand equal tables": Hostile(spec("[[tables]]\nby = ['region']\n" * 10_000), "tables"),
    "table name of control characters": Hostile(spec('[[tables]]\nby = ["region"]\nname = "a\\u0000\\u001b[31m"')),
    **{
        f"public column called {name}": Hostile(
            csv_body(lambda text, name=name: text.replace("region", name), public=f"['{name}']"), name
        )
        for name in ("table", "statistic", "estimate", "se", "df", "lower", "upper", "cv", "n", "reliability", "source")
    },
}

CONDITIONS = {
    "where syntax error": Hostile(where("salary >"), WHERE),
    "where blank": Hostile(where(" "), WHERE),
    "where trailing words": Hostile(where("salary > 0 garbage"), WHERE),
    "where unknown column": Hostile(where("slary > 0"), "slary"),
    "where number against text": Hostile(where("region > 1"), WHERE),
    "where text against number": Hostile(where("salary = 'CANARYx7f3'"), WHERE),
    "where subquery": Hostile(where("salary > (select max(salary) from self)"), WHERE),
    "where two statements": Hostile(where("salary > 0; drop table self"), WHERE),
    "where a whole query": Hostile(where("select * from self"), WHERE),
    "where reads a file": Hostile(where("read_csv('/etc/passwd') = 1"), WHERE),
    "where not a condition": Hostile(where("salary + 1"), WHERE),
    "where a wildcard": Hostile(where("*"), WHERE),
    "where nested brackets": Hostile(where("(" * 95 + "1=1" + ")" * 95), WHERE),
    "where hundred thousand brackets": Hostile(where("(" * 100_000 + "1=1" + ")" * 100_000), WHERE),
    "where oversized pattern": Hostile(where("region ~ '(x{1000}){1000}'"), WHERE),
    "where broken pattern": Hostile(where("region ~ '('"), WHERE),
    "where backtracking pattern": Hostile(where("region ~ '^(([A-Za-z0-9])+)+!$'"), WHERE),
    "where on the whole survey": Hostile(where("max(salary) > 5"), WHERE),
    "where with a comment": Hostile(where("salary > 0 -- everybody"), WHERE),
    "where modulo zero": Hostile(where("salary % 0 = 0"), WHERE),
    "where leaves nothing": Hostile(where("salary < 0"), WHERE),
    "where is never true": Hostile(where("salary = null"), WHERE),
    "where a cast that fails": Hostile(where("cast(region as int) > 0"), WHERE),
    "where panics": Hostile(where("split_part(region, '-', -9223372036854775808) = 'a'"), WHERE),
}

REFUSED = (
    CSV_FILES
    | NUMBERS
    | RECORDS
    | PARQUET
    | PARQUET_TYPES
    | STATISTICAL
    | PATHS
    | SPEC_FILES
    | SPEC_SETTINGS
    | CONDITIONS
)


# --- running svysynth ---


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str
    seconds: float
    megabytes: float = 0


class OutOfTime(BaseException):
    """Not an Exception, so that nothing under test can catch it."""


def run_here(arguments, capfd):
    """Run the command line in this process, capturing what native libraries print too."""

    def stop(*_):
        raise OutOfTime

    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(PATIENCE)
    started = time.process_time()
    try:
        with pytest.raises(SystemExit) as leaving:
            main([str(argument) for argument in arguments])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    printed = capfd.readouterr()
    return Outcome(leaving.value.code, printed.out, printed.err, time.process_time() - started)


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))


def run_apart(arguments, prepare=limit_memory):
    """Run the command line in a process of its own, and measure its memory and processor time.

    A small process in between starts it: the peak of a child counts what its parent held when it was started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.NamedTemporaryFile() as peak:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", STARTER, peak.name, sys.executable, "-m", "svysynth", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=prepare,
            start_new_session=True,
        )
        killer = threading.Timer(PATIENCE, os.killpg, [process.pid, signal.SIGKILL])
        killer.start()
        process.wait()
        killer.cancel()
        out.seek(0)
        err.seek(0)
        printed = out.read().decode(), err.read().decode()
        megabytes, seconds = map(float, (peak.read() or b"inf inf").split())
    return Outcome(process.returncode, *printed, seconds, megabytes)


STARTER = """
import os, sys
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
with open(sys.argv[1], "w") as peak:
    peak.write(f"{usage.ru_maxrss / 1024} {usage.ru_utime + usage.ru_stime}")
sys.exit(os.waitstatus_to_exitcode(status))
"""


def contents(folder):
    return sorted(folder.rglob("*"))


def assert_refused(outcome, names=""):
    """One printable line, of reasonable length, that names the place and no value."""
    assert outcome.code == 1, outcome.err[-500:]
    message = outcome.err.removesuffix("\n")
    assert message.startswith("Error: ")
    assert message.isprintable(), "more than one line, or control characters"
    assert len(message) <= LONGEST_MESSAGE
    assert names in message
    assert not any(canary in outcome.out + outcome.err for canary in CANARIES)
    assert outcome.seconds < SECONDS


def refuse(case, folder, run):
    case.build(folder)
    before = contents(folder)
    assert_refused(run(["tables", folder / "spec.toml", "--out", folder / "out.csv"]), case.names)
    assert contents(folder) == before


# --- refusals ---


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_one_error(name, tmp_path, capfd):
    refuse(REFUSED[name], tmp_path, lambda arguments: run_here(arguments, capfd))


ON_THE_COMMAND_LINE = ["csv long row", "parquet list as region", "data is a pipe", "spec noise"]
"""A few of those above, to see that a process of its own ends like this one would; the bombs below are others."""


@pytest.mark.parametrize("name", ON_THE_COMMAND_LINE)
def test_refused_in_a_process_of_its_own(name, tmp_path):
    refuse(REFUSED[name], tmp_path, run_apart)


def test_every_command_refuses_alike(tmp_path, capfd):
    REFUSED["csv long row"].build(tmp_path)
    assert_refused(run_here(["check", tmp_path / "spec.toml"], capfd), DATA)
    assert_refused(run_here(["init", tmp_path / "survey.csv", "--out", tmp_path / "draft.toml"], capfd), DATA)
    assert not (tmp_path / "draft.toml").exists()


@pytest.mark.parametrize("arguments", [["tables"], ["tables", "spec.toml", "--seed", "-1"], ["tabulate"]])
def test_usage_errors_leave_with_two(arguments, capfd):
    outcome = run_here(arguments, capfd)
    assert outcome.code == 2
    assert "Usage:" in outcome.err
    assert "Traceback" not in outcome.err


def drop_file_privileges():
    """Let permissions hold for the superuser too: drop CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH before exec."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


@pytest.mark.parametrize("name", ["survey.csv", "spec.toml"])
def test_a_file_without_permission(name, tmp_path):
    spec()(tmp_path)
    (tmp_path / name).chmod(0)
    assert_refused(run_apart(["check", tmp_path / "spec.toml"], prepare=drop_file_privileges), name)


# --- bombs: small files and short conditions that ask for a great deal of memory or time ---


def linked_parquet(folder):
    """Six thousand names for one file of ten million constant records: more than polars can count."""
    (folder / "survey").mkdir()
    first = folder / "survey" / "0.parquet"
    constants = {"salary": 9137313.77, "weight": 1.0, "region": "CANARYx7f3"}
    pl.select(pl.repeat(value, 10_000_000).alias(name) for name, value in constants.items()).write_parquet(first)
    for number in range(1, 6000):
        os.link(first, folder / "survey" / f"{number}.parquet")
    write(folder / "spec.toml", spec_text(data="'survey'"))


def parquet_of_one_long_text(folder):
    """Four thousand times the same hundred kilobytes of text, which Parquet stores once."""
    constants = {"salary": "CANARYx7f3" * 10_000, "weight": 1.0, "region": "North"}
    frame = pl.select(pl.repeat(value, 4_000).alias(name) for name, value in constants.items())
    frame.write_parquet(folder / "survey.parquet")
    write(folder / "spec.toml", spec_text(data="'survey.parquet'"))


def stata_of_many_records(content):
    """A header that announces a hundred million records, and six records."""
    return patched(content, b"<N>", 3, struct.pack("<q", 100_000_000))


def spss_with_an_absurd_width(content):
    """A variable that claims to be text of eight million characters."""
    return patched(content, b"REGION  ", -20, struct.pack("<i", 0x00800000))


def spec_pipe(folder):
    os.mkfifo(folder / "spec.toml")


BOMBS = {
    "gzip called csv": Hostile(csv_file(gzip_bomb), DATA),
    "gzip called csv.gz": Hostile(csv_file(gzip_bomb, name="survey.csv.gz"), "survey.csv.gz"),
    "parquet of sixty billion records": Hostile(linked_parquet, "survey"),
    "parquet of one long text": Hostile(parquet_of_one_long_text, SALARY),
    "dta of a hundred million records": Hostile(statistical_file("dta", stata_of_many_records), "survey.dta"),
    "sav with an absurd width": Hostile(statistical_file("sav", spss_with_an_absurd_width), "survey.sav"),
    "where pads to a hundred billion characters": Hostile(where("lpad(region, 100000000000) = 'a'"), WHERE),
    "where pads to a billion characters": Hostile(where("lpad(region, 1000000000) = 'a'"), WHERE),
    "spec is a pipe that nobody writes to": Hostile(spec_pipe, SPEC),
}


def defuse(arguments):
    outcome = run_apart(arguments)
    assert outcome.megabytes < MEGABYTES
    return outcome


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_little_memory(name, tmp_path):
    refuse(BOMBS[name], tmp_path, defuse)


def test_ten_thousand_tables_in_time(tmp_path, capfd):
    tables = "".join(f"[[tables]]\nby = ['region']\nname = 't{number}'\n" for number in range(10_000))
    spec(tables)(tmp_path)
    outcome = run_here(["tables", tmp_path / "spec.toml", "--out", tmp_path / "out.csv"], capfd)
    assert outcome.code in (0, 1)
    assert (tmp_path / "out.csv").exists() == (outcome.code == 0)


def test_proportions_of_too_many_cells(tmp_path, capfd):
    """40,000 records in as many cells of two columns."""
    records = range(40_000)
    columns = {
        "salary": records,
        "weight": [1 + record % 7 for record in records],
        "region": [f"r{record % 200}" for record in records],
        "field": [f"f{record // 200}" for record in records],
    }
    table = "[[tables]]\nby = ['region', 'field']\nstatistics = ['proportion']"
    csv_file(csv_text(columns), tail=table, public="['region', 'field']", transform="'identity'")(tmp_path)
    assert_refused(
        run_here(["tables", tmp_path / "spec.toml", "--out", tmp_path / "out.csv"], capfd), "region by field"
    )


# --- odd but legal inputs ---


def tables_of(folder, capfd):
    outcome = run_here(["tables", folder / "spec.toml", "--out", folder / "out.parquet"], capfd)
    assert (outcome.code, outcome.err) == (0, "")
    return pl.read_parquet(folder / "out.parquet")


@pytest.fixture
def plain_tables(tmp_path, capfd):
    folder = tmp_path / "plain"
    folder.mkdir()
    spec()(folder)
    return tables_of(folder, capfd)


def with_column(header):
    """The usual survey and one more column, with a header of its own."""
    return csv_text(SURVEY | {"EXTRA": ["1"] * 6}).replace("EXTRA", header)


def in_folder(name):
    def build(folder):
        (folder / name).mkdir()
        typed_survey().write_parquet(folder / name / "part.parquet")
        write(folder / "spec.toml", spec_text(data=f"'{name}'"))

    return build


SEMICOLONS = {name: [text.replace(".", ",") for text in values] for name, values in SURVEY.items()}

LEGAL = {
    "byte order mark": csv_body(lambda text: "\ufeff" + text),
    "byte order mark and quotes": csv_body(lambda text: "\ufeff" + text.replace("salary", '"salary"')),
    "crlf": csv_file(csv_text(line_end="\r\n")),
    "no line end": csv_body(lambda text: text.rstrip("\n")),
    "trailing blank lines": csv_body(lambda text: text + "\n\n\n"),
    "semicolons and decimal commas": csv_file(csv_text(SEMICOLONS, separator=";")),
    "tabs": csv_file(csv_text(separator="\t"), name="survey.tsv"),
    "bars": csv_file(csv_text(separator="|")),
    "ending in capitals": csv_file(PLAIN, name="SURVEY.CSV"),
    "name with wildcards": csv_file(PLAIN, name="[a]*?.csv"),
    "name in another script": csv_file(PLAIN, name="調査 📊.csv"),
    "folder with wildcards": in_folder("[a]*? {b}"),
    "blanks around numbers": csv_file(csv_text(SURVEY | {"salary": [f"  {text} " for text in SURVEY["salary"]]})),
    "blanks around labels": csv_file(csv_text(SURVEY | {"region": [f" {text}  " for text in SURVEY["region"]]})),
    "quoted everywhere": csv_body(
        lambda text: "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in text.split())
    ),
    "blank header": csv_file(with_column("")),
    "header with a comma": csv_file(with_column('"a, b"')),
    "header with separators of other kinds": csv_file(with_column('"a;;;;;;;;;;b"')),
    "header with quotes": csv_file(with_column('"a ""b"" c"')),
    "header with a line break": csv_file(with_column('"a\nb"')),
    "header in another script": csv_file(with_column("給与")),
    "headers that differ in case": csv_file(with_column("Salary")),
    "headers that differ in blanks": csv_file(with_column(" salary")),
    "first header is PK": csv_file(csv_text({"PK": range(6)} | SURVEY)),
    "quoted line break in a column not used": csv_file(csv_text(SURVEY | {"note": ["a\nb", *"cdefg"]})),
    "condition that is always true": where("1 = 1"),
    "condition that divides by zero": where("salary / 0 > 1"),
    "spec with byte order mark and crlf": spec_file("\ufeff" + spec_text().replace("\n", "\r\n")),
}


@pytest.mark.parametrize("name", LEGAL)
def test_odd_but_legal(name, tmp_path, plain_tables, capfd):
    LEGAL[name](tmp_path)
    assert_frame_equal(tables_of(tmp_path, capfd), plain_tables)


def test_a_public_column_with_quotes_in_its_name(tmp_path, plain_tables, capfd):
    csv_body(lambda text: text.replace("region", '"a ""b"" c"'), public="""['a "b" c']""")(tmp_path)
    assert tables_of(tmp_path, capfd)["estimate"].equals(plain_tables["estimate"])


def test_one_record_and_a_condition(tmp_path, capfd):
    certainty = "[estimation]\nlonely = 'certainty'"
    csv_file("salary,weight,region\n100,2,North\n", where="'salary > 0'", tail=certainty)(tmp_path)
    total = tables_of(tmp_path, capfd).filter(statistic="mean", region="All")
    assert total["estimate"].item() == 100


def test_tiny_numbers_make_no_infinities(tmp_path, capfd):
    csv_file(
        "salary,weight,region\n1,1,North\n-1,1,North\n1e-310,1,North\n3,1,South\n4,1,South\n", transform="'identity'"
    )(tmp_path)
    numbers = tables_of(tmp_path, capfd).select(pl.col(pl.Float64))
    assert numbers.select(pl.all().drop_nulls().is_finite().all()).row(0) == (True,) * numbers.width


def test_labels_in_the_file_that_coincide(tmp_path, capfd):
    """Equal labels get their codes behind them, even where another label looks like that already."""
    labels = {1: "North", 2: "North", 3: "North (1)"}
    csv_file(statistical_bytes("sav", labels), name="survey.sav")(tmp_path)
    means = tables_of(tmp_path, capfd).filter(statistic="mean")
    assert means["region"].n_unique() == 4
    assert means["n"].to_list() == [6, 2, 2, 2]


@pytest.mark.parametrize("name", ["mean", "count", "mean_se"])
def test_public_columns_called_like_a_statistic(name, tmp_path, capfd):
    csv_body(lambda text: text.replace("region", name), public=f"['{name}']")(tmp_path)
    outcome = run_here(["tables", tmp_path / "spec.toml"], capfd)
    assert outcome.code == 0
    assert "North" in outcome.out


# --- labels that would do something if they were not text ---

LABELS = [
    "=cmd|' /C calc'!A1",
    "=1+1",
    "+SUM(1,2)",
    "@SUM(A1)",
    "-2+3",
    "-5",
    "+1.5",
    "<script>alert(1)</script>",
    "[red]danger[/red]",
    "[link=https://example.org]here[/link]",
    "[/]",
    ":boom:",
    "https://example.org",
    "{{7*7}}",
    "%s%n",
    'a "quoted", label; with\\marks',
    "1e5",
    "Île-de-France",
]
NEUTRALISED = {"=cmd|' /C calc'!A1", "=1+1", "+SUM(1,2)", "@SUM(A1)", "-2+3"}


@pytest.fixture
def labelled(tmp_path):
    """A survey with two records of each label."""
    labels = LABELS * 2
    numbers = {"salary": range(1, len(labels) + 1), "weight": [1] * len(labels)}
    csv_file(csv_text(numbers | {"region": labels}))(tmp_path)
    return tmp_path


def test_labels_in_csv(labelled, capfd):
    run_here(["tables", labelled / "spec.toml", "--out", labelled / "out.csv"], capfd)
    with (labelled / "out.csv").open(newline="", encoding="utf-8") as file:
        written = {row["region"] for row in csv.DictReader(file)}
    assert written == {"All"} | {f"'{label}" if label in NEUTRALISED else label for label in LABELS}


def test_labels_in_a_workbook(labelled, capfd):
    run_here(["tables", labelled / "spec.toml", "--out", labelled / "out.xlsx"], capfd)
    workbook = openpyxl.load_workbook(labelled / "out.xlsx")
    cells = [cell for sheet in workbook for row in sheet.iter_rows() for cell in row]
    assert {cell.value for cell in cells} >= set(LABELS)
    assert "f" not in {cell.data_type for cell in cells}
    assert not any(cell.hyperlink for cell in cells)


def test_labels_in_the_terminal(labelled, capfd):
    outcome = run_here(["tables", labelled / "spec.toml"], capfd)
    assert "\x1b" not in outcome.out
    assert all(label in outcome.out for label in LABELS)


def test_column_names_are_no_formulas_either(tmp_path, capfd):
    csv_body(lambda text: text.replace("region", "=1+1"), public="['=1+1']")(tmp_path)
    run_here(["tables", tmp_path / "spec.toml", "--out", tmp_path / "out.csv"], capfd)
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.reader(file))[2] == "'=1+1"


# --- what is written ---


@pytest.mark.parametrize("out", ["survey.csv", "./survey.csv", "link.csv"])
def test_the_data_are_not_overwritten(out, tmp_path, capfd):
    spec()(tmp_path)
    (tmp_path / "link.csv").symlink_to("survey.csv")
    outcome = run_here(["tables", tmp_path / "spec.toml", "--out", tmp_path / out], capfd)
    assert (tmp_path / "survey.csv").read_text() == PLAIN
    assert_refused(outcome, Path(out).name)


def test_a_draft_does_not_overwrite_the_data(tmp_path, capfd):
    spec()(tmp_path)
    data = tmp_path / "survey.csv"
    assert_refused(run_here(["init", data, "--out", data, "--force"], capfd), "survey.csv")
    assert data.read_text() == PLAIN


@pytest.mark.parametrize("out", ["missing/out.csv", "out.docx", "out", "folder.csv", "spec.toml/out.csv"])
def test_output_that_cannot_be_written(out, tmp_path, capfd):
    spec()(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    before = contents(tmp_path)
    assert_refused(run_here(["tables", tmp_path / "spec.toml", "--out", tmp_path / out], capfd), Path(out).name)
    assert contents(tmp_path) == before


# --- drafts ---


@pytest.mark.parametrize("first", ["CANARYx7f3,9137313.77,1", "x,9137313.77,CANARYx7f3"])
def test_a_file_without_header_is_not_drafted(first, tmp_path, capfd):
    """Its first record would be taken for column names, and copied into the draft and onto the screen."""
    write(tmp_path / "survey.csv", f"{first}\na,5,2\nb,6,3\na,7,4\n")
    assert_refused(run_here(["init", tmp_path / "survey.csv"], capfd), DATA)
    assert not (tmp_path / "survey.toml").exists()


def test_a_draft_holds_no_value(tmp_path, capfd):
    write(tmp_path / "survey.csv", PLAIN)
    outcome = run_here(["init", tmp_path / "survey.csv"], capfd)
    draft = (tmp_path / "survey.toml").read_text(encoding="utf-8")
    assert outcome.code == 0
    assert not any(canary in outcome.out + draft for canary in CANARIES)


@pytest.mark.parametrize("header", ["\x1b[31mregion", '"re\ngion"', "re\u202egion"])
def test_a_draft_of_odd_headers(header, tmp_path, capfd):
    """The draft has the name as it is, in valid TOML; what is printed leaves the terminal alone."""
    name = header.strip('"')
    write(tmp_path / "survey.csv", PLAIN.replace("region", header))
    outcome = run_here(["init", tmp_path / "survey.csv"], capfd)
    draft = (tmp_path / "survey.toml").read_text(encoding="utf-8")
    assert name in tomllib.loads(draft)["survey"]["public"] or json.dumps(name, ensure_ascii=False) in draft
    assert name not in outcome.out


def test_a_draft_of_the_folder_one_is_in(tmp_path, capfd, monkeypatch):
    """The folder `.` gives the draft no name: it is found, or asked for."""
    typed_survey().write_parquet(tmp_path / "part.parquet")
    monkeypatch.chdir(tmp_path)
    outcome = run_here(["init", "."], capfd)
    assert outcome.code in (0, 1), outcome.err
    assert run_here(["init", ".", "--out", "draft.toml"], capfd).code == 0


def test_a_file_name_that_is_not_unicode(tmp_path):
    """A draft cannot name such a file."""
    data = tmp_path / os.fsdecode(b"\xff.csv")
    write(data, PLAIN)
    before = contents(tmp_path)
    assert_refused(run_apart(["init", data]))
    assert contents(tmp_path) == before
