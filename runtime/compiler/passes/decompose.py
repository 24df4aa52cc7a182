"""Rewrite the ops that a family of targets lacks into ops that it has, before lowering.

The rewriting is done on the graph and not in the lowerings, for three reasons. A rewritten graph is
still an ATen graph, so torch itself can run it: every decomposition is held against the op that it
replaces by two interpreters. The pre-flight can say which op of which module was replaced by what,
without a compiler. And each op keeps one lowering, with one meaning, for all families.

A node that a decomposition makes is looked up in its turn, so one may be written with another's op.
A complex value, where a family has none, becomes its pairs of floats: a node that reads or gives one
takes its decomposition "complex:OP", if all such nodes of the graph have one (`_with_pairs`).

Nothing else changes: names, roles and order of inputs, labels of outputs and their types stay.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeAlias

import runtime.compiler.passes.decompositions  # noqa: F401 (registers every decomposition)
from runtime.compiler.graph import Graph, GraphPackage, Node, Ref, TensorType, Value, refs
from runtime.compiler.passes.decompositions.builder import Argument, Builder, Pairs, Val
from runtime.compiler.passes.decompositions.registry import Decomposition, find_decomposition
from runtime.spec import CompileError

__all__ = ["Decomposed", "Replaced", "decompose", "decompose_package", "replacements"]

_MAX_DEPTH = 16
"""Decompositions written with each other's ops, at most: more is a circle."""

_MADE = ".made"
_COMPLEX = "complex:"
_COMPLEX_DTYPE = "complex64"

_Known: TypeAlias = "Val | tuple[Val | None, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """One node of a graph that was replaced.

    Attributes:
        node: the node.
        by: its decomposition.
        into: the ops of the nodes that stand for it, sorted.
    """

    node: Node
    by: Decomposition
    into: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposed:
    """A rewritten graph.

    Attributes:
        graph: the graph for the family.
        replaced: the nodes that were replaced, in order.
    """

    graph: Graph
    replaced: tuple[Replaced, ...]


def decompose(graph: Graph, family: str) -> Graph:
    """Give the graph with every op replaced that the family has a decomposition for.

    Args:
        graph: what capture made.
        family: a family of targets, such as "neuron".

    Raises:
        CompileError: a decomposition gave another type than the op that it replaces.
    """
    return replacements(graph, family).graph


def decompose_package(package: GraphPackage, family: str) -> GraphPackage:
    """Give the package with all its graphs decomposed for a family; otherwise as `decompose`."""
    graphs = {name: decompose(graph, family) for name, graph in package.graphs.items()}
    return dataclasses.replace(package, graphs=graphs)


def replacements(graph: Graph, family: str) -> Decomposed:
    """Give the rewritten graph and what was replaced in it; otherwise as `decompose`."""
    try:
        return _Rewriter(graph, family, _with_pairs(graph, family)).run()
    except _NotOnPairs:
        return _Rewriter(graph, family, frozenset()).run()


class _NotOnPairs(Exception):
    """A node of complex values has a form that its decomposition does not cover."""


class _Rewriter:
    """Walks a graph once; maps each name to the value that stands for it in the new graph.

    Args:
        graph: the graph.
        family: the family of targets.
        on_pairs: the nodes of complex values that are computed on pairs.
    """

    def __init__(self, graph: Graph, family: str, on_pairs: frozenset[str]) -> None:
        self._graph = graph
        self._family = family
        self._nodes: list[Node] = []
        self._replaced: list[Replaced] = []
        self._known: dict[str, _Known] = {i.name: Val(Ref(i.name), i.type) for i in graph.inputs}
        self._on_pairs = on_pairs
        self._pairs: set[str] = set()
        self._names = {i.name for i in graph.inputs} | {node.name for node in graph.nodes}
        self._made = 0
        self._depth = 0

    def run(self) -> Decomposed:
        """Rewrite the graph."""
        for node in self._graph.nodes:
            self.add(node)
        return self.finish()

    def add(self, node: Node) -> None:
        """Take a node over, or put its decomposition in its place."""
        if node.op == "getitem" and self._take(node):
            return
        is_complex = node.name in self._on_pairs
        op = f"{_COMPLEX}{node.op}" if is_complex else node.op
        entry = find_decomposition(op, self._family)
        if is_complex and isinstance(node.out, TensorType) and node.out.dtype == _COMPLEX_DTYPE:
            self._pairs.add(node.name)
        if entry is None or not self._replace(node, entry):
            self._keep(node)

    def finish(self) -> Decomposed:
        """Give the graph with the nodes that an output needs."""
        outputs = tuple((label, self._ref(ref.name)) for label, ref in self._graph.outputs)
        needed = {ref.name for _, ref in outputs}
        nodes: list[Node] = []
        for node in reversed(self._nodes):
            if node.name in needed:
                nodes.append(node)
                needed.update(refs((node.args, tuple(node.kwargs.values()))))
        graph = Graph(self._graph.inputs, tuple(reversed(nodes)), outputs)
        return Decomposed(graph=graph, replaced=tuple(self._replaced))

    def _take(self, node: Node) -> bool:
        """Resolve a getitem of values that a decomposition gave; say whether it is one."""
        source, index = node.args
        if not isinstance(source, Ref) or not isinstance(index, int):
            raise CompileError(f"graph: node '{node.name}' is a getitem of '{source}'")
        values = self._known.get(source.name)
        if not isinstance(values, tuple):
            return False
        value = values[index]
        if value is None:
            message = f"graph: node '{node.name}' takes result {index} of '{source.name}', "
            raise CompileError(f"{message}which the op does not give")
        self._known[node.name] = value
        return True

    def _replace(self, node: Node, entry: Decomposition) -> bool:
        """Build a node's decomposition; say whether it covers the node."""
        if self._depth == _MAX_DEPTH:
            message = f"op '{node.op}': its decompositions are written with each other, in a circle"
            raise CompileError(message)
        before = len(self._nodes), len(self._replaced)
        self._depth += 1
        builder = Builder(lambda op, args, kwargs, out: self._emit(node, op, args, kwargs, out))
        try:
            args = [self._resolve(value) for value in node.args]
            kwargs = {name: self._resolve(value) for name, value in node.kwargs.items()}
            result = entry.function(builder, *args, **kwargs)
            if result is None and node.name in self._on_pairs:
                raise _NotOnPairs
            if result is None:
                del self._nodes[before[0] :], self._replaced[before[1] :]
                return False
            out = _pairs_type(node.out) if node.name in self._pairs else node.out
            self._known[node.name] = self._as_recorded(builder, node, result, out)
        finally:
            self._depth -= 1
        if self._depth == 0:
            into = sorted({made.op for made in self._nodes[before[0] :]})
            self._replaced.append(Replaced(node=node, by=entry, into=tuple(into)))
        return True

    def _emit(
        self,
        origin: Node,
        op: str,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        out: TensorType,
    ) -> Val:
        """Add a node that a decomposition makes, itself decomposed where that is needed."""
        name = self._new_name(origin)
        made = Node(name, op, _plain(args), {k: _plain(v) for k, v in kwargs.items()}, out)
        self.add(dataclasses.replace(made, module=origin.module))
        value = self._known[name]
        if not isinstance(value, Val):
            raise CompileError(f"op '{op}' gives several results; a decomposition takes one")
        return value

    def _new_name(self, origin: Node) -> str:
        """Give a name after the node that is replaced; a graph may have been rewritten before."""
        stem = origin.name.partition(_MADE)[0]
        while True:
            name = f"{stem}{_MADE}{self._made}"
            self._made += 1
            if name not in self._names:
                return name

    def _keep(self, node: Node) -> None:
        """Take a node over as it is, on the values that now stand for its arguments."""
        args = tuple(self._renamed(value) for value in node.args)
        kwargs = {name: self._renamed(value) for name, value in node.kwargs.items()}
        self._nodes.append(dataclasses.replace(node, args=args, kwargs=kwargs))
        if isinstance(node.out, TensorType):
            self._known[node.name] = Val(Ref(node.name), node.out)

    def _ref(self, name: str) -> Ref:
        """Give what stands for a name; nodes with several results keep theirs."""
        value = self._known.get(name)
        return value.ref if isinstance(value, Val) else Ref(name)

    def _renamed(self, value: Value) -> Value:
        if isinstance(value, Ref):
            return self._ref(value.name)
        if isinstance(value, tuple):
            return tuple(self._renamed(item) for item in value)
        return value

    def _resolve(self, value: Value) -> Any:
        """Give what a decomposition gets for a node's argument."""
        if isinstance(value, Ref):
            known = self._known[value.name]
            if value.name in self._pairs and isinstance(known, Val):
                return Pairs(known.ref, known.type)
            return known
        if isinstance(value, tuple):
            return tuple(self._resolve(item) for item in value)
        return value

    def _as_recorded(
        self,
        builder: Builder,
        node: Node,
        result: Val | tuple[Val, ...],
        out: TensorType | tuple[TensorType | None, ...] | None,
    ) -> _Known:
        """Check shapes against the node's, and cast to its dtypes."""
        if isinstance(result, tuple) and isinstance(out, tuple) and len(result) == len(out):
            pairs = zip(result, out, strict=True)
            return tuple(None if t is None else _typed(builder, node, v, t) for v, t in pairs)
        if isinstance(result, Val) and isinstance(out, TensorType):
            return _typed(builder, node, result, out)
        raise CompileError(f"op '{node.op}': its decomposition gave another number of results")


def _with_pairs(graph: Graph, family: str) -> frozenset[str]:
    """Give the nodes that are computed on pairs: those of complex values, or none of them.

    None where one has no decomposition, or an input or output of the graph is complex: then the
    graph keeps its complex values.
    """
    types: dict[str, TensorType] = {item.name: item.type for item in graph.inputs}
    types.update({n.name: n.out for n in graph.nodes if isinstance(n.out, TensorType)})
    are = {name for name, kind in types.items() if kind.dtype == _COMPLEX_DTYPE}
    nodes = [
        node
        for node in graph.nodes
        if node.name in are or are.intersection(refs((node.args, tuple(node.kwargs.values()))))
    ]
    ends = {item.name for item in graph.inputs} | {ref.name for _, ref in graph.outputs}
    whole = all(find_decomposition(f"{_COMPLEX}{node.op}", family) for node in nodes)
    return frozenset(node.name for node in nodes) if whole and not ends & are else frozenset()


def _pairs_type(
    out: TensorType | tuple[TensorType | None, ...] | None,
) -> TensorType | tuple[TensorType | None, ...] | None:
    """Give the type of a value's pairs, where it is complex."""
    if isinstance(out, TensorType) and out.dtype == _COMPLEX_DTYPE:
        return TensorType((*out.shape, 2), "float32")
    return out


def _typed(builder: Builder, node: Node, value: Val, out: TensorType) -> Val:
    if value.shape != out.shape:
        message = (
            f"op '{node.op}' (node '{node.name}', module '{node.module}'): its decomposition gave "
            f"shape {list(value.shape)}, torch {list(out.shape)}"
        )
        raise CompileError(message)
    cast = builder.cast(value, out.dtype)
    return Val(cast.ref, cast.type)


def _plain(value: Any) -> Any:
    """Give a builder's argument as a node's: values become references."""
    if isinstance(value, Val):
        return value.ref
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value
