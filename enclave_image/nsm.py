"""The Nitro Security Module's client: the one source of attestation documents in an enclave.

A request and its answer are CBOR (aws-nitro-enclaves-nsm-api); a transport carries them. In an
enclave that is `NsmDevice`, one ioctl on `/dev/nsm`; tests pass a function. The answer is bytes
from the hypervisor and is read with the bounded reader of `runtime.artifact.attestation`.

Never run on Nitro: this project has no Nitro hardware, so the ioctl was only ever called by tests
that stand in for the kernel.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from runtime.artifact.attestation.cbor import NitroCbor, read
from runtime.artifact.canonical import encode
from runtime.spec.errors import LumaError

__all__ = [
    "NSM_PATH",
    "Nsm",
    "NsmDescription",
    "NsmDevice",
    "NsmError",
    "PcrState",
    "Transport",
    "security_module",
]

NSM_PATH = Path("/dev/nsm")
MAX_REQUEST_BYTES = 0x1000
MAX_RESPONSE_BYTES = 0x3000
"""The kernel cuts an answer silently that does not fit what is offered, so all of it is offered."""

_IOCTL = 0xC0200A00
"""_IOWR(0x0A, 0, 32 bytes)."""

_ARGUMENT = struct.Struct("=4Q")
"""Address and length of the request, then of the answer; the kernel sets the answer's length."""

_ValueT = TypeVar("_ValueT")

Transport = Callable[[bytes], bytes]
"""Gives the answer to a request."""


class NsmError(LumaError):
    """The NSM is not there, refused a request, or answered with something else than was asked.

    Args:
        message: as `LumaError`.
        code: the NSM's own error, such as "InvalidIndex"; None for all else.
        remedy: as `LumaError`.
    """

    def __init__(self, message: str, *, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class NsmDescription:
    """What the module says of itself.

    Attributes:
        module_id: its name, which stands in documents too.
        digest: "SHA384".
        max_pcrs: the number of PCRs.
        locked_pcrs: the indices that cannot be extended any more.
        version: major, minor, patch.
    """

    module_id: str
    digest: str
    max_pcrs: int
    locked_pcrs: tuple[int, ...]
    version: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PcrState:
    """A measurement.

    Attributes:
        value: 48 bytes.
        locked: whether it can not be extended any more.
    """

    value: bytes
    locked: bool


class NsmDevice:
    """The transport over the device; a context manager.

    Args:
        path: the device.

    Raises:
        NsmError: there is no such device, or it cannot be opened.
    """

    def __init__(self, path: Path = NSM_PATH) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NsmError(
                f"{path}: cannot be opened ({error.strerror}); expected the NSM's device",
                remedy="only a Nitro Enclave has one; its kernel needs the nsm driver",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the device; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __call__(self, request: bytes) -> bytes:
        """Send a request and give its answer.

        Raises:
            NsmError: the request is too long, or the kernel refused it.
        """
        if not 1 <= len(request) <= MAX_REQUEST_BYTES:
            raise NsmError(
                f"request: {len(request)} bytes are not allowed; expected 1 to {MAX_REQUEST_BYTES}"
            )
        asked = ctypes.create_string_buffer(request, len(request))
        answer = ctypes.create_string_buffer(MAX_RESPONSE_BYTES)
        argument = bytearray(
            _ARGUMENT.pack(
                ctypes.addressof(asked), len(request), ctypes.addressof(answer), MAX_RESPONSE_BYTES
            )
        )
        try:
            fcntl.ioctl(self._fd, _IOCTL, argument)
        except OSError as error:
            raise NsmError(f"/dev/nsm: the request failed ({error.strerror})") from error
        length = _ARGUMENT.unpack(argument)[3]
        if not 1 <= length <= MAX_RESPONSE_BYTES:
            raise NsmError(
                f"answer: {length} bytes are not allowed; expected 1 to {MAX_RESPONSE_BYTES}"
            )
        return answer.raw[:length]


class Nsm:
    """The module's requests.

    Args:
        transport: an `NsmDevice`, or a function that answers like one.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def describe(self) -> NsmDescription:
        """Ask what the module is; `NsmError` as every request."""
        found = self._ask("DescribeNSM", None)
        locked = _field(found, "locked_pcrs", list)
        if not all(type(index) is int for index in locked):
            raise _wrong("locked_pcrs", locked)
        return NsmDescription(
            module_id=_field(found, "module_id", str),
            digest=_field(found, "digest", str),
            max_pcrs=_field(found, "max_pcrs", int),
            locked_pcrs=tuple(locked),
            version=(
                _field(found, "version_major", int),
                _field(found, "version_minor", int),
                _field(found, "version_patch", int),
            ),
        )

    def random(self) -> bytes:
        """Give 256 random bytes of the module, to seed the kernel's generator."""
        return _field(self._ask("GetRandom", None), "random", bytes)

    def attestation(
        self,
        *,
        user_data: bytes | None = None,
        nonce: bytes | None = None,
        public_key: bytes | None = None,
    ) -> bytes:
        """Give an attestation document.

        Args:
            user_data: at most 512 bytes to be signed with the measurements.
            nonce: at most 512 bytes of whoever asked.
            public_key: at most 1024 bytes; DER SubjectPublicKeyInfo where KMS is to read it.

        Raises:
            NsmError: the module refused, such as `InputTooLarge`.
        """
        asked = {"user_data": user_data, "nonce": nonce, "public_key": public_key}
        return _field(self._ask("Attestation", asked), "document", bytes)

    def describe_pcr(self, index: int) -> PcrState:
        """Give a measurement, 0 to 31."""
        found = self._ask("DescribePCR", {"index": index})
        return PcrState(_field(found, "data", bytes), _field(found, "lock", bool))

    def extend_pcr(self, index: int, data: bytes) -> bytes:
        """Extend a measurement, 16 to 31: SHA-384(old, data). Gives the new value."""
        return _field(self._ask("ExtendPCR", {"index": index, "data": data}), "data", bytes)

    def lock_pcr(self, index: int) -> None:
        """Lock a measurement: only locked ones stand in documents."""
        self._ask("LockPCR", {"index": index})

    def lock_pcrs(self, count: int) -> None:
        """Lock measurements 0 to `count` - 1."""
        self._ask("LockPCRs", {"range": count})

    def _ask(self, name: str, arguments: Mapping[str, object] | None) -> NitroCbor:
        """Send a request; give what its answer holds under its name."""
        answer = self._transport(encode(name if arguments is None else {name: arguments}))
        found = read(answer, what=f"{name} answer", max_bytes=MAX_RESPONSE_BYTES)
        if found == name:
            return {}
        if isinstance(found, dict) and len(found) == 1:
            if name in found:
                return found[name]
            code = found.get("Error")
            if isinstance(code, str):
                raise NsmError(f"{name}: the NSM refused it with {code[:40]!r}", code=code[:40])
        raise _wrong(name, found)


def security_module(path: Path = NSM_PATH) -> Nsm | None:
    """Open the security module, for this process alone; None where there is none.

    The kernel's driver makes its device with mode 0666. Whoever may ask it gets a document of this
    image with a key of his own in it, to which KMS would release a customer's: not what compiles.
    """
    if not path.exists():
        return None
    device = NsmDevice(path)
    path.chmod(0o600)
    return Nsm(device)


def _field(answer: NitroCbor, name: str, kind: type[_ValueT]) -> _ValueT:
    """Give a field of an answer, which must have exactly this type."""
    value = answer.get(name) if isinstance(answer, dict) else None
    if type(value) is not kind:
        raise _wrong(name, value)
    return value


def _wrong(name: str, value: object) -> NsmError:
    return NsmError(f"{name}: the NSM's answer is {type(value).__name__}, not what was asked for")
