"""`svysynth frontier`: utility against ε over a grid of mechanisms and numbers of data sets, for internal use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.table import Table
from rich.text import Text

from svysynth.cli.compilation_cache import keep_compiled_programs
from svysynth.cli.console import (
    INTERNAL_STYLE,
    SpecPath,
    make_table,
    positive_numbers,
    say,
    seed_option,
    show,
    spinner,
    streams_of,
)
from svysynth.core.errors import SurveyError
from svysynth.core.new_folder import refuse_existing, write_folder
from svysynth.core.registry import mechanism_names
from svysynth.core.spec.whole import Spec, load_spec
from svysynth.core.streams import Streams
from svysynth.survey.files import write_frame
from svysynth.survey.survey import survey_from_file


def frontier(
    spec_path: SpecPath,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for the figures.", show_default=False)],
    epsilon: Annotated[str, typer.Option(help="Values of ε, separated by commas.")] = "3.6,5.4,10.8,18,36",
    datasets: Annotated[
        str, typer.Option(help="Values of m, the number of synthetic data sets, separated by commas.")
    ] = "1,3,5",
    mechanism: Annotated[
        str,
        typer.Option(help="Mechanisms, separated by commas: fbs, fbp, laplace (needs privacy.bounds), laplace-paper."),
    ] = "fbs,fbp,laplace-paper",
    standin: Annotated[
        bool, typer.Option("--standin", help="Use outcome and weights simulated from the spec's [standin] instead.")
    ] = False,
    repeats: Annotated[
        int, typer.Option(min=1, max=20, help="How many times each mechanism is tried at each ε and m.")
    ] = 5,
    seed: Annotated[int | None, seed_option("Repeat the same draws; noise on tables stays the system's.")] = None,
) -> None:
    """Compare the utility of several mechanisms at several ε. For internal use; nothing is charged.

    Shows, over all cells, the root mean squared error against the direct estimate, divided by the direct estimate's
    standard error: 1 means that protection adds no error. Choosing by these figures is a use of the confidential data
    that no budget accounts for. With `--standin` they come from public constants alone and may be looked at freely.

    Example: `svysynth frontier doctorates.toml --out frontier --epsilon 5,10,20 --standin`
    """
    spec = load_spec(spec_path).first_stage
    grid = _mechanisms(mechanism), positive_numbers(epsilon, "--epsilon", "5,10,20"), _whole_numbers(datasets)
    refuse_existing(out)
    if spec.privacy is None:
        raise SurveyError("spec", "privacy", "is not declared", "add [privacy] with mechanism and epsilon")
    if standin and spec.standin is None:
        raise SurveyError("spec", "standin", "is not declared", "add [standin] with mean and spread, or drop --standin")
    _run(spec, out, grid, standin, repeats, streams_of(seed))


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
    from svysynth.mechanisms.findings import private_filter, refuse

    if standin:  # whoever is left out, by what is confidential, would show in the figures
        refuse(private_filter(spec.survey))
    study.refuse_unsupported(spec, grid[0])
    survey = survey_from_file(spec.survey)
    if standin and spec.standin is not None:
        survey = study.make_standin(survey, spec.standin, streams)
    note = study.STANDIN if standin else study.UNACCOUNTED
    with spinner() as step:
        found = study.frontier(survey, spec, *grid, streams, repeats, step)
    summary = study.summarize(found)
    _write(out, found, summary, note)
    say(note, INTERNAL_STYLE)
    show(_render(summary))
    say(f"Wrote {out}: frontier and ratios as svg and png, summary.csv, cells.csv.")


def _write(out: Path, found: pl.DataFrame, summary: pl.DataFrame, note: str) -> None:
    from svysynth.evaluation.frontier_picture import draw_frontier, draw_ratios

    def build(building: Path) -> None:
        write_frame(found, building / "cells.csv")
        write_frame(summary, building / "summary.csv")
        for ending in ("svg", "png"):
            draw_frontier(summary, building / f"frontier.{ending}", note)
            draw_ratios(found, building / f"ratios.{ending}", note)

    write_folder(out, build)


def _render(summary: pl.DataFrame) -> Table:
    table = make_table("RMSE ratio over the cells")
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


def _whole_numbers(text: str) -> list[int]:
    found = positive_numbers(text, "--datasets", "1,3,5")
    if any(number != int(number) for number in found):
        raise SurveyError("spec", "--datasets", "is not a list of whole numbers", "write it like 1,3,5")
    return [int(number) for number in found]
