"""The log in a file and the log in a table give the same answers, whatever is asked of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from runtime.coordinator.commit_log import Commit, CommitLog
from runtime.coordinator.log import SqliteCommitLog
from runtime.coordinator.log_dynamodb import DynamoCommitLog
from runtime.spec.errors import CoordinationError
from tests.unit.coordinator.account_table import TABLE, emulated_table, new_run

_STEPS = st.integers(0, 8)
_MEMBERS = st.lists(st.sampled_from(["island-0", "island-1", "island-10"]), unique=True)


@st.composite
def commits(draw: st.DrawFn, step: int) -> Commit:
    """Give a commit as a coordinator makes it; its hash is honest or not."""
    members = draw(_MEMBERS)
    return Commit(
        step=step,
        epoch=draw(st.integers(1, 9)),
        attempt=draw(st.integers(0, 3)),
        members=tuple(members),
        shards={name: draw(st.lists(st.integers(0, 511), max_size=4)) for name in members},
        sum_hash=draw(st.sampled_from([f"{step:064x}", f"{step:064x}", "e" * 64])),
        # As `mean_loss` gives it: a multiple of 2^-20 over a count of tokens.
        loss=draw(st.integers(-(2**50), 2**50)) * 2.0**-20 / draw(st.integers(1, 2**40)),
        tokens=draw(st.integers(0, 2**62)),
    )


class BothLogs(RuleBasedStateMachine):
    """Does everything to both, and compares what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.run = new_run()
        self.sqlite: CommitLog
        self.dynamo: CommitLog
        self.open()

    def open(self) -> None:
        self.sqlite = SqliteCommitLog(self.place / "log.sqlite")
        self.dynamo = DynamoCommitLog(TABLE, self.run)

    def teardown(self) -> None:
        self.hold_the_same()
        self.sqlite.close()
        shutil.rmtree(self.place)

    def same(self, act: Callable[[CommitLog], Any]) -> Any:
        """Give what both answered."""
        answer = _answer(self.sqlite, act)
        assert answer == _answer(self.dynamo, act)
        return answer

    @rule(data=st.data(), step=_STEPS)
    def append(self, data: st.DataObject, step: int) -> None:
        commit = data.draw(commits(step))
        self.same(lambda log: log.append(commit))

    @rule(data=st.data())
    def append_next(self, data: st.DataObject) -> None:
        commit = data.draw(commits(self.sqlite.last_step() + 1))
        assert self.same(lambda log: log.append(commit)) is True

    @rule(epoch=st.integers(1, 6), members=_MEMBERS)
    def append_epoch(self, epoch: int, members: list[str]) -> None:
        self.same(lambda log: log.append_epoch(epoch, members))

    @rule(step=_STEPS, state=st.sampled_from(["aa", "aa", "bb"]), path=st.sampled_from(["p", "q"]))
    def append_checkpoint(self, step: int, state: str, path: str) -> None:
        self.same(lambda log: log.append_checkpoint(step, state, path))

    @rule(step=st.integers(-1, 9))
    def ask_for_a_sum(self, step: int) -> None:
        self.same(lambda log: log.sum_hash(step))

    @rule()
    def start_again(self) -> None:
        self.sqlite.close()
        self.open()

    @rule()
    def hold_the_same(self) -> None:
        self.same(lambda log: (log.last_step(), log.last_epoch(), log.recommit_count()))
        self.same(lambda log: (log.commits(), log.checkpoints()))
        self.same(lambda log: [row[:2] for row in log.rows().recommits])
        self.same(lambda log: [row[:2] for row in log.rows().epochs])
        assert [c.step for c in self.sqlite.commits()] == list(range(self.sqlite.last_step() + 1))


def _answer(log: CommitLog, act: Callable[[CommitLog], Any]) -> Any:
    try:
        return act(log)
    except CoordinationError as error:
        return type(error), error.diagnostics()


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    with emulated_table():
        yield


@pytest.mark.timeout(600)
def test_both_logs_answer_alike() -> None:
    BothLogs.TestCase.settings = settings(max_examples=8, stateful_step_count=15, deadline=None)
    BothLogs.TestCase().runTest()


def test_a_copy_holds_every_row_with_its_time(tmp_path: Path) -> None:
    source = DynamoCommitLog(TABLE, new_run())
    for step in range(3):
        source.append(_commit(step))
    source.append(_commit(1))
    source.append_epoch(1, ["island-0"])
    source.append_checkpoint(2, "aa", "checkpoints/step-000002")
    copy = SqliteCommitLog(tmp_path / "log.sqlite")
    copy.fill(source.rows())
    assert copy.rows() == source.rows()
    copy.close()
    again = SqliteCommitLog(tmp_path / "log.sqlite", read_only=True)
    assert again.rows() == source.rows()
    assert again.recommit_count() == 1


def test_a_log_that_holds_something_is_not_filled(tmp_path: Path) -> None:
    log = SqliteCommitLog(tmp_path / "log.sqlite")
    log.append_epoch(1, [])
    with pytest.raises(CoordinationError, match="not empty"):
        log.fill(log.rows())
    assert log.last_epoch() == (1, [])


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    source = DynamoCommitLog(TABLE, new_run())
    source.append(_commit(0))
    source.append(_commit(1))
    rows = source.rows()
    twice = type(rows)(
        commits=[*rows.commits, rows.commits[0]], recommits=[], epochs=[], checkpoints=[]
    )
    log = SqliteCommitLog(tmp_path / "log.sqlite")
    with pytest.raises(CoordinationError, match="UNIQUE"):
        log.fill(twice)
    assert log.last_step() == -1
    log.fill(rows)
    assert log.last_step() == 1


def _commit(step: int) -> Commit:
    return Commit(
        step=step,
        epoch=1,
        attempt=0,
        members=("island-0",),
        shards={"island-0": [0, 1]},
        sum_hash=f"{step:064x}",
        loss=2.0,
        tokens=7,
    )
