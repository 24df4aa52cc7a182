"""The seam between an artifact and the service that keeps a customer's key.

A writer asks the service for a *data key* of one artifact, once that artifact's digest is known; a
reader asks it to unwrap that key again. Both name the customer and the digest, and the service
gives nothing out for other names. `runtime.artifact.kms` is the service on AWS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from runtime.artifact._fields import fail
from runtime.spec.key_names import CUSTOMER, KEY_ARN

__all__ = ["MAX_WRAPPED_BYTES", "DataKey", "KeyReference", "KeyService", "wipe"]

MAX_WRAPPED_BYTES = 6144
"""Largest wrapped key: KMS's limit of a ciphertext."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReference:
    """Whose key seals an artifact, and where it is kept: public, and part of the manifest.

    Attributes:
        arn: the ARN of a KMS key; no alias, since an alias can be pointed at another key.
        customer: the customer's name, 1 to 63 of a-z, 0-9, `.`, `_` and `-`.

    Raises:
        ArtifactError: a field has another form.
    """

    arn: str
    customer: str

    def __post_init__(self) -> None:
        if not isinstance(self.arn, str) or not KEY_ARN.fullmatch(self.arn):
            raise fail("key_arn", self.arn, "arn:aws:kms:REGION:ACCOUNT:key/ID")
        if not isinstance(self.customer, str) or not CUSTOMER.fullmatch(self.customer):
            raise fail("customer", self.customer, "1 to 63 of a-z, 0-9, '.', '_' and '-'")

    @property
    def region(self) -> str:
        """The region that keeps the key."""
        return self.arn.split(":")[3]


@dataclass(slots=True, kw_only=True)
class DataKey:
    """A data key of one artifact.

    Attributes:
        plain: the key, 32 bytes; whoever uses it wipes it.
        wrapped: the form that only the service can open; it travels with the artifact.
        attestation: the document that the service released the key to, where it asked for one. Its
            user_data is the artifact's digest, so it can travel with the artifact as evidence.
    """

    plain: bytearray = field(repr=False)
    wrapped: bytes = field(repr=False)
    attestation: bytes | None = field(default=None, repr=False)


class KeyService(Protocol):
    """What keeps customers' keys."""

    @property
    def reference(self) -> KeyReference:
        """Whose key, and which, seals new artifacts."""
        ...

    def generate(self, digest: bytes) -> DataKey:
        """Make the data key of the artifact with this digest, under the key of `reference`.

        Args:
            digest: SHA-384 of the manifest, 48 bytes.

        Raises:
            ArtifactError: the service refused or cannot be reached.
        """
        ...

    def unwrap(self, reference: KeyReference, wrapped: bytes, digest: bytes) -> bytearray:
        """Give the data key again; the caller wipes it.

        Args:
            reference: what the manifest names.
            wrapped: from the artifact's evidence.
            digest: as `generate`.

        Raises:
            ArtifactError: the reference is another customer's or names a key that this side does
                not use; the service refused or cannot be reached.
        """
        ...


def wipe(secret: bytearray) -> None:
    """Overwrite a secret: best effort, since copies made by libraries stay until they are reused."""
    secret[:] = bytes(len(secret))
