"""Strict reading of a message's fields: each has one type and bounds, and no others are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enclave_image.service.errors import ServiceError

__all__ = ["MessageFields"]


class MessageFields:
    """The fields of a message; an error names the message, the field and what is allowed.

    Args:
        message: the decoded map.
        where: its name in errors.
    """

    def __init__(self, message: object, where: str) -> None:
        if not isinstance(message, Mapping):
            raise ServiceError(f"{where}: expected a map", reason="frame")
        self._left: dict[str, Any] = {k: v for k, v in message.items() if k != "kind"}
        self._where = where

    def octets(self, name: str, low: int, high: int) -> bytes:
        """Take bytes of `low` to `high` bytes."""
        value = self._take(name)
        if not isinstance(value, bytes) or not low <= len(value) <= high:
            raise self._wrong(name, f"{low} to {high} bytes")
        return value

    def optional_octets(self, name: str, low: int, high: int) -> bytes | None:
        """Take bytes, or None where null stands."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return self.octets(name, low, high)

    def integer(self, name: str, low: int, high: int) -> int:
        """Take an integer from `low` to `high`."""
        value = self._take(name)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str) -> float:
        """Take a number that is not negative."""
        value = self._take(name)
        if type(value) not in {int, float} or not 0 <= value < float("inf"):
            raise self._wrong(name, "a number that is not negative")
        return float(value)

    def flag(self, name: str) -> bool:
        """Take a true or a false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, high: int) -> str:
        """Take text of at most `high` characters."""
        value = self._take(name)
        if not isinstance(value, str) or len(value) > high:
            raise self._wrong(name, f"text of at most {high} characters")
        return value

    def optional_text(self, name: str, high: int) -> str | None:
        """Take text, or None where null stands."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return self.text(name, high)

    def texts(self, name: str, count: int, high: int) -> tuple[str, ...]:
        """Take a list of 1 to `count` different texts."""
        value = self._take(name)
        right = (
            isinstance(value, list)
            and 1 <= len(value) <= count
            and all(isinstance(item, str) and 0 < len(item) <= high for item in value)
            and len(set(value)) == len(value)
        )
        if not right:
            raise self._wrong(name, f"1 to {count} different texts of at most {high} characters")
        return tuple(value)

    def plain(self, name: str) -> object:
        """Take a value that somebody else judges."""
        return self._take(name)

    def within(self, name: str) -> MessageFields:
        """Take a map."""
        return MessageFields(self._take(name), f"{self._where}.{name}")

    def end(self) -> None:
        """Refuse fields that nobody took."""
        if self._left:
            raise ServiceError(
                f"{self._where}.{min(self._left)[:40]}: is not a field of this message",
                reason="frame",
            )

    def _take(self, name: str) -> Any:
        if name not in self._left:
            raise ServiceError(f"{self._where}.{name}: is missing", reason="frame")
        return self._left.pop(name)

    def _wrong(self, name: str, wanted: str) -> ServiceError:
        return ServiceError(f"{self._where}.{name}: expected {wanted}", reason="frame")
