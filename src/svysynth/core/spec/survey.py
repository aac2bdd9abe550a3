"""`[survey]`: the data of a spec, and the role of each column."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from svysynth.core.spec.calibration import TOTALS_AGREE, CalibrationSpec
from svysynth.core.spec.columns import AS_IT_IS, ColumnSpec, check_column, check_role
from svysynth.core.spec.replicates import ReplicatesSpec
from svysynth.core.spec.sections import Name, Positive, Section, clash, listed, no_repeats
from svysynth.core.spec.stages import StageSpec, by_stage, check_stages
from svysynth.core.spec.variables import Kind, VariableSpec, check_variable, may_be_missing
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
    calibration: CalibrationSpec | None = None
    where: Name | None = None
    domain: Name | None = None
    domains: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    universe: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    missing: Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)] = ()
    labels: dict[Name, dict[Name, Name]] = Field(default_factory=dict)
    levels: dict[Name, Annotated[tuple[Name, ...], Field(min_length=1, strict=False)]] = Field(default_factory=dict)
    other: dict[Name, Name] = Field(default_factory=dict)
    columns: dict[Name, ColumnSpec] = Field(default_factory=dict)
    variables: dict[Name, VariableSpec] = Field(default_factory=dict)

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
            if column not in (*self.public, self.strata):  # those of an answer are in its own section
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
    def first_stage(self) -> SurveySpec:
        """The spec with the first stage alone, if there are several: its units are taken as drawn with replacement.

        Corrections are left out too. With that of the first stage alone, variances would be too small: a part of the
        variance of the later stages would be missing.
        """
        if not self.later:
            return self
        return self.model_copy(update={"later": (), "fpc": None, "fpc_public": False})

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

    @model_validator(mode="after")
    def _calibration_is_to_totals_of_public_columns(self) -> Self:
        if self.calibration is None:
            return self
        for column in self.calibration.columns:
            if column not in self.public:
                raise clash(f"'calibration.margins' names '{column}', which is not one of the public columns")
        if self.population_total and abs(self.population_total / self.calibration.total - 1) > TOTALS_AGREE:
            raise clash("'population_total' is not the sum of the totals in 'calibration.margins': leave it out")
        return self

    @model_validator(mode="after")
    def _columns_are_made_from_what_may_be_published(self) -> Self:
        secret = {self.outcome, self.weight, *self.fpcs}
        secret |= set(self.replicates.weights) if self.replicates else set()
        for name, column in self.columns.items():
            if name == self.outcome or name not in self.variables:
                check_role(name, column, self.outcome, self.public, self.strata, secret)
            check_column(name, column, self._listed(name), self.missing)
        return self

    @model_validator(mode="after")
    def _variables_are_confidential(self) -> Self:
        """An answer has no other role, and no published column is made from the column of an answer."""
        design = {self.weight, *self.fpcs, *self.all_strata, *self.clusters}
        design |= set(self.replicates.weights) if self.replicates else set()
        for name, variable in self.variables.items():
            for role, columns in (("public", self.public), ("universe", self.universe), ("the design", design)):
                if name in columns or (role == "universe" and self.source(name) in columns):
                    raise clash(f"'variables.{name}' is a confidential answer, and cannot be in {role} too")
            if name in TIDY_COLUMNS:
                raise clash(f"'variables.{name}' has the name of a column of every table: rename it ('columns.from')")
            check_variable(name, variable, self.made(name), name == self.outcome)
            check_column(name, self.made(name), self._listed(name), self.missing)
        answers = {self.source(name) for name in self.variables}
        for name in self.published:
            used = {self.source(name), self.made(name).labels_from} & answers
            if used:
                raise clash(
                    f"'{name}' is published, and is made from the column of a confidential answer in 'variables'"
                )
        return self

    @model_validator(mode="after")
    def _clusters_are_those_of_the_file(self) -> Self:
        """Clusters are numbered within their strata: levels that are put together would put clusters together."""
        for name in (*self.clusters, *(self.all_strata if self.clusters else ())):
            own = self.made(name)
            if own.is_grouped or own.missing_level or name in self.other:
                role = "clusters" if name in self.clusters else "strata, in which clusters are numbered"
                raise clash(
                    f"'columns.{name}' or 'other.{name}' groups the {role}: give the groups another name ('from')"
                )
        return self

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each declared answer."""
        return {name: variable.kind for name, variable in self.variables.items()}

    @property
    def answers(self) -> tuple[str, ...]:
        """The outcome and the other answers."""
        return tuple(dict.fromkeys([self.outcome, *self.variables]))

    def may_miss(self, answer: str) -> bool:
        """Whether a number may be missing: its tables are then of those who answered."""
        return answer in self.variables and may_be_missing(self.variables[answer], self.made(answer))

    @property
    def published(self) -> tuple[str, ...]:
        """The public columns and the strata."""
        return (*self.public, self.strata) if self.strata else self.public

    def _listed(self, column: str) -> dict[str, str] | None:
        answer = self.variables.get(column)
        levels = self.levels.get(column) if answer is None else answer.levels or None
        return self.labels.get(column) if levels is None else {level: level for level in levels}

    def declared(self, column: str) -> dict[str, str] | None:
        """The declared codes of a column and their labels, in order; None if the data decide."""
        own = self.made(column)
        codes = self._listed(column) if own.levels is None else {level: level for level in own.levels}
        last = {} if own.missing_level is None else {own.missing_level: own.missing_level}
        return None if codes is None else {**codes, **last}

    def made(self, column: str) -> ColumnSpec:
        """How a column is made from the file."""
        return self.columns.get(column, AS_IT_IS)

    def source(self, column: str) -> str:
        """The column of the file that a column is made from."""
        return self.made(column).source or column

    @property
    def published_as_they_are(self) -> set[str]:
        """The columns of the file that a release publishes with all their values, as public columns or strata."""
        return {self.source(column) for column in self.published if not self.made(column).is_grouped}

    def shown(self, column: str) -> str:
        """The label of a column, or else its name."""
        return self.made(column).label or column

    @property
    def variable_labels(self) -> dict[str, str]:
        """The labels of columns, for headings."""
        return {name: column.label for name, column in self.columns.items() if column.label is not None}
