"""Read an EIF strictly: whatever is not exactly the format is an error that names the field.

One pass over the file checks the layout and the checksum and measures the sections; memory does not
grow with the image, only metadata, command line and signature are held, each with a limit.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from enclave_image.eif.layout import (
    CRC_COVERED,
    HEADER_BYTES,
    SECTION_HEAD_BYTES,
    Header,
    SectionKind,
    unpack_section_head,
)
from enclave_image.eif.measure import Measurer, Pcrs
from enclave_image.eif.metadata import MAX_METADATA_BYTES, unpack_metadata
from enclave_image.eif.signing import MAX_SIGNATURE_BYTES, ImageSignature, read_signature
from enclave_image.eif.writer import CHUNK_BYTES, MAX_CMDLINE_BYTES
from runtime.spec.errors import ArtifactError

__all__ = ["EifImage", "Section", "read_eif"]

_HELD = {
    SectionKind.CMDLINE: MAX_CMDLINE_BYTES,
    SectionKind.METADATA: MAX_METADATA_BYTES,
    SectionKind.SIGNATURE: MAX_SIGNATURE_BYTES,
}
"""Sections that are kept in memory, and the most bytes that each may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the file.

    Attributes:
        kind: what it holds.
        offset: where its head begins; the data is 12 bytes behind.
        size: of the data, in bytes.
    """

    kind: SectionKind
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EifImage:
    """A whole image that was read and checked.

    Attributes:
        size_bytes: of the file.
        header: its header.
        sections: in the file's order.
        cmdline: the kernel's command line.
        metadata: the JSON document of the metadata section.
        signature: None where the image is not signed.
        pcrs: computed from the sections.
    """

    size_bytes: int
    header: Header
    sections: tuple[Section, ...]
    cmdline: str
    metadata: dict[str, Any]
    signature: ImageSignature | None
    pcrs: Pcrs

    def to_json(self) -> dict[str, Any]:
        """Give header, sections, metadata and PCRs for people and scripts."""
        return {
            "bytes": self.size_bytes,
            "header": {
                "version": self.header.version,
                "architecture": self.header.architecture.value,
                "default_memory_bytes": self.header.default_memory_bytes,
                "default_cpus": self.header.default_cpus,
                "num_sections": len(self.sections),
                "crc32": f"{self.header.crc:08x}",
            },
            "sections": [
                {"type": item.kind.name.lower(), "offset": item.offset, "bytes": item.size}
                for item in self.sections
            ],
            "cmdline": self.cmdline,
            "metadata": self.metadata,
            "signed_by": None if self.signature is None else self.signature.subject,
            "pcrs": self.pcrs.to_json(),
        }


def read_eif(path: Path) -> EifImage:
    """Read and check a whole image.

    Args:
        path: the file.

    Raises:
        ArtifactError: it cannot be read, or is not exactly an EIF of version 4: the message names
            the field.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return _read(file, size)
    except OSError as error:
        raise ArtifactError(f"EIF {path}: cannot be read: {error.strerror}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error.message}", remedy=error.remedy) from error


def _read(file: BinaryIO, file_bytes: int) -> EifImage:
    packed = file.read(HEADER_BYTES)
    header = Header.unpack(packed)
    _check_extents(header, file_bytes)
    passing = _Passing(file, zlib.crc32(packed[:CRC_COVERED]))
    sections = tuple(
        passing.section(number, offset, size)
        for number, (offset, size) in enumerate(zip(header.offsets, header.sizes, strict=True))
    )
    _check_kinds(sections)
    if passing.crc != header.crc:
        raise ArtifactError(
            f"EIF crc32: the header says {header.crc:08x}, the file has {passing.crc:08x}"
        )
    signature = _signature(passing)
    certificate = None if signature is None else signature.certificate_der
    return EifImage(
        size_bytes=file_bytes,
        header=header,
        sections=sections,
        cmdline=_cmdline(passing.held[SectionKind.CMDLINE]),
        metadata=unpack_metadata(passing.held[SectionKind.METADATA]),
        signature=signature,
        pcrs=passing.measurer.pcrs(certificate),
    )


def _check_extents(header: Header, file_bytes: int) -> None:
    """Check that the sections lie one behind the other and end with the file."""
    end = HEADER_BYTES
    for number, (offset, size) in enumerate(zip(header.offsets, header.sizes, strict=True)):
        if offset != end:
            how = "overlaps what is before it" if offset < end else "leaves a gap"
            raise ArtifactError(f"EIF section_offsets[{number}]: {offset} {how}; expected {end}")
        if size == 0:
            raise ArtifactError(f"EIF section_sizes[{number}]: 0; no section may be empty")
        end = offset + SECTION_HEAD_BYTES + size
        if end > file_bytes:
            raise ArtifactError(
                f"EIF section_sizes[{number}]: {size} reaches {end}, beyond the file's end at "
                f"{file_bytes}: the file is cut, or the size is wrong"
            )
    if end != file_bytes:
        raise ArtifactError(
            f"EIF num_sections: {file_bytes - end} bytes follow the last of {len(header.sizes)}"
        )


def _check_kinds(sections: tuple[Section, ...]) -> None:
    """Check that there is each section that an image needs, and none twice."""
    count = Counter(section.kind for section in sections)
    for kind in (SectionKind.KERNEL, SectionKind.CMDLINE, SectionKind.METADATA):
        if count[kind] != 1:
            raise ArtifactError(f"EIF {kind.name.lower()} sections: {count[kind]}; expected 1")
    if count[SectionKind.RAMDISK] < 1:
        raise ArtifactError("EIF ramdisk sections: 0; expected at least 1")
    if count[SectionKind.SIGNATURE] > 1:
        raise ArtifactError(
            f"EIF signature sections: {count[SectionKind.SIGNATURE]}; expected at most 1"
        )


def _signature(passing: _Passing) -> ImageSignature | None:
    data = passing.held.get(SectionKind.SIGNATURE)
    return None if data is None else read_signature(data, passing.measurer.pcrs().pcr0)


def _cmdline(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError("EIF cmdline: not UTF-8") from error
    if "\0" in text:
        raise ArtifactError("EIF cmdline: holds a NUL")
    return text


class _Passing:
    """The one pass over the sections."""

    def __init__(self, file: BinaryIO, crc: int) -> None:
        self.crc = crc
        self.measurer = Measurer()
        self.held: dict[SectionKind, bytes] = {}
        self._file = file

    def section(self, number: int, offset: int, size: int) -> Section:
        """Read section `number`, whose head is next in the file."""
        head = self._file.read(SECTION_HEAD_BYTES)
        kind = unpack_section_head(head, number, size)
        most = _HELD.get(kind)
        if most is not None and size > most:
            raise ArtifactError(
                f"EIF section_sizes[{number}] ({kind.name.lower()}): {size}; at most {most}"
            )
        self.crc = zlib.crc32(head, self.crc)
        self.measurer.begin(kind)
        kept = []
        for chunk in self._data(number, size):
            self.crc = zlib.crc32(chunk, self.crc)
            self.measurer.update(chunk)
            if most is not None:
                kept.append(chunk)
        if most is not None:
            self.held[kind] = b"".join(kept)
        return Section(kind=kind, offset=offset, size=size)

    def _data(self, number: int, size: int) -> Iterator[bytes]:
        left = size
        while left:
            chunk = self._file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise ArtifactError(f"EIF section {number}: the file was cut while it was read")
            left -= len(chunk)
            yield chunk
