"""`svysynth release`, `svysynth verify` and `svysynth demo`: what goes out."""

from __future__ import annotations

import itertools
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from svysynth.cli.console import SpecPath, make_console
from svysynth.cli.study import keep_compiled_programs
from svysynth.cli.tables import show_design
from svysynth.core.engine import LOCAL, Engine, EngineName, chosen_engine
from svysynth.core.errors import SurveyError
from svysynth.core.hidden_folders import appearing
from svysynth.core.spec import Spec, load_spec
from svysynth.core.streams import Streams
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.report.terminal import INTERNAL, render_tables
from svysynth.survey.doctorates import doctorates
from svysynth.survey.files import write_frame

if TYPE_CHECKING:  # it needs JAX, which takes a second to load
    from svysynth.publishing.verdict import ReleaseVerdict

DEMO_TOTAL = "300"
"""What the demo's budget allows: a hundred releases."""


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

    Charges the population's budget and writes two folders. DIR/public can go out: tables, synthetic files, a report.
    DIR/internal says how it went and is confidential. With `guarantee = "global"` of fbs and fbp, sums of the answers
    are measured once with noise, and all that is public follows from them. With `asymptotic`, the paper's, risky
    records are weighted down until ε holds. With `mechanism = "laplace"` the release is tables with additive noise.
    docs/privacy.md says what each guarantee means. Parquet too large for memory is read in parts; the result does not
    depend on how it is cut, nor on the engine.

    Example: `svysynth release doctorates.toml --out release`
    """
    spec = load_spec(spec_path)
    if engine == "dask":
        from svysynth.mechanisms.base import refuse_other_machines

        refuse_other_machines(spec)  # before a cluster is started
    with chosen_engine(engine, scheduler) as workers:
        _run_release(spec, out, seed, workers)


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A release, or its public folder.", readable=False, show_default=False)
    ],
    ledger_path: Annotated[
        Path | None,
        typer.Option("--ledger", metavar="FILE", help="Your ledger, or a spec that names it.", show_default=False),
    ] = None,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Without a ledger: only see that the files agree with one another.")
    ] = False,
) -> None:
    """Check a release that is going out.

    Checksums and manifest, that the tables follow from the synthetic files by making them again, and that your ledger
    has a charge for this very folder: files that were changed and signed again are an error. The ledger is yours to
    name, because a forged folder could name one of its own. Data users, who have no ledger, use `--files-only`.

    Example: `svysynth verify release --ledger survey.toml`
    """
    from svysynth.publishing.verification import verify_release

    found = verify_release(folder, ledger_path, files_only=files_only)
    console = make_console()
    for line in found.checked:
        console.print(Text(f"  ok  {line}"), soft_wrap=True)
    if not found.ledger:
        warning = "  --  not checked against a ledger: nothing shows that this folder is the one that was paid for"
        console.print(Text(warning), soft_wrap=True)
    for sentence in found.manifest.statement:
        console.print(Text(sentence), soft_wrap=True)


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("svysynth-demo"),
) -> None:
    """Run the whole job on a generated survey.

    Writes a stand-in for the Survey of Doctorate Recipients (10,355 generated records, no real person) and its spec to
    a folder, opens a budget, releases, verifies the release and shows its tables.
    """
    console = make_console()
    spec_path = write_example(out)
    console.print(Text(f"Wrote {out / 'doctorates.csv'} and {spec_path}.", style="bold"), soft_wrap=True)
    console.print(Text(f"\n$ svysynth check {spec_path}", style="bold"), soft_wrap=True)
    spec = load_spec(spec_path)
    show_design(spec)
    open_demo_budget(spec)
    folder = _next_folder(out)
    console.print(Text(f"\n$ svysynth release {spec_path} --out {folder}", style="bold"), soft_wrap=True)
    released = _run_release(spec, folder, seed=None)
    console.print(Text(f"\n$ svysynth verify {folder} --ledger {spec_path}", style="bold"), soft_wrap=True)
    verify(folder, spec_path)
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
        temporary.write_bytes((resources.files("svysynth.survey") / "doctorates.toml").read_bytes())
    return spec


def _run_release(spec: Spec, out: Path, seed: int | None, engine: Engine = LOCAL) -> pl.DataFrame:
    """Release, and return the public tables."""
    keep_compiled_programs()
    from svysynth.pipeline import release as run
    from svysynth.privacy.manifest import NOT_FOR_RELEASE
    from svysynth.publishing.internal_folder import warnings_of

    console = make_console()
    streams = None if seed is None else Streams.seeded(seed)
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
    rule = "Nothing of it may be published." if done.seeded else "Only public/ may be published, if the verdict allows."
    console.print(Text(f"Wrote {out / 'public'} and {out / 'internal'}. {rule}"), soft_wrap=True)
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
