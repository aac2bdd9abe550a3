"""`svysynth release`, `svysynth verify` and `svysynth demo`: make a release, check it, or show both on an example."""

from __future__ import annotations

import itertools
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer

from svysynth.cli.check import show_design
from svysynth.cli.compilation_cache import keep_compiled_programs
from svysynth.cli.console import (
    INTERNAL_STYLE,
    EngineOption,
    SchedulerOption,
    SpecPath,
    say,
    seed_option,
    show,
    spinner,
    streams_of,
    warn,
)
from svysynth.core.engine import LOCAL, Engine, chosen_engine
from svysynth.core.errors import SurveyError
from svysynth.core.hidden_folders import appearing
from svysynth.core.spec.whole import Spec, load_spec
from svysynth.privacy.ledger import open_budget
from svysynth.publishing.report.terminal import INTERNAL, render_tables
from svysynth.survey.doctorates import doctorates
from svysynth.survey.files import write_frame

if TYPE_CHECKING:  # it needs JAX, which takes a second to load
    from svysynth.publishing.verdict import ReleaseVerdict

DEMO_TOTAL = "300"
"""The total of the demo's budget: enough for a hundred releases."""


def release(
    spec_path: SpecPath,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for public/ and internal/.")],
    seed: Annotated[
        int | None, seed_option("For tests: charges nothing and stamps every file NOT FOR RELEASE.")
    ] = None,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
) -> None:
    """Make synthetic microdata and tables under a stated ε.

    Charges the population's budget and writes two folders. DIR/public is for publication: tables, synthetic files, a
    report. DIR/internal holds the evidence for review and is confidential: do not share it. With `fbs` and `fbp` under
    `guarantee = "global"`, sums of the answers are measured once with noise, and everything public follows from them.
    Under `asymptotic`, the paper's guarantee, risky records are weighted down until ε holds. With
    `mechanism = "laplace"` the release consists of tables with additive noise. docs/privacy.md says what each guarantee
    means. Parquet too large for memory is read in parts; the result depends neither on the parts nor on the engine.

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
        bool, typer.Option("--files-only", help="Without a ledger: only check that the files agree with one another.")
    ] = False,
) -> None:
    """Check a release before it is published.

    Compares checksums and manifest, makes the tables again from the public files, and looks up the charge for this very
    folder in your ledger: files that were changed after the release are an error, even with new checksums. You name the
    ledger, because a forged folder could name one of its own. Data users, who have no ledger, use `--files-only`.

    Example: `svysynth verify release --ledger survey.toml`
    """
    from svysynth.publishing.verification import NOT_AGAINST_A_LEDGER, verify_release

    found = verify_release(folder, ledger_path, files_only=files_only)
    for line in found.checked:
        say(f"  ok  {line}")
    if not found.ledger:
        say(f"  --  {NOT_AGAINST_A_LEDGER}")
    for sentence in found.manifest.statement:
        say(sentence)


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("svysynth-demo"),
) -> None:
    """Run the whole job on a generated survey.

    Writes a stand-in for the Survey of Doctorate Recipients (10,355 generated records, no real person) and its spec to
    a folder, opens a budget, releases, verifies the release and shows its tables.
    """
    spec_path = write_example(out)
    say(f"Wrote {out / 'doctorates.csv'} and {spec_path}.", "bold")
    say(f"\n$ svysynth check {spec_path}", "bold")
    spec = load_spec(spec_path)
    show_design(spec)
    open_demo_budget(spec)
    folder = _next_folder(out)
    say(f"\n$ svysynth release {spec_path} --out {folder}", "bold")
    released = _run_release(spec, folder, seed=None)
    say(f"\n$ svysynth verify {folder} --ledger {spec_path}", "bold")
    verify(folder, spec_path)
    show(render_tables(released, spec.estimation, spec.survey.variable_labels))
    for page in ("public/report.html", "public/tables.xlsx", "internal/report.html"):
        say(f"Open {folder / page}")


def open_demo_budget(spec: Spec) -> None:
    """Open the example's budget, unless its ledger is there already."""
    assert spec.privacy is not None
    if not spec.privacy.ledger.exists():
        open_budget(spec.privacy.ledger, str(spec.privacy.budget), DEMO_TOTAL, spec.privacy.accounting)


def _next_folder(folder: Path) -> Path:
    """The first folder name that is free: a release is never overwritten."""
    names = (folder / f"release-{number}" for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def write_example(folder: Path) -> Path:
    """Write the stand-in and its spec to a folder; return the spec's path."""
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
    from svysynth.privacy.release import NOT_FOR_RELEASE
    from svysynth.publishing.internal_folder import warnings_of

    verdicts: list[ReleaseVerdict] = []
    with spinner() as step:
        done = run(spec, out, None if seed is None else streams_of(seed), step, engine, verdicts.append)
    if done.seeded:
        say(NOT_FOR_RELEASE, "bold red")
    for sentence in done.guarantee.sentences():
        say(sentence)
    rule = "None of it may be published." if done.seeded else "Only public/ may be published, if the verdict allows."
    say(f"Wrote {out / 'public'} and {out / 'internal'}. {rule}")
    for warning in warnings_of(done):
        warn("Warning", warning)
    _show_verdict(verdicts[0])
    return done.tables


def _show_verdict(verdict: ReleaseVerdict) -> None:
    """Print the verdict, which compares with the confidential data; it is the last thing on the screen."""
    say(INTERNAL, INTERNAL_STYLE)
    first, *reasons = verdict.lines()
    say(first, "bold")
    for reason in reasons:
        say(f"  {reason}")
