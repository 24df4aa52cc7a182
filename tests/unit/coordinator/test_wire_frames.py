"""Frames between the coordinator and its clients: round trips, and what is not a frame."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.coordinator.wire import MAX_FRAME_BYTES, Message, encode, exchange, receive
from runtime.spec.errors import CoordinationError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
messages = st.dictionaries(st.text(max_size=8), values, max_size=5).map(
    lambda fields: {**fields, "type": "hello"}
)


def _read(data: bytes) -> list[Message | None]:
    """Read frames until the end of a stream of these bytes."""

    async def read() -> list[Message | None]:
        reader = asyncio.StreamReader(limit=1 << 22)
        reader.feed_data(data)
        reader.feed_eof()
        received = [await receive(reader)]
        while received[-1] is not None:
            received.append(await receive(reader))
        return received

    return asyncio.run(read())


@given(st.lists(messages, max_size=4))
@settings(deadline=None)
def test_messages_come_back_whole_and_in_order(sent: list[Message]) -> None:
    assert _read(b"".join(encode(message) for message in sent)) == [*sent, None]


@given(messages, st.data())
@settings(deadline=None)
def test_a_cut_frame_is_the_end_of_the_connection(message: Message, data: st.DataObject) -> None:
    frame = encode(message)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert _read(frame[:cut]) == [None]


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, (1 << 32) - 1])
def test_an_oversize_frame_is_refused_before_its_body_is_read(length: int) -> None:
    with pytest.raises(CoordinationError, match=str(length)):
        _read(struct.pack(">I", length))


def test_an_oversize_message_is_not_sent() -> None:
    with pytest.raises(CoordinationError, match="message 'epoch'"):
        encode({"type": "epoch", "members": "x" * MAX_FRAME_BYTES})


def _frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"type": "hello"',
        b"[1, 2]",
        b'"hello"',
        b"null",
        b"{}",
        b'{"type": 3}',
        b'{"type": null}',
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(CoordinationError, match="a frame does not hold"):
        _read(_frame(body))


@given(st.binary(max_size=64))
@settings(deadline=None)
def test_garbage_gives_a_message_the_end_or_a_refusal(garbage: bytes) -> None:
    with contextlib.suppress(CoordinationError):
        assert _read(garbage)[-1] is None


class _OneAnswer:
    """A server that gives fixed bytes to its one caller and closes."""

    def __init__(self, answer: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._answer = answer
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            (length,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
            self.asked = json.loads(connection.recv(length, socket.MSG_WAITALL))
            connection.sendall(self._answer)
        self._listener.close()


def test_exchange_asks_and_reads_one_answer() -> None:
    server = _OneAnswer(encode({"type": "status", "step": 3}))
    answer = exchange(server.address, {"type": "status", "token": "t"})
    assert answer == {"type": "status", "step": 3}
    assert server.asked == {"type": "status", "token": "t"}
    server.thread.join(5)


@pytest.mark.parametrize("answer", [b"", b"\x00\x00", _frame(b'{"type":"status"}')[:-3]])
def test_exchange_tells_a_cut_answer_from_a_whole_one(answer: bytes) -> None:
    server = _OneAnswer(answer)
    with pytest.raises(OSError, match="closed before the answer was whole"):
        exchange(server.address, {"type": "status"})
    server.thread.join(5)


def test_exchange_with_a_stranger_is_refused() -> None:
    server = _OneAnswer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(CoordinationError, match="was announced"):
        exchange(server.address, {"type": "status"})
    server.thread.join(5)


def test_exchange_does_not_wait_for_a_silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TimeoutError):
        exchange(listener.getsockname(), {"type": "status"}, timeout_s=0.2)
