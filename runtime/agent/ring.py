"""All-reduce of integers among islands: a ring of TCP streams over host memory.

Reduce-scatter, then all-gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms",
JPDC 2009): with N islands each sends and receives 2 (N - 1) / N of the data. Only integers are
added, so the result does not depend on N, on the order in the ring, or on timing. Every segment is
preceded by a frame that names the membership epoch, the step, the attempt and the segment; a frame
of another epoch, or one that is not the next, breaks the ring, and the coordinator forms a new one.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runtime.agent.peers import (
    Meeting,
    PeerError,
    PeerServer,
    dial,
    interrupt,
    receive_into,
    shut,
)
from runtime.coordinator.tls import RunTls

Operation = Literal["sum", "max"]

_FRAME = struct.Struct(">4sQQIIIQ")
_FRAME_MAGIC = b"LRNG"
_CHUNK_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 10.0
_STALL_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTag:
    """Which reduction a ring works for; every frame carries it.

    Attributes:
        epoch: the membership epoch.
        step: the step.
        attempt: how often the step was redone with a larger scale.
    """

    epoch: int
    step: int
    attempt: int


class Ring:
    """The streams to both neighbours for one reduction.

    Args:
        tag: what the ring works for.
        me: this island's name.
        members: (name, host, port) of every island in the membership epoch, in ring order.
        server: this island's listener.
        token: the run's secret.
        tls: secures the streams; None on the loopback interface.

    Raises:
        PeerError: a neighbour cannot be reached.
    """

    def __init__(
        self,
        tag: RingTag,
        *,
        me: str,
        members: Sequence[tuple[str, str, int]],
        server: PeerServer,
        token: str,
        tls: RunTls | None = None,
    ) -> None:
        self._tag = tag
        self._names = [name for name, _, _ in members]
        self._rank = self._names.index(me)
        self._size = len(members)
        self._cancelled = threading.Event()
        self._next: socket.socket | None = None
        self._previous: socket.socket | None = None
        self._scratch = np.empty(_CHUNK_BYTES, np.uint8)
        self._members = members
        self._server = server
        self._token = token
        self._tls = tls

    def connect(self) -> None:
        """Open the stream to the next island and take the one from the island before.

        Raises:
            PeerError: a neighbour cannot be reached, or the ring was cancelled.
        """
        if self._size == 1:
            return
        key = f"{self._tag.epoch}/{self._tag.step}/{self._tag.attempt}"
        _, host, port = self._members[(self._rank + 1) % self._size]
        meeting = Meeting("ring", key, self._names[self._rank])
        self._next = dial(
            (host, port), meeting, self._token, timeout_s=_CONNECT_TIMEOUT_S, tls=self._tls
        )
        before = self._names[(self._rank - 1) % self._size]
        self._previous = self._server.wait_for(
            Meeting("ring", key, before),
            cancelled=self._cancelled.is_set,
            timeout_s=_STALL_TIMEOUT_S,
        )
        for connection in (self._next, self._previous):
            connection.settimeout(_STALL_TIMEOUT_S)
        if self._cancelled.is_set():
            raise PeerError("the membership changed")

    def cancel(self) -> None:
        """Break a reduction that another thread is in; it raises there at once, and closes."""
        self._cancelled.set()
        self._break()

    def _break(self) -> None:
        for connection in (self._next, self._previous):
            if connection is not None:
                interrupt(connection)

    def close(self) -> None:
        """Close both streams; for the thread that uses the ring."""
        for connection in (self._next, self._previous):
            if connection is not None:
                shut(connection)

    def all_reduce(self, array: NDArray[np.integer], operation: Operation) -> None:
        """Replace `array` by its reduction over all islands, in place.

        Args:
            array: contiguous, one axis, an integer dtype; equal in length on every island.
            operation: `sum` (wraps as the dtype does; callers keep sums in range) or `max`.

        Raises:
            PeerError: a neighbour is gone, the ring was cancelled, or a frame does not belong.
        """
        if self._size == 1:
            return
        segments = np.array_split(array, self._size)
        combine = np.add if operation == "sum" else np.maximum
        for turn in range(2 * (self._size - 1)):
            outgoing = segments[(self._rank - turn) % self._size]
            incoming = segments[(self._rank - turn - 1) % self._size]
            gathering = turn >= self._size - 1
            self._turn(turn, outgoing, incoming, None if gathering else combine)

    def _turn(
        self,
        turn: int,
        outgoing: NDArray[np.integer],
        incoming: NDArray[np.integer],
        combine: Callable[..., object] | None,
    ) -> None:
        """Send one segment onwards while the one before it comes in."""
        onwards, before = self._connected(self._next), self._connected(self._previous)
        errors: list[PeerError] = []
        sender = threading.Thread(
            target=self._send, args=(onwards, turn, outgoing, errors), daemon=True
        )
        sender.start()
        try:
            self._receive(before, turn, incoming, combine)
        except PeerError as error:
            errors.append(error)
            self._break()
        finally:
            sender.join()
        if errors:
            raise errors[0]

    def _send(
        self,
        connection: socket.socket,
        turn: int,
        segment: NDArray[np.integer],
        errors: list[PeerError],
    ) -> None:
        try:
            connection.sendall(self._frame(turn, segment.nbytes))
            connection.sendall(_bytes_of(segment))
        except OSError as error:
            errors.append(PeerError(f"the connection to the next island broke ({error})"))
            self._break()  # what still comes in is of no use without it: do not wait for it

    def _receive(
        self,
        connection: socket.socket,
        turn: int,
        segment: NDArray[np.integer],
        combine: Callable[..., object] | None,
    ) -> None:
        frame = bytearray(_FRAME.size)
        receive_into(connection, memoryview(frame))
        if bytes(frame) != self._frame(turn, segment.nbytes):
            raise PeerError("a frame of another epoch, step or segment came in")
        if combine is None:
            receive_into(connection, _bytes_of(segment))
            return
        step = self._scratch.nbytes // segment.itemsize
        scratch = self._scratch.view(segment.dtype)
        for start in range(0, segment.size, step):
            part = segment[start : start + step]
            received = scratch[: part.size]
            receive_into(connection, _bytes_of(received))
            combine(part, received, out=part)

    def _frame(self, turn: int, size_bytes: int) -> bytes:
        tag = self._tag
        return _FRAME.pack(
            _FRAME_MAGIC, tag.epoch, tag.step, tag.attempt, turn, self._size, size_bytes
        )

    def _connected(self, connection: socket.socket | None) -> socket.socket:
        if connection is None:
            raise PeerError("the ring is not connected")
        return connection


def _bytes_of(array: NDArray[np.generic]) -> memoryview:
    return array.view(np.uint8).data if array.size else memoryview(bytearray())
