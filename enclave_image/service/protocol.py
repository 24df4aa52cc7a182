"""Frames over a stream socket: a length (u32, big-endian) and a canonical CBOR map.

Every map has a `kind`, and every kind has a limit in bytes, so no length is believed that the kind
does not allow. Each frame must be whole before its deadline. One request a connection:

    client -> service   hello {version, nonce}        or   scrape {version}
    service -> client   attest {version, public_key, signer, document}
                                                      or   busy {retry_after_s}, metrics {text}
    client -> service   open {wrapped}
    both                record {data}                 until the connection is closed
    service -> client   refused {reason}              instead of any of its frames, before `open`

`session` says what `open` and the records hold. All else is refused.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from enclave_image.service.errors import PeerGoneError, ServiceError
from runtime.artifact.canonical import CborValue, decode, encode
from runtime.spec.errors import ArtifactError

__all__ = ["LIMITS", "MAX_RECORD_BYTES", "VERSION", "Connection", "Deadline", "Frame"]

VERSION = 2
"""Of this protocol; another one is refused."""

MAX_RECORD_BYTES = (64 << 10) + 1024
"""Of a record's data: one chunk of a blob, its names and its tag."""

LIMITS: Mapping[str, int] = {
    "hello": 128,
    "scrape": 64,
    "metrics": 64 << 10,
    "attest": 20 << 10,
    "busy": 64,
    "refused": 128,
    "open": 1024,
    "record": MAX_RECORD_BYTES + 64,
}
"""Largest frame of each kind, in bytes."""

_LENGTH = struct.Struct(">I")
_MAX_ITEMS = 16
_PIECE_BYTES = 16 << 10
"""Of one write. From a guest's vsock, writes above 32 KiB were lost whole (Linux 6.12, QEMU,
vhost-device-vsock 0.3.0): a packet that the kernel spreads over several descriptors."""

Frame = dict[str, CborValue]
"""A decoded frame, `kind` included."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time (monotonic clock) that something must have happened by."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Give the deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def sooner(self, seconds: float) -> Deadline:
        """Give this one or the one `seconds` from now, whichever comes first."""
        return min(self, Deadline.after(seconds), key=lambda deadline: deadline.at)

    def left_s(self) -> float:
        """Give the seconds that are left.

        Raises:
            PeerGoneError: none are.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise _late()
        return left


class Connection:
    """A connected stream socket that frames go over; a context manager that closes it.

    Args:
        peer: the socket, which belongs to the connection from now on.
        deadline: by when all of it must be over.
        idle_s: seconds that one frame may take.
    """

    def __init__(self, peer: socket.socket, *, deadline: Deadline, idle_s: float) -> None:
        self._socket = peer
        self._deadline = deadline
        self._idle_s = idle_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Give the descriptor, to wait on."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it; a second call does nothing."""
        self._socket.close()

    def interrupt(self) -> None:
        """End it from another thread: whoever waits on it learns that it is gone."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def left_s(self) -> float:
        """Give the seconds until the connection's deadline; `PeerGoneError` where none are left."""
        return self._deadline.left_s()

    def limit(self, seconds: float) -> None:
        """Move the deadline of the whole connection to `seconds` from now."""
        self._deadline = Deadline.after(seconds)

    def send(self, kind: str, **fields: object) -> None:
        """Send a frame.

        Raises:
            ServiceError: it is larger than its kind allows.
            PeerGoneError: the other side is gone, or does not read.
        """
        body = encode({"kind": kind, **fields})
        if len(body) > LIMITS[kind]:
            raise ServiceError(
                f"frame {kind}: {len(body)} bytes are more than the {LIMITS[kind]} allowed",
                reason="frame",
            )
        deadline = self._deadline.sooner(self._idle_s)
        waiting = memoryview(_LENGTH.pack(len(body)) + body)
        try:
            while waiting:
                self._socket.settimeout(deadline.left_s())
                waiting = waiting[self._socket.send(waiting[:_PIECE_BYTES]) :]
        except TimeoutError:
            raise _late() from None
        except OSError:
            raise _gone() from None

    def receive(self, *kinds: str) -> Frame:
        """Receive a frame of one of these kinds; "refused" and "busy" are for the caller to name.

        Raises:
            ServiceError: it is another kind, longer than allowed, or not canonical CBOR.
            PeerGoneError: the other side closed the connection or the deadline passed.
        """
        deadline = self._deadline.sooner(self._idle_s)
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        allowed = max(LIMITS[kind] for kind in kinds)
        if length > allowed:
            raise ServiceError(
                f"frame: {length} bytes are more than the {allowed} allowed", reason="frame"
            )
        frame = read_map(self._exactly(length, deadline), what="frame", max_bytes=allowed)
        kind = frame.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise ServiceError(
                f"frame.kind: {str(kind)[:40]!r} is not allowed here; expected {' or '.join(kinds)}",
                reason="frame",
            )
        if length > LIMITS[kind]:
            raise ServiceError(
                f"frame {kind}: {length} bytes are more than the {LIMITS[kind]} allowed",
                reason="frame",
            )
        return frame

    def check_quiet(self) -> None:
        """Judge a socket that became readable although it is not the other side's turn.

        Raises:
            PeerGoneError: the other side closed it.
            ServiceError: it sent something.
        """
        try:
            found = self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            raise _gone() from None
        if not found:
            raise _gone()
        raise ServiceError("frame: sent out of turn", reason="frame")

    def _exactly(self, size: int, deadline: Deadline) -> bytes:
        """Read `size` bytes."""
        parts = bytearray()
        while len(parts) < size:
            try:
                self._socket.settimeout(deadline.left_s())
                part = self._socket.recv(size - len(parts))
            except TimeoutError:
                raise _late() from None
            except OSError:
                raise _gone() from None
            if not part:
                raise _gone()
            parts += part
        return bytes(parts)


def read_map(data: bytes, *, what: str, max_bytes: int, max_items: int = _MAX_ITEMS) -> Frame:
    """Read a canonical CBOR map with text keys.

    Raises:
        ServiceError: it is anything else.
    """
    try:
        value = decode(data, what=what, max_bytes=max_bytes, max_depth=4, max_items=max_items)
    except ArtifactError as error:
        raise ServiceError(error.message, reason="frame") from None
    if not isinstance(value, dict):
        raise ServiceError(f"{what}: is no map", reason="frame")
    return value


def _gone() -> PeerGoneError:
    return PeerGoneError(
        "the other side closed the connection before the request was done",
        reason="gone",
        remedy="see whether the service still runs; ask again",
    )


def _late() -> PeerGoneError:
    return PeerGoneError(
        "the other side did not answer in time",
        reason="deadline",
        remedy="see whether the service still runs; ask again",
    )
