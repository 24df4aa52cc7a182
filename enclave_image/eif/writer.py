"""Write an EIF: kernel, command line, metadata, ramdisks, and, where it is signed, the signature.

That is AWS's own order. The file is written once from front to end while it is measured; the
header, which holds the checksum, is written last. Memory does not grow with the image.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from enclave_image.eif.layout import (
    CRC_COVERED,
    HEADER_BYTES,
    MAX_SECTIONS,
    Architecture,
    Header,
    SectionKind,
    default_memory_bytes,
    pack_section_head,
)
from enclave_image.eif.measure import Measurer, Pcrs
from enclave_image.eif.metadata import pack_metadata
from enclave_image.eif.signing import ImageSigner
from runtime.spec.errors import ArtifactError

__all__ = ["CHUNK_BYTES", "MAX_CMDLINE_BYTES", "EifParts", "write_eif"]

CHUNK_BYTES = 1 << 20
MAX_CMDLINE_BYTES = 4096

Source = bytes | Path
"""A section's data: the bytes, or the file that holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EifParts:
    """What an image is made of.

    Attributes:
        kernel: the kernel image (bzImage, or Image on aarch64).
        cmdline: the kernel's command line, without a NUL.
        ramdisks: cpio archives; the first holds what PCR1 covers, the others what PCR2 covers.
        metadata: a JSON document; see `image_metadata`.
        architecture: the processor.
    """

    kernel: Source
    cmdline: str
    ramdisks: Sequence[Source]
    metadata: Mapping[str, Any]
    architecture: Architecture = Architecture.X86_64


def write_eif(file: BinaryIO, parts: EifParts, *, signer: ImageSigner | None = None) -> Pcrs:
    """Write an image.

    Args:
        file: empty, seekable, readable too (`w+b`), at its start.
        parts: what the image is made of.
        signer: signs PCR0; None leaves the image unsigned.

    Returns:
        The image's PCRs.

    Raises:
        ArtifactError: a part cannot be read, changes while it is read, or is not allowed.
    """
    sections = _sections(parts)
    written = _Writing(file)
    for kind, source in sections:
        written.add(kind, source)
    pcrs = written.measurer.pcrs(None if signer is None else signer.certificate_der)
    if signer is not None:
        written.add(SectionKind.SIGNATURE, signer.section(pcrs.pcr0))
    written.finish(parts.architecture)
    return pcrs


def _sections(parts: EifParts) -> list[tuple[SectionKind, Source]]:
    """Give the sections in order, the signature excepted, checked."""
    cmdline = parts.cmdline.encode("utf-8")
    if not cmdline or b"\0" in cmdline or len(cmdline) > MAX_CMDLINE_BYTES:
        raise ArtifactError(
            f"EIF cmdline: {len(cmdline)} bytes; expected 1 to {MAX_CMDLINE_BYTES} without a NUL"
        )
    most = MAX_SECTIONS - 4  # kernel, command line, metadata, signature
    if not 1 <= len(parts.ramdisks) <= most:
        raise ArtifactError(f"EIF ramdisks: {len(parts.ramdisks)}; expected 1 to {most}")
    return [
        (SectionKind.KERNEL, parts.kernel),
        (SectionKind.CMDLINE, cmdline),
        (SectionKind.METADATA, pack_metadata(parts.metadata)),
        *((SectionKind.RAMDISK, ramdisk) for ramdisk in parts.ramdisks),
    ]


class _Writing:
    """A file that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        self.measurer = Measurer()
        self._file = file
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._end = HEADER_BYTES
        # The checksum begins with the header, which is known only at the end: a second pass computes
        # it, from the page cache.
        file.write(bytes(HEADER_BYTES))

    def add(self, kind: SectionKind, source: Source) -> None:
        """Write a section behind the last one."""
        size = len(source) if isinstance(source, bytes) else _file_size(source)
        if size == 0:
            raise ArtifactError(f"EIF {kind.name.lower()}: empty")
        head = pack_section_head(kind, size)
        self._file.write(head)
        self.measurer.begin(kind)
        seen = 0
        for chunk in _chunks(source):
            seen += len(chunk)
            self._file.write(chunk)
            self.measurer.update(chunk)
        if seen != size:
            raise ArtifactError(f"EIF {kind.name.lower()}: {source!s} changed while it was read")
        self._offsets.append(self._end)
        self._sizes.append(size)
        self._end += len(head) + size

    def finish(self, architecture: Architecture) -> None:
        """Write the header."""
        header = Header(
            architecture=architecture,
            default_memory_bytes=default_memory_bytes(self._end),
            offsets=tuple(self._offsets),
            sizes=tuple(self._sizes),
        ).pack()
        crc = zlib.crc32(header[:CRC_COVERED])
        self._file.seek(HEADER_BYTES)
        while chunk := self._file.read(CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
        self._file.seek(0)
        self._file.write(header[:CRC_COVERED] + crc.to_bytes(4, "big"))
        self._file.seek(0, 2)


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error


def _chunks(source: Source) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    try:
        with source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise ArtifactError(f"{source}: cannot be read: {error.strerror}") from error
