"""Trust roots: explicit values, and one set for production that nothing can widen.

A root is named by the SHA-256 of its certificate's DER, since a document brings the certificate
along. `PRODUCTION_ROOTS` holds AWS's alone (CN=aws.nitro-enclaves, 2019-10-28 to 2049-10-28, the
file AWS_NitroEnclaves_Root-G1.zip). This package reads no environment variable, file or option;
a test that makes its own documents passes its own set, and no other set is ever trusted with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from runtime.artifact.attestation._refuse import refusal
from runtime.artifact.attestation.rules import Rule

__all__ = ["AWS_NITRO_ROOT_SHA256", "PRODUCTION_ROOTS", "TrustRoots"]

AWS_NITRO_ROOT_SHA256: Final = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"
"""Of the DER of AWS's Nitro root certificate G1, for enclaves and NitroTPM alike."""


@dataclass(frozen=True, slots=True)
class TrustRoots:
    """A set of roots.

    Attributes:
        sha256: the digests of the roots' DER, 32 bytes each.

    Raises:
        AttestationError: the set is empty or holds something else.
    """

    sha256: frozenset[bytes]

    def __post_init__(self) -> None:
        if not isinstance(self.sha256, frozenset) or not self.sha256:
            raise refusal(Rule.ROOTS, "roots", self.sha256, "a frozenset of at least one digest")
        for digest in self.sha256:
            if not isinstance(digest, bytes) or len(digest) != 32:
                raise refusal(Rule.ROOTS, "roots", digest, "SHA-256 digests of 32 bytes")

    @classmethod
    def of_certificates(cls, certificates: Iterable[bytes]) -> TrustRoots:
        """Give the set that trusts these root certificates, DER."""
        return cls(frozenset(hashlib.sha256(der).digest() for der in certificates))

    def holds(self, certificate: bytes) -> bool:
        """Tell whether a certificate, DER, is one of the roots."""
        return hashlib.sha256(certificate).digest() in self.sha256


PRODUCTION_ROOTS: Final = TrustRoots(frozenset({bytes.fromhex(AWS_NITRO_ROOT_SHA256)}))
"""AWS's Nitro root, and nothing else."""
