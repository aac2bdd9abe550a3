"""The privacy budget on disk: what each confidential population may spend, and everything that was charged to it.

A ledger is one file (`ledger_file.py`) with a hash-chained list of entries (`ledger_entries.py`); one ledger may hold
several budgets. `charge` returns once the charge is on disk, and a release is written only after that, so a crash
leaves a charge spent and never a release unpaid. When the release is written, `record_release` binds its manifest to
the charge, and one charge serves one release. Only then does the release's folder get its name.

The ledger holds the key of the data's fingerprints and is internal. If database and seal are put back together from an
older copy, the anchors beside the releases show it; `release` and `verify` look for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from unicodedata import normalize

from svysynth.core.errors import SurveyError, did_you_mean, is_plain, shown
from svysynth.privacy.accounting import ACCOUNTINGS, epsilon_text, millionths
from svysynth.privacy.budgets import BudgetState, releases_of
from svysynth.privacy.ledger_entries import Entry
from svysynth.privacy.ledger_file import Held, append, held, ledger_error
from svysynth.privacy.ledger_file import upgrade as upgrade_file
from svysynth.privacy.tamper_marks import Anchor

LONGEST_NAME = 200


@dataclass(frozen=True)
class Charge:
    """The charge for one release; it is on disk."""

    ledger: Path
    budget: str
    accounting: str
    millionths: int
    anchor: Anchor
    """The charge's own entry."""
    also_charged: tuple[str, ...] = ()
    """Other budgets that the same data were charged to, of which the producer is warned."""

    @property
    def entry(self) -> int:
        """The number of the charge's entry."""
        return self.anchor.entry


def open_budget(path: str | Path, name: str, total: str | float | Decimal, accounting: str) -> BudgetState:
    """Set, once, how much ε of one kind may be charged for a population; the ledger is created if there is none.

    The total is rounded down to millionths, so that no more is spent than was granted.
    """
    name, amount = _plain(name, "budget"), millionths(total, ROUND_FLOOR)
    kind = next((kind for kind in ACCOUNTINGS if kind == accounting), None)
    if kind is None:
        remedy = f"use one of {', '.join(ACCOUNTINGS)}"
        raise SurveyError("spec", f"budget '{name}'", "has an unknown kind of ε", remedy)
    if amount == 0:
        raise SurveyError("spec", f"budget '{name}'", "has a total below one millionth", "give a larger total")
    with held(path, "create") as ledger:
        if (name, accounting) in ledger.states:
            remedy = "use it as it is"
            raise SurveyError("spec", f"budget '{name}' ({accounting})", "is open already", remedy)
        append(ledger, Entry(0, "open", name, kind, amount, "", 0, "", ""))
    return BudgetState(name, kind, amount)


def charge(
    path: str | Path,
    name: str,
    epsilon: str | float | Decimal,
    purpose: str,
    accounting: str,
    fingerprint: str = "",
    clusters: str = "",
) -> Charge:
    """Spend ε of a budget for a purpose (the release's name), or refuse.

    When it returns, the charge is on disk and stays spent; only then may the release be written. The fingerprint is
    that of the data (`fingerprint.py`). `clusters` names the column of the clusters that ε is for; without it ε is for
    one respondent.
    """
    name, amount, purpose = _plain(name, "budget"), millionths(epsilon), _plain(purpose, "purpose")
    detail = f"{fingerprint} {shown(clusters)}" if clusters else fingerprint
    with held(path, "write") as ledger:
        state = _budget(ledger, name, accounting)
        if amount > state.left:
            left, asked = epsilon_text(state.left), epsilon_text(amount)
            problem = f"has {left} left of {epsilon_text(state.total)}, and {asked} was asked for"
            raise SurveyError("spec", f"budget '{name}'", problem, "use a smaller epsilon, or release nothing more")
        others = dict.fromkeys(
            entry.budget
            for entry in ledger.entries
            if entry.kind == "charge" and fingerprint and entry.fingerprint == fingerprint and entry.budget != name
        )
        entry = append(ledger, Entry(0, "charge", name, accounting, amount, purpose, 0, detail, ""))
        anchor = Anchor(ledger.seal.ledger, entry.number, entry.hash)
    return Charge(ledger.path, name, accounting, amount, anchor, tuple(others))


def record_release(paid: Charge, manifest: str) -> Anchor:
    """Bind the SHA-256 of a release's manifest to the charge that paid for it; the anchor belongs beside that release.

    A charge serves one release: a second is refused.
    """
    with held(paid.ledger, "write") as ledger:
        _require(ledger, [paid.anchor])
        if paid.entry in releases_of(ledger.entries):
            problem = f"has a release for entry {paid.entry} already"
            raise ledger_error(ledger.path, problem, "charge again: one charge serves one release")
        purpose = ledger.entries[paid.entry - 1].purpose
        entry = append(ledger, Entry(0, "release", paid.budget, paid.accounting, 0, purpose, paid.entry, manifest, ""))
        return Anchor(ledger.seal.ledger, entry.number, entry.hash)


def record_refusal(path: str | Path, name: str, accounting: str, purpose: str, place: str) -> None:
    """Note that a run was refused after it had looked at confidential data, and where; nothing is spent."""
    name, purpose = _plain(name, "budget"), _plain(purpose, "purpose")
    with held(path, "write") as ledger:
        _budget(ledger, name, accounting)
        append(ledger, Entry(0, "refusal", name, accounting, 0, purpose, 0, shown(place), ""))


def upgrade(path: str | Path) -> None:
    """Bring a ledger of version 1 to today's version, after its chain, sums and seal have been checked."""
    with held(path, "upgrade") as ledger:
        upgrade_file(ledger)


def fingerprint_key(path: str | Path) -> bytes:
    """The secret key of the fingerprints in a ledger."""
    with held(path, "read") as ledger:
        return bytes.fromhex(ledger.key)


def show(path: str | Path) -> list[BudgetState]:
    """The state of every budget of a ledger, in the order in which they were opened."""
    with held(path, "read") as ledger:
        return list(ledger.states.values())


def entries(path: str | Path) -> tuple[Entry, ...]:
    """Every entry of a ledger, oldest first."""
    with held(path, "read") as ledger:
        return ledger.entries


def verify(path: str | Path, anchors: Iterable[Anchor] = ()) -> tuple[Entry, ...]:
    """Check the chain, the sums, the seal, and that the ledger holds the entry of every anchor; its entries."""
    with held(path, "read") as ledger:
        _require(ledger, anchors)
        return ledger.entries


def verify_own(path: str | Path, anchors: Iterable[Anchor]) -> None:
    """Check the same as `verify`, but ignore anchors of other ledgers."""
    with held(path, "read") as ledger:
        _require(ledger, [anchor for anchor in anchors if anchor.ledger == ledger.seal.ledger])


def _require(ledger: Held, anchors: Iterable[Anchor]) -> None:
    known = {Anchor(ledger.seal.ledger, entry.number, entry.hash) for entry in ledger.entries}
    for anchor in anchors:
        if anchor.ledger != ledger.seal.ledger:
            remedy = "verify the ledger that the release was charged to"
            raise ledger_error(ledger.path, "is not the ledger that an anchor names", remedy)
        if anchor not in known:
            problem = f"lacks the charge of a release, entry {anchor.entry}: it was put back from an older copy"
            raise ledger_error(ledger.path, problem, "release nothing more until the charges it lost are found")


def _budget(ledger: Held, name: str, accounting: str) -> BudgetState:
    state = ledger.states.get((name, accounting))
    if state is not None:
        return state
    others = [kind for budget, kind in ledger.states if budget == name]
    if others:
        problem = f"is open for {others[0]} and not for {accounting}; the two are never added"
        remedy = "open it for this kind as well, with a total of its own"
    else:
        hint = did_you_mean(name, (budget for budget, _ in ledger.states))
        problem = f"is not in ledger '{ledger.path.name}'{hint}"
        remedy = "open the budget first, or correct its name"
    raise SurveyError("spec", f"budget '{name}'", problem, remedy)


def _plain(text: str, what: str) -> str:
    """A name as it is kept: printable, of bounded length, and in one of the spellings that look the same."""
    if isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and is_plain(text) and text == text.strip():
        return normalize("NFC", text)
    remedy = f"use 1 to {LONGEST_NAME} printable characters, with no blank at either end"
    raise SurveyError("spec", what, "is not a plain name", remedy)
