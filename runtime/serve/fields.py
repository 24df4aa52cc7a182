"""Reading the fields of a request's JSON, each with an error that names it."""

from __future__ import annotations

import json
import math
from typing import Any

from runtime.serve.errors import ApiError


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a request's body.

    Raises:
        ApiError: 400, if it is not one JSON object in UTF-8, or holds NaN or a lone surrogate.
    """
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        # A lone surrogate is legal JSON but no text: no tokenizer takes it.
        json.dumps(body, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        message = "the body is not valid JSON in UTF-8"
        raise ApiError(400, message, code="invalid_json") from error
    if not isinstance(body, dict):
        message = f"the body is a JSON {type(body).__name__}; expected an object"
        raise ApiError(400, message, code="invalid_json")
    return body


def _no_constant(name: str) -> None:
    message = f"{name} is not JSON"
    raise ValueError(message)


def bad(param: str, message: str, *, code: str | None = None) -> ApiError:
    """Give a 400 about one field."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def integer(body: dict[str, Any], name: str, low: int, high: int) -> int | None:
    """Read an integer within bounds; absent and null give None.

    Raises:
        ApiError: 400, if it is something else.
    """
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad(name, f"{_shown(value)} is not allowed; expected an integer from {low} to {high}")
    return value


def number(body: dict[str, Any], name: str, low: float, high: float) -> float | None:
    """Read a number within bounds; absent and null give None.

    Raises:
        ApiError: 400, if it is something else.
    """
    value = body.get(name)
    if value is None:
        return None
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not math.isfinite(value) or not low <= value <= high:
        raise bad(name, f"{_shown(value)} is not allowed; expected a number from {low} to {high}")
    return float(value)


def boolean(body: dict[str, Any], name: str) -> bool:
    """Read a boolean; absent and null give False.

    Raises:
        ApiError: 400, if it is something else.
    """
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad(name, f"{_shown(value)} is not allowed; expected true or false")
    return value


def _shown(value: object) -> str:
    """Show a short value; a longer one may hold a client's text."""
    text = repr(value)
    return text if isinstance(value, int | float | bool) and len(text) <= 32 else "this value"
