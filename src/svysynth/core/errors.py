"""The one error that svysynth raises for bad input.

A message names the place (a column, a setting, a file), says what is wrong with it and how to put it right. It may
count problems; it never shows a value from the data, because messages travel into terminals, logs and tickets.

An error of another library that causes one of ours may quote the data, so `raise … from None` hides it. With
SVYSYNTH_DEBUG=1 the cause goes to the log `svysynth`, for developers who work with data that they may see.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

Kind = Literal["spec", "file", "data", "design"]

LONGEST_PLACE = 120
LONGEST_PROBLEM = 1200


class SurveyError(Exception):
    """Something about the spec, the file, the data or the design that the user can put right.

    >>> str(SurveyError("data", "column 'weight'", "3 of 100 records are not positive", "drop or correct them"))
    "column 'weight': 3 of 100 records are not positive. Remedy: drop or correct them."
    """

    def __init__(self, kind: Kind, place: str, problem: str, remedy: str) -> None:
        self.kind = kind
        self.place = shown(place, LONGEST_PLACE)
        self.problem = shown(problem, LONGEST_PROBLEM)
        self.remedy = remedy
        super().__init__(f"{self.place}: {self.problem}. Remedy: {self.remedy}.")
        if debugging() and (cause := sys.exception()) is not None:
            logging.getLogger("svysynth").warning("The cause of the next error:", exc_info=cause)


def debugging() -> bool:
    """Whether a developer has asked for causes and tracebacks, which may quote confidential values."""
    return bool(os.environ.get("SVYSYNTH_DEBUG"))


def require_type(value: object, wanted: Any, place: str, remedy: str) -> None:
    """Stop if an argument has the wrong type; the message names the type and shows nothing of the argument."""
    if not isinstance(value, wanted):
        raise SurveyError("spec", place, f"is of the type '{type(value).__name__}'", remedy)


def is_plain(text: str) -> bool:
    """Whether text can be shown as it is: no control, formatting or unassigned characters.

    >>> is_plain("Zürich, 10–19"), is_plain("a\\x1b[31m"), is_plain("two\\nlines")
    (True, False, False)
    """
    return text.isprintable() or all(unicodedata.category(character)[0] != "C" for character in text)


def shown(text: str, longest: int = LONGEST_PLACE) -> str:
    """Text as it may go to a terminal: on one line, of bounded length, with odd characters as question marks."""
    text = text if len(text) <= longest else text[:longest] + "…"
    return text if is_plain(text) else "".join(character if is_plain(character) else "?" for character in text)


def of_records(bad: int, total: int) -> str:
    """Say how many records have a problem, without saying which.

    >>> of_records(1, 100), of_records(3, 100)
    ('1 of 100 records is', '3 of 100 records are')
    """
    return f"{bad:,} of {total:,} records {'is' if bad == 1 else 'are'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion, with a leading blank, when a known name is close to the one given; else nothing."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def file_error(path: Path, problem: str, remedy: str) -> SurveyError:
    """An error about a file, which names the file and not its folder."""
    return SurveyError("file", f"file '{path.name or path}'", problem, remedy)
