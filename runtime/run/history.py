"""What a run's events and commit log say together: commits, interruptions, lanes of islands.

The commit log is the truth about commits; the events add when things happened. Where a coordinator
was killed between the two, the log has a commit without its event.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.coordinator.events import read_events
from runtime.coordinator.log import LOG_FILE, Commit, SqliteCommitLog
from runtime.run.events import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """A process of the run that was killed, stopped or slowed.

    Attributes:
        island: `island-N` or `coordinator`.
        kind: the signal, such as `SIGKILL`, or `slow x4`.
        at_step: the step in flight, from 0.
        time: when, seconds since 1970.
        seconds_to_next_commit: time to the next commit; None when there was none.
    """

    island: str
    kind: str
    at_step: int
    time: float
    seconds_to_next_commit: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One island's life.

    Attributes:
        island: its name.
        joined: when it joined, seconds since 1970.
        left: when it left or the run ended.
        lost: whether it was killed or failed, rather than left at the end or on a notice.
    """

    island: str
    joined: float
    left: float
    lost: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """One run, read from its folder.

    Attributes:
        events: every event in order.
        commits: every committed step in order, from the log.
        recommits: committed steps that were computed a second time, with the same bits.
    """

    events: Sequence[Event]
    commits: Sequence[Commit]
    recommits: int

    @classmethod
    def read(cls, run_dir: Path) -> History:
        """Read events and log of a run folder.

        Raises:
            RunError: the log cannot be read.
        """
        log = SqliteCommitLog(run_dir / LOG_FILE, read_only=True)
        try:
            commits, recommits = log.commits(), log.recommit_count()
        finally:
            log.close()
        events = sorted(read_events(run_dir), key=lambda event: event["time"])
        return cls(events=events, commits=commits, recommits=recommits)

    def of_kind(self, *kinds: str) -> list[Event]:
        """Give the events of some kinds in order."""
        return [event for event in self.events if event["kind"] in kinds]

    def final(self) -> Event | None:
        """Give the last `done`, `stopped` or `failed` event."""
        endings = self.of_kind("done", "stopped", "failed")
        return endings[-1] if endings else None

    def interruptions(self) -> list[Interruption]:
        """Give what interrupted the run: by its own faults, or by signals from outside."""
        own = self.of_kind("interruption")
        known = {event["pid"] for event in own}
        found = [self._interruption(e["island"], e["how"], e["at_step"], e["time"]) for e in own]
        for event in self.of_kind("exited"):
            code = event["code"]
            if code is not None and code < 0 and event["pid"] not in known:
                step = self._step_in_flight(event["time"])
                name = signal.Signals(-code).name
                found.append(self._interruption(event["island"], name, step, event["time"]))
        return sorted(found, key=lambda item: item.time)

    def lanes(self) -> list[Lane]:
        """Give each island's life, in the order in which they joined."""
        end = self.events[-1]["time"] if self.events else 0.0
        open_lanes: dict[str, float] = {}
        lanes: list[Lane] = []
        for event in self.events:
            island = str(event.get("island", ""))
            if event["kind"] == "joined":
                open_lanes.setdefault(island, event["time"])
            elif event["kind"] in {"left", "exited"} and island in open_lanes:
                lost = event.get("reason", "") not in {"notice", "done", "stopped"}
                lost = lost and event.get("code", -1) != 0
                start = open_lanes.pop(island)
                lanes.append(Lane(island=island, joined=start, left=event["time"], lost=lost))
        lanes += [
            Lane(island=island, joined=start, left=end, lost=False)
            for island, start in open_lanes.items()
        ]
        return sorted(lanes, key=lambda lane: lane.joined)

    def chip_classes(self) -> list[str]:
        """Give the chip classes of all islands that computed."""
        return sorted({str(event["chip_class"]) for event in self.of_kind("joined")})

    def lost_steps(self) -> list[int]:
        """Give the committed steps that the final history lacks, or holds with another sum."""
        final = {commit.step: commit.sum_hash for commit in self.commits}
        told = {(event["step"], event["sum_hash"]) for event in self.of_kind("commit")}
        return sorted({step for step, digest in told if final.get(step) != digest})

    def redone_attempts(self) -> int:
        """Give how often a step, or a part of one, was computed again."""
        return len(self.of_kind("redo")) + self.recommits

    def _interruption(self, island: str, kind: str, step: int, time: float) -> Interruption:
        after = [e["time"] for e in self.of_kind("commit") if e["time"] > time]
        return Interruption(
            island=island,
            kind=kind,
            at_step=step,
            time=time,
            seconds_to_next_commit=round(min(after) - time, 3) if after else None,
        )

    def _step_in_flight(self, time: float) -> int:
        before = [e["step"] for e in self.of_kind("commit") if e["time"] <= time]
        return before[-1] + 1 if before else 0
