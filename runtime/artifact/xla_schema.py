"""What tells something in XLA's protocol buffers: one table, for the scan and for the scrubber.

The table names the fields of each message that lead to something telling, and what that is; fields
that it does not name are left alone. Numbers are those of jaxlib 0.10.2 and its CUDA plug-in, read
from the descriptors inside the libraries. What the scan counts with it is thereby what the scrubber
takes out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.artifact.protobuf import NotAMessageError, RawField, join, split

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MESSAGES", "TAGS", "Change", "rewrite", "walk"]

TAGS = {
    "module_name": "the name of a compiled function",
    "hlo_name": "the name of an HLO instruction or computation, or of the step that runs it",
    "op_name": "an instruction's metadata, or where its value came from",
    "source_path": "the name of a source file",
    "frame_function": "the name of a traced function",
    "stack_frame": "a stack frame of the trace",
    "debug_options": "compiler flags, some of which are local paths",
    "ptx": "PTX text",
    "kernel_name": "the symbol by which a step finds its kernel in the machine code",
}
"""What a field can hold that tells something."""

_HLO = {
    "IfrtHeader": {5: "IfrtOutput", 6: "IfrtInput", 7: "module_name"},
    "IfrtOutput": {5: "Sharding"},
    "IfrtInput": {2: "Sharding"},
    "Sharding": {5: "Sharding", 7: "op_name"},
    "ModuleWithConfig": {1: "Module", 2: "ModuleConfig"},
    "ModuleConfig": {1: "ProgramShape", 14: "debug_options"},
    "ProgramShape": {3: "hlo_name"},  # of the parameters
    "Module": {
        1: "module_name",
        2: "hlo_name",  # of the entry computation
        3: "Computation",
        4: "ProgramShape",
        12: "Sharding",
        14: "Sharding",
        17: "StackFrames",
        20: "op_name",  # table of original values
    },
    "StackFrames": {
        1: "source_path",
        2: "frame_function",
        3: "stack_frame",
        4: "stack_frame",
    },
    "Computation": {1: "hlo_name", 2: "Instruction", 4: "ProgramShape"},
    "Instruction": {
        1: "hlo_name",
        7: "op_name",
        40: "Sharding",
        54: "Sharding",
        55: "Sharding",
        88: "op_name",
    },
    "BufferAssignment": {1: "LogicalBuffer", 2: "BufferAlias", 4: "HeapTrace"},
    "LogicalBuffer": {3: "BufferLocation"},
    "BufferAlias": {2: "BufferLocation"},
    "BufferLocation": {2: "hlo_name"},
    "HeapTrace": {1: "HeapEvent"},
    "HeapEvent": {3: "hlo_name", 4: "hlo_name"},
    "CompileOptions": {3: "BuildOptions"},
    "BuildOptions": {3: "debug_options"},
}

_CPU = {
    "ExecutableAndOptions": {1: "CpuExecutable", 2: "CompileOptions"},
    "CpuExecutable": {1: "ModuleWithConfig", 2: "BufferAssignment", 6: "CpuThunks"},
    "CpuThunks": {1: "CpuThunk"},
    "CpuThunk": {
        2: "CpuThunkInfo",
        3: "CpuCall",
        4: "CpuConditional",
        10: "CpuWhile",
        11: "CpuKernel",
    },
    "CpuKernel": {1: "kernel_name"},
    "CpuThunkInfo": {1: "hlo_name", 2: "module_name"},
    "CpuCall": {1: "CpuThunks"},
    "CpuConditional": {1: "CpuThunks"},
    "CpuWhile": {1: "CpuThunks", 2: "CpuThunks"},
}

_CUDA = {
    # An ExecutableAndOptions of which field 1 is a riegeli file.
    "OptionsOfExecutable": {2: "CompileOptions"},
    "GpuExecutable": {
        1: "ModuleWithConfig",
        2: "BufferAssignment",
        3: "ptx",
        8: "module_name",
        9: "ProgramShape",
        13: "GpuThunk",
    },
    "GpuThunks": {1: "GpuThunk"},
    "GpuThunk": {
        1: "GpuThunkInfo",
        2: "GpuThunks",  # sequential
        6: "GpuConditional",
        7: "GpuWhile",
        8: "GpuKernel",
        16: "GpuHostExecute",
        18: "GpuDynamicSlice",
        30: "GpuCustomCall",
        36: "GpuCustomKernelStep",
        44: "GpuPeer",  # send
        45: "GpuPeer",  # receive
        47: "GpuGroup",
        57: "GpuAsyncStart",
        60: "GpuDynamicSliceFusion",
    },
    "GpuThunkInfo": {1: "hlo_name"},
    "GpuKernel": {3: "kernel_name"},
    "GpuCustomKernelStep": {3: "GpuCustomKernel"},
    "GpuCustomKernel": {1: "kernel_name"},
    "GpuConditional": {2: "GpuThunks"},
    "GpuWhile": {2: "GpuThunks", 3: "GpuThunks"},
    "GpuHostExecute": {1: "GpuHostProgram"},
    "GpuHostProgram": {1: "Module", 3: "CpuExecutable"},
    "GpuDynamicSlice": {1: "GpuThunks", 7: "GpuOffsets"},
    "GpuOffsets": {1: "ModuleWithConfig", 2: "ModuleWithConfig", 3: "ModuleWithConfig"},
    "GpuCustomCall": {7: "hlo_name"},  # looked up in the module when it is loaded
    "GpuPeer": {6: "hlo_name"},
    "GpuGroup": {2: "GpuThunk"},
    "GpuAsyncStart": {3: "GpuThunks"},
    "GpuDynamicSliceFusion": {6: "GpuThunks"},
}

# Only what is walked: libtpu's own messages carry digests, and are not rewritten.
_TPU = {"TpuExecutable": {2: "ModuleWithConfig", 4: "CompileOptions"}}

MESSAGES: dict[str, dict[int, str]] = {**_HLO, **_CPU, **_CUDA, **_TPU}
"""For each message, the fields that hold another one of them, or what a tag names."""

Change = Callable[[str, bytes], "bytes | None"]
"""Takes a tag and a field's content; gives what to put in its place, None for nothing."""

_MAX_NESTING = 100  # protocol buffers' own limit


def walk(message: bytes, kind: str, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """Give (tag, content) of every telling field in a message, in order.

    Args:
        message: a message.
        kind: which of `MESSAGES` it is.
        depth: how many messages lie around it.

    Raises:
        NotAMessageError: it is not whole, or nested too deep.
    """
    _check_depth(depth)
    for field in split(message):
        what = MESSAGES[kind].get(field.number)
        if what is None or field.value is None:
            continue
        if what in MESSAGES:
            yield from walk(field.value, what, depth + 1)
        else:
            yield what, field.value


def rewrite(message: bytes, kind: str, change: Change, depth: int = 0) -> bytes:
    """Give a message with its telling fields changed; all other bytes stay as they are.

    Args:
        message: a message.
        kind: which of `MESSAGES` it is.
        change: asked for each telling field, in order.
        depth: how many messages lie around it.

    Raises:
        NotAMessageError: it is not whole, or nested too deep.
    """
    _check_depth(depth)
    fields = []
    for field in split(message):
        what = MESSAGES[kind].get(field.number)
        if what is None or field.value is None:
            fields.append(field)
            continue
        if what in MESSAGES:
            value = rewrite(field.value, what, change, depth + 1)
        else:
            changed = change(what, field.value)
            if changed is None:
                continue
            value = changed
        fields.append(RawField.of(field.number, value) if value != field.value else field)
    return join(fields)


def _check_depth(depth: int) -> None:
    """Refuse what is nested deeper than protocol buffers go."""
    if depth > _MAX_NESTING:
        raise NotAMessageError(f"messages nested deeper than {_MAX_NESTING}")
