"""Made the ledger of version 1 in this folder, with svysynth as it was then (its ledger's SCHEMA_VERSION was 1).

Today's svysynth makes ledgers of version 2, so this runs with that older one alone. `anchors.json` has the anchors that
lay beside the releases.
"""

import json
from dataclasses import asdict
from pathlib import Path

from svysynth.privacy.ledger import SCHEMA_VERSION, charge, open_budget

HERE = Path(__file__).parent

assert SCHEMA_VERSION == 1
ledger = HERE / "ledger.sqlite"
open_budget(ledger, "mixed", 20)
open_budget(ledger, "paper", "32.4")
open_budget(ledger, "unused", 5)
charges = [
    charge(ledger, "mixed", 3, "first", "asymptotic"),
    charge(ledger, "paper", "10.8", "second", "asymptotic"),
    charge(ledger, "mixed", "2.5", "third", "global"),
]
(HERE / "anchors.json").write_text(json.dumps([asdict(paid.anchor) for paid in charges], indent=2) + "\n")
