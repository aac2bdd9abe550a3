"""`svysynth more`: further files and tables from the public folder of a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer
from rich.text import Text

from svysynth.cli.console import make_console
from svysynth.core.errors import SurveyError
from svysynth.core.spec import Statistic
from svysynth.survey.files import refuse_overwriting, write_frame


def more(
    release: Annotated[
        Path,
        typer.Argument(metavar="RELEASE", help="A release, or its public folder.", readable=False, show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="A new folder for --files, a file for --by.", show_default=False)],
    files: Annotated[
        int | None, typer.Option(metavar="K", help="How many further synthetic files to make.", show_default=False)
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="Public columns of a table, with commas.", show_default=False),
    ] = None,
    statistics: Annotated[
        str, typer.Option(metavar="NAMES", help="count, mean, total, proportion: with commas.")
    ] = "count,mean",
) -> None:
    """Further synthetic files and tables of a release, for free.

    For releases of `fbs` or `fbp` with the guarantee `global`. Their public folder has all that was measured of the
    confidential answers, so that anybody who has it can go on from there: no ledger is asked, and no ε is spent. It
    needs neither the survey nor the spec.

    With `--files` each file is of a posterior draw that the release made no file of. They are numbered on from those of
    the release, are the same for everybody, and go together with them: combine all results by the rules of multiple
    imputation. More files make standard errors steadier, not smaller.

    With `--by` the table is made from all draws, with margins and standard errors, as if the release had it. `--by ""`
    is the total alone. FILE is csv or parquet.

    Examples: `svysynth more release/public --files 20 --out more`

    `svysynth more release/public --by field,gender --statistics mean,total --out table.csv`
    """
    from svysynth.publishing.further import UNCHARGED
    from svysynth.publishing.further import more as open_more

    if (files is None) == (by is None):
        problem = "were both given" if by is not None else "are both missing"
        raise SurveyError("spec", "--files and --by", problem, "give one of the two: further files, or a table")
    found, console = open_more(release), make_console()
    if files is not None:
        made = found.write_files(files, out)
        words = f"Wrote {out}: {files} further synthetic files, {made[0].name} to {made[-1].name}."
    else:
        refuse_overwriting(out, *(path for path in release.glob("**/*")))
        columns = [name.strip() for name in (by or "").split(",") if name.strip()]
        table = found.tabulate(columns, cast(list[Statistic], [name.strip() for name in statistics.split(",")]))
        write_frame(table, out)
        words = f"Wrote {out}: {table.height:,} rows."
    console.print(Text(words), soft_wrap=True)
    console.print(Text(UNCHARGED), soft_wrap=True)
