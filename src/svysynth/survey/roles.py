"""Roles: which columns a spec uses, what each is converted to, and which records take part; bad data are refused.

The steps are the same for a survey that is read as a whole and for one that is read in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import polars as pl

from svysynth.core.errors import SurveyError, did_you_mean, of_records
from svysynth.core.spec.survey import SurveySpec
from svysynth.survey.columns import LARGEST_MAGNITUDE, UNANSWERED, categories, keys, without_codes
from svysynth.survey.columns_as_declared import columns_of_file
from svysynth.survey.domains import columns_of_domains
from svysynth.survey.formats.base import CodeLabels, DataFile
from svysynth.survey.row_filter import condition_columns, keep_rows, parse_condition


def declared_columns(spec: SurveySpec) -> list[str]:
    """The columns that have a role."""
    optional = [*spec.all_strata, *spec.clusters, *spec.fpcs]
    optional += spec.replicates.weights if spec.replicates else ()
    return list(dict.fromkeys([*spec.answers, spec.weight, *optional, *spec.public]))


def levels_of(series: pl.Series, spec: SurveySpec, file: DataFile) -> tuple[pl.Series, dict[str, str]]:
    """A column of categories, and the labels of its codes."""
    name = series.name
    labels, last = file.value_labels.get(name, {}), spec.made(name).missing_level
    return categories(series, spec.declared(name), labels, spec.other.get(name), last)


def counted_as_other(columns: Iterable[str], spec: SurveySpec) -> Iterator[tuple[str, CodeLabels]]:
    """The columns with a level in `survey.other` for undeclared codes, and the declared codes of each."""
    for name in columns:
        declared = spec.declared(name)
        if declared is not None and name in spec.other:
            yield name, declared


def design_levels(series: pl.Series, spec: SurveySpec, file: DataFile) -> pl.Series:
    """A column of strata or clusters, as its declared levels or as numbers."""
    if spec.declared(series.name) is not None:
        return levels_of(series, spec, file)[0]
    return pl.Series(series.name, keys(series).key)


def needed_columns(spec: SurveySpec) -> list[str]:
    """The columns of the file: those that columns with a role are made from, and those that conditions look at."""
    conditions = [*condition_columns(parse_condition(spec.where)), *columns_of_domains(spec)]
    return list(dict.fromkeys([*columns_of_file(declared_columns(spec), spec), *conditions]))


def records_that_take_part(frame: pl.DataFrame, spec: SurveySpec, file: DataFile) -> pl.DataFrame:
    """The records that the row filter keeps, with missing values for the declared codes of missing answers."""
    if spec.missing:
        frame = frame.with_columns(without_codes(column, spec.missing, file) for column in frame.iter_columns())
    condition = parse_condition(spec.where)
    return frame if condition is None else keep_rows(frame, condition, file)


def require_columns(needed: Sequence[str], available: Sequence[str]) -> None:
    """Stop if needed columns are not in the data."""
    missing = [column for column in dict.fromkeys(needed) if column not in available]
    if missing:
        hint = did_you_mean(missing[0], available)
        raise SurveyError(
            "data",
            f"column '{missing[0]}'",
            f"is not in the data{hint}" + (f", nor are {len(missing) - 1} more" if missing[1:] else ""),
            "check the names in [survey] against the file's header",
        )


def require_records(frame: pl.DataFrame, place: str, remedy: str) -> None:
    """Stop if there are no records."""
    if frame.height == 0:
        raise SurveyError("data", place, "there are no records", remedy)


def check_ranges(columns: Mapping[str, pl.Series], spec: SurveySpec) -> None:
    """Stop if weights are not positive, or if outcomes are not positive and need a logarithm."""
    weight, outcome = columns[spec.weight], columns[spec.outcome]
    bad = int((weight <= 0).sum())
    if bad:
        raise SurveyError(
            "data",
            f"column '{spec.weight}'",
            f"{of_records(bad, len(weight))} not positive, as a weight must be",
            f"correct them; {UNANSWERED}",
        )
    bad = int((weight < 1 / LARGEST_MAGNITUDE).sum())
    if bad:
        raise SurveyError(
            "data",
            f"column '{spec.weight}'",
            f"{of_records(bad, len(weight))} absurdly small",
            "correct them",
        )
    bad = int((outcome <= 0).sum()) if spec.kinds.get(spec.outcome, "amount") == "amount" else 0
    if spec.transform == "log" and bad:
        raise SurveyError(
            "data",
            f"column '{spec.outcome}'",
            f"{of_records(bad, len(outcome))} not positive: there is no logarithm",
            f"set survey.transform to 'identity'; {UNANSWERED}",
        )
