"""Opening a `.luma` artifact: signature first, then the key, then chunk by chunk.

Nothing of a file is given out before it is checked: sizes and version, the exact length of the
file, the signature, the signer, the key's check value; then each chunk against its seal and its
digest. Memory is bounded by the manifest's limit, one chunk, and what a payload is without its
executables; `payload` and `target_payload` alone hold a payload.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from runtime.artifact._cose import check1, split1
from runtime.artifact._evidence import AttachedEvidence
from runtime.artifact._layout import MAX_ENVELOPE_BYTES, PRELUDE_BYTES, Prelude
from runtime.artifact._skim import PayloadSkimmer
from runtime.artifact.key_service import KeyService, wipe
from runtime.artifact.keys import public_key_bytes, signer_fingerprint
from runtime.artifact.manifest import Manifest, Seal
from runtime.artifact.payloads import PayloadDescription, PayloadEntry
from runtime.artifact.program import TargetPayload
from runtime.artifact.sealing import (
    TAG_BYTES,
    ChunkPlace,
    ChunkSealer,
    ManifestKeys,
    plain_digest,
    unwrap_content_key,
)
from runtime.spec.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["Artifact", "open_artifact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An artifact whose manifest is checked; payloads are checked as they are read.

    Attributes:
        path: the file.
        manifest: the signed description.
        digest: the artifact's digest, "sha384:" and hex.
        signer_trusted: whether the signer is the one that the caller trusts.
        attestation: the attestation document that travels with it, not judged; None without one.
        chunks_start: offset of the first chunk in the file.
    """

    path: Path
    manifest: Manifest
    digest: str
    signer_trusted: bool
    attestation: bytes | None = field(repr=False)
    chunks_start: int
    _digest_chunk: Callable[[bytes], bytes] | None = field(repr=False)
    _sealer: ChunkSealer | None = field(repr=False)

    @property
    def can_read_payloads(self) -> bool:
        """Whether payloads are plain, or the right key was given."""
        return self._digest_chunk is not None

    def payload(self, target: str) -> bytes:
        """Give a target's payload, whole and checked; `TargetPayload.from_bytes` reads it.

        Raises:
            ArtifactError: no such target, no key, or a chunk is not what was sealed.
        """
        return b"".join(self.chunks(target))

    def target_payload(self, target: str) -> TargetPayload:
        """Give a target's payload, parsed, after comparing it with the manifest's description.

        Raises:
            ArtifactError: as `payload`; or it is malformed, for another target, or not as the
                manifest describes it.
        """
        parsed = TargetPayload.from_bytes(self.payload(target))
        self._compare(target, parsed.target, PayloadDescription.of(parsed))
        return parsed

    def check_payload(self, target: str) -> None:
        """Judge a target's payload as `target_payload` does, without holding its executables.

        Raises:
            ArtifactError: as `target_payload`; or the payload is more than 256 MiB without them.
        """
        skimmer = PayloadSkimmer()
        for chunk in self.chunks(target):
            skimmer.feed(chunk)
        self._compare(target, *skimmer.describe())

    def _compare(self, target: str, found: str, description: PayloadDescription) -> None:
        """Refuse a payload of another target, or of another description than the manifest's."""
        _, entry = self.manifest.entry(target)
        if found != target:
            raise ArtifactError(f"payload {target}: was compiled for target {found!r}")
        if description != entry.description:
            raise ArtifactError(f"payload {target}: is not what the manifest describes")

    def chunks(self, target: str) -> Iterator[bytes]:
        """Give a target's payload chunk by chunk, each checked before it is given.

        Use nothing of it before the end: only a payload that was read whole is a payload.

        Raises:
            ArtifactError: as `payload`.
        """
        index, entry = self.manifest.entry(target)
        if self._digest_chunk is None:
            raise ArtifactError(
                f"payload {target}: is sealed, and no key was given",
                remedy="give the data key file that it was compiled with, or its key service",
            )
        start = self.chunks_start + sum(
            self.manifest.stored_bytes(other) for other in self.manifest.payloads[:index]
        )
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                for number in range(len(entry.digests)):
                    yield self._read_chunk(file, index, entry, number)
        except OSError as error:
            raise ArtifactError(
                f"artifact {self.path}: cannot be read: {error.strerror}"
            ) from error

    def _read_chunk(self, file: BinaryIO, index: int, entry: PayloadEntry, number: int) -> bytes:
        """Read, open and check the next chunk."""
        last = number == len(entry.digests) - 1
        full = self.manifest.chunk_bytes
        size = entry.size - number * full if last else full
        place = ChunkPlace(payload=index, target=entry.target, chunk=number, last=last)
        stored = _read_exactly(file, size + (TAG_BYTES if self._sealer else 0), str(place))
        plain = stored if self._sealer is None else self._sealer.open(stored, place)
        if self._digest_chunk is None or not hmac.compare_digest(
            self._digest_chunk(plain), entry.digests[number]
        ):
            raise ArtifactError(f"{place}: does not have the digest that the manifest tells")
        return plain


def open_artifact(
    path: Path,
    *,
    trusted_signer: ec.EllipticCurvePublicKey | None,
    key: bytes | KeyService | None = None,
) -> Artifact:
    """Open an artifact and check all but its payloads.

    Args:
        path: the file.
        trusted_signer: the only signer to accept. None accepts any: then the signature shows that
            the file is whole, not where it comes from, and `signer_trusted` is False.
        key: the 32-byte data key, or the service that keeps it; without it a sealed artifact's
            manifest can be read, its payloads cannot. A service is asked only once signature,
            signer and sizes are checked. An artifact that is not sealed needs none; with a key and
            no trusted signer it is refused, since then nothing at all would tell where it comes
            from.

    Raises:
        ArtifactError: the file is missing, cut short, longer than it says, changed, signed by
            another, sealed with another key, or the service did not release its key; the message
            names the field.
    """
    try:
        with path.open("rb") as file:
            prelude = Prelude.from_bytes(file.read(PRELUDE_BYTES))
            actual = os.fstat(file.fileno()).st_size
            if actual < prelude.chunks_start:
                raise _wrong_size(actual, prelude.chunks_start)
            envelope = _read_exactly(file, prelude.envelope_bytes, "envelope")
            attached = _read_exactly(file, prelude.evidence_bytes, "evidence")
    except OSError as error:
        raise ArtifactError(f"artifact {path}: cannot be read: {error.strerror}") from error
    evidence = AttachedEvidence.from_bytes(attached)
    data, signature = split1(envelope, max_bytes=MAX_ENVELOPE_BYTES)
    manifest = Manifest.from_bytes(data)
    check1(data, signature, manifest.signer)
    _check_signer(manifest, trusted_signer)
    expected = prelude.chunks_start + sum(map(manifest.stored_bytes, manifest.payloads))
    if actual != expected:
        raise _wrong_size(actual, expected)
    identity = hashlib.sha384(data).digest()
    if manifest.seal is None and key is not None and trusted_signer is None:
        raise ArtifactError(
            "manifest.seal: a key was given, but the artifact is not sealed, and its signer is not "
            "known; a sealed artifact was expected",
            remedy="give the public key of its signer",
        )
    evidence.require_kms(sealed_by_kms=manifest.seal is not None and manifest.seal.kms is not None)
    digest_chunk, sealer = _unlock(manifest.seal, evidence, identity, key)
    return Artifact(
        path=path,
        manifest=manifest,
        digest="sha384:" + identity.hex(),
        signer_trusted=trusted_signer is not None,
        attestation=evidence.attestation,
        chunks_start=prelude.chunks_start,
        _digest_chunk=digest_chunk,
        _sealer=sealer,
    )


def _check_signer(manifest: Manifest, trusted: ec.EllipticCurvePublicKey | None) -> None:
    """Refuse a signer other than the trusted one."""
    if trusted is not None and public_key_bytes(manifest.signer) != public_key_bytes(trusted):
        raise ArtifactError(
            (
                f"manifest.signer: {signer_fingerprint(manifest.signer)[:23]} is not trusted; "
                f"expected {signer_fingerprint(trusted)[:23]}"
            ),
            remedy="compile it here, or trust its signer's public key",
        )


def _unlock(
    seal: Seal | None, evidence: AttachedEvidence, identity: bytes, key: bytes | KeyService | None
) -> tuple[Callable[[bytes], bytes] | None, ChunkSealer | None]:
    """Give (digest of a plain chunk, opener of a sealed one), None where not to be had."""
    if seal is None:
        return plain_digest, None
    if key is None:
        return None, None
    content_key = _content_key(seal, evidence, identity, key)
    try:
        keys = ManifestKeys.derive(content_key, seal.salt)
        if not hmac.compare_digest(keys.check, seal.check):
            raise _wrong_content_key(seal)
        return keys.digest, ChunkSealer(content_key, seal.salt, identity)
    finally:
        wipe(content_key)


def _wrong_content_key(seal: Seal) -> ArtifactError:
    """Give the error for a key that the manifest does not commit to."""
    if seal.kms is None:
        return ArtifactError(
            "manifest.seal.check: the artifact was sealed with another data key",
            remedy="give the key file that it was compiled with",
        )
    return ArtifactError(
        "manifest.seal.check: the evidence wraps another content key than the signer committed to; "
        "it was replaced by someone whom the key service lets seal",
        remedy="take the artifact from where it was compiled",
    )


def _content_key(
    seal: Seal, evidence: AttachedEvidence, identity: bytes, key: bytes | KeyService
) -> bytearray:
    """Give the content key: the key file's own, or the one that a service's data key unwraps."""
    if seal.kms is None or evidence.kms is None:
        if not isinstance(key, bytes):
            raise ArtifactError(
                "manifest.seal.key_source: key-file; a key service cannot open it",
                remedy="give the data key file that it was compiled with",
            )
        return bytearray(key)
    if isinstance(key, bytes):
        raise ArtifactError(
            f"manifest.seal.key_source: kms; a key file cannot open what {seal.kms.arn} seals",
            remedy="open it with a key service of that customer",
        )
    data_key = key.unwrap(seal.kms, evidence.kms.wrapped_key, identity)
    try:
        return unwrap_content_key(evidence.kms.content_key, data_key, seal.salt, identity)
    finally:
        wipe(data_key)


def _read_exactly(file: BinaryIO, size: int, what: str) -> bytes:
    """Read `size` bytes, all of them."""
    data = file.read(size)
    if len(data) != size:
        raise ArtifactError(
            f"{what}: the file ends after {len(data)} of {size} bytes; it is cut short"
        )
    return data


def _wrong_size(actual: int, expected: int) -> ArtifactError:
    """Give the error for a file of the wrong length."""
    how = "is cut short" if actual < expected else "is followed by other bytes"
    return ArtifactError(
        f"file size: {actual} bytes where the manifest tells {expected}; the artifact {how}"
    )
