"""Notebook: how a notebook displays an object: an HTML card with what is public, and no confidential value.

A card has a title, a warning, sentences, facts by name, tables and a footnote. All text is escaped here and nowhere
else, because labels and names of columns come from files. Styles are inline, and take their colours from the page,
which may be dark or light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NewType

from svysynth.core.errors import shown

Html = NewType("Html", str)
"""Text that is escaped."""

LONGEST_TEXT = 2000
MOST_ROWS = 100
"""Rows of a table that are shown."""

LINE = "1px solid rgba(128, 128, 128, 0.4)"
CARD = f"border: {LINE}; border-radius: 4px; padding: 0.6em 1em; max-width: 60em; overflow-x: auto"
WARNING = "border-left: 4px solid #d32f2f; padding-left: 0.6em; font-weight: bold; margin: 0.5em 0"
TABLE = "border-collapse: collapse; margin: 0.6em 0"
CAPTION = "caption-side: top; text-align: left; font-weight: bold"
CELL = f"border-bottom: {LINE}; padding: 0.15em 0.8em 0.15em 0"


def card(
    title: str,
    *,
    warning: str = "",
    sentences: Iterable[str] = (),
    facts: Mapping[str, str] | None = None,
    tables: Iterable[Html] = (),
    footnote: str = "",
) -> Html:
    """A card as HTML; every text is escaped.

    >>> card("<b>", facts={"a": "<i>"}).count("&lt;")
    2
    """
    parts = [f'<div style="{CARD}"><div style="font-weight: bold">{_text(title)}</div>']
    parts += [f'<div style="{WARNING}">{_text(warning)}</div>'] if warning else []
    parts += [f"<p>{_text(sentence)}</p>" for sentence in sentences]
    parts += [_facts(facts)] if facts else []
    below = [f'<p style="opacity: 0.75">{_text(footnote)}</p>'] if footnote else []
    return Html("".join([*parts, *tables, *below, "</div>"]))


def html_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], labels: int) -> Html:
    """A table whose first columns are labels and whose others are numbers."""
    head = "".join(
        f'<th scope="col" style="{_cell(place, labels)}">{_text(name)}</th>' for place, name in enumerate(header)
    )
    body = "".join(f"<tr>{_row(row, labels)}</tr>" for row in rows[:MOST_ROWS])
    more = f"<p>{len(rows) - MOST_ROWS:,} more rows are not shown.</p>" if len(rows) > MOST_ROWS else ""
    caption = f'<caption style="{CAPTION}">{_text(title)}</caption>'
    return Html(f'<table style="{TABLE}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}')


def _facts(facts: Mapping[str, str]) -> str:
    rows = (
        f'<tr><th scope="row" style="{CELL}; text-align: left; font-weight: normal; opacity: 0.75">{_text(name)}</th>'
        f'<td style="{CELL}; text-align: left">{_text(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<table style="{TABLE}"><tbody>{"".join(rows)}</tbody></table>'


def _row(row: Sequence[str], labels: int) -> str:
    return "".join(f'<td style="{_cell(place, labels)}">{_text(text)}</td>' for place, text in enumerate(row))


def _cell(place: int, labels: int) -> str:
    return f"{CELL}; text-align: {'left' if place < labels else 'right'}"


def _text(text: str) -> str:
    return escape(shown(text, LONGEST_TEXT))
