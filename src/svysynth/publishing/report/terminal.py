"""Tables and overviews as rich renderables for the terminal."""

from __future__ import annotations

import polars as pl
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from svysynth.core.spec import EstimationSpec, PrivacySpec, Spec
from svysynth.estimation.layout import WideTable, legend, wide_tables
from svysynth.privacy.guarantee import NOT_DIFFERENTIAL_PRIVACY
from svysynth.survey.overview import Overview

INTERNAL = "INTERNAL USE ONLY: computed from the confidential data, without protection."


def render_tables(tidy: pl.DataFrame, estimation: EstimationSpec) -> RenderableType:
    """All tables of a tidy frame, with the meaning of the marks below."""
    return Group(*[_render_table(table) for table in wide_tables(tidy)], Text(legend(estimation), style="dim"))


def _render_table(wide: WideTable) -> Table:
    table = Table(title=Text(wide.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for place, name in enumerate(wide.header):
        numbers = place - len(wide.by)  # n, then an estimate and its standard error for each statistic
        style = "dim" if numbers > 0 and numbers % 2 == 0 else None
        table.add_column(Text(name), justify="left" if numbers < 0 else "right", style=style)
    for row, cells in zip(wide.rows, wide.printed(), strict=True):
        table.add_row(*map(Text, cells), style="bold" if row.is_margin else None)
    return table


def render_overview(overview: Overview, spec: Spec) -> Table:
    """The design of a survey as two columns."""
    survey = spec.survey
    table = Table(show_header=False, box=box.SIMPLE, title=Text(f"Design of {survey.data.name}"), title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    cells = f"{overview.cells - overview.empty_cells:,} of {overview.cells:,} filled ({' × '.join(survey.public)})"
    transformed = f"log {survey.outcome}" if survey.transform == "log" else survey.outcome
    correlation = "one of them does not vary" if overview.correlation is None else f"{overview.correlation:+.2f}"
    lines = {
        "records": f"{overview.records:,}",
        "strata": f"{overview.strata:,} ({survey.strata})" if survey.strata else "none",
        "clusters": f"{overview.clusters:,} ({survey.cluster})" if overview.clusters else "none",
        "degrees of freedom": f"{overview.degrees_of_freedom:,}",
        "cells": cells,
        "smallest cell": f"{overview.smallest_cell:,} record{'s' if overview.smallest_cell > 1 else ''}",
        "sum of weights": f"{overview.sum_of_weights:,.1f}",
        "population total": _population(overview),
        f"correlation of {transformed} and log weight": correlation,
        "tables": ", ".join(table.title for table in spec.requested_tables),
        "privacy": _privacy(spec),
    }
    for name, value in lines.items():
        table.add_row(Text(name), Text(value))
    return table


def _population(overview: Overview) -> str:
    if overview.population_total is None or overview.weight_excess is None:
        return "not declared" + ("" if overview.weight_public else " (a release needs it)")
    side = "above" if overview.weight_excess >= 0 else "below"
    return f"{overview.population_total:,.10g} (the sum of weights is {abs(overview.weight_excess):.2%} {side})"


def _privacy(spec: Spec) -> str:
    if spec.privacy is None:
        return "not declared (a release needs it)"
    privacy = spec.privacy
    said = f"{privacy.mechanism}, ε = {privacy.epsilon:g} for {_what(privacy)}; check spends nothing"
    return f"{NOT_DIFFERENTIAL_PRIVACY}: {said} (asymptotic)" if privacy.guarantee == "asymptotic" else said


def _what(privacy: PrivacySpec) -> str:
    if not privacy.microdata:
        return "all tables"
    if privacy.guarantee == "global":  # ε is for what was measured, however many files are made from it
        return f"all tables and {privacy.datasets} synthetic file{'s' if privacy.datasets > 1 else ''}"
    return f"{privacy.datasets} data sets"
