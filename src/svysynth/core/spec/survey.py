"""`[survey]`: the data of a spec, and the role of each column."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from svysynth.core.spec.replicates import ReplicatesSpec
from svysynth.core.spec.sections import Name, Positive, Section, clash, listed, no_repeats
from svysynth.core.spec.stages import StageSpec, by_stage, check_stages
from svysynth.core.transforms import Transform

TIDY_COLUMNS = (
    *("table", "statistic", "estimate", "se", "se_sampling", "se_privacy", "df", "lower", "upper"),
    *("cv", "n", "reliability", "source"),
)
"""The columns of a table: no public column may have one of these names."""


class SurveySpec(Section):
    """`[survey]`: where the data are and what role each column plays."""

    data: Annotated[Path, Field(strict=False)]
    outcome: Name
    transform: Transform = "log"
    weight: Name
    weight_public: bool = False
    strata: Name | None = None
    cluster: Name | None = None
    fpc: Name | None = None
    fpc_public: bool = False
    later: Annotated[tuple[StageSpec, ...], Field(strict=False)] = ()
    public: Annotated[tuple[Name, ...], Field(min_length=1, strict=False), BeforeValidator(listed)]
    population_total: Positive | None = None
    replicates: ReplicatesSpec | None = None
    where: Name | None = None
    domain: Name | None = None
    domains: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    universe: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    missing: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    labels: dict[Name, dict[Name, Name]] = Field(default_factory=dict)
    levels: dict[Name, Annotated[tuple[Name, ...], Field(min_length=1, strict=False)]] = Field(default_factory=dict)
    other: dict[Name, Name] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _lists_are_by_stage(cls, settings: Any) -> Any:
        return by_stage(settings)

    @model_validator(mode="after")
    def _roles_do_not_clash(self) -> Self:
        check_stages(self.cluster, self.fpc, self.later)
        if self.fpc_public and self.fpc is None:
            raise clash("'fpc_public' is set, and there is no 'fpc'")
        no_repeats(self.public, "public")
        for column in self.public:
            if column in TIDY_COLUMNS:
                raise clash(f"'public' names '{column}', which is a column of every table: rename it in the data")
        confidential = [self.outcome, self.weight, *self.fpcs]
        no_repeats(confidential, "outcome, weight and fpc")
        groups = {"public": self.public, "strata": self.all_strata, "cluster": self.clusters, "universe": self.universe}
        for role, columns in groups.items():
            if set(confidential) & set(columns):
                raise clash(f"'{role}' names a column that is also the outcome, the weight or the fpc")
        no_repeats(self.clusters, "cluster")
        weights = set(self.replicates.weights) if self.replicates else set()
        if weights & {*confidential, *self.public, *self.universe, *self.all_strata, *self.clusters}:
            raise clash("'replicates.weights' names a column that has another role")
        if set(self.clusters) & set(self.all_strata):
            raise clash("'cluster' and 'strata' name the same column")
        for column, labels in self.labels.items():
            if column not in self.public:
                raise clash(f"'labels.{column}' is not one of the public columns")
            no_repeats(labels.values(), f"labels.{column}")
            if set(labels) & set(self.missing):
                raise clash(f"'labels.{column}' has a label for a code that 'missing' lists")
        return self

    @model_validator(mode="after")
    def _levels_are_of_columns_with_levels(self) -> Self:
        for column, levels in self.levels.items():
            if column not in (*self.public, self.strata):
                raise clash(f"'levels.{column}' is neither one of the public columns nor the strata")
            if column in self.labels:
                raise clash(f"'levels.{column}' and 'labels.{column}' both list the levels: keep one of them")
            no_repeats(levels, f"levels.{column}")
            if set(levels) & set(self.missing):
                raise clash(f"'levels.{column}' lists a code that 'missing' lists too")
        for column, level in self.other.items():
            if level not in (self.declared(column) or ()):
                raise clash(f"'other.{column}' is not one of the levels in 'levels.{column}' or 'labels.{column}'")
        return self

    @property
    def released_fpc(self) -> str | None:
        """The column of the finite population correction that a release publishes, if there is one."""
        return self.fpc if self.fpc_public else None

    @property
    def fpcs(self) -> tuple[str, ...]:
        """The columns of the finite population corrections, by stage."""
        return tuple(column for column in (self.fpc, *(stage.fpc for stage in self.later)) if column)

    @property
    def clusters(self) -> tuple[str, ...]:
        """The columns of the clusters, by stage."""
        return tuple(column for column in (self.cluster, *(stage.cluster for stage in self.later)) if column)

    @property
    def all_strata(self) -> tuple[str, ...]:
        """The columns of the strata of all stages."""
        return tuple(column for column in (self.strata, *(stage.strata for stage in self.later)) if column)

    def declared(self, column: str) -> dict[str, str] | None:
        """The declared codes of a column and their labels, in order; None if the data decide."""
        levels = self.levels.get(column)
        return self.labels.get(column) if levels is None else {level: level for level in levels}
