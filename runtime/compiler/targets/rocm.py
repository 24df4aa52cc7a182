"""AMD Instinct: IREE compiles from the same StableHLO, without an AMD library or chip.

jaxlib's ROCm plug-in does not start without AMD's libraries; `iree-compile` brings its own code
generator for these chips. What happens to a program:

1. It is traced as for every target, with jax's rules for its plain platform, which call no library
   of a chip's vendor, and its debug information is stripped.
2. It is written in StableHLO's portable form: jaxlib and IREE are not built from the same version.
3. `iree-compile` turns it into a VM module (`Program.form == "vmfb"`): the host's side of a step,
   and the chip's machine code.

Only flags of the last step name the chip. `RocmBackEnd(device_flags=...)` with those of IREE's CPU
code generator is the same path with another code generator: so it is executed from end to end, and
compared with torch, on a host without the chip.

Figures: IREE has no cost analysis. Flops and bytes are those of the same module compiled by XLA for
this host, a few seconds beside IREE's tens. IREE fuses by other rules, so the bytes are an estimate;
XLA's count before fusion was four times as high (a Qwen3 of 2 layers). Peak memory is what IREE
states that it allocates in a call, with the arguments and constants.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from runtime.compiler.targets.target import (
    Report,
    Requirement,
    Target,
    missing_module,
    no_island,
    versions_of,
)
from runtime.spec import CompileError

if TYPE_CHECKING:
    import jax

    from runtime.artifact.program import Program
    from runtime.compiler.programs import FlatProgram
    from runtime.compiler.targets.iree_compile import CompiledModule

__all__ = ["RocmBackEnd", "hip_flags"]

_COMPILER = "iree.compiler"
_CHIPS = ("gfx942", "gfx950")  # MI300X, MI300A and MI325X; MI350X and MI355X

DeviceFlags = Callable[[Target], tuple[str, ...]]


def hip_flags(target: Target) -> tuple[str, ...]:
    """Give the flags of `iree-compile` for a chip of the target's name."""
    return ("--iree-hal-target-device=hip", f"--iree-rocm-target={target.description}")


class RocmBackEnd:
    """Compiles for AMD Instinct chips.

    Args:
        device_flags: gives the flags that choose IREE's code generator. Default: `hip_flags`.
    """

    family = "rocm"

    def __init__(self, device_flags: DeviceFlags = hip_flags) -> None:
        self._device_flags = device_flags

    def targets(self) -> tuple[Target, ...]:
        """Give a target for each chip."""
        return tuple(
            Target(name=f"rocm-{chip}", family=self.family, chip=f"rocm-{chip}", description=chip)
            for chip in _CHIPS
        )

    def island(self, target: Target, chips: int) -> Target:
        """Refuse: IREE has no partitioner; islands of AMD chips are one chip each.

        Raises:
            CompileError: always.
        """
        raise no_island(target, chips, "1")

    def missing(self, target: Target) -> Requirement | None:  # noqa: ARG002 (the protocol's)
        """Give IREE's compiler where it is not installed."""
        return missing_module(_COMPILER, "iree-base-compiler", "amd")

    def versions(self) -> dict[str, str]:
        """Give the versions that decide the bytes."""
        return versions_of("jax", "jaxlib", "iree-base-compiler")

    def compile(self, flat: FlatProgram, target: Target, report: Report) -> Program:
        """Compile to a VM module; see `BackEnd.compile`."""
        import jax

        from runtime.compiler.targets.iree_compile import iree_compile
        from runtime.compiler.targets.portable import portable_module
        from runtime.compiler.targets.trace import traced

        started = time.perf_counter()
        place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
        lowered = traced(flat, [place] * len(flat.inputs), None)
        cost = _cost(flat, lowered)
        module = portable_module(flat.name, lowered)
        report("lower", time.perf_counter() - started)
        started = time.perf_counter()
        what = f"program '{flat.name}' for '{target.name}'"
        compiled = iree_compile(module, self._device_flags(target), what=what)
        report("compile", time.perf_counter() - started)
        return _program(flat, compiled, cost)

    def scrub(self, program: Program) -> tuple[Program, bool]:
        """Give the program as it is: no VM module is rewritten yet."""
        return program, False


def _cost(flat: FlatProgram, lowered: jax.stages.Lowered) -> Mapping[str, Any]:
    """Let XLA count a program's operations and bytes."""
    try:
        return lowered.compile().cost_analysis() or {}
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        message = f"program '{flat.name}': XLA cannot count its operations: {reason}"
        raise CompileError(message) from error


def _program(flat: FlatProgram, compiled: CompiledModule, cost: Mapping[str, Any]) -> Program:
    """Describe a compiled program with its figures."""
    from runtime.artifact.program import Program

    return Program(
        name=flat.name,
        form="vmfb",
        inputs=flat.inputs,
        outputs=flat.outputs,
        donated=flat.donated,
        executable=compiled.data,
        peak_memory_bytes=_peak_memory(flat, compiled),
        # XLA counts a loop's body once and a library's kernels not at all.
        flops=max(_figure(cost, "flops"), flat.flops),
        bytes_moved=_figure(cost, "bytes accessed"),
    )


def _figure(cost: Mapping[str, Any], name: str) -> float:
    """Give one figure of the cost analysis, 0 where it states none."""
    value = float(cost.get(name, 0.0))
    return value if math.isfinite(value) and value > 0 else 0.0


def _peak_memory(flat: FlatProgram, compiled: CompiledModule) -> int:
    """Give the bytes of arguments, constants, and all that a call allocates, results included."""
    import jax.numpy as jnp

    sizes = (math.prod(spec.shape) * jnp.dtype(spec.dtype).itemsize for spec in flat.inputs)
    return sum(sizes) + compiled.constant_bytes + compiled.transient_bytes
