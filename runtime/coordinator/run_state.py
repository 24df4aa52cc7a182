"""What the coordinator knows of its run, and how a run ends; the ground of its state machine.

Three layers stand on each other, each calling only downwards: this state, then who is in
(`membership`), then the step in flight (`steps`); `core` turns events into calls of them. All of
them only collect actions; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.coordinator.actions import Action, Emit, Finish, Phase, Send
from runtime.coordinator.checkpointing import CheckpointDuty
from runtime.coordinator.members import Island
from runtime.coordinator.plan import RunPlan
from runtime.coordinator.reduction import Reduction
from runtime.coordinator.shards import ShardBoard, Speed
from runtime.coordinator.wire import Message


class RunState:
    """The run as the coordinator sees it.

    Args:
        plan: the run's plan.
        last_step: the highest committed step in the log, or -1.
        last_epoch: the newest membership epoch in the log.
        expected: islands that are alive already (a restart), or empty for a first start.
        now: the time, in seconds on a monotonic clock.
        known_sum: gives the logged hash of a committed step, or None.
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        last_step: int,
        last_epoch: int,
        expected: tuple[str, ...],
        now: float,
        known_sum: Callable[[int], str | None],
    ) -> None:
        self.plan = plan
        self.phase: Phase = "gather"
        self.step = last_step + 1
        self.attempt = 0
        self.epoch = last_epoch
        self.members: list[str] = []
        self.islands: dict[str, Island] = {}
        self.speeds: dict[str, Speed] = {}
        self.board = ShardBoard.fresh(plan.micro_shards)
        self.reduction: Reduction | None = None
        self.stopping = False
        self.error: str | None = None
        self.chip_class: str | None = None
        self.checkpoints = CheckpointDuty()
        self._expected = set(expected)
        self._known_sum = known_sum
        self._gather_since = now
        self._step_since = now
        self._last_tick = now
        self._ring_failures = 0
        self._requests = 0
        self._waiting = False
        self._has_committed = False
        self._out: list[Action] = []

    def _check_state(self, step: int, state_hash: str, island: str) -> None:
        """Compare the state hashes of all islands after one step."""
        problem = self.checkpoints.disagreement(step, state_hash, island)
        if problem is not None:
            self._fail(problem)

    def _end(self) -> None:
        complete = self.step >= self.plan.total_steps and self.checkpoints.last == self.step
        self.phase = "done" if complete else "stopped"
        self._emit(self.phase, step=self.step, state_hash=self.checkpoints.state_hash(self.step))
        self._leave_all(self.phase)

    def _fail(self, error: str) -> None:
        if self.phase == "failed":
            return
        self.phase, self.error = "failed", error
        self._emit("failed", error=error, step=self.step)
        self._leave_all("failed")

    def _leave_all(self, reason: str) -> None:
        for name in self.islands:
            self._send(name, "exit", reason=reason)
        self._out.append(Finish(self.phase))

    def _new_request(self, island: Island) -> int:
        """Number a request for a state, so that the answer to an older one is not taken for it."""
        self._requests += 1
        island.request = self._requests
        return self._requests

    def _staying(self) -> list[str]:
        return [n for n in self.members if not self.islands[n].leaving]

    def _is_current(self, event: Message) -> bool:
        return (event["epoch"], event["step"], event["attempt"]) == (
            self.epoch,
            self.step,
            self.attempt,
        )

    def _send(self, island: str, kind: str, /, **fields: Any) -> None:
        self._out.append(Send(island, {"type": kind, **fields}))

    def _emit(self, kind: str, /, **fields: Any) -> None:
        self._out.append(Emit(kind, fields))
