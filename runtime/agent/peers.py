"""Connections between islands: one listener an island, one handshake for rings and transfers.

A connection opens with a fixed header: magic, a length, and a JSON object with the run's token,
the purpose (`ring` or `state`), the sender and a key (the membership epoch, or the step) that says
which meeting it belongs to. The listener checks it and hands the socket to whoever waits for that
meeting; one for an epoch that has passed is closed.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    """

    def __init__(self, token: str, host: str = "127.0.0.1") -> None:
        self._token = token
        self._listener = socket.create_server((host, 0), backlog=64)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._arrived: dict[Meeting, socket.socket] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, name="peers", daemon=True).start()

    def close(self) -> None:
        """Stop listening and close what nobody waited for."""
        self._listener.close()
        with self._changed:
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
            connection.settimeout(_HANDSHAKE_TIMEOUT_S)
            header = _read_header(connection)
            if not secrets.compare_digest(str(header.get("token", "")), self._token):
                connection.close()
                return
            meeting = Meeting(header["purpose"], header["key"], header["sender"])
        except (OSError, ValueError, KeyError, PeerError):
            connection.close()
            return
        tune(connection)
        with self._changed:
            stale = self._arrived.pop(meeting, None)
            if stale is not None:
                stale.close()
            self._arrived[meeting] = connection
            while len(self._arrived) > _KEPT:
                self._arrived.pop(next(iter(self._arrived))).close()
            self._changed.notify_all()


def dial(
    address: tuple[str, int], meeting: Meeting, token: str, *, timeout_s: float
) -> socket.socket:
    """Connect to another island for a meeting.

    Raises:
        PeerError: nobody listens there.
    """
    try:
        connection = socket.create_connection(address, timeout=timeout_s)
    except OSError as error:
        raise PeerError(f"cannot connect to {address[0]}:{address[1]} ({error})") from None
    tune(connection)
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


def _read_header(connection: socket.socket) -> dict[str, Any]:
    prefix = bytearray(_HEADER.size)
    receive_into(connection, memoryview(prefix))
    magic, length = _HEADER.unpack(prefix)
    if magic != _MAGIC or length > _MAX_HEADER_BYTES:
        raise PeerError("not a connection of this protocol")
    body = bytearray(length)
    receive_into(connection, memoryview(body))
    header = json.loads(bytes(body))
    if not isinstance(header, dict):
        raise PeerError("not a connection of this protocol")
    return header
