"""The commit log on a real disk: what was told is there, and nothing false is ever read."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.coordinator.log import Commit, SqliteCommitLog
from runtime.spec.errors import CoordinationError, RunError


def _commit(step: int, sum_hash: str | None = None, epoch: int = 1) -> Commit:
    return Commit(
        step=step,
        epoch=epoch,
        attempt=step % 2,
        members=("island-0", "island-10"),
        shards={"island-0": [0, 2], "island-10": [1]},
        sum_hash=sum_hash or f"{step:064x}",
        loss=2.5 / (step + 1),
        tokens=1000 + step,
    )


def test_a_fresh_log_has_no_step_and_epoch_0(tmp_path: Path) -> None:
    log = SqliteCommitLog(tmp_path / "log.sqlite")
    assert log.last_step() == -1
    assert log.last_epoch() == (0, [])
    assert log.commits() == []
    assert log.sum_hash(0) is None
    assert log.recommit_count() == 0


def test_what_was_appended_comes_back_after_a_restart(tmp_path: Path) -> None:
    log = SqliteCommitLog(tmp_path / "log.sqlite")
    log.append_epoch(1, ["island-0", "island-10"])
    for step in range(5):
        assert log.append(_commit(step))
    log.append_epoch(2, ["island-10"])
    log.append_checkpoint(4, "abc", "checkpoints/step-000004")
    log.close()
    again = SqliteCommitLog(tmp_path / "log.sqlite")
    assert again.commits() == [_commit(step) for step in range(5)]
    assert again.last_step() == 4
    assert again.sum_hash(3) == f"{3:064x}"
    assert again.last_epoch() == (2, ["island-10"])
    assert again.checkpoints() == [(4, "abc", "checkpoints/step-000004")]


@pytest.mark.parametrize("step", [1, 7])
def test_a_gap_in_the_history_is_refused(tmp_path: Path, step: int) -> None:
    log = SqliteCommitLog(tmp_path / "log.sqlite")
    with pytest.raises(CoordinationError, match=f"step {step} cannot follow step -1"):
        log.append(_commit(step))
    assert log.last_step() == -1


def test_a_recomputed_step_must_have_the_same_bits(tmp_path: Path) -> None:
    log = SqliteCommitLog(tmp_path / "log.sqlite")
    for step in range(3):
        log.append(_commit(step))
    assert not log.append(_commit(1, epoch=9)), "known: nothing new, but counted"
    assert log.recommit_count() == 1
    assert log.commits()[1].epoch == 1, "the first commit stays as it was"
    with pytest.raises(CoordinationError, match="must have the same bits"):
        log.append(_commit(1, sum_hash="f" * 64))
    assert log.sum_hash(1) == f"{1:064x}"
    assert log.recommit_count() == 1


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=25))
@settings(max_examples=30, deadline=None)
def test_any_order_of_appends_leaves_a_history_without_gaps(
    tmp_path_factory: pytest.TempPathFactory, appends: list[tuple[int, bool]]
) -> None:
    """Model: a list that only grows at its end, with one hash a step."""
    log = SqliteCommitLog(tmp_path_factory.mktemp("log") / "log.sqlite")
    model: list[str] = []
    recommits = 0
    for step, honest in appends:
        mine = f"{step:064x}" if honest else "e" * 64
        if step > len(model) or (step < len(model) and model[step] != mine):
            with pytest.raises(CoordinationError):
                log.append(_commit(step, mine))
        elif step == len(model):
            assert log.append(_commit(step, mine))
            model.append(mine)
        else:
            assert not log.append(_commit(step, mine))
            recommits += 1
        assert [c.sum_hash for c in log.commits()] == model
    assert log.recommit_count() == recommits
    log.close()


def test_a_checkpoint_s_state_has_one_hash(tmp_path: Path) -> None:
    log = SqliteCommitLog(tmp_path / "log.sqlite")
    log.append_checkpoint(8, "aa", "checkpoints/step-000008")
    log.append_checkpoint(8, "aa", "checkpoints/step-000008")
    with pytest.raises(CoordinationError, match="the log holds aa"):
        log.append_checkpoint(8, "bb", "checkpoints/step-000008")
    assert [row[1] for row in log.checkpoints()] == ["aa"]


def test_an_epoch_is_announced_once(tmp_path: Path) -> None:
    """A second coordinator that numbers epochs from the same log must notice the first."""
    first, second = (
        SqliteCommitLog(tmp_path / "log.sqlite"),
        SqliteCommitLog(tmp_path / "log.sqlite"),
    )
    first.append_epoch(1, ["island-0"])
    with pytest.raises(CoordinationError):
        second.append_epoch(1, ["island-1"])


_APPENDER = """
import sys
from pathlib import Path
from runtime.coordinator.log import SqliteCommitLog, Commit
log = SqliteCommitLog(Path(sys.argv[1]))
step = log.last_step() + 1
while True:
    log.append_epoch(step + 1, ["island-0"])
    log.append(Commit(step=step, epoch=1, attempt=0, members=("island-0",),
                      shards={"island-0": list(range(64))}, sum_hash=f"{step:064x}",
                      loss=1.0, tokens=7))
    sys.stdout.write(f"{step}\\n")  # the commit is told
    sys.stdout.flush()
    step += 1
"""


def test_every_commit_that_was_told_survives_kill_9(tmp_path: Path) -> None:
    """Three times, in the middle of as many appends as the disk takes; each start goes on."""
    path = tmp_path / "log.sqlite"
    told = -1
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _APPENDER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            told = int(line)
            if told % 25 == 24:
                break
        os.kill(process.pid, signal.SIGKILL)
        told = max([told, *(int(line) for line in process.stdout if line.endswith("\n"))])
        process.wait()
        process.stdout.close()
        log = SqliteCommitLog(path)
        steps = [c.step for c in log.commits()]
        assert steps == list(range(len(steps)))
        assert told <= log.last_step() <= told + 1, "at most one was durable and not told yet"
        assert all(log.sum_hash(step) == f"{step:064x}" for step in steps)
        log.close()


def test_a_reader_beside_a_writer_sees_what_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    writer = SqliteCommitLog(path)
    writer.append(_commit(0))
    reader = SqliteCommitLog(path, read_only=True)
    assert reader.last_step() == 0
    for step in range(1, 40):
        writer.append(_commit(step))
        assert reader.last_step() == step
    with pytest.raises(CoordinationError):
        reader.append(_commit(40))
    assert writer.last_step() == 39
    writer.close()
    assert reader.commits()[39] == _commit(39)


def test_a_reader_never_makes_a_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"log\.sqlite"):
        SqliteCommitLog(tmp_path / "log.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [2, 99])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, version: int, *, read_only: bool
) -> None:
    path = tmp_path / "log.sqlite"
    SqliteCommitLog(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    with pytest.raises(RunError, match=f"log version {version}, this luma reads 1"):
        SqliteCommitLog(path, read_only=read_only)
    assert path.read_bytes() == before


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
        db.commit()
    with pytest.raises(RunError, match="not a commit log"):
        SqliteCommitLog(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a closed log of 200 steps."""
    path = tmp_path_factory.mktemp("long") / "log.sqlite"
    log = SqliteCommitLog(path)
    for step in range(200):
        log.append(_commit(step))
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize("part", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_a_truncated_log_is_refused(tmp_path: Path, long_log: bytes, part: float) -> None:
    path = tmp_path / "log.sqlite"
    path.write_bytes(long_log[: int(part * len(long_log))])
    with pytest.raises(RunError):
        SqliteCommitLog(path)


@given(st.binary(min_size=1, max_size=2000))
@settings(max_examples=40, deadline=None)
def test_garbage_is_refused(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage") / "log.sqlite"
    path.write_bytes(garbage)
    with pytest.raises(RunError, match=r"log\.sqlite"):
        SqliteCommitLog(path)
    assert path.read_bytes() == garbage
    shutil.rmtree(path.parent)


@given(page=st.integers(0, 20), seed=st.integers(0, 1 << 32))
@settings(max_examples=20, deadline=None)
def test_an_overwritten_page_is_refused(
    tmp_path_factory: pytest.TempPathFactory, long_log: bytes, page: int, seed: int
) -> None:
    path = tmp_path_factory.mktemp("page") / "log.sqlite"
    pages = len(long_log) // 4096
    first = page % pages * 4096
    damaged = bytearray(long_log)
    damaged[first : first + 4096] = random.Random(seed).randbytes(4096)
    path.write_bytes(damaged)
    with pytest.raises(RunError):
        SqliteCommitLog(path)
    shutil.rmtree(path.parent)


def test_a_full_disk_is_an_error_that_says_so_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    log = SqliteCommitLog(path)
    log._db.execute("PRAGMA journal_mode=DELETE")
    (pages,) = log._db.execute("PRAGMA page_count").fetchone()
    log._db.execute(f"PRAGMA max_page_count={pages + 2}")
    appended = 0
    with pytest.raises(CoordinationError, match="full") as caught:
        for step in range(1000):
            log.append(_commit(step))
            appended += 1
    assert "disk space" in caught.value.diagnostics()
    log.close()
    assert SqliteCommitLog(path).last_step() == appended - 1


def test_a_commit_is_a_value(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        _commit(0).step = 3  # type: ignore[misc]
