"""Bounds of traced integers that depend on the data: enough to decide an assertion about them.

`assert lengths.max().item() <= seq_len` reads a value that a compiled step does not have while it is
traced. Where the value counts something (a sum of comparisons), its bounds are known, and so is the
assertion's answer. A comparison that the bounds leave open is an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

Range: TypeAlias = tuple[int, int]

_TRUTHS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "logical_not", "isnan", "isinf"})
_SAME = frozenset({"max", "min", "amax", "amin", "_to_copy", "alias", "clone", "view", "unsqueeze"})


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """An integer that the data decides, from `low` to `high`; it can be compared, and no more."""

    low: int
    high: int

    def __le__(self, limit: int) -> bool:
        """Say whether it is at most a limit."""
        return self._decided(self.high <= limit, self.low > limit)

    def __lt__(self, limit: int) -> bool:
        """Say whether it is below a limit."""
        return self._decided(self.high < limit, self.low >= limit)

    def __ge__(self, limit: int) -> bool:
        """Say whether it is at least a limit."""
        return not self < limit

    def __gt__(self, limit: int) -> bool:
        """Say whether it is above a limit."""
        return not self <= limit

    def _decided(self, yes: bool, no: bool) -> bool:
        if not yes and not no:
            raise NotImplementedError(
                f"a branch on a value that depends on the data ({self.low} to {self.high})"
            )
        return yes


def bounded(x: object) -> Bounded | None:
    """Give the bounds of a traced tensor of one integer, or None where none are known."""
    mode = get_proxy_mode()
    if mode is None or not isinstance(x, FakeTensor) or x.is_floating_point():
        return None
    slot = get_proxy_slot(x, mode.tracer, None)
    node = getattr(getattr(slot, "proxy", None), "node", None)
    found = None if node is None else _range(node)
    return None if found is None else Bounded(*found)


def _range(node: object) -> Range | None:
    """Give the range of a node's elements."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if name in _TRUTHS:
        return 0, 1
    if name not in _SAME and name != "sum":
        return None
    inner = _range(node.args[0])
    if inner is None or name in _SAME:
        return inner
    count = _elements(node.args[0]) // _elements(node)
    return min(0, inner[0] * count), max(0, inner[1] * count)


def _elements(node: Any) -> int:
    return math.prod(node.meta["val"].shape)
