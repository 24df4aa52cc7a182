"""Who computes which micro-shard of the step in flight.

The board gives one shard at a time to the island that would finish it first (greedy list
scheduling over measured seconds a shard), so an island that slows down stops getting shards within
a shard's time, and no plan has to be revised. When nothing is unstarted, a shard that a slow
island still computes may run a second time elsewhere; the first result wins. Which island computes
a shard never changes the result: the shards' sums are integers.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

_SMOOTHING = 0.3
"""Weight of the newest shard in an island's seconds a shard; about the last six count."""

_SPECULATE_GAIN = 1.5
"""A second run must be expected to end this much sooner than the first."""


@dataclass(slots=True)
class Speed:
    """Measured seconds a shard of one island, as a moving average; None before the first."""

    seconds_per_shard: float | None = None

    def observe(self, seconds: float) -> None:
        """Take one more measurement in, limited to four times the average so far."""
        if self.seconds_per_shard is None:
            self.seconds_per_shard = seconds
            return
        limited = min(seconds, 4 * self.seconds_per_shard)
        self.seconds_per_shard += _SMOOTHING * (limited - self.seconds_per_shard)


@dataclass(slots=True)
class ShardBoard:
    """The micro-shards of one attempt at one step.

    Attributes:
        unstarted: shards that nobody has, in order.
        running: for each leased shard, the islands that have it, and since when each of them has
            been at it or waited for it at most (seconds).
        done: for each finished shard, the island whose result counts.
    """

    unstarted: list[int]
    running: dict[int, dict[str, float]] = field(default_factory=dict)
    done: dict[int, str] = field(default_factory=dict)

    @classmethod
    def fresh(cls, micro_shards: int) -> ShardBoard:
        """Give a board on which every one of M shards is unstarted."""
        return cls(unstarted=list(range(micro_shards)))

    def complete(self) -> bool:
        """Tell whether every shard has a result that counts."""
        return not self.unstarted and not self.running

    def contributions(self) -> dict[str, list[int]]:
        """Give the shards whose results count, by island."""
        shares: dict[str, list[int]] = {}
        for shard, island in sorted(self.done.items()):
            shares.setdefault(island, []).append(shard)
        return shares

    def held_by(self, island: str) -> list[int]:
        """Give the unfinished shards that an island has leases for."""
        return [s for s, holders in self.running.items() if island in holders]

    def finish(self, shard: int, island: str, now: float) -> bool:
        """Take a result; False when another island's result for the shard already counts."""
        self.running.pop(shard, None)
        for queued in self.held_by(island):
            self.running[queued][island] = now  # it starts on the next one only now
        if shard in self.done:
            return self.done[shard] == island
        if shard in self.unstarted:
            self.unstarted.remove(shard)
        self.done[shard] = island
        return True

    def forget(self, island: str) -> None:
        """Give back what a lost island had: its leases, and its results, which died with it."""
        for shard in list(self.running):
            holders = self.running[shard]
            holders.pop(island, None)
            if not holders:
                del self.running[shard]
                self._give_back(shard)
        for shard in [s for s, owner in self.done.items() if owner == island]:
            del self.done[shard]
            if shard not in self.running:
                self._give_back(shard)

    def _give_back(self, shard: int) -> None:
        if shard not in self.done and shard not in self.unstarted:
            self.unstarted.append(shard)
            self.unstarted.sort()

    def lease(self, island: str, now: float, speeds: dict[str, Speed]) -> int | None:
        """Give the next shard for `island` and record the lease, or None to let it wait.

        Args:
            island: an active island that has room for a lease.
            now: seconds on a monotonic clock.
            speeds: the measured speed of every active island.
        """
        if self.unstarted:
            if not self._should_take(island, now, speeds):
                return None
            shard = self.unstarted.pop(0)
        else:
            second = self._worth_a_second_run(island, now, speeds)
            if second is None:
                return None
            shard = second
        self.running.setdefault(shard, {})[island] = now
        return shard

    def _should_take(self, island: str, now: float, speeds: dict[str, Speed]) -> bool:
        """Tell whether greedy scheduling of the unstarted shards gives `island` the next one."""
        if speeds[island].seconds_per_shard is None:
            return not self.held_by(island)
        queue = [
            (self._busy_for(name, now, speed) + speed.seconds_per_shard, name)
            for name, speed in speeds.items()
            if speed.seconds_per_shard is not None
        ]
        heapq.heapify(queue)
        for _ in self.unstarted:
            finish, name = queue[0]
            if name == island:
                return True
            heapq.heapreplace(queue, (finish + (speeds[name].seconds_per_shard or 0.0), name))
        return False

    def _busy_for(self, island: str, now: float, speed: Speed) -> float:
        """Estimate when an island will have done what it holds, in seconds from now.

        A shard that is overdue is expected to take as long again as it is late, so that the rest of
        the step does not wait for an island that used to be fast.
        """
        per_shard = speed.seconds_per_shard or 0.0
        held = self.held_by(island)
        if not held:
            return 0.0
        oldest = min(self.running[shard][island] for shard in held)
        return (len(held) - 1) * per_shard + abs(per_shard - (now - oldest))

    def _worth_a_second_run(self, island: str, now: float, speeds: dict[str, Speed]) -> int | None:
        mine = speeds[island].seconds_per_shard
        if mine is None or self.held_by(island):
            return None
        best: tuple[float, int] | None = None
        for shard, holders in self.running.items():
            if shard in self.done or len(holders) != 1:
                continue
            ((owner, started),) = holders.items()
            speed = speeds.get(owner, Speed()).seconds_per_shard
            queued = len(self.held_by(owner)) * (speed or 0.0)
            left = max(queued - (now - started), now - started if speed is None else 0.0)
            overdue = now - started > _SPECULATE_GAIN * (queued or mine) + mine
            if (left > _SPECULATE_GAIN * mine or overdue) and (best is None or left > best[0]):
                best = (left, shard)
        return None if best is None else best[1]
