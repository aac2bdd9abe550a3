"""Sections: what all sections of a spec have in common, and how their problems are reported.

A section is frozen, strictly typed and closed to unknown keys. Problems are reported in the terms of the spec, with the
setting's name and never with the offending value, whether the section was read from a file or made in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from svysynth.core.errors import SurveyError, did_you_mean, shown

MOST_PROBLEMS = 10
TO_BE_CHOSEN = {
    "privacy.guarantee": "'global' is differential privacy, for every data set; 'asymptotic' is the paper's "
    "guarantee, for fbs and fbp, and is not differential privacy",
}
"""Settings without a default, because the user has to take responsibility for them, and what can be chosen."""
Name = Annotated[str, Field(min_length=1, max_length=200)]
Positive = Annotated[float, Field(gt=0, lt=1e60, allow_inf_nan=False)]
Magnitude = Annotated[float, Field(gt=-1e60, lt=1e60, allow_inf_nan=False)]
Range = Annotated[tuple[Magnitude, Magnitude], Field(strict=False)]


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


def listed(names: Any) -> Any:
    """A single name stands for a list of one."""
    return (names,) if isinstance(names, str) else names


class Sections(ModelMetaclass):
    """The metaclass of sections: it reports the same problems for sections made in Python and read from a file."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Make a section, or raise one error that lists its problems."""
        try:
            return super().__call__(*arguments, **settings)
        except ValidationError as error:
            raise explained(error, self.__name__, cast(type[BaseModel], self)) from None


class Section(BaseModel, metaclass=Sections):
    """A section of the spec (a TOML table): frozen, strictly typed, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


def explained(error: ValidationError, place: str, root: type[BaseModel]) -> SurveyError:
    """The problems of a spec in one error."""
    details = _causes(error.errors(include_url=False, include_input=False))
    problems = [_explain(detail, root) for detail in details[:MOST_PROBLEMS]]
    if details[MOST_PROBLEMS:]:
        problems.append(f"and {len(details) - MOST_PROBLEMS:,} more")
    remedy = "correct the settings named here; docs/spec.md lists them all"
    return SurveyError("spec", place, "; ".join(problems), remedy)


def _causes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without the lists that are too short only because pydantic left out their wrong entries."""
    lists = {detail["loc"][:-1] for detail in details}
    return [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in lists]


def _explain(detail: ErrorDetails, root: type[BaseModel]) -> str:
    """One pydantic problem in the spec's own words, without the offending value."""
    location = [part + 1 if isinstance(part, int) else part for part in detail["loc"]]
    setting = shown(".".join(str(part) for part in location)) or "spec"
    kind, context = detail["type"], detail.get("ctx", {})
    match kind:
        case "missing":
            why = TO_BE_CHOSEN.get(setting)
            return f"'{setting}' is required" + (f": {why}" if why else "")
        case "extra_forbidden":
            return f"'{setting}' is not a known setting{_known_setting_hint(root, location)}"
        case "literal_error":
            return f"'{setting}' must be one of {context['expected'].replace(' or ', ', ')}"
        case "too_short":
            return f"'{setting}' must not be empty" if context["min_length"] == 1 else f"'{setting}' {detail['msg']}"
        case "clash":
            return detail["msg"]
        case _:
            return f"'{setting}' {detail['msg'].replace('Input should', 'should')}"


def _known_setting_hint(root: type[BaseModel], location: list[Any]) -> str:
    for part in location[:-1]:
        field = root.model_fields.get(str(part))
        root = (section_of(field.annotation) if field else None) or root
    return did_you_mean(str(location[-1]), root.model_fields)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section in a field's type, within a list or beside None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_of(part))), None)


def clash(message: str) -> PydanticCustomError:
    """The error for settings that contradict each other, with our own message."""
    return PydanticCustomError("clash", "{text}", {"text": message})


def no_repeats(names: Any, setting: str) -> None:
    """Stop if a name is listed twice."""
    names = list(names)
    if len(set(names)) != len(names):
        raise clash(f"'{setting}': a name is listed twice")
