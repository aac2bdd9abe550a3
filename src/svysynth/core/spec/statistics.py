"""The statistics of a table: their names, among them `median`, `quantile(0.25)` and `share(> 50000)`.

Counts, totals, means and proportions follow from sums over the records of a cell (`Statistic`). Quantiles, and shares
above or below a threshold, need the distribution of the outcome. `ratio(y, x)` is the ratio of two totals, and
`answered` the share of those who gave an answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Final, Literal, NamedTuple, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from svysynth.core.spec.sections import clash, listed

Statistic = Literal["count", "mean", "total", "proportion"]
"""The statistics that follow from Σw and Σwy of cells."""
Comparison = Literal[">", ">=", "<", "<="]
MEDIAN = "median"
ANSWERED: Final = "answered"
WORDS = {">": "above", ">=": "at or above", "<": "below", "<=": "at or below"}
FORMS = (
    "count, mean, total, proportion, median, answered, a ratio such as ratio(y, x), a quantile such as quantile(0.25), "
    "or a share such as share(> 50000), share(>= 50000), share(< 50000) or share(<= 50000)"
)
"""What can be asked for, as errors say it."""
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_QUANTILE = re.compile(rf"quantile\(\s*({_NUMBER})\s*\)")
_SHARE = re.compile(rf"share\(\s*(>=|<=|>|<)\s*({_NUMBER})\s*\)")
_RATIO = re.compile(r"ratio\(([^(),]+),([^(),]+)\)")


class Quantile(NamedTuple):
    """The smallest outcome that this share of the population has at most."""

    share: float


class Share(NamedTuple):
    """The share of the population whose outcome is above, or below, a threshold."""

    comparison: Comparison
    threshold: float


class Ratio(NamedTuple):
    """The ratio of the totals of two answers."""

    of: str
    to: str


Parsed = Statistic | Literal["answered"] | Quantile | Share | Ratio


def parse_statistic(name: str) -> Parsed:
    """What a statistic's name stands for.

    >>> parse_statistic("median"), parse_statistic("share(>= 1e5)"), parse_statistic("mean")
    (Quantile(share=0.5), Share(comparison='>=', threshold=100000.0), 'mean')
    """
    return _parsed(name.strip())


@cache
def _parsed(name: str) -> Parsed:
    if name in get_args(Statistic):
        return cast(Statistic, name)
    if name == ANSWERED:
        return ANSWERED
    if name == MEDIAN:
        return Quantile(0.5)
    if found := _RATIO.fullmatch(name):
        return Ratio(found[1].strip(), found[2].strip())
    if found := _QUANTILE.fullmatch(name):
        share = float(found[1])
        if not 0 < share < 1:
            raise _not_one("needs a share between 0 and 1, as in quantile(0.25)")
        return Quantile(share)
    if found := _SHARE.fullmatch(name):
        if not math.isfinite(float(found[2])):
            raise _not_one("has a threshold that is too large")
        return Share(cast(Comparison, found[1]), float(found[2]))
    raise _not_one(f"must be one of {FORMS}")


def _not_one(problem: str) -> PydanticCustomError:
    return PydanticCustomError("statistic", "{text}", {"text": problem})


def written(name: str) -> str:
    """The one way in which a statistic is written in tables.

    >>> written("share( >1e3 )"), written("quantile(0.50)"), written("quantile(.1)")
    ('share(> 1000)', 'median', 'quantile(0.1)')
    """
    match parse_statistic(name):
        case Quantile(share):
            return MEDIAN if share == 0.5 else f"quantile({number(share)})"
        case Share(comparison, threshold):
            return f"share({comparison} {number(threshold)})"
        case Ratio(of, to):
            return f"ratio({of}, {to})"
        case statistic:
            return statistic


def _each_once(names: object) -> object:
    """Stop at a statistic that is asked for twice, perhaps in two ways; what is no statistic is refused elsewhere."""
    seen: dict[Parsed, str] = {}
    for name in names if isinstance(names, tuple | list) else ():
        try:
            asked = parse_statistic(name) if isinstance(name, str) else None
        except PydanticCustomError:
            continue
        if asked in seen:
            one, other = seen[asked], name.strip()
            same = f"'{one}' is listed twice" if one == other else f"'{one}' and '{other}' are the same statistic"
            raise clash(f"'statistics': {same}: leave one of them out")
        if asked is not None:
            seen[asked] = name.strip()
    return names


def number(value: float) -> str:
    """A number as short as it can be, with all its digits."""
    return str(int(value)) if value == int(value) and abs(value) < 1e16 else repr(value)


def of_distribution(names: Sequence[str]) -> list[str]:
    """Those of the statistics that need the distribution of the outcome, or more than one answer."""
    return [name for name in names if name not in get_args(Statistic)]


def plural(name: str) -> str:
    """Several figures of a statistic, in words.

    >>> plural("mean"), plural("median"), plural("quantile(0.1)")
    ('means', 'medians', 'figures of quantile(0.1)')
    """
    return f"figures of {name}" if "(" in name else f"{name}s"


def described(name: str, outcome: str) -> str:
    """A statistic that needs the distribution of the outcome, as a heading names it.

    >>> described("quantile(0.25)", "salary"), described("share(> 50000)", "salary")
    ('Quantile 0.25 of salary', 'Share with salary above 50,000')
    """
    match parse_statistic(name):
        case Quantile(share):
            return f"Median {outcome}" if share == 0.5 else f"Quantile {number(share)} of {outcome}"
        case Share(comparison, threshold):
            return f"Share with {outcome} {WORDS[comparison]} {threshold:,.15g}"
        case Ratio(of, to):
            return f"Ratio of {of} to {to}"
        case statistic:
            return statistic


PATTERN = "|".join([*get_args(Statistic), ANSWERED, MEDIAN, r"(quantile|share)\(.+\)", r"ratio\(.+,.+\)"])
"""The forms of statistics, for the schema of the manifest."""
IN_SCHEMAS = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": rf"^({PATTERN})$"}
StatisticNames = Annotated[
    tuple[
        Annotated[str, Field(min_length=1, max_length=200), AfterValidator(written), WithJsonSchema(IN_SCHEMAS)], ...
    ],
    Field(min_length=1, strict=False),
    BeforeValidator(_each_once),
    BeforeValidator(listed),
]
