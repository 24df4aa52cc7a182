"""From a traced fx graph to a `Graph`: names, values and types only, cleaned of what does nothing.

Dropped: assertions, aliases and copies (in a graph without in-place ops they are the identity),
arguments that place a tensor (device, layout, memory format), and nodes that no output needs.
Lifted: every tensor constant becomes a "buffer" input. Refused, all at once and each with its
module: in-place ops, random ops outside `luma::dropout`, values that depend on data.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from runtime.compiler.capture._modules import module_of
from runtime.compiler.capture._trace import is_in_place
from runtime.compiler.graph import DType, Graph, Input, Node, Ref, TensorType, Value, refs
from runtime.spec import CaptureError

_IDENTITY = frozenset(
    {
        "aten.alias.default",
        "aten.clone.default",
        "aten.detach.default",
        "aten.lift_fresh.default",
        "aten.lift_fresh_copy.default",
    }
)
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
_EFFECT_ONLY = ("aten._assert", "aten.sym_constrain", "aten._functional_assert")
_MAX_LISTED = 20


@dataclass(slots=True)
class Constants:
    """The tensor constants of a model's graphs, each once, under the names of buffers."""

    values: dict[str, Tensor] = field(default_factory=dict)

    def name_of(self, value: Tensor) -> str:
        """Give the constant's name, a new one where no equal constant was met before."""
        for name, known in self.values.items():
            same = known.dtype == value.dtype and known.shape == value.shape
            if same and torch.equal(known, value):
                return name
        name = f"constant.{len(self.values)}"
        self.values[name] = value.detach().clone()
        return name


def convert(
    traced: fx.GraphModule,
    inputs: Sequence[tuple[str, str]],
    labels: Sequence[str],
    constants: Constants,
) -> Graph:
    """Convert a traced graph.

    Args:
        traced: from `trace_grad` or `trace_forward`.
        inputs: (role, target) of each placeholder, in order.
        labels: the label of each output, in order.
        constants: where lifted constants are collected.

    Raises:
        CaptureError: the graph holds what a compiled program cannot do; the message lists it.
    """
    _refuse_unsuitable(traced, [target for _, target in inputs])
    return _Converter(traced, constants).graph(inputs, labels)


class _Converter:
    """Walks one fx graph; maps each fx node to the value that stands for it."""

    def __init__(self, traced: fx.GraphModule, constants: Constants) -> None:
        self._traced = traced
        self._constants = constants
        self._values: dict[fx.Node, Ref] = {}
        self._nodes: list[Node] = []
        self._lifted: dict[str, Input] = {}

    def graph(self, inputs: Sequence[tuple[str, str]], labels: Sequence[str]) -> Graph:
        placeholders: list[Input] = []
        results: tuple[Ref, ...] = ()
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                placeholders.append(self._placeholder(node, *inputs[len(placeholders)]))
            elif node.op == "get_attr":
                self._lift(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                results = tuple(self._values[item] for item in node.args[0])
        outputs = tuple(zip(labels, results, strict=True))
        nodes = _live(self._nodes, [ref.name for _, ref in outputs])
        return Graph((*placeholders, *self._lifted.values()), nodes, outputs)

    def _placeholder(self, node: fx.Node, role: str, target: str) -> Input:
        name = f"{role}:{target}"
        self._values[node] = Ref(name)
        return Input(name, role, target, _tensor_type(node.meta["val"]))

    def _lift(self, node: fx.Node) -> None:
        value = operator.attrgetter(str(node.target))(self._traced)
        target = self._constants.name_of(value)
        name = f"buffer:{target}"
        self._lifted[target] = Input(name, "buffer", target, _tensor_type(value))
        self._values[node] = Ref(name)

    def _call(self, node: fx.Node) -> None:
        op = _op_name(node)
        if op in _IDENTITY:
            (source,) = node.all_input_nodes
            self._values[node] = self._values[source]
            return
        if op.startswith(_EFFECT_ONLY):
            return
        self._values[node] = Ref(node.name)
        args = tuple(self._value(item, node) for item in node.args)
        kwargs = {
            key: self._value(item, node)
            for key, item in sorted(node.kwargs.items())
            if key not in _PLACEMENT and item is not None
        }
        out = _out_type(node.meta.get("val"))
        self._nodes.append(Node(node.name, op, args, kwargs, out, module_of(node.meta)))

    def _value(self, item: object, node: fx.Node) -> Value:
        if isinstance(item, fx.Node):
            return self._values[item]
        if isinstance(item, (list, tuple)):
            return tuple(self._value(part, node) for part in item)
        if isinstance(item, torch.dtype):
            return DType(_dtype_name(item))
        if item is None or isinstance(item, (bool, int, float, str)):
            return item
        if isinstance(item, (torch.device, torch.layout, torch.memory_format)):
            return None
        kind = type(item).__name__
        raise CaptureError(f"op '{_op_name(node)}' in {_place(node)}: an argument is a {kind}")


def _refuse_unsuitable(traced: fx.GraphModule, targets: Sequence[str]) -> None:
    """Refuse ops that change their arguments, draw numbers, or read values of data.

    Args:
        traced: the graph.
        targets: what each placeholder is, in order.
    """
    nodes = list(traced.graph.nodes)
    named = dict(zip((n for n in nodes if n.op == "placeholder"), targets, strict=True))
    found = [f"{_op_name(n)} in {_place(n)} ({why})" for n, why in _unsuitable(nodes, named)]
    if found:
        more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
        listed = "; ".join(found[:_MAX_LISTED])
        raise CaptureError(f"the graph holds ops that a compiled step cannot run: {listed}{more}")


def _unsuitable(
    nodes: Iterable[fx.Node], named: Mapping[fx.Node, str]
) -> Iterable[tuple[fx.Node, str]]:
    for node in nodes:
        if node.op not in ("placeholder", "get_attr", "call_function", "output"):
            yield node, f"a call of kind {node.op}"
        if node.op != "call_function" or _op_name(node).startswith(_EFFECT_ONLY):
            continue
        tags: Sequence[torch.Tag] = getattr(node.target, "tags", ())
        if is_in_place(node):
            changed = named.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
            why = f"changes '{changed}', which a step only reads" if changed else ""
            yield node, why or "changes its argument"
        elif torch.Tag.nondeterministic_seeded in tags:
            yield node, "random, not keyed"
        elif torch.Tag.data_dependent_output in tags or _is_dynamic(node.meta.get("val")):
            yield node, "depends on data"


def _is_dynamic(value: object) -> bool:
    """Tell whether a result, or a size of it, is known only when the graph runs."""
    if isinstance(value, Tensor):
        return not all(type(size) is int for size in value.shape)
    if isinstance(value, (list, tuple)):
        return any(_is_dynamic(item) for item in value)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _live(nodes: list[Node], outputs: list[str]) -> tuple[Node, ...]:
    """Give the nodes that an output needs, in order."""
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(refs((node.args, tuple(node.kwargs.values()))))
    return tuple(reversed(kept))


def _op_name(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target)


def _place(node: fx.Node) -> str:
    module = module_of(node.meta)
    return f"module '{module}'" if module else "the model"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_type(value: Tensor) -> TensorType:
    return TensorType(tuple(value.shape), _dtype_name(value.dtype))


def _out_type(value: object) -> TensorType | tuple[TensorType | None, ...] | None:
    if isinstance(value, Tensor):
        return _tensor_type(value)
    if isinstance(value, (list, tuple)):
        return tuple(_tensor_type(v) if isinstance(v, Tensor) else None for v in value)
    return None
