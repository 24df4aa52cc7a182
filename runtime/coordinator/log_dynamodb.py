"""The commit log of a run in the account: items of its DynamoDB table.

A coordinator opens the log by taking the next term: the item COORDINATOR is updated on condition
that the term is still the one that was read. Every row is then written by one transaction that
holds three conditions at once: COORDINATOR still has our term, the row is not there yet, and (for a
commit) its predecessor is. So a coordinator that was cut off and replaced writes nothing, however
late its request arrives, and of two that start at the same moment one goes.

An answer can be lost after the write was done. Each row carries the id of its write: where a
repeated write finds a row, it looks whose it is, and its own is a success. What a crash leaves is a
row and nobody who was told of it; the next coordinator reads it as the truth.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from runtime.coordinator import log_items as items
from runtime.coordinator.client import CoordinatorAddress
from runtime.coordinator.commit_log import (
    Commit,
    LogRows,
    changed_state_error,
    changed_sum_error,
    gap_error,
    repeated_epoch_error,
)
from runtime.coordinator.run_table import ABSENT, RunTable
from runtime.spec.account import (
    COORDINATOR_ITEM,
    checkpoint_item,
    commit_item,
    epoch_item,
    recommit_item,
)
from runtime.spec.errors import CoordinationError


class DynamoCommitLog:
    """The log of one run in a table; a `CommitLog`.

    Args:
        table: the table's name.
        run: the run's name.
        read_only: read beside a live coordinator, and take no term.

    Raises:
        AwsError: the table is missing, or AWS refuses.
        SupersededError: another coordinator took the log over in this moment.
    """

    def __init__(self, table: str, run: str, *, read_only: bool = False) -> None:
        self._items = RunTable(table, run)
        self._term = 0 if read_only else self._items.take_term()
        self._last = self._read_last_step()  # after the term: nobody else appends any more

    @property
    def term(self) -> int:
        """The term that this coordinator has, from 1; 0 for a reader."""
        return self._term

    def close(self) -> None:
        """Close the connections."""
        self._items.close()

    def last_step(self) -> int:
        """Give the highest committed step, -1 when there is none."""
        return self._last if self._term else self._read_last_step()

    def _read_last_step(self) -> int:
        newest = self._items.newest(items.COMMIT)
        return -1 if newest is None else newest["step"]

    def sum_hash(self, step: int) -> str | None:
        """Give the hash of a committed step's sum, or None when it is not committed."""
        known = self._items.get(commit_item(step)) if step >= 0 else None
        return None if known is None else str(known["sum_hash"])

    def append(self, commit: Commit) -> bool:
        """Make a commit durable; True when the step was new, False when it was recomputed.

        Raises:
            CoordinationError: the step is committed already with another sum, or it would leave
                a gap in the history.
        """
        term = self._writing()
        known = self.sum_hash(commit.step) if commit.step <= self._last else None
        if known is not None:
            return self._append_again(commit, known)
        if commit.step != self._last + 1:
            raise gap_error(commit.step, self._last)
        there = self._items.put(
            commit_item(commit.step),
            items.commit_fields(commit),
            term=term,
            after=commit_item(commit.step - 1) if commit.step else None,
        )
        if there is not None:  # from outside: in our term only we write
            raise changed_sum_error(commit.step, str(there["sum_hash"]), commit.sum_hash)
        self._last = commit.step
        return True

    def _append_again(self, commit: Commit, known: str) -> bool:
        if known != commit.sum_hash:
            raise changed_sum_error(commit.step, known, commit.sum_hash)
        number = len(list(self._items.query(recommit_item(commit.step, 0).removesuffix("000000"))))
        fields = {"step": commit.step, "epoch": commit.epoch}
        there = self._items.put(recommit_item(commit.step, number), fields, term=self._writing())
        if there is not None:
            raise CoordinationError(f"step {commit.step}: its recommits were changed from outside")
        return False

    def commits(self) -> list[Commit]:
        """Give every committed step in order."""
        return [items.commit_of(fields) for fields in self._items.query(items.COMMIT)]

    def recommit_count(self) -> int:
        """Give how many committed steps were computed a second time, with the same bits."""
        return sum(1 for _ in self._items.query(items.RECOMMIT))

    def append_epoch(self, epoch: int, members: Sequence[str]) -> None:
        """Record a membership epoch before it is announced.

        Raises:
            CoordinationError: that epoch was announced already.
        """
        fields = {"epoch": epoch, "members": list(members)}
        if self._items.put(epoch_item(epoch), fields, term=self._writing()) is not None:
            raise repeated_epoch_error(epoch)

    def last_epoch(self) -> tuple[int, list[str]]:
        """Give the newest membership epoch and its members; epoch 0 when there is none."""
        newest = self._items.newest(items.EPOCH)
        return (0, []) if newest is None else (int(newest["epoch"]), list(newest["members"]))

    def append_checkpoint(self, step: int, state_hash: str, path: str) -> None:
        """Record a durable checkpoint of the state after `step` applied steps.

        Raises:
            CoordinationError: that state has another hash in the log.
        """
        there = self._items.put(
            checkpoint_item(step),
            {"step": step, "state_hash": state_hash, "path": path},
            term=self._writing(),
            condition=f"{ABSENT} OR state_hash = :state",
            values={":state": state_hash},
        )
        if there is not None:
            raise changed_state_error(step, str(there["state_hash"]), state_hash)

    def checkpoints(self) -> list[tuple[int, str, str]]:
        """Give (applied steps, state hash, path) of each recorded checkpoint in order."""
        return [(step, state, path) for step, state, path, _ in self._checkpoints()]

    def _checkpoints(self) -> list[tuple[int, str, str, float]]:
        return [
            (int(row["step"]), str(row["state_hash"]), str(row["path"]), float(row["time"]))
            for row in self._items.query(items.CHECKPOINT)
        ]

    def rows(self) -> LogRows:
        """Give everything that the log holds."""
        rows = self._items.query
        return LogRows(
            commits=[(items.commit_of(row), float(row["time"])) for row in rows(items.COMMIT)],
            recommits=[
                (int(row["step"]), int(row["epoch"]), float(row["time"]))
                for row in rows(items.RECOMMIT)
            ],
            epochs=[
                (int(row["epoch"]), tuple(row["members"]), float(row["time"]))
                for row in rows(items.EPOCH)
            ],
            checkpoints=self._checkpoints(),
        )

    def address(self) -> CoordinatorAddress | None:
        """Give what the last coordinator published in this log, None where nobody did."""
        return items.address_of(self._items.get(COORDINATOR_ITEM) or {})

    def publish(self, address: CoordinatorAddress) -> None:
        """Say where this coordinator listens, to whoever can read the log.

        Raises:
            SupersededError: another coordinator has taken over.
        """
        fields = {
            "host": address.host,
            "port": address.port,
            "pid": address.pid,
            "token": address.token,
            "published": time.time(),
        }
        self._items.update_coordinator(fields, term=self._writing())

    def check_alone(self) -> None:
        """Make sure that no other coordinator has taken over.

        Raises:
            SupersededError: one has.
        """
        newest = (self._items.get(COORDINATOR_ITEM) or {}).get("term", 0)
        if newest != self._term:
            raise self._items.superseded(self._term)

    def _writing(self) -> int:
        if not self._term:
            raise CoordinationError("the commit log was opened for reading")
        return self._term
