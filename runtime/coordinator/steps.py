"""The step in flight: leases, the reduction, the commit, and the checkpoint after it."""

from __future__ import annotations

from runtime.coordinator.actions import AppendCommit
from runtime.coordinator.commit_log import Commit
from runtime.coordinator.membership import Membership
from runtime.coordinator.reduction import Reduction
from runtime.coordinator.shards import ShardBoard

_MAX_REDOS = 32
"""Attempts at one step with a larger scale each: the first redo holds what the step showed, so
that more than a few mean that nothing will ever hold it."""


class Steps(Membership):
    """The steps of a run, one after another."""

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
