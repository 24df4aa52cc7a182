"""What Neuron's compiler takes: HLO operators, element types, and the limits of each form.

This module is the data; `broken_rules` only applies it. Sources, [doc] unless marked:

- *operators*: the vendor's list of supported XLA operators (SDK archive; written for neuron-cc. The
  list of neuronx-cc comes only from `neuronx-cc list-operators --framework XLA`).
- *release*: neuronx-cc's release notes 2.4 and 2.6.
- *errors*: the SDK's error catalogue, which names a limit of the operator and so the operator.
- *jax*: the known issues of JAX NeuronX.
- *issue N*: aws-neuron/aws-neuron-sdk on GitHub.

An operator that no document lists but that programs need stands in `ASSUMED` with its reason, and is
reported with each program that has it: [memory, check]. Everything else is refused.
"""

# The rules share one signature.
# ruff: noqa: ARG001

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from runtime.compiler.neuron.hlo import Computation, Instruction, Module, Shape

__all__ = [
    "ASSUMED",
    "CUSTOM_CALLS",
    "DOCUMENTED",
    "DTYPES",
    "Broken",
    "assumptions",
    "broken_rules",
]

DOCUMENTED: dict[str, str] = {
    **dict.fromkeys(
        (
            "abs", "add", "all-gather", "all-reduce", "and", "atan2", "batch-norm-grad",
            "batch-norm-inference", "batch-norm-training", "broadcast", "ceil", "clamp",
            "compare", "concatenate", "constant", "convert", "cosine", "custom-call", "divide",
            "dot", "dynamic-update-slice", "exponential", "floor", "gather", "get-tuple-element",
            "iota", "log", "maximum", "minimum", "multiply", "negate", "not", "pad", "parameter",
            "power", "reduce", "reshape", "rng", "rng-bit-generator", "rsqrt", "scatter",
            "select", "shift-right-logical", "sign", "sine", "slice", "sqrt", "subtract", "tanh",
            "transpose", "tuple",
        ),
        "operators",
    ),
    **dict.fromkeys(("bitcast-convert", "select-and-scatter", "topk"), "release"),
    **dict.fromkeys(
        ("convolution", "reduce-scatter", "reduce-window", "shift-right-arithmetic"), "errors"
    ),
    **dict.fromkeys(("sort", "while"), "jax"),
}  # fmt: skip
"""Operators that a document names as supported, and which one."""

ASSUMED: dict[str, str] = {
    "dynamic-slice": "loops over stacked arrays read so; the list has its counterpart for writing",
    "is-finite": "a comparison with infinity, as the compare that is listed",
    "opt-barrier": "XLA removes it before code is made",
    "or": "the chip's ISA has bitwise or (NKI), as the and that is listed",
    "round-nearest-even": "the chip rounds so when it converts to integers (NKI)",
    "shift-left": "the chip's ISA has it (NKI), as the right shift that is listed",
    "xor": "the chip's ISA has bitwise xor (NKI), as the and that is listed",
}
"""Operators that no document lists, with the reason to expect them: [memory, check]."""

_REFUSED: dict[str, tuple[str, str]] = {
    "cholesky": ("EVRF001", "no linear algebra is documented"),
    "conditional": ("EVRF001", "jax.lax.cond is not supported (jax)"),
    "erf": ("EVRF001", "'Unsupported operator: erf' (issue 1081, open)"),
    "fft": ("EVRF001", "no Fourier transform is documented"),
    "reduce-precision": ("EVRF001", "jax.lax.reduce_precision is not supported (jax)"),
    "set-dimension-size": ("EMOD025", "a size that depends on data (issue 1144)"),
    "triangular-solve": ("EVRF001", "the catalogue's own example of an unsupported operator"),
}
"""Operators that a document names as unsupported: code and source."""

DTYPES = frozenset({"pred", "s8", "s16", "s32", "u8", "u16", "u32", "f16", "bf16", "f32"})
"""Element types that programs may have; the SDK's page on data types lists them."""

_INTEGERS = frozenset({"pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"})
_REDUCTIONS = frozenset({"add", "maximum", "minimum", "multiply"})
_MAX_TENSOR_BYTES = 1 << 32
_MAX_SORTED = 16384

CUSTOM_CALLS = frozenset(
    {
        *(
            f"AwsNeuron{name}"
            for name in (
                "Erf", "Gelu", "GeluApprxTanh", "GeluBackward", "Silu", "SiluBackward", "RmsNorm",
                "Softmax", "SoftmaxBackward", "CollectiveMatmul", "IntMatmult", "ArgMax", "ArgMin",
                "TopK", "DropoutMaskV1", "CustomNativeKernel", "CustomOp", "DevicePrint",
                "LNCShardingConstraint", "TransferWithStaticRing", "ModuleMarkerStart-Forward",
                "ModuleMarkerStart-Backward", "ModuleMarkerEnd-Forward", "ModuleMarkerEnd-Backward",
            )
        ),
        "ResizeNearest", "ResizeBilinear", "ResizeNearestGrad",
        "NeuronBoundaryMarker-Start", "NeuronBoundaryMarker-End",
    }
)  # fmt: skip
"""The 29 targets of custom calls that the compiler takes (error catalogue, NCC_EHCA005)."""


@dataclass(frozen=True, slots=True)
class Broken:
    """One rule that an instruction breaks.

    Attributes:
        code: the code that the compiler would stop with, without "NCC_".
        what: the instruction's operator, with what is wrong about it.
        why: the limit, and where it is documented.
    """

    code: str
    what: str
    why: str

    def text(self) -> str:
        """Give it in one line."""
        return f"{self.what}: {self.why} (NCC_{self.code})"


def broken_rules(module: Module) -> tuple[Broken, ...]:
    """Give every rule that a module breaks, each once, in the order of its instructions."""
    found: dict[Broken, None] = {}
    for computation, instruction in module.instructions():
        for broken in _check(module, computation, instruction):
            found[broken] = None
    return tuple(found)


def assumptions(module: Module) -> tuple[str, ...]:
    """Give the operators of a module that only `ASSUMED` speaks for, sorted."""
    return tuple(sorted({item.opcode for _, item in module.instructions()} & ASSUMED.keys()))


def _check(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """Apply every rule to one instruction."""
    yield from _types(item)
    if item.opcode in _REFUSED:
        code, why = _REFUSED[item.opcode]
        yield Broken(code, item.opcode, why)
    elif item.opcode not in DOCUMENTED and item.opcode not in ASSUMED:
        yield Broken("EVRF001", item.opcode, "not among the documented operators")
    rule = _RULES.get(item.opcode)
    if rule is not None:
        yield from rule(module, computation, item)


def _types(item: Instruction) -> Iterator[Broken]:
    """Check element types and sizes of the result."""
    for leaf in item.shape.leaves():
        if leaf.dynamic:
            yield Broken("EMOD025", f"{item.opcode} of a dynamic shape", "pad or bucket it")
        if leaf.dtype in ("c64", "c128"):
            yield Broken("EVRF004", f"{item.opcode} of {leaf.dtype}", "complex numbers")
        elif leaf.dtype.startswith("f8"):
            code = "EVRF005" if leaf.dtype.endswith("fnuz") else "ESPP047"
            yield Broken(code, f"{item.opcode} of {leaf.dtype}", "this 8-bit float")
        elif leaf.dtype not in DTYPES:
            yield Broken("ESPP004", f"{item.opcode} of {leaf.dtype}", "element type")
        elif _bytes(leaf) > _MAX_TENSOR_BYTES:
            gigabytes = _bytes(leaf) / 1e9
            what = f"{item.opcode} of {gigabytes:.1f} GB"
            yield Broken("EVRF024", what, "a tensor has at most 4 GB; use a smaller micro-batch")


def _reduce(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """Only sums, products, minima and maxima, of one operand."""
    inputs = len(item.operands) // 2
    if inputs > 1:
        limit = "one operand (operators: Reduce)"
        yield Broken("EVRF001", f"{item.opcode} of {inputs} operands", limit)
        return
    by = _computed_by(module, item)
    if by not in _REDUCTIONS:
        allowed = ", ".join(sorted(_REDUCTIONS))
        yield Broken("EVRF001", f"{item.opcode} by {by}", f"only by {allowed} (operators: Reduce)")


def _reduce_window(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """No dilation, one input."""
    if len(item.operands) > 2:
        yield Broken("EVRF019", "reduce-window of several inputs", "one each")
    if any(side.base_dilation > 1 for side in item.window):
        yield Broken("EVRF017", "reduce-window with base dilation", "dilate by hand")
    if any(side.kernel_dilation > 1 for side in item.window):
        yield Broken("EVRF018", "reduce-window with window dilation", "dilate by hand")


def _convolution(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """Not two of input dilation, kernel dilation and stride at once."""
    dilated_input = any(side.base_dilation > 1 for side in item.window)
    if dilated_input and any(side.kernel_dilation > 1 for side in item.window):
        yield Broken("EVRF010", "convolution with input and kernel dilation", "only one of them")
    if dilated_input and any(side.stride > 1 for side in item.window):
        yield Broken("EVRF011", "convolution with stride and input dilation", "only one of them")


def _scatter(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """No reduction of integers."""
    by = _computed_by(module, item)
    dtype = item.shape.dtype
    if by == "add" and dtype in _INTEGERS:
        yield Broken("EVRF060", f"scatter-add of {dtype}", "exact below 2^24 only; use floats")
    elif by not in ("", "parameter") and dtype in _INTEGERS:
        yield Broken("EVRF016", f"scatter by {by} of {dtype}", "floats only")


def _integer_sum(code: str) -> Callable[[Module, Computation, Instruction], Iterator[Broken]]:
    """Give the rule that an operator is exact on floats only."""

    def rule(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
        for leaf in _inputs(computation, item):
            if leaf.dtype in _INTEGERS:
                why = "computed in float32, exact below 2^24 only"
                yield Broken(code, f"{item.opcode} of {leaf.dtype}", why)
                return

    return rule


def _shift(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """32-bit words only."""
    if item.shape.dtype not in ("s32", "u32"):
        yield Broken("EVRF022", f"{item.opcode} of {item.shape.dtype}", "32-bit integers only")


def _power(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """A constant exponent."""
    operands = [computation.instructions.get(number) for number in item.operands]
    exponent = operands[1] if len(operands) == 2 else None
    if exponent is not None and exponent.opcode == "broadcast" and exponent.operands:
        exponent = computation.instructions.get(exponent.operands[0])
    if exponent is None or exponent.opcode != "constant":
        limit = "the exponent must be a constant whole number (operators: Pow)"
        yield Broken("EVRF001", "power with a computed exponent", limit)


def _sorted(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """Floats, at most 16,384 of them, by an order comparison."""
    first = next(item.shape.leaves(), None)
    if first is None or not first.sizes:
        return
    if first.dtype in _INTEGERS:
        yield Broken("EVRF013", f"{item.opcode} of {first.dtype}", "sorts become a top-k of floats")
    operand = next(_inputs(computation, item), first)
    if max(operand.sizes, default=0) > _MAX_SORTED:
        limit = f"at most {_MAX_SORTED} elements (issue 1339)"
        yield Broken("EVRF014", f"{item.opcode} of {max(operand.sizes)} elements", limit)


def _custom_call(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """One of the compiler's own targets."""
    if item.target not in CUSTOM_CALLS:
        yield Broken("EHCA005", f"custom-call '{item.target}'", "not one of the 29 known targets")


def _random_bits(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """The default generator."""
    if item.rng_algorithm != 0:
        what = f"rng-bit-generator with algorithm {item.rng_algorithm}"
        yield Broken("EVRF006", what, "only RNG_DEFAULT")


def _loop(module: Module, computation: Computation, item: Instruction) -> Iterator[Broken]:
    """A fixed number of rounds: the condition compares a counter with a constant."""
    for number in item.called:
        called = module.computations.get(number)
        root = None if called is None else called.result()
        if called is None or root is None or root.shape.dtype != "pred":
            continue
        if root.opcode == "compare" and any(
            called.instructions[operand].opcode == "constant"
            for operand in root.operands
            if operand in called.instructions
        ):
            continue
        limit = "only loops of a fixed length (jax: dynamic loops)"
        yield Broken("EVRF001", "while with a length that depends on data", limit)


_Rule = Callable[[Module, Computation, Instruction], Iterable[Broken]]
_RULES: dict[str, _Rule] = {
    "all-reduce": _integer_sum("EVRF061"),
    "convolution": _convolution,
    "custom-call": _custom_call,
    "dot": _integer_sum("EVRF035"),
    "power": _power,
    "reduce": _reduce,
    "reduce-scatter": _integer_sum("EVRF063"),
    "reduce-window": _reduce_window,
    "rng-bit-generator": _random_bits,
    "scatter": _scatter,
    "shift-right-arithmetic": _shift,
    "shift-right-logical": _shift,
    "sort": _sorted,
    "topk": _sorted,
    "while": _loop,
}


def _computed_by(module: Module, item: Instruction) -> str:
    """Give the operator at the root of the computation that an instruction applies."""
    called = module.computations.get(item.called[0]) if item.called else None
    root = None if called is None else called.result()
    return "" if root is None else root.opcode


def _inputs(computation: Computation, item: Instruction) -> Iterator[Shape]:
    """Give the array shapes of an instruction's operands."""
    for number in item.operands:
        operand = computation.instructions.get(number)
        if operand is not None:
            yield from operand.shape.leaves()


def _bytes(shape: Shape) -> int:
    """Give the bytes of an array, at the width that its type's name states."""
    bits = int("".join(c for c in shape.dtype if c.isdigit()) or "8")
    return math.prod(shape.sizes) * -(-bits // 8)
