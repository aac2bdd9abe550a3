"""The command line: parse, call, print. No logic of its own, and the only place that prints.

A problem the user can put right is one line on standard error and exit code 1. Anything unforeseen is one line too:
a traceback may quote confidential values, so it is shown only on request.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

import svysynth
from svysynth.cli_audit import audit
from svysynth.cli_constants import constants
from svysynth.cli_frontier import frontier
from svysynth.cli_ledger import ledger
from svysynth.cli_study import keep_compiled_programs, study
from svysynth.draft import draft_spec
from svysynth.engine import LOCAL, Engine, EngineName, chosen_engine
from svysynth.errors import SurveyError, shown
from svysynth.files import appearing, refuse_overwriting, write_frame
from svysynth.ledger import open_budget
from svysynth.overview import overview
from svysynth.replicates import make_replicates
from svysynth.report.excel import write_workbook
from svysynth.report.terminal import INTERNAL, render_overview, render_tables
from svysynth.spec import Spec, load_spec
from svysynth.streams import Streams
from svysynth.studies.standin import doctorates
from svysynth.survey import Survey, survey_from_file
from svysynth.tables import tabulate_all

if TYPE_CHECKING:  # these need JAX, which takes a second to load
    from svysynth.suitability import Finding
    from svysynth.verdict import ReleaseVerdict

app = typer.Typer(
    name="svysynth",
    help="Private tables and synthetic microdata from survey samples.\n\n"
    "Start with `svysynth demo`, or draft a spec for your own file with `svysynth init DATA`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(ledger, name="ledger")
app.add_typer(study, name="study")
app.add_typer(audit, name="audit")
app.command()(frontier)
app.command()(constants)

WIDTH_OF_A_PIPE = 160
DEMO_TOTAL = "1080"
"""What the demo's budget allows: a hundred releases."""

SpecPath = Annotated[
    Path, typer.Argument(metavar="SPEC", help="The spec: one page of TOML.", readable=False, show_default=False)
]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        sys.exit(128 + number)

    with contextlib.suppress(ValueError):  # only the main thread may
        for number in (signal.SIGTERM, signal.SIGHUP):  # so that what is half written is cleared away
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, stop)
    try:
        _run(arguments)
    except SystemExit:
        if stopped:  # which may have come at a moment in which some library took it for an error of its own
            sys.exit(128 + stopped[0])
        raise


def _run(arguments: list[str] | None) -> None:
    """Run the command line; what goes wrong is one message and an exit code."""
    try:
        app(args=arguments)
    except SurveyError as error:
        _complain(str(error))
        sys.exit(1)
    except MemoryError:
        _complain("this machine has too little memory for the data. Remedy: use a larger machine.")
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SVYSYNTH_DEBUG"):
            raise
        _complain(
            f"svysynth failed in a way that was not foreseen ({type(error).__name__}). Please report it. "
            "SVYSYNTH_DEBUG=1 shows the traceback, which may quote confidential values."
        )
        sys.exit(70)


def _complain(message: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text("Error: ", style="bold red") + Text(message))


def _console() -> Console:
    """A console that wraps at the terminal's width, and not where the output goes to a file or a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"svysynth {svysynth.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def init(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A survey file.", readable=False, show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the draft; beside the data by default.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing spec.")] = False,
) -> None:
    """Draft a commented spec from a survey file.

    Roles are guessed from the columns' names, types and numbers of distinct values; no value of the data goes into the
    draft. DATA is csv, tsv, parquet (a file or a folder), sas7bdat, xpt, dta or sav.

    Example: `svysynth init doctorates.csv`
    """
    target = out or data.parent / f"{data.resolve().stem}.toml"
    draft = draft_spec(data, target.parent)
    refuse_overwriting(target, data)
    if target.exists() and not force:
        raise SurveyError("file", f"file '{target.name}'", "exists already", "use --force, or --out FILE")
    with appearing(target) as temporary:
        temporary.write_text(draft.text, encoding="utf-8")
    console = _console()
    console.print(Text(f"Drafted {target}"), soft_wrap=True)
    for role, column in draft.roles.items():
        console.print(Text(f"  {role:8} {shown(column)}"), soft_wrap=True)
    console.print(Text(f"Next: look it over, then run  svysynth check {target}"), soft_wrap=True)


@app.command()
def check(spec_path: SpecPath) -> None:
    """Validate a spec and its data, and show the design. Nothing is spent.

    What it prints is computed from the confidential data and is for internal use.

    Example: `svysynth check doctorates.toml`
    """
    _show_design(load_spec(spec_path))


@app.command()
def tables(
    spec_path: SpecPath,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to FILE (csv, tsv, parquet or xlsx) instead.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Repeat the same bootstrap replicates.", show_default=False)
    ] = None,
) -> None:
    """Direct tables from the confidential data, with design-based standard errors. For internal use.

    Counts, means, totals and proportions for every cell, margin and the total. Standard errors are by Taylor
    linearisation, or by replication where the spec's `[estimation]` says so.

    Examples: `svysynth tables doctorates.toml`, `svysynth tables doctorates.toml --out tables.xlsx`
    """
    spec = load_spec(spec_path)
    if out is not None:
        refuse_overwriting(out, spec_path, spec.survey.data)
    tidy = _direct_tables(spec, seed)
    if out is None:
        _show_tables(tidy, spec)
    else:
        _save_tables(tidy, out)
        _console().print(Text(f"Wrote {out}: {tidy.height:,} rows. {INTERNAL}"))


@app.command()
def release(
    spec_path: SpecPath,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for public/ and internal/.")],
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="For tests: charges nothing, stamps all NOT FOR RELEASE.", show_default=False),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Who goes through the records: see docs/large.md.")] = "local",
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Dask cluster's; without it, this machine's.", show_default=False),
    ] = None,
) -> None:
    """Synthetic microdata and tables under a stated ε.

    Fits the model, weights down risky records until ε holds, charges the population's budget, draws the synthetic
    surveys and makes the tables from them. DIR/public can go out; DIR/internal says how it went and must never leave
    the house. With `mechanism = "laplace"` the release is tables with additive noise. docs/privacy.md says what each
    guarantee means. Parquet too large for memory is read in parts; the result does not depend on how it is cut, nor on
    the engine.

    Example: `svysynth release doctorates.toml --out release`
    """
    spec = load_spec(spec_path)
    with chosen_engine(engine, scheduler) as workers:
        _run_release(spec, out, seed, workers)


@app.command()
def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A release, or its public folder.", readable=False, show_default=False)
    ],
    ledger_path: Annotated[
        Path | None, typer.Option("--ledger", metavar="FILE", help="The ledger it was charged to.", show_default=False)
    ] = None,
) -> None:
    """Check a release that is going out.

    Checksums and manifest, that the tables follow from the synthetic files by making them again, and that the ledger
    has a charge for this very folder: files that were changed and signed again are an error. A public folder alone is
    checked without the ledger, and the output says so; a whole release whose ledger cannot be found is an error.

    Example: `svysynth verify release`
    """
    from svysynth.verification import verify_release

    found = verify_release(folder, ledger_path)
    console = _console()
    for line in found.checked:
        console.print(Text(f"  ok  {line}"), soft_wrap=True)
    if not found.ledger:
        warning = "  --  not checked against the ledger: nothing shows that this folder is the one that was paid for"
        console.print(Text(f"{warning}. Give the ledger with --ledger."), soft_wrap=True)
    for sentence in found.manifest.statement:
        console.print(Text(sentence), soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("svysynth-demo"),
) -> None:
    """Run the whole job on a generated survey.

    Writes a stand-in for the Survey of Doctorate Recipients (10,355 generated records, no real person) and its spec to
    a folder, opens a budget, releases, verifies the release and shows its tables.
    """
    console = _console()
    spec_path = write_example(out)
    console.print(Text(f"Wrote {out / 'doctorates.csv'} and {spec_path}.", style="bold"), soft_wrap=True)
    console.print(Text(f"\n$ svysynth check {spec_path}", style="bold"), soft_wrap=True)
    spec = load_spec(spec_path)
    _show_design(spec)
    open_demo_budget(spec)
    folder = _next_folder(out)
    console.print(Text(f"\n$ svysynth release {spec_path} --out {folder}", style="bold"), soft_wrap=True)
    released = _run_release(spec, folder, seed=None)
    console.print(Text(f"\n$ svysynth verify {folder}", style="bold"), soft_wrap=True)
    verify(folder)
    console.print(render_tables(released, spec.estimation))
    for page in ("public/report.html", "public/tables.xlsx", "internal/report.html"):
        console.print(Text(f"Open {folder / page}"), soft_wrap=True)


def open_demo_budget(spec: Spec) -> None:
    """Open the example's budget, unless its ledger is there already."""
    assert spec.privacy is not None
    if not spec.privacy.ledger.exists():
        open_budget(spec.privacy.ledger, str(spec.privacy.budget), DEMO_TOTAL, spec.privacy.accounting)


def _next_folder(folder: Path) -> Path:
    """A release is never overwritten: the first name that is free."""
    names = (folder / f"release-{number}" for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def write_example(folder: Path) -> Path:
    """Write the stand-in and its spec to a folder; the spec's path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise SurveyError("file", f"folder '{folder.name}'", "cannot be made", "choose another with --out") from None
    write_frame(doctorates(), folder / "doctorates.csv")
    spec = folder / "doctorates.toml"
    with appearing(spec) as temporary:
        temporary.write_bytes((resources.files("svysynth.studies") / "doctorates.toml").read_bytes())
    return spec


def _run_release(spec: Spec, out: Path, seed: int | None, engine: Engine = LOCAL) -> pl.DataFrame:
    """Release, and return the public tables."""
    keep_compiled_programs()
    from svysynth.internal import warnings_of
    from svysynth.manifest import NOT_FOR_RELEASE
    from svysynth.pipeline import release as run

    console = _console()
    streams = Streams.from_system() if seed is None else Streams.seeded(seed)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("starting")
        verdicts: list[ReleaseVerdict] = []
        done = run(spec, out, streams, lambda step: bar.update(task, description=step), engine, verdicts.append)
    if done.seeded:
        console.print(Text(NOT_FOR_RELEASE, style="bold red"))
    for sentence in done.guarantee.sentences():
        console.print(Text(sentence), soft_wrap=True)
    console.print(
        Text(f"Wrote {out / 'public'} and {out / 'internal'}. Only public/ may leave the house."), soft_wrap=True
    )
    for warning in warnings_of(done):
        console.print(Text("Warning: ", style="bold yellow") + Text(warning), soft_wrap=True)
    _show_verdict(console, verdicts[0])
    return done.tables


def _show_verdict(console: Console, verdict: ReleaseVerdict) -> None:
    """What the confidential data say of the release: the last thing on the screen."""
    console.print(Text(INTERNAL, style="bold yellow"), soft_wrap=True)
    first, *reasons = verdict.lines()
    console.print(Text(first, style="bold"), soft_wrap=True)
    for reason in reasons:
        console.print(Text(f"  {reason}"), soft_wrap=True)


def _show_design(spec: Spec) -> None:
    survey = survey_from_file(spec.survey)
    survey.index.refuse_lonely(spec.estimation.lonely)
    console = _console()
    console.print(Text(INTERNAL, style="bold yellow"))
    console.print(render_overview(overview(survey), spec))
    for finding in _findings(survey, spec):
        word, style = ("release would refuse", "bold red") if finding.stops else ("look closer", "bold yellow")
        console.print(Text(f"{word}: ", style=style) + Text(finding.line()), soft_wrap=True)


def _findings(survey: Survey, spec: Spec) -> list[Finding]:
    """What would make a release of this survey wrong."""
    from svysynth.suitability import examine, find_public

    if spec.privacy is None:
        return []
    public = find_public(spec)
    return public or list(examine(survey, spec, tabulate_all(survey, spec.requested_tables, spec.estimation)).findings)


def _direct_tables(spec: Spec, seed: int | None) -> pl.DataFrame:
    survey = survey_from_file(spec.survey)
    replicates = None
    if spec.estimation.variance != "taylor":
        streams = Streams.from_system() if seed is None else Streams.seeded(seed)
        replicates = make_replicates(survey.index, spec.estimation, streams)
    return tabulate_all(survey, spec.requested_tables, spec.estimation, replicates)


def _show_tables(tidy: pl.DataFrame, spec: Spec) -> None:
    console = _console()
    console.print(Text(INTERNAL, style="bold yellow"))
    console.print(render_tables(tidy, spec.estimation))


def _save_tables(tidy: pl.DataFrame, path: Path) -> None:
    if path.suffix.lower() == ".xlsx":
        write_workbook(tidy, path, [INTERNAL, "Estimates and standard errors of the survey, by svysynth."])
    elif path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        write_frame(tidy.with_columns(pl.lit("confidential, internal use only").alias("source")), path)
    else:
        raise SurveyError(
            "file", f"file '{path.name}'", "has an ending that cannot be written", "use csv, parquet or xlsx"
        )
