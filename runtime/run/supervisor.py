"""Supervision of a run on this machine: start its processes, replace the dead, see it to its end.

The supervisor is one loop over three sources: the run's events, the ends of its processes, and the
faults of `--chaos`. What it promises:

- An island that dies while the run goes on is replaced by one with a new name; a coordinator that
  dies is started again and goes on from its log. Nobody else is touched.
- An interruption (a kill from outside, of an island that had joined) is free, as on a spot market.
  Anything else counts against `recovery.max_restarts`, and so does dying again and again while no
  step is committed.
- A run ends `done`, `stopped` (resumable) or `failed`; no process of it stays behind.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from runtime.agent.exit_codes import ExitCode
from runtime.run.chaos import ChaosSchedule, Fault, Shot
from runtime.run.events import Event, EventFollower, append_event
from runtime.run.folder import RunFolder
from runtime.run.processes import Process, end_all, spawn_coordinator, spawn_island
from runtime.spec import LumaError, RunError

Outcome = Literal["done", "stopped"]

_POLL_S = 0.02
_EXIT_GRACE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetOptions:
    """How a run's processes are started and replaced.

    Attributes:
        islands: slots of the fleet.
        max_restarts: replacements after failures (not interruptions) before the run gives up.
        environment: variables that the islands get.
        faults: what `--chaos` inflicts.
    """

    islands: int
    max_restarts: int
    environment: dict[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


class Supervisor:
    """Runs one run to its end.

    Args:
        folder: the run, prepared.
        options: the fleet.
        on_event: called with each event, in order.
        stop_asked: polled; True once the user wants the run to stop resumably.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: FleetOptions,
        *,
        on_event: Callable[[Event], None],
        stop_asked: Callable[[], bool],
    ) -> None:
        self._folder = folder
        self._options = options
        self._on_event = on_event
        self._stop_asked = stop_asked
        self._chaos = ChaosSchedule(options.faults)
        self._slots: dict[int, Process] = {}
        self._coordinator: Process | None = None
        self._follower = EventFollower(folder.path, from_end=True)
        self._next_island = _next_island(folder)
        self._joined: set[str] = set()
        self._failures = 0
        self._barren = 0
        self._stop_sent = False
        self._ending: str | None = None
        self._error: str | None = None

    def run(self) -> Outcome:
        """Start everything and see it to its end.

        Returns:
            `done`, or `stopped` when the run was asked to stop and can be resumed.

        Raises:
            RunError: the run failed; the message says why and where the logs are.
            KeyboardInterrupt: the caller's signal handler raised it: everything is killed.
        """
        try:
            self._coordinator = self._start_coordinator()
            for slot in range(self._options.islands):
                self._start_island(slot)
            self._loop()
        except BaseException:
            end_all(self._all(), grace_s=0.0)
            raise
        self._leave()
        if self._ending == "failed":
            raise RunError(f"the run failed: {self._error}", remedy=self._where_to_look())
        return "done" if self._ending == "done" else "stopped"

    # ------------------------------------------------------------------ loop

    def _loop(self) -> None:
        while self._ending is None:
            for event in self._follower.poll():
                self._take(event)
            for shot in self._chaos.due(time.monotonic()):
                self._inflict(shot)
            self._reap()
            if self._stop_asked() and not self._stop_sent:
                self._stop_sent = self._ask_to_stop()
            time.sleep(_POLL_S)

    def _take(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "joined":
            self._joined.add(event["island"])
        elif kind == "commit":
            self._barren = 0
            self._chaos.step_started(event["step"] + 1, time.monotonic())
        elif kind == "epoch":
            self._chaos.step_started(event.get("step", 0), time.monotonic())
        elif kind in {"done", "stopped", "failed"}:
            self._ending = kind
            self._error = event.get("error")
        self._on_event(event)

    def _record(self, kind: str, **fields: object) -> None:
        """Append an event of our own; it comes back through the follower."""
        append_event(self._folder.path, kind, **fields)

    # ------------------------------------------------------------- processes

    def _start_coordinator(self) -> Process:
        islands_live = any(process.alive() for process in self._slots.values())
        process = spawn_coordinator(self._folder, restart=islands_live)
        self._record("spawned", island="coordinator", pid=process.pid)
        return process

    def _start_island(self, slot: int) -> None:
        name = f"island-{self._next_island}"
        self._next_island += 1
        process = spawn_island(self._folder, name, self._options.environment)
        self._slots[slot] = process
        self._record("spawned", island=name, pid=process.pid, slot=slot)

    def _reap(self) -> None:
        if self._coordinator is not None and not self._coordinator.alive():
            self._coordinator_ended(self._coordinator)
        for slot, process in list(self._slots.items()):
            if self._ending is None and not process.alive():
                self._island_ended(slot, process)

    def _coordinator_ended(self, process: Process) -> None:
        code = process.popen.returncode
        self._record("exited", island="coordinator", pid=process.pid, code=code)
        self._coordinator = None
        if self._read_ending():
            return
        self._count_death(process, free=code == -signal.SIGKILL, what="the coordinator")
        self._coordinator = self._start_coordinator()

    def _island_ended(self, slot: int, process: Process) -> None:
        del self._slots[slot]
        code = process.popen.returncode
        self._record("exited", island=process.name, pid=process.pid, code=code)
        if self._read_ending():
            return
        if code == ExitCode.FATAL:
            raise RunError(
                f"{process.name} met an error that no other island would escape:\n"
                f"{self._tail(process.name)}",
                remedy=f"when the cause is gone, {self._resume_command()}",
            )
        # A lost coordinator is no failure of the island; the coordinator's own death is counted.
        blameless = code in {ExitCode.DONE, ExitCode.LOST_COORDINATOR}
        free = blameless or (code < 0 and process.name in self._joined)
        self._count_death(process, free=free, what=process.name)
        self._start_island(slot)

    def _read_ending(self) -> bool:
        """Read events that were written just before a process ended."""
        for event in self._follower.poll():
            self._take(event)
        return self._ending is not None

    def _count_death(self, process: Process, *, free: bool, what: str) -> None:
        self._failures += not free
        self._barren += 1
        limit = self._options.max_restarts
        barren_limit = limit + 2 * (self._options.islands + 1)
        if self._failures <= limit and self._barren <= barren_limit:
            return
        count = self._failures if self._failures > limit else self._barren
        raise RunError(
            f"{what} ended with exit code {process.popen.returncode}; that is failure {count}, and "
            f"recovery.max_restarts allows {limit}\n{self._tail(process.name)}",
            remedy=self._where_to_look(),
        )

    # ----------------------------------------------------------------- faults

    def _inflict(self, shot: Shot) -> None:
        number = signal.Signals[shot.signal]
        slots = tuple(self._slots) if shot.everyone else shot.slots
        victims = [self._slots[slot] for slot in slots if slot in self._slots]
        if shot.coordinator and self._coordinator is not None:
            victims.append(self._coordinator)
        for victim in victims:
            if victim.send(number) and shot.interruption is not None:
                self._record(
                    "interruption",
                    island=victim.name,
                    how=shot.interruption,
                    at_step=shot.fault.step,
                    pid=victim.pid,
                    fault=shot.fault.text,
                )

    # -------------------------------------------------------------------- end

    def _ask_to_stop(self) -> bool:
        from runtime.coordinator.client import request_stop

        try:
            request_stop(self._folder.path)
        except LumaError:
            return False  # the coordinator is just starting: ask again
        return True

    def _leave(self) -> None:
        """Wait for the processes to end by themselves, then make sure of it."""
        deadline = time.monotonic() + _EXIT_GRACE_S
        while any(p.alive() for p in self._all()) and time.monotonic() < deadline:
            for shot in self._chaos.due(time.monotonic()):
                if shot.signal == "SIGCONT":
                    self._inflict(shot)
            time.sleep(_POLL_S)
        end_all(self._all(), grace_s=1.0)
        for event in self._follower.poll():
            self._on_event(event)

    def _all(self) -> list[Process]:
        coordinator = [] if self._coordinator is None else [self._coordinator]
        return [*self._slots.values(), *coordinator]

    def _tail(self, name: str, lines: int = 8) -> str:
        try:
            text = self._folder.log_of(name).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(f"  | {line}" for line in deque(text.splitlines(), maxlen=lines))

    def _where_to_look(self) -> str:
        return (
            f"the logs are in {self._folder.islands_dir}; when the cause is gone, "
            f"{self._resume_command()}"
        )

    def _resume_command(self) -> str:
        return f"go on with `luma launch --resume {self._folder.path}`"


def _next_island(folder: RunFolder) -> int:
    """Give the first number that no island of this run has had: a resumed run has new names."""
    numbers = [
        int(path.stem.removeprefix("island-"))
        for path in folder.islands_dir.glob("island-*.log")
        if path.stem.removeprefix("island-").isdigit()
    ]
    return max(numbers, default=-1) + 1
