"""Connections between islands: one listener an island, one handshake for rings and transfers.

Between machines a connection is TLS under the run's certificate (`runtime.coordinator.tls`) before
its first byte; on the loopback interface it may be plain.

A connection opens with a fixed header: magic, a length, and a JSON object with the run's token,
the purpose (`ring` or `state`), the sender and a key (the membership epoch, or the step) that says
which meeting it belongs to. The listener checks it and hands the socket to whoever waits for that
meeting; one for an epoch that has passed is closed.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.coordinator.tls import RunTls
from runtime.spec.aws import is_loopback
from runtime.spec.errors import CoordinationError

_MAGIC = b"LUM1"
_HEADER = struct.Struct(">4sI")
_MAX_HEADER_BYTES = 4096
_HANDSHAKE_TIMEOUT_S = 5.0
_POLL_S = 0.02
_BUFFER_BYTES = 1 << 22
_KEPT = 64


class PeerError(CoordinationError):
    """A connection between islands could not be made, or broke."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a connection is for.

    Attributes:
        purpose: `ring` or `state`.
        key: the membership epoch of a ring, or step and attempt of a state.
        sender: the island that connects.
    """

    purpose: str
    key: str
    sender: str


class PeerServer:
    """Accepts connections from other islands.

    Args:
        token: the run's secret.
        host: address to listen on.
        tls: secures every connection; None on the loopback interface.
    """

    def __init__(self, token: str, host: str = "127.0.0.1", *, tls: RunTls | None = None) -> None:
        self._token = token
        self._tls = tls
        self._listener = socket.create_server((host, 0), backlog=64)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._arrived: dict[Meeting, socket.socket] = {}
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._accept, name="peers", daemon=True).start()

    def close(self) -> None:
        """Stop listening and close what nobody waited for."""
        # Closing alone would leave the thread in `accept`, and the port open, for one more caller.
        shut(self._listener)
        with self._changed:
            self._closed = True
            for connection in self._arrived.values():
                connection.close()
            self._arrived.clear()

    def wait_for(
        self, meeting: Meeting, *, cancelled: Callable[[], bool], timeout_s: float
    ) -> socket.socket:
        """Give the connection that belongs to a meeting, once it is there.

        Raises:
            PeerError: it did not come in time, or the wait was cancelled.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while meeting not in self._arrived:
                if cancelled() or time.monotonic() > deadline:
                    raise PeerError(f"{meeting.sender} did not connect for {meeting.purpose}")
                self._changed.wait(_POLL_S)
            return self._arrived.pop(meeting)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            deadline = time.monotonic() + _HANDSHAKE_TIMEOUT_S
            connection.settimeout(_HANDSHAKE_TIMEOUT_S)
            if self._tls is not None:
                connection = self._tls.accept(connection)
            header = _read_header(connection, deadline)
            meeting = _meeting_of(header, self._token)
            tune(connection)
        except (OSError, PeerError):
            connection.close()
            return
        with self._changed:
            if self._closed:
                connection.close()
                return
            stale = self._arrived.pop(meeting, None)
            if stale is not None:
                stale.close()
            self._arrived[meeting] = connection
            while len(self._arrived) > _KEPT:
                self._arrived.pop(next(iter(self._arrived))).close()
            self._changed.notify_all()


def dial(
    address: tuple[str, int],
    meeting: Meeting,
    token: str,
    *,
    timeout_s: float,
    tls: RunTls | None = None,
) -> socket.socket:
    """Connect to another island for a meeting.

    Raises:
        PeerError: nobody of the run listens there, or it is another machine and there is no TLS.
    """
    if tls is None and not is_loopback(address[0]):
        raise PeerError(f"{address[0]} is another machine, and this run has no TLS")
    try:
        connection = socket.create_connection(address, timeout=timeout_s)
        tune(connection)
        if tls is not None:
            connection = tls.connect(connection)
    except OSError as error:
        raise PeerError(f"cannot connect to {address[0]}:{address[1]} ({error})") from None
    body = json.dumps(
        {
            "token": token,
            "purpose": meeting.purpose,
            "key": meeting.key,
            "sender": meeting.sender,
        }
    ).encode()
    try:
        connection.sendall(_HEADER.pack(_MAGIC, len(body)) + body)
    except OSError as error:
        connection.close()
        raise PeerError(f"the connection broke at once ({error})") from None
    return connection


def tune(connection: socket.socket) -> None:
    """Set a socket up for large streams: no delay for small frames, large buffers."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fill `view` from a socket.

    Raises:
        PeerError: the connection ended or broke before that.
    """
    while view:
        try:
            count = connection.recv_into(view, min(len(view), _BUFFER_BYTES))
        except OSError as error:
            raise PeerError(f"the connection to a neighbour broke ({error})") from None
        if count == 0:
            raise PeerError("a neighbour closed its connection")
        view = view[count:]


def shut(connection: socket.socket) -> None:
    """Break a connection (or a listener) and close it: nobody stays blocked in it."""
    interrupt(connection)
    connection.close()


def interrupt(connection: socket.socket) -> None:
    """Break a connection that another thread may be in; that thread closes it.

    Closing it here would free its number for the next socket while the other thread may still
    read from that number.
    """
    # It may be broken or closed already, which is what we want. The plain socket's own method: that
    # of a TLS socket drops the session first, and the other thread would go on reading ciphertext.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _read_header(connection: socket.socket, deadline: float) -> dict[str, Any]:
    magic, length = _HEADER.unpack(_receive_before(connection, _HEADER.size, deadline))
    if magic != _MAGIC or length > _MAX_HEADER_BYTES:
        raise PeerError("not a connection of this protocol")
    body = _receive_before(connection, length, deadline)
    try:
        header = json.loads(body)
    except (ValueError, RecursionError):
        raise PeerError("not a connection of this protocol") from None
    if not isinstance(header, dict):
        raise PeerError("not a connection of this protocol")
    return header


def _receive_before(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Read `count` bytes by a deadline, however slowly the other side drips them."""
    received = bytearray()
    while len(received) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise PeerError("the handshake took too long")
        connection.settimeout(left)
        part = connection.recv(count - len(received))
        if not part:
            raise PeerError("the connection ended in the handshake")
        received += part
    return bytes(received)


def _meeting_of(header: dict[str, Any], token: str) -> Meeting:
    """Give what a connection is for, if it shows the run's token."""
    shown = str(header.get("token", "")).encode(errors="replace")
    if not secrets.compare_digest(shown, token.encode()):
        raise PeerError("a connection showed another token")
    names = [header.get(field) for field in ("purpose", "key", "sender")]
    if not all(isinstance(name, str) for name in names):
        raise PeerError("not a connection of this protocol")
    return Meeting(*map(str, names))
