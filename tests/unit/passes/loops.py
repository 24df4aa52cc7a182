"""Graphs as tracing writes them: loops unrolled, with their backward; and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from runtime.compiler.graph import Affine, Graph, Input, Node, Ref, Scan, TensorType, Value
from runtime.compiler.lower import lower_graph


class Tracer:
    """Collects inputs and nodes."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []

    def input(self, *shape: int) -> Ref:
        """Add an input of this shape."""
        name = f"in{len(self.inputs):03}"
        self.inputs.append(Input(name, "buffer", name, TensorType(shape, "float32")))
        return Ref(name)

    def op(self, op: str, args: Sequence[Value], *shape: int) -> Ref:
        """Add a node with a result of this shape."""
        name = f"t{len(self.nodes)}"
        kind = TensorType(shape, "float32")
        self.nodes.append(Node(name, f"aten.{op}", tuple(args), {}, kind, "m"))
        return Ref(name)

    def graph(self, *outputs: Ref) -> Graph:
        """Give the graph with these outputs."""
        labelled = tuple((f"out{i}", ref) for i, ref in enumerate(outputs))
        graph = Graph(tuple(self.inputs), tuple(self.nodes), labelled)
        graph.check()
        return graph


def scans(graph: Graph) -> list[Scan]:
    """Give the graph's scans."""
    return [node for node in graph.nodes if isinstance(node, Scan)]


def inputs(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Give random values for the graph's inputs."""
    generator = np.random.default_rng(seed)
    return [generator.normal(size=item.type.shape).astype(np.float32) for item in graph.inputs]


def run(graph: Graph) -> list[np.ndarray]:
    """Lower the graph for the CPU and run it on random inputs."""
    return [np.asarray(value) for value in lower_graph(graph, "cpu")(inputs(graph))]


def evaluate(graph: Graph) -> list[np.ndarray]:
    """Run the graph on the same inputs in numpy: what a scan means, without jax."""
    names = [item.name for item in graph.inputs]
    known: dict[str, Any] = dict(zip(names, inputs(graph), strict=True))
    _evaluate(graph.nodes, known, 0)
    return [known[ref.name] for _, ref in graph.outputs]


def assert_equal(graph: Graph, other: Graph) -> None:
    """Check that two graphs give the same in numpy, bit for bit but for the signs of zeros."""
    for one, two in zip(evaluate(graph), evaluate(other), strict=True):
        np.testing.assert_array_equal(two, one)


def _evaluate(nodes: Iterable[Node], known: dict[str, Any], iteration: int) -> None:
    for node in nodes:
        args = [_value(item, known, iteration) for item in node.args]
        known[node.name] = result = (
            _scan(node, *args) if isinstance(node, Scan) else _op(node, args)
        )
        if isinstance(node.out, TensorType):
            assert result.shape == node.out.shape, node


def _value(item: Value, known: dict[str, Any], iteration: int) -> Any:
    if isinstance(item, Ref):
        return known[item.name]
    if isinstance(item, Affine):
        return item.start + item.step * iteration
    return [_value(one, known, iteration) for one in item] if isinstance(item, tuple) else item


def _scan(node: Scan, first: Sequence[Any], invariants: Sequence[Any]) -> list[Any]:
    body, carries, stacked = node.body, list(first), []
    for iteration in range(node.length):
        known = dict(zip(body.invariants, invariants, strict=True))
        known.update(zip(body.carries, carries, strict=True))
        _evaluate(body.nodes, known, iteration)
        carries = [known[ref.name] for ref in body.following]
        stacked.append([known[ref.name] for ref in body.stacked])
    return [*carries, *(np.stack(column) for column in zip(*stacked, strict=True))]


def _op(node: Node, args: list[Any]) -> Any:
    return _OPS[node.op.removeprefix("aten.")](*args)


def _sliced(x: np.ndarray, dim: int, start: int, stop: int, step: int = 1) -> tuple[slice, ...]:
    return (slice(None),) * (dim % x.ndim) + (slice(start, stop, step),)


def _written(x: np.ndarray, source: np.ndarray, place: Any) -> np.ndarray:
    result = x.copy()
    result[place] = source
    return result


_OPS: dict[str, Callable[..., Any]] = {
    "getitem": lambda values, index: values[index],
    "add.Tensor": lambda a, b: a + b,
    "mul.Tensor": lambda a, b: a * b,
    "mul.Scalar": lambda a, b: a * np.float32(b),
    "tanh.default": np.tanh,
    "sin.default": np.sin,
    "exp.default": np.exp,
    "sigmoid.default": lambda x: 1 / (1 + np.exp(-x)),
    "mm.default": lambda a, b: a @ b,
    "sum.dim_IntList": lambda x, dims: x.sum(tuple(dims)),
    "full.default": lambda shape, value: np.full(shape, value, np.float32),
    "arange.start_step": np.arange,
    "eq.Scalar": lambda a, b: a == b,
    "where.self": np.where,
    "select.int": lambda x, dim, index: np.take(x, index, dim),
    "slice.Tensor": lambda x, *rest: x[_sliced(x, *rest)],
    "select_scatter.default": lambda x, source, dim, index: _written(
        x, np.expand_dims(source, dim), _sliced(x, dim, index, index + 1)
    ),
    "slice_scatter.default": lambda x, source, *rest: _written(x, source, _sliced(x, *rest)),
    "unsqueeze.default": np.expand_dims,
    "squeeze.dims": lambda x, dims: np.squeeze(x, tuple(dims)),
    "view.default": np.reshape,
    "expand.default": np.broadcast_to,
    "permute.default": np.transpose,
    "flip.default": np.flip,
    "cat.default": np.concatenate,
    "stack.default": np.stack,
    "split_with_sizes.default": lambda x, sizes, dim: np.split(x, np.cumsum(sizes)[:-1], dim),
}


def recurrence(steps: int) -> Graph:
    """h = tanh(x[:, t] * h), its states joined; and the gradients of both, as autograd writes them."""
    trace = Tracer()
    x, h = trace.input(2, steps, 4), trace.input(2, 4)
    states, saved = [], []
    for t in range(steps):
        place = trace.op("select.int", (x, 1, t), 2, 4)
        saved.append((place, h))
        h = trace.op("tanh.default", (trace.op("mul.Tensor", (place, h), 2, 4),), 2, 4)
        states.append(h)
    wide = [trace.op("unsqueeze.default", (state, 1), 2, 1, 4) for state in states]
    joined = trace.op("cat.default", (tuple(wide), 1), 2, steps, 4)
    given = trace.op("exp.default", (joined,), 2, steps, 4)
    cut = [trace.op("slice.Tensor", (given, 1, t, t + 1), 2, 1, 4) for t in range(steps)]
    parts = [trace.op("squeeze.dims", (part, (1,)), 2, 4) for part in cut]
    to_h, to_x = None, None
    for t in reversed(range(steps)):
        grad = parts[t] if to_h is None else trace.op("add.Tensor", (parts[t], to_h), 2, 4)
        grad = trace.op("mul.Tensor", (grad, states[t]), 2, 4)
        at_x = trace.op("mul.Tensor", (grad, saved[t][1]), 2, 4)
        to_h = trace.op("mul.Tensor", (grad, saved[t][0]), 2, 4)
        zeros = trace.op("full.default", ((2, steps, 4), 0), 2, steps, 4)
        whole = trace.op("select_scatter.default", (zeros, at_x, 1, t), 2, steps, 4)
        to_x = whole if to_x is None else trace.op("add.Tensor", (to_x, whole), 2, steps, 4)
    return trace.graph(joined, to_x, to_h)
