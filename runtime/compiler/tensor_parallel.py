"""Which dimension of each weight tensor parallelism divides, read from the graph alone.

A product `x W` can be divided in two ways (Shoeybi et al. 2019, Megatron-LM, section 3):

- by columns: each chip has some of the output features, and computes those; nothing is exchanged;
- by rows: each chip has some of the input features, and what they compute is added up.

Rows after columns need one exchange for both, where all between them works on each feature (or each
head of an attention) by itself. So the forward pass is walked in order, noting which dimension of a
value is divided among the chips: a product whose input features are divided already is cut by rows,
any other by columns. A sum with a value that is whole, such as the residual stream, makes the
result whole. An embedding is cut along its vocabulary. A weight with few output features, such as a
LoRA adapter's first one, is not cut: its product costs less than the exchange would.

Nothing here can make a result wrong: XLA's partitioner exchanges whatever a cut makes necessary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from runtime.compiler.graph import Graph, Node, Ref, TensorType, Value, refs

__all__ = ["tensor_cuts"]

_Shape: TypeAlias = "tuple[int, ...]"

_NARROW = 8
"""A weight with so many times fewer output than input features is not cut by columns."""

_PRODUCTS: Mapping[str, tuple[int, int, int]] = {
    "aten.mm": (0, 1, 0),
    "aten.matmul": (0, 1, 0),
    "aten.addmm": (1, 2, 0),
    "aten.linear": (0, 1, 1),
}
"""Positions of input and weight, and the dimension of the weight's value that is summed over."""

_HEADS = 1
"""The dimension of attention's q, k, v and result that counts the heads."""

_MIXING = ("softmax", "cum", "sort", "topk", "flip", "roll", "norm", "index", "gather", "scatter")
"""Parts of the names of ops that keep a shape and yet mix what lies along a dimension."""


def tensor_cuts(graph: Graph) -> dict[str, int]:
    """Give the dimension of each weight that tensor parallelism divides.

    Args:
        graph: a model's graph with the output "loss_sum".

    Returns:
        The dimension by the parameter's name, of trained and frozen ones; those that are missing
        stay whole on each chip.
    """
    walk = _Walk(graph)
    for node in _forward(graph):
        walk.visit(node)
    return walk.cuts


class _Walk:
    """What is known at one place of the forward pass.

    Attributes:
        cuts: the dimension of each weight that was decided on.
    """

    def __init__(self, graph: Graph) -> None:
        self.cuts: dict[str, int] = {}
        self._shapes: dict[str, _Shape] = {i.name: i.type.shape for i in graph.inputs}
        self._divided: dict[str, int] = {}
        weights = [i for i in graph.inputs if i.role in {"param", "frozen"}]
        # A value that is a weight, and for each of its dimensions the weight's own.
        self._weights = {i.name: (i.target, tuple(range(len(i.type.shape)))) for i in weights}

    def visit(self, node: Node) -> None:
        """Note one op's result, and decide on the weight that it multiplies with."""
        out = node.out[0] if isinstance(node.out, tuple) else node.out
        if not isinstance(out, TensorType):
            return
        self._shapes[node.name] = out.shape
        base = ".".join(node.op.split(".")[:2])
        if self._is_weight(node, base):
            return
        if base in _PRODUCTS and self._multiplies(node, base):
            return
        if base == "aten.embedding" and (weight := self._weight(node.args[0])) is not None:
            self.cuts.setdefault(weight[0], 0)
            return
        dimension = self._rule(base)(node)
        if dimension is not None and dimension < len(out.shape):
            self._divided[node.name] = dimension

    # ---------------------------------------------------------------- weights

    def _weight(self, value: Value) -> tuple[str, tuple[int, ...]] | None:
        return self._weights.get(value.name) if isinstance(value, Ref) else None

    def _is_weight(self, node: Node, base: str) -> bool:
        """Follow a weight through a permutation or a change of its type."""
        weight = self._weight(node.args[0]) if node.args else None
        order = self._order(node, base)
        if weight is None or order is None:
            return False
        name, dimensions = weight
        self._weights[node.name] = name, tuple(dimensions[i] for i in order)
        return True

    def _multiplies(self, node: Node, base: str) -> bool:
        """Decide how a weight is cut, unless an earlier use of it did; False without a weight."""
        where_x, where_weight, summed = _PRODUCTS[base]
        x, value = node.args[where_x], node.args[where_weight]
        weight = self._weight(value)
        if weight is None or not (isinstance(x, Ref) and isinstance(value, Ref)):
            return False
        name, dimensions = weight
        if len(dimensions) != 2:
            return False
        shape = self._shapes[value.name]
        rows, columns = dimensions[summed], dimensions[1 - summed]
        by_rows = self._divided.get(x.name) == len(self._shapes[x.name]) - 1
        if not by_rows and name not in self.cuts and shape[1 - summed] * _NARROW < shape[summed]:
            return True
        if self.cuts.setdefault(name, rows if by_rows else columns) == columns:
            self._divided[node.name] = len(self._shapes[node.name]) - 1
        return True

    # ------------------------------------------------- what ops do to a division

    def _rule(self, base: str) -> Callable[[Node], int | None]:
        return {
            "getitem": self._first_operand,
            "luma.attention": self._attention,
            "aten.permute": self._moved,
            "aten.t": self._moved,
            "aten.transpose": self._moved,
            "aten.view": self._reshaped,
            "aten.reshape": self._reshaped,
            "aten._unsafe_view": self._reshaped,
            "aten.unsqueeze": self._reshaped,
            "aten.squeeze": self._reshaped,
            "aten.expand": self._first_operand,
            "aten.slice": self._first_operand,
            "aten.cat": self._elementwise,
            "aten.mean": self._reduced,
            "aten.sum": self._reduced,
            "aten.var": self._reduced,
            "aten.amax": self._reduced,
        }.get(base, self._elementwise)

    def _first(self, node: Node) -> tuple[_Shape, int] | None:
        """Give the shape and the divided dimension of the first operand, if it has one."""
        value = node.args[0] if node.args else None
        if not isinstance(value, Ref) or value.name not in self._divided:
            return None
        return self._shapes[value.name], self._divided[value.name]

    def _first_operand(self, node: Node) -> int | None:
        """One of several results, a part, a repetition: dimensions keep their places."""
        first = self._first(node)
        kept = first is not None and len(first[0]) == len(self._shapes[node.name])
        return first[1] if first is not None and kept else None

    def _attention(self, node: Node) -> int | None:
        """Each head works by itself, so the result is divided as the queries are."""
        first = self._first(node)
        return _HEADS if first is not None and first[1] == _HEADS else None

    def _moved(self, node: Node) -> int | None:
        """Find the place that a permutation moves the dimension to."""
        first = self._first(node)
        order = self._order(node, ".".join(node.op.split(".")[:2]))
        return order.index(first[1]) if first is not None and order is not None else None

    def _reshaped(self, node: Node) -> int | None:
        """Find the dimension that starts at the same place and is a multiple or a factor."""
        first = self._first(node)
        if first is None:
            return None
        (shape, dimension), out = first, self._shapes[node.name]
        size, before = shape[dimension], math.prod(shape[:dimension])
        for i, new in enumerate(out):
            if new > 1 and math.prod(out[:i]) == before:
                return i if size % new == 0 or new % size == 0 else None
        return None

    def _reduced(self, node: Node) -> int | None:
        """A dimension that is not summed over stays divided, where it then stands."""
        first = self._first(node)
        if first is None:
            return None
        (shape, dimension), out = first, self._shapes[node.name]
        given = node.args[1] if len(node.args) > 1 else None
        over = given if isinstance(given, tuple) else (given,)
        gone = {i % len(shape) for i in over if isinstance(i, int)}
        if not gone or dimension in gone:
            return None
        kept = len(out) == len(shape)
        return dimension if kept else dimension - sum(i < dimension for i in gone)

    def _elementwise(self, node: Node) -> int | None:
        """Keep the dimension that every operand of its size has divided; weights do not count."""
        if any(part in node.op for part in _MIXING):
            return None
        out = self._shapes[node.name]
        found: set[int | None] = set()
        for name in refs(node.args):
            if name in self._weights or name not in self._shapes:
                continue
            shape, divided = self._shapes[name], self._divided.get(name)
            offset = len(out) - len(shape)
            found.add(None if divided is None else divided + offset)
        chosen = found - {None}
        if len(chosen) != 1:
            return None
        dimension = chosen.pop()
        assert dimension is not None  # noqa: S101 - taken out above
        whole = any(self._is_whole(name, dimension, out) for name in refs(node.args))
        return None if whole or dimension >= len(out) else dimension

    def _is_whole(self, name: str, dimension: int, out: _Shape) -> bool:
        """Say whether an operand has all of a dimension on each chip."""
        if name in self._weights or name not in self._shapes:
            return False
        shape, offset = self._shapes[name], len(out) - len(self._shapes[name])
        own = dimension - offset
        broadcast = own < 0 or own >= len(shape) or shape[own] == 1
        return not broadcast and self._divided.get(name) != own

    def _order(self, node: Node, base: str) -> tuple[int, ...] | None:
        """Give for each dimension of a permuted value the one that it was; None for other ops."""
        rank = len(self._shapes[node.name])
        if base in {"aten._to_copy", "aten.clone", "aten.alias", "aten.detach"}:
            return tuple(range(rank))
        if base == "aten.t":
            return tuple(reversed(range(rank)))
        if base == "aten.permute" and isinstance(node.args[1], tuple):
            return tuple(i % rank for i in node.args[1] if isinstance(i, int))
        if base == "aten.transpose":
            order = list(range(rank))
            one, two = (i % rank for i in node.args[1:3] if isinstance(i, int))
            order[one], order[two] = two, one
            return tuple(order)
        return None


def _forward(graph: Graph) -> Iterable[Node]:
    """Give the nodes that the loss needs, in order: the backward pass has its own products."""
    needed = {ref.name for label, ref in graph.outputs if label == "loss_sum"}
    kept = []
    for node in reversed(graph.nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(refs((node.args, tuple(node.kwargs.values()))))
    return reversed(kept)
