"""Runs a `Graph` in torch, node by node: the independent check of what was captured.

It reads the graph as a compiler will get it, not the fx graph it came from, so that the check also
covers the conversion. A value is dropped after its last use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from runtime.compiler.capture import ops  # noqa: F401 (registers the luma:: ops)
from runtime.compiler.graph import DType, Graph, Node, Ref, Value, refs
from runtime.spec import CaptureError


def run_graph(graph: Graph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Run a graph.

    Args:
        graph: a captured graph.
        values: a tensor for every input, by `Input.name`, of its type.

    Returns:
        the outputs by label, in order.

    Raises:
        CaptureError: an input is missing, or a result differs from the type that the graph states.
    """
    known: dict[str, object] = {item.name: _given(values, item.name) for item in graph.inputs}
    last_use = _last_uses(graph)
    with torch.no_grad():
        for position, node in enumerate(graph.nodes):
            known[node.name] = result = _run(node, known)
            _check_type(node, result)
            for name in last_use.get(position, ()):
                del known[name]
    outputs = {label: known[ref.name] for label, ref in graph.outputs}
    return {label: value for label, value in outputs.items() if isinstance(value, Tensor)}


def _given(values: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in values:
        raise CaptureError(f"the graph's input '{name}' has no value")
    return values[name]


def _last_uses(graph: Graph) -> dict[int, list[str]]:
    """Give, by position of a node, the values that are not needed after it."""
    last = {node.name: position for position, node in enumerate(graph.nodes)}
    for position, node in enumerate(graph.nodes):
        for name in refs((node.args, tuple(node.kwargs.values()))):
            last[name] = position
    kept = {ref.name for _, ref in graph.outputs}
    result: dict[int, list[str]] = {}
    for name, position in last.items():
        if name not in kept:
            result.setdefault(position, []).append(name)
    return result


def _run(node: Node, known: Mapping[str, object]) -> object:
    args = [_resolve(item, known) for item in node.args]
    if node.op == "getitem":
        source, index = args
        if not isinstance(source, Sequence) or not isinstance(index, int):
            raise CaptureError(f"node '{node.name}': getitem of {type(source).__name__}")
        return source[index]
    if node.op == "aten.view.default":
        # Copies were dropped, so a value may lie otherwise than when it was traced.
        return torch.reshape(*args)
    kwargs = {key: _resolve(item, known) for key, item in node.kwargs.items()}
    namespace, name, overload = node.op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)(*args, **kwargs)


def _resolve(value: Value, known: Mapping[str, object]) -> Any:
    if isinstance(value, Ref):
        return known[value.name]
    if isinstance(value, DType):
        return getattr(torch, value.name)
    if isinstance(value, tuple):
        return [_resolve(item, known) for item in value]
    return value


def _check_type(node: Node, result: object) -> None:
    """Check shapes and dtypes against the node's, since compilers rely on them."""
    results = tuple(result) if isinstance(result, (list, tuple)) else (result,)
    stated = node.out if isinstance(node.out, tuple) else (node.out,)
    for one, kind in zip(results, stated, strict=True):
        if kind is None or not isinstance(one, Tensor):
            continue
        found = (tuple(one.shape), str(one.dtype).removeprefix("torch."))
        if found != (kind.shape, kind.dtype):
            raise CaptureError(
                f"node '{node.name}' ({node.op}) gave {found}; the graph says {kind}"
            )
