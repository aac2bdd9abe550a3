"""The command line: its commands parse arguments, call the library and print. Nothing else prints.

A problem that the user can put right is one line on standard error and exit code 1. Anything unforeseen is one line
too: a traceback may quote confidential values, so it is shown only on request.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Annotated

import typer

import svysynth
from svysynth.cli.audit import audit
from svysynth.cli.check import check
from svysynth.cli.console import complain
from svysynth.cli.constants import constants
from svysynth.cli.frontier import frontier
from svysynth.cli.init import init
from svysynth.cli.ledger import ledger
from svysynth.cli.more import more
from svysynth.cli.regress import regress
from svysynth.cli.release import demo, release, verify
from svysynth.cli.signals import end_soon_after_a_signal
from svysynth.cli.study import study
from svysynth.cli.tables import tables
from svysynth.core.errors import SurveyError, debugging

app = typer.Typer(
    name="svysynth",
    help="Private tables and synthetic microdata from survey samples.\n\n"
    "Start with `svysynth demo`, or draft a spec for your own file with `svysynth init DATA`.\n\n"
    "Words used on these pages:\n\n"
    "- **ε**: the privacy loss, that is, how much a release can tell about one respondent; smaller is safer.\n"
    "- **m**: the number of synthetic data sets.\n"
    "- **FBS** (`fbs`): the fully Bayes model of the observed sample.\n"
    "- **FBP** (`fbp`): the fully Bayes model of the population and the sampling.\n"
    "- **the paper**: Hu, Savitsky and Williams, *Private Tabular Survey Data Products through Synthetic Microdata "
    "Generation*, where both models come from.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(ledger, name="ledger")
app.add_typer(study, name="study")
app.add_typer(audit, name="audit")
app.command()(check)
app.command()(tables)
app.command()(release)
app.command()(verify)
app.command()(more)
app.command()(regress)
app.command()(demo)
app.command()(frontier)
app.command()(constants)
app.command()(init)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        sys.exit(128 + number)

    with contextlib.suppress(ValueError):  # only the main thread may set signal handlers
        for number in (signal.SIGTERM, signal.SIGHUP):  # handled, so that half-written files are removed
            if signal.getsignal(number) is not signal.SIG_IGN:  # an ignored signal stays so, as under nohup
                signal.signal(number, stop)
    if arguments is None:  # otherwise the process belongs to the caller
        end_soon_after_a_signal()
    try:
        _run(arguments)
    except SystemExit:
        if stopped:  # a library may have taken the signal for an error of its own and changed the exit code
            sys.exit(128 + stopped[0])
        raise


def _run(arguments: list[str] | None) -> None:
    """Run the command line; what goes wrong is one message and an exit code."""
    try:
        app(args=arguments)
    except SurveyError as error:
        complain(str(error))
        sys.exit(1)
    except MemoryError:
        complain("this machine has too little memory for the data. Remedy: use a larger machine.")
        sys.exit(1)
    except Exception as error:
        if debugging():
            raise
        complain(
            f"svysynth failed in a way that was not foreseen ({type(error).__name__}). Please report it. "
            "SVYSYNTH_DEBUG=1 shows the traceback, which may quote confidential values."
        )
        sys.exit(70)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"svysynth {svysynth.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
