"""Brings a graph to a form in which iterations of a loop look alike.

Tracing writes the same access in several ways: a slice of a whole dimension, a bound past the end,
a place counted from the end, a write as a comparison with an arange. Each becomes one form here,
with the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from runtime.compiler.graph import Graph, Node, Ref, TensorType, Value, refs
from runtime.compiler.passes.reroll._leaves import leaves, with_leaves

Out = TensorType | tuple[TensorType | None, ...] | None


def canonical(graph: Graph) -> Graph:
    """Give a graph that computes the same, in the form that `reroll` looks for."""
    work = _Canonical({item.name: item.type for item in graph.inputs})
    for node in graph.nodes:
        work.add(node)
    outputs = tuple(
        (label, Ref(work.alias.get(ref.name, ref.name))) for label, ref in graph.outputs
    )
    return live(Graph(graph.inputs, tuple(work.nodes), outputs))


def live(graph: Graph) -> Graph:
    """Leave out the nodes that no output needs."""
    needed = {ref.name for _, ref in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(refs((node.args, tuple(node.kwargs.values()))))
    return replace(graph, nodes=tuple(reversed(kept)))


@dataclass(slots=True)
class _Canonical:
    """The graph so far: types and nodes by name, and what stands for dropped nodes."""

    types: dict[str, Out]
    alias: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    by_name: dict[str, Node] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        """Add one node in its canonical form, or what it is equal to."""
        node = self._renamed(node)
        result = self._form(node)
        if isinstance(result, Ref):
            self.alias[node.name] = result.name
            return
        self.nodes.append(result)
        self.by_name[result.name] = result
        self.types[result.name] = result.out

    def _renamed(self, node: Node) -> Node:
        values = [
            Ref(self.alias.get(leaf.name, leaf.name)) if isinstance(leaf, Ref) else leaf
            for leaf in leaves(node)
        ]
        args, kwargs = with_leaves(node, values)
        return replace(node, args=args, kwargs=kwargs)

    def _form(self, node: Node) -> Node | Ref:
        if node.kwargs:
            return node
        if node.op == "aten.slice.Tensor":
            return self._slice(node)
        if node.op == "aten.slice_scatter.default":
            return self._slice_scatter(node)
        if node.op in ("aten.select.int", "aten.select_scatter.default"):
            return self._place(node)
        if node.op == "getitem":
            return self._piece(node)
        if node.op == "aten.where.self":
            return self._masked_write(node)
        return node

    def _type(self, value: Value) -> TensorType | None:
        found = self.types.get(value.name) if isinstance(value, Ref) else None
        return found if isinstance(found, TensorType) else None

    def _bounds(self, source: Value, rest: Sequence[Value]) -> tuple[int, int, int, int] | None:
        """Give (dim, start, stop, step) without defaults, clipped to the dimension."""
        kind = self._type(source)
        dim, start, stop, step = (*rest, *(0, None, None, 1)[len(rest) :])
        if kind is None or not isinstance(dim, int) or not isinstance(step, int):
            return None
        bounds = slice(
            start if isinstance(start, int) else None, stop if isinstance(stop, int) else None, step
        )
        axis = dim % len(kind.shape)
        first, last, step = bounds.indices(kind.shape[axis])
        return axis, first, max(first, last), step

    def _covers(self, source: Value, bounds: tuple[int, int, int, int]) -> bool:
        kind = self._type(source)
        axis, start, stop, step = bounds
        return kind is not None and (start, stop, step) == (0, kind.shape[axis], 1)

    def _slice(self, node: Node) -> Node | Ref:
        source = node.args[0]
        bounds = self._bounds(source, node.args[1:])
        if bounds is None or not isinstance(source, Ref):
            return node
        return source if self._covers(source, bounds) else replace(node, args=(source, *bounds))

    def _slice_scatter(self, node: Node) -> Node | Ref:
        target, source = node.args[:2]
        bounds = self._bounds(target, node.args[2:])
        if bounds is None or not isinstance(source, Ref):
            return node
        if self._covers(target, bounds) and self._type(source) == node.out:
            return source
        return replace(node, args=(target, source, *bounds))

    def _place(self, node: Node) -> Node:
        """Count the place of a select or a select_scatter from the front."""
        kind = self._type(node.args[0])
        *tensors, dim, index = node.args
        if kind is None or not isinstance(dim, int) or not isinstance(index, int):
            return node
        axis = dim % len(kind.shape)
        return replace(node, args=(*tensors, axis, index % kind.shape[axis]))

    def _piece(self, node: Node) -> Node:
        """Turn one piece of an unbind or split into the select or slice that it is."""
        source, index = node.args
        whole = self.by_name.get(source.name) if isinstance(source, Ref) else None
        if whole is None or whole.kwargs or not isinstance(index, int):
            return node
        kind = self._type(whole.args[0])
        if kind is None or not isinstance(whole.out, tuple):
            return node
        if whole.op == "aten.unbind.int":
            dim = whole.args[1] if len(whole.args) > 1 else 0
            if isinstance(dim, int):
                dim, index = dim % len(kind.shape), index % len(whole.out)
                return replace(node, op="aten.select.int", args=(whole.args[0], dim, index))
        if whole.op in ("aten.split_with_sizes.default", "aten.split.Tensor"):
            dim = whole.args[2] if len(whole.args) > 2 else 0
            if isinstance(dim, int):
                axis = dim % len(kind.shape)
                sizes = [0 if one is None else one.shape[axis] for one in whole.out]
                start = sum(sizes[:index])
                args = (whole.args[0], axis, start, start + sizes[index], 1)
                return replace(node, op="aten.slice.Tensor", args=args)
        return node

    def _masked_write(self, node: Node) -> Node:
        """Recover `select_scatter` from torch's decomposition: where(arange == index, source, x)."""
        mask, source = (
            self.by_name.get(arg.name) if isinstance(arg, Ref) else None for arg in node.args[:2]
        )
        index = _compared_place(mask, self.by_name)
        wide = _argument(source, "aten.expand.default", self.by_name)
        base = node.args[2]
        kind = self._type(base)
        if index is None or wide is None or kind is None or kind != node.out:
            return node
        dim, place = index
        if wide.op != "aten.unsqueeze.default" or wide.args[1] not in (dim, dim - len(kind.shape)):
            return node
        inner = self._type(wide.args[0])
        if inner != TensorType((*kind.shape[:dim], *kind.shape[dim + 1 :]), kind.dtype):
            return node
        if mask is None or not _spans(mask.out, dim, kind.shape):
            return node
        args = (base, wide.args[0], dim, place)
        return replace(node, op="aten.select_scatter.default", args=args)


def _argument(node: Node | None, op: str, by_name: dict[str, Node]) -> Node | None:
    """Give the node that an op's first argument is, if this is that op without keywords."""
    if node is None or node.op != op or node.kwargs or not isinstance(node.args[0], Ref):
        return None
    return by_name.get(node.args[0].name)


def _compared_place(mask: Node | None, by_name: dict[str, Node]) -> tuple[int, int] | None:
    """Give (dim, index) of a mask that is true at one place of one dimension."""
    view = _argument(mask, "aten.eq.Scalar", by_name)
    places = _argument(view, "aten.view.default", by_name)
    if mask is None or view is None or places is None or not isinstance(view.out, TensorType):
        return None
    index, shape = mask.args[1], view.out.shape
    wide = [dim for dim, size in enumerate(shape) if size != 1]
    if not places.op.startswith("aten.arange.") or type(index) is not int or len(wide) != 1:
        return None
    counts = {"aten.arange.default": (shape[wide[0]],), "aten.arange.start": (0, shape[wide[0]])}
    expected = counts.get(places.op, (0, shape[wide[0]], 1))
    return (wide[0], index) if places.args in (expected, expected[:2]) and index >= 0 else None


def _spans(out: Out, dim: int, shape: tuple[int, ...]) -> bool:
    wanted = tuple(size if axis == dim else 1 for axis, size in enumerate(shape))
    return isinstance(out, TensorType) and out.shape == wanted
