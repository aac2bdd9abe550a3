"""Entries: the lines of a ledger, each with a hash that covers the hash of the entry before.

| kind | what it says | millionths | paid | detail |
|---|---|---|---|---|
| `open` | a budget's total, set once | the total | 0 | |
| `charge` | ε spent for one release | what is spent | 0 | keyed fingerprint of the data, and the clusters |
| `release` | the release that a charge paid for | 0 | the charge's number | SHA-256 of its manifest |
| `refusal` | a run that stopped after it had looked at the data | 0 | 0 | the place that was refused |
| `upgrade` | all before it was written by version 1 | 0 | 0 | the hash that a new ledger starts with |

If ε is for a whole cluster, a blank and the column of clusters follow the fingerprint; if it is for one respondent,
nothing does. Entries of version 1 keep the hashes that they had: the anchors beside old releases name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from svysynth.privacy.tamper_marks import canonical_hash

VERSION = 2


@dataclass(frozen=True)
class Entry:
    """A line of the ledger."""

    number: int
    kind: str
    budget: str
    accounting: str
    """The kind of ε. In an entry of version 1 the guarantee of a charge, or nothing."""
    millionths: int
    purpose: str
    """The name of the release's folder."""
    paid: int
    detail: str
    time: str
    hash: str = ""

    @property
    def fingerprint(self) -> str:
        """Of a charge: the keyed fingerprint of the data."""
        return self.detail.partition(" ")[0]

    @property
    def clusters(self) -> str:
        """Of a charge: the column of the clusters that ε is for; empty if ε is for one respondent."""
        return self.detail.partition(" ")[2] if self.kind == "charge" else ""


def whom(clusters: str) -> str:
    """Whose answers an ε is for, from the column of clusters in a charge.

    >>> whom(""), whom("school")
    ('one respondent', "one cluster of 'school'")
    """
    return f"one cluster of '{clusters}'" if clusters else "one respondent"


def old_entry(row: tuple[int, str, str, int, str, str, str, str]) -> Entry:
    """An entry as a ledger of version 1 kept it."""
    number, kind, budget, millionths, purpose, guarantee, time, digest = row
    return Entry(number, kind, budget, guarantee, millionths, purpose, 0, "", time, digest)


def first_hash(version: int, ledger: str, key: str) -> str:
    """The hash that the first entry follows. It covers the fingerprints' key, which version 1 did not have."""
    return canonical_hash("svysynth ledger", version, ledger, *([key] if version > 1 else []))


def entry_hash(version: int, previous: str, entry: Entry) -> str:
    """The hash of an entry: it covers the hash before, and every field in the order of the entry's version.

    It is published, so the fingerprint of a charge is left out: a public byte may depend on the answers only through
    the noise. The column of the clusters that a charge is for is public and covered. The seal covers every byte of the
    file, fingerprints too.
    """
    if version == 1:
        named = (entry.number, entry.kind, entry.budget, entry.millionths, entry.purpose, entry.accounting, entry.time)
        return canonical_hash(previous, *named)
    private = ("hash", "detail") if entry.kind == "charge" else ("hash",)
    fields = [value for name, value in vars(entry).items() if name not in private]
    return canonical_hash(previous, *fields, *([entry.clusters] if entry.clusters else []))


def split(chain: Sequence[Entry]) -> tuple[Sequence[Entry], Sequence[Entry]]:
    """The entries of version 1, and those since: the `upgrade` is the first of these, where there is one."""
    upgraded = next((place for place, entry in enumerate(chain) if entry.kind == "upgrade"), 0)
    return chain[:upgraded], chain[upgraded:]


def is_unbroken(chain: Sequence[Entry], ledger: str, key: str) -> bool:
    """Whether every hash follows from the one before, and an `upgrade` stands where it may.

    Without a key the chain is one that version 1 wrote and nobody has upgraded.
    """
    old, new = split(chain) if key else (chain, ())
    if any(entry.paid or entry.detail for entry in old):  # no hash of theirs covers these fields
        return False
    start = first_hash(VERSION, ledger, key)
    upgrades = [entry.detail for entry in new if entry.kind == "upgrade"]
    if upgrades != ([start] if old and key else []):
        return False
    previous = first_hash(1, ledger, key) if old else start
    for number, entry in enumerate(chain, start=1):
        version = 1 if number <= len(old) else VERSION
        if entry.number != number or entry.hash != entry_hash(version, previous, entry):
            return False
        previous = entry.hash
    return True
