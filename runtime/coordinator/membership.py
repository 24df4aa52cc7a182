"""Who is in: islands that gather, load, join with a donor's state, leave and die."""

from __future__ import annotations

from runtime.coordinator.actions import AppendEpoch
from runtime.coordinator.members import Island, island_order
from runtime.coordinator.run_state import RunState
from runtime.coordinator.shards import ShardBoard, Speed

_GATHER_TIMEOUT_S = 120.0


class Membership(RunState):
    """The islands of a run and its membership epochs."""

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
        if step < self.step or (step and self.phase == "load"):
            self._emit("restored", from_step=self.step, to_step=step)
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
