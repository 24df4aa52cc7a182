"""What a commit log promises, wherever it lies.

The log says which steps are committed, by whom and with which sum. A row is durable before anyone
is told of it. A step that is computed again after all islands died must give the hash that its row
holds; that second time is kept as a recommit, so that the certificate can count it. Two stores keep
the promise: a SQLite file of the run folder (`log`) and a DynamoDB table (`log_dynamodb`).

One coordinator writes at a time. In a run folder a file lock sees to it; in the table each
coordinator takes the next *term* when it opens the log, and every write of an older term is
refused: a coordinator that was cut off and replaced cannot commit any more, and steps down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.coordinator.client import CoordinatorAddress
from runtime.spec.errors import CoordinationError


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


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRows:
    """Everything that a log holds, each row with the time of its writing (seconds since 1970).

    Attributes:
        commits: (commit, time) in order of the step.
        recommits: (step, epoch, time) in order of the step.
        epochs: (epoch, members, time) in order.
        checkpoints: (applied steps, state hash, path, time) in order.
    """

    commits: Sequence[tuple[Commit, float]]
    recommits: Sequence[tuple[int, int, float]]
    epochs: Sequence[tuple[int, tuple[str, ...], float]]
    checkpoints: Sequence[tuple[int, str, str, float]]


class SupersededError(CoordinationError):
    """Another coordinator has taken this run's log over: this one may write nothing any more."""


class CommitLog(Protocol):
    """The log of one run: one writer, any number of readers.

    Every method raises a `LumaError` where the store cannot be used; writing ones raise
    `SupersededError` where another coordinator has taken over.
    """

    def last_step(self) -> int:
        """Give the highest committed step, -1 when there is none."""
        ...

    def sum_hash(self, step: int) -> str | None:
        """Give the hash of a committed step's sum, or None when it is not committed."""
        ...

    def append(self, commit: Commit) -> bool:
        """Make a commit durable; True when the step was new, False when it was recomputed.

        Raises:
            CoordinationError: the step is committed already with another sum, or it would leave
                a gap in the history.
        """
        ...

    def commits(self) -> list[Commit]:
        """Give every committed step in order."""
        ...

    def recommit_count(self) -> int:
        """Give how many committed steps were computed a second time, with the same bits."""
        ...

    def append_epoch(self, epoch: int, members: Sequence[str]) -> None:
        """Record a membership epoch before it is announced.

        Raises:
            CoordinationError: that epoch was announced already.
        """
        ...

    def last_epoch(self) -> tuple[int, list[str]]:
        """Give the newest membership epoch and its members; epoch 0 when there is none."""
        ...

    def append_checkpoint(self, step: int, state_hash: str, path: str) -> None:
        """Record a durable checkpoint of the state after `step` applied steps.

        Raises:
            CoordinationError: that state has another hash in the log.
        """
        ...

    def checkpoints(self) -> list[tuple[int, str, str]]:
        """Give (applied steps, state hash, path) of each recorded checkpoint in order."""
        ...

    def rows(self) -> LogRows:
        """Give everything that the log holds."""
        ...

    def address(self) -> CoordinatorAddress | None:
        """Give what the last coordinator published in this log, None where nobody did."""
        ...

    def publish(self, address: CoordinatorAddress) -> None:
        """Say where this coordinator listens, to whoever can read the log."""
        ...

    def check_alone(self) -> None:
        """Make sure that no other coordinator has taken over.

        Raises:
            SupersededError: one has.
        """
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...


def gap_error(step: int, last: int) -> CoordinationError:
    """Give the error for a commit that would leave a gap."""
    return CoordinationError(f"step {step} cannot follow step {last} in the commit log")


def changed_sum_error(step: int, known: str, found: str) -> CoordinationError:
    """Give the error for a step that was recomputed with other bits."""
    return CoordinationError(
        f"step {step} was committed with sum {known} and was now recomputed as {found}; "
        "a recomputed step must have the same bits",
        remedy="run on the same chip class, artifact and data as before",
    )


def repeated_epoch_error(epoch: int) -> CoordinationError:
    """Give the error for an epoch that is in the log already."""
    return CoordinationError(
        f"membership epoch {epoch} is in the commit log already; another coordinator announced it",
        remedy="stop the other one, then `luma launch --resume`",
    )


def changed_state_error(step: int, known: str, found: str) -> CoordinationError:
    """Give the error for a checkpoint whose state has another hash in the log."""
    return CoordinationError(f"the state after step {step} has hash {found}, the log holds {known}")
