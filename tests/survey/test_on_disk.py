"""Surveys on disk and in parts: the same release, to the last bit, however the records are cut and whoever works."""

import errno
import itertools
import json
import os
import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repeatable import repeat
from svysynth import SurveyError, load_spec
from svysynth.cli.main import main
from svysynth.core import engine
from svysynth.core.column_storage import Derived, Stored, compute_column, derive
from svysynth.core.engine import BLOCK, BLOCKS_A_SUM, HERE, LOCAL, Dask, Local, block_slices, part_ranges
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.base import undivided_setting
from svysynth.models.records import Records, make_records
from svysynth.models.sufficient_statistics import linear_statistics
from svysynth.models.synthesis import ROUNDS, shuffled
from svysynth.pipeline import release
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.verification import verify_release
from svysynth.survey import large_files as large
from svysynth.survey.design import Design
from svysynth.survey.large_files import read_large
from svysynth.survey.on_disk import store_survey
from svysynth.survey.overview import overview
from svysynth.survey.survey import Survey, survey_from_file

RECORDS = 5 * BLOCK // 2
SPEC = """
[survey]
data = "data"
outcome = "salary"
weight = "weight"
strata = "field"
public = ["field", "gender"]
population_total = 4000000
where = "employed = 1"
universe = ["employed"]

[privacy]
guarantee = "asymptotic"
mechanism = "{mechanism}"
epsilon = 12.0
budget = "large"

[[tables]]
by = ["field", "gender"]
statistics = ["count", "mean", "total"]
"""


def write_data(folder, records=RECORDS):
    """Parquet in three files whose ends are nowhere near those of blocks."""
    generator = np.random.default_rng(1)
    field, gender = generator.integers(0, 3, records), generator.integers(1, 3, records)
    t = 11 - 0.1 * field + 0.05 * gender + 0.4 * generator.standard_normal(records)
    employed = generator.random(records) >= 0.01
    frame = pl.DataFrame(
        {
            "gender": gender,
            "field": np.array(["life", "art", "law"])[field],
            "employed": employed.astype(int),
            "school": 70 - np.arange(records) * 7919 % 40,
            "salary": np.where(employed, np.exp(t), 0.0),
            "weight": np.exp(3 - 0.5 * (t - 11) + 0.1 * field + 0.4 * generator.standard_normal(records)),
        }
    )
    (folder / "data").mkdir()
    for number, (start, stop) in enumerate([(0, 1000), (1000, records // 3), (records // 3, records)]):
        frame[start:stop].write_parquet(folder / "data" / f"{number}.parquet", row_group_size=30_000)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    folder = tmp_path_factory.mktemp("house")
    write_data(folder)
    for mechanism in ("fbs", "fbp"):
        path = folder / f"{mechanism}.toml"
        path.write_text(SPEC.format(mechanism=mechanism))
    open_budget(load_spec(path).privacy.ledger, "large", 10_000, "asymptotic")
    bounds = 'budget = "large"\nbounds = { outcome = [1e3, 1e7], weight = [0.5, 2e3] }'
    noisy = SPEC.format(mechanism="fbs").replace("asymptotic", "global").replace('budget = "large"', bounds)
    (folder / "noisy.toml").write_text(noisy)
    return folder


@pytest.fixture
def on_disk(monkeypatch):
    monkeypatch.setattr(large, "MOST_IN_MEMORY", 1000)


def public_bytes(folder):
    names = ["tables.csv", *(f"microdata-{number}.parquet" for number in (1, 2, 3))]
    return {name: (folder / "public" / name).read_bytes() for name in names}


def run(house, out, mechanism="fbs", workers=LOCAL):
    with pytest.MonkeyPatch.context() as patch:
        repeat(patch, 7)
        release(load_spec(house / f"{mechanism}.toml"), out, engine=workers)
    return public_bytes(out)


@pytest.fixture(scope="module")
def in_memory(house, tmp_path_factory):
    return {name: run(house, tmp_path_factory.mktemp("memory") / "release", name) for name in ("fbs", "fbp")}


@pytest.mark.parametrize(("mechanism", "parts"), [("fbs", 1), ("fbs", 64), ("fbp", 3)])
def test_a_release_does_not_depend_on_how_it_is_cut(house, in_memory, tmp_path, on_disk, mechanism, parts):
    found = run(house, tmp_path / "release", mechanism, Local(threads=2, parts=parts))
    assert found == in_memory[mechanism]
    verify_release(tmp_path / "release", house / "ledger.sqlite")
    internal = pl.read_parquet(tmp_path / "release/internal/records.parquet")
    assert (internal["weighted_bound"] <= 2.0).all()
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".svysynth")] == []


NOISY = ("tables.csv", "measurement.json", "draws.parquet", "microdata-1.parquet", "microdata-2.parquet")


def run_noisy(house, out, workers=LOCAL):
    """What a release by noisy sums publishes, with noise that repeats."""
    release(load_spec(house / "noisy.toml"), out, Streams.seeded(7), engine=workers)
    return {name: (out / "public" / f"NOT-FOR-RELEASE-{name}").read_bytes() for name in NOISY}


@pytest.fixture(scope="module")
def noisy_in_memory(house, tmp_path_factory):
    return run_noisy(house, tmp_path_factory.mktemp("noisy") / "release")


@pytest.mark.parametrize(("parts", "blocks"), [(1, BLOCKS_A_SUM), (64, 1)])
def test_noisy_sums_do_not_depend_on_how_they_are_cut_and_read_a_few_blocks_at_a_time(
    house, noisy_in_memory, tmp_path, on_disk, monkeypatch, parts, blocks
):
    read, lengths = Stored.__getitem__, []

    def watched(column, piece):
        if "synthetic" not in column.path.name:  # which is written out a million rows at a time
            lengths.append(len(range(*piece.indices(len(column)))))
        return read(column, piece)

    monkeypatch.setattr(Stored, "__getitem__", watched)
    assert run_noisy(house, tmp_path / "release", Local(threads=2, parts=parts)) == noisy_in_memory
    assert max(lengths) == blocks * BLOCK
    assert sum(lengths) > 6 * RECORDS  # tables, bounds and two passes


def test_noisy_sums_on_a_cluster_are_the_same(house, noisy_in_memory, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=2, **HERE) as client:
        assert run_noisy(house, tmp_path / "release", Dask(client, parts=3)) == noisy_in_memory


class Assassin:
    """An engine that kills a worker of its cluster in the middle of two of its tasks."""

    def __init__(self, client):
        self.client, self.calls, self.killed = client, 0, []
        self.parts, self.remote = 8, True
        self.engine = Dask(client, parts=8)

    def map(self, function, items, a_core=1):
        self.calls += 1
        if self.calls in (3, 6):
            self.killed.append(next(iter(self.client.run(os.getpid).values())))
            threading.Timer(0.05, os.kill, (self.killed[-1], signal.SIGKILL)).start()
        return self.engine.map(function, items)


def test_a_cluster_gives_the_same_though_workers_are_killed(house, in_memory, tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=3, **HERE) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = Assassin(client)
        assert run(house, tmp_path / "release", "fbs", workers) == in_memory["fbs"]
        assert len(workers.killed) == 2
        assert workers.calls > 10
        deadline = time.monotonic() + 600  # a watchdog, not a limit
        while len(set(client.run(os.getpid).values())) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not set(workers.killed) & set(client.run(os.getpid).values())


def test_an_error_in_a_worker_is_one_clear_error(tmp_path):
    distributed = pytest.importorskip("distributed")
    write_data(tmp_path, 3 * BLOCK)
    frame = pl.read_parquet(tmp_path / "data/2.parquet")
    frame.with_columns(pl.col("weight") * pl.when(pl.int_range(pl.len()) == 7).then(-1).otherwise(1)).write_parquet(
        tmp_path / "data/2.parquet"
    )
    (tmp_path / "spec.toml").write_text(SPEC.format(mechanism="fbs"))
    spec = load_spec(tmp_path / "spec.toml").survey
    with distributed.Client(processes=False, n_workers=1, **HERE) as client:
        for workers in (LOCAL, Dask(client, parts=3)):
            scratch = tmp_path / f"scratch-{workers.remote}"
            scratch.mkdir()
            with pytest.raises(SurveyError, match=r"1 of .* is not positive.*in rows") as raised:
                read_large(spec, scratch, workers)
            assert raised.value.place == "column 'weight'"


def test_missing_codes_are_counted_in_records(tmp_path, on_disk):
    write_data(tmp_path, 2 * BLOCK)
    path = tmp_path / "data/0.parquet"
    frame = pl.read_parquet(path)
    frame.with_columns(pl.when(pl.int_range(pl.len()) >= 3).then("gender")).write_parquet(path)
    spec = SPEC.format(mechanism="fbs").replace('where = "employed = 1"', 'transform = "identity"')
    (tmp_path / "spec.toml").write_text(spec)
    with pytest.raises(SurveyError, match=rf"column 'gender': 3 of {2 * BLOCK:,} records are missing"):
        read_large(load_spec(tmp_path / "spec.toml").survey, tmp_path, LOCAL)


def said(survey):
    return survey.codes, survey.published, survey.confidential, survey.population_total, survey.other, repr(survey)


@pytest.mark.parametrize("make", [read_large, None])
@pytest.mark.parametrize("strata", ["field", None])
def test_clusters_on_disk_give_the_tables_of_clusters_in_memory(house, tmp_path, make, strata):
    spec = load_spec(house / "fbs.toml")
    source = spec.survey.model_copy(update={"cluster": "school", "strata": strata})
    small = survey_from_file(source)
    stored = make(source, tmp_path, LOCAL) if make else store_survey(small, tmp_path, LOCAL)
    assert stored.groups.frame.equals(small.groups.frame)
    assert np.array_equal(stored.groups.count, small.groups.count)
    assert stored.index.degrees_of_freedom == small.index.degrees_of_freedom
    mine, other = (tabulate_all(survey, spec.requested_tables) for survey in (stored, small))
    for name in ("estimate", "se", "df", "n"):
        assert np.allclose(mine[name], other[name], rtol=1e-11, equal_nan=True)


@pytest.mark.parametrize("make", [read_large, None])
def test_a_survey_on_disk_says_what_one_in_memory_says(house, tmp_path, make):
    spec = load_spec(house / "fbs.toml")
    small = survey_from_file(spec.survey)
    stored = make(spec.survey, tmp_path, LOCAL) if make else store_survey(small, tmp_path, LOCAL)
    assert len(stored) == len(small) > 2 * BLOCK
    assert (
        stored.rows(BLOCK - 5, BLOCK + 5).frame.select(small.frame.columns).equals(small.frame[BLOCK - 5 : BLOCK + 5])
    )
    positions = np.array([3, 1, len(small) - 1])
    assert stored.sample(positions).frame.select(small.frame.columns).equals(small.frame[positions])
    assert stored.in_memory().frame.equals(small.frame.select(*stored.schema))
    assert set(stored.schema.items()) == set(small.schema.items())
    assert all(isinstance(one, Survey) for one in (stored, small))
    assert said(stored) == said(small)
    assert stored.groups.frame.equals(small.groups.frame)
    assert np.array_equal(stored.groups.count, small.groups.count)
    assert tabulate_all(stored, spec.requested_tables).equals(tabulate_all(small, spec.requested_tables))
    public = [replace(survey, weight_public=True).model_cells() for survey in (stored, small)]
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(*public, strict=True))
    one, other = make_records(stored, "field * gender"), make_records(small, "field * gender")
    weights = np.linspace(0.1, 1, len(small))
    for mine, theirs in zip(linear_statistics(one, weights), linear_statistics(other, weights), strict=True):
        assert np.array_equal(mine, theirs)


ADDITIVE = """mechanism = "laplace"
bounds = { outcome = [1e3, 1e7], weight = [0.5, 2e3] }"""
SETTINGS = {
    "no privacy": lambda text: re.sub(r"\[privacy\].*?\n\n", "", text, flags=re.DOTALL),
    "asymptotic": lambda text: text,
    "public weights": lambda text: text.replace("[privacy]", "weight_public = true\n\n[privacy]"),
    "additive noise": lambda text: text.replace("asymptotic", "global").replace('mechanism = "fbs"', ADDITIVE),
}


@pytest.fixture
def command(house, tmp_path, monkeypatch, capsys):
    """A command on a spec beside which nothing but its output may be left; says how often it read in parts."""
    monkeypatch.chdir(tmp_path)
    parts = []
    monkeypatch.setattr(large, "read_large", lambda *given: parts.append(given) or read_large(*given))

    def run(most, change, *words):
        text = SPEC.format(mechanism="fbs").replace('"data"', f'"{house}/data"')
        (tmp_path / "spec.toml").write_text(change(text))
        monkeypatch.setattr(large, "MOST_IN_MEMORY", most)
        parts.clear()
        with pytest.raises(SystemExit) as left:
            main([words[0], "spec.toml", *words[1:]])
        assert not left.value.code, capsys.readouterr().err
        assert {path.name for path in tmp_path.iterdir()} <= {"spec.toml", "tables.csv"}
        return capsys.readouterr().out, len(parts)

    return run


@pytest.mark.parametrize("name", SETTINGS)
def test_check_says_the_same_from_disk(command, name):
    expected, parts = command(RECORDS, SETTINGS[name], "check")
    assert parts == 0
    assert "sum of weights" in expected
    assert command(RECORDS - 1, SETTINGS[name], "check") == (expected, 1)


def test_direct_tables_are_the_same_from_disk(command, tmp_path):
    for words in (["tables"], ["tables", "--out", "tables.csv"]):
        expected, parts = command(RECORDS, SETTINGS["asymptotic"], *words)
        written = Path("tables.csv").read_bytes() if "--out" in words else None
        assert parts == 0
        assert command(RECORDS - 1, SETTINGS["asymptotic"], *words) == (expected, 1)
        assert written is None or Path("tables.csv").read_bytes() == written


@pytest.mark.parametrize("words", [["check"], ["tables"]])
def test_clusters_are_worked_on_from_disk(command, words):
    def clustered(text):
        return SETTINGS["no privacy"](text).replace("public =", 'cluster = "gender"\npublic =')

    expected, _ = command(RECORDS, clustered, *words)
    assert command(1000, clustered, *words) == (expected, 1)


def test_a_folder_that_cannot_take_the_columns_is_refused(house, tmp_path, monkeypatch, capsys, on_disk):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    spec, out = str(house / "fbs.toml"), tmp_path / "tables.csv"
    monkeypatch.setattr(Stored, "create", full)
    for words, message in (
        (["--out", str(tmp_path / "nowhere" / "tables.csv")], "folder 'nowhere': cannot be written to"),
        (["--out", str(out)], "the hidden folder: cannot hold the columns of the data"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["tables", spec, *words])
        assert left.value.code == 1
        assert message in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


def test_the_overview_correlates_outcome_and_weight(house, tmp_path):
    spec = load_spec(house / "fbs.toml").survey
    small = survey_from_file(spec)
    found = overview(small)
    expected = np.corrcoef(np.log(small.outcome_values), np.log(small.weights))[0, 1]
    assert found.correlation == pytest.approx(expected, rel=1e-12)
    assert found.smallest_cell == np.unique(small.cell_index(small.public), return_counts=True)[1].min()
    assert found.sum_of_weights == pytest.approx(small.weights.sum(), rel=1e-12)
    assert vars(overview(read_large(spec, tmp_path, LOCAL))) == vars(found)


def test_a_survey_of_no_kind_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Survey("salary", Design("weight"), ("field",))


def test_statistics_in_blocks_are_those_of_one_pass():
    generator = np.random.default_rng(2)
    t, v, cell = 1e3 + generator.standard_normal(3000), generator.standard_normal(3000), generator.integers(0, 4, 3000)
    alpha = generator.random(3000)
    records, found = Records(t, v, cell, np.eye(4), tuple("abcd")), {}
    for block in (3000, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "BLOCK", block)
            found[block] = linear_statistics(records, alpha)
    for name, one, other in zip(found[7]._fields, found[3000], found[7], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-9, err_msg=name)


@given(st.integers(1, 40 * BLOCK), st.one_of(st.none(), st.integers(1, 100)))
def test_parts_are_made_of_whole_blocks(records, parts):
    ranges = part_ranges(records, parts)
    assert all(part.start % BLOCK == 0 and len(part) for part in ranges)
    assert ranges[0].start == 0
    assert ranges[-1].stop == records
    assert all(one.stop == other.start for one, other in itertools.pairwise(ranges))
    blocks = [piece for part in ranges for piece in block_slices(part)]
    assert blocks == list(block_slices(range(records)))


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_shuffling_is_a_permutation(size, seed):
    keys = np.random.default_rng(seed).integers(0, 2**63, ROUNDS, dtype=np.uint64)
    everywhere = shuffled(np.arange(size), size, keys)
    assert np.array_equal(np.sort(everywhere), np.arange(size))
    some = np.arange(size // 3, size)
    assert np.array_equal(shuffled(some, size, keys), everywhere[some])


def test_shuffling_forgets_the_order():
    """The mean place of 100 neighbours is that of a random sample: within 5 of its standard errors, in 2000 tries."""
    size, generator = 10_007, np.random.default_rng(3)
    places = []
    for _ in range(2000):
        keys = generator.integers(0, 2**63, ROUNDS, dtype=np.uint64)
        places.append(shuffled(np.arange(100), size, keys))
    means = (np.mean(places, axis=1) - (size - 1) / 2) / (size / np.sqrt(12 * 100))
    assert np.abs(means).max() < 5
    assert 0.9 < means.std() < 1.1
    neighbours = np.diff(np.array(places)[:, :2], axis=1)
    assert abs(np.mean(np.abs(neighbours)) / (size / 3) - 1) < 0.1


def test_columns_on_disk(tmp_path):
    numbers = np.arange(10.0)
    column = Stored.create(tmp_path / "column", np.float64, 10)
    column.write(4, numbers[4:])
    column.write(0, numbers[:4])
    assert np.array_equal(column[2:5], numbers[2:5])
    assert np.array_equal(column.take(np.array([9, 0])), [9, 0])
    assert np.array_equal(np.asarray(column), numbers)
    assert (tmp_path / "column").stat().st_mode & 0o077 == 0
    doubled = derive(np.add, column, column)
    assert isinstance(doubled, Derived)
    assert np.array_equal(doubled[3:], 2 * numbers[3:])
    assert np.array_equal(derive(np.add, numbers, numbers), 2 * numbers)
    for path in (None, tmp_path / "squares"):
        squares = compute_column(LOCAL, lambda piece: numbers[piece] ** 2, 10, path)
        assert np.array_equal(np.asarray(squares), numbers**2)


def test_a_large_release_has_no_text_file(monkeypatch, house, tmp_path, on_disk):
    from svysynth.privacy import release as room

    monkeypatch.setattr(room, "MOST_RECORDS_AS_TEXT", 1000)
    out = tmp_path / "release"
    run(house, out)
    assert not list((out / "public").glob("*.csv")) or [p.name for p in (out / "public").glob("*.csv")] == [
        "tables.csv"
    ]
    manifest = json.loads((out / "public/manifest.json").read_text())
    assert "microdata-1.csv" not in manifest["files"]
    page = Path(out / "public/report.html").read_text()
    assert "microdata-1.parquet" in page
    assert "microdata-1.csv" not in page
    verify_release(out, house / "ledger.sqlite")


def fatal(item):
    os._exit(1)


def test_a_cluster_that_loses_every_worker_is_one_clear_error():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, **HERE) as cluster,
        distributed.Client(cluster) as client,
        pytest.raises(SurveyError, match="lost its workers too often"),
    ):
        list(Dask(client).map(fatal, [1]))


WHOLE = {
    "privacy.mechanism": (
        r"\[privacy\].*?\n\n",
        '[privacy]\nmechanism = "laplace"\nguarantee = "global"\nepsilon = 12.0\nbudget = "large"\n'
        "bounds = {outcome = [1, 9], weight = [1, 9]}\n\n",
    ),
    "estimation.variance": (r"\[\[tables", '[estimation]\nvariance = "jackknife"\n\n[[tables'),
    "survey.cluster": (r"\[privacy\]", 'cluster = "school"\n\n[privacy]'),
}


@pytest.mark.parametrize("setting", WHOLE)
def test_a_cluster_that_could_not_be_used_is_refused_before_it_is_started(tmp_path, monkeypatch, capsys, setting):
    text = re.sub(*WHOLE[setting], SPEC.format(mechanism="fbs"), flags=re.DOTALL)
    (tmp_path / "spec.toml").write_text(text)
    spec = load_spec(tmp_path / "spec.toml")
    assert undivided_setting(spec) == setting
    monkeypatch.setattr(Dask, "connect", lambda _: pytest.fail("a cluster was started"))
    with pytest.raises(SystemExit) as left:
        main(["release", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "release"), "--engine", "dask"])
    assert left.value.code == 1
    assert f"--engine: 'dask' cannot be used with this '{setting}'" in capsys.readouterr().err
    with pytest.raises(SurveyError, match="use --engine local"):
        release(spec, tmp_path / "release", Streams.seeded(7), engine=SimpleNamespace(remote=True, parts=None))


def test_what_can_be_put_together_from_parts_is(house):
    for name in ("fbs", "noisy"):
        assert undivided_setting(load_spec(house / f"{name}.toml")) is None


@pytest.mark.parametrize("command", ["release {spec}", "study simulation", "study application"])
def test_a_scheduler_is_not_for_one_machine(tmp_path, capsys, command):
    (tmp_path / "spec.toml").write_text(SPEC.format(mechanism="fbs"))
    words = command.format(spec=tmp_path / "spec.toml").split()
    with pytest.raises(SystemExit) as left:
        main([*words, "--out", str(tmp_path / "out"), "--scheduler", "tcp://127.0.0.1:1"])
    assert left.value.code == 1
    assert "--scheduler: is for another engine. Remedy: add --engine dask" in capsys.readouterr().err


@pytest.mark.parametrize("study", ["simulation", "application"])
def test_workers_of_this_machine_are_not_for_a_cluster(tmp_path, capsys, study):
    with pytest.raises(SystemExit) as left:
        main(["study", study, "--out", str(tmp_path / "study"), "--engine", "dask", "--workers", "2"])
    assert left.value.code == 1
    assert "--workers: is for one machine" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("name", ["records", large.ADDED, "x" + large.ADDED])
def test_a_public_column_may_have_any_name(tmp_path, name):
    frame = pl.DataFrame({"y": [1.0, 2.0, 3.0], "w": [1.0] * 3, name: ["a", "b", "a"], large.ADDED + "!": ["c"] * 3})
    frame.write_parquet(tmp_path / "three.parquet")
    spec = SurveySpec(data=tmp_path / "three.parquet", outcome="y", weight="w", public=(name, large.ADDED + "!"))
    found = read_large(spec, tmp_path, Local(parts=1))
    assert found.rows(0, 3).frame[name].cast(pl.String).to_list() == ["a", "b", "a"]


@pytest.mark.parametrize("where", [None, "y > 0"])
def test_a_disk_without_room_for_the_columns_is_told_before_they_are_written(tmp_path, monkeypatch, where):
    pl.DataFrame({"y": [1.0] * 9, "w": [1.0] * 9, "g": ["a"] * 9}).write_parquet(tmp_path / "nine.parquet")
    spec = SurveySpec(data=tmp_path / "nine.parquet", outcome="y", weight="w", public=("g",), where=where)
    folder = tmp_path / "columns"
    folder.mkdir()
    monkeypatch.setattr(large.shutil, "disk_usage", lambda _: SimpleNamespace(free=9 * 20 - 1))
    with pytest.raises(SurveyError, match="cannot hold the columns of the data"):
        read_large(spec, folder, Local(parts=1))
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(large.shutil, "disk_usage", lambda _: SimpleNamespace(free=9 * 20))
    assert len(read_large(spec, folder, Local(parts=1))) == 9


@pytest.mark.parametrize("kind", [pl.String, pl.Float64])
@pytest.mark.parametrize("later", [[1, 2, 1, 7], [1, 2, 1]])
def test_a_file_that_changes_between_the_two_reads_is_refused(tmp_path, monkeypatch, kind, later):
    """Public columns are read first and the numbers after: a record of no group must not join another one."""
    path, read = tmp_path / "four.parquet", large._Combinations.__call__

    def written(levels):
        columns = {"y": pl.Series([1.0] * len(levels)), "w": [2.0] * len(levels), "g": pl.Series(levels).cast(kind)}
        pl.DataFrame(columns).write_parquet(path)

    def changed(self, rows):
        found = read(self, rows)
        written(later)
        return found

    written([1, 2, 1, 2])
    monkeypatch.setattr(large._Combinations, "__call__", changed)
    spec = SurveySpec(data=path, outcome="y", weight="w", public=("g",))
    with pytest.raises(SurveyError, match="changed while it was read"):
        read_large(spec, tmp_path, Local(parts=1))


@pytest.mark.parametrize("levels", [["a", None, "", "a"], [1.0, None, float("nan"), 1.0]])
def test_missing_levels_are_counted_by_record_and_not_by_combination(tmp_path, levels):
    frame = pl.DataFrame({"y": [1.0] * 400, "w": [1.0] * 400, "g": levels * 100}, strict=False)
    frame.write_parquet(tmp_path / "many.parquet")
    spec = SurveySpec(data=tmp_path / "many.parquet", outcome="y", weight="w", public=("g",))
    with pytest.raises(SurveyError, match="200 of 400 records are missing"):
        read_large(spec, tmp_path, Local(parts=1))
