"""From a graph to a function that jax can trace: walk the nodes, call each op's lowering.

Before anything runs, every op and dtype of the graph is looked up, so that one error lists all that
a target lacks: nothing falls back to another device. While jax traces, each result is cast to the
dtype that torch recorded and its shape compared with torch's, so a lowering with a wrong shape, or
an array where a tuple was meant, stops with the op's name instead of compiling into nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

import runtime.compiler.lower.ops  # noqa: F401 (registers every lowering)
from runtime.compiler.graph import (
    Affine,
    DType,
    Graph,
    Input,
    Node,
    Ref,
    Scan,
    TensorType,
    Value,
)
from runtime.compiler.lower.dtypes import has_run_dtype, run_dtype, run_integer
from runtime.compiler.lower.dynamic import dynamic_lowering
from runtime.compiler.lower.registry import Lowering, find_lowering
from runtime.spec import LoweringError, LumaError

LoweredGraph: TypeAlias = Callable[[Sequence[Any]], list[jax.Array]]

# One device and one layout: what torch says about them has no meaning in a compiled program.
_PLACEMENT = frozenset({"device", "layout", "memory_format", "non_blocking", "pin_memory"})

# The name of the iteration's number in a scan's body, whose other names start with a letter.
_ITERATION = "#"


def lower_graph(graph: Graph, target: str) -> LoweredGraph:
    """Give a function that computes the graph, traceable by jax.

    Args:
        graph: what capture made.
        target: what it will be compiled for, such as "cpu" or "cuda-sm90".

    Returns:
        A function of one flat sequence, the arrays of `graph.inputs` in their order (int64 as
        int32), that returns a list, the arrays of `graph.outputs` in theirs.

    Raises:
        LoweringError: ops without a lowering for the target, or dtypes that have no form there;
            the message names every one with the model's module that uses it. The returned function
            raises it for an argument of another shape or dtype than the graph's.
    """
    lowerings = _find_lowerings(graph, target)

    def run(flat: Sequence[Any]) -> list[jax.Array]:
        env: dict[str, Any] = _bind(graph.inputs, flat)
        _run_nodes(graph.nodes, lowerings, env)
        return [env[ref.name] for _, ref in graph.outputs]

    return run


def _find_lowerings(graph: Graph, target: str) -> dict[str, Lowering]:
    """Look up every op, and raise one error for all ops and dtypes that the target lacks."""
    found: dict[str, Lowering] = {}
    problems: dict[str, None] = {}
    for item in graph.inputs:
        if not has_run_dtype(item.type.dtype):
            problems[f"input '{item.target}' is {item.type.dtype}, which cannot be lowered"] = None
    for node in _every_op(graph.nodes):
        where = f"in module '{node.module}'" if node.module else "outside any module"
        lowering = find_lowering(node.op, target)
        if lowering is None:
            problems[f"op '{node.op}' {where} has no lowering for target '{target}'"] = None
        else:
            found[node.op] = lowering
        for dtype in sorted({t.dtype for t in _types(node) if not has_run_dtype(t.dtype)}):
            problems[f"op '{node.op}' {where} gives {dtype}, which cannot be lowered"] = None
    if problems:
        message = "the graph cannot be lowered:\n  " + "\n  ".join(problems)
        remedy = "change the model there, or add the op: docs/how-to/add-an-op.md"
        raise LoweringError(message, remedy=remedy)
    return found


def _every_op(nodes: Iterable[Node]) -> Iterator[Node]:
    """Give the nodes that have a lowering: a scan's are those of its body."""
    for node in nodes:
        if isinstance(node, Scan):
            yield from _every_op(node.body.nodes)
        else:
            yield node


def _types(node: Node) -> list[TensorType]:
    """Give the types of a node's results, leaving out absent ones."""
    outs = node.out if isinstance(node.out, tuple) else (node.out,)
    return [out for out in outs if out is not None]


def _bind(inputs: tuple[Input, ...], flat: Sequence[Any]) -> dict[str, Any]:
    """Name the arguments, after checking their number, shapes and dtypes."""
    if len(flat) != len(inputs):
        message = f"the graph takes {len(inputs)} inputs and got {len(flat)}"
        raise LoweringError(message)
    for item, value in zip(inputs, flat, strict=True):
        expected = item.type.shape, run_dtype(item.type.dtype)
        if (tuple(value.shape), value.dtype) != expected:
            message = (
                f"input '{item.target}' is {value.dtype}{list(value.shape)}; "
                f"expected {expected[1]}{list(expected[0])}"
            )
            raise LoweringError(message)
    return {item.name: jnp.asarray(value) for item, value in zip(inputs, flat, strict=True)}


def _run_nodes(
    nodes: Iterable[Node], lowerings: Mapping[str, Lowering], env: dict[str, Any]
) -> None:
    """Add every node's result to the environment."""
    for node in nodes:
        if isinstance(node, Scan):
            env[node.name] = _run_scan(node, lowerings, env)
        else:
            env[node.name] = _run_node(node, dynamic_lowering(node) or lowerings[node.op], env)


def _run_scan(
    node: Scan, lowerings: Mapping[str, Lowering], env: Mapping[str, Any]
) -> tuple[jax.Array, ...]:
    """Trace the body once: the carries after the last iteration, then every stacked value."""
    body = node.body
    first, invariants = (_resolve(value, env) for value in node.args)
    shared = dict(zip(body.invariants, invariants, strict=True))

    def iteration(carries: tuple[jax.Array, ...], index: jax.Array) -> tuple[Any, Any]:
        inner = {**shared, **dict(zip(body.carries, carries, strict=True)), _ITERATION: index}
        _run_nodes(body.nodes, lowerings, inner)
        return tuple(inner[r.name] for r in body.following), [inner[r.name] for r in body.stacked]

    numbers = jnp.arange(node.length, dtype=jnp.int32)
    carries, stacked = lax.scan(iteration, first, numbers)
    return _as_recorded((*carries, *stacked), node.out)


def _run_node(node: Node, lowering: Lowering, env: Mapping[str, Any]) -> Any:
    """Call a node's lowering, and give its result with torch's dtypes after checking shapes."""
    try:
        args = [_resolve(value, env) for value in node.args]
        kwargs = {k: _resolve(v, env) for k, v in node.kwargs.items() if k not in _PLACEMENT}
        return _as_recorded(lowering(*args, **kwargs), node.out)
    except LumaError as error:
        raise LoweringError(f"{_where(node)}: {error.message}", remedy=error.remedy) from error
    except (TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise LoweringError(f"{_where(node)}: {error}") from error


def _where(node: Node) -> str:
    return f"op '{node.op}' (node '{node.name}', module '{node.module}')"


def _resolve(value: Value, env: Mapping[str, Any]) -> Any:
    """Turn a node's argument into what a lowering takes."""
    if isinstance(value, Ref):
        return env[value.name]
    if isinstance(value, DType):
        return run_dtype(value.name)
    if isinstance(value, Affine):
        return value.start + value.step * env[_ITERATION]
    if isinstance(value, tuple):
        return tuple(_resolve(item, env) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return run_integer(value)
    return value


def _as_recorded(result: Any, out: TensorType | tuple[TensorType | None, ...] | None) -> Any:
    """Check a result against what torch recorded, and cast it to the recorded dtype."""
    if out is None:
        return None
    if isinstance(out, TensorType):
        if isinstance(result, (tuple, list)) or result is None:
            message = f"the lowering gave {type(result).__name__}, torch one tensor"
            raise LoweringError(message)
        array = jnp.asarray(result)
        if array.shape != out.shape:
            message = f"the lowering gave shape {list(array.shape)}, torch {list(out.shape)}"
            raise LoweringError(message)
        return array.astype(run_dtype(out.dtype))
    if not isinstance(result, (tuple, list)) or len(result) != len(out):
        message = f"the lowering did not give a tuple of {len(out)}, as torch does"
        raise LoweringError(message)
    return tuple(_as_recorded(item, one) for item, one in zip(result, out, strict=True))
