"""Budgets: what each population was granted and charged, found from a ledger's entries alone.

A budget is a name and a kind of accounting. Entries that cannot follow one another raise `ImpossibleError`: a budget
opened twice, a charge beyond what is left, two releases for one charge.

A budget of version 1 had one total for charges of every kind. Each kind that was charged continues with what was left.
What was charged as `global` counts twice, because version 1 did not say whether its ε was for an answer changed or for
one blanked out, and the first is up to twice the second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from svysynth.core.notebook import Html, card
from svysynth.core.registry import Accounting
from svysynth.privacy.accounting import ACCOUNTINGS, epsilon_text
from svysynth.privacy.ledger_entries import Entry, split, whom

Budgets = dict[tuple[str, str], "BudgetState"]
_HASH = re.compile(r"[0-9a-f]{64}")


class ImpossibleError(ValueError):
    """The entries of a ledger contradict one another."""


@dataclass(frozen=True)
class BudgetState:
    """The state of one budget, in millionths of ε."""

    name: str
    accounting: Accounting
    total: int
    spent: int = 0
    charges: int = 0
    units: tuple[str, ...] = ()
    """The columns of clusters that charges were for, each once; an empty name for charges for one respondent."""

    def __repr__(self) -> str:
        total, left = epsilon_text(self.total), epsilon_text(self.left)
        return f"Budget '{self.name}' ({self.accounting}): ε = {total}, {left} left after {self.charges:,} charges"

    def _repr_html_(self) -> Html:
        """What was granted, spent and is left."""
        amounts = {"granted": self.total, "spent": self.spent, "left": self.left}
        facts = {"kind of ε": self.accounting, **{name: epsilon_text(amount) for name, amount in amounts.items()}}
        counted = {"charges": f"{self.charges:,}", "the sum holds for": self.holds_for}
        return card(f"Privacy budget '{self.name}'", facts=facts | counted)

    @property
    def holds_for(self) -> str:
        """Whose answers the sum of the charges is for: a cluster's only if every charge is for the same clusters."""
        return whom("" if self.mixed else "".join(self.units))

    @property
    def mixed(self) -> bool:
        """Whether some charges are for whole clusters, and not all for the same ones."""
        return len(self.units) > 1

    @property
    def left(self) -> int:
        """What may still be charged."""
        return self.total - self.spent


def budgets_of(chain: Sequence[Entry]) -> Budgets:
    """The budgets after these entries, in the order they were opened."""
    old, new = split(chain)
    states = carried_over(old)
    open_charges: dict[int, Entry] = {}
    for entry in new:
        match entry.kind:
            case "open":
                states |= _opened(states, entry)
            case "charge":
                states |= _charged(states, entry)
                open_charges[entry.number] = entry
            case "release":
                _check_release(entry, open_charges.pop(entry.paid, None))
            case "refusal":
                _check(_key(entry) in states and entry.millionths == entry.paid == 0)
            case "upgrade":
                _check(entry.millionths == entry.paid == 0 and not entry.budget)
            case _:
                raise ImpossibleError
    return states


def releases_of(chain: Sequence[Entry]) -> dict[int, Entry]:
    """The `release` entry of each charge that has one, by the charge's number."""
    return {entry.paid: entry for entry in chain if entry.kind == "release"}


def carried_over(old: Sequence[Entry]) -> Budgets:
    """The budgets that those of version 1 become."""
    totals: dict[str, int] = {}
    spent: dict[str, dict[str, list[int]]] = {}
    for entry in old:
        if entry.kind == "open":
            _check(entry.budget not in totals and entry.millionths > 0)
            totals[entry.budget], spent[entry.budget] = entry.millionths, {}
        else:
            _check(entry.kind == "charge" and 0 < entry.millionths <= totals.get(entry.budget, 0))
            totals[entry.budget] -= entry.millionths
            kind = "differential privacy" if entry.accounting == "global" else "asymptotic"
            factor = 2 if kind == "differential privacy" else 1
            spent[entry.budget].setdefault(kind, []).append(factor * entry.millionths)
    return {
        (name, kind): BudgetState(name, kind, left + sum(charges), sum(charges), len(charges), ("",))
        for name, left in totals.items()
        for kind in ACCOUNTINGS
        if (charges := spent[name].get(kind, []))
    }


def _opened(states: Budgets, entry: Entry) -> Budgets:
    kind = next((kind for kind in ACCOUNTINGS if kind == entry.accounting), None)
    if kind is None or _key(entry) in states or entry.millionths <= 0 or entry.paid:
        raise ImpossibleError
    return {_key(entry): BudgetState(entry.budget, kind, entry.millionths)}


def _charged(states: Budgets, entry: Entry) -> Budgets:
    state = states.get(_key(entry))
    if state is None or not 0 < entry.millionths <= state.left or entry.paid:
        raise ImpossibleError
    units = tuple(dict.fromkeys((*state.units, entry.clusters)))
    spent, charges = state.spent + entry.millionths, state.charges + 1
    return {_key(entry): replace(state, spent=spent, charges=charges, units=units)}


def _check_release(entry: Entry, paid: Entry | None) -> None:
    """Check that a release belongs to an earlier charge that has no other release."""
    _check(paid is not None and _key(paid) == _key(entry) and entry.millionths == 0)
    _check(_HASH.fullmatch(entry.detail) is not None)


def _key(entry: Entry) -> tuple[str, str]:
    return entry.budget, entry.accounting


def _check(possible: bool) -> None:
    if not possible:
        raise ImpossibleError
