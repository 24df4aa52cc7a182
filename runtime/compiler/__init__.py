"""Capture a model to a graph package, lower it, and compile it per target.

`compile_package` compiles for one target and `compile_targets` for several;
`runtime.compiler.capture` captures and is imported by its own name, because it alone needs torch. Importing this package imports neither torch nor jax.
"""

from runtime.compiler.graph import GraphPackage
from runtime.compiler.service import CompileResult, compile_package
from runtime.compiler.several import TargetOutcome, compile_targets

__all__ = [
    "CompileResult",
    "GraphPackage",
    "TargetOutcome",
    "compile_package",
    "compile_targets",
]
