"""Draft: a commented spec made from a data file, with every role guessed that the file gives away.

A guess looks at the column's name, type and number of distinct values in the first records. No value from the data
goes into the draft.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from svysynth.columns import guess_numbers
from svysynth.files import open_data, read_columns
from svysynth.formats.base import DataFile, file_error

RECORDS_LOOKED_AT = 10_000
COLUMNS_LOOKED_AT = 500
MOST_CATEGORIES = 50
PUBLIC_COLUMNS = 2

NAMES = {
    "weight": r"weight|w(gh?)?ts?(\d*|fin(al)?|surv\w*)($|[_. ])|(^|[_. ])w$",
    "strata": r"strat(a|um)?",
    "cluster": r"(^|[_. ])(psu|clusters?|ea|segment)($|[_. ]|id)",
    "fpc": r"(^|[_. ])fpc",
    "outcome": r"salar|income|wage|earn|pay|expend|spend|revenue|turnover|sales|cost|amount|value|hours|outcome|^y$",
    "identifier": r"(^|[_. ])(id|key|uuid|refid|caseid|serial|seq\w*|record)($|[_. ]|no|num)",
}


@dataclass(frozen=True)
class _Column:
    name: str
    numeric: bool
    distinct: int
    smallest: float | None

    def called(self, role: str) -> bool:
        return re.search(NAMES[role], self.name, re.IGNORECASE) is not None

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
    weight = _first(columns, lambda column: column.called("weight") and column.positive)
    strata = _first(columns, lambda column: column.called("strata") and column != weight)
    cluster = _first(columns, lambda column: column.called("cluster") and column not in (weight, strata))
    fpc = _first(columns, lambda column: column.called("fpc") and column.positive)
    taken = [column for column in (weight, strata, cluster, fpc) if column]
    outcome = _outcome([column for column in columns if column not in taken])
    public = [column for column in columns if column.categorical and column not in (*taken, outcome)]
    if strata and strata.categorical:
        public = [strata, *public]
    return _write(file, Path(folder), outcome, weight, strata, cluster, fpc, public)


def _profile(file: DataFile) -> list[_Column]:
    named = [name for name in file.columns if name.strip()]
    likely = [name for name in named if any(re.search(p, name, re.IGNORECASE) for p in NAMES.values())]
    chosen = set([*likely, *named][:COLUMNS_LOOKED_AT])
    head = read_columns(file, [name for name in named if name in chosen], rows=RECORDS_LOOKED_AT)
    return [_look(guess_numbers(head[name], file)) for name in head.columns]


def _look(series: pl.Series) -> _Column:
    numeric = series.dtype.is_numeric()
    smallest = series.min() if numeric else None
    distinct = 0 if series.dtype.is_nested() else series.drop_nulls().n_unique()
    return _Column(series.name, numeric, distinct, float(smallest) if isinstance(smallest, int | float) else None)


def _first(columns: list[_Column], wanted: Callable[[_Column], bool]) -> _Column | None:
    return next((column for column in columns if wanted(column)), None)


def _outcome(columns: list[_Column]) -> _Column | None:
    """A column called like an amount, else the numeric column with the most distinct values."""
    numeric = [column for column in columns if column.numeric and column.distinct > 2]
    named = [column for column in numeric if column.called("outcome")]
    measured = [column for column in numeric if not column.called("identifier")]
    ranked = sorted(named or measured, key=lambda column: -column.distinct)
    return ranked[0] if ranked else None


def _write(
    file: DataFile,
    folder: Path,
    outcome: _Column | None,
    weight: _Column | None,
    strata: _Column | None,
    cluster: _Column | None,
    fpc: _Column | None,
    public: list[_Column],
) -> Draft:
    chosen = [column.name for column in public[:PUBLIC_COLUMNS]]
    others = [column.name for column in public[PUBLIC_COLUMNS:12]]
    lines = [
        "# A draft: every line is a guess to be checked. docs/spec.md explains the settings.",
        "",
        "[survey]",
        f"data = {_quote(_relative(file.path, folder))}",
        _setting("outcome", outcome, "the numeric variable that the tables are about"),
        _comment('transform = "log"', "identity for an outcome that can be zero or negative"),
        _setting("weight", weight, "the column of sampling weights"),
        _setting("strata", strata, "the column of sampling strata, if any"),
        _setting("cluster", cluster, "the column of primary sampling units, if any"),
        *([_setting("fpc", fpc, "")] if fpc else []),
        f"public = {_list(chosen)}" if chosen else _comment('# public = ["…"]', "at least one column of categories"),
        *([f"# further candidates: {_list(others)}"] if others else []),
        _comment("# population_total = …", "a published figure; released weights are scaled to it"),
        _comment(_where(outcome), "which records take part: a SQL condition"),
        "",
        "[privacy]",
        _comment('mechanism = "fbs"', "fbs | fbp | laplace"),
        _comment('guarantee = "asymptotic"', "this is not differential privacy: docs/privacy.md; laplace: global"),
        "epsilon = 10.8",
        "datasets = 3",
        _comment('# budget = "…"', "the population's name in the ledger; a release needs it"),
        "",
        "[[tables]]",
        _comment(f"by = {_list(chosen)}", "all margins and the total come with it"),
        _comment('statistics = ["count", "mean"]', "count | mean | total | proportion"),
        "",
    ]
    guessed = (("outcome", outcome), ("weight", weight), ("strata", strata), ("cluster", cluster), ("fpc", fpc))
    roles = {role: column.name for role, column in guessed if column}
    return Draft("\n".join(lines), roles | ({"public": ", ".join(chosen)} if chosen else {}))


def _setting(key: str, column: _Column | None, meaning: str) -> str:
    return f"{key} = {_quote(column.name)}" if column else _comment(f'# {key} = "…"', meaning)


def _comment(setting: str, meaning: str) -> str:
    return f"{setting:34} # {meaning}"


def _where(outcome: _Column | None) -> str:
    """A condition that leaves out outcomes without a logarithm, where there are any."""
    if outcome is None or outcome.smallest is None or outcome.smallest > 0:
        return '# where = "age_group = 40"'
    name = outcome.name.replace('"', '""')
    return "where = " + _quote(f'"{name}" > 0')


def _relative(data: Path, folder: Path) -> str:
    return Path(os.path.relpath(data.absolute(), folder.absolute())).as_posix()


def _quote(text: str) -> str:
    """A TOML string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(names: list[str]) -> str:
    return f"[{', '.join(_quote(name) for name in names)}]"
