"""All that is public besides the synthetic values is the same for neighbouring surveys: files, fields, words, order.

Two surveys that differ in one respondent are released with the same seed. What may differ is masked by name, with the
reason; everything else must be equal to the letter.
"""

import io
import json
import re
import zipfile
from contextlib import suppress

import numpy as np
import openpyxl
import polars as pl
import pytest

from neighbours import ANSWERS, TRIED, make_house
from repeatable import repeat
from svysynth.cli.main import main
from svysynth.mechanisms.noisy_tables.mechanism import NoisyTables
from svysynth.publishing import public_folder as publish
from svysynth.publishing import release_folder
from svysynth.publishing.report.terminal import INTERNAL
from svysynth.survey import large_files

VALUES = {"estimate", "se", "se_sampling", "se_privacy", "df", "lower", "upper", "cv", "reliability"}
"""Columns of a table that are made from synthetic or noisy numbers; all others must be the same."""
FROM_VALUES = {
    "files": "checksums of files that hold synthetic values",
    "ledger": "the ledger's own random name, and the hash chain with its times",
    "created": "the day, which may change between two releases",
}
"""Fields of the manifest that are left out, and why."""


def release(folder, mechanism, answers, capsys):
    """What a release that repeats published and printed, masked."""
    spec = make_house(folder, mechanism, answers)
    with suppress(SystemExit), pytest.MonkeyPatch.context() as patch:
        repeat(patch, 3)
        main(["release", str(spec), "--out", str(folder / "out")])
    printed = capsys.readouterr()
    assert (folder / "out/public").is_dir(), printed.err
    said, _, verdict = printed.out.replace(str(folder), "").partition(INTERNAL)
    assert "Verdict: " in verdict  # which looks at the confidential data, and says so
    return seen(folder / "out/public") | {"printed": said}


def seen(public):
    """Every public file with its synthetic values masked."""
    found = {plain_name(path): MASKS[kind_of(path)](path) for path in sorted(public.iterdir())}
    modes = {
        plain_name(path): (path.stat().st_mode, path.stat().st_mtime % 86_400) for path in [public, *public.iterdir()]
    }
    return found | {"names": sorted(found), "modes and times": modes}


def kind_of(path):
    return plain_name(path) if plain_name(path) in MASKS else path.suffix


def plain_name(path):
    """A file's name without the stamp of a run with a seed."""
    return path.name.removeprefix("NOT-FOR-RELEASE-")


def manifest(path):
    content = json.loads(path.read_text())
    files = sorted(content["files"])
    return {name: value for name, value in content.items() if name not in FROM_VALUES} | {"names of files": files}


def sums(path):
    return [line.split()[1] for line in path.read_text().splitlines()]


def tables(path):
    """Columns in their order, and all that are not values."""
    frame = pl.read_csv(path)
    return frame.columns, frame.drop([name for name in frame.columns if name in VALUES]).rows()


def microdata(path):
    """Columns and types in their order; ids and public columns row by row."""
    frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    schema = [(name, str(dtype)) for name, dtype in frame.schema.items()]
    return schema, frame.select("id", "region", "sex").rows()


def measurement(path):
    """All but the numbers that were measured with noise, and the scales that follow from them."""
    content = json.loads(path.read_text())
    if "narrow_bands" in content:
        return measurement_of_margins(content)
    for scale in ("outcome_scale", "weight_scale"):
        content.pop(scale)
    content["weighted_sums"].pop("reach")  # which follows from the scales
    for part in (content["histograms"], content["squares"], content["weighted_sums"], *content["sums"]):
        for name in {"outcome", "weight", "values"} & set(part):
            part[name] = np.shape(part[name])
    return content


def measurement_of_margins(content):
    """The same for margins: without noisy numbers, and the wide bands and limits that follow from narrow bands."""
    for part in ("narrow_bands", "sums_of_amounts", "sums_of_weights", "margins"):
        for use in content[part]:
            use["values"] = len(np.shape(use["values"]))
    for answer in content["answers"]:
        answer.pop("wide")
    return content | {"limits": sorted(content["limits"])}


def draws(path):
    """Columns and types in their order, and the cell of every draw."""
    frame = pl.read_parquet(path)
    return frame.schema, frame.select("draw", "region", "sex").rows()


def parquet(path):
    return microdata(path), pl.read_parquet_metadata(path).keys()


def workbook(path):
    """Every cell but the values of tables and marks made from them, which stand right of n and below two headings."""
    book = openpyxl.load_workbook(path)
    cells = {
        (sheet.title, cell.coordinate): cell.value
        for sheet in book
        for row in sheet.iter_rows()
        for cell in row
        if sheet.title == "Notes" or cell.column <= 3 or cell.row <= 2
    }
    shapes = {sheet.title: sheet.dimensions for sheet in book}
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        entries = [(entry.filename, entry.date_time) for entry in archive.infolist()]
        about = [archive.read(name) for name in archive.namelist() if name.startswith("docProps")]
    return cells, shapes, entries, [re.sub(rb"\d{4}-\d\d-\d\dT[\d:]+Z", b"", part) for part in about]


def page(path):
    """The report's words: pictures and numbers in the body of tables are of synthetic values, and so are marks."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"data:[a-z/+]+;base64,[A-Za-z0-9+/=]+", "picture", text)
    text = re.sub(r"<svg.*?</svg>", "picture", text, flags=re.DOTALL)
    text = re.sub(r"<td.*?</td>", "<td>", text, flags=re.DOTALL)
    text = re.sub(r"its hash is [0-9a-f]{64}", "its hash", text)  # of the ledger's entry, which has a time
    return re.sub(r"\d{4}-\d\d-\d\d", "day", text)


MASKS = {
    "manifest.json": manifest,
    "measurement.json": measurement,
    "draws.parquet": draws,
    "SHA256SUMS": sums,
    "tables.csv": tables,
    "tables.xlsx": workbook,
    "report.html": page,
    ".csv": microdata,
    ".parquet": parquet,
}


def differences(folder, mechanism, capsys):
    """What is not the same in two releases of neighbours."""
    one, other = (release(folder / f"{world}", mechanism, ANSWERS[world], capsys) for world in (0, 1))
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


@pytest.mark.parametrize("mechanism", TRIED)
def test_nothing_public_but_synthetic_values_differs_between_neighbours(mechanism, tmp_path, capsys):
    assert differences(tmp_path, mechanism, capsys) == set()
    name = "microdata-1.csv" if mechanism == "fbs asymptotic" else "tables.csv"
    one, other = (next((tmp_path / f"{world}/out/public").glob(f"*{name}")).read_bytes() for world in (0, 1))
    assert one != other  # the two worlds were two


# --- planted bugs ---


def note_of_the_data(monkeypatch):
    """A note tells the sum of the confidential weights."""
    make = NoisyTables.run

    def told(self, survey, *rest):
        made = make(self, survey, *rest)
        object.__setattr__(made, "notes", (f"The weights sum to {survey.weights.sum():.6g}.",))
        return made

    monkeypatch.setattr(NoisyTables, "run", told)


def categories_of_the_data(monkeypatch):
    """A public column is cut at the confidential median."""
    read = large_files.survey_from_file

    def cut(spec):
        survey = read(spec)
        middle = float(np.mean(survey.outcome_values))
        labels = np.where(survey.outcome_values > middle, f"above {middle:.0f}", "below")
        categories = pl.Enum([f"above {middle:.0f}", "below"])
        object.__setattr__(survey, "frame", survey.frame.with_columns(pl.Series("sex", labels, dtype=categories)))
        return survey

    monkeypatch.setattr(large_files, "survey_from_file", cut)


LEAKS = {
    "note of the data": note_of_the_data,
    "categories of the data": categories_of_the_data,
}


@pytest.mark.parametrize("bug", LEAKS)
def test_a_leak_into_a_public_field_is_caught(bug, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(release_folder, "write_internal", lambda *_, **__: None)
    monkeypatch.setattr(publish, "public_page", lambda *_, **__: "")
    LEAKS[bug](monkeypatch)
    assert "manifest.json" in differences(tmp_path, "laplace", capsys)
