"""The ledger's file: a SQLite database under lock, checked against its seal, to which entries are only added.

Beside the ledger lies its seal (`tamper_marks.py`). An entry is added under an exclusive lock, held until the end:
(1) the seal names the present state and the hash of the next entry; (2) the database commits; (3) the seal names the
new state alone; then the lock is given up. Whoever opens the ledger requires the state in the seal, byte for byte, or,
if the seal names a next entry, the chain that ends in it. A crash before (1) leaves the old state under the old seal. A
crash between (1) and (2) leaves the old state, and one between (2) and (3) the new state, under a seal that allows
both. All of these pass. After (3) an older copy of the database is refused, and so is one with a byte changed. Between
(1) and (3) the older copy would pass, but the call that adds the missing entry had not returned, so nothing was
released under it.

The file has a version. A ledger of version 1 is upgraded in one such step: the entry that is added says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from svysynth.core.errors import SurveyError, require_type
from svysynth.privacy.budgets import Budgets, ImpossibleError, budgets_of, carried_over
from svysynth.privacy.ledger_entries import VERSION, Entry, entry_hash, first_hash, is_unbroken, old_entry
from svysynth.privacy.tamper_marks import Seal, read_seal, seal_path, write_seal

BUSY_SECONDS = 60.0
"""How long to wait for other processes that use the ledger."""
APPLICATION_ID = 0x53565953
SCHEMAS = {
    1: (
        "CREATE TABLE ledger (id TEXT NOT NULL) STRICT",
        "CREATE TABLE entries (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, budget TEXT NOT NULL, "
        "millionths INTEGER NOT NULL, purpose TEXT NOT NULL, guarantee TEXT NOT NULL, time TEXT NOT NULL, "
        "hash TEXT NOT NULL) STRICT",
    ),
    VERSION: (
        "CREATE TABLE ledger (id TEXT NOT NULL, key TEXT NOT NULL) STRICT",
        "CREATE TABLE entries (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, budget TEXT NOT NULL, "
        "accounting TEXT NOT NULL, millionths INTEGER NOT NULL, purpose TEXT NOT NULL, paid INTEGER NOT NULL, "
        "detail TEXT NOT NULL, time TEXT NOT NULL, hash TEXT NOT NULL) STRICT",
    ),
}
Mode = Literal["read", "write", "create", "upgrade"]


@dataclass(frozen=True)
class Held:
    """A ledger under lock, checked against its seal."""

    path: Path
    connection: sqlite3.Connection
    seal: Seal
    key: str
    """The key of the data's fingerprints; a ledger of version 1 has none."""
    entries: tuple[Entry, ...]
    states: Budgets


@contextlib.contextmanager
def held(path: str | Path, mode: Mode) -> Iterator[Held]:
    """The ledger under lock for as long as the block runs: shared to read, else exclusive."""
    if sqlite3.sqlite_version_info < (3, 37) or not hasattr(sqlite3.Connection, "serialize"):
        raise SurveyError("file", "SQLite", "is too old for a privacy ledger", "use a Python with SQLite 3.37 or newer")
    place = _located(path, mode == "create")
    uri = f"{place.as_uri()}?mode={'rwc' if mode == 'create' else 'rw'}"
    with _explained(place):
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        with contextlib.closing(connection):
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN" if mode == "read" else "BEGIN EXCLUSIVE")
            if mode != "read":
                # Keeps the lock beyond the commit, until the seal is written. Asked for only now, because in this mode
                # a shared lock is not given up either, and two waiting processes would wait for each other.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            version = 1 if mode == "upgrade" else VERSION
            yield (mode == "create" and _new(place, connection)) or _checked(place, connection, version)


def append(ledger: Held, draft: Entry) -> Entry:
    """Add one entry by the three steps described above; its number, time and hash are made here."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    entry = replace(draft, number=ledger.seal.entry + 1, time=time)
    entry = replace(entry, hash=entry_hash(VERSION, ledger.seal.hash, entry))
    budgets_of([*ledger.entries, entry])  # an entry that could not be read again must not be written
    _insert(ledger.connection, entry)
    write_seal(ledger.path, replace(ledger.seal, next=entry.hash))
    ledger.connection.execute("COMMIT")
    write_seal(ledger.path, Seal(ledger.seal.ledger, entry.number, entry.hash, _digest(ledger.path, ledger.connection)))
    return entry


def upgrade(ledger: Held) -> Entry:
    """Turn a ledger of version 1 into one of the present version, which keeps every entry and its hash."""
    key, connection = secrets.token_hex(32), ledger.connection
    connection.execute("DROP TABLE entries")
    connection.execute("DROP TABLE ledger")
    _create(connection, ledger.seal.ledger, key)
    for entry in ledger.entries:
        _insert(connection, entry)
    start = first_hash(VERSION, ledger.seal.ledger, key)
    return append(ledger, Entry(0, "upgrade", "", "", 0, "from version 1", 0, start, ""))


def _located(path: str | Path, create: bool) -> Path:
    """The ledger's path without links, so that whoever opens it finds the same seal."""
    require_type(path, str | Path, "the ledger", "give its path")
    try:
        place = Path(path).resolve()
        # First the seal, then the file: the file exists before a seal names it.
        seal = read_seal(place)
        if place.is_file():
            return place
        if place.exists():
            raise ledger_error(place, "is not a regular file", "name the ledger's file")
        if not place.parent.is_dir():
            raise ledger_error(place, "is in a folder that does not exist", "create the folder, or correct the path")
    except (OSError, ValueError, RuntimeError):
        raise ledger_error(Path(path), "cannot be reached", "check the path and its permissions") from None
    if seal and seal.entry:
        raise ledger_error(place, "is missing, though its anchor is there", "put the ledger back")
    if not create:
        raise ledger_error(
            place, "cannot be found", "check the path, or open a budget there first with `svysynth ledger open`"
        )
    return place


def _new(path: Path, connection: sqlite3.Connection) -> Held | None:
    """The ledger that an empty file becomes when its first entry is added; None if the file is not empty."""
    seal = read_seal(path)
    if path.stat().st_size or (seal and seal.entry):
        return None
    path.chmod(0o600)
    ledger, key = secrets.token_hex(16), secrets.token_hex(32)
    _create(connection, ledger, key)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return Held(path, connection, Seal(ledger, 0, first_hash(VERSION, ledger, key), ""), key, (), {})


def _create(connection: sqlite3.Connection, ledger: str, key: str) -> None:
    for statement in SCHEMAS[VERSION]:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("INSERT INTO ledger VALUES (?, ?)", (ledger, key))


def _insert(connection: sqlite3.Connection, entry: Entry) -> None:
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(entry))


def _checked(path: Path, connection: sqlite3.Connection, version: int) -> Held:
    """The ledger as it is, if its seal allows that state; the seal returned names that state."""
    # This first reading takes the lock; until it is given up, seal and database change no more.
    known = _number(connection, "application_id") == APPLICATION_ID
    seal = _sealed(path, known)
    digest = _digest(path, connection)
    settled = digest == seal.digest
    if not settled and not seal.next:
        raise _altered(path)
    if known:
        _check_version(path, _number(connection, "user_version"), version)
    sound = settled or _text(connection, "PRAGMA quick_check") == ("ok",)
    if not (known and sound):
        raise _altered(path)
    key, chain = _chain(path, connection, seal.ledger, version)
    try:
        states = budgets_of(chain) if key else carried_over(chain)
    except ImpossibleError:
        raise _altered(path) from None
    head = chain[-1].hash if chain else ""
    expected = (seal.entry, seal.hash) if settled else (seal.entry + 1, seal.next)
    if (len(chain), head) != expected:
        raise _altered(path)
    return Held(path, connection, Seal(seal.ledger, len(chain), head, digest), key, chain, states)


def _sealed(path: Path, known: bool) -> Seal:
    """The seal beside a ledger that has something in it."""
    seal = read_seal(path)
    if path.stat().st_size == 0:
        if seal and seal.entry:
            raise _altered(path)
        raise ledger_error(path, "holds no budget yet", "open one there with `svysynth ledger open`")
    if seal is None and not known:
        raise ledger_error(path, "is not a privacy ledger", "name the ledger's file")
    if seal is None:
        problem = f"has lost its anchor, '{seal_path(path).name}'"
        raise ledger_error(path, problem, "put the anchor back as it was after the last charge")
    return seal


def _check_version(path: Path, found: int, wanted: int) -> None:
    if found == wanted:
        return
    if (found, wanted) == (VERSION, 1):
        raise ledger_error(path, f"is of version {VERSION} already", "use it as it is")
    if found == 1:
        remedy = f"upgrade it once with `svysynth ledger upgrade {path.name}`"
        raise ledger_error(path, "was written by version 1 of the ledger", remedy)
    raise ledger_error(path, "was written by another version of svysynth", "use that version")


def _chain(path: Path, connection: sqlite3.Connection, ledger: str, version: int) -> tuple[str, tuple[Entry, ...]]:
    """The key and all entries, if the schema is the version's own and every hash follows from the one before."""
    if _text(connection, "SELECT sql FROM sqlite_schema ORDER BY rowid") != SCHEMAS[version]:
        raise _altered(path)
    about = connection.execute("SELECT * FROM ledger").fetchall()
    key = about[0][1] if version > 1 and len(about) == 1 else ""
    rows = connection.execute("SELECT * FROM entries ORDER BY number")
    chain = tuple(Entry(*row) if version > 1 else old_entry(row) for row in rows)
    if about != [(ledger, key)[:version]] or (version > 1 and not key) or not is_unbroken(chain, ledger, key):
        raise _altered(path)
    return key, chain


def _digest(path: Path, connection: sqlite3.Connection) -> str:
    """SHA-256 of the database's every byte, and of the file's length.

    The bytes come through the connection: opening and closing the file here would give up this process's locks on it.
    """
    digest = hashlib.sha256(b"%d bytes:" % path.stat().st_size)
    digest.update(connection.serialize())
    return digest.hexdigest()


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _text(connection: sqlite3.Connection, query: str) -> tuple[str, ...]:
    return tuple(row[0] for row in connection.execute(query))


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say in our own words what SQLite or the operating system could not do."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_BUSY"):
            problem = f"was in use by other processes for {BUSY_SECONDS:g} seconds"
            raise ledger_error(path, problem, "try again when they are done; nothing was charged") from None
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            raise ledger_error(path, "cannot be opened for writing", "check its permissions and its folder's") from None
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            raise _unwritten(path) from None
        if name == "SQLITE_NOTADB" and not seal_path(path).exists():
            raise ledger_error(path, "is not a privacy ledger", "name the ledger's file") from None
        raise _altered(path) from None
    except UnicodeDecodeError:  # SQLite's own message may quote damaged bytes
        raise _altered(path) from None
    except OSError:
        raise _unwritten(path) from None


def _unwritten(path: Path) -> SurveyError:
    remedy = "check the free space and the disk; a charge that was cut short may count as spent"
    return ledger_error(path, "could not be read or written in full", remedy)


def _altered(path: Path) -> SurveyError:
    remedy = "release nothing more until the ledger and its anchor are put back as they were after the last charge"
    return ledger_error(path, "is not as its last charge left it: it was changed, cut short or put back", remedy)


def ledger_error(path: Path, problem: str, remedy: str) -> SurveyError:
    """What is wrong with a ledger."""
    return SurveyError("file", f"ledger '{path.name}'", problem, remedy)
