"""Make an HLO module that Neuron's compiler takes: no calls, small ids, no names of ours.

jax writes its inner functions as calls, which XLA's own passes inline before a compiler sees them;
here nothing of XLA runs. XLA's present ids are 64 bits wide (a computation's number above, an
instruction's below), and Neuron's compiler takes ids of 32 bits [memory, check].

So the module is written again: the entry and every computation that an instruction applies (the sum
of a reduce, the body of a loop), with the instructions of what they call in the calls' place, all
counted from 1 and named after their operator. Metadata, stack frames and a schedule are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.artifact.protobuf import NotAMessageError, RawField, join, split, write_varint
from runtime.compiler.neuron import hlo
from runtime.compiler.neuron.hlo import Instruction
from runtime.spec import CompileError

__all__ = ["prepared"]

_INT32_MAX = (1 << 31) - 1
_DROPPED = frozenset({hlo.COMPUTATION, hlo.ENTRY, hlo.ENTRY_NAME, hlo.SCHEDULE, hlo.STACK_FRAMES})
_REWRITTEN = frozenset({hlo.NAME, hlo.METADATA, hlo.ID, hlo.OPERANDS, hlo.CONTROL, hlo.CALLED})
_CALL, _PARAMETER = "call", "parameter"


def prepared(data: bytes) -> bytes:
    """Give the module without calls, with ids counted from 1 and without names and metadata.

    Args:
        data: a serialized HloModuleProto.

    Raises:
        CompileError: the bytes are no HLO module, a use has no definition before it, a computation
            calls itself, or there are more instructions than 32-bit ids.
    """
    try:
        writer = _Writer(data)
        result = writer.module()
    except NotAMessageError as error:
        raise CompileError(f"the HLO module cannot be read: {error}") from error
    except KeyError as error:
        raise CompileError(f"the HLO module uses id {error.args[0]} before it is there") from None
    except RecursionError:
        raise CompileError("the HLO module has a computation that calls itself") from None
    if writer.count > _INT32_MAX:
        message = f"the HLO module has {writer.count} instructions; ids of 32 bits are too few"
        raise CompileError(message)
    return result


class _Writer:
    """Writes the computations that are needed, each after those that it applies.

    Attributes:
        count: the instructions that were written, numbered from 1.
    """

    def __init__(self, data: bytes) -> None:
        self._fields = split(data)
        self._sources: dict[int, list[RawField]] = {}
        for item in self._fields:
            if item.number == hlo.COMPUTATION and item.value is not None:
                fields = split(item.value)
                self._sources[_id(fields, hlo.COMPUTATION_ID)] = fields
        self._numbers: dict[int, int] = {}
        self._written: list[RawField] = []
        self.count = 0

    def computation(self, old: int) -> int:
        """Write a computation, if that is not done yet; give its new number."""
        if old in self._numbers:
            return self._numbers[old]
        instructions: list[RawField] = []
        root = self._body(old, None, instructions)
        number = self._numbers[old] = len(self._numbers) + 1
        kept = [
            item
            for item in self._sources[old]
            if item.number
            not in (hlo.COMPUTATION_NAME, hlo.INSTRUCTION, hlo.COMPUTATION_ID, hlo.COMPUTATION_ROOT)
        ]
        fields = [
            RawField.of(hlo.COMPUTATION_NAME, _name("computation", number)),
            *instructions,
            *kept,
            _varint(hlo.COMPUTATION_ID, number),
            _varint(hlo.COMPUTATION_ROOT, root),
        ]
        self._written.append(RawField.of(hlo.COMPUTATION, join(fields)))
        return number

    def module(self) -> bytes:
        """Write the entry and all that it needs; give the module.

        Raises:
            CompileError: there is no entry.
        """
        entry = hlo.number_of(self._fields, hlo.ENTRY)
        if entry not in self._sources:
            raise CompileError("the HLO module cannot be read: it has no entry computation")
        self.computation(entry)
        kept = [item for item in self._fields if item.number not in _DROPPED]
        number = self._numbers[entry]
        names = [RawField.of(hlo.ENTRY_NAME, _name("computation", number))]
        return join([*names, *self._written, *kept, _varint(hlo.ENTRY, number)])

    def _body(self, old: int, arguments: tuple[int, ...] | None, out: list[RawField]) -> int:
        """Write a computation's instructions; give the new id of its root.

        Args:
            old: the computation.
            arguments: what stands for its parameters; None keeps them.
            out: takes the instructions.
        """
        ids: dict[int, int] = {}
        for item in self._sources[old]:
            if item.number != hlo.INSTRUCTION or item.value is None:
                continue
            instruction = hlo.read_instruction(item.value)
            if instruction.opcode == _PARAMETER and arguments is not None:
                ids[instruction.id] = arguments[instruction.parameter]
            elif instruction.opcode == _CALL:
                given = tuple(ids[operand] for operand in instruction.operands)
                ids[instruction.id] = self._body(instruction.called[0], given, out)
            else:
                ids[instruction.id] = self._write(item.value, instruction, ids, out)
        return ids[_id(self._sources[old], hlo.COMPUTATION_ROOT)]

    def _write(
        self, raw: bytes, item: Instruction, ids: Mapping[int, int], out: list[RawField]
    ) -> int:
        """Write one instruction; give its new id."""
        called = [self.computation(number) for number in item.called]
        self.count += 1
        number = self.count
        kept = [part for part in split(raw) if part.number not in _REWRITTEN]
        fields = [RawField.of(hlo.NAME, _name(item.opcode, number)), *kept]
        fields.append(_varint(hlo.ID, number))
        if item.operands:
            fields.append(_packed(hlo.OPERANDS, [ids[operand] for operand in item.operands]))
        if called:
            fields.append(_packed(hlo.CALLED, called))
        out.append(RawField.of(hlo.INSTRUCTION, join(fields)))
        return number


def _id(fields: list[RawField], number: int) -> int:
    """Give an id field's value."""
    return hlo.number_of(fields, number)


def _name(what: str, number: int) -> bytes:
    return f"{what}.{number}".encode()


def _varint(number: int, value: int) -> RawField:
    return RawField(number, write_varint(number << 3) + write_varint(value), None)


def _packed(number: int, values: list[int]) -> RawField:
    return RawField.of(number, b"".join(write_varint(value) for value in values))
