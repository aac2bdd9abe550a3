"""`svysynth study`: the paper's studies from the command line. Parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from svysynth.cli.compilation_cache import keep_compiled_programs
from svysynth.cli.console import INTERNAL_STYLE, EngineOption, SchedulerOption, counting, say
from svysynth.core.engine import EngineName, chosen_engine
from svysynth.core.errors import SurveyError
from svysynth.publishing.report.terminal import INTERNAL

study = typer.Typer(
    help="Run the paper's studies: its numbers beside ours, and its figures.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Workers = Annotated[int | None, typer.Option(min=1, help="Processes to use; all cores by default.", show_default=False)]
Out = Annotated[Path, typer.Option(metavar="DIR", help="The folder to write to. An unfinished run in it is continued.")]


@study.command()
def simulation(
    out: Out = Path("svysynth-simulation"),
    replicates: Annotated[int, typer.Option(min=2, help="Repeated samples; the paper has 100.")] = 100,
    workers: Workers = None,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Fits computed together in one program; by default 1024 on a GPU, one at a time on a CPU.",
            show_default=False,
        ),
    ] = None,
    as_published: Annotated[
        bool,
        typer.Option("--as-published", help="Sample and weight as the paper's figures suggest that its authors did."),
    ] = False,
) -> None:
    """The simulation: FBS, FBP and Laplace noise under informative sampling (paper §4 and supplement).

    Draws samples of 1000 from a population of 100,000 and runs every method at Δ = 1.8 and 3.4 (the largest bound of a
    record) with m = 1, 3, 5 and 10 synthetic data sets. Writes coverage, interval lengths, CV, bias and RMSE ratios as
    CSV, every figure as SVG and PNG, and `simulation.html`: the paper's numbers beside ours, with the difference in
    Monte Carlo standard errors.

    The same command resumes a run that was stopped, and more replicates can be added later. The results do not depend
    on the number of workers. Where JAX has a GPU, the fits of many samples are made together on it, and the workers
    draw the samples; the results are then the same up to rounding.

    With --as-published the samples are systematic, FBP's bounds are those of the lognormal density of π, and the
    weights α are at most 0.85. docs/reproduction.md says why, and what this changes.

    Example: `svysynth study simulation --replicates 100`
    """
    _refuse_workers(engine, workers)
    keep_compiled_programs()
    import jax

    from svysynth.evaluation.paper.batched_fits import BATCH
    from svysynth.evaluation.paper.repeated import AS_PUBLISHED, Simulation
    from svysynth.evaluation.paper.study import run_simulation

    if batch is None and engine == "local" and jax.default_backend() != "cpu":
        batch = BATCH
    with chosen_engine(engine, scheduler) as cluster, counting("samples", replicates) as advance:
        processes = cluster if cluster.remote else workers
        study = AS_PUBLISHED if as_published else Simulation()
        page = run_simulation(study, out, replicates, processes, lambda done, _: advance(done), batch)
    say(f"Wrote {page}, with CSVs and figures beside it.")


@study.command()
def application(
    out: Out = Path("svysynth-application"),
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The 2017 public-use file (sas7bdat, sav or csv).", show_default=False),
    ] = None,
    replicates: Annotated[
        int, typer.Option(min=2, help="Number of releases; their spread is the Monte Carlo error.")
    ] = 20,
    workers: Workers = None,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
) -> None:
    """The application: doctorates' counts and salaries by field and gender at ε = 10.8 (paper §3).

    Runs on a generated stand-in for the Survey of Doctorate Recipients or, with --data, on its public-use file, whose
    layout examples/sdr2017.toml describes. Writes the 27 cells by Sample, Laplace, FBS and FBP with standard errors as
    CSV, the figures, and `application.html`: the paper's numbers beside ours. With --data the results are for internal
    use: every page, table and figure says so, and only you can enter the folder.

    Example: `svysynth study application`
    """
    _refuse_workers(engine, workers)
    keep_compiled_programs()
    from svysynth.evaluation.paper.application import Application
    from svysynth.evaluation.paper.study import run_application

    with chosen_engine(engine, scheduler) as cluster, counting("releases", replicates) as advance:
        processes = cluster if cluster.remote else workers
        found = Application(data.resolve() if data else None)
        page = run_application(found, out, replicates, processes, lambda done, _: advance(done))
    say(f"Wrote {page}, with CSVs and figures beside it.")
    if data:
        say(INTERNAL, INTERNAL_STYLE)


def _refuse_workers(engine: EngineName, workers: int | None) -> None:
    if engine != "local" and workers is not None:
        raise SurveyError("spec", "--workers", "is for one machine", "leave out --workers or --engine")
