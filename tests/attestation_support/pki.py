"""A P-384 PKI with the shape of AWS's: root, regional, zonal and instance CA, leaf.

Lifetimes and path lengths are those of real documents: root 30 years and no path length, regional
20 days and 2, zonal 6 days and 1, instance 1 day and 0, leaf 3 hours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

EPOCH = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
"""The time of tests that need no real clock."""

_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Give a fresh P-384 key."""
    return ec.generate_private_key(ec.SECP384R1())


def key_usage(*names: str) -> x509.KeyUsage:
    """Give a KeyUsage with just these bits."""
    return x509.KeyUsage(**{name: name in names for name in _USAGES})


def common_name(text: str) -> x509.Name:
    """Give a name of one part."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def make_certificate(
    *,
    subject: str,
    issuer: str,
    public_key,
    signer,
    first: datetime,
    last: datetime,
    extensions: tuple[tuple[x509.ExtensionType, bool], ...],
    algorithm: hashes.HashAlgorithm | None = None,
    serial: int | None = None,
) -> bytes:
    """Give a certificate, DER; `extensions` are (extension, critical)."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(common_name(subject))
        .issuer_name(common_name(issuer))
        .public_key(public_key)
        .serial_number(x509.random_serial_number() if serial is None else serial)
        .not_valid_before(first)
        .not_valid_after(last)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, algorithm or hashes.SHA384()).public_bytes(Encoding.DER)


def ca_extensions(path_length: int | None, *, critical: bool = True):
    """Give what AWS's CAs carry, as far as it matters."""
    return (
        (x509.BasicConstraints(ca=True, path_length=path_length), critical),
        (key_usage("key_cert_sign", "crl_sign"), True),
    )


LEAF_EXTENSIONS = (
    (x509.BasicConstraints(ca=False, path_length=None), True),
    (key_usage("digital_signature", "content_commitment"), False),
)


@dataclass(frozen=True)
class Pki:
    """One hierarchy: certificates root first, their keys, and the leaf with its key.

    Attributes:
        names: of the CAs.
        keys: of the CAs.
        cabundle: the CAs' certificates, DER.
        leaf_key: signs documents.
        leaf: its certificate, DER.
    """

    names: tuple[str, ...]
    keys: tuple[ec.EllipticCurvePrivateKey, ...]
    cabundle: tuple[bytes, ...]
    leaf_key: ec.EllipticCurvePrivateKey
    leaf: bytes

    @property
    def root_sha256(self) -> bytes:
        """The digest of the root's DER, which a verifier trusts."""
        return hashlib.sha256(self.cabundle[0]).digest()

    @classmethod
    def create(cls, at: datetime | None = None) -> Pki:
        """Make a hierarchy that is valid around `at`. Default: now."""
        at = datetime.now(UTC) if at is None else at
        names = ("luma test root", "regional.test", "zonal.test", "instance.test")
        keys = tuple(new_key() for _ in names)
        spans = (
            (timedelta(days=2500), timedelta(days=8400), None),
            (timedelta(days=5), timedelta(days=15), 2),
            (timedelta(days=1), timedelta(days=5), 1),
            (timedelta(hours=1), timedelta(hours=23), 0),
        )
        cabundle = tuple(
            make_certificate(
                subject=names[i],
                issuer=names[max(i - 1, 0)],
                public_key=keys[i].public_key(),
                signer=keys[max(i - 1, 0)],
                first=at - before,
                last=at + after,
                extensions=ca_extensions(path_length),
            )
            for i, (before, after, path_length) in enumerate(spans)
        )
        made = cls(names, keys, cabundle, new_key(), b"")
        return made.with_leaf(at)

    def with_leaf(self, at: datetime, **changes) -> Pki:
        """Give the hierarchy with a new leaf, of the same key, valid from 3 s before `at`."""
        fields = {
            "subject": "leaf.test",
            "issuer": self.names[-1],
            "public_key": self.leaf_key.public_key(),
            "signer": self.keys[-1],
            "first": at - timedelta(seconds=3),
            "last": at + timedelta(hours=3),
            "extensions": LEAF_EXTENSIONS,
        } | changes
        return replace(self, leaf=make_certificate(**fields))

    def with_ca(self, index: int, at: datetime, **changes) -> Pki:
        """Give the hierarchy with one CA's certificate made anew, of the same key."""
        path_length = (None, 2, 1, 0)[index]
        fields = {
            "subject": self.names[index],
            "issuer": self.names[max(index - 1, 0)],
            "public_key": self.keys[index].public_key(),
            "signer": self.keys[max(index - 1, 0)],
            "first": at - timedelta(hours=1),
            "last": at + timedelta(hours=23),
            "extensions": ca_extensions(path_length),
        } | changes
        der = make_certificate(**fields)
        bundle = (*self.cabundle[:index], der, *self.cabundle[index + 1 :])
        return replace(self, cabundle=bundle)
