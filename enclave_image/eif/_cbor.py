"""Read the little CBOR that a signature section holds: unsigned integers, bytes, text, arrays, maps.

`runtime.artifact.canonical` reads canonical CBOR alone, and the tools that sign images do not order
their maps so. Here any order is read; tags are not (a general decoder evaluates some, at the
writer's cost), nor indefinite lengths, duplicate keys, longer forms than needed, or trailing bytes.
"""

from __future__ import annotations

from typing import TypeAlias

from runtime.spec.errors import ArtifactError

__all__ = ["CborItem", "read_cbor"]

CborItem: TypeAlias = "int | bytes | str | list[CborItem] | dict[str, CborItem]"

_MAX_DEPTH = 4
_UNSIGNED, _BYTES, _TEXT, _ARRAY, _MAP = 0, 2, 3, 4, 5
_SMALLEST_WITH = {1: 24, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}


def read_cbor(data: bytes, what: str) -> CborItem:
    """Read the one item that takes up all of `data`.

    Args:
        data: the bytes; each costs at most one item.
        what: the name of the thing in errors.

    Raises:
        ArtifactError: not such an item.
    """
    reading = _Reading(data, what)
    item = reading.item(0)
    if reading.at != len(data):
        raise ArtifactError(f"{what}: {len(data) - reading.at} bytes follow its CBOR")
    return item


class _Reading:
    """Bytes, and how far they were read."""

    def __init__(self, data: bytes, what: str) -> None:
        self.at = 0
        self._data = data
        self._what = what

    def item(self, depth: int) -> CborItem:
        """Read the next item."""
        if depth > _MAX_DEPTH:
            raise ArtifactError(f"{self._what}: CBOR nested deeper than {_MAX_DEPTH}")
        start = self.at
        major, value = self._head()
        if major == _UNSIGNED:
            return value
        if major == _BYTES:
            return self._take(value)
        if major == _TEXT:
            return self._text(value)
        # Each item takes a byte at least, so a count beyond the end ends at the end.
        if major == _ARRAY:
            return [self.item(depth + 1) for _ in range(value)]
        if major == _MAP:
            return self._map(value, depth)
        raise ArtifactError(f"{self._what}: CBOR of major type {major} at byte {start}")

    def _map(self, count: int, depth: int) -> dict[str, CborItem]:
        found: dict[str, CborItem] = {}
        for _ in range(count):
            key = self.item(depth + 1)
            if not isinstance(key, str) or key in found:
                raise ArtifactError(f"{self._what}: a CBOR key is not text, or there twice")
            found[key] = self.item(depth + 1)
        return found

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{self._what}: CBOR text that is not UTF-8") from error

    def _head(self) -> tuple[int, int]:
        """Read the next head; give (major type, argument)."""
        start = self.at
        first = self._take(1)[0]
        major, value = first >> 5, first & 31
        if value < 24:
            return major, value
        size = 1 << (value - 24)
        value = int.from_bytes(self._take(size), "big") if size in _SMALLEST_WITH else 0
        if value < _SMALLEST_WITH.get(size, 1):
            raise ArtifactError(f"{self._what}: CBOR head 0x{first:02x} at byte {start}")
        return major, value

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise ArtifactError(f"{self._what}: its CBOR is cut at byte {len(self._data)}")
        taken = self._data[self.at : end]
        self.at = end
        return taken
