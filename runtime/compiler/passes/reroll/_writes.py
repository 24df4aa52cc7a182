"""Takes carries out of a loop that it only writes to, one place an iteration.

The gradient of `x[:, t]` is a tensor like x, zero but at t; a traced backward adds one for every t.
In a loop each addition would touch all of x. Where every iteration writes (or adds) at its own
place of a dimension, the loop gives the written values instead, stacked, and they are put in place
at once: the same values (x + 0 is x; a sum of zeros may lose its sign).
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.compiler.graph import Affine, Node, Ref, TensorType, Value
from runtime.compiler.passes.reroll._loop import Carry, Loop
from runtime.compiler.passes.reroll._scope import Scope, node_refs


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that iterations write to.

    Attributes:
        source: the body's name of what an iteration writes.
        first: the outside name of the tensor before.
        result: the outside name of it after.
        type: the tensor's type.
        dim: the dimension that the places are of.
        places: iteration i's place.
        adds: whether it is added to what is there.
    """

    source: str
    first: str
    result: str
    type: TensorType
    dim: int
    places: Affine
    adds: bool


def take_out_writes(loop: Loop, scope: Scope) -> list[Written]:
    """Remove such carries from the loop; their sources join `loop.kept`."""
    found: list[Written] = []
    for carry in tuple(loop.carries):
        write = _write_of(loop, scope, carry)
        if write is not None:
            loop.carries.remove(carry)
            loop.kept.setdefault(write.source, [])
            found.append(write)
    return found


def put_in_place(write: Written, stacked: str, count: int) -> list[Node]:
    """Give the nodes that make the result of the stacked sources [count, ...]."""
    kind, dim, step = write.type, write.dim, write.places.step
    shape = (*kind.shape[:dim], *kind.shape[dim + 1 :])
    chain = _Chain(write.result, stacked, kind.dtype)
    if step < 0:
        chain.add("aten.flip.default", ((0,),), (count, *shape))
    order = (*range(1, dim + 1), 0, *range(dim + 1, len(kind.shape)))
    block = (*shape[:dim], count, *shape[dim:])
    chain.add("aten.permute.default", (order,), block)
    low = min(write.places.start, write.places.start + step * (count - 1))
    bounds = (dim, low, low + abs(step) * (count - 1) + 1, abs(step))
    is_whole = block == kind.shape
    if write.adds:
        old = Ref(write.first)
        if not is_whole:
            old = chain.aside("aten.slice.Tensor", (old, *bounds), block)
        chain.nodes.append(chain.node("aten.add.Tensor", (old, chain.last), block))
    if not is_whole:
        args = (Ref(write.first), chain.last, *bounds)
        chain.nodes.append(chain.node("aten.slice_scatter.default", args, kind.shape))
    return chain.finished()


class _Chain:
    """Nodes of which each uses the one before; the last gets the result's name."""

    def __init__(self, result: str, source: str, dtype: str) -> None:
        self.nodes: list[Node] = []
        self._result = result
        self._source = source
        self._dtype = dtype

    @property
    def last(self) -> Ref:
        return Ref(self.nodes[-1].name if self.nodes else self._source)

    def node(self, op: str, args: tuple[Value, ...], shape: tuple[int, ...]) -> Node:
        name = f"{self._result}.{len(self.nodes)}"
        return Node(name, op, args, {}, TensorType(shape, self._dtype))

    def add(self, op: str, rest: tuple[Value, ...], shape: tuple[int, ...]) -> None:
        self.nodes.append(self.node(op, (self.last, *rest), shape))

    def aside(self, op: str, args: tuple[Value, ...], shape: tuple[int, ...]) -> Ref:
        """Add a node before the last, which stays the last."""
        node = self.node(op, args, shape)
        self.nodes.insert(len(self.nodes) - 1, node)
        return Ref(node.name)

    def finished(self) -> list[Node]:
        end = self.nodes[-1]
        named = Node(self._result, end.op, end.args, end.kwargs, end.out)
        return [*self.nodes[:-1], named]


def _write_of(loop: Loop, scope: Scope, carry: Carry) -> Written | None:
    """Give what a carry is written with, if it is only written to."""
    result = loop.final.get(carry.name)
    last = _only_user(loop, carry.name)
    if result is None or last is None or last.name != carry.following:
        return None
    if _uses(loop, last.name) != 1 or not isinstance(last.out, TensorType) or last.kwargs:
        return None
    adds = last.op == "aten.add.Tensor"
    write = _added(loop, scope, last, carry.name) if adds else last
    if write is None or write.op != "aten.select_scatter.default" or write.kwargs:
        return None
    target, source, dim, places = write.args
    if not adds and target != Ref(carry.name):
        return None
    if not isinstance(source, Ref) or not isinstance(places, Affine) or type(dim) is not int:
        return None
    if source.name == carry.name or _type_in(loop, scope, source.name) != _part(last.out, dim):
        return None
    return Written(source.name, carry.first, result, last.out, dim, places, adds)


def _added(loop: Loop, scope: Scope, last: Node, carry: str) -> Node | None:
    """Give the write to a tensor of zeros that is added to the carry, and is nothing else."""
    others = [arg for arg in last.args if arg != Ref(carry)]
    if len(last.args) != 2 or len(others) != 1 or not isinstance(others[0], Ref):
        return None
    write = next((node for node in loop.nodes if node.name == others[0].name), None)
    if write is None or write.out != last.out or _uses(loop, write.name) != 1:
        return None
    outside = {local: name for name, local in loop.invariants.items()}
    target = write.args[0]
    name = outside.get(target.name) if isinstance(target, Ref) else None
    zeros = None if name is None else scope.node(name)
    is_zero = (
        zeros is not None
        and zeros.op in ("aten.full.default", "aten.full_like.default")
        and zeros.args[1] == 0
    )
    return write if is_zero else None


def _only_user(loop: Loop, name: str) -> Node | None:
    """Give the only use of a body's value, if that is by one node."""
    users = [node for node in loop.nodes if name in node_refs(node)]
    return users[0] if len(users) == 1 and _uses(loop, name) == 1 else None


def _uses(loop: Loop, name: str) -> int:
    """Count the uses of a body's value: by nodes, by carries, and outside."""
    by_nodes = sum(used == name for node in loop.nodes for used in node_refs(node))
    by_carries = sum(carry.following == name for carry in loop.carries)
    return by_nodes + by_carries + (name in loop.kept)


def _type_in(loop: Loop, scope: Scope, local: str) -> object:
    """Give the type of a body's value."""
    return body_types(loop, scope)[local]


def body_types(loop: Loop, scope: Scope) -> dict[str, object]:
    """Give the types of a body's values, by their names there."""
    extra = {node.name: node.out for node in loop.before}
    types: dict[str, object] = {
        local: extra.get(name, scope.types.get(name)) for name, local in loop.invariants.items()
    }
    types.update((c.name, extra.get(c.first, scope.types.get(c.first))) for c in loop.carries)
    types.update((node.name, node.out) for node in loop.nodes)
    return types


def _part(kind: TensorType, dim: int) -> TensorType:
    return TensorType((*kind.shape[:dim], *kind.shape[dim + 1 :]), kind.dtype)
