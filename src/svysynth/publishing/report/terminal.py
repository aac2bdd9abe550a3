"""Tables as rich renderables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from svysynth.core.spec.estimation import EstimationSpec
from svysynth.estimation.layout import WideTable, legend, notes_on, wide_tables

INTERNAL = "INTERNAL USE ONLY: computed from the confidential data, without protection."


def render_tables(tidy: pl.DataFrame, estimation: EstimationSpec, labels: Mapping[str, str]) -> RenderableType:
    """All tables of a tidy frame, with the meaning of the marks below."""
    tables = [_render_table(table) for table in wide_tables(tidy, labels)]
    return Group(*tables, *(Text(line, style="dim") for line in (legend(estimation, tidy), *notes_on(tidy))))


def _render_table(wide: WideTable) -> Table:
    table = Table(title=Text(wide.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for place, name in enumerate(wide.header):
        numbers = place - len(wide.by)  # n, then an estimate and its standard error for each statistic
        style = "dim" if numbers > 0 and numbers % 2 == 0 else None
        table.add_column(Text(name), justify="left" if numbers < 0 else "right", style=style)
    for row, cells in zip(wide.rows, wide.printed(), strict=True):
        table.add_row(*map(Text, cells), style="bold" if row.is_margin else None)
    return table
