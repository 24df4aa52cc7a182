"""CloudFormation's functions as text, for checks that need a whole string.

A reference becomes `<Bucket>` or `<Bucket.Arn>`, so that a reader, and a rule, still sees what is
referred to. Nothing is looked up: what is only known at deployment stays a placeholder.
"""

from __future__ import annotations

import re
from typing import Any

_IN_SUB = re.compile(r"\$\{(!?)([^}]+)\}")


def text(value: Any) -> str:
    """Give a template's value as one string.

    Raises:
        ValueError: a function that makes no string; the message names it.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    function, argument = _function(value)
    match function:
        case "Ref":
            return f"<{argument}>"
        case "Fn::GetAtt":
            return f"<{argument if isinstance(argument, str) else '.'.join(argument)}>"
        case "Fn::Join":
            separator, parts = argument
            return separator.join(text(part) for part in parts)
        case "Fn::Sub":
            template = argument if isinstance(argument, str) else argument[0]
            return _IN_SUB.sub(lambda m: f"${{{m[2]}}}" if m[1] else f"<{m[2]}>", template)
        case "Fn::ImportValue":
            return f"<import {text(argument)}>"
        case "Fn::Select":
            return f"<select {argument[0]} of {plain(argument[1])}>"
        case "Fn::If":
            return f"<if {argument[0]}: {plain(argument[1])} else {plain(argument[2])}>"
        case "Fn::Base64" | "Fn::GetAZs":
            return f"<{function.removeprefix('Fn::')} {plain(argument)}>"
        case _:
            raise ValueError(f"{function} makes no text: {value!r}")


def plain(value: Any) -> Any:
    """Replace every function inside a value by its text, and keep everything else."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if is_function(value):
        try:
            return text(value)
        except ValueError:
            return f"<{next(iter(value))}>"
    return {key: plain(item) for key, item in value.items()}


def is_function(value: Any) -> bool:
    """Say whether a value is a call of one of CloudFormation's functions."""
    if not (isinstance(value, dict) and len(value) == 1):
        return False
    name = next(iter(value))
    return name == "Ref" or name.startswith("Fn::")


def _function(value: Any) -> tuple[str, Any]:
    if not is_function(value):
        raise ValueError(f"not a text: {value!r}")
    return next(iter(value.items()))
