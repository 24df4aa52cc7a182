"""Writing a `.luma` artifact: two passes over each payload, one chunk in memory at a time.

The first pass takes the chunks' digests, so that the manifest can be made and signed; the second
seals the chunks under the manifest's digest. A source that changes in between is refused. The file
appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from runtime.artifact._cose import sign1
from runtime.artifact._files import whole_file
from runtime.artifact._layout import NO_EVIDENCE, Prelude
from runtime.artifact.leaks import scrub_violations
from runtime.artifact.manifest import Level, Manifest, Seal
from runtime.artifact.payloads import PayloadDescription, PayloadEntry
from runtime.artifact.program import TargetPayload
from runtime.artifact.sealing import (
    SALT_BYTES,
    ChunkPlace,
    ChunkSealer,
    ManifestKeys,
    plain_digest,
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


def write_artifact(  # noqa: PLR0913 (the fields of the file; all but two are keywords)
    path: Path,
    payloads: Mapping[str, bytes | TargetPayload | PayloadSource],
    *,
    level: Level,
    signing_key: ec.EllipticCurvePrivateKey,
    data_key: bytes | None,
    graph_digest: str,
    statistics: Mapping[str, int | float | str | bool],
    versions: Mapping[str, str],
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> str:
    """Write, sign and (at L1) seal an artifact; an existing file is replaced.

    Args:
        path: the file to make, by custom with the suffix `.luma`.
        payloads: by target: `TargetPayload.to_bytes()`, the payload itself, or where it lies.
        level: "L0" (signed, payloads readable by all) or "L1" (sealed under `data_key`).
        signing_key: P-384 private key.
        data_key: the customer's 32-byte key at L1, None at L0.
        graph_digest: BLAKE3 of the GraphPackage, 64 hex digits.
        statistics: public figures: numbers and short texts, no names of the model's parts.
        versions: the software that made the payloads.
        chunk_bytes: size of a chunk in bytes.

    Returns:
        The artifact's digest, "sha384:" and hex.

    Raises:
        ArtifactError: a payload is broken, calls itself scrubbed and is not, or belongs to another
            target; level and key disagree; a field is out of bounds; the file cannot be written.
    """
    _check_level(level, data_key)
    sources = {target: _source(target, payloads[target]) for target in sorted(payloads)}
    salt = os.urandom(SALT_BYTES)
    keys = None if data_key is None else ManifestKeys.derive(data_key, salt)
    digest = plain_digest if keys is None else keys.digest
    manifest = Manifest(
        level=level,
        graph_digest=graph_digest,
        signer=signing_key.public_key(),
        seal=None if keys is None else Seal(key_source="key-file", salt=salt, check=keys.check),
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
    sealer = None if data_key is None else ChunkSealer(data_key, salt, identity)
    envelope = sign1(data, signing_key)
    prelude = Prelude(envelope_bytes=len(envelope), evidence_bytes=len(NO_EVIDENCE))
    with whole_file(path, "artifact", mode=0o644) as file:
        file.write(prelude.to_bytes() + envelope + NO_EVIDENCE)
        for index, entry in enumerate(manifest.payloads):
            _write_payload(file, index, entry, sources[entry.target], chunk_bytes, digest, sealer)
    return manifest.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A payload that can be read twice."""

    open: Callable[[], BinaryIO]
    description: PayloadDescription


def _check_level(level: str, data_key: bytes | None) -> None:
    """Refuse a level that would not be what it says."""
    if level not in ("L0", "L1"):
        raise ArtifactError(f"level: {level!r} cannot be reached by this version; allowed: L0, L1")
    if level == "L1" and data_key is None:
        raise ArtifactError("level: L1 needs a data key", remedy="give a key file, or ask for L0")
    if level == "L0" and data_key is not None:
        raise ArtifactError(
            "level: L0 seals nothing, but a data key was given", remedy="ask for L1, or give no key"
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
