"""What the programs study_of_….py share: their settings, the criteria that a study must meet, and lines of a page.

Such a program measures, writes its page into docs/ (or the folder of --out), and then checks its criteria: where one is
not met it says which, and ends with exit code 1. `make study` runs them all.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"

Criterion = tuple[bool, str]
"""Whether it is met, and what to say where it is not."""


def settings(about: str | None, given: Sequence[str] | None, **sizes: int) -> argparse.Namespace:
    """The options of a program: how much is measured, and where pages go."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"{size} without it")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder that pages are written to, docs/ without it")
    return parser.parse_args(given)


def unmet(criteria: Iterable[Criterion]) -> list[str]:
    """What there is to say of the criteria that are not met; a number that is none meets none."""
    return [text for met, text in criteria if not met]


def judge(criteria: Iterable[Criterion]) -> int:
    """The exit code of a study."""
    found = unmet(criteria)
    for text in found:
        print(f"A criterion is not met: {text}", file=sys.stderr)
    return 1 if found else 0


def write(path: Path, text: str) -> None:
    """A page, in a folder that is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def paragraph(text: str) -> str:
    """A paragraph in lines of a page's width."""
    return textwrap.fill(" ".join(text.split()), 120)


def bullets(texts: Iterable[str]) -> str:
    """A list in lines of a page's width."""
    return "\n".join(textwrap.fill("- " + " ".join(text.split()), 120, subsequent_indent="  ") for text in texts)
