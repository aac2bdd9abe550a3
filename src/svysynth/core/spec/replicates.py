"""`[survey.replicates]`: replicate weights that come with a file, and their method of variance estimation.

The methods are those of R's `svrepdesign`: the variance of an estimate q is Σ_r s_r(q_r − q)², with factors s_r that
depend on the method.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from svysynth.core.spec.sections import Name, Positive, Section, clash, listed, no_repeats

ReplicateMethod = Literal["brr", "fay", "jk1", "jkn", "bootstrap", "successive-difference"]
RANGE = re.compile(r"(.*?)([0-9]+)-(.*?)([0-9]+)")
MOST_REPLICATES = 10_000


def numbered(names: Any) -> Any:
    """The names that a range such as `PWGTP1-PWGTP80` stands for; anything else is a name, or a list of names.

    >>> numbered("r08-r10")
    ('r08', 'r09', 'r10')
    """
    match = RANGE.fullmatch(names) if isinstance(names, str) else None
    if match is None or match[1] != match[3] or not 0 <= int(match[4]) - int(match[2]) < MOST_REPLICATES:
        return listed(names)
    width = len(match[2])
    return tuple(f"{match[1]}{number:0{width}d}" for number in range(int(match[2]), int(match[4]) + 1))


class ReplicatesSpec(Section):
    """`[survey.replicates]`: replicate weights that come with the file, and their method of variance estimation."""

    weights: Annotated[tuple[Name, ...], Field(min_length=2, strict=False), BeforeValidator(numbered)]
    method: ReplicateMethod
    rho: Annotated[float, Field(ge=0, lt=1)] | None = None
    scale: Positive | None = None
    scales: Annotated[tuple[Annotated[float, Field(ge=0, lt=1e60)], ...], Field(strict=False)] = ()
    center: Literal["estimate", "mean"] = "estimate"

    @model_validator(mode="after")
    def _the_method_has_its_constants(self) -> Self:
        no_repeats(self.weights, "replicates.weights")
        if (self.method == "fay") != (self.rho is not None):
            raise clash("'replicates.rho' is for method = 'fay', which needs it")
        if (self.method == "jkn") != bool(self.scales):
            raise clash("'replicates.scales' is for method = 'jkn', which needs one for each weight")
        if self.scales and len(self.scales) != len(self.weights):
            raise clash("'replicates.scales' must have as many numbers as there are replicate weights")
        if self.scale is not None and self.method not in ("jk1", "bootstrap"):
            raise clash("'replicates.scale' is for method = 'jk1' or 'bootstrap'")
        return self

    @property
    def factors(self) -> tuple[float, ...]:
        """The factor s_r of each replicate."""
        count = len(self.weights)
        match self.method:
            case "brr":
                one = 1 / count
            case "fay":
                one = 1 / (count * (1 - (self.rho or 0.0)) ** 2)
            case "jk1":
                one = (count - 1) / count if self.scale is None else self.scale
            case "jkn":
                return self.scales
            case "bootstrap":
                one = 1 / (count - 1) if self.scale is None else self.scale
            case "successive-difference":
                one = 4 / count
        return (one,) * count
