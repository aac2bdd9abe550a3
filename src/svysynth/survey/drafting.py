"""Draft: a commented spec made from a data file, with the roles that can be guessed from the file.

A guess uses the column's name (`guessing_roles.py`), type and number of distinct values in the first records. No value
from the data goes into the draft. A column named like a weight, an identifier or a sampling unit is never proposed as
outcome or public column. No row filter is proposed: somebody who knows what is public has to decide which records take
part.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from svysynth.core.errors import file_error, is_plain
from svysynth.core.safe_repr import outlined
from svysynth.survey.columns import LONGEST_LABEL, guess_numbers
from svysynth.survey.files import open_data, read_columns
from svysynth.survey.formats.base import DataFile
from svysynth.survey.guessing_roles import KNOWN, Role, is_called, is_known, rank, replicate_weights

RECORDS_LOOKED_AT = 10_000
COLUMNS_LOOKED_AT = 500
MOST_CATEGORIES = 50
MOST_CODES = 20
"""A numeric column with no more values than this holds codes, not amounts."""
PUBLIC_COLUMNS, MOST_CANDIDATES = 2, 10
USUALLY_PUBLIC = (
    r"(^|[_. ])(sex|gender|age|region|state|province|county|district|area|urban|rural|field|industr|sector|nace|isic|"
    r"occup|isco|educ|isced|school|stype|type|size|class|kind|group)|riagendr|rb090|db040|nsdrmemtod|agecat|agegrp"
)
"""Names of columns that statistical offices usually publish; the user has to check what they contain."""
FEWEST_SERIAL = 50
"""With fewer records, measurements in whole numbers may well be all different."""
NEVER: tuple[Role, ...] = ("weight", "strata", "cluster", "fpc", "identifier", "code")
"""Roles whose columns are never proposed as the outcome."""


@outlined
@dataclass(frozen=True)
class _Column:
    name: str
    numeric: bool
    distinct: int
    smallest: float | None
    serial: bool
    """Whether the column numbers the records: whole numbers, each once."""
    missing: bool
    """Whether some records have no value: the column is then more likely an answer than a design variable."""

    def called(self, *roles: Role) -> bool:
        return is_called(self.name, *roles)

    @property
    def categorical(self) -> bool:
        return 2 <= self.distinct <= MOST_CATEGORIES

    @property
    def positive(self) -> bool:
        return self.numeric and self.smallest is not None and self.smallest > 0


@dataclass(frozen=True)
class Draft:
    """A drafted spec: its text, and the roles it found."""

    text: str
    roles: dict[str, str]


def draft_spec(data: str | Path, folder: str | Path = ".") -> Draft:
    """Draft a spec for a data file; `folder` is where the spec will stand."""
    try:
        str(data).encode()
    except UnicodeEncodeError:
        raise file_error(Path(data), "has a name that is not Unicode", "rename it") from None
    file = open_data(data)
    columns = _profile(file)
    weight = _chosen(columns, "weight", lambda column: column.positive)
    strata = _chosen(columns, "strata", lambda column: column != weight)
    cluster = _chosen(columns, "cluster", lambda column: column not in (weight, strata))
    fpc = _chosen(columns, "fpc", lambda column: column.positive)
    outcome = _outcome([column for column in columns if column not in (weight, strata, cluster, fpc)])
    candidates = [column for column in columns if _can_be_public(column) and column not in (outcome, strata)]
    complete = [column for column in candidates if not column.missing]
    public = sorted(complete, key=lambda column: not _usually_public(column))[:PUBLIC_COLUMNS]
    if strata and strata.categorical:
        public = [strata, *public][:PUBLIC_COLUMNS]
    others = [column for column in candidates if column not in public]
    return _write(file, Path(folder), outcome, weight, strata, cluster, fpc, public, others)


def _profile(file: DataFile) -> list[_Column]:
    replicates = replicate_weights(file.columns)
    named = [name for name in file.columns if name.strip() and name not in replicates]
    likely = [name for name in named if is_called(name, *KNOWN)]
    chosen = set([*likely, *named][:COLUMNS_LOOKED_AT])
    head = read_columns(file, [name for name in named if name in chosen], rows=RECORDS_LOOKED_AT)
    return [_look(guess_numbers(head[name], file)) for name in head.columns]


def _look(series: pl.Series) -> _Column:
    numeric = series.dtype.is_numeric()
    smallest = series.min() if numeric else None
    distinct = 0 if series.dtype.is_nested() else series.drop_nulls().n_unique()
    serial = numeric and distinct == len(series) >= FEWEST_SERIAL and bool((series == series.round()).all())
    low = float(smallest) if isinstance(smallest, int | float) else None
    return _Column(series.name, numeric, distinct, low, serial, series.null_count() > 0)


def _chosen(columns: list[_Column], role: Role, fits: Callable[[_Column], bool]) -> _Column | None:
    """The column for a role: preferably one that a well-known file gives this role, else the first that fits."""
    found = [column for column in columns if column.called(role) and fits(column)]
    return min(found, key=lambda column: rank(column.name, role), default=None)


def _outcome(columns: list[_Column]) -> _Column | None:
    """A column whose name suggests an amount, else the numeric column with the most distinct values."""
    numeric = [column for column in columns if column.numeric and column.distinct > 2 and not column.serial]
    measured = [column for column in numeric if not column.called(*NEVER)]
    measured = [column for column in measured if column.distinct > MOST_CODES] or measured
    known = _chosen(measured, "outcome", lambda column: is_known(column.name, "outcome"))
    named = [column for column in measured if column.called("outcome")]
    ranked = sorted(named or measured, key=lambda column: -column.distinct)
    return known or (ranked[0] if ranked else None)


def _can_be_public(column: _Column) -> bool:
    return column.categorical and not column.called("weight", "cluster", "fpc", "identifier")


def _usually_public(column: _Column) -> bool:
    """Whether a column's name is one of those that statistical offices usually publish about respondents."""
    return re.search(USUALLY_PUBLIC, column.name, re.IGNORECASE) is not None


def _write(
    file: DataFile,
    folder: Path,
    outcome: _Column | None,
    weight: _Column | None,
    strata: _Column | None,
    cluster: _Column | None,
    fpc: _Column | None,
    public: list[_Column],
    candidates: list[_Column],
) -> Draft:
    chosen = [column.name for column in public]
    others = [column.name for column in candidates[:MOST_CANDIDATES]]
    lines = [
        "# A draft: every line is a guess to be checked. docs/spec.md explains the settings.",
        "",
        "[survey]",
        f"data = {_quote(_relative(file.path, folder))}",
        _setting("outcome", outcome, "the numeric variable that the tables are about"),
        _transform(outcome),
        _setting("weight", weight, "the column of sampling weights"),
        _setting("strata", strata, "the column of sampling strata, if any"),
        _setting("cluster", cluster, "the column of primary sampling units, if any"),
        *([_setting("fpc", fpc, "")] if fpc else []),
        f"public = {_list(chosen)}" if chosen else _comment('# public = ["…"]', "at least one column of categories"),
        *([f"# further candidates, if they are public and not answers: {_list(others)}"] if others else []),
        _comment("# population_total = …", "needed: a published figure; released weights are scaled to it"),
        _comment('# where = "age_group = 40"', "which records take part: a SQL condition on public columns"),
        _comment('# universe = ["age_group"]', "further columns that `where` may name, if membership is public"),
        _comment('# missing = ["N", "9999998"]', "codes that stand for a missing answer"),
        _comment("# [survey.columns.NAME]", "bands, recodes, missing codes and labels of one column"),
        "",
        *_labels(file, [*([outcome.name] if outcome else []), *chosen]),
        "[privacy]",
        _comment('mechanism = "fbs"', "fbs | fbp | laplace"),
        _comment('guarantee = "global"', "differential privacy, for every file and sample size: see docs/privacy.md"),
        _comment("epsilon = 3", "privacy loss if an answer is changed; 1.5 if it is blanked out"),
        "# needed: ranges that are public knowledge, not read off the data; `svysynth constants` proposes some",
        "# bounds = { outcome = […, …], weight = […, …] }",
        "# the paper's mechanism, which is not differential privacy, needs no bounds:",
        '# guarantee = "asymptotic", epsilon = 10.8, datasets = 3',
        _comment('# budget = "…"', "needed: the population's name in the ledger"),
        "",
        "[[tables]]",
        _comment(f"by = {_list(chosen)}", "all margins and the total come with it"),
        _comment(
            'statistics = ["count", "mean"]',
            "count | mean | total | proportion | median | quantile(0.25) | share(> 50000)",
        ),
        "",
    ]
    guessed = (("outcome", outcome), ("weight", weight), ("strata", strata), ("cluster", cluster), ("fpc", fpc))
    roles = {role: column.name for role, column in guessed if column}
    return Draft("\n".join(lines), roles | ({"public": ", ".join(chosen)} if chosen else {}))


def _labels(file: DataFile, columns: list[str]) -> list[str]:
    """The labels that the file has for variables, as sections of the spec."""
    found = {column: file.variable_labels.get(column, "").strip()[:LONGEST_LABEL].strip() for column in columns}
    return [
        line
        for column, label in found.items()
        if label and is_plain(label)
        for line in (f"[survey.columns.{_quote(column)}]", f"label = {_quote(label)}", "")
    ]


def _setting(key: str, column: _Column | None, meaning: str) -> str:
    return f"{key} = {_quote(column.name)}" if column else _comment(f'# {key} = "…"', meaning)


def _comment(setting: str, meaning: str) -> str:
    return f"{setting:34} # {meaning}"


def _transform(outcome: _Column | None) -> str:
    if outcome is None or outcome.positive:
        return _comment('transform = "log"', "identity for an outcome that can be zero or negative")
    return _comment('transform = "identity"', "not log: some outcomes are zero or negative")


def _relative(data: Path, folder: Path) -> str:
    return Path(os.path.relpath(data.absolute(), folder.absolute())).as_posix()


def _quote(text: str) -> str:
    """A TOML string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(names: list[str]) -> str:
    return f"[{', '.join(_quote(name) for name in names)}]"
