"""neuronx-cc's error codes, from the SDK's error catalogue: cause and remedy in our own words.

A code that is not here keeps the compiler's text; `NCC_I...` is an error inside the compiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.spec import CompileError

__all__ = ["CODES", "Code", "codes_in", "compiler_error"]


@dataclass(frozen=True, slots=True)
class Code:
    """What a code means: the cause, and what to do."""

    cause: str
    remedy: str


_MEMORY = Code(
    "the program does not fit the device memory",
    "use a smaller train.micro_batch, LoRA, or more chips (tensor or pipeline parallel)",
)
_TOO_LARGE = Code(
    "the program has too many instructions",
    "use a smaller train.micro_batch or train.seq_len, or split the model over more chips",
)
_OPERATOR = Code(
    "an operator is not supported",
    "`luma check JOB --target TARGET` names it; add a decomposition: "
    "docs/how-to/add-a-decomposition.md",
)
_CUSTOM_CALL = Code(
    "a custom call has a target that the compiler does not know",
    "use the plain form of the kernel, or one of the compiler's own targets",
)
_QUANTIZE = Code("a QuantizeMX call is malformed", "check its JSON, operands, sizes and dtypes")
_SCALED_DOT = Code(
    "a block-scaled product is malformed", "check its operands, ranks, batch and contracted sizes"
)
_INTEGER = Code(
    "integers would be added in float32, which is exact below 2^24 only",
    "compute it on floats, or element by element on integers",
)
_POSITION = Code(
    "a gather or scatter counts further than its operand reaches",
    "give the model at least as many positions as train.seq_len",
)

CODES: dict[str, Code] = {
    "EARG001": Code(
        "the target has no such logical core", "use lnc 1 on trn1 and inf2, 1 or 2 on trn2"
    ),
    "EBIR023": Code(
        "an MLP kernel's inner size is above 4096", "tile it, or use more tensor parallelism"
    ),
    **dict.fromkeys(("EBVF030", "EVRF007", "EXTP004"), _TOO_LARGE),
    **dict.fromkeys(("EHCA005", "EVRF015"), _CUSTOM_CALL),
    "EMOD025": Code("a shape depends on data", "pad it to a fixed size, or use buckets"),
    **dict.fromkeys(("EOOM001", "EOOM002", "EVRF009", "EXSP001"), _MEMORY),
    "ESFH002": Code("a uint64 constant needs more than 32 bits", "use uint32"),
    "ESPP004": Code("an element type is not supported", "use float32, bfloat16 or int32"),
    **dict.fromkeys(
        ("ESPP047", "EVRF005"), Code("an 8-bit float is not supported", "use bfloat16 or float16")
    ),
    **dict.fromkeys(("EUOC002", "EVRF001"), _OPERATOR),
    "EVRF004": Code("complex numbers are not supported", "compute with real and imaginary parts"),
    "EVRF006": Code("a random generator is not supported", "use the default algorithm"),
    "EVRF010": Code("a convolution dilates its input and its kernel", "dilate only one of them"),
    "EVRF011": Code(
        "a convolution has a stride and dilates its input", "do the upsampling separately"
    ),
    "EVRF013": Code("a top-k of integers", "use floats, exact below 2^24"),
    "EVRF014": Code("a top-k of more than 16384 elements", "tile it"),
    "EVRF016": Code("a scatter reduces integers or bools", "use floats"),
    "EVRF017": Code("a reduce-window dilates its input", "dilate by hand"),
    "EVRF018": Code("a reduce-window dilates its window", "dilate by hand"),
    "EVRF019": Code("a reduce-window has several inputs", "reduce each alone"),
    "EVRF022": Code("a right shift of other than 32 bits", "cast to int32 first"),
    "EVRF024": Code(
        "a tensor is larger than 4 GB", "use a smaller train.micro_batch, or tensor parallelism"
    ),
    **dict.fromkeys(("EVRF031", "EVRF056"), _POSITION),
    **dict.fromkeys(("EVRF035", "EVRF060", "EVRF061", "EVRF063"), _INTEGER),
    "EVRF062": Code("a power of int64", "use int32"),
    "EVRF051": Code("float8 e4m3fn before trn3", "compile for trn3, or use bfloat16"),
    "EVRF052": Code("float8 e4m3 after trn3", "use e4m3fn"),
    "EVRF059": Code(
        "a kernel's file is missing", "keep the kernel's folder beside the module that names it"
    ),
    "EVRF064": Code("the module breaks HLO's rules on shapes", "report it with the compiler's log"),
    "EVRF065": Code(
        "a kernel was traced by another version of nki",
        "install the nki that matches the compiler, and trace again",
    ),
    **dict.fromkeys((f"EVRF{n:03}" for n in (36, 37, 38, 39, 40, 41, 42, 57, 58)), _QUANTIZE),
    **dict.fromkeys(
        (f"EVRF{n:03}" for n in (43, 44, 45, 46, 47, 48, 49, 50, 53, 54, 55)), _SCALED_DOT
    ),
}
"""By code, without "NCC_"."""

_CODE = re.compile(r"NCC_([A-Z]+[0-9]+)")
_MAX_LINE = 300
_KEPT_LINES = 5


def codes_in(log: str) -> tuple[str, ...]:
    """Give the codes in a log, without "NCC_", each once, in order."""
    return tuple(dict.fromkeys(_CODE.findall(log)))


def compiler_error(program: str, target: str, exit_code: int, log: str) -> CompileError:
    """Turn a failed compile into our error.

    Args:
        program: such as "grad".
        target: such as "trn2".
        exit_code: of the compiler; negative for a signal.
        log: all that the compiler wrote.
    """
    where = f"program '{program}', target '{target}'"
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    found = codes_in(log)
    if not found:
        tail = " | ".join(_tail(log)) or "it wrote nothing"
        return CompileError(f"{where}: neuronx-cc failed ({how}) without an error code: {tail}")
    parts = [f"NCC_{code}: {_cause(code)} [{_line(code, log)}]" for code in found]
    remedies = dict.fromkeys(CODES[code].remedy for code in found if code in CODES)
    message = f"{where}: neuronx-cc failed ({how}): " + "; ".join(parts)
    return CompileError(message, remedy="; ".join(remedies) or "see the vendor's page of that code")


def _cause(code: str) -> str:
    if code in CODES:
        return CODES[code].cause
    return "an error inside the compiler" if code.startswith("I") else "a code unknown to Luma"


def _line(code: str, log: str) -> str:
    """Give the compiler's own line on a code."""
    line = next(line for line in log.splitlines() if f"NCC_{code}" in line)
    return " ".join(line.split())[:_MAX_LINE]


def _tail(log: str) -> list[str]:
    """Give the last lines that hold something."""
    lines = [" ".join(line.split())[:_MAX_LINE] for line in log.splitlines()]
    return [line for line in lines if line][-_KEPT_LINES:]
