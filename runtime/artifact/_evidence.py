"""The evidence of a `.luma` file: what is made only once the manifest's digest is known.

It lies outside the signature, so each part must prove itself: a wrapped key by opening, under the
digest, to the content key that the manifest's check value commits to; an attestation document by
its own signature, over the digest as user_data. Evidence can be taken away or replaced by anyone;
then the artifact does not open, or reaches a lower level.

A canonical CBOR map of at most two fields, both optional:

    kms          {wrapped_key: bytes, content_key: 48 bytes}
    attestation  bytes
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.artifact._fields import Fields, fail
from runtime.artifact.attestation.document import MAX_DOCUMENT_BYTES
from runtime.artifact.canonical import decode, encode
from runtime.artifact.key_service import MAX_WRAPPED_BYTES
from runtime.artifact.sealing import WRAPPED_KEY_BYTES

__all__ = ["MAX_EVIDENCE_BYTES", "AttachedEvidence", "KmsEvidence"]

MAX_EVIDENCE_BYTES = MAX_DOCUMENT_BYTES + MAX_WRAPPED_BYTES + 256
"""All parts at their largest, with their names and heads."""

_MAX_ITEMS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsEvidence:
    """The two wrapped keys of an artifact that is sealed under a KMS key.

    Attributes:
        wrapped_key: the data key, which KMS alone opens.
        content_key: the content key, sealed under the data key; `sealing.wrap_content_key`.
    """

    wrapped_key: bytes
    content_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedEvidence:
    """The parts of a file's evidence.

    Attributes:
        kms: the wrapped keys; there exactly where the manifest's key source is KMS.
        attestation: the attestation document of the image that compiled and sealed. Nothing of it
            is judged by reading it.
    """

    kms: KmsEvidence | None = None
    attestation: bytes | None = field(default=None, repr=False)

    def to_bytes(self) -> bytes:
        """Give the canonical CBOR.

        Raises:
            ArtifactError: a part is not what a reader accepts.
        """
        plain: dict[str, object] = {}
        if self.kms is not None:
            plain["kms"] = {
                "wrapped_key": self.kms.wrapped_key,
                "content_key": self.kms.content_key,
            }
        if self.attestation is not None:
            plain["attestation"] = self.attestation
        data = encode(plain)
        AttachedEvidence.from_bytes(data)  # a writer must not make what a reader refuses
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> AttachedEvidence:
        """Read evidence strictly.

        Raises:
            ArtifactError: not canonical, or a part is unknown, too large or of another type.
        """
        decoded = decode(
            data, what="evidence", max_bytes=MAX_EVIDENCE_BYTES, max_depth=2, max_items=_MAX_ITEMS
        )
        fields = Fields(decoded, "evidence")
        names = fields.names()
        kms = _read_kms(fields.fields("kms")) if "kms" in names else None
        attestation = None
        if "attestation" in names:
            attestation = fields.octets("attestation", low=1, high=MAX_DOCUMENT_BYTES)
        fields.end()
        return cls(kms=kms, attestation=attestation)

    def require_kms(self, *, sealed_by_kms: bool) -> None:
        """Refuse wrapped keys that the manifest does not speak of, and the lack of them.

        Raises:
            ArtifactError: they are there and should not be, or the other way round.
        """
        if (self.kms is not None) != sealed_by_kms:
            there = "wrapped keys" if self.kms else "nothing"
            wanted = "wrapped keys" if sealed_by_kms else "none, as the key source is not kms"
            raise fail("evidence.kms", there, wanted)


def _read_kms(fields: Fields) -> KmsEvidence:
    """Read the wrapped keys."""
    kms = KmsEvidence(
        wrapped_key=fields.octets("wrapped_key", low=1, high=MAX_WRAPPED_BYTES),
        content_key=fields.octets("content_key", low=WRAPPED_KEY_BYTES, high=WRAPPED_KEY_BYTES),
    )
    fields.end()
    return kms
