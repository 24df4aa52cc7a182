"""A node's arguments as a flat list of leaves, and its token: what two nodes must share.

Nodes with the same token differ at most in the values that they use and in the integers that say
where they read or write (`INDEX_ARGUMENTS`), so their leaves correspond one to one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from runtime.compiler.graph import INDEX_ARGUMENTS, Affine, Body, Node, Ref, Scan, Value

Arguments = tuple[tuple[Value, ...], Mapping[str, Value]]

# Ops that only say where elements lie: repeating one costs nothing, keeping its result does.
VIEWS = frozenset(
    {
        "aten.select.int",
        "aten.slice.Tensor",
        "aten.squeeze.default",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.unsqueeze.default",
        "aten.view.default",
        "aten.permute.default",
        "aten.transpose.int",
        "aten.t.default",
        "aten.expand.default",
    }
)


def leaves(node: Node) -> list[Value]:
    """Give everything in a node's arguments that is not a tuple, in order."""
    return list(_flat((node.args, *(node.kwargs[key] for key in sorted(node.kwargs)))))


def with_leaves(node: Node, values: list[Value]) -> Arguments:
    """Give the node's arguments with other leaves, in the order of `leaves`."""
    rest = iter(values)
    args = tuple(_filled(item, rest) for item in node.args)
    kwargs = {key: _filled(node.kwargs[key], rest) for key in sorted(node.kwargs)}
    return args, {key: kwargs[key] for key in node.kwargs}


def is_index(node: Node, leaf: int) -> bool:
    """Say whether this leaf may be an `Affine`; the ops that have such hold no tuples."""
    return leaf in INDEX_ARGUMENTS.get(node.op, ())


def token(node: Node) -> Hashable:
    """Give what nodes that do the same have in common."""
    kinds = tuple(
        "index" if is_index(node, i) and type(leaf) is int else _kind(leaf)
        for i, leaf in enumerate(leaves(node))
    )
    inner = (node.length, _frozen(node.body)) if isinstance(node, Scan) else None
    shape = tuple(_shape(item) for item in node.args)
    return node.op, shape, tuple(sorted(node.kwargs)), kinds, node.out, inner


def _flat(value: Value) -> Iterator[Value]:
    if isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _filled(pattern: Value, rest: Iterator[Value]) -> Value:
    if isinstance(pattern, tuple):
        return tuple(_filled(item, rest) for item in pattern)
    return next(rest)


def _kind(leaf: Value) -> Hashable:
    # The type too: True, 1 and 1.0 are equal, and not the same argument.
    return "ref" if isinstance(leaf, Ref) else (type(leaf).__name__, repr(leaf))


def _shape(value: Value) -> Hashable:
    return tuple(_shape(item) for item in value) if isinstance(value, tuple) else None


def _frozen(body: Body) -> Hashable:
    """Give a body without the modules' names: two layers' loops are the same loop."""
    nodes = tuple(
        (token(node), tuple(leaf for leaf in leaves(node) if isinstance(leaf, (Ref, Affine))))
        for node in body.nodes
    )
    # `token` hides plain indices, which must be equal inside a body.
    exact = tuple(repr((node.args, sorted(node.kwargs.items()))) for node in body.nodes)
    return body.carries, body.invariants, nodes, exact, body.following, body.stacked
