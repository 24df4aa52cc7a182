"""A payload without the contents of its executables: enough to judge it, in little memory.

Verifying compares a payload with the manifest's description of it. That asks for the payload's form,
its names and the sizes of its executables, but not for what is in them, and the executables are
nearly all of it. A `PayloadSkimmer` is fed the payload in pieces and keeps its CBOR as it is, except
that each byte string becomes one of 8 bytes: the size that it had. The strict reader then judges
what is left, by the same rules as the whole.
"""

from __future__ import annotations

import dataclasses

from runtime.artifact.canonical import BYTES, SMALLEST_WITH, TEXT
from runtime.artifact.payloads import PayloadDescription
from runtime.artifact.program import TargetPayload
from runtime.spec.errors import ArtifactError

__all__ = ["MAX_SKIMMED_BYTES", "PayloadSkimmer"]

MAX_SKIMMED_BYTES = 1 << 28
"""Most of a payload beside its executables: 256 MiB, far above the names of a real one."""

_SIZE_BYTES = 8
_SIZE_HEAD = BYTES << 5 | _SIZE_BYTES


class PayloadSkimmer:
    """Takes a payload in pieces and describes it."""

    def __init__(self) -> None:
        """Start before the payload's first byte."""
        self._kept = bytearray()
        self._head = bytearray()  # of an item whose head is not whole yet
        self._to_keep = self._to_drop = 0  # bytes of the item that is passing by

    def feed(self, piece: bytes) -> None:
        """Take the payload's next bytes, however they are cut.

        Raises:
            ArtifactError: a byte string's length is not in its shortest form, or more than
                `MAX_SKIMMED_BYTES` are left beside the executables.
        """
        offset = 0
        while offset < len(piece):
            if self._to_drop or self._to_keep:
                offset = self._pass(piece, offset)
                continue
            self._head.append(piece[offset])
            offset += 1
            if len(self._head) == _head_bytes(self._head[0]):
                self._take_head()

    def describe(self) -> tuple[str, PayloadDescription]:
        """Give (target, description) of the payload, all of which was fed.

        Raises:
            ArtifactError: as `TargetPayload.from_bytes` of the whole payload.
        """
        if self._head or self._to_keep or self._to_drop:
            raise ArtifactError("payload: CBOR ends in the middle of an item")
        skimmed = TargetPayload.from_bytes(bytes(self._kept))
        description = PayloadDescription.of(skimmed)
        sizes = {
            name: int.from_bytes(program.executable, "big")
            for name, program in skimmed.programs.items()
        }
        programs = {
            name: dataclasses.replace(cost, executable_bytes=sizes[name])
            for name, cost in description.programs.items()
        }
        return skimmed.target, dataclasses.replace(description, programs=programs)

    def _pass(self, piece: bytes, offset: int) -> int:
        """Let an item's contents pass by; give the offset behind what `piece` holds of them."""
        left = self._to_drop or self._to_keep
        end = min(offset + left, len(piece))
        if self._to_drop:
            self._to_drop -= end - offset
        else:
            self._kept += piece[offset:end]
            self._to_keep -= end - offset
        return end

    def _take_head(self) -> None:
        """Keep an item's head, or its size in place of a byte string; note what follows it.

        A head that is not allowed is kept as it is, whatever follows: the reader refuses it.
        """
        head, self._head = bytes(self._head), bytearray()
        major, info = head[0] >> 5, head[0] & 31
        sized = major in (BYTES, TEXT) and info <= 27
        size = int.from_bytes(head[1:], "big") if len(head) > 1 else info
        if sized and major == BYTES:
            if len(head) > 1 and size < SMALLEST_WITH[len(head) - 1]:
                raise ArtifactError("payload: a byte string's length is not in its shortest form")
            self._kept.append(_SIZE_HEAD)
            self._kept += size.to_bytes(_SIZE_BYTES, "big")
            self._to_drop = size
        else:
            self._kept += head
            self._to_keep = size if sized else 0
        if len(self._kept) + self._to_keep > MAX_SKIMMED_BYTES:
            raise ArtifactError(
                f"payload: more than {MAX_SKIMMED_BYTES} bytes beside its executables, or an item "
                "that is longer than the payload"
            )


def _head_bytes(first: int) -> int:
    """Give the size of an item's head from its first byte (RFC 8949, section 3)."""
    info = first & 31
    return 1 + (1 << (info - 24) if 24 <= info <= 27 else 0)
