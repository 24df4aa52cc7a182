"""Joins made of one array's places, piece by piece, become views of that array.

After a loop is found, `cat([unsqueeze(y[0], d), unsqueeze(y[1], d), ...], d)` still names every
place of the stacked y. It is y with its first dimension moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from runtime.compiler.graph import Graph, Node, Ref, TensorType, Value, refs
from runtime.compiler.passes.reroll._leaves import leaves, token

_SHORT = 4  # Joins of fewer parts stay.
_BATCHED = frozenset(
    {"aten.unsqueeze.default", "aten.squeeze.dims", "aten.view.default", "aten.permute.default"}
)


def join_places(graph: Graph) -> Graph:
    """Replace such joins; everything else stays."""
    work = _Joins({node.name: node for node in graph.nodes})
    for node in graph.nodes:
        work.nodes.append(work.joined(node) if node.op == "aten.cat.default" else node)
    return replace(graph, nodes=tuple(work.nodes))


@dataclass(slots=True)
class _Joins:
    """The graph so far."""

    by_name: dict[str, Node]
    nodes: list[Node] = field(default_factory=list)
    count: int = 0

    def joined(self, node: Node) -> Node:
        """Give the join with each long stretch of places as one part."""
        parts = node.args[0]
        dim = node.args[1] if len(node.args) > 1 else 0
        if not isinstance(parts, tuple) or len(parts) < _SHORT or type(dim) is not int:
            return node
        merged: list[Value] = []
        names = list(refs(parts))
        for first, last in self._stretches(names):
            block = self._block(names[first:last], dim) if last - first >= _SHORT else None
            merged.extend(parts[first:last] if block is None else [Ref(block)])
        return node if len(merged) == len(parts) else replace(node, args=(tuple(merged), dim))

    def _stretches(self, names: list[str]) -> list[tuple[int, int]]:
        """Cut a list where its members, or where they come from, change their form."""
        forms = [self._form(name) for name in names]
        edges = [0, *(i for i in range(1, len(names)) if forms[i] != forms[i - 1]), len(names)]
        return list(pairwise(edges))

    def _form(self, name: str) -> tuple[object, ...] | str:
        """Give the chain of unary ops from a select to the value, or its name if it is none."""
        chain: list[object] = []
        node = self.by_name.get(name)
        while node is not None and node.op != "aten.select.int":
            used = [leaf for leaf in leaves(node) if isinstance(leaf, Ref)]
            if node.op not in _BATCHED or len(used) != 1:
                return name
            chain.append(token(node))
            node = self.by_name.get(used[0].name)
        return name if node is None else (*chain, node.args[:2])

    def _block(self, names: list[str], dim: int) -> str | None:
        """Give the name of the members joined along a dimension."""
        whole = self._whole(names)
        member = self.by_name[names[0]].out
        if whole is None or not isinstance(member, TensorType):
            return None
        axis, count = dim % len(member.shape), len(names)
        order = (*range(1, axis + 1), 0, *range(axis + 1, len(member.shape) + 1))
        moved = [*member.shape[:axis], count, *member.shape[axis:]]
        permuted = self._add("aten.permute.default", (Ref(whole), order), moved, member.dtype)
        shape = [*member.shape]
        shape[axis] *= count
        return self._add("aten.view.default", (Ref(permuted), tuple(shape)), shape, member.dtype)

    def _whole(self, names: list[str]) -> str | None:
        """Give the name of the members stacked along a new first dimension."""
        nodes = [self.by_name[name] for name in names]
        model = nodes[0]
        if model.op == "aten.select.int":
            return self._places(nodes)
        inner = self._whole([next(iter(refs(node.args))) for node in nodes])
        if inner is None or not isinstance(model.out, TensorType):
            return None
        shape = (len(names), *model.out.shape)
        args = (Ref(inner), _batched(model, shape))
        return self._add(model.op, args, shape, model.out)

    def _places(self, nodes: Sequence[Node]) -> str | None:
        """Give the name of consecutive places of one array, as its first dimension."""
        source, dim, first = nodes[0].args
        base = self.by_name.get(source.name) if isinstance(source, Ref) else None
        if dim != 0 or base is None or not isinstance(base.out, TensorType):
            return None
        if type(first) is not int:
            return None
        stop = first + len(nodes)
        if [node.args[2] for node in nodes] != list(range(first, stop)):
            return None
        if len(nodes) == base.out.shape[0]:
            return base.name
        shape = (len(nodes), *base.out.shape[1:])
        return self._add("aten.slice.Tensor", (Ref(base.name), 0, first, stop, 1), shape, base.out)

    def _add(
        self, op: str, args: tuple[Value, ...], shape: Sequence[int], like: TensorType | str
    ) -> str:
        name = f"join.{self.count}"
        while name in self.by_name:
            self.count += 1
            name = f"join.{self.count}"
        dtype = like if isinstance(like, str) else like.dtype
        node = Node(name, op, args, {}, TensorType(tuple(shape), dtype))
        self.nodes.append(node)
        self.by_name[name] = node
        return name


def _batched(node: Node, shape: tuple[int, ...]) -> Value:
    """Give a view's second argument where its tensor has one more dimension, in front.

    Args:
        node: the view of one member.
        shape: what its result then has.
    """
    if node.op == "aten.view.default":
        return shape
    given, rank = node.args[1], len(shape) - 1
    dims = [dim for dim in (given if isinstance(given, tuple) else (given,)) if type(dim) is int]
    if node.op == "aten.squeeze.dims":
        # Counted from the end they stay; from the front the new dimension comes before them.
        return tuple(dim if dim < 0 else dim + 1 for dim in dims)
    moved = [dim % rank + 1 for dim in dims]
    return (0, *moved) if node.op == "aten.permute.default" else moved[0]
