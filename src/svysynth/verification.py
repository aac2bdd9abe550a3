"""Verification of a release that is going out: checksums, manifest, tables from microdata, and the ledger's entry.

Whoever has the public folder can check everything but the ledger, which stays in the house.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from pydantic import ValidationError

from svysynth.anchor import Anchor
from svysynth.combine import make_synthetic
from svysynth.errors import SurveyError
from svysynth.files import open_data, read_columns
from svysynth.ledger import entries, millionths, verify
from svysynth.manifest import Manifest
from svysynth.publish import MANIFEST, SUMS, checksums, sums_text
from svysynth.release import TABLE_DIGITS, rounded, survey_of_microdata

AGREEMENT = 1e-8
"""Tables made again may differ by this fraction: sums of floats depend on the machine in their last digits."""


@dataclass(frozen=True)
class Verified:
    """What was checked, for the reader."""

    manifest: Manifest
    checked: tuple[str, ...]
    ledger: bool
    """Whether the ledger was at hand."""


def verify_release(folder: Path, ledger: Path | None = None) -> Verified:
    """Check a release, or a public folder alone; the first thing that is wrong is an error."""
    public = folder / "public" if (folder / "public").is_dir() else folder
    if not (public / MANIFEST).is_file():
        raise SurveyError("file", f"folder '{folder.name}'", "is not a release", "name the folder of a release")
    manifest = _check_files(public)
    checked = [f"checksums of {len(manifest.files) + 1} files", "manifest against its schema"]
    if manifest.privacy.datasets:
        rows = _check_tables(public, manifest)
        checked.append(f"{rows:,} rows of tables, made again from {manifest.privacy.datasets} synthetic files")
    ledger = ledger or _ledger_of(folder)
    if ledger is not None:
        _check_ledger(ledger, manifest)
        checked.append(f"entry {manifest.ledger.entry} of the ledger")
    return Verified(manifest, tuple(checked), ledger is not None)


def _check_files(public: Path) -> Manifest:
    try:
        unexpected = [path for path in public.iterdir() if not path.is_file() or path.is_symlink()]
        found = checksums(public) if not unexpected else {}
        text = (public / MANIFEST).read_text(encoding="utf-8")
        sums = (public / SUMS).read_text(encoding="utf-8") if SUMS in found else ""
    except (OSError, UnicodeDecodeError):
        raise _wrong("cannot be read") from None
    found.pop(SUMS, None)
    if sums != sums_text(found):
        raise _wrong("is not what SHA256SUMS says: a file was changed, added or taken away")
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError:
        raise _wrong("has a manifest that does not follow its schema") from None
    found.pop(MANIFEST)
    if manifest.files != found or manifest.to_json() != text:
        raise _wrong("has a manifest that does not belong to its files")
    return manifest


def _check_tables(public: Path, manifest: Manifest) -> int:
    """Make the tables again from the microdata and compare."""
    try:
        frames = [
            pl.read_parquet(public / f"microdata-{number}.parquet")
            for number in range(1, manifest.privacy.datasets + 1)
        ]
        spec = manifest.spec()
        surveys = tuple(survey_of_microdata(frame, spec, manifest.survey.levels) for frame in frames)
        smoothing = manifest.model.smoothing if manifest.model else "full"
        synthetic = make_synthetic(surveys, manifest.privacy.mechanism, smoothing)
        again = rounded(synthetic.tabulate_all(spec.requested_tables, spec.estimation), TABLE_DIGITS)
        published = _read_tables(public, again)
    except (OSError, pl.exceptions.PolarsError, ValidationError):
        raise _wrong("has synthetic files that do not belong to its manifest") from None
    for column in again.columns:
        if not _same(published[column], again[column]):
            raise _wrong(f"has tables that do not follow from its synthetic files (column '{column}')")
    return again.height


def _read_tables(public: Path, like: pl.DataFrame) -> pl.DataFrame:
    file = open_data(public / "tables.csv")
    if tuple(file.columns) != tuple(like.columns):
        raise _wrong("has tables with other columns than its synthetic files give")
    frame = read_columns(file, file.columns)
    numbers = [column for column, dtype in like.schema.items() if dtype.is_numeric()]
    if frame.height != like.height:
        raise _wrong("has tables with other rows than its synthetic files give")
    return frame.with_columns(pl.col(numbers).cast(pl.Float64))


def _same(published: pl.Series, again: pl.Series) -> bool:
    if not again.dtype.is_numeric():
        return bool((published.fill_null("") == again.cast(pl.String).fill_null("")).all())
    left, right = published.to_numpy(), again.cast(pl.Float64).to_numpy()
    return bool(np.allclose(left, right, rtol=AGREEMENT, atol=0, equal_nan=True))


def _check_ledger(ledger: Path, manifest: Manifest) -> None:
    anchor = Anchor(manifest.ledger.ledger, manifest.ledger.entry, manifest.ledger.hash)
    verify(ledger, [anchor])
    entry = next(entry for entry in entries(ledger) if entry.number == anchor.entry)
    promised = manifest.guarantee.epsilon_blanked
    if entry.kind != "charge" or promised is None or entry.millionths < millionths(promised):
        raise _wrong("was charged less than it promises")
    if entry.guarantee != manifest.guarantee.kind:
        raise _wrong("was charged for a guarantee of another kind")


def _ledger_of(folder: Path) -> Path | None:
    """Where the house that made the release keeps its ledger, if this is that house."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        path = Path(json.loads((folder / "internal" / "run.json").read_text(encoding="utf-8"))["ledger"])
        return path if path.is_file() else None
    return None


def _wrong(problem: str) -> SurveyError:
    return SurveyError("file", "the release", problem, "do not publish it; release again from the spec")
