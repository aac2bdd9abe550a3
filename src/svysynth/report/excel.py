"""Tables as an Excel workbook: a sheet for each table, numbers as numbers, labels as text and never as formulas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import xlsxwriter

from svysynth.files import appearing

FORMATS = {"estimate": "#,##0.####", "se": "#,##0.####", "lower": "#,##0.####", "upper": "#,##0.####", "cv": "0.0%"}
LONGEST_SHEET_NAME = 31


def write_workbook(tidy: pl.DataFrame, path: Path, notes: Sequence[str]) -> None:
    """Write the tidy tables to a workbook, with the notes on its first sheet."""
    with appearing(path) as target:
        options = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
        workbook = xlsxwriter.Workbook(str(target), options)
        bold = workbook.add_format({"bold": True, "bottom": 1})
        sheet = workbook.add_worksheet("Notes")
        sheet.set_column(0, 0, 100)
        for line, note in enumerate(notes):
            sheet.write_string(line, 0, note)
        used = {"notes"}
        for title, rows in tidy.group_by("table", maintain_order=True):
            _write_sheet(workbook, _sheet_name(str(title[0]), used), rows.drop("table"), bold)
        workbook.close()


def _write_sheet(workbook: Any, name: str, rows: pl.DataFrame, bold: Any) -> None:
    sheet = workbook.add_worksheet(name)
    sheet.freeze_panes(1, 0)
    for position, column in enumerate(rows.columns):
        sheet.write_string(0, position, column, bold)
        style = workbook.add_format({"num_format": FORMATS[column]}) if column in FORMATS else None
        longest = max((len(str(value)) for value in rows[column] if isinstance(value, str)), default=0)
        sheet.set_column(position, position, max(10, len(column) + 2, min(longest + 2, 50)), style)
        for line, value in enumerate(rows[column], start=1):
            if isinstance(value, str):
                sheet.write_string(line, position, value)
            elif value is not None:
                sheet.write_number(line, position, value)


def _sheet_name(title: str, used: set[str]) -> str:
    """A name that Excel takes: short, without its special characters, and not used before."""
    base = re.sub(r"[\[\]:*?/\\']", " ", title).strip()[:LONGEST_SHEET_NAME] or "Table"
    name, number = base, 2
    while name.lower() in used:
        suffix = f" ({number})"
        name, number = base[: LONGEST_SHEET_NAME - len(suffix)] + suffix, number + 1
    used.add(name.lower())
    return name
