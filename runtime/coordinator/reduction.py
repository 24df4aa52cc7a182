"""A reduction under way: who contributes what, who holds the sum, and whether it may be committed.

A sum counts only when every live island holds the same one. What is in it is judged from its
counters, which are integer sums over all micro-shards as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.coordinator.wire import LOSS_UNIT, Message


@dataclass(slots=True)
class Reduction:
    """One reduction of the step in flight.

    Attributes:
        shards: the micro-shards that each island contributes.
        sums: the `summed` message of each island that holds the sum.
    """

    shards: dict[str, list[int]]
    sums: dict[str, Message] = field(default_factory=dict)

    def held_by_all(self, members: Sequence[str]) -> bool:
        """Tell whether each of `members` holds a sum."""
        return set(members) <= set(self.sums)

    def total(self, members: Sequence[str]) -> Message:
        """Give the sum that all of `members` hold."""
        return self.sums[members[0]]

    def overflowed(self, members: Sequence[str]) -> bool:
        """Tell whether a gradient outgrew its block's scale, which a larger scale cures."""
        return bool(self.total(members)["overflow"])

    def problem(self, step: int, members: Sequence[str]) -> str | None:
        """Give why the sum of `step` can never be committed, or None."""
        total = self.total(members)
        if len({self.sums[name]["hash"] for name in members}) != 1:
            held = ", ".join(f"{name} {self.sums[name]['hash'][:12]}" for name in members)
            return f"the islands hold different sums of step {step}: {held}"
        if total["nonfinite"]:
            return (
                f"step {step}: {total['nonfinite']} gradient elements are not finite; "
                "no scale cures that: lower optimizer.lr, or look at the data of this step"
            )
        if not total["tokens"] and not total["overflow"]:
            return (
                f"step {step}: the global batch holds no supervised token, so it has no mean "
                "loss; use longer samples, or a larger global batch"
            )
        return None

    def mean_loss(self, members: Sequence[str]) -> float:
        """Give the mean loss over the supervised tokens of the global batch."""
        total = self.total(members)
        return total["loss"] * LOSS_UNIT / total["tokens"]
