"""Blobs: chunks in order, each acknowledged, none longer than it should be."""

from __future__ import annotations

import io
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enclave_image.service.blobs import CHUNK_BYTES, receive_blob, send_blob
from enclave_image.service.errors import ServiceError
from enclave_image.service.protocol import Connection, Deadline
from enclave_image.service.session import Session
from tests.support.compile_service import PATIENCE_S, in_thread


def sessions() -> tuple[Session, Session]:
    """Give both ends of a session whose keys both know."""
    ends = [
        Connection(end, deadline=Deadline.after(PATIENCE_S), idle_s=PATIENCE_S)
        for end in socket.socketpair()
    ]
    one, two = b"1" * 32, b"2" * 32
    return (
        Session(ends[0], sending=one, receiving=two, reads_errors=False),
        Session(ends[1], sending=two, receiving=one, reads_errors=True),
    )


def close(*ends: Session) -> None:
    for end in ends:
        end.connection.close()


@given(st.integers(0, 3 * CHUNK_BYTES), st.integers(0, 255))
def test_a_blob_arrives_as_it_was_sent(size, seed):
    data = bytes((seed + i) % 251 for i in range(64)) * (size // 64 + 1)
    data = data[:size]
    sender, receiver = sessions()
    joined = in_thread(lambda: send_blob(sender, io.BytesIO(data), size))
    taken = bytearray()
    receive_blob(receiver, size, taken.extend)
    joined()
    assert taken == data
    close(sender, receiver)


def test_only_one_chunk_is_ever_on_the_way():
    sender, receiver = sessions()
    joined = in_thread(
        lambda: send_blob(sender, io.BytesIO(bytes(2 * CHUNK_BYTES)), 2 * CHUNK_BYTES)
    )
    receiver.receive("chunk")
    receiver.connection._socket.settimeout(0)
    with pytest.raises(BlockingIOError):
        receiver.connection._socket.recv(1, socket.MSG_PEEK)
    receiver.send("ack", index=0)
    receiver.receive("chunk")
    receiver.send("ack", index=1)
    joined()
    close(sender, receiver)


@pytest.mark.parametrize(
    ("chunk", "named"),
    [
        ({"index": 1, "data": bytes(CHUNK_BYTES)}, "chunk.index"),
        ({"index": True, "data": bytes(CHUNK_BYTES)}, "chunk.index"),
        ({"index": 0, "data": bytes(CHUNK_BYTES - 1)}, "chunk.data"),
        ({"index": 0, "data": b""}, "chunk.data"),
        ({"index": 0, "data": "text"}, "chunk.data"),
        ({"index": 0, "data": bytes(CHUNK_BYTES), "more": 1}, "chunk.more"),
        ({"index": 0}, "chunk.data"),
    ],
)
def test_another_chunk_than_the_next_one_is_refused(chunk, named):
    sender, receiver = sessions()
    # A whole chunk may not fit a socket that nobody reads.
    joined = in_thread(lambda: sender.send("chunk", **chunk))
    with pytest.raises(ServiceError, match=named):
        receive_blob(receiver, 2 * CHUNK_BYTES, lambda _data: None)
    joined()
    close(sender, receiver)


def test_the_last_chunk_is_no_longer_than_what_is_left():
    sender, receiver = sessions()
    sender.send("chunk", index=0, data=b"123456")
    with pytest.raises(ServiceError, match="expected 5 to 5 bytes"):
        receive_blob(receiver, 5, lambda _data: None)
    close(sender, receiver)


def test_another_acknowledgement_than_the_chunks_is_refused():
    sender, receiver = sessions()
    receiver.send("ack", index=1)
    with pytest.raises(ServiceError, match=r"ack.index"):
        send_blob(sender, io.BytesIO(b"12345"), 5)
    close(sender, receiver)


def test_a_source_that_ends_early_is_refused():
    sender, receiver = sessions()
    with pytest.raises(ServiceError, match="changed while it was sent"):
        send_blob(sender, io.BytesIO(b"1234"), 5)
    close(sender, receiver)
