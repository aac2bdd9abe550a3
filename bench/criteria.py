"""Functions that the programs study_of_….py share: their options, their criteria, and the layout of their pages.

Such a program measures, writes its results into docs/ (or the folder of --out), and then checks its criteria. If a
criterion is not met, the program says which one and ends with exit code 1. `make study` runs all these programs.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"

Criterion = tuple[bool, str]
"""Whether the criterion is met, and the message if it is not."""


def settings(about: str | None, given: Sequence[str] | None, **sizes: int) -> argparse.Namespace:
    """The options of a program: how much is measured, and the folder for its results."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"{size} by default")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder for the results, docs/ by default")
    return parser.parse_args(given)


def unmet(criteria: Iterable[Criterion]) -> list[str]:
    """The messages of the criteria that are not met; a criterion on NaN is not met."""
    return [text for met, text in criteria if not met]


def judge(criteria: Iterable[Criterion]) -> int:
    """Print the criteria that are not met, and return the exit code of a study."""
    found = unmet(criteria)
    for text in found:
        print(f"A criterion is not met: {text}", file=sys.stderr)
    return 1 if found else 0


def write(path: Path, text: str) -> None:
    """Write a page; its folder is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def paragraph(text: str) -> str:
    """A paragraph of a page, in lines of at most 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120)


def bullets(texts: Iterable[str]) -> str:
    """A list of a page, in lines of at most 120 characters."""
    return "\n".join(textwrap.fill("- " + " ".join(text.split()), 120, subsequent_indent="  ") for text in texts)
