"""Anchors and seals: small files beside a ledger and its releases that show when the ledger was tampered with.

They show that a ledger was cut short, replaced or put back from an older copy. An `Anchor` names one entry of one
ledger and lies beside the release that was charged there. The `Seal` is the file beside the ledger itself, whose name
ends in `.anchor`. It holds the latest entry and a digest of the whole database, and, while an entry is being added, the
hash of this entry as well; `ledger_file.py` says why these are enough.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from svysynth.core.errors import SurveyError

LONGEST_SEAL = 4096
_CANONICAL = json.JSONEncoder(separators=(",", ":"))
_HASH = re.compile(r"[0-9a-f]{64}")
_LEDGER = re.compile(r"[0-9a-f]{32}")


def canonical_hash(*fields: str | int | None) -> str:
    """SHA-256 of fields in an encoding that no other fields share: JSON in ASCII, without blanks."""
    return hashlib.sha256(_CANONICAL.encode(fields).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Anchor:
    """One entry of one ledger: whoever keeps it can tell later whether that ledger still holds the entry.

    >>> anchor = Anchor("0" * 32, 3, "f" * 64)
    >>> Anchor.from_json(anchor.to_json()) == anchor
    True
    """

    ledger: str
    entry: int
    hash: str

    def to_json(self) -> str:
        """The anchor as text, for a file beside the release."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Anchor:
        """The anchor that `to_json` wrote."""
        match _object(text):
            case {"ledger": str(ledger), "entry": int(entry), "hash": str(digest), **others}:
                whole = entry > 0 and not isinstance(entry, bool)
                if whole and _LEDGER.fullmatch(ledger) and _HASH.fullmatch(digest) and not others:
                    return cls(ledger, entry, digest)
        remedy = "give the anchor as it was written beside the release"
        raise SurveyError("file", "anchor", "is not an anchor of a privacy ledger", remedy)


@dataclass(frozen=True)
class Seal:
    """The state a ledger must be in: its latest entry and the digest of its file, or one entry more, with hash `next`.

    Entry 0 stands for the empty file that a ledger starts as.
    """

    ledger: str
    entry: int
    hash: str
    digest: str
    next: str | None = None

    def to_json(self) -> str:
        """The seal as text, with a checksum of its own."""
        fields = asdict(self)
        return json.dumps(fields | {"check": canonical_hash(*fields.values())}, indent=2) + "\n"


def seal_path(ledger: Path) -> Path:
    """Where a ledger's seal is."""
    return ledger.with_name(ledger.name + ".anchor")


def read_seal(ledger: Path) -> Seal | None:
    """The seal beside a ledger, or None where there is none; a seal with any byte changed is refused."""
    path = seal_path(ledger)
    try:
        if not path.exists():
            return None
        with path.open("rb") as file:
            content = file.read(LONGEST_SEAL)
    except FileNotFoundError:
        return None
    except OSError:
        raise _seal_error(path, "cannot be read", "check its permissions") from None
    try:
        fields = _object(content.decode())
        seal = Seal(**{key: value for key, value in fields.items() if key != "check"})
        intact = seal.to_json().encode() == content
    except (TypeError, ValueError):
        intact = False
    if not intact:
        raise _seal_error(path, "is damaged", "put back the ledger and its anchor as they were after the last charge")
    return seal


def write_seal(ledger: Path, seal: Seal) -> None:
    """Replace the seal beside a ledger; it is on disk when this returns."""
    path = seal_path(ledger)
    try:
        write_durably(path, seal.to_json())
    except OSError:
        remedy = "check the free space and the permissions there; a charge that was cut short may count as spent"
        raise _seal_error(path, "cannot be written", remedy) from None


def write_durably(path: Path, text: str) -> None:
    """Replace a file in one step; the new one is on disk, under its name, when this returns."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _object(text: str) -> dict[str, Any]:
    """The fields of a JSON object; none for any other text."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _seal_error(path: Path, problem: str, remedy: str) -> SurveyError:
    return SurveyError("file", f"anchor '{path.name}'", problem, remedy)
