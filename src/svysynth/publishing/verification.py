"""Verification of a release before it is published: checksums, manifest, tables made again, and the ledger's entry.

A folder passes if its manifest is the one that was bound to its charge when it was written: one changed byte in any
public file is refused, also if the checksums were made again. The caller names the ledger, never the folder under test:
whoever forged a folder may have a ledger of their own. Without a ledger one can check that the files agree with one
another (`files_only`), but not that the folder is the one that was paid for; `Verified.ledger` says which was done.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from pydantic import ValidationError

from svysynth.core.errors import SurveyError, require_type
from svysynth.core.notebook import Html, card
from svysynth.core.registry import find_mechanism
from svysynth.core.spec.whole import load_spec
from svysynth.mechanisms.base import load_mechanism, mechanism_of
from svysynth.mechanisms.synthetic_files import AGREEMENT, read_csv, wrong
from svysynth.privacy.accounting import millionths
from svysynth.privacy.budgets import releases_of
from svysynth.privacy.guarantee import Guarantee
from svysynth.privacy.ledger import verify
from svysynth.privacy.ledger_entries import Entry
from svysynth.privacy.manifest import FORMAT, Manifest, Rounding
from svysynth.privacy.payment import ANCHOR
from svysynth.privacy.release import MICRODATA_DIGITS, STAMP, TABLE_DIGITS, rounded
from svysynth.privacy.tamper_marks import Anchor
from svysynth.publishing.public_folder import MANIFEST, SUMS, checksum, checksums, sums_text
from svysynth.survey.domains import columns_of_domain, domain_column
from svysynth.survey.formats.base import READER_ERRORS
from svysynth.survey.formats.csv import as_written
from svysynth.survey.row_filter import refuse_private_filter

NOT_AGAINST_A_LEDGER = "not checked against a ledger: nothing shows that this folder is the one that was paid for"
ROUNDING = Rounding(microdata=MICRODATA_DIGITS, tables=TABLE_DIGITS)
STRANGE = (*READER_ERRORS, ValidationError, LookupError, ValueError, TypeError, AssertionError)
"""Errors that making tables may raise if files do not belong together."""


@dataclass(frozen=True)
class Verified:
    """The checks that a release has passed."""

    manifest: Manifest
    checked: tuple[str, ...]
    ledger: bool
    """Whether the ledger has the charge of this very folder; if not, only that its files agree with one another."""

    def __repr__(self) -> str:
        paid = "" if self.ledger else f", {NOT_AGAINST_A_LEDGER}"
        return f"Verified: a release of {self.manifest.created}, {len(self.checked)} checks passed{paid}"

    def _repr_html_(self) -> Html:
        """What was checked, and what is promised."""
        warning = "" if self.ledger else f"{NOT_AGAINST_A_LEDGER[0].upper()}{NOT_AGAINST_A_LEDGER[1:]}."
        facts = {f"check {number}": check for number, check in enumerate(self.checked, start=1)}
        title = f"Verified: a release of {self.manifest.created}"
        return card(title, warning=warning, sentences=self.manifest.statement, facts=facts)


def verify_release(folder: str | Path, ledger: str | Path | None = None, *, files_only: bool = False) -> Verified:
    """Check a release, or a public folder alone; the first thing that is wrong is an error.

    `ledger` is the caller's own ledger, or a spec that names it. Without one, `files_only` checks that the files agree
    with one another.
    """
    require_type(folder, str | Path, "the folder", "give the path of a release")
    require_type(ledger, str | Path | None, "the ledger", "give its path, or that of a spec that names it")
    folder, ledger = Path(folder), _ledger_named(ledger)
    if (ledger is None) != files_only:
        _public_folder(folder)
        raise _one_of_the_two(files_only)
    public, manifest = open_release(folder)
    checked = [f"checksums of {len(manifest.files) + 1} files", "manifest against its schema"]
    checked += _check_tables(public, manifest)
    if ledger is not None:
        paid = Anchor(**vars(manifest.ledger))
        release = _check_ledger(ledger, paid, manifest.guarantee, checksum(public / MANIFEST))
        _check_anchor(folder, Anchor(paid.ledger, release.number, release.hash))
        checked.append(
            f"charged as entry {paid.entry} of the ledger {ledger} (id {paid.ledger[:8]}…), bound to this manifest by "
            f"entry {release.number}"
        )
    return Verified(manifest, tuple(checked), ledger is not None)


def open_release(folder: str | Path) -> tuple[Path, Manifest]:
    """The public folder of a release and its manifest, which agrees with itself and with the files' checksums."""
    require_type(folder, str | Path, "the folder", "give the path of a release")
    public = _public_folder(Path(folder))
    manifest = _check_files(public)
    if manifest.ledger is None or manifest.warning is not None:
        raise _seeded()
    _check_promise(manifest)
    return public, manifest


def _ledger_named(path: str | Path | None) -> Path | None:
    """The caller's own ledger, which a spec may name."""
    if path is None or Path(path).suffix != ".toml":
        return None if path is None else Path(path)
    privacy = load_spec(path).privacy
    if privacy is None:
        raise SurveyError("spec", "privacy", "is missing, so that no ledger is named", "name the ledger itself")
    return privacy.ledger


def _one_of_the_two(files_only: bool) -> SurveyError:
    if files_only:
        return SurveyError("file", "--files-only", "was given together with a ledger", "leave one of the two out")
    problem = "was not given: a folder cannot say by itself which ledger it was charged to"
    remedy = "give your ledger or your spec, or only compare the files with one another (--files-only)"
    return SurveyError("file", "--ledger", problem, remedy)


def _public_folder(folder: Path) -> Path:
    """The folder itself where it has a manifest, else the one called public in it."""
    for public in (folder, folder / "public"):
        with contextlib.suppress(OSError):
            if (public / f"{STAMP}{MANIFEST}").is_file():
                raise _seeded()
            if (public / MANIFEST).is_file():
                return public
    raise SurveyError("file", f"folder '{folder.name}'", "is not a release", "name the folder of a release")


def _check_files(public: Path) -> Manifest:
    try:
        if any(path.is_symlink() or not path.is_file() for path in public.iterdir()):
            raise wrong("has links or folders among its files")
        found = checksums(public)
        text = (public / MANIFEST).read_bytes().decode()
        sums = (public / SUMS).read_bytes() if SUMS in found else b""
    except (OSError, UnicodeDecodeError):
        raise wrong("cannot be read") from None
    found.pop(SUMS, None)
    if sums != sums_text(found).encode():
        raise wrong("is not what SHA256SUMS says: a file was changed, added or taken away")
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError:
        earlier = next((n for n in range(1, FORMAT) if text.startswith(f'{{\n  "format": {n},\n')), None)
        if earlier:
            problem = f"has a manifest of format {earlier}, of an earlier version of svysynth"
            remedy = "verify it with that version; `svysynth ledger verify` checks its charge"
            raise SurveyError("file", "the release", problem, remedy) from None
        raise wrong("has a manifest that does not follow its schema") from None
    found.pop(MANIFEST)
    if manifest.files != found or manifest.to_json() != text:
        raise wrong("has a manifest that does not belong to its files")
    return manifest


def _check_promise(manifest: Manifest) -> None:
    """Check that the manifest does not contradict itself: guarantee, statement, settings and names of files."""
    guarantee, privacy = manifest.guarantee, manifest.privacy
    member = find_mechanism(privacy.mechanism, privacy.guarantee)
    if (
        member is None
        or not member.makes(privacy.datasets)
        or guarantee != load_mechanism(member).guarantee(manifest.survey, privacy)
        or manifest.statement != guarantee.sentences()
        or manifest.rounding != ROUNDING
        or set(manifest.files) != set(load_mechanism(member).public_files(manifest))
    ):
        raise wrong("has a manifest that contradicts itself")
    _check_universe(manifest)
    _check_domains(manifest)


def _check_domains(manifest: Manifest) -> None:
    """Every domain of a table is explained, in levels of the columns that its condition names."""
    survey = manifest.survey
    named = {condition for condition in (survey.domain, *(table.domain for table in manifest.tables)) if condition}
    try:
        same = all(len(columns_of_domain(one.condition)) == len(one.columns) for one in survey.domains)
        known = survey.known_domains  # its parts have to be of the columns' levels
    except (SurveyError, LookupError, ValueError):
        raise wrong("has a manifest that contradicts itself") from None
    public = all(set(domain.columns) <= set(survey.public) for domain in known.values())
    if not (same and public and {domain_column(condition) for condition in named} <= set(known)):
        raise wrong("has a manifest that contradicts itself")


def _check_universe(manifest: Manifest) -> None:
    """The row filter may look at nothing but what the manifest calls public."""
    filtered = {"where": manifest.survey.where, "universe": manifest.survey.universe}
    try:
        refuse_private_filter(manifest.spec().survey.model_copy(update=filtered))
    except ValidationError:
        raise wrong("has a manifest that contradicts itself") from None
    except SurveyError:
        raise wrong("has a manifest whose universe is not public") from None


def _check_tables(public: Path, manifest: Manifest) -> list[str]:
    """Make the tables again from the public files, where possible, and compare; return what was done, in words."""
    source = "synthetic files"
    try:
        remade = mechanism_of(manifest.privacy).remake(public, manifest)
        if remade is None:
            return []
        source = remade.source
        again = as_written(rounded(remade.tables, TABLE_DIGITS))
        published = read_csv(public / "tables.csv", again, source)
    except STRANGE:
        raise wrong(f"has {source} that do not belong to its manifest") from None
    for column in again.columns:
        if not _same(published[column], again[column]):
            raise wrong(f"has tables that do not follow from its {source} (column '{column}')")
    made = f"{again.height:,} rows of tables, made again from {remade.number} {source}"
    return [made, *([remade.also] if remade.also else [])]


def _same(published: pl.Series, again: pl.Series) -> bool:
    if not again.dtype.is_numeric():
        return bool((published.fill_null("") == again.cast(pl.String).fill_null("")).all())
    left, right = published.to_numpy(), again.cast(pl.Float64).to_numpy()
    return bool(np.allclose(left, right, rtol=AGREEMENT, atol=0, equal_nan=True))


def _check_ledger(ledger: Path, paid: Anchor, guarantee: Guarantee, manifest: str) -> Entry:
    """Check that the ledger has the charge that a manifest names, for its promise, and that it binds this manifest."""
    chain = verify(ledger, [paid])
    charged = chain[paid.entry - 1]
    due = guarantee.charged
    if charged.kind != "charge" or charged.accounting != guarantee.accounting:
        raise wrong("was charged for a guarantee of another kind")
    if due is None or charged.millionths != millionths(due):
        raise wrong("was charged another ε than it promises")
    release = releases_of(chain).get(paid.entry)
    if release is None:
        raise wrong("names a charge that no release was written for")
    if release.detail != manifest:
        raise wrong("is not the one that was charged for: its files were changed after they were written")
    return release


def _check_anchor(folder: Path, release: Anchor) -> None:
    """Check that the anchor beside a public folder is its own."""
    path = folder / ANCHOR
    if path.is_file() and Anchor.from_json(path.read_bytes().decode(errors="replace")) != release:
        raise wrong("has the anchor of another release beside it")


def _seeded() -> SurveyError:
    return wrong("was made with a seed, which undoes the protection: it is not for release")
