"""The privacy budget on disk: what each confidential population may spend, and every charge against it.

A ledger is one SQLite file with a hash-chained list of entries; one ledger may hold several budgets. `charge` returns
once the charge is on disk, and a release is written only after that, so a crash leaves a charge spent and never a
release unpaid. Amounts are whole millionths of ε. Nothing in a ledger is confidential.

Beside the ledger lies its seal (`anchor.py`). An entry is added under an exclusive lock that is held until the end:
(1) the seal names the present state and the hash of the next entry; (2) the database commits; (3) the seal names the
new state alone; then `charge` returns. Whoever opens the ledger asks for the state in the seal, byte for byte, or, if
the seal names a next entry, for the chain that ends in it. A crash before (1) leaves the old state under the old seal,
one up to (2) the old state under a seal that allows both, one up to (3) the new state under that same seal: all pass.
After (3) an older copy of the database passes no more, and neither does one with a byte changed. Between (1) and (3)
the older copy would pass, but the charge it lacks had not returned, so nothing was released under it. Whoever puts
back database and seal together is caught by the anchors beside the releases, which `verify` takes.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from pathlib import Path
from typing import Literal
from unicodedata import normalize

from svysynth.anchor import Anchor, Seal, canonical_hash, read_seal, seal_path, write_seal
from svysynth.errors import SurveyError, did_you_mean, is_plain, require_type

BUSY_SECONDS = 60.0
"""How long to wait for other processes that use the ledger."""
LARGEST_EPSILON = Decimal(10**9)
LONGEST_NAME = 200
APPLICATION_ID = 0x53565953
SCHEMA_VERSION = 1
SCHEMA = (
    "CREATE TABLE ledger (id TEXT NOT NULL) STRICT",
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, budget TEXT NOT NULL, "
    "millionths INTEGER NOT NULL, purpose TEXT NOT NULL, guarantee TEXT NOT NULL, time TEXT NOT NULL, "
    "hash TEXT NOT NULL) STRICT",
)
_MILLIONTH = Decimal("0.000001")
_EXACT = Context(prec=50)


@dataclass(frozen=True)
class Entry:
    """A line of the ledger: a budget is opened with its total, or something is charged to it."""

    number: int
    kind: str
    budget: str
    millionths: int
    purpose: str
    guarantee: str
    time: str
    hash: str


@dataclass(frozen=True)
class Charge:
    """What was paid for one release; it is on disk. The anchor belongs beside that release."""

    budget: str
    millionths: int
    entry: int
    hash: str
    anchor: Anchor


@dataclass(frozen=True)
class BudgetState:
    """Where one budget stands, in millionths of ε."""

    name: str
    total: int
    spent: int = 0
    charges: int = 0

    @property
    def left(self) -> int:
        """What may still be charged."""
        return self.total - self.spent


@dataclass(frozen=True)
class _Held:
    """A ledger under lock, checked against its seal."""

    path: Path
    connection: sqlite3.Connection
    seal: Seal
    entries: tuple[Entry, ...]
    states: dict[str, BudgetState]


def millionths(amount: str | float | Decimal, rounding: str = ROUND_CEILING) -> int:
    """An amount of ε, as a user reads it, in millionths: a charge is rounded up, a total (`ROUND_FLOOR`) down.

    >>> millionths(0.1), millionths("10.8"), millionths("0.0000001"), millionths("1.9999999", ROUND_FLOOR)
    (100000, 10800000, 1, 1999999)
    """
    with contextlib.suppress(InvalidOperation):
        value = Decimal(str(amount))
        if value.is_finite() and 0 < value <= LARGEST_EPSILON:
            return int(value.quantize(_MILLIONTH, rounding, _EXACT).scaleb(6, _EXACT))
    remedy = f"give a number above 0 and at most {LARGEST_EPSILON:,}"
    raise SurveyError("spec", "epsilon", "is not an amount that can be accounted for", remedy)


def epsilon_text(amount: int) -> str:
    """Millionths as a user reads them.

    >>> epsilon_text(10_800_000), epsilon_text(1), epsilon_text(3_000_000)
    ('10.8', '0.000001', '3')
    """
    return f"{amount // 10**6}.{amount % 10**6:06d}".rstrip("0").rstrip(".")


def open_budget(path: str | Path, name: str, total: str | float | Decimal) -> None:
    """Set, once, what a population may spend; the ledger is created if there is none.

    The total is rounded down to millionths, so that no more is spent than was granted.
    """
    name, amount = _plain(name, "budget"), millionths(total, ROUND_FLOOR)
    if amount == 0:
        raise SurveyError("spec", f"budget '{name}'", "has a total below one millionth", "give a larger total")
    with _held(path, "create") as held:
        if name in held.states:
            raise SurveyError("spec", f"budget '{name}'", "is open already", "charge it, or open one of another name")
        _append(held, "open", name, amount, "", "")


def charge(path: str | Path, name: str, epsilon: str | float | Decimal, purpose: str, kind: str) -> Charge:
    """Spend ε of a budget for a purpose (the release's id) under a guarantee of this kind, or refuse.

    When it returns, the charge is on disk and stays spent; only then may the release be written.
    """
    name, amount = _plain(name, "budget"), millionths(epsilon)
    purpose, kind = _plain(purpose, "purpose"), _plain(kind, "guarantee")
    with _held(path, "write") as held:
        state = held.states.get(name)
        if state is None:
            hint = did_you_mean(name, held.states)
            remedy = "open the budget first, or correct its name"
            raise SurveyError("spec", f"budget '{name}'", f"is not in ledger '{held.path.name}'{hint}", remedy)
        if amount > state.left:
            left, asked = epsilon_text(state.left), epsilon_text(amount)
            problem = f"has {left} left of {epsilon_text(state.total)}, and {asked} was asked for"
            raise SurveyError("spec", f"budget '{name}'", problem, "ask for less, or release nothing more")
        entry = _append(held, "charge", name, amount, purpose, kind)
        anchor = Anchor(held.seal.ledger, entry.number, entry.hash)
    return Charge(name, amount, entry.number, entry.hash, anchor)


def show(path: str | Path) -> list[BudgetState]:
    """Where every budget of a ledger stands, in the order they were opened."""
    with _held(path, "read") as held:
        return list(held.states.values())


def entries(path: str | Path) -> tuple[Entry, ...]:
    """Every entry of a ledger, oldest first."""
    with _held(path, "read") as held:
        return held.entries


def verify(path: str | Path, anchors: Iterable[Anchor] = ()) -> None:
    """Check the chain, the sums, the seal, and that the ledger holds the entry of every anchor given."""
    with _held(path, "read") as held:
        known = {Anchor(held.seal.ledger, entry.number, entry.hash) for entry in held.entries}
        for anchor in anchors:
            if anchor.ledger != held.seal.ledger:
                remedy = "verify the ledger that the release was charged to"
                raise _ledger_error(held.path, "is not the ledger that an anchor names", remedy)
            if anchor not in known:
                problem = f"lacks the charge of a release, entry {anchor.entry}"
                raise _ledger_error(held.path, problem, "release nothing more until the charges it lost are found")


@contextlib.contextmanager
def _held(path: str | Path, mode: Literal["read", "write", "create"]) -> Iterator[_Held]:
    """The ledger under lock for as long as the block runs: shared to read, exclusive to write or create."""
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
            yield (mode == "create" and _new(place, connection)) or _checked(place, connection)


def _located(path: str | Path, create: bool) -> Path:
    """The ledger's path without links, so that whoever opens it finds the same seal."""
    require_type(path, str | Path, "the ledger", "give its path")
    try:
        place = Path(path).resolve()
        # First the seal, then the file: it is there before a seal says so.
        seal = read_seal(place)
        if place.is_file():
            return place
        if place.exists():
            raise _ledger_error(place, "is not a regular file", "name the ledger's file")
        if not place.parent.is_dir():
            raise _ledger_error(place, "is in a folder that does not exist", "create the folder, or correct the path")
    except (OSError, ValueError, RuntimeError):
        raise _ledger_error(Path(path), "cannot be reached", "check the path and its permissions") from None
    if seal and seal.entry:
        raise _ledger_error(place, "is missing, though its anchor is there", "put the ledger back")
    if not create:
        raise _ledger_error(place, "cannot be found", "check the path, or open a budget there first")
    return place


def _new(path: Path, connection: sqlite3.Connection) -> _Held | None:
    """The ledger that an empty file becomes when its first entry is added; None if the file is not empty."""
    seal = read_seal(path)
    if path.stat().st_size or (seal and seal.entry):
        return None
    path.chmod(0o600)
    ledger = secrets.token_hex(16)
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("INSERT INTO ledger VALUES (?)", (ledger,))
    return _Held(path, connection, Seal(ledger, 0, _start(ledger), ""), (), {})


def _checked(path: Path, connection: sqlite3.Connection) -> _Held:
    """The ledger as it is, if its seal allows that state; the seal returned names that state."""
    # This first reading takes the lock; until it is given up, seal and database change no more.
    known = _number(connection, "application_id") == APPLICATION_ID
    seal = read_seal(path)
    if path.stat().st_size == 0:
        if seal and seal.entry:
            raise _altered(path)
        raise _ledger_error(path, "holds no budget yet", "open a budget there first")
    if seal is None and not known:
        raise _ledger_error(path, "is not a privacy ledger", "name the ledger's file")
    if seal is None:
        problem = f"has lost its anchor, '{seal_path(path).name}'"
        raise _ledger_error(path, problem, "put the anchor back as it was after the last charge")
    digest = _digest(path, connection)
    settled = digest == seal.digest
    if not settled and not seal.next:
        raise _altered(path)
    if known and _number(connection, "user_version") != SCHEMA_VERSION:
        raise _ledger_error(path, "was written by another version of svysynth", "use that version")
    sound = settled or _text(connection, "PRAGMA quick_check") == ("ok",)
    if not (known and sound):
        raise _altered(path)
    chain = _chain(path, connection, seal.ledger)
    states = _states(path, chain)
    head = chain[-1].hash if chain else ""
    expected = (seal.entry, seal.hash) if settled else (seal.entry + 1, seal.next)
    if (len(chain), head) != expected:
        raise _altered(path)
    return _Held(path, connection, Seal(seal.ledger, len(chain), head, digest), chain, states)


def _chain(path: Path, connection: sqlite3.Connection, ledger: str) -> tuple[Entry, ...]:
    """All entries, if the schema is the ledger's own and every hash follows from the one before."""
    if _text(connection, "SELECT sql FROM sqlite_schema ORDER BY rowid") != SCHEMA:
        raise _altered(path)
    if _text(connection, "SELECT id FROM ledger") != (ledger,):
        raise _altered(path)
    chain = tuple(Entry(*row) for row in connection.execute("SELECT * FROM entries ORDER BY number"))
    previous = _start(ledger)
    for number, entry in enumerate(chain, start=1):
        if entry.number != number or entry.hash != _hash(previous, entry):
            raise _altered(path)
        previous = entry.hash
    return chain


def _states(path: Path, chain: Iterable[Entry]) -> dict[str, BudgetState]:
    """The budgets after these entries; each is opened once, before its charges, and never overspent."""
    states: dict[str, BudgetState] = {}
    for entry in chain:
        state = states.get(entry.budget)
        if entry.kind == "open" and state is None and entry.millionths > 0:
            states[entry.budget] = BudgetState(entry.budget, entry.millionths)
        elif entry.kind == "charge" and state is not None and 0 < entry.millionths <= state.left:
            spent, charges = state.spent + entry.millionths, state.charges + 1
            states[entry.budget] = replace(state, spent=spent, charges=charges)
        else:
            raise _altered(path)
    return states


def _append(held: _Held, kind: str, budget: str, amount: int, purpose: str, guarantee: str) -> Entry:
    """Add one entry by the three steps of this file's first paragraphs."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    entry = Entry(held.seal.entry + 1, kind, budget, amount, purpose, guarantee, time, "")
    entry = replace(entry, hash=_hash(held.seal.hash, entry))
    held.connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", tuple(vars(entry).values()))
    write_seal(held.path, replace(held.seal, next=entry.hash))
    held.connection.execute("COMMIT")
    write_seal(held.path, Seal(held.seal.ledger, entry.number, entry.hash, _digest(held.path, held.connection)))
    return entry


def _start(ledger: str) -> str:
    """What the first entry follows."""
    return canonical_hash("svysynth ledger", SCHEMA_VERSION, ledger)


def _hash(previous: str, entry: Entry) -> str:
    return canonical_hash(previous, *(value for field, value in vars(entry).items() if field != "hash"))


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


def _plain(text: str, what: str) -> str:
    """A name as it is kept: printable, of bounded length, and one of the spellings that look the same."""
    if isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and is_plain(text) and text == text.strip():
        return normalize("NFC", text)
    remedy = f"use 1 to {LONGEST_NAME} printable characters, with no blank at either end"
    raise SurveyError("spec", what, "is not a plain name", remedy)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say in our own words what SQLite or the operating system could not do."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_BUSY"):
            problem = f"was in use by other processes for {BUSY_SECONDS:g} seconds"
            raise _ledger_error(path, problem, "try again when they are done; nothing was charged") from None
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            raise _ledger_error(
                path, "cannot be opened for writing", "check its permissions and its folder's"
            ) from None
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            raise _unwritten(path) from None
        if name == "SQLITE_NOTADB" and not seal_path(path).exists():
            raise _ledger_error(path, "is not a privacy ledger", "name the ledger's file") from None
        raise _altered(path) from None
    except UnicodeDecodeError:  # SQLite's own message may quote damaged bytes
        raise _altered(path) from None
    except OSError:
        raise _unwritten(path) from None


def _unwritten(path: Path) -> SurveyError:
    remedy = "check the free space and the disk; a charge that was cut short may count as spent"
    return _ledger_error(path, "could not be read or written in full", remedy)


def _altered(path: Path) -> SurveyError:
    remedy = "release nothing more until the ledger and its anchor are put back as they were after the last charge"
    return _ledger_error(path, "is not as its last charge left it: it was changed, cut short or put back", remedy)


def _ledger_error(path: Path, problem: str, remedy: str) -> SurveyError:
    return SurveyError("file", f"ledger '{path.name}'", problem, remedy)
