"""Domains: the parts of the population that tables are about, as with R's `subset` of a design.

A domain is not a row filter. Records outside count as zeros, and strata and clusters stay whole. So standard errors
include the fact that the number of records inside is random. For each domain that its spec names, a survey has a column
that says whether a record is inside.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.spec.survey import SurveySpec
from svysynth.survey.formats.base import DataFile
from svysynth.survey.row_filter import condition_columns, holds, parse_condition

PLACE = "domain"
LEVELS = ("outside", "inside")
INSIDE = LEVELS.index("inside")


def domain_column(condition: str) -> str:
    """The column that says which records are inside; no column of the data has such a name by chance."""
    return f"domain: {condition}"


def columns_of_domains(spec: SurveySpec) -> list[str]:
    """The columns that the domains of a spec name in their conditions."""
    return [column for domain in spec.domains for column in condition_columns(parse_condition(domain, PLACE))]


def read_domains(frame: pl.DataFrame, spec: SurveySpec, file: DataFile) -> Iterator[pl.Series]:
    """For each domain of a spec, which records of a frame are inside; a domain without any is refused."""
    for domain in spec.domains:
        condition = parse_condition(domain, PLACE)
        assert condition is not None
        inside = holds(frame, condition, file, PLACE)
        if not inside.any():
            raise SurveyError(
                "data",
                PLACE,
                "has no record inside",
                "loosen the condition in survey.domain, survey.domains or the table's domain",
            )
        told = pl.when(inside).then(pl.lit(LEVELS[INSIDE])).otherwise(pl.lit(LEVELS[1 - INSIDE]))
        yield pl.select(told.cast(pl.Enum(LEVELS)).alias(domain_column(domain))).to_series()
