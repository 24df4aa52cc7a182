"""Typed reading of decoded CBOR maps: every error names the field by its full path."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runtime.spec.errors import ArtifactError

_SHOWN = 60


def fail(field: str, value: object, allowed: str) -> ArtifactError:
    """Give the error for a field: its name, the value (cut short) and what is allowed."""
    shown = repr(value)
    if isinstance(value, bytes):
        shown = f"{len(value)} bytes"
    elif len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "..."
    return ArtifactError(f"{field}: {shown} is not allowed; expected {allowed}")


class Fields:
    """A CBOR map whose fields are taken one by one, then checked to be used up.

    Args:
        value: the decoded value, which must be a map.
        where: the path of the map in error messages, such as "payload.programs.grad".

    Raises:
        ArtifactError: `value` is no map; every method raises it for its field too.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise fail(where, value, "a map")
        self._left = dict(value)
        self.where = where

    def take(self, name: str) -> object:
        """Take a field of any type; it must be there."""
        if name not in self._left:
            raise ArtifactError(f"{self.where}.{name}: missing")
        return self._left.pop(name)

    def text(self, name: str, *, limit: int = 4096) -> str:
        """Take a text of at most `limit` characters."""
        value = self.take(name)
        if not isinstance(value, str) or len(value) > limit:
            raise fail(f"{self.where}.{name}", value, f"text of at most {limit} characters")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """Take a text that is one of `allowed`."""
        value = self.take(name)
        if not isinstance(value, str) or value not in allowed:
            raise fail(f"{self.where}.{name}", value, " or ".join(allowed))
        return value

    def octets(self, name: str, *, low: int = 0, high: int) -> bytes:
        """Take bytes, `low` to `high` of them."""
        value = self.take(name)
        if not isinstance(value, bytes) or not low <= len(value) <= high:
            raise fail(f"{self.where}.{name}", value, f"{low} to {high} bytes")
        return value

    def flag(self, name: str) -> bool:
        """Take a bool."""
        value = self.take(name)
        if not isinstance(value, bool):
            raise fail(f"{self.where}.{name}", value, "true or false")
        return value

    def integer(self, name: str, *, low: int, high: int) -> int:
        """Take an integer from `low` to `high`, both included."""
        return integer(self.take(name), f"{self.where}.{name}", low=low, high=high)

    def real(self, name: str) -> float:
        """Take a finite float."""
        value = self.take(name)
        if not isinstance(value, float) or not math.isfinite(value):
            raise fail(f"{self.where}.{name}", value, "a finite float")
        return value

    def items(self, name: str, *, limit: int) -> list[object]:
        """Take an array of at most `limit` items."""
        return items(self.take(name), f"{self.where}.{name}", limit=limit)

    def texts(self, name: str, *, limit: int, length: int = 4096) -> tuple[str, ...]:
        """Take an array of texts."""
        return tuple(
            text(value, f"{self.where}.{name}[{i}]", limit=length)
            for i, value in enumerate(self.items(name, limit=limit))
        )

    def fields(self, name: str) -> Fields:
        """Take a map."""
        return Fields(self.take(name), f"{self.where}.{name}")

    def names(self) -> list[str]:
        """Give the names of the fields not taken yet, in order."""
        return sorted(self._left)

    def end(self) -> None:
        """Refuse fields that nobody took."""
        if self._left:
            raise ArtifactError(f"{self.where}.{min(self._left)}: unknown field")


def integer(value: object, where: str, *, low: int, high: int) -> int:
    """Give `value` if it is an integer (no bool) from `low` to `high`, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise fail(where, value, f"an integer from {low} to {high}")
    return value


def text(value: object, where: str, *, limit: int = 4096) -> str:
    """Give `value` if it is a text of at most `limit` characters."""
    if not isinstance(value, str) or len(value) > limit:
        raise fail(where, value, f"text of at most {limit} characters")
    return value


def items(value: object, where: str, *, limit: int) -> list[object]:
    """Give `value` if it is an array of at most `limit` items."""
    if not isinstance(value, list) or len(value) > limit:
        raise fail(where, value, f"an array of at most {limit} items")
    return value
