"""The privacy boundary: what a release writes, what it never writes, and that it is whole, paid for, or not there."""

import base64
import errno
import io
import json
import math
import os
import pickle
import random
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import zipfile
import zlib
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openpyxl
import polars as pl
import pytest

import svysynth
from places import importing
from repeatable import repeat, repeatable
from svysynth import SurveyError, pipeline
from svysynth.cli.main import main
from svysynth.core.hidden_folders import in_hiding
from svysynth.core.spec.whole import load_spec
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.pseudo_posterior import mechanism as pseudo_posterior
from svysynth.privacy import payment
from svysynth.privacy.guarantee import additive, no_guarantee
from svysynth.privacy.ledger import entries, open_budget, show
from svysynth.privacy.release import Release, microdata
from svysynth.publishing import internal_folder as internal
from svysynth.publishing import public_folder as publish
from svysynth.publishing import release_folder
from svysynth.publishing.verification import verify_release
from svysynth.survey import large_files
from svysynth.survey.survey import survey_from_file

PACKAGE = Path(svysynth.__file__).parent
RECORDS = 300
SEXES, REGIONS = ("F", "M"), ("east", "north", "south")
SPEC = """
[survey]
data = "people-V8K2.csv"
outcome = "salary"
weight = "wt"
strata = "region"
public = ["region", "sex"]
population_total = 5000
where = "status = 'kept-QZ7W'"
universe = ["status"]

[privacy]
guarantee = "asymptotic"
mechanism = "fbp"
epsilon = 12.0
datasets = 2
draws = 400
correction = false
budget = "people"
ledger = "../books-M4T7/ledger.sqlite"

[[tables]]
by = ["region", "sex"]

[[tables]]
name = "money"
by = ["sex"]
statistics = ["total", "proportion"]
"""
LAPLACE = (
    ('guarantee = "asymptotic"\nmechanism = "fbp"', 'guarantee = "global"\nmechanism = "laplace"'),
    ("[[tables]]", "[privacy.bounds]\noutcome = [1000.0, 200000.0]\nweight = [0.0, 100.0]\n\n[[tables]]"),
)
PLANTED = {"salary": 73219.4375, "wt": 91.40625, "salary of a record left out": 88123.8125}
WORDS = ("Canary", "gone-QZ7W", "KX81", "vault-J3X9", "people-V8K2", "books-M4T7")
"""Of a column that is not public, of records left out, of the clusters, and the paths of data and ledger."""
CODES = {"survey": 1, "memory": 1, "disk": 1, "interrupt": 130, "value": 70, "terminate": 143}


def make_house(folder, text=SPEC):
    """A confidential survey with canaries in it, its spec, and a ledger with much to spend; the spec's path."""
    vault, books = folder / "vault-J3X9", folder / "books-M4T7"
    vault.mkdir()
    books.mkdir()
    confidential_frame().write_csv(vault / "people-V8K2.csv")
    for kind in ("asymptotic", "differential privacy"):
        open_budget(books / "ledger.sqlite", "people", 100_000, kind)
    (vault / "spec.toml").write_text(text)
    return vault / "spec.toml"


def confidential_frame():
    """Sorted by the public cell, so that a row's place in it says something."""
    generator = np.random.default_rng(4)
    size = RECORDS + 20
    region, sex = np.sort(generator.integers(0, 3, size)), generator.integers(0, 2, size)
    order = np.lexsort((sex, region))
    region, sex = region[order], sex[order]
    salary = np.exp(10 + 0.2 * region + 0.3 * sex + 0.4 * generator.standard_normal(size))
    weight = np.exp(2 + 0.3 * region + 0.4 * generator.standard_normal(size))
    kept = np.ones(size, bool)
    kept[generator.permutation(size)[:20]] = False
    salary, weight = np.round(salary * 2**10) / 2**10, np.round(weight * 2**16) / 2**16
    salary[np.flatnonzero(kept)[7]], weight[np.flatnonzero(kept)[11]] = PLANTED["salary"], PLANTED["wt"]
    salary[np.flatnonzero(~kept)[0]] = PLANTED["salary of a record left out"]
    return pl.DataFrame(
        {
            "name": [f"Canary-{number:04d}" for number in range(size)],
            "region": [REGIONS[code] for code in region],
            "sex": [SEXES[code] for code in sex],
            "village": [f"KX81-{code}" for code in generator.integers(0, 12, size)],
            "status": np.where(kept, "kept-QZ7W", "gone-QZ7W"),
            "salary": salary,
            "wt": weight,
        }
    )


@pytest.fixture(scope="module")
def spec_path(tmp_path_factory):
    return make_house(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def ledger(spec_path):
    return load_spec(spec_path).privacy.ledger


@pytest.fixture(autouse=True)
def same_signals(monkeypatch):
    """The command line takes over some signals; give them back. No traceback is asked for."""
    monkeypatch.delenv("SVYSYNTH_DEBUG", raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(*arguments):
    """Run a command in this process; its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code or 0


# --- everything that was ever written ---


class Watch:
    """Sees what Python code writes, and keeps what it deletes. An audit hook stays for ever, so it can be switched."""

    on = None

    def __init__(self):
        self.written, self.deleted, self.folders = set(), {}, []

    def see(self, event, arguments):
        if event == "open" and isinstance(arguments[0], str | os.PathLike) and arguments[2] & os.O_ACCMODE:
            self.written.add(str(Path(arguments[0]).absolute()))
        elif event == "os.remove":
            name, folder = arguments
            start = Path(f"/proc/self/fd/{folder}").readlink() if folder >= 0 else Path.cwd()
            path = start / os.fspath(name)
            if path.is_file():
                self.deleted[str(path)] = path.read_bytes()

    def close_to(self, folder):
        """The deleted files below a folder, by their path in it."""
        return {path: content for path, content in self.deleted.items() if Path(path).is_relative_to(folder)}


sys.addaudithook(lambda event, arguments: Watch.on and Watch.on.see(event, arguments))


@contextmanager
def watching():
    Watch.on = Watch()
    try:
        yield Watch.on
    finally:
        Watch.on = None


# --- the hunt ---


def layers(content):
    """Content, and what is packed in it: members of archives, columns of Parquet, images of pages, pixels of images."""
    yield content
    if content.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            yield repr([archive.comment, *(astuple_of_member(member) for member in archive.infolist())]).encode()
            for name in archive.namelist():
                yield from layers(archive.read(name))
    if content.startswith(b"PAR1"):
        frame = pl.read_parquet(io.BytesIO(content))
        yield repr(pl.read_parquet_metadata(io.BytesIO(content))).encode()
        yield frame.write_csv().encode()
        yield from (column.to_numpy().tobytes() for column in frame if column.dtype.is_numeric())
    if content.startswith(b"\x89PNG"):
        chunks = list(png_chunks(content))
        yield zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
        yield b" ".join(kind + data for kind, data in chunks if kind != b"IDAT")
    for packed in re.findall(rb"data:[\w/+-]+;base64,([A-Za-z0-9+/=]+)", content):
        yield from layers(base64.b64decode(packed))
    for packed in re.findall(rb"data:image/svg\+xml[^;\"',]*,([^\"']+)", content):
        yield from layers(urllib.parse.unquote_to_bytes(packed))


def astuple_of_member(member):
    return (member.filename, member.comment, member.extra, member.date_time)


def png_chunks(content):
    place = 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        yield content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        place += 12 + length


def numbers_in(content):
    """Every number that text shows, with or without marks between thousands."""
    text = content.decode("utf-8", "replace")
    plain = re.findall(r"(?<![\w.])\d+\.?\d*(?:[eE][+-]?\d+)?", text)
    grouped = [token.replace(",", "") for token in re.findall(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?", text)]
    return {float(token) for token in plain + grouped}


def floats_in(content):
    """Every float64 that bytes hold, wherever it starts, of either order."""
    for start in range(min(8, len(content))):
        whole = (len(content) - start) // 8 * 8
        for order in ("<f8", ">f8"):
            yield np.frombuffer(content[start : start + whole], order)


def hunt(files, words=(), numbers=None, digits=7):
    """(file, secret) for every secret that is in the bytes of a file, in its name, or in what is packed in it.

    `files` maps names to bytes; `numbers` maps secrets to values, sought as floats and as decimals that show so many
    significant digits or more.
    """
    names = defaultdict(set)
    for name, value in (numbers or {}).items():
        for places in range(digits - 1, 17):
            names[float(f"{value:.{places}e}")].add(name)
    values = np.array(list(names))
    found = set()
    for name, content in files.items():
        for layer in [name.encode(), *layers(content)]:
            found |= {(name, word) for word in words if word.encode() in layer}
            if names:
                held = [values[np.isin(values, floats)].tolist() for floats in floats_in(layer)]
                seen = (numbers_in(layer) & names.keys()).union(*held)
                found |= {(name, secret) for value in seen for secret in names[value]}
    return found


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def secret_numbers(spec_path):
    """The confidential values, and those that the model sees of them."""
    survey = survey_from_file(load_spec(spec_path).survey)
    salary, weight = survey.outcome_values, survey.weights
    scaled = weight * (len(survey) / weight.sum())
    derived = {"t": np.log(salary), "scaled weight": scaled, "v": np.log(scaled), "salary": salary, "weight": weight}
    each = {f"{name} {place}": value for name, values in derived.items() for place, value in enumerate(values)}
    return each | {"sum of weights": weight.sum(), "weighted total": (weight * salary).sum()}


def internal_numbers(folder):
    """What is known inside the house only: direct estimates, bounds, α, c, Δ, with enough digits to be told apart."""
    direct = pl.read_csv(folder / "direct-tables.csv")
    found = {
        f"{column} {place}": value
        for column in ("estimate", "se", "lower", "upper")
        for place, value in enumerate(direct[column])
        if value is not None
    }
    if (folder / "records.parquet").exists():
        records, trials = pl.read_parquet(folder / "records.parquet"), pl.read_csv(folder / "calibration.csv")
        diagnostics = json.loads((folder / "diagnostics.json").read_text())
        for frame in (records, trials):
            found |= {f"{column.name} {place}": value for column in frame for place, value in enumerate(column)}
        found |= {name: diagnostics[name] for name in ("largest_bound", "unweighted_largest_bound", "r_hat")}
    return {name: value for name, value in found.items() if math.isfinite(value) and len(f"{value:.15g}") > 12}


@pytest.fixture(scope="module")
def watched(spec_path, tmp_path_factory):
    """A release with the whole of it seen: its folder, its messages, and all that was ever written or deleted."""
    outbox, scratch = tmp_path_factory.mktemp("outbox"), tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch, watching() as watch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        patch.setenv("TMPDIR", str(scratch))
        out, err = io.StringIO(), io.StringIO()
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        repeat(patch)
        code = run("release", spec_path, "--out", outbox / "release")
    assert code == 0, err.getvalue()
    return SimpleNamespace(
        folder=outbox / "release", outbox=outbox, scratch=scratch, watch=watch, out=out.getvalue(), err=err.getvalue()
    )


@pytest.fixture(scope="module")
def released(watched):
    return watched.folder


@pytest.fixture(scope="module")
def public(released):
    return released / "public"


def test_the_hunt_finds_what_is_there(tmp_path):
    """Canaries in every kind of container, and nothing where there is none."""
    value = PLANTED["salary"]
    frame = pl.DataFrame({"x": [1.5, value], "word": ["a", "Canary-1"]})
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_csv(tmp_path / "a.csv")
    frame.write_excel(tmp_path / "a.xlsx")
    picture = base64.b64encode(b"<svg><text>73,219.44</text><title>Canary-2</title></svg>").decode()
    (tmp_path / "a.html").write_text(f'<img src="data:image/svg+xml;base64,{picture}">')
    (tmp_path / "b.bin").write_bytes(b"xyz" + struct.pack(">d", value) + b"Canary")
    (tmp_path / "Canary-73219.4375.txt").touch()
    pixels = zlib.compress(b"\0Canary" + struct.pack("<d", value))
    chunks = [(b"IDAT", pixels[:9]), (b"IDAT", pixels[9:])]
    png = b"".join(struct.pack(">I", len(data)) + kind + data + b"crc!" for kind, data in chunks)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + png)
    found = hunt(files_of(tmp_path), ["Canary"], {"salary": value})
    assert found == {(path.name, secret) for path in tmp_path.iterdir() for secret in ("Canary", "salary")}
    assert not hunt(files_of(tmp_path), ["Parrot"], {"salary": 73219.5375})


# --- canaries ---


def test_no_word_and_no_number_of_the_confidential_file_is_public(public, spec_path):
    found = hunt(files_of(public), WORDS, secret_numbers(spec_path) | PLANTED, digits=8)
    assert not found
    assert not hunt(files_of(public), numbers=PLANTED, digits=6)


def test_what_is_known_inside_the_house_is_not_public(released):
    """The internal folder holds all of it: the same hunt there finds it."""
    secrets = internal_numbers(released / "internal")
    assert {name.split()[0] for name in secrets} >= {"estimate", "se", "bound", "alpha", "constant", "largest_bound"}
    assert not hunt(files_of(released / "public"), numbers=secrets, digits=8)
    assert {secret for _, secret in hunt(files_of(released / "internal"), numbers=secrets, digits=8)} == set(secrets)


def test_no_path_host_or_person_is_public(released, spec_path):
    places = [
        str(spec_path.parent),
        str(released),
        str(Path.home()),
        str(Path.cwd()),
        str(PACKAGE),
        os.uname().nodename,
    ]
    assert not hunt(files_of(released / "public"), [place for place in places if len(place) > 4])
    for content in files_of(released / "public").values():
        for layer in layers(content):
            assert not re.search(rb"(?<![\w.:/<])/(?:tmp|home|root|usr|var|work|private|Users|opt)/\w", layer)


def test_nothing_is_printed_that_is_confidential(watched, spec_path):
    assert watched.err == ""
    said = {"out": watched.out.encode()}
    assert not hunt(said, WORDS, secret_numbers(spec_path) | PLANTED | internal_numbers(watched.folder / "internal"))
    assert "Only public/ may be published" in watched.out


def test_nothing_is_written_elsewhere_and_temporary_files_hold_no_canary(watched, spec_path, ledger):
    """Python code wrote to the release, the ledger and the folder for temporary files alone, and left none there."""
    caches = [Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).absolute(), PACKAGE, Path(sys.prefix)]
    homes = [watched.outbox, watched.scratch, ledger.parent.resolve(), Path("/dev"), *caches]
    strangers = [path for path in watched.watch.written if not any(map(Path(path).is_relative_to, homes))]
    assert not strangers
    assert list(watched.scratch.iterdir()) == []
    assert [path.name for path in watched.outbox.iterdir()] == ["release"]
    lost = watched.watch.close_to(watched.outbox) | watched.watch.close_to(watched.scratch)
    in_house = {path: content for path, content in lost.items() if "internal" not in Path(path).parts}
    assert not hunt(in_house, WORDS, secret_numbers(spec_path) | PLANTED, digits=8)


def test_a_workbook_needs_no_temporary_files(watched):
    """Those of the direct tables would be confidential, on a disk that nobody chose."""
    assert not [path for path in watched.watch.written if Path(path).is_relative_to(watched.scratch)]


# --- what the public files are like ---


def test_modes(released):
    def modes(paths):
        return {stat.S_IMODE(path.stat().st_mode) for path in paths}

    assert modes([released, released / "public"]) == {0o755}
    assert modes([*(released / "public").iterdir(), released / "anchor.json"]) == {0o644}
    assert modes([released / "internal"]) == {0o700}
    assert modes((released / "internal").iterdir()) == {0o600}


def test_ids_are_the_rows_numbers(public):
    for number in (1, 2):
        for frame in (
            pl.read_parquet(public / f"microdata-{number}.parquet"),
            pl.read_csv(public / f"microdata-{number}.csv"),
        ):
            assert frame["id"].to_list() == list(range(1, RECORDS + 1))
            assert frame.columns == ["id", "region", "sex", "salary", "weight", "weight_unsmoothed"]


def cells(frame):
    return frame.select(code=pl.col("region").rank("dense") * 2 + pl.col("sex").rank("dense"))["code"].to_numpy()


def rank_sum_z(codes):
    """How far the places of each cell's rows are from random ones: standard normal if the order says nothing."""
    place = np.arange(1, len(codes) + 1)
    for code in np.unique(codes):
        inside = int((codes == code).sum())
        spread = math.sqrt(inside * (len(codes) - inside) * (len(codes) + 1) / 12)
        yield (place[codes == code].sum() - inside * (len(codes) + 1) / 2) / spread
    centred = codes - codes.mean()
    yield (centred[1:] * centred[:-1]).sum() / centred.var() / math.sqrt(len(codes))


def test_the_order_of_rows_carries_nothing(ready):
    """z of each cell's places and of neighbours, at a false-alarm rate of 1e-9 each; the input itself is far off."""
    frame = confidential_frame().filter(pl.col("status") == "kept-QZ7W")
    assert max(map(abs, rank_sum_z(cells(frame)))) > 6.2
    orders = []
    for _ in range(2):
        calibrated = replace(ready.calibrated, streams=svysynth.Streams.from_system())
        orders += [
            cells(microdata(survey, 0, len(survey))) for survey in calibrated.synthesize(correction=False).surveys
        ]
    for order in orders:
        assert max(map(abs, rank_sum_z(order))) < 6.2
        assert sorted(order) == sorted(cells(frame))
    assert len(set(map(tuple, orders))) == 4


def test_numbers_are_on_the_stated_grid(public):
    """Every number of the microdata has at most 8 significant digits, of the tables 10, in every format."""
    for path in public.glob("microdata-*"):
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
        for column in ("salary", "weight", "weight_unsmoothed"):
            assert all(value == float(f"{value:.7e}") for value in frame[column])
    assert longest_number(public.glob("microdata-*.csv")) <= 8
    assert longest_number([public / "tables.csv"]) <= 10
    tables = pl.read_csv(public / "tables.csv")
    values = {value for column in tables if column.dtype == pl.Float64 for value in column if value is not None}
    assert all(value == float(f"{value:.9e}") for value in values if math.isfinite(value))
    book = openpyxl.load_workbook(public / "tables.xlsx")
    shown = {cell for sheet in book for row in sheet.iter_rows(values_only=True) for cell in row}
    assert {cell for cell in shown if isinstance(cell, float)} <= values


def longest_number(paths):
    """The most significant digits that a number in CSV files has."""
    tokens = [token for path in paths for line in path.read_text().splitlines()[1:] for token in line.split(",")]
    mantissas = [token.split("e")[0].lstrip("-") for token in tokens if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", token)]
    numbers = [mantissa.removesuffix(".0") for mantissa in mantissas if "." in mantissa]
    return max(len(number.replace(".", "").strip("0")) for number in numbers)


def test_times_are_the_day_s_midnight(public):
    made = date.fromisoformat(json.loads((public / "manifest.json").read_text())["created"])
    midnight = datetime(made.year, made.month, made.day, tzinfo=UTC)
    for path in [public, *public.iterdir()]:
        assert path.stat().st_mtime_ns == midnight.timestamp() * 10**9, path.name
    with zipfile.ZipFile(public / "tables.xlsx") as archive:
        core = archive.read("docProps/core.xml").decode()
        assert {member.date_time[3:] for member in archive.infolist()} == {(0, 0, 0)}
    assert set(re.findall(r"\d{4}-\d\d-\d\dT([^<]*)", core)) == {"00:00:00Z"}
    for name, content in files_of(public).items():
        for layer in layers(content):
            clock = re.findall(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[:\d]*", layer)
            assert {time[11:] for time in clock} <= {b"00:00:00"}, name


def test_metadata_name_nobody(public):
    with zipfile.ZipFile(public / "tables.xlsx") as archive:
        core, app = (archive.read(f"docProps/{name}.xml").decode() for name in ("core", "app"))
    assert re.findall(r"<(?:dc:creator|cp:lastModifiedBy|dc:title|dc:subject|dc:description)>([^<]+)<", core) == []
    assert re.findall(r"<(?:Company|Manager)>([^<]+)<", app) == []
    for path in public.glob("*.parquet"):
        assert set(pl.read_parquet_metadata(path)) <= {"ARROW:schema"}
        assert b"pandas" not in path.read_bytes()
        assert re.findall(rb"Polars[ -~]*", path.read_bytes()[-200:])  # the writer names itself, and nobody else


def test_the_same_draws_give_the_same_bytes(ready, watched, spec_path, tmp_path, monkeypatch):
    """Whatever depends on the clock, the machine or the ledger is in the manifest and the report alone."""
    monkeypatch.setattr(pseudo_posterior, "calibrate_suitable", ready)
    time.sleep(1.1)  # the clocks of metadata count seconds
    repeat(monkeypatch)
    assert run("release", spec_path, "--out", tmp_path / "again") == 0
    first, second = files_of(watched.folder / "public"), files_of(tmp_path / "again/public")
    changed = {name for name in first if first[name] != second[name]}
    assert changed == {"manifest.json", "report.html", "SHA256SUMS"}


def test_a_release_without_a_seed_is_not_stamped(ready, spec_path, tmp_path, monkeypatch):
    monkeypatch.setattr(pseudo_posterior, "calibrate_suitable", ready)
    assert run("release", spec_path, "--out", tmp_path / "plain") == 0
    assert not hunt(files_of(tmp_path / "plain/public"), ["NOT FOR RELEASE"])
    assert verify_release(tmp_path / "plain", spec_path).ledger


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(quick, spec_path, tmp_path, mask):
    before = os.umask(mask)
    try:
        assert run("release", spec_path, "--out", tmp_path / "release") == 0
    finally:
        os.umask(before)
    test_modes(tmp_path / "release")


# --- a release is a type ---


@pytest.fixture(scope="module")
def finished(ready, spec_path, tmp_path_factory):
    """A `Release`, as the pipeline makes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pseudo_posterior, "calibrate_suitable", ready)
        folder = tmp_path_factory.mktemp("finished") / "release"
        return pipeline.release(load_spec(spec_path), folder)


def test_a_release_needs_a_charge_that_covers_what_it_promises(finished):
    none = no_guarantee("laplace-paper", confidential=("salary", "wt"), public=("sex",))
    for wrong in (
        {"charge": None},
        {"charge": SimpleNamespace(**vars(finished.charge))},
        {"guarantee": none},
        {"guarantee": finished.guarantee.model_copy(update={"kind": "none"})},
        {"guarantee": finished.guarantee.model_copy(update={"epsilon_blanked": None})},
    ):
        with pytest.raises(TypeError, match="the charge that paid for it"):
            replace(finished, **wrong)
    for wrong in (
        {"charge": replace(finished.charge, millionths=finished.charge.millionths - 1)},
        {"guarantee": finished.guarantee.model_copy(update={"epsilon_blanked": 12.0000001})},
    ):
        with pytest.raises(ValueError, match="does not cover"):
            replace(finished, **wrong)
    for amount in (math.nan, math.inf, -1.0, 0.0):
        with pytest.raises(SurveyError, match="accounted for"):
            replace(finished, guarantee=finished.guarantee.model_copy(update={"epsilon_blanked": amount}))
    with pytest.raises(TypeError):
        Release(guarantee=finished.guarantee, spec=finished.spec, levels={}, records=1, tables=finished.tables)


def test_a_release_has_as_many_files_as_were_paid_for(finished):
    for files in (finished.microdata * 2, finished.microdata[:1]):
        with pytest.raises(ValueError, match="synthetic files"):
            replace(finished, microdata=files)
    with pytest.raises(ValueError, match="synthetic files"):
        replace(finished, guarantee=finished.guarantee.model_copy(update={"datasets": 0}))


def test_a_release_is_paid_for_in_its_own_kind_of_epsilon(finished):
    tables_alone = additive(12.0, confidential=("salary", "wt"), public=("sex",))
    with pytest.raises(ValueError, match="of another kind than the promise"):
        replace(finished, guarantee=tables_alone)


def test_nothing_but_a_release_is_published(finished, tmp_path):
    double = SimpleNamespace(
        **{"title": "x", "requested_tables": finished.requested_tables, "endings": ("csv",)} | vars(finished)
    )
    survey = survey_from_file(finished.spec.survey)
    for thing in (double, survey, finished.tables, finished.charge, None, Synthetic((survey,))):
        with pytest.raises(TypeError, match="only a Release"):
            publish.publish(thing, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- whole, paid for, or not there ---


class Ready:
    """Stands in for `_calibrate` after the first time: fitting again would show nothing new."""

    def __init__(self, calibrated):
        self.calibrated, self.synthetic = calibrated, calibrated.synthesize(correction=False)
        self.calibration = calibrated.calibration

    def __call__(self, *_, **__):
        return self

    def synthesize(self, correction, undone):
        return self.synthetic

    def __reduce__(self):
        return _ready_again, (self.calibration, self.synthetic)


def _ready_again(calibration, synthetic):
    ready = object.__new__(Ready)
    ready.calibration, ready.synthetic = calibration, synthetic
    return ready


@pytest.fixture(scope="module")
def ready(spec_path):
    spec = load_spec(spec_path)
    privacy = spec.privacy
    model, survey = pseudo_posterior.make_model(privacy.mechanism, spec.model), survey_from_file(spec.survey)
    streams = repeatable()
    return Ready(
        svysynth.calibrate(model, survey, privacy.epsilon, privacy.datasets, draws=privacy.draws, streams=streams)
    )


ERRORS = {
    "disk": lambda: OSError(errno.ENOSPC, "No space left, Canary"),
    "survey": lambda: SurveyError("file", "somewhere", "went wrong", "try again"),
    "memory": lambda: MemoryError("Canary 73219.4375"),
    "interrupt": KeyboardInterrupt,
    "value": lambda: ValueError("Canary 73219.4375"),
    "terminate": lambda: SystemExit(143),
}
BEFORE = [(large_files, "survey_from_file"), (pseudo_posterior, "calibrate_suitable"), (payment, "charge")]
COMPUTING = [(Ready, "synthesize"), (Synthetic, "tabulate_all"), (pipeline, "Release")]
WRITING = [
    (Path, "mkdir"),
    (publish, "write_frame"),
    (publish, "write_parts"),
    (publish, "write_workbook"),
    (publish, "public_page"),
    (publish, "make_manifest"),
    (publish, "sums_text"),
    (os, "utime"),
    (release_folder, "write_internal"),
    (internal, "write_frame"),
    (internal, "internal_page"),
    (Path, "rename"),
]


def failing(function, error, times=0):
    """The function, which fails when it was called so many times."""

    def fail(*arguments, **options):
        nonlocal times
        if times == 0:
            raise error()
        times -= 1
        return function(*arguments, **options)

    return fail


@pytest.fixture
def quick(ready, monkeypatch):
    """A release that fits nothing and draws no plots: what is tested is what comes after."""
    monkeypatch.setattr(pseudo_posterior, "calibrate_suitable", ready)
    monkeypatch.setattr(publish, "public_page", lambda _: "<p>page</p>\n")
    monkeypatch.setattr(internal, "internal_page", lambda *_: "<p>page</p>\n")
    return monkeypatch


def attempt(spec_path, folder, capsys, monkeypatch):
    """Try a release to `folder/outbox/release`; the exit code, what was said, and what lies about afterwards."""
    outbox, scratch = folder / "outbox", folder / "scratch"
    outbox.mkdir(exist_ok=True)
    scratch.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    capsys.readouterr()
    code = run("release", spec_path, "--out", outbox / "release")
    said = capsys.readouterr()
    monkeypatch.undo()
    return code, said.out, said.err, sorted(path.name for path in [*outbox.iterdir(), *scratch.iterdir()])


def injections(steps, thorough):
    """Every step fails as a disk does and in a way that nobody foresaw; some steps fail in every way."""
    return [
        pytest.param(place, name, error, id=f"{place.__name__.split('.')[-1]}.{name} {error}")
        for place, name in steps
        for error in (ERRORS if name in thorough else ("disk", "value"))
    ]


@pytest.mark.parametrize(("place", "name", "error"), injections(BEFORE, {"calibrate_suitable"}))
def test_what_fails_before_the_charge_costs_nothing(quick, spec_path, ledger, tmp_path, capsys, place, name, error):
    before = ledger.read_bytes(), show(ledger)
    quick.setattr(place, name, failing(getattr(place, name), ERRORS[error]))
    code, out, err, left = attempt(spec_path, tmp_path, capsys, quick)
    assert code == (70 if error == "disk" else CODES[error])
    assert left == []
    assert (ledger.read_bytes(), show(ledger)) == before
    assert_discreet(out, err, error)


@pytest.mark.parametrize(
    ("place", "name", "error"), injections(COMPUTING + WRITING, {"synthesize", "make_manifest", "rename"})
)
def test_what_fails_after_the_charge_stays_spent_and_leaves_nothing(
    quick, spec_path, ledger, tmp_path, capsys, place, name, error
):
    before = show(ledger)[0]
    real, times = payment.charge, 3 if (place, name) == (publish, "write_parts") else 0

    def charge(*arguments):
        paid = real(*arguments)
        quick.setattr(place, name, failing(getattr(place, name), ERRORS[error], times))
        return paid

    quick.setattr(payment, "charge", charge)
    code, out, err, left = attempt(spec_path, tmp_path, capsys, quick)
    assert code == (70 if error == "disk" and (place, name) in COMPUTING else CODES[error])
    assert left == []
    assert show(ledger)[0].spent == before.spent + 12_000_000
    assert_discreet(out, err, error)


def assert_discreet(out, err, error):
    """One line that says what to do, and nothing of what the error said."""
    assert not hunt({"out": out.encode(), "err": err.encode()}, ["Canary", "Traceback"], PLANTED)
    assert out.strip() == ""
    assert len(err.strip().splitlines()) == (0 if error in ("interrupt", "terminate") else 1)


SETTINGS_THAT_CANNOT_WORK = {
    "a public column called id": [('"sex"', '"id"')],
    "a public column called weight": [('"sex"', '"weight"')],
    "an outcome called weight": [('outcome = "salary"', 'outcome = "weight"')],
    "an outcome called id": [('outcome = "salary"', 'outcome = "id"')],
    "strata called weight_unsmoothed": [('strata = "region"', 'strata = "weight_unsmoothed"')],
    "clusters": [('strata = "region"', 'strata = "region"\ncluster = "village"')],
    "balanced replicates of other than pairs": [("[[tables]]", '[estimation]\nvariance = "brr"\n\n[[tables]]')],
    "noise with replicates": [*LAPLACE, ("[privacy]", '[estimation]\nvariance = "bootstrap"\n\n[privacy]')],
}


@pytest.mark.parametrize("changes", SETTINGS_THAT_CANNOT_WORK.values(), ids=SETTINGS_THAT_CANNOT_WORK)
def test_what_can_never_be_released_is_refused_before_the_charge(quick, spec_path, ledger, tmp_path, capsys, changes):
    """Settings are wrong whatever is drawn: nobody should pay to be told so."""
    text = SPEC
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1) if old == "[[tables]]" else text.replace(old, new)
    text = text.replace("../books-M4T7", str(ledger.parent))
    one_village = pl.when(pl.col("village") == "KX81-3").then(pl.lit("lonely")).otherwise(pl.col("region"))
    more = {"id": "sex", "weight_unsmoothed": "region"}
    frame = confidential_frame().with_columns(
        *(pl.col(old).alias(new) for new, old in more.items()), one_village.alias("block")
    )
    numeric = 'outcome = "weight"' in text or 'outcome = "id"' in text
    frame = frame.with_columns(pl.col("salary" if numeric else "sex").alias("weight"))
    frame = frame.with_columns(pl.col("salary").alias("id")) if 'outcome = "id"' in text else frame
    frame.write_csv(tmp_path / "people-V8K2.csv")
    (tmp_path / "spec.toml").write_text(text)
    before = show(ledger)
    code, _, err, left = attempt(tmp_path / "spec.toml", tmp_path, capsys, quick)
    assert (code, left) == (1, []), err
    assert show(ledger) == before
    assert len(err.strip().splitlines()) == 1


def test_a_folder_that_cannot_be_made_is_refused_before_the_charge(quick, spec_path, ledger, tmp_path, capsys):
    """Under a regular file, with a name that is too long, where a link leads nowhere."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = show(ledger)
    for folder in (
        tmp_path / "file/release",
        tmp_path / "file/deeper/release",
        tmp_path / ("x" * 300),
        tmp_path / "link",
    ):
        assert run("release", spec_path, "--out", folder) == 1
        out, err = capsys.readouterr()
        assert len(err.strip().splitlines()) == 1
        assert "--out" in err
        assert "Wrote" not in out
    assert show(ledger) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_folder_without_permission_is_refused_before_the_charge(quick, spec_path, ledger, tmp_path, capsys):
    """What mkdir says without permission, root or not."""
    before = show(ledger)
    real = os.mkdir

    def denied(path, *arguments, **options):
        if Path(path).parent == tmp_path / "outbox":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)

    quick.setattr(os, "mkdir", denied)
    code, _, err, left = attempt(spec_path, tmp_path, capsys, quick)
    assert (code, left) == (1, [])
    assert "--out" in err
    assert show(ledger) == before


def test_a_full_disk_at_every_file(quick, spec_path, ledger, tmp_path, capsys, ready):
    """A limit on the size of files stops a write half way, as a full disk does: at each file in turn."""
    write = pipeline.write_release
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    charges = show(ledger)[0].charges

    def attempt_with(limit):
        def limited(*arguments):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                write(*arguments)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        quick.setattr(pseudo_posterior, "calibrate_suitable", ready)
        quick.setattr(pipeline, "write_release", limited)
        quick.setattr(publish, "public_page", lambda _: "p" * 50_000)
        quick.setattr(internal, "internal_page", lambda *_: "i" * 60_000)
        return attempt(spec_path, tmp_path, capsys, quick)

    assert attempt_with(soft)[0] == 0
    whole = tmp_path / "outbox/release"
    sizes = sorted({len(content) for content in files_of(whole).values()})
    shutil.rmtree(whole)
    for limit in [0, 1, *(size - 1 for size in sizes)]:
        code, out, err, left = attempt_with(limit)
        assert (code, left) == (1, []), limit
        assert_discreet(out, err, "disk")
    assert attempt_with(sizes[-1])[3] == ["release"]
    assert verify_release(whole, spec_path).ledger
    assert show(ledger)[0].charges == charges + len(sizes) + 4


# --- processes that are killed, and processes that race ---


def nursery(ready_path):
    """Import everything once, then fork a process for every release asked for on standard input.

    They are handed what the fit found: JAX must not run after a fork.
    """
    import matplotlib.backends.backend_svg  # noqa: F401  a child would import it anew

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests are run under
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        elif (answer := os.fork()) == 0:
            sys.stdin.close()
            for stream, number in (("out", 1), ("err", 2)):
                os.dup2(os.open(f"{order['said']}.{stream}", os.O_WRONLY | os.O_CREAT, 0o600), number)
            pseudo_posterior.calibrate_suitable = pickle.loads(Path(ready_path).read_bytes())
            if order["meet"]:
                payment.charge = meeting(payment.charge, Path(order["meet"]))
            if order["endless"]:
                release_folder._settle = never
            code = 0
            try:
                try:
                    sys.argv = ["svysynth", *order["arguments"]]
                    main()  # as the command itself: a signal that a library swallows ends it all the same
                except SystemExit as leaving:
                    code = leaving.code or 0
                sys.stdout.flush()
            finally:
                os._exit(code)
        print(answer, flush=True)  # noqa: T201


def never(folder):
    """`_settle` that does not end: what is to be cut short must not be done before, however busy the machine is."""
    while True:
        time.sleep(0.01)  # not a pause: a signal that another thread receives would not end it


def meeting(charge, folder):
    """`charge`, after which two processes wait for each other."""

    def together(*arguments):
        paid = charge(*arguments)
        (folder / str(os.getpid())).touch()
        until(lambda: len(list(folder.iterdir())) == 2)
        return paid

    return together


class Nursery:
    """Processes that run the command line, started fast."""

    def __init__(self, ready_path):
        code = f"import test_release; test_release.nursery({str(ready_path)!r})"
        environment = importing(Path(__file__).parent)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, said, *arguments, meet=None, endless=False):
        arguments = [str(argument) for argument in arguments]
        return self.ask(said=str(said), meet=meet and str(meet), endless=endless, arguments=arguments)

    def wait(self, process):
        return self.ask(wait=process)


@pytest.fixture(scope="module")
def children(ready, tmp_path_factory):
    path = tmp_path_factory.mktemp("nursery") / "ready"
    path.write_bytes(pickle.dumps(ready))
    nursery = Nursery(path)
    yield nursery
    nursery.process.stdin.close()
    nursery.process.wait(30)
    nursery.process.stdout.close()


def building(outbox):
    return [path for path in outbox.iterdir() if path.name.startswith(".svysynth-")]


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGKILL", -9)])
def test_killed_while_writing(children, spec_path, ledger, tmp_path, number, code):
    """At moments spread over the writing, which ends in no other way; the first as early as can be seen."""
    moments = random.Random(3)
    for turn in range(5):
        outbox = tmp_path / f"outbox-{turn}"
        outbox.mkdir()
        arguments = ("release", spec_path, "--out", outbox / "release")
        process = children.start(outbox / "said", *arguments, endless=True)
        until(lambda outbox=outbox, turn=turn: has_begun(outbox, turn))
        time.sleep(0.15 * turn * moments.random())
        with suppress(ProcessLookupError):
            os.kill(process, getattr(signal, number))
        found = children.wait(process)
        assert found == code, (outbox / "said.err").read_text()
        assert not (outbox / "release").exists()
        left = building(outbox)
        assert not left or number == "SIGKILL"
        assert {stat.S_IMODE(path.stat().st_mode) for path in left} <= {0o700}
        in_hiding(outbox, lambda _: None)  # as the next run does
        assert building(outbox) == []
        assert not hunt({name: (outbox / name).read_bytes() for name in ("said.out", "said.err")}, WORDS, PLANTED)


def test_what_the_caller_ignores_stays_ignored():
    """As under nohup, where a release outlives its terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert run("--version") == 0
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)


def has_begun(outbox, turn):
    """Whether a release is being written: at the first turn, whether anything is to be seen at all."""
    begun = (
        building(outbox) if turn == 0 else [path for path in building(outbox) if (path / "room" / "public").exists()]
    )
    return begun or (outbox / "release").exists()


def until(condition, seconds=600.0):
    """Wait for a condition; fail loudly if it never comes."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_two_processes_that_release_to_the_same_folder(children, spec_path, ledger, tmp_path):
    """One wins, both have paid, and what is there is the winner's alone."""
    charges = show(ledger)[0].charges
    for turn in range(2):
        outbox, meet = tmp_path / f"outbox-{turn}", tmp_path / f"meet-{turn}"
        outbox.mkdir()
        meet.mkdir()
        arguments = ("release", spec_path, "--out", outbox / "release")
        said = [tmp_path / f"said-{turn}-{racer}" for racer in (1, 2)]
        pair = [children.start(place, *arguments, meet=meet) for place in said]
        codes = [children.wait(process) for process in pair]
        assert sorted(codes) == [0, 1]
        loser = said[codes.index(1)].with_suffix(".err")
        assert len(loser.read_text().strip().splitlines()) == 1
        assert "exists already" in loser.read_text()
        assert [path.name for path in outbox.iterdir()] == ["release"]
        found = verify_release(outbox / "release", ledger)
        anchor = json.loads((outbox / "release/anchor.json").read_text())
        run_ = json.loads((outbox / "release/internal/run.json").read_text())
        bound = entries(ledger)[anchor["entry"] - 1]
        assert found.manifest.ledger.entry == bound.paid == run_["entry"]
    assert show(ledger)[0].charges == charges + 4


# --- a process of its own, from the start ---


@pytest.fixture(scope="module")
def alone(spec_path, tmp_path_factory):
    """The real command in a process of its own, with a folder for temporary files that is its own too."""
    home = tmp_path_factory.mktemp("alone")
    (home / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(home / "tmp")}
    command = [sys.executable, "-m", "svysynth", "release", str(spec_path), "--out", str(home / "release")]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, cwd=home)
    assert done.returncode == 0, done.stderr.decode()
    return SimpleNamespace(home=home, out=done.stdout, err=done.stderr)


def test_the_command_by_itself(alone, spec_path, ledger):
    assert alone.err == b""
    assert not hunt({"out": alone.out}, WORDS, secret_numbers(spec_path) | PLANTED)
    public = files_of(alone.home / "release/public")
    assert not hunt(public, WORDS, PLANTED, digits=8)
    # by chance a synthetic number agrees with a real one in eight digits in a few of a hundred runs, three in 1 of 10⁵
    assert len({secret for _, secret in hunt(public, (), secret_numbers(spec_path), digits=8)}) < 3
    assert list((alone.home / "tmp").iterdir()) == []
    assert sorted(path.name for path in alone.home.iterdir()) == ["release", "tmp"]
    assert verify_release(alone.home / "release", ledger).ledger


def test_compiled_programs_hold_no_data(watched, spec_path):
    """They stay on disk after a release. A column among their constants would show in every record: five are sought."""
    secrets = secret_numbers(spec_path) | PLANTED
    sought = [value for name, value in secrets.items() if name.split()[-1] in "01234" or not name[-1].isdigit()]
    patterns = [struct.pack("<d", value) for value in sought]
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    programs = [unpacked(path.read_bytes()) for path in folder.iterdir() if path.is_file()]
    assert len(patterns) > 25
    assert sum(map(len, programs)) > 100_000
    assert not [pattern for pattern in patterns for program in programs if pattern in program]


def unpacked(program):
    if program.startswith(b"\x28\xb5\x2f\xfd"):
        import zstandard

        return zstandard.ZstdDecompressor().decompress(program)
    with suppress(zlib.error):
        return zlib.decompress(program)
    return program


# --- additive noise ---


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    text = SPEC
    for old, new in LAPLACE:
        text = text.replace(old, new, 1)
    folder = tmp_path_factory.mktemp("noisy")
    path = make_house(folder, text)
    assert run("release", path, "--out", folder / "release") == 0
    return SimpleNamespace(spec=path, folder=folder / "release", ledger=load_spec(path).privacy.ledger)


def test_noise_releases_tables_alone_with_a_global_guarantee(noisy):
    public = {path.name for path in (noisy.folder / "public").iterdir()}
    assert public == {"tables.csv", "tables.xlsx", "report.html", "manifest.json", "SHA256SUMS"}
    assert {path.name for path in (noisy.folder / "internal").iterdir()} == {
        "direct-tables.csv",
        "run.json",
        "report.html",
        "verdict.json",
    }
    found = verify_release(noisy.folder, noisy.ledger)
    assert found.manifest.guarantee.kind == "global"
    assert found.manifest.guarantee.epsilon_changed == found.manifest.guarantee.epsilon_blanked == 12.0
    assert (found.manifest.privacy.datasets, found.manifest.guarantee.datasets, found.manifest.model) == (0, 0, None)
    assert {entry.accounting for entry in entries(noisy.ledger)[2:]} == {"differential privacy"}
    test_modes(noisy.folder)


def test_noise_publishes_nothing_confidential(noisy):
    secrets = secret_numbers(noisy.spec) | PLANTED | internal_numbers(noisy.folder / "internal")
    assert not hunt(files_of(noisy.folder / "public"), WORDS, secrets, digits=8)
    assert longest_number([noisy.folder / "public/tables.csv"]) <= 10


def test_the_paper_s_noise_is_not_released(noisy, tmp_path, capsys):
    path = tmp_path / "spec.toml"
    text = noisy.spec.read_text().replace('"laplace"', '"laplace-paper"').replace('"global"', '"none"')
    text = text.replace("..", str(noisy.ledger.parent.parent))
    path.write_text(text.replace("people-V8K2.csv", str(noisy.spec.with_name("people-V8K2.csv"))))
    before = show(noisy.ledger)
    assert run("release", path, "--out", tmp_path / "release") == 1
    assert "is for comparison only, has no guarantee" in capsys.readouterr().err
    assert show(noisy.ledger) == before
    assert [path.name for path in tmp_path.iterdir()] == ["spec.toml"]
