"""One program through one target's compiler: trace, strip, compile, serialize.

Debug information goes before compilation: every location of the traced module becomes unknown,
so XLA has no op names, source paths or stack frames to write into the payload. What XLA adds by
itself is the scrubber's part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib.mlir.passmanager import PassManager

from runtime.artifact.program import Program, TensorSpec
from runtime.compiler.programs import FlatProgram
from runtime.spec import CompileError, LumaError

Report = Callable[[str, float], None]
"""Takes a finished stage ("lower" or "compile") and its seconds."""


def compile_program(flat: FlatProgram, device: jax.Device, report: Report) -> Program:
    """Compile a flat program for a device, which may exist as a description only.

    Args:
        flat: the program.
        device: what to compile for.
        report: called after each stage.

    Raises:
        CompileError: the compiler refused the program.
        LoweringError: an op could not be lowered.
    """
    started = time.perf_counter()
    lowered = _lower(flat, device)
    report("lower", time.perf_counter() - started)
    started = time.perf_counter()
    try:
        compiled = lowered.compile()
        executable = _serialized(compiled)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        raise CompileError(f"program '{flat.name}': the compiler failed: {reason}") from error
    report("compile", time.perf_counter() - started)
    cost = compiled.cost_analysis() or {}
    return Program(
        name=flat.name,
        inputs=flat.inputs,
        outputs=flat.outputs,
        donated=flat.donated,
        executable=executable,
        peak_memory_bytes=_peak_memory(compiled.memory_analysis()),
        flops=_figure(cost, "flops"),
        bytes_moved=_figure(cost, "bytes accessed"),
    )


def _lower(flat: FlatProgram, device: jax.Device) -> jax.stages.Lowered:
    """Trace a program to StableHLO and strip its debug information."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    structs = [_struct(spec, sharding) for spec in flat.inputs]
    # keep_unused: a node binds every input of the signature, also those that nothing reads.
    jitted = jax.jit(flat.function, keep_unused=True, donate_argnums=flat.donated)
    try:
        lowered = jitted.lower(*structs)
    except LumaError:
        raise
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:300]
        raise CompileError(f"program '{flat.name}': tracing failed: {reason}") from error
    module = lowered.compiler_ir("stablehlo")
    if module is None:
        raise CompileError(f"program '{flat.name}': tracing gave no StableHLO module")
    with module.context:
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    _check_outputs(flat, lowered.out_info)
    return lowered


def _serialized(compiled: jax.stages.Compiled) -> bytes:
    """Give the raw executable; never `jax.experimental.serialize_executable`, which pickles."""
    executable = compiled.runtime_executable()
    if executable is None:
        raise ValueError("the compiler gives no serializable executable")
    return executable.serialize()


def _struct(spec: TensorSpec, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    """Give jax's description of an argument."""
    return jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype), sharding=sharding)


def _check_outputs(flat: FlatProgram, traced: Any) -> None:
    """Compare what was traced with the signature that nodes will rely on."""
    given = [(tuple(item.shape), item.dtype.name) for item in jax.tree.leaves(traced)]
    stated = [(spec.shape, spec.dtype) for spec in flat.outputs]
    if given != stated:
        wrong = next(
            (i for i, pair in enumerate(zip(given, stated, strict=False)) if pair[0] != pair[1]),
            min(len(given), len(stated)),
        )
        message = f"program '{flat.name}': result {wrong} differs from its signature"
        raise CompileError(message)


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
