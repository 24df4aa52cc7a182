"""Taking names and paths out of compiled executables, without touching what runs.

XLA writes the optimised HLO module into a CPU executable, to load it again: with each
instruction's metadata (the op's name, the module's path in the model), the source files and stack
frames of the trace, and compile options that hold local paths. None of it is read at load. It is
dropped by rewriting the protocol buffers around it; all other bytes stay as they are.

Whether the result is clean is not for this module to say: `scrub_program` asks the same scan that
`luma verify --leaks` prints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.artifact.leaks import SCRUBBED_KINDS, leaks_in_executable
from runtime.artifact.protobuf import (
    NotAMessageError,
    RawField,
    join,
    read_varint,
    split,
)
from runtime.spec import CompileError

if TYPE_CHECKING:
    from runtime.artifact.program import Program

__all__ = ["scrub_cpu_executable", "scrub_program"]

Rewrite = Callable[[bytes], bytes]

# Field numbers in XLA's protocol buffers, as jaxlib 0.10.2 writes them [ran]. An executable is a
# varint, an IFRT header of that size, and a message: 1 executable {1 module with config
# {1 module, 2 config {14 debug options}}}, 2 compile options {3 build options {3 debug options}}.
_EXECUTABLE, _OPTIONS = 1, 2
_MODULE_WITH_CONFIG = 1
_MODULE, _CONFIG = 1, 2
_CONFIG_DEBUG_OPTIONS = 14
_BUILD_OPTIONS, _BUILD_DEBUG_OPTIONS = 3, 3
_COMPUTATION, _STACK_FRAMES = 3, 17
_INSTRUCTION, _METADATA = 2, 7


def scrub_program(program: Program, target: str) -> tuple[Program, bool]:
    """Give the program with its executable scrubbed, and whether the scan finds it clean.

    Args:
        program: a compiled program.
        target: what it was compiled for; only "cpu" executables can be rewritten so far, others
            are given back as they are and called clean only if the scan finds nothing.

    Raises:
        CompileError: a CPU executable has another form than this module knows.
    """
    executable = program.executable
    if target == "cpu":
        executable = scrub_cpu_executable(executable)
    found = leaks_in_executable(executable)
    clean = target == "cpu" and not any(kind in found for kind in SCRUBBED_KINDS)
    return dataclasses.replace(program, executable=executable), clean


def scrub_cpu_executable(executable: bytes) -> bytes:
    """Drop instruction metadata, stack frames and local paths from a CPU executable.

    Raises:
        CompileError: the bytes have another form than jaxlib 0.10.2's.
    """
    try:
        size, offset = read_varint(executable, 0)
        header_end = offset + size
        return executable[:header_end] + _scrub_body(executable[header_end:])
    except NotAMessageError as error:
        raise CompileError(
            f"the executable cannot be scrubbed: {error}; its form is not jaxlib 0.10.2's"
        ) from error


def _scrub_body(body: bytes) -> bytes:
    """Rewrite the message behind the header."""
    config = _inside(_CONFIG_DEBUG_OPTIONS, _drop_paths, required=False)
    module = {_MODULE: _scrub_module, _CONFIG: config}
    executable = _inside(_MODULE_WITH_CONFIG, lambda data: _rewrite(data, module, {_MODULE}))
    options = _inside(
        _BUILD_OPTIONS, _inside(_BUILD_DEBUG_OPTIONS, _drop_paths, required=False), required=False
    )
    return _rewrite(body, {_EXECUTABLE: executable, _OPTIONS: options}, {_EXECUTABLE})


def _scrub_module(module: bytes) -> bytes:
    """Drop the stack frames of an HLO module and the metadata of its instructions."""
    kept = [field for field in split(module) if field.number != _STACK_FRAMES]
    return _rewrite(join(kept), {_COMPUTATION: _scrub_computation}, {_COMPUTATION})


def _scrub_computation(computation: bytes) -> bytes:
    """Drop the metadata of a computation's instructions."""
    return _rewrite(computation, {_INSTRUCTION: _scrub_instruction}, {_INSTRUCTION})


def _scrub_instruction(instruction: bytes) -> bytes:
    """Drop an instruction's metadata."""
    return join([field for field in split(instruction) if field.number != _METADATA])


def _drop_paths(options: bytes) -> bytes:
    """Drop texts that look like a path: where dumps, tools and libraries lie."""
    return join(
        [field for field in split(options) if not (field.value or b"").startswith((b"/", b"./"))]
    )


def _inside(number: int, rewrite: Rewrite, *, required: bool = True) -> Rewrite:
    """Give the rewrite of a message that applies `rewrite` to its field `number`."""
    return lambda data: _rewrite(data, {number: rewrite}, {number} if required else set())


def _rewrite(message: bytes, rewrites: dict[int, Rewrite], required: set[int]) -> bytes:
    """Apply rewrites to fields of a message by number; those in `required` must be there."""
    fields = split(message)
    missing = required - {field.number for field in fields if field.value is not None}
    if missing:
        raise NotAMessageError(f"no field {min(missing)} in a message of {len(message)} bytes")
    return join(
        [
            RawField.of(field.number, rewrites[field.number](field.value))
            if field.number in rewrites and field.value is not None
            else field
            for field in fields
        ]
    )
