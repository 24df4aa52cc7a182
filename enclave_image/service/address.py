"""Addresses of the service: `unix:/path`, `vsock:CID:PORT`.

A unix socket is for one machine: its file is readable by its owner alone, and a client can ask the
kernel whose process listens. A vsock leads into an enclave.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from enclave_image.service.errors import PeerGoneError, ServiceError

__all__ = ["DEFAULT_PORT", "Address", "connect", "listen"]

DEFAULT_PORT = 5005
"""The vsock port of the service in an enclave."""

_VSOCK = re.compile(r"vsock:([0-9]{1,10}|any):([0-9]{1,10})", re.ASCII)
_ANY_CID = 0xFFFFFFFF
_BACKLOG = 64
_MAX_UNIX_PATH = 107  # bytes of sun_path less its NUL; unix(7)
_UCRED = struct.Struct("=3i")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens.

    Attributes:
        family: "unix" or "vsock".
        path: of the unix socket, "" for a vsock.
        cid: of the vsock; 2^32 - 1 listens on any.
        port: of the vsock.
    """

    family: str
    path: str = ""
    cid: int = 0
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address.

        Raises:
            ServiceError: it has another form.
        """
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if path and len(os.fsencode(path)) <= _MAX_UNIX_PATH and "\0" not in path:
                return cls("unix", path=path)
        elif match := _VSOCK.fullmatch(text):
            cid = _ANY_CID if match[1] == "any" else int(match[1])
            port = int(match[2])
            if cid <= _ANY_CID and 0 < port < _ANY_CID:
                return cls("vsock", cid=cid, port=port)
        raise ServiceError(
            f"address: {text[:120]!r} is not allowed; expected unix:/path (at most "
            f"{_MAX_UNIX_PATH} bytes) or vsock:CID:PORT",
            reason="address",
            remedy="such as unix:/run/luma/compile.sock or vsock:16:5005",
        )

    def __str__(self) -> str:
        if self.family == "unix":
            return f"unix:{self.path}"
        return f"vsock:{'any' if self.cid == _ANY_CID else self.cid}:{self.port}"


def listen(address: Address) -> socket.socket:
    """Listen on an address; a unix socket gets mode 0600, and a dead one is replaced.

    Raises:
        ServiceError: it cannot be listened on, or somebody else does.
    """
    try:
        if address.family == "vsock":
            listener = _vsock()
            listener.bind((address.cid, address.port))
        else:
            _clear_dead(Path(address.path))
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            before = os.umask(0o177)
            try:
                listener.bind(address.path)
            finally:
                os.umask(before)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ServiceError(
            f"address {address}: cannot be listened on: {error.strerror}",
            reason="address",
            remedy="choose another address",
        ) from error
    return listener


def connect(address: Address, *, timeout_s: float) -> socket.socket:
    """Connect to a service.

    Raises:
        PeerGoneError: nobody listens there.
        ServiceError: a unix socket belongs to another user's process.
    """
    peer: socket.socket | None = None
    try:
        peer = (
            _vsock()
            if address.family == "vsock"
            else socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        )
        peer.settimeout(timeout_s)
        peer.connect(address.path or (address.cid, address.port))
    except OSError as error:
        if peer is not None:
            peer.close()
        raise PeerGoneError(
            f"service {address}: cannot be reached: {error.strerror or error}",
            reason="gone",
            remedy="start it with `luma enclave serve --listen ADDRESS`, or start its enclave",
        ) from error
    if address.family == "unix":
        _check_owner(peer, address)
    return peer


def _vsock() -> socket.socket:
    if not hasattr(socket, "AF_VSOCK"):
        raise ServiceError("vsock: this system has none", reason="address")
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


def _clear_dead(path: Path) -> None:
    """Remove the socket file of a process that has ended; one that is in use stays."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            return


def _check_owner(peer: socket.socket, address: Address) -> None:
    """Refuse the process of another user, who could read what a local service is sent."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, _ = _UCRED.unpack(found)
    if uid not in {0, os.getuid()}:
        peer.close()
        raise ServiceError(
            f"service {address}: its process belongs to user {uid}; expected {os.getuid()} or root",
            reason="address",
            remedy="start a service of your own",
        )
