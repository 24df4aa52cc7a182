"""Rings and hand-overs under TLS: the same bits, and an end as quick and as clean as without."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from runtime.agent.peers import Meeting, PeerError, PeerServer, dial, interrupt, receive_into
from runtime.agent.ring import Ring, RingTag
from runtime.coordinator.tls import RunTls, make_identity

TOKEN = "the run's secret"
MEETING = Meeting("state", "5/0", "island-1")


def _identity(place: Path) -> RunTls:
    make_identity(place)
    return RunTls(place)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> RunTls:
    return _identity(tmp_path_factory.mktemp("run") / "tls")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> RunTls:
    return _identity(tmp_path_factory.mktemp("other") / "tls")


@pytest.fixture
def servers(tls: RunTls) -> Iterator[list[PeerServer]]:
    made = [PeerServer(TOKEN, tls=tls) for _ in range(3)]
    yield made
    for server in made:
        server.close()


def _connected(
    server: PeerServer, tls: RunTls | None, purpose: str = "state"
) -> tuple[socket.socket, socket.socket]:
    """Give both ends of a connection to a listener."""
    meeting = Meeting(purpose, MEETING.key, MEETING.sender)
    mine = dial((server.host, server.port), meeting, TOKEN, timeout_s=60, tls=tls)
    theirs = server.wait_for(meeting, cancelled=lambda: False, timeout_s=60)
    return mine, theirs


@pytest.mark.parametrize("islands", [2, 3])
@pytest.mark.parametrize("size", [1, 17, 300_000])
def test_a_ring_gives_the_same_sum(servers, tls: RunTls, islands: int, size: int) -> None:
    random = np.random.default_rng(size)
    arrays = [random.integers(-(2**31), 2**31, size).astype(np.int32) for _ in range(islands)]
    members = [("abc"[i], servers[i].host, servers[i].port) for i in range(islands)]

    def work(rank: int) -> np.ndarray:
        mine = arrays[rank].copy()
        tag = RingTag(epoch=1, step=size, attempt=islands)
        ring = Ring(
            tag, me="abc"[rank], members=members, server=servers[rank], token=TOKEN, tls=tls
        )
        try:
            ring.connect()
            ring.all_reduce(mine, "sum")
        finally:
            ring.close()
        return mine

    with ThreadPoolExecutor(islands) as pool:
        results = list(pool.map(work, range(islands)))
    expected = np.sum(arrays, axis=0, dtype=np.int32)
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_a_sender_that_closes_at_once_loses_nothing(servers, tls: RunTls) -> None:
    """It never reads: a session ticket left unread would reset the connection as it closes."""
    data = np.random.default_rng(1).bytes(3_000_000)
    for _ in range(5):
        mine, theirs = _connected(servers[0], tls)

        def send(mine: socket.socket = mine) -> None:
            mine.sendall(data)
            mine.close()

        sender = threading.Thread(target=send)
        sender.start()
        received = bytearray(len(data))
        theirs.settimeout(60)
        time.sleep(0.01)  # it may be through before the first byte is read
        receive_into(theirs, memoryview(received))
        sender.join()
        theirs.close()
        assert received == data


def test_an_interrupted_reader_gets_an_error_and_no_ciphertext(servers, tls: RunTls) -> None:
    """It is between two reads, and encrypted bytes lie in the socket."""
    mine, theirs = _connected(servers[0], tls)
    theirs.settimeout(60)
    buffer = bytearray(1_000)
    mine.sendall(b"\x07" * 10)
    receive_into(theirs, memoryview(buffer)[:10])
    mine.sendall(b"\x07" * 100)
    select.select([theirs], [], [], 20)
    interrupt(theirs)
    with pytest.raises(PeerError):
        receive_into(theirs, memoryview(buffer)[10:])
    assert set(buffer) <= {0, 7}, "only what the other side said"
    mine.close()
    theirs.close()


def test_a_reader_that_waits_ends_at_once(servers, tls: RunTls) -> None:
    mine, theirs = _connected(servers[0], tls)
    theirs.settimeout(60)
    errors: list[PeerError] = []

    def read() -> None:
        try:
            receive_into(theirs, memoryview(bytearray(1)))
        except PeerError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.05)  # mostly it waits by now; it must end in either case
    interrupt(theirs)
    thread.join(60)
    assert not thread.is_alive()
    assert errors
    mine.close()
    theirs.close()


@pytest.mark.parametrize("kind", ["another run", "plain"])
def test_a_stranger_is_not_heard(servers, other: RunTls, kind: str) -> None:
    tls = other if kind == "another run" else None
    meeting = Meeting("ring", "1/2/0", "island-9")
    with (
        contextlib.suppress(PeerError),
        dial((servers[0].host, servers[0].port), meeting, TOKEN, timeout_s=60, tls=tls) as end,
    ):
        end.settimeout(60)
        with contextlib.suppress(OSError):  # closed by a reset
            while end.recv(1000):  # what is said before is the alert of TLS
                pass
    with pytest.raises(PeerError, match="did not connect"):
        servers[0].wait_for(meeting, cancelled=lambda: False, timeout_s=0)


def test_a_listener_of_another_run_is_not_spoken_to(tls: RunTls, other: RunTls) -> None:
    server = PeerServer(TOKEN, tls=other)
    try:
        with pytest.raises(PeerError, match="cannot connect"):
            dial((server.host, server.port), MEETING, TOKEN, timeout_s=60, tls=tls)
    finally:
        server.close()


def test_a_plain_listener_gets_no_token(tls: RunTls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard = bytearray()

        def listen() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                heard.extend(connection.recv(10_000))

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(PeerError):
            dial(listener.getsockname(), MEETING, TOKEN, timeout_s=60, tls=tls)
        thread.join()
    assert heard[0] == 0x16, "a handshake record"
    assert TOKEN.encode() not in heard


def test_another_machine_is_not_called_without_tls() -> None:
    with pytest.raises(PeerError, match="another machine"):
        dial(("10.0.0.7", 1), MEETING, TOKEN, timeout_s=1)
