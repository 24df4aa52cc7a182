"""Frames: what is longer, shorter, later or of another kind than allowed is refused."""

from __future__ import annotations

import socket
import struct
import threading

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enclave_image.service.errors import PeerGoneError, ServiceError
from enclave_image.service.protocol import LIMITS, VERSION, Connection, Deadline
from tests.support.compile_service import PATIENCE_S


@pytest.fixture
def ends():
    """Give a connection and the bare socket of its other side."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE_S)
    with Connection(ours, deadline=Deadline.after(PATIENCE_S), idle_s=PATIENCE_S) as connection:
        yield connection, theirs
    theirs.close()


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def plain(**fields) -> bytes:
    return cbor2.dumps(fields, canonical=True)


def refused(connection: Connection, *kinds: str) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        connection.receive(*kinds)
    assert caught.value.reason == "frame"
    return caught.value


def test_a_frame_is_a_big_endian_length_and_canonical_cbor(ends):
    connection, other = ends
    connection.send("hello", version=VERSION, nonce=b"n" * 32)
    expected = frame(plain(kind="hello", version=VERSION, nonce=b"n" * 32))
    assert other.recv(4096) == expected
    other.sendall(expected)
    assert connection.receive("hello") == {"kind": "hello", "version": VERSION, "nonce": b"n" * 32}


@given(st.binary(max_size=LIMITS["record"] - 64))
def test_what_is_sent_is_received(data):
    ours, theirs = socket.socketpair()
    deadline = Deadline.after(PATIENCE_S)
    with (
        Connection(ours, deadline=deadline, idle_s=PATIENCE_S) as sender,
        Connection(theirs, deadline=deadline, idle_s=PATIENCE_S) as receiver,
    ):
        sending = threading.Thread(target=lambda: sender.send("record", data=data))
        sending.start()
        assert receiver.receive("record")["data"] == data
        sending.join()


def test_a_length_beyond_the_kinds_limit_is_refused_before_its_bytes_come(ends):
    connection, other = ends
    other.sendall(struct.pack(">I", LIMITS["hello"] + 1))
    error = refused(connection, "hello", "scrape")
    assert f"{LIMITS['hello'] + 1} bytes are more than the {LIMITS['hello']} allowed" in str(error)


def test_the_longest_length_of_all_is_refused(ends):
    connection, other = ends
    other.sendall(b"\xff\xff\xff\xff")
    refused(connection, "record")


def test_a_kind_may_not_use_the_room_of_another(ends):
    connection, other = ends
    other.sendall(frame(plain(kind="scrape", version=1, pad=b"p" * LIMITS["scrape"])))
    assert "frame scrape" in str(refused(connection, "hello", "scrape"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\xa1\x64kind",
        plain(kind="record", data=b""),
        plain(kind=1),
        plain(version=1),
        cbor2.dumps(["hello"]),
        cbor2.dumps({"version": 1, "kind": "hello"}),
        plain(kind="hello") + b"\0",
        b"\xbf\x64kind\x65hello\xff",
        b"\xa2\x64kind\x65hello\x64kind\x65hello",
        cbor2.dumps({"kind": "hello", "x": [[[[[[1]]]]]]}, canonical=True),
        cbor2.dumps({"kind": "hello", "x": list(range(20))}, canonical=True),
        cbor2.dumps({"kind": "hello", "x": cbor2.CBORTag(0, "2026")}, canonical=True),
    ],
)
def test_other_bytes_are_no_frame(ends, body):
    connection, other = ends
    other.sendall(frame(body))
    refused(connection, "hello")


@given(st.binary(max_size=128))
def test_random_bytes_never_are(body):
    ours, theirs = socket.socketpair()
    with (
        theirs,
        Connection(ours, deadline=Deadline.after(PATIENCE_S), idle_s=PATIENCE_S) as connection,
    ):
        theirs.sendall(frame(body))
        refused(connection, "hello")


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 20])
def test_a_cut_frame_is_a_peer_that_left(ends, cut):
    connection, other = ends
    other.sendall(frame(plain(kind="hello", version=1, nonce=b"n" * 32))[:cut])
    other.close()
    with pytest.raises(PeerGoneError) as caught:
        connection.receive("hello")
    assert caught.value.reason == "gone"


def test_a_deadline_that_has_passed_ends_the_wait():
    ours, theirs = socket.socketpair()
    with theirs, Connection(ours, deadline=Deadline.after(0), idle_s=PATIENCE_S) as connection:
        with pytest.raises(PeerGoneError) as caught:
            connection.receive("hello")
        assert caught.value.reason == "deadline"
        with pytest.raises(PeerGoneError):
            connection.send("hello", version=1, nonce=b"")


def test_a_frame_that_trickles_does_not_move_its_deadline():
    ours, theirs = socket.socketpair()
    with theirs, Connection(ours, deadline=Deadline.after(PATIENCE_S), idle_s=0.05) as connection:
        theirs.sendall(frame(plain(kind="hello", version=1, nonce=b"n" * 32))[:10])
        with pytest.raises(PeerGoneError) as caught:
            connection.receive("hello")
        assert caught.value.reason == "deadline"


def test_a_peer_that_does_not_read_does_not_hold_the_sender_for_ever():
    ours, theirs = socket.socketpair()
    with (
        theirs,
        Connection(ours, deadline=Deadline.after(PATIENCE_S), idle_s=0.05) as connection,
        pytest.raises(PeerGoneError) as caught,
    ):
        while True:
            connection.send("record", data=bytes(60_000))
    assert caught.value.reason == "deadline"


def test_a_frame_that_its_own_kind_does_not_allow_is_not_sent(ends):
    connection, _ = ends
    with pytest.raises(ServiceError, match="frame busy"):
        connection.send("busy", retry_after_s=1, text="x" * 100)


def test_speaking_out_of_turn_and_leaving_are_told_apart(ends):
    connection, other = ends
    other.sendall(b"x")
    with pytest.raises(ServiceError, match="out of turn"):
        connection.check_quiet()
    ours, theirs = socket.socketpair()
    theirs.close()
    with (
        Connection(ours, deadline=Deadline.after(PATIENCE_S), idle_s=PATIENCE_S) as gone,
        pytest.raises(PeerGoneError),
    ):
        gone.check_quiet()
