"""The certificates of a document: from a trusted root to the leaf that signed it.

AWS's rules ("Verifying the root of trust", and RFC 5280 where it is silent), top down, so that no
certificate is parsed before its issuer is believed:

- the root is one of the trusted ones, byte for byte; its own signature proves nothing more;
- every certificate has a P-384 key, is signed with ECDSA and SHA-384, is valid at the moment, and
  has no critical extension but basic constraints and key usage;
- every issuer is a CA by a *critical* basicConstraints, with a path length that covers the CAs
  below it, and may sign certificates;
- the leaf is no CA and may sign;
- every certificate is signed by the one before it, which it names as its issuer.

Revocation lists are not read: AWS's documents live three hours, and a verifier in an enclave or a
build machine has no network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, SignatureAlgorithmOID

from runtime.artifact.attestation._refuse import refusal
from runtime.artifact.attestation.roots import TrustRoots
from runtime.artifact.attestation.rules import Rule
from runtime.spec.errors import AttestationError

__all__ = ["Chain", "verify_chain"]

_ECDSA_WITH_SHA384 = SignatureAlgorithmOID.ECDSA_WITH_SHA384.dotted_string
_CRITICAL_KNOWN = frozenset({ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE})
_DER_ERRORS = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    Warning,
)
"""What cryptography raises for certificates that it cannot read, most of it on first use.

`Warning` where a process makes errors of warnings: cryptography warns of a serial number below 1.
"""

_ExtensionT = TypeVar("_ExtensionT", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class Chain:
    """A verified chain.

    Attributes:
        key: the leaf's.
        subjects: of all certificates, root first, as RFC 4514 text.
    """

    key: ec.EllipticCurvePublicKey
    subjects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Certificate:
    """What the rules ask of a certificate, read whole, so that nothing fails later."""

    where: str
    x509: x509.Certificate
    key: object
    algorithm: str
    extensions: x509.Extensions
    first: datetime
    last: datetime
    subject: str


def verify_chain(
    certificate: bytes, cabundle: tuple[bytes, ...], *, roots: TrustRoots, moment: datetime
) -> Chain:
    """Verify the chain of a document.

    Args:
        certificate: the leaf, DER.
        cabundle: the issuers, DER, root first.
        roots: the trusted roots.
        moment: when every certificate must be valid, with its time zone.

    Raises:
        AttestationError: a rule of this module's docstring is broken; `chain.*`.
    """
    if not roots.holds(cabundle[0]):
        digest = hashlib.sha256(cabundle[0]).hexdigest()
        raise AttestationError(
            f"payload.cabundle[0]: a root with SHA-256 {digest} is not allowed; expected a trusted "
            "one; production trusts AWS's Nitro root alone",
            rule=Rule.ROOT,
            remedy="documents of test hardware are verified with the test's own roots",
        )
    issuer = _read_issuer(cabundle, 0, moment)
    subjects = [issuer.subject]
    for index in range(1, len(cabundle)):
        current = _read_issuer(cabundle, index, moment)
        _check_issued(current, issuer)
        subjects.append(current.subject)
        issuer = current
    leaf = _read("payload.certificate", certificate)
    key = _check_form(leaf, moment)
    _check_leaf(leaf)
    _check_issued(leaf, issuer)
    return Chain(key, (*subjects, leaf.subject))


def _read_issuer(cabundle: tuple[bytes, ...], index: int, moment: datetime) -> _Certificate:
    """Read one of the issuers, and check all but its signature."""
    issuer = _read(f"payload.cabundle[{index}]", cabundle[index])
    _check_form(issuer, moment)
    _check_issuer(issuer, cas_below=len(cabundle) - 1 - index)
    return issuer


def _read(where: str, der: bytes) -> _Certificate:
    """Parse a certificate, all of it that is used."""
    with _der_errors(where):
        parsed = x509.load_der_x509_certificate(der)
        return _Certificate(
            where=where,
            x509=parsed,
            key=parsed.public_key(),
            algorithm=parsed.signature_algorithm_oid.dotted_string,
            extensions=parsed.extensions,
            first=parsed.not_valid_before_utc,
            last=parsed.not_valid_after_utc,
            subject=parsed.subject.rfc4514_string(),
        )


@contextmanager
def _der_errors(where: str) -> Generator[None]:
    try:
        yield
    except _DER_ERRORS as error:
        raise AttestationError(
            f"{where}: not a certificate that can be read ({type(error).__name__}); "
            "expected X.509 v3 in DER",
            rule=Rule.CHAIN_DER,
        ) from error


def _check_form(certificate: _Certificate, moment: datetime) -> ec.EllipticCurvePublicKey:
    """Check what is asked of every certificate; give its key."""
    where, key = certificate.where, certificate.key
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise refusal(Rule.CHAIN_KEY, f"{where}.key", type(key).__name__, "a key on P-384")
    if certificate.algorithm != _ECDSA_WITH_SHA384:
        raise refusal(
            Rule.CHAIN_ALGORITHM,
            f"{where}.signature_algorithm",
            certificate.algorithm,
            f"{_ECDSA_WITH_SHA384}, ECDSA with SHA-384",
        )
    for extension in certificate.extensions:
        if extension.critical and extension.oid not in _CRITICAL_KNOWN:
            raise refusal(
                Rule.CHAIN_EXTENSION,
                f"{where}.extensions",
                extension.oid.dotted_string,
                "no critical one but basicConstraints and keyUsage",
            )
    _check_validity(certificate, moment)
    return key


def _check_validity(certificate: _Certificate, moment: datetime) -> None:
    if not certificate.first <= moment <= certificate.last:
        raise refusal(
            Rule.CHAIN_VALIDITY,
            f"{certificate.where}.validity",
            moment.isoformat(),
            f"a time from {certificate.first.isoformat()} to {certificate.last.isoformat()}",
        )


def _check_issuer(certificate: _Certificate, *, cas_below: int) -> None:
    """Check that a certificate may issue others, with `cas_below` CAs between it and the leaf."""
    where = certificate.where
    constraints = _ca_constraints(certificate)
    length = constraints.path_length
    if length is not None and length < cas_below:
        raise refusal(
            Rule.CHAIN_PATH_LENGTH, f"{where}.pathLenConstraint", length, f"at least {cas_below}"
        )
    _check_usage(certificate, "keyCertSign", lambda usage: usage.key_cert_sign)


def _ca_constraints(certificate: _Certificate) -> x509.BasicConstraints:
    """Give the constraints of a certificate that must be a CA's."""
    found = _extension(certificate, x509.BasicConstraints)
    if found is not None and found.critical and found.value.ca:
        return found.value
    shown = "absent" if found is None else "not critical" if found.value.ca else "ca false"
    raise refusal(
        Rule.CHAIN_CA,
        f"{certificate.where}.basicConstraints",
        shown,
        "a critical one with ca true",
    )


def _check_leaf(certificate: _Certificate) -> None:
    """Check that the leaf signs documents and nothing else."""
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is not None and constraints.value.ca:
        raise refusal(
            Rule.CHAIN_CA, f"{certificate.where}.basicConstraints", "ca true", "no CA as leaf"
        )
    _check_usage(certificate, "digitalSignature", lambda usage: usage.digital_signature)


def _check_usage(
    certificate: _Certificate, name: str, allowed: Callable[[x509.KeyUsage], bool]
) -> None:
    usage = _extension(certificate, x509.KeyUsage)
    if usage is None or not allowed(usage.value):
        shown = "absent" if usage is None else f"without {name}"
        raise refusal(Rule.CHAIN_KEY_USAGE, f"{certificate.where}.keyUsage", shown, name)


def _check_issued(certificate: _Certificate, issuer: _Certificate) -> None:
    """Check name and signature of a certificate against the one above it."""
    try:
        certificate.x509.verify_directly_issued_by(issuer.x509)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise AttestationError(
            f"{certificate.where}: not issued by {issuer.where} ({type(error).__name__}); "
            "expected its name and its signature",
            rule=Rule.CHAIN_ISSUER,
        ) from error


def _extension(
    certificate: _Certificate, kind: type[_ExtensionT]
) -> x509.Extension[_ExtensionT] | None:
    """Give an extension, or None where the certificate has none of the kind."""
    try:
        return certificate.extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        return None
