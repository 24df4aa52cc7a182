"""Writes a loop into a graph: what it needs, one `Scan`, and its results under their old names."""

from __future__ import annotations

from runtime.compiler.graph import Body, Node, Ref, Scan, TensorType
from runtime.compiler.passes.reroll._loop import Loop
from runtime.compiler.passes.reroll._scope import Scope, UnfitError, node_refs
from runtime.compiler.passes.reroll._writes import body_types, put_in_place, take_out_writes


def emit(loop: Loop, scope: Scope) -> list[Node]:
    """Give the nodes that replace the loop's window.

    Raises:
        UnfitError: a carry or a kept value is no single tensor.
    """
    writes = take_out_writes(loop, scope)
    types = _tensors(body_types(loop, scope))
    _drop_unused(loop)
    count, scan = loop.window.count, _scan(loop, scope, types)
    nodes = [*loop.before, scan]
    for index, carry in enumerate(loop.carries):
        if carry.name in loop.final:
            args = (Ref(scan.name), index)
            nodes.append(Node(loop.final[carry.name], "getitem", args, {}, types[carry.name]))
    stacks: dict[str, str] = {}
    for index, (local, users) in enumerate(loop.kept.items(), len(loop.carries)):
        kind = types[local]
        stacks[local] = f"{scan.name}.{local}"
        whole = TensorType((count, *kind.shape), kind.dtype)
        nodes.append(Node(stacks[local], "getitem", (Ref(scan.name), index), {}, whole))
        nodes.extend(
            Node(name, "aten.select.int", (Ref(stacks[local]), 0, i), {}, kind) for i, name in users
        )
    for write in writes:
        nodes.extend(put_in_place(write, stacks[write.source], count))
    return nodes


def _tensors(types: dict[str, object]) -> dict[str, TensorType]:
    return {name: kind for name, kind in types.items() if isinstance(kind, TensorType)}


def _scan(loop: Loop, scope: Scope, types: dict[str, TensorType]) -> Scan:
    count = loop.window.count
    if not types.keys() >= {*loop.kept, *(carry.name for carry in loop.carries)}:
        raise UnfitError("a value that is handed on is no single tensor")
    body = Body(
        carries=tuple(carry.name for carry in loop.carries),
        invariants=tuple(loop.invariants.values()),
        nodes=tuple(loop.nodes),
        following=tuple(Ref(carry.following) for carry in loop.carries),
        stacked=tuple(Ref(local) for local in loop.kept),
    )
    first = loop.window.node(scope, 0, 0)
    return Scan(
        name=f"scan.{first.name}",
        op="luma.scan",
        args=(
            tuple(Ref(carry.first) for carry in loop.carries),
            tuple(Ref(name) for name in loop.invariants),
        ),
        kwargs={},
        out=(
            *(types[name] for name in body.carries),
            *(TensorType((count, *types[n].shape), types[n].dtype) for n in loop.kept),
        ),
        module=first.module,
        body=body,
        length=count,
    )


def _drop_unused(loop: Loop) -> None:
    """Leave out of the body what no result needs."""
    by_name = {node.name: node for node in loop.nodes}
    carries = {carry.name: carry for carry in loop.carries}
    waiting, needed = [*loop.final.keys() & carries.keys(), *loop.kept], set[str]()
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in carries:
            waiting.append(carries[name].following)
        elif name in by_name:
            waiting.extend(node_refs(by_name[name]))
    loop.nodes = [node for node in loop.nodes if node.name in needed]
    loop.carries = [carry for carry in loop.carries if carry.name in needed]
    loop.invariants = {k: local for k, local in loop.invariants.items() if local in needed}
