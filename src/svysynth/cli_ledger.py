"""`svysynth ledger`: open a budget, show what was spent, verify the ledger and the releases charged to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from svysynth.anchor import Anchor
from svysynth.errors import SurveyError
from svysynth.ledger import BudgetState, entries, epsilon_text, open_budget, show, verify
from svysynth.spec import PrivacySpec, load_spec

ledger = typer.Typer(
    help="The privacy budget on disk: one for each confidential population, named in the spec's `[privacy]`.\n\n"
    "ε is accounted for in whole millionths, rounded up. A charge is on disk before anything is released.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
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
    total: Annotated[str, typer.Option(metavar="EPSILON", help="All that may ever be spent.", show_default=False)],
) -> None:
    """Set, once, what a population may spend; creates the ledger where there is none.

    Example: `svysynth ledger open doctorates.toml --total 32.4`
    """
    privacy = _privacy(spec_path)
    if privacy.budget is None:
        raise SurveyError("spec", "privacy.budget", "is not declared", "name the population's budget in the spec")
    open_budget(privacy.ledger, privacy.budget, total)
    state = next(state for state in show(privacy.ledger) if state.name == privacy.budget)
    _print(f"Opened budget '{state.name}' with ε = {epsilon_text(state.total)} in {privacy.ledger}.")


@ledger.command("show")
def show_(source: Source) -> None:
    """What every budget has left, and every charge.

    Example: `svysynth ledger show doctorates.toml`
    """
    path = _ledger_file(source)
    console = Console(highlight=False)
    console.print(_states(show(path)))
    console.print(_charges(path))


@ledger.command("verify")
def verify_(
    source: Source,
    releases: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RELEASE]...", help="Folders of releases that were charged to it.", show_default=False),
    ] = None,
) -> None:
    """Check the ledger's chain, sums and seal, and that it holds the charges of the releases given.

    A ledger that was cut short, changed or put back from a copy is refused.

    Example: `svysynth ledger verify doctorates.toml release`
    """
    path = _ledger_file(source)
    anchors = [_anchor(folder) for folder in releases or []]
    verify(path, anchors)
    count = len(entries(path))
    with_releases = f", and the charges of {len(anchors)} release(s) are in it" if anchors else ""
    _print(f"{path}: {count:,} entries, unbroken{with_releases}.")


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
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("budget", "total ε", "spent", "left", "charges"):
        table.add_column(name, justify="left" if name == "budget" else "right")
    for state in states:
        amounts = [epsilon_text(amount) for amount in (state.total, state.spent, state.left)]
        table.add_row(*map(Text, [state.name, *amounts, f"{state.charges:,}"]))
    return table


def _charges(path: Path) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("entry", "time (UTC)", "budget", "ε", "for", "guarantee"):
        table.add_column(name, justify="right" if name in ("entry", "ε") else "left")
    for entry in entries(path):
        purpose = "total" if entry.kind == "open" else entry.purpose
        when = entry.time[:16].replace("T", " ")
        cells = [str(entry.number), when, entry.budget, epsilon_text(entry.millionths), purpose, entry.guarantee]
        table.add_row(*map(Text, cells))
    return table


def _print(message: str) -> None:
    Console(highlight=False, soft_wrap=True).print(Text(message))
