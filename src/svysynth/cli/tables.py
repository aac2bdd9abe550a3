"""`svysynth check` and `svysynth tables`: what the confidential data say, for internal use. Nothing is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import polars as pl
import typer

from svysynth.cli.console import (
    INTERNAL_STYLE,
    TABLE_ENDINGS,
    SpecPath,
    refuse_table_file,
    say,
    seed_option,
    show,
    streams_of,
    warn,
)
from svysynth.core.engine import LOCAL
from svysynth.core.spec import Spec, load_spec
from svysynth.estimation.replicates import make_replicates
from svysynth.estimation.tables import tabulate_all
from svysynth.privacy.public_constants import load_unfinished
from svysynth.publishing.report.excel import write_workbook
from svysynth.publishing.report.terminal import INTERNAL, render_overview, render_tables
from svysynth.survey.files import write_frame
from svysynth.survey.on_disk import undivided_design, with_reader
from svysynth.survey.overview import overview
from svysynth.survey.survey import Survey

if TYPE_CHECKING:  # it needs JAX, which takes a second to load
    from svysynth.mechanisms.findings import Finding

Result = TypeVar("Result")


def check(spec_path: SpecPath) -> None:
    """Validate a spec and its data, and show the design. Nothing is spent.

    What it prints is computed from the confidential data and is for internal use.

    Example: `svysynth check doctorates.toml`
    """
    show_design(load_spec(spec_path))


def tables(
    spec_path: SpecPath,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to FILE (csv, tsv, parquet or xlsx) instead.", show_default=False),
    ] = None,
    seed: Annotated[int | None, seed_option("Repeat the same bootstrap replicates.")] = None,
) -> None:
    """Direct tables from the confidential data, with design-based standard errors. For internal use.

    Counts, means, totals and proportions for every cell, margin and the total. Standard errors are by Taylor
    linearisation, or by replication where the spec's `[estimation]` says so.

    Examples: `svysynth tables doctorates.toml`, `svysynth tables doctorates.toml --out tables.xlsx`
    """
    spec = load_unfinished(spec_path)  # nothing is released: bounds are not needed yet
    folder = Path() if out is None else out.parent
    refuse_table_file(out, spec_path, spec.survey.data, endings=(*TABLE_ENDINGS, ".xlsx"))
    tidy = _with_survey(spec, folder, lambda survey: _direct_tables(survey, spec, seed))
    if out is None:
        _show_tables(tidy, spec)
    else:
        _save_tables(tidy, out)
        say(f"Wrote {out}: {tidy.height:,} rows. {INTERNAL}")


def show_design(spec: Spec) -> None:
    """What `check` prints."""
    _with_survey(spec, Path(), lambda survey: _show_design(survey, spec))


def _with_survey(spec: Spec, folder: Path, work: Callable[[Survey], Result]) -> Result:
    """What `work` makes of the survey; one that is large is kept in a hidden folder in this one meanwhile."""
    return with_reader(spec.survey, undivided_design(spec), folder, LOCAL, lambda read: work(read(spec.survey)))


def _show_design(survey: Survey, spec: Spec) -> None:
    survey.index.refuse_lonely(spec.estimation.lonely)
    say(INTERNAL, INTERNAL_STYLE)
    show(render_overview(overview(survey), spec))
    for finding in _findings(survey, spec):
        word, style = ("release would refuse", "bold red") if finding.stops else ("look closer", INTERNAL_STYLE)
        warn(word, finding.line(), style)


def _findings(survey: Survey, spec: Spec) -> list[Finding]:
    """What would make a release of this survey wrong."""
    from svysynth.mechanisms.base import examine, find_public

    if spec.privacy is None:
        return []
    stopping = [finding for finding in find_public(spec) if finding.stops]
    direct = tabulate_all(survey, spec.requested_tables, spec.estimation)
    return stopping or list(examine(survey, spec, direct).findings)


def _direct_tables(survey: Survey, spec: Spec, seed: int | None) -> pl.DataFrame:
    replicates = None
    if spec.estimation.variance != "taylor":
        replicates = make_replicates(survey.index, spec.estimation, streams_of(seed))
    return tabulate_all(survey, spec.requested_tables, spec.estimation, replicates)


def _show_tables(tidy: pl.DataFrame, spec: Spec) -> None:
    say(INTERNAL, INTERNAL_STYLE)
    show(render_tables(tidy, spec.estimation))


def _save_tables(tidy: pl.DataFrame, path: Path) -> None:
    if path.suffix.lower() == ".xlsx":
        write_workbook(tidy, path, [INTERNAL, "Estimates and standard errors of the survey, by svysynth."])
    else:
        write_frame(tidy.with_columns(pl.lit("confidential, internal use only").alias("source")), path)
