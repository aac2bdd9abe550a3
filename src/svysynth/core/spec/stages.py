"""Several stages of sampling: `strata`, `cluster` and `fpc` of `[survey]` as lists, with one column for each stage.

`SurveySpec.strata`, `cluster` and `fpc` are the columns of the first stage, and `SurveySpec.later` has those of the
others, which a spec may also give as `[[survey.later]]`. So code that uses one stage only need not know of the others.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from svysynth.core.spec.sections import Name, Section, clash

ROLES = ("strata", "cluster", "fpc")


class StageSpec(Section):
    """The columns of a stage of sampling after the first; without a cluster, its units are the records."""

    strata: Name | None = None
    cluster: Name | None = None
    fpc: Name | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that this stage has."""
        return tuple(column for column in (self.strata, self.cluster, self.fpc) if column)


def by_stage(settings: Any) -> Any:
    """The settings of `[survey]` with lists by stage divided into the first stage and `later`."""
    if not isinstance(settings, dict):
        return settings
    lists = {role: settings[role] for role in ROLES if isinstance(settings.get(role), list | tuple)}
    if not lists:
        return settings
    if settings.get("later"):
        raise clash("'later' and a list both give later stages: keep one of them")
    for role, columns in lists.items():
        if not columns:
            raise clash(f"'{role}' is an empty list: name a column for each stage, or leave it out")
    first = {role: columns[0] for role, columns in lists.items()}
    rest = zip_longest(*(columns[1:] for columns in lists.values()))
    later = [{role: column for role, column in zip(lists, found, strict=True) if column is not None} for found in rest]
    return settings | first | {"later": later}


def check_stages(cluster: str | None, fpc: str | None, later: tuple[StageSpec, ...]) -> None:
    """Stop if the lists do not fit together."""
    if not later:
        return
    if cluster is None:
        raise clash("'strata' and 'fpc' are lists by stage, and 'cluster' has no column for the first stage")
    for place, stage in enumerate(later, start=2):
        records = stage.cluster is None
        if records and place - 1 < len(later):
            raise clash(f"'cluster' has no column for stage {place}, and 'strata' or 'fpc' have one for a later stage")
        if (stage.fpc is None) != (fpc is None):
            raise clash("'fpc' has to have a column for each stage, or to be left out")
