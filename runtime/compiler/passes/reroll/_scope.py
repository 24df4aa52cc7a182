"""A graph with what the search for loops asks of it: positions, types and users by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runtime.compiler.graph import Graph, Node, TensorType, refs

Out = TensorType | tuple[TensorType | None, ...] | None


class UnfitError(Exception):
    """A run of equal tokens is no loop that can be expressed; it stays as it is."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One graph, indexed.

    Attributes:
        nodes: its nodes.
        position: where a node is, by name; inputs have none.
        types: of inputs and nodes, by name.
        users: positions of the nodes that use a value, by name.
        outputs: names of the graph's outputs.
        stacking: whether values that lie apart may be copied into one array.
    """

    nodes: tuple[Node, ...]
    position: dict[str, int]
    types: dict[str, Out]
    users: dict[str, list[int]]
    outputs: frozenset[str]
    stacking: bool

    def node(self, name: str) -> Node | None:
        """Give the node of that name, or None for an input."""
        place = self.position.get(name)
        return None if place is None else self.nodes[place]

    def tensor(self, name: str) -> TensorType:
        """Give a value's type.

        Raises:
            UnfitError: it is no single tensor.
        """
        found = self.types[name]
        if not isinstance(found, TensorType):
            raise UnfitError(f"'{name}' is no single tensor")
        return found

    def used_outside(self, name: str, start: int, stop: int) -> bool:
        """Say whether something outside these positions uses the value."""
        return name in self.outputs or any(
            not start <= user < stop for user in self.users.get(name, ())
        )


def scope_of(graph: Graph, *, stacking: bool) -> Scope:
    """Index a graph."""
    users: dict[str, list[int]] = {}
    for place, node in enumerate(graph.nodes):
        for name in node_refs(node):
            users.setdefault(name, []).append(place)
    types: dict[str, Out] = {item.name: item.type for item in graph.inputs}
    types.update((node.name, node.out) for node in graph.nodes)
    return Scope(
        nodes=graph.nodes,
        position={node.name: place for place, node in enumerate(graph.nodes)},
        types=types,
        users=users,
        outputs=frozenset(ref.name for _, ref in graph.outputs),
        stacking=stacking,
    )


def node_refs(node: Node) -> Iterable[str]:
    """Give the names of the values that a node uses."""
    return refs((node.args, tuple(node.kwargs.values())))
