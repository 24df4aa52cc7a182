"""Which `luma::` ops of a package take their plain form on a target, for want of a kernel."""

from __future__ import annotations

from runtime.compiler.graph import GraphPackage
from runtime.compiler.lower.registry import find_lowering
from runtime.compiler.targets import Target

_KERNEL_OPS = "luma."
_OWN = frozenset({"cpu"})
"""Families whose kernel is the general form itself: on CPU a kernel is an XLA formulation."""

_ANY_TARGET = ""


def plain_forms(package: GraphPackage, target: Target) -> tuple[str, ...]:
    """Give the package's `luma::` ops that take their plain form on a target, sorted."""
    if target.family in _OWN:
        return ()
    used = {node.op for graph in package.graphs.values() for node in graph.nodes}
    return tuple(
        sorted(
            name
            for name in used
            if name.startswith(_KERNEL_OPS)
            and find_lowering(name, target.lowering) is find_lowering(name, _ANY_TARGET)
        )
    )
