"""The coordinator's decisions one by one; whole fleets are in `test_fleet_simulation`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runtime.coordinator.actions import (
    AppendCheckpoint,
    AppendCommit,
    AppendEpoch,
    Close,
    Emit,
    Finish,
    Send,
)
from runtime.coordinator.core import Coordinator
from runtime.coordinator.plan import RunPlan
from tests.unit.plans import make_plan

PLAN = make_plan(total_steps=6, islands=2)


class Run:
    """A coordinator with its islands' messages made by hand."""

    def __init__(
        self, *, plan: RunPlan = PLAN, log: dict[int, str] | None = None, expected: tuple = ()
    ) -> None:
        self.log = log if log is not None else {}
        self.now = 0.0
        self.core = Coordinator(
            plan,
            last_step=max(self.log, default=-1),
            last_epoch=0,
            expected=expected,
            now=0.0,
            known_sum=self.log.get,
        )

    def take(self, kind: str, island: str | None = None, /, **fields: Any) -> list[object]:
        event = {"type": kind, **fields} | ({"island": island} if island else {})
        self.last = self.core.handle(event, self.now)
        for action in self.last:
            if isinstance(action, AppendCommit):
                self.log[action.commit.step] = action.commit.sum_hash
        return self.last

    def hello(
        self,
        island: str,
        *,
        step: int = -1,
        attempt: int = 0,
        h: str | None = None,
        chip_class: str = "cpu/x",
    ) -> None:
        held = None if h is None else {"step": step, "hash": h}
        where = {"pid": 1, "host": "h", "port": 1, "chip_class": chip_class}
        self.take("hello", island, step=step, attempt=attempt, sum=held, **where)

    def sent(self, kind: str, island: str | None = None) -> list[dict[str, Any]]:
        return [
            a.message
            for a in self.last
            if isinstance(a, Send) and a.message["type"] == kind and island in {None, a.island}
        ]

    def emitted(self, kind: str) -> list[dict[str, Any]]:
        return [a.fields for a in self.last if isinstance(a, Emit) and a.kind == kind]

    def begin(self, *names: str) -> None:
        """Let islands join, load step 0 and start."""
        for name in names:
            self.hello(name)
        for name in names:
            request = self.core.islands[name].request
            self.take("loaded", name, request=request, step=0, state_hash="s0")

    def done(self, island: str, shard: int) -> None:
        where = {"step": self.core.step, "attempt": self.core.attempt}
        self.take("done", island, shard=shard, seconds=1.0, **where)

    def compute(self) -> None:
        """Have every leased shard finished until the step is being reduced."""
        while self.core.reduction is None:
            shard, holders = next(iter(self.core.board.running.items()))
            self.done(next(iter(holders)), shard)

    def summed(self, island: str, **other: Any) -> None:
        where = {
            "epoch": self.core.epoch,
            "step": self.core.step,
            "attempt": self.core.attempt,
        }
        counters = {"loss": 1 << 20, "tokens": 2, "overflow": 0, "nonfinite": 0, "vanished": 0}
        self.take("summed", island, **{**where, "hash": f"h{self.core.step}", **counters, **other})

    def step(self, *names: str, **other: Any) -> None:
        self.compute()
        for name in names:
            self.summed(name, **other)


def test_nothing_starts_before_the_planned_islands_are_there() -> None:
    """Facts, section 2: min_replicas = 1 and a staggered start trained alone for 1 to 4 steps."""
    run = Run()
    run.hello("a")
    run.now = 60.0
    run.take("tick")
    assert (run.core.phase, run.core.members) == ("gather", [])
    run.hello("b")
    assert run.core.phase == "load"


def test_the_commit_comes_before_every_word_of_it() -> None:
    run = Run()
    run.begin("a", "b")
    run.step("a", "b")
    kinds = [type(a) for a in run.last]
    first_word = next(
        n for n, a in enumerate(run.last) if isinstance(a, Send) and a.message["type"] == "commit"
    )
    assert kinds.index(AppendCommit) < first_word
    assert {
        a.island for a in run.last if isinstance(a, Send) and a.message["type"] == "commit"
    } == {
        "a",
        "b",
    }


def test_an_epoch_is_in_the_log_before_it_is_announced() -> None:
    run = Run()
    run.begin("a", "b")
    kinds = [type(a) for a in run.last]
    first_word = next(
        n for n, a in enumerate(run.last) if isinstance(a, Send) and a.message["type"] == "epoch"
    )
    assert kinds.index(AppendEpoch) < first_word


def test_there_is_no_commit_before_every_live_island_holds_the_sum() -> None:
    run = Run()
    run.begin("a", "b")
    run.compute()
    run.summed("a")
    assert run.log == {}
    run.summed("b")
    assert run.log == {0: "h0"}


@pytest.mark.parametrize("other", [{"epoch": 0}, {"step": 1}, {"attempt": 1}])
def test_a_sum_of_another_epoch_step_or_attempt_does_not_count(other: dict[str, int]) -> None:
    run = Run()
    run.begin("a", "b")
    run.compute()
    run.summed("a")
    run.summed("b", **other)
    assert run.log == {}


def test_different_sums_end_the_run_and_are_never_committed() -> None:
    run = Run()
    run.begin("a", "b")
    run.compute()
    run.summed("a")
    run.summed("b", hash="other")
    assert run.core.phase == "failed"
    assert "different sums of step 0" in str(run.core.error)
    assert run.log == {}
    assert [a.phase for a in run.last if isinstance(a, Finish)] == ["failed"]


def test_a_step_that_overflows_is_redone_once_and_then_committed_as_that_attempt() -> None:
    """Case torchft#309: the failed attempt advances neither the step nor its shards."""
    run = Run()
    run.begin("a", "b")
    run.step("a", "b", overflow=3)
    assert run.log == {}
    assert (run.core.step, run.core.attempt) == (0, 1)
    assert run.emitted("redo")[0]["reason"] == "overflow"
    assert {s["attempt"] for s in run.sent("lease")} == {1}
    run.take("done", "a", step=0, attempt=0, shard=0, seconds=1.0)
    assert run.core.board.done == {}, "a late result of the first attempt"
    run.step("a", "b")
    (commit,) = [a.commit for a in run.last if isinstance(a, AppendCommit)]
    assert (commit.step, commit.attempt) == (0, 1)
    assert sorted(s for shards in commit.shards.values() for s in shards) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("counters", "reason"),
    [({"nonfinite": 2}, "not finite"), ({"tokens": 0, "loss": 0}, "no supervised token")],
)
def test_a_step_that_no_redo_cures_ends_the_run_with_its_reason(
    counters: dict[str, int], reason: str
) -> None:
    run = Run()
    run.begin("a", "b")
    run.step("a", "b", **counters)
    assert run.core.phase == "failed"
    assert reason in str(run.core.error)
    assert run.log == {}


def test_the_loss_is_the_mean_over_tokens_whoever_held_them() -> None:
    """Case litgpt#1927, verl-SpeCo#29: the loss changed with the worker count."""
    for names in (("a",), ("a", "b")):
        run = Run(plan=dataclasses.replace(PLAN, islands=len(names)))
        run.begin(*names)
        run.step(*names, loss=3 << 20, tokens=8)
        assert run.emitted("commit")[0]["loss"] == 3 / 8


def test_a_lost_node_costs_its_own_shards_and_no_other_island_s() -> None:
    """Cases pytorch#182221, pytorch#111646, kubeflow/trainer#1638.

    A node is lost: no assertion, no hang, and the others are not restarted.
    """
    run = Run()
    run.begin("a", "b")
    kept = [s for s, holders in run.core.board.running.items() if "a" in holders]
    lost = [s for s, holders in run.core.board.running.items() if "b" in holders]
    run.done("a", kept[0])
    run.done("b", lost[0])
    leased = run.core.board.held_by("b")
    run.take("lost", "b", reason="connection closed")
    assert run.core.members == ["a"]
    assert run.core.board.done == {kept[0]: "a"}
    assert run.emitted("redo")[0] == {
        "step": 0,
        "reason": "membership",
        "shards": [lost[0], *leased],
    }
    assert run.sent("exit") == []
    assert run.sent("reset") == []
    assert run.sent("epoch", "a")
    run.step("a")
    assert run.log == {0: "h0"}


def test_a_node_lost_after_all_hold_the_sum_costs_nothing() -> None:
    run = Run(plan=dataclasses.replace(PLAN, islands=3))
    run.begin("a", "b", "c")
    run.compute()
    shards = run.core.reduction.shards if run.core.reduction else {}
    run.summed("a")
    run.summed("b")
    run.take("lost", "c", reason="killed")
    (commit,) = [a.commit for a in run.last if isinstance(a, AppendCommit)]
    assert commit.members == ("a", "b")
    assert commit.shards == shards, "what the dead island contributed is in the sum"


def test_an_island_that_dies_while_the_last_checkpoint_is_written_is_no_redone_attempt() -> None:
    run = Run(plan=dataclasses.replace(PLAN, total_steps=1))
    run.begin("a", "b")
    run.step("a", "b")
    assert run.core.phase == "finish"
    writer = run.sent("commit")[0]["checkpoint"]
    other = "b" if writer == "a" else "a"
    run.take("applied", other, step=1, grad_norm=1.0, state_hash="s1")
    run.take("lost", writer, reason="killed")
    assert run.emitted("redo") == []
    assert run.sent("checkpoint", other) == [{"type": "checkpoint", "step": 1}]


def test_a_silent_island_is_dropped_and_a_pause_of_the_coordinator_drops_nobody() -> None:
    """Cases torchft#164, #188, #196 (seen late) and the clock of a stopped coordinator."""
    run = Run()
    run.begin("a", "b")
    for tenth in range(1, 12):
        run.now = tenth / 10
        run.take("heartbeat", "a", task_s=0.0)
        run.take("tick")
    assert [a.island for a in run.last if isinstance(a, Close)] == ["b"]
    assert run.core.members == ["a"]
    run.now += 30
    run.take("tick")
    assert run.core.members == ["a"], "we were stopped ourselves"


def test_a_joiner_gets_the_state_of_the_step_in_flight_and_takes_part_in_it() -> None:
    """Case torchtitan#4686, torchft#309: model and data of one step; nobody trains from step 0."""
    run = Run()
    run.begin("a", "b")
    run.step("a", "b")
    run.hello("c")
    (wanted,) = run.sent("receive_state", "c")
    assert (wanted["step"], wanted["attempt"]) == (1, 0)
    assert run.sent("send_state", wanted["donor"])
    for shard, holders in list(run.core.board.running.items()):
        run.done(next(iter(holders)), shard)
    while run.core.board.running:
        shard, holders = next(iter(run.core.board.running.items()))
        run.done(next(iter(holders)), shard)
    assert run.core.board.complete()
    assert run.core.reduction is None, "the commit would change the state under the transfer"
    run.take("synced", "c", request=wanted["request"], step=1, attempt=0)
    assert run.core.members == ["a", "b", "c"]
    assert run.sent("reduce", "c")[0]["shards"] == []


def test_an_island_of_another_chip_class_is_refused_for_its_bits_would_differ() -> None:
    run = Run()
    run.begin("a", "b")
    run.hello("c", chip_class="cpu/y")
    assert run.sent("exit", "c") == [{"type": "exit", "reason": "refused"}]
    assert "cpu/y" in run.emitted("refused")[0]["reason"]
    assert run.core.members == ["a", "b"]
    run.step("a", "b")
    assert run.core.step == 1


def test_the_answer_to_an_older_request_is_not_taken_for_the_newer_one() -> None:
    run = Run()
    run.hello("a")
    run.hello("b")
    first = run.core.islands["a"].request
    run.hello("a")
    run.take("loaded", "a", request=first, step=0, state_hash="s0")
    assert run.core.islands["a"].state == "loading"
    second = run.core.islands["a"].request
    run.take("loaded", "a", request=second, step=0, state_hash="s0")
    assert run.core.islands["a"].state == "active"


def test_a_commit_by_the_log_ends_the_attempt_that_the_island_was_in() -> None:
    """The island committed step 0 in attempt 1; step 1 is in attempt 1 as well, by chance.

    Taken for the same attempt, it would work at the wrong scale and the ring would stall.
    """
    run = Run()
    run.begin("a", "b")
    run.step("a", "b", overflow=1)
    run.step("a", "b")
    run.step("a", "b", overflow=1)
    assert (run.core.step, run.core.attempt) == (1, 1)
    run.take("lost", "b", reason="cut off before the commit came")
    run.hello("b", step=0, attempt=1, h="h0")
    assert run.sent("commit", "b") == [
        {"type": "commit", "step": 0, "hash_state": False, "checkpoint": None}
    ]
    assert run.sent("reset", "b") == []
    (wanted,) = run.sent("receive_state", "b")
    assert (wanted["step"], wanted["attempt"]) == (1, 1)


def test_a_restart_goes_on_from_the_newest_state_that_any_island_holds() -> None:
    run = Run(log={0: "h0", 1: "h1"}, expected=("a", "b"))
    run.hello("a", step=2)
    assert run.core.phase == "gather"
    run.hello("b", step=1, h="h1")
    assert run.core.phase == "run"
    assert run.core.step == 2
    assert sorted(run.core.members) == ["a", "b"]


def test_a_restart_does_not_wait_for_the_dead() -> None:
    run = Run(log={0: "h0"}, expected=("a", "b"))
    run.hello("a", step=1)
    for tenth in range(1, 13):
        run.now = tenth / 10
        run.take("heartbeat", "a", task_s=0.0)
        run.take("tick")
    assert (run.core.phase, run.core.members) == ("run", ["a"])


def test_a_checkpoint_of_the_last_commit_is_restored_and_said() -> None:
    run = Run(log={step: f"h{step}" for step in range(4)})
    run.hello("a")
    run.hello("b")
    for name in "ab":
        request = run.core.islands[name].request
        run.take("loaded", name, request=request, step=4, state_hash="s4")
    assert run.emitted("restored") == [{"from_step": 4, "to_step": 4}]


def test_when_all_died_the_run_goes_back_to_the_checkpoint_and_the_log_is_the_judge() -> None:
    run = Run(log={step: f"h{step}" for step in range(4)})
    run.hello("a")
    run.hello("b")
    for name in "ab":
        request = run.core.islands[name].request
        run.take("loaded", name, request=request, step=2, state_hash="s2")
    assert run.core.step == 2
    assert run.emitted("restored") == [{"from_step": 4, "to_step": 2}]
    run.step("a", "b")
    (commit,) = [a.commit for a in run.last if isinstance(a, AppendCommit)]
    assert commit.step == 2, "appended again, so that the log compares the bits"


def test_islands_whose_states_differ_end_the_run() -> None:
    run = Run()
    run.begin("a", "b")
    run.step("a", "b")
    run.take("applied", "a", step=1, grad_norm=1.0, state_hash="x" * 64)
    run.take("applied", "b", step=1, grad_norm=1.0, state_hash="y" * 64)
    assert run.core.phase == "failed"
    assert "b has state yyyyyyyyyyyyyyyy after step 1" in str(run.core.error)


def test_a_checkpoint_of_another_state_is_not_recorded() -> None:
    run = Run()
    run.begin("a", "b")
    run.step("a", "b")
    run.take("applied", "a", step=1, grad_norm=1.0, state_hash="x" * 64)
    done = {"path": "p", "seconds": 0.1, "stall_s": 0.0}
    run.take("checkpointed", "b", step=1, state_hash="y" * 64, **done)
    assert [a for a in run.last if isinstance(a, AppendCheckpoint)] == []
    assert run.core.phase == "failed"


def test_a_ring_that_never_holds_ends_the_run_with_the_reason_not_in_a_loop() -> None:
    run = Run()
    run.begin("a", "b")
    for _ in range(100):
        run.compute()
        where = {"epoch": run.core.epoch, "step": 0, "attempt": 0}
        run.take("ring_failed", "a", reason="connection refused", **where)
        if run.core.phase == "failed":
            break
    assert "times in a row: connection refused" in str(run.core.error)


def test_a_leaving_island_gets_no_shards_and_goes_after_the_commit() -> None:
    run = Run()
    run.begin("a", "b")
    run.take("leaving", "b", reason="reclaim")
    held = [s for s, holders in run.core.board.running.items() if "b" in holders]
    for shard in held:
        run.done("b", shard)
    assert all("b" not in holders for holders in run.core.board.running.values())
    run.step("a", "b")
    assert run.sent("exit", "b") == [{"type": "exit", "reason": "left"}]
    assert run.core.members == ["a"]


def test_the_last_island_stays_though_it_has_notice_and_its_state_is_saved() -> None:
    run = Run(plan=dataclasses.replace(PLAN, islands=1))
    run.begin("a")
    run.take("leaving", "a", reason="reclaim")
    run.step("a")
    assert run.sent("exit") == []
    assert run.sent("commit", "a")[0]["checkpoint"] == "a"


@pytest.mark.parametrize("phase", ["gather", "run"])
def test_stop_ends_resumably(phase: str) -> None:
    run = Run()
    if phase == "run":
        run.begin("a", "b")
    run.take("stop")
    if phase == "gather":
        assert run.core.phase == "stopped"
        return
    run.step("a", "b")
    writer = run.sent("commit")[0]["checkpoint"]
    done = {"path": "p", "seconds": 0.1, "stall_s": 0.0}
    run.take("checkpointed", writer, step=1, state_hash="s1", **done)
    assert run.core.phase == "stopped"
    assert {m["reason"] for m in run.sent("exit")} == {"stopped"}


def test_a_step_that_no_scale_holds_ends_the_run_and_not_in_a_loop() -> None:
    run = Run()
    run.begin("a", "b")
    for _ in range(100):
        run.step("a", "b", overflow=1)
        if run.core.phase == "failed":
            break
    assert run.core.attempt == 32
    assert "outgrew its scale 33 times in a row" in str(run.core.error)
    assert run.log == {}


def test_shards_are_held_back_while_fewer_than_min_islands_are_in() -> None:
    run = Run(plan=dataclasses.replace(PLAN, min_islands=2))
    run.begin("a", "b")
    run.step("a", "b")
    run.take("lost", "b", reason="killed")
    assert run.emitted("waiting") == [{"step": 1, "members": ["a"], "min_islands": 2}]
    for shard in run.core.board.held_by("a"):
        run.done("a", shard)
    assert run.sent("lease") == []
    run.take("tick")
    assert run.emitted("waiting") == [], "told once"
    run.hello("b", step=1)
    assert run.core.members == ["a", "b"]
    assert run.sent("lease")
    run.step("a", "b")
    assert run.log == {0: "h0", 1: "h1"}


def test_a_stop_ends_a_run_that_waits_for_islands() -> None:
    run = Run(plan=dataclasses.replace(PLAN, min_islands=2))
    run.begin("a", "b")
    run.take("lost", "b", reason="killed")
    run.take("stop")
    run.step("a")
    assert run.core.phase == "finish"


def test_a_lone_island_of_another_chip_class_does_not_take_over_what_is_committed() -> None:
    run = Run(plan=dataclasses.replace(PLAN, islands=1))
    run.begin("a")
    run.step("a")
    run.take("lost", "a", reason="killed")
    run.hello("b", chip_class="cpu/y")
    assert run.sent("exit", "b") == [{"type": "exit", "reason": "refused"}]
    run.hello("c")
    assert run.sent("load", "c")


def test_before_the_first_commit_the_class_is_that_of_whoever_is_there() -> None:
    run = Run(plan=dataclasses.replace(PLAN, islands=1))
    run.begin("a")
    run.take("lost", "a", reason="killed")
    run.hello("b", chip_class="cpu/y")
    assert run.sent("load", "b")


@pytest.mark.parametrize(("seconds", "limit"), [(1.0, 120.0), (60.0, 630.0)])
def test_an_island_whose_computation_hangs_is_let_go_though_its_heart_beats(
    seconds: float, limit: float
) -> None:
    run = Run()
    run.begin("a", "b")
    shard = run.core.board.held_by("b")[0]
    run.take("done", "b", step=0, attempt=0, shard=shard, seconds=seconds)
    run.take("heartbeat", "b", task_s=limit - 1)
    assert run.core.members == ["a", "b"]
    run.take("heartbeat", "b", task_s=limit + 1)
    assert run.sent("exit", "b") == [{"type": "exit", "reason": "wedged"}]
    assert run.core.members == ["a"]
    assert run.core.board.held_by("b") == []


def test_a_load_that_hangs_does_not_hold_the_run_up_for_ever() -> None:
    run = Run()
    run.hello("a")
    run.hello("b")
    run.take("loaded", "a", request=run.core.islands["a"].request, step=0, state_hash="s0")
    run.take("heartbeat", "b", task_s=121.0)
    assert (run.core.phase, run.core.members) == ("run", ["a"])


def test_the_donor_of_a_joiner_that_is_dropped_is_told_at_once() -> None:
    run = Run()
    run.begin("a", "b")
    run.hello("c")
    (wanted,) = run.sent("receive_state", "c")
    run.take("lost", "c", reason="no heartbeat")
    assert run.sent("cancel_send", wanted["donor"]) == [{"type": "cancel_send", "island": "c"}]


@pytest.mark.parametrize("shard", [-1, 4, 1 << 40])
def test_a_result_for_a_shard_that_does_not_exist_is_not_counted(shard: int) -> None:
    run = Run()
    run.begin("a", "b")
    run.done("a", shard)
    assert run.core.board.done == {}
