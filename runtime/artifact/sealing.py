"""Keys derived from the customer's data key, and the sealing of chunks and small blobs.

From the 32-byte data key and an artifact's random salt, HKDF-SHA-384 derives three secrets:

- the *check value*, public, which tells a wrong key from a broken file;
- the *digest key*, under which chunk digests are HMACs, so that nobody without the key can confirm
  a guess of a sealed payload from the manifest, and no second key opens the same file;
- the *chunk key*, which also depends on the manifest's digest: even a repeated salt could not make
  two artifacts share a key and nonces.

A chunk is AES-256-GCM with the nonce (payload, chunk) and the associated data (manifest digest,
target, chunk, last). So a chunk that was changed, moved, dropped or taken from another artifact,
target or version of the manifest fails to open.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from runtime.artifact.canonical import encode
from runtime.spec.errors import ArtifactError

__all__ = [
    "CHECK_BYTES",
    "DATA_KEY_BYTES",
    "DIGEST_BYTES",
    "MAX_BLOB_BYTES",
    "SALT_BYTES",
    "TAG_BYTES",
    "ChunkPlace",
    "ChunkSealer",
    "ManifestKeys",
    "open_blob",
    "plain_digest",
    "seal_blob",
]

DATA_KEY_BYTES = 32
SALT_BYTES = 32
CHECK_BYTES = 16
DIGEST_BYTES = 48
TAG_BYTES = 16
MAX_BLOB_BYTES = 1 << 30
"""Largest blob: one AES-GCM call takes less than 2 GiB."""

_BLOB_MAGIC = b"\x89LUMABLOB\x01"
_BLOB_NONCE = bytes(12)  # a blob's key is used once: its salt is fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlace:
    """Where a chunk belongs.

    Attributes:
        payload: index of the payload in the manifest.
        target: the payload's target.
        chunk: index of the chunk in the payload.
        last: whether it is the payload's last chunk.
    """

    payload: int
    target: str
    chunk: int
    last: bool

    def __str__(self) -> str:
        """Give the name used in error messages."""
        return f"payload {self.target}: chunk {self.chunk}"


def plain_digest(chunk: bytes) -> bytes:
    """Give the SHA-384 of a chunk of an unsealed artifact."""
    return hashlib.sha384(chunk).digest()


@dataclass(frozen=True, slots=True)
class ManifestKeys:
    """The two secrets that a manifest needs before its own digest is known.

    Attributes:
        check: the public check value.
        digest_key: the key of the chunk digests.
    """

    check: bytes
    digest_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, data_key: bytes, salt: bytes) -> ManifestKeys:
        """Derive both from the 32-byte data key and the artifact's salt.

        Raises:
            ArtifactError: the data key has another length.
        """
        return cls(
            check=_derive(data_key, salt, b"luma/1 check", CHECK_BYTES),
            digest_key=_derive(data_key, salt, b"luma/1 digest", DIGEST_BYTES),
        )

    def digest(self, chunk: bytes) -> bytes:
        """Give the HMAC-SHA-384 of a plain chunk."""
        return hmac.digest(self.digest_key, chunk, "sha384")


class ChunkSealer:
    """Seals and opens the chunks of one artifact.

    Args:
        data_key: the customer's key, 32 bytes.
        salt: the artifact's salt, 32 bytes.
        manifest_digest: SHA-384 of the manifest bytes.

    Raises:
        ArtifactError: the data key has another length.
    """

    def __init__(self, data_key: bytes, salt: bytes, manifest_digest: bytes) -> None:
        self._digest = manifest_digest
        key = _derive(data_key, salt, b"luma/1 chunks" + manifest_digest, DATA_KEY_BYTES)
        self._cipher = AESGCM(key)

    def seal(self, chunk: bytes, place: ChunkPlace) -> bytes:
        """Give the sealed form: as many bytes, and the 16-byte tag."""
        return self._cipher.encrypt(_nonce(place), chunk, self._associated(place))

    def open(self, sealed: bytes, place: ChunkPlace) -> bytes:
        """Give the plain chunk.

        Raises:
            ArtifactError: the bytes are not what was sealed for this place.
        """
        try:
            return self._cipher.decrypt(_nonce(place), sealed, self._associated(place))
        except InvalidTag as error:
            raise ArtifactError(
                f"{place} does not open: it was changed, moved or belongs to another artifact"
            ) from error

    def _associated(self, place: ChunkPlace) -> bytes:
        """Give the associated data of a place in this artifact."""
        return encode(["luma/chunk/1", self._digest, place.target, place.chunk, place.last])


def seal_blob(data: bytes, key: bytes, context: bytes) -> bytes:
    """Seal a local blob, such as a compile cache entry, for the holder of `key`.

    Args:
        data: at most 1 GiB.
        key: 32 bytes.
        context: what the blob is; only the same context opens it again.

    Returns:
        magic, 32 bytes of salt, AES-256-GCM of `data` under a key derived for this blob alone.

    Raises:
        ArtifactError: `data` is too large or the key has another length.
    """
    if len(data) > MAX_BLOB_BYTES:
        raise ArtifactError(f"blob: {len(data)} bytes are more than the {MAX_BLOB_BYTES} allowed")
    salt = os.urandom(SALT_BYTES)
    cipher = AESGCM(_derive(key, salt, b"luma/1 blob", DATA_KEY_BYTES))
    return _BLOB_MAGIC + salt + cipher.encrypt(_BLOB_NONCE, data, _BLOB_MAGIC + context)


def open_blob(sealed: bytes, key: bytes, context: bytes) -> bytes:
    """Give what `seal_blob` sealed with the same key and context.

    Raises:
        ArtifactError: another format, another key or context, or changed bytes.
    """
    start = len(_BLOB_MAGIC) + SALT_BYTES
    if not sealed.startswith(_BLOB_MAGIC) or len(sealed) < start + TAG_BYTES:
        raise ArtifactError("blob: not a sealed blob of this version, or cut short")
    if len(sealed) > start + MAX_BLOB_BYTES + TAG_BYTES:
        raise ArtifactError(f"blob: {len(sealed)} bytes are more than allowed")
    cipher = AESGCM(_derive(key, sealed[len(_BLOB_MAGIC) : start], b"luma/1 blob", DATA_KEY_BYTES))
    try:
        return cipher.decrypt(_BLOB_NONCE, sealed[start:], _BLOB_MAGIC + context)
    except InvalidTag as error:
        raise ArtifactError(
            "blob: does not open; it was changed, or sealed with another key or context"
        ) from error


def _derive(key: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """Derive `size` bytes by HKDF-SHA-384 (RFC 5869)."""
    if not isinstance(key, bytes) or len(key) != DATA_KEY_BYTES:
        raise ArtifactError(
            f"data key: expected {DATA_KEY_BYTES} bytes",
            remedy="load the key file with runtime.artifact.load_data_key",
        )
    return HKDF(algorithm=hashes.SHA384(), length=size, salt=salt, info=info).derive(key)


def _nonce(place: ChunkPlace) -> bytes:
    """Give the 12-byte nonce: no two chunks of an artifact have the same."""
    return struct.pack(">IQ", place.payload, place.chunk)
