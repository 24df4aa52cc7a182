"""The manifest of a `.luma` artifact: what can be read without a key.

Digests, sizes, targets, versions, statistics, the claimed level and what it rests on. Names of
inputs and outputs stand only in the payloads. The manifest is canonical CBOR, and its SHA-384 *is*
the artifact's digest; DESIGN.md, section 3, and docs/reference/artifact-format.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from runtime.artifact._fields import Fields, fail, integer, text
from runtime.artifact.canonical import decode, encode
from runtime.artifact.key_service import KeyReference
from runtime.artifact.keys import public_key_bytes, public_key_from_bytes, signer_fingerprint
from runtime.artifact.levels import LEVELS, Level
from runtime.artifact.payloads import PayloadEntry, json_entry, matching, plain_entry, read_entry
from runtime.artifact.sealing import CHECK_BYTES, SALT_BYTES, TAG_BYTES
from runtime.spec.errors import ArtifactError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = [
    "MAX_CHUNK_BYTES",
    "MAX_MANIFEST_BYTES",
    "MIN_CHUNK_BYTES",
    "Manifest",
    "Seal",
]

Statistic = int | float | str | bool

MAX_MANIFEST_BYTES = 16 << 20
MIN_CHUNK_BYTES = 1 << 10
MAX_CHUNK_BYTES = 16 << 20
_MAX_PAYLOADS = 64
_MAX_ENTRIES = 256
_SCHEMA = "luma/manifest/4"
_GRAPH_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_PUBLIC_KEY = 256
_MAX_COUNT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """How the payloads are encrypted.

    Attributes:
        salt: 32 random bytes of this artifact.
        check: 16 bytes that tell the right content key from others.
        kms: whose KMS key wraps the content key; None where the customer's key file is it.
    """

    salt: bytes
    check: bytes
    kms: KeyReference | None

    @property
    def key_source(self) -> Literal["key-file", "kms"]:
        """Where the content key comes from."""
        return "key-file" if self.kms is None else "kms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The signed description of an artifact.

    Attributes:
        level: the level that the writer claims; `verify_artifact` tells the one reached.
        graph_digest: BLAKE3 of the GraphPackage, 64 hex digits.
        signer: the public key of the signer.
        seal: how payloads are encrypted, None at L0.
        chunk_bytes: size of every plain chunk but a payload's last.
        payloads: the payloads, targets sorted, in the order of the file.
        statistics: figures that the writer tells: numbers and short texts.
        versions: the software that made the artifact.
    """

    level: Level
    graph_digest: str
    signer: ec.EllipticCurvePublicKey
    seal: Seal | None
    chunk_bytes: int
    payloads: tuple[PayloadEntry, ...]
    statistics: Mapping[str, Statistic]
    versions: Mapping[str, str]

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that the artifact has a payload for."""
        return tuple(entry.target for entry in self.payloads)

    @property
    def digest(self) -> str:
        """The artifact's digest: "sha384:" and the hex SHA-384 of the manifest's bytes."""
        return "sha384:" + hashlib.sha384(self.to_bytes()).hexdigest()

    def entry(self, target: str) -> tuple[int, PayloadEntry]:
        """Give (index, entry) of a target's payload.

        Raises:
            ArtifactError: the artifact has none.
        """
        for index, entry in enumerate(self.payloads):
            if entry.target == target:
                return index, entry
        raise ArtifactError(
            f"payloads: no payload for target {target!r}; it holds {', '.join(self.targets)}",
            remedy="add the target to compile.targets and compile again",
        )

    def stored_bytes(self, entry: PayloadEntry) -> int:
        """Give the size of a payload in the file: with a tag a chunk where it is sealed."""
        return entry.size + (TAG_BYTES * len(entry.digests) if self.seal else 0)

    def to_bytes(self) -> bytes:
        """Give the canonical CBOR.

        Raises:
            ArtifactError: a field is not what a reader accepts.
        """
        data = encode(
            {
                "schema": _SCHEMA,
                "level": self.level,
                "graph_digest": self.graph_digest,
                "signer": public_key_bytes(self.signer),
                "seal": _plain_seal(self.seal),
                "chunk_bytes": self.chunk_bytes,
                "payloads": [plain_entry(entry) for entry in self.payloads],
                "statistics": dict(self.statistics),
                "versions": dict(self.versions),
            }
        )
        if len(data) > MAX_MANIFEST_BYTES:
            raise ArtifactError(
                f"manifest: {len(data)} bytes are more than the {MAX_MANIFEST_BYTES} allowed",
                remedy="take larger chunks",
            )
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest strictly.

        Raises:
            ArtifactError: not canonical, another schema, or a field is missing, unknown or wrong;
                the message names it.
        """
        decoded = decode(data, what="manifest", max_bytes=MAX_MANIFEST_BYTES)
        fields = Fields(decoded, "manifest")
        fields.choice("schema", (_SCHEMA,))
        chunk_bytes = fields.integer("chunk_bytes", low=MIN_CHUNK_BYTES, high=MAX_CHUNK_BYTES)
        manifest = cls(
            level=_read_level(fields),
            graph_digest=matching(fields, "graph_digest", _GRAPH_DIGEST, "64 hex digits"),
            signer=public_key_from_bytes(
                fields.octets("signer", high=_MAX_PUBLIC_KEY), "manifest.signer"
            ),
            seal=_read_seal(fields.take("seal")),
            chunk_bytes=chunk_bytes,
            payloads=_read_payloads(fields, chunk_bytes),
            statistics=_read_statistics(fields.fields("statistics")),
            versions=_read_versions(fields.fields("versions")),
        )
        fields.end()
        _check_seal(manifest.level, manifest.seal)
        return manifest

    def to_json(self) -> dict[str, object]:
        """Give what `luma inspect` prints: plain JSON types; binary fields as hex."""
        return {
            "digest": self.digest,
            "level_claimed": self.level,
            "graph_digest": self.graph_digest,
            "signer": signer_fingerprint(self.signer),
            "seal": None if self.seal is None else _json_seal(self.seal),
            "chunk_bytes": self.chunk_bytes,
            "payloads": [json_entry(entry) for entry in self.payloads],
            "statistics": dict(self.statistics),
            "versions": dict(self.versions),
        }


def _plain_seal(seal: Seal | None) -> dict[str, object] | None:
    """Give the CBOR form of a seal."""
    if seal is None:
        return None
    return {
        "cipher": "AES-256-GCM",
        "kdf": "HKDF-SHA-384",
        "key_source": seal.key_source,
        "salt": seal.salt,
        "check": seal.check,
        **_named_key(seal),
    }


def _json_seal(seal: Seal) -> dict[str, object]:
    """Give the JSON form of a seal, without the salt and check value."""
    return {
        "cipher": "AES-256-GCM",
        "kdf": "HKDF-SHA-384",
        "key_source": seal.key_source,
        **_named_key(seal),
    }


def _named_key(seal: Seal) -> dict[str, str]:
    """Give the fields that name a KMS key, none for a key file."""
    if seal.kms is None:
        return {}
    return {"key_arn": seal.kms.arn, "customer": seal.kms.customer}


def _read_level(fields: Fields) -> Level:
    """Read the claimed level."""
    return cast("Level", fields.choice("level", LEVELS))


def _check_seal(level: Level, seal: Seal | None) -> None:
    """Refuse a claim that its own seal contradicts."""
    if (level == "L0") != (seal is None):
        shown = "null" if seal is None else "a seal"
        raise fail("manifest.seal", shown, f"null exactly at L0; the level is {level}")
    if level == "L3" and (seal is None or seal.kms is None):
        raise fail("manifest.seal.key_source", "key-file", "kms at L3: no policy rules a key file")


def _read_seal(value: object) -> Seal | None:
    """Read the seal."""
    if value is None:
        return None
    fields = Fields(value, "manifest.seal")
    fields.choice("cipher", ("AES-256-GCM",))
    fields.choice("kdf", ("HKDF-SHA-384",))
    source = fields.choice("key_source", ("key-file", "kms"))
    seal = Seal(
        salt=fields.octets("salt", low=SALT_BYTES, high=SALT_BYTES),
        check=fields.octets("check", low=CHECK_BYTES, high=CHECK_BYTES),
        kms=_read_named_key(fields) if source == "kms" else None,
    )
    fields.end()
    return seal


def _read_named_key(fields: Fields) -> KeyReference:
    """Read the fields that name a KMS key."""
    arn, customer = fields.text("key_arn", limit=256), fields.text("customer", limit=64)
    try:
        return KeyReference(arn=arn, customer=customer)
    except ArtifactError as error:
        raise ArtifactError(f"{fields.where}.{error.message}") from error


def _read_payloads(fields: Fields, chunk_bytes: int) -> tuple[PayloadEntry, ...]:
    """Read the payload entries: at least one, targets sorted and different."""
    entries = tuple(
        read_entry(value, f"manifest.payloads[{i}]", chunk_bytes)
        for i, value in enumerate(fields.items("payloads", limit=_MAX_PAYLOADS))
    )
    targets = [entry.target for entry in entries]
    if not targets or targets != sorted(set(targets)):
        raise fail("manifest.payloads", targets, "one payload or more, targets sorted")
    return entries


def _read_statistics(fields: Fields) -> dict[str, Statistic]:
    """Read the statistics: numbers, flags and short texts."""
    statistics: dict[str, Statistic] = {}
    for name in _bounded_names(fields):
        value = fields.take(name)
        if isinstance(value, str):
            text(value, f"{fields.where}.{name}", limit=256)
        elif isinstance(value, int) and not isinstance(value, bool):
            integer(value, f"{fields.where}.{name}", low=-_MAX_COUNT, high=_MAX_COUNT)
        elif not isinstance(value, bool | float):
            raise fail(f"{fields.where}.{name}", value, "a number, a flag or a short text")
        statistics[name] = value
    return statistics


def _read_versions(fields: Fields) -> dict[str, str]:
    """Read the versions."""
    return {name: fields.text(name, limit=256) for name in _bounded_names(fields)}


def _bounded_names(fields: Fields) -> list[str]:
    """Give the field names of an open map, not too many and none too long."""
    names = fields.names()
    if len(names) > _MAX_ENTRIES:
        raise fail(fields.where, len(names), f"at most {_MAX_ENTRIES} entries")
    for name in names:
        text(name, fields.where, limit=64)
    return names
