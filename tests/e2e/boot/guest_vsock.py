"""The guest's vsock as unix sockets, the way that vhost-device-vsock gives it.

To a port of the guest: connect to the device's socket, send `connect P\\n`, read `OK N\\n` (N is
this side's own port), and the stream begins. From the guest to port P of its parent: the device
connects to a socket whose name ends with `_P`.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from pathlib import Path
from typing import Self

from enclave_image.init import HEARTBEAT, HEARTBEAT_PORT
from tests.e2e.boot.machines import Wiring
from tests.e2e.boot.tools import BootError

_ACCEPTED = re.compile(rb"OK [0-9]{1,10}\n")
_MOST_ANSWER = 32
_PEER_S = 30.0


def connect_port(path: Path, port: int, *, timeout_s: float) -> socket.socket:
    """Connect to a port of the guest.

    Args:
        path: the device's socket.
        port: of the guest.
        timeout_s: for each step; the socket keeps it.

    Raises:
        BootError: the device is not there, or nobody listens on the port.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(timeout_s)
    try:
        peer.connect(str(path))
        peer.sendall(b"connect %d\n" % port)
        answer = _answer(peer)
    except OSError as error:
        peer.close()
        raise BootError(f"vsock port {port}: {error.strerror or error}") from error
    if not _ACCEPTED.fullmatch(answer):
        peer.close()
        raise BootError(f"vsock port {port}: the device answered {answer!r}; expected b'OK N\\n'")
    return peer


def _answer(peer: socket.socket) -> bytes:
    """Read the device's line, and not a byte of what follows it."""
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < _MOST_ANSWER:
        byte = peer.recv(1)
        if not byte:
            break
        answer += byte
    return answer


class Heartbeat:
    """The parent's side of the heartbeat, without which a hypervisor ends an enclave.

    Args:
        wiring: the sockets of the boot.
    """

    def __init__(self, wiring: Wiring) -> None:
        self.heard = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(wiring.guest_calls(HEARTBEAT_PORT)))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="luma-heartbeat")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone would not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                peer.settimeout(_PEER_S)
                if peer.recv(1) == HEARTBEAT:
                    peer.sendall(HEARTBEAT)
                    self.heard.set()
