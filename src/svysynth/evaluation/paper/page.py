"""The page of a study: the paper's numbers beside ours, and the figures, in one file that loads nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import polars as pl

from svysynth.core.hidden_folders import appearing

NOTABLE, STRIKING = 2.0, 3.0
"""Beyond how many standard errors a difference is marked yellow, and red."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 76rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .55rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; } th[scope=row], th.corner { text-align: left; font-weight: 400; }
thead tr:last-child th { border-bottom: 1px solid #888; font-weight: 400; color: #555; }
tbody tr:nth-child(3n) > * { border-bottom: 1px solid #eee; }
.first { border-left: 1px solid #ccc; }
.banner { background: #8a1020; color: #fff; font-weight: 700; padding: .5rem .8rem; }
.notable { background: #fff1cc; } .striking { background: #ffd2cc; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; } figcaption { color: #444; max-width: 60rem; }
"""


@dataclass(frozen=True)
class Picture:
    """A figure of the page: the name of its file, and what it shows."""

    name: str
    caption: str


def write_page(
    path: Path,
    title: str,
    paragraphs: Sequence[str],
    agreement: pl.DataFrame,
    comparison: pl.DataFrame,
    further: Sequence[tuple[str, pl.DataFrame]],
    pictures: Sequence[Picture],
    banner: str | None = None,
) -> None:
    """Write the page: the agreement with the paper, every number, further tables, and the SVG files beside it.

    If there is a banner, the title is marked INTERNAL too.
    """
    top = [f'<p class="banner" role="note">{escape(banner)}</p>'] if banner else []
    title = f"INTERNAL: {title}" if banner else title
    parts = [*top, f"<h1>{escape(title)}</h1>", *(f"<p>{escape(text)}</p>" for text in paragraphs)]
    parts += ["<h2>Agreement with the paper</h2>", _plain_table(agreement)]
    for (section,), rows in comparison.group_by(["section"], maintain_order=True):
        parts += [f"<h2>{escape(str(section))}</h2>", _comparison_table(rows)]
    for heading, frame in further:
        parts += [f"<h2>{escape(heading)}</h2>", _plain_table(frame)]
    parts.append("<h2>Figures</h2>")
    parts += [_picture(path.parent / f"{picture.name}.svg", picture.caption) for picture in pictures]
    parts += top
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<style>{STYLE}</style>\n</head>\n'
        "<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )
    with appearing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _comparison_table(rows: pl.DataFrame) -> str:
    """A row for each cell; for each quantity the paper's number, ours, and the difference in standard errors."""
    columns = rows["column"].unique(maintain_order=True).to_list()
    groups = "".join(f'<th colspan="3" class="first">{escape(column)}</th>' for column in columns)
    heads = '<th class="first">paper</th><th>here</th><th>diff.</th>' * len(columns)
    cells = {(row["row"], row["column"]): row for row in rows.iter_rows(named=True)}
    lines = []
    for name in rows["row"].unique(maintain_order=True):
        found = [cells.get((name, column)) for column in columns]
        numbers = "".join(_triple(**one) if one else '<td class="first"></td><td></td><td></td>' for one in found)
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{numbers}</tr>')
    head = f'<tr><th class="corner"></th>{groups}</tr><tr><th class="corner"></th>{heads}</tr>'
    return f'<div class="wide"><table><thead>{head}</thead><tbody>\n' + "\n".join(lines) + "\n</tbody></table></div>"


def _triple(paper: float | None, here: float | None, digits: int, difference: float | None, **_: object) -> str:
    shown = "" if difference is None else f"{round(difference, 1) + 0.0:+.1f}"
    mark = ""
    if difference is not None and abs(difference) > NOTABLE:
        mark = ' class="striking"' if abs(difference) > STRIKING else ' class="notable"'
    return f'<td class="first">{_number(paper, digits)}</td><td>{_number(here, digits)}</td><td{mark}>{shown}</td>'


def _number(value: float | None, digits: int) -> str:
    """
    >>> _number(1234.5, 0), _number(0.875, 2), _number(None, 2)
    ('1,234', '0.88', '')
    """
    return "" if value is None or value != value else f"{value:,.{digits}f}"


def _plain_table(frame: pl.DataFrame) -> str:
    heads = "".join(f'<th class="corner">{escape(name.replace("_", " "))}</th>' for name in frame.columns)
    lines = []
    for row in frame.iter_rows():
        cells = "".join(
            f'<th scope="row">{escape(value)}</th>' if isinstance(value, str) else f"<td>{_plain(value)}</td>"
            for value in row
        )
        lines.append(f"<tr>{cells}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _plain(value: float | int | None) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return _number(value, 0 if value is not None and abs(value) >= 100 else 2 if value and abs(value) >= 10 else 3)


def _picture(path: Path, caption: str) -> str:
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    text = escape(caption)
    image = f'<img alt="{text}" src="data:image/svg+xml;base64,{content}"/>'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"
