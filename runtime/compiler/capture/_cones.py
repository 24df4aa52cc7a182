"""Whether one graph computes only what another one computes, too.

The forward graph of most models is a part of the training step's, op for op on the same inputs. What
holds for the step's values then holds for the forward's, and running both graphs and the model once
more would show nothing new.
"""

from __future__ import annotations

from collections.abc import Hashable

from runtime.compiler.graph import Graph, Ref, Value

__all__ = ["computes_all_of"]


def computes_all_of(whole: Graph, part: Graph) -> bool:
    """Say whether every output of `part` is a value of `whole`.

    Values are the same where they are the same input (role, target, type), or come of the same op
    with equal arguments and types. Random draws take their key as an input, so this holds for them.
    """
    numbers: dict[Hashable, int] = {}
    known = set(_number(whole, numbers).values())
    found = _number(part, numbers)
    return all(found[ref.name] in known for _, ref in part.outputs)


def _number(graph: Graph, numbers: dict[Hashable, int]) -> dict[str, int]:
    """Number a graph's values; equal values of all graphs with the same `numbers` share one."""
    values: dict[str, int] = {}
    for item in graph.inputs:
        key: Hashable = ("input", item.role, item.target, item.type)
        values[item.name] = numbers.setdefault(key, len(numbers))
    for node in graph.nodes:
        kwargs = tuple((name, _key(value, values)) for name, value in sorted(node.kwargs.items()))
        key = (node.op, _key(node.args, values), kwargs, node.out)
        values[node.name] = numbers.setdefault(key, len(numbers))
    return values


def _key(value: Value, values: dict[str, int]) -> Hashable:
    """Give a value in a form that compares as it is meant: 1, 1.0, True and -0.0 differ."""
    if isinstance(value, Ref):
        return "value", values[value.name]
    if isinstance(value, tuple):
        return tuple(_key(item, values) for item in value)
    return type(value).__name__, repr(value)
