"""The arithmetic of a graph's matrix products: what a program computes at the least.

A compiler's own count is no substitute everywhere: XLA counts a loop's body once, and calls of a
vendor's library not at all; other compilers state none. Counting is by shapes alone: a product of
[.., m, k] and [.., k, n] is 2 m k n operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from runtime.compiler.graph import Graph, Node, Ref, Scan, TensorType, Value

__all__ = ["matmul_flops"]

_Types: TypeAlias = "dict[str, TensorType | tuple[TensorType | None, ...] | None]"
_Shape: TypeAlias = "tuple[int, ...]"


def matmul_flops(graph: Graph) -> float:
    """Give the floating-point operations of a graph's matrix products, convolutions, attention."""
    types: _Types = {item.name: item.type for item in graph.inputs}
    return _flops(graph.nodes, types)


def _flops(nodes: Iterable[Node], types: _Types) -> float:
    """Add up nodes in order, noting each result's type."""
    total = 0.0
    for node in nodes:
        types[node.name] = _taken(node, types) if node.op == "getitem" else node.out
        if isinstance(node, Scan):
            total += node.length * _flops(node.body.nodes, _inside(node, types))
        elif node.op in _COUNTS:
            total += _COUNTS[node.op](node, types)
    return total


def _taken(node: Node, types: _Types) -> TensorType | None:
    """Give the type of one of several results."""
    source, index = node.args
    several = types[source.name] if isinstance(source, Ref) else None
    return several[index] if isinstance(several, tuple) and isinstance(index, int) else None


def _inside(scan: Scan, types: _Types) -> _Types:
    """Give the types of a loop's names at its beginning."""
    carries, invariants = scan.args
    names = (*scan.body.carries, *scan.body.invariants)
    values = (*_tuple(carries), *_tuple(invariants))
    return {
        name: types[value.name]
        for name, value in zip(names, values, strict=True)
        if isinstance(value, Ref)
    }


def _tuple(value: Value) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


def _shape(value: Value, types: _Types) -> _Shape:
    """Give the shape of a tensor argument."""
    found = types.get(value.name) if isinstance(value, Ref) else None
    return found.shape if isinstance(found, TensorType) else ()


def _out(node: Node) -> _Shape:
    """Give the shape of a node's first result."""
    first = node.out[0] if isinstance(node.out, tuple) else node.out
    return () if first is None else first.shape


def _product(first: int) -> Callable[[Node, _Types], float]:
    """Count a matrix product whose left factor is argument `first`."""

    def count(node: Node, types: _Types) -> float:
        left = _shape(node.args[first], types)
        return 2.0 * math.prod(_out(node)) * (left[-1] if left else 0)

    return count


def _attention(query_at: int, by_key: int, by_value: int) -> Callable[[Node, _Types], float]:
    """Count attention as products with the keys' and with the values' sizes, of the seen pairs.

    Args:
        query_at: position of q among the arguments; k and v follow.
        by_key: products along the keys' size: of scores, of the gradients of q and k.
        by_value: products along the values' size: of weights with values, and their gradients.
    """

    def count(node: Node, types: _Types) -> float:
        query, value = (_shape(node.args[query_at + i], types) for i in (0, 2))
        causal, window = node.args[-3], node.args[-2]
        batch, heads, positions, size = query
        seen = positions * positions / (2 if causal is True else 1)
        if isinstance(window, int) and 0 < window < positions:
            seen = float(positions * window)
        sizes = by_key * size + by_value * value[-1]
        return 2.0 * batch * heads * seen * sizes

    return count


def _convolution(products: int, input_at: int) -> Callable[[Node, _Types], float]:
    """Count a convolution as so many of: each output element reads one filter."""

    def count(node: Node, types: _Types) -> float:
        weight = _shape(node.args[input_at + 1], types)
        out = _out(node) if input_at == 0 else _shape(node.args[0], types)
        return products * 2.0 * math.prod(out) * math.prod(weight[1:])

    return count


def _grouped(node: Node, types: _Types) -> float:
    """Count a grouped product: each row of the left factor meets one matrix, or one row."""
    return 2.0 * math.prod(_shape(node.args[0], types)) * _out(node)[-1]


_COUNTS: Mapping[str, Callable[[Node, _Types], float]] = {
    "aten.mm.default": _product(0),
    "aten.bmm.default": _product(0),
    "aten.addmm.default": _product(1),
    "aten.baddbmm.default": _product(1),
    "aten.convolution.default": _convolution(1, 0),
    "aten.convolution_backward.default": _convolution(2, 1),
    "luma.attention.default": _attention(0, by_key=1, by_value=1),
    "luma.attention_backward.default": _attention(1, by_key=3, by_value=2),
    "luma.grouped_mm.default": _grouped,
    "luma.grouped_outer.default": _grouped,
}
"""Counts by op; attention's backward makes the scores a second time."""
