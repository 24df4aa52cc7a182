"""What a node decides: single cases, and any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.agent.node.core import (
    Answer,
    Begin,
    Ended,
    Kill,
    Leave,
    NodeCore,
    Noticed,
    Ready,
    Record,
    Stale,
    Start,
    Taken,
    Tick,
)
from runtime.agent.node.notices import Notice
from runtime.agent.node.tasks import Failure, Success

SPOT = Noticed(Notice(kind="spot", leave_s=60.0))
DONE = Ended(Success({"ended": "done"}))
CRASHED = Ended(Failure("Luma.Retryable", "crash"))
INTERRUPTED = Answer(Failure("Luma.Interrupted", "this node leaves: spot"))


def working(*, graceful: bool = True) -> NodeCore:
    core = NodeCore()
    assert core.handle(Taken(graceful), 0.0) == [Record("working"), Begin()]
    assert core.handle(Ready(), 0.0) == [Start()]
    return core


def test_work_is_begun_started_and_answered():
    core = working()
    assert core.handle(DONE, 1.0) == [Answer(DONE.answer), Record("idle")]
    assert core.wants_work


def test_a_notice_has_the_island_leave_and_then_answers():
    core = working()
    assert core.handle(SPOT, 10.0) == [Record("leaving"), Leave()]
    assert core.handle(Tick(), 69.9) == []
    # The island's own end is told as the interruption that it was.
    assert core.handle(CRASHED, 70.0) == [INTERRUPTED, Record("left")]
    assert core.state == "left"


def test_an_island_that_does_not_leave_in_time_is_killed():
    core = working()
    core.handle(SPOT, 10.0)
    assert core.handle(Tick(), 70.0) == [Kill(), INTERRUPTED, Record("left")]


def test_a_run_that_ends_while_the_node_leaves_is_told_as_done():
    core = working()
    core.handle(SPOT, 10.0)
    assert core.handle(DONE, 11.0) == [Answer(DONE.answer), Record("left")]


def test_what_cannot_be_asked_to_leave_is_killed_at_once():
    core = working(graceful=False)
    assert core.handle(SPOT, 0.0) == [Record("leaving"), Kill(), INTERRUPTED, Record("left")]


def test_a_notice_while_fetching_gives_the_work_up():
    core = NodeCore()
    core.handle(Taken(graceful=True), 0.0)
    assert core.handle(SPOT, 0.0) == [Record("leaving"), Kill(), INTERRUPTED, Record("left")]
    assert core.handle(Ready(), 0.0) == []


def test_work_that_comes_with_the_notice_is_handed_on():
    core = NodeCore()
    assert core.handle(SPOT, 0.0) == [Record("left")]
    assert core.handle(Taken(graceful=True), 0.0) == [INTERRUPTED]


def test_stale_work_ends_without_an_answer_and_the_node_is_free():
    core = working()
    assert core.handle(Stale(), 0.0) == [Leave()]
    assert core.handle(CRASHED, 1.0) == [Answer(None), Record("idle")]
    assert core.wants_work


def test_a_time_of_zero_kills_at_once():
    core = working()
    notice = Noticed(Notice(kind="spot", leave_s=0.0))
    assert Kill() in core.handle(notice, 0.0)


class AnyOrder(RuleBasedStateMachine):
    """Any events in any order, as threads may deliver them."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.now = NodeCore(), 0.0
        self.taken = self.answered = self.started = 0
        self.noticed = False

    def take(self, event) -> None:
        actions = self.core.handle(event, self.now)
        for action in actions:
            if isinstance(action, Answer):
                self.answered += 1
            elif isinstance(action, Start):
                assert not self.noticed
                self.started += 1
            elif isinstance(action, Begin):
                assert not self.noticed
        kinds = [type(action) for action in actions]
        if Kill in kinds:
            assert kinds.index(Kill) < kinds.index(Answer)

    @precondition(lambda self: self.core.wants_work)
    @rule(graceful=st.booleans())
    def take_work(self, graceful):
        self.taken += 1
        self.take(Taken(graceful))

    @rule()
    def fetched(self):
        self.take(Ready())

    @rule(event=st.sampled_from([DONE, CRASHED]))
    def ended(self, event):
        self.take(event)

    @rule(leave_s=st.sampled_from([0.0, 5.0]))
    def notice(self, leave_s):
        before = self.noticed
        self.noticed = True
        self.take(Noticed(Notice(kind="spot", leave_s=leave_s)))
        assert before or self.core.state in {"leaving", "left"}

    @rule()
    def stale(self):
        self.take(Stale())

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(Tick())

    @invariant()
    def one_answer_a_work(self):
        in_hand = self.core.state in {"working", "leaving"}
        assert self.taken == self.answered + in_hand
        assert self.started <= self.taken

    @invariant()
    def a_noticed_node_takes_no_work(self):
        assert not (self.noticed and self.core.wants_work)

    def teardown(self):
        """Whatever happened, a notice and enough time make it leave."""
        self.noticed = True
        self.take(SPOT)
        self.now += 1000.0
        self.take(Tick())
        assert self.core.state == "left"
        assert self.taken == self.answered


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestAnyOrder = AnyOrder.TestCase
