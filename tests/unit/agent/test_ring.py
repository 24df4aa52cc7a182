"""The ring over real sockets: the sums of numpy, and a quick, clean end when a neighbour goes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.agent.peers import Meeting, PeerError, PeerServer, dial
from runtime.agent.ring import Ring, RingTag

TOKEN = "the run's secret"
TAG = RingTag(epoch=3, step=7, attempt=0)


@contextmanager
def _servers(count: int) -> Iterator[list[PeerServer]]:
    servers = [PeerServer(TOKEN) for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


@pytest.fixture(scope="module")
def five() -> Iterator[list[PeerServer]]:
    with _servers(5) as servers:
        yield servers


def _ring(servers: list[PeerServer], rank: int, tag: RingTag = TAG, order: str = "") -> Ring:
    names = order or "abcde"[: len(servers)]
    members = [(n, servers["abcde".index(n)].host, servers["abcde".index(n)].port) for n in names]
    me = "abcde"[rank]
    return Ring(tag, me=me, members=members, server=servers[rank], token=TOKEN)


def _in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(count) as pool:
        return [f.result(timeout=20) for f in [pool.submit(work, rank) for rank in range(count)]]


EPOCHS = iter(range(1000, 1 << 30))


def _all_reduce(
    servers: list[PeerServer],
    arrays: list[np.ndarray],
    operation: Literal["sum", "max"],
    order: str = "",
) -> list[np.ndarray]:
    tag = RingTag(epoch=next(EPOCHS), step=1, attempt=0)

    def work(rank: int) -> np.ndarray:
        mine = arrays[rank].copy()
        ring = _ring(servers[: len(arrays)], rank, tag, order)
        try:
            ring.connect()
            ring.all_reduce(mine, operation)
        finally:
            ring.close()
        return mine

    return _in_threads(len(arrays), work)


def _draw(seed: int, islands: int, size: int, dtype: type) -> list[np.ndarray]:
    random, limits = np.random.default_rng(seed), np.iinfo(dtype)
    return [
        random.integers(limits.min, limits.max, size, dtype, endpoint=True) for _ in range(islands)
    ]


@given(
    seed=st.integers(0, 2**32 - 1),
    islands=st.integers(1, 5),
    size=st.one_of(st.integers(0, 9), st.integers(10, 3000)),
    dtype=st.sampled_from([np.int32, np.int64]),
    operation=st.sampled_from(["sum", "max"]),
)
@settings(max_examples=60, deadline=None)
def test_every_island_ends_with_the_bits_of_numpy(
    five: list[PeerServer],
    seed: int,
    islands: int,
    size: int,
    dtype: type,
    operation: Literal["sum", "max"],
) -> None:
    """Full-range values: a sum wraps as two's complement does, and sizes go below N."""
    arrays = _draw(seed, islands, size, dtype)
    reduce = np.add.reduce if operation == "sum" else np.maximum.reduce
    expected = reduce(np.stack(arrays), axis=0, dtype=dtype)
    for got in _all_reduce(five, arrays, operation):
        np.testing.assert_array_equal(got, expected)


@given(seed=st.integers(0, 2**32 - 1), order=st.permutations("abcd"), cut=st.integers(1, 15))
@settings(max_examples=15, deadline=None)
def test_neither_order_nor_partition_of_the_shards_shows_in_the_sum(
    five: list[PeerServer], seed: int, order: list[str], cut: int
) -> None:
    """The same 16 shards on four islands in any order, or on two in any split: the same bits."""
    shards = _draw(seed, 16, 257, np.int32)
    shares = [shards[0:4], shards[4:5], shards[5:14], shards[14:]]
    sums = [np.add.reduce(np.stack(share), axis=0, dtype=np.int32) for share in shares]
    on_four = _all_reduce(five, sums, "sum", "".join(order))[0]
    two = [np.add.reduce(np.stack(s), axis=0, dtype=np.int32) for s in (shards[:cut], shards[cut:])]
    np.testing.assert_array_equal(on_four, _all_reduce(five, two, "sum")[0])


def test_several_chunks_and_all_three_arrays_of_a_step(five: list[PeerServer]) -> None:
    """Segments above the 1 MiB chunk, then the maxima and the counters on the same streams."""
    grads = _draw(1, 3, 1_000_003, np.int32)
    maxima, counters = _draw(2, 3, 5, np.int32), _draw(3, 3, 5, np.int64)
    tag = RingTag(epoch=next(EPOCHS), step=1, attempt=0)

    def work(rank: int) -> list[np.ndarray]:
        mine = [grads[rank].copy(), maxima[rank].copy(), counters[rank].copy()]
        ring = _ring(five[:3], rank, tag)
        ring.connect()
        ring.all_reduce(mine[0], "sum")
        ring.all_reduce(mine[1], "max")
        ring.all_reduce(mine[2], "sum")
        ring.close()
        return mine

    for got in _in_threads(3, work):
        np.testing.assert_array_equal(got[0], np.add.reduce(grads, axis=0, dtype=np.int32))
        np.testing.assert_array_equal(got[1], np.maximum.reduce(maxima, axis=0))
        np.testing.assert_array_equal(got[2], np.add.reduce(counters, axis=0, dtype=np.int64))


def test_a_lone_island_needs_no_socket() -> None:
    with _servers(1) as servers:
        ring = _ring(servers, 0)
        ring.connect()
        array = np.arange(5, dtype=np.int32)
        ring.all_reduce(array, "sum")
        assert array.tolist() == [0, 1, 2, 3, 4]


def _reduce_for_ever(ring: Ring, size: int) -> None:
    ring.connect()
    try:
        while True:
            ring.all_reduce(np.ones(size, np.int32), "sum")
    finally:
        ring.close()


def _start(work: Callable[[], object]) -> Future[object]:
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_a_neighbour_that_dies_in_mid_transfer_ends_the_ring_for_both_its_neighbours() -> None:
    """Case kubeflow/trainer#1638, pytorch#111646: a node is lost, nobody hangs for 30 minutes.

    Facts, section 7: a third rank that only waits on a survivor hears nothing by itself; it ends
    as soon as the membership signal cancels its ring.
    """
    with _servers(4) as servers:
        rings = [_ring(servers, rank) for rank in range(4)]
        futures = [_start(lambda r=ring: _reduce_for_ever(r, 2_000_000)) for ring in rings]
        time.sleep(0.3)
        begin = time.monotonic()
        rings[1].cancel()  # to the others: its streams end, as the kernel does for a dead process
        for rank in (0, 2):
            with pytest.raises(PeerError):
                futures[rank].result(timeout=2)
        rings[3].cancel()
        for rank in (1, 3):
            with pytest.raises(PeerError):
                futures[rank].result(timeout=2)
        assert time.monotonic() - begin < 2


def test_a_dead_next_island_is_noticed_while_the_one_before_is_silent() -> None:
    """The sender's error must not wait for a receive that may never end."""
    with _servers(2) as servers:
        ring = _ring(servers, 0)
        silent = dial(
            (servers[0].host, servers[0].port), Meeting("ring", "3/7/0", "b"), TOKEN, timeout_s=5
        )
        future = _start(lambda: _reduce_for_ever(ring, 8_000_000))
        onwards = servers[1].wait_for(
            Meeting("ring", "3/7/0", "a"), cancelled=lambda: False, timeout_s=5
        )
        onwards.close()
        with pytest.raises(PeerError, match="next island"):
            future.result(timeout=5)
        silent.close()


def test_cancel_ends_the_wait_for_a_neighbour_that_never_comes() -> None:
    with _servers(2) as servers:
        ring = _ring(servers, 0)
        future = _start(ring.connect)
        time.sleep(0.1)
        assert not future.done()
        ring.cancel()
        with pytest.raises(PeerError):
            future.result(timeout=1)
        ring.close()


def test_a_ring_that_was_cancelled_before_it_connected_never_starts() -> None:
    with _servers(2) as servers:
        ring = _ring(servers, 0)
        ring.cancel()
        with pytest.raises(PeerError):
            ring.connect()
        ring.close()


def test_a_reduction_before_connect_is_an_error_of_the_caller() -> None:
    with _servers(2) as servers, pytest.raises(PeerError, match="not connected"):
        _ring(servers, 0).all_reduce(np.zeros(4, np.int32), "sum")


def test_a_neighbour_that_is_not_there_is_named() -> None:
    with _servers(2) as servers:
        servers[1].close()
        with pytest.raises(PeerError, match=f"{servers[1].port}"):
            _ring(servers, 0).connect()


@pytest.mark.parametrize(
    ("field", "other"),
    [("epoch", 4), ("step", 8), ("attempt", 1)],
)
def test_a_frame_of_another_epoch_step_or_attempt_is_refused(field: str, other: int) -> None:
    """A neighbour that meets us under our key but reduces something else must not be added."""
    with _servers(2) as servers:
        honest, lost = _ring(servers, 0), _ring(servers, 1)
        tag = {"epoch": 3, "step": 7, "attempt": 0, field: other}
        array = np.arange(64, dtype=np.int32)

        def stray() -> None:
            lost.connect()
            lost._tag = RingTag(**tag)
            assert lost._next is not None
            lost._send(lost._next, 0, np.full(32, 1000, np.int32), [])

        future = _start(stray)
        honest.connect()
        with pytest.raises(PeerError, match="another epoch, step or segment"):
            honest.all_reduce(array, "sum")
        honest.close()
        future.result(timeout=5)
        assert array.tolist() == list(range(64)), "nothing of the stray frame was added"
        lost.close()


def test_islands_whose_arrays_differ_in_length_do_not_reduce() -> None:
    with _servers(2) as servers:
        rings = [_ring(servers, rank) for rank in range(2)]

        def work(rank: int) -> None:
            try:
                rings[rank].connect()
                rings[rank].all_reduce(np.ones(100 + rank, np.int32), "sum")
            finally:
                rings[rank].close()

        futures = [_start(lambda r=rank: work(r)) for rank in range(2)]
        for future in futures:
            with pytest.raises(PeerError):
                future.result(timeout=5)


def test_an_island_with_another_token_never_joins() -> None:
    with _servers(2) as servers:
        stranger = dial(
            (servers[0].host, servers[0].port), Meeting("ring", "3/7/0", "b"), "guess", timeout_s=5
        )
        stranger.settimeout(5)
        assert stranger.recv(1) == b"", "closed without a word"
        ring = _ring(servers, 0)
        future = _start(ring.connect)
        with pytest.raises(TimeoutError):
            future.result(timeout=0.3)
        ring.cancel()
        with pytest.raises(PeerError):
            future.result(timeout=1)
        ring.close()


def test_cancel_from_another_thread_leaves_the_closing_to_the_ring_s_own() -> None:
    """A socket closed under a reader frees its number for the next one, which then loses bytes."""
    with _servers(2) as servers:
        rings = [_ring(servers, rank) for rank in range(2)]
        _in_threads(2, lambda rank: rings[rank].connect())
        rings[0].cancel()
        for connection in (rings[0]._next, rings[0]._previous):
            assert isinstance(connection, socket.socket)
            assert connection.fileno() >= 0
        rings[0].close()
        rings[1].close()
        assert rings[0]._next is not None
        assert rings[0]._next.fileno() == -1
