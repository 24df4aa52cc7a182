"""Writing a `.luma` artifact: two passes over each payload, one chunk in memory at a time.

The first pass takes the chunks' digests, so that the manifest can be made and signed; then a key
service, where one keeps the customer's key, releases a data key for the manifest's digest; the
second pass seals the chunks under that digest. A source that changes in between is refused. The
file appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

from runtime.artifact._cose import sign1
from runtime.artifact._evidence import AttachedEvidence, KmsEvidence
from runtime.artifact._files import whole_file
from runtime.artifact._layout import Prelude
from runtime.artifact.key_service import KeyService, wipe
from runtime.artifact.leaks import scrub_violations
from runtime.artifact.levels import LEVELS, Level
from runtime.artifact.manifest import Manifest, Seal
from runtime.artifact.payloads import PayloadDescription, PayloadEntry
from runtime.artifact.program import TargetPayload
from runtime.artifact.sealing import (
    DATA_KEY_BYTES,
    SALT_BYTES,
    ChunkPlace,
    ChunkSealer,
    ManifestKeys,
    plain_digest,
    wrap_content_key,
)
from runtime.spec.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["DEFAULT_CHUNK_BYTES", "PayloadSource", "write_artifact"]

DEFAULT_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSource:
    """A payload that lies in a file, for one too large to hold in memory.

    Attributes:
        path: the file; it holds `TargetPayload.to_bytes()`.
        description: what the manifest will tell of it.
    """

    path: Path
    description: PayloadDescription


def write_artifact(  # noqa: PLR0913 (the parts of the file; all but two are keywords)
    path: Path,
    payloads: Mapping[str, bytes | TargetPayload | PayloadSource],
    *,
    level: Level,
    signing_key: ec.EllipticCurvePrivateKey,
    data_key: bytes | KeyService | None,
    graph_digest: str,
    statistics: Mapping[str, int | float | str | bool],
    versions: Mapping[str, str],
    attest: Callable[[bytes], bytes] | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> str:
    """Write, sign and (from L1 on) seal an artifact; an existing file is replaced.

    Args:
        path: the file to make, by custom with the suffix `.luma`.
        payloads: by target: `TargetPayload.to_bytes()`, the payload itself, or where it lies.
        level: the claim: "L0" (signed, payloads readable by all), "L1" (sealed under `data_key`),
            "L2" (by an attested image, whose document travels along) or "L3" (under a key whose
            policy asks for an attested machine). Verifiers tell the level by evidence.
        signing_key: P-384 private key.
        data_key: from L1 on the customer's 32-byte key, or the service that keeps the customer's
            key (at L3 only a service); None at L0.
        graph_digest: BLAKE3 of the GraphPackage, 64 hex digits.
        statistics: public figures: numbers and short texts, no names of the model's parts.
        versions: the software that made the payloads.
        attest: gives the attestation document that travels with the artifact, for the manifest's
            SHA-384 as user_data. Default: the one that the key service sent, if it sent one.
        chunk_bytes: size of a chunk in bytes.

    Returns:
        The artifact's digest, "sha384:" and hex.

    Raises:
        ArtifactError: a payload is broken, calls itself scrubbed and is not, or belongs to another
            target; level and key disagree; a field is out of bounds; the key service released no
            key; the file cannot be written.
    """
    _check_level(level, data_key)
    sources = {target: _source(target, payloads[target]) for target in sorted(payloads)}
    keys = None if data_key is None else _SealingKeys(data_key)
    digest = plain_digest if keys is None else keys.manifest.digest
    manifest = Manifest(
        level=level,
        graph_digest=graph_digest,
        signer=signing_key.public_key(),
        seal=None if keys is None else keys.seal,
        chunk_bytes=chunk_bytes,
        payloads=tuple(
            _entry(target, source, chunk_bytes, digest) for target, source in sources.items()
        ),
        statistics=statistics,
        versions=versions,
    )
    data = manifest.to_bytes()
    Manifest.from_bytes(data)  # a writer must not make what a reader refuses
    identity = hashlib.sha384(data).digest()
    envelope = sign1(data, signing_key)
    sealer, evidence = (None, AttachedEvidence()) if keys is None else keys.commit(identity)
    if attest is not None:
        evidence = replace(evidence, attestation=attest(identity))
    _check_evidence(level, evidence)
    attached = evidence.to_bytes()
    prelude = Prelude(envelope_bytes=len(envelope), evidence_bytes=len(attached))
    with whole_file(path, "artifact", mode=0o644) as file:
        file.write(prelude.to_bytes() + envelope + attached)
        for index, entry in enumerate(manifest.payloads):
            _write_payload(file, index, entry, sources[entry.target], chunk_bytes, digest, sealer)
    return manifest.digest


class _SealingKeys:
    """The keys of one artifact, first without its digest, then with it.

    Args:
        data_key: the customer's key, which then is the content key; or the service that keeps it,
            and then the content key is random, and wrapped once the digest is known.
    """

    def __init__(self, data_key: bytes | KeyService) -> None:
        self._service = None if isinstance(data_key, bytes) else data_key
        self._content_key = bytearray(
            data_key if isinstance(data_key, bytes) else os.urandom(DATA_KEY_BYTES)
        )
        salt = os.urandom(SALT_BYTES)
        self.manifest = ManifestKeys.derive(self._content_key, salt)
        self.seal = Seal(
            salt=salt,
            check=self.manifest.check,
            kms=None if self._service is None else self._service.reference,
        )

    def commit(self, identity: bytes) -> tuple[ChunkSealer, AttachedEvidence]:
        """Give (sealer of the chunks, evidence), and forget the content key."""
        try:
            evidence = self._wrap(identity)
            return ChunkSealer(self._content_key, self.seal.salt, identity), evidence
        finally:
            wipe(self._content_key)

    def _wrap(self, identity: bytes) -> AttachedEvidence:
        """Wrap the content key under a data key that the service releases for this digest."""
        if self._service is None:
            return AttachedEvidence()
        released = self._service.generate(identity)
        try:
            sealed = wrap_content_key(self._content_key, released.plain, self.seal.salt, identity)
        finally:
            wipe(released.plain)
        kms = KmsEvidence(wrapped_key=released.wrapped, content_key=sealed)
        return AttachedEvidence(kms=kms, attestation=released.attestation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A payload that can be read twice."""

    open: Callable[[], BinaryIO]
    description: PayloadDescription


def _check_level(level: str, data_key: bytes | KeyService | None) -> None:
    """Refuse a level that would not be what it says."""
    if level not in LEVELS:
        raise ArtifactError(f"level: {level!r} is not allowed; expected {', '.join(LEVELS)}")
    if level == "L0":
        if data_key is None:
            return
        raise ArtifactError(
            "level: L0 seals nothing, but a data key was given", remedy="ask for L1, or give no key"
        )
    if data_key is None:
        raise ArtifactError(
            f"level: {level} needs a data key",
            remedy="give a key file or a key service, or ask for L0",
        )
    if level == "L3" and isinstance(data_key, bytes):
        raise ArtifactError(
            "level: L3 needs a key service; no policy rules who opens with a key file",
            remedy="seal under a KMS key, or ask for L2",
        )


def _check_evidence(level: str, evidence: AttachedEvidence) -> None:
    """Refuse a claim of an attested image without its document."""
    if level in ("L2", "L3") and evidence.attestation is None:
        raise ArtifactError(
            f"level: {level} needs an attestation document, and neither `attest` nor the key "
            "service gave one",
            remedy="compile in the enclave, or ask for L1",
        )


def _source(target: str, payload: bytes | TargetPayload | PayloadSource) -> _Source:
    """Make a payload readable twice, after judging what it says of itself."""
    if isinstance(payload, PayloadSource):
        return _Source(open=lambda: payload.path.open("rb"), description=payload.description)
    parsed = TargetPayload.from_bytes(payload) if isinstance(payload, bytes) else payload
    data = payload if isinstance(payload, bytes) else payload.to_bytes()
    if parsed.target != target:
        raise ArtifactError(f"payload {target}: was compiled for target {parsed.target!r}")
    violations = scrub_violations(parsed)
    if violations:
        raise ArtifactError(
            f"payload {target}: calls itself scrubbed but holds {violations}",
            remedy="scrub it, or set scrubbed=False",
        )
    return _Source(open=lambda: io.BytesIO(data), description=PayloadDescription.of(parsed))


def _chunks(source: _Source, chunk_bytes: int) -> Iterator[bytes]:
    """Read a source chunk by chunk."""
    with source.open() as file:
        while chunk := file.read(chunk_bytes):
            yield chunk


def _entry(
    target: str, source: _Source, chunk_bytes: int, digest: Callable[[bytes], bytes]
) -> PayloadEntry:
    """Make a payload's manifest entry: the first pass."""
    size, digests = 0, []
    try:
        for chunk in _chunks(source, chunk_bytes):
            size += len(chunk)
            digests.append(digest(chunk))
    except OSError as error:
        raise ArtifactError(f"payload {target}: cannot be read: {error.strerror}") from error
    return PayloadEntry(
        target=target, size=size, digests=tuple(digests), description=source.description
    )


def _write_payload(
    file: BinaryIO,
    index: int,
    entry: PayloadEntry,
    source: _Source,
    chunk_bytes: int,
    digest: Callable[[bytes], bytes],
    sealer: ChunkSealer | None,
) -> None:
    """Write a payload's chunks: the second pass."""
    count = 0
    for number, chunk in enumerate(_chunks(source, chunk_bytes)):
        if number >= len(entry.digests) or digest(chunk) != entry.digests[number]:
            raise ArtifactError(f"payload {entry.target}: changed while it was written")
        last = number == len(entry.digests) - 1
        place = ChunkPlace(payload=index, target=entry.target, chunk=number, last=last)
        file.write(chunk if sealer is None else sealer.seal(chunk, place))
        count += 1
    if count != len(entry.digests):
        raise ArtifactError(f"payload {entry.target}: became shorter while it was written")
