"""A software Nitro Security Module: the requests and answers of `/dev/nsm`, with a PKI of its own.

Call it with a request's CBOR; it answers in CBOR, as the device does. PCR0 to PCR15 are locked at
boot, 16 to 31 are the user's; documents list the locked ones. What the device answers to a second
lock is not known to us: here it is `ReadOnlyIndex`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import cbor2

from tests.attestation_support.documents import (
    MEASURED,
    make_document,
    milliseconds,
    payload_fields,
    pcr_bank,
)
from tests.attestation_support.pki import Pki

MAX_REQUEST_BYTES = 0x1000
MAX_RESPONSE_BYTES = 0x3000
_LIMITS = {"public_key": 1024, "user_data": 512, "nonce": 512}


class NsmRefusal(Exception):
    """An error code of the NSM, such as InvalidIndex."""


class SoftwareNsm:
    """An NSM, or with `kind="nitrotpm"` a NitroTPM's answer to the same request.

    Args:
        pki: signs the documents; made for the clock's time by default.
        measured: what boot measured, by PCR; all zeros is debug mode.
        module_id: the module's name.
        clock: gives the time, with its zone.
        kind: "nitro-enclave" or "nitrotpm".
    """

    def __init__(
        self,
        *,
        pki: Pki | None = None,
        measured: Mapping[int, bytes] = MEASURED,
        module_id: str = "i-0test-enc0test",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        kind: str = "nitro-enclave",
    ) -> None:
        self.clock = clock
        self.pki = Pki.create(clock()) if pki is None else pki
        self.module_id = module_id
        self.kind = kind
        self.pcrs = {i: bytes(48) for i in range(32)} | pcr_bank(measured)
        self.locked = set(range(16))

    def __call__(self, request: bytes) -> bytes:
        """Answer one request."""
        try:
            answer = self._answer(request)
        except NsmRefusal as refusal:
            answer = {"Error": str(refusal)}
        encoded = cbor2.dumps(answer)
        if len(encoded) > MAX_RESPONSE_BYTES:
            return cbor2.dumps({"Error": "BufferTooSmall"})
        return encoded

    def attest(self, *, public_key=None, user_data=None, nonce=None, **changes) -> bytes:
        """Give a document now; `changes` replace fields of its payload."""
        now = self.clock()
        pki = self.pki.with_leaf(now)
        fields = payload_fields(
            pki,
            module_id=self.module_id,
            timestamp=milliseconds(now),
            pcrs={i: self.pcrs[i] for i in sorted(self.locked)},
            public_key=public_key,
            user_data=user_data,
            nonce=nonce,
        )
        if self.kind == "nitrotpm":
            fields["nitrotpm_pcrs"] = fields.pop("pcrs")
        return make_document(pki, fields | changes)

    def _answer(self, request: bytes):
        if len(request) > MAX_REQUEST_BYTES:
            raise NsmRefusal("InputTooLarge")
        try:
            asked = cbor2.loads(request)
        except cbor2.CBORDecodeError as error:
            raise NsmRefusal("InvalidArgument") from error
        if asked == "DescribeNSM":
            return {"DescribeNSM": self._description()}
        if asked == "GetRandom":
            return {"GetRandom": {"random": os.urandom(256)}}
        if not isinstance(asked, dict) or len(asked) != 1:
            raise NsmRefusal("InvalidOperation")
        [(name, arguments)] = asked.items()
        handler = {
            "Attestation": self._attestation,
            "DescribePCR": self._describe_pcr,
            "ExtendPCR": self._extend_pcr,
            "LockPCR": self._lock_pcr,
            "LockPCRs": self._lock_pcrs,
        }.get(name)
        if handler is None:
            raise NsmRefusal("InvalidOperation")
        if not isinstance(arguments, dict):
            raise NsmRefusal("InvalidArgument")
        return handler(arguments)

    def _description(self):
        return {
            "version_major": 1,
            "version_minor": 0,
            "version_patch": 0,
            "module_id": self.module_id,
            "max_pcrs": 32,
            "locked_pcrs": sorted(self.locked),
            "digest": "SHA384",
        }

    def _attestation(self, arguments):
        if arguments.keys() != _LIMITS.keys():
            raise NsmRefusal("InvalidArgument")
        for name, limit in _LIMITS.items():
            value = arguments[name]
            if value is not None and not isinstance(value, bytes):
                raise NsmRefusal("InvalidArgument")
            if value is not None and len(value) > limit:
                raise NsmRefusal("InputTooLarge")
        return {"Attestation": {"document": self.attest(**arguments)}}

    def _describe_pcr(self, arguments):
        index = _index(arguments, "index", 31)
        return {"DescribePCR": {"lock": index in self.locked, "data": self.pcrs[index]}}

    def _extend_pcr(self, arguments):
        index = _index(arguments, "index", 31)
        data = arguments.get("data")
        if not isinstance(data, bytes):
            raise NsmRefusal("InvalidArgument")
        if index in self.locked:
            raise NsmRefusal("ReadOnlyIndex")
        self.pcrs[index] = hashlib.sha384(self.pcrs[index] + data).digest()
        return {"ExtendPCR": {"data": self.pcrs[index]}}

    def _lock_pcr(self, arguments):
        index = _index(arguments, "index", 31)
        if index in self.locked:
            raise NsmRefusal("ReadOnlyIndex")
        self.locked.add(index)
        return "LockPCR"

    def _lock_pcrs(self, arguments):
        self.locked |= set(range(_index(arguments, "range", 32)))
        return "LockPCRs"


def _index(arguments, name: str, largest: int) -> int:
    value = arguments.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NsmRefusal("InvalidArgument")
    if not 0 <= value <= largest:
        raise NsmRefusal("InvalidIndex")
    return value
