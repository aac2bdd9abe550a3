"""Verification: a release that is whole passes, and whatever else is in its place is one error and exit code 1."""

import hashlib
import json
import os
import random
import shutil
from contextlib import suppress

import polars as pl
import pytest

import svysynth
from quick_release import SPEC, make_release
from signing import sign, sign_sums
from svysynth import SurveyError
from svysynth.cli.main import main
from svysynth.estimation.combining import combine
from svysynth.mechanisms.pseudo_posterior.mechanism import make_model
from svysynth.models.synthesis import make_synthetic
from svysynth.privacy.guarantee import additive
from svysynth.privacy.ledger import charge, entries, open_budget, record_release
from svysynth.privacy.manifest import Manifest
from svysynth.privacy.release import MICRODATA_DIGITS, TABLE_DIGITS, rounded, survey_of_microdata
from svysynth.privacy.tamper_marks import seal_path
from svysynth.publishing.public_folder import checksum, checksums
from svysynth.publishing.verification import verify_release
from svysynth.survey import large_files as large
from svysynth.survey.files import write_frame


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("house") / "in", pages=True)


@pytest.fixture
def copy(house, tmp_path):
    """A copy of the release to spoil, with its ledger at hand."""
    shutil.copytree(house, tmp_path / "in")
    run = tmp_path / "in/release/internal/run.json"
    run.write_text(run.read_text().replace(str(house), str(tmp_path / "in")))
    return tmp_path / "in/release"


@pytest.fixture(params=["in memory", "on disk"])
def kept(monkeypatch, request):
    """Where the synthetic files are kept while tables are made of them."""
    if request.param == "on disk":
        monkeypatch.setattr(large, "MOST_IN_MEMORY", 40)


def run(capsys, *arguments):
    """Run a command; its exit code, standard output and standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return caught.value.code or 0, said.out, said.err


def assert_refused(capsys, folder, *arguments, saying=""):
    """Refused with the ledger beside it, or with what is given instead."""
    named = arguments or ("--ledger", ledger_of(folder))
    code, out, err = run(capsys, "verify", folder, *named)
    assert (code, out) == (1, "")
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("Error: ")
    assert saying in err


def ledger_of(folder):
    """The ledger of the house that a release, or its public folder, is in."""
    home = folder.parent.parent if folder.name == "public" else folder.parent
    return home / "ledger.sqlite"


# --- what passes ---


def test_a_release_passes_by_itself_as_its_public_folder_and_with_its_ledger(house, tmp_path, capsys):
    code, out, err = run(capsys, "verify", house / "release", "--ledger", house / "spec.toml")
    assert (code, err) == (0, "")
    for line in (
        "checksums of 8 files",
        "30 rows of tables",
        "from 2 synthetic files",
        "charged as entry 2 of the ledger",
    ):
        assert line in out
    public = shutil.copytree(house / "release/public", tmp_path / "elsewhere")
    code, out, _ = run(capsys, "verify", public, "--files-only")
    assert code == 0
    assert "not checked against a ledger" in out
    code, out, _ = run(capsys, "verify", public, "--ledger", house / "ledger.sqlite")
    assert code == 0
    assert "entry 2 of the ledger" in out
    assert "not a promise for every possible data set" in out


def test_signing_again_without_a_change_changes_nothing(copy):
    """So that the tests below change what they say and nothing else."""
    before = checksums(copy / "public")
    sign(copy / "public")
    assert checksums(copy / "public") == before


VARIANTS = {
    "fbs": [('"fbp"', '"fbs"')],
    "the paper's smoothing": [("[[tables]]", '[model]\nsmoothing = "paper"\n\n[[tables]]')],
    "public weights": [('"fbp"', '"fbs"'), ('weight = "wt"\n', 'weight = "wt"\nweight_public = true\n')],
    "without strata": [('strata = "region"\n', "")],
    "strata that are not public": [('strata = "region"', 'strata = "block"')],
    "one file": [("datasets = 2", "datasets = 1")],
    "one table": [(SPEC[SPEC.index("[[tables]]") :], "")],
    "bootstrap": [("[[tables]]", '[estimation]\nvariance = "bootstrap"\nreplicates = 20\n\n[[tables]]')],
    "preston": [("[[tables]]", '[estimation]\nvariance = "preston"\nreplicates = 20\n\n[[tables]]')],
    "jackknife": [("[[tables]]", '[estimation]\nvariance = "jackknife"\n\n[[tables]]')],
    "standard errors as in the paper": [("[[tables]]", '[estimation]\nstandard_errors = "paper"\n\n[[tables]]')],
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_kind_of_release_passes(tmp_path, monkeypatch, changes):
    text = SPEC
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    release = make_release(tmp_path / "in", text) / "release"
    assert verify_release(release, ledger_of(release)).ledger
    monkeypatch.setattr(large, "MOST_IN_MEMORY", 100)
    assert verify_release(release, ledger_of(release)).ledger


def test_labels_that_a_spreadsheet_would_run_pass(tmp_path, kept):
    """They have an apostrophe in CSV files and none in Parquet."""
    labels = {"regions": ("=1+1", "-none-", "'+x"), "sexes": ('say "a, b"', "@home", "NA", "-5")}
    release = make_release(tmp_path / "in", **labels) / "release"
    assert verify_release(release, ledger_of(release)).ledger
    text = SPEC.replace('"salary"', '"=salary"')
    release = make_release(tmp_path / "other", text, outcome="=salary") / "release"
    assert verify_release(release, ledger_of(release)).ledger


# --- one changed byte ---


def test_numbers_with_more_digits_than_stated_signed(copy, capsys):
    """Digits beyond the grid could carry something that was not paid for."""
    public = copy / "public"
    frame = pl.read_parquet(public / "microdata-1.parquet").with_columns(pl.col("weight_unsmoothed") * (1 + 1e-12))
    frame.write_parquet(public / "microdata-1.parquet")
    frame.write_csv(public / "microdata-1.csv")
    sign(public)
    assert_refused(capsys, copy)


def positions(name, size, generator):
    """Every third byte of the small files, and as many places again spread over the others."""
    if name in ("manifest.json", "SHA256SUMS"):
        return range(generator.randrange(3), size, 3)
    return sorted({0, size - 1, *(generator.randrange(size) for _ in range(40))})


def test_every_changed_byte_is_noticed(copy, capsys):
    """A bit flipped at some 1,500 places, over every public file."""
    generator, tried = random.Random(12), 0
    for path in sorted((copy / "public").iterdir()):
        content = path.read_bytes()
        for place in positions(path.name, len(content), generator):
            changed = bytearray(content)
            changed[place] ^= 1 << generator.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(SurveyError):
                verify_release(copy, files_only=True)
            tried += 1
        path.write_bytes(content[:-1])
        assert_refused(capsys, copy)
        path.write_bytes(content + b"\n")
        assert_refused(capsys, copy)
        if b"\n" in content:
            path.write_bytes(content.replace(b"\n", b"\r", 1))
            assert_refused(capsys, copy)
            path.write_bytes(content.replace(b"\n", b"\r\n"))
            assert_refused(capsys, copy)
        path.write_bytes(content)
    assert tried >= 1000
    assert verify_release(copy, ledger_of(copy)).ledger


def test_files_that_are_renamed_added_taken_away_or_swapped(copy, capsys):
    public = copy / "public"
    for name in sorted(path.name for path in public.iterdir()):
        (public / name).rename(public / "other")
        assert_refused(capsys, copy)
        (public / "other").rename(copy / "kept")
        assert_refused(capsys, copy)
        (public / name).mkdir()
        assert_refused(capsys, copy)
        (public / name).rmdir()
        (public / name).symlink_to(copy / "kept")
        assert_refused(capsys, copy)
        (public / name).unlink()
        (copy / "kept").rename(public / name)
    for name in ("stray", ".stray"):
        (public / name).touch()
        assert_refused(capsys, copy)
        (public / name).unlink()
    one, two = public / "microdata-1.parquet", public / "microdata-2.parquet"
    one.rename(public / "x")
    two.rename(one)
    (public / "x").rename(two)
    assert_refused(capsys, copy)


@pytest.mark.parametrize("strange", ["folder", "pipe", "whole release", "link to itself"])
def test_strange_things_among_the_public_files(copy, house, capsys, strange):
    """Also a folder that looks like a release of its own, in a public folder whose tables were changed."""
    public = copy / "public"
    match strange:
        case "folder":
            (public / "more").mkdir()
        case "pipe":
            os.mkfifo(public / "pipe")
        case "whole release":
            shutil.copytree(house / "release/public", public / "public")
            (public / "tables.csv").write_text("nothing\n")
        case "link to itself":
            (public / "loop").symlink_to("loop")
    assert_refused(capsys, public)
    assert_refused(capsys, copy)


def test_what_is_no_release(tmp_path, house, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "odd/manifest.json").mkdir(parents=True)
    for folder in ("empty", "file", "missing", "odd", "x" * 300):
        assert_refused(capsys, tmp_path / folder, saying="is not a release")
    assert_refused(capsys, house / "release", "--ledger", tmp_path / "missing", saying="cannot be found")
    assert_refused(capsys, house / "release", "--ledger", house / "people.csv", saying="not a privacy ledger")


# --- changed and signed again ---


def change_csv(path, row, column, new):
    lines = path.read_text().splitlines()
    cells = lines[row].split(",")
    place = lines[0].split(",").index(column)
    cells[place] = new(cells[place])
    lines[row] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


def last_digit(text):
    """A number with its fifth digit changed: what an eye passes over."""
    digits = [place for place, character in enumerate(text) if character.isdigit()]
    place = digits[min(4, len(digits) - 1)]
    return text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


@pytest.mark.parametrize("column", ["estimate", "se", "lower", "upper", "cv", "n"])
@pytest.mark.parametrize("row", [1, 7, 18])
def test_a_number_changed_in_the_tables_and_signed(copy, capsys, column, row):
    change_csv(copy / "public/tables.csv", row, column, last_digit)
    sign(copy / "public")
    assert_refused(capsys, copy, saying="do not follow from its synthetic files")


@pytest.mark.parametrize(
    ("column", "new"),
    [("reliability", lambda _: "reliable!"), ("region", lambda _: "west"), ("table", lambda _: "other")],
)
def test_words_changed_in_the_tables_and_signed(copy, capsys, column, new):
    change_csv(copy / "public/tables.csv", 5, column, new)
    sign(copy / "public")
    assert_refused(capsys, copy, saying="do not follow")


def test_rows_and_columns_of_the_tables_changed_and_signed(copy, capsys):
    path = copy / "public/tables.csv"
    lines = path.read_text().splitlines()
    for changed in (lines[:-1], [*lines, lines[-1]], [line + ",1" for line in lines], lines[:1], []):
        path.write_text("\n".join(changed) + "\n" if changed else "")
        sign(copy / "public")
        assert_refused(capsys, copy)


@pytest.mark.parametrize("column", ["salary", "weight", "weight_unsmoothed", "sex", "id"])
@pytest.mark.parametrize("ending", ["parquet", "csv", "both"])
def test_microdata_changed_and_signed(copy, capsys, kept, column, ending):
    """One record: in one format, which then contradicts the other, or in both, which then contradict the tables."""
    public = copy / "public"
    frame = pl.read_parquet(public / "microdata-2.parquet")
    old = frame[column]
    swapped = {"F": "M", "M": "F"}
    value = swapped[old[3]] if column == "sex" else old[3] * 3 if column != "id" else 999
    frame = frame.with_columns(pl.Series(column, [*old[:3], value, *old[4:]], dtype=old.dtype))
    if ending != "csv":
        frame.write_parquet(public / "microdata-2.parquet")
    if ending != "parquet":
        frame.write_csv(public / "microdata-2.csv")
    sign(public)
    assert_refused(capsys, copy)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: frame.drop("id"),
        lambda frame: frame.drop("sex"),
        lambda frame: frame.drop("salary"),
        lambda frame: frame.drop("weight_unsmoothed"),
        lambda frame: frame.with_columns(pl.lit("x").alias("salary")),
        lambda frame: frame.with_columns(pl.lit(None, pl.Float64).alias("salary")),
        lambda frame: frame.with_columns(pl.lit(float("nan")).alias("weight")),
        lambda frame: frame.with_columns(pl.lit("neither").alias("sex")),
        lambda frame: frame.with_columns(pl.lit(1).alias("sex")),
        lambda frame: frame.with_columns(pl.lit([1]).alias("weight")),
        lambda frame: frame.head(0),
        lambda frame: frame.head(50),
        lambda frame: pl.concat([frame, frame]),
        lambda frame: pl.DataFrame(),
    ],
)
def test_microdata_of_another_shape_signed(copy, capsys, kept, spoil):
    public = copy / "public"
    frame = spoil(pl.read_parquet(public / "microdata-1.parquet"))
    frame.write_parquet(public / "microdata-1.parquet")
    if pl.List not in map(type, frame.dtypes):
        frame.write_csv(public / "microdata-1.csv")
    sign(public)
    assert_refused(capsys, copy)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", random.Random(1).randbytes(500), None]
)
def test_damaged_parquet_signed(copy, capsys, content):
    path = copy / "public/microdata-1.parquet"
    path.write_bytes(path.read_bytes()[:-9] + b"\xff" + path.read_bytes()[-8:] if content is None else content)
    sign(copy / "public")
    assert_refused(capsys, copy)


def forge(public, confidential):
    """Put the confidential answers into the synthetic files, make the tables from them, and sign everything again."""
    manifest = Manifest.model_validate_json((public / "manifest.json").read_text())
    spec, tables = manifest.spec(), []
    for number in (1, 2):
        frame = pl.read_parquet(public / f"microdata-{number}.parquet")
        weights = confidential["wt"] * 5000 / confidential["wt"].sum()
        frame = frame.with_columns(
            confidential["region"],
            confidential["sex"],
            confidential["salary"].cast(pl.Float64),
            weights.alias("weight"),
            weights.alias("weight_unsmoothed"),
        )
        frame = rounded(frame, MICRODATA_DIGITS)
        frame.write_parquet(public / f"microdata-{number}.parquet")
        frame.write_csv(public / f"microdata-{number}.csv")
        survey = survey_of_microdata(frame, spec, manifest.survey.levels)
        rules = make_synthetic((survey,), make_model(manifest.privacy.mechanism, manifest.model))
        tables.append(rules.tabulate_all(spec.requested_tables, spec.estimation))
    write_frame(rounded(combine(tables, spec.estimation), TABLE_DIGITS), public / "tables.csv")
    sign(public)


def test_a_folder_with_the_confidential_answers_in_it_is_refused(copy, capsys):
    """Tables follow from the files, all is signed again, the charge is in the ledger: the hash is another."""
    forge(copy / "public", pl.read_csv(copy.parent / "people.csv"))
    assert not verify_release(
        copy / "public", files_only=True
    ).ledger  # nothing in the folder itself contradicts the rest
    ledger = copy.parent / "ledger.sqlite"
    for folder in (copy, copy / "public"):
        assert_refused(capsys, folder, "--ledger", ledger, saying="is not the one that was charged for")


def test_a_folder_that_names_a_charge_without_a_release_is_refused(copy, capsys):
    """As somebody would who has paid, whose run failed, and who puts other files under that charge."""
    ledger = copy.parent / "ledger.sqlite"
    other = charge(ledger, "people", 12, "another release", "asymptotic").anchor
    sign(copy / "public", ledger=vars(other))
    assert_refused(capsys, copy / "public", "--ledger", ledger, saying="a charge that no release was written for")


def test_a_public_folder_alone_passes_and_says_what_was_not_checked(copy, capsys):
    code, out, _ = run(capsys, "verify", copy / "public", "--files-only")
    assert code == 0
    assert "not checked against a ledger" in out
    assert "one that was paid for" in out


def test_who_names_no_ledger_is_told_to(copy, capsys):
    for folder in (copy, copy / "public"):
        code, out, err = run(capsys, "verify", folder)
        assert (code, out) == (1, "")
        assert "--ledger: was not given" in err
    assert_refused(capsys, copy, "--files-only", "--ledger", ledger_of(copy), saying="together with a ledger")


def test_a_ledger_that_is_not_there_is_refused(copy, capsys):
    (copy.parent / "ledger.sqlite").rename(copy.parent / "elsewhere.sqlite")
    assert_refused(capsys, copy, saying="ledger")
    assert_refused(capsys, copy, "--ledger", copy.parent / "spec.toml", saying="ledger")


def test_a_forger_s_own_ledger_is_not_asked(copy, tmp_path, capsys):
    """It has a charge and a release entry for the forged manifest, and every file of the folder points to it."""
    forge(copy / "public", pl.read_csv(copy.parent / "people.csv"))
    own = tmp_path / "own.sqlite"
    open_budget(own, "people", 1000, "asymptotic")
    paid = charge(own, "people", 12, "forged", "asymptotic")
    sign(copy / "public", ledger=vars(paid.anchor))
    bound = record_release(paid, checksum(copy / "public/manifest.json"))
    (copy / "anchor.json").write_text(bound.to_json())
    run_file = copy / "internal/run.json"
    run_file.write_text(json.dumps(json.loads(run_file.read_text()) | {"ledger": str(own)}))
    assert verify_release(copy, own).ledger  # the forger's work is sound: only the ledger is not ours
    for named in (ledger_of(copy), copy.parent / "spec.toml"):
        assert_refused(capsys, copy, "--ledger", named, saying="not the ledger")
    code, out, _ = run(capsys, "verify", copy)
    assert (code, out) == (1, "")


def test_a_release_of_an_earlier_format_is_told_by_name(copy, capsys):
    path = copy / "public/manifest.json"
    path.write_text(path.read_text().replace('"format": 3', '"format": 1'))
    sign_sums(copy / "public")
    assert_refused(capsys, copy, saying="a manifest of format 1")


LIES = {
    "a warning": {"warning": "NOT FOR RELEASE: made with a seed, which undoes the protection."},
    "no charge": {"ledger": None},
    "a smaller ε": {"guarantee": {"epsilon_blanked": 1.0, "epsilon_changed": 2.0}},
    "a larger ε": {"guarantee": {"epsilon_blanked": 13.0, "epsilon_changed": 26.0}},
    "ε in the settings": {"privacy": {"epsilon": 1.0}},
    "a smaller bound": {"guarantee": {"largest_bound": 0.1}},
    "another kind": {"guarantee": {"kind": "global"}},
    "no kind": {"guarantee": {"kind": "none", "epsilon_blanked": None, "epsilon_changed": None}},
    "another mechanism": {"guarantee": {"mechanism": "fbs"}},
    "fewer confidential columns": {"guarantee": {"confidential": ["salary"]}},
    "fewer public columns": {"guarantee": {"public": ["sex"]}},
    "no files": {"privacy": {"datasets": 0}},
    "no files anywhere": {"privacy": {"datasets": 0}, "guarantee": {"datasets": 0}},
    "more files": {"privacy": {"datasets": 3}},
    "fewer than no files": {"privacy": {"datasets": -1}, "guarantee": {"datasets": -1}},
    "one file": {"privacy": {"datasets": 1}, "guarantee": {"datasets": 1, "largest_bound": 6.0}},
    "other words": {"statement": ["It is private.", "Trust us."]},
    "other draws": {"guarantee": {"draws": 4000}},
    "noise": {"privacy": {"mechanism": "laplace", "datasets": 0, "scheme": None, "draws": None}, "model": None},
    "other records": {"survey": {"records": 121}},
    "another total": {"survey": {"population_total": 6000.0}},
    "no total": {"survey": {"population_total": None}},
    "another outcome": {"survey": {"outcome": "weight"}},
    "other labels": {"survey": {"levels": {"region": ["east", "north"], "sex": ["F", "M"]}}},
    "a label twice": {"survey": {"levels": {"region": ["east", "east", "north", "south"], "sex": ["F", "M"]}}},
    "no labels": {"survey": {"levels": {}}},
    "labels of another column": {"survey": {"levels": {"region": ["east", "north", "south"], "age": ["1"]}}},
    "no public columns": {"survey": {"public": []}},
    "strata that are not there": {"survey": {"strata": "block"}},
    "a universe": {"survey": {"universe": ["salary"], "where": "salary > 0"}},
    "a filter that nobody promised": {"survey": {"where": "sex = 'F'"}},
    "other smoothing": {"model": {"smoothing": "paper"}},
    "other rounding": {"rounding": {"microdata": 15}},
    "other confidence": {"estimation": {"confidence": 0.9}},
    "other standard errors": {"estimation": {"standard_errors": "paper"}},
    "other tables": {"tables": [{"name": None, "by": ["sex"], "statistics": ["count"]}]},
    "tables of what is not public": {"tables": [{"name": None, "by": ["salary"], "statistics": ["count"]}]},
}


@pytest.mark.parametrize("changes", LIES.values(), ids=LIES)
def test_a_manifest_that_says_other_things_and_is_signed(copy, capsys, changes):
    sign(copy / "public", **changes)
    assert_refused(capsys, copy)


def filtered(where, universe):
    """Every part of the manifest says that this filter was used."""
    roles = {"confidential": ("salary", "wt"), "public": ("region", "sex"), "universe": where}
    promise = svysynth.privacy.guarantee.asymptotic("fbp", 12.0, 2, transform="log", draws=400, **roles)
    return {
        "guarantee": promise.model_dump(mode="json"),
        "statement": list(promise.sentences()),
        "survey": {"where": where, "universe": universe},
    }


@pytest.mark.parametrize(
    ("where", "universe"),
    [("salary > 0", []), ("salary > 0", ["salary"]), ("age = 40", []), ("sex >", []), ("avg(age) > 3", ["age"])],
)
def test_a_filter_that_is_not_public_signed(copy, capsys, where, universe):
    sign(copy / "public", **filtered(where, universe))
    assert_refused(capsys, copy, saying="universe is not public")


def consistent_lie(epsilon):
    """Every part of the manifest tells the same lie about ε."""
    promise = svysynth.privacy.guarantee.asymptotic(
        "fbp", epsilon, 2, confidential=("salary", "wt"), public=("region", "sex"), transform="log", draws=400
    )
    return {
        "guarantee": promise.model_dump(mode="json"),
        "statement": list(promise.sentences()),
        "privacy": {"epsilon": epsilon},
    }


@pytest.mark.parametrize("epsilon", [1.0, 11.999999, 12.000001, 13.0, 500.0])
def test_a_lie_about_the_charge_needs_the_ledger_to_be_caught(copy, capsys, epsilon):
    """Both ways: a promise that was not paid for, and one that is better than what was done."""
    sign(copy / "public", **consistent_lie(epsilon))
    assert_refused(capsys, copy, saying="charged")
    assert_refused(capsys, copy / "public", "--ledger", copy.parent / "ledger.sqlite", saying="charged")
    assert not verify_release(copy / "public", files_only=True).ledger


def test_a_lie_about_the_kind_needs_the_ledger_to_be_caught(tmp_path, capsys):
    """Tables alone, charged as asymptotic and published as global."""
    folder = make_release(tmp_path / "in")
    public = folder / "release/public"
    for path in public.glob("microdata-*"):
        path.unlink()
    promise = additive(12.0, confidential=("salary", "wt"), public=("region", "sex"))
    lie = {"guarantee": promise.model_dump(mode="json"), "statement": list(promise.sentences()), "model": None}
    settings = {"mechanism": "laplace", "datasets": 0, "scheme": None, "draws": None}
    sign(public, **lie, privacy=settings)  # still 'asymptotic' there, which laplace does not promise
    assert_refused(capsys, folder / "release", saying="contradicts itself")
    sign(public, **lie, privacy=settings | {"guarantee": "global"})
    assert_refused(capsys, folder / "release", saying="guarantee of another kind")


def test_another_entry_of_the_ledger(copy, capsys):
    """The opening, another charge, one that is not there, and one with another hash."""
    ledger = copy.parent / "ledger.sqlite"
    other = charge(ledger, "people", 12, "another release", "asymptotic").anchor
    opening, own = entries(ledger)[0], entries(ledger)[1]
    for entry in (
        {"entry": 1, "hash": opening.hash},
        {"entry": other.entry, "hash": other.hash},
        {"entry": 4, "hash": own.hash},
        {"hash": "0" * 64},
        {"ledger": "0" * 32},
    ):
        sign(copy / "public", ledger=entry)
        for folder in (copy, copy / "public"):
            assert_refused(capsys, folder, "--ledger", ledger)


def test_an_anchor_of_another_release(copy, capsys):
    path = copy / "anchor.json"
    other = charge(copy.parent / "ledger.sqlite", "people", 12, "another release", "asymptotic").anchor
    for text in (other.to_json(), "{}", "", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert_refused(capsys, copy)


def test_a_ledger_that_was_put_back_from_a_copy(tmp_path, house, capsys):
    """Alone, when its own seal notices; with its seal, when the release's anchor does."""
    shutil.copytree(house, tmp_path / "in")
    ledger = tmp_path / "in/ledger.sqlite"
    later = charge(ledger, "people", 12, "later", "asymptotic")
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    open_budget(earlier / "ledger.sqlite", "people", 1000, "asymptotic")
    backup = ledger.read_bytes(), seal_path(ledger).read_bytes()
    charge(ledger, "people", 12, "last", "asymptotic")
    public = tmp_path / "in/release/public"
    assert verify_release(public, ledger).ledger
    ledger.write_bytes(backup[0])
    assert_refused(capsys, public, "--ledger", ledger, saying="put back")
    seal_path(ledger).write_bytes(backup[1])
    assert verify_release(public, ledger).ledger  # this release's charge is in the copy; a later one's is not
    sign(public, ledger={"entry": later.entry + 1, "hash": "a" * 64})
    assert_refused(capsys, public, "--ledger", ledger, saying="lacks the charge")
    assert_refused(capsys, house / "release", "--ledger", earlier / "ledger.sqlite", saying="not the ledger")


# --- manifests that are none ---


def malformed(manifest):
    """Texts in a manifest's place, none of which is one."""
    yield from ("", "null", "[]", "{}", '"text"', "1", "{", "\ufeff{}", "[" * 100_000, '{"a":' * 100_000)
    yield from (manifest[:-2], manifest + manifest, manifest.replace("{", '{"format": 3,', 1))
    yield from (manifest.replace(" ", ""), manifest.replace("\n", "\r\n"), manifest.rstrip("\n"))
    fields = json.loads(manifest)
    for name in fields:
        for value in (None, 1, "x", [], {}, float("nan"), float("inf"), 10**400, True, ["x"] * 3, {"x": 1}):
            if value != fields[name]:
                yield json.dumps(fields | {name: value}, indent=2) + "\n"
        yield json.dumps({key: value for key, value in fields.items() if key != name}, indent=2) + "\n"
    for part in ("guarantee", "privacy", "survey", "estimation", "ledger", "rounding", "about"):
        for name, old in fields[part].items():
            for value in (None, "x" * 20, -1, 1e999, float("nan"), [[]], {"x": {}}, "../../x", "\x1b[31m"):
                if value != old:
                    yield json.dumps(fields | {part: fields[part] | {name: value}}, indent=2) + "\n"
    digest = hashlib.sha256(b"").hexdigest()
    for name in ("../x", "/etc/passwd", "", ".", "..", "a/b", "x\n", "manifest.json", "SHA256SUMS", "\0", "\ud800"):
        yield json.dumps(fields | {"files": fields["files"] | {name: digest}}, indent=2) + "\n"
    yield json.dumps(fields | {"files": dict.fromkeys(fields["files"], digest)}, indent=2) + "\n"


def test_malformed_manifests_are_one_error(copy, capsys):
    """None of them is believed, and none of them raises anything but our own error."""
    public = copy = copy / "public"
    text = (public / "manifest.json").read_text()
    believed = []
    for number, manifest in enumerate(malformed(text)):
        (public / "manifest.json").write_bytes(manifest.encode("utf-8", "surrogatepass"))
        sign_sums(public)
        with suppress(SurveyError):
            verify_release(copy, files_only=True)
            believed.append(manifest)
        if number % 40 == 0 and manifest not in believed:
            assert_refused(capsys, copy, "--files-only")
    assert number > 500
    allowed = {"about", "estimation", "notes", "versions", "created"}
    fields = json.loads(text)
    for manifest in believed:
        other = json.loads(manifest)
        assert {name for name in fields if other[name] != fields[name]} <= allowed, manifest
