"""Frames between the coordinator and its clients: a length, then one JSON object.

A frame is a big-endian uint32 length and that many bytes of UTF-8 JSON with a string field
`type`. Every message is small (the gradients travel between islands, never here), so a frame above
`MAX_FRAME_BYTES` is refused before it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from typing import Any

from runtime.coordinator.tls import RunTls
from runtime.spec.errors import CoordinationError

MAX_FRAME_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")

Message = dict[str, Any]

LOSS_UNIT = 2.0**-20
"""Unit of the loss sums, which travel as integers so that their order does not matter; a shard's
float32 loss becomes a multiple of it, rounded once."""


def encode(message: Message) -> bytes:
    """Give the frame of one message.

    Raises:
        CoordinationError: the message is larger than a frame may be.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise CoordinationError(
            f"message '{message.get('type')}' has {len(body)} bytes, at most {MAX_FRAME_BYTES}"
        )
    return _LENGTH.pack(len(body)) + body


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise CoordinationError("a frame does not hold JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise CoordinationError("a frame does not hold an object with a string field 'type'")
    return message


def _checked_length(prefix: bytes) -> int:
    (length,) = _LENGTH.unpack(prefix)
    if length > MAX_FRAME_BYTES:
        raise CoordinationError(f"a frame of {length} bytes was announced; most: {MAX_FRAME_BYTES}")
    return length


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """Read one message; None when the peer closed the connection or it broke.

    Raises:
        CoordinationError: the bytes are not a frame of this protocol.
    """
    try:
        length = _checked_length(await reader.readexactly(_LENGTH.size))
        return _decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, OSError):
        return None


def exchange(
    address: tuple[str, int],
    message: Message,
    *,
    timeout_s: float = 5.0,
    tls: RunTls | None = None,
) -> Message:
    """Send one message on a connection of its own and read one answer, blocking.

    Raises:
        OSError: nobody of the run listens there, or the answer did not come in time.
        CoordinationError: the answer is not a frame of this protocol.
    """
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(address, timeout=timeout_s))
        if tls is not None:
            connection = stack.enter_context(tls.connect(connection))
        connection.sendall(encode(message))
        length = _checked_length(_read_exactly(connection, _LENGTH.size))
        return _decode(_read_exactly(connection, length))


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionResetError("the connection was closed before the answer was whole")
        parts += part
    return bytes(parts)
