"""`[survey.calibration]`: public totals of the population that weights are calibrated to, and by which method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from svysynth.core.spec.sections import Name, Positive, Section, clash, listed, no_repeats

CalibrationMethod = Literal["post-stratify", "rake", "linear"]
MOST_COLUMNS = 8
MOST_TOTALS = 10_000
MOST_TOTALS_OF_SEVERAL = 1000
"""With several margins the totals are the columns of a regression, whose cost grows with the cube of their number."""
TOTALS_AGREE = 1e-9
"""Sums of totals that differ by less than this fraction are equal up to rounding."""


def flattened(totals: Any, columns: int = MOST_COLUMNS) -> Any:
    """Totals nested by level, as pairs of levels and total; anything else is left as it is.

    >>> flattened({"E": {"No": 406, "Yes": 4015}, "M": {"No": 1018}})
    ((('E', 'No'), 406), (('E', 'Yes'), 4015), (('M', 'No'), 1018))
    """
    if not isinstance(totals, Mapping) or not columns:
        return totals
    found: list[Any] = []
    for level, inner in totals.items():
        below = flattened(inner, columns - 1) if isinstance(inner, Mapping) else (((), inner),)
        if isinstance(below, Mapping):  # nested too deeply
            return totals
        found += [((level, *levels), total) for levels, total in below]
    return tuple(found)


def nested(totals: tuple[tuple[tuple[str, ...], float], ...]) -> dict[str, Any]:
    """Pairs of levels and total as totals nested by level, as a spec and a manifest have them.

    >>> nested(((('E', 'No'), 406), (('E', 'Yes'), 4015), (('M', 'No'), 1018)))
    {'E': {'No': 406, 'Yes': 4015}, 'M': {'No': 1018}}
    """
    found: dict[str, Any] = {}
    for levels, total in totals:
        inner = found
        for level in levels[:-1]:
            inner = inner.setdefault(level, {})
        inner[levels[-1]] = total
    return found


Levels = Annotated[tuple[Name, ...], Field(strict=False)]
Total = Annotated[tuple[Levels, Positive], Field(strict=False)]


class MarginSpec(Section):
    """`[[survey.calibration.margins]]`: the totals of the levels of a public column, or of a crossing of columns."""

    by: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_COLUMNS, strict=False), BeforeValidator(listed)]
    totals: Annotated[
        tuple[Total, ...],
        Field(min_length=1, max_length=MOST_TOTALS, strict=False),
        BeforeValidator(flattened),
        PlainSerializer(nested),
        WithJsonSchema({"type": "object", "description": "A total for each level, nested where `by` has more columns"}),
    ]

    @model_validator(mode="after")
    def _each_total_is_of_a_cell(self) -> Self:
        no_repeats(self.by, "by")
        no_repeats((levels for levels, _ in self.totals), "totals")
        if any(len(levels) != len(self.by) for levels, _ in self.totals):
            raise clash(
                "'totals' must be nested as deeply as 'by' has columns: a number for each combination of levels"
            )
        return self

    @property
    def total(self) -> float:
        """The sum of the totals: the size of the population."""
        return sum(total for _, total in self.totals)


class CalibrationSpec(Section):
    """`[survey.calibration]`: the totals that weights are calibrated to, and the method."""

    method: CalibrationMethod
    margins: Annotated[tuple[MarginSpec, ...], Field(min_length=1, max_length=20, strict=False)]

    @model_validator(mode="after")
    def _totals_do_not_contradict_each_other(self) -> Self:
        no_repeats((frozenset(margin.by) for margin in self.margins), "calibration.margins")
        if self.method == "post-stratify" and len(self.margins) > 1:
            raise clash(
                "method = 'post-stratify' takes one margin: cross its columns in 'by', or use 'rake' or 'linear'"
            )
        if len(self.margins) > 1 and sum(len(margin.totals) for margin in self.margins) > MOST_TOTALS_OF_SEVERAL:
            raise clash(f"'calibration.margins' have more than {MOST_TOTALS_OF_SEVERAL:,} totals")
        if any(abs(margin.total / self.total - 1) > TOTALS_AGREE for margin in self.margins):
            raise clash("'calibration.margins' contradict each other: their totals add up to different populations")
        return self

    @property
    def total(self) -> float:
        """The size of the population."""
        return self.margins[0].total

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose totals are given."""
        return tuple(dict.fromkeys(column for margin in self.margins for column in margin.by))
