"""What the coordinator's state machine asks the server to do, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from runtime.coordinator.commit_log import Commit
from runtime.coordinator.wire import Message

Phase = Literal["gather", "load", "run", "finish", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to an island."""

    island: str
    message: Message


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection of an island."""

    island: str
    reason: str


@dataclass(frozen=True, slots=True)
class AppendCommit:
    """Make a commit durable in the log."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class AppendEpoch:
    """Make a membership epoch durable in the log."""

    epoch: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppendCheckpoint:
    """Record a durable checkpoint in the log."""

    step: int
    state_hash: str
    path: str


@dataclass(frozen=True, slots=True)
class Emit:
    """Write one line of `events.jsonl`."""

    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the coordinator; the run is `done`, `stopped` or `failed`."""

    phase: Phase


Action = Send | Close | AppendCommit | AppendEpoch | AppendCheckpoint | Emit | Finish
