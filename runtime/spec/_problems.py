"""All that is wrong with a job, from the YAML, the fields and the rules, in the file's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from runtime.spec._messages import field_errors, model_of
from runtime.spec.errors import SpecError
from runtime.spec.rules import Unknown, broken_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

    from runtime.spec._yaml import Document, Location
    from runtime.spec.rules import Getter

RULE_ERROR: Final = "luma_rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault of a job.

    Attributes:
        line: line in the file, from 1.
        field: dotted field, such as `train.optimizer.lr` or `compile.targets[1]`; empty for the
            file itself.
        message: the value, what is allowed, and the remedy.
    """

    line: int
    field: str
    message: str


class JobFileError(SpecError):
    """A job is wrong; `problems` holds every fault, and the message lists them all.

    Args:
        file: the file's name, or empty for values that came from no file.
        problems: at least one fault.
    """

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        rows = [_row(file, problem) for problem in problems]
        count = f"{file or 'options'}: {len(rows)} mistakes"
        message = rows[0] if len(rows) == 1 else "\n  ".join([count, *rows])
        super().__init__(message, remedy="docs/reference/job.md describes every field")
        self.file = file
        self.problems = tuple(problems)


def all_problems(
    model: type[BaseModel], document: Document, errors: list[ErrorDetails]
) -> list[Problem]:
    """Gather the faults of YAML, fields and rules; one a field, in the order of the file.

    Args:
        model: the model of the whole job.
        document: the file as it was read.
        errors: pydantic's errors for `document.data`; those of rules are found anew here, since
            pydantic stops before them as soon as a field is wrong.
    """
    faulty = {fault.location for fault in document.faults}
    fields = [error for error in errors if error["type"] != RULE_ERROR]
    found = [
        (location, message)
        for location, message in field_errors(model, fields)
        if location not in faulty
    ]
    bad = [*faulty, *(location for location, _ in found)]
    assert isinstance(document.data, dict)  # noqa: S101 - callers read a mapping
    for name, message in broken_rules(_raw_getter(model, document.data, bad)):
        found.append((tuple(name.split(".")), message))
    problems = [_problem(document, location, message) for location, message in found]
    problems += [
        Problem(line=fault.line, field=_dotted(fault.location), message=fault.message)
        for fault in document.faults
    ]
    return sorted(problems, key=lambda problem: problem.line)


def field_value(section: BaseModel, name: str) -> Any:
    """Give the value of a section's field by the name that a job file has for it."""
    for attribute, field in type(section).model_fields.items():
        if name == (field.alias or attribute):
            return getattr(section, attribute)
    raise KeyError(name)


def _problem(document: Document, location: Location, message: str) -> Problem:
    return Problem(line=document.line_of(location), field=_dotted(location), message=message)


def _row(file: str, problem: Problem) -> str:
    place = f"{file}:{problem.line}: " if file else ""
    field = f"{problem.field}: " if problem.field else ""
    return f"{place}{field}{problem.message}"


def _dotted(location: Location) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


def _raw_getter(model: type[BaseModel], data: dict[str, Any], bad: list[Location]) -> Getter:
    """Give a getter over unchecked data: well-formed values and defaults, else `Unknown`."""

    def get(name: str) -> Any:
        path = tuple(name.split("."))
        if any(_overlap(path, location) for location in bad):
            raise Unknown
        return _raw_value(model, data, path)

    return get


def _overlap(path: Location, location: Location) -> bool:
    shorter = min(len(path), len(location))
    return path[:shorter] == location[:shorter]


def _raw_value(model: type[BaseModel] | None, value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if isinstance(value, BaseModel):
            value = field_value(value, part)
        elif isinstance(value, dict) and part in value:
            model, value = model_of(model, part), value[part]
        else:
            value = _default(model, part)
    return value


def _default(model: type[BaseModel] | None, name: str) -> Any:
    field = None if model is None else model.model_fields.get(name)
    if field is None or field.default is PydanticUndefined:
        raise Unknown
    return field.default
