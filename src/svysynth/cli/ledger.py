"""`svysynth ledger`: open a budget, show what was spent, verify the ledger and its releases, upgrade an old one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from svysynth.cli.console import make_table, say
from svysynth.cli.console import show as print_table
from svysynth.core.errors import SurveyError
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.whole import load_spec
from svysynth.privacy.accounting import epsilon_text
from svysynth.privacy.budgets import BudgetState
from svysynth.privacy.ledger import entries, open_budget, show, upgrade, verify
from svysynth.privacy.ledger_entries import Entry, whom
from svysynth.privacy.tamper_marks import Anchor

ledger = typer.Typer(
    help="The privacy budget on disk: one for each confidential population, named in the spec's `[privacy]`.\n\n"
    "ε is counted in whole millionths, and charges are rounded up. A charge is on disk before anything is released. "
    "Differential privacy and the paper's asymptotic figure have budgets of their own and are never added.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

MIXED = (
    "not all charges are for the same clusters. Their sum holds for one respondent. For a whole cluster of k "
    "respondents a charge for one respondent counts k times."
)

Source = Annotated[
    Path,
    typer.Argument(metavar="SPEC", help="A spec, or a ledger's own file.", readable=False, show_default=False),
]


@ledger.command("open")
def open_(
    spec_path: Annotated[
        Path, typer.Argument(metavar="SPEC", help="A spec with privacy.budget.", readable=False, show_default=False)
    ],
    total: Annotated[
        str, typer.Option(metavar="EPSILON", help="The most ε that may ever be charged.", show_default=False)
    ],
) -> None:
    """Set, once, how much ε may be charged for a population; the ledger is created if there is none.

    The kind of ε follows from the spec's mechanism and guarantee. Under `differential privacy` the total is the ε for a
    changed answer; otherwise it is the paper's asymptotic figure. A population with releases of both kinds has a budget
    for each.

    Example: `svysynth ledger open doctorates.toml --total 30`
    """
    privacy = _privacy(spec_path)
    if privacy.budget is None:
        raise SurveyError("spec", "privacy.budget", "is not declared", "name the population's budget in the spec")
    state = open_budget(privacy.ledger, privacy.budget, total, privacy.accounting)
    say(f"Opened budget '{state.name}' ({state.accounting}) with ε = {epsilon_text(state.total)} in {privacy.ledger}.")


@ledger.command("show")
def show_(source: Source) -> None:
    """Show what every budget has left, and every charge, release and refusal.

    Example: `svysynth ledger show doctorates.toml`
    """
    path = _ledger_file(source)
    states, chain = show(path), entries(path)
    print_table(_states(states))
    print_table(_entries(chain))
    for state in states:
        if state.mixed:
            say(f"Budget '{state.name}' ({state.accounting}): {MIXED}")


@ledger.command("verify")
def verify_(
    source: Source,
    releases: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RELEASE]...", help="Folders of releases that were charged to it.", show_default=False),
    ] = None,
) -> None:
    """Check the ledger's chain, sums and seal, and that it holds the charges of the releases given.

    A ledger that was cut short, changed or put back from an older copy is refused.

    Example: `svysynth ledger verify doctorates.toml release`
    """
    path = _ledger_file(source)
    anchors = [_anchor(folder) for folder in releases or []]
    verify(path, anchors)
    count = len(entries(path))
    with_releases = f", and the charges of {len(anchors)} release(s) are in it" if anchors else ""
    say(f"{path}: {count:,} entries, unbroken{with_releases}.")


@ledger.command("upgrade")
def upgrade_(source: Source) -> None:
    """Bring a ledger of version 1 to version 2, once.

    Its chain, sums and seal are checked first. Every entry and its hash stay, so that the anchors beside old releases
    still hold. A budget continues with what was left, in each kind of ε in which it was charged; a budget without
    charges has to be opened again. Earlier versions of svysynth cannot use the ledger after the upgrade.

    Example: `svysynth ledger upgrade doctorates.toml`
    """
    path = _ledger_file(source)
    upgrade(path)
    print_table(_states(show(path)))
    say(f"{path} is of version 2 now.")


def _privacy(path: Path) -> PrivacySpec:
    privacy = load_spec(path).privacy
    if privacy is None:
        raise SurveyError("spec", "privacy", "is not declared", "add [privacy] with epsilon and budget")
    return privacy


def _ledger_file(source: Path) -> Path:
    return _privacy(source).ledger if source.suffix == ".toml" else source


def _anchor(folder: Path) -> Anchor:
    try:
        return Anchor.from_json((folder / "anchor.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        remedy = "name the folder of a release"
        raise SurveyError("file", f"folder '{folder.name}'", "has no anchor.json", remedy) from None


def _states(states: list[BudgetState]) -> Table:
    table = make_table()
    for name in ("budget", "kind of ε", "total ε", "spent", "left", "charges", "sum holds for"):
        table.add_column(name, justify="left" if name in ("budget", "kind of ε", "sum holds for") else "right")
    for state in states:
        amounts = [epsilon_text(amount) for amount in (state.total, state.spent, state.left)]
        table.add_row(*map(Text, [state.name, state.accounting, *amounts, f"{state.charges:,}", state.holds_for]))
    return table


def _entries(chain: Sequence[Entry]) -> Table:
    table = make_table()
    for name in ("entry", "time (UTC)", "what", "budget", "kind of ε", "ε", "ε is for", "note"):
        table.add_column(name, justify="right" if name in ("entry", "ε") else "left")
    for entry in chain:
        when = entry.time[:16].replace("T", " ")
        amount = epsilon_text(entry.millionths) if entry.millionths else ""
        unit = whom(entry.clusters) if entry.kind == "charge" else ""
        cells = [str(entry.number), when, entry.kind, entry.budget, entry.accounting, amount, unit, _purpose(entry)]
        table.add_row(*map(Text, cells))
    return table


def _purpose(entry: Entry) -> str:
    match entry.kind:
        case "open":
            return "total"
        case "release":
            return f"{entry.purpose}, paid by entry {entry.paid}"
        case "refusal":
            return f"{entry.purpose}, stopped at {entry.detail}"
        case _:
            return entry.purpose
