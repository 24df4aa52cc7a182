"""From the module that jax writes to StableHLO's portable form, for a compiler built elsewhere.

jax's modules hold more than StableHLO: ops of CHLO (such as erf), and shardings in Shardy's dialect.
Another compiler may know neither, nor the version of StableHLO that jaxlib has. So CHLO becomes
StableHLO, the shardings of a program for one chip go, and what is left is written in the form that
StableHLO keeps readable over versions (https://openxla.org/stablehlo/compatibility).
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from runtime.spec import CompileError

__all__ = ["portable_module"]

_PASSES = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
_AGE = stablehlo.StablehloCompatibilityRequirement.WEEK_4
"""How much older than jaxlib's the reader's StableHLO may be."""

_SHARDY = "sdy."


def portable_module(name: str, lowered: jax.stages.Lowered) -> bytes:
    """Write a traced program of one chip in StableHLO's portable form; its module is changed.

    Args:
        name: the program's, for errors.
        lowered: the traced program.

    Raises:
        CompileError: it holds what the form does not know.
    """
    module = lowered.compiler_ir("stablehlo")
    if module is None:
        raise CompileError(f"program '{name}': tracing gave no StableHLO module")
    _register_passes()
    said: list[str] = []
    try:
        with module.context as context, ir.Location.unknown(), _listening(context, said):
            PassManager.parse(_PASSES).run(module.operation)
            _drop_shardings(module)
            version = stablehlo.get_version_from_compatibility_requirement(_AGE)
            return stablehlo.serialize_portable_artifact(module, version)
    except (RuntimeError, ValueError) as error:
        reason = (said or str(error).splitlines())[0][:300]
        message = f"program '{name}': it has no portable StableHLO form: {reason}"
        raise CompileError(message) from error


@contextmanager
def _listening(context: ir.Context, said: list[str]) -> Generator[None]:
    """Collect what MLIR would print about a failure; its exceptions do not name the op."""

    def collect(diagnostic: Any) -> bool:
        said.append(str(diagnostic.message))
        return True

    handler: Any = context.attach_diagnostic_handler(collect)
    try:
        yield
    finally:
        handler.detach()


@functools.cache
def _register_passes() -> None:
    """Make StableHLO's own passes known to MLIR by name, once in a process."""
    stablehlo.register_stablehlo_passes()


def _drop_shardings(module: ir.Module) -> None:
    """Drop the meshes, and the shardings of functions' arguments and results."""
    for operation in list(module.body.operations):
        for name in ("arg_attrs", "res_attrs"):
            if name in operation.attributes:
                entries: Any = operation.attributes[name]
                kept = [_without_shardings(entry) for entry in entries]
                operation.attributes[name] = ir.ArrayAttr.get(kept)
        if operation.operation.name.startswith(_SHARDY):
            operation.operation.erase()


def _without_shardings(attributes: ir.DictAttr) -> ir.DictAttr:
    """Give the attributes of one argument or result that are not Shardy's."""
    return ir.DictAttr.get(
        {item.name: item.attr for item in attributes if not item.name.startswith(_SHARDY)}
    )
