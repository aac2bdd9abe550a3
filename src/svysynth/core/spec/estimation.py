"""`[estimation]` and `[[tables]]`: which tables a spec asks for, and how their standard errors are computed."""

from __future__ import annotations

from typing import Annotated, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator

from svysynth.core.errors import is_plain
from svysynth.core.spec.sections import Name, Section, clash, listed, no_repeats
from svysynth.core.spec.statistics import Statistic, StatisticNames, of_distribution

Lonely = Literal["fail", "certainty", "adjust", "average"]
VarianceMethod = Literal["taylor", "preston", "bootstrap", "jackknife", "brr"]
StandardErrors = Literal["full", "paper"]
"""How standard errors come from synthetic files: from unsmoothed weights, or from smoothed ones as in the paper."""
QuantileRule = Literal["math", "school"]
"""How a quantile is read off the distribution function: R's `qrule`."""
QuantileInterval = Literal["mean", "xlogit", "beta"]
"""The kind of interval for the share below a quantile: R's `interval.type`."""
MOST_BY_COLUMNS = 8


class EstimationSpec(Section):
    """`[estimation]`: how standard errors and intervals are computed."""

    variance: VarianceMethod = "taylor"
    standard_errors: StandardErrors = "full"
    replicates: Annotated[int, Field(ge=2, le=10_000)] = 200
    lonely: Lonely = "fail"
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    cv_thresholds: Annotated[
        tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]], Field(strict=False)
    ] = (0.15, 0.30)
    quantile_rule: QuantileRule = "math"
    quantile_interval: QuantileInterval = "mean"

    @model_validator(mode="after")
    def _thresholds_ascend(self) -> Self:
        if self.cv_thresholds[0] > self.cv_thresholds[1]:
            raise clash("'cv_thresholds' must be in ascending order")
        return self


class TableSpec(Section):
    """`[[tables]]`: one table; all margins and the total come with it."""

    name: Name | None = None
    by: Annotated[tuple[Name, ...], Field(max_length=MOST_BY_COLUMNS, strict=False), BeforeValidator(listed)]
    statistics: StatisticNames = ("count", "mean")
    domain: Name | None = None
    of: Name | None = None
    within: Annotated[tuple[Name, ...], Field(max_length=MOST_BY_COLUMNS, strict=False), BeforeValidator(listed)] = ()

    @model_validator(mode="after")
    def _can_be_a_heading(self) -> Self:
        if not is_plain(self.title):
            raise clash("a table's name has control characters")
        no_repeats(self.by, "by")
        no_repeats(self.within, "within")
        return self

    @property
    def sums(self) -> tuple[Statistic, ...]:
        """Those of the statistics that follow from sums over cells."""
        distribution = of_distribution(self.statistics)
        return tuple(cast(Statistic, name) for name in self.statistics if name not in distribution)

    @property
    def title(self) -> str:
        """The table's name, made from what it is of, its columns and its domain if none is given."""
        of = f"{self.of}: " if self.of else ""
        within = f" (within {', '.join(self.within)})" if self.within else ""
        domain = f" ({self.domain})" if self.domain else ""
        return self.name or of + (" by ".join(self.by) or "total") + within + domain
