"""How fast a fleet of islands runs a job: one island's share, and a step of islands of several kinds.

A step deals M micro-shards out, adds their gradients round a ring, and lets every island apply the
step. For the choice each island has a speed of its own: that in the least favourable number of equal
islands that the job allows (8 shards keep a third island waiting, not a fourth). For the chosen fleet
the step is computed as it will run: shards go to the island that would finish first, as the coordinator
deals them (DESIGN.md, section 4, point 9).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.plan.chips import Chip, Precision
from runtime.plan.costs import TargetCosts

__all__ = [
    "START_S",
    "IslandTimes",
    "fleet_step_seconds",
    "goodput",
    "island_speed",
    "island_times",
]

START_S = 300.0
"""Time for which a new instance is paid and adds nothing: it starts, fetches the artifact and the
state. Assumed, not measured in AWS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandTimes:
    """What one island of a kind takes.

    Attributes:
        shard_s: seconds of one micro-shard.
        update_s: seconds of the optimizer step; 0 where it is counted within the shards.
        sums_bytes: bytes of the sums that islands exchange; None where not known.
        network_bytes_per_s: rate of its host's network; None where not known.
    """

    shard_s: float
    update_s: float
    sums_bytes: int | None
    network_bytes_per_s: float | None


def island_times(
    costs: TargetCosts, chip: Chip, precision: Precision, network_gbps: float | None
) -> IslandTimes | None:
    """Give what an island takes; None where a figure of its chip is not known."""
    shard, update = costs.shard_seconds(chip, precision), costs.update_seconds(chip, precision)
    if shard is None or update is None:
        return None
    return IslandTimes(
        shard_s=shard,
        update_s=update,
        sums_bytes=costs.sums_bytes,
        network_bytes_per_s=None if network_gbps is None else network_gbps * 1e9 / 8,
    )


def island_speed(times: IslandTimes, *, shards: int, islands: range, tokens_per_step: int) -> float:
    """Give the tokens a second that one of several equal islands adds at least.

    Args:
        times: what an island takes.
        shards: micro-shards of a step.
        islands: how many of them there may be; no more than there are shards.
        tokens_per_step: tokens of a step.
    """
    slowest = max(
        number
        * (-(-shards // number) * times.shard_s + _ring_seconds(number, times) + times.update_s)
        for number in islands
    )
    return tokens_per_step / slowest


def goodput(interruptions_per_hour: float) -> float:
    """Give the part of an island's paid time that is useful, at a rate of interruptions."""
    return 1 / (1 + interruptions_per_hour * START_S / 3600)


def fleet_step_seconds(islands: Sequence[IslandTimes], shards: int) -> float:
    """Give the seconds of a step: the last shard, the exchange, the slowest optimizer step."""
    return (
        _makespan([island.shard_s for island in islands], shards)
        + _exchange_seconds(islands)
        + max(island.update_s for island in islands)
    )


def _makespan(seconds: Iterable[float], shards: int) -> float:
    """Deal shards to whoever would finish first; give when the last one ends."""
    queue = [(each, each) for each in seconds]
    heapq.heapify(queue)
    last = 0.0
    for _ in range(shards):
        ends, each = heapq.heappop(queue)
        last = max(last, ends)
        heapq.heappush(queue, (ends + each, each))
    return last


def _exchange_seconds(islands: Sequence[IslandTimes]) -> float:
    """Give the time of the ring at its slowest member."""
    return max(_ring_seconds(len(islands), island) for island in islands)


def _ring_seconds(count: int, island: IslandTimes) -> float:
    """Give the time of a ring all-reduce at one member's network; 0 where no figure is known.

    Each member sends 2 (n - 1) / n times the sums (Patarasuk and Yuan 2009, section 3).
    """
    if count < 2 or not island.network_bytes_per_s or not island.sums_bytes:
        return 0.0
    return 2 * (count - 1) / count * island.sums_bytes / island.network_bytes_per_s
