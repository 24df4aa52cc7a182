"""A reader of the CBOR that Nitro hardware writes: small, bounded, one reading per input.

The artifact's own reader (`runtime.artifact.canonical`) asks for canonical bytes, which AWS's
documents are not: map keys stand in the order of a struct, some keys are integers, and documents
since 2026 write maps of indefinite length. This reader accepts just that much more. A document is
never encoded again to check its signature, so its form need not be canonical, but it must have
exactly one reading: duplicate keys, bytes behind the value, lengths not in their shortest form,
tags, floats, chunked strings and arrays of indefinite length are refused.

Nothing is allocated for a length that the input does not have, and nesting is bounded, so the
memory is a small multiple of the input's size and the time is linear in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from runtime.artifact.attestation.rules import Rule
from runtime.spec.errors import AttestationError

__all__ = ["MAX_DEPTH", "NitroCbor", "check_size", "read"]

NitroCbor = None | bool | int | str | bytes | list["NitroCbor"] | dict[str | int, "NitroCbor"]
"""What is read: the values of documents and of NSM responses."""

MAX_DEPTH = 4
"""Nesting of arrays and maps; a document and a response need 2."""

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_SIMPLE_VALUES = {20: False, 21: True, 22: None}
_INDEFINITE = 31
_BREAK = 0xFF


def read(
    data: bytes,
    *,
    what: str,
    max_bytes: int,
    max_depth: int = MAX_DEPTH,
    open_maps: bool = True,
) -> NitroCbor:
    """Read one CBOR value that is the whole of `data`.

    Args:
        data: the bytes, from anywhere.
        what: the name of the thing in error messages, such as "payload".
        max_bytes: largest accepted size of `data`.
        max_depth: deepest accepted nesting of arrays and maps.
        open_maps: whether maps of indefinite length are accepted.

    Raises:
        AttestationError: too large, cut short, followed by other bytes, nested too deeply, with a
            map key twice, or holding an item that is not allowed.
    """
    check_size(data, what=what, max_bytes=max_bytes)
    reader = _Reader(data, what, max_depth, open_maps)
    value = reader.value(0)
    left = len(data) - reader.offset
    if left:
        raise AttestationError(
            f"{what}: {left} bytes follow the CBOR value; expected none", rule=Rule.CBOR_TRAILING
        )
    return value


def check_size(data: bytes, *, what: str, max_bytes: int) -> None:
    """Refuse what is too large before anything else touches it.

    Raises:
        AttestationError: `document.size`.
    """
    if len(data) > max_bytes:
        raise AttestationError(
            f"{what}: {len(data)} bytes are not allowed; expected at most {max_bytes}",
            rule=Rule.SIZE,
        )


@dataclass(slots=True)
class _Reader:
    """A position in the bytes; every method reads on from it."""

    data: bytes
    what: str
    max_depth: int
    open_maps: bool
    offset: int = 0

    def value(self, depth: int) -> NitroCbor:
        """Read an item that lies inside `depth` containers."""
        major, info = self._initial_byte()
        if self.open_maps and major == _MAP and info == _INDEFINITE:
            return self._open_map(depth)
        if major == _SIMPLE and info in _SIMPLE_VALUES:
            return _SIMPLE_VALUES[info]
        if major in (_TAG, _SIMPLE):
            self._refuse_item()
        argument = self._argument(info)
        match major:
            case 0:
                return argument
            case 1:
                return -1 - argument
            case 2:
                return self._take(argument)
            case 3:
                return self._text(argument)
            case 4:
                return self._array(argument, depth)
            case _:
                return self._map(argument, depth)

    def _initial_byte(self) -> tuple[int, int]:
        byte = self._take(1)[0]
        return byte >> 5, byte & 0x1F

    def _take(self, size: int) -> bytes:
        """Give the next `size` bytes, which must be there."""
        end = self.offset + size
        if end > len(self.data):
            raise AttestationError(
                f"{self.what}: {size} bytes asked at byte {self.offset} are not there; "
                f"expected whole CBOR within {len(self.data)} bytes",
                rule=Rule.CBOR_END,
            )
        taken = self.data[self.offset : end]
        self.offset = end
        return taken

    def _argument(self, info: int) -> int:
        """Read the argument of a head (RFC 8949, section 3), which must be in its shortest form."""
        if info < 24:
            return info
        if info > 27:
            self._refuse_item()
        size = 1 << (info - 24)
        at = self.offset - 1
        argument = int.from_bytes(self._take(size), "big")
        smallest = 24 if size == 1 else 1 << (4 * size)
        if argument < smallest:
            raise AttestationError(
                f"{self.what}: the CBOR argument {argument} at byte {at} takes {size} bytes; "
                "expected the shortest form",
                rule=Rule.CBOR_ITEM,
            )
        return argument

    def _text(self, size: int) -> str:
        at = self.offset
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise AttestationError(
                f"{self.what}: the CBOR text at byte {at} is not UTF-8", rule=Rule.CBOR_ITEM
            ) from error

    def _array(self, count: int, depth: int) -> list[NitroCbor]:
        self._enter(depth)
        return [self.value(depth + 1) for _ in range(self._counted(count))]

    def _map(self, count: int, depth: int) -> NitroCbor:
        self._enter(depth)
        found: dict[str | int, NitroCbor] = {}
        for _ in range(self._counted(2 * count) // 2):
            self._pair(found, depth + 1)
        return found

    def _open_map(self, depth: int) -> NitroCbor:
        """Read a map of indefinite length, up to its break."""
        self._enter(depth)
        found: dict[str | int, NitroCbor] = {}
        while self.data[self.offset : self.offset + 1] != bytes([_BREAK]):
            self._pair(found, depth + 1)
        self.offset += 1
        return found

    def _pair(self, found: dict[str | int, NitroCbor], depth: int) -> None:
        at = self.offset
        key = self.value(depth)
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise AttestationError(
                f"{self.what}: the CBOR map key at byte {at} is a {type(key).__name__}; "
                "expected text or an integer",
                rule=Rule.CBOR_KEY,
            )
        if key in found:
            raise AttestationError(
                f"{self.what}: the CBOR map key {key!r} at byte {at} is there twice; "
                "expected each key once",
                rule=Rule.CBOR_DUPLICATE,
            )
        found[key] = self.value(depth)

    def _enter(self, depth: int) -> None:
        if depth >= self.max_depth:
            raise AttestationError(
                f"{self.what}: CBOR nested deeper than {self.max_depth} at byte {self.offset}",
                rule=Rule.CBOR_DEPTH,
            )

    def _counted(self, items: int) -> int:
        """Give `items`, each of which takes at least one of the bytes that are left."""
        left = len(self.data) - self.offset
        if items > left:
            raise AttestationError(
                f"{self.what}: {items} CBOR items announced at byte {self.offset} are not there; "
                f"expected at most {left}",
                rule=Rule.CBOR_END,
            )
        return items

    def _refuse_item(self) -> NoReturn:
        at = self.offset - 1
        raise AttestationError(
            f"{self.what}: the CBOR item 0x{self.data[at]:02x} at byte {at} is not allowed; "
            "expected integers, text, bytes, arrays, maps, null, true or false",
            rule=Rule.CBOR_ITEM,
        )
