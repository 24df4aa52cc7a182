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

from collections.abc import Callable
from typing import Any

from runtime.coordinator.actions import (
    Action,
    AppendCheckpoint,
    AppendCommit,
    AppendEpoch,
    Close,
    Emit,
    Finish,
    Phase,
    Send,
)
from runtime.coordinator.checkpointing import CheckpointDuty
from runtime.coordinator.log import Commit
from runtime.coordinator.members import Island, island_order
from runtime.coordinator.plan import RunPlan
from runtime.coordinator.reduction import Reduction
from runtime.coordinator.shards import ShardBoard, Speed
from runtime.coordinator.wire import Message

_GATHER_TIMEOUT_S = 120.0
_SYNC_TIMEOUT_S = 300.0
_TICK_GAP_S = 1.0
_RING_FAILURES = 20
_MAX_REDOS = 32
"""Attempts at one step with a larger scale each: the first redo holds what the step showed, so
that more than a few mean that nothing will ever hold it."""

_TASK_FACTOR, _TASK_EXTRA_S, _TASK_LEAST_S = 10.0, 30.0, 120.0
"""A computation counts as wedged after so many times the island's own seconds a shard, plus the
extra; never before the least: a load, an apply and a first shard have no measure of their own."""


class Coordinator:
    """Membership, leases and commits of one run.

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

    # ------------------------------------------------------------------ events

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

    # ------------------------------------------------------------- membership

    def _gathered(self, now: float) -> None:
        """Start when everyone who is expected is here, or enough are and time is up."""
        present = set(self.islands)
        late = now - self._gather_since
        if self._expected:
            enough = self._expected <= present or (
                bool(present) and late > self.plan.heartbeat_timeout_s
            )
        else:
            enough = len(present) >= self.plan.islands or (
                len(present) >= self.plan.min_islands and late > _GATHER_TIMEOUT_S
            )
        if not enough:
            return
        self._expected = set()
        newest = max(island.step for island in self.islands.values())
        if newest < 0:
            self.phase = "load"
            for island in self.islands.values():
                self._start_load(island)
        else:
            self._begin_run(newest, now)

    def _start_load(self, island: Island) -> None:
        island.state = "loading"
        self._send(island.name, "load", request=self._new_request(island))

    def _begin_run(self, step: int, now: float) -> None:
        """Go on from `step` applied steps with every island that has that state."""
        if step < self.step:
            self._emit("rewound", from_step=self.step, to_step=step)
        self.step, self.attempt = step, 0
        self.reduction = None
        self.board = ShardBoard.fresh(self.plan.micro_shards)
        self.phase = "run"
        self._step_since = now
        ready = [i for i in self.islands.values() if i.step == step]
        for island in ready:
            island.state = "active"
            self._send(island.name, "reset", step=step, attempt=0)
        self._new_epoch("start")
        for island in self.islands.values():
            if island.state != "active":
                island.state = "empty"
        if step >= self.plan.total_steps:
            self.phase = "finish"

    def _admit(self, island: Island, attempt: int) -> None:
        """Take an island into a running step: with its own state, or with a donor's."""
        if (island.step, attempt) == (self.step, self.attempt):
            island.state = "active"
            self._send(island.name, "reset", step=self.step, attempt=self.attempt)
            self._new_epoch(f"{island.name} came back")
        elif not self.members:
            self._start_load(island)
            self.phase = "load"

    def _start_syncs(self, now: float) -> None:
        """Have a donor send the state of the step in flight to each joining island.

        Never while that step is being reduced: its commit would change the donor's state.
        """
        for island in self.islands.values():
            if island.state == "empty" and self.members:
                self._start_sync(island, now)

    def _start_sync(self, island: Island, now: float) -> None:
        donors = [n for n in self.members if n != island.donor] or list(self.members)
        donor = self.islands[donors[-1]]
        island.state, island.donor, island.sync_started = "syncing", donor.name, now
        self._send(
            island.name,
            "receive_state",
            request=self._new_request(island),
            step=self.step,
            attempt=self.attempt,
            donor=donor.name,
        )
        self._send(
            donor.name,
            "send_state",
            step=self.step,
            attempt=self.attempt,
            island=island.name,
            host=island.host,
            port=island.port,
        )

    def _cancel_send(self, island: Island) -> None:
        """Free the donor of an island that will not read on: it cannot apply while it sends."""
        if island.donor in self.islands:
            self._send(island.donor, "cancel_send", island=island.name)

    def _lose(self, name: str, reason: str, now: float) -> None:
        """Take an island out; what it held of the step in flight is given to others."""
        island = self.islands.pop(name, None)
        if island is None:
            return
        self.speeds.pop(name, None)
        self._emit("left", island=name, reason=reason)
        self.checkpoints.forget(name)
        if island.state == "syncing":
            self._cancel_send(island)
        was_member = name in self.members
        if was_member:
            self.members.remove(name)
        for other in self.islands.values():
            if other.state == "syncing" and other.donor == name:
                other.state = "empty"
        if self.phase == "load" and not any(i.state == "loading" for i in self.islands.values()):
            self._reload_or_wait(now)
        elif was_member and self.phase in {"run", "finish"}:
            self._lose_member(name, reason, now)

    def _lose_member(self, name: str, reason: str, now: float) -> None:
        if not self.members:
            self._reload_or_wait(now)
        elif self.reduction is not None and self.reduction.held_by_all(self.members):
            # Everyone left holds the whole sum already, the lost island's shards included.
            self._announce_epoch(f"{name}: {reason}")
        else:
            lost = sorted(s for s, owner in self.board.done.items() if owner == name)
            lost += self.board.held_by(name)
            self.board.forget(name)
            if self.phase == "run":
                self._emit("redo", step=self.step, reason="membership", shards=lost)
            self._new_epoch(f"{name}: {reason}")

    def _reload_or_wait(self, now: float) -> None:
        """No island holds the state any more: read the newest checkpoint, or wait for islands."""
        self.reduction = None
        self.members = []
        ready = [i for i in self.islands.values() if i.state == "active"]
        if ready:
            self._begin_run(max(i.step for i in ready), now)
        elif self.islands:
            self.phase = "load"
            for island in self.islands.values():
                self._start_load(island)
        else:
            self.phase = "gather"
            self._gather_since = now
            if self.stopping:
                self._end()

    def _new_epoch(self, reason: str) -> None:
        """Announce who is in, and let the step in flight be reduced again among them."""
        self.reduction = None
        self.members = sorted(
            (i.name for i in self.islands.values() if i.state == "active"), key=island_order
        )
        self._announce_epoch(reason)

    def _announce_epoch(self, reason: str) -> None:
        self.epoch += 1
        members = [self.islands[name] for name in self.members]
        for island in members:
            self.speeds.setdefault(island.name, Speed())
        self._out.append(AppendEpoch(self.epoch, tuple(self.members)))
        self._emit(
            "epoch", epoch=self.epoch, members=list(self.members), step=self.step, reason=reason
        )
        table = [{"name": i.name, "host": i.host, "port": i.port} for i in members]
        for island in members:
            self._send(island.name, "epoch", epoch=self.epoch, members=table)

    # ------------------------------------------------------------------- steps

    def _advance(self, now: float) -> None:
        """Do whatever the state now allows: lease, reduce, commit, checkpoint, end."""
        if self.reduction is None:
            self._start_syncs(now)
        if self.phase == "run":
            if self.reduction is None:
                self._lease(now)
                self._maybe_reduce()
            if self.reduction is not None:
                self._maybe_commit(now)
        if self.phase == "finish" and self.checkpoints.writing is None and self.members:
            self._final_checkpoint()

    def _lease(self, now: float) -> None:
        if self._too_few():
            return
        takers = [n for n in self.members if not self.islands[n].leaving] or self.members
        speeds = {n: self.speeds[n] for n in takers}
        for name in takers:
            depth = 2 if len(self.board.unstarted) > 2 * len(takers) else 1
            while len(self.board.held_by(name)) < depth:
                shard = self.board.lease(name, now, speeds)
                if shard is None:
                    break
                self._send(name, "lease", step=self.step, attempt=self.attempt, shard=shard)

    def _too_few(self) -> bool:
        """Tell whether shards are held back until more islands are in; a stop ends the step."""
        too_few = len(self.members) < self.plan.min_islands and not self.stopping
        if too_few and not self._waiting:
            least, members = self.plan.min_islands, list(self.members)
            self._emit("waiting", step=self.step, members=members, min_islands=least)
        self._waiting = too_few
        return too_few

    def _maybe_reduce(self) -> None:
        if not self.board.complete() or not self.members:
            return
        if any(i.state == "syncing" for i in self.islands.values()):
            return  # the newcomer gets this step's state, so it must take part in its sum
        shards = self.board.contributions()
        self.reduction = Reduction(shards)
        for name in self.members:
            self._send(
                name,
                "reduce",
                epoch=self.epoch,
                step=self.step,
                attempt=self.attempt,
                shards=shards.get(name, []),
            )

    def _maybe_commit(self, now: float) -> None:
        reduction = self.reduction
        if reduction is None or not reduction.held_by_all(self.members):
            return
        problem = reduction.problem(self.step, self.members)
        if problem is not None:
            self._fail(problem)
        elif reduction.overflowed(self.members):
            self._redo_larger(now)
        else:
            self._commit(reduction, now)

    def _redo_larger(self, now: float) -> None:
        """A gradient outgrew its block's scale: the step is done again with a larger one."""
        if self.attempt >= _MAX_REDOS:
            self._fail(
                f"step {self.step} outgrew its scale {_MAX_REDOS + 1} times in a row, each time "
                "a larger one: its gradients do not settle; lower optimizer.lr, set "
                "optimizer.grad_clip, or look at the data of this step"
            )
            return
        self._emit("redo", step=self.step, reason="overflow", attempt=self.attempt)
        self.attempt += 1
        self.board = ShardBoard.fresh(self.plan.micro_shards)
        self.reduction = None
        for name in self.members:
            self._send(name, "redo", step=self.step, attempt=self.attempt)
        self._lease(now)

    def _commit(self, reduction: Reduction, now: float) -> None:
        step, total = self.step, reduction.total(self.members)
        self._has_committed = True
        commit = Commit(
            step=step,
            epoch=self.epoch,
            attempt=self.attempt,
            members=tuple(self.members),
            shards=reduction.shards,
            sum_hash=total["hash"],
            loss=reduction.mean_loss(self.members),
            tokens=total["tokens"],
        )
        self._out.append(AppendCommit(commit))
        self._emit(
            "commit",
            step=step,
            loss=commit.loss,
            tokens=commit.tokens,
            epoch=self.epoch,
            attempt=self.attempt,
            seconds=round(now - self._step_since, 4),
            shards=commit.shards,
            members=list(self.members),
            sum_hash=commit.sum_hash,
            vanished=total["vanished"],
        )
        last = step + 1 >= self.plan.total_steps or self.stopping
        # When every island has notice, each commit may be the last that anyone holds.
        due = (
            last
            or self.checkpoints.due
            or (step + 1) % self.plan.checkpoint_every == 0
            or not self._staying()
        )
        writer = self.checkpoints.assign(step + 1, self._staying() or self.members) if due else None
        for name in self.members:
            self._send(name, "commit", step=step, hash_state=due, checkpoint=writer)
        self._next_step(now, last=last)

    def _next_step(self, now: float, *, last: bool) -> None:
        self.step += 1
        self.attempt = 0
        self._ring_failures = 0
        self.board = ShardBoard.fresh(self.plan.micro_shards)
        self.reduction = None
        self._step_since = now
        for name in self.members:
            self.islands[name].step = self.step
        if last:
            self.phase = "finish"
            return
        self._release_leavers(now)
        self._lease(now)

    def _release_leavers(self, now: float) -> None:
        gone = [n for n in self.members if self.islands[n].leaving]
        if not gone or not self._staying():
            return  # an island that nobody can follow goes on until it is taken away
        for name in gone:
            self._send(name, "exit", reason="left")
            self.islands.pop(name)
            self.speeds.pop(name, None)
            self._emit("left", island=name, reason="notice")
            self.checkpoints.forget(name)
        self._new_epoch("islands left on notice")

    def _final_checkpoint(self) -> None:
        """Have the final state made durable, by another island where the first writer died."""
        if self.checkpoints.last == self.step:
            self._end()
            return
        ready = [n for n in self.members if self.islands[n].step == self.step]
        if ready:
            self.checkpoints.reassign(self.step, ready[0])
            self._send(ready[0], "checkpoint", step=self.step)

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

    # ----------------------------------------------------------------- helpers

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


_UNBOUND = {"hello", "tick", "stop", "failure", "stranger"}
