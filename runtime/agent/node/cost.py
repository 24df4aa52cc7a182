"""What a run has cost: node-seconds times each node's price, and when to stop for the budget.

The prices stand in the run's slots, where an island's node puts its own while it works there, else
in the run's item, where the launch put the plan's. The sum grows in RUN.cost_usd; a coordinator that is replaced goes on
adding to it. What it misses is at most the time between two additions and the hand-over. It is an
estimate of the instances' price and no bill: neither disks nor transfers are in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["STOP_RESERVE_S", "Meter", "budget_reason", "usd_per_hour"]

STOP_RESERVE_S: Final = 120.0
"""A stop is asked for while the budget still pays for so long: the step in flight, its checkpoint,
and the end of the instances."""


def usd_per_hour(
    slots: Iterable[Mapping[str, Any]], prices: Mapping[str, float], own: float | None
) -> float:
    """Add up what a run's nodes cost an hour.

    Args:
        slots: the run's slots; those with a node count.
        prices: what the plan took for a node of each fleet, where no node states its own price.
        own: price of the coordinator's node, None where it is unknown.
    """
    islands = sum(
        float(slot.get("usd_per_hour", prices.get(slot.get("fleet", ""), 0.0)))
        for slot in slots
        if "node" in slot
    )
    return islands + (own or 0.0)


def budget_reason(cost_usd: float, rate: float, max_cost_usd: float | None) -> str | None:
    """Say why a run must stop for its budget, None where it need not.

    Args:
        cost_usd: what it has cost.
        rate: what it costs an hour.
        max_cost_usd: the most that it may cost; None for no limit.
    """
    if max_cost_usd is None:
        return None
    reserve = rate * STOP_RESERVE_S / 3600
    if cost_usd + reserve < max_cost_usd:
        return None
    return (
        f"budget: {cost_usd:.4f} $ are spent of {max_cost_usd:.4f} $, at {rate:.2f} $/h; "
        f"the rest pays for an orderly stop"
    )


@dataclass(slots=True)
class Meter:
    """Adds up a rate over time.

    Attributes:
        since: when it was read last, seconds of a monotonic clock.
        rate: what was paid an hour since then.
    """

    since: float
    rate: float = 0.0

    def read(self, now: float, rate: float) -> float:
        """Give the dollars since the last reading, at the rate of then, and take the new one."""
        usd = self.rate * max(0.0, now - self.since) / 3600
        self.since, self.rate = now, rate
        return usd
