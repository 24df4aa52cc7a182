"""Re-rolling: loops that tracing unrolled become one `Scan` each, so a graph's size is its code's.

Tracing runs a model's Python, so a loop over positions (Mamba, RWKV, xLSTM, gated delta in chunks)
is in the graph once a position, and again, in reverse, in its backward. This pass finds such loops
in the graph alone: stretches of nodes that repeat with a fixed period (`_periods`), cut into
iterations whose operands come from the same places (`_window`), written as one body (`_loop`).
The values are those of the unrolled graph. What is no such loop stays as it is.

Scans exist only between this pass and the lowering. A package never holds one: its format, its
digest, the check against eager and the passes before this one need not know of them, and a compiler
with a better pass needs no new capture. The price is that capture, and the package, still grow with
the sequence.

Equal layers are found by the same search; but each has weights of its own, so a loop over layers
copies all weights into one array every step. `layers=True` allows that; it is off, because it did
not pay. On a CPU XLA compiles equal kernels once anyway: Llamas of 6, 12 and 24 layers took 1.8,
2.2 and 3.3 s of CPU time to compile as they are and 4.9, 4.4 and 5.8 s as a loop, and at 512 wide
with 12 layers the step took 1.6 times as long with 580 MB of temporaries in place of 99. For a
TPU v5e 24 layers took 6.1 s in place of 9.6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from runtime.compiler.graph import Graph, Node, Ref
from runtime.compiler.passes.reroll._canonical import canonical, live
from runtime.compiler.passes.reroll._emit import emit
from runtime.compiler.passes.reroll._join import join_places
from runtime.compiler.passes.reroll._leaves import VIEWS, leaves, token, with_leaves
from runtime.compiler.passes.reroll._loop import (
    Loop,
    NarrowerError,
    build_loop,
    outside_names,
)
from runtime.compiler.passes.reroll._periods import Run, find_runs
from runtime.compiler.passes.reroll._scope import Scope, UnfitError, node_refs, scope_of
from runtime.compiler.passes.reroll._window import Window, alike, cuts

__all__ = ["reroll"]

# Shorter loops gain little and cost XLA its freedom across iterations.
LEAST_ITERATIONS = 8
LEAST_LAYERS = 3
_MOST_ROUNDS = 64


def reroll(graph: Graph, *, layers: bool = False) -> Graph:
    """Give the graph with its unrolled loops as scans; the graph itself where it has none.

    Args:
        graph: what capture made, or a pass before this one.
        layers: also make loops whose iterations use separate tensors, such as the layers' weights:
            these are copied into one array, outside the loop, in every run of the graph.
    """
    found = _rounds(canonical(graph), LEAST_ITERATIONS, stacking=False)
    if layers:
        found = _rounds(found, LEAST_LAYERS, stacking=True)
    if not any(node.op == "luma.scan" for node in found.nodes):
        return graph
    found.check()
    return found


def _rounds(graph: Graph, least: int, *, stacking: bool) -> Graph:
    """Search until nothing is found: a loop can show others, such as its backward."""
    for _ in range(_MOST_ROUNDS):
        scope = scope_of(graph, stacking=stacking)
        rewrites = _rewrites(scope, least)
        if not rewrites:
            break
        graph = live(join_places(live(_replaced(graph, rewrites))))
    return graph


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Nodes that replace those of a window.

    Attributes:
        window: what is replaced.
        nodes: what stands there then.
        outside: positions of the values outside that these use.
        renamed: what stands for values that are gone.
    """

    window: Window
    nodes: list[Node]
    outside: frozenset[int]
    renamed: dict[str, str]


def _rewrites(scope: Scope, least: int) -> list[_Rewrite]:
    """Give loops that can be written at once: none overlaps or uses the inside of another."""
    taken: list[_Rewrite] = []
    for run in find_runs([token(node) for node in scope.nodes], least):
        if any(_meet(run.start, run.start + run.length, one.window) for one in taken):
            continue
        tries = (_rewrite_of(scope, multiple, least) for multiple in _multiples(run, least))
        new = next((one for one in tries if one is not None), None)
        if new is not None and not any(_uses(new, one) or _uses(one, new) for one in taken):
            taken.append(new)
    return sorted(taken, key=lambda one: one.window.start)


def _multiples(run: Run, least: int) -> list[Run]:
    """Give the run, then with longer periods: two equal halves may take from different places."""
    runs = (replace(run, period=run.period * factor) for factor in (1, 2, 3))
    return [one for one in runs if one.iterations >= least]


def _meet(start: int, stop: int, window: Window) -> bool:
    return start < window.stop and window.start < stop


def _uses(one: _Rewrite, other: _Rewrite) -> bool:
    return any(other.window.start <= place < other.window.stop for place in one.outside)


def _rewrite_of(scope: Scope, run: Run, least: int) -> _Rewrite | None:
    """Give the loop that a run is, or None."""
    for cut in cuts(scope, run, least):
        window = Window(run.start + cut, run.period, (run.length - cut) // run.period)
        try:
            loop = _fitted(scope, window, least)
            if not _is_worth_it(loop):
                continue
            places = {scope.position.get(name, -1) for name in outside_names(loop)}
            return _Rewrite(loop.window, emit(loop, scope), frozenset(places), loop.renamed)
        except UnfitError:
            continue
    return None


def _fitted(scope: Scope, window: Window, least: int) -> Loop:
    """Make a loop of as many iterations as are alike.

    Raises:
        UnfitError: they are too few, or no loop.
    """
    window = alike(scope, window)
    while window.count >= least:
        try:
            return build_loop(scope, window)
        except NarrowerError as error:
            window = alike(scope, error.window) if error.window.count else error.window
    raise UnfitError("too few iterations are alike")


def _is_worth_it(loop: Loop) -> bool:
    """Say whether a loop is more than views, and copies nothing without carrying something."""
    if all(node.op in VIEWS for node in loop.nodes):
        return False
    return bool(loop.carries) or not loop.copies


def _replaced(graph: Graph, rewrites: list[_Rewrite]) -> Graph:
    """Put the rewrites in the places of their windows."""
    nodes: list[Node] = []
    renamed: dict[str, str] = {}
    place = 0
    for one in rewrites:
        nodes.extend(graph.nodes[place : one.window.start])
        nodes.extend(one.nodes)
        renamed.update(one.renamed)
        place = one.window.stop
    nodes.extend(graph.nodes[place:])
    outputs = tuple((label, Ref(renamed.get(ref.name, ref.name))) for label, ref in graph.outputs)
    renewed = tuple(_renamed(node, renamed) for node in nodes)
    return replace(graph, nodes=renewed, outputs=outputs)


def _renamed(node: Node, names: dict[str, str]) -> Node:
    if names.keys().isdisjoint(node_refs(node)):
        return node
    values = [
        Ref(names.get(leaf.name, leaf.name)) if isinstance(leaf, Ref) else leaf
        for leaf in leaves(node)
    ]
    args, kwargs = with_leaves(node, values)
    return replace(node, args=args, kwargs=kwargs)
