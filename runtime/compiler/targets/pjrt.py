"""What cpu, cuda and tpu share: place, trace, compile by XLA, serialize for PJRT."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxlib import _jax

from runtime.artifact.program import Program
from runtime.compiler.programs import FlatProgram
from runtime.compiler.targets.mesh import Placement, place
from runtime.compiler.targets.target import Report
from runtime.compiler.targets.trace import traced
from runtime.spec import CompileError

__all__ = ["compile_pjrt"]


def compile_pjrt(
    flat: FlatProgram,
    devices: Sequence[jax.Device],
    report: Report,
    *,
    tensor_parallel: int = 1,
) -> Program:
    """Compile a flat program for devices, which may exist as a description only.

    Args:
        flat: the program.
        devices: the chips of the island, one or several.
        report: called after each stage.
        tensor_parallel: chips of a tensor-parallel group.

    Raises:
        CompileError: the compiler refused the program.
        LoweringError: an op could not be lowered.
    """
    placement = place(flat, devices, tensor_parallel=tensor_parallel)
    started = time.perf_counter()
    lowered = traced(flat, placement.inputs, placement.outputs)
    report("lower", time.perf_counter() - started)
    started = time.perf_counter()
    try:
        compiled = lowered.compile()
        executable = _serialized(compiled)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        raise CompileError(f"program '{flat.name}': the compiler failed: {reason}") from error
    report("compile", time.perf_counter() - started)
    return _program(flat, placement, compiled, executable)


def _program(
    flat: FlatProgram, placement: Placement, compiled: jax.stages.Compiled, executable: bytes
) -> Program:
    """Describe a compiled program, with what its own analysis states of its costs on one chip."""
    cost = _cost(compiled)
    flops, moved = _figure(cost, "flops"), _figure(cost, "bytes accessed")
    chips = 1 if placement.partitions is None else placement.partitions.chips
    # XLA counts a loop's body once: where it states less than the matrix products alone take, its
    # traffic is that of one round too.
    least = flat.flops / chips
    rounds = max(1.0, least / flops) if flops else 1.0
    return Program(
        name=flat.name,
        form="pjrt",
        inputs=flat.inputs,
        outputs=flat.outputs,
        donated=flat.donated,
        partitions=placement.partitions,
        executable=executable,
        peak_memory_bytes=_peak_memory(compiled.memory_analysis()),
        flops=max(flops, least),
        bytes_moved=moved * rounds,
    )


def _cost(compiled: jax.stages.Compiled) -> Mapping[str, Any]:
    """Give XLA's analysis of an optimised program: operations and bytes of one chip."""
    stated = compiled.cost_analysis()
    if stated is not None:
        return stated
    # The CUDA plug-in states none without a GPU. The same analysis is there for any module, under
    # a private name of jaxlib (0.10.2), which jax itself uses for lowered programs.
    executable = compiled.runtime_executable()
    modules = [] if executable is None else executable.hlo_modules()
    client = jax.devices("cpu")[0].client
    return _jax.hlo_module_cost_analysis(client, modules[0]) if len(modules) == 1 else {}


def _serialized(compiled: jax.stages.Compiled) -> bytes:
    """Give the raw executable; never `jax.experimental.serialize_executable`, which pickles."""
    executable = compiled.runtime_executable()
    if executable is None:
        raise ValueError("the compiler gives no serializable executable")
    return executable.serialize()


def _peak_memory(memory: Any) -> int:
    """Give the bytes that arguments, results and temporaries take together at the most."""
    if memory is None:
        return 0
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )


def _figure(cost: Any, name: str) -> float:
    """Give one figure of the cost analysis, 0 where the compiler states none."""
    value = float(cost.get(name, 0.0))
    return value if math.isfinite(value) and value > 0 else 0.0
