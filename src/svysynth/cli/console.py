"""The console of the command line: how wide it is, how it complains, and the argument that all commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

WIDTH_OF_A_PIPE = 160

SpecPath = Annotated[
    Path, typer.Argument(metavar="SPEC", help="The spec: one page of TOML.", readable=False, show_default=False)
]


def make_console() -> Console:
    """A console that wraps at the terminal's width, and not where the output goes to a file or a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE)


def complain(message: str) -> None:
    """One line on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text("Error: ", style="bold red") + Text(message))
