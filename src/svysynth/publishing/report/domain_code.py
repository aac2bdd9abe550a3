"""Domain code: the domains of a table as conditions on the columns of synthetic files, in R, Stata and SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from svysynth.estimation.frames import domain_columns
from svysynth.privacy.release import Release
from svysynth.publishing.report.page import quoted, r_name
from svysynth.survey.columns import comparable
from svysynth.survey.domains import Part
from svysynth.survey.formats.base import DataFile
from svysynth.survey.formats.csv import guarded

Among = Callable[[str, Sequence[str]], str]
"""Writes that a column has one of some labels."""


def domain_code(release: Release, stata: Mapping[str, str]) -> dict[str, str]:
    """The condition of the first table in each language; none without a domain.

    `stata` has the names of the columns of a synthetic file, as they are in Stata.
    """
    table, domain = release.requested_tables[0], release.spec.survey.domain
    parts = [release.domains[name].parts(release.levels) for name in domain_columns(table, domain, release.domains)]
    if not parts:
        return {}
    file = DataFile(Path("microdata-1.csv"), "csv", tuple(stata))
    numeric = {
        column: comparable(pl.Series(column, list(map(guarded, labels))), file).dtype.is_numeric()
        for column, labels in release.levels.items()
    }

    def among_sql(column: str, labels: Sequence[str]) -> str:
        listed = labels if numeric[column] else ["'" + guarded(label).replace("'", "''") + "'" for label in labels]
        name = guarded(column).replace('"', '""')
        return f'"{name}" in ({", ".join(listed)})'

    def among_r(column: str, labels: Sequence[str]) -> str:
        return f"{r_name(guarded(column))} %in% c({', '.join(quoted(guarded(label)) for label in labels)})"

    def among_stata(column: str, labels: Sequence[str]) -> str:
        return " | ".join(f'{stata[guarded(column)]} == `"{guarded(label)}"\'' for label in labels)

    return {
        "r": _all(parts, among_r, " & ", " | ", "TRUE"),
        "python": _all(parts, among_sql, " and ", " or ", "1 = 1"),
        "stata": _all(parts, among_stata, " & ", " | ", "1"),
    }


def _all(domains: Sequence[Sequence[Part]], among: Among, both: str, either: str, everybody: str) -> str:
    """The records that are inside all of the domains."""
    return both.join(f"({_any(parts, among, both, either, everybody)})" for parts in domains)


def _any(parts: Sequence[Part], among: Among, both: str, either: str, everybody: str) -> str:
    found = [both.join(f"({among(column, labels)})" for column, labels in part.items()) for part in parts]
    return either.join(f"({one})" if one else everybody for one in found)
