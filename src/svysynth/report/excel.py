"""Tables as an Excel workbook: a sheet for each table, numbers as numbers, labels as text and never as formulas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import xlsxwriter

from svysynth.files import appearing
from svysynth.report.wide import MEASURES, WideTable, decimals, is_margin, wide_tables

LONGEST_SHEET_NAME = 31
NARROWEST, WIDEST = 10, 50


def write_workbook(tidy: pl.DataFrame, path: Path, notes: Sequence[str]) -> None:
    """Write the tables to a workbook, with the notes on its first sheet."""
    options = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    with appearing(path) as target:
        workbook = xlsxwriter.Workbook(str(target), options)
        sheet = workbook.add_worksheet("Notes")
        sheet.set_column(0, 0, 2 * WIDEST)
        for line, note in enumerate(notes):
            sheet.write_string(line, 0, note)
        used = {"notes"}
        for table in wide_tables(tidy):
            _write_sheet(workbook, _sheet_name(table.title, used), table, footer=notes[0])
        workbook.close()


def _write_sheet(workbook: Any, name: str, table: WideTable, footer: str) -> None:
    """Two header rows (statistic over measure), then the rows, margins in bold; made to print on one page's width."""
    sheet = workbook.add_worksheet(name)
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)
    sheet.repeat_rows(0, 1)
    sheet.set_footer("&C" + footer.replace("&", "&&"))
    sheet.freeze_panes(2, len(table.by))
    for position, (key, group, column, places) in enumerate(_columns(table)):
        text = [len(value) for value in table.rows[key] if isinstance(value, str)]
        align = {"align": "left", "indent": 1} if text else {"align": "right"}
        sheet.write_string(0, position, group, workbook.add_format({"bold": True, **align}))
        sheet.write_string(1, position, column, workbook.add_format({"bold": True, "bottom": 1, **align}))
        sheet.set_column(position, position, min(max(NARROWEST, len(column), *text, 0) + 3, WIDEST))
        formats = [workbook.add_format({"num_format": places, "bold": bold, **align}) for bold in (False, True)]
        for line, row in enumerate(table.rows.iter_rows(named=True), start=2):
            style = formats[is_margin(row, table.by)]
            if isinstance(row[key], str):
                sheet.write_string(line, position, row[key], style)
            elif row[key] is not None:
                sheet.write_number(line, position, row[key], style)


def _columns(table: WideTable) -> list[tuple[str, str, str, str]]:
    """For each column of the sheet: its key in the rows, the header above it, its own header, its number format."""
    columns = [(column, "", column, "General") for column in table.by]
    columns.append(("n", "", "n", "#,##0"))
    for statistic in table.statistics:
        places = decimals(table.rows[statistic], statistic)
        number = "#,##0" + ("." + "0" * places if places else "")
        columns.append((statistic, statistic, "estimate", number))
        for measure in MEASURES:
            columns.append((f"{statistic}_{measure}", "", measure, "0.0%" if measure == "cv" else number))
    return columns


def _sheet_name(title: str, used: set[str]) -> str:
    """A name that Excel takes: short, without its special characters, and not used before."""
    base = re.sub(r"[\[\]:*?/\\']", " ", title).strip()[:LONGEST_SHEET_NAME] or "Table"
    name, number = base, 2
    while name.lower() in used:
        suffix = f" ({number})"
        name, number = base[: LONGEST_SHEET_NAME - len(suffix)] + suffix, number + 1
    used.add(name.lower())
    return name
