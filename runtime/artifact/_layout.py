"""The first 20 bytes of a `.luma` file, and the limits on what follows.

    8 bytes  magic 89 'L' 'U' 'M' 'A' 0d 0a 1a   (as in PNG: text-mode copying breaks it at once)
    u16      version, 2
    u16      flags, 0
    u32      size of the envelope: COSE_Sign1, its payload is the manifest
    u32      size of the evidence: canonical CBOR map, outside the signature

then envelope, evidence, and the chunks of all payloads, with nothing between or behind. Integers
are big-endian. `_evidence` tells what evidence is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from runtime.artifact._cose import OVERHEAD_BYTES
from runtime.artifact._evidence import MAX_EVIDENCE_BYTES
from runtime.artifact._fields import fail
from runtime.artifact.manifest import MAX_MANIFEST_BYTES
from runtime.spec.errors import ArtifactError

VERSION = 2
MAGIC = b"\x89LUMA\r\n\x1a"
MAX_ENVELOPE_BYTES = MAX_MANIFEST_BYTES + OVERHEAD_BYTES

_FORM = struct.Struct(">8sHHII")
PRELUDE_BYTES = _FORM.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Prelude:
    """The sizes that stand first in the file."""

    envelope_bytes: int
    evidence_bytes: int

    @property
    def chunks_start(self) -> int:
        """The offset of the first chunk."""
        return PRELUDE_BYTES + self.envelope_bytes + self.evidence_bytes

    def to_bytes(self) -> bytes:
        """Give the 20 bytes."""
        return _FORM.pack(MAGIC, VERSION, 0, self.envelope_bytes, self.evidence_bytes)

    @classmethod
    def from_bytes(cls, data: bytes) -> Prelude:
        """Read the 20 bytes.

        Raises:
            ArtifactError: not a `.luma` file, another version, or a size out of bounds.
        """
        if not data.startswith(MAGIC[: len(data)]) or not data:
            raise ArtifactError("magic: not a .luma file")
        if len(data) < PRELUDE_BYTES:
            raise ArtifactError(f"prelude: the file ends after {len(data)} bytes; it is cut short")
        _, version, flags, envelope_bytes, evidence_bytes = _FORM.unpack(data)
        if version != VERSION:
            raise ArtifactError(
                f"version: {version} is unknown; this reader knows {VERSION}",
                remedy="use a newer luma, or compile again with this one",
            )
        if flags:
            raise fail("flags", flags, "0")
        if not 0 < envelope_bytes <= MAX_ENVELOPE_BYTES:
            raise fail("envelope size", envelope_bytes, f"1 to {MAX_ENVELOPE_BYTES}")
        if not 0 < evidence_bytes <= MAX_EVIDENCE_BYTES:
            raise fail("evidence size", evidence_bytes, f"1 to {MAX_EVIDENCE_BYTES}")
        return cls(envelope_bytes=envelope_bytes, evidence_bytes=evidence_bytes)
