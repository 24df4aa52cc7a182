"""The header of a NEFF, Neuron's executable file format, and what a node must check before loading.

A NEFF is a header of 1024 bytes and a body (a tar archive, gzipped unless it was made for fast
loading). The layout is the vendor's documented C struct, packed the same with natural alignment;
little-endian is [memory, check]. No NEFF of a real compiler was read here.

The header's hash and uuid differ between two compiles of one module, so a NEFF is known by the
digest of the whole file, as every payload is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from runtime.spec.errors import ArtifactError

__all__ = ["HEADER_SIZE", "NeffHeader", "check_loadable", "read_header"]

HEADER_SIZE = 1024
"""Bytes of the header that this module knows; a later one may be longer."""

_LAYOUT = struct.Struct("<5Q128sI32s16s256sI64sQI468s")
_MAX_CORES = 1 << 16
_MAX_HEADER = 1 << 20
_GZIP = b"\x1f\x8b"
_TAR_MAGIC = b"ustar"
_TAR_MAGIC_AT = 257


@dataclass(frozen=True, slots=True, kw_only=True)
class NeffHeader:
    """What a NEFF's header states.

    Attributes:
        package_version: version of the container.
        header_size: bytes before the body.
        data_size: bytes of the body.
        version: major and minor version of the format.
        build: the compiler's build.
        cores: NeuronCores that the program was built for.
        digest: the body's hash; sha256, or md5 in older containers.
        uuid: of this compile.
        name: the program's name.
        requested_cores: NeuronCores that it asks for.
        cores_per_node: NeuronCores of each node of its graph.
        features: one bit a feature that the runtime must have.
        logical_core: physical cores of a logical one (LNC).
        compression: "gzip", "tar" or "unknown": what the body's first bytes say.
    """

    package_version: int
    header_size: int
    data_size: int
    version: tuple[int, int]
    build: str
    cores: int
    digest: bytes
    uuid: bytes
    name: str
    requested_cores: int
    cores_per_node: bytes
    features: int
    logical_core: int
    compression: str


def read_header(data: bytes) -> NeffHeader:
    """Read and check the header of a whole NEFF.

    Args:
        data: the file.

    Raises:
        ArtifactError: it is cut short, a size disagrees with the file, or a field is out of bounds.
    """
    if len(data) < HEADER_SIZE:
        raise ArtifactError(f"NEFF: {len(data)} bytes; its header alone has {HEADER_SIZE}")
    fields = _LAYOUT.unpack_from(data)
    header = NeffHeader(
        package_version=fields[0],
        header_size=fields[1],
        data_size=fields[2],
        version=(fields[3], fields[4]),
        build=_text(fields[5], "neff_build_version"),
        cores=fields[6],
        digest=fields[7],
        uuid=fields[8],
        name=_text(fields[9], "name"),
        requested_cores=fields[10],
        cores_per_node=fields[11],
        features=fields[12],
        logical_core=fields[13],
        compression=_compression(data[fields[1] : fields[1] + 512]),
    )
    _check(header, len(data))
    return header


def check_loadable(header: NeffHeader, *, supported_features: int, cores: int) -> None:
    """Refuse a NEFF that this node's runtime cannot run, before it is given the bytes.

    Args:
        header: the NEFF's.
        supported_features: the runtime's feature bits.
        cores: NeuronCores that this process may use.

    Raises:
        ArtifactError: it needs a feature or cores that are not there.
    """
    lacking = header.features & ~supported_features
    if lacking:
        message = (
            f"NEFF '{header.name}': features {header.features:#x} need {lacking:#x}, which this "
            f"runtime lacks (it has {supported_features:#x})"
        )
        remedy = "update the Neuron runtime on the node, or compile with an older neuronx-cc"
        raise ArtifactError(message, remedy=remedy)
    needed = max(header.requested_cores, header.cores)
    if needed > cores:
        message = f"NEFF '{header.name}': it needs {needed} NeuronCores and the node gives {cores}"
        raise ArtifactError(message, remedy="run it on a larger instance, or with fewer islands")


def _check(header: NeffHeader, size: int) -> None:
    """Check sizes against the file, and counts against reason."""
    if not HEADER_SIZE <= header.header_size <= _MAX_HEADER:
        message = f"NEFF: header_size {header.header_size}; expected {HEADER_SIZE} to {_MAX_HEADER}"
        raise ArtifactError(message)
    if header.header_size + header.data_size != size:
        message = (
            f"NEFF: its header states {header.header_size} + {header.data_size} bytes and the "
            f"file has {size}"
        )
        raise ArtifactError(message, remedy="fetch the artifact again")
    if not header.data_size:
        raise ArtifactError("NEFF: it has no body")
    for name in ("cores", "requested_cores", "logical_core"):
        value = getattr(header, name)
        if value > _MAX_CORES:
            raise ArtifactError(f"NEFF: {name} {value}; expected at most {_MAX_CORES}")


def _text(raw: bytes, name: str) -> str:
    """Give a C string.

    Raises:
        ArtifactError: it does not end, or is no text.
    """
    value, end, _ = raw.partition(b"\0")
    try:
        if end:
            return value.decode("ascii")
    except UnicodeDecodeError:
        pass
    raise ArtifactError(f"NEFF: {name} is no text that ends in a zero byte")


def _compression(body: bytes) -> str:
    """Say by its first bytes how a body is packed."""
    if body.startswith(_GZIP):
        return "gzip"
    return "tar" if body[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC) else "unknown"
