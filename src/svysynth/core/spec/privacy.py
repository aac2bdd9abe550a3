"""`[privacy]`: the mechanism of a spec, its guarantee and its budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from svysynth.core.registry import Accounting, Promise, find_mechanism, mechanism_names, promises_of
from svysynth.core.spec.sections import Name, Positive, Range, Section, clash

Scheme = Literal["inverse", "linear", "reweighted"]
Protected = Literal["answers", "record"]
Unit = Literal["respondent", "cluster"]
"""Whose answers are protected together."""
Scales = Literal["histograms", "standin"]
DRAWS_APART = 10
"""Released draws are at least this many kept draws apart."""


class BoundsSpec(Section):
    """`[privacy.bounds]`: public ranges of outcome and weight; a record outside counts as if at the nearer end."""

    outcome: Range
    weight: Range

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Self:
        for name, (low, high) in (("outcome", self.outcome), ("weight", self.weight)):
            if low >= high:
                raise clash(f"'privacy.bounds.{name}' must be in ascending order")
        if self.weight[0] < 0:
            raise clash("'privacy.bounds.weight' must not be negative")
        return self


def _known_mechanism(name: str) -> str:
    names = mechanism_names()
    if name not in names:
        raise clash("'privacy.mechanism' must be one of " + ", ".join(f"'{one}'" for one in names))
    return name


class PrivacySpec(Section):
    """`[privacy]`: the mechanism and its budget."""

    mechanism: Annotated[str, AfterValidator(_known_mechanism)] = "fbs"
    epsilon: Positive
    datasets: Annotated[int, Field(ge=0, le=1000)] = 3
    scheme: Scheme = "inverse"
    draws: Annotated[int, Field(ge=400, le=100_000, multiple_of=4)] = 1000
    guarantee: Promise
    protect: Protected = "answers"
    unit: Unit = "respondent"
    scales: Scales = "histograms"
    correction: bool = True
    bounds: BoundsSpec | None = None
    budget: Name | None = None
    ledger: Annotated[Path, Field(strict=False)] = Path("ledger.sqlite")

    @model_validator(mode="before")
    @classmethod
    def _the_usual_number_of_files(cls, content: Any) -> Any:
        if not isinstance(content, Mapping) or "datasets" in content:
            return content
        member = find_mechanism(content.get("mechanism", "fbs"), content.get("guarantee", ""))
        return content if member is None else {**content, "datasets": member.files}

    @model_validator(mode="after")
    def _the_mechanism_can_promise_it(self) -> Self:
        can = promises_of(self.mechanism)
        if self.guarantee not in can:
            choices = " or ".join(f"'{promise}'" for promise in can)
            raise clash(f"'privacy.guarantee' must be {choices} for the mechanism '{self.mechanism}'")
        return self

    @model_validator(mode="after")
    def _whole_records_can_be_protected(self) -> Self:
        member = find_mechanism(self.mechanism, self.guarantee)
        if self.protect == "record" and not (member and member.whole_records):
            raise clash("'privacy.protect' can be 'record' only for fbs and fbp with the guarantee 'global'")
        return self

    @model_validator(mode="after")
    def _clusters_can_be_protected(self) -> Self:
        member = find_mechanism(self.mechanism, self.guarantee)
        if self.unit == "cluster" and not (member and member.clusters):
            which = "'fbs', 'laplace', or 'fbp' with the guarantee 'global'"
            raise clash(f"'privacy.unit' can be 'cluster' only for {which}, which take clusters into account")
        if self.unit == "cluster" and self.protect == "record":
            raise clash("'privacy.unit' cannot be 'cluster' with 'privacy.protect' = 'record'")
        return self

    @model_validator(mode="after")
    def _scales_can_be_constants(self) -> Self:
        member = find_mechanism(self.mechanism, self.guarantee)
        if self.scales == "standin" and not (member and member.scaled):
            raise clash("'privacy.scales' can be 'standin' only for fbs and fbp with the guarantee 'global'")
        return self

    @model_validator(mode="after")
    def _noise_has_bounds(self) -> Self:
        if self.guarantee == "global" and self.bounds is None:
            raise clash(
                "'privacy.bounds' is required for guarantee = 'global': ranges of outcome and weight that are public "
                "knowledge (`svysynth constants` proposes some)"
            )
        return self

    @property
    def accounting(self) -> Accounting:
        """The kind of ε that a release is charged in."""
        return "differential privacy" if self.guarantee == "global" else "asymptotic"

    @property
    def microdata(self) -> bool:
        """Whether synthetic files are asked for, or tables alone."""
        member = find_mechanism(self.mechanism, self.guarantee)
        return member is not None and member.microdata and self.datasets > 0

    @model_validator(mode="after")
    def _there_are_enough_files(self) -> Self:
        member = find_mechanism(self.mechanism, self.guarantee)
        if member is not None and self.datasets < member.fewest:
            raise clash(f"'privacy.datasets' must be {member.fewest} or more for this mechanism and guarantee")
        return self

    @model_validator(mode="after")
    def _draws_can_be_far_apart(self) -> Self:
        if self.microdata and DRAWS_APART * self.datasets > self.draws:
            need = f"{DRAWS_APART} times as many draws, so that those released are independent"
            raise clash(f"'privacy.datasets' needs {need}: use fewer datasets or more privacy.draws")
        return self
