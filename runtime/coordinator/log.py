"""The commit log of a run on this machine: a SQLite file of the run folder.

A row is durable (`synchronous=FULL`) before anyone is told of the commit. That one coordinator
writes at a time is seen to by `fence`, a lock beside the file.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runtime.coordinator.client import CoordinatorAddress
from runtime.coordinator.commit_log import (
    Commit,
    LogRows,
    changed_state_error,
    changed_sum_error,
    gap_error,
    repeated_epoch_error,
)
from runtime.spec.errors import CoordinationError, RunError

__all__ = ["LOG_FILE", "Commit", "SqliteCommitLog"]

LOG_FILE = "log.sqlite"
_MAGIC = b"SQLite format 3\0"
_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS commits (
    step INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, attempt INTEGER NOT NULL,
    members TEXT NOT NULL, shards TEXT NOT NULL, sum_hash TEXT NOT NULL,
    loss REAL NOT NULL, tokens INTEGER NOT NULL, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS recommits (
    step INTEGER NOT NULL, epoch INTEGER NOT NULL, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS epochs (
    epoch INTEGER PRIMARY KEY, members TEXT NOT NULL, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoints (
    step INTEGER PRIMARY KEY, state_hash TEXT NOT NULL, path TEXT NOT NULL, time REAL NOT NULL);
"""


class SqliteCommitLog:
    """The log of one run in a file; a `CommitLog`.

    Args:
        path: the SQLite file; created where it is missing unless `read_only`.
        read_only: open for reading beside a live coordinator.

    Raises:
        RunError: the file is not a log of this format.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        uri = f"file:{path}?mode={'ro' if read_only else 'rwc'}"
        self._path = path
        self._check_begin()
        try:
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise RunError(f"{path}: cannot be opened ({error})") from None
        try:
            self._open(read_only=read_only)
        except sqlite3.Error as error:
            self._db.close()
            raise RunError(f"{path}: cannot be read as a commit log ({error})") from None
        except RunError:
            self._db.close()
            raise

    def _check_begin(self) -> None:
        """Refuse a few bytes of something else, which SQLite takes for an empty database."""
        try:
            with self._path.open("rb") as file:
                begin = file.read(len(_MAGIC))
        except OSError:
            return  # missing, or what SQLite will say of it
        if begin and begin != _MAGIC:
            raise RunError(f"{self._path}: cannot be read as a commit log (no database)")

    def _open(self, *, read_only: bool) -> None:
        version = self._version()
        if version == 0 and not read_only:
            self._create()
            version = self._version()
        elif version == 0 and not self._tables():
            # Its making was cut short, by a full disk say: nothing was ever committed.
            self._db.close()
            self._db = sqlite3.connect(":memory:", isolation_level=None)
            self._create()
            version = self._version()
        if version != _SCHEMA_VERSION:
            raise RunError(
                f"{self._path}: log version {version}, this luma reads {_SCHEMA_VERSION}",
                remedy="start the job again in a new run folder",
            )
        # A cut or overwritten page shows here, not in the middle of a run.
        (damage,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if damage != "ok":
            raise RunError(f"{self._path}: the commit log is damaged ({damage})")
        if not read_only:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")

    def _version(self) -> int:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        return int(version)

    def _tables(self) -> int:
        (count,) = self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        return int(count)

    def _create(self) -> None:
        """Make the tables, unless the file is a database of something else."""
        if self._tables():
            raise RunError(f"{self._path}: a database, but not a commit log")
        self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={_SCHEMA_VERSION}; COMMIT;")

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise CoordinationError(
                f"{self._path}: the commit log cannot be used ({error})",
                remedy="free some disk space, then `luma launch --resume`",
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def last_step(self) -> int:
        """Give the highest committed step, -1 when there is none."""
        (step,) = self._execute("SELECT COALESCE(MAX(step), -1) FROM commits").fetchone()
        return int(step)

    def sum_hash(self, step: int) -> str | None:
        """Give the hash of a committed step's sum, or None when it is not committed."""
        row = self._execute("SELECT sum_hash FROM commits WHERE step = ?", (step,)).fetchone()
        return None if row is None else str(row[0])

    def append(self, commit: Commit) -> bool:
        """Make a commit durable; True when the step was new, False when it was recomputed.

        Raises:
            CoordinationError: the step is committed already with another sum, or it would leave
                a gap in the history.
        """
        known = self.sum_hash(commit.step)
        if known is not None:
            return self._append_again(commit, known)
        if commit.step != self.last_step() + 1:
            raise gap_error(commit.step, self.last_step())
        self._insert("commits", [_commit_row(commit, time.time())])
        return True

    def _append_again(self, commit: Commit, known: str) -> bool:
        if known != commit.sum_hash:
            raise changed_sum_error(commit.step, known, commit.sum_hash)
        self._insert("recommits", [(commit.step, commit.epoch, time.time())])
        return False

    def _insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        for row in rows:
            marks = ", ".join("?" * len(row))
            self._execute(f"INSERT INTO {table} VALUES ({marks})", row)  # noqa: S608 - our names

    def commits(self) -> list[Commit]:
        """Give every committed step in order."""
        return [commit for commit, _ in self._commits()]

    def _commits(self) -> list[tuple[Commit, float]]:
        rows = self._execute(
            "SELECT step, epoch, attempt, members, shards, sum_hash, loss, tokens, time"
            " FROM commits ORDER BY step"
        )
        return [
            (
                Commit(
                    step=step,
                    epoch=epoch,
                    attempt=attempt,
                    members=tuple(json.loads(members)),
                    shards=json.loads(shards),
                    sum_hash=sum_hash,
                    loss=loss,
                    tokens=tokens,
                ),
                at,
            )
            for step, epoch, attempt, members, shards, sum_hash, loss, tokens, at in rows
        ]

    def recommit_count(self) -> int:
        """Give how many committed steps were computed a second time, with the same bits."""
        (count,) = self._execute("SELECT COUNT(*) FROM recommits").fetchone()
        return int(count)

    def append_epoch(self, epoch: int, members: Sequence[str]) -> None:
        """Record a membership epoch before it is announced.

        Raises:
            CoordinationError: that epoch was announced already.
        """
        known = self._execute("SELECT 1 FROM epochs WHERE epoch = ?", (epoch,)).fetchone()
        if known is not None:
            raise repeated_epoch_error(epoch)
        self._insert("epochs", [(epoch, json.dumps(list(members)), time.time())])

    def last_epoch(self) -> tuple[int, list[str]]:
        """Give the newest membership epoch and its members; epoch 0 when there is none."""
        row = self._execute(
            "SELECT epoch, members FROM epochs ORDER BY epoch DESC LIMIT 1"
        ).fetchone()
        return (0, []) if row is None else (int(row[0]), list(json.loads(row[1])))

    def append_checkpoint(self, step: int, state_hash: str, path: str) -> None:
        """Record a durable checkpoint of the state after `step` applied steps.

        Raises:
            CoordinationError: that state has another hash in the log.
        """
        row = self._execute("SELECT state_hash FROM checkpoints WHERE step = ?", (step,)).fetchone()
        if row is not None and row[0] != state_hash:
            raise changed_state_error(step, row[0], state_hash)
        self._execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)",
            (step, state_hash, path, time.time()),
        )

    def checkpoints(self) -> list[tuple[int, str, str]]:
        """Give (applied steps, state hash, path) of each recorded checkpoint in order."""
        return list(self._execute("SELECT step, state_hash, path FROM checkpoints ORDER BY step"))

    def rows(self) -> LogRows:
        """Give everything that the log holds."""
        recommits = "SELECT step, epoch, time FROM recommits ORDER BY step, rowid"
        epochs = self._execute("SELECT epoch, members, time FROM epochs ORDER BY epoch")
        checkpoints = "SELECT step, state_hash, path, time FROM checkpoints ORDER BY step"
        return LogRows(
            commits=self._commits(),
            recommits=list(self._execute(recommits)),
            epochs=[(epoch, tuple(json.loads(members)), at) for epoch, members, at in epochs],
            checkpoints=list(self._execute(checkpoints)),
        )

    def fill(self, rows: LogRows) -> None:
        """Write another log's rows into this one, which must be empty: all of them or none.

        Raises:
            CoordinationError: this log is not empty, or the disk refused.
        """
        if self.last_step() >= 0 or self.last_epoch()[0] > 0 or self.checkpoints():
            raise CoordinationError(f"{self._path}: not empty; a log is copied into a new file")
        self._execute("BEGIN")
        try:
            self._insert("commits", (_commit_row(commit, at) for commit, at in rows.commits))
            self._insert("recommits", rows.recommits)
            self._insert("epochs", ((e, json.dumps(list(m)), at) for e, m, at in rows.epochs))
            self._insert("checkpoints", rows.checkpoints)
        except BaseException:
            self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    def address(self) -> CoordinatorAddress | None:
        """Give None: in a run folder the address stands in a file of its own."""
        return None

    def publish(self, address: CoordinatorAddress) -> None:
        """Do nothing: in a run folder the address stands in a file of its own."""

    def check_alone(self) -> None:
        """Do nothing: the lock of the run folder keeps every other coordinator out."""


def _commit_row(commit: Commit, at: float) -> tuple[Any, ...]:
    return (
        commit.step,
        commit.epoch,
        commit.attempt,
        json.dumps(commit.members),
        json.dumps(commit.shards),
        commit.sum_hash,
        commit.loss,
        commit.tokens,
        at,
    )
