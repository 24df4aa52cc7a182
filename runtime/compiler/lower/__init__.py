"""Lowering: a graph of ATen and `luma::` ops becomes a jax-traceable function, hence StableHLO."""

from runtime.compiler.lower.interpret import lower_graph
from runtime.compiler.lower.registry import op, registered_ops

__all__ = ["lower_graph", "op", "registered_ops"]
