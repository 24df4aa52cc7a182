"""COSE_Sign1 with ES384 (RFC 9052, section 4.2), untagged: the one signature form of Luma.

`[protected {1: -35}, unprotected {}, payload, signature]`, where the signature is r then s, 48
bytes each, big-endian, over canonical CBOR `["Signature1", protected, h'', payload]`. Exactly this
form is read: another algorithm, a header more, or a tag is refused rather than interpreted.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from runtime.artifact.canonical import decode, encode
from runtime.spec.errors import ArtifactError

SIGNATURE_BYTES = 96
OVERHEAD_BYTES = 128
"""More than an envelope adds to its payload: four heads, the protected header, the signature."""

PROTECTED = b"\xa1\x01\x38\x22"
"""The protected header: {1: -35}, algorithm ES384."""

_HALF = SIGNATURE_BYTES // 2


def sign1(payload: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Give the envelope of `payload`, signed by the P-384 `key`."""
    der = key.sign(_to_be_signed(payload), ec.ECDSA(hashes.SHA384()))
    r, s = decode_dss_signature(der)
    signature = r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big")
    return encode([PROTECTED, {}, payload, signature])


def split1(envelope: bytes, *, max_bytes: int) -> tuple[bytes, bytes]:
    """Give (payload, signature) of an envelope; the signature is *not verified* yet.

    Raises:
        ArtifactError: not exactly the form that `sign1` writes, or larger than `max_bytes`.
    """
    parts = decode(envelope, what="signature envelope", max_bytes=max_bytes)
    match parts:
        case [bytes(protected), dict(unprotected), bytes(payload), bytes(signature)]:
            pass
        case _:
            raise ArtifactError("signature envelope: expected COSE_Sign1, an array of four")
    if protected != PROTECTED or unprotected:
        raise ArtifactError(
            "signature envelope: headers are not allowed; expected exactly {alg: ES384}"
        )
    if len(signature) != SIGNATURE_BYTES:
        raise ArtifactError(f"signature: {len(signature)} bytes; expected {SIGNATURE_BYTES}")
    return payload, signature


def check1(payload: bytes, signature: bytes, key: ec.EllipticCurvePublicKey) -> None:
    """Check what `split1` gave.

    Raises:
        ArtifactError: the signature is not `key`'s over `payload`.
    """
    if not fits(payload, signature, key):
        raise ArtifactError(
            "signature: does not fit the manifest and its signer; the file was changed"
        )


def fits(payload: bytes, signature: bytes, key: ec.EllipticCurvePublicKey) -> bool:
    """Tell whether `signature` (r then s, 96 bytes) is `key`'s over `payload` in this form."""
    r = int.from_bytes(signature[:_HALF], "big")
    s = int.from_bytes(signature[_HALF:], "big")
    try:
        key.verify(encode_dss_signature(r, s), _to_be_signed(payload), ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def _to_be_signed(payload: bytes) -> bytes:
    """Give the Sig_structure of RFC 9052, section 4.4, without external data."""
    return encode(["Signature1", PROTECTED, b"", payload])
