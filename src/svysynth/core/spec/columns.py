"""`[survey.columns.NAME]`: how a column of a release is made from the file: bands, recodes, missing codes and labels.

Bands and recodes declare the levels of their column: the levels are then public knowledge, and not taken from the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Annotated

from pydantic import BeforeValidator, Field

from svysynth.core.errors import is_plain
from svysynth.core.spec.sections import Magnitude, Name, Section, clash, listed

MOST_BANDS = 1000
OF_AN_OUTCOME = {"missing", "label"}
"""The settings that the outcome may have: it is neither renamed nor grouped."""


class ColumnSpec(Section):
    """`[survey.columns.NAME]`: the column of the file that NAME is made from, and how."""

    source: Annotated[Name | None, Field(alias="from")] = None
    label: Name | None = None
    bands: Annotated[tuple[Magnitude, ...], Field(min_length=1, max_length=MOST_BANDS, strict=False)] = ()
    recode: Annotated[dict[Name, Name], Field(min_length=1)] = Field(default_factory=dict)
    missing: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    missing_level: Name | None = None
    labels_from: Name | None = None

    @property
    def levels(self) -> tuple[str, ...] | None:
        """The levels that bands or recodes declare, in order; None if there are neither."""
        if self.bands:
            return band_labels(self.bands)
        return tuple(dict.fromkeys(self.recode.values())) if self.recode else None

    @property
    def is_grouped(self) -> bool:
        """Whether the column shows less than the column that it is made from."""
        return bool(self.bands or self.recode or (self.missing and self.missing_level))


AS_IT_IS = ColumnSpec()
"""A column without a section of its own."""


def band_labels(bands: tuple[float, ...]) -> tuple[str, ...]:
    """The names of the bands between these numbers. Each includes its lower end but not its upper end.

    Text with a hyphen in front would look like a formula in a CSV file, so that negative numbers have a minus sign.

    >>> band_labels((25, 35, 44.5)), band_labels((-5,))
    (('under 25', '25 to under 35', '35 to under 44.5', '44.5 or more'), ('under −5', '−5 or more'))
    """
    if not bands:
        return ()
    ends = [(str(int(end)) if end == int(end) else repr(end)).replace("-", "−") for end in bands]
    between = (f"{low} to under {high}" for low, high in pairwise(ends))
    return (f"under {ends[0]}", *between, f"{ends[-1]} or more")


def check_column(name: str, column: ColumnSpec, declared: Mapping[str, str] | None, missing: Iterable[str]) -> None:
    """Stop at settings of a column that contradict each other, or the labels and missing codes declared elsewhere."""
    ways = {"bands": column.bands, "recode": column.recode, "labels_from": column.labels_from}
    given = [f"'columns.{name}.{way}'" for way, setting in ways.items() if setting]
    if declared is not None:
        given.append(f"'labels.{name}' or 'levels.{name}'")
    texts = {"label": [column.label], "missing_level": [column.missing_level], "recode": column.recode.values()}
    odd = [setting for setting, found in texts.items() if not all(_is_a_label(text) for text in found)]
    codes = [code.strip() for code in column.recode or declared or ()]
    elsewhere = (declared or {}).items()
    problems = {
        f"{' and '.join(given)} all give the levels: keep one of them": len(given) > 1,
        f"'columns.{name}.bands' must be in ascending order": any(low >= high for low, high in pairwise(column.bands)),
        f"'columns.{name}.{odd[0] if odd else ''}' has control characters, or spaces at its ends": bool(odd),
        f"'columns.{name}.recode': a code is listed twice": len(set(codes)) < len(codes) and bool(column.recode),
        f"'columns.{name}' has a label for a code that 'missing' lists": bool(
            {*codes} & {code.strip() for code in (*column.missing, *(missing if column.recode else ()))}
        ),
        f"'columns.{name}.missing_level' is the name of a band": column.missing_level in band_labels(column.bands),
        f"'columns.{name}.missing_level' is the label of a code in 'labels.{name}': list that code as missing": any(
            label == column.missing_level != code for code, label in elsewhere
        ),
    }
    for problem, holds in problems.items():
        if holds:
            raise clash(problem)


def _is_a_label(text: str | None) -> bool:
    return text is None or (is_plain(text) and text == text.strip() != "")


def check_role(
    name: str, column: ColumnSpec, outcome: str, public: Collection[str], strata: str | None, secret: Collection[str]
) -> None:
    """Stop at settings that a column of this role cannot have."""
    place = f"'columns.{name}'"
    if name == outcome and column.model_fields_set - OF_AN_OUTCOME:
        raise clash(f"{place} is the outcome, which may have 'missing' and 'label' only")
    if name not in (outcome, *public, strata):
        raise clash(f"{place} is neither one of the public columns, nor the strata, nor the outcome, nor a variable")
    if column.labels_from and name not in public:
        raise clash(f"'columns.{name}.labels_from' is for public columns")
    if {column.source, column.labels_from} & {*secret}:
        raise clash(
            f"{place} is made from a column that is also the outcome, the weight, the fpc or a replicate weight"
        )
