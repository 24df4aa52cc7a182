"""An island's step logic as a state machine: events in, actions out, no I/O.

The island computes one thing at a time (a micro-shard, an apply, a load), keeps the integer sums
of the shards that it has finished in this step, and gives them up only when the coordinator says
that the step is committed, or that it starts over. What it holds after any message decides what it
can answer, so a lost coordinator, a late message or a slow neighbour never leaves it with sums
that nobody counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from runtime.coordinator.wire import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the coordinator, if it is there; it is told again after a reconnect."""

    message: Message


@dataclass(frozen=True, slots=True)
class Do:
    """Carry out one thing; its end comes back as an event.

    Kinds, with their fields: `run_shard` (step, shard), `fold`, `discard`, `drop_last`, `clear`
    (base: back to the committed scale), `start_ring` (epoch, step, attempt, members), `abort_ring`,
    `apply` (step, hash_state), `raise_scale`, `load`, `receive_state` (ticket, step, attempt,
    donor), `install` (ticket, step, attempt), `send_state` (step, attempt, island, host, port),
    `cancel_send` (island),
    `checkpoint` (step), `exit` (reason).
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


Action = Send | Do


@dataclass(slots=True)
class _Task:
    """What is being computed now; `generation` tells whether its result still counts."""

    kind: str
    generation: int


class IslandCore:
    """One island's view of the step in flight.

    Args:
        name: the island's name, unique in the run.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.step = -1
        self.attempt = 0
        self.epoch = 0
        self.folded: list[int] = []
        self._members: list[dict[str, Any]] = []
        self._leases: deque[int] = deque()
        self._generation = 0
        self._task: _Task | None = None
        self._running_shard: int | None = None
        self._can_drop = False
        self._ring: tuple[int, int, int] | None = None
        self._reduce: Message | None = None
        self._sum: Message | None = None
        self._commit: Message | None = None
        self._load_wanted = False
        self._request = 0
        self._receiving: int | None = None
        self._arrived: Message | None = None
        self._checkpoint_step: int | None = None
        self._sends_wanted: list[Message] = []
        self._sending = 0
        self._leaving: str | None = None
        self._out: list[Action] = []

    def handle(self, event: Message) -> list[Action]:
        """Take a message of the coordinator or an internal event; give the actions in order."""
        self._out = []
        handler = getattr(self, f"_on_{event['type']}", None)
        if handler is not None:
            handler(event)
        self._continue()
        return self._out

    # ------------------------------------------------------------- connection

    def _on_connected(self, event: Message) -> None:
        """The coordinator is reachable: say who we are and what we hold."""
        if self.step < 0:
            self._start_over(step=-1, attempt=0)  # what the last coordinator asked for is void
        held = None
        if self._sum is not None:
            held = {"step": self._sum["step"], "hash": self._sum["hash"]}
        self._send(
            "hello", island=self.name, step=self.step, attempt=self.attempt, sum=held, **event["me"]
        )
        if self._leaving is not None:
            self._send("leaving", reason=self._leaving)

    def _on_notice(self, event: Message) -> None:
        """This node will be taken away: take no more shards, go after the next commit."""
        if self._leaving is None:
            self._leaving = event["reason"]
            self._send("leaving", reason=self._leaving)

    def _on_exit(self, event: Message) -> None:
        self._do("exit", reason=event["reason"])

    # ------------------------------------------------------ state of the island

    def _on_load(self, event: Message) -> None:
        """Nobody holds the state: read the newest checkpoint."""
        self._start_over(step=-1, attempt=0)
        self._request = event["request"]
        self._load_wanted = True

    def _on_loaded(self, event: Message) -> None:
        if not self._end_task():
            return
        self.step, self.attempt = event["step"], 0
        self._send(
            "loaded", request=self._request, step=event["step"], state_hash=event["state_hash"]
        )

    def _on_reset(self, event: Message) -> None:
        """Our state is the one that counts, our sums of this step are not."""
        if event["step"] != self.step:
            return
        base = event["attempt"] != self.attempt
        self._start_over(step=self.step, attempt=event["attempt"])
        self._do("clear", base=base)

    def _on_receive_state(self, event: Message) -> None:
        self._start_over(step=-1, attempt=0)
        self._request = event["request"]
        self._receiving = self._generation
        self._do(
            "receive_state", ticket=self._receiving, **_pick(event, "step", "attempt", "donor")
        )

    def _on_state_arrived(self, event: Message) -> None:
        """A donor's state is in host memory; take it only if it is still the one we wait for."""
        if event["ticket"] == self._receiving:
            self._receiving = None
            self._arrived = event

    def _on_installed(self, event: Message) -> None:
        if self._end_task():
            self.step, self.attempt = event["step"], event["attempt"]
            self._send("synced", request=self._request, step=self.step, attempt=self.attempt)

    def _on_receive_failed(self, event: Message) -> None:
        if event["ticket"] == self._receiving:
            self._receiving = None
            self._send("sync_failed", request=self._request, reason=event["reason"])

    def _on_send_state(self, event: Message) -> None:
        self._sends_wanted.append(event)

    def _on_cancel_send(self, event: Message) -> None:
        """The receiver is gone; a hand-over under way ends at once, as `state_sent`."""
        island = event["island"]
        self._sends_wanted = [w for w in self._sends_wanted if w["island"] != island]
        self._do("cancel_send", island=island)

    def _on_state_sent(self, event: Message) -> None:
        self._sending -= 1

    def _start_over(self, *, step: int, attempt: int) -> None:
        self._generation += 1
        self.step, self.attempt = step, attempt
        self._leases.clear()
        self.folded = []
        self._can_drop = False
        self._sum = self._reduce = self._commit = None
        self._load_wanted = False
        self._receiving = self._arrived = None
        self._abort_ring()

    def _end_task(self) -> bool:
        """Take the end of a computation in; False when it was overtaken and counts no more."""
        task, self._task = self._task, None
        return task is not None and task.generation == self._generation

    # ------------------------------------------------------------------ shards

    def _on_lease(self, event: Message) -> None:
        shard = event["shard"]
        if not self._is_ahead(event) or shard in self._leases:
            return
        current = event["step"] == self.step
        if current and shard in self.folded:
            # Another island's result counted, we could not take ours out, and now theirs is lost.
            self._send("done", step=self.step, attempt=self.attempt, shard=shard, seconds=None)
        elif not (current and self._is_running(shard)):
            self._leases.append(shard)

    def _is_running(self, shard: int) -> bool:
        task = self._task
        return (
            task is not None and task.generation == self._generation
        ) and self._running_shard == shard

    def _is_ahead(self, event: Message) -> bool:
        """Leases of the next step come before we have applied this one; late ones are dropped."""
        if self._commit is not None and event["step"] == self.step + 1:
            return True
        return (event["step"], event["attempt"]) == (self.step, self.attempt)

    def _on_shard_finished(self, event: Message) -> None:
        shard, self._running_shard = self._running_shard, None
        if not self._end_task() or self._reduce is not None or self._commit is not None:
            self._do("discard")
            return
        self._do("fold")
        self.folded.append(event["shard"])
        self._can_drop = True
        self._send(
            "done",
            step=self.step,
            attempt=self.attempt,
            shard=shard,
            seconds=round(event["seconds"], 6),
        )

    def _on_drop(self, event: Message) -> None:
        """Another island's result for this shard counts; take ours out if it was the last."""
        same = (event["step"], event["attempt"]) == (self.step, self.attempt)
        if same and self._can_drop and self.folded and self.folded[-1] == event["shard"]:
            self._drop_last()

    def _drop_last(self) -> None:
        self.folded.pop()
        self._can_drop = False
        self._do("drop_last")

    # --------------------------------------------------------------- reduction

    def _on_epoch(self, event: Message) -> None:
        """Who is in has changed; a finished sum stays good, a running ring does not."""
        self.epoch, self._members = event["epoch"], event["members"]
        self._reduce = None
        self._abort_ring()

    def _on_reduce(self, event: Message) -> None:
        self._reduce = event
        self._leases.clear()

    def _begin_ring(self, reduce: Message) -> None:
        wanted = sorted(reduce["shards"])
        if self._can_drop and sorted(self.folded[:-1]) == wanted:
            self._drop_last()
        if sorted(self.folded) != wanted:
            self._generation += 1
            self.folded, self._can_drop = [], False
            self._reduce = None
            self._do("clear", base=False)
            self._send("cannot_reduce", **_pick(reduce, "epoch", "step", "attempt"))
            return
        self._ring = (reduce["epoch"], reduce["step"], reduce["attempt"])
        self._sum = None
        self._do("start_ring", members=self._members, **_pick(reduce, "epoch", "step", "attempt"))

    def _on_ring_done(self, event: Message) -> None:
        if self._ring != (event["epoch"], event["step"], event["attempt"]):
            return
        self._ring = None
        self._sum = event
        self._send("summed", **{k: v for k, v in event.items() if k != "type"})

    def _on_ring_error(self, event: Message) -> None:
        if self._ring != (event["epoch"], event["step"], event["attempt"]):
            return
        self._ring = self._reduce = None
        self._send("ring_failed", **_pick(event, "epoch", "step", "attempt", "reason"))

    def _abort_ring(self) -> None:
        if self._ring is not None:
            self._ring = None
            self._do("abort_ring")

    # ------------------------------------------------------------ commit, redo

    def _on_commit(self, event: Message) -> None:
        if event["step"] == self.step and self._sum is not None:
            self._commit = event
            self._reduce = None
            self._leases.clear()

    def _on_applied(self, event: Message) -> None:
        self._task = None
        commit, self._commit = self._commit, None
        self._generation += 1
        self.step, self.attempt = event["step"], 0
        self.folded, self._sum, self._can_drop = [], None, False
        self._send(
            "applied",
            step=event["step"],
            grad_norm=event["grad_norm"],
            state_hash=event["state_hash"],
        )
        if commit is not None and commit["checkpoint"] == self.name:
            self._checkpoint_step = self.step

    def _on_redo(self, event: Message) -> None:
        """The step overflowed its scale; everyone raises it from the same sums."""
        if event["step"] != self.step or self._sum is None:
            return
        self._do("raise_scale")
        self._start_over(step=self.step, attempt=event["attempt"])

    def _on_checkpoint(self, event: Message) -> None:
        self._checkpoint_step = event["step"]

    def _on_snapshot_taken(self, event: Message) -> None:
        self._task = None

    def _on_checkpointed(self, event: Message) -> None:
        self._send("checkpointed", **{k: v for k, v in event.items() if k != "type"})

    def _on_checkpoint_failed(self, event: Message) -> None:
        self._send("checkpoint_failed", step=event["step"], error=event["error"])

    def _on_fatal(self, event: Message) -> None:
        self._send("error", error=event["error"])

    # ------------------------------------------------------------ what is next

    def _continue(self) -> None:
        """Start whatever can start; one computation at a time, commits before new shards."""
        self._maybe_ring()
        if self._task is not None:
            return
        if self._load_wanted:
            self._load_wanted = False
            self._start("load")
        elif self._arrived is not None:
            arrived, self._arrived = self._arrived, None
            self._start("install", **_pick(arrived, "ticket", "step", "attempt"))
        elif self._commit is not None and not self._sending:
            self._start("apply", step=self.step, hash_state=self._commit["hash_state"])
        elif self._checkpoint_step is not None and self._checkpoint_step == self.step:
            self._checkpoint_step = None
            self._start("checkpoint", step=self.step)
        else:
            self._send_states()
            if self._leases and self._commit is None and self.step >= 0:
                self._running_shard = self._leases.popleft()
                self._can_drop = False
                self._start("run_shard", step=self.step, shard=self._running_shard)

    def _maybe_ring(self) -> None:
        reduce = self._reduce
        if reduce is None or self._ring is not None or self._commit is not None:
            return
        ready = (reduce["step"], reduce["attempt"]) == (self.step, self.attempt)
        if ready and reduce["epoch"] == self.epoch and self._sum_epoch() != self.epoch:
            self._begin_ring(reduce)

    def _sum_epoch(self) -> int | None:
        return None if self._sum is None else self._sum["epoch"]

    def _send_states(self) -> None:
        """Hand the state to each island that waits for this step's; forget older requests."""
        waiting, self._sends_wanted = self._sends_wanted, []
        for wanted in waiting:
            if (wanted["step"], wanted["attempt"]) == (self.step, self.attempt):
                self._sending += 1
                self._do("send_state", **_pick(wanted, "step", "attempt", "island", "host", "port"))
            elif (wanted["step"], wanted["attempt"]) > (self.step, self.attempt):
                self._sends_wanted.append(wanted)

    def _start(self, kind: str, /, **fields: Any) -> None:
        self._task = _Task(kind, self._generation)
        self._do(kind, **fields)

    def _send(self, kind: str, /, **fields: Any) -> None:
        self._out.append(Send({"type": kind, **fields}))

    def _do(self, kind: str, /, **fields: Any) -> None:
        self._out.append(Do(kind, fields))


def _pick(message: Message, *names: str) -> dict[str, Any]:
    return {name: message[name] for name in names}
