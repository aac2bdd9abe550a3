"""Domains: the parts of the population that tables are about, as with R's `subset` of a design.

A domain is not a row filter. Records outside count as zeros, and strata and clusters stay whole. So standard errors
include the fact that the number of records inside is random. For each domain that its spec names, a survey has a column
that says whether a record is inside. If the condition looks at public columns only, the domain is a union of their
cells, and the column follows from them: it exists in synthetic files too. Otherwise it is read with the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.survey import SurveySpec
from svysynth.survey.formats.base import CodeLabels, DataFile
from svysynth.survey.row_filter import condition_columns, holds, parse_condition

PLACE = "domain"
LEVELS = ("outside", "inside")
INSIDE = LEVELS.index("inside")
Part = dict[str, tuple[str, ...]]
"""The levels of some columns; a column that is not named has all of its levels."""
MOST_COMBINATIONS = 100_000
"""The most combinations of levels for which a condition is looked up; with more, it is applied to each record."""


@outlined
@dataclass(frozen=True, eq=False)
class PublicDomain:
    """A domain whose condition looks at public columns only."""

    columns: tuple[str, ...]
    inside: Booleans
    """Whether each combination of levels is inside: one axis for each column."""

    def holds(self, codes: Sequence[Integers]) -> Booleans:
        """Whether records or cells are inside, from the position of the level in each of the columns."""
        return np.asarray(self.inside[tuple(codes)])

    def meets(self, other: PublicDomain) -> bool:
        """Whether some levels are inside both."""
        shared = [column for column in self.columns if column in other.columns]
        return bool((self._over(shared) & other._over(shared)).any())

    def _over(self, columns: Sequence[str]) -> Booleans:
        """Whether each combination of the levels of some of its columns has a part inside."""
        others = tuple(axis for axis, column in enumerate(self.columns) if column not in columns)
        left = [column for column in self.columns if column in columns]
        found = np.asarray(self.inside.any(axis=others))
        return found.transpose([left.index(column) for column in columns])

    def parts(self, labels: Mapping[str, Sequence[str]]) -> list[Part]:
        """The domain as a union of parts; in a part each column has some of its levels."""
        return list(_parts(self.inside, [(column, labels[column]) for column in self.columns]))

    @classmethod
    def of_parts(
        cls, columns: tuple[str, ...], parts: Sequence[Mapping[str, Sequence[str]]], labels: Mapping[str, Sequence[str]]
    ) -> PublicDomain:
        """The domain with these parts; labels that the columns do not have are a ValueError."""
        levels = [list(labels[column]) for column in columns]
        found = np.zeros([len(names) for names in levels], bool)
        for part in parts:
            if not set(part) <= set(columns):
                raise ValueError("a part of a domain names another column")
            chosen = [
                [names.index(label) for label in part.get(column, names)]
                for column, names in zip(columns, levels, strict=True)
            ]
            found[np.ix_(*chosen)] = True
        return cls(columns, found)


def _parts(inside: Booleans, columns: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Part]:
    if not columns:
        yield from [{}] if inside else []
        return
    (column, labels), *others = columns
    kinds, kind = np.unique(inside.reshape(len(labels), -1), axis=0, return_inverse=True)
    for number, of_others in enumerate(kinds):
        levels = tuple(label for label, own in zip(labels, kind.reshape(-1).tolist(), strict=True) if own == number)
        for rest in _parts(of_others.reshape(inside.shape[1:]), others):
            yield {**({} if len(levels) == len(labels) else {column: levels}), **rest}


def domain_column(condition: str) -> str:
    """The column that says which records are inside; no column of the data has such a name by chance."""
    return f"domain: {condition}"


def same_domain(domain: str, known: Sequence[str]) -> str | None:
    """The known condition that reads as this one does, whatever its spaces, brackets and capitals of SQL words.

    >>> same_domain("NOT(sex='f')", ["sex = 'f'", "not sex = 'f'"])
    "not sex = 'f'"
    """
    if domain in known:
        return domain
    condition = parse_condition(domain, PLACE)
    assert condition is not None
    found = (one for one in known if (other := parse_condition(one, PLACE)) is not None and condition.meta.eq(other))
    return next(found, None)


def columns_of_domain(domain: str) -> list[str]:
    """The columns that a domain names in its condition."""
    return condition_columns(parse_condition(domain, PLACE))


def columns_of_domains(spec: SurveySpec) -> list[str]:
    """The columns of the file that the domains of a spec name in their conditions."""
    named = (column for domain in spec.domains for column in columns_of_domain(domain))
    return [column for column in dict.fromkeys(named) if not _is_renamed(column, spec)]


def _is_renamed(column: str, spec: SurveySpec) -> bool:
    """Whether a name is that of a public column which is made from a column of the file with another name."""
    return column in spec.public and spec.source(column) != column


def public_column(column: str, spec: SurveySpec) -> str | None:
    """The public column from whose levels a condition on this column can be told; None if there is none."""
    if _is_renamed(column, spec):
        return column
    own = (name for name in spec.public if spec.source(name) == column and not spec.made(name).is_grouped)
    return next(own, None)


def seen_by_domains(frame: pl.DataFrame, declared: Mapping[str, pl.Series], spec: SurveySpec) -> pl.DataFrame:
    """What the conditions of domains see: the columns of the file, and public columns with names of their own."""
    named = dict.fromkeys(column for domain in spec.domains for column in columns_of_domain(domain))
    return pl.DataFrame({name: declared[name] if _is_renamed(name, spec) else frame[name] for name in named})


def public_domains(
    spec: SurveySpec, codes: Mapping[str, CodeLabels], types: Mapping[str, pl.DataType], file: DataFile
) -> dict[str, PublicDomain]:
    """The domains of a spec that follow from public columns, by the name of their column.

    A condition is applied to the codes of the levels, with the types that it sees, and not to the data.
    """
    found = {}
    for domain in spec.domains:
        columns = {column: public_column(column, spec) for column in columns_of_domain(domain)}
        public = {column: name for column, name in columns.items() if name is not None}
        few = math.prod(len(codes[name]) for name in public.values()) <= MOST_COMBINATIONS
        if len(set(public.values())) == len(columns) and few:
            found[domain_column(domain)] = _look_up(domain, public, spec, codes, types, file)
    return found


def _look_up(
    domain: str,
    public: Mapping[str, str],
    spec: SurveySpec,
    codes: Mapping[str, CodeLabels],
    types: Mapping[str, pl.DataType],
    file: DataFile,
) -> PublicDomain:
    sizes = [len(codes[name]) for name in public.values()]
    every = pl.DataFrame({"": np.arange(math.prod(sizes))})
    places = np.unravel_index(every[""].to_numpy(), sizes or [1])
    for place, (column, name) in zip(places, public.items(), strict=False):
        own = pl.Series(column, list(codes[name]), pl.String)
        if not _is_renamed(column, spec):  # the condition sees that the answer is missing
            own = own.set(own == (spec.made(name).missing_level or ""), None)
        every = every.with_columns(_as_in_file(own, types[column]).gather(place))
    inside = inside_of(every, domain, file).to_numpy()
    if not inside.any():
        raise nothing_inside()
    return PublicDomain(tuple(public.values()), inside.reshape(sizes))


def _as_in_file(codes: pl.Series, dtype: pl.DataType) -> pl.Series:
    """The codes of a column with the type that they have in the file; a code that is no such value is missing."""
    if dtype == pl.Boolean:
        return codes.replace_strict({"true": True, "false": False}, default=None, return_dtype=pl.Boolean)
    return codes.cast(dtype, strict=False)


def stored_domains(columns: Iterable[str]) -> list[str]:
    """The columns of domains among some columns."""
    return [column for column in columns if column.startswith(domain_column(""))]


def read_domains(
    frame: pl.DataFrame, spec: SurveySpec, file: DataFile, known: Sequence[str] = ()
) -> Iterator[pl.Series]:
    """For each domain of a spec, which records of a frame are inside; a domain without any is refused.

    `known` names the columns of those domains that are already known from public columns.
    """
    for domain in spec.domains:
        if domain_column(domain) in known:
            continue
        inside = inside_of(frame, domain, file)
        if not inside.any():
            raise nothing_inside()
        yield told_inside(domain_column(domain), inside)


def told_inside(name: str, inside: pl.Series) -> pl.Series:
    """The column of a domain, from whether each record is inside."""
    told = pl.when(inside).then(pl.lit(LEVELS[INSIDE])).otherwise(pl.lit(LEVELS[1 - INSIDE]))
    return pl.select(told.cast(pl.Enum(LEVELS)).alias(name)).to_series()


def inside_of(frame: pl.DataFrame, domain: str, file: DataFile) -> pl.Series:
    """Which records of a frame are inside a domain."""
    condition = parse_condition(domain, PLACE)
    assert condition is not None
    return holds(frame, condition, file, PLACE)


def codes_of(frame: pl.DataFrame, column: str, domains: Mapping[str, PublicDomain]) -> Integers:
    """The position of the level for each row of a frame, in a public column or in the column of a domain."""
    if column not in domains:
        codes: Integers = frame[column].to_physical().to_numpy()
        return codes
    domain = domains[column]
    if not domain.columns:
        return np.full(frame.height, int(domain.inside))
    return domain.holds([frame[name].to_physical().to_numpy() for name in domain.columns]).astype(np.int8)


def nothing_inside() -> SurveyError:
    """The error for a domain without any record."""
    remedy = "loosen the condition in survey.domain, survey.domains or the table's domain"
    return SurveyError("data", PLACE, "has no record inside", remedy)
