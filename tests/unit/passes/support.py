"""A graph of one op, as captured, and how its decomposition is held against torch eager."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from runtime.compiler.capture.interpret import run_graph
from runtime.compiler.graph import DType, Graph, Input, Node, Ref
from runtime.compiler.lower import lower_graph
from runtime.compiler.passes.decompose import replacements
from tests.unit.lower.support import assert_same, run_array, torch_op, type_of

FAMILY, TARGET = "neuron", "neuron-trn2"


def graph_of(op: str, args: Any, kwargs: dict[str, Any], result: Any) -> tuple[Graph, list[Any]]:
    """Give the graph of one node with the types that torch gave, and its inputs' tensors."""
    inputs: list[Input] = []
    values: list[torch.Tensor] = []

    def as_value(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            values.append(item)
            name = f"in{len(inputs)}"
            inputs.append(Input(name, "buffer", name, type_of(item)))
            return Ref(name)
        if isinstance(item, torch.dtype):
            return DType(str(item).removeprefix("torch."))
        return tuple(map(as_value, item)) if isinstance(item, (tuple, list)) else item

    many = isinstance(result, (tuple, list))
    out = tuple(None if r is None else type_of(r) for r in result) if many else type_of(result)
    node = Node("y", op, as_value(args), {k: as_value(v) for k, v in kwargs.items()}, out, "m")
    nodes, outputs = [node], [("y", Ref("y"))]
    if isinstance(out, tuple):
        present = [(i, one) for i, one in enumerate(out) if one is not None]
        nodes += [Node(f"y{i}", "getitem", (Ref("y"), i), {}, one, "m") for i, one in present]
        outputs = [(f"y{i}", Ref(f"y{i}")) for i, _ in present]
    return Graph(tuple(inputs), tuple(nodes), tuple(outputs)), values


def decomposed_matches(
    op: str,
    args: Any,
    kwargs: dict[str, Any],
    *,
    by: str,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> bool:
    """Compare the op in torch with its decomposition, run by "torch" or by "jax".

    Returns:
        whether the decomposition covers this form of the op; the comparison holds either way.
    """
    expected = torch_op(op)(*args, **kwargs)
    graph, values = graph_of(op, args, kwargs, expected)
    done = replacements(graph, FAMILY)
    done.graph.check()
    many = isinstance(expected, (tuple, list))
    wanted = [item for item in (expected if many else (expected,)) if item is not None]
    if by == "torch":
        names = {item.name: value for item, value in zip(graph.inputs, values, strict=True)}
        found = [run_array(value) for value in run_graph(done.graph, names).values()]
    else:
        run = jax.jit(lower_graph(done.graph, TARGET))
        found = [np.asarray(value) for value in run([run_array(value) for value in values])]
    for one, want in zip(found, wanted, strict=True):
        assert_same(one, want, rtol=rtol, atol=atol)
    return bool(done.replaced)
