"""The attested side of a KMS request: a key pair made here, and documents that vouch for it.

KMS encrypts what it releases to the public key in the attestation document, so it can be read only
where the private key is: in the enclave, or on the instance, that was measured. The pair is made in
memory, lives as long as this object, and is never written.
"""

from __future__ import annotations

import os
from typing import Protocol

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from runtime.artifact.kms.cms import open_enveloped

__all__ = ["Attester", "Recipient"]

_RSA_BITS = 2048
"""KMS takes 2048, 3072 and 4096; a fresh key of an hour's use gains nothing from more."""
_EXPONENT = 65537
_NONCE_BYTES = 32


class Attester(Protocol):
    """What asks the hardware (NSM or NitroTPM) for an attestation document."""

    def attestation(self, *, user_data: bytes, nonce: bytes, public_key: bytes) -> bytes:
        """Give a fresh document of these three.

        Args:
            user_data: 48 bytes.
            nonce: 32 bytes.
            public_key: DER SubjectPublicKeyInfo, 294 bytes.

        Raises:
            LumaError: the device refused or is not there.
        """
        ...


class Recipient:
    """An RSA key pair and the attester that vouches for it.

    Args:
        attester: what makes the documents.
        key: a pair that was made on this side before; default: a fresh one.
    """

    def __init__(self, attester: Attester, *, key: rsa.RSAPrivateKey | None = None) -> None:
        self._attester = attester
        self._key = key or rsa.generate_private_key(public_exponent=_EXPONENT, key_size=_RSA_BITS)
        self._public = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def document(self, digest: bytes) -> bytes:
        """Give a fresh attestation document of this key, with an artifact's digest as user_data.

        Its nonce is random, so that no two documents are equal and a replay can be told.

        Raises:
            LumaError: the attester has none.
        """
        return self._attester.attestation(
            user_data=digest, nonce=os.urandom(_NONCE_BYTES), public_key=self._public
        )

    def open(self, answer: bytes) -> bytearray:
        """Give what KMS encrypted to this key; the caller wipes it.

        Raises:
            ArtifactError: the answer has another form, or was made for another key.
        """
        return open_enveloped(answer, self._key)
