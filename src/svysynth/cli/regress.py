"""`svysynth regress`: a regression from a release's public folder, or of the confidential survey, for internal use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.table import Table
from rich.text import Text

from svysynth.cli.console import (
    INTERNAL_STYLE,
    TABLE_ENDINGS,
    make_table,
    refuse_table_file,
    say,
    seed_option,
    show,
    streams_of,
    with_survey,
)
from svysynth.core.errors import SurveyError
from svysynth.core.spec.whole import Spec
from svysynth.estimation.explained import Family
from svysynth.estimation.regression import Regression, regression_of
from svysynth.estimation.replicates import make_replicates
from svysynth.privacy.public_constants import load_unfinished
from svysynth.publishing.report.terminal import INTERNAL
from svysynth.survey.files import write_frame
from svysynth.survey.survey import Survey


def regress(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A release or its public folder; or a spec, for the confidential survey.",
            readable=False,
            show_default=False,
        ),
    ],
    formula: Annotated[
        str, typer.Argument(metavar="FORMULA", help='Such as "salary ~ field + gender".', show_default=False)
    ],
    family: Annotated[Family, typer.Option(help="Linear for numbers, logistic for yes/no.")] = "linear",
    domain: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="A part of the population; of a release, one of the domains in its manifest.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="How many synthetic files to use; further ones are made where the release allows it.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to FILE (csv, tsv or parquet) instead.", show_default=False),
    ] = None,
    seed: Annotated[int | None, seed_option("Repeat the same bootstrap replicates of a survey.")] = None,
) -> None:
    """Linear and logistic regression from synthetic files, and which coefficients to trust.

    FORMULA has an answer on the left: an amount or a yes/no answer, `log(salary)`, or a threshold, `salary > 50000`,
    which counts as yes above it. The right side has columns, with `+` for more of them, `a:b` for an interaction, `a *
    b` for `a + b + a:b`, and `0` for no intercept. A category has a coefficient for each level but the first, which is
    the reference. Names that are not a single word stand in backticks.

    From a release, every synthetic file is fitted by itself, and the results are combined by the rules of the release.
    No ε is spent. Synthetic files have what was measured and, for the rest, what the model says. So each coefficient
    has `measured`: with `no` it follows from the model, and tells nothing about the survey, however short its interval.

    From a spec, the confidential survey is fitted, with the design's standard errors, as R's `svyglm` does it. Answers
    of `[survey.variables]` may be on both sides; records with a missing answer are left out, as a domain. The result is
    for internal use.

    Examples: `svysynth regress release/public "log(salary) ~ field + gender"`

    `svysynth regress release/public "salary > 100000 ~ field" --family logistic --files 20`

    `svysynth regress doctorates.toml "salary ~ field * gender" --out internal.csv`
    """
    if source.suffix.lower() == ".toml":
        if files is not None:
            raise SurveyError("spec", "--files", "is for a release", "leave it out, or name the release")
        spec = load_unfinished(source)
        refuse_table_file(out, source, spec.survey.data)
        found = _of_survey(spec, formula, family, domain, Path() if out is None else out.parent, seed)
        table = found.table.with_columns(pl.lit("confidential, internal use only").alias("source"))
        _give(found, table, out, INTERNAL, INTERNAL_STYLE)
        return
    from svysynth.publishing.from_public_folder import UNCHARGED
    from svysynth.publishing.regress import regress as regress_release

    if seed is not None:
        raise SurveyError("spec", "--seed", "is for a survey", "leave it out: results of a release always repeat")
    refuse_table_file(out, *source.glob("**/*"), endings=TABLE_ENDINGS)
    found = regress_release(formula, source, family, domain=domain, files=files)
    _give(found, found.table, out, UNCHARGED, "")


def _give(found: Regression, table: pl.DataFrame, out: Path | None, standing: str, style: str) -> None:
    """Print the coefficients, or write them to a file."""
    if out is None:
        say(standing, style)
        _show(found)
        return
    write_frame(table, out)
    say(f"Wrote {out}: {table.height:,} coefficients of {found.title}. {standing}")


def _of_survey(
    spec: Spec, formula: str, family: Family, domain: str | None, folder: Path, seed: int | None
) -> Regression:
    """The regression of the confidential survey, which is read with the domain that was asked for."""
    if domain is not None and domain not in spec.survey.domains:
        survey = spec.survey.model_copy(update={"domains": (*spec.survey.domains, domain)})
        spec = spec.model_copy(update={"survey": survey})

    def fitted(survey: Survey) -> Regression:
        replicates = None
        if spec.estimation.variance != "taylor":
            replicates = make_replicates(survey.index, spec.estimation, streams_of(seed))
        return regression_of(survey, formula, family, spec.estimation, domain, replicates)

    return with_survey(spec, folder, fitted)


def _show(found: Regression) -> None:
    """The coefficients as a table, with the notes below."""
    header, rows = found.printed()
    say(found.title, "bold")
    table: Table = make_table()
    for place, name in enumerate(header):
        table.add_column(Text(name), justify="left" if place == 0 or name == "measured" else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    show(table)
    files = f" in each of {found.files} synthetic files" if found.files else ""
    for line in (f"{found.records:,} records{files}.", *found.notes):
        say(line, "dim")
