"""The console of the command line, and what its commands share: how they print, what options mean, where they write.

Commands parse, call and print. This file decides once for all of them how wide the console is, what a progress bar
looks like, what `--seed` and `--engine` mean, and which files and folders may be written to:

- a folder given with `--out` is a new one (`core/new_folder.py`), unless the command says that it continues an
  unfinished run;
- a table given with `--out` may replace an earlier table, but never the file it was made from;
- a file that people edit, such as a spec, is replaced with `--force` only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from svysynth.core.engine import LOCAL, EngineName
from svysynth.core.errors import SurveyError, file_error
from svysynth.core.spec.whole import Spec
from svysynth.core.streams import Streams
from svysynth.survey.files import refuse_overwriting
from svysynth.survey.large_files import undivided_design, with_reader
from svysynth.survey.survey import Survey

Result = TypeVar("Result")

WIDTH_OF_A_PIPE = 160
"""Width in characters where the output goes to a file or a pipe."""
WIDTH_OF_A_PAGE = 80
"""Width in characters for commands whose output people paste into pages."""
LARGEST_NUMBER = 1e9
TABLE_ENDINGS = (".csv", ".tsv", ".parquet")
INTERNAL_STYLE = "bold yellow"
"""The style of lines that are for internal use."""

# --- options that commands share ---

SpecPath = Annotated[
    Path, typer.Argument(metavar="SPEC", help="The spec: one page of TOML.", readable=False, show_default=False)
]
EngineOption = Annotated[EngineName, typer.Option(help="Execution backend: see docs/large.md.")]
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The address of a Dask cluster; without it, Dask runs on this machine.",
        show_default=False,
    ),
]


def seed_option(effect: str) -> Any:
    """The option `--seed`, whose help says what repeats."""
    return typer.Option(min=0, help=effect, show_default=False)


def streams_of(seed: int | None) -> Streams:
    """Random numbers that repeat, or fresh ones where there is no seed."""
    return Streams.from_system() if seed is None else Streams.seeded(seed)


def positive_numbers(text: str, option: str, example: str, largest: float = LARGEST_NUMBER) -> list[float]:
    """The numbers of a list that was typed, in ascending order."""
    try:
        numbers = sorted({float(part) for part in text.split(",")})
        if numbers and numbers[0] > 0 and numbers[-1] <= largest:
            return numbers
    except ValueError:
        pass
    raise SurveyError("spec", option, "is not a list of positive numbers", f"write it like {example}")


# --- printing ---


def make_console(pipe: int = WIDTH_OF_A_PIPE) -> Console:
    """A console as wide as the terminal, and of a fixed width where the output goes to a file or a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else pipe)


def say(line: str | Text, style: str = "") -> None:
    """A line on standard output. It is not wrapped, so that what is in it can be copied."""
    make_console().print(Text(line, style=style) if isinstance(line, str) else line, soft_wrap=True)


def show(renderable: RenderableType, pipe: int = WIDTH_OF_A_PIPE) -> None:
    """A table, or text that is wrapped, on standard output."""
    make_console(pipe).print(renderable)


def warn(word: str, text: str, style: str = INTERNAL_STYLE) -> None:
    """A line that begins with a word that says what it is, such as a warning."""
    say(Text(f"{word}: ", style=style) + Text(text))


def complain(message: str) -> None:
    """One line on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text("Error: ", style="bold red") + Text(message))


def make_table(title: str = "", **settings: Any) -> Table:
    """An empty table in the style of all commands."""
    return Table(
        box=box.SIMPLE_HEAD, title=Text(title, style="bold") if title else None, title_justify="left", **settings
    )


# --- progress ---


@contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """While the block runs, a spinner with the step that was named last; it is gone afterwards."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=make_console(), transient=True) as bar:
        task = bar.add_task("starting")
        yield lambda step: bar.update(task, description=step)


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """While the block runs, a bar that shows how many of a number are done; it is gone afterwards."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TimeRemainingColumn(), console=make_console(), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


# --- files to write to; for folders see core/new_folder.py ---


def refuse_table_file(
    out: Path | None, *sources: Path, endings: tuple[str, ...] = (".csv", ".tsv", ".parquet")
) -> None:
    """Stop before the work where a file's ending is no table's, or the table would replace what it is made from."""
    if out is None:
        return
    if out.suffix.lower() not in endings:
        *others, last = (ending.removeprefix(".") for ending in endings)
        raise file_error(out, "cannot be written with this file extension", f"use {', '.join(others)} or {last}")
    refuse_overwriting(out, *sources)


def refuse_existing_file(target: Path, force: bool) -> None:
    """Stop where a file that people edit exists already, unless `--force` was given."""
    if target.exists() and not force:
        raise SurveyError("file", f"file '{target.name}'", "exists already", "use --force, or --out FILE")


# --- the survey that a command works on ---


def with_survey(spec: Spec, folder: Path, work: Callable[[Survey], Result]) -> Result:
    """What `work` makes of the survey; a large survey is kept meanwhile in a hidden folder inside `folder`."""
    return with_reader(spec.survey, undivided_design(spec), folder, LOCAL, lambda read: work(read(spec.survey)))
