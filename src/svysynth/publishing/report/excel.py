"""Tables as an Excel workbook: a sheet for each table, numbers as numbers, labels as text and never as formulas.

The file does not say who made it or when: the same tables give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import xlsxwriter

from svysynth.core.hidden_folders import appearing
from svysynth.core.safe_repr import outlined
from svysynth.estimation.layout import WideTable, wide_tables

LONGEST_SHEET_NAME = 31
A4 = 9
LONGEST_FOOTER = 100
NARROWEST, WIDEST, WIDEST_NOTE = 10, 50, 90
LINE_HEIGHT = 15.0
CREATED = datetime(2000, 1, 1)
HEADINGS = {
    "estimate": "estimate",
    "se": "standard error",
    "se_sampling": "from sampling",
    "se_privacy": "from privacy",
    "lower": "lower",
    "upper": "upper",
    "cv": "CV",
    "reliability": "reliability",
}
"""What each measure is called, under its statistic."""


def write_workbook(tidy: pl.DataFrame, path: Path, notes: Sequence[str], labels: Mapping[str, str]) -> None:
    """Write the tables to a workbook, with the notes on its first sheet, and the labels of columns in headings."""
    as_text = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    # In memory: temporary files of confidential tables could lie on another disk, and stay there after a failure.
    content = io.BytesIO()
    workbook = xlsxwriter.Workbook(content, {**as_text, "in_memory": True})
    workbook.set_properties({"author": "", "created": CREATED})
    _write_notes(workbook, notes)
    used = {"notes"}
    for table in wide_tables(tidy, labels):
        _write_sheet(workbook, _sheet_name(table.title, used), table, footer=notes[0])
    workbook.close()
    with appearing(path) as target:
        target.write_bytes(content.getvalue())


def _write_notes(workbook: Any, notes: Sequence[str]) -> None:
    """A wrapped line for each note, the first as a heading. Row heights are set: not every program finds them."""
    sheet = workbook.add_worksheet("Notes")
    sheet.set_paper(A4)
    sheet.fit_to_pages(1, 0)
    sheet.set_column(0, 0, WIDEST_NOTE)
    heading = workbook.add_format({"bold": True, "font_size": 14, "text_wrap": True, "valign": "top"})
    plain = workbook.add_format({"text_wrap": True, "valign": "top"})
    for number, line in enumerate(line for note in notes for line in note.splitlines()):
        size, style = (LINE_HEIGHT, plain) if number else (1.4 * LINE_HEIGHT, heading)
        sheet.set_row(number, size * (1 + len(line) // WIDEST_NOTE))
        sheet.write_string(number, 0, line, style)


def _write_sheet(workbook: Any, name: str, table: WideTable, footer: str) -> None:
    """Two header rows (statistic over measure), then the rows, margins in bold; made to print on one page's width."""
    sheet = workbook.add_worksheet(name)
    sheet.set_landscape()
    sheet.set_paper(A4)
    sheet.fit_to_pages(1, 0)
    sheet.repeat_rows(0, 1)
    sheet.set_footer("&C" + footer[:LONGEST_FOOTER].replace("&", "&&"))
    sheet.freeze_panes(2, len(table.by))
    for position, column in enumerate(_columns(table)):
        text = [len(value) for value in column.values if isinstance(value, str)]
        align = {"align": "left", "indent": 1} if text else {"align": "right"}
        sheet.write_string(0, position, column.group, workbook.add_format({"bold": True, **align}))
        sheet.write_string(1, position, column.name, workbook.add_format({"bold": True, "bottom": 1, **align}))
        sheet.set_column(position, position, min(max(NARROWEST, len(column.name), *text, 0) + 3, WIDEST))
        styles = [workbook.add_format({"num_format": column.format, "bold": bold, **align}) for bold in (False, True)]
        for line, (row, value) in enumerate(zip(table.rows, column.values, strict=True), start=2):
            if isinstance(value, str):
                sheet.write_string(line, position, value, styles[row.is_margin])
            elif value is not None:
                sheet.write_number(line, position, value, styles[row.is_margin])


@outlined
@dataclass(frozen=True)
class _Column:
    group: str
    name: str
    format: str
    values: list[str | float | None]


def _columns(table: WideTable) -> list[_Column]:
    columns = [
        _Column("", name, "General", [row.labels[position] for row in table.rows])
        for position, name in enumerate(table.by)
    ]
    columns.append(_Column("", "n", "#,##0", [row.n for row in table.rows]))
    for position, statistic in enumerate(table.statistics):
        places = table.decimals(position)
        number = "#,##0" + ("." + "0" * places if places else "")
        for measure in table.measures:
            group = statistic if measure == "estimate" else ""
            values = [getattr(row.estimates[position], measure) for row in table.rows]
            columns.append(_Column(group, HEADINGS[measure], "0.0%" if measure == "cv" else number, values))
    return columns


def _sheet_name(title: str, used: set[str]) -> str:
    """A name that Excel accepts: short, without special characters, and not used before."""
    base = re.sub(r"[\[\]:*?/\\']", " ", title).strip()[:LONGEST_SHEET_NAME] or "Table"
    name, number = base, 2
    while name.lower() in used:
        suffix = f" ({number})"
        name, number = base[: LONGEST_SHEET_NAME - len(suffix)] + suffix, number + 1
    used.add(name.lower())
    return name
