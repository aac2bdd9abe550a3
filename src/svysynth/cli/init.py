"""`svysynth init`: a draft of a spec for a survey file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from svysynth.cli.console import refuse_existing_file, say
from svysynth.core.errors import shown
from svysynth.core.hidden_folders import appearing
from svysynth.survey.drafting import draft_spec
from svysynth.survey.files import refuse_overwriting


def init(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A survey file.", readable=False, show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the draft; beside the data by default.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing spec.")] = False,
) -> None:
    """Draft a commented spec from a survey file.

    Roles are guessed from the columns' names, types and numbers of distinct values; no value of the data goes into the
    draft. DATA is csv, tsv, parquet (a file or a folder), sas7bdat, xpt, dta or sav.

    Example: `svysynth init doctorates.csv`
    """
    target = out or data.parent / f"{data.resolve().stem}.toml"
    draft = draft_spec(data, target.parent)
    refuse_overwriting(target, data)
    refuse_existing_file(target, force)
    with appearing(target) as temporary:
        temporary.write_text(draft.text, encoding="utf-8")
    say(f"Drafted {target}")
    for role, column in draft.roles.items():
        say(f"  {role:8} {shown(column)}")
    say("Next: look it over, and fill in what is marked as needed.")
    say(f"Then run  svysynth check {target}")
