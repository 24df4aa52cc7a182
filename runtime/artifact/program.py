"""What a target's payload says of itself: programs, their flat arguments, and the block table.

A `TargetPayload` is what an artifact seals for one target: the raw serialized executables with our
own description of inputs and outputs, so that a node binds arrays by role and name and nothing is
ever unpickled. Parameter names stand only in here, never in the manifest.

The constructors check what they are given, so that a writer cannot make what a reader refuses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast, get_args

from runtime.artifact._fields import Fields, fail, integer, items, text
from runtime.artifact.canonical import decode, encode
from runtime.artifact.partitions import MAX_CHIPS, Partitions
from runtime.spec.errors import ArtifactError

__all__ = [
    "DTYPES",
    "EMPTY",
    "MAX_CHIPS",
    "MAX_EXPONENT",
    "MAX_OPS",
    "MAX_PAYLOAD_BYTES",
    "MIN_EXPONENT",
    "ROLES",
    "BlockTable",
    "Partitions",
    "Program",
    "ProgramForm",
    "ProgramName",
    "TargetPayload",
    "TensorSpec",
]

ProgramName = Literal["grad", "apply", "forward"]

ProgramForm = Literal["pjrt", "vmfb", "neff"]
"""What an executable's bytes are: PJRT's serialized executable (CPU, CUDA, TPU), IREE's VM module,
or Neuron's executable file format. It decides which loader a node takes."""

EMPTY = -1024
"""The maximum's exponent that a block of zeros contributes: below every real one."""

MIN_EXPONENT = -124
"""Smallest unit exponent: 2^124 is a normal float32 and subnormal results round to 0."""

MAX_EXPONENT = 126
"""Largest unit exponent: 2^-126 is the smallest normal float32."""

ROLES = (
    "param",
    "frozen",
    "buffer",
    "batch",
    "key",
    "exponents",
    "grad_sum",
    "maxima",
    "moment1",
    "moment2",
    "scalars",
    "tokens",
    "loss_sum",
    "overflow",
    "nonfinite",
    "vanished",
    "grad_norm",
    "logits",
)
"""What an argument or result of a program can be."""

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
"""Element types, by numpy's (or ml_dtypes') names."""

MAX_PAYLOAD_BYTES = 1 << 34
"""Largest payload of one target: 16 GiB."""

MAX_OPS = 4096
"""Most names of ops in one list."""

_SCHEMA = "luma/payload/3"
_MAX_RANK = 32
_MAX_SIZE = 1 << 48
_MAX_TENSORS = 200_000
_MAX_NAME = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One flat argument or result of a program.

    Attributes:
        role: what it is, one of `ROLES`.
        name: the parameter's, buffer's or batch entry's name; "" where the role says it all.
        shape: sizes of the axes.
        dtype: element type, one of `DTYPES`.

    Raises:
        ArtifactError: role or dtype is unknown, or the shape is out of bounds.
    """

    role: str
    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        """Check the fields."""
        where = f"tensor {self.name[:80] or self.role}"
        if self.role not in ROLES:
            raise fail(f"{where}.role", self.role, "one of " + ", ".join(ROLES))
        if self.dtype not in DTYPES:
            raise fail(f"{where}.dtype", self.dtype, "one of " + ", ".join(DTYPES))
        text(self.name, f"{where}.name", limit=_MAX_NAME)
        if not isinstance(self.shape, tuple) or len(self.shape) > _MAX_RANK:
            raise fail(f"{where}.shape", self.shape, f"a tuple of at most {_MAX_RANK} sizes")
        for size in self.shape:
            integer(size, f"{where}.shape", low=0, high=_MAX_SIZE)
        if math.prod(self.shape) > _MAX_SIZE:
            raise fail(f"{where}.shape", self.shape, f"at most {_MAX_SIZE} elements")

    def to_plain(self) -> list[object]:
        """Give the CBOR form: [role, name, [sizes], dtype]."""
        return [self.role, self.name, list(self.shape), self.dtype]

    @classmethod
    def from_plain(cls, value: object, where: str) -> TensorSpec:
        """Read the CBOR form; `where` names it in errors.

        Raises:
            ArtifactError: not of that form.
        """
        parts = items(value, where, limit=4)
        if len(parts) != 4:
            raise fail(where, value, "[role, name, shape, dtype]")
        shape = items(parts[2], f"{where}.shape", limit=_MAX_RANK)
        return cls(
            role=text(parts[0], f"{where}.role"),
            name=text(parts[1], f"{where}.name", limit=_MAX_NAME),
            shape=tuple(integer(n, f"{where}.shape", low=0, high=_MAX_SIZE) for n in shape),
            dtype=text(parts[3], f"{where}.dtype"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One executable with its flat signature and what it costs.

    Attributes:
        name: "grad", "apply" or "forward".
        inputs: flat arguments, in call order.
        outputs: flat results, in order.
        donated: indices of inputs whose memory the call takes over, ascending.
        executable: the raw serialized executable of the target (never pickle).
        form: what the executable's bytes are.
        partitions: how the arrays lie on the chips of an island; None for a program of one chip.
        peak_memory_bytes: peak memory of a call on one chip, as the compiler states it.
        flops: floating-point operations of a call on one chip, as the compiler states them.
        bytes_moved: bytes read and written by a call on one chip, as the compiler states them.

    Raises:
        ArtifactError: a field is out of bounds, or two inputs have the same role and name.
    """

    name: ProgramName
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    donated: tuple[int, ...]
    executable: bytes
    peak_memory_bytes: int
    flops: float
    bytes_moved: float
    form: ProgramForm = "pjrt"
    partitions: Partitions | None = None

    @property
    def chips(self) -> int:
        """The chips that one call runs on."""
        return 1 if self.partitions is None else self.partitions.chips

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.name not in get_args(ProgramName):
            raise fail("program.name", self.name, "grad, apply or forward")
        where = f"program {self.name}"
        if self.form not in get_args(ProgramForm):
            raise fail(f"{where}.form", self.form, " or ".join(get_args(ProgramForm)))
        sides = {"inputs": self.inputs, "outputs": self.outputs}
        for side, tensors in sides.items():
            if len(tensors) > _MAX_TENSORS:
                raise fail(f"{where}.{side}", len(tensors), f"at most {_MAX_TENSORS} tensors")
            if len({(spec.role, spec.name) for spec in tensors}) != len(tensors):
                raise ArtifactError(f"{where}.{side}: two tensors have the same role and name")
        if self.partitions is not None:
            self.partitions.check(f"{where}.partitions", self.inputs, self.outputs)
        self._check_donated(where)
        integer(self.peak_memory_bytes, f"{where}.peak_memory_bytes", low=0, high=_MAX_SIZE)
        for field, value in (("flops", self.flops), ("bytes_moved", self.bytes_moved)):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise fail(f"{where}.{field}", value, "a finite number")

    def _check_donated(self, where: str) -> None:
        """Check the indices of inputs that are taken over."""
        for index in self.donated:
            integer(index, f"{where}.donated", low=0, high=len(self.inputs) - 1)
        if list(self.donated) != sorted(set(self.donated)):
            raise fail(f"{where}.donated", self.donated, "ascending indices, each once")

    def to_plain(self) -> dict[str, object]:
        """Give the CBOR form."""
        return {
            "inputs": [spec.to_plain() for spec in self.inputs],
            "outputs": [spec.to_plain() for spec in self.outputs],
            "donated": list(self.donated),
            "executable": self.executable,
            "form": self.form,
            "partitions": None if self.partitions is None else self.partitions.to_plain(),
            "peak_memory_bytes": self.peak_memory_bytes,
            "flops": float(self.flops),
            "bytes_moved": float(self.bytes_moved),
        }

    @classmethod
    def from_plain(cls, name: str, value: object) -> Program:
        """Read the CBOR form.

        Raises:
            ArtifactError: not of that form.
        """
        fields = Fields(value, f"payload.programs.{name}")
        program = cls(
            name=cast("ProgramName", name),
            inputs=_tensors(fields, "inputs"),
            outputs=_tensors(fields, "outputs"),
            donated=tuple(
                integer(i, f"{fields.where}.donated", low=0, high=_MAX_TENSORS)
                for i in fields.items("donated", limit=_MAX_TENSORS)
            ),
            executable=fields.octets("executable", high=MAX_PAYLOAD_BYTES),
            form=cast("ProgramForm", fields.choice("form", get_args(ProgramForm))),
            partitions=Partitions.from_plain(
                fields.take("partitions"), f"{fields.where}.partitions"
            ),
            peak_memory_bytes=fields.integer("peak_memory_bytes", low=0, high=_MAX_SIZE),
            flops=fields.real("flops"),
            bytes_moved=fields.real("bytes_moved"),
        )
        fields.end()
        return program


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """Where each parameter's fixed-point blocks lie in the flat list of all blocks.

    Attributes:
        block_size: elements of a block; the last block of a parameter is padded.
        rows: (parameter, first block, number of blocks), parameters sorted, blocks without gaps.

    Raises:
        ArtifactError: rows are unsorted, or their blocks have gaps or overlap.
    """

    block_size: int
    rows: tuple[tuple[str, int, int], ...]

    def __post_init__(self) -> None:
        """Check the fields."""
        integer(self.block_size, "block table.block_size", low=1, high=1 << 24)
        expected, previous = 0, ""
        for i, (name, first, count) in enumerate(self.rows):
            where = f"block table.rows[{i}]"
            text(name, where, limit=_MAX_NAME)
            if i > 0 and name <= previous:
                raise fail(where, name, f"a name after {previous!r}, in sorted order")
            integer(first, f"{where}.first_block", low=expected, high=expected)
            integer(count, f"{where}.n_blocks", low=0, high=_MAX_SIZE)
            expected, previous = first + count, name

    @property
    def n_blocks(self) -> int:
        """Number of all blocks."""
        return sum(count for _, _, count in self.rows)

    def to_plain(self) -> dict[str, object]:
        """Give the CBOR form."""
        return {"block_size": self.block_size, "rows": [list(row) for row in self.rows]}

    @classmethod
    def from_plain(cls, fields: Fields) -> BlockTable:
        """Read the CBOR form.

        Raises:
            ArtifactError: not of that form.
        """
        rows: list[tuple[str, int, int]] = []
        size = fields.integer("block_size", low=1, high=1 << 24)
        for i, value in enumerate(fields.items("rows", limit=_MAX_TENSORS)):
            where = f"{fields.where}.rows[{i}]"
            parts = items(value, where, limit=3)
            if len(parts) != 3:
                raise fail(where, value, "[parameter, first block, number of blocks]")
            rows.append(
                (
                    text(parts[0], where, limit=_MAX_NAME),
                    integer(parts[1], where, low=0, high=_MAX_SIZE),
                    integer(parts[2], where, low=0, high=_MAX_SIZE),
                )
            )
        fields.end()
        return cls(block_size=size, rows=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPayload:
    """All that one target needs to train and to run forward.

    Attributes:
        target: the target's name, such as "cpu".
        programs: the programs by name.
        blocks: the block table that `grad` and `apply` were compiled with.
        cpu_name: the CPU that the executables were compiled for; "" for other targets.
        cpu_features: the CPU features that they may use.
        scrubbed: whether names, paths and kernel IR were taken out of the executables.
        plain_forms: `luma::` ops that took their plain form, the target having no kernel for them.

    Raises:
        ArtifactError: a program stands under another name than its own.
    """

    target: str
    programs: dict[str, Program]
    blocks: BlockTable
    cpu_name: str
    cpu_features: tuple[str, ...]
    scrubbed: bool
    plain_forms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields."""
        for name, program in self.programs.items():
            if program.name != name:
                raise fail(f"payload.programs.{name}", program.name, f"a program named {name}")

    def to_bytes(self) -> bytes:
        """Give the canonical CBOR of the payload."""
        return encode(
            {
                "schema": _SCHEMA,
                "target": self.target,
                "programs": {name: p.to_plain() for name, p in self.programs.items()},
                "blocks": self.blocks.to_plain(),
                "cpu_name": self.cpu_name,
                "cpu_features": list(self.cpu_features),
                "scrubbed": self.scrubbed,
                "plain_forms": list(self.plain_forms),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> TargetPayload:
        """Read what `to_bytes` wrote, and nothing else.

        Raises:
            ArtifactError: another schema, not canonical, or a field is missing, unknown or wrong.
        """
        decoded = decode(data, what="payload", max_bytes=MAX_PAYLOAD_BYTES)
        fields = Fields(decoded, "payload")
        fields.choice("schema", (_SCHEMA,))
        programs = fields.fields("programs")
        payload = cls(
            target=fields.text("target", limit=64),
            programs={
                name: Program.from_plain(name, programs.take(name)) for name in programs.names()
            },
            blocks=BlockTable.from_plain(fields.fields("blocks")),
            cpu_name=fields.text("cpu_name", limit=256),
            cpu_features=fields.texts("cpu_features", limit=4096, length=256),
            scrubbed=fields.flag("scrubbed"),
            plain_forms=fields.texts("plain_forms", limit=MAX_OPS, length=256),
        )
        fields.end()
        return payload


def _tensors(fields: Fields, name: str) -> tuple[TensorSpec, ...]:
    """Read a list of tensor specifications."""
    return tuple(
        TensorSpec.from_plain(value, f"{fields.where}.{name}[{i}]")
        for i, value in enumerate(fields.items(name, limit=_MAX_TENSORS))
    )
