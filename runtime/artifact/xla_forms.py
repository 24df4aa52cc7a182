"""Where things lie in XLA's serialized executables: what scan and scrubber both need to know.

An executable is a varint, an IFRT header of that size, and a body (jaxlib 0.10.2). On CPU and CUDA
the body is an ExecutableAndOptionsProto. The executable in there is a message on CPU; on CUDA it is
a *split proto*: a riegeli file whose first record says how the others make up the message
(xla/util/split_proto/split_proto.proto). On TPU the body is a split proto itself (libtpu 0.0.52).
The field numbers are those of the schemas that the libraries themselves hold, for TPU as seen in
its payloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from runtime.artifact.protobuf import (
    NotAMessageError,
    RawField,
    join,
    read_varint,
    split,
    write_varint,
)
from runtime.artifact.riegeli import SIGNATURE, read_records, write_records
from runtime.artifact.xla_schema import walk

__all__ = [
    "Part",
    "SplitProto",
    "divide",
    "field_value",
    "gpu_executable",
    "telling_fields",
    "unite",
]

GPU_TYPE, TPU_TYPE = "xla.gpu.GpuExecutableProto", "xla.TpuExecutableProto"

# Fields of ExecutableAndOptionsProto and, one level down, of either kind of executable.
EXECUTABLE, MODULE_WITH_CONFIG, MODULE = 1, 1, 1
# Fields of HloModuleProto.
COMPUTATION, PAYLOADS = 3, 22

# SplitProtoManifest and its Record
_TYPE, _RECORDS = 1, 2
_OVERRIDE, _PATH, _NUMBER = 3, 1, 1


class Part(NamedTuple):
    """One record of a split proto.

    Attributes:
        field: the number of the field whose content it is; None for a message to merge.
        data: the record.
    """

    field: int | None
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProto:
    """A message that is spread over the records of a riegeli file.

    Attributes:
        type_name: the message's full name.
        manifest: the first record, as it stands.
        parts: the other records.
    """

    type_name: str
    manifest: bytes
    parts: tuple[Part, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> SplitProto:
        """Read a file.

        Raises:
            NotRiegeliError: it is none, or not whole.
            NotAMessageError: its records are not what the first one says.
        """
        records = read_records(data)
        if not records:
            raise NotAMessageError("a split proto without a manifest")
        described = [f.value for f in split(records[0]) if f.number == _RECORDS]
        if len(described) != len(records) - 1:
            raise NotAMessageError(
                f"the manifest tells of {len(described)} records, but there are {len(records) - 1}"
            )
        fields = [_field_of(record or b"") for record in described]
        return cls(
            type_name=field_value(records[0], _TYPE).decode("ascii", "replace"),
            manifest=records[0],
            parts=tuple(map(Part, fields, records[1:])),
        )

    def to_bytes(self) -> bytes:
        """Give the file, one compressed chunk a record."""
        records = [self.manifest, *(part.data for part in self.parts)]
        return write_records(records, compressed=True)

    def merged(self) -> bytes:
        """Give the message as one."""
        return b"".join(
            part.data if part.field is None else RawField.of(part.field, part.data).raw
            for part in self.parts
        )


def divide(executable: bytes) -> tuple[bytes, bytes]:
    """Give (IFRT header, body) of an executable.

    Raises:
        NotAMessageError: it is shorter than its header says.
    """
    size, offset = read_varint(executable, 0)
    if offset + size > len(executable):
        raise NotAMessageError(f"a header of {size} bytes in {len(executable)}")
    return executable[offset : offset + size], executable[offset + size :]


def unite(header: bytes, body: bytes) -> bytes:
    """Give the executable of a header and a body."""
    return write_varint(len(header)) + header + body


def field_value(message: bytes, *path: int) -> bytes:
    """Give the content of a field, the first one where it is repeated, at a path of numbers.

    Raises:
        NotAMessageError: there is none.
    """
    for number in path:
        for field in split(message):
            if field.number == number and field.value is not None:
                message = field.value
                break
        else:
            raise NotAMessageError(f"no field {number} in a message of {len(message)} bytes")
    return message


def telling_fields(executable: bytes) -> list[tuple[str, bytes]]:
    """Give (tag, content) of what `xla_schema` knows in a CPU, CUDA or TPU executable.

    Raises:
        NotAMessageError: it has none of their forms.
        NotRiegeliError: it is a CUDA or TPU executable that is not whole.
    """
    header, body = divide(executable)
    found = list(walk(header, "IfrtHeader"))
    if body.startswith(SIGNATURE):
        tpu = SplitProto.from_bytes(body)
        if tpu.type_name != TPU_TYPE:
            raise NotAMessageError(f"an executable of type {tpu.type_name!r}")
        return [*found, *walk(tpu.merged(), "TpuExecutable")]
    if not field_value(body, EXECUTABLE).startswith(SIGNATURE):
        field_value(body, EXECUTABLE, MODULE_WITH_CONFIG, MODULE, COMPUTATION)
        return [*found, *walk(body, "ExecutableAndOptions")]
    found += walk(body, "OptionsOfExecutable")
    return [*found, *walk(gpu_executable(body).merged(), "GpuExecutable")]


def gpu_executable(body: bytes) -> SplitProto:
    """Give the split proto in the body of a CUDA executable.

    Raises:
        NotAMessageError: it is of another type, or holds no HLO module.
        NotRiegeliError: it is not whole.
    """
    split_proto = SplitProto.from_bytes(field_value(body, EXECUTABLE))
    if split_proto.type_name != GPU_TYPE:
        raise NotAMessageError(f"an executable of type {split_proto.type_name!r}")
    field_value(split_proto.merged(), MODULE_WITH_CONFIG, MODULE, COMPUTATION)
    return split_proto


def _field_of(record: bytes) -> int | None:
    """Give the number of the field that a record of the manifest stands for.

    Raises:
        NotAMessageError: it is a field within another, which XLA does not write.
    """
    fields = split(record)
    if [field.number for field in fields] != [_OVERRIDE]:
        return None
    paths = [f.value for f in split(fields[0].value or b"") if f.number == _PATH]
    steps = [split(path or b"") for path in paths]
    if len(steps) != 1 or [field.number for field in steps[0]] != [_NUMBER]:
        raise NotAMessageError("a record for a field within another")
    return read_varint(join(steps[0]), 1)[0]
