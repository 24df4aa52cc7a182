"""Attestation documents with every part open to change, written with cbor2 alone."""

from __future__ import annotations

import struct
from datetime import datetime

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.attestation_support.pki import EPOCH, Pki

ABSENT = object()
"""As a field's value: the field is not there."""

PROTECTED = bytes.fromhex("a1013822")
MEASURED = {0: b"\x10" * 48, 1: b"\x11" * 48, 2: b"\x12" * 48, 8: b"\x18" * 48}
"""The PCRs of a document that nobody says otherwise of; the rest of 0 to 15 is zero."""


def milliseconds(at: datetime) -> int:
    """Give a time as documents hold it."""
    return round(at.timestamp() * 1000)


def pcr_bank(measured) -> dict[int, bytes]:
    """Give PCR0 to PCR15, zero where nothing was measured."""
    return {i: measured.get(i, bytes(48)) for i in range(16)} | dict(measured)


def payload_fields(pki: Pki, **changes) -> dict:
    """Give the payload's map in AWS's order of fields; ABSENT removes one."""
    fields = {
        "module_id": "i-0test-enc0test",
        "digest": "SHA384",
        "timestamp": milliseconds(EPOCH),
        "pcrs": pcr_bank(MEASURED),
        "certificate": pki.leaf,
        "cabundle": list(pki.cabundle),
        "public_key": None,
        "user_data": None,
        "nonce": None,
    } | changes
    return {name: value for name, value in fields.items() if value is not ABSENT}


def indefinite(fields: dict) -> bytes:
    """Give a map of indefinite length."""
    pairs = b"".join(cbor2.dumps(key) + cbor2.dumps(value) for key, value in fields.items())
    return b"\xbf" + pairs + b"\xff"


def sign(payload: bytes, key: ec.EllipticCurvePrivateKey, protected: bytes = PROTECTED) -> bytes:
    """Give the ES384 signature of RFC 9052, section 4.4, r then s."""
    structure = cbor2.dumps(["Signature1", protected, b"", payload])
    half = (key.key_size + 7) // 8
    r, s = decode_dss_signature(key.sign(structure, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(half, "big") + s.to_bytes(half, "big")


def byte_string(value: bytes) -> bytes:
    """Give the CBOR of bytes with a head of 3 bytes, the usual one of a payload."""
    return b"\x59" + struct.pack(">H", len(value)) + value


def make_document(
    pki: Pki,
    fields: dict | None = None,
    *,
    payload: bytes | None = None,
    protected=PROTECTED,
    unprotected=None,
    signature: bytes | None = None,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    """Give a document: of `payload`, or of `fields`, else of the usual ones."""
    if payload is None:
        payload = cbor2.dumps(payload_fields(pki) if fields is None else fields)
    if signature is None:
        signed = protected if isinstance(protected, bytes) else PROTECTED
        signature = sign(payload, key or pki.leaf_key, signed)
    return cbor2.dumps([protected, {} if unprotected is None else unprotected, payload, signature])
