"""From a flat program to StableHLO, which every family's compiler starts from.

Debug information goes before compilation: every location of the traced module becomes unknown, so
no compiler has op names, source paths or stack frames to write into its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from runtime.artifact.program import TensorSpec
from runtime.compiler.programs import EACH, FlatProgram
from runtime.spec import CompileError, LumaError

__all__ = ["traced"]


def traced(
    flat: FlatProgram,
    inputs: Sequence[jax.sharding.Sharding],
    outputs: Sequence[jax.sharding.Sharding] | None,
) -> jax.stages.Lowered:
    """Trace a program to StableHLO and strip its debug information.

    Args:
        flat: the program.
        inputs: where each input lies, in order; the devices may exist as a description only.
        outputs: where each output lies; None leaves it to the compiler.

    Raises:
        CompileError: tracing failed, or gave other results than the program's signature.
        LoweringError: an op could not be lowered.
    """
    structs = [_struct(spec, place) for spec, place in zip(flat.inputs, inputs, strict=True)]
    # keep_unused: a node binds every input of the signature, also those that nothing reads.
    places = None if outputs is None else tuple(outputs)
    jitted = jax.jit(
        flat.function, keep_unused=True, donate_argnums=flat.donated, out_shardings=places
    )
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
        if flat.shared_calls and outputs is None:  # kept calls were never tried on a mesh
            _keep_calls(module)
    _check_outputs(flat, lowered.out_info)
    return lowered


def _keep_calls(module: ir.Module) -> None:
    """Keep XLA from inlining the functions that are called once for each parameter.

    Inlined, they are optimised with what stands around them: 272 parameters of nine shapes then give
    hundreds of different kernels; kept, XLA finds the calls of one shape equal and compiles one.
    """
    kept = ir.DictAttr.get({"inlineable": ir.StringAttr.get("false")})

    def visit(found: ir.Operation) -> ir.WalkResult:
        if found.name == "func.call" and str(found.attributes["callee"]).startswith(f"@{EACH}"):
            found.attributes["mhlo.frontend_attributes"] = kept
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _struct(spec: TensorSpec, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    """Give jax's description of an argument."""
    return jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype), sharding=sharding)


def _check_outputs(flat: FlatProgram, given: Any) -> None:
    """Compare what was traced with the signature that nodes will rely on."""
    found = [(tuple(item.shape), item.dtype.name) for item in jax.tree.leaves(given)]
    stated = [(spec.shape, spec.dtype) for spec in flat.outputs]
    if found != stated:
        wrong = next(
            (i for i, pair in enumerate(zip(found, stated, strict=False)) if pair[0] != pair[1]),
            min(len(found), len(stated)),
        )
        message = f"program '{flat.name}': result {wrong} differs from its signature"
        raise CompileError(message)
