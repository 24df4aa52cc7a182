"""The shard board: every micro-shard counts once, whatever happens; shares follow the speed."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.coordinator.shards import ShardBoard, Speed

ISLANDS = ["island-0", "island-1", "island-2", "island-3"]


class BoardMachine(RuleBasedStateMachine):
    """Islands lease, finish and die in any order; results of the dead and the late arrive too.

    The model is kept apart from the board: which islands hold a result that the board told them
    counts.
    """

    @initialize(shards=st.integers(1, 12))
    def start(self, shards: int) -> None:
        self.shards = shards
        self.board = ShardBoard.fresh(shards)
        self.speeds = {name: Speed() for name in ISLANDS}
        self.counts: dict[int, str] = {}
        self.computing: dict[str, list[int]] = {name: [] for name in ISLANDS}
        self.now = 0.0

    @rule(island=st.sampled_from(ISLANDS), wait=st.floats(0, 30))
    def lease(self, island: str, wait: float) -> None:
        self.now += wait
        shard = self.board.lease(island, self.now, self.speeds)
        if shard is None:
            return
        assert shard not in self.counts, "a counted shard is not given out again"
        assert shard not in self.computing[island], "nobody gets one shard twice"
        self.computing[island].append(shard)
        assert shard in self.board.held_by(island)

    @precondition(lambda self: any(self.computing.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        island = data.draw(st.sampled_from([n for n, held in self.computing.items() if held]))
        shard = data.draw(st.sampled_from(self.computing[island]))
        self.computing[island].remove(shard)
        self.speeds[island].observe(data.draw(st.floats(0.01, 50)))
        accepted = self.board.finish(shard, island, self.now)
        assert accepted == (shard not in self.counts), "the first result wins, others do not count"
        if accepted:
            self.counts[shard] = island

    @precondition(lambda self: self.counts)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        """A second result for a counted shard, by an island that was taken for slow."""
        shard = data.draw(st.sampled_from(sorted(self.counts)))
        other = data.draw(st.sampled_from([n for n in ISLANDS if n != self.counts[shard]]))
        assert not self.board.finish(shard, other, self.now)

    @rule(island=st.sampled_from(ISLANDS))
    def die(self, island: str) -> None:
        self.board.forget(island)
        self.computing[island] = []
        self.counts = {s: owner for s, owner in self.counts.items() if owner != island}
        assert self.board.held_by(island) == []

    @invariant()
    def every_shard_is_in_one_place(self) -> None:
        if not hasattr(self, "board"):
            return
        places = [*self.board.unstarted, *self.board.running, *self.board.done]
        assert sorted(places) == list(range(self.shards))
        assert self.board.done == self.counts
        assert self.board.complete() == (len(self.counts) == self.shards)

    @invariant()
    def contributions_are_the_counted_shards(self) -> None:
        if not hasattr(self, "board"):
            return
        shares = self.board.contributions()
        assert {s: n for n, shards in shares.items() for s in shards} == self.counts

    def teardown(self) -> None:
        """Whatever happened, the islands that are left can finish the step."""
        if not hasattr(self, "board"):
            return
        for _ in range(20 * self.shards):
            if self.board.complete():
                return
            self.now += 100
            for island in ISLANDS:
                self.lease(island, 0)
                for shard in self.board.held_by(island):
                    self.board.finish(shard, island, self.now)
        pytest.fail("the step cannot be completed")


BoardMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBoard = BoardMachine.TestCase


def _known(seconds: dict[str, float | None]) -> dict[str, Speed]:
    return {name: Speed(value) for name, value in seconds.items()}


def _play(
    board: ShardBoard, speeds: dict[str, Speed], pace: dict[str, float]
) -> tuple[dict[str, int], float]:
    """Run one step with the coordinator's lease depth; give the shards of each and the time."""
    queues: dict[str, list[int]] = {name: [] for name in pace}
    ends: list[tuple[float, str, int]] = []
    now = 0.0

    def hand_out() -> None:
        for name, seconds in pace.items():
            depth = 2 if len(board.unstarted) > 2 * len(pace) else 1
            while len(board.held_by(name)) < depth:
                shard = board.lease(name, now, speeds)
                if shard is None:
                    break
                queues[name].append(shard)
            if queues[name] and name not in {n for _, n, _ in ends}:
                heapq.heappush(ends, (now + seconds, name, queues[name].pop(0)))

    hand_out()
    while not board.complete():
        tick = now + 0.1
        if not ends or ends[0][0] > tick:  # the coordinator looks again several times a second
            now = tick
        else:
            now, name, shard = heapq.heappop(ends)
            board.finish(shard, name, now)
            speeds[name].observe(pace[name])
        hand_out()
        assert now < 1000
    return {name: len(shards) for name, shards in board.contributions().items()}, now


def test_shares_follow_the_measured_speed() -> None:
    """Facts, section 6: speeds 1:2:3 at M = 64 give 11/21/32, makespan 11 against 10.67."""
    pace = {"a": 1.0, "b": 1 / 2, "c": 1 / 3}
    shares, makespan = _play(ShardBoard.fresh(64), _known(pace), pace)
    for name, expected in {"a": 11, "b": 21, "c": 32}.items():
        assert abs(shares[name] - expected) <= 1
    assert makespan <= 64 / 6 + 1.0, "no island is idle for longer than a shard of the slowest"


@pytest.mark.parametrize("shards", [8, 64, 512])
@pytest.mark.parametrize("pace", [(1, 1, 1), (1, 4, 1), (1, 1.3, 1.7, 2.9), (0.2, 1)])
def test_no_step_takes_longer_than_the_ideal_and_one_shard(
    shards: int, pace: tuple[float, ...]
) -> None:
    paces = {f"island-{n}": float(p) for n, p in enumerate(pace)}
    shares, makespan = _play(ShardBoard.fresh(shards), _known(paces), paces)
    ideal = shards / sum(1 / p for p in pace)
    assert makespan <= ideal + max(pace) + 0.2
    assert sum(shares.values()) == shards


def test_an_island_four_times_slower_gets_a_quarter_as_many() -> None:
    pace = {"slow": 4.0, "fast": 1.0}
    shares, _ = _play(ShardBoard.fresh(50), _known(pace), pace)
    assert shares["slow"] == pytest.approx(10, abs=1)


def test_an_island_that_has_just_become_slow_keeps_only_what_it_holds() -> None:
    """Its measured speed is still the old one: an overdue shard must show it, or all would wait."""
    pace = {"stuck": 30.0, "other": 1.0}
    shares, makespan = _play(ShardBoard.fresh(10), _known({"stuck": 0.2, "other": 1.0}), pace)
    assert shares.get("stuck", 0) <= 1
    assert makespan < 16


def test_a_newcomer_gets_one_shard_and_the_next_after_it_was_measured() -> None:
    board = ShardBoard.fresh(64)
    speeds = _known({"old": 1.0, "new": None})
    assert board.lease("new", 0.0, speeds) is not None
    assert board.lease("new", 0.0, speeds) is None
    (shard,) = board.held_by("new")
    board.finish(shard, "new", 0.0)
    speeds["new"].observe(0.5)
    assert board.lease("new", 0.5, speeds) is not None
    assert board.lease("new", 0.5, speeds) is not None


def test_a_fleet_of_newcomers_starts_at_once() -> None:
    board = ShardBoard.fresh(8)
    speeds = _known(dict.fromkeys(ISLANDS))
    assert [board.lease(n, 0.0, speeds) for n in ISLANDS] == [0, 1, 2, 3]


def test_a_slow_island_waits_where_others_would_finish_the_rest_sooner() -> None:
    board = ShardBoard.fresh(2)
    speeds = _known({"slow": 10.0, "fast": 1.0})
    assert board.lease("slow", 0.0, speeds) is None
    assert board.lease("fast", 0.0, speeds) == 0
    assert board.lease("slow", 0.0, speeds) is None


def test_the_last_shard_of_a_straggler_runs_a_second_time_and_the_first_result_wins() -> None:
    board = ShardBoard.fresh(1)
    speeds = _known({"slow": 10.0, "fast": 1.0})
    assert board.lease("slow", 0.0, _known({"slow": None})) == 0
    assert board.lease("fast", 1.0, speeds) == 0
    assert board.lease("fast", 1.0, speeds) is None, "two runs are enough"
    assert board.finish(0, "fast", 0.0)
    assert not board.finish(0, "slow", 0.0)
    assert board.contributions() == {"fast": [0]}


def test_no_second_run_where_the_first_ends_as_soon() -> None:
    board = ShardBoard.fresh(1)
    speeds = _known({"a": 1.0, "b": 1.0})
    assert board.lease("a", 0.0, speeds) == 0
    assert board.lease("b", 0.5, speeds) is None


def test_forget_gives_back_leases_and_results_in_order() -> None:
    """Case kubeflow/trainer#1638, pytorch#111646: a lost node's work is done by the others."""
    board = ShardBoard.fresh(5)
    for shard in range(4):
        owner = "dead" if shard % 2 else "alive"
        board.running[shard] = {owner: 0.0}
        board.unstarted.remove(shard)
        if shard < 2:
            assert board.finish(shard, owner, 0.0)
    board.forget("dead")
    assert board.unstarted == [1, 3, 4]
    assert board.done == {0: "alive"}
    assert list(board.running) == [2]


def test_a_lost_island_s_second_run_leaves_the_first_one_leased() -> None:
    board = ShardBoard.fresh(1)
    board.lease("slow", 0.0, _known({"slow": None}))
    assert board.lease("fast", 0.0, _known({"slow": 10.0, "fast": 1.0})) == 0
    board.forget("fast")
    assert board.unstarted == []
    assert board.held_by("slow") == [0]


def test_one_wild_measurement_moves_the_average_little() -> None:
    speed = Speed()
    speed.observe(1.0)
    speed.observe(100.0)
    assert speed.seconds_per_shard == pytest.approx(1.9)
    for _ in range(20):
        speed.observe(1.0)
    assert speed.seconds_per_shard == pytest.approx(1.0, abs=0.01)
