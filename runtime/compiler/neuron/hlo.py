"""HLO modules as protocol buffers, as far as the rules look at them.

The field numbers are those of XLA's `hlo.proto` and `xla_data.proto`, as jaxlib 0.10.2 writes them;
a test compares what is read here with XLA's own text of the same module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from runtime.artifact.protobuf import (
    BYTES,
    NotAMessageError,
    RawField,
    read_varint,
    split,
)
from runtime.spec import CompileError

__all__ = [
    "CALLED",
    "COMPUTATION",
    "COMPUTATION_ID",
    "COMPUTATION_NAME",
    "COMPUTATION_ROOT",
    "CONTROL",
    "ENTRY",
    "ENTRY_NAME",
    "ID",
    "INSTRUCTION",
    "METADATA",
    "NAME",
    "OPERANDS",
    "SCHEDULE",
    "STACK_FRAMES",
    "Computation",
    "Dimension",
    "Instruction",
    "Module",
    "Shape",
    "number_of",
    "read",
    "read_instruction",
]

# Field numbers: of hlo.proto's module, computation and instruction ...
ENTRY_NAME, COMPUTATION, ENTRY, SCHEDULE, STACK_FRAMES = 2, 3, 6, 7, 17
COMPUTATION_NAME, INSTRUCTION, COMPUTATION_ID, COMPUTATION_ROOT = 1, 2, 5, 6
NAME, METADATA, ID, OPERANDS, CONTROL, CALLED = 1, 7, 35, 36, 37, 38
_OPCODE, _SHAPE, _PARAMETER, _WINDOW, _TARGET = 2, 3, 9, 15, 28
_DIRECTION, _RNG_ALGORITHM = 63, 70
# ... and of xla_data.proto's shape and window.
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES, _DYNAMIC = 2, 3, 4, 6
_WINDOW_DIMENSION, _STRIDE, _KERNEL_DILATION, _BASE_DILATION = 1, 2, 5, 6

_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16",
    17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4",
    23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3",
    29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape.

    Attributes:
        dtype: XLA's name of the element type, such as "f32", or "tuple".
        sizes: the dimensions.
        parts: a tuple's shapes.
        dynamic: whether a dimension is known only at run time.
    """

    dtype: str
    sizes: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()
    dynamic: bool = False

    def leaves(self) -> Iterator[Shape]:
        """Give the array shapes in it."""
        if self.dtype != "tuple":
            yield self
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a window: its stride, and the spacing of the kernel and of the input."""

    stride: int = 1
    kernel_dilation: int = 1
    base_dilation: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction, as far as the rules look at it.

    Attributes:
        id: its number, as the file has it.
        name: its name, for messages.
        opcode: such as "dot".
        shape: its result.
        operands: ids of its operands.
        called: ids of the computations that it calls.
        window: the dimensions of its window, if it has one.
        target: of a custom call; "" elsewhere.
        direction: of a compare, such as "LT"; "" elsewhere.
        rng_algorithm: of a random bit generator: 0 is the default one.
        parameter: of a parameter: its place among the computation's arguments.
    """

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...] = ()
    called: tuple[int, ...] = ()
    window: tuple[Dimension, ...] = ()
    target: str = ""
    direction: str = ""
    rng_algorithm: int = 0
    parameter: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """One computation: its instructions by id, and the one whose result it gives."""

    id: int
    name: str
    instructions: Mapping[int, Instruction]
    root: int

    def result(self) -> Instruction | None:
        """Give the root, or None where the file lacks it."""
        return self.instructions.get(self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """An HLO module: its computations by id."""

    computations: Mapping[int, Computation]
    entry: int = 0
    largest_id: int = 0

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Give every instruction with the computation that it stands in."""
        for computation in self.computations.values():
            for instruction in computation.instructions.values():
                yield computation, instruction


def read(data: bytes) -> Module:
    """Read a serialized HloModuleProto.

    Raises:
        CompileError: the bytes are no HLO module.
    """
    try:
        fields = split(data)
        computations = [
            _computation(item.value)
            for item in fields
            if item.number == COMPUTATION and item.value is not None
        ]
        entry = number_of(fields, ENTRY)
    except NotAMessageError as error:
        raise CompileError(f"the HLO module cannot be read: {error}") from error
    if not computations or entry not in {item.id for item in computations}:
        raise CompileError("the HLO module cannot be read: it has no entry computation")
    ids = [item.id for item in computations]
    ids += [key for item in computations for key in item.instructions]
    return Module(
        computations={item.id: item for item in computations}, entry=entry, largest_id=max(ids)
    )


def _computation(data: bytes) -> Computation:
    fields = split(data)
    instructions = [
        read_instruction(item.value)
        for item in fields
        if item.number == INSTRUCTION and item.value is not None
    ]
    return Computation(
        id=number_of(fields, COMPUTATION_ID),
        name=_text(fields, COMPUTATION_NAME),
        instructions={item.id: item for item in instructions},
        root=number_of(fields, COMPUTATION_ROOT),
    )


def read_instruction(data: bytes) -> Instruction:
    """Read a serialized HloInstructionProto.

    Raises:
        NotAMessageError: the bytes are no message.
    """
    fields = split(data)
    return Instruction(
        id=number_of(fields, ID),
        name=_text(fields, NAME),
        opcode=_text(fields, _OPCODE),
        shape=_shape(_message(fields, _SHAPE)),
        operands=_numbers(fields, OPERANDS),
        called=_numbers(fields, CALLED),
        window=tuple(
            _dimension(item.value)
            for item in split(_message(fields, _WINDOW))
            if item.number == _WINDOW_DIMENSION and item.value is not None
        ),
        target=_text(fields, _TARGET),
        direction=_text(fields, _DIRECTION),
        rng_algorithm=number_of(fields, _RNG_ALGORITHM),
        parameter=number_of(fields, _PARAMETER),
    )


@lru_cache(maxsize=1024)  # a module of ten thousand instructions has dozens of shapes
def _shape(data: bytes) -> Shape:
    fields = split(data)
    number = number_of(fields, _ELEMENT_TYPE)
    return Shape(
        dtype=_TYPES.get(number, f"type {number}"),
        sizes=_numbers(fields, _DIMENSIONS),
        parts=tuple(
            _shape(item.value)
            for item in fields
            if item.number == _TUPLE_SHAPES and item.value is not None
        ),
        dynamic=any(_numbers(fields, _DYNAMIC)),
    )


def _dimension(data: bytes) -> Dimension:
    fields = split(data)
    return Dimension(
        stride=number_of(fields, _STRIDE) or 1,
        kernel_dilation=number_of(fields, _KERNEL_DILATION) or 1,
        base_dilation=number_of(fields, _BASE_DILATION) or 1,
    )


def number_of(fields: list[RawField], number: int) -> int:
    """Give an integer field's last value, 0 where it is absent."""
    found = _numbers(fields, number)
    return found[-1] if found else 0


def _numbers(fields: list[RawField], number: int) -> tuple[int, ...]:
    """Give the values of a repeated integer field, packed or not."""
    values: list[int] = []
    for item in fields:
        if item.number == number:
            values += [_single(item)] if item.value is None else _varints(item.value)
    return tuple(values)


def _single(item: RawField) -> int:
    """Give the value of a varint field."""
    tag, offset = read_varint(item.raw, 0)
    if tag & 7 == BYTES:
        raise NotAMessageError(f"field {item.number} is no integer")
    return read_varint(item.raw, offset)[0]


def _varints(data: bytes) -> list[int]:
    """Give the varints of a packed field."""
    values, offset = [], 0
    while offset < len(data):
        value, offset = read_varint(data, offset)
        values.append(value)
    return values


def _message(fields: list[RawField], number: int) -> bytes:
    """Give a message field's content, empty where it is absent."""
    return next((i.value for i in fields if i.number == number and i.value is not None), b"")


def _text(fields: list[RawField], number: int) -> str:
    """Give a text field, "" where it is absent."""
    return _message(fields, number).decode("utf-8", "replace")
