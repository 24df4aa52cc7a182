"""The islands' listener with real sockets: who is let in, and who must not hold up the others."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.agent import peers
from runtime.agent.peers import Meeting, PeerError, PeerServer, dial, receive_into

TOKEN = "secret"
MEETING = Meeting("ring", "5/2/0", "island-1")


@pytest.fixture
def server() -> Iterator[PeerServer]:
    server = PeerServer(TOKEN)
    yield server
    server.close()


def _raw(server: PeerServer, data: bytes) -> socket.socket:
    connection = socket.create_connection((server.host, server.port), timeout=5)
    connection.sendall(data)
    return connection


def _framed(header: object) -> bytes:
    body = json.dumps(header).encode()
    return struct.pack(">4sI", b"LUM1", len(body)) + body


def _dial(server: PeerServer, meeting: Meeting = MEETING, token: str = TOKEN) -> socket.socket:
    return dial((server.host, server.port), meeting, token, timeout_s=5)


def _wait(server: PeerServer, meeting: Meeting = MEETING, timeout_s: float = 5) -> socket.socket:
    return server.wait_for(meeting, cancelled=lambda: False, timeout_s=timeout_s)


def _assert_works(server: PeerServer) -> None:
    """A proper island gets through at once."""
    begin = time.monotonic()
    with _dial(server) as mine, _wait(server) as theirs:
        mine.sendall(b"hello")
        received = bytearray(5)
        receive_into(theirs, memoryview(received))
        assert received == b"hello"
    assert time.monotonic() - begin < 2


def test_both_ends_of_a_meeting_get_one_stream(server: PeerServer) -> None:
    _assert_works(server)


REFUSED = {
    "another magic": b"HTTP/1.1 GET /",
    "a huge header": struct.pack(">4sI", b"LUM1", 1 << 31),
    "not JSON": struct.pack(">4sI", b"LUM1", 4) + b"\xff\xfe{{",
    "nested too deeply": struct.pack(">4sI", b"LUM1", 4096) + b"[" * 4096,
    "a list": _framed([TOKEN]),
    "no token": _framed({"purpose": "ring", "key": "5/2/0", "sender": "island-1"}),
    "another token": _framed({"token": "x", "purpose": "ring", "key": "k", "sender": "s"}),
    "a token that is no ASCII": _framed({"token": "s\u00e9cret", "purpose": "ring"}),
    "half a surrogate": struct.pack(">4sI", b"LUM1", 18) + b'{"token":"\\ud800"}',
    "no purpose": _framed({"token": TOKEN, "key": "5/2/0", "sender": "island-1"}),
    "a key that is a list": _framed(
        {"token": TOKEN, "purpose": "ring", "key": [], "sender": "island-1"}
    ),
}


@pytest.mark.parametrize("greeting", REFUSED)
def test_a_stranger_is_closed_and_holds_nobody_up(server: PeerServer, greeting: str) -> None:
    with _raw(server, REFUSED[greeting]) as stranger:
        stranger.settimeout(3)
        with contextlib.suppress(ConnectionResetError):  # closed with our bytes unread
            assert stranger.recv(1) == b""
        _assert_works(server)


@given(garbage=st.binary(max_size=64))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_garbage_never_ends_the_listener(server: PeerServer, garbage: bytes) -> None:
    _raw(server, garbage).close()
    _assert_works(server)


def test_a_slow_loris_neither_blocks_others_nor_stays(
    server: PeerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drips a byte at a time, each well inside a per-read time-out."""
    monkeypatch.setattr(peers, "_HANDSHAKE_TIMEOUT_S", 0.6)
    dripping = [_raw(server, b"") for _ in range(8)]
    greeting = _framed({"token": TOKEN, "purpose": "ring", "key": "9/9/9", "sender": "loris"})
    begin, alive = time.monotonic(), set(dripping)
    for byte in greeting:
        for connection in list(alive):
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                alive.discard(connection)
        _assert_works(server)
        time.sleep(0.05)
        if not alive:
            break
    assert not alive
    assert time.monotonic() - begin < 3
    for connection in dripping:
        connection.close()


def test_a_connection_for_a_passed_epoch_is_not_taken_for_this_one(server: PeerServer) -> None:
    with _dial(server, Meeting("ring", "4/2/0", "island-1")):
        with pytest.raises(PeerError, match="island-1 did not connect"):
            _wait(server, timeout_s=0.2)
        _assert_works(server)


@pytest.mark.parametrize(
    "other",
    [
        Meeting("state", "5/2/0", "island-1"),
        Meeting("ring", "5/2/1", "island-1"),
        Meeting("ring", "5/2/0", "island-2"),
    ],
)
def test_purpose_key_and_sender_must_all_fit(server: PeerServer, other: Meeting) -> None:
    with _dial(server, other), pytest.raises(PeerError):
        _wait(server, timeout_s=0.1)


def test_the_newest_of_two_connections_for_one_meeting_counts(server: PeerServer) -> None:
    """An island that dialled, was cut off and dials again: the first stream is stale."""
    first = _dial(server)
    time.sleep(0.1)
    second = _dial(server)
    first.settimeout(3)
    assert first.recv(1) == b"", "the stale stream is closed, so its sender notices"
    second.sendall(b"2")
    with _wait(server) as taken:
        received = bytearray(1)
        receive_into(taken, memoryview(received))
        assert received == b"2"
    first.close()
    second.close()


def test_connections_that_nobody_waits_for_do_not_pile_up(server: PeerServer) -> None:
    callers = [_dial(server, Meeting("ring", f"{n}/0/0", "island-1")) for n in range(100)]
    time.sleep(0.3)
    assert len(server._arrived) <= 64
    for caller in callers:
        caller.close()
    _assert_works(server)


def test_a_cancelled_wait_ends_at_once(server: PeerServer) -> None:
    gone = threading.Event()
    threading.Timer(0.1, gone.set).start()
    begin = time.monotonic()
    with pytest.raises(PeerError):
        server.wait_for(MEETING, cancelled=gone.is_set, timeout_s=60)
    assert time.monotonic() - begin < 2


def test_after_close_the_port_is_shut_and_waiting_connections_end() -> None:
    server = PeerServer(TOKEN)
    early = _dial(server)
    time.sleep(0.1)
    server.close()
    early.settimeout(3)
    assert early.recv(1) == b""
    early.close()
    with pytest.raises(PeerError):
        _dial(server)


def test_receive_into_tells_a_cut_stream_from_a_whole_one() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"abc")
    theirs.close()
    with pytest.raises(PeerError, match="closed its connection"):
        receive_into(ours, memoryview(bytearray(4)))
    ours.close()
