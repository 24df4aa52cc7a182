"""Riegeli record files, read and written as far as XLA's CUDA executables need them.

A file is a sequence of chunks, each a 40-byte header and its data, interrupted by a 24-byte block
header at every multiple of 64 KiB; all carry HighwayHash-64 (doc/riegeli_records_file_format.md of
google/riegeli). Read are signature, padding and simple chunks, plain or compressed with snappy,
which is what XLA writes (`split_proto_riegeli_options.h`); anything else is refused by name, and so
is a file of which any byte, block headers included, is not as the format makes it. The same is
written.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from runtime.artifact._highwayhash import highwayhash64
from runtime.artifact._snappy import NotSnappyError, compress, decompress
from runtime.artifact.protobuf import NotAMessageError, read_varint, write_varint

__all__ = ["MAX_DECODED_BYTES", "SIGNATURE", "NotRiegeliError", "read_records", "write_records"]

SIGNATURE = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")
"""The first 32 bytes of every file: its first block header and the hash of the signature chunk."""

MAX_DECODED_BYTES = 1 << 30
"""Most bytes that the records of a file may hold together: more is refused unread."""

_BLOCK = 1 << 16
_BLOCK_HEADER = struct.Struct("<3Q")
_HEADER_BYTES, _OVERHEAD = 40, _BLOCK_HEADER.size
_USABLE = _BLOCK - _OVERHEAD
_KEY = (0x2F696C6567656952, 0x0A7364726F636572) * 2  # "Riegeli/records\n", twice

_SIGNATURE_CHUNK, _PADDING_CHUNK, _SIMPLE_CHUNK = b"s", b"p", b"r"
_PLAIN, _SNAPPY = b"\0", b"s"
_OTHER_COMPRESSIONS = {b"b": "brotli", b"z": "zstd"}


class NotRiegeliError(ValueError):
    """The bytes are not a riegeli file, or one that this reader does not open."""


class _Header(NamedTuple):
    """What a chunk's header says."""

    kind: bytes
    data_size: int
    data_hash: int
    records: int
    decoded_size: int


def read_records(data: bytes, *, limit: int = MAX_DECODED_BYTES) -> list[bytes]:
    """Give the records of a file, in order.

    Args:
        data: the whole file.
        limit: most bytes that the records may hold together.

    Raises:
        NotRiegeliError: it is cut or altered, holds more than `limit`, or a kind of chunk or
            compression that XLA does not write.
    """
    records: list[bytes] = []
    position, left = 0, limit
    while position < len(data):
        header = _parse_header(_take(data, position, _HEADER_BYTES), position)
        content_at = _after(position, _HEADER_BYTES)
        end = _chunk_end(position, header.data_size, header.records)
        if end > len(data):
            raise NotRiegeliError(f"the chunk at byte {position} is cut")
        _check_blocks(data, position, end)
        content = _take(data, content_at, header.data_size)
        if highwayhash64(_KEY, content) != header.data_hash:
            raise NotRiegeliError(f"the data of the chunk at byte {position} was altered")
        if header.decoded_size > left:
            raise NotRiegeliError(
                f"the chunk at byte {position} holds {header.decoded_size} bytes; the records "
                f"would hold more than the limit of {limit} together"
            )
        if position == 0 and header.kind != _SIGNATURE_CHUNK:
            raise NotRiegeliError("it has no signature chunk")
        found = _decode(header, content, left, position)
        left -= header.decoded_size
        records += found
        position = end
    if not data:
        raise NotRiegeliError("it is empty")
    return records


def write_records(records: list[bytes], *, compressed: bool = False) -> bytes:
    """Give a file of these records, one simple chunk each.

    Args:
        records: the records.
        compressed: whether to compress them with snappy, as XLA does.
    """
    out = bytearray()
    _write_chunk(out, _SIGNATURE_CHUNK, b"", records=0, decoded_size=0)
    for record in records:
        sizes = write_varint(len(record))
        kind, values = _PLAIN, record
        if compressed:
            kind, sizes, values = _SNAPPY, _packed(sizes), _packed(record)
        content = kind + write_varint(len(sizes)) + sizes + values
        _write_chunk(out, _SIMPLE_CHUNK, content, records=1, decoded_size=len(record))
    return bytes(out)


def _overheads(position: int, size: int) -> int:
    """Give how many block headers lie within `size` bytes of content from `position` on."""
    return (size + (position + _USABLE - 1) % _BLOCK) // _USABLE


def _after(position: int, size: int) -> int:
    """Give the position behind `size` bytes of content from `position` on."""
    return position + size + _overheads(position, size) * _OVERHEAD


def _chunk_end(begin: int, data_size: int, records: int) -> int:
    """Give where a chunk ends: padded to one byte a record, never inside a block header."""
    least = begin + records
    in_block = least % _BLOCK
    if 0 < in_block <= _OVERHEAD:
        least += _OVERHEAD + 1 - in_block
    return max(_after(begin, _HEADER_BYTES + data_size), least)


def _take(data: bytes, position: int, size: int) -> bytes:
    """Give `size` bytes of content from `position` on, without the block headers between.

    Raises:
        NotRiegeliError: the file ends before.
    """
    if _after(position, size) > len(data):
        raise NotRiegeliError(f"it ends within the chunk at byte {position}")
    parts = []
    while size:
        if position % _BLOCK == 0:
            position += _OVERHEAD
        step = min(size, _BLOCK - position % _BLOCK)
        parts.append(data[position : position + step])
        position += step
        size -= step
    return b"".join(parts)


def _check_blocks(data: bytes, begin: int, end: int) -> None:
    """Compare the block headers within a chunk with what its place makes them.

    Raises:
        NotRiegeliError: one is another.
    """
    for block in range(-(-begin // _BLOCK) * _BLOCK, end, _BLOCK):
        if data[block : block + _OVERHEAD] != _block_header(block - begin, end - block):
            raise NotRiegeliError(f"the block header at byte {block} was altered")


def _block_header(previous: int, following: int) -> bytes:
    """Give a block header: distances to the begin and to the end of the chunk that it divides."""
    rest = _BLOCK_HEADER.pack(0, previous, following)[8:]
    return _word(highwayhash64(_KEY, rest)) + rest


def _parse_header(header: bytes, position: int) -> _Header:
    """Read a chunk's header.

    Raises:
        NotRiegeliError: it was altered, or is none.
    """
    if _word(highwayhash64(_KEY, header[8:])) != header[:8]:
        raise NotRiegeliError(f"no chunk header at byte {position}, or one that was altered")
    return _Header(
        kind=header[24:25],
        data_size=int.from_bytes(header[8:16], "little"),
        data_hash=int.from_bytes(header[16:24], "little"),
        records=int.from_bytes(header[25:32], "little"),
        decoded_size=int.from_bytes(header[32:40], "little"),
    )


def _decode(header: _Header, content: bytes, limit: int, position: int) -> list[bytes]:
    """Give the records of one chunk.

    Raises:
        NotRiegeliError: its kind or compression is not read here, or its sizes do not fit.
    """
    if header.kind in (_SIGNATURE_CHUNK, _PADDING_CHUNK):
        if header.records or header.decoded_size or (content and header.kind == _SIGNATURE_CHUNK):
            raise NotRiegeliError(f"the chunk at byte {position} has records, and must not")
        return []
    if header.kind != _SIMPLE_CHUNK:
        raise NotRiegeliError(f"the chunk at byte {position} is of kind {header.kind!r}")
    try:
        sizes_size, start = read_varint(content, 1)
    except NotAMessageError as error:
        raise NotRiegeliError(f"the chunk at byte {position} has no sizes") from error
    middle = start + sizes_size
    if middle > len(content):
        raise NotRiegeliError(f"the sizes in the chunk at byte {position} are cut")
    kind, most = content[:1], 10 * header.records
    sizes = _unpacked(kind, content[start:middle], most, position)
    values = _unpacked(kind, content[middle:], min(limit, header.decoded_size), position)
    return _divide(values, sizes, header, position)


def _unpacked(kind: bytes, data: bytes, limit: int, position: int) -> bytes:
    """Give the content of a part of a chunk, at most `limit` bytes.

    Raises:
        NotRiegeliError: it is larger, broken, or of another compression.
    """
    if kind == _PLAIN:
        if len(data) > limit:
            raise NotRiegeliError(f"the chunk at byte {position} holds more than it says")
        return data
    if kind != _SNAPPY:
        name = _OTHER_COMPRESSIONS.get(kind, repr(kind))
        raise NotRiegeliError(f"the chunk at byte {position} is compressed with {name}")
    try:
        size, start = read_varint(data, 0)
        plain = decompress(data[start:], limit=limit)
    except (NotAMessageError, NotSnappyError) as error:
        message = f"the chunk at byte {position} is no whole snappy stream: {error}"
        raise NotRiegeliError(message) from error
    if len(plain) != size:
        raise NotRiegeliError(f"the chunk at byte {position} holds {len(plain)} bytes, not {size}")
    return plain


def _packed(data: bytes) -> bytes:
    """Give a part of a chunk, compressed: its size, then a snappy stream."""
    return write_varint(len(data)) + compress(data)


def _divide(values: bytes, sizes: bytes, header: _Header, position: int) -> list[bytes]:
    """Divide a chunk's values into its records.

    Raises:
        NotRiegeliError: the sizes do not add up.
    """
    records, offset, at = [], 0, 0
    try:
        while at < len(sizes):
            size, at = read_varint(sizes, at)
            records.append(values[offset : offset + size])
            offset += size
    except NotAMessageError as error:
        raise NotRiegeliError(f"the sizes in the chunk at byte {position} are cut") from error
    whole = offset == len(values) == header.decoded_size
    if not whole or len(records) != header.records:
        raise NotRiegeliError(f"the sizes in the chunk at byte {position} do not add up")
    return records


def _write_chunk(
    out: bytearray, kind: bytes, content: bytes, *, records: int, decoded_size: int
) -> None:
    """Add a chunk, with the block headers that fall into it."""
    begin = len(out)
    rest = (
        _word(len(content))
        + _word(highwayhash64(_KEY, content))
        + kind
        + records.to_bytes(7, "little")
        + _word(decoded_size)
    )
    end = _chunk_end(begin, len(content), records)
    plain = memoryview(_word(highwayhash64(_KEY, rest)) + rest + content)
    while len(out) < end:
        if len(out) % _BLOCK == 0:
            out += _block_header(len(out) - begin, end - len(out))
        step = min(_BLOCK - len(out) % _BLOCK, end - len(out))
        part = bytes(plain[:step])
        out += part.ljust(step, b"\0")
        plain = plain[step:]


def _word(value: int) -> bytes:
    """Give a 64-bit word in little-endian order."""
    return value.to_bytes(8, "little")
