"""What a target cannot compile of a captured graph, before anything is compiled.

Three questions, each about the graph as its family gets it, after decomposition:

1. has every op a lowering and every dtype a form for the target;
2. does an op's lowering hold anything that the family's compiler refuses: each distinct node is
   lowered alone, so that the answer names the op and the modules of the model that use it;
3. do the whole programs hold such a thing, which the code around the graph would have brought in.

The second and third are asked where the compiler's limits are written down as rules: for Neuron,
whose compiler is rarely installed where jobs are checked. Nothing here needs a compiler or a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.compiler.graph import Graph, GraphPackage, Input, Node, Ref, TensorType, Value, refs
from runtime.compiler.lower.dtypes import has_run_dtype
from runtime.compiler.lower.registry import find_lowering
from runtime.compiler.neuron import hlo
from runtime.compiler.neuron.rules import assumptions, broken_rules
from runtime.compiler.passes.decompose import Replaced, replacements
from runtime.compiler.targets import Target

__all__ = ["Judgements", "Preflight", "Replacement", "Unsupported", "node_module", "preflight"]


@dataclass(slots=True)
class Unsupported:
    """An op that the target cannot compile.

    Attributes:
        op: its full name, or "program NAME" for what stands around the graph.
        reasons: why, each once.
        modules: the model's modules that use it, each once.
    """

    op: str
    reasons: dict[str, None] = field(default_factory=dict)
    modules: dict[str, None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give plain values."""
        return {"op": self.op, "reasons": list(self.reasons), "modules": list(self.modules)}


@dataclass(slots=True)
class Replacement:
    """An op that is rewritten for the target.

    Attributes:
        op: its full name.
        by: the decomposition, such as "order.sort".
        because: what the target cannot do with the op.
        nodes: how many nodes are rewritten.
        into: the ops that take its place.
        modules: the model's modules that use it, each once.
    """

    op: str
    by: str
    because: str
    nodes: int = 0
    into: set[str] = field(default_factory=set)
    modules: dict[str, None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give plain values."""
        return {
            "op": self.op,
            "by": self.by,
            "because": self.because,
            "nodes": self.nodes,
            "into": sorted(self.into),
            "modules": list(self.modules),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What was found for one target.

    Attributes:
        target: its name.
        unsupported: ops that it cannot compile.
        decomposed: ops that are rewritten for it.
        assumed: operators of the compiler that no document of its vendor lists.
    """

    target: str
    unsupported: tuple[Unsupported, ...]
    decomposed: tuple[Replacement, ...]
    assumed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Give plain values."""
        return {
            "target": self.target,
            "unsupported": [item.to_json() for item in self.unsupported],
            "decomposed": [item.to_json() for item in self.decomposed],
            "assumed": list(self.assumed),
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the compiler's rules say of a node lowered alone.

    Attributes:
        broken: the rules that it breaks, in words.
        assumed: operators that no document lists.
    """

    broken: tuple[str, ...]
    assumed: tuple[str, ...]


class Judgements:
    """Judgements of nodes by all that decides them, so that equal nodes are lowered once.

    One may be shared by packages that are judged one after another.
    """

    def __init__(self) -> None:
        self._known: dict[object, Judgement] = {}

    def of(self, node: Node, types: Mapping[str, TensorType], target: str) -> Judgement:
        """Judge a node; arguments as of `node_module`."""
        key = target, _key(node, types)
        if key not in self._known:
            module = node_module(node, types, target)
            texts = tuple(broken.text() for broken in broken_rules(module))
            self._known[key] = Judgement(texts, assumptions(module))
        return self._known[key]


def preflight(
    package: GraphPackage,
    target: Target,
    *,
    micro_shards: int,
    known: Judgements | None = None,
) -> Preflight:
    """Judge a package for a target.

    Args:
        package: the captured graphs.
        target: what it is to be compiled for.
        micro_shards: M of the job.
        known: judgements of nodes from packages before it; takes this one's.
    """
    judged = Judgements() if known is None else known
    rewritten = {name: replacements(graph, target.family) for name, graph in package.graphs.items()}
    replaced = [item for graph in rewritten.values() for item in graph.replaced]
    graphs = {name: graph.graph for name, graph in rewritten.items()}
    found = _Findings()
    for graph in graphs.values():
        _look_up(graph, target, found)
    if target.family in _COMPILED_BY_RULES:
        for graph in graphs.values():
            _check_nodes(graph, target, found, judged)
        if not found.by_op:
            _check_programs(package, target, micro_shards, found)
    return Preflight(
        target=target.name,
        unsupported=tuple(found.by_op.values()),
        decomposed=_grouped(replaced),
        assumed=tuple(sorted(found.assumed)),
    )


_COMPILED_BY_RULES = frozenset({"neuron"})
"""Families whose compiler's limits are written down."""


@dataclass(slots=True)
class _Findings:
    """What is collected on the way."""

    by_op: dict[str, Unsupported] = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)

    def add(self, op: str, module: str, reasons: Iterable[str]) -> None:
        """Note reasons against an op."""
        for reason in reasons:
            entry = self.by_op.setdefault(op, Unsupported(op))
            entry.reasons[reason] = None
            if module:
                entry.modules[module] = None


def _look_up(graph: Graph, target: Target, found: _Findings) -> None:
    """Ask for a lowering of each op and a form of each dtype."""
    for item in graph.inputs:
        if not has_run_dtype(item.type.dtype):
            found.add(f"input {item.target}", "", [f"{item.type.dtype} has no form on any target"])
    for node in graph.nodes:
        if find_lowering(node.op, target.lowering) is None:
            found.add(node.op, node.module, [f"no lowering for target '{target.name}'"])
        wrong = sorted({t.dtype for t in _types(node) if not has_run_dtype(t.dtype)})
        found.add(node.op, node.module, [f"{dtype} has no form on any target" for dtype in wrong])


def _check_nodes(graph: Graph, target: Target, found: _Findings, judged: Judgements) -> None:
    """Lower each distinct node alone, and apply the compiler's rules to it."""
    without_lowering = frozenset(found.by_op)
    for node, types in _with_types(graph):
        if node.op == "getitem" or node.op in without_lowering or not _types(node):
            continue
        judgement = judged.of(node, types, target.lowering)
        found.assumed.update(judgement.assumed)
        found.add(node.op, node.module, judgement.broken)


def _check_programs(
    package: GraphPackage, target: Target, micro_shards: int, found: _Findings
) -> None:
    """Apply the compiler's rules to the whole programs, made by all passes."""
    from runtime.compiler.programs import build_programs
    from runtime.compiler.targets.neuron import hlo_module

    for flat in build_programs(package, target=target.lowering, micro_shards=micro_shards):
        module = hlo.read(hlo_module(flat))
        found.add(f"program {flat.name}", "", [broken.text() for broken in broken_rules(module)])
        found.assumed.update(assumptions(module))


def node_module(node: Node, types: Mapping[str, TensorType], target: str) -> hlo.Module:
    """Lower one node alone to an HLO module.

    Args:
        node: the node.
        types: the type of everything that it uses, by name.
        target: what it is lowered for, such as "neuron-trn2".

    Raises:
        LoweringError: it cannot be lowered.
    """
    import jax

    from runtime.compiler.lower import lower_graph
    from runtime.compiler.lower.dtypes import run_dtype
    from runtime.compiler.targets.neuron import hlo_bytes

    used = list(dict.fromkeys(_used(node)))
    inputs = tuple(Input(name, "buffer", name, types[name]) for name in used)
    outputs = [(node.name, Ref(node.name))]
    nodes = [node]
    if isinstance(node.out, tuple):
        present = [(i, out) for i, out in enumerate(node.out) if out is not None]
        parts = [
            Node(f"{node.name}[{i}]", "getitem", (outputs[0][1], i), {}, t) for i, t in present
        ]
        nodes += parts
        outputs = [(part.name, Ref(part.name)) for part in parts]
    function = lower_graph(Graph(inputs, tuple(nodes), tuple(outputs)), target)
    structs = [jax.ShapeDtypeStruct(i.type.shape, run_dtype(i.type.dtype)) for i in inputs]
    lowered = jax.jit(function, keep_unused=True).lower(structs)
    return hlo.read(hlo_bytes(lowered))


def _with_types(graph: Graph) -> Iterator[tuple[Node, dict[str, TensorType]]]:
    """Give each node with the types of all that stands before it."""
    types = {item.name: item.type for item in graph.inputs}
    for node in graph.nodes:
        yield node, types
        if isinstance(node.out, TensorType):
            types[node.name] = node.out


def _key(node: Node, types: Mapping[str, TensorType]) -> object:
    """Give what decides a node's lowering: its op, its arguments with types for names, its type."""
    kwargs = tuple((name, _typed(value, types)) for name, value in sorted(node.kwargs.items()))
    return node.op, _typed(node.args, types), kwargs, node.out


def _typed(value: Value, types: Mapping[str, TensorType]) -> object:
    if isinstance(value, Ref):
        return types[value.name]
    if isinstance(value, tuple):
        return tuple(_typed(item, types) for item in value)
    # 1, 1.0 and True are equal keys and different arguments; NaN is not equal to itself.
    return type(value).__name__, repr(value)


def _used(node: Node) -> Iterator[str]:
    return refs((node.args, tuple(node.kwargs.values())))


def _types(node: Node) -> list[TensorType]:
    """Give the types of a node's results, leaving out absent ones."""
    outs = node.out if isinstance(node.out, tuple) else (node.out,)
    return [out for out in outs if out is not None]


def _grouped(replaced: Iterable[Replaced]) -> tuple[Replacement, ...]:
    """Join the replaced nodes by op."""
    groups: dict[str, Replacement] = {}
    for item in replaced:
        entry = Replacement(item.node.op, item.by.name, item.by.because)
        entry = groups.setdefault(item.node.op, entry)
        entry.nodes += 1
        entry.into.update(item.into)
        if item.node.module:
            entry.modules[item.node.module] = None
    return tuple(groups[op] for op in sorted(groups))
