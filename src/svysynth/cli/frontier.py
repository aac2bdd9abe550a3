"""`svysynth frontier`: utility against ε over a grid of mechanisms and numbers of data sets, for internal use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from svysynth.cli.study import keep_compiled_programs
from svysynth.core.errors import SurveyError
from svysynth.core.hidden_folders import in_hiding
from svysynth.core.members import mechanism_names
from svysynth.core.spec import Spec, load_spec
from svysynth.core.streams import Streams
from svysynth.survey.files import write_frame
from svysynth.survey.survey import survey_from_file


def frontier(
    spec_path: Annotated[
        Path, typer.Argument(metavar="SPEC", help="The spec: one page of TOML.", readable=False, show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for the figures.", show_default=False)],
    epsilon: Annotated[str, typer.Option(help="Values of ε, with commas.")] = "3.6,5.4,10.8,18,36",
    datasets: Annotated[str, typer.Option(help="Numbers of synthetic data sets, with commas.")] = "1,3,5",
    mechanism: Annotated[
        str, typer.Option(help="Mechanisms, with commas: fbs, fbp, laplace (needs privacy.bounds), laplace-paper.")
    ] = "fbs,fbp,laplace-paper",
    standin: Annotated[
        bool, typer.Option("--standin", help="Use outcome and weights simulated from the spec's [standin] instead.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, max=20, help="How often each point is tried.")] = 5,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeat the same random numbers.", show_default=False)] = None,
) -> None:
    """Utility against ε for several mechanisms. For internal use; nothing is charged.

    For every cell the root mean squared error against the direct estimate, over its standard error: 1 means that
    protection adds nothing. Choosing by it is a use of the confidential data that no budget accounts for; with
    `--standin` the figures come from public constants alone and may be looked at freely.

    Example: `svysynth frontier doctorates.toml --out frontier --epsilon 5,10,20 --standin`
    """
    spec = load_spec(spec_path)
    grid = _mechanisms(mechanism), _numbers(epsilon, "--epsilon"), [int(m) for m in _numbers(datasets, "--datasets")]
    if out.exists():
        raise SurveyError("file", f"folder '{out.name}'", "exists already", "choose a new folder with --out")
    if spec.privacy is None:
        raise SurveyError("spec", "privacy", "is not declared", "add [privacy] with epsilon; its draws are used")
    if standin and spec.standin is None:
        raise SurveyError("spec", "standin", "is not declared", "add [standin] with mean and spread, or drop --standin")
    _run(spec, out, grid, standin, repeats, Streams.from_system() if seed is None else Streams.seeded(seed))


def _run(
    spec: Spec,
    out: Path,
    grid: tuple[list[str], list[float], list[int]],
    standin: bool,
    repeats: int,
    streams: Streams,
) -> None:
    keep_compiled_programs()
    from svysynth.evaluation import frontier as study

    survey = survey_from_file(spec.survey)
    if standin and spec.standin is not None:
        survey = study.make_standin(survey, spec.standin, streams)
    note = study.STANDIN if standin else study.UNACCOUNTED
    console = Console(highlight=False)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("starting")
        found = study.frontier(survey, spec, *grid, streams, repeats, lambda step: bar.update(task, description=step))
    summary = study.summarize(found)
    _write(out, found, summary, note)
    console.print(Text(note, style="bold yellow"), soft_wrap=True)
    console.print(_render(summary))
    console.print(Text(f"Wrote {out}: frontier and ratios as svg and png, summary.csv, cells.csv."))


def _write(out: Path, found: pl.DataFrame, summary: pl.DataFrame, note: str) -> None:
    from svysynth.evaluation.frontier_picture import draw_frontier, draw_ratios

    def build(building: Path) -> None:
        write_frame(found, building / "cells.csv")
        write_frame(summary, building / "summary.csv")
        for ending in ("svg", "png"):
            draw_frontier(summary, building / f"frontier.{ending}", note)
            draw_ratios(found, building / f"ratios.{ending}", note)
        building.rename(out)

    try:
        in_hiding(out.parent, build)
    except OSError:
        raise SurveyError("file", f"folder '{out.name}'", "cannot be written", "choose another with --out") from None


def _render(summary: pl.DataFrame) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="RMSE ratio over the cells", title_justify="left")
    for name in ("statistic", "mechanism", "data sets", "ε", "lower quartile", "median", "upper quartile"):
        table.add_column(name, justify="left" if name in ("statistic", "mechanism") else "right")
    for row in summary.iter_rows(named=True):
        figures = [f"{row[name]:.2f}" for name in ("lower_quartile", "median", "upper_quartile")]
        count = str(row["datasets"]) if row["datasets"] else ""
        table.add_row(*map(Text, [row["statistic"], row["mechanism"], count, f"{row['epsilon']:g}", *figures]))
    return table


def _mechanisms(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not names or not set(names) <= set(mechanism_names()):
        choices = ", ".join(mechanism_names())
        raise SurveyError("spec", "--mechanism", "names an unknown mechanism", f"choose from {choices}")
    return names


def _numbers(text: str, option: str) -> list[float]:
    try:
        numbers = sorted({float(part) for part in text.split(",")})
        if numbers and numbers[0] > 0 and numbers[-1] < 1e9 and (option != "--datasets" or _whole(numbers)):
            return numbers
    except ValueError:
        pass
    raise SurveyError("spec", option, "is not a list of positive numbers", "write it like 5,10,20")


def _whole(numbers: list[float]) -> bool:
    return all(number == int(number) for number in numbers)
