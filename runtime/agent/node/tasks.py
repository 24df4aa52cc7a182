"""A task's token: heartbeats while the work is done, and one answer at its end.

Step Functions waits for the token that came with the work. A token whose wait is over (the task
timed out, was given again, or the execution was stopped) is *stale*: nobody hears what is said
about it, so whatever is being done for it ends.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runtime.spec.aws import AwsError, aws_client, aws_errors, error_code

__all__ = ["Failure", "Heartbeats", "StaleTokenError", "Success", "Task"]

_STALE: Final = frozenset({"TaskTimedOut", "TaskDoesNotExist", "InvalidToken"})
_MAX_CAUSE: Final = 30_000
_BEATS_IN_INTERVAL: Final = 4


class StaleTokenError(Exception):
    """Nobody waits for this token any more."""


@dataclass(frozen=True, slots=True)
class Success:
    """The work is done.

    Attributes:
        output: what the state machine gets.
    """

    output: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """The work is not done.

    Attributes:
        error: one of `runtime.spec.account.FAILURES`.
        cause: why, for people.
    """

    error: str
    cause: str


class Task:
    """One task token.

    Args:
        token: the token.
        region: region of the state machine.
    """

    def __init__(self, token: str, *, region: str) -> None:
        self._token = token
        self._states: Any = aws_client("stepfunctions", region=region)

    def beat(self) -> None:
        """Say that the work goes on.

        Raises:
            StaleTokenError: nobody waits for it.
            AwsError: Step Functions cannot be reached.
        """
        self._say("send_task_heartbeat")

    def answer(self, answer: Success | Failure) -> None:
        """Say how the work ended; once.

        Raises:
            StaleTokenError: nobody waits for it.
            AwsError: Step Functions cannot be reached.
        """
        if isinstance(answer, Success):
            self._say("send_task_success", output=json.dumps(dict(answer.output)))
        else:
            cause = answer.cause[-_MAX_CAUSE:]
            self._say("send_task_failure", error=answer.error, cause=cause)

    def _say(self, method: str, **fields: str) -> None:
        with aws_errors("answer the state machine"):
            try:
                getattr(self._states, method)(taskToken=self._token, **fields)
            except Exception as error:
                if hasattr(error, "response") and error_code(error) in _STALE:
                    raise StaleTokenError from error
                raise


class Heartbeats:
    """Heartbeats of a task from a thread of their own, so that no download or stall delays them.

    Use it as a context manager around the work.

    Args:
        task: the task.
        interval_s: silence after which the state machine gives the work again, in seconds; a
            heartbeat goes out four times as often.
        on_stale: called once, from the thread, when nobody waits any more.
    """

    def __init__(self, task: Task, *, interval_s: float, on_stale: Callable[[], None]) -> None:
        self._task, self._on_stale = task, on_stale
        self._every_s = interval_s / _BEATS_IN_INTERVAL
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def __enter__(self) -> None:
        """Begin."""
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End, and wait for it."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                self._task.beat()
            except StaleTokenError:
                self._on_stale()
                return
            except AwsError:
                # Tried again with the next one; if AWS stays silent the state machine gives the
                # work to somebody else, and the first heartbeat that gets through says so.
                continue
