"""A data key from KMS without a way out of the service: the customer's client asks for it.

The enclave sends the artifact's digest and a document with its key. The client, which holds the
customer's AWS credentials, asks KMS with that document as `Recipient`, and sends back what KMS
answered: the wrapped key, and the same key encrypted to the document's key. So the enclave needs
neither network nor credentials, the client never has the key in the open, and whoever moves the
frames sees ciphertext of the session around ciphertext of KMS.

KMS's answer is unauthenticated: a client could make one up, for a key of its own choice. It could
not wrap that key under the KMS key, whose policy allows nobody to encrypt, so no node would open
what was sealed with it; and it would harm its own artifact alone.

A local service has no document, so KMS answers the client in the open and the client passes the key
on, as it would pass on one of a key file: that is level L1.
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.artifact.key_service import DataKey, KeyReference
from runtime.artifact.kms import AwsAccess, KmsKeys, Recipient
from runtime.artifact.sealing import DATA_KEY_BYTES
from runtime.spec.errors import ArtifactError

__all__ = ["Release", "ReleasedKeys", "ask_kms"]

Release = Callable[[bytes, bytes | None], tuple[bytes, bytes]]
"""Takes (digest, document), gives (wrapped, sealed); without a document `sealed` is the key."""


class ReleasedKeys:
    """The service's side: a `KeyService` whose requests somebody else makes.

    Args:
        reference: whose KMS key seals.
        recipient: this boot's attested key pair; None for a local service.
        release: has the request made.
    """

    def __init__(
        self, reference: KeyReference, recipient: Recipient | None, release: Release
    ) -> None:
        self._reference = reference
        self._recipient = recipient
        self._release = release

    @property
    def reference(self) -> KeyReference:
        """Whose key seals."""
        return self._reference

    def generate(self, digest: bytes) -> DataKey:
        """Have a data key released for the artifact with this digest.

        Raises:
            ArtifactError: the answer is not for this boot's key.
            LumaError: the client is gone.
        """
        recipient = self._recipient
        document = None if recipient is None else recipient.document(digest)
        wrapped, sealed = self._release(digest, document)
        plain = bytearray(sealed) if recipient is None else recipient.open(sealed)
        if len(plain) != DATA_KEY_BYTES:
            raise ArtifactError(
                f"released.sealed: a key of {len(plain)} bytes; expected {DATA_KEY_BYTES}"
            )
        return DataKey(plain=plain, wrapped=wrapped, attestation=document)

    def unwrap(self, reference: KeyReference, wrapped: bytes, digest: bytes) -> bytearray:
        """Refuse: this service seals, and opens nothing."""
        del reference, wrapped, digest
        raise ArtifactError("the compile service opens no artifact")


class _Carrier(Recipient):
    """A recipient whose key is in the enclave: it sends that one's document, and keeps the answer.

    Args:
        document: the enclave's.
    """

    def __init__(self, document: bytes) -> None:
        # Not the base's: there is no key on this side.
        self._document = document
        self.sealed = b""

    def document(self, digest: bytes) -> bytes:
        """Give the enclave's document."""
        del digest
        return self._document

    def open(self, answer: bytes) -> bytearray:
        """Keep what KMS encrypted to the enclave; zeros stand for a key that only it can read."""
        self.sealed = answer
        return bytearray(DATA_KEY_BYTES)


def ask_kms(
    reference: KeyReference, access: AwsAccess, digest: bytes, document: bytes | None
) -> tuple[bytes, bytes]:
    """Ask KMS for the data key of a service; the client's side.

    Args:
        reference: the customer, and the KMS key.
        access: how KMS is reached.
        digest: SHA-384 of the manifest, 48 bytes.
        document: the enclave's, whose user_data the caller has held against `digest`; None for a
            local service.

    Returns:
        The wrapped key, and the key encrypted to the enclave; for a local service the key itself.

    Raises:
        ArtifactError: KMS refused, or cannot be reached.
    """
    if document is None:
        made = KmsKeys(reference, access=access).generate(digest)
        return made.wrapped, bytes(made.plain)
    carrier = _Carrier(document)
    released = KmsKeys(reference, recipient=carrier, access=access).generate(digest)
    return released.wrapped, carrier.sealed
