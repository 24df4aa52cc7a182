"""Cuts a run into iterations: where an iteration begins, and which iterations are alike.

Any rotation of a period is a loop, but the values that are alive where it is cut become carries, so
the cut with the fewest is taken. The iterations kept are the longest stretch whose operands come
from the same places: the same iteration, so many iterations before, or outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from runtime.compiler.graph import Node, Ref, TensorType
from runtime.compiler.passes.reroll._leaves import leaves
from runtime.compiler.passes.reroll._periods import Run
from runtime.compiler.passes.reroll._scope import Scope

# Values that are several tensors cannot be carried.
_NEVER = 1_000_000

# Where an operand comes from: (iterations before, place in the iteration), None for outside.
Origin = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Window:
    """Iterations of a loop: `count` segments of `period` nodes from `start` on."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """The first position after it."""
        return self.start + self.period * self.count

    def node(self, scope: Scope, iteration: int, place: int) -> Node:
        """Give the node at a place of an iteration."""
        return scope.nodes[self.start + iteration * self.period + place]

    def part(self, first: int, last: int) -> Window:
        """Give the iterations from `first` up to `last`, without it."""
        return Window(self.start + first * self.period, self.period, last - first)


def cuts(scope: Scope, run: Run, least: int) -> list[int]:
    """Give the rotations to try, those with the fewest values alive first (at most two)."""
    base = run.start + run.period * (run.iterations // 2)
    change = np.zeros(2 * run.period + 2, np.int64)
    for place in range(base, base + run.period):
        node = scope.nodes[place]
        inside = [u for u in scope.users.get(node.name, ()) if u < run.start + run.length]
        if inside:
            weight = 1 if isinstance(node.out, TensorType) else _NEVER
            first = place + 1 - base
            change[first] += weight
            change[min(max(inside), place + run.period) + 1 - base] -= weight
    alive = np.cumsum(change)[: 2 * run.period].reshape(2, run.period).sum(axis=0)
    last = min(run.period - 1, run.length - least * run.period)
    best = int(np.argmin(alive[: last + 1]))
    return list(dict.fromkeys((best, 0)))


def alike(scope: Scope, window: Window) -> Window:
    """Give the longest stretch of iterations whose operands have the same origins.

    The first iterations may take from outside what the others take from the one before.
    """
    origins = [_origins(scope, window, i) for i in range(window.count)]
    first, last = longest(origins)
    model = origins[first]
    reach = max((one[0] for one in model if one), default=0)
    for start in range(max(first - reach, 0), first):
        if all(_starts(origins[i], model, i - start) for i in range(start, first)):
            return window.part(start, last)
    return window.part(first, last)


def longest(items: Sequence[object]) -> tuple[int, int]:
    """Give the bounds of the longest stretch of equal items, the first of several."""
    edges = [0, *(i for i in range(1, len(items)) if items[i] != items[i - 1]), len(items)]
    return max(pairwise(edges), key=lambda pair: pair[1] - pair[0])


def _origins(scope: Scope, window: Window, iteration: int) -> list[Origin]:
    """Give the origin of every operand of an iteration, None for other leaves too."""
    found: list[Origin] = []
    for place in range(window.period):
        for leaf in leaves(window.node(scope, iteration, place)):
            is_use = isinstance(leaf, Ref)
            found.append(origin(scope, window, iteration, leaf.name) if is_use else None)
    return found


def origin(scope: Scope, window: Window, iteration: int, name: str) -> Origin:
    """Give where an operand of an iteration comes from."""
    place = scope.position.get(name, -1) - window.start
    if not 0 <= place < window.period * window.count:
        return None
    return iteration - place // window.period, place % window.period


def _starts(found: list[Origin], model: list[Origin], age: int) -> bool:
    """Say whether an iteration fits as number `age` of a loop, reading first values from outside.

    What it reads from before the loop is checked when the carries are made.
    """
    return all(
        one == wanted or (wanted is not None and wanted[0] > age and (one is None or one[0] > age))
        for one, wanted in zip(found, model, strict=True)
    )
