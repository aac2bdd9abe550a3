"""How a run meets its ledger: what is charged, bound, recorded and noticed, and what a run with a seed leaves alone."""

import json
import shutil

import polars as pl
import pytest

from no_evidence import NoEvidence
from quick_release import SPEC, drawn_by_hand, make_release
from repeatable import repeatable
from svysynth import Streams, SurveyError, pipeline
from svysynth.cli.main import main
from svysynth.core.spec.whole import load_spec
from svysynth.mechanisms.pseudo_posterior import mechanism as pseudo_posterior
from svysynth.privacy.ledger import charge, entries, fingerprint_key, open_budget, show
from svysynth.privacy.tamper_marks import Anchor, seal_path
from svysynth.publishing import internal_folder as internal
from svysynth.publishing import public_folder as publish
from svysynth.publishing import release_folder
from svysynth.publishing.public_folder import checksum
from svysynth.publishing.verification import verify_release

LAPLACE = (
    SPEC.replace('"fbp"', '"laplace"')
    .replace('"asymptotic"', '"global"')
    .replace("[[tables]]", "[privacy.bounds]\noutcome = [1000.0, 200000.0]\nweight = [0.0, 100.0]\n\n[[tables]]", 1)
)


@pytest.fixture
def quick(monkeypatch):
    """Releases without a fit and without pages."""
    monkeypatch.setattr(pseudo_posterior, "calibrate_suitable", drawn_by_hand)
    monkeypatch.setattr(pseudo_posterior, "CalibrationEvidence", lambda _: NoEvidence())
    monkeypatch.setattr(publish, "public_page", lambda _: "<p>page</p>")
    monkeypatch.setattr(internal, "internal_page", lambda *_: "<p>page</p>")
    return monkeypatch


@pytest.fixture
def house(tmp_path):
    """A survey, its spec, a ledger and one release."""
    return make_release(tmp_path / "in")


def run(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return caught.value.code or 0, said.out, said.err


def release_again(house, name, text=SPEC, streams=None):
    (house / f"{name}.toml").write_text(text)
    return pipeline.release(load_spec(house / f"{name}.toml"), house / name, streams or repeatable(2))


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- bound to the charge ---


def test_the_anchor_beside_a_release_names_the_entry_that_binds_its_manifest(house):
    anchor = Anchor.from_json((house / "release/anchor.json").read_text())
    opened, charged, bound = entries(house / "ledger.sqlite")
    assert [opened.kind, charged.kind, bound.kind] == ["open", "charge", "release"]
    assert (bound.number, bound.hash) == (anchor.entry, anchor.hash)
    assert (bound.paid, bound.detail) == (charged.number, checksum(house / "release/public/manifest.json"))
    manifest = json.loads((house / "release/public/manifest.json").read_text())
    assert manifest["ledger"] == {"ledger": anchor.ledger, "entry": charged.number, "hash": charged.hash}


def test_a_release_gets_its_name_after_it_is_bound(quick, house):
    """What fails while it is bound leaves the charge spent and no folder."""

    def fail(*_):
        assert not (house / "second").exists()
        raise SurveyError("file", "ledger", "cannot be written", "try again")

    quick.setattr(release_folder, "record_release", fail)
    with pytest.raises(SurveyError, match="cannot be written"):
        release_again(house, "second")
    assert not (house / "second").exists()
    assert [entry.kind for entry in entries(house / "ledger.sqlite")] == ["open", "charge", "release", "charge"]


# --- two kinds of ε ---


def test_noise_is_charged_as_differential_privacy_and_the_paper_s_mechanism_as_asymptotic(quick, house):
    ledger = house / "ledger.sqlite"
    with pytest.raises(SurveyError, match="is not open for differential privacy"):
        release_again(house, "noisy", LAPLACE)
    open_budget(ledger, "people", 13, "differential privacy")
    release_again(house, "noisy", LAPLACE)
    spent = {state.accounting: (state.spent, state.left) for state in show(ledger)}
    assert spent == {"asymptotic": (12_000_000, 988_000_000), "differential privacy": (12_000_000, 1_000_000)}
    assert verify_release(house / "noisy", ledger).ledger


def test_opening_takes_the_kind_from_the_spec(house, capsys):
    (house / "noisy.toml").write_text(LAPLACE)
    code, out, _ = run(capsys, "ledger", "open", house / "noisy.toml", "--total", "5")
    assert code == 0
    assert "Opened budget 'people' (differential privacy) with ε = 5" in out
    code, out, _ = run(capsys, "ledger", "show", house / "noisy.toml")
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("people")]
    assert rows == [
        ["people", "asymptotic", "1000", "12", "988", "1", "one", "respondent"],
        ["people", *["differential", "privacy", "5", "0", "5", "0", "one", "respondent"]],
    ]


# --- runs with a seed ---


def test_a_run_with_a_seed_charges_nothing_and_needs_no_budget(quick, house):
    before = files_of(house)
    release_again(house, "tried", SPEC.replace('budget = "people"\n', ""), Streams.seeded(1))
    assert {path: content for path, content in files_of(house).items() if path in before} == before
    assert not (house / "tried/anchor.json").exists()
    assert json.loads((house / "tried/internal/run.json").read_text())["entry"] is None


def test_a_run_with_a_seed_says_so_in_every_public_file_name_and_in_its_manifest(quick, house):
    quick.undo()
    quick.setattr(pseudo_posterior, "calibrate_suitable", drawn_by_hand)
    quick.setattr(pseudo_posterior, "CalibrationEvidence", lambda _: NoEvidence())
    release_again(house, "tried", SPEC, Streams.seeded(1))
    names = {path.name for path in (house / "tried/public").iterdir()}
    whole = {path.name for path in (house / "release/public").iterdir()}
    assert names == {f"NOT-FOR-RELEASE-{name}" for name in whole}
    manifest = json.loads((house / "tried/public/NOT-FOR-RELEASE-manifest.json").read_text())
    assert "NOT FOR RELEASE" in manifest["warning"]
    assert manifest["ledger"] is None
    page = (house / "tried/public/NOT-FOR-RELEASE-report.html").read_text()
    assert 'href="NOT-FOR-RELEASE-microdata-1.csv"' in page
    assert "Charged to no budget" in page


def test_a_run_with_a_seed_fails_verification_under_any_name(quick, house, capsys):
    """As it is, with its files renamed, and with the warning taken out of its manifest."""
    release_again(house, "tried", SPEC, Streams.seeded(1))
    public, ledger = house / "tried/public", house / "ledger.sqlite"
    for folder in (house / "tried", public):
        code, out, err = run(capsys, "verify", folder, "--ledger", ledger)
        assert (code, out) == (1, "")
        assert "was made with a seed" in err
    for path in list(public.iterdir()):
        path.rename(public / path.name.removeprefix("NOT-FOR-RELEASE-"))
    manifest = json.loads((public / "manifest.json").read_text())
    manifest["files"] = {name.removeprefix("NOT-FOR-RELEASE-"): digest for name, digest in manifest["files"].items()}
    for changes in ({}, {"warning": None}):
        (public / "manifest.json").write_text(json.dumps(manifest | changes, indent=2, ensure_ascii=False) + "\n")
        (public / "SHA256SUMS").unlink()
        (public / "SHA256SUMS").write_text(publish.sums_text(publish.checksums(public)))
        code, _, err = run(capsys, "verify", public, "--files-only")
        assert code == 1
        assert "was made with a seed" in err


def test_the_command_with_a_seed_stamps_what_it_writes(quick, house, capsys):
    before = entries(house / "ledger.sqlite")
    code, out, err = run(capsys, "release", house / "spec.toml", "--out", house / "tried", "--seed", 1)
    assert (code, err) == (0, "")
    assert "NOT FOR RELEASE" in out
    assert entries(house / "ledger.sqlite") == before


# --- the same data under another name ---


def test_the_same_data_under_another_budget_are_told_inside_and_nowhere_else(quick, house, capsys):
    ledger = house / "ledger.sqlite"
    open_budget(ledger, "others", 100, "asymptotic")
    (house / "others.toml").write_text(SPEC.replace('budget = "people"', 'budget = "others"'))
    code, out, err = run(capsys, "release", house / "others.toml", "--out", house / "second")
    assert (code, err) == (0, "")
    assert "Warning: The same data were charged to budget 'people' too." in out
    (warning,) = json.loads((house / "second/internal/run.json").read_text())["warnings"]
    assert "budget 'people'" in warning
    assert json.loads((house / "release/internal/run.json").read_text())["warnings"] == []
    prints = {entry.detail for entry in entries(ledger) if entry.kind == "charge"}
    assert len(prints) == 1
    secrets = [*prints, fingerprint_key(ledger).hex(), "others", "same data"]
    for path, content in files_of(house / "second/public").items():
        assert not [secret for secret in secrets if secret.encode() in content], path


def test_other_data_under_another_budget_are_no_cause_for_a_warning(quick, house, capsys):
    open_budget(house / "ledger.sqlite", "others", 100, "asymptotic")
    frame = pl.read_csv(house / "people.csv").with_columns(pl.col("salary") + 1)
    frame.write_csv(house / "people.csv")
    (house / "others.toml").write_text(SPEC.replace('budget = "people"', 'budget = "others"'))
    code, out, _ = run(capsys, "release", house / "others.toml", "--out", house / "second")
    assert code == 0
    assert "Warning" not in out


# --- a ledger that was put back together with its seal ---


def put_back(house, copy):
    ledger = house / "ledger.sqlite"
    for path, content in zip((ledger, seal_path(ledger)), copy, strict=True):
        path.write_bytes(content)


def test_a_ledger_put_back_with_its_seal_is_noticed_by_the_releases_beside(quick, house):
    ledger = house / "ledger.sqlite"
    copy = ledger.read_bytes(), seal_path(ledger).read_bytes()
    release_again(house, "second")
    put_back(house, copy)
    before = files_of(house)
    with pytest.raises(SurveyError, match="lacks the charge of a release, entry 5"):
        release_again(house, "third")
    assert not (house / "third").exists()
    assert {path: content for path, content in files_of(house).items() if path.name != "third.toml"} == before


def test_a_ledger_put_back_while_the_model_was_fitted_is_not_charged(quick, house):
    ledger = house / "ledger.sqlite"
    copy = ledger.read_bytes(), seal_path(ledger).read_bytes()
    release_again(house, "second")

    def slow(*arguments, **options):
        put_back(house, copy)
        return drawn_by_hand(*arguments, **options)

    quick.setattr(pseudo_posterior, "calibrate_suitable", slow)
    with pytest.raises(SurveyError, match="lacks the charge of a release"):
        release_again(house, "third")
    assert [entry.kind for entry in entries(ledger)] == ["open", "charge", "release"]


def test_releases_of_other_ledgers_and_things_that_are_none_may_lie_beside(quick, house, tmp_path):
    other = make_release(tmp_path / "other")
    shutil.copytree(other / "release", house / "from elsewhere")
    for name, text in (("empty", ""), ("odd", "[1]"), ("binary", "\xff")):
        (house / name).mkdir()
        (house / name / "anchor.json").write_text(text, encoding="latin-1")
    (house / "folder/anchor.json").mkdir(parents=True)
    release_again(house, "second")
    release_again(house, "third")


def test_a_release_into_a_folder_that_is_not_there_yet(quick, house):
    pipeline.release(load_spec(house / "spec.toml"), house / "new/folder/release", repeatable(3))
    assert verify_release(house / "new/folder/release", house / "spec.toml").ledger


# --- refusals ---


def refusals(house):
    return [entry for entry in entries(house / "ledger.sqlite") if entry.kind == "refusal"]


def test_a_run_refused_after_it_looked_at_the_data_is_recorded(quick, house, capsys):
    """By the data themselves, by the fit, and by the design; nothing is spent."""
    before = show(house / "ledger.sqlite")

    def refuse(*_, **__):
        raise SurveyError("spec", "privacy.epsilon", "is too small for these 120 records", "use more")

    frame = pl.read_csv(house / "people.csv")
    frame.with_columns(pl.col("salary") * -1).write_csv(house / "negative.csv")
    with pytest.raises(SurveyError, match="not positive"):
        release_again(house, "first", SPEC.replace("people.csv", "negative.csv"))
    quick.setattr(pseudo_posterior, "calibrate_suitable", refuse)
    with pytest.raises(SurveyError, match="is too small"):
        release_again(house, "second")
    found = refusals(house)
    assert [(entry.purpose, entry.detail) for entry in found] == [
        ("first", "column 'salary'"),
        ("second", "privacy.epsilon"),
    ]
    assert {(entry.budget, entry.accounting, entry.millionths) for entry in found} == {("people", "asymptotic", 0)}
    assert show(house / "ledger.sqlite") == before
    code, out, _ = run(capsys, "ledger", "show", house / "spec.toml")
    assert code == 0
    assert "stopped at privacy.epsilon" in out
    assert "120" not in out


def test_what_is_refused_before_the_data_are_read_is_not_recorded(quick, house):
    cases = {
        "a": (SPEC.replace("people.csv", "nowhere.csv"), "nowhere"),
        "b": (SPEC.replace("epsilon = 12.0", "epsilon = 1200.0"), "has less left"),
        "c": (SPEC.replace('"fbp"', '"laplace-paper"').replace('"asymptotic"', '"none"'), "cannot be released"),
    }
    for name, (text, message) in cases.items():
        with pytest.raises(SurveyError, match=message):
            release_again(house, name, text)
    with pytest.raises(SurveyError, match="exists already"):
        release_again(house, "release")
    assert refusals(house) == []


def test_what_fails_after_the_charge_has_its_charge_for_a_record(quick, house):
    def fail(*_):
        raise SurveyError("spec", "tables", "went wrong", "try again")

    quick.setattr(pipeline, "rounded", fail)
    with pytest.raises(SurveyError, match="went wrong"):
        release_again(house, "second")
    assert [entry.kind for entry in entries(house / "ledger.sqlite")] == ["open", "charge", "release", "charge"]


def test_a_refused_run_with_a_seed_leaves_no_record(quick, house):
    quick.setattr(
        pseudo_posterior,
        "calibrate_suitable",
        lambda *_, **__: (_ for _ in ()).throw(SurveyError("spec", "a", "b", "c")),
    )
    with pytest.raises(SurveyError):
        release_again(house, "second", SPEC, Streams.seeded(1))
    assert refusals(house) == []


def test_the_first_error_is_shown_where_the_refusal_cannot_be_recorded(quick, house):
    def spoil(*_, **__):
        (house / "ledger.sqlite").write_bytes(b"spoilt")
        raise SurveyError("spec", "privacy.epsilon", "is too small", "use more")

    quick.setattr(pseudo_posterior, "calibrate_suitable", spoil)
    with pytest.raises(SurveyError, match="is too small"):
        release_again(house, "second")


def test_a_charge_that_came_too_late_is_a_refusal_too(quick, house):
    def spend(*arguments, **options):
        charge(house / "ledger.sqlite", "people", 980, "meanwhile", "asymptotic")
        return drawn_by_hand(*arguments, **options)

    quick.setattr(pseudo_posterior, "calibrate_suitable", spend)
    with pytest.raises(SurveyError, match="has 8 left of 1000"):
        release_again(house, "second")
    assert [entry.detail for entry in refusals(house)] == ["budget 'people'"]
