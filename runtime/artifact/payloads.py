"""What a manifest tells of each payload: its place and digests, its chip class, what it costs.

The plan works from this alone: memory, operations and bytes of each program, without a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

from runtime.artifact._fields import Fields, fail
from runtime.artifact.program import MAX_CHIPS, MAX_OPS, MAX_PAYLOAD_BYTES, ProgramForm
from runtime.artifact.sealing import CHUNK_DIGEST_BYTES

if TYPE_CHECKING:
    from runtime.artifact.program import TargetPayload

__all__ = ["PayloadDescription", "PayloadEntry", "ProgramCost"]

_MAX_PROGRAMS = 16
_TARGET = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_MAX_COUNT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCost:
    """What one program costs a call, as the compiler states it; enough to plan with.

    Attributes:
        form: what the executable's bytes are, which decides the loader.
        chips: chips that a call runs on; the other figures are those of one of them.
        executable_bytes: size of the serialized executable.
        peak_memory_bytes: peak device memory.
        flops: floating-point operations.
        bytes_moved: bytes read and written.
    """

    form: ProgramForm
    chips: int
    executable_bytes: int
    peak_memory_bytes: int
    flops: float
    bytes_moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadDescription:
    """What the manifest tells of a payload.

    Attributes:
        cpu_name: the CPU that it was compiled for; "" for other targets.
        cpu_features: the CPU features that it may use: with the name, its chip class.
        scrubbed: whether names, paths and kernel IR were taken out of its executables.
        plain_forms: `luma::` ops for which the target has no kernel of its own.
        programs: the cost of each program, by name.
    """

    cpu_name: str
    cpu_features: tuple[str, ...]
    scrubbed: bool
    plain_forms: tuple[str, ...]
    programs: Mapping[str, ProgramCost]

    @classmethod
    def of(cls, payload: TargetPayload) -> PayloadDescription:
        """Describe a payload."""
        return cls(
            cpu_name=payload.cpu_name,
            cpu_features=payload.cpu_features,
            scrubbed=payload.scrubbed,
            plain_forms=payload.plain_forms,
            programs={
                name: ProgramCost(
                    form=program.form,
                    chips=program.chips,
                    executable_bytes=len(program.executable),
                    peak_memory_bytes=program.peak_memory_bytes,
                    flops=float(program.flops),
                    bytes_moved=float(program.bytes_moved),
                )
                for name, program in payload.programs.items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadEntry:
    """One target's payload in the file.

    Attributes:
        target: the target's name.
        size: bytes of the plain payload.
        digests: the 32-byte BLAKE3 of each plain chunk, keyed where the artifact is sealed.
        description: what the manifest tells of it.
    """

    target: str
    size: int
    digests: tuple[bytes, ...]
    description: PayloadDescription


def _plain_description(description: PayloadDescription) -> dict[str, object]:
    """Give the CBOR form of a description, which is its JSON form too."""
    return {
        "cpu_name": description.cpu_name,
        "cpu_features": list(description.cpu_features),
        "scrubbed": description.scrubbed,
        "plain_forms": list(description.plain_forms),
        "programs": {
            name: {
                "form": cost.form,
                "chips": cost.chips,
                "executable_bytes": cost.executable_bytes,
                "peak_memory_bytes": cost.peak_memory_bytes,
                "flops": cost.flops,
                "bytes_moved": cost.bytes_moved,
            }
            for name, cost in description.programs.items()
        },
    }


def plain_entry(entry: PayloadEntry) -> dict[str, object]:
    """Give the CBOR form of a payload entry."""
    return {
        "target": entry.target,
        "size": entry.size,
        "digests": list(entry.digests),
        "description": _plain_description(entry.description),
    }


def json_entry(entry: PayloadEntry) -> dict[str, object]:
    """Give the JSON form of a payload entry: the digests are only counted."""
    return {
        "target": entry.target,
        "size_bytes": entry.size,
        "chunks": len(entry.digests),
        **_plain_description(entry.description),
    }


def matching(fields: Fields, name: str, pattern: re.Pattern[str], allowed: str) -> str:
    """Read a text that matches a pattern as a whole."""
    value = fields.text(name)
    if not pattern.fullmatch(value):
        raise fail(f"{fields.where}.{name}", value, allowed)
    return value


def read_entry(value: object, where: str, chunk_bytes: int) -> PayloadEntry:
    """Read a payload entry, whose digests must be as many as its size asks for."""
    fields = Fields(value, where)
    size = fields.integer("size", low=1, high=MAX_PAYLOAD_BYTES)
    chunks = -(-size // chunk_bytes)
    digests = fields.items("digests", limit=chunks)
    if len(digests) != chunks:
        raise fail(f"{where}.digests", len(digests), f"{chunks} digests for {size} bytes")
    for digest in digests:
        if not isinstance(digest, bytes) or len(digest) != CHUNK_DIGEST_BYTES:
            raise fail(f"{where}.digests", digest, f"{CHUNK_DIGEST_BYTES} bytes each")
    entry = PayloadEntry(
        target=matching(fields, "target", _TARGET, "a target name such as 'cuda-sm90'"),
        size=size,
        digests=tuple(cast("list[bytes]", digests)),
        description=_read_description(fields.fields("description")),
    )
    fields.end()
    return entry


def _read_description(fields: Fields) -> PayloadDescription:
    """Read a payload's description."""
    programs = fields.fields("programs")
    names = programs.names()
    if len(names) > _MAX_PROGRAMS:
        raise fail(programs.where, len(names), f"at most {_MAX_PROGRAMS} programs")
    description = PayloadDescription(
        cpu_name=fields.text("cpu_name", limit=256),
        cpu_features=fields.texts("cpu_features", limit=4096, length=256),
        scrubbed=fields.flag("scrubbed"),
        plain_forms=fields.texts("plain_forms", limit=MAX_OPS, length=256),
        programs={name: _read_cost(programs.fields(name)) for name in names},
    )
    fields.end()
    return description


def _read_cost(fields: Fields) -> ProgramCost:
    """Read a program's cost."""
    cost = ProgramCost(
        form=cast("ProgramForm", fields.choice("form", get_args(ProgramForm))),
        chips=fields.integer("chips", low=1, high=MAX_CHIPS),
        executable_bytes=fields.integer("executable_bytes", low=0, high=MAX_PAYLOAD_BYTES),
        peak_memory_bytes=fields.integer("peak_memory_bytes", low=0, high=_MAX_COUNT),
        flops=fields.real("flops"),
        bytes_moved=fields.real("bytes_moved"),
    )
    fields.end()
    return cost
