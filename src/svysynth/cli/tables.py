"""`svysynth tables`: direct tables from the confidential data, for internal use. Nothing is charged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

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
    with_survey,
)
from svysynth.core.spec.whole import Spec
from svysynth.estimation.layout import notes_on
from svysynth.estimation.replicates import make_replicates
from svysynth.estimation.tables import tabulate_all
from svysynth.privacy.public_constants import load_unfinished
from svysynth.publishing.report.excel import write_workbook
from svysynth.publishing.report.terminal import INTERNAL, render_tables
from svysynth.survey.files import write_frame
from svysynth.survey.survey import Survey


def tables(
    spec_path: SpecPath,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to FILE (csv, tsv, parquet or xlsx) instead.", show_default=False),
    ] = None,
    seed: Annotated[int | None, seed_option("Repeat the same bootstrap replicates.")] = None,
) -> None:
    """Direct tables from the confidential data, with design-based standard errors. For internal use.

    Counts, means, totals, proportions, medians and other quantiles, shares above a threshold and ratios, for every
    cell, margin and the total. A table is of the outcome, or of another answer of `[survey.variables]`: an amount, a
    category or a yes/no answer. Proportions are of the whole, or within rows or columns. Missing answers are a level,
    or the table is of those who answered and says so. Standard errors are by Taylor linearisation, or by replication
    where the spec's `[estimation]` says so; those of quantiles are Woodruff's.

    Examples: `svysynth tables doctorates.toml`, `svysynth tables doctorates.toml --out tables.xlsx`
    """
    spec = load_unfinished(spec_path)  # nothing is released, so bounds are not needed
    folder = Path() if out is None else out.parent
    refuse_table_file(out, spec_path, spec.survey.data, endings=(*TABLE_ENDINGS, ".xlsx"))
    tidy = with_survey(spec, folder, lambda survey: _direct_tables(survey, spec, seed))
    if out is None:
        _show_tables(tidy, spec)
    else:
        _save_tables(tidy, out, spec.survey.variable_labels)
        say(f"Wrote {out}: {tidy.height:,} rows. {INTERNAL}")


def _direct_tables(survey: Survey, spec: Spec, seed: int | None) -> pl.DataFrame:
    replicates = None
    if spec.estimation.variance != "taylor":
        replicates = make_replicates(survey.index, spec.estimation, streams_of(seed))
    return tabulate_all(survey, spec.requested_tables, spec.estimation, replicates)


def _show_tables(tidy: pl.DataFrame, spec: Spec) -> None:
    say(INTERNAL, INTERNAL_STYLE)
    show(render_tables(tidy, spec.estimation, spec.survey.variable_labels))


def _save_tables(tidy: pl.DataFrame, path: Path, labels: Mapping[str, str]) -> None:
    if path.suffix.lower() == ".xlsx":
        notes = [INTERNAL, "Estimates and standard errors of the survey, by svysynth.", *notes_on(tidy)]
        write_workbook(tidy, path, notes, labels)
    else:
        write_frame(tidy.with_columns(pl.lit("confidential, internal use only").alias("source")), path)
