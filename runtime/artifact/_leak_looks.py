"""The kinds of leaks, and what each looks like in bytes."""

from __future__ import annotations

import re

from runtime.artifact.riegeli import SIGNATURE

KINDS = {
    "op_name": "names of operations and modules in instruction metadata",
    "source_path": "names of source files",
    "stack_frame": "stack frames of the trace",
    "local_path": "paths on the machine that compiled",
    "framework_name": "names of Python modules",
    "function_name": "names of compiled functions",
    "hlo_name": "names of HLO instructions and computations",
    "triton_ir": "Triton kernels, as MLIR",
    "mosaic_ir": "Mosaic kernels, as MLIR",
    "mlir_bytecode": "other MLIR bytecode",
    "mlir_text": "other MLIR text",
    "llvm_ir": "LLVM IR or bitcode",
    "ptx": "PTX text",
    "unread": "compressed parts that the scan does not open",
    "hlo_module": "optimised HLO modules: shapes, operations, their order",
    "kernel_name": "symbols of kernels, needed to find them in the machine code",
    "tensor_name": "names of inputs and outputs in Luma's own description, needed to bind them",
}
"""Every kind that the scan counts, with what it means."""

_ALLOWED = ("hlo_module", "kernel_name", "tensor_name")

SCRUBBED_KINDS = tuple(kind for kind in KINDS if kind not in _ALLOWED)
"""The kinds that a payload called scrubbed must hold none of."""

_TRITON = rb"\b(?:tt|ttg|ttng|triton_gpu|triton_nvidia_gpu)\.[a-z][a-z_]{3,}\b"
_MOSAIC = rb"\b(?:tpu|mosaic_gpu)\.[a-z][a-z_]{3,}\b"

# A pattern must not match machine code by chance: each asks for 5 bytes or more of a fixed text or
# a long enough run, below one match in 10 MiB of random bytes.
TEXT_PATTERNS = {
    "op_name": re.compile(
        rb"\b(?:p?jit|jvp|vjp|transpose|vmap|remat|checkpoint|shard_map|custom_[jv]vp(?:_call)?)"
        rb"\([\w<>.\-]{0,120}\)+/[\x21-\x7e]+"
    ),
    "source_path": re.compile(
        rb"(?<=[\w\-/+]{3})\.pyx?\b"
        rb"|(?<=[\w.\-+]{2})/[\w.\-/+]{2,200}?\.(?:cc?|cpp|cuh?|hp?p?|mlir)\b"
    ),
    "local_path": re.compile(
        rb"/(?:build|data|etc|home|lib|lib64|mnt|nix|opt|private|proc|root|srv|tmp|usr|var|work"
        rb"|workspace|Users)/[\w.+@\-/]{2,}"
        rb"|(?<![\w)\]>/])/(?:[\w.+@\-]{2,60}/){2,}[\w.+@\-]{3,}"
        rb"|(?<![\w./])\.\.?/[A-Za-z][\w\-]{5,}"
    ),
    "framework_name": re.compile(
        rb"\b(?:jax|jaxlib|torch|transformers|flax|triton)(?:[./][A-Za-z_]\w+)+"
    ),
    "function_name": re.compile(rb"\bp?jit_[A-Za-z_]\w*"),
    "triton_ir": re.compile(_TRITON),
    "mosaic_ir": re.compile(_MOSAIC),
    "mlir_text": re.compile(
        rb"\b(?:builtin\.module|func\.func|gpu\.(?:module|func)|llvm\.func)\b"
        rb"|\b(?:stablehlo|arith|scf|vector|memref)\.[a-z][a-z_]{3,}\b"
    ),
    "llvm_ir": re.compile(rb"target datalayout|target triple"),
    "ptx": re.compile(rb"\.visible\s+\.entry\b|\.target\s+sm_\d\d|\.address_size\s+64"),
}
TEXT = re.compile(rb"[\t\n\r\x20-\x7e]{5,}")
BITCODE = re.compile(rb"BC\xc0\xde\x35")
NAME_BEFORE = re.compile(rb"[\w.\-/+]*$")
MAGIC = b"ML\xefR"
BYTECODE_KINDS = ("triton_ir", "mosaic_ir", "mlir_bytecode")
MLIR_TEXTS = frozenset({"triton_ir", "mosaic_ir", "mlir_text"})
BYTECODE = re.compile(MAGIC)
ESCAPED = re.compile(rb"ML\\+(?:[xX]?[eE][fF]|357)R[^\"\x00]*")
BASE64 = re.compile(rb"TUzvU[\w+/\-]+={0,2}")
ZSTD = re.compile(rb"\x28\xb5\x2f\xfd")
DEFLATED = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")
ESCAPE = re.compile(rb"\\(?:[xX]?([0-9a-fA-F]{2})|([\\\"]))")
RIEGELI = re.compile(re.escape(SIGNATURE[:8]))  # also one of which the rest was altered

KIND_OF_TAG = {
    "module_name": "function_name",
    "frame_function": "function_name",
    "hlo_name": "hlo_name",
    "op_name": "op_name",
    "source_path": "source_path",
    "stack_frame": "stack_frame",
    "kernel_name": "kernel_name",
}
NEUTRAL = re.compile(rb"m0|i\d{1,9}")  # what the scrubber calls what it has renamed

READABLE = re.compile(rb"[\x20-\x7e]{2,}")  # of a message; a name is one run
