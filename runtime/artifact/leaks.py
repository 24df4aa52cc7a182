"""What a holder of the key could still read in a payload: names, paths and IR, counted by kind.

The scan looks at bytes, not at formats: it knows what op names, paths, PTX and MLIR look like, raw,
escaped and in base64; it opens zlib and gzip streams; and where it meets a compression that it
cannot open, it says so instead of calling the part clean. For CPU executables it also walks the
HLO module, whose metadata it can count exactly. Machine code itself is always readable to the
holder of the key, and is not counted.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from typing import TYPE_CHECKING

from runtime.artifact.program import TargetPayload
from runtime.artifact.protobuf import NotAMessageError, RawField, read_varint, split
from runtime.spec.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KINDS", "SCRUBBED_KINDS", "leaks", "leaks_in_executable", "scrub_violations"]

KINDS = {
    "op_names": "names of operations and modules in instruction metadata",
    "source_paths": "names of source files",
    "local_paths": "paths on the machine that compiled",
    "framework_names": "names of Python modules",
    "kernel_ir": "MLIR of kernels or of the program, as bytecode or text",
    "llvm_ir": "LLVM IR or bitcode",
    "ptx": "PTX text",
    "unread": "compressed parts that the scan cannot open",
    "hlo_modules": "optimised HLO modules, needed to load: shapes, operations, their order",
    "module_names": "names of compiled functions",
    "tensor_names": "names of inputs and outputs in Luma's own description, needed to bind them",
}
"""Every kind that the scan counts, with what it means."""

SCRUBBED_KINDS = (
    "op_names",
    "source_paths",
    "local_paths",
    "framework_names",
    "kernel_ir",
    "llvm_ir",
    "ptx",
    "unread",
)
"""The kinds that a payload called scrubbed must hold none of."""

# A pattern must not match machine code by chance: each asks for 5 bytes or more of a fixed text or
# a long enough run, below one match in 10 MiB of random bytes.
_PATTERNS = {
    "op_names": re.compile(
        rb"\b(?:p?jit|jvp|vjp|transpose|vmap|remat|checkpoint|shard_map|custom_[jv]vp(?:_call)?)"
        rb"\([\w<>.\-]{0,120}\)+/[\x21-\x7e]+"
    ),
    "source_paths": re.compile(
        rb"(?<=[\w\-/+]{3})\.pyx?\b"
        rb"|(?<=[\w.\-+]{2})/[\w.\-/+]{2,200}?\.(?:cc?|cpp|cuh?|hp?p?|mlir)\b"
    ),
    "local_paths": re.compile(
        rb"/(?:build|data|etc|home|lib|lib64|mnt|nix|opt|private|proc|root|srv|tmp|usr|var|work"
        rb"|workspace|Users)/[\w.+@\-/]{2,}"
        rb"|(?<![\w)\]>/])/(?:[\w.+@\-]{2,60}/){2,}[\w.+@\-]{3,}"
        rb"|(?<![\w./])\.\.?/[A-Za-z][\w\-]{5,}"
    ),
    "framework_names": re.compile(
        rb"\b(?:jax|jaxlib|torch|transformers|flax|triton)(?:[./][A-Za-z_]\w+)+"
    ),
    "kernel_ir": re.compile(
        rb"ML\xefR"
        rb"|ML\\+(?:[xX]?[eE][fF]|357)R"
        rb"|TUzvU[\w+/\-]"  # base64 of the same four bytes
        rb"|\b(?:builtin\.module|func\.func|gpu\.(?:module|func)|llvm\.func|tt\.func)\b"
        rb"|\b(?:stablehlo|tpu|ttg?|arith|scf|vector|memref)\.[a-z][a-z_]{3,}\b"
    ),
    "llvm_ir": re.compile(rb"BC\xc0\xde\x35|target datalayout|target triple"),
    "ptx": re.compile(rb"\.visible\s+\.entry\b|\.target\s+sm_\d\d|\.address_size\s+64"),
    "module_names": re.compile(rb"\bp?jit_[A-Za-z_]\w*"),
}
_UNREADABLE = re.compile(
    rb"\x28\xb5\x2f\xfd"  # a zstd frame
    rb"|\x83\xaf\x70\xd1\x0d\x88\x4a\x3f"  # a riegeli record file, whose chunks are compressed
)
_DEFLATED = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")
_MIN_INFLATED = 32
_MAX_INFLATED = 16 << 20
_FEED = 1 << 16
_MAX_NESTING = 3

# Field numbers in XLA's protocol buffers.
_MODULE_COMPUTATIONS, _MODULE_STACK_FRAMES = 3, 17
_COMPUTATION_INSTRUCTIONS, _INSTRUCTION_METADATA = 2, 7


def leaks(payload: bytes) -> dict[str, int]:
    """Count what can be read in a payload, by kind; only kinds that occur are given.

    Args:
        payload: `TargetPayload.to_bytes()`, or any other bytes, such as a bare executable.
    """
    try:
        parsed = TargetPayload.from_bytes(payload)
    except ArtifactError:
        return leaks_in_executable(payload)
    found: Counter[str] = Counter()
    for program in parsed.programs.values():
        found.update(leaks_in_executable(program.executable))
        found["tensor_names"] += sum(bool(t.name) for t in program.inputs + program.outputs)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def leaks_in_executable(executable: bytes) -> dict[str, int]:
    """Count what can be read in one serialized executable, by kind."""
    found: Counter[str] = Counter()
    for part in _parts(executable, 0):
        for kind, pattern in _PATTERNS.items():
            found[kind] += sum(1 for _ in pattern.finditer(part))
        found["unread"] += sum(1 for _ in _UNREADABLE.finditer(part))
    module = hlo_module(executable)
    if module is not None:
        found["hlo_modules"] += 1
        metadata, paths = _count_metadata(module)
        found["op_names"] = max(found["op_names"], metadata)
        found["source_paths"] = max(found["source_paths"], paths)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def scrub_violations(payload: TargetPayload) -> dict[str, int]:
    """Count what a payload that calls itself scrubbed must not hold; empty where it does not."""
    if not payload.scrubbed:
        return {}
    found: Counter[str] = Counter()
    for program in payload.programs.values():
        found.update(leaks_in_executable(program.executable))
    return {kind: found[kind] for kind in SCRUBBED_KINDS if found[kind]}


def hlo_module(executable: bytes) -> bytes | None:
    """Give the HloModuleProto of a CPU executable, None where it has another form.

    The form (jaxlib 0.10.2): a varint with the size of an IFRT header, the header, then a message
    with the module at field path 1.1.1.
    """
    try:
        size, offset = read_varint(executable, 0)
        message = executable[offset + size :]
        for _ in range(3):
            message = _only(split(message), 1)
        fields = split(message)
    except NotAMessageError:
        return None
    return message if any(f.number == _MODULE_COMPUTATIONS for f in fields) else None


def _only(fields: list[RawField], number: int) -> bytes:
    """Give the content of the first field of that number."""
    for field in fields:
        if field.number == number and field.value is not None:
            return field.value
    raise NotAMessageError(f"no field {number}")


def _count_metadata(module: bytes) -> tuple[int, int]:
    """Count (instructions with metadata, entries of the stack frame index) of an HLO module."""
    metadata = paths = 0
    try:
        for field in split(module):
            if field.number == _MODULE_STACK_FRAMES and field.value:
                paths += len(split(field.value))
            if field.number == _MODULE_COMPUTATIONS and field.value:
                metadata += sum(
                    bool(inner.value)
                    for instruction in split(field.value)
                    if instruction.number == _COMPUTATION_INSTRUCTIONS and instruction.value
                    for inner in split(instruction.value)
                    if inner.number == _INSTRUCTION_METADATA
                )
    except NotAMessageError:
        return metadata, paths
    return metadata, paths


def _parts(data: bytes, depth: int) -> Iterator[bytes]:
    """Give the data itself and what its zlib and gzip streams hold."""
    yield data
    if depth == _MAX_NESTING:
        return
    for match in _DEFLATED.finditer(data):
        inflated = _inflate(memoryview(data)[match.start() :])
        if inflated is not None:
            yield from _parts(inflated, depth + 1)


def _inflate(data: memoryview) -> bytes | None:
    """Give what a zlib or gzip stream at the start of `data` holds, None where there is none."""
    stream = zlib.decompressobj(wbits=47)  # either header, told apart by zlib
    inflated = bytearray()
    try:
        for start in range(0, len(data), _FEED):
            inflated += stream.decompress(data[start : start + _FEED], _MAX_INFLATED)
            if stream.eof or len(inflated) >= _MAX_INFLATED:
                break
    except zlib.error:
        return None
    # Without the stream's end its checksum is unproven; a large one is still worth a look.
    whole = stream.eof or len(inflated) >= _MAX_INFLATED
    return bytes(inflated) if whole and len(inflated) >= _MIN_INFLATED else None
