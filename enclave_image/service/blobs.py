"""Large blobs over a session: chunks, each acknowledged before the next one is sent.

A vsock hung under one-way overload (aws-nitro-enclaves-cli issue 464) and under large packets
(vhost-device issue 494), so at most one chunk of 64 KiB is ever on the way, and whoever receives
says when it takes more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from enclave_image.service.errors import ServiceError
from enclave_image.service.fields import MessageFields
from enclave_image.service.session import Session

__all__ = ["CHUNK_BYTES", "receive_blob", "send_blob"]

CHUNK_BYTES = 64 << 10


def send_blob(session: Session, source: BinaryIO, size: int) -> None:
    """Send `size` bytes of a stream.

    Raises:
        ServiceError: the stream ends early, or the other side acknowledges something else.
        PeerGoneError: the other side is gone.
    """
    for index in range(_count(size)):
        data = source.read(min(CHUNK_BYTES, size - index * CHUNK_BYTES))
        if len(data) != min(CHUNK_BYTES, size - index * CHUNK_BYTES):
            raise ServiceError("blob: its source changed while it was sent", reason="frame")
        session.send("chunk", index=index, data=data)
        _, message = session.receive("ack")
        fields = MessageFields(message, "ack")
        fields.integer("index", index, index)
        fields.end()


def receive_blob(session: Session, size: int, take: Callable[[bytes], object]) -> None:
    """Receive `size` bytes, chunk by chunk.

    Args:
        session: the session.
        size: as the sender said, and the receiver allowed.
        take: takes each chunk.

    Raises:
        ServiceError: a chunk is another than the next one.
        PeerGoneError: the other side is gone.
    """
    for index in range(_count(size)):
        _, message = session.receive("chunk")
        fields = MessageFields(message, "chunk")
        fields.integer("index", index, index)
        expected = min(CHUNK_BYTES, size - index * CHUNK_BYTES)
        take(fields.octets("data", expected, expected))
        fields.end()
        session.send("ack", index=index)


def _count(size: int) -> int:
    return -(-size // CHUNK_BYTES)
