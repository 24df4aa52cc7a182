"""Activation checkpointing: keep what enters a layer, and compute the rest of it a second time.

A joint graph holds the forward and then the backward, so everything that a layer's backward reads
lives from the forward on. This pass gives each layer's backward a copy of that layer's forward of
its own, which starts from the values that entered the layer. What is kept is then one hidden state
a layer, and the inside of one layer at a time.

Layers are found in the graph: a module path with a number in it ("model.layers.3.mlp") belongs to
the block that ends with its first number ("model.layers.3"). No model is known by name.

The copies are the same ops on the same values (a dropout's draw depends on its key and number
alone), so results are those of the plain graph. What enters the copies passes `luma.barrier`, tied
to the newest gradient, for two reasons: a compiler that sees the same op on the same values twice
computes it once, and keeps it; and copies that could start early would fill the memory again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runtime.compiler.graph import Graph, Node, Ref, TensorType, Value, refs
from runtime.spec import CompileError

BARRIER = "luma.barrier.default"
"""Op: (values, after) -> values, each as it is, none of them there before `after` is."""

_AGAIN = "_again"


def rematerialise(graph: Graph) -> Graph:
    """Give a joint graph whose backward computes each layer's forward again.

    Args:
        graph: with the outputs "loss_sum" and "tokens"; what they need stands before the backward.

    Returns:
        A graph with the same inputs and outputs, and equal results.

    Raises:
        CompileError: the graph has no loss, or no module of it is numbered.
    """
    split = _end_of_forward(graph)
    blocks = _blocks(graph.nodes[:split])
    if not blocks:
        raise CompileError(
            "train.checkpointing: 'layer' needs layers, and no module path of this model holds a "
            "number",
            remedy="set train.checkpointing to none, or put the model's layers into a ModuleList",
        )
    uses = [tuple(_uses(node)) for node in graph.nodes]
    joint = _Joint(
        graph=graph,
        uses=uses,
        split=split,
        heights=_heights(graph.nodes, uses),
        types={node.name: node.out for node in graph.nodes if isinstance(node.out, TensorType)},
    )
    copies = [copy for members in blocks if (copy := _copy(joint, members)) is not None]
    return _with_copies(joint, copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joint:
    """A joint graph and what is asked of it again and again.

    Attributes:
        graph: the graph.
        uses: the names that each node uses.
        split: position of the first node of the backward.
        heights: length of the longest chain of nodes up to each node, by name.
        types: of the nodes that give one tensor, by name.
    """

    graph: Graph
    uses: Sequence[tuple[str, ...]]
    split: int
    heights: Mapping[str, int]
    types: Mapping[str, TensorType]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """The second run of one block.

    Attributes:
        position: where it goes: before the first node of the backward that reads it.
        nodes: the barrier and the copied nodes, in order.
        names: what the backward reads, by the name in the forward.
    """

    position: int
    nodes: tuple[Node, ...]
    names: Mapping[str, str]


def _end_of_forward(graph: Graph) -> int:
    """Give the position after the last node that the loss or the count of tokens needs."""
    wanted = {ref.name for label, ref in graph.outputs if label in {"loss_sum", "tokens"}}
    for position in range(len(graph.nodes) - 1, -1, -1):
        if graph.nodes[position].name in wanted:
            return position + 1
    raise CompileError("graph 'grad': it has no output 'loss_sum' that a node computes")


def _blocks(nodes: Iterable[Node]) -> list[list[str]]:
    """Give the names of each block's nodes, in order of execution.

    A block that runs again after another one (shared layers) is a new block each time.
    """
    found: list[list[str]] = []
    current = None
    for node in nodes:
        block = _block_of(node.module)
        if block is None:
            continue
        if block != current:
            found.append([])
            current = block
        found[-1].append(node.name)
    return found


def _block_of(module: str) -> str | None:
    """Give a path up to its first number, or None where it has none."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: position + 1])
    return None


def _heights(nodes: Sequence[Node], uses: Sequence[tuple[str, ...]]) -> dict[str, int]:
    heights: dict[str, int] = {}
    for node, names in zip(nodes, uses, strict=True):
        heights[node.name] = 1 + max((heights.get(name, 0) for name in names), default=0)
    return heights


def _copy(joint: _Joint, block: list[str]) -> _Copy | None:
    """Give a block's second run, or None where the backward reads nothing of its inside."""
    members = set(block)
    nodes, uses, split = joint.graph.nodes, joint.uses, joint.split
    kept = {ref.name for _, ref in joint.graph.outputs}
    for node, names in zip(nodes[:split], uses[:split], strict=True):
        if node.name not in members:
            kept.update(names)
    readers = [
        (position, inside)
        for position in range(split, len(nodes))
        if (inside := members.intersection(uses[position]) - kept)
    ]
    if not readers:
        return None
    wanted = set().union(*(inside for _, inside in readers))
    again = _needed(joint, members - kept, wanted)
    position = readers[0][0]
    copied = _copied_nodes(joint, again, _newest_gradient(joint, position))
    names = {name: name + _AGAIN for name in wanted}
    return _Copy(position=position, nodes=copied, names=names)


def _needed(joint: _Joint, inside: set[str], wanted: set[str]) -> list[int]:
    """Give the positions of the nodes of a block that the wanted values need, in order."""
    needed, found = set(wanted), []
    for position in range(joint.split - 1, -1, -1):
        if joint.graph.nodes[position].name in needed:
            found.append(position)
            needed.update(inside.intersection(joint.uses[position]))
    return found[::-1]


def _newest_gradient(joint: _Joint, position: int) -> str:
    """Give the value of the backward that is alive before a position and took longest to come to.

    That is the gradient which enters the block there: the others that are alive (a weight's that
    is used twice) come from the end of shorter chains.
    """
    made = {node.name for node in joint.graph.nodes[joint.split : position]}
    alive = {name for names in joint.uses[position:] for name in names if name in made}
    tensors = [name for name in alive if name in joint.types and _is_floating(joint.types[name])]
    if not tensors:
        return next(ref.name for label, ref in joint.graph.outputs if label == "loss_sum")
    return max(tensors, key=lambda name: (joint.heights[name], name))


def _is_floating(kind: TensorType) -> bool:
    return "float" in kind.dtype and 0 not in kind.shape


def _copied_nodes(joint: _Joint, again: list[int], after: str) -> tuple[Node, ...]:
    """Give the barrier over what enters, and the copies behind it."""
    nodes = [joint.graph.nodes[position] for position in again]
    inside = {node.name for node in nodes}
    entering = {
        name: joint.types[name]
        for position in again
        for name in joint.uses[position]
        # The graph's own inputs are there anyway, and an op with several results is no tensor.
        if name not in inside and name in joint.types
    }
    barrier = f"{nodes[0].name}_barrier"
    renamed = {name: f"{name}{_AGAIN}" for name in inside}
    passed: list[Node] = []
    for index, (name, out) in enumerate(entering.items()):
        renamed[name] = f"{barrier}_{index}"
        passed.append(
            Node(renamed[name], "getitem", (Ref(barrier), index), {}, out, nodes[0].module)
        )
    head = Node(
        barrier,
        BARRIER,
        (tuple(Ref(name) for name in entering), Ref(after)),
        {},
        tuple(entering.values()),
        nodes[0].module,
    )
    return (*([head] if entering else []), *passed, *(_renamed(node, renamed) for node in nodes))


def _with_copies(joint: _Joint, copies: Sequence[_Copy]) -> Graph:
    """Put the copies in place, let the backward read them, and drop what nobody reads any more."""
    graph, split = joint.graph, joint.split
    names = {name: new for copy in copies for name, new in copy.names.items()}
    before: dict[int, list[Node]] = {}
    for copy in copies:
        before.setdefault(copy.position, []).extend(copy.nodes)
    nodes = list(graph.nodes[:split])
    for position in range(split, len(graph.nodes)):
        nodes.extend(before.get(position, ()))
        nodes.append(_reading(graph.nodes[position], names))
    result = Graph(graph.inputs, _live(nodes, graph.outputs), graph.outputs)
    result.check()
    return result


def _reading(node: Node, names: Mapping[str, str]) -> Node:
    """Give a node that uses other values."""
    kwargs = {key: _substituted(value, names) for key, value in node.kwargs.items()}
    args = tuple(_substituted(value, names) for value in node.args)
    return replace(node, args=args, kwargs=kwargs)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Give a node under its new name that uses the new names."""
    return replace(_reading(node, names), name=names[node.name])


def _substituted(value: Value, names: Mapping[str, str]) -> Value:
    if isinstance(value, Ref):
        return Ref(names.get(value.name, value.name))
    if isinstance(value, tuple):
        return tuple(_substituted(item, names) for item in value)
    return value


def _live(nodes: Sequence[Node], outputs: Iterable[tuple[str, Ref]]) -> tuple[Node, ...]:
    """Give the nodes that an output needs, in order."""
    needed = {ref.name for _, ref in outputs}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(_uses(node))
    return tuple(reversed(kept))


def _uses(node: Node) -> Iterable[str]:
    return refs((node.args, tuple(node.kwargs.values())))
