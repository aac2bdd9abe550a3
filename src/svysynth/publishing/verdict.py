"""The verdict on a finished release: publish, look closer or do not publish, with reasons. For internal use.

The verdict compares the released tables with the direct ones and adds what `suitability.py` found, the draws'
diagnostics and the state of the budget. It comes after the charge and changes nothing in the release. Under a global
guarantee it is advice. A decision to publish or not that follows the verdict is a use of the confidential data that ε
does not cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column
from svysynth.core.engine import map_blocks
from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.statistics import of_distribution, plural
from svysynth.estimation.utility import has_error, interval_overlap, rmse_ratio, standard_distance
from svysynth.mechanisms.findings import Finding
from svysynth.mechanisms.suitability import FAR_OFF, WORTH
from svysynth.privacy.accounting import epsilon_text
from svysynth.privacy.budgets import BudgetState
from svysynth.survey.columns import ALL
from svysynth.survey.survey import Survey

Level = Literal["publish", "look closer", "do not publish"]
LEVELS: tuple[Level, ...] = ("publish", "look closer", "do not publish")
OUTSIDE = 0.2, 0.5
"""Shares of direct estimates outside the released intervals: above the first look closer, the second do not publish."""
OVERLAP = 0.5, 0.25
"""Median overlaps of released and direct intervals: below the first look closer, the second do not publish."""
SMALLER = 0.7, 0.4
"""Ratios of released to direct standard errors, of the mean of the whole file or the median over cells: below the first
look closer, the second do not publish."""
WHOLE_OFF = 3.0
"""Differences of figures of the whole file, in direct standard errors: above this do not publish."""
SHAPE_OFF = 2.0
"""Differences of quantiles and of shares above a threshold, in direct standard errors: above this look closer. They
follow the shape that the model assumes. Released and direct figures are of the same sample, so they differ by about one
direct standard error or less if this shape is right; if not, the released interval may hold the direct figure anyway.
"""
MUCH = 0.1
"""Differences as a part of the direct figure of the whole file: above this do not publish, whatever the errors."""
OWN_ERRORS = 3.5
"""Differences in released standard errors: above this a cell is named. Chance and noise do that to one in 2,000."""
MANY_CELLS = 0.1
"""The share of figures far from the direct ones above which not to publish."""
BEYOND = 0.005
"""The share of negative synthetic outcomes that is reported, if no respondent's outcome is negative."""
FEWEST_DEGREES = 5
MOST_OF_BUDGET = 0.5
"""The share of the budget above which the verdict mentions it."""


@outlined
@dataclass(frozen=True)
class Reason:
    """One reason, and how much it weighs."""

    level: Level
    text: str


@outlined
@dataclass(frozen=True)
class ReleaseVerdict:
    """The verdict with its reasons, which the reviewer reads first."""

    reasons: tuple[Reason, ...]

    @property
    def level(self) -> Level:
        """The gravest of the reasons' levels; without any, publish."""
        return max((reason.level for reason in self.reasons), key=LEVELS.index, default="publish")

    def lines(self) -> list[str]:
        """The verdict and its reasons, gravest first, a line each."""
        ordered = sorted(self.reasons, key=lambda reason: -LEVELS.index(reason.level))
        return [f"Verdict: {self.level}.", *(f"{reason.level}: {reason.text}" for reason in ordered)]


def judge_release(
    compared: pl.DataFrame,
    findings: Sequence[Finding],
    complaints: Sequence[str],
    budget: BudgetState | None,
    others: Sequence[Reason] = (),
) -> ReleaseVerdict:
    """The verdict from the comparison of `beside`, earlier findings, complaints of the mechanism, and the budget."""
    reasons = [
        *others,
        *(Reason("do not publish" if finding.stops else "look closer", finding.line()) for finding in findings),
        *(Reason("do not publish", f"{complaint}.") for complaint in complaints),
        *_of_tables(compared),
        *_of_degrees(compared),
        *_of_budget(budget),
    ]
    return ReleaseVerdict(tuple(reasons))


def beside(released: pl.DataFrame, direct: pl.DataFrame) -> pl.DataFrame:
    """Released and direct figures of every cell, the ratio of RMSE to the direct standard error, and the overlap.

    `off` is the difference in direct standard errors, `se_ratio` the released divided by the direct standard error. All
    are null where the direct estimate has no standard error.
    """
    keys = released.columns[: released.columns.index("estimate")]
    measures = ["estimate", "se", "lower", "upper"]
    both = released.select(*keys, *measures, "df").join(
        direct.select(*keys, *measures), on=keys, how="left", suffix="_direct", maintain_order="left"
    )
    (q, se, low, high), (own, own_se, own_low, own_high) = (
        _columns(both, [name + suffix for name in measures]) for suffix in ("", "_direct")
    )
    known = has_error(own, own_se)
    nothing = np.full(len(se), np.nan)
    figures = {
        "ratio": rmse_ratio(q, se, own, own_se, own),
        "overlap": np.where(known, interval_overlap(low, high, own_low, own_high), np.nan),
        "off": standard_distance(q, own, own_se),
        "se_ratio": np.divide(se, own_se, out=nothing, where=known),
    }
    added = both.with_columns(pl.Series(name, values) for name, values in figures.items())
    return added.with_columns(pl.col(*figures).replace({np.inf: None}).fill_nan(None))


def beyond_the_data(survey: Survey, synthetic: Sequence[Survey]) -> list[Reason]:
    """Synthetic outcomes that are negative although no respondent's outcome is: readers would see impossible values."""
    if not synthetic or survey.transform == "log":
        return []
    if min(map_blocks(survey.engine, _Least(survey.outcome_values), len(survey))) < 0:
        return []
    first = synthetic[0]
    share = sum(map_blocks(first.engine, _Negative(first.outcome_values), len(first))) / len(first)
    if share <= BEYOND:
        return []
    text = f"More than {BEYOND:.1%} of the synthetic outcomes are negative, although no respondent's outcome is."
    return [Reason("look closer", text)]


@outlined
@dataclass(frozen=True)
class _Least:
    outcome: Column

    def __call__(self, piece: slice) -> float:
        return float(self.outcome[piece].min())


@outlined
@dataclass(frozen=True)
class _Negative:
    outcome: Column

    def __call__(self, piece: slice) -> int:
        return int((self.outcome[piece] < 0).sum())


def _columns(frame: pl.DataFrame, names: Sequence[str]) -> list[Floats]:
    return [frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in names]


def _of_tables(compared: pl.DataFrame) -> Iterator[Reason]:
    known = compared.filter(pl.col("off").is_not_null())
    for (statistic,), rows in known.group_by("statistic", maintain_order=True):
        yield from _of_statistic(plural(str(statistic)), rows)
    yield from _of_shape(known)
    judged = compared.filter(
        pl.col("off").is_not_null() | (pl.col("estimate_direct") != 0)
    )  # or known without sampling error
    labels = judged.columns[2 : judged.columns.index("estimate")]
    part = (pl.col("estimate") / pl.col("estimate_direct") - 1).abs()
    outside = ~pl.col("estimate_direct").is_between(pl.col("lower"), pl.col("upper"))
    whole = pl.all_horizontal(pl.lit(value=True), *(pl.col(column) == ALL for column in labels))
    file = judged.filter(whole & outside & (part > WORTH))
    wrong = (pl.col("off").abs() > WHOLE_OFF).fill_null(value=False) | (part > MUCH)
    for row in file.filter(wrong).iter_rows(named=True):
        yield Reason("do not publish", f"The {row['statistic']} of the whole file is far from the direct estimate.")
    # the count of the whole file is the declared total, and has no error in a release
    for ratio in known.filter(whole & (pl.col("statistic") == "mean"))["se_ratio"]:
        if level := _below(ratio, SMALLER):
            text = "The released standard error of the mean of the whole file is far below the direct one."
            yield Reason(level, text)
    own = (pl.col("estimate") - pl.col("estimate_direct")).abs() / pl.col("se")
    far = (pl.col("off").abs() > FAR_OFF).fill_null(value=False)
    cells = judged.filter(~whole & outside & (far | (own > OWN_ERRORS)) & (part > WORTH))
    if cells.height:
        named = "; ".join(_named(row, labels) for row in cells.head(3).iter_rows(named=True))
        more = f" and {cells.height - 3} more" if cells.height > 3 else ""
        many = cells.filter(far).height > MANY_CELLS * known.height
        yield Reason(
            "do not publish" if many else "look closer",
            f"Far from the direct estimate, which lies outside the released interval: {named}{more}.",
        )


def _of_shape(known: pl.DataFrame) -> Iterator[Reason]:
    """Quantiles and shares above a threshold, whose limits do not depend on the released interval."""
    columns = known.columns[2 : known.columns.index("estimate")]
    whole = pl.all_horizontal(pl.lit(value=True), *(pl.col(column) == ALL for column in columns))
    part = (pl.col("estimate") / pl.col("estimate_direct") - 1).abs()
    far = (pl.col("off").abs() > SHAPE_OFF) & (part > WORTH)
    for name in of_distribution(known["statistic"].unique(maintain_order=True).to_list()):
        rows = known.filter(statistic=name)
        for off in rows.filter(whole & far)["off"].abs():
            text = f"The {name} of the whole file is {off:.1f} direct standard errors from the direct estimate"
            yield Reason("look closer", f"{text}: the distribution may not have the shape that the model assumes.")
        wrong = rows.filter(far).height
        if wrong > OUTSIDE[0] * rows.height:
            text = f"{wrong} of {rows.height} {plural(name)} are more than {SHAPE_OFF:g} direct standard errors"
            yield Reason("look closer", f"{text} from the direct ones.")


def _named(row: dict[str, Any], labels: Sequence[str]) -> str:
    """A figure by its statistic and cell."""
    cell = ", ".join(str(row[column]) for column in labels if row[column] != ALL)
    return f"{row['statistic']} of {cell}"


def _of_statistic(name: str, rows: pl.DataFrame) -> Iterator[Reason]:
    inside = rows["estimate_direct"].is_between(rows["lower"], rows["upper"])
    outside = int((~inside).sum())
    if level := _above(outside / rows.height, OUTSIDE):
        yield Reason(level, f"{outside} of {rows.height} direct {name} lie outside the released intervals.")
    overlap = _median(rows["overlap"])
    if level := _below(overlap, OVERLAP):
        yield Reason(level, f"Released and direct intervals of {name} overlap by {overlap:.0%} only (median).")
    ratio = _median(rows["se_ratio"])
    if level := _below(ratio, SMALLER):
        yield Reason(level, f"Released standard errors of {name} are {ratio:.2g} times the direct ones (median).")


def _median(values: pl.Series) -> float:
    middle: Any = values.median()
    return 1.0 if middle is None else float(middle)


def _above(value: float, limits: tuple[float, float]) -> Level | None:
    return LEVELS[sum(value > limit for limit in limits)] if value > limits[0] else None


def _below(value: float, limits: tuple[float, float]) -> Level | None:
    return LEVELS[sum(value < limit for limit in limits)] if value < limits[0] else None


def _of_degrees(compared: pl.DataFrame) -> Iterator[Reason]:
    few = int((compared["df"] < FEWEST_DEGREES).sum())
    if few:
        text = f"{few} of {compared.height} figures have fewer than {FEWEST_DEGREES} degrees of freedom"
        yield Reason("look closer", f"{text}: their intervals are long and say little. More synthetic files help.")


def _of_budget(budget: BudgetState | None) -> Iterator[Reason]:
    if budget is not None and budget.spent > MOST_OF_BUDGET * budget.total:
        text = f"{budget.spent / budget.total:.0%} of the budget is spent: ε = {epsilon_text(budget.left)} is left"
        yield Reason("look closer", f"{text} for all later releases.")
