"""A fleet of real processes over a run folder: the coordinator and islands, as a launch starts them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from benchmarks.children import ChildError
from runtime.coordinator.events import read_events
from runtime.run.folder import RunFolder
from runtime.run.processes import Process, end_all, spawn_coordinator, spawn_island

_T = TypeVar("_T")
_POLL_S = 0.01
_TIMEOUT_S = 300.0


class Fleet:
    """Processes of one run; a context manager that ends them.

    Args:
        folder: a fresh run, from `benchmarks.runs.copied`.
        islands: how many to start.
    """

    def __init__(self, folder: RunFolder, islands: int) -> None:
        self.folder = folder
        self._coordinator = spawn_coordinator(folder, restart=False)
        self._islands: dict[str, Process] = {}
        self._started = 0
        for _ in range(islands):
            self.add_island()

    def add_island(self) -> str:
        """Start one more island; give its name."""
        name = f"island-{self._started}"
        self._started += 1
        self._islands[name] = spawn_island(self.folder, name, {})
        return name

    def kill_island(self) -> str:
        """SIGKILL the youngest island; give its name."""
        name, process = self._islands.popitem()
        process.popen.kill()
        process.popen.wait()
        return name

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Give the run's events of one kind so far."""
        return [event for event in read_events(self.folder.path) if event["kind"] == kind]

    def wait(self, condition: Callable[[], _T | None], what: str) -> _T:
        """Wait until a condition gives something.

        Raises:
            ChildError: a process died, or the run failed.
            TimeoutError: it never came.
        """
        deadline = time.monotonic() + _TIMEOUT_S
        while not (value := condition()):
            self._check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.folder.path}: {what} did not come in {_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)
        return value

    def wait_for_commits(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many steps are committed; give the commit events."""

        def enough() -> list[dict[str, Any]] | None:
            commits = self.events("commit")
            return commits if len(commits) >= count else None

        return self.wait(enough, f"commit {count}")

    def _check_alive(self) -> None:
        for process in [self._coordinator, *self._islands.values()]:
            if not process.alive() and process.popen.returncode != 0:
                log = self.folder.log_of(process.name).read_text(errors="replace")
                raise ChildError(f"{process.name} ended early:\n{log[-1500:]}")
        for event in self.events("failed"):
            raise ChildError(f"the run failed: {event['error']}")

    def close(self) -> None:
        """End every process."""
        end_all([*self._islands.values(), self._coordinator], grace_s=0.0)

    def __enter__(self) -> Self:
        """Give the fleet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every process."""
        self.close()


def step_seconds(fleet: Fleet, steps: int) -> list[float]:
    """Give the seconds of some steps, from commit to commit; the first step is not counted.

    Args:
        fleet: a fleet that has just been started.
        steps: how many to measure.
    """
    commits = fleet.wait_for_commits(steps + 1)
    times = [commit["time"] for commit in commits[: steps + 1]]
    return [later - earlier for earlier, later in itertools.pairwise(times)]
