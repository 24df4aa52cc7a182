"""CUDA executables.

The steps, the cubins and the constants of a CUDA executable stand beside the optimised HLO module,
which XLA keeps "for debugging purposes only" (xla/service/gpu/gpu_executable.proto): loading parses
it, checks that it is well formed and finds called computations in it by name, but builds no code
from it. So names, metadata and stack frames go as on CPU. The configuration of a Triton custom call,
which holds the kernel's MLIR and its source path, is emptied, since the kernel lies compiled in its
step. PTX goes where a cubin is there, which XLA then loads. Kernels keep their names: these are
symbols in the cubins.

A scrubbed executable has not been loaded on a GPU yet. What is proven instead: read again from its
bytes, it is equal to what came in, in everything that the scrub does not mean to change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from runtime.artifact.protobuf import NotAMessageError, RawField, join, read_varint, split
from runtime.artifact.riegeli import NotRiegeliError
from runtime.artifact.xla_forms import (
    COMPUTATION,
    EXECUTABLE,
    MODULE,
    MODULE_WITH_CONFIG,
    PAYLOADS,
    Part,
    SplitProto,
    divide,
    gpu_executable,
    unite,
)
from runtime.artifact.xla_schema import Change, rewrite
from runtime.compiler.scrub.changes import Scrubber, skeleton_change
from runtime.spec import CompileError

__all__ = ["scrub_cuda_executable"]

_PTX, _BINARY = 3, 4  # of GpuExecutableProto
_INSTRUCTION = 2  # of HloComputationProto
_CALL_TARGET, _CONFIG, _CONFIG_PAYLOAD = 28, 43, 99  # of HloInstructionProto
_PAYLOAD_ID = 2  # of Payload
_TRITON_CALL = b"__gpu$xla.gpu.triton"


def scrub_cuda_executable(executable: bytes) -> bytes:
    """Drop metadata, stack frames, local paths, PTX and Triton IR; rename what is named.

    Raises:
        CompileError: the bytes have another form than jaxlib 0.10.2's, or what was written does
            not read back as what was meant.
    """
    try:
        header, body = divide(executable)
        change = Scrubber()
        header = rewrite(header, "IfrtHeader", change)
        code = gpu_executable(body)
        new = _scrub(code, change).to_bytes()
        scrubbed = rewrite(_inside(body, EXECUTABLE, lambda _: new), "OptionsOfExecutable", change)
        if _skeleton(scrubbed, gpu_executable(scrubbed)) != _skeleton(body, code):
            raise CompileError(
                "the executable cannot be scrubbed: what runs would not stay the same",
                remedy="report this with the versions of jax and its CUDA plug-in",
            )
    except (NotAMessageError, NotRiegeliError) as error:
        raise CompileError(
            f"the executable cannot be scrubbed: {error}; its form is not jaxlib 0.10.2's"
        ) from error
    return unite(header, scrubbed)


def _scrub(code: SplitProto, change: Change) -> SplitProto:
    """Rewrite the GpuExecutableProto."""
    has_binary = any(part.field == _BINARY and part.data for part in code.parts)
    parts = []
    for part in code.parts:
        data = part.data
        if part.field is None:
            data = rewrite(_without_triton(data), "GpuExecutable", change)
        elif part.field == _PTX and has_binary:
            data = b""
        parts.append(Part(part.field, data))
    return dataclasses.replace(code, parts=tuple(parts))


def _without_triton(executable: bytes) -> bytes:
    """Empty the configurations of Triton calls in the HLO module of a GpuExecutableProto."""
    return _inside(executable, MODULE_WITH_CONFIG, lambda m: _inside(m, MODULE, _clear_module))


def _clear_module(module: bytes) -> bytes:
    """Empty the configurations of Triton calls, in place or in the module's table."""
    cleared: set[int] = set()

    def instruction(data: bytes) -> bytes:
        fields = split(data)
        if not any(f.number == _CALL_TARGET and f.value == _TRITON_CALL for f in fields):
            return data
        for field in fields:
            if field.number == _CONFIG_PAYLOAD:
                cleared.update(
                    read_varint(f.raw, 1)[0]
                    for f in split(field.value or b"")
                    if f.number == _PAYLOAD_ID
                )
        # One that points into the table may stay: what it points to is emptied below.
        return join([f for f in fields if not _is_own_config(f)])

    module = _inside(module, COMPUTATION, lambda c: _inside(c, _INSTRUCTION, instruction))
    fields, index = [], -1
    for field in split(module):
        if field.number == PAYLOADS:
            index += 1
            if index in cleared:
                fields.append(RawField.of(PAYLOADS, b""))
                continue
        fields.append(field)
    return join(fields)


def _is_own_config(field: RawField) -> bool:
    """Tell whether a field of an instruction holds its configuration itself."""
    if field.number != _CONFIG_PAYLOAD:
        return field.number == _CONFIG
    return all(f.number != _PAYLOAD_ID for f in split(field.value or b""))


def _inside(message: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
    """Apply a change to every field `number` of a message."""
    return join(
        [
            RawField.of(number, change(field.value))
            if field.number == number and field.value is not None
            else field
            for field in split(message)
        ]
    )


def _skeleton(body: bytes, code: SplitProto) -> tuple[bytes, bytes, list[Part]]:
    """Give all of a body, and of the code read from it, but what the scrub may change.

    Returns:
        The body's other fields, the manifest of the split proto, and its parts: the cubin and the
        constants whole, messages without their telling fields.
    """
    parts = []
    for part in code.parts:
        data = part.data
        if part.field is None:
            data = rewrite(_without_triton(data), "GpuExecutable", skeleton_change)
        elif part.field == _PTX:
            data = b""
        parts.append(Part(part.field, data))
    rest = _inside(body, EXECUTABLE, lambda _: b"")
    return rewrite(rest, "OptionsOfExecutable", skeleton_change), code.manifest, parts
