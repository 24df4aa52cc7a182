"""The gate of a capture in bfloat16.

Two questions have sharp answers, where a comparison of bfloat16 with bfloat16 has none:

- Does the graph compute the model? Graph and model run in float32, on the values that bfloat16
  holds, and must agree as closely as a float32 capture does. A wrong formula has no rounding to
  hide in.
- Does it round as the model does? Graph and model run in bfloat16, and their distances from that
  float32 result are compared. A graph rounds at other places than the model's own kernels, so its
  errors are other ones, but of the same size. A sum that is kept in bfloat16 where the model has
  float32 grows with its length, and goes far beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from runtime.compiler.capture._attention import AttentionCalls
from runtime.compiler.capture._check import CHECK_KEY, Checked, Disagreement, GradientCheck
from runtime.compiler.capture._dropout import keyed_dropout
from runtime.compiler.capture._narrow import in_float32
from runtime.compiler.graph import DType, Graph, Node, TensorType, Value

# Of the model's own distance from float32. On seven families the graph's distance over all gradients
# was 0.99 to 1.02 of it, and 1.1 for a single parameter: most ops are the very kernels. One parameter
# may have few roundings, or a lucky model.
WHOLE, ONE = 1.2, 2.0
# Of a value itself: bfloat16 holds 8 bits, so that rounding it once moves it by at most 2^-9.
ROUNDING = 2.0**-8

Opened = Callable[[], AbstractContextManager[AttentionCalls | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What one way to compute a step gave.

    Attributes:
        loss: the loss sum.
        gradients: by parameter.
        output: of the forward, in evaluation mode.
    """

    loss: float
    gradients: Mapping[str, Tensor]
    output: Tensor


def check_in_its_dtype(checked: Checked, *, has_dropout: bool, opened: Opened) -> GradientCheck:
    """Check the graphs of a model in float32 or bfloat16; the arguments are those of `Task.check`.

    Raises:
        Disagreement: the graphs compute something else than the model, or round more.
    """
    if not _holds_bfloat16(checked):
        return checked.task.check(checked, has_dropout=has_dropout, opened=opened)
    wide = _wide(checked)
    with in_float32(checked.tensors):
        found = checked.task.check(wide, has_dropout=has_dropout, opened=opened)
    with opened():
        model = _run_model(checked)
    compare(_run_graphs(checked), model, _run_graphs(wide))
    return found


def _holds_bfloat16(checked: Checked) -> bool:
    inputs = (item for graph in checked.graphs.values() for item in graph.inputs)
    return any(item.type.dtype == "bfloat16" for item in inputs)


def _inputs(checked: Checked) -> dict[str, Tensor]:
    targets = checked.task.targets
    return {name: value for name, value in checked.batch.items() if name not in targets}


def _run_model(checked: Checked) -> Results:
    """Run the model, in the form of attention that is open."""
    task, model = checked.task, checked.model
    for item in checked.tensors:
        item.tensor.grad = None
    model.train()
    with keyed_dropout(torch.tensor(CHECK_KEY, dtype=torch.int32)):
        loss, _ = task.step(model, checked.batch)
    loss.backward()
    trained = {item.target: item.tensor for item in checked.tensors if item.role == "param"}
    gradients = {
        name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        for name, tensor in trained.items()
    }
    model.eval()
    with torch.no_grad():
        output = task.output(model, _inputs(checked))
    return Results(loss=float(loss.detach()), gradients=gradients, output=output)


def _run_graphs(checked: Checked) -> Results:
    """Run the captured graphs."""
    key = torch.tensor(CHECK_KEY, dtype=torch.int32)
    outputs = checked.run("grad", checked.batch, key)
    gradients = {
        label.removeprefix("grad:"): value
        for label, value in outputs.items()
        if label.startswith("grad:")
    }
    output = checked.run("forward", _inputs(checked), key)[checked.task.result]
    return Results(loss=float(outputs["loss_sum"]), gradients=gradients, output=output)


def compare(graph: Results, model: Results, exact: Results) -> None:
    """Compare distances from float32.

    Raises:
        Disagreement: the graph is farther away than the model, beyond what chance gives.
    """
    losses = abs(graph.loss - exact.loss), abs(model.loss - exact.loss)
    _judge("the loss", *losses, size=abs(exact.loss), factor=ONE)
    outputs = _distance(graph.output, exact.output), _distance(model.output, exact.output)
    _judge("the output", *outputs, size=_size(exact.output), factor=ONE)
    sizes = {name: _size(value) for name, value in exact.gradients.items()}
    ours = _distances(graph.gradients, exact.gradients)
    theirs = _distances(model.gradients, exact.gradients)
    total = _together(sizes)
    _judge("all gradients", _together(ours), _together(theirs), size=total, factor=WHOLE)
    # Where the model had luck with a parameter, the graph may still be as far as on the average.
    average = _together(theirs) / total if total else 0.0
    for name, size in sizes.items():
        own = max(theirs[name], average * size)
        _judge(f"the gradient of '{name}'", ours[name], own, size=size, factor=ONE)


def _judge(what: str, ours: float, theirs: float, *, size: float, factor: float) -> None:
    """Allow the graph a multiple of the model's distance, or of one rounding of the value."""
    if not ours <= factor * max(theirs, ROUNDING * size):
        raise Disagreement(
            f"in bfloat16 {what} of the captured graph is {ours:.1e} away from its value in "
            f"float32, which is {size:.1e}; the model is {theirs:.1e} away"
        )


def _distances(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: _distance(found[name], value) for name, value in exact.items()}


def _distance(found: Tensor, exact: Tensor) -> float:
    return _size(found.float() - exact)


def _size(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value, dtype=torch.float64))


def _together(sizes: Mapping[str, float]) -> float:
    return sum(size * size for size in sizes.values()) ** 0.5


def _wide(checked: Checked) -> Checked:
    """Give the same check with float32 in place of every bfloat16 of graphs and values."""
    graphs = {name: _wide_graph(graph) for name, graph in checked.graphs.items()}
    values = {
        name: value.float() if value.dtype == torch.bfloat16 else value
        for name, value in checked.values.items()
    }
    return replace(checked, graphs=graphs, values=values)


def _wide_graph(graph: Graph) -> Graph:
    inputs = tuple(replace(item, type=_wide_type(item.type)) for item in graph.inputs)
    return replace(graph, inputs=inputs, nodes=tuple(_wide_node(node) for node in graph.nodes))


def _wide_node(node: Node) -> Node:
    out = node.out
    if isinstance(out, TensorType):
        out = _wide_type(out)
    elif out is not None:
        out = tuple(None if item is None else _wide_type(item) for item in out)
    args = tuple(_wide_value(item) for item in node.args)
    kwargs = {name: _wide_value(item) for name, item in node.kwargs.items()}
    return replace(node, args=args, kwargs=kwargs, out=out)


def _wide_type(kind: TensorType) -> TensorType:
    return replace(kind, dtype="float32") if kind.dtype == "bfloat16" else kind


def _wide_value(value: Value) -> Value:
    if isinstance(value, DType) and value.name == "bfloat16":
        return DType("float32")
    if isinstance(value, tuple):
        return tuple(_wide_value(item) for item in value)
    return value
