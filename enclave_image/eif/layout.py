"""The byte layout of an EIF, version 4: the header, and the head of each section.

All integers are big-endian. A header of 548 bytes is followed by the sections, each a head of 12
bytes and its data, without padding. The format is that of AWS's enclave image tools
(aws-nitro-enclaves-image-format, `src/defs`).
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from runtime.spec.errors import ArtifactError

__all__ = [
    "CRC_COVERED",
    "HEADER_BYTES",
    "MAX_SECTIONS",
    "SECTION_HEAD_BYTES",
    "VERSION",
    "Architecture",
    "Header",
    "SectionKind",
    "default_memory_bytes",
    "pack_section_head",
    "unpack_section_head",
]

MAGIC = b".eif"
VERSION = 4
MAX_SECTIONS = 32

_HEADER = struct.Struct(">4sHHQQHH32Q32QII")
_SECTION_HEAD = struct.Struct(">HHQ")
HEADER_BYTES = _HEADER.size  # 548
SECTION_HEAD_BYTES = _SECTION_HEAD.size  # 12
CRC_COVERED = HEADER_BYTES - 4
"""Header bytes under the checksum: all but the checksum, which is last."""

_AARCH64_FLAG = 1
_OFFSETS_AT = 7

_LEAST_MEMORY_BYTES = 1 << 30
_MEMORY_PER_IMAGE = 4
_MIB = 1 << 20


class SectionKind(enum.IntEnum):
    """What a section holds."""

    KERNEL = 1
    CMDLINE = 2
    RAMDISK = 3
    SIGNATURE = 4
    METADATA = 5


class Architecture(enum.Enum):
    """The processor that an image is for."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header's fields.

    Attributes:
        version: of the format.
        architecture: from the flags.
        default_memory_bytes: what is asked for where the operator asks for nothing.
        default_cpus: likewise.
        offsets: where each section's head begins, from the start of the file.
        sizes: each section's data, without its head.
        crc: CRC-32 of the header before it, and of everything behind the header.
    """

    version: int = VERSION
    architecture: Architecture = Architecture.X86_64
    default_memory_bytes: int = _LEAST_MEMORY_BYTES
    default_cpus: int = 2
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    crc: int = 0

    def pack(self) -> bytes:
        """Give the 548 bytes."""
        unused = (0,) * (MAX_SECTIONS - len(self.offsets))
        flags = _AARCH64_FLAG if self.architecture is Architecture.AARCH64 else 0
        return _HEADER.pack(
            MAGIC,
            self.version,
            flags,
            self.default_memory_bytes,
            self.default_cpus,
            0,
            len(self.offsets),
            *self.offsets,
            *unused,
            *self.sizes,
            *unused,
            0,
            self.crc,
        )

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Read a header; offsets and sizes are not yet held against the file.

        Raises:
            ArtifactError: cut, or a field holds what version 4 does not allow.
        """
        if len(data) < HEADER_BYTES:
            raise ArtifactError(
                f"EIF header: {len(data)} bytes; expected {HEADER_BYTES}: the file is cut"
            )
        fields = _HEADER.unpack(data[:HEADER_BYTES])
        magic, version, flags, memory, cpus, reserved, count = fields[:_OFFSETS_AT]
        if magic != MAGIC:
            raise ArtifactError(f"EIF magic: {magic.hex()}; expected {MAGIC.hex()} ('.eif')")
        if version != VERSION:
            raise ArtifactError(f"EIF version: {version}; expected {VERSION}")
        if flags & ~_AARCH64_FLAG:
            raise ArtifactError(f"EIF flags: 0x{flags:04x}; expected 0 or 1 (aarch64)")
        if reserved or fields[-2]:
            raise ArtifactError("EIF reserved fields: not zero")
        if not 1 <= count <= MAX_SECTIONS:
            raise ArtifactError(f"EIF num_sections: {count}; expected 1 to {MAX_SECTIONS}")
        offsets = fields[_OFFSETS_AT : _OFFSETS_AT + MAX_SECTIONS]
        sizes = fields[_OFFSETS_AT + MAX_SECTIONS : _OFFSETS_AT + 2 * MAX_SECTIONS]
        if any(offsets[count:]) or any(sizes[count:]):
            raise ArtifactError(
                f"EIF section_offsets, section_sizes: not zero beyond the {count} of num_sections"
            )
        return cls(
            version=version,
            architecture=Architecture.AARCH64 if flags else Architecture.X86_64,
            default_memory_bytes=memory,
            default_cpus=cpus,
            offsets=offsets[:count],
            sizes=sizes[:count],
            crc=fields[-1],
        )


def default_memory_bytes(image_bytes: int) -> int:
    """Give the memory that an image asks for where its operator asks for nothing.

    nitro-cli refuses less than four times the file (E26), since the packed and the unpacked
    ramdisks are in memory at once and the root file system may fill half of it. The field is not
    measured.

    Args:
        image_bytes: the file's size.

    Returns:
        Four times the file in whole MiB, as memory is allocated, and at least the 1 GiB of AWS's
        tools.
    """
    mib = -(-_MEMORY_PER_IMAGE * image_bytes // _MIB)
    return max(_LEAST_MEMORY_BYTES, mib * _MIB)


def pack_section_head(kind: SectionKind, size: int) -> bytes:
    """Give the 12 bytes before a section's data."""
    return _SECTION_HEAD.pack(kind, 0, size)


def unpack_section_head(data: bytes, number: int, expected_size: int) -> SectionKind:
    """Read the head of section `number`; give what the section holds.

    Raises:
        ArtifactError: cut, of no known type, with flags, or of another size than the header says.
    """
    what = f"EIF section {number}"
    if len(data) != SECTION_HEAD_BYTES:
        raise ArtifactError(f"{what}: its head is cut after {len(data)} bytes")
    kind, flags, size = _SECTION_HEAD.unpack(data)
    if flags:
        raise ArtifactError(f"{what} flags: 0x{flags:04x}; expected 0")
    if size != expected_size:
        raise ArtifactError(
            f"{what} section_size: {size}, but the header's section_sizes[{number}] is "
            f"{expected_size}"
        )
    try:
        return SectionKind(kind)
    except ValueError:
        known = ", ".join(f"{item.value} ({item.name.lower()})" for item in SectionKind)
        raise ArtifactError(f"{what} section_type: {kind}; expected one of {known}") from None
