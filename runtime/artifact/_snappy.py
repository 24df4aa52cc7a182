"""The snappy format: XLA compresses the records of its CUDA executables with it.

A stream is a varint with the decompressed size, then elements: a literal, or a copy of 1 to 64
bytes from before (format_description.txt of google/snappy). No element gives more than 64 bytes
for three, so a stream's size bounds what it can hold, and a bomb is refused before it is inflated.
"""

from __future__ import annotations

from runtime.artifact.protobuf import NotAMessageError, read_varint, write_varint

__all__ = ["NotSnappyError", "compress", "decompress"]

_MOST_FOR_THREE_BYTES = 64
_BLOCK = 1 << 16  # as in the reference: copies reach back within a block, in two bytes
_MATCH = 6  # shortest run worth a copy: fewer and longer ones, since each costs a step in Python
_STRIDE = 32
_LONG_LITERAL, _MOST_COPIED = 60, 64


class NotSnappyError(ValueError):
    """The bytes are not a whole snappy stream, or one that holds too much."""


def decompress(data: bytes, *, limit: int) -> bytes:
    """Give what a snappy stream holds.

    Args:
        data: the whole stream.
        limit: most bytes to give.

    Raises:
        NotSnappyError: it is cut, altered, or says that it holds more than `limit` or than a
            stream of its length can.
    """
    try:
        size, offset = read_varint(data, 0)
    except NotAMessageError as error:
        raise NotSnappyError("it has no size") from error
    if size > limit:
        raise NotSnappyError(f"it holds {size} bytes, above the limit of {limit}")
    if 3 * size > _MOST_FOR_THREE_BYTES * len(data):
        raise NotSnappyError(f"it says that its {len(data)} bytes hold {size}, which cannot be")
    out = bytearray()
    try:
        while offset < len(data):
            offset = _element(data, offset, out)
            if len(out) > size:
                raise NotSnappyError(f"it holds more than the {size} bytes that it says")
    except IndexError as error:
        raise NotSnappyError("it is cut within an element") from error
    if len(out) != size:
        raise NotSnappyError(f"it holds {len(out)} bytes, not the {size} that it says")
    return bytes(out)


def compress(data: bytes) -> bytes:
    """Give a snappy stream that holds `data`: 0.6 s a MiB, a tenth larger than the reference's."""
    out = bytearray(write_varint(len(data)))
    for start in range(0, len(data), _BLOCK):
        _compress_block(data[start : start + _BLOCK], out)
    return bytes(out)


def _compress_block(block: bytes, out: bytearray) -> None:
    """Add a block's elements to `out`: greedily, the last place of each run of six bytes known."""
    places: dict[bytes, int] = {}
    at = literal = 0
    while at + _MATCH <= len(block):
        run = block[at : at + _MATCH]
        before = places.get(run)
        places[run] = at
        if before is None:
            at += 1 + (at - literal >> 6)  # larger steps through what does not repeat
            continue
        size = _matching(block, before, at)
        _add_literal(block[literal:at], out)
        _add_copy(at - before, size, out)
        at += size
        literal = at
    _add_literal(block[literal:], out)


def _matching(block: bytes, before: int, at: int) -> int:
    """Give how many bytes from `before` and from `at` on are the same, knowing that `_MATCH` are."""
    size = _MATCH
    while at + size + _STRIDE <= len(block) and (
        block[before + size : before + size + _STRIDE] == block[at + size : at + size + _STRIDE]
    ):
        size += _STRIDE
    while at + size < len(block) and block[before + size] == block[at + size]:
        size += 1
    return size


def _add_literal(data: bytes, out: bytearray) -> None:
    """Add a literal element, none for no bytes."""
    if not data:
        return
    last = len(data) - 1
    if last < _LONG_LITERAL:
        out.append(last << 2)
    else:
        width = (last.bit_length() + 7) // 8
        out.append(_LONG_LITERAL - 1 + width << 2)
        out += last.to_bytes(width, "little")
    out += data


def _add_copy(distance: int, size: int, out: bytearray) -> None:
    """Add copy elements with a distance of two bytes."""
    while size > 0:
        part = min(size, _MOST_COPIED)
        out.append(part - 1 << 2 | 2)
        out += distance.to_bytes(2, "little")
        size -= part


def _element(data: bytes, offset: int, out: bytearray) -> int:
    """Add one element's bytes to `out`; give the offset behind it."""
    tag = data[offset]
    kind, high = tag & 3, tag >> 2
    if kind == 0:
        return _literal(data, offset + 1, high, out)
    if kind == 1:
        size, width = 4 + (high & 7), 1
        distance = (tag >> 5) << 8 | data[offset + 1]
    else:
        size, width = high + 1, 2 if kind == 2 else 4
        if offset + 1 + width > len(data):
            raise NotSnappyError("it is cut within a copy")
        distance = int.from_bytes(data[offset + 1 : offset + 1 + width], "little")
    start = len(out) - distance
    if distance == 0 or start < 0:
        raise NotSnappyError(f"a copy reaches {distance} bytes back behind {len(out)}")
    if distance >= size:
        out += out[start : start + size]
    else:  # it overlaps what it writes: a pattern that repeats
        out += (bytes(out[start:]) * (size // distance + 1))[:size]
    return offset + 1 + width


def _literal(data: bytes, offset: int, high: int, out: bytearray) -> int:
    """Add a literal's bytes to `out`; give the offset behind it."""
    size = high + 1
    if high >= 60:  # the size stands in the next 1 to 4 bytes
        width = high - 59
        size = int.from_bytes(data[offset : offset + width], "little") + 1
        offset += width
    if offset + size > len(data):
        raise NotSnappyError("it is cut within a literal")
    out += data[offset : offset + size]
    return offset + size
