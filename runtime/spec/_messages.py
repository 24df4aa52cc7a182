"""Turn pydantic's errors into Luma's messages: the value, what is allowed, the remedy."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_core import ErrorDetails

    from runtime.spec._yaml import Location

# Values that mean something in Luma and that this version cannot do yet: refused by name, so that
# nobody believes that they were misspelt, and nothing falls back to something weaker.
_NOT_YET: Final[dict[str, dict[object, str]]] = {
    "model.dtype": {"fp16": "its range is too small for gradients without loss scaling; use bf16"},
    "train.precision": dict.fromkeys(
        ("bf16", "fp16"), "sums stay in fp32; model.dtype is what a job computes in"
    ),
    "compile.seal": {
        "L2": "it needs the Nitro Enclave compiler, which this version cannot reach",
        "L3": "it needs an attested runtime image, which this version cannot reach",
    },
}
_TYPES: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping of names to text",
    "model_type": "a mapping of fields",
}
_BOUNDS: Final = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_MAX_SHOWN: Final = 60


def field_errors(
    model: type[BaseModel], errors: list[ErrorDetails]
) -> Iterator[tuple[Location, str]]:
    """Yield (location, message) for each error that a reader can act on.

    Args:
        model: the model that was validated; its fields give the allowed names.
        errors: pydantic's `ValidationError.errors()`.
    """
    for error in errors:
        if not _is_follow_up(error):
            yield error["loc"], _message(model, error)


def _is_follow_up(error: ErrorDetails) -> bool:
    """Whether an error only follows from another one, which is reported too."""
    if error["type"] == "default_factory_not_called":
        return True
    # A list whose items are all wrong counts as empty for pydantic.
    return error["type"] == "too_short" and bool(error["input"])


def show(value: object) -> str:
    """Write a value for a message, shortened; text stands in quotes, true and null as in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _message(model: type[BaseModel], error: ErrorDetails) -> str:
    kind, location, value = error["type"], error["loc"], error["input"]
    context: dict[str, Any] = error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_field(model, location)
    if kind == "missing":
        return "is missing; this field is required"
    if kind == "value_error":
        return f"{context['error']}"
    if kind == "literal_error":
        return _not_allowed(model, location, value)
    if kind in _TYPES:
        return _wrong_type(value, _TYPES[kind])
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{show(value)} is out of range; expected {words} {_bound(context[name])}"
    if kind == "finite_number":
        return f"{show(value)} is not finite; expected an ordinary number"
    if kind in {"too_short", "string_too_short"}:
        return "is empty; give at least one value or remove the field"
    return f"{show(value)} is wrong: {_lower_first(error['msg'])}"


def _wrong_type(value: object, expected: str) -> str:
    advice = ""
    if isinstance(value, str) and "number" in expected:
        advice = "; write it without quotes or unit"
    elif expected == "a list":
        advice = " such as [a, b]"
    elif expected == "text" and isinstance(value, bool | int | float):
        advice = "; put it in quotes"
    return f"{show(value)} has the wrong type; expected {expected}{advice}"


def _not_allowed(model: type[BaseModel], location: Location, value: object) -> str:
    choices = _choices(model, location)
    allowed = ", ".join(show(item) if isinstance(item, bool) else str(item) for item in choices)
    later = _NOT_YET.get(".".join(map(str, location)), {})
    if isinstance(value, str | bool) and value in later:
        return f"{show(value)} is not available in this version; expected {allowed}; {later[value]}"
    return f"{show(value)} is not allowed; expected {allowed}"


def _choices(model: type[BaseModel], location: Location) -> tuple[Any, ...]:
    """Give the values that a field, or an item of a list, may have."""
    in_list = isinstance(location[-1], int)
    field = location[:-1] if in_list else location
    owner = _owner(model, field)
    choices = () if owner is None else get_args(_annotation(owner, str(field[-1])))
    return get_args(choices[0]) if in_list and choices else choices


def _unknown_field(model: type[BaseModel], location: Location) -> str:
    name, owner = location[-1], _owner(model, location)
    names = [] if owner is None else list(field_names(owner))
    if str(name).partition(":")[2]:
        # {trn2:1} is a mapping with the one key "trn2:1": YAML wants a space after the colon.
        return "unknown field; in YAML a colon needs a space after it, and a list is written [a, b]"
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {close[0]}" if close else f"expected one of {', '.join(names)}"
    return f"unknown field; {hint}"


def field_names(model: type[BaseModel]) -> Iterator[str]:
    """Yield the names of a model's fields as they are written in a job file."""
    for name, field in model.model_fields.items():
        yield field.alias or name


def model_of(model: type[BaseModel] | None, name: str) -> type[BaseModel] | None:
    """Give the section's class behind a model's field, or None for a plain value."""
    kind = None if model is None else _annotation(model, name)
    return next((item for item in (kind, *get_args(kind)) if _is_model(item)), None)


def _annotation(model: type[BaseModel], name: str) -> Any:
    fields = {field.alias or key: field for key, field in model.model_fields.items()}
    return fields[name].annotation if name in fields else None


def _owner(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    owner: type[BaseModel] | None = model
    for part in location[:-1]:
        owner = model_of(owner, str(part))
    return owner


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _bound(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) and abs(value) < 2**53 else str(value)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
