"""The form of an attestation document: COSE_Sign1 around a CBOR map, read and not yet believed.

    [protected {1: -35}, unprotected {}, payload, signature]       tag 18 or untagged

The payload's fields and their limits are those of AWS's "Verifying the root of trust" and of its
CDDL; where the two differ (the sizes of `user_data` and `nonce`) AWS's own checker decides. AWS
writes `null` for an optional field that is not used, against its CDDL: it is read as absent. A
NitroTPM document is the same with `nitrotpm_pcrs` in place of `pcrs`, which decides the kind. A
field that this reader does not know is refused: it could take back what the others say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from runtime.artifact._cose import PROTECTED, SIGNATURE_BYTES
from runtime.artifact.attestation._refuse import refusal
from runtime.artifact.attestation.cbor import NitroCbor, check_size, read
from runtime.artifact.attestation.rules import Rule
from runtime.spec.errors import AttestationError

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "MAX_PAYLOAD_BYTES",
    "PCR_BYTES",
    "Document",
    "Kind",
    "parse_document",
]

Kind = Literal["nitro-enclave", "nitrotpm"]
"""Who is measured: an enclave, or an instance with a NitroTPM."""

MAX_PAYLOAD_BYTES = 16384
MAX_DOCUMENT_BYTES = MAX_PAYLOAD_BYTES + 128
"""The envelope adds five heads, the protected header and the signature: below 128 bytes."""

PCR_BYTES = 48
MAX_MODULE_ID = 1024
"""Characters; the specification has no limit, real identifiers have about 40."""

_MAX_BLOB = 1024
_MAX_FREE = 512
_TAG_18 = b"\xd2"
_YEAR_10000_MS = 253_402_300_800_000
_KIND_OF_FIELD: Mapping[str, Kind] = {"pcrs": "nitro-enclave", "nitrotpm_pcrs": "nitrotpm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document that has the right form. Nothing in it is authentic yet.

    Attributes:
        kind: what is measured.
        module_id: the NSM's or NitroTPM's name.
        timestamp_ms: when it was made, UTC, milliseconds since 1970.
        pcrs: 48 bytes each, by index.
        certificate: the leaf, DER.
        cabundle: the issuers, DER, root first.
        public_key: what the attested side put there, or None.
        user_data: likewise.
        nonce: likewise.
        payload: the bytes that were signed, as received.
        signature: r then s, 96 bytes.
    """

    kind: Kind
    module_id: str
    timestamp_ms: int
    pcrs: Mapping[int, bytes]
    certificate: bytes
    cabundle: tuple[bytes, ...]
    public_key: bytes | None
    user_data: bytes | None
    nonce: bytes | None
    payload: bytes
    signature: bytes


def parse_document(document: bytes) -> Document:
    """Read a document.

    Raises:
        AttestationError: it has not the form of this module's docstring; the rule is one of
            `document.*`, `cbor.*`, `cose.*` or `payload.*`.
    """
    payload, signature = _open_envelope(document)
    fields = read(payload, what="payload", max_bytes=MAX_PAYLOAD_BYTES)
    if not isinstance(fields, dict):
        raise refusal(Rule.FORM, "payload", fields, "a map")
    left = dict(fields)
    kind, pcrs = _take_pcrs(left)
    _digest(_take(left, "digest"))
    found = Document(
        kind=kind,
        module_id=_module_id(_take(left, "module_id")),
        timestamp_ms=_timestamp_ms(_take(left, "timestamp")),
        pcrs=pcrs,
        certificate=_octets(
            Rule.CERTIFICATE, "payload.certificate", _take(left, "certificate"), 1, _MAX_BLOB
        ),
        cabundle=_cabundle(_take(left, "cabundle")),
        public_key=_optional(Rule.PUBLIC_KEY, "public_key", left, 1, _MAX_BLOB),
        user_data=_optional(Rule.USER_DATA, "user_data", left, 0, _MAX_FREE),
        nonce=_optional(Rule.NONCE, "nonce", left, 0, _MAX_FREE),
        payload=payload,
        signature=signature,
    )
    if left:
        raise refusal(
            Rule.UNKNOWN,
            "payload",
            next(iter(left)),
            "only the fields that this version knows",
            remedy="a newer version of Luma may know the field; it is not safe to skip it",
        )
    return found


def _open_envelope(document: bytes) -> tuple[bytes, bytes]:
    """Give payload and signature of the COSE_Sign1 (RFC 9052, section 4.2)."""
    check_size(document, what="document", max_bytes=MAX_DOCUMENT_BYTES)
    untagged = document.removeprefix(_TAG_18)
    # One form of the envelope, which nobody signs: else one document could have many byte forms.
    parts = read(untagged, what="document", max_bytes=MAX_DOCUMENT_BYTES, open_maps=False)
    if not isinstance(parts, list) or len(parts) != 4:
        raise refusal(Rule.COSE_FORM, "document", parts, "COSE_Sign1, an array of four")
    protected, unprotected, payload, signature = parts
    if protected != PROTECTED:
        shown = protected.hex() if isinstance(protected, bytes) else protected
        raise refusal(
            Rule.COSE_PROTECTED, "document.protected", shown, "a1013822, which is {alg: ES384}"
        )
    if unprotected != {}:
        raise refusal(Rule.COSE_UNPROTECTED, "document.unprotected", unprotected, "an empty map")
    return (
        _octets(Rule.COSE_PAYLOAD, "document.payload", payload, 1, MAX_PAYLOAD_BYTES),
        _octets(
            Rule.COSE_SIGNATURE, "document.signature", signature, SIGNATURE_BYTES, SIGNATURE_BYTES
        ),
    )


def _take(left: dict[str | int, NitroCbor], name: str) -> NitroCbor:
    """Take a field that must be there."""
    if name not in left:
        raise AttestationError(
            f"payload.{name}: missing; expected a field of every document", rule=Rule.MISSING
        )
    return left.pop(name)


def _take_pcrs(left: dict[str | int, NitroCbor]) -> tuple[Kind, Mapping[int, bytes]]:
    """Take the one map of measurements, which tells the kind of document."""
    names = [name for name in _KIND_OF_FIELD if name in left]
    if len(names) != 1:
        raise refusal(Rule.KIND, "payload", names, "exactly one of pcrs and nitrotpm_pcrs")
    where = f"payload.{names[0]}"
    value = left.pop(names[0])
    if not isinstance(value, dict) or not 1 <= len(value) <= 32:
        raise refusal(Rule.PCRS, where, value, "a map of 1 to 32 entries")
    found: dict[int, bytes] = {}
    for index, measured in value.items():
        if not isinstance(index, int) or not 0 <= index <= 31:
            raise refusal(Rule.PCRS, where, index, "indices from 0 to 31")
        found[index] = _octets(Rule.PCRS, f"{where}[{index}]", measured, PCR_BYTES, PCR_BYTES)
    return _KIND_OF_FIELD[names[0]], MappingProxyType(found)


def _digest(value: NitroCbor) -> None:
    if value != "SHA384":
        raise refusal(Rule.DIGEST, "payload.digest", value, "'SHA384'")


def _module_id(value: NitroCbor) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_MODULE_ID:
        raise refusal(
            Rule.MODULE_ID, "payload.module_id", value, f"text of 1 to {MAX_MODULE_ID} characters"
        )
    return value


def _timestamp_ms(value: NitroCbor) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _YEAR_10000_MS:
        raise refusal(
            Rule.TIMESTAMP,
            "payload.timestamp",
            value,
            f"milliseconds since 1970 from 1 to {_YEAR_10000_MS - 1}",
        )
    return value


def _cabundle(value: NitroCbor) -> tuple[bytes, ...]:
    if not isinstance(value, list) or not value:
        raise refusal(Rule.CABUNDLE, "payload.cabundle", value, "an array of certificates")
    return tuple(
        _octets(Rule.CABUNDLE, f"payload.cabundle[{i}]", der, 1, _MAX_BLOB)
        for i, der in enumerate(value)
    )


def _optional(
    rule: Rule, name: str, left: dict[str | int, NitroCbor], low: int, high: int
) -> bytes | None:
    """Take a field that may be absent or null."""
    value = left.pop(name, None)
    return None if value is None else _octets(rule, f"payload.{name}", value, low, high)


def _octets(rule: Rule, where: str, value: NitroCbor, low: int, high: int) -> bytes:
    """Give `value` if it is `low` to `high` bytes."""
    if not isinstance(value, bytes) or not low <= len(value) <= high:
        wanted = f"{low} bytes" if low == high else f"{low} to {high} bytes"
        raise refusal(rule, where, value, wanted)
    return value
