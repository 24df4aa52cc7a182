"""Protocol buffer messages as raw fields, read and rewritten without their schemas.

Enough to look into XLA's serialized executables and to drop fields from them: a message is a list
of (field number, wire type, value), and what is not touched keeps its bytes exactly.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

__all__ = ["BYTES", "NotAMessageError", "RawField", "join", "read_varint", "split", "write_varint"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10
_LONGER = 0x80  # the bit of a varint's byte that is not its last
_MAX_FIELDS = 1 << 20  # of one message: hundreds of MB as objects; real ones have thousands


class NotAMessageError(ValueError):
    """The bytes are not a protocol buffer message."""


class RawField(NamedTuple):
    """One field of a message.

    Attributes:
        number: the field number.
        raw: the field as it stands, with its tag.
        value: the content of a length-delimited field; None for other wire types.
    """

    number: int
    raw: bytes
    value: bytes | None

    @classmethod
    def of(cls, number: int, value: bytes) -> RawField:
        """Make a length-delimited field."""
        tag = write_varint(number << 3 | BYTES)
        return cls(number, tag + write_varint(len(value)) + value, value)


_new_field = functools.partial(tuple.__new__, RawField)  # a third of the time of RawField(...)


def split(message: bytes) -> list[RawField]:
    """Give the fields of a message, in order.

    Raises:
        NotAMessageError: the bytes do not divide into fields, or into more than 2^20.
    """
    fields: list[RawField] = []
    offset, end = 0, len(message)
    while offset < end:
        start = offset
        tag = message[offset]
        offset += 1
        if tag >= _LONGER:  # most varints are one byte, and an executable has millions of them
            tag, offset = read_varint(message, start)
        number, wire = tag >> 3, tag & 7
        if len(fields) == _MAX_FIELDS:
            raise NotAMessageError(f"more than {_MAX_FIELDS} fields in a message")
        if number == 0:
            raise NotAMessageError(f"field number 0 at byte {start}")
        value = None
        if wire in (VARINT, BYTES):
            size = message[offset] if offset < end else _LONGER
            offset += 1
            if size >= _LONGER:
                size, offset = read_varint(message, offset - 1)
            if wire == BYTES:
                value = message[offset : offset + size]
                offset += size
        elif wire in _FIXED:
            offset += _FIXED[wire]
        else:
            raise NotAMessageError(f"wire type {wire} at byte {start}")
        if offset > end:
            raise NotAMessageError(f"the field at byte {start} ends behind the message")
        fields.append(_new_field((number, message[start:offset], value)))
    return fields


def join(fields: list[RawField]) -> bytes:
    """Give the message of these fields."""
    return b"".join(field.raw for field in fields)


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Give (value, offset behind it) of the varint at `offset`.

    Raises:
        NotAMessageError: it is cut short or longer than 10 bytes.
    """
    if offset < len(data) and data[offset] < 0x80:  # most are one byte, and this is called a lot
        return data[offset], offset + 1
    value = 0
    for i, byte in enumerate(data[offset : offset + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, offset + i + 1
    raise NotAMessageError(f"no varint at byte {offset}")


def write_varint(value: int) -> bytes:
    """Give the shortest varint of a value that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
