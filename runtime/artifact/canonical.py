"""Canonical CBOR, read strictly: the one byte form of everything that Luma signs or seals.

`encode` gives the deterministic encoding of RFC 8949, section 4.2.3 (shortest integers and floats,
map keys in order of length, then bytes). `decode` accepts exactly what `encode` can give, and
judges the input *before* a CBOR library sees it: no tags (cbor2 would evaluate big fractions,
regular expressions and shared references), no indefinite lengths, bounded depth and item count,
no length beyond the input. So equal values have equal bytes, and hostile bytes cost no more than
one pass over them.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import cbor2

from runtime.spec.errors import ArtifactError

__all__ = ["MAX_DEPTH", "MAX_ITEMS", "CborValue", "decode", "encode"]

_TYPE_NAMES = "null, bool, integer of 64 bits, float, text, bytes, array, map with text keys"

CborValue = None | bool | int | float | str | bytes | list["CborValue"] | dict[str, "CborValue"]
"""What canonical CBOR may hold here; tuples are written as arrays and read back as lists."""

MAX_DEPTH = 16
"""Nesting of arrays and maps that a reader accepts."""

MAX_ITEMS = 4_000_000
"""Data items that a reader accepts: far above a real graph (about 10^5), below a memory bomb."""

_LONG_BYTES = 1 << 16
"""Byte strings from this size on are taken out before a value is parsed and written again: a
payload's executables have hundreds of megabytes, and each copy of them is a tenth of a second."""

_UNSIGNED, _NEGATIVE, BYTES, TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_SIMPLE_VALUES = frozenset({20, 21, 22})  # false, true, null
_FLOAT_SIZES = {25: 2, 26: 4, 27: 8}
SMALLEST_WITH = {1: 24, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}
"""By the bytes of an argument behind its head: the smallest that has no shorter form."""

_INT_MIN, _INT_END = -(1 << 63), 1 << 63


def encode(value: object) -> bytes:
    """Give the canonical CBOR of `value`.

    Args:
        value: made of None, bool, int (64 bits, signed), float, str, bytes, list or tuple, and
            dict with str keys.

    Raises:
        ArtifactError: `value` holds anything else.
    """
    _check_encodable(value, 0)
    return cbor2.dumps(value, canonical=True)


def decode(
    data: bytes,
    *,
    what: str,
    max_bytes: int,
    max_depth: int = MAX_DEPTH,
    max_items: int = MAX_ITEMS,
) -> CborValue:
    """Read canonical CBOR; the whole of `data` must be one value in canonical form.

    Args:
        data: the bytes, from anywhere.
        what: the name of the thing in error messages, such as "manifest".
        max_bytes: largest accepted size of `data`.
        max_depth: deepest accepted nesting.
        max_items: largest accepted count of data items.

    Raises:
        ArtifactError: too large, truncated, followed by other bytes, not canonical, or holding a
            type that `encode` does not write.
    """
    if len(data) > max_bytes:
        raise ArtifactError(f"{what}: {len(data)} bytes are more than the {max_bytes} allowed")
    long = _check_structure(data, what, max_depth, max_items)
    rest, strings = _without(data, long)
    try:
        value = cbor2.loads(rest, max_depth=max_depth + 1)
    except (cbor2.CBORError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{what}: not CBOR ({type(error).__name__})") from error
    # Key order, duplicate keys and float widths are judged here: only one byte form round-trips.
    # (Heads are judged above, and a long string's content has but one form.)
    if cbor2.dumps(value, canonical=True) != rest:
        raise ArtifactError(f"{what}: CBOR is not in canonical form")
    return _with(value, strings) if strings else value


class _Span(NamedTuple):
    """A byte string: where its head begins, where its content begins and ends."""

    head: int
    begin: int
    end: int


def _without(data: bytes, spans: list[_Span]) -> tuple[bytes, dict[bytes, bytes]]:
    """Put a short unguessable string in the place of each span; give it with what it stands for."""
    if not spans:
        return data, {}
    secret, pieces, strings, before = os.urandom(16), [], {}, 0
    for number, span in enumerate(spans):
        mark = secret + number.to_bytes(8, "big")
        pieces += [data[before : span.head], cbor2.dumps(mark)]
        strings[mark] = data[span.begin : span.end]
        before = span.end
    return b"".join([*pieces, data[before:]]), strings


def _with(value: CborValue, strings: dict[bytes, bytes]) -> CborValue:
    """Put the strings back, in place."""
    if isinstance(value, bytes):
        return strings.get(value, value)
    if isinstance(value, list):
        value[:] = [_with(item, strings) for item in value]
    elif isinstance(value, dict):
        for key, item in value.items():
            value[key] = _with(item, strings)
    return value


def _check_encodable(value: object, depth: int) -> None:
    """Refuse what `decode` would not give back."""
    if depth > MAX_DEPTH:
        raise ArtifactError(f"cannot write CBOR nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, bool | float | str | bytes):
        return
    if isinstance(value, int):
        if not _INT_MIN <= value < _INT_END:
            raise ArtifactError(f"cannot write the integer {value}: it does not fit 64 bits")
    elif isinstance(value, list | tuple):
        for item in value:
            _check_encodable(item, depth + 1)
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for item in value.values():
            _check_encodable(item, depth + 1)
    else:
        raise ArtifactError(
            f"cannot write a {type(value).__name__} as CBOR; allowed: {_TYPE_NAMES}"
        )


def _check_structure(data: bytes, what: str, max_depth: int, max_items: int) -> list[_Span]:
    """Walk the item heads of `data` without building anything; give the long byte strings."""
    long: list[_Span] = []
    offset, items = 0, 0
    # One entry an open container: [items still to come, whether the next one is a map key].
    open_containers: list[list[int]] = [[1, 0]]
    while open_containers:
        top = open_containers[-1]
        if top[0] == 0:
            open_containers.pop()
            continue
        top[0] -= 1
        items += 1
        if items > max_items:
            raise ArtifactError(f"{what}: holds more than {max_items} CBOR items")
        head = offset
        major, argument, offset = _read_head(data, offset, what)
        # In a map, keys and values alternate, and an even number is left before each key.
        is_key = bool(top[1]) and top[0] % 2 == 1
        if is_key and major != TEXT:
            raise ArtifactError(f"{what}: a CBOR map key at byte {offset} is not text")
        if major in (BYTES, TEXT):
            begin, offset = offset, _skip(data, offset, argument, what)
            if major == BYTES and argument >= _LONG_BYTES:
                long.append(_Span(head, begin, offset))
        elif major in (_ARRAY, _MAP):
            if len(open_containers) > max_depth:
                raise ArtifactError(f"{what}: CBOR nested deeper than {max_depth}")
            count = argument * (2 if major == _MAP else 1)
            _check_count(count, len(data) - offset, f"{what}: a CBOR count of {argument}", offset)
            open_containers.append([count, int(major == _MAP)])
    if offset != len(data):
        raise ArtifactError(f"{what}: {len(data) - offset} bytes follow the end of the CBOR value")
    return long


def _check_count(count: int, left: int, which: str, offset: int) -> None:
    """Refuse a container of more items than there are bytes."""
    if count > left:
        raise ArtifactError(f"{which} at byte {offset} is beyond the end")


def _read_head(data: bytes, offset: int, what: str) -> tuple[int, int, int]:
    """Read one item head; give (major type, argument, offset behind the head)."""
    if offset >= len(data):
        raise ArtifactError(f"{what}: CBOR ends in the middle, at byte {offset}")
    major, info = data[offset] >> 5, data[offset] & 31
    offset += 1
    if major == _SIMPLE:
        if info in _SIMPLE_VALUES:
            return major, info, offset
        if info in _FLOAT_SIZES:
            return major, info, _skip(data, offset, _FLOAT_SIZES[info], what)
    elif major != _TAG:
        if info < 24:
            return major, info, offset
        if info <= 27:
            size = 1 << (info - 24)
            end = _skip(data, offset, size, what)
            argument = int.from_bytes(data[offset:end], "big")
            too_large = major in (_UNSIGNED, _NEGATIVE) and argument >= _INT_END
            if argument < SMALLEST_WITH[size] or too_large:
                raise ArtifactError(
                    f"{what}: the CBOR integer at byte {offset} is not in the allowed form"
                )
            return major, argument, end
    raise ArtifactError(
        f"{what}: CBOR item 0x{data[offset - 1]:02x} at byte {offset - 1} is not allowed"
    )


def _skip(data: bytes, offset: int, size: int, what: str) -> int:
    """Give the offset behind `size` bytes, which must be there."""
    if size > len(data) - offset:
        raise ArtifactError(
            f"{what}: CBOR ends in the middle of an item of {size} bytes at byte {offset}"
        )
    return offset + size
