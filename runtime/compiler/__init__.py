"""Capture a model to a graph package, lower it, and compile it per target.

`compile_package` compiles; `runtime.compiler.capture` captures and is imported by its own name,
because it alone needs torch. Importing this package imports neither torch nor jax.
"""

from runtime.compiler.graph import GraphPackage
from runtime.compiler.service import CompileResult, compile_package

__all__ = ["CompileResult", "GraphPackage", "compile_package"]
