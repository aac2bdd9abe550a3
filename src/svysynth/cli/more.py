"""`svysynth more`: further files and tables from the public folder of a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from svysynth.cli.console import TABLE_ENDINGS, refuse_table_file, say
from svysynth.core.errors import SurveyError
from svysynth.survey.files import write_frame


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
        typer.Option(metavar="COLUMNS", help="Public columns of a table, separated by commas.", show_default=False),
    ] = None,
    statistics: Annotated[
        str, typer.Option(metavar="NAMES", help="Any of count, mean, total, proportion, separated by commas.")
    ] = "count,mean",
    domain: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="One of the domains in the manifest of the release.", show_default=False
        ),
    ] = None,
) -> None:
    """Further synthetic files and tables of a release, at no privacy cost.

    For releases of `fbs` or `fbp` with the guarantee `global`. Their public folder holds everything that was measured
    from the confidential answers, so anyone who has it can make more: no ledger is consulted, and no ε is spent.
    Neither the survey nor the spec is needed.

    With `--files`, each file comes from a posterior draw that the release did not use. The numbering continues that of
    the release, and the files are the same for everyone. Analyse them together with those of the release, by the rules
    of multiple imputation. More files make standard errors steadier, not smaller.

    With `--by`, the table is made from all draws, with margins and standard errors, as if the release contained it.
    `--by ""` gives the total alone. `--domain` restricts it to a part of the population, one of the domains of the
    release; spaces, brackets and capitals of SQL words do not matter. FILE is csv, tsv, parquet, dta or sav.

    Examples: `svysynth more release/public --files 20 --out more`

    `svysynth more release/public --by field,gender --statistics mean,total --out table.csv`
    """
    from svysynth.publishing.from_public_folder import UNCHARGED
    from svysynth.publishing.from_public_folder import more as open_more

    if (files is None) == (by is None):
        problem = "were both given" if by is not None else "are both missing"
        raise SurveyError("spec", "--files and --by", problem, "give one of the two: further files, or a table")
    if domain is not None and by is None:
        raise SurveyError("spec", "--domain", "is for tables", "add --by, or leave it out")
    found = open_more(release)
    if files is not None:
        made = found.write_files(files, out)
        say(f"Wrote {out}: {files} further synthetic files, {made[0].name} to {made[-1].name}.")
    else:
        refuse_table_file(out, *release.glob("**/*"), endings=(*TABLE_ENDINGS, ".dta", ".sav"))
        columns = [name.strip() for name in (by or "").split(",") if name.strip()]
        chosen = [name.strip() for name in statistics.split(",")]
        table = found.tabulate(columns, chosen, domain)
        write_frame(table, out)
        say(f"Wrote {out}: {table.height:,} rows.")
    say(UNCHARGED)
