"""The coordinator as a state machine: events in, actions out, no socket, clock, disk or process.

`Coordinator.handle` takes a message of an island, `connected`, `lost` and `tick` events, each with
the time, and gives the actions to carry out in order. Appending to the log is an action too, and
comes before every message that relies on it; the server carries actions out one by one and stops
at the first that fails. So one seeded scheduler can run a whole fleet in a test.

Phases: `gather` (wait for islands), `load` (no island has a state: all read the newest
checkpoint), `run`, `finish` (all steps are committed, or a stop was asked for; the last checkpoint
is being written), then `done`, `stopped` or `failed`.
"""

from __future__ import annotations

from runtime.coordinator.actions import (
    Action,
    AppendCheckpoint,
    Close,
)
from runtime.coordinator.members import Island
from runtime.coordinator.shards import Speed
from runtime.coordinator.steps import Steps
from runtime.coordinator.wire import Message

_SYNC_TIMEOUT_S = 300.0
_TICK_GAP_S = 1.0
_RING_FAILURES = 20
_TASK_FACTOR, _TASK_EXTRA_S, _TASK_LEAST_S = 10.0, 30.0, 120.0
"""A computation counts as wedged after so many times the island's own seconds a shard, plus the
extra; never before the least: a load, an apply and a first shard have no measure of their own."""


class Coordinator(Steps):
    """Membership, leases and commits of one run: takes events, gives actions.

    Args: those of `RunState`.
    """

    def handle(self, event: Message, now: float) -> list[Action]:
        """Take one event and give the actions that it causes, in order.

        Args:
            event: a message of an island with the field `island` added, or one of
                `{"type": "lost", "island", "reason"}`, `{"type": "tick"}`, `{"type": "stop"}`,
                `{"type": "failure", "error"}`, `{"type": "stranger", "name", "reason"}`.
            now: seconds on a monotonic clock.
        """
        self._out = []
        name = event.get("island")
        if name in self.islands:
            self.islands[name].last_seen = now
        handler = getattr(self, f"_on_{event['type']}", None)
        if handler is not None and (name in self.islands or event["type"] in _UNBOUND):
            handler(event, now)
        if self.phase in {"run", "finish"}:
            self._advance(now)
        return self._out

    def _on_hello(self, event: Message, now: float) -> None:
        """Take an island in: a new one, or one that comes back with what it holds."""
        name = event["island"]
        if name in self.islands:
            self._lose(name, "it connected again", now)
        island = Island(
            name=name, pid=event["pid"], host=event["host"], port=event["port"], last_seen=now
        )
        self.islands[name] = island
        island.step = event["step"]
        chip_class = event.get("chip_class")
        if self._refuses(chip_class):
            self._refuse(name, chip_class)
            return
        self._emit("joined", island=name, pid=island.pid, chip_class=chip_class)
        held, attempt = event.get("sum"), event["attempt"]
        if held is not None and self._known_sum(island.step) == held["hash"]:
            # The step was committed, and the word of it was lost with the last coordinator.
            self._send(name, "commit", step=island.step, hash_state=False, checkpoint=None)
            island.step, attempt = island.step + 1, 0
        if self.phase == "gather":
            self._gathered(now)
        elif self.phase == "load":
            self._start_load(island)
        elif self.phase in {"run", "finish"}:
            self._admit(island, attempt)

    def _refuses(self, chip_class: str | None) -> bool:
        """Tell whether an island would compute other bits than the ones that count here."""
        others = len(self.islands) > 1
        if not others and not self._has_committed:
            self.chip_class = chip_class
        return chip_class != self.chip_class

    def _refuse(self, name: str, chip_class: str | None) -> None:
        reason = f"chip class {chip_class}; this run's islands have {self.chip_class}"
        self._send(name, "exit", reason="refused")
        del self.islands[name]
        self._emit("refused", island=name, reason=reason)

    def _on_loaded(self, event: Message, now: float) -> None:
        """An island has read the newest checkpoint."""
        island = self.islands[event["island"]]
        if island.state != "loading" or event["request"] != island.request:
            return
        island.state, island.step = "active", event["step"]
        self.checkpoints.last = max(self.checkpoints.last, event["step"])
        self._check_state(event["step"], event["state_hash"], island.name)
        if any(i.state == "loading" for i in self.islands.values()):
            return
        newest = max(i.step for i in self.islands.values())
        self._begin_run(newest, now)

    def _on_stranger(self, event: Message, now: float) -> None:
        """An island of another run was turned away at the door."""
        self._emit("refused", island=event["name"], reason=event["reason"])

    def _on_heartbeat(self, event: Message, now: float) -> None:
        """Every message is a sign of life; this one also tells of the computation under way."""
        name, task_s = event["island"], event["task_s"]
        mine = self.speeds.get(name, Speed()).seconds_per_shard or 0.0
        if task_s > max(_TASK_FACTOR * mine + _TASK_EXTRA_S, _TASK_LEAST_S):
            # Its loop lives and its computation does not: only a new process can help.
            self._send(name, "exit", reason="wedged")
            self._lose(name, f"its computation has hung for {task_s:.0f} s", now)

    def _on_done(self, event: Message, now: float) -> None:
        """An island finished a micro-shard."""
        name, shard = event["island"], event["shard"]
        if (event["step"], event["attempt"]) != (self.step, self.attempt):
            return
        if not 0 <= shard < self.plan.micro_shards:
            return
        if event["seconds"] is not None:
            self.speeds.setdefault(name, Speed()).observe(event["seconds"])
        self.islands[name].shards_done += 1
        if self.reduction is not None or not self.board.finish(shard, name, now):
            self._send(name, "drop", step=self.step, attempt=self.attempt, shard=shard)

    def _on_cannot_reduce(self, event: Message, now: float) -> None:
        """An island's sums hold a shard that does not count; it has cleared them."""
        if self._is_current(event):
            self.board.forget(event["island"])
            self._new_epoch("an island started its shards again")

    def _on_ring_failed(self, event: Message, now: float) -> None:
        """An island lost a neighbour in the ring; the others of that epoch will fail too."""
        if not self._is_current(event):
            return
        self._ring_failures += 1
        if self._ring_failures > _RING_FAILURES:
            self._fail(f"the ring failed {_RING_FAILURES} times in a row: {event['reason']}")
        else:
            self._new_epoch(event["reason"])

    def _on_summed(self, event: Message, now: float) -> None:
        """An island holds the step's sum."""
        if self._is_current(event) and self.reduction is not None:
            self.reduction.sums[event["island"]] = event

    def _on_applied(self, event: Message, now: float) -> None:
        """An island applied a committed step."""
        island = self.islands[event["island"]]
        island.step = max(island.step, event["step"])
        if self.members and island.name == self.members[0]:
            self._emit("applied", step=event["step"] - 1, grad_norm=event["grad_norm"])
        if event.get("state_hash") is not None:
            self._check_state(event["step"], event["state_hash"], island.name)

    def _on_synced(self, event: Message, now: float) -> None:
        """A joining island has the state of the step in flight."""
        island = self.islands[event["island"]]
        if island.state != "syncing" or event["request"] != island.request:
            return
        if (event["step"], event["attempt"]) != (self.step, self.attempt):
            island.state = "empty"
            return
        island.state, island.step, island.donor = "active", event["step"], None
        self._new_epoch(f"{island.name} joined")

    def _on_sync_failed(self, event: Message, now: float) -> None:
        """A state transfer broke; try again, from another donor where there is one."""
        island = self.islands[event["island"]]
        if island.state == "syncing" and event["request"] == island.request:
            island.state = "empty"

    def _on_checkpointed(self, event: Message, now: float) -> None:
        """A checkpoint is durable."""
        step = event["step"]
        self._check_state(step, event["state_hash"], event["island"])
        if self.phase == "failed":
            return
        self._out.append(AppendCheckpoint(step, event["state_hash"], event["path"]))
        self._emit(
            "checkpoint",
            **{k: event[k] for k in ("step", "state_hash", "path", "seconds", "stall_s")},
            writer=event["island"],
        )
        self.checkpoints.written(step)
        if self.phase == "finish" and step == self.step:
            self._end()

    def _on_checkpoint_failed(self, event: Message, now: float) -> None:
        """A checkpoint could not be written: the last one ends the run, others are tried again."""
        self._emit("checkpoint_failed", step=event["step"], error=event["error"])
        self.checkpoints.failed()
        if self.phase == "finish":
            self._fail(f"the last checkpoint cannot be written: {event['error']}")

    def _on_leaving(self, event: Message, now: float) -> None:
        """An island has notice of its end: it gets no more shards and goes after a commit.

        It stays while no other island could go on with the state.
        """
        island = self.islands[event["island"]]
        if not island.leaving:
            island.leaving = True
            self._emit("leaving", island=island.name, reason=event.get("reason", "notice"))

    def _on_error(self, event: Message, now: float) -> None:
        """An island met an error that no other island would escape."""
        self._fail(f"{event['island']}: {event['error']}")

    def _on_failure(self, event: Message, now: float) -> None:
        """The server could not carry an action out, such as a commit that the log refuses."""
        self._fail(event["error"])

    def _on_lost(self, event: Message, now: float) -> None:
        """An island's connection is gone."""
        self._lose(event["island"], event["reason"], now)

    def _on_stop(self, event: Message, now: float) -> None:
        """The user wants the run to end resumably after the step in flight."""
        self.stopping = True
        if self.phase in {"gather", "load"}:
            self._end()

    def _on_tick(self, event: Message, now: float) -> None:
        """Look for silent islands and late joiners; call it several times a second."""
        gap = now - self._last_tick
        self._last_tick = now
        if gap > _TICK_GAP_S:
            # We were stopped or starved ourselves: nobody's silence counts for that time.
            for island in self.islands.values():
                island.last_seen += gap
            return
        for island in list(self.islands.values()):
            if now - island.last_seen > self.plan.heartbeat_timeout_s:
                self._out.append(Close(island.name, "no heartbeat"))
                self._lose(island.name, "no heartbeat", now)
            elif island.state == "syncing" and now - island.sync_started > _SYNC_TIMEOUT_S:
                self._cancel_send(island)
                island.state = "empty"
        if self.phase == "gather":
            self._gathered(now)


_UNBOUND = {"hello", "tick", "stop", "failure", "stranger"}
