"""Formats numbers, tables and paragraphs for docs/benchmarks.md."""

from __future__ import annotations

import math
from collections.abc import Iterable


def number(value: str | float) -> str:
    """A number with three significant digits."""
    value = float(value)
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def seconds(value: str | float) -> str:
    return f"{number(value)} s"


def memory(mib: str) -> str:
    if not mib:
        return "memory not measured"
    return f"{float(mib) / 1024:.1f} GiB" if float(mib) >= 1024 else f"{float(mib):.0f} MiB"


def times(value: float) -> str:
    return f"{number(value) if value < 10 else f'{value:,.0f}'} ×"


def thousands(value: str) -> str:
    return f"{int(value):,}" if value else ""


def paragraph(text: str) -> str:
    return " ".join(text.split())


def table(heading: str, sides: str, rows: Iterable[list[str]]) -> str:
    """A Markdown table; `sides` has r or l for each column, for its alignment."""
    names = [paragraph(name) for name in heading.split("|")]
    rule = [{"r": "---:", "l": "---"}[side] for side in sides]
    assert len(names) == len(rule)
    return "\n".join("| " + " | ".join(row) + " |" for row in [names, rule, *rows])


def page(*parts: str) -> str:
    return "\n\n".join(parts)
