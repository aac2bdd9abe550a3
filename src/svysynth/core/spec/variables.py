"""`[survey.variables.NAME]`: confidential answers besides the outcome: amounts, categories and yes/no answers.

How an answer is made from a column of the file, with bands, recodes, missing codes and a label, is said in
`[survey.columns.NAME]`, as for public columns.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from svysynth.core.spec.columns import ColumnSpec
from svysynth.core.spec.sections import Name, Range, Section, clash, listed, no_repeats

Kind = Literal["amount", "category", "yes/no"]
YES_NO = ("yes", "no")
"""The levels of a yes/no answer in a table by it."""
NO_ANSWER = "no answer"
"""The level of a missing yes/no answer in a table by it."""
OWN_SETTINGS: dict[Kind, set[str]] = {
    "amount": {"kind", "bounds"},
    "category": {"kind", "levels", "ordered"},
    "yes/no": {"kind", "yes", "no"},
}
AS_A_NUMBER = {"source", "missing", "label"}
COLUMN_SETTINGS: dict[Kind, set[str]] = {
    "amount": AS_A_NUMBER,
    "category": {*AS_A_NUMBER, "bands", "recode", "missing_level"},
    "yes/no": AS_A_NUMBER,
}
"""What `[survey.columns.NAME]` may say of an answer of each kind."""
Codes = Annotated[tuple[Name, ...], Field(strict=False), BeforeValidator(listed)]


class VariableSpec(Section):
    """`[survey.variables.NAME]`: the kind of a confidential answer, and the values that it can have."""

    kind: Kind
    bounds: Range | None = None
    levels: Codes = ()
    ordered: bool = False
    yes: Codes = ()
    no: Codes = ()

    @model_validator(mode="after")
    def _settings_are_those_of_the_kind(self) -> Self:
        for setting in sorted(self.model_fields_set - OWN_SETTINGS[self.kind]):
            raise clash(f"'{setting}' is not a setting of a variable of the kind '{self.kind}'")
        if self.bounds is not None and self.bounds[0] >= self.bounds[1]:
            raise clash("'bounds' must be the least and the greatest amount, in ascending order")
        if self.kind == "yes/no" and not self.yes:
            raise clash("a variable of the kind 'yes/no' needs 'yes', the codes that mean yes")
        no_repeats(self.levels, "levels")
        no_repeats([code.strip() for code in (*self.yes, *self.no)], "yes and no")
        return self


def check_variable(name: str, variable: VariableSpec, column: ColumnSpec, is_outcome: bool) -> None:
    """Stop at settings of an answer's column that its kind cannot have."""
    if is_outcome and variable.kind == "category":
        remedy = "name an amount or a yes/no answer there, and the category in 'of' or 'by' of a table"
        raise clash(f"'variables.{name}' is a category, and survey.outcome cannot be one: {remedy}")
    others = sorted(column.model_fields_set - COLUMN_SETTINGS[variable.kind])
    if others and not is_outcome:
        raise clash(f"'columns.{name}.{others[0]}' is not for a variable of the kind '{variable.kind}'")
    declared = variable.levels or column.bands or column.recode
    if variable.ordered and not declared:
        raise clash(f"'variables.{name}.ordered' needs 'levels', in their order")
    if {*variable.yes, *variable.no} & {*column.missing}:
        raise clash(f"'variables.{name}' has a code that 'columns.{name}.missing' lists too")


def may_be_missing(variable: VariableSpec, column: ColumnSpec) -> bool:
    """Whether an amount or a yes/no answer may be missing; missing categories are a level, or refused."""
    return variable.kind != "category" and bool(column.missing)
