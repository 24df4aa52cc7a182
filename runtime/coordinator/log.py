"""The commit log: which steps are committed, by whom, with which sum; in SQLite.

A row is durable (`synchronous=FULL`) before anyone is told of the commit. A step that is computed
again after all islands died must give the hash that its row holds; that second time is kept in
`recommits`, so that the certificate can count it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.spec.errors import CoordinationError, RunError

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One committed step.

    Attributes:
        step: the step, from 0.
        epoch: the membership epoch that it was reduced in.
        attempt: how often the step was redone with a larger scale.
        members: the islands that held the sum.
        shards: the micro-shards that each island contributed.
        sum_hash: BLAKE3 of the reduced integers, hex.
        loss: mean loss over the supervised tokens of the global batch.
        tokens: supervised tokens of the global batch.
    """

    step: int
    epoch: int
    attempt: int
    members: tuple[str, ...]
    shards: dict[str, list[int]]
    sum_hash: str
    loss: float
    tokens: int


class CommitLog:
    """The log of one run; one writer, any number of readers.

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
            raise CoordinationError(
                f"step {commit.step} cannot follow step {self.last_step()} in the commit log"
            )
        self._execute(
            "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                commit.step,
                commit.epoch,
                commit.attempt,
                json.dumps(commit.members),
                json.dumps(commit.shards),
                commit.sum_hash,
                commit.loss,
                commit.tokens,
                time.time(),
            ),
        )
        return True

    def _append_again(self, commit: Commit, known: str) -> bool:
        if known != commit.sum_hash:
            raise CoordinationError(
                f"step {commit.step} was committed with sum {known} and was now recomputed as "
                f"{commit.sum_hash}; a recomputed step must have the same bits",
                remedy="run on the same chip class, artifact and data as before",
            )
        self._execute(
            "INSERT INTO recommits VALUES (?, ?, ?)", (commit.step, commit.epoch, time.time())
        )
        return False

    def commits(self) -> list[Commit]:
        """Give every committed step in order."""
        rows = self._execute(
            "SELECT step, epoch, attempt, members, shards, sum_hash, loss, tokens"
            " FROM commits ORDER BY step"
        )
        return [
            Commit(
                step=step,
                epoch=epoch,
                attempt=attempt,
                members=tuple(json.loads(members)),
                shards=json.loads(shards),
                sum_hash=sum_hash,
                loss=loss,
                tokens=tokens,
            )
            for step, epoch, attempt, members, shards, sum_hash, loss, tokens in rows
        ]

    def recommit_count(self) -> int:
        """Give how many committed steps were computed a second time, with the same bits."""
        (count,) = self._execute("SELECT COUNT(*) FROM recommits").fetchone()
        return int(count)

    def append_epoch(self, epoch: int, members: list[str]) -> None:
        """Record a membership epoch before it is announced."""
        self._execute(
            "INSERT INTO epochs VALUES (?, ?, ?)", (epoch, json.dumps(members), time.time())
        )

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
            raise CoordinationError(
                f"the state after step {step} has hash {state_hash}, the log holds {row[0]}"
            )
        self._execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)",
            (step, state_hash, path, time.time()),
        )

    def checkpoints(self) -> list[tuple[int, str, str]]:
        """Give (applied steps, state hash, path) of each recorded checkpoint in order."""
        return list(self._execute("SELECT step, state_hash, path FROM checkpoints ORDER BY step"))
