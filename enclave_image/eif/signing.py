"""The signature section: a certificate, and a COSE_Sign1 by its key over PCR0.

The section is a CBOR array of one map {"signing_certificate": PEM, "signature": COSE}; both values
are arrays of small integers, not byte strings, since that is how AWS's tool writes them. The COSE
message is untagged, its protected header holds the algorithm alone, and its payload is CBOR
{"register_index": 0, "register_value": [48 integers]}. Signing is deterministic (RFC 6979): the
same image, key and certificate give the same file.

QEMU 10.0's parser reads it, and measures the certificate as the builder does (`make boot`); AWS's
verifier has not been at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from enclave_image.eif._cbor import read_cbor
from enclave_image.eif.measure import PCR_BYTES
from runtime.artifact.canonical import encode
from runtime.spec.errors import ArtifactError

__all__ = [
    "MAX_SIGNATURE_BYTES",
    "ImageSignature",
    "ImageSigner",
    "load_image_signer",
    "read_signature",
]

MAX_SIGNATURE_BYTES = 32_768
_MAX_FILE_BYTES = 65_536
_CERTIFICATE_ERRORS = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    Warning,
)
"""What cryptography raises for certificates that it cannot read, some of it on first use.

`Warning` where a process makes errors of warnings: cryptography warns of a serial number below 1.
"""


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """A COSE algorithm of RFC 9053, section 2.1: its protected header and its hash."""

    protected: bytes
    digest: hashes.HashAlgorithm
    half_bytes: int


_ALGORITHMS = {
    "secp256r1": _Algorithm(b"\xa1\x01\x26", hashes.SHA256(), 32),  # {1: -7}, ES256
    "secp384r1": _Algorithm(b"\xa1\x01\x38\x22", hashes.SHA384(), 48),  # {1: -35}, ES384
    "secp521r1": _Algorithm(b"\xa1\x01\x38\x23", hashes.SHA512(), 66),  # {1: -36}, ES512
}


@dataclass(frozen=True, slots=True)
class ImageSignature:
    """A signature that fits its image and its certificate.

    Attributes:
        certificate: the signer's; nothing here says that it is to be trusted.
        subject: of the certificate, as RFC 4514 text.
    """

    certificate: x509.Certificate
    subject: str

    @property
    def certificate_der(self) -> bytes:
        """The bytes that PCR8 measures."""
        return self.certificate.public_bytes(serialization.Encoding.DER)


@dataclass(frozen=True, slots=True)
class ImageSigner:
    """A key and its certificate.

    Attributes:
        key: on P-256, P-384 or P-521.
        certificate: of that key.
    """

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def certificate_der(self) -> bytes:
        """The bytes that PCR8 measures."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def section(self, pcr0: bytes) -> bytes:
        """Give the signature section's data for an image.

        Raises:
            ArtifactError: this machine's OpenSSL cannot sign deterministically, or the certificate
                is too large.
        """
        algorithm = _ALGORITHMS[self.key.curve.name]
        payload = encode({"register_index": 0, "register_value": list(pcr0)})
        message = _to_be_signed(algorithm, payload)
        try:
            signing = ec.ECDSA(algorithm.digest, deterministic_signing=True)
            der = self.key.sign(message, signing)
        except UnsupportedAlgorithm as error:
            raise ArtifactError(
                "EIF signature: this OpenSSL has no deterministic ECDSA (RFC 6979)",
                remedy="use a `cryptography` wheel built with OpenSSL 3.2 or newer",
            ) from error
        raw = b"".join(n.to_bytes(algorithm.half_bytes, "big") for n in decode_dss_signature(der))
        envelope = encode([algorithm.protected, {}, payload, raw])
        pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        # One map in an array. AWS's tool writes the certificate first, which is not the canonical
        # order of keys, and QEMU's reader looks for it there alone.
        pairs = (("signing_certificate", pem), ("signature", envelope))
        data = b"\x81\xa2" + b"".join(encode(key) + encode(list(value)) for key, value in pairs)
        if len(data) > MAX_SIGNATURE_BYTES:
            raise ArtifactError(
                f"EIF signature: {len(data)} bytes; at most {MAX_SIGNATURE_BYTES}",
                remedy="sign with a smaller certificate",
            )
        return data


def load_image_signer(key: Path, certificate: Path) -> ImageSigner:
    """Read a signing key and its certificate.

    Args:
        key: PEM, not encrypted, on P-256, P-384 or P-521.
        certificate: PEM, of that key.

    Raises:
        ArtifactError: one cannot be read, has another form, or they do not belong together.
    """
    try:
        loaded = serialization.load_pem_private_key(_read(key, "signing key"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ArtifactError(f"signing key {key}: not a private key in PEM, unencrypted") from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.curve.name not in _ALGORITHMS:
        allowed = ", ".join(_ALGORITHMS)
        raise ArtifactError(f"signing key {key}: not an elliptic-curve key on one of {allowed}")
    try:
        cert = x509.load_pem_x509_certificate(_read(certificate, "signing certificate"))
        public = cert.public_key()
        cert.subject.rfc4514_string()  # every reader of the image parses it
    except _CERTIFICATE_ERRORS as error:
        raise ArtifactError(
            f"signing certificate {certificate}: not a PEM certificate that can be read "
            f"({type(error).__name__}); expected X.509 v3"
        ) from error
    if public != loaded.public_key():
        raise ArtifactError(
            f"signing certificate {certificate}: not of the key {key}",
            remedy="a bad certificate shows at boot only as E36, E39 or E11: give the key's own",
        )
    return ImageSigner(loaded, cert)


def read_signature(data: bytes, pcr0: bytes) -> ImageSignature:
    """Read a signature section and check it against the image.

    Args:
        data: the section's data, at most `MAX_SIGNATURE_BYTES`.
        pcr0: of the image.

    Raises:
        ArtifactError: of another form, over another image, or not by the certificate's key.
    """
    pem, envelope = _outer(data)
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        public = certificate.public_key()
        subject = certificate.subject.rfc4514_string()
    except _CERTIFICATE_ERRORS as error:
        raise ArtifactError(
            "EIF signature signing_certificate: not a PEM certificate that can be read "
            f"({type(error).__name__}); expected X.509 v3"
        ) from error
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name not in _ALGORITHMS:
        raise ArtifactError("EIF signature signing_certificate: its key is not on a NIST curve")
    algorithm = _ALGORITHMS[public.curve.name]
    payload, raw = _inner(envelope, algorithm)
    _check_payload(payload, pcr0)
    half = algorithm.half_bytes
    der = encode_dss_signature(int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))
    try:
        public.verify(der, _to_be_signed(algorithm, payload), ec.ECDSA(algorithm.digest))
    except InvalidSignature as error:
        raise ArtifactError(
            "EIF signature: not by the key of its own certificate; the file was changed"
        ) from error
    return ImageSignature(certificate, subject)


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise ArtifactError(f"{what} {path}: cannot be read: {error.strerror}") from error


def _to_be_signed(algorithm: _Algorithm, payload: bytes) -> bytes:
    """Give the Sig_structure of RFC 9052, section 4.4, without external data."""
    return encode(["Signature1", algorithm.protected, b"", payload])


def _outer(data: bytes) -> tuple[bytes, bytes]:
    """Give (certificate PEM, COSE message) of the section."""
    entries = read_cbor(data, "EIF signature")
    only = entries[0] if isinstance(entries, list) and len(entries) == 1 else None
    if not isinstance(only, dict) or set(only) != {"signing_certificate", "signature"}:
        raise ArtifactError(
            "EIF signature: expected an array of one map of signing_certificate and signature"
        )
    return (
        _octets(only["signing_certificate"], "signing_certificate"),
        _octets(only["signature"], "signature"),
    )


def _inner(envelope: bytes, algorithm: _Algorithm) -> tuple[bytes, bytes]:
    """Give (payload, raw signature) of the COSE message."""
    match read_cbor(envelope, "EIF signature"):
        case [bytes(protected), dict(unprotected), bytes(payload), bytes(raw)]:
            if protected != algorithm.protected or unprotected:
                raise ArtifactError(
                    "EIF signature headers: expected the algorithm of the certificate's key alone"
                )
            if len(raw) != 2 * algorithm.half_bytes:
                raise ArtifactError(
                    f"EIF signature: {len(raw)} bytes; expected {2 * algorithm.half_bytes}"
                )
            return payload, raw
    raise ArtifactError("EIF signature: expected an untagged COSE_Sign1, an array of four")


def _check_payload(payload: bytes, pcr0: bytes) -> None:
    stated = read_cbor(payload, "EIF signature payload")
    if (
        not isinstance(stated, dict)
        or set(stated) != {"register_index", "register_value"}
        or stated["register_index"] != 0
    ):
        raise ArtifactError("EIF signature payload: expected register_index 0 and its value")
    signed = _octets(stated["register_value"], "register_value")
    if len(signed) != PCR_BYTES or signed != pcr0:
        raise ArtifactError(
            f"EIF signature register_value: {signed.hex()}, but the image's PCR0 is {pcr0.hex()}"
        )


def _octets(values: object, what: str) -> bytes:
    """Give the bytes that stand as an array of integers."""
    try:
        if isinstance(values, list):
            return bytes(values)
    except (ValueError, TypeError):
        pass
    raise ArtifactError(f"EIF signature {what}: not an array of bytes as integers")
