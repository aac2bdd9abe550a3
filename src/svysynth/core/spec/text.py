"""The text of a spec: read from a file, and parsed as TOML."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from svysynth.core.errors import SurveyError

LARGEST_SPEC_BYTES = 1_000_000
MOST_KEY_PARTS = 100


def read_text(path: Path) -> str:
    """The text of a spec's file, which has to be UTF-8."""
    remedy = "give the path of a spec in TOML, or draft one with `svysynth init DATA`"
    try:
        if not path.is_file():
            raise SurveyError("spec", path.name or str(path), "cannot be read", remedy)
        with path.open("rb") as file:
            raw = file.read(LARGEST_SPEC_BYTES + 1)
        if len(raw) > LARGEST_SPEC_BYTES:
            raise SurveyError("spec", path.name, "is too large to be a spec", remedy)
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise SurveyError("spec", path.name, "is not UTF-8 text", remedy) from None
    except (OSError, ValueError):
        raise SurveyError("spec", path.name or str(path), "cannot be read", remedy) from None


def parse_text(text: str, place: str) -> dict[str, Any]:
    """The content of a spec's text, which is TOML."""
    if any(part.count(".") > MOST_KEY_PARTS for part in re.split(r"[=\n,{}\[\]]", text)):
        raise SurveyError("spec", place, "has a key with too many parts", "compare it with docs/spec.md")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        where = re.search(r"\(at line (\d+),", str(error))
        line = f"line {where[1]} is " if where else ""
        raise SurveyError(
            "spec", place, f"{line}not valid TOML", "compare it with the example in docs/spec.md"
        ) from None
