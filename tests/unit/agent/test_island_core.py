"""An island's step logic, message by message: what it holds always agrees with what it says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.agent.core import Action, Do, IslandCore, Send

ME = {"pid": 1, "host": "127.0.0.1", "port": 2, "token": "t"}
MEMBERS = [{"name": "island-0", "host": "h", "port": 1}]


class Driver:
    """Feeds one island and keeps what it asked for."""

    def __init__(self, *, step: int = 0) -> None:
        self.core = IslandCore("island-0")
        self.tell("connected", me=ME)
        self.tell("load", request=1)
        self.tell("loaded", step=step, state_hash="s")
        self.tell("reset", step=step, attempt=0)
        self.tell("epoch", epoch=1, members=MEMBERS)

    def tell(self, kind: str, /, **fields: Any) -> list[Action]:
        self.last = self.core.handle({"type": kind, **fields})
        return self.last

    def sent(self, kind: str) -> list[dict[str, Any]]:
        return [a.message for a in self.last if isinstance(a, Send) and a.message["type"] == kind]

    def done(self, kind: str) -> list[dict[str, Any]]:
        return [a.fields for a in self.last if isinstance(a, Do) and a.kind == kind]

    def kinds(self) -> list[str]:
        return [a.kind if isinstance(a, Do) else a.message["type"] for a in self.last]

    def lease(self, shard: int, *, step: int = 0, attempt: int = 0) -> list[Action]:
        return self.tell("lease", step=step, attempt=attempt, shard=shard)

    def finish(self, shard: int, *, step: int = 0) -> list[Action]:
        return self.tell("shard_finished", step=step, shard=shard, seconds=0.5)

    def compute(self, *shards: int) -> None:
        for shard in shards:
            self.lease(shard)
            self.finish(shard)

    def reduce(self, shards: list[int], *, epoch: int = 1, step: int = 0, attempt: int = 0) -> None:
        self.tell("reduce", epoch=epoch, step=step, attempt=attempt, shards=shards)

    def ring_done(self, *, epoch: int = 1, step: int = 0, attempt: int = 0, h: str = "h") -> None:
        self.tell("ring_done", epoch=epoch, step=step, attempt=attempt, hash=h, overflow=0)

    def commit(self, *, step: int = 0, checkpoint: str | None = None) -> list[Action]:
        return self.tell("commit", step=step, hash_state=False, checkpoint=checkpoint)

    def applied(self, *, step: int = 1) -> list[Action]:
        return self.tell("applied", step=step, grad_norm=1.0, state_hash=None)


def test_one_step_from_lease_to_the_next_step_s_state() -> None:
    island = Driver()
    island.lease(3)
    assert island.done("run_shard") == [{"step": 0, "shard": 3}]
    island.finish(3)
    assert island.kinds()[:2] == ["fold", "done"]
    assert island.sent("done")[0]["seconds"] == 0.5
    island.reduce([3])
    assert island.done("start_ring") == [{"members": MEMBERS, "epoch": 1, "step": 0, "attempt": 0}]
    island.ring_done()
    assert island.sent("summed")[0]["hash"] == "h"
    island.commit()
    assert island.done("apply") == [{"step": 0, "hash_state": False}]
    island.applied()
    assert island.sent("applied")[0]["step"] == 1
    assert (island.core.step, island.core.attempt, island.core.folded) == (1, 0, [])


# ---------------------------------------------------------------------------------------- leases


def test_a_lease_that_comes_twice_is_computed_once() -> None:
    island = Driver()
    island.lease(3)
    assert island.lease(3) == [], "it is being computed"
    island.lease(4)
    assert island.lease(4) == [], "it is queued"
    island.finish(3)
    assert island.done("run_shard") == [{"step": 0, "shard": 4}]
    island.finish(4)
    assert island.done("run_shard") == []
    assert island.core.folded == [3, 4]


def test_a_folded_shard_that_is_leased_again_is_told_and_not_computed_again() -> None:
    """Found by the simulation: a doubled shard entered a sum.

    Another island's result for shard 3 counted, ours could not be taken out any more, then that
    island died and shard 3 came back to us.
    """
    island = Driver()
    island.compute(3, 4)
    island.tell("drop", step=0, attempt=0, shard=3)
    assert island.done("drop_last") == [], "shard 4 lies on top of it"
    island.lease(3)
    assert island.done("run_shard") == []
    assert island.sent("done") == [
        {"type": "done", "step": 0, "attempt": 0, "shard": 3, "seconds": None}
    ]
    assert island.core.folded == [3, 4]


@pytest.mark.parametrize(("step", "attempt"), [(1, 0), (0, 1), (7, 0)])
def test_a_lease_of_another_step_or_attempt_is_dropped(step: int, attempt: int) -> None:
    assert Driver().lease(3, step=step, attempt=attempt) == []


def test_a_lease_of_the_next_step_waits_for_the_commit_that_it_came_after() -> None:
    island = Driver()
    island.compute(0)
    island.reduce([0])
    island.ring_done()
    island.commit()
    island.lease(5, step=1)
    assert island.done("run_shard") == []
    island.applied()
    assert island.done("run_shard") == [{"step": 1, "shard": 5}]


# -------------------------------------------------------------------------------- drop, reduction


def test_the_newest_shard_is_taken_out_when_another_result_counts() -> None:
    island = Driver()
    island.compute(3, 4)
    island.tell("drop", step=0, attempt=0, shard=4)
    assert island.kinds() == ["drop_last"]
    island.tell("drop", step=0, attempt=0, shard=4)
    assert island.kinds() == [], "only once"
    island.reduce([3])
    assert island.done("start_ring")


def test_a_drop_is_not_possible_once_the_next_shard_uses_the_memory() -> None:
    island = Driver()
    island.compute(3)
    island.lease(4)
    island.tell("drop", step=0, attempt=0, shard=3)
    assert island.done("drop_last") == []


def test_a_shard_too_much_is_taken_out_before_the_ring_or_the_sums_start_over() -> None:
    newest = Driver()
    newest.compute(3, 4)
    newest.reduce([3])
    assert newest.kinds() == ["drop_last", "start_ring"]
    older = Driver()
    older.compute(3, 4)
    older.reduce([4])
    assert older.kinds() == ["clear", "cannot_reduce"]
    assert older.core.folded == []
    older.reduce([4])
    assert "start_ring" not in older.kinds(), "it holds nothing of that any more"


def test_a_shard_on_top_of_sums_that_were_cleared_is_discarded() -> None:
    """The program adds to the sums that it began with: folding it would bring them back."""
    island = Driver()
    island.compute(3, 4)
    island.lease(5)
    island.reduce([4])
    assert island.kinds() == ["clear", "cannot_reduce"]
    island.finish(5)
    assert island.kinds() == ["discard"]
    assert island.core.folded == []


def test_a_shard_too_few_starts_no_ring() -> None:
    island = Driver()
    island.compute(3)
    island.reduce([3, 4])
    assert island.sent("cannot_reduce") == [
        {"type": "cannot_reduce", "epoch": 1, "step": 0, "attempt": 0}
    ]


def test_a_result_that_comes_after_the_reduction_began_is_discarded() -> None:
    island = Driver()
    island.compute(3)
    island.lease(4)  # a second run of a straggler's shard
    island.reduce([3])
    assert island.done("start_ring")
    island.finish(4)
    assert island.kinds() == ["discard"]
    assert island.core.folded == [3]


@pytest.mark.parametrize(
    "other", [{"epoch": 2}, {"epoch": 0}, {"step": 1}, {"step": 0, "attempt": 1}]
)
def test_a_reduction_of_another_epoch_step_or_attempt_starts_no_ring(
    other: dict[str, int],
) -> None:
    island = Driver()
    island.compute(3)
    island.reduce([3], **other)
    assert "start_ring" not in island.kinds()
    assert island.core.folded == [3]


def test_a_new_epoch_breaks_the_ring_and_its_late_end_does_not_count() -> None:
    """Case pytorch#182221, kubeflow/trainer#1638: a node is lost in mid-reduction."""
    island = Driver()
    island.compute(3)
    island.reduce([3])
    island.tell("epoch", epoch=2, members=MEMBERS)
    assert island.kinds() == ["abort_ring"]
    island.ring_done(epoch=1)
    assert island.sent("summed") == []
    island.tell("ring_error", epoch=1, step=0, attempt=0, reason="closed")
    assert island.sent("ring_failed") == []
    island.reduce([3], epoch=2)
    assert island.done("start_ring")[0]["epoch"] == 2
    island.ring_done(epoch=2)
    assert island.sent("summed")[0]["epoch"] == 2


def test_a_broken_ring_is_told_and_the_sums_are_kept() -> None:
    island = Driver()
    island.compute(3)
    island.reduce([3])
    island.tell("ring_error", epoch=1, step=0, attempt=0, reason="a neighbour closed")
    assert island.sent("ring_failed")[0]["reason"] == "a neighbour closed"
    assert island.core.folded == [3]
    island.tell("epoch", epoch=2, members=MEMBERS)
    island.reduce([3], epoch=2)
    assert island.done("start_ring")


# ----------------------------------------------------------------------------------- commit, redo


def test_a_failed_step_does_not_advance_anything() -> None:
    """Case torchft#309: a step that failed had already taken its data.

    Neither the end of a ring nor its failure moves the step; only a commit does, so the samples of
    the next attempt are the same ones.
    """
    island = Driver()
    for epoch in (1, 2, 3):
        island.tell("epoch", epoch=epoch, members=MEMBERS)
        island.compute(epoch)
        island.reduce(list(range(1, epoch + 1)), epoch=epoch)
        island.tell("ring_error", epoch=epoch, step=0, attempt=0, reason="lost")
        assert (island.core.step, island.core.attempt) == (0, 0)
    island.lease(7)
    assert island.done("run_shard") == [{"step": 0, "shard": 7}]


def test_a_commit_without_the_sum_is_not_applied() -> None:
    """Only what this island itself has summed is ever applied."""
    island = Driver()
    island.compute(3)
    assert island.commit() == []
    island.reduce([3])
    assert island.commit() == [], "the ring is not done"


@pytest.mark.parametrize("step", [1, 2, 99])
def test_a_commit_of_another_step_is_ignored(step: int) -> None:
    island = Driver()
    island.compute(3)
    island.reduce([3])
    island.ring_done()
    assert island.commit(step=step) == []
    assert island.core.step == 0


def test_a_commit_that_comes_twice_is_applied_once() -> None:
    """Case torchtitan#4686: model and data must be at the same step."""
    island = Driver()
    island.compute(3)
    island.reduce([3])
    island.ring_done()
    island.commit()
    assert island.commit() == []
    island.applied()
    assert island.commit() == []
    assert island.core.step == 1
    island.lease(0, step=1)
    assert island.done("run_shard") == [{"step": 1, "shard": 0}]


def test_the_state_is_not_changed_while_it_is_handed_to_a_joiner() -> None:
    """Case torchft#309: the joiner must get a state of one step, not of two."""
    island = Driver()
    island.tell("send_state", step=0, attempt=0, island="island-9", host="h", port=1)
    assert island.done("send_state")
    island.compute(3)
    island.reduce([3])
    island.ring_done()
    assert island.commit() == []
    island.tell("state_sent")
    assert island.done("apply")


def test_a_redo_raises_the_scale_and_starts_the_shards_again() -> None:
    island = Driver()
    island.compute(3)
    island.reduce([3])
    island.ring_done()
    island.tell("redo", step=0, attempt=1)
    assert island.kinds() == ["raise_scale"]
    assert (island.core.step, island.core.attempt, island.core.folded) == (0, 1, [])
    assert island.lease(3, attempt=0) == [], "a lease of the first attempt came late"
    island.lease(3, attempt=1)
    assert island.done("run_shard")


def test_a_shard_of_the_attempt_before_is_discarded_when_it_ends() -> None:
    island = Driver()
    island.compute(3)
    island.lease(4)  # a second run, still under way
    island.reduce([3])
    island.ring_done()
    island.tell("redo", step=0, attempt=1)
    island.lease(4, attempt=1)
    assert island.done("run_shard") == [], "one computation at a time"
    island.finish(4)
    assert island.kinds() == ["discard", "run_shard"]
    assert island.core.folded == []


@pytest.mark.parametrize("step", [1, 5])
def test_a_redo_or_reset_of_another_step_is_ignored(step: int) -> None:
    island = Driver()
    island.compute(3)
    assert island.tell("redo", step=step, attempt=1) == []
    assert island.tell("reset", step=step, attempt=0) == []
    assert island.core.folded == [3]


def test_a_reset_forgets_the_sums_and_keeps_the_state() -> None:
    island = Driver()
    island.compute(3)
    island.tell("reset", step=0, attempt=0)
    assert island.done("clear") == [{"base": False}]
    assert island.core.step == 0
    island.tell("reset", step=0, attempt=1)
    assert island.done("clear") == [{"base": True}], "another attempt has another scale"


# ------------------------------------------------------------------------------------ coordinator


def test_a_commit_that_was_lost_with_the_coordinator_comes_by_the_log() -> None:
    """It was durable, nobody heard of it; the island says what it holds and is told."""
    island = Driver()
    island.compute(3)
    island.reduce([3])
    island.ring_done(h="abc")
    island.tell("connected", me=ME)
    (hello,) = island.sent("hello")
    assert (hello["step"], hello["attempt"]) == (0, 0)
    assert hello["sum"] == {"step": 0, "hash": "abc"}
    island.commit()
    assert island.done("apply") == [{"step": 0, "hash_state": False}]
    island.applied()
    island.tell("connected", me=ME)
    assert island.sent("hello")[0]["sum"] is None
    assert island.sent("hello")[0]["step"] == 1


def test_the_end_of_a_load_that_nobody_waits_for_any_more_is_not_told() -> None:
    """The coordinator that asked for it died; the new one asks again."""
    island = Driver()
    island.tell("load", request=4)
    assert island.done("load") == [{}]
    island.tell("connected", me=ME)
    assert island.sent("hello")[0]["step"] == -1
    island.tell("loaded", step=8, state_hash="s")
    assert island.sent("loaded") == []
    assert island.core.step == -1
    island.tell("load", request=5)
    island.tell("loaded", step=8, state_hash="s")
    assert island.sent("loaded") == [{"type": "loaded", "request": 5, "step": 8, "state_hash": "s"}]


def test_only_the_newest_transfer_is_installed() -> None:
    island = Driver()
    island.tell("receive_state", request=2, step=3, attempt=0, donor="a")
    (first,) = island.done("receive_state")
    island.tell("receive_state", request=3, step=4, attempt=1, donor="b")
    (second,) = island.done("receive_state")
    assert first["ticket"] != second["ticket"]
    assert island.tell("state_arrived", ticket=first["ticket"], step=3, attempt=0) == []
    island.tell("receive_failed", ticket=first["ticket"], reason="late")
    assert island.sent("sync_failed") == []
    island.tell("state_arrived", ticket=second["ticket"], step=4, attempt=1)
    assert island.done("install")
    island.tell("installed", step=4, attempt=1)
    assert island.sent("synced") == [{"type": "synced", "request": 3, "step": 4, "attempt": 1}]
    assert (island.core.step, island.core.attempt) == (4, 1)


def test_an_install_that_was_overtaken_is_not_told() -> None:
    island = Driver()
    island.tell("receive_state", request=2, step=3, attempt=0, donor="a")
    (wanted,) = island.done("receive_state")
    island.tell("state_arrived", ticket=wanted["ticket"], step=3, attempt=0)
    island.tell("load", request=3)
    island.tell("installed", step=3, attempt=0)
    assert island.sent("synced") == []
    assert island.done("load") == [{}]


def test_a_failed_transfer_is_told_with_the_request_that_it_was_for() -> None:
    island = Driver()
    island.tell("receive_state", request=7, step=3, attempt=0, donor="a")
    (wanted,) = island.done("receive_state")
    island.tell("receive_failed", ticket=wanted["ticket"], reason="no connection")
    assert island.sent("sync_failed") == [
        {"type": "sync_failed", "request": 7, "reason": "no connection"}
    ]


def test_the_writer_alone_takes_the_checkpoint_after_it_applied() -> None:
    for writer, expected in (("island-0", [{"step": 1}]), ("island-1", []), (None, [])):
        island = Driver()
        island.compute(3)
        island.reduce([3])
        island.ring_done()
        island.commit(checkpoint=writer)
        assert island.done("checkpoint") == []
        island.applied()
        assert island.done("checkpoint") == expected


def test_a_notice_is_told_once_and_again_to_a_new_coordinator() -> None:
    island = Driver()
    island.tell("notice", reason="reclaim in 120 s")
    assert island.sent("leaving") == [{"type": "leaving", "reason": "reclaim in 120 s"}]
    assert island.tell("notice", reason="again") == []
    island.tell("connected", me=ME)
    assert island.kinds() == ["hello", "leaving"]


def test_what_nobody_knows_is_ignored() -> None:
    assert Driver().tell("of a later version", step=0) == []


# ----------------------------------------------------------------------------------- any schedule

rarely = st.sampled_from([False] * 7 + [True])
"""For what throws away all that was reached; else no schedule gets far."""


class IslandMachine(RuleBasedStateMachine):
    """Any interleaving of the coordinator's messages with the ends of computations.

    A device model beside the island holds the sums that its actions ask for; it must agree with
    what the island believes, hold no shard twice, and run one computation at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.core = IslandCore("island-0")
        self.sums: list[int] = []
        self.task: tuple[str, dict[str, Any]] | None = None
        self.droppable = False
        self.ring: dict[str, Any] | None = None
        self.state = -1
        self.summed: int | None = None
        self.take("connected", me=ME)
        self.take("load", request=1)
        self.task, self.state = None, 0
        self.take("loaded", step=0, state_hash="s")

    def take(self, kind: str, /, **fields: Any) -> None:
        for action in self.core.handle({"type": kind, **fields}):
            if isinstance(action, Do):
                getattr(self, f"do_{action.kind}", lambda **_: None)(**action.fields)

    def begin(self, kind: str, **fields: Any) -> None:
        assert self.task is None, "two computations at once"
        self.task = (kind, fields)

    def do_run_shard(self, step: int, shard: int) -> None:
        assert step == self.state, "a shard of a state that is not there"
        self.begin("run_shard", step=step, shard=shard)
        self.under = list(self.sums)  # the program adds on top of these
        self.droppable = False

    def do_load(self) -> None:
        self.begin("load")

    def do_apply(self, step: int, *, hash_state: bool) -> None:
        assert step == self.state == self.summed, "applied without this step's sum"
        self.begin("apply", step=step)

    def do_checkpoint(self, step: int) -> None:
        assert step == self.state
        self.begin("checkpoint", step=step)

    def do_fold(self) -> None:
        self.sums = [*self.under, self.finished]
        self.droppable = True

    def do_drop_last(self) -> None:
        assert self.droppable
        self.sums.pop()
        self.droppable = False

    def do_clear(self, *, base: bool) -> None:
        self.sums = []

    def do_raise_scale(self) -> None:
        assert self.summed == self.state
        self.sums = []

    def do_start_ring(self, members: object, epoch: int, step: int, attempt: int) -> None:
        assert self.ring is None, "two rings at once"
        self.ring = {"epoch": epoch, "step": step, "attempt": attempt}

    def do_abort_ring(self) -> None:
        self.ring = None

    @rule(anyway=rarely)
    def load(self, *, anyway: bool) -> None:
        if self.core.step < 0 or anyway:
            self.take("load", request=1)

    @precondition(lambda self: self.task is not None)
    @rule(loaded=st.integers(0, 2))
    def task_ends(self, loaded: int) -> None:
        assert self.task is not None
        (kind, fields), self.task = self.task, None
        if kind == "run_shard":
            self.finished = fields["shard"]
            self.take("shard_finished", seconds=0.1, **fields)
        elif kind == "load":
            self.state, self.sums = loaded, []
            self.take("loaded", step=loaded, state_hash="s")
        elif kind == "apply":
            self.state, self.sums, self.summed = fields["step"] + 1, [], None
            self.take("applied", step=self.state, grad_norm=1.0, state_hash=None)
        else:
            self.take("snapshot_taken", step=fields["step"])

    @rule(shard=st.integers(0, 2), ahead=st.sampled_from([0, 0, 0, 1]))
    def lease(self, shard: int, ahead: int) -> None:
        step = self.core.step + ahead
        self.take("lease", step=step, attempt=self.core.attempt * (1 - ahead), shard=shard)

    @rule(shard=st.integers(0, 3))
    def drop(self, shard: int) -> None:
        self.take("drop", step=self.core.step, attempt=self.core.attempt, shard=shard)

    @rule(back=st.integers(0, 1), exact=st.booleans(), shards=st.sets(st.integers(0, 3)))
    def reduce(self, back: int, shards: set[int], *, exact: bool) -> None:
        wanted = sorted(self.core.folded) if exact else sorted(shards)
        self.take(
            "reduce",
            epoch=self.core.epoch - back,
            step=self.core.step,
            attempt=self.core.attempt,
            shards=wanted,
        )

    @precondition(lambda self: self.ring is not None)
    @rule(fine=st.booleans())
    def ring_ends(self, *, fine: bool) -> None:
        assert self.ring is not None
        ring, self.ring = self.ring, None
        if fine:
            self.summed = ring["step"]
            self.take("ring_done", hash="h", overflow=0, **ring)
        else:
            self.take("ring_error", reason="lost", **ring)

    @rule()
    def epoch(self) -> None:
        self.take("epoch", epoch=self.core.epoch + 1, members=MEMBERS)

    @rule(off=st.integers(-1, 1), mine=st.booleans())
    def commit(self, off: int, *, mine: bool) -> None:
        self.take(
            "commit",
            step=self.core.step + off,
            hash_state=False,
            checkpoint="island-0" if mine else None,
        )

    @precondition(lambda self: self.core._commit is None)
    @rule(off=st.sampled_from([1, 1, 0]))
    def redo(self, off: int) -> None:
        """The coordinator redoes a step or commits it, never both."""
        self.take("redo", step=self.core.step + off, attempt=self.core.attempt + 1)

    @precondition(lambda self: self.core._commit is None)
    @rule(attempt=st.integers(0, 1), really=rarely)
    def reset(self, attempt: int, *, really: bool) -> None:
        if really:
            self.take("reset", step=self.core.step, attempt=attempt)

    @rule()
    def reconnect(self) -> None:
        self.take("connected", me=ME)

    @invariant()
    def the_sums_are_what_the_island_believes(self) -> None:
        if self.core.step >= 0:
            assert self.sums == self.core.folded
            assert self.core.step == self.state
        assert len(set(self.core.folded)) == len(self.core.folded), "a shard is in the sum twice"


IslandMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestAnySchedule = IslandMachine.TestCase
