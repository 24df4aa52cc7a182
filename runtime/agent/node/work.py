"""What every kind of work is made of: fetch, a process, side duties meanwhile, a verdict at its end.

The daemon calls `prepare` and `side` from threads of their own, everything else from its main one.
`side` runs in no two threads at once and has ended before `judge` is called.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runtime.agent.node.child import Command
from runtime.agent.node.place import Place
from runtime.agent.node.tasks import Failure, Success
from runtime.spec.account import RUN_ITEM, Work, run_key
from runtime.spec.aws import AwsError
from runtime.spec.errors import LumaError, RunError

__all__ = [
    "Given",
    "WorkDoer",
    "failure_of",
    "last_commit",
    "may_pass",
    "private_write",
    "read_run",
]

SIDE_EVERY_S = 1.0
"""Seconds between two rounds of side duties."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A work, where it is done, and with what.

    Attributes:
        work: the message.
        place: the node's.
        folder: its scratch run folder; empty at the start, gone at the end.
        cancelled: whether the work is to be given up; asked while fetching.
        complain: takes a line for the daemon's own log.
    """

    work: Work
    place: Place
    folder: Path
    cancelled: Callable[[], bool]
    complain: Callable[[str], None]


class WorkDoer(Protocol):
    """One kind of work being done."""

    graceful: bool
    """Whether its process can be asked to leave; else it is killed, which loses nothing."""

    def prepare(self) -> Success | Failure | None:
        """Fetch what is needed; an answer where nothing is to be done, or nothing can be."""
        ...

    def command(self) -> Command:
        """Give what is to be started."""
        ...

    def side(self) -> None:
        """Do the side duties once.

        Raises:
            AwsError: AWS did not do its part; tried again in the next round.
        """
        ...

    def judge(self, code: int, tail: str) -> Success | Failure:
        """Give what the process's end means.

        Args:
            code: its exit code, negative for a signal.
            tail: the last lines of its log.

        Raises:
            AwsError: the records cannot be read.
        """
        ...

    def noticed(self, kind: str) -> None:
        """Record that this node leaves on a notice."""
        ...

    def close(self) -> None:
        """Put away what is to be kept, whatever the end was."""
        ...


def read_run(place: Place, run: str) -> dict[str, Any]:
    """Read a run's item.

    Raises:
        RunError: there is none.
        AwsError: the table cannot be read.
    """
    item = place.table.get(run_key(run), RUN_ITEM)
    if item is None:
        raise RunError(
            f"run '{run}' is not in table '{place.table.name}'",
            remedy="prepare it with `luma launch`",
        )
    return item


def last_commit(place: Place, run: str) -> int:
    """Give the highest committed step of a run, -1 where there is none.

    Raises:
        AwsError: the table cannot be read.
    """
    newest = place.table.newest(run_key(run), "COMMIT#")
    return -1 if newest is None else int(newest["step"])


def may_pass(error: LumaError) -> bool:
    """Say whether the same may succeed later: AWS was busy, or gone, or late with credentials.

    A node's credentials are its role's, from the metadata service, which may be slow or renew them in
    this moment: they are never a fault of the job.
    """
    return isinstance(error, AwsError) and error.elsewhere


def failure_of(error: LumaError, otherwise: str, retryable: str) -> Failure:
    """Give the failure for an error met while fetching.

    Args:
        error: the error.
        otherwise: the code where another attempt would meet it again.
        retryable: the code where it would not.
    """
    return Failure(retryable if may_pass(error) else otherwise, error.diagnostics())


def private_write(path: Path, data: bytes) -> None:
    """Write a file for this user alone.

    Raises:
        RunError: the disk refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error


def empty_folder(path: Path) -> None:
    """Make a folder that is empty, whatever a crash has left there.

    Raises:
        RunError: the disk refuses.
    """
    try:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise RunError(f"{path}: cannot be made ({error.strerror})") from error
