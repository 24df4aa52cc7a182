"""Keys derived from an artifact's content key, and the sealing of chunks and small blobs.

The *content key* is 32 bytes. Under a key file it is the customer's data key itself. Under KMS it is
random, of this artifact alone, and sealed in turn under a data key that KMS releases for the
artifact's digest; `wrap_content_key`. From it and the artifact's random salt, HKDF-SHA-384 derives
three secrets:

- the *check value*, public, which tells a wrong key from a broken file;
- the *digest key*, under which chunk digests are keyed BLAKE3, so that nobody without the key can
  confirm a guess of a sealed payload from the manifest, and no second key opens the same file;
- the *chunk key*, which also depends on the manifest's digest: even a repeated salt could not make
  two artifacts share a key and nonces.

A chunk is AES-256-GCM with the nonce (payload, chunk) and the associated data (manifest digest,
target, chunk, last). So a chunk that was changed, moved, dropped or taken from another artifact,
target or version of the manifest fails to open.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from runtime.artifact.canonical import encode
from runtime.spec.errors import ArtifactError

__all__ = [
    "CHECK_BYTES",
    "CHUNK_DIGEST_BYTES",
    "DATA_KEY_BYTES",
    "DIGEST_BYTES",
    "MAX_BLOB_BYTES",
    "SALT_BYTES",
    "TAG_BYTES",
    "WRAPPED_KEY_BYTES",
    "ChunkPlace",
    "ChunkSealer",
    "ManifestKeys",
    "open_blob",
    "plain_digest",
    "seal_blob",
    "unwrap_content_key",
    "wrap_content_key",
]

DATA_KEY_BYTES = 32
SALT_BYTES = 32
CHECK_BYTES = 16
DIGEST_BYTES = 48
"""An artifact's digest: SHA-384 of its manifest."""

CHUNK_DIGEST_BYTES = 32
"""A chunk's digest: BLAKE3. Two chunks of one digest take about 2^128 tries to find."""

TAG_BYTES = 16
WRAPPED_KEY_BYTES = DATA_KEY_BYTES + TAG_BYTES
MAX_BLOB_BYTES = 1 << 30
"""Largest blob: one AES-GCM call takes less than 2 GiB."""

_DIGEST_KEY_BYTES = 32  # what BLAKE3's keyed mode takes
_BLOB_MAGIC = b"\x89LUMABLOB\x01"
_ONCE = bytes(12)  # the nonce of a key that is used once, since its salt or itself is fresh


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
    """Give the BLAKE3 of a chunk of an unsealed artifact."""
    return blake3(chunk).digest()


@dataclass(frozen=True, slots=True)
class ManifestKeys:
    """The two secrets that a manifest needs before its own digest is known.

    Attributes:
        check: the public check value.
        digest_key: the key of the chunk digests, 32 bytes.
    """

    check: bytes
    digest_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, content_key: bytes | bytearray, salt: bytes) -> ManifestKeys:
        """Derive both from the 32-byte content key and the artifact's salt.

        Raises:
            ArtifactError: the key has another length.
        """
        return cls(
            check=_derive(content_key, salt, b"luma/1 check", CHECK_BYTES),
            digest_key=_derive(content_key, salt, b"luma/2 digest", _DIGEST_KEY_BYTES),
        )

    def digest(self, chunk: bytes) -> bytes:
        """Give the keyed BLAKE3 of a plain chunk."""
        return blake3(chunk, key=self.digest_key).digest()


class ChunkSealer:
    """Seals and opens the chunks of one artifact.

    Args:
        content_key: 32 bytes.
        salt: the artifact's salt, 32 bytes.
        manifest_digest: SHA-384 of the manifest bytes.

    Raises:
        ArtifactError: the key has another length.
    """

    def __init__(self, content_key: bytes | bytearray, salt: bytes, manifest_digest: bytes) -> None:
        self._digest = manifest_digest
        key = _derive(content_key, salt, b"luma/1 chunks" + manifest_digest, DATA_KEY_BYTES)
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


def wrap_content_key(
    content_key: bytes | bytearray, data_key: bytes | bytearray, salt: bytes, manifest_digest: bytes
) -> bytes:
    """Seal an artifact's content key under a data key that is used for nothing else.

    Args:
        content_key: 32 bytes.
        data_key: 32 fresh bytes, released for this artifact.
        salt: the artifact's salt.
        manifest_digest: SHA-384 of the manifest bytes.

    Returns:
        48 bytes: AES-256-GCM under HKDF-SHA-384 of the data key, bound to the digest.

    Raises:
        ArtifactError: the data key has another length.
    """
    cipher, associated = _wrapping(data_key, salt, manifest_digest)
    return cipher.encrypt(_ONCE, bytes(content_key), associated)


def unwrap_content_key(
    wrapped: bytes, data_key: bytes | bytearray, salt: bytes, manifest_digest: bytes
) -> bytearray:
    """Give what `wrap_content_key` sealed; the caller wipes it.

    Raises:
        ArtifactError: sealed under another data key, for another artifact, or changed.
    """
    cipher, associated = _wrapping(data_key, salt, manifest_digest)
    try:
        return bytearray(cipher.decrypt(_ONCE, wrapped, associated))
    except InvalidTag as error:
        raise ArtifactError(
            "evidence.kms.content_key: does not open with the data key that the key service "
            "released; it was changed, or belongs to another artifact"
        ) from error


def _wrapping(
    data_key: bytes | bytearray, salt: bytes, manifest_digest: bytes
) -> tuple[AESGCM, bytes]:
    """Give (cipher, associated data) of a wrapped content key."""
    key = _derive(data_key, salt, b"luma/1 wrap" + manifest_digest, DATA_KEY_BYTES)
    return AESGCM(key), encode(["luma/wrap/1", manifest_digest])


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
    return _BLOB_MAGIC + salt + cipher.encrypt(_ONCE, data, _BLOB_MAGIC + context)


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
        return cipher.decrypt(_ONCE, memoryview(sealed)[start:], _BLOB_MAGIC + context)
    except InvalidTag as error:
        raise ArtifactError(
            "blob: does not open; it was changed, or sealed with another key or context"
        ) from error


def _derive(key: bytes | bytearray, salt: bytes, info: bytes, size: int) -> bytes:
    """Derive `size` bytes by HKDF-SHA-384 (RFC 5869)."""
    if not isinstance(key, bytes | bytearray) or len(key) != DATA_KEY_BYTES:
        raise ArtifactError(
            f"data key: expected {DATA_KEY_BYTES} bytes",
            remedy="load the key file with runtime.artifact.load_data_key",
        )
    return HKDF(algorithm=hashes.SHA384(), length=size, salt=salt, info=info).derive(key)


def _nonce(place: ChunkPlace) -> bytes:
    """Give the 12-byte nonce: no two chunks of an artifact have the same."""
    return struct.pack(">IQ", place.payload, place.chunk)
